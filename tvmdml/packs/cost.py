"""The cost of packs: to build, to store, to load, to find a kernel in; and their kernels' speed against kernels compiled here."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tvmdml
from tvmdml import packs, targets
from tvmdml.enums import AxisDirection, RoundingMode
from tvmdml.library import format as container
from tvmdml.library import records, shelf
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators import Operator
from tvmdml.operators.diagonal_matrix import DiagonalMatrix1
from tvmdml.operators.element_wise_round import ElementWiseRound
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates
from tvmdml.operators.top_k import TopK1
from tvmdml.packs import building
from tvmdml.proof.bench import measure, runner
from tvmdml.proof.bench.measure import Contender
from tvmdml.system import children
from tvmdml.tensors import BYTE_TYPES, TensorDataType, TensorDesc

LEVEL = "cpu:x86-64-v3"
BUILT, LOADED = 500, 2000
"""The number of kernels in the pack that is built, and in the pack that is loaded."""
_SIZES = ((64,), (4096,), (1 << 20,), (32, 1000), (1000, 32), (1024, 1024), (2, 3, 4, 5), (1, 3, 224, 224))
_BUILD_GOAL = 8.0
"""The goal for building that many kernels, in seconds, on two processors."""
_REPEATS = 7
_FIRST = r"""
import re
import numpy as np, tvmdml
x = np.arange(32 * 32000, dtype=np.float32).reshape(32, 32000)
assert tvmdml.top_k(x, 50).indices[0, 0] == 31999
print(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
"""


class Figure(NamedTuple):
    """One row of the report."""

    what: str
    found: str
    goal: str
    reached: bool

    @property
    def verdict(self) -> str:
        """The verdict, in the words of the other figures."""
        return "reached" if self.reached else "missed"


def figures(say: Callable[[str], object]) -> Iterator[Figure]:
    """Measure, row by row; ``say`` is called with a description of each step."""
    with runner.fresh_kernels(), tempfile.TemporaryDirectory(prefix="tvmdml-bench-") as folder:
        path = Path(folder) / "built.tvmdml"
        say(f"building {BUILT} kernels")
        yield from _building(path)
        say("loading")
        yield from _loading(path, Path(folder) / "large.tvmdml")
        say("starting processes")
        yield from _starting(Path(folder) / "small.tvmdml")
        say("calling")
        yield from _calling(Path(folder) / "own.tvmdml")


# -- Building -----------------------------------------------------------------------------------------------------


def _building(path: Path) -> Iterator[Figure]:
    descs = list(_descs())
    for what, wanted in (
        ("small ", tuple(Wanted(desc) for desc in descs if not isinstance(desc, TopK1))),
        ("", _prefix(descs, BUILT)),
    ):
        start = time.perf_counter()
        built = packs.build(Spec((LEVEL,), wanted), path)
        took = time.perf_counter() - start
        goal = _BUILD_GOAL * built.compiled / BUILT
        about = f"build a pack of {built.kernels} {what}kernels, {built.compiled} of them now, {os.cpu_count()} processors"
        yield Figure(about, f"{took:.1f} s", f"{goal:.1f} s", took < goal)
    pack = packs.Pack(path)
    sizes: dict[str, list[int]] = {}
    for kernel in pack.kernels():
        sizes.setdefault(kernel.operator, []).append(kernel.part)
    small = []
    for operator, parts in sorted(sizes.items()):
        each = sum(pack.part(number).stored for number in set(parts)) / len(parts)
        if operator != "top_k":  # its kernels, which sort and select, are large
            small.append((each, len(parts)))
    each = sum(size * count for size, count in small) / sum(count for _, count in small)
    yield Figure("a small kernel, compressed", f"{each / 1024:.2f} KiB", "2.5 KiB", each < 2.5 * 1024)
    pack.close()


def _prefix(descs: list[Operator], kernels: int) -> tuple[Wanted, ...]:
    """As many descriptors as are needed for this many kernels."""
    low, high = 1, len(descs)
    while low < high:
        middle = (low + high) // 2
        if len(building.plan(Spec((LEVEL,), tuple(map(Wanted, descs[:middle]))))) < kernels:
            low = middle + 1
        else:
            high = middle
    return tuple(map(Wanted, descs[:low]))


def _descs() -> Iterator[Operator]:
    """Descriptors of four operators, of all types and with some sizes, in random order."""
    found = [desc for data_type, sizes in itertools.product(BYTE_TYPES, _SIZES) for desc in _of(data_type, sizes)]
    random.Random(2024).shuffle(found)  # noqa: S311 - every run measures the same
    return iter(found)


def _of(data_type: TensorDataType, sizes: tuple[int, ...]) -> Iterator[Operator]:
    x = TensorDesc(data_type, sizes)
    if data_type.is_float:
        for mode in RoundingMode:
            yield ElementWiseRound(input_tensor=x, output_tensor=x, rounding_mode=mode)
    if len(sizes) > 1:
        for given in (x, None):
            yield DiagonalMatrix1(
                input_tensor=given, output_tensor=x, value_data_type=data_type, value=0, diagonal_fill_begin=0, diagonal_fill_end=1
            )
    count = TensorDesc("uint32", (1,) * len(sizes))
    rows = TensorDesc("uint32", (*(1 for _ in sizes[2:]), x.element_count, len(sizes)))
    yield NonzeroCoordinates(input_tensor=x, output_count_tensor=count, output_coordinates_tensor=rows)
    for axis, k, direction in itertools.product(range(len(sizes)), (1, 4, 50), AxisDirection):
        if k <= sizes[axis]:
            found = (*sizes[:axis], k, *sizes[axis + 1 :])
            yield TopK1(
                input_tensor=x,
                output_value_tensor=TensorDesc(data_type, found),
                output_index_tensor=TensorDesc("uint32", found),
                axis=axis,
                k=k,
                axis_direction=direction,
            )


# -- Loading ------------------------------------------------------------------------------------------------------


def _loading(path: Path, large: Path) -> Iterator[Figure]:
    pack = packs.Pack(path)
    contents = pack.contents()
    pack.close()
    kernels = [
        kernel._replace(parameters=(*kernel.parameters, ("copy", number // len(contents.kernels))))
        for number, kernel in zip(range(LOADED), itertools.cycle(contents.kernels))
    ]
    container.write(large, contents._replace(kernels=kernels))

    def load() -> None:
        shelf.LoadedPack(large).pack.close()

    took = _median(load)
    yield Figure(
        f"load a pack of {LOADED} kernels, {large.stat().st_size / 1e6:.1f} MB", f"{took * 1e3:.2f} ms", "5 ms", took < 5e-3
    )
    pack = packs.Pack(large)

    def find() -> None:
        for kernel in kernels:
            assert pack.find(records.kernel_key(kernel.target, kernel.operator, kernel.kernel, kernel.parameters)) is not None

    took = _median(find) / LOADED
    yield Figure("find a kernel in it for the first time", f"{took * 1e6:.1f} µs", "5 µs", took < 5e-6)
    pack.close()


def _median(call: Callable[[], object]) -> float:
    samples = []
    for _ in range(_REPEATS):
        measure.settle()
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


# -- Running ------------------------------------------------------------------------------------------------------


def _starting(path: Path) -> Iterator[Figure]:
    x, found = TensorDesc("float32", (32, 32000)), (32, 50)
    outputs = {"output_value_tensor": TensorDesc("float32", found), "output_index_tensor": TensorDesc("uint32", found)}
    desc = TopK1(input_tensor=x, **outputs, axis=1, k=50, axis_direction=AxisDirection.DECREASING)
    packs.build(Spec((LEVEL,), (Wanted(desc),)), path)
    environment = {**os.environ, "TVMDML_PACKS": str(path), "TVMDML_DISABLE_JIT": "1"}
    memory = []

    def first() -> None:
        done = subprocess.run(children.command(_FIRST), env=environment, capture_output=True, text=True, check=True)
        memory.append(int(done.stdout) / 1024)

    first()
    took = _median(first)
    yield Figure("a new process's first result", f"{took:.2f} s", "0.3 s", took < 0.3)
    yield Figure("peak memory of that process", f"{max(memory):.0f} MB", "80 MB", max(memory) < 80)


def _calling(path: Path) -> Iterator[Figure]:
    """Calls of the same kernels, from a pack and compiled here, in turns."""
    x = np.linspace(-9, 9, 4096, dtype=np.float32)
    here = targets.resolve("cpu")
    like = TensorDesc("float32", x.shape)
    desc = ElementWiseRound(input_tensor=like, output_tensor=like, rounding_mode=RoundingMode.HALVES_TO_NEAREST_EVEN)
    packs.build(Spec((here.name,), (Wanted(desc),)), path)
    own = tvmdml.compile(desc)
    with tvmdml.load_pack(path, strict=True) as loaded:
        packed = tvmdml.compile(desc)
        machine = next(here.relatives(loaded.pack.head["targets"]))
        kernel = kernel_for(desc, machine)
        assert loaded.find(kernel, machine) is not None
        again = statistics.median(timeit.repeat(lambda: loaded.find(kernel, machine), number=1000, repeat=_REPEATS)) / 1000
    yield Figure("find it again", f"{again * 1e6:.1f} µs", "5 µs", again < 5e-6)
    out = np.empty_like(x)
    contenders = [
        Contender("ours", library, library, 1, lambda operator=operator: operator(x, out))  # type: ignore[misc]
        for library, operator in (("compiled", own), ("packed", packed))
    ]
    compiled, from_pack = measure.race(contenders, measure.FULL)
    ratio = from_pack.median / compiled.median
    shown = f"{from_pack.median * 1e9:.0f} ns, {ratio:.2f} of {compiled.median * 1e9:.0f} ns"
    yield Figure("a call from a pack, against one compiled here", shown, "1.05 at most", ratio < 1.05)
