"""Many indices at once: they are brought into range as vectors, and the elements that they mean are loaded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.movement import CoordinateRule
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._woven import unwoven

AT_ONCE = 16
"""Indices of a tuple's place that are looked at together."""
KEPT = 112
"""Offsets that are computed before the first of them is used: one that was just stored as a part of a vector is not there soon."""


def picked(rules: Sequence[tuple[CoordinateRule, Sequence[Any]]], at: Sequence[Any], narrow: str, kind: str, unit: bool) -> Any:
    """The offsets of the elements that tuples of indices mean, from these coordinates on along a row: a vector.

    Args:
        rules: the rules ``picked`` of the tuples' indices, each with the transfer's buffers. Tuples are contiguous.
        at: the coordinates of the first element.
        narrow: the type in which indices of 32 bits can be compared with all sizes.
        kind: the type that all offsets fit into.
        unit: whether the source's steps are 1.
    """
    first, buffers = rules[0]
    assert first.look is not None
    place, indices = T.let(movement.value(first.look.place, at)), buffers[first.look.tensor]
    runs = [T.let(indices[T.run(T.let(place + i * AT_ONCE), AT_ONCE)]) for i in range(len(rules))]
    total = None
    for (rule, _), run in zip(rules, unwoven(runs), strict=True):
        own = T.cast(_clamped(run, rule.size, narrow), f"{kind}x{AT_ONCE}")
        own = own if unit else own * _splat(rule.step, kind)
        total = own if total is None else total + own
    return T.let(total)


def alike(
    leaves: Leaves, indices: Any, place: Any, count: Any, size: Any, narrow: str, part: tuple[Any, Any] | None = None
) -> tuple[Any, Any, Any]:
    """Whether all indices of some vectors from a place on are in range, or in a part of it, and all or none count from the end.

    Returns:
        That, a place to load them from one by one, and what is added to each of them.
    """
    # LLVM would take a vector apart that was just loaded, which takes longer than to load its elements.
    again = leaves.apart(place)
    dtype = str(indices.dtype)
    bits = "64" if dtype.endswith("64") else narrow.removeprefix("int")
    kind, whole = f"uint{bits}", T.const((1 << AT_ONCE) - 1, f"uint{AT_ONCE}")
    more, limit = T.const(0, kind), T.let(T.cast(size, kind))
    if dtype.startswith("int"):
        more = T.let(T.Select(indices[again] < T.const(0, dtype), limit, more))
    low, high = (T.let(T.cast(one, kind)) for one in part or (T.i64(0), size))
    shift, width = T.let(T.splat(more - low, AT_ONCE)), T.let(T.splat(high - low, AT_ONCE))
    fits = T.Variable(f"uint{AT_ONCE}", whole)
    with T.loop(count) as i:
        run = indices[T.run(T.let(place + i * AT_ONCE), AT_ONCE)]
        run = T.cast(run, f"{'int' if dtype.startswith('int') else 'uint'}{bits}x{AT_ONCE}") if not dtype.endswith(bits) else run
        run = T.reinterpret(f"{kind}x{AT_ONCE}", run)
        fits.set(fits.value & leaves.bits(run + shift < width))
    return fits.value == whole, again, T.let(T.cast(more, "int64"))


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
