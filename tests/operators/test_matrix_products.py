"""Products of matrices: the contracts' examples, exact sums of small integers, NumPy's and PyTorch's word."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Array, assert_same_bits, run, seeded

import tvmdml
from tvmdml import InvalidArgument, knobs
from tvmdml.operators import _matrix
from tvmdml.operators._accuracy import Near, difference
from tvmdml.targets import Target

f16, f32, f64, i8, u8 = np.float16, np.float32, np.float64, np.int8, np.uint8
inf, nan = math.inf, math.nan
FLOATS = (f32, f16, f64)
TRANSFORMS = ("none", "transpose")


def whole(rng: np.random.Generator, *sizes: int, dtype: Any = f32) -> Array:
    """Small integers: sums of their products are exact."""
    return rng.integers(-4, 5, sizes).astype(dtype)


def bound(a: Array, b: Array, addend: Any = 0.0, factor: float = 1.0) -> Array:
    """What a result may be off, whatever the order of the sum."""
    depth, unit = a.shape[-1], 2.0**-24 if a.dtype != f64 else 2.0**-53
    magnitude = abs(factor) * (np.abs(a.astype(f64)) @ np.abs(b.astype(f64))) + np.abs(addend)
    return (1.01 * depth + 4) * unit * magnitude + depth * 2.0**-126  # type: ignore[no-any-return]


# -- Examples -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_contracts_products() -> None:
    ones = np.array([[1], [2], [3]], f32), np.array([[4, 5, 6]], f32), np.full((3, 3), 2, f32)
    assert tvmdml.gemm(*ones).tolist() == [[6, 7, 8], [10, 12, 14], [14, 17, 20]]
    a, b = np.array([[1, 2, 3], [4, 5, 6]], f32), np.array([[1, 0], [0, 1], [1, 1]], f32)
    c = np.array([[10, 20], [30, 40]], f32)
    assert tvmdml.gemm(a, b, c, alpha=2, beta=-1).tolist() == [[-2, -10], [-10, -18]]
    relu = tvmdml.ActivationRelu.fused()
    assert tvmdml.gemm(a, b, c, alpha=2, beta=-1, fused_activation=relu).tolist() == [[0, 0], [0, 0]]


@pytest.mark.full
def test_the_contracts_products_of_integers(target: Target) -> None:
    a, b = np.array([[1, 2], [3, 4]], u8), np.array([[5, 6], [7, 8]], i8)
    zeros = np.array([1, 2], u8), np.array([5, 7], i8)
    found = tvmdml.matrix_multiply_integer(a, b, *zeros, device=target.name)
    assert found.tolist() == [[2, 1], [4, 1]]
    assert found.dtype == np.int32
    large = np.full((1, 33_026), 255, u8)
    assert tvmdml.matrix_multiply_integer(large, large.T, device=target.name).tolist() == [[-2147451646]]


def test_quotients_are_rounded_to_even_and_saturate(target: Target) -> None:
    a = np.array([[5], [-5], [7], [120], [-120]], i8)
    scales = np.array(0.5, f32), np.array([[1.0]], f32).reshape(()), np.array(1.0, f32)
    zero = np.array(3, u8)

    def quantized(x: Array, scale: Any) -> list[Any]:
        found = tvmdml.quantized_linear_matrix_multiply(
            *(x, scale, np.array([[1]], i8), scales[1], scales[2]), output_zero_point=zero, device=target.name
        )
        return [int(one) for one in found[:, 0]]

    assert quantized(a[:3], scales[0]) == [5, 1, 7]  # 2.5, -2.5 and 3.5
    assert quantized(a[3:], np.array(7.5, f32)) == [255, 0]  # 900 and -900


@pytest.mark.full
def test_scales_and_zero_points_for_rows_and_columns(target: Target) -> None:
    rng = seeded("scales")
    a, b = rng.integers(0, 256, (5, 40)).astype(u8), rng.integers(-128, 128, (40, 6)).astype(i8)
    a_zero, b_zero = rng.integers(0, 256, 5).astype(u8), rng.integers(-128, 128, 6).astype(i8)
    a_scale, b_scale = rng.uniform(0.01, 0.1, 5).astype(f32), rng.uniform(0.01, 0.1, 6).astype(f32)
    bias = rng.normal(size=6).astype(f32)
    exact = (a.astype(int) - a_zero[:, None]) @ (b.astype(int) - b_zero)
    found = tvmdml.matrix_multiply_integer_to_float(
        *(a, a_scale, b, b_scale), a_zero_point=a_zero, b_zero_point=b_zero, bias=bias, device=target.name
    )
    scale = a_scale.astype(f64)[:, None] * b_scale
    error = 6 * 2.0**-24 * (np.abs(exact) * scale + np.abs(bias))
    assert (np.abs(found - (exact * scale + bias)) <= error).all()
    output_scale, output_zero = rng.uniform(0.5, 2, 5).astype(f32), rng.integers(0, 256, 5).astype(u8)
    found = tvmdml.quantized_linear_matrix_multiply(
        *(a, a_scale, b, b_scale, output_scale),
        a_zero_point=a_zero,
        b_zero_point=b_zero,
        output_zero_point=output_zero,
        device=target.name,
    )
    quotient = exact * scale / output_scale.astype(f64)[:, None]
    wanted = np.clip(np.rint(quotient) + output_zero[:, None], 0, 255)
    ties = np.abs(np.abs(quotient - np.trunc(quotient)) - 0.5) <= 2.0**-21 * np.abs(quotient)
    assert (np.abs(found - wanted) <= ties).all()


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.uint32])
def test_wide_integers_are_exact_differences(dtype: Any, target: Target) -> None:
    rng, limits = seeded("wide", dtype), np.iinfo(dtype)
    a, b = (rng.integers(limits.min, limits.max, sizes, dtype=dtype, endpoint=True) for sizes in ((3, 20), (20, 4)))
    zeros = np.array(limits.max, dtype), np.array(limits.min, dtype)
    one = np.array(1, f32)
    found = tvmdml.matrix_multiply_integer_to_float(
        *(a, one, b, one), a_zero_point=zeros[0], b_zero_point=zeros[1], device=target.name
    )
    x, y = (part.astype(np.int64).astype(f64) - float(zero) for part, zero in zip((a, b), zeros, strict=True))
    assert (np.abs(found - x @ y) <= (1.01 * 20 + 8) * 2.0**-24 * (np.abs(x) @ np.abs(y))).all()


# -- Places -------------------------------------------------------------------------------------------------------


@pytest.mark.full
@settings(max_examples=25)
@given(
    st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70)),
    st.sampled_from(TRANSFORMS),
    st.sampled_from(TRANSFORMS),
    st.sampled_from([(), (2,), (2, 1), (1, 3)]),
    st.sampled_from(["none", "full", "row", "column", "scalar"]),
    st.sampled_from(FLOATS),
)
def test_sums_of_small_integers_are_exact(
    sizes: tuple[int, int, int], trans_a: str, trans_b: str, batch: tuple[int, ...], added: str, dtype: Any
) -> None:
    (m, k, n), rng = sizes, seeded(sizes, batch)
    a, b = whole(rng, *batch, m, k, dtype=dtype), whole(rng, *batch[:1], k, n, dtype=dtype)
    b = b if len(batch) < 2 else b[..., None, :, :]
    c = {"full": (m, n), "row": (n,), "column": (m, 1), "scalar": ()}.get(added)
    third = None if c is None else whole(rng, *c, dtype=dtype)
    given = (one.swapaxes(-1, -2) if trans == "transpose" else one for one, trans in ((a, trans_a), (b, trans_b)))
    found = tvmdml.gemm(*given, third, trans_a=trans_a, trans_b=trans_b, alpha=2, beta=-1)
    wanted = 2 * (a.astype(f64) @ b.astype(f64)) - (0 if third is None else third.astype(f64))
    assert found.dtype == dtype
    assert found.shape == wanted.shape
    assert (found == wanted).all()


@pytest.mark.full
@pytest.mark.some(4)
@pytest.mark.parametrize(("tile", "depth"), [("128x128", 16), ("64x128", 8), ("64x64", 32), ("16x64", 16), ("64x16", 8)])
def test_every_tile_has_every_edge(tile: str, depth: int, device: Target) -> None:
    rng = seeded("tiles", tile)
    for m, k, n in ((17, 33, 65), (64, 8, 129), (130, 515, 70)):
        a, b = whole(rng, m, k), whole(rng, k, n)
        with knobs.using(matrix={"tile": tile, "depth": depth}):
            desc = tvmdml.Gemm.of(*(tvmdml.TensorDesc("float32", x.shape) for x in (a, b)))
            kernel = tvmdml.compile(desc, target=device)
            out = device.empty((m, n), f32)
            kernel(device.asarray(a), device.asarray(b), None, out)
        assert (np.asarray(out.numpy()) == a.astype(f64) @ b.astype(f64)).all(), (m, k, n)


@pytest.mark.full
@pytest.mark.parametrize("shapes", [((3,), (3,)), ((3,), (3, 4)), ((4, 3), (3,)), ((2, 5, 3), (3,)), ((3,), (2, 3, 4)),
                                    ((2, 1, 5, 3), (4, 3, 2)), ((5, 3), (7, 2, 3, 4))])  # fmt: skip
def test_vectors_and_batches_are_those_of_numpy(shapes: tuple[Any, Any]) -> None:
    rng = seeded("numpy", shapes)
    a, b = (whole(rng, *shape) for shape in shapes)
    wanted = np.matmul(a, b)
    assert_same_bits(tvmdml.gemm(a, b), wanted)
    x, y = a.astype(i8), b.astype(u8)
    assert_same_bits(tvmdml.matrix_multiply_integer(x, y), np.matmul(x.astype(np.int32), y.astype(np.int32)))


SHARED = {  # the sizes of both factors without those of the matrices, and what is left: batch, rows and columns
    "a second factor for all": ((5, 3), (1, 1), (1, 60, 33)),
    "a second factor for each of a batch": ((5, 3), (5, 1), (5, 12, 33)),
    "a second factor for each of a batch's parts": ((5, 3), (1, 3), (15, 4, 33)),
    "a first factor for all": ((1, 1), (5, 3), (15, 4, 33)),
    "nothing shared": ((5, 3), (5, 3), (15, 4, 33)),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", SHARED)
def test_a_batch_that_shares_a_factor_is_more_rows(name: str, target: Target) -> None:
    """Else the shared factor, such as a layer's weights, would be read once for each of the batch."""
    first, second, left = SHARED[name]
    rng = seeded(name)
    a, b = whole(rng, *first, 4, 17), whole(rng, *second, 17, 33)
    batch = np.broadcast_shapes(first, second)
    tensors = {
        "a_tensor": tvmdml.TensorDesc("float32", (*batch, 4, 17), strides=strides(a, batch)),
        "b_tensor": tvmdml.TensorDesc("float32", (*batch, 17, 33), strides=strides(b, batch)),
    }
    numbers = {"trans_a": "none", "trans_b": "none", "alpha": 1.0, "beta": 0.0}
    desc = tvmdml.Gemm(**tensors, output_tensor=tvmdml.TensorDesc("float32", (*batch, 4, 33)), **numbers)
    found = desc.contraction().simplified()
    assert (math.prod(found.batch), math.prod(found.rows), math.prod(found.columns)) == left
    assert np.array_equal(run(desc, target, *(np.broadcast_to(x, (*batch, *x.shape[2:])) for x in (a, b)), None)[0], a @ b)
    wide = [np.broadcast_to(x.astype(i8), (*batch, *x.shape[2:])) for x in (a, b)]
    result = tvmdml.matrix_multiply_integer(*wide, np.full((1, 1, 1, 1), 3, i8), device=target)
    assert np.array_equal(result, (a - 3).astype(np.int32) @ b.astype(np.int32))


