"""What child processes of ``tvmdml bench --models`` do: race the libraries with one model, or load it with one of them.

Each has its own process: its memory is that of one library and one model, and its number of threads is set once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmdml.proof.bench import measure, models, runner
from tvmdml.proof.bench.measure import Contender
from tvmdml.proof.bench.networks.table import TABLE
from tvmdml.proof.bench.results import ContenderResult
from tvmdml.proof.bench.sources import ModelSource, sources
from tvmdml.targets.cpu import host
from tvmdml.tensors import PRECISIONS

Run = Callable[[], Any]


def main() -> None:
    """Read a request from the standard input, and write the answer to the standard output, both JSON."""
    request = json.load(sys.stdin)
    source = next(one for one in sources() if one.title == request["title"])
    path = Path(request["path"])
    with np.errstate(all="ignore"), runner.limited(request["threads"]):
        if request["what"] in ("race", "prepare"):
            answer = _race(source, path, request["threads"], request["full"], request["what"] == "prepare")
        else:
            answer = _loaded(source, path, request["threads"], request["what"])
    json.dump(answer, sys.stdout)


def _loaded(source: ModelSource, path: Path, threads: int, library: str) -> dict[str, float]:
    """Seconds until a library that is imported has the first result, and the memory that this took."""
    feeds = source.arrays()
    importlib.import_module(_MODULES[library])
    before = _memory("VmRSS")
    start = time.perf_counter()
    run = _RUNS[library](source, path, threads, feeds)
    run()
    seconds = time.perf_counter() - start
    for _ in range(2):
        run()
    return {"seconds": seconds, "peak": _memory("VmHWM"), "grown": _memory("VmHWM") - before}


def _memory(what: str) -> float:
    """Bytes of this process's memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return 1024.0 * int(line.split()[1])
    return 0.0


def _tvmdml(source: ModelSource, path: Path, threads: int, feeds: dict[str, Any], precision: str = PRECISIONS[0]) -> Run:
    from tvmdml.onnx import load

    model = load(path, precision=precision)
    given = {one.name: feeds[one.name] for one in model.inputs}
    return _turning(source, model, given) if source.turns > 1 else lambda: model(given)


def _onnxruntime(source: ModelSource, path: Path, threads: int, feeds: dict[str, Any]) -> Run:
    session, note = models.peer_session(str(path), threads)
    if session is None:
        raise RuntimeError(note)
    given = {one.name: feeds[one.name] for one in session.get_inputs()}

    def once(now: Mapping[str, Any]) -> Any:
        return session.run(None, now)

    return _turning(source, once, given) if source.turns > 1 else lambda: once(given)


