"""A long run of mixed calls with changing shapes: does anything grow, slow down, or fail?

``python tests/soak.py --minutes 60 --csv soak.csv --plot soak.png`` makes random use of the whole package and checks some results
against references, while it samples memory, files, threads, mappings, caches and speed. The exit code is 1 if a curve still rises
at the end or a bound is exceeded, and 2 if a result was wrong. ``soak_curves`` judges the samples.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import soak_curves
import support
from support import ALL, FLOATING, Array, assert_same_bits, reference, special_values

from tvmdml.tensors import TensorDataType, TensorDesc

CACHE_LIMIT = 4 << 20
"""Bytes: room for two hundred kernels, so that the store prunes all the time."""
MAX_KERNELS, MAX_PLANS, MAX_PIPELINES = 256, 1024, 32
"""What the process may remember is lowered to these, so that the memories are full, and start afresh, many times."""
HELD = 16
"""Compiled operators, bound calls and device arrays that the run keeps, the oldest going first."""
AGAIN = 64
"""Calls that are made over and over, the oldest going first."""
CHECKED = 0.25
"""The share of functions' results that are compared with the reference."""
_MODES = ("halves_to_nearest_even", "toward_zero", "toward_infinity")
_DTYPES = tuple(t.numpy for t in ALL)

Generator = np.random.Generator


# -- What is drawn ------------------------------------------------------------------------------------------------


def draw_shape(rng: Generator, least_rank: int = 1) -> tuple[int, ...]:
    """Mostly small, of any rank; now and then one that is worth several threads."""
    rank = int(rng.integers(least_rank, 9))
    if rng.random() < 0.03:
        return (*(1 for _ in range(max(rank - 2, 0))), int(rng.integers(2, 40)), int(rng.integers(1000, 6000)))[-rank:]
    most = {1: 3000, 2: 60, 3: 16, 4: 8}.get(rank, 4)
    return tuple(int(n) for n in rng.integers(1, most + 1, rank))


def draw_array(rng: Generator, dtypes: tuple[Any, ...] = _DTYPES, least_rank: int = 1) -> Array:
    """Any type and layout: packed, transposed, cut, reversed, of another byte order, without elements."""
    dtype = np.dtype(dtypes[rng.integers(len(dtypes))])
    shape = draw_shape(rng, least_rank)
    special = special_values(next(t for t in ALL if t.numpy == dtype))
    x = np.where(rng.random(shape) < 0.2, rng.choice(special, shape), rng.integers(0, 100, shape).astype(dtype)).astype(dtype)
    kind = rng.random()
    if kind < 0.15:
        x = x.T
    elif kind < 0.3:
        x = x[..., :: int(rng.choice([-2, -1, 2, 3]))]
    elif kind < 0.35:
        x = np.swapaxes(x, 0, int(rng.integers(x.ndim)))
    elif kind < 0.38:
        x = x.astype(dtype.newbyteorder())
    elif kind < 0.4:
        x = x[..., :0]
    return x


