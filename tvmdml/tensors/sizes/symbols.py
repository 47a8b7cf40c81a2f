"""Symbols: objects that stand for an integer that is not known yet, such as a size in a graph of PyTorch's.

Descriptors accept a symbol wherever they accept an integer, and compare it with nothing: a comparison could fix its value. A
library's adapter adds its types here, as ``tvmdml.torch`` does. A size that is open
(``tvmdml.tensors.sizes``) is compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tvmdml.tensors.sizes import Size

_integers: tuple[type, ...] = ()
_rules: dict[type, Callable[[Any], bool]] = {}


def add(integer: type, truth: type, expect: Callable[[Any], bool]) -> None:
    """Accept another library's symbols.

    Args:
        integer: the type of its symbols.
        truth: the type of a comparison of symbols.
        expect: called with a comparison that must hold. Returns whether it can hold; the library checks it again with data.
    """
    global _integers
    _integers = (*_integers, integer)
    _rules[truth] = expect


def is_symbol(value: object) -> bool:
    """Whether a value stands for an integer that is not known yet."""
    return isinstance(value, _integers)


def holds(rule: Any) -> bool:
    """Whether a rule holds. A rule about symbols is expected to hold, and is checked again when there is data."""
    expect = _rules.get(type(rule))
    return bool(rule) if expect is None else expect(rule)


def index(value: Any) -> Any:
    """``operator.index``, but a symbol stays itself, and so does a size that is open."""
    return value if type(value) is Size or is_symbol(value) else operator.index(value)
