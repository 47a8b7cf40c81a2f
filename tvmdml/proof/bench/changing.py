"""``tvmdml bench MODEL.onnx --vary NAME=LEAST:MOST:STEP``: what a size costs that was not seen before, beside ONNX Runtime."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, message
from tvmdml.onnx import command
from tvmdml.onnx.model import load
from tvmdml.proof.bench import runner
from tvmdml.proof.bench.models import peer_session
from tvmdml.system.console import printable
from tvmdml.targets import Target, resolve

MOST = 40
"""How many combinations of sizes are run, if there are so many; the first are for warming up."""
_FIRST = 2
_AGAIN = 3
COLUMNS = ("model", "threads", "sizes", "new", "again", "beyond", "ONNX Runtime new", "again there", "worst beyond")


class Seconds(NamedTuple):
    """Of one combination of sizes: the first run, and the least of some that follow."""

    new: float
    again: float


def figures(
    path: str, vary: Mapping[str, range], sizes: Mapping[str, int], target: Target | None, threads: int | None
) -> dict[str, Any]:
    """Run a model at random sizes, each by both libraries in turn; the figures are medians, as the row of a table.

    Args:
        path: the file.
        vary: the values of sizes that change.
        sizes: values of other open sizes.
        target: where to run; ONNX Runtime always runs on the CPU.
        threads: the most threads of both; ``None`` for all.

    Raises:
        ModelError, InvalidArgument, Unsupported: the model cannot be loaded, or a size is missing.
    """
    with runner.limited(threads) as count:
        if twice := sorted(sizes.keys() & vary.keys()):
            raise InvalidArgument(message("bench", f"{', '.join(twice)} by --size and by --vary", "one of both"))
        model = load(path, sizes, target=resolve("cpu") if target is None else target)
        wanted = {name for one in model.inputs for name in one.open_sizes()}
        if vary.keys() != wanted:
            given = f"values of {', '.join(sorted(vary))}"
            raise InvalidArgument(message("bench --vary", given, f"each open size: {', '.join(sorted(wanted)) or 'there is none'}"))
        drawn = _drawn(vary)
        peer, _ = peer_session(path, count)
        names = [one.name for one in model.outputs]
        own, other = list[Seconds](), list[Seconds]()
        for combination in drawn:
            feeds = command.made_up(model, sizes=combination)
            own.append(_timed(partial(model, feeds)))
            if peer is not None:
                other.append(_timed(partial(peer.run, names, feeds)))
    beyond = [1e3 * (one.new - one.again) for one in own[_FIRST:]]
    return {
        "model": printable(Path(path).name),
        "threads": count,
        "sizes": len(own) - _FIRST,
        "new": f"{_median(one.new for one in own[_FIRST:]):.3g} ms",
        "again": f"{_median(one.again for one in own[_FIRST:]):.3g} ms",
        "beyond": f"{np.median(beyond):.3g} ms",
        "ONNX Runtime new": f"{_median(one.new for one in other[_FIRST:]):.3g} ms" if other else "",
        "again there": f"{_median(one.again for one in other[_FIRST:]):.3g} ms" if other else "",
        "worst beyond": f"{max(beyond):.3g} ms",
    }


def run(
    paths: Sequence[str],
    vary: Mapping[str, range],
    sizes: Mapping[str, int],
    target: Target | None,
    threads: int | None,
    write: Callable[[str], object],
    table: Callable[[Sequence[str], Sequence[Mapping[str, Any]]], object],
) -> None:
    """Measure models, and print a table. Kernels that are not in the cache are compiled on the way: the second time has none."""
    rows = []
    for path in paths:
        write(f"measuring {printable(path)}")
        rows.append(figures(path, vary, sizes, target, threads))
    table(COLUMNS, rows)


def _drawn(vary: Mapping[str, range]) -> list[dict[str, int]]:
    """Combinations of sizes, each once, in a random order.

    Raises:
        InvalidArgument: there are too few to leave out those that warm up.
    """
    lengths = [len(values) for values in vary.values()]
    count = math.prod(lengths)
    if not _FIRST < count < 1 << 62:
        raise InvalidArgument(message("bench --vary", f"{count} combinations", f"more than {_FIRST}, and fewer than 2^62"))
    rng = random.Random(0)  # noqa: S311 # no secret
    places = (np.unravel_index(place, lengths) for place in rng.sample(range(count), min(MOST, count)))
    return [{name: values[int(i)] for (name, values), i in zip(vary.items(), one, strict=True)} for one in places]


def _timed(run: Callable[[], object]) -> Seconds:
    def seconds() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return Seconds(seconds(), min(seconds() for _ in range(_AGAIN)))


def _median(seconds: Any) -> float:
    return 1e3 * float(np.median(list(seconds)))