class Call:
    """A call of a function: its name, its input, its keywords, and the descriptor of the same."""

    def __init__(self, rng: Generator, dtypes: tuple[Any, ...] = _DTYPES) -> None:
        self.rng = rng
        self.name = str(rng.choice(["round", "top_k", "nonzero_coordinates", "diagonal_matrix"]))
        floats = tuple(t.numpy for t in FLOATING)
        taken = tuple(t for t in dtypes if t in floats) if self.name == "round" else dtypes
        self.x = draw_array(rng, taken, 2 if self.name == "diagonal_matrix" else 1)
        self.keywords: dict[str, Any] = getattr(self, f"_{self.name}")(self.x)

    def _round(self, _x: Array) -> dict[str, Any]:
        return {"rounding_mode": str(self.rng.choice(_MODES))}

    def _top_k(self, x: Array) -> dict[str, Any]:
        axis = int(self.rng.integers(x.ndim))
        if not x.shape[axis]:
            self.x = x = np.zeros((3,) * x.ndim, x.dtype)
        return {
            "k": int(self.rng.integers(1, x.shape[axis] + 1)),
            "axis": axis,
            "axis_direction": str(self.rng.choice(["increasing", "decreasing"])),
            "index_dtype": str(self.rng.choice(["uint32", "uint64", "int64"])),
        }

    def _nonzero_coordinates(self, _x: Array) -> dict[str, Any]:
        return {"index_dtype": str(self.rng.choice(["uint32", "int64"]))}

    def _diagonal_matrix(self, _x: Array) -> dict[str, Any]:
        begin, end = (int(n) for n in self.rng.integers(-6, 7, 2))
        return {"value": int(self.rng.integers(0, 9)), "diagonal_fill_begin": begin, "diagonal_fill_end": end}

    def pack(self) -> None:
        """Have the input lie as a descriptor has it that states no strides."""
        self.x = np.array(self.x, dtype=self.x.dtype.newbyteorder("="), order="C")

    def run(self, x: Any = None, **more: Any) -> Any:
        """Call the function, on the input or on another form of it."""
        import tvmdml

        return getattr(tvmdml, self.name)(self.x if x is None else x, **self.keywords, **more)

    def expected(self) -> tuple[Array, ...]:
        """What the contract says comes out."""
        x = np.array(self.x, dtype=self.x.dtype.newbyteorder("="), order="C")
        if self.name == "nonzero_coordinates":
            return (np.argwhere(x != 0).astype(self.keywords["index_dtype"]),)
        desc = self.descriptor(x)
        results = reference(desc, x)
        if self.name == "top_k":
            return results[0], results[1].astype(self.keywords["index_dtype"])
        return results

    def descriptor(self, x: Array) -> Any:
        """The same as a descriptor of packed tensors."""
        one, k = TensorDesc(TensorDataType.from_numpy(x.dtype), x.shape), self.keywords
        if self.name == "round":
            return support.round_desc(one, k["rounding_mode"])
        if self.name == "diagonal_matrix":
            return support.diagonal_desc(one, *k.values())
        if self.name == "top_k":
            index = "uint32" if k["index_dtype"] == "uint32" else "uint64"
            return support.top_k_desc(one, k["axis"], k["k"], k["axis_direction"], index)
        return support.nonzero_desc(one)

    def check(self, results: Any) -> None:
        """Results, as NumPy's arrays, are those of the contract to the last bit."""
        if not self.x.size:
            return
        found = tuple(results) if isinstance(results, tuple) else (results,)
        for result, wanted in zip(found, self.expected(), strict=True):
            assert_same_bits(result, wanted.reshape(result.shape), any_nan=True)


# -- What is done ---------------------------------------------------------------------------------------------------


