"""Many indices at once: they are brought into range as vectors, and the elements that they mean are loaded one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.movement import Rule
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._woven import unwoven

AT_ONCE = 16
"""Indices of a tuple's place that are looked at together."""


def picked(rules: Sequence[tuple[Rule, Sequence[Any]]], at: Sequence[Any], narrow: str) -> list[Any]:
    """The offsets of the elements that tuples of indices mean, from these coordinates on along a row.

    Args:
        rules: the rules ``picked`` of the tuples' indices, each with the transfer's buffers. Tuples are contiguous.
        at: the coordinates of the first element.
        narrow: the type in which indices of 32 bits can be compared with all sizes.
    """
    first, buffers = rules[0]
    assert first.look is not None
    place, indices = T.let(movement.value(first.look.place, at)), buffers[first.look.tensor]
    runs = [T.let(indices[T.run(T.let(place + i * AT_ONCE), AT_ONCE)]) for i in range(len(rules))]
    kept = []
    for (rule, _), run in zip(rules, unwoven(runs), strict=True):
        clamped = _clamped(run, rule.size, narrow)
        kept.append(T.local(T.type_of(clamped).partition("x")[0], AT_ONCE))
        T.store(kept[-1], T.run(T.i64(0), AT_ONCE), clamped)
    offsets = []
    for lane in range(AT_ONCE):
        total: Any = T.i64(0)
        for (rule, _), own in zip(rules, kept, strict=True):
            total = total + T.cast(own[lane], "int64") * rule.step
        offsets.append(T.let(total))
    return offsets


def as_they_are(
    rule: Rule, buffers: Sequence[Any], at: Sequence[Any], leaves: Leaves, unit: bool
) -> tuple[Any, Callable[[], list[Any]]]:
    """Whether so many indices of a row are all in range without a change; and then the offsets that they mean."""
    assert rule.look is not None
    place, indices = T.let(movement.value(rule.look.place, at)), buffers[rule.look.tensor]
    run = T.let(indices[T.run(place, AT_ONCE)])
    width = run.ty.dtype.bits
    kind = f"uint{width}"
    # A size of the range or more says that of all indices of its type.
    least = T.let(T.min(rule.size, T.i64((1 << min(width, 63)) - 1)))
    mask = leaves.bits(T.reinterpret(f"{kind}x{AT_ONCE}", run) < _splat(least, kind))

    def offsets() -> list[Any]:
        found = [T.cast(indices[T.let(place + lane)], "int64") for lane in range(AT_ONCE)]
        return [T.let(one if unit else one * rule.step) for one in found]

    return mask == T.const((1 << AT_ONCE) - 1, f"uint{AT_ONCE}"), offsets


def _clamped(run: Any, size: Any, narrow: str) -> Any:
    """A vector of indices in range, as signed integers: a negative one counts from the end, once."""
    kind = T.type_of(run).partition("x")[0]
    bits = kind.removeprefix("u").removeprefix("int")
    own = f"int{bits}" if bits == "64" else narrow
    if kind.startswith("u"):
        wide = f"u{own}"
        run = T.cast(run, f"{wide}x{AT_ONCE}") if wide != kind else run
        limit = _splat(size - 1, wide)
        return T.let(T.cast(T.Select(run < limit, run, limit), f"{own}x{AT_ONCE}"))
    run = T.cast(run, f"{own}x{AT_ONCE}") if own != kind else run
    zero, count, last = (_splat(number, own) for number in (T.i64(0), size, size - 1))
    run = T.let(T.Select(run < zero, run + count, run))
    return T.let(T.max(zero, T.min(run, last)))


def _splat(number: Any, kind: str) -> Any:
    return T.splat(T.let(T.cast(number, kind)), AT_ONCE)
