"""The pointwise schedules, proven with formulas that are unkind: not idempotent, not commutative, different for NaN and -0.

All layouts, ranks, lengths, tasks and knobs are tried with these few formulas; operators prove only their own expressions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from drawn import agrees
from support import SIZES, Array, mixture, seeded, special_values, tensor

import tvmdml
from tvmdml import TensorDataType, TensorDesc, targets
from tvmdml.errors import InvalidArgument
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula, Sink, Source, composed
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import knobs
from tvmdml.library.finding import find
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Input, OptionalInput, OptionalScaleBias, Output, Shared
from tvmdml.operators._pointwise import Binary, Pointwise, Unary
from tvmdml.operators._support import support
from tvmdml.operators._trial import any_values
from tvmdml.operators.activation import ActivationLeakyRelu
from tvmdml.operators.element_wise_binary import ElementWiseAdd
from tvmdml.operators.element_wise_unary import ElementWiseAbs, ElementWiseClip
from tvmdml.schedules.cpu import pointwise as on_cpu
from tvmdml.schedules.gpu import pointwise as on_gpu
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget

Draw = Callable[..., list[Any]]

# -- Specimens ----------------------------------------------------------------------------------------------------


class Crooked(Unary):
    """Of one input: doing an element twice gives another result."""

    NAME = "SPECIMEN_CROOKED"
    SUPPORT = support("1.0 all r8")
    scale_bias: OptionalScaleBias = None

    def value(self, x: Any) -> Any:
        return T.rounded(x * T.like(x, 3)) + T.like(x, 1)

    def numpy(self, x: Array) -> Array:
        return x * x.dtype.type(3) + x.dtype.type(1)


class Lean(Binary):
    """Of two inputs: exchanging them gives another result."""

    NAME = "SPECIMEN_LEAN"
    SUPPORT = support("1.0 all r8")

    def value(self, a: Any, b: Any) -> Any:
        return T.rounded(a * T.like(a, 2)) - b

    def numpy(self, a: Array, b: Array) -> Array:
        return a * a.dtype.type(2) - b


class Choosy(Pointwise):
    """Of three or four inputs of different types, a wider result: NaN chooses otherwise than any number."""

    NAME = "SPECIMEN_CHOOSY"
    SUPPORT = support(
        condition_tensor="1.0 u8 r8", a_tensor="1.0 F r8", b_tensor="1.0 i r8", c_tensor="1.0 I r8", output_tensor="1.0 D r8"
    )
    condition_tensor: Input
    a_tensor: Input
    b_tensor: Input
    c_tensor: OptionalInput = None
    output_tensor: Output

    def value(self, condition: Any, a: Any, b: Any, c: Any = None) -> Any:
        a, b = T.to(a, "float64"), T.to(b, "float64")
        found = T.select(T.is_nan(a) | (condition > T.like(condition, 100)), b, a)
        return found if c is None else found - T.to(c, "float64")

    def numpy(self, condition: Array, a: Array, b: Array, c: Array | None = None) -> Array:
        found = np.where(np.isnan(a) | (condition > 100), b.astype(np.float64), a.astype(np.float64))
        return found if c is None else found - c


class Narrow(Binary):
    """A result that is narrower than the inputs."""

    NAME = "SPECIMEN_NARROW"
    SUPPORT = support("1.0 all r8", output_tensor="1.0 u8 r8")
    SHARES = ()

    def value(self, a: Any, b: Any) -> Any:
        return a > b

    def numpy(self, a: Array, b: Array) -> Array:
        return a > b


class Twofold(Pointwise):
    """Two outputs, of different widths."""

    NAME = "SPECIMEN_TWOFOLD"
    SUPPORT = support("1.0 F r8", less_tensor="1.0 u8 r8")
    SHARES = (("a_tensor", "output_tensor"), ("b_tensor", "output_tensor"))
    a_tensor: Input
    b_tensor: Input
    output_tensor: Output
    less_tensor: Output

    def value(self, a: Any, b: Any) -> Any:
        return a - b, a < b

    def numpy(self, a: Array, b: Array) -> tuple[Array, Array]:
        return a - b, a < b


def crooked(dtype: str, sizes: tuple[int, ...], one: str = "packed", result: str = "packed", **more: Any) -> Crooked:
    return Crooked(input_tensor=tensor(dtype, sizes, one), output_tensor=tensor(dtype, sizes, result), **more)


def lean(dtype: str, sizes: tuple[int, ...], one: str, other: str, result: str = "packed") -> Lean:
    return Lean(
        a_tensor=tensor(dtype, sizes, one), b_tensor=tensor(dtype, sizes, other), output_tensor=tensor(dtype, sizes, result)
    )


def narrow(dtype: str, sizes: tuple[int, ...], one: str = "packed", other: str = "packed") -> Narrow:
    return Narrow(a_tensor=tensor(dtype, sizes, one), b_tensor=tensor(dtype, sizes, other), output_tensor=tensor("uint8", sizes))


def choosy(sizes: tuple[int, ...], layouts: tuple[str, ...] = ("packed",) * 5, with_c: bool = True) -> Choosy:
    types = ("uint8", "float16", "int32", "int8", "float64")
    condition, a, b, c, result = (tensor(dtype, sizes, layout) for dtype, layout in zip(types, layouts, strict=True))
    return Choosy(condition_tensor=condition, a_tensor=a, b_tensor=b, c_tensor=c if with_c else None, output_tensor=result)


def twofold(dtype: str, sizes: tuple[int, ...], *layouts: str) -> Twofold:
    a, b, result, less = (*layouts, *("packed",) * (4 - len(layouts)))
    wide = (tensor(dtype, sizes, layout) for layout in (a, b, result))
    return Twofold(
        **dict(zip(("a_tensor", "b_tensor", "output_tensor"), wide, strict=True)), less_tensor=tensor("uint8", sizes, less)
    )


# -- The CPU ------------------------------------------------------------------------------------------------------

TASKS: dict[str, Any] = {"task_elements": 1}
STREAMED: dict[str, Any] = {"stream_bytes": 1, "aligned_elements": 1}
WAYS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "plain": ("cpu", 1, {}),
    "three tasks": ("cpu", 3, TASKS),
    "streamed": ("cpu", 3, TASKS | STREAMED),
    "once": ("cpu", 3, TASKS | STREAMED),
    "level 2": ("cpu:x86-64-v2", 1, {"aligned_elements": 1}),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A target on which each task, however small, pays."""
    name, threads, values = WAYS[request.param]
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    if request.param == "once":  # as a function's kernel
        monkeypatch.setattr(on_cpu, "kernel", _kernel_with_its_expression_once)
    with knobs.using(pointwise=values):
        yield targets.resolve(name)


