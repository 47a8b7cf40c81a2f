"""Random words: against NumPy's Philox, which makes words of 64 bits, in one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tvmdml
from tvmdml.proof.bench.cases import LAUNCH, MOVES, WITHIN_3, Case, Group, K, M
from tvmdml.proof.bench.task import Kind, Task
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("random")


def random(*sizes: int, door: str = "bound", layout: str = "packed") -> Work:
    """RANDOM_GENERATOR, with the new state."""
    values = Operand(sizes, "uint32", "", layout)
    return Work.on("RANDOM_GENERATOR", Operand((6,), "uint32"), door=door, output_tensor=values, output_state_tensor="uint32")


def _function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    return partial(tvmdml.random_generator, arrays[0], task.desc.outputs()[0].sizes)


KIND = Kind(function=_function, free=True)


def _goals() -> Iterator[Case]:
    for point, size, goal in (("64", 64, None), ("4K", 4 * K, None), ("64K", 64 * K, 3), ("1M", M, 3), ("16M", 16 * M, 3)):
        yield Case("random", point, random(size), goal, point in ("64", "1M"), group=GROUP if goal else None)
    yield Case("random", "1M, function", random(M, door="function"))
    yield Case("strided", "random, padded rows", random(K, K, layout="padded"), WITHIN_3, baseline=random(K, K))


CASES = tuple(_goals())
CASES_ON = {
    "cuda": (
        Case("random", "64", random(64), quick=True, share=LAUNCH),
        Case("random", "64M", random(64 * M), quick=True, share=MOVES),
    )
}
