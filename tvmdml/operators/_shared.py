"""Pairs of tensors in the same memory, as files have them: the word ``in_place`` beside an operator's line.

``False`` means no pair, and ``True`` the first pair of the operator's ``SHARES``. Other pairs are a text of DirectML's names:
``"BTensor=OutputTensor"``, with a comma between several.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.operators._contract import Operator, Shared

InPlace = bool | str


def ways(desc: Operator) -> Iterator[Shared]:
    """All ways in which an operator's tensors may share memory, none first. An input shares the memory of one output at most."""
    pairs = desc.shareable()
    inputs = dict.fromkeys(source for source, _ in pairs)
    choices = ([None, *(pair for pair in pairs if pair[0] == source)] for source in inputs)
    for chosen in itertools.product(*choices):
        yield tuple(pair for pair in pairs if pair in chosen)


def write(desc: Operator, shared: Shared) -> InPlace:
    """The pairs as a file has them."""
    if not shared or shared == desc.pairs()[:1]:
        return bool(shared)
    return ", ".join(_text(desc, pair) for pair in shared)


def read(desc: Operator, given: object, where: str) -> Shared:
    """The pairs of what a file has, in the order of ``shareable``.

    Raises:
        InvalidArgument: these tensors cannot share memory.
    """
    if given is True:
        return _checked(desc, desc.pairs()[:1] or None, "true", where)
    known = {_text(desc, pair): pair for pair in desc.pairs()}
    found = [known.get(name.strip()) for name in given.split(",")] if isinstance(given, str) else [] if given is False else None
    return _checked(desc, found, "false" if given is False else safe_repr(given), where)


def check(desc: Operator, shared: object, where: str) -> Shared:
    """The pairs, in the order of ``shareable``.

    Raises:
        InvalidArgument: they are not pairs of this operator's tensors that can share memory.
    """
    return _checked(desc, shared, safe_repr(shared), where)


def _checked(desc: Operator, shared: Any, shown: str, where: str) -> Shared:
    pairs = desc.shareable()
    known = isinstance(shared, (tuple, list)) and all(pair in pairs for pair in shared)
    if known and len({source for source, _ in shared}) == len(shared):
        return tuple(pair for pair in pairs if pair in shared)
    allowed = ", ".join(["false", *(f'"{_text(desc, pair)}"' for pair in pairs)])
    advice = "Only some operators can be in place, and only with an input of the output's type, sizes and strides, once each."
    raise InvalidArgument(message(where, f"in_place = {shown} for {desc.NAME}", allowed, advice))


def _text(desc: Operator, pair: tuple[str, str]) -> str:
    names = {field.name: field.dml_name for field in desc.fields()}
    parts = (name.partition("[") for name in pair)
    return "=".join(names[field] + bracket + number for field, bracket, number in parts)