def _kernel_with_its_expression_once(desc: Pointwise, target: Target, shared: Shared, knobs: Any) -> Kernel:
    return on_cpu.kernel_of(desc.formula(shared), target, knobs, once=True)


LENGTHS = (*range(1, 20), 31, 32, 33, 63, 64, 65, 66, 127, 128, 129, 191, 193, 257, 1000)


@pytest.mark.full
@pytest.mark.some(3)
def test_every_length_and_start_in_place_and_not(way: Target, draw: Draw) -> None:
    for dtype, length in itertools.product(draw(("float32", "float16", "uint8", "int64")), LENGTHS):
        desc = crooked(dtype, (length,))
        for shift in (0, 1, 5):
            agrees(desc, way, shift=shift)
            agrees(desc, way, desc.shareable(), shift)


LAYOUTS = ("packed", "padded", "transposed", "shuffled", "spread", "broadcast outer", "broadcast inner")
PAIRS = tuple(itertools.product(LAYOUTS, LAYOUTS))


@pytest.mark.full
@pytest.mark.some(3)
def test_every_rank_and_pair_of_layouts(way: Target, draw: Draw) -> None:
    for rank, (one, other) in zip(itertools.cycle(SIZES), draw(PAIRS, 16), strict=False):
        agrees(lean("float32", SIZES[rank], one, other), way)
        agrees(lean("float32", SIZES[rank], one, other, "padded"), way)


