"""What to tune of a graph or an ONNX model: its distinct kernels, with their shares of the time of a run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tvmdml.graph.nodes import Input
from tvmdml.library.spec import Wanted
from tvmdml.packs import graphs
from tvmdml.targets import Target

_RUNS = 5
_LEAST_TRIALS = 4


class Share(NamedTuple):
    """A kernel, and its part of the time."""

    wanted: Wanted
    share: float
    trials: int


def shares(source: graphs.GraphSource, target: Target, trials: int) -> list[Share]:
    """The distinct kernels of a graph, the heaviest first.

    Args:
        source: the graph.
        target: where it runs once more for each kernel's time.
        trials: the average number of trials of a kernel; a kernel gets its share of all.
    """
    ((planned,), *_) = graphs.planned([source], [(target.name, target)])
    compiled = planned.plan.compiled()
    owned = [node for node in compiled.inputs() if node.owned]
    if owned:
        compiled.initialize([_made_up(node) for node in owned])
    given = [_made_up(node) for node in compiled.inputs() if not node.owned]
    runs = [[one.nanoseconds for one in compiled.profile(given)] for _ in range(_RUNS)]
    spent: dict[Wanted, float] = {}
    for called, times in zip(planned.plan.calls, zip(*runs, strict=True), strict=True):
        wanted = Wanted(called.desc, called.shared)
        spent[wanted] = spent.get(wanted, 0) + min(times)
    whole = sum(spent.values()) or 1.0
    found = [Share(one, time / whole, max(_LEAST_TRIALS, round(trials * len(spent) * time / whole))) for one, time in spent.items()]
    return sorted(found, key=lambda one: -one.share)


def _made_up(node: Input) -> Any:
    return np.zeros(() if getattr(node.desc, "zero_dimensional", False) else node.desc.sizes, node.dtype)
