"""Which reference cases run when not all do: of each operator those that differ most from one another.

An operator's cases are drawn until each of its facts is in one of them: each type and rank of each tensor, each value of an
attribute that is a word or a truth value, each optional tensor present and absent, layouts, shared memory, inputs, and how windows
lie. Then others
follow, up to ``LEAST``. The seed of the inputs is the seed of the draw.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from tvmdml.operators import Operator
from tvmdml.operators._matrix_convolution import Convolving
from tvmdml.operators._window import Window
from tvmdml.proof.conformance.references import ReferenceCase
from tvmdml.tensors import TensorDesc

LEAST = 16
"""The fewest cases of an operator that has as many."""
_MANY = 10_000
"""Elements that are worth more than one thread."""


def drawn(checks: Iterable[ReferenceCase], seed: int) -> list[ReferenceCase]:
    """Some of the cases, in their order."""
    found: list[ReferenceCase] = []
    for name, own in itertools.groupby(checks, lambda check: check.operator):
        found += _of_operator(list(own), random.Random(f"{seed} {name}"))  # noqa: S311 - every run draws the same
    return found


def _of_operator(checks: Sequence[ReferenceCase], rng: random.Random) -> list[ReferenceCase]:
    facts = [facts_of(check) for check in checks]
    left = rng.sample(range(len(checks)), len(checks))
    missing: set[object] = set().union(*facts)
    chosen: list[int] = []
    while missing:
        best = max(left, key=lambda i: len(facts[i] & missing))
        left.remove(best)
        chosen.append(best)
        missing -= facts[best]
    chosen += left[: max(LEAST - len(chosen), 0)]
    return [checks[i] for i in sorted(chosen)]


def facts_of(check: ReferenceCase) -> frozenset[object]:
    """What sets a case apart from others of its operator."""
    desc, fill, shared = check.case
    return frozenset([*_of_tensors(desc), *_of_attributes(desc), *of_windows(desc), ("input", fill), *shared])


def _of_tensors(desc: Operator) -> Iterator[object]:
    for name, tensor in desc.tensors():
        if tensor is None:
            yield name, "absent"
            continue
        yield name, tensor.data_type.tvm
        yield name, tensor.rank
        if tensor.strides is not None:
            yield name, "strides", 0 in tensor.strides
        yield name, "many", tensor.element_count >= _MANY


def _of_attributes(desc: Operator) -> Iterator[object]:
    for field in desc.fields():
        value = getattr(desc, field.name)
        if isinstance(value, (bool, enum.Enum)):
            yield field.name, str(value)
        elif isinstance(value, Operator):
            yield field.name, value.NAME
        elif value is None or not isinstance(value, (TensorDesc, int, float, tuple)):
            yield field.name, type(value).__name__


def of_windows(desc: Operator) -> Iterator[object]:
    """How the windows of a window operator or a convolution lie along each dimension; nothing of other operators."""
    for size, span, stride, start, end in _windows(desc):
        if start >= span:
            yield "windows", "in the padding before"
        if end >= span:
            yield "windows", "in the padding behind"
        if stride > span:
            yield "windows", "with gaps"
        if span > size:
            yield "windows", "over the image"


def _windows(desc: Operator) -> Iterator[tuple[int, int, int, int, int]]:
    """Along each dimension the image's size, a window's span, the stride and both paddings."""
    if isinstance(desc, Window) and desc.whole().rank in (4, 5):
        for along in desc.windows():
            yield desc.whole().sizes[along.dimension], along.span, along.stride, along.start, along.end
    elif isinstance(desc, Convolving):
        for one in desc.along():
            yield one.image, one.span, one.stride, one.start, one.end