ROWS = ((1, 100), (3, 5), (3, 33), (5, 64), (40, 24), (2, 3, 70), (7, 1, 130))
SHORT = (*range(2, 20), 31, 32, 33, 63)


@pytest.mark.full
@pytest.mark.some(6)
@pytest.mark.parametrize("other", ["broadcast outer", "broadcast inner", "padded"])
def test_rows_columns_and_scalars_of_every_size(way: Target, other: str, draw: Draw) -> None:
    (dtype, *_) = draw(("float32", "int16"))
    for sizes in ROWS:
        agrees(lean(dtype, sizes, "packed", other), way)
        agrees(lean(dtype, sizes, other, "padded", "padded"), way)
    scalar = TensorDesc(dtype, (9, 70), (0, 0))
    whole = TensorDesc(dtype, (9, 70))
    agrees(Lean(a_tensor=scalar, b_tensor=whole, output_tensor=whole), way)
    agrees(Lean(a_tensor=scalar, b_tensor=scalar, output_tensor=whole), way)


@pytest.mark.full
@pytest.mark.some(3)
def test_tiles_of_every_size(way: Target, draw: Draw) -> None:
    (dtype, *_) = draw(("float32", "float16", "uint8", "float64"))
    for sizes in ((16, 16), (17, 16), (16, 31), (50, 33), (15, 40), (40, 15), (3, 33, 20)):
        for one, other in (("transposed", "packed"), ("packed", "transposed"), ("transposed", "transposed")):
            desc = lean(dtype, sizes, one, other)
            agrees(desc, way)
            for pair in draw(desc.shareable()):  # in place, beside an input that is transposed
                agrees(desc, way, (pair,))


@pytest.mark.full
@pytest.mark.some(3)
def test_inputs_of_several_types_and_widths(way: Target) -> None:
    for sizes in ((1,), (7,), (64,), (129,), (1000,), (33, 40), (3, 5, 70)):
        for with_c in (True, False):
            agrees(choosy(sizes, with_c=with_c), way)
        for layouts in (
            ("broadcast inner", "packed", "broadcast outer", "padded", "padded"),
            ("packed", *("transposed",) * 3, "packed"),
        ):
            if len(sizes) > 1:
                agrees(choosy(sizes, layouts), way)


@pytest.mark.full(first=1)
@pytest.mark.some(3)
def test_a_narrow_result(way: Target, draw: Draw) -> None:
    (dtype, *_) = draw(("float32", "float16", "float64", "int64", "int8"))
    for sizes in ((1,), (31,), (64,), (129,), (1001,), (20, 45), (40, 40)):
        agrees(narrow(dtype, sizes), way)
    agrees(narrow(dtype, (40, 40), "transposed"), way)
    agrees(narrow(dtype, (9, 45), "broadcast outer", "broadcast inner"), way)


@pytest.mark.full
@pytest.mark.some(3)
def test_several_outputs(way: Target, draw: Draw) -> None:
    (dtype, *_) = draw(("float32", "float16"))
    for sizes in ((5,), (200,), (9, 70), (33, 40)):
        desc = twofold(dtype, sizes)
        agrees(desc, way)
        for pair in desc.shareable():
            agrees(desc, way, (pair,))
    agrees(twofold(dtype, (40, 33), "transposed", "packed", "padded", "padded"), way)
    agrees(twofold(dtype, (40, 33), "packed", "packed", "packed", "transposed"), way)


@pytest.mark.full
@pytest.mark.some(3)
def test_in_place_with_strides(way: Target, draw: Draw) -> None:
    layouts = ("padded", "transposed", "spread", "shuffled")
    for layout, sizes, dtype in draw(itertools.product(layouts, ((33,), (20, 40), (3, 7, 40)), ("float32", "int8")), 6):
        desc = lean(dtype, sizes, layout, layout, layout)
        assert len(desc.shareable()) == 2
        for pair in desc.shareable():
            agrees(desc, way, (pair,))
        agrees(desc, way, desc.shareable())