class Run:
    """What the run does; each method is one thing, and counts."""

    def __init__(self, seed: int, devices: tuple[str, ...], folder: Path) -> None:
        self.rng = np.random.default_rng(seed)
        self.seeds = itertools.count(seed + 1)
        self.devices = devices
        self.folder = folder
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.held: deque[Any] = deque(maxlen=HELD)
        self.before: deque[Call] = deque(maxlen=AGAIN)
        self.torch = importlib.util.find_spec("torch") is not None
        self.probe_x = np.linspace(-9, 9, 4096, dtype=np.float32).reshape(8, 512)

    def function(self, rng: Generator | None = None) -> None:
        """A function, into a new array, into a given one, or in place."""
        rng = self.rng if rng is None else rng
        call = Call(rng)
        if rng is self.rng:
            self.before.append(call)
        kind, checked = rng.random(), rng.random() < CHECKED
        if kind < 0.7 or call.name == "nonzero_coordinates" or not (call.x.dtype.isnative and call.x.size):
            results = call.run()
        elif kind < 0.9 or call.name != "round":
            given = call.run()
            arrays = given if isinstance(given, tuple) else (given,)
            out = tuple(np.zeros((*a.shape, 2), a.dtype)[..., 0] for a in arrays)
            results = call.run(out=out if len(out) > 1 else out[0])
        else:
            (wanted,) = call.expected()
            call.run(out=call.x)
            return assert_same_bits(np.array(call.x), wanted.reshape(call.x.shape), any_nan=True)
        if checked:
            call.check(results)
        return None

    def again(self) -> None:
        """Calls that were made before, as programs mostly make them."""
        for call in self.before:
            call.run()
        if self.before:
            self.before[0].check(self.before[0].run())

    def compiled(self) -> None:
        """A descriptor, compiled, called, and bound; some are kept for a while."""
        import tvmdml

        call = Call(self.rng)
        call.pack()
        if not call.x.size:
            return
        desc = call.descriptor(call.x)
        with suppress(tvmdml.Unsupported):  # supported only by functions
            operator = tvmdml.compile(desc)
            outputs = [np.zeros(tensor.sizes, tensor.data_type.numpy) for tensor in desc.outputs()]
            operator(call.x, *outputs)
            bound = operator.bind(call.x, *outputs)
            bound()
            self.held.append((operator, bound))
            if self.rng.random() < CHECKED:
                for output, wanted in zip(outputs, reference(desc, call.x), strict=True):
                    assert_same_bits(output, wanted, any_nan=True)
        if self.held and isinstance(self.held[0], tuple):
            self.held[0][1]()

    def tensors(self) -> None:
        """PyTorch's tensors, where that is installed."""
        if not self.torch:
            return
        import torch

        call = Call(self.rng, (np.dtype("float32"), np.dtype("float64"), np.dtype("int64"), np.dtype("uint8")))
        x = torch.from_numpy(np.array(call.x, dtype=call.x.dtype.newbyteorder("="), order="C"))
        if call.keywords.get("index_dtype", "int64") != "int64":
            call.keywords["index_dtype"] = "int64"
        results = call.run(x)
        found = tuple(results) if isinstance(results, tuple) else (results,)
        call.check(tuple(t.numpy() for t in found))

    def on_a_device(self) -> None:
        """Arrays on a device, some kept for a while."""
        import tvmdml

        others = [device for device in self.devices if device != "cpu"]
        if not others:
            return
        call = Call(self.rng, tuple(np.dtype(t) for t in ("float32", "int32", "uint8")))
        there = tvmdml.asarray(np.ascontiguousarray(call.x), others[self.rng.integers(len(others))])
        if not call.x.size:
            return
        results = call.run(there)
        found = tuple(results) if isinstance(results, tuple) else (results,)
        self.held.extend(found)
        call.check(tuple(array.numpy() for array in found))

    def mistake(self) -> None:
        """A call that has to be refused."""
        import tvmdml

        x = draw_array(self.rng, (np.dtype("float32"),))
        mistakes: tuple[Callable[[], Any], ...] = (
            lambda: tvmdml.top_k(x, 10**6),
            lambda: tvmdml.top_k(x, 1, axis=99),
            lambda: tvmdml.round(x, rounding_mode="sideways"),
            lambda: tvmdml.round(x.astype("complex64")),
            lambda: tvmdml.round(x, out=np.zeros((1, 2, 3), "int8")),
            lambda: tvmdml.round(x, device=f"nowhere:{self.rng.integers(1000)}"),
            lambda: tvmdml.diagonal_matrix(np.zeros(int(self.rng.integers(1, 99)), "float32")),
            lambda: tvmdml.compile(int(self.rng.integers(99))),  # type: ignore[arg-type]
        )
        try:
            mistakes[self.rng.integers(len(mistakes))]()
        except tvmdml.TvmdmlError:
            return
        raise AssertionError("a mistake was not refused")

    def new_kernel(self) -> None:
        """A kernel with other knobs."""
        import tvmdml
        from tvmdml import knobs, targets

        target = targets.resolve("cpu")
        call = Call(self.rng)
        call.pack()
        declared = knobs.of({"round": "pointwise"}.get(call.name, call.name), target)
        if declared is None or not call.x.size:
            return
        values = {name: knob.choices[self.rng.integers(len(knob.choices))] for name, knob in declared.knobs.items()}
        if declared.allowed(values, target):
            return
        with suppress(tvmdml.Unsupported), knobs.using(**{declared.operator: values}):
            desc = call.descriptor(call.x)
            operator = tvmdml.compile(desc)
            outputs = [np.zeros(tensor.sizes, tensor.data_type.numpy) for tensor in desc.outputs()]
            operator(call.x, *outputs)
            for output, wanted in zip(outputs, reference(desc, call.x), strict=True):
                if call.name != "nonzero_coordinates":
                    assert_same_bits(output, wanted, any_nan=True)

    def in_threads(self) -> None:
        """Four callers at once."""
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                for _ in range(5):
                    self.function(rng)
            except BaseException as error:
                failures.append(error)

        callers = [threading.Thread(target=work, args=(next(self.seeds),)) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        if failures:
            raise failures[0]

    def in_a_child(self) -> None:
        """A forked child, which calls on the CPU."""
        seed = next(self.seeds)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                rng = np.random.default_rng(seed)
                for _ in range(5):
                    self.function(rng)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"a forked child ended with {status}"

    def packed(self) -> None:
        """A pack, loaded, used and closed."""
        import packs as small

        import tvmdml

        path = self.folder / "small.tvmdml"
        if not path.exists():
            small.build(self.folder, "cpu:x86-64-v2" if os.uname().machine == "x86_64" else "cpu")
        with tvmdml.load_pack(path):
            values, _ = tvmdml.top_k(small.inputs(), 5)
            assert values.shape == (small.ROWS[0], 5)
            for _ in range(5):
                self.function()

    def probe(self) -> float:
        """Microseconds of CPU time that one known call takes: the least of several tries."""
        import tvmdml

        least = float("inf")
        for _ in range(5):
            before = time.thread_time()
            for _ in range(50):
                tvmdml.round(self.probe_x)
            least = min(least, time.thread_time() - before)
        return least / 50 * 1e6


OFTEN: dict[str, float] = {
    "function": 0.6, "again": 0.18, "compiled": 0.08, "tensors": 0.03, "on_a_device": 0.05, "mistake": 0.05, "new_kernel": 0.01,
}  # fmt: skip
"""The share of each."""
RARELY: dict[str, float] = {"in_threads": 5, "in_a_child": 20, "packed": 240}
"""Seconds from one to the next, or less in a short run: each happens a few times."""


# -- The run --------------------------------------------------------------------------------------------------------


def soak(minutes: float, every: float, seed: int, devices: tuple[str, ...], folder: Path, csv: Path | None) -> tuple[Any, Run]:
    """Do it; returns the samples, and what was done."""
    from tvmdml import functions
    from tvmdml.library import finding
    from tvmdml.targets.vulkan import pipelines

    run = Run(seed, devices, folder)
    names, shares = list(OFTEN), np.array(list(OFTEN.values()))
    finding.MAX_KERNELS, functions.MAX_PLANS, pipelines._KEPT = MAX_KERNELS, MAX_PLANS, MAX_PIPELINES
    begin = time.monotonic()
    end = begin + 60 * minutes
    due = {name: begin + min(seconds, 15 * minutes) for name, seconds in RARELY.items()}
    run.probe()
    samples: list[soak_curves.Sample] = []
    next_sample, calls, cpu = begin + every, 0, time.process_time()
    stream = csv.open("w") if csv else None
    if stream:
        print(",".join(soak_curves.Sample._fields), file=stream, flush=True)

    def sample() -> None:
        nonlocal next_sample, calls, cpu
        spent = time.process_time() - cpu
        samples.append(soak_curves.take(time.monotonic() - begin, calls, spent, run.probe(), folder / "cache"))
        next_sample, calls, cpu = time.monotonic() + every, 0, time.process_time()
        if stream:
            print(*(f"{value:.6g}" for value in samples[-1]), sep=",", file=stream, flush=True)

    while (now := time.monotonic()) < end and len(run.wrong) < 10:
        name = next((name for name, when in due.items() if when <= now), None)
        if name:
            due[name] = now + min(RARELY[name], 15 * minutes)
        else:
            name = str(run.rng.choice(names, p=shares / shares.sum()))
        try:
            getattr(run, name)()
        except Exception:
            run.wrong.append(f"{name}, after {calls} calls:\n{traceback.format_exc()}")
            print(run.wrong[-1], file=sys.stderr, flush=True)  # noqa: T201
        run.done[name] += 1
        calls += 1
        if now >= next_sample:
            sample()
    sample()
    if stream:
        stream.close()
    return samples, run


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=5, help="seconds from sample to sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", action="append", help="cpu, vulkan, …: what to run on, the CPU always among them")
    parser.add_argument("--csv", type=Path, help="where samples go")
    parser.add_argument("--plot", type=Path, help="a picture of the curves (takes matplotlib)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tvmdml-soak-") as name:
        folder = Path(name)
        os.environ.update(TVMDML_CACHE_DIR=str(folder / "cache"), TVMDML_CACHE_SIZE=str(CACHE_LIMIT))
        os.environ.setdefault("TVMDML_NUM_THREADS", "3")  # use the parallel kernels even on one processor
        samples, run = soak(options.minutes, options.every, options.seed, tuple(options.device or ["cpu"]), folder, options.csv)
    print(f"{run.done.total()} calls: " + ", ".join(f"{count} {name}" for name, count in run.done.most_common()))  # noqa: T201
    if options.plot and samples:
        soak_curves.plot(samples, options.plot)
    verdicts = soak_curves.judge(samples, CACHE_LIMIT)
    print(soak_curves.table(verdicts))  # noqa: T201
    if run.wrong:
        print(f"{len(run.wrong)} things went wrong, first {run.wrong[0]}", file=sys.stderr)  # noqa: T201
        return 2
    return int(any(not verdict.good for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