def strides(array: Array, batch: tuple[int, ...]) -> tuple[int, ...]:
    """An array's steps when it is repeated for a batch."""
    repeated = np.broadcast_to(array, (*batch, *array.shape[len(batch) :]))
    return tuple(step // array.itemsize for step in repeated.strides)


def test_what_does_not_fit_is_refused() -> None:
    x = np.ones((2, 3), f32)
    for arrays, said in (
        ((x, x), r"b\.sizes\[-2\]: given 2; allowed: 3, as a\.sizes\[-1\]"),
        ((np.ones((2, 4, 3), f32), np.ones((3, 3, 2), f32)), r"sizes that can be broadcast"),
        ((x, x.T, np.ones((3, 2), f32)), r"c: given sizes \(3, 2\); allowed: sizes that can be repeated|broadcast"),
        ((x, np.array(1, f32)), r"b: given an array without dimensions; allowed: 1 or more dimensions"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            tvmdml.gemm(*arrays)


def test_sums_of_nothing_are_zero() -> None:
    found = tvmdml.gemm(np.ones((2, 0), f32), np.ones((0, 3), f32), np.full((2, 3), 5, f32), beta=2)
    assert found.tolist() == [[10, 10, 10]] * 2
    assert tvmdml.matrix_multiply_integer(np.ones((2, 0), u8), np.ones((0, 3), i8)).tolist() == [[0, 0, 0]] * 2
    assert tvmdml.gemm(np.ones((0, 4), f32), np.ones((4, 3), f32)).shape == (0, 3)


# -- Numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
def test_what_has_the_factor_0_is_not_read(target: Target) -> None:
    x = np.ones((2, 2), f32)
    assert (tvmdml.gemm(x, x, x * f32(nan), beta=0, device=target.name) == 2).all()
    assert np.isnan(tvmdml.gemm(x * f32(inf), x, alpha=0, device=target.name)).all()


def test_infinities_and_nan_are_those_of_ieee(target: Target) -> None:
    a = np.array([[inf, 1], [inf, -inf], [nan, 0], [0, 2]], f32)
    found = tvmdml.gemm(a, np.array([[1, 0], [1, 1]], f32), device=target.name)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, a @ np.array([[1, 0], [1, 1]], f32))


@pytest.mark.full
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_errors_of_sums_are_within_their_bound_and_mostly_much_smaller(dtype: Any, kind: str, target: Target) -> None:
    rng = seeded("errors", dtype, kind)
    for depth in (1, 64, 257, 2000):
        a, b = (getattr(rng, kind)(size=sizes).astype(dtype) for sizes in ((8, depth), (depth, 9)))
        found = tvmdml.gemm(a, b, device=target.name).astype(np.longdouble)
        wanted = a.astype(np.longdouble) @ b.astype(np.longdouble)
        limit, error = bound(a, b), np.abs(found - wanted)
        quality = (4 + math.sqrt(depth)) / (1.01 * depth + 4) * limit
        last = 2.0**-11 * np.abs(wanted) + 2.0**-25 if dtype == f16 else 0
        assert (error <= np.minimum(limit, quality) + last).all()


@pytest.mark.full
def test_a_float16_is_rounded_once() -> None:
    a, b = np.full((1, 3), 1, f16), np.array([[2048], [1], [1]], f16)
    assert tvmdml.gemm(a, b).item() == 2050
    assert tvmdml.gemm(a * f16(100), a.T * f16(1000), alpha=0.125).item() == 37504


@pytest.mark.full
def test_the_order_of_sums_is_the_same_with_any_tile(device: Target) -> None:
    rng = seeded("order")
    a, b = (rng.normal(size=sizes).astype(f32) for sizes in ((33, 700), (700, 35)))
    found = []
    for tile, algorithm in (("128x128", "tiles"), ("64x64", "blocks"), ("32x32", "tiles"), ("16x16", "blocks")):
        with knobs.using(matrix={"tile": tile, "algorithm": algorithm}):
            out = device.empty((33, 35), f32)
            desc = tvmdml.Gemm.of(*(tvmdml.TensorDesc("float32", x.shape) for x in (a, b)))
            tvmdml.compile(desc, target=device)(device.asarray(a), device.asarray(b), None, out)
            found.append(np.asarray(out.numpy()))
    for one in found[1:]:
        assert_same_bits(one, found[0])
    if device.kind == "cuda":  # which has fused steps, as processors of level 3 and above
        assert_same_bits(found[0], in_order(a, b))


def in_order(a: Array, b: Array) -> Array:
    """The family's order, in NumPy: the product is exact in float64, and so is nearly always the sum before it is rounded."""
    total = np.zeros((a.shape[0], b.shape[1]), f32)
    for first in range(0, a.shape[1], 256):
        own = np.zeros_like(total)
        for k in range(first, min(first + 256, a.shape[1])):
            own = (np.multiply.outer(a[:, k].astype(np.longdouble), b[k].astype(np.longdouble)) + own).astype(f32)
        total = own if first == 0 else total + own
    return total


def test_the_bound_is_a_bound_and_says_where_anything_may_be() -> None:
    a, b = np.array([[3e38, 3e38]], f32), np.array([[1], [-1]], f32)
    sums = _matrix.sums_of(a, b, np.matmul, 2)
    assert np.isnan(sums.bound(f32, 1.0, 0.0)).all()  # the order decides whether it overflows
    small = _matrix.sums_of(a * f32(1e-30), b, np.matmul, 2)
    near = Near(small.values, np.dtype(f32), 0, small.bound(f32, 1.0, 0.0))
    assert not difference(np.array([[30]], f32), near)
    assert difference(np.array([[500]], f32), near)


# -- Other libraries ----------------------------------------------------------------------------------------------


ACTIVATIONS = {
    "relu": tvmdml.ActivationRelu.fused(),
    "gelu": tvmdml.ActivationGelu.fused(),
    "tanh": tvmdml.ActivationTanh.fused(),
    "sigmoid": tvmdml.ActivationSigmoid.fused(),
    "softmax": tvmdml.ActivationSoftmax1.fused(axes=(2,)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_pytorch_says_the_same_with_an_activation(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = seeded("torch", name)
    a, b, c = (torch.from_numpy(rng.normal(size=sizes).astype(f32)) for sizes in ((2, 9, 40), (2, 40, 11), (2, 9, 11)))
    wanted = torch.baddbmm(c.double(), a.double(), b.double(), alpha=0.5, beta=2)
    functional = torch.nn.functional
    wanted = torch.softmax(wanted, 2) if name == "softmax" else getattr(functional, name, getattr(torch, name, None))(wanted)
    found = tvmdml.gemm(a, b, c, alpha=0.5, beta=2, fused_activation=ACTIVATIONS[name])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5), (3, 5)), ((3, 4), (4, 5), (5,)), ((2, 1, 3, 4), (6, 4, 5), (3, 1)),
                                    ((4,), (4, 5), (5,)), ((2, 3, 4), (4,), ()), ((4,), (4,), ())])  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_are_pytorchs(shapes: tuple[Any, ...], turned: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch  # noqa: F401 - registers

    rng = seeded("gradients", shapes)
    tensors = [torch.from_numpy(rng.normal(size=shape)).requires_grad_() for shape in shapes]
    a, b, c = tensors
    trans = ["none" if x.dim() < 2 or not turned else "transpose" for x in (a, b)]
    given = [x.transpose(-1, -2) if t == "transpose" else x for x, t in zip((a, b), trans, strict=True)]
    ours = torch.ops.tvmdml.gemm(*given, c, trans_a=trans[0], trans_b=trans[1], alpha=0.5, beta=-2.0)
    theirs = 0.5 * torch.matmul(a, b) - 2 * c
    torch.testing.assert_close(ours, theirs)
    weights = torch.from_numpy(rng.normal(size=theirs.shape))
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), tensors), torch.autograd.grad((theirs * weights).sum(), tensors), strict=True
    ):
        torch.testing.assert_close(one, other)