def test_one_kernel_serves_all_sizes_and_strides_of_a_class() -> None:
    target = targets.resolve("cpu")
    some = [kernel_for(lean("float32", sizes, "packed", "broadcast outer"), target) for sizes in ((30, 20), (17, 100), (9, 64))]
    assert len({kernel.identity for kernel in some}) == 1
    flat = [kernel_for(lean("float32", sizes, "packed", "packed"), target) for sizes in ((30, 20), (4,), (2, 3, 1, 5, 2, 1, 2, 3))]
    assert len({kernel.identity for kernel in flat}) == 1


@pytest.mark.full
@pytest.mark.some(3)
def test_short_rows_of_every_length_in_place_and_not(way: Target, draw: Draw) -> None:
    (dtype, *_) = draw(("float32", "float16", "uint8"))
    for length in SHORT:
        desc = lean(dtype, (9, length), "packed", "broadcast outer")
        agrees(desc, way)
        agrees(desc, way, (("a_tensor", "output_tensor"),))
        agrees(lean(dtype, (9, length), "padded", "broadcast inner", "padded"), way)


def test_one_kernel_serves_all_rows_shorter_than_a_vector() -> None:
    (target,) = targets.elsewhere("cpu:x86-64-v3")
    kernels = [kernel_for(lean("float16", (100, length), "packed", "broadcast outer"), target) for length in (3, 7, 31, 32)]
    assert [dict(kernel.parameters)["rows"] for kernel in kernels] == ["short", "short", "short", "long"]
    assert len({kernel.identity for kernel in kernels}) == 2


def test_broadcasts_and_transposes_are_read_by_whole_vectors() -> None:
    """None falls back to a load for each element: neither rows, columns, scalars nor transposed inputs."""
    (target,) = targets.elsewhere("cpu:x86-64-v3")
    for one, other in itertools.product(("packed", "broadcast outer", "broadcast inner", "transposed"), repeat=2):
        kernel = kernel_for(lean("float32", (64, 128), one, other), target)
        assert dict(kernel.parameters)["way"] in ("lines", "tiles"), (one, other)
    for desc in (narrow("float64", (5000,)), choosy((5000,)), crooked("uint8", (5000,))):
        assert dict(kernel_for(desc, target).parameters)["way"] == "lines"


def test_kernels_of_a_family_differ_in_their_formula_alone() -> None:
    """The loops around two formulas of the same types are the same: so that a specimen proves them for every operator."""

    class Other(Crooked):
        NAME = "SPECIMEN_OTHER"

        def value(self, x: Any) -> Any:
            return T.like(x, 7)

    target = targets.resolve("cpu")
    for layouts in (("packed", "packed"), ("transposed", "packed"), ("spread", "padded")):
        one = crooked("float32", (40, 40), *layouts)
        other = Other(input_tensor=one.input_tensor, output_tensor=one.output_tensor)
        kernels = [kernel_for(desc, target) for desc in (one, other)]
        assert kernels[0].scalars == kernels[1].scalars
        assert [(n, v) for n, v in kernels[0].parameters if n != "operator"] == [
            (n, v) for n, v in kernels[1].parameters if n != "operator"
        ]


# -- Devices ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_devices_every_rank_and_pair_of_layouts(device: Target, draw: Draw) -> None:
    for rank, (one, other) in zip(itertools.cycle(SIZES), draw(PAIRS, 24), strict=False):
        agrees(lean("float32", SIZES[rank], one, other), device)
        agrees(lean("float16", SIZES[rank], other, one, "padded"), device)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "float64"])
def test_devices_lengths_in_place_and_not(device: Target, dtype: str) -> None:
    with knobs.using(pointwise={"threads": 32, "most_groups": 1}):
        for length in (1, 3, 4, 15, 16, 17, 33, 1000):
            desc = crooked(dtype, (length,))
            agrees(desc, device, shift=length % 3)
            agrees(desc, device, desc.shareable(), length % 3)


