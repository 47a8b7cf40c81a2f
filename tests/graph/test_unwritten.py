"""No result shows memory that nobody wrote: whatever results and intermediate memory held before, the bytes are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml import packs
from tvmdml.targets import Target

Case = tuple[Callable[..., Sequence[Any]], tuple[Any, ...]]


def normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


LENGTHS = np.array([2, 6, 0], np.uint32)
SOME = (normal(30, 40) > 1).astype(np.float32)
PLACES = np.random.default_rng(1).permutation(2400)[:24].reshape(1, 2, 3, 4).astype(np.uint32)
CASES: dict[str, Case] = {
    "nonzero coordinates": (lambda x: tvmdml.nonzero_coordinates(x, trim=False), (SOME,)),
    "no nonzero coordinates": (lambda x: tvmdml.nonzero_coordinates(x, trim=False), (0 * SOME,)),
    "unpooling": (lambda x, i: [tvmdml.max_unpooling(x, i, output_sizes=(1, 2, 40, 30))], (normal(1, 2, 3, 4), PLACES)),
    "unpooling out of range": (
        lambda x, i: [tvmdml.max_unpooling(x, i, output_sizes=(1, 2, 40, 30))],
        (normal(1, 2, 3, 4).astype(np.float16), PLACES + np.uint32(2300)),
    ),
    "padded batches of an LSTM": (
        lambda x, w, r, n: [*tvmdml.lstm(x, w, r, sequence_lengths=n)],
        (normal(1, 6, 3, 4), normal(1, 1, 20, 4), normal(1, 1, 20, 5), LENGTHS.reshape(1, 1, 1, 3)),
    ),
    "padded batches of a GRU": (
        lambda x, w, r, n: [*tvmdml.gru(x, w, r, sequence_lengths=n)],
        (normal(1, 6, 3, 4), normal(1, 1, 15, 4), normal(1, 1, 15, 5), LENGTHS.reshape(1, 1, 1, 3)),
    ),
    "a cache of which a part is given": (
        lambda x, y: [tvmdml.join([x[:, :3], y], axis=1)[:, :5], x[:, 2:]],
        (normal(2, 8), normal(2, 4)),
    ),
}


def arrays_of(target: Target, arrays: Sequence[Any]) -> list[Any]:
    return [target.asarray(one) if target.moves else one.copy() for one in arrays]


def bytes_after(compiled: tvmdml.CompiledGraph, target: Target, given: Sequence[Any], before: int) -> list[bytes]:
    """The results of a run in memory that is full of a byte, and of a call that makes new arrays where such memory was freed."""
    wanted = compiled(list(given))
    filled = [np.full(one.nbytes, before, np.uint8).view(one.dtype).reshape(one.shape) for one in wanted]
    outputs = arrays_of(target, filled)
    for arena in compiled._arenas:
        content = np.full(arena.nbytes, before, np.uint8).view(arena.dtype).reshape(arena.shape)
        arena.write(content) if target.moves else np.copyto(arena, content)
    compiled.bind(arrays_of(target, given), outputs)()
    if target.moves:
        target.wait()
    found = [one.numpy() if target.moves else one for one in outputs]
    freed = arrays_of(target, filled)
    del freed
    return [one.tobytes() for one in (*found, *compiled(list(given)))]


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", CASES)
def test_results_do_not_depend_on_what_memory_held(name: str, target: Target) -> None:
    make, given = CASES[name]
    graph = tvmdml.Graph()
    compiled = graph.compile([*make(*(graph.input(one.shape, one.dtype.name) for one in given))], target)
    assert bytes_after(compiled, target, given, 0x11) == bytes_after(compiled, target, given, 0xEE)


@pytest.mark.full
def test_those_of_a_pack_do_not_either(tmp_path: Path) -> None:
    target = tvmdml.targets.resolve("cpu")
    for number, (make, given) in enumerate(CASES.values()):
        graph = tvmdml.Graph(f"case{number}")
        compiled = graph.compile([*make(*(graph.input(one.shape, one.dtype.name) for one in given))], "cpu")
        tvmdml.save_graph(compiled, tmp_path / f"{number}.graph")
        packs.build(tmp_path / f"{number}.graph", tmp_path / f"{number}.pack", targets=("cpu",), jobs=1)
        packed = tvmdml.load_graph(tmp_path / f"{number}.pack")
        assert bytes_after(packed, target, given, 0x11) == bytes_after(compiled, target, given, 0xEE)
