"""ELEMENT_WISE_ROUND on a GPU: memory-bound, so each thread moves 16 bytes at once, and neighbouring threads move neighbours.

There are three variants:

- ``flat``: everything is contiguous: 16 bytes at once, and the rest one by one.
- ``rows``: any strides; as many neighbours at once as are contiguous and aligned in every row.
- ``tiles``: the contiguous dimension of the input is not that of the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml import tensorir as T
from tvmdml.enums import RoundingMode
from tvmdml.kernel import Kernel
from tvmdml.knobs import Knob, Knobs
from tvmdml.layout import collapse
from tvmdml.operators.element_wise_round import ElementWiseRound, rounding
from tvmdml.schedules.gpu import VECTOR_BYTES, Numbers, _tiles, enough_groups, groups_for, position, require, strided
from tvmdml.schedules.gpu._words import unravel
from tvmdml.targets._device import DeviceTarget
from tvmdml.tensors import TensorDataType

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

KNOBS = Knobs(
    "element_wise_round",
    enough_groups(1024),
    threads=Knob(256, (32, 64, 128, 256, 512), "threads per group"),
    most_groups=Knob(8192, tuple(1 << n for n in range(16)), "maximum groups per launch; each strides over the rest"),
)


def kernel(desc: ElementWiseRound, target: DeviceTarget, in_place: bool) -> Kernel:
    """The kernel over the elements in the output's order, with contiguous dimensions merged into one."""
    knobs = KNOBS.now(target, desc, in_place)
    source, result = desc.input_tensor, desc.output_tensor
    sizes, steps = collapse(result.sizes, source.layout, result.layout, reorder=True)
    sizes, steps_in, steps_out = sizes or (1,), steps[0] or (1,), steps[1] or (1,)
    lanes = VECTOR_BYTES // result.data_type.itemsize
    threads = min(knobs.threads, target.max_threads)
    if steps_in == steps_out == (1,):
        way = "flat"
        groups = groups_for(-(-sizes[0] // lanes), threads, target, knobs.most_groups)
    elif (other := _tiles.crossing(sizes, steps_in, steps_out)) is not None and target.max_threads >= _tiles.THREADS:
        way, lanes, threads = "tiles", 1, _tiles.THREADS
        order = [*range(other), *range(other + 1, len(sizes) - 1), other, len(sizes) - 1]
        sizes, steps_in, steps_out = (tuple(v[i] for i in order) for v in (sizes, steps_in, steps_out))
        groups = min(_tiles.count(sizes), target.max_groups, knobs.most_groups)
    else:
        way, lanes = "rows", _together(sizes, (steps_in, steps_out), lanes)
        groups = groups_for(result.element_count // lanes, threads, target, knobs.most_groups)
    span = max(source.span, result.span, result.element_count)
    numbers = Numbers(span, groups=groups, sizes=sizes, steps_in=steps_in, steps_out=steps_out)
    data_type = result.data_type
    # Halves away from zero are rounded by the sign bit, which is read from an integer of the float's width.
    by_bits = data_type is TensorDataType.FLOAT64 and desc.rounding_mode is RoundingMode.TOWARD_INFINITY
    require(desc, target, numbers, data_type.tvm, *(("int64",) if by_bits else ()))
    writer = _Writer(desc, numbers, way=way, lanes=lanes, threads=threads, rank=len(sizes), in_place=in_place)
    return Kernel("element_wise_round", way, writer.parameters, writer.function, numbers.scalars)


def _together(sizes: tuple[int, ...], steps: tuple[tuple[int, ...], ...], most: int) -> int:
    """How many neighbours can be moved at once everywhere: a power of two."""
    if any(step[-1] != 1 for step in steps):
        return 1
    while any(number % most for number in (sizes[-1], *(s for step in steps for s in step[:-1]))):
        most //= 2
    return most


class _Writer:
    """Writes the kernel."""

    way: str
    lanes: int
    threads: int
    rank: int
    in_place: bool

    def __init__(self, desc: ElementWiseRound, numbers: Numbers, **choices: Any) -> None:
        self.mode, self.data_type, self.numbers = desc.rounding_mode, desc.input_tensor.data_type, numbers
        self.__dict__.update(choices)
        own = {"mode": self.mode.name, "type": self.data_type.tvm}
        self.parameters = (*own.items(), *choices.items(), *numbers.parameters)

    def function(self) -> PrimFunc:
        with T.on_device(), T.function() as f:
            # In place there is only one buffer: two buffers with the same memory would violate the no-alias promise.
            source = None if self.in_place else f.buffer("input", self.data_type.tvm)
            self.result = f.buffer("output", self.data_type.tvm)
            self.source = self.result if source is None else source
            self.n = self.numbers.declare(f)
            {"flat": self._flat, "rows": self._rows, "tiles": self._tiles}[self.way]()
        return f.result()

    def _flat(self) -> None:
        n, lanes = self.n, self.numbers.const(self.lanes)
        with T.launch(n.groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, self.numbers.dtype)
            (total,) = n.sizes
            whole = T.let(T.truncdiv(total, lanes))
            with strided(first, whole, T.let(n.groups * self.threads)) as i:
                run = T.run(i * lanes, self.lanes)
                T.store(self.result, run, self._rounded(run))
            with T.when(first < total - whole * lanes):  # the rest is less than a vector
                at = T.let(whole * lanes + first)
                T.store(self.result, at, self._rounded(at))

    def _rows(self) -> None:
        n, lanes = self.n, self.numbers.const(self.lanes)
        with T.launch(n.groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, self.numbers.dtype)
            sizes = [*n.sizes[:-1], T.let(T.truncdiv(n.sizes[-1], lanes))]
            total = sizes[0]
            for size in sizes[1:]:
                total = total * size
            with strided(first, T.let(total), T.let(n.groups * self.threads)) as i:
                *at, last = (T.cast(c, self.numbers.dtype) for c in unravel(i, sizes))
                in_at, out_at = (self._run(T.let(T.dot([*at, last * lanes], steps))) for steps in (n.steps_in, n.steps_out))
                T.store(self.result, out_at, self._rounded(in_at))

    def _tiles(self) -> None:
        n = self.n

        def write(at: list[Any], values: Any) -> None:
            T.store(self.result, T.let(T.dot(at, n.steps_out)), values[0])

        def read(at: list[Any]) -> list[Any]:
            return [self._rounded(T.let(T.dot(at, n.steps_in)))]

        _tiles.move(n.groups, self.numbers, n.sizes, [self.data_type.tvm], read, write)

    def _run(self, at: Any) -> Any:
        return at if self.lanes == 1 else T.run(T.let(T.multiple(at, self.lanes)), self.lanes)

    def _rounded(self, at: Any) -> Any:
        return rounding(self.mode, self.source[at], self.data_type)