@pytest.mark.full
def test_devices_tiles_types_and_outputs(device: Target) -> None:
    for sizes in ((8, 8), (33, 40), (3, 70, 9)):
        for one, other in (("transposed", "packed"), ("packed", "transposed"), ("transposed", "transposed")):
            desc = lean("float32", sizes, one, other)
            agrees(desc, device)
            for pair in desc.shareable():
                agrees(desc, device, (pair,))
        agrees(narrow("float32", sizes, "transposed"), device)
        agrees(choosy(sizes), device)
        agrees(choosy(sizes, ("packed", "transposed", "transposed", "packed", "packed"), with_c=False), device)
        agrees(twofold("float32", sizes), device)
        agrees(twofold("float16", sizes, "transposed", "packed", "packed", "padded"), device)


@pytest.mark.full(first=1)
@pytest.mark.usefixtures("numbers")
def test_devices_integers_of_every_kind(device: Target) -> None:
    for one, other in (("packed", "packed"), ("padded", "broadcast inner"), ("transposed", "packed")):
        agrees(lean("float32", (3, 40, 33), one, other), device)


# -- Formulas of several operators ----------------------------------------------------------------------------------


def _run(formula: Formula, target: Target, *inputs: Array) -> Array:
    desc = ElementWiseAbs(input_tensor=formula.inputs[0], output_tensor=formula.outputs[0])
    if target.schedules == "cpu":
        kernel = on_cpu.kernel_of(formula, target, on_cpu.KNOBS.now(target))
    else:
        kernel = on_gpu.kernel_of(formula, desc, target, on_gpu.KNOBS.now(target))
    out = tvmdml.asarray(np.zeros(formula.outputs[0].sizes, formula.outputs[0].data_type.numpy), target.name)
    launch = target.launch(find(kernel, target), kernel.scalars, kernel.temporaries)
    launch(*(tvmdml.asarray(x, target.name) for x in inputs), out)
    return np.asarray(out if target.schedules == "cpu" else out.numpy())


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_three_operators_in_one_kernel_give_the_bits_of_three(target: Target, dtype: str) -> None:
    x, row = TensorDesc(dtype, (30, 70)), TensorDesc(dtype, (30, 70), (0, 1))
    scaled = ElementWiseAbs(input_tensor=x, output_tensor=x, scale_bias=(3.3, -7.7))
    add = ElementWiseAdd(a_tensor=x, b_tensor=row, output_tensor=x)
    clip = ElementWiseClip(input_tensor=x, output_tensor=x, min=-2, max=50.3)
    formula = composed([scaled.formula(), add.formula(), clip.formula()], (x, row), [[0], [2, 1], [3]], (x,), [4])
    assert formula.modules == ("element_wise_unary", "element_wise_binary")
    assert [one.sizes for one in formula.inputs] == [(30, 70), (30, 70)]
    a, b = (any_values(seeded(dtype, i), x.data_type, sizes) for i, sizes in enumerate(((30, 70), (70,))))
    b = np.broadcast_to(b, (30, 70))
    with np.errstate(all="ignore"):
        (expected,) = clip.reference(*add.reference(*scaled.reference(a), b))
    problem = clip.mismatch((_run(formula, target, a, np.ascontiguousarray(b[0])),), (expected,))
    assert not problem, problem


def test_a_product_and_a_sum_in_one_kernel_are_rounded_one_by_one(target: Target) -> None:
    """The product is rounded first: one instruction for both would give other bits, and not on every processor."""
    x = TensorDesc("float32", (3000,))
    product, total = tvmdml.ElementWiseMultiply.of(x, x), ElementWiseAdd.of(x, x)
    a, b = (seeded("product", i).standard_normal(3000).astype(np.float32) for i in range(2))
    expected = a * b + -(a * b).astype(np.float32)  # 0, but for a fused multiply-add
    formula = composed([product.formula(), total.formula()], (x, x, x), [[0, 1], [3, 2]], (x,), [4])
    found = _run(formula, target, a, b, -(a * b))
    assert np.array_equal(found, expected)
    assert not found.any()


