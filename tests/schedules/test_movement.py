"""The movement schedules, proven with maps that are unkind: every rule in every dimension, transposed, reversed, and in turns.

Layouts, ranks, lengths, tasks and knobs are tried with these few maps; operators prove only their own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from drawn import agrees
from support import Array, tensor

import tvmdml
from tvmdml import TensorDesc, targets
from tvmdml.enums import PaddingMode
from tvmdml.library import knobs
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Input, Output, Uint, Uints
from tvmdml.operators._followed import followed_classes
from tvmdml.operators._movement import Coordinate, Movement, SourceCoordinates, divided, inside, padded
from tvmdml.operators._movement_fused import FollowedMovement
from tvmdml.operators._movement_scatter_fused import FusedScatter, FusedScatterNd
from tvmdml.operators._pointwise_fused import Result, fuse
from tvmdml.operators._support import support
from tvmdml.operators.fold import Fold, Unfold
from tvmdml.operators.gather import GatherElements, GatherNd1
from tvmdml.operators.scatter import Scatter, ScatterNd
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget

Draw = Callable[..., list[Any]]
START, STEP = 3, 2

# -- Specimens ----------------------------------------------------------------------------------------------------

MODES = {"edge": "edge", "reflection": "reflect", "symmetric": "symmetric", "wrap": "wrap"}
KINDS = ("same", "backwards", "framed", "spread", "repeated", *MODES)
"""What happens in a dimension."""


def grown(kind: str, n: int) -> int:
    """The size of the result in a dimension."""
    return n if kind in ("same", "backwards") else STEP * n if kind in ("spread", "repeated") else n + 2 * START


def looked_up(kind: str, n: int) -> Array:
    """For each coordinate of the result that of the source, or -1 for the fill."""
    x = np.arange(grown(kind, n))
    if kind in MODES:
        return np.pad(np.arange(n), START, MODES[kind])  # type: ignore[call-overload,no-any-return]
    found = {
        "same": x,
        "backwards": n - 1 - x,
        "framed": np.where((x >= START) & (x < START + n), x - START, -1),
        "spread": np.where(x % STEP == 0, x // STEP, -1),
        "repeated": x % n,
    }
    return found[kind]


class Crooked(Movement):
    """A map of its own in each dimension, and the dimensions in the opposite order."""

    NAME = "SPECIMEN_CROOKED_MAP"
    SUPPORT = support("1.0 all r8")
    input_tensor: Input
    output_tensor: Output
    rules: Uints
    turned: Uint

    def check(self) -> None:
        """Any sizes."""

    def fill(self) -> int:
        return 0x5A

    def source(self, *at: Coordinate) -> SourceCoordinates:
        own = at[::-1] if self.turned else at
        return [self._one(KINDS[kind], x, n) for kind, x, n in zip(self.rules, own, self.input_tensor.sizes, strict=True)]

    def _one(self, kind: str, x: Coordinate, n: int) -> Any:
        if kind in MODES:
            return padded(x - START, PaddingMode[kind.upper()])
        made = {"same": lambda: x, "backwards": lambda: n - 1 - x, "framed": lambda: inside(x - START)}
        return (made | {"spread": lambda: divided(x, STEP), "repeated": lambda: x % n})[kind]()

    def numpy(self, x: Array) -> Array:
        places = [looked_up(KINDS[kind], n) for kind, n in zip(self.rules, x.shape, strict=True)]
        found = x[np.ix_(*(np.maximum(one, 0) for one in places))]
        outside = functools.reduce(np.logical_and, np.ix_(*((one >= 0).astype(np.int8) for one in places))) == 0
        found.view(f"u{x.itemsize}")[outside] = self.fill()
        return found.transpose() if self.turned else found


class Turned(Movement):
    """The dimensions in another order."""

    NAME = "SPECIMEN_TURNED"
    SUPPORT = support("1.0 all r8")
    input_tensor: Input
    output_tensor: Output
    order: Uints

    def check(self) -> None:
        """Any sizes."""

    def source(self, *at: Coordinate) -> SourceCoordinates:
        return [at[self.order.index(i)] for i in range(len(at))]

    def numpy(self, x: Array) -> Array:
        return x.transpose(self.order)


def crooked(dtype: str, sizes: tuple[int, ...], kinds: tuple[str, ...], turned: int, one: str, result: str) -> Crooked:
    found = [grown(kind, n) for kind, n in zip(kinds, sizes, strict=True)]
    output = tensor(dtype, tuple(found[::-1] if turned else found), result)
    numbers = tuple(map(KINDS.index, kinds))
    return Crooked(input_tensor=tensor(dtype, sizes, one), output_tensor=output, rules=numbers, turned=turned)


def with_followers(head: Any, layout: str = "packed") -> Any:
    """A map with an operator on the results and on what lies as a layout, one on these and a number, and a cast."""
    y = head.output_tensor
    one, number = tensor(y.data_type.tvm, y.sizes, layout), TensorDesc(y.data_type, y.sizes, (0,) * y.rank)
    nodes: list[Any] = [tvmdml.ElementWiseMax(a_tensor=y, b_tensor=one, output_tensor=y)]
    nodes += [tvmdml.ElementWiseMin(a_tensor=y, b_tensor=number, output_tensor=y), tvmdml.Cast.of(y, output_tensor="uint32")]
    chain = fuse(nodes, [[0, 1], [Result(0), 2], [Result(1)]], [Result(2)])
    fields = {field.name: getattr(head, field.name) for field in head.fields()}
    output = chain.output_tensors[0]
    found = _FOLLOWED[type(head)](**{**fields, "output_tensor": output}, epilogue=chain, epilogue_tensors=chain.input_tensors[1:])
    found.check()
    return found


_FOLLOWED: dict[Any, Any] = {cls.HEAD: cls for cls in followed_classes(FollowedMovement, Crooked, Turned)}

# -- The CPU ------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "plain": ("cpu", 1, {}),
    "three tasks": ("cpu", 3, {"task_bytes": 1}),
    "streamed": ("cpu", 3, {"task_bytes": 1, "stream_bytes": 1, "ahead_bytes": 1, "aligned_elements": 1}),
    "level 2": ("cpu:x86-64-v2", 1, {"aligned_elements": 1}),
}
LAYOUTS = ("packed", "padded", "transposed", "spread")
DTYPES = ("float32", "float16", "uint8", "int64")
SHAPES = ((133,), (9, 70), (70, 9), (40, 33), (3, 5, 90))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A target on which each task, however small, pays."""
    name, threads, values = WAYS[request.param]
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    with knobs.using(movement=values):
        yield targets.resolve(name)


