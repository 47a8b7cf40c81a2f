"""Coordinates of nonzero elements, at some densities: how much is written depends on the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tvmdml
from tvmdml.proof.bench.cases import LAUNCH, Case, Group, K, M, strided
from tvmdml.proof.bench.inputs import DENSITIES
from tvmdml.proof.bench.task import Kind, Task
from tvmdml.proof.bench.work import Operand, Traffic, Work

FINDS = 0.7
"""Goal on a device: the share of the rate at which it copies memory."""
SIDE = 8 * K
"""The side of a matrix of 64M elements."""
GROUP = Group("nonzero")


def nonzero(*sizes: int, door: str = "bound", **fields: Any) -> Work:
    """NONZERO_COORDINATES."""
    # The function's form of the count: one element, whatever the rank.
    count: dict[str, Any] = {"output_count_tensor": Operand((1,), "uint32", "")} if len(sizes) > 1 else {}
    return Work.on("NONZERO_COORDINATES", Operand(sizes, **fields), door=door, **count)


def _traffic(task: Task) -> Traffic:
    count = int(task.expected[0].item())
    return Traffic(read=task.x.nbytes, written=4 * (count * task.x.ndim + 1))


def _function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    return partial(tvmdml.nonzero_coordinates, *arrays, trim=False)


KIND = Kind(_traffic, _function, counted=True)


def _goals() -> Iterator[Case]:
    for row, shapes, dtype, goals, quick in (
        ("nonzero f32 1M", ((K, K), (M,), (8, 16, 64, 128)), "float32", (15, 25, 60, 12), tuple(DENSITIES)),
        ("nonzero f32 16M", ((4 * K, 4 * K),), "float32", (5, 12, 30, 6), ("10 %",)),
        ("nonzero bool 1M", ((K, K),), "uint8", (15, 15, 10, 10), ("10 %",)),
    ):
        for sizes in shapes:
            for density, goal in zip(DENSITIES, goals, strict=True):
                work, is_quick = nonzero(*sizes, dtype=dtype, data=density), len(sizes) == 2 and density in quick
                yield Case(row, f"{density}, rank {len(sizes)}", work, goal, is_quick, group=GROUP)


def _layouts() -> Iterator[Case]:
    for point, layout in (("transposed", "transposed"), ("padded rows", "padded")):
        yield strided(f"nonzero f32 10 %, {point}", nonzero(K, K, data="10 %"), layout)


def _on_cuda() -> Iterator[Case]:
    yield Case("nonzero f32, small", "64", nonzero(64, data="10 %"), quick=True, share=LAUNCH)
    yield Case("nonzero f32, small", "4K", nonzero(4 * K, data="10 %"), share=LAUNCH)
    for row, shapes, dtype, quick in (
        ("nonzero f32 1M", ((K, K),), "float32", ("10 %",)),
        ("nonzero f32 64M", ((SIDE, SIDE), (64 * M,)), "float32", tuple(DENSITIES)),
        ("nonzero bool 64M", ((SIDE, SIDE),), "uint8", ("10 %",)),
    ):
        for sizes in shapes:
            for density in DENSITIES:
                large, tenth = math.prod(sizes) == 64 * M, density == "10 %"
                yield Case(
                    row,
                    f"{density}, rank {len(sizes)}",
                    nonzero(*sizes, dtype=dtype, data=density),
                    goal=2.0,
                    quick=len(sizes) == 2 and density in quick,
                    share=FINDS if large and tenth else None,
                    group=GROUP,
                )


CASES = (
    *_goals(),
    *_layouts(),
    Case("one thread", "nonzero f32 16M, 10 %", nonzero(4 * K, 4 * K, data="10 %"), threads=1),
)
CASES_ON = {"cuda": (*_on_cuda(), *_layouts())}
