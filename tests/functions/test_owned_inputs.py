"""Inputs that never change (OWNED_BY_DML): given once, packed where kernels want them packed, and results of the same bits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import python
from support import Array, assert_same_bits, ready, round_desc, seeded

import tvmdml
from tvmdml import CompiledOperator, InvalidArgument, TensorDesc, compiler, knobs, packs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators import Operator
from tvmdml.packs import look, verify
from tvmdml.targets import Target
from tvmdml.targets.cpu import host
from tvmdml.tensors.arrays.guarded import GuardedTensor

T = TensorDesc
Draw = Callable[..., list[Any]]
LEVELS = ("cpu", "cpu:x86-64-v3", "cpu:x86-64-v2")


def owning(desc: Operator, *names: str) -> Any:
    """The descriptor with inputs that never change."""
    flags = {name: dataclasses.replace(getattr(desc, name), flags="OWNED_BY_DML") for name in names}
    return dataclasses.replace(desc, **flags)  # type: ignore[type-var]


def strided(array: Array, turned: bool) -> Array:
    """The same elements, with the last two dimensions in the other order in memory."""
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else array


def desc_of(array: Array) -> TensorDesc:
    return T(array.dtype, array.shape, tuple(step // array.itemsize for step in array.strides))


def outputs(desc: Operator) -> list[Array]:
    return [np.full(one.sizes, 77, one.data_type.numpy) for one in desc.outputs()]


def both_ways(desc: Operator, inputs: Sequence[Array | None], names: Sequence[str], where: str = "cpu") -> CompiledOperator:
    """Run with all inputs given in a call, and with some given before; the results have the same bits."""
    wanted, found = outputs(desc), outputs(desc)
    ready(desc, targets.resolve(where))(*inputs, *wanted)
    operator = ready(owning(desc, *names), targets.resolve(where))
    by_name = dict(zip([name for name, _ in desc.tensors()], inputs, strict=False))
    own = {name: by_name[name].copy("K") for name in names}  # type: ignore[union-attr]
    operator.initialize(**own)
    for array in own.values():
        array[...] = 1  # later changes are not seen
    operator(*(None if name in names else array for name, array in by_name.items()), *found)
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one.view(np.uint8), other.view(np.uint8)), (desc, names, where)
    assert_packers_stay_inside(operator, by_name)
    return operator


def assert_packers_stay_inside(operator: CompiledOperator, arrays: dict[str, Any]) -> None:
    """Packers write to their buffer alone, and the same each time, whatever is around it."""
    for one in compiler.ready_owned(operator.desc, operator.target).packings:
        kind = T(one.owned.dtype, (one.owned.elements,))
        buffers = [GuardedTensor(kind, shift).holding(np.zeros(one.owned.elements, one.owned.dtype)) for shift in (0, 3)]
        for buffer in buffers:
            one.launch(*(arrays[name] for name in one.owned.inputs), buffer.array)
            assert buffer.is_guarded(), one.owned
        assert np.array_equal(*(buffer.array.view(np.uint8) for buffer in buffers))


def runs(where: str) -> bool:
    return where == "cpu" or host.host().runs(host.parse(where.removeprefix("cpu:"), here=False))


# -- Bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
@given(
    st.tuples(st.integers(1, 60), st.integers(1, 600), st.integers(1, 80)),
    st.sampled_from(["none", "transpose"]),
    st.booleans(),
    st.sampled_from([(), (2,), (2, 1), (1, 3)]),
    st.sampled_from(["float32", "float16", "float64"]),
    st.sampled_from([("b_tensor",), ("a_tensor",), ("a_tensor", "b_tensor"), ("b_tensor", "c_tensor")]),
    st.sampled_from(LEVELS),
)
def test_products_have_the_bits_that_they_have_otherwise(
    sizes: tuple[int, int, int],
    trans_b: str,
    turned: bool,
    batch: tuple[int, ...],
    dtype: str,
    names: tuple[str, ...],
    where: str,
) -> None:
    (m, k, n), random = sizes, seeded(sizes, batch)
    if not runs(where):
        return
    a, b = (strided(random.standard_normal((*batch, *size)).astype(dtype), turned) for size in ((m, k), (k, n)))
    b = np.ascontiguousarray(b.swapaxes(-1, -2)) if trans_b == "transpose" else b
    b = np.broadcast_to(b[:1], b.shape) if batch == (1, 3) else b
    c = random.standard_normal((*batch, m, n)).astype(dtype)
    desc = tvmdml.Gemm.of(*map(desc_of, (a, b, c)), trans_b=trans_b, alpha=0.5, fused_activation=tvmdml.ActivationRelu.fused())
    both_ways(desc, (a, b, c), names, where)


@pytest.mark.full
@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("names", [("b_tensor",), ("a_tensor",)], ids=" ".join)
@pytest.mark.parametrize("tile", ["auto", "12x2", "6x4", "2x4"])
def test_bits_do_not_depend_on_tiles_blocks_and_tasks(tile: str, names: tuple[str, ...]) -> None:
    random = seeded(tile)
    for m, k, n in ((61, 700, 100), (5, 300, 130)):
        a, b = (random.standard_normal(size).astype(np.float32) for size in ((m, k), (k, n)))
        desc = tvmdml.Gemm.of(desc_of(a), desc_of(b))
        for blocks in ({}, {"row_bytes": 1 << 13, "column_bytes": 1 << 14}, {"depth_blocks": 4}):
            with knobs.using(matrix={"tile": tile, "task_products": 1 << 10, **blocks}):
                both_ways(desc, (a, b, None), names)


@pytest.mark.full
@pytest.mark.parametrize(("a_type", "b_type"), [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8")])
def test_products_of_integers_are_the_same(a_type: str, b_type: str, draw: Draw) -> None:
    random = seeded(a_type + b_type)
    sizes = (9, 71, 35), (40, 270, 70), (2, 6, 5)
    owned = ("b_tensor", "b_zero_point_tensor"), ("b_tensor",), ("a_tensor", "a_zero_point_tensor", "b_tensor")
    for where, (m, k, n), names in draw(itertools.product(filter(runs, LEVELS), sizes, owned), 5):
        a, b = (
            random.integers(np.iinfo(kind).min, np.iinfo(kind).max, size, kind, endpoint=True)
            for kind, size in ((a_type, (m, k)), (b_type, (k, n)))
        )
        inputs = a, a[:, :1].copy(), b, b[:1].copy()
        both_ways(tvmdml.MatrixMultiplyInteger.of(*map(desc_of, inputs)), inputs, names, where)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "padded": ((1, 40, 9, 9), (50, 40, 3, 3), {"start_padding": (1, 1), "end_padding": (1, 1)}),
    "few places": ((1, 30, 4, 4), (20, 30, 3, 3), {}),
    "groups and strides": ((2, 16, 9, 9), (20, 8, 3, 3), {"group_count": 2, "strides": (2, 2)}),
    "one tap": ((1, 32, 7, 7), (70, 32, 1, 1), {}),
    "depthwise": ((1, 8, 9, 9), (8, 1, 3, 3), {"group_count": 8}),
    "deep": ((1, 70, 6, 6), (7, 70, 2, 3), {"dilations": (2, 1)}),
    "backward": ((1, 6, 7, 7), (6, 9, 3, 3), {"direction": "backward", "strides": (2, 2)}),
    "turned": ((1, 6, 7, 7), (9, 6, 3, 3), {"mode": "convolution"}),
}


@pytest.mark.full
@pytest.mark.drawn("name", CONVOLUTIONS, 4)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_convolutions_have_the_bits_that_they_have_otherwise(name: str, dtype: str, draw: Draw) -> None:
    sizes, filters, given = CONVOLUTIONS[name]
    random = seeded(name, dtype)
    x, w = (random.standard_normal(one).astype(dtype) for one in (sizes, filters))
    bias = random.standard_normal((1, filters[1 if given.get("direction") else 0], 1, 1)).astype(dtype)
    numbers = {"strides": (1, 1), "dilations": (1, 1), "start_padding": (0, 0), "end_padding": (0, 0), "output_padding": (0, 0)}
    usual = {"mode": "cross_correlation", "direction": "forward", "group_count": 1}
    desc = tvmdml.Convolution.of(*map(desc_of, (x, w, bias)), **{**numbers, **usual, **given})
    for where in draw(filter(runs, LEVELS[:2])):
        both_ways(desc, (x, w, bias), ("filter_tensor", "bias_tensor"), where)


@pytest.mark.full
@pytest.mark.drawn("name", [name for name, (_, _, given) in CONVOLUTIONS.items() if not {"direction", "mode"} & {*given}], 3)
def test_quantized_convolutions_are_the_same(name: str) -> None:
    sizes, filters, given = CONVOLUTIONS[name]
    random = seeded(name)
    x, w = random.integers(0, 256, sizes, np.uint8), random.integers(-128, 128, filters, np.int8)
    one, each = (1, 1, 1, 1), (1, filters[0], 1, 1)
    inputs = (
        *(x, np.full(one, 0.02, np.float32), np.full(one, 120, np.uint8)),
        *(w, random.uniform(0.01, 0.02, each).astype(np.float32), random.integers(-3, 4, each, np.int8)),
        *(random.integers(-99, 99, each, np.int32), np.full(one, 0.5, np.float32), np.full(one, 99, np.uint8)),
    )
    numbers = {"strides": (1, 1), "dilations": (1, 1), "start_padding": (0, 0), "end_padding": (0, 0), "group_count": 1, **given}
    desc = tvmdml.QuantizedLinearConvolution.of(*map(desc_of, inputs), **numbers)
    for where in filter(runs, LEVELS[:2]):
        both_ways(desc, inputs, ("filter_tensor", "filter_scale_tensor", "filter_zero_point_tensor", "bias_tensor"), where)
        both_ways(desc, inputs, ("filter_tensor",), where)


def test_what_is_packed_and_what_is_kept_as_it_is() -> None:
    def packed(desc: Operator, *names: str) -> list[str]:
        return [one.name for one in kernel_for(owning(desc, *names), targets.resolve("cpu")).owned]

    a, b = T("float32", (64, 300)), T("float32", (300, 48))
    gemm = tvmdml.Gemm.of(a, b)
    assert packed(gemm, "b_tensor") == ["b_tensor"]
    assert packed(gemm, "a_tensor", "b_tensor") == ["a_tensor", "b_tensor"]
    assert packed(tvmdml.Gemm.of(T("float32", (1, 300)), b), "b_tensor") == [], "one row reads it once"
    assert packed(round_desc(a), "input_tensor") == [], "not a factor"
    one, other = (kernel_for(desc, targets.resolve("cpu")) for desc in (gemm, owning(gemm, "b_tensor")))
    assert one.identity != other.identity
    assert one.owned == ()
    assert sum(count for _, count in other.temporaries) < sum(count for _, count in one.temporaries)


def test_layouts_say_what_is_in_a_buffer() -> None:
    def layout(rows: int, **changes: Any) -> str:
        b = {"data_type": "float32", "sizes": (300, 64), "strides": None, **changes}
        desc = tvmdml.Gemm.of(T("float32", (rows, 300)), T(**b))
        (owned,) = kernel_for(owning(desc, "b_tensor"), targets.resolve("cpu")).owned
        return owned.layout

    assert layout(64) != layout(64, strides=(1, 300)), "the same memory is another matrix"
    assert layout(64) == layout(300)
    assert layout(64) != layout(64, sizes=(300, 80))


# -- CompiledOperator ---------------------------------------------------------------------------------------------


@pytest.fixture
def product(target: Target) -> CompiledOperator:
    """float32[3, 4] by a float32[4, 2] that never changes."""
    return tvmdml.compile(owning(tvmdml.Gemm.of(T("float32", (3, 4)), T("float32", (4, 2))), "b_tensor"), target)


A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(8, dtype=np.float32).reshape(4, 2)


def refused(call: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        call()
    return str(caught.value)


def test_calls_before_initialize_are_refused(product: CompiledOperator) -> None:
    y = np.zeros((3, 2), np.float32)
    said = "GEMM call: given a call before initialize; allowed: initialize(b_tensor) first. b_tensor: OWNED_BY_DML."
    assert not product.initialized
    for call in (
        lambda: product(A, None, None, y),
        lambda: product(a_tensor=A, output_tensor=y),
        lambda: product.bind(A, None, None, y),
    ):
        assert refused(call) == said
    product.initialize(B)
    assert product.initialized
    product(A, None, None, y)
    assert_same_bits(y, A @ B)


def test_what_initialize_refuses(product: CompiledOperator) -> None:
    assert refused(product.initialize) == "GEMM initialize: given 0 tensors by position; allowed: b_tensor, each once."
    assert "given 2 tensors by position" in refused(lambda: product.initialize(B, B))
    assert "0 tensors by position and a_tensor by name" in refused(lambda: product.initialize(a_tensor=A))
    assert "1 tensor by position and b_tensor by name" in refused(lambda: product.initialize(B, b_tensor=B))
    assert refused(lambda: product.initialize(B.T)).startswith("GEMM b_tensor: given shape (2, 4); allowed: (4, 2).")
    assert refused(lambda: product.initialize(None)).startswith("GEMM b_tensor: given None; allowed: float32[4, 2]")
    assert refused(lambda: product.initialize(B.astype(np.float64))).startswith("GEMM b_tensor: given data type float64")
    assert not product.initialized
    plain = tvmdml.compile(tvmdml.Gemm.of(T("float32", (3, 4)), T("float32", (4, 2))), product.target)
    plain.initialize()
    assert plain.initialized
    assert plain.persistent_size == 0
    assert "allowed: nothing: no input is OWNED_BY_DML." in refused(lambda: plain.initialize(B))


def test_an_input_that_never_changes_is_not_bound(product: CompiledOperator) -> None:
    product.initialize(b_tensor=B)
    y = np.zeros((3, 2), np.float32)
    said = "GEMM b_tensor: given a tensor; allowed: None: it is OWNED_BY_DML. Give it to initialize."
    assert refused(lambda: product(A, B, None, y)) == said
    assert refused(lambda: product(A, b_tensor=B, output_tensor=y)) == said
    assert refused(lambda: product.bind(A, B, None, y)) == said
    expected = "GEMM call: given 1 tensor by position; allowed: a_tensor, c_tensor, output_tensor, each once."
    assert refused(lambda: product(A)) == expected
    for call in (
        lambda: product(A, None, None, y),
        lambda: product(A, output_tensor=y),
        lambda: product(output_tensor=y, a_tensor=A, b_tensor=None),
        lambda: product.bind(A, None, None, y)(),
        lambda: product.bind(output_tensor=y, a_tensor=A)(),
    ):
        y[...] = 9
        call()
        assert_same_bits(y, A @ B)


def test_another_initialize_replaces_all(product: CompiledOperator) -> None:
    y, own = np.zeros((3, 2), np.float32), B.copy()
    product.initialize(own)
    own[...] = 7
    bound = product.bind(A, None, None, y)
    product.initialize(B + 1)
    product(A, None, None, y)
    assert_same_bits(y, A @ (B + 1))
    bound()
    assert_same_bits(y, A @ B)


@pytest.mark.full
def test_sizes_of_memory(product: CompiledOperator) -> None:
    assert product.persistent_size >= B.nbytes
    assert product.persistent_size % 256 == product.temporary_size % 256 == 0
    large = tvmdml.compile(owning(tvmdml.Gemm.of(T("float32", (64, 300)), T("float32", (300, 480))), "b_tensor"))
    plain = tvmdml.compile(large.desc.unowned())
    assert 300 * 480 * 4 <= large.persistent_size < 300 * 480 * 4 * 1.1
    assert plain.persistent_size == 0 < large.temporary_size < plain.temporary_size


def test_an_input_of_another_operator_is_kept_as_it_is(target: Target) -> None:
    x = np.array([[0.5, 1.5, -2.5], [3.5, -0.0, 2.75]], np.float32)
    for array in (x, x.T.copy().T):
        desc = round_desc(desc_of(array), "halves_to_nearest_even")
        operator = tvmdml.compile(owning(desc, "input_tensor"), target)
        own = array.copy("K")
        operator.initialize(own)
        own[...] = 9
        y = tvmdml.empty(x.shape, dtype=np.float32, device=target.name) if target.moves else np.empty_like(x)
        operator(None, y)
        assert_same_bits(y.numpy() if target.moves else y, np.rint(x))
        assert operator.persistent_size == 256


def test_arrays_of_the_device_are_kept(device: Target) -> None:
    operator = tvmdml.compile(owning(tvmdml.Gemm.of(T("float32", (3, 4)), T("float32", (4, 2))), "b_tensor"), device)
    a, b = (tvmdml.asarray(x, device=device.name) for x in (A, B))
    y = tvmdml.empty((3, 2), dtype=np.float32, device=device.name)
    operator.initialize(b)
    b.write(np.zeros_like(B))
    operator(a, None, None, y)
    assert_same_bits(y.numpy(), A @ B)
    operator.bind(a, None, None, y)()
    assert_same_bits(y.numpy(), A @ B)


# -- Packs --------------------------------------------------------------------------------------------------------

_WITHOUT_COMPILER = """
import sys; sys.modules["tvm"] = None
import dataclasses, numpy as np, tvmdml
from tvmdml import TensorDesc as T
desc = tvmdml.Gemm.of(T("float32", (9, 70)), T("float32", (70, 50), flags="OWNED_BY_DML"))
a, b = np.ones((9, 70), "float32"), np.arange(3500, dtype="float32").reshape(70, 50) % 7
y = np.zeros((9, 50), "float32")
with tvmdml.load_pack(sys.argv[1], strict=True):
    operator = tvmdml.compile(desc)