def _as_written(source: ModelSource, path: Path, feeds: dict[str, Any]) -> Any:
    """What ONNX Runtime computes without its optimizer, which changes results of bytes; of a decoder in turn, the last word's."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {one.name: feeds[one.name] for one in session.get_inputs()}
    return _turning(source, lambda now: session.run(None, now), given)() if source.turns > 1 else session.run(None, given)


def _torch(source: ModelSource, path: Path, threads: int, feeds: dict[str, Any], compiled: bool = False) -> Run:
    import torch

    from tvmdml.proof.bench.networks import exporting

    torch.set_num_threads(threads)
    network = TABLE[source.network]
    module: Any = exporting.made(network, network.full)
    if compiled:
        module = torch.compile(module)
    tensors = {name: torch.from_numpy(one) for name, one in feeds.items()}

    def once(now: Mapping[str, Any]) -> Any:
        with torch.inference_mode():
            found = module(*now.values())
        return found if isinstance(found, tuple) else (found,)

    return _turning(source, once, tensors) if source.turns > 1 else lambda: once(tensors)


def _openvino(source: ModelSource, path: Path, threads: int, feeds: dict[str, Any], **options: str) -> Run:
    openvino = importlib.import_module("openvino")
    settings = {"INFERENCE_NUM_THREADS": str(threads), "PERFORMANCE_HINT": "LATENCY", **options}
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    given = {one.get_any_name(): feeds[one.get_any_name()] for one in request.model_inputs}

    def once(now: Mapping[str, Any]) -> Any:
        return list(request.infer(dict(now), share_inputs=True).to_tuple())

    return _turning(source, once, given) if source.turns > 1 else lambda: once(given)


def _turning(source: ModelSource, once: Callable[[Mapping[str, Any]], Any], given: Mapping[str, Any]) -> Run:
    """Runs of a decoder in turn, each with the keys and values of the words before. Texts of several lengths follow each other."""
    word, *past = given
    now = dict(given)

    def run() -> Any:
        nonlocal now
        if now[past[0]].shape[2] >= given[past[0]].shape[2] + _TEXTS * source.words:
            now = dict(given)
        for _ in range(source.turns):
            found = once(now)
            now = {word: given[word], **dict(zip(past, found[1:], strict=True))}
        return found

    return run


OPENVINO = "OpenVINO"
"""It computes in bfloat16 where the processor has instructions for that: it is shown, and no goal."""
ROUNDED = "tvmdml bf16"
"""With ``precision="bf16"``, beside it where the processor has them."""
_ROLES = {"tvmdml": "ours", OPENVINO: "aside", ROUNDED: "rounded"}
_RUNS: dict[str, Callable[[ModelSource, Path, int, dict[str, Any]], Run]] = {
    "tvmdml": _tvmdml,
    ROUNDED: functools.partial(_tvmdml, precision="bf16"),
    "ONNX Runtime": _onnxruntime,
    "PyTorch": _torch,
    "torch.compile": functools.partial(_torch, compiled=True),
    "OpenVINO float32": functools.partial(_openvino, INFERENCE_PRECISION_HINT="f32"),
    OPENVINO: _openvino,
}
_MODULES = {"tvmdml": "tvmdml.onnx", "ONNX Runtime": "onnxruntime"}
_TEXTS = 8
"""How many times the words of a line's turns a text grows before the next one begins."""


def _race(source: ModelSource, path: Path, threads: int, full: bool, prepare: bool) -> dict[str, Any]:
    """The libraries in turns; to prepare that, each runs once, and nothing is timed."""
    feeds = source.arrays()
    runs: dict[str, Run] = {}
    problems: dict[str, str] = {}
    right, difference = None, float("nan")
    wanted = ["ONNX Runtime", "tvmdml"]
    if source.network and not source.form.value:
        wanted += ["PyTorch", *(["torch.compile"] if full and source.turns == 1 else [])]
    if importlib.util.find_spec("openvino") is not None:
        wanted += ["OpenVINO float32", OPENVINO, *([ROUNDED] if host.host().has("avx512bf16") else [])]
    for library in wanted:
        try:
            run = _RUNS[library](source, path, threads, feeds)
            found = run()
        except Exception as error:  # any error of another library, and of ours: a line of the report
            problems[library] = " ".join(str(error).split())[:300] or type(error).__name__
            continue
        runs[library] = run
        if library == "ONNX Runtime":
            right = _as_written(source, path, feeds) if source.form.value else found
        elif library == "tvmdml" and right is not None:
            difference = models._difference(found, right)
    del right
    racers = [Contender(_ROLES.get(name, "peer"), name, source.name, threads, run) for name, run in runs.items()]
    pace, clock = measure.FULL if full else measure.QUICK, measure.PROCESSOR if threads == 1 else measure.WALL
    timings = [None] * len(racers) if prepare else measure.race(racers, pace, clock)
    timed = dict(zip(runs, timings, strict=True))
    entries = [
        ContenderResult(_ROLES.get(name, "peer"), name, "", threads, timed.get(name), problem=problems.get(name, ""))
        for name in wanted
    ]
    return {
        "entries": [{**vars(one), "timing": one.timing and one.timing._asdict()} for one in entries],
        "difference": difference,
        "shares": [] if prepare or "tvmdml" not in runs else _shares(path, feeds),
    }


def _shares(path: Path, feeds: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """The operators that take most of our time, and their parts of it."""
    from tvmdml.onnx import load

    model = load(path)
    return models.shares(model, {one.name: feeds[one.name] for one in model.inputs})
