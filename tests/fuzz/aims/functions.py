"""Functions: any arguments in place of right ones; a result is what NumPy would make of the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import plain

import tvmdml
from fuzz import hostile
from fuzz.choices import FLOATS_16, Choices
from fuzz.oracle import refusals

EXAMPLES = 140
_PLAIN = (int, str, float, bool, type(None), tvmdml.RoundingMode, tvmdml.AxisDirection)
_FLOATS, _NUMBERS = ("f4", "f2", "f8"), ("f4", "f2", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
_MODES = (
    "halves_to_nearest_even", "toward_zero", "toward_infinity", 0, 1, tvmdml.RoundingMode.TOWARD_ZERO,
    "DML_ROUNDING_MODE_TOWARD_ZERO",
)  # fmt: skip
_INDEX = ("uint32", "uint64", "int32", "int64", np.int64)


def one(choices: Choices) -> None:
    """A right call, with some of its arguments changed for others; twice, for the second goes another way."""
    function, given, expected = choices.pick(_CALLS)(choices)
    wild = False
    for _ in range(choices.integer(0, 2)):
        name = choices.pick((*given, *(("device",) if function is tvmdml.nonzero_coordinates else ("out", "device"))))
        given[name] = hostile.value(choices, 3) if choices.flag() else _odd(choices, name, given)
        wild = True
    first = given.pop("input", None)
    with _changing(first if choices.flag(20) else None) as changes:
        for _ in range(2):
            with refusals(MemoryError):
                found = function(first, **given)
                if not wild and not changes:
                    _compare(found, expected)
                elif isinstance(found, tuple) and function is tvmdml.top_k and type(first) is np.ndarray and first.size:
                    axis = given.get("axis", -1)
                    if type(axis) is int and first.ndim and type(found.indices) is np.ndarray:
                        assert (found.indices < first.shape[axis]).all(), "an index that is none"


def _compare(found: Any, expected: Callable[[], Any]) -> None:
    for mine, right in zip(found if isinstance(found, tuple) else (found,), expected(), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), right)


def _odd(choices: Choices, name: str, given: dict[str, Any]) -> Any:
    """Something that is nearly right."""
    first = given.get("input")
    if name == "input":
        return hostile.array(choices)
    if name == "out" and isinstance(first, np.ndarray):
        return _out(choices, first)
    if name == "device":
        return choices.pick(
            ("cpu", "cpu:0", "cpu:x86-64-v2", "cuda:sm_90", "vulkan:99", "cpu ", "CPU", tvmdml.targets.resolve("cpu"), "", 0)
        )
    if name in ("k", "axis", "diagonal_fill_begin", "diagonal_fill_end", "value"):
        return hostile.integer(choices)
    if name in ("sizes",):
        return choices.several(lambda: hostile.integer(choices), 9)
    return choices.text(hostile.WORDS)


def _out(choices: Choices, first: Any) -> Any:
    """Outputs that lie in the input, in each other, beside it, or nowhere."""
    both = (first, first) if choices.flag(3) else (np.empty(first.shape, first.dtype), np.empty(first.shape, np.uint32))
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: first, lambda: first[::-1] if first.ndim else first, lambda: both, lambda: list(both), lambda: both[0],
        lambda: (), lambda: hostile.array(choices), lambda: hostile._frozen(choices, both[0]),
        lambda: hostile.Speaker(both[0], choices), lambda: first.reshape(-1)[1:].reshape(-1) if first.size else first,
        lambda: np.lib.stride_tricks.as_strided(first, first.shape, [0] * first.ndim), lambda: memoryview(both[0]),
        lambda: (both[0], hostile.array(choices)),
    )  # fmt: skip
    return choices.pick(kinds)()


@contextmanager
def _changing(array: Any) -> Any:
    """Another thread changes the array meanwhile."""
    if type(array) is not np.ndarray or not array.flags.writeable or array.dtype.kind not in "fiu":
        yield False
        return
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            array.fill(1)
            array.fill(0)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield True
    finally:
        over.set()
        thread.join()


# -- Right calls, and what comes of them --------------------------------------------------------------------------


def _input(choices: Choices, dtypes: tuple[str, ...], least_rank: int = 0) -> Any:
    """An array of few forms: a new form may take a new kernel, and that takes long."""
    sizes = tuple(choices.several(lambda: choices.pick((3, 1, 2, 5, 8)), 3, least_rank))
    found = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
    found = (found * choices.pick((1, 3, 5)) % 11).astype(choices.pick(dtypes))
    if found.dtype.kind == "f":
        found = found / 2 - 2
        if choices.flag() and found.size:
            found.flat[choices.integer(0, found.size - 1)] = choices.pick(FLOATS_16)
    elif found.dtype.kind == "i":
        found -= 3
    if found.ndim and choices.flag(3):
        found = choices.pick((lambda x: x[::-1], lambda x: x.T, lambda x: x[..., ::2], lambda x: x.astype(x.dtype.newbyteorder())))(
            found
        )
    return found


def _round(choices: Choices) -> Any:
    x = _input(choices, _FLOATS)
    mode = choices.pick(_MODES)
    desc = SimpleNamespace(rounding_mode=tvmdml.RoundingMode.parse(mode, ""))
    return tvmdml.round, {"input": x, "rounding_mode": mode}, lambda: plain.rounded(desc, np.array(x))


def _top_k(choices: Choices) -> Any:
    x = _input(choices, _NUMBERS, 1)
    axis = choices.integer(-x.ndim, x.ndim - 1)
    k = choices.integer(1, x.shape[axis])
    direction, index = choices.pick(("decreasing", "increasing", 0, 1)), choices.pick(_INDEX)

    at = axis % x.ndim
    indices = SimpleNamespace(sizes=(*x.shape[:at], k, *x.shape[at + 1 :]), data_type=SimpleNamespace(numpy=np.int64))
    towards = tvmdml.AxisDirection.parse(direction, "")
    desc = SimpleNamespace(axis=at, k=k, axis_direction=towards, output_index_tensor=indices)
    return (
        tvmdml.top_k,
        {"input": x, "k": k, "axis": axis, "axis_direction": direction, "index_dtype": index},
        lambda: plain.best(desc, x),
    )


def _nonzero(choices: Choices) -> Any:
    x = _input(choices, (*_NUMBERS, "?"))
    return tvmdml.nonzero_coordinates, {"input": x, "trim": True, "index_dtype": choices.pick(_INDEX)}, lambda: (np.argwhere(x),)


def _diagonal(choices: Choices) -> Any:
    x = _input(choices, _NUMBERS, 2)
    value, begin, end = choices.integer(0, 3), choices.integer(-3, 3), choices.integer(-3, 3)
    given: dict[str, Any] = {"input": x, "value": value, "diagonal_fill_begin": begin, "diagonal_fill_end": end}
    if from_nothing := choices.flag(3):
        given.update(input=None, sizes=x.shape, dtype=x.dtype.name)

    like = SimpleNamespace(sizes=x.shape, data_type=SimpleNamespace(numpy=x.dtype))
    return tvmdml.diagonal_matrix, given, lambda: (plain._filled(like, None if from_nothing else x, value, begin, end),)


_CALLS = (_round, _top_k, _nonzero, _diagonal)