operator.initialize(b)
operator(a, None, None, y)
assert (y == a @ b).all()
"""


@pytest.mark.full
def test_a_pack_has_what_initialize_needs(tmp_path: Path) -> None:
    desc = owning(tvmdml.Gemm.of(T("float32", (9, 70)), T("float32", (70, 50))), "b_tensor")
    path = tmp_path / "owned.tvmdml"
    built = packs.build(Spec(("cpu",), (Wanted(desc),), {}), path, jobs=1)
    assert built.kernels >= 2
    report = verify.verify(path, seed=1)
    assert report.failed == ()
    assert report.ran == 1
    python(_WITHOUT_COMPILER, path, may_complain=True)


@pytest.mark.full
@pytest.mark.parametrize("where", [where for where in LEVELS[:2] if runs(where)])
def test_packs_have_every_kernel_that_packs(where: str, tmp_path: Path) -> None:
    numbers = {"strides": (1, 1), "dilations": (1, 1), "start_padding": (1, 1), "end_padding": (1, 1), "group_count": 1}
    usual = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0, 0)}
    x, w = ((1, 40, 9, 9), (30, 40, 3, 3)), ((1, 70, 40, 40), (20, 70, 3, 3))
    wanted: list[Operator] = [
        tvmdml.Convolution.of(*(T("float32", one) for one in some), None, **usual, **numbers) for some in (x, w)
    ]
    wanted = [owning(one, "filter_tensor") for one in wanted]
    zero = T("int8", (1, 1, 1, 1), flags="OWNED_BY_DML")
    wanted.append(tvmdml.ConvolutionInteger.of(T("uint8", x[0]), None, T("int8", x[1], flags="OWNED_BY_DML"), zero, **numbers))
    path = tmp_path / "owned.tvmdml"
    packs.build(Spec((where,), tuple(map(Wanted, wanted)), {}), path, jobs=1)
    report = verify.verify(path, seed=2)
    assert report.failed == ()
    assert report.ran == 3
    rows = look.rows(packs.Pack(path))
    assert all(packed["layout"] for row in rows for launch in row["launches"] for packed in launch["packed"])


def test_recording_knows_inputs_that_never_change() -> None:
    desc = owning(tvmdml.Gemm.of(T("float32", (9, 70)), T("float32", (70, 50))), "b_tensor")
    with packs.record() as recorded:
        tvmdml.compile(desc)
    assert [one.desc for one in recorded.spec.wanted] == [desc]
