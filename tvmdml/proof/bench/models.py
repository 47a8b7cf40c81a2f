"""``tvmdml bench MODEL.onnx``: the latency of ONNX models beside ONNX Runtime's, and where the time goes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml import dxdispatch
from tvmdml.library.files import is_graph, is_pack
from tvmdml.onnx import command
from tvmdml.onnx.model import load
from tvmdml.onnx.running import Runnable
from tvmdml.proof.bench import measure, runner
from tvmdml.proof.bench.measure import CallTiming, Contender
from tvmdml.system import installing
from tvmdml.system.console import printable
from tvmdml.targets import Target, resolve
from tvmdml.tensors import PRECISIONS

SHARES = 6
"""The operators that are listed by their part of the time."""


class Figures(NamedTuple):
    """What was found of one model."""

    model: str
    threads: int
    ours: CallTiming
    """Seconds of a run with arrays that lie as they are read."""
    peer: CallTiming | None
    """Of ONNX Runtime, if it is installed and takes the model."""
    difference: float
    """The largest difference of an output's element from ONNX Runtime's, as a part of its largest element.

    NaN without ONNX Runtime, and infinite if an output has other sizes, as where elements that are rounded decide them.
    """
    kernels: int
    temporary: int
    """The bytes of intermediate results."""
    persistent: int
    """The bytes of weights."""
    load: float
    """Seconds to load the model, with kernels that are stored."""
    peer_load: float
    shares: tuple[tuple[str, float], ...]
    """The operators that take most of the time, and their parts of it."""
    note: str = ""
    """Why there is no peer."""

    def row(self) -> dict[str, Any]:
        """The line of the table."""
        best = "" if self.peer is None else f"{self.peer.median / self.ours.median:.2f}"
        return {
            "model": self.model,
            "threads": self.threads,
            "tvmdml": f"{1e3 * self.ours.median:.3g} ms",
            "ONNX Runtime": "" if self.peer is None else f"{1e3 * self.peer.median:.3g} ms",
            "ratio": best,
            "difference": "" if self.peer is None else f"{self.difference:.1e}",
            "kernels": self.kernels,
            "load": f"{self.load:.2f} s" + ("" if self.peer is None else f" ({self.peer_load:.2f} s)"),
        }


COLUMNS = ("model", "threads", "tvmdml", "ONNX Runtime", "ratio", "difference", "kernels", "load")


def figures(
    path: str,
    sizes: Mapping[str, int],
    target: Target | None,
    threads: int | None,
    pace: measure.RacePace = measure.QUICK,
    precision: str = PRECISIONS[0],
) -> Figures:
    """Measure a model, in turns with ONNX Runtime in this process. Inputs are random, the same in each run.

    Args:
        path: the file.
        sizes: values of open sizes; those that the model does not have are for others.
        target: where to run; ONNX Runtime always runs on the CPU.
        threads: the most threads of both; ``None`` for all.
        pace: how long to measure.
        precision: as for ``load``.

    Raises:
        ModelError, InvalidArgument, Unsupported: the model cannot be loaded, or a size is missing.
    """
    where = resolve("cpu") if target is None else target
    with runner.limited(threads) as count:
        open_sizes = load(path, target=where).symbols
        sizes = {name: size for name, size in sizes.items() if name in open_sizes}
        load(path, sizes, target=where, precision=precision)  # from now on, all kernels are stored
        start = time.perf_counter()
        model = load(path, sizes, target=where, precision=precision)
        loading = time.perf_counter() - start
        feeds = command.made_up(model)
        found = model(feeds)
        graphs = [graph for graph, _ in model.graphs(feeds)]
        contenders = [Contender("ours", "tvmdml", path, count, lambda: model(feeds))]
        start = time.perf_counter()
        session, note = peer_session(path, count)
        peer_loading = time.perf_counter() - start
        difference = float("nan")
        if session is not None:
            names = [one.name for one in model.outputs]
            difference = _difference(found, session.run(names, feeds))
            contenders.append(Contender("peer", "ONNX Runtime", path, count, lambda: session.run(names, feeds)))
        timings = measure.race(contenders, pace)
        parts = shares(model, feeds)
    return Figures(
        printable(Path(path).name),
        count,
        timings[0],
        timings[1] if session is not None else None,
        difference,
        sum(graph.kernel_count for graph in graphs),
        max((graph.temporary_size for graph in graphs), default=0),
        sum(graph.persistent_size for graph in graphs),
        loading,
        peer_loading,
        parts,
        note,
    )


def run(
    paths: Sequence[str],
    sizes: Mapping[str, int],
    target: Target | None,
    threads: int | None,
    json_path: str | None,
    full: bool,
    write: Callable[[str], object],
    table: Callable[[Sequence[str], Sequence[Mapping[str, Any]]], object],
    precision: str = PRECISIONS[0],
) -> None:
    """Measure models, and print a table, then where the time of each goes."""
    done = []
    for path in paths:
        write(f"measuring {printable(path)}")
        done.append(figures(path, sizes, target, threads, measure.FULL if full else measure.QUICK, precision))
        if json_path is not None:
            Path(json_path).write_text(json.dumps([_plain(one) for one in done], indent=1))
    table(COLUMNS, [one.row() for one in done])
    for one in done:
        parts = ", ".join(f"{name} {100 * part:.0f} %" for name, part in one.shares)
        write(f"{one.model}: {parts}" + (f"; no ONNX Runtime: {one.note}" if one.note else ""))


def run_dispatches(
    paths: Sequence[str], target: Target | None, threads: int | None, full: bool, write: Callable[[str], object]
) -> None:
    """Time each dispatch of DxDispatch's models: at least 0.8 s of samples, or 1.5 s.

    Raises:
        ModelError: a model is wrong, or writes files.
    """
    pace = measure.FULL if full else measure.QUICK
    with runner.limited(threads):
        for path in paths:
            timing = dxdispatch.Timing(pace.least_rounds, 1, int(1000 * pace.budget))
            dxdispatch.read(path).run("cpu" if target is None else target, timing=timing, write=lambda text: write(text.rstrip()))


def peer_session(path: str, threads: int) -> tuple[Any, str]:
    """ONNX Runtime's session of a model; ``None`` if there is none, and why."""
    if is_pack(path) or is_graph(path):
        return None, "it reads ONNX models only"
    if importlib.util.find_spec("onnxruntime") is None:
        return None, f"it is not installed ({installing.command('bench')})"
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]), ""
    except Exception as error:  # any error of another library
        return None, str(error).splitlines()[0][:200]