def maps(draw: Draw, count: int) -> Iterator[Crooked]:
    for sizes, turned in draw(itertools.product(SHAPES, (0, 1)), count):
        (kinds,) = draw(itertools.product(KINDS, repeat=len(sizes)), 1)
        dtype, one, result = (draw(some)[0] for some in (DTYPES, LAYOUTS, LAYOUTS))
        yield crooked(dtype, sizes, kinds, turned, one, result)


@pytest.mark.full
def test_every_rule_in_every_dimension(way: Target, draw: Draw) -> None:
    for desc in maps(draw, 10):
        agrees(desc, way)


@pytest.mark.full
def test_what_follows_every_rule(way: Target, draw: Draw) -> None:
    for desc in maps(draw, 4):
        agrees(with_followers(desc, draw(LAYOUTS)[0]), way)


def turned(dtype: str, sizes: tuple[int, ...], order: tuple[int, ...]) -> Turned:
    return Turned(input_tensor=tensor(dtype, sizes), output_tensor=tensor(dtype, tuple(sizes[i] for i in order)), order=order)


BLOCKS = (((5, 3, 33), (0, 2, 1)), ((40, 2, 4, 2, 4), (2, 4, 0, 1, 3)), ((9, 4, 4), (0, 2, 1)), ((70, 2, 3), (1, 0, 2)))
"""Sizes and an order: runs that take turns, blocks that become channels, small matrices, and rows shorter than a vector."""


@pytest.mark.full(first=1)
def test_blocks_that_are_permuted_in_registers(way: Target, draw: Draw) -> None:
    for sizes, order in draw(BLOCKS, 2):
        (dtype,) = draw(DTYPES)
        desc = turned(dtype, sizes, order)
        assert kernel_for(desc, way).name == "permuted"
        agrees(desc, way)
        behind = with_followers(desc)
        assert kernel_for(behind, way).name == "permuted"
        agrees(behind, way)