def test_an_operand_of_one_more_operator_may_be_an_input_already_known() -> None:
    x = TensorDesc("float32", (500,))
    relu = ActivationLeakyRelu(input_tensor=x, output_tensor=x, alpha=0.1)
    less = Lean(a_tensor=x, b_tensor=x, output_tensor=x)
    formula = composed([relu.formula(), less.formula()], (x,), [[0], [0, 1]], (x,), [2])  # 2 x - relu(x)
    assert len(formula.inputs) == 1
    values = mixture(seeded("known"), TensorDataType.FLOAT32, (500,))
    with np.errstate(all="ignore"):
        (expected,) = less.reference(values, *relu.reference(values))
    assert not less.mismatch((_run(formula, targets.resolve("cpu"), values),), (expected,))


def test_an_output_may_be_kept() -> None:
    x = TensorDesc("float32", (100,))
    both, last = (
        composed([crooked("float32", (100,)).formula()] * 2, (x,), [[0], [1]], [x] * len(kept), kept) for kept in ([1, 2], [2])
    )
    assert (len(both.inputs), len(both.outputs)) == (1, 2)
    assert both.key != last.key
    assert both.inputs[0].sizes == x.sizes


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_sink_rounds_wide_results_to_the_operators_type_first(dtype: str) -> None:
    """As a matrix kernel does it: it hands over float32, by coordinates, and a row of a bias is added behind it."""
    sizes = (12, 32)
    x, row = TensorDesc(dtype, sizes), TensorDesc(dtype, sizes, (0, 1))
    formula = ElementWiseAdd(a_tensor=x, b_tensor=row, output_tensor=x).formula()
    with T.function() as f:
        wide, bias, out = f.buffer("wide", "float32"), f.buffer("bias", dtype), f.buffer("out", dtype)
        sink = Sink(formula, (Source(bias, (0, 1)),), (Source(out, (32, 1)),))
        with T.loop(T.i64(12)) as i, T.loop(T.i64(2)) as half:
            sink.put([i, T.let(half * 16)], wide[T.run(i * 32 + half * 16, 16)])
    target = targets.resolve("cpu")
    sums = seeded("sink").standard_normal(sizes).astype(np.float32)
    add = seeded("bias").standard_normal(32).astype(dtype)
    found = np.zeros(sizes, dtype)
    target.launch(target.build(f.result()).launcher(), (), ())(sums, add, found)
    assert np.array_equal(found, sums.astype(dtype) + add)


# -- Rules --------------------------------------------------------------------------------------------------------


def test_types_that_the_table_gives_together_must_be_the_same() -> None:
    with pytest.raises(InvalidArgument, match=r"SPECIMEN_LEAN b_tensor.data_type: given int8; allowed: float32, as in a_tensor"):
        Lean(a_tensor=tensor("float32", (4,)), b_tensor=tensor("int8", (4,)), output_tensor=tensor("float32", (4,))).validate(
            tvmdml.FeatureLevel.LEVEL_6_4
        )
    with pytest.raises(
        InvalidArgument, match=r"SPECIMEN_NARROW output_tensor.sizes: given \(5,\); allowed: \(4,\), as in a_tensor"
    ):
        Narrow(a_tensor=tensor("int8", (4,)), b_tensor=tensor("int8", (4,)), output_tensor=tensor("uint8", (5,))).validate(
            tvmdml.FeatureLevel.LEVEL_6_4
        )


