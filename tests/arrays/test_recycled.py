"""Memory of large results, which is used again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml.tensors.arrays import recycled

ROWS = (64, 1024)
"""Of float32: as many bytes as the smallest array that is worth it."""


@pytest.fixture(autouse=True)
def none_kept() -> Iterator[None]:
    recycled.clear()
    yield
    recycled.clear()


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_when_no_array_and_no_view_has_it() -> None:
    first = recycled.empty(ROWS, np.float32)
    place, view = address(first), first[3:, ::2].T
    del first
    other = recycled.empty(ROWS, np.float32)
    assert address(other) != place
    other[...] = 1
    view[...] = 2
    assert np.all(other == 1)
    del view
    again = recycled.empty((65536,), np.int32)
    assert address(again) == place
    assert again.shape == (65536,)
    assert again.dtype == np.int32
    assert again.flags.c_contiguous
    assert again.flags.writeable
    assert address(again) % 64 == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", "bool"])
def test_arrays_are_as_numpys(dtype: str) -> None:
    for shape in ((), (0, 5), (3,), (7, 300, 301), (1 << 20,)):
        found, wanted = recycled.empty(shape, dtype), np.empty(shape, dtype)
        assert (type(found), found.dtype, found.shape, found.strides) == (np.ndarray, wanted.dtype, wanted.shape, wanted.strides)
        found[...] = 1
        assert found.astype(np.int64).sum() == found.size


def test_results_that_grow_find_the_memory_of_earlier_ones() -> None:
    places = set()
    for rows in range(65, 73):
        array = recycled.empty((rows, 1024), np.float32)
        places.add(address(array))
        del array
    assert len(places) == 1


def test_no_more_is_kept_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycled, "MOST", 1 << 20)
    several = [recycled.empty(ROWS, np.float32) for _ in range(9)]
    kept = recycled._KEPT
    assert kept.bytes == 0
    several.clear()
    assert 0 < kept.bytes <= 1 << 20
    with_too_large = recycled.empty((17, 1 << 14), np.float32)
    before = kept.bytes
    del with_too_large
    assert kept.bytes == before, "a block that is never kept pushed others out"
    recycled.clear()
    assert kept.bytes == 0


def test_threads_never_share_memory() -> None:
    wrong = []

    def work(number: int) -> None:
        for turn in range(300):
            array = recycled.empty(ROWS, np.int32)
            array[:] = mark = number * 1000 + turn
            if not (array[0, 0] == array[-1, -1] == mark and (array == mark).all()):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


@pytest.mark.full
def test_signals_and_forked_processes_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may begin at each line here: in a signal's handler, or in a forked process."""

    def use() -> None:
        first, second = (recycled.empty(ROWS, np.int32) for _ in range(2))
        first[...], second[...] = 1, 2
        assert not np.shares_memory(first, second)
        assert first[-1, -1] == 1

    def use_in_a_fork() -> None:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(100)
            with contextlib.suppress(BaseException):
                use()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def at_each_line(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != recycled.__file__:
            return None
        if event == "line":
            sys.settrace(None)
            if frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                use_in_a_fork()
            use()
            sys.settrace(at_each_line)
        return at_each_line

    lines: set[int] = set()
    monkeypatch.setattr(recycled, "MOST", 3 << 18)
    before = sys.gettrace()
    for _ in range(3):
        use()
        sys.settrace(at_each_line)
        try:
            several = [recycled.empty(ROWS, np.int32) for _ in range(4)]
            assert len({address(one) for one in several}) == 4
            several.clear()
        finally:
            sys.settrace(before)
        assert recycled._KEPT.bytes <= 3 << 18
    assert len(lines) > 15


def test_results_of_graphs_use_it() -> None:
    graph = tvmdml.Graph()
    x = graph.input(ROWS, "float32", name="x")
    compiled = graph.compile([x + 1, x * 2], target="cpu")
    given = np.arange(65536, dtype=np.float32).reshape(ROWS)
    places = []
    for turn in range(3):
        more, twice = compiled({"x": given + turn})
        assert np.array_equal(more, given + (turn + 1))
        assert np.array_equal(twice, (given + turn) * 2)
        places.append({address(more), address(twice)})
        del more, twice
    assert places[0] == places[1] == places[2]
    kept = compiled({"x": given})
    before = [one.copy() for one in kept]
    compiled({"x": given + 5})
    assert all(map(np.array_equal, kept, before))