@pytest.mark.full
def test_dimensions_in_any_order(way: Target, draw: Draw) -> None:
    for order in draw(itertools.permutations(range(5)), 6):
        dtype, *sizes = (draw(some)[0] for some in (DTYPES, (1, 3, 8), *[(1, 2, 3, 4, 5, 7, 16)] * 4))
        agrees(turned(dtype, tuple(sizes), order), way)


ELEMENTS = (((1000,), 0, 700), ((7, 90), 0, 20), ((90, 7), 1, 20), ((4, 30, 70), 1, 50), ((3, 5), 0, 1))
"""Sizes, the axis, and how many updates along it."""
SLICES = (((30, 40), 2), ((30, 40), 1), ((9, 5, 70), 2), ((50,), 1), ((90, 3), 1), ((20, 64), 1))
"""Sizes, and how many of them a tuple of indices counts."""
COMBINED = ("sum", "multiply", "max", "min")


def updates(way: Target, draw: Draw, count: int) -> None:
    for sizes, axis, length in draw(ELEMENTS, count):
        dtype, indices = (draw(some)[0] for some in (DTYPES, ("int32", "int64", "uint32", "uint64")))
        x, own = tensor(dtype, sizes), tuple(length if i == axis else n for i, n in enumerate(sizes))
        parts = [x, tensor(indices, own), tensor(dtype, own)]
        agrees(Scatter.of(*parts, axis=axis), way)
        agrees(FusedScatter.of(*parts, axis=axis, function=draw(COMBINED)[0]), way)
    for sizes, t in draw(SLICES, count):
        (dtype,) = draw(DTYPES)
        parts = [tensor(dtype, sizes), tensor("int64", (60, t)), tensor(dtype, (60, *sizes[t:]))]
        counts = {"input_dimension_count": None, "indices_dimension_count": None}
        agrees(ScatterNd.of_call(*parts, **counts), way)
        agrees(FusedScatterNd.of_call(*parts, **counts, function=draw(COMBINED)[0]), way)


@pytest.mark.full
def test_updates_in_parts_of_the_result(way: Target, draw: Draw) -> None:
    updates(way, draw, 2)


LOOKS = (((400,), 0, 1100), ((7, 90), 1, 133), ((9, 70), 0, 33), ((200, 64), 0, 150), ((3, 5, 40), 1, 7))
"""Sizes, the axis, and how many indices along it."""


@pytest.mark.full
def test_elements_that_are_looked_up(way: Target, draw: Draw) -> None:
    for sizes, axis, count in draw(LOOKS, 2):
        dtype, indices = (draw(some)[0] for some in (DTYPES, ("int32", "int64", "uint32", "uint64")))
        places = tensor(indices, tuple(count if i == axis else n for i, n in enumerate(sizes)))
        with knobs.using(movement={"block_bytes": draw((1, 1 << 13))[0]}):
            agrees(GatherElements.of(tensor(dtype, sizes), places, axis=axis), way)
            pairs = tensor(indices, (count, len(sizes)))
            counts = {"input_dimension_count": None, "indices_dimension_count": None, "batch_dimension_count": 0}
            agrees(GatherNd1.of_call(tensor(dtype, sizes), pairs, **counts), way)


FOLDS = (
    (((600,), (4,), 1, 1, 0, 3), "rows"),
    (((12,), (4,), 1, 1, 0, 3), "default"),
    (((5, 37), (3, 3), 1, 1, 1, 1), "default"),
    (((7, 68), (3, 3), 2, 1, 1, 1), "rows"),
    (((3, 4, 55), (2, 1, 5), 3, 2, 4, 0), "rows"),
    (((6, 70), (2, 2), 3, 1, 0, 0), "rows"),
    (((9, 3), (2, 3), 1, 1, 5, 2), "default"),
    (((90,), (40,), 9, 1, 3, 7), "default"),
    (((8, 48), (2, 4), (2, 4), 1, 0, 0), "permuted"),
)
"""Spatial sizes and windows, strides, dilations, and the padding before and behind; and the way."""