def test_attributes_with_other_bits_make_other_launches_or_other_kernels() -> None:
    target = targets.resolve("cpu")
    for dtype, many in (("float32", 1), ("float16", 1), ("float64", 3)):  # of float64 they are constants
        x = tensor(dtype, (4,))
        made = [kernel_for(ActivationLeakyRelu(input_tensor=x, output_tensor=x, alpha=alpha), target) for alpha in (0.0, -0.0, 1.0)]
        assert len({kernel.identity for kernel in made}) == many
        assert len({(kernel.identity, kernel.scalars) for kernel in made}) == 3
    scaled = [kernel_for(crooked("float32", (4,), scale_bias=own), target) for own in (None, (1, 0), (1, 3), (2, 0.5))]
    assert len({(kernel.identity, kernel.scalars) for kernel in scaled}) == 4
    assert scaled[2].identity == scaled[3].identity


SPECIAL = (0.1, -2.5, 0.0, -0.0, np.inf, 1e-45, np.nan)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_kernel_serves_all_values_of_an_attribute(target: Target, dtype: str) -> None:
    x = tensor(dtype, (90,))
    values = np.concatenate([special_values(x.data_type), any_values(seeded(dtype), x.data_type, (90,))])[:90]
    for make, attributes in (
        (tvmdml.ActivationLinear.of, lambda one: {"alpha": one, "beta": -one}),
        (tvmdml.ActivationShrink.of, lambda one: {"bias": one, "threshold": one}),
        (tvmdml.ElementWiseThreshold.of, lambda one: {"min": 0 if one != one else one}),
        (tvmdml.ElementWiseIdentity.of, lambda one: {"scale_bias": (one, -one)}),
        (
            lambda x, **own: tvmdml.ElementWiseAdd1.of(x, x, fused_activation=tvmdml.ActivationLeakyRelu.fused(**own)),
            lambda one: {"alpha": one},
        ),
    ):
        kernels = set()
        for one in SPECIAL:
            desc: Any = make(x, **attributes(one))
            kernels.add(kernel_for(desc, target).identity)
            inputs = [values, values[::-1].copy()][: len(desc.inputs())]
            out = np.empty_like(values)
            tvmdml.compiler.CompiledOperator(desc, target)(*inputs, out)
            with np.errstate(all="ignore"):
                problem = desc.mismatch((out,), desc.reference(*inputs))
            assert not problem, (desc, problem)
        assert len(kernels) == 1


def test_a_scale_of_1_with_a_bias_of_0_changes_nothing() -> None:
    desc = crooked("float32", (4,), scale_bias=(1, 0))
    (found,) = desc.reference(np.float32([-0.0, 1, 2, np.nan]))
    assert found.tobytes() == (np.float32([-0.0, 1, 2, np.nan]) * np.float32(3) + np.float32(1)).tobytes()


def test_knobs_stand_under_the_name_of_the_family() -> None:
    wrong = knobs.using(element_wise_round={"task_elements": 1})
    with pytest.raises(InvalidArgument, match=r"knobs.using: given 'element_wise_round'; allowed: pointwise"), wrong:
        pass
    with knobs.using(pointwise={"colour": 1}), pytest.raises(InvalidArgument, match="pointwise knob: given 'colour'"):
        kernel_for(crooked("float32", (4,)), targets.resolve("cpu"))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint32"])
@pytest.mark.parametrize(
    ("target", "kind", "division"),
    [("cuda:sm_90", "cuda", r" / "), ("vulkan:desktop", "spirv", r"Op[SU]Div\b"), ("cpu:x86-64-v3", "llvm", r"\b[fsu]div\b")],
)
def test_a_remainder_takes_one_division_wherever_it_is_rounded_to(target: str, kind: str, division: str, dtype: str) -> None:
    x = tvmdml.TensorDesc(dtype, (64, 1000))
    operators = tvmdml.ElementWiseModulusTruncate, tvmdml.ElementWiseModulusFloor
    (place,) = targets.elsewhere(target)
    kernels = [kernel_for(cls(a_tensor=x, b_tensor=x, output_tensor=x).canonical(), place) for cls in operators]
    sources = [place.source(kernel.build(), kind) for kernel in kernels]
    toward_zero, down = (len(re.findall(division, one)) for one in sources)
    assert 0 < down <= toward_zero