def _difference(found: Sequence[Any], right: Sequence[Any]) -> float:
    """The largest difference of an element, as a part of the output's largest; infinite if there is one of sizes."""
    largest = 0.0
    for one, other in zip(found, right, strict=True):
        wide = np.asarray(other, np.float64)
        if np.shape(one) != wide.shape:
            return float("inf")
        scale = float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))) or 1.0
        with np.errstate(invalid="ignore"):  # infinity less infinity
            apart = np.abs(np.asarray(one, np.float64) - wide)
        largest = max(largest, float(np.max(apart, initial=0.0, where=np.isfinite(apart))) / scale)
    return largest


def shares(model: Runnable, feeds: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """The operators' parts of the time: the least time of each kernel over some runs."""
    total: Counter[str] = Counter()
    for graph, read in model.graphs(feeds):
        for several in zip(*(graph.profile(read) for _ in range(3)), strict=True):
            total[f"{several[0].name.partition(' ')[0]} {several[0].kernel}"] += min(one.nanoseconds for one in several)
    whole = sum(total.values()) or 1
    return tuple((name, spent / whole) for name, spent in total.most_common(SHARES))


def _plain(one: Figures) -> dict[str, Any]:
    timed = {name: None if value is None else value._asdict() for name, value in (("ours", one.ours), ("peer", one.peer))}
    return {**one._asdict(), **timed}