@pytest.mark.full
def test_sums_of_windows(way: Target, draw: Draw) -> None:
    for (sizes, window, *numbers), name in draw(FOLDS, 4):
        dtype, each = draw(DTYPES)[0], [one if isinstance(one, tuple) else (one,) * len(sizes) for one in numbers]
        fields = dict(zip(("strides", "dilations", "start_padding", "end_padding"), each, strict=True))
        image = tensor(dtype, (2, 3, *sizes))
        columns = Unfold.of(image, window_sizes=window, **fields).output_tensor
        desc = Fold.of(columns, output_tensor=image, window_sizes=window, **fields)
        assert kernel_for(desc, way).name == name
        agrees(desc, way)


# -- Devices ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_devices_every_rule_in_every_dimension(device: Target, draw: Draw) -> None:
    with knobs.using(movement={"threads": 32, "most_groups": 1}):
        for i, desc in enumerate(maps(draw, 10)):
            agrees(with_followers(desc, draw(LAYOUTS)[0]) if i < 3 else desc, device)


def test_kernels_of_updates_with_other_integers_are_others() -> None:
    """A launch of one update for each place has no coordinates for several."""
    counts = dict[Any, int]()
    for length in (1, 3):
        parts = [tensor("float32", (3, 5)), tensor("int64", (length, 5)), tensor("float32", (length, 5))]
        several = [tensor("float32", (90, 3)), tensor("int64", (20 * length, 1)), tensor("float32", (20 * length, 3))]
        one = [tensor("float32", (90, 3)), tensor("int64", (1, 1)), tensor("float32", (1, 3))]
        nd = {"input_dimension_count": None, "indices_dimension_count": None}
        for desc in (Scatter.of(*parts, axis=0), ScatterNd.of_call(*several, **nd), ScatterNd.of_call(*one, **nd)):
            for target in map(targets.resolve, ("cpu:x86-64-v3", "cuda:sm_80")):
                kernel = kernel_for(desc.canonical(), target)
                key = target.kind, kernel.module, kernel.name, kernel.parameters
                assert counts.setdefault(key, len(kernel.scalars)) == len(kernel.scalars)


@pytest.mark.full
def test_devices_updates(device: Target, draw: Draw) -> None:
    with knobs.using(movement={"threads": 32, "most_groups": 1024}):
        updates(device, draw, 3)


# -- Very many tensors --------------------------------------------------------------------------------------------


def _very_many(count: int) -> tuple[list[Array], Array, tvmdml.Join, tvmdml.Split]:
    """Parts of unequal widths, the whole, and the operators from one to the other."""
    rng = np.random.default_rng(count)
    parts = [rng.standard_normal((37, 1 + 7 * i % 19)).astype(np.float32) for i in range(count)]
    whole = np.concatenate(parts, 1)
    descs = [TensorDesc("float32", one.shape) for one in parts]
    split = tvmdml.Split.of(TensorDesc("float32", whole.shape), axis=1, output_tensors=descs)
    return parts, whole, tvmdml.Join.of(descs, axis=1), split


@pytest.mark.full
@pytest.mark.parametrize("task_bytes", [1, 1 << 26])
@pytest.mark.parametrize("count", [32, 33, 150])
def test_very_many_tensors(count: int, task_bytes: int) -> None:
    parts, whole, join, split = _very_many(count)
    found, pieces = np.empty_like(whole), [np.empty_like(one) for one in parts]
    with knobs.using(movement={"task_bytes": task_bytes}):
        tvmdml.compile(join, "cpu")(*parts, found)
        tvmdml.compile(split, "cpu")(whole, *pieces)
    assert np.array_equal(found, whole)
    assert all(map(np.array_equal, pieces, parts))


def test_kernels_of_very_many_tensors_do_not_grow_with_them() -> None:
    """TVM's time grows with the square of a kernel's parameters: it took 33 s for 1000 tensors."""
    target = targets.resolve("cpu")
    with knobs.using(movement={"task_bytes": 1 << 26}):
        for few, many in zip(_very_many(40)[2:], _very_many(160)[2:], strict=True):
            lines = [str(kernel_for(desc, target).written(target)).count("\n") for desc in (few, many)]
            assert lines[0] == lines[1]
