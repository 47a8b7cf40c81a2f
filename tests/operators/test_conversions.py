"""Casts, quantisation and fills, and others' word for them: NumPy, PyTorch, ONNX's cases, the contracts' examples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits, random_bits, seeded, special_values, with_subnormals

import tvmdml
from tvmdml import InvalidArgument, TensorDataType, TensorDesc
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.onnx import descriptors
from tvmdml.operators.quantization import Dequantize, Quantize
from tvmdml.targets import Target
from tvmdml.tensors import BYTE_TYPES

NAN, INF = math.nan, math.inf

# -- The contracts' examples --------------------------------------------------------------------------------------


def _array(values: Any, dtype: str) -> Array:
    return np.array(values, dtype)


EXAMPLES: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "float to int32": (lambda on: tvmdml.cast(_array([NAN, 3e9, -1.9], "f4"), "int32", device=on), [0, 2147483647, -1], "i4"),
    "float to uint8": (lambda on: tvmdml.cast(_array([300, -1, 0.5], "f4"), "uint8", device=on), [255, 0, 0], "u1"),
    "int32 to uint8": (lambda on: tvmdml.cast(_array([300, 256], "i4"), "uint8", device=on), [44, 0], "u1"),
    "float to float16": (lambda on: tvmdml.cast(_array([65519, 65520], "f4"), "float16", device=on), [65504, INF], "f2"),
    "int64 to float16": (
        lambda on: tvmdml.cast(_array([65519, 65520, -(2**62)], "i8"), "float16", device=on),
        *([65504, INF, -INF], "f2"),
    ),
    "bool to float16": (lambda on: tvmdml.cast(_array([True, False], "?"), "float16", device=on), [1, 0], "f2"),
    "quantize_linear": (
        lambda on: tvmdml.quantize_linear(
            _array([0.5, 1.5, 2.5, 1e30, NAN], "f4"), _array(1, "f4"), _array(128, "u1"), device=on
        ),
        *([128, 130, 130, 255, 128], "u1"),
    ),
    "a scale of 0": (
        lambda on: tvmdml.quantize_linear(_array([1, -1, 0], "f4"), _array(0, "f4"), _array(7, "i1"), device=on),
        *([127, -128, 7], "i1"),
    ),
    "an exact difference": (
        lambda on: tvmdml.dequantize_linear(_array([2**31 - 1], "i4"), _array([1], "f4"), _array([-(2**31)], "i4"), device=on),
        *([4294967296.0], "f4"),
    ),
    "an unsigned input of SCALE alone is centred": (
        lambda on: tvmdml.dequantize(_array([0, 128], "u1"), [_array([2], "f4")], quantization_type="scale", device=on),
        *([-256, 0], "f4"),
    ),
    "a constant": (lambda on: tvmdml.fill_value_constant((2,), -3, dtype="int16", device=on), [-3, -3], "i2"),
    "a constant without dimensions": (lambda on: tvmdml.fill_value_constant((), 1.5, device=on), 1.5, "f4"),
    "a sequence that wraps": (
        lambda on: tvmdml.fill_value_sequence((4,), 4, 254, dtype="uint8", device=on),
        *([4, 2, 0, 254], "u1"),
    ),
    "a sequence": (lambda on: tvmdml.fill_value_sequence((2, 2), 10, -2, dtype="int8", device=on), [[10, 8], [6, 4]], "i1"),
}  # fmt: skip


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_contracts(name: str, target: Target) -> None:
    run, expected, dtype = EXAMPLES[name]
    assert_same_bits(run(target.name), np.array(expected, dtype), any_nan=True)


# -- CAST ---------------------------------------------------------------------------------------------------------


def _values(data_type: TensorDataType) -> Array:
    numbers = np.array([-(2.0**31), -1.5, 0.5, 65519, 65520, 2049, 2.0**24 + 1, 2.0**31, 2.0**53, 2.0**63, 2.0**64])
    with np.errstate(all="ignore"):
        near = numbers.astype(data_type.numpy)
    return np.concatenate([special_values(data_type), near, random_bits(seeded("cast", data_type), data_type, (700,))])


def _by_python(value: Any, dtype: np.dtype[Any]) -> Any:
    """A number in an integer type, in Python's integers of any size."""
    bits, limits = 8 * dtype.itemsize, np.iinfo(dtype)
    if isinstance(value, int):
        whole = value % (1 << bits)
        return whole - (1 << bits) if whole > limits.max else whole
    if math.isnan(value):
        return 0
    return limits.max if value == INF else limits.min if value == -INF else min(max(int(value), limits.min), limits.max)


@pytest.mark.full
@pytest.mark.parametrize("source", BYTE_TYPES, ids=str)
def test_casts_to_integers_are_those_of_python(source: TensorDataType) -> None:
    x = _values(source)
    for wanted in (one for one in BYTE_TYPES if not one.is_float and one is not source):
        expected = np.array([_by_python(value, wanted.numpy) for value in x.tolist()], wanted.numpy)
        assert_same_bits(tvmdml.cast(x, wanted), expected)


@pytest.mark.full(first=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", BYTE_TYPES, ids=str)
def test_casts_to_floats_are_numpys(source: TensorDataType) -> None:
    for wanted in ("float16", "float32", "float64"):
        x = _values(source)
        assert_same_bits(tvmdml.cast(x, wanted), x.astype(wanted), any_nan=True)


def test_a_float64_becomes_a_float16_with_one_rounding(target: Target) -> None:
    x = np.array([1 + 2**-11 + 2**-40, 1 + 2**-11, -(1 + 2**-11 + 2**-52), 65520 - 2**-36, 2**-25 + 2**-60])
    assert_same_bits(tvmdml.cast(x, "float16", device=target.name), x.astype(np.float16))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("source", BYTE_TYPES, ids=str)
def test_a_number_becomes_a_bool_by_not_being_0(source: TensorDataType, target: Target) -> None:
    with_subnormals(target, [source])
    x = _values(source)
    found = tvmdml.cast(x, "bool", device=target.name)
    assert_same_bits(found, x != 0)
    assert_same_bits(tvmdml.cast(found, bool, device=target.name), found)
    out = np.zeros(x.shape, bool)
    assert tvmdml.cast(x, np.bool_, out=out, device=target.name) is out
    assert_same_bits(out, found)


def test_bools_are_those_of_the_arrays_library() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.tensor([0.0, -0.0, torch.nan, 5e-324], dtype=torch.float64)
    out = torch.zeros(4, dtype=torch.bool)
    assert torch.equal(tvmdml.cast(x, torch.bool), x.bool())
    assert torch.equal(tvmdml.cast(x, "bool", out=out), x.bool())
    assert tvmdml.cast(np.float32(2), "bool").shape == ()
    for wrong in (np.zeros(3, bool), np.zeros(4, np.float32)):
        with pytest.raises(InvalidArgument, match=r"tvmdml\.cast: out .*allowed: uint8 of shape \(4,\)"):
            tvmdml.cast(np.zeros(4), "bool", out=wrong)


# -- Quantisation -------------------------------------------------------------------------------------------------


BLOCKS = [*itertools.product(("int8", "uint8", "int4", "uint4"), ((1, 1), (5, 1), (5, 4), (1, 3), (2, 4)))]


def _repeated(x: Array, sizes: tuple[int, ...]) -> Array:
    for axis, n in enumerate(sizes):
        x = np.repeat(x, -(-n // x.shape[axis]), axis).take(range(n), axis)
    return x


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_scale_for_each_row_gives_the_quotients_next_to_halves(dtype: str, target: Target) -> None:
    """Rows with one scale are multiplied by its reciprocal, which must not be seen: beside halves, and with scales of all sizes."""
    rng, few, steps = seeded("halves", dtype), np.arange(-300.5, 301), np.arange(-2, 3)
    extremes = [2.0**n for n in (-149, -126, -125, 0, 3, 125, 126, 127)] + [3e-39, 1.7e38, 3e38, 0, INF, NAN]
    usual = rng.uniform(1, 2, 50) * 2.0 ** rng.integers(-40, 40, 50)
    scale = np.concatenate([extremes, usual, -usual[:10], [1e-3, 0.1, 1 / 255, 2**-3 * 1.9999999]]).astype("f4")[:, None]
    with np.errstate(all="ignore"):
        near = (few * scale.astype("f8")).astype("f4")
    beside = (near.view("i4")[:, :, None] + steps).view("f4").reshape(scale.size, -1)
    rest = np.concatenate([special_values(TensorDataType.FLOAT32), random_bits(rng, TensorDataType.FLOAT32, (97,))])
    x = np.concatenate([beside, np.broadcast_to(rest, (scale.size, rest.size))], 1)
    limits = np.iinfo(dtype)
    zero = rng.integers(limits.min, limits.max, scale.shape, dtype, endpoint=True)
    with np.errstate(all="ignore"):
        whole = np.nan_to_num(np.rint(x / scale), nan=0, posinf=999, neginf=-999).clip(-999, 999) + zero
    found = tvmdml.quantize_linear(x, scale, zero, device=target.name)
    assert_same_bits(found, whole.clip(limits.min, limits.max).astype(dtype))


@pytest.mark.full
@pytest.mark.drawn("quantized,scales", BLOCKS, 6)
def test_blocks_are_numpys_repeat(quantized: str, scales: tuple[int, int], target: Target) -> None:
    rng, sizes = seeded(quantized, scales), (5, 12)
    low, high = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}[quantized]
    x = rng.normal(0, high, sizes).astype(np.float32)
    scale, zero_point = rng.uniform(0.5, 2, scales).astype(np.float32), rng.integers(low, high, scales, endpoint=True)
    inputs = TensorDesc("float32", sizes), [TensorDesc("float32", scales), TensorDesc(quantized, scales)]
    forward = Quantize.of(*inputs, quantization_type="scale_zero_point")
    back = Dequantize.of(forward.output_tensor, inputs[1], quantization_type="scale_zero_point")
    parameters = inputs[1][1].pack(zero_point.astype(forward.output_tensor.data_type.unpacked.numpy))

    stored = np.zeros(forward.output_tensor.stored.sizes, parameters.dtype)
    tvmdml.compile(forward, target)(x, scale, parameters, stored)
    each, zeros = _repeated(scale, sizes), _repeated(zero_point, sizes)
    expected = np.clip(np.rint(x / each) + zeros, low, high)
    assert np.array_equal(forward.output_tensor.unpack(stored), expected)

    result = np.zeros(sizes, np.float32)
    tvmdml.compile(back, target)(stored, scale, parameters, result)
    assert_same_bits(result, (expected - zeros).astype(np.float32) * each)


@pytest.mark.full
def test_functions_quantize_by_blocks(target: Target) -> None:
    x, scale = np.arange(-8, 8, dtype=np.float16).reshape(2, 8), np.array([[1, 2]], np.float16)
    found = tvmdml.quantize(x, [scale], output_dtype="int8", device=target.name)
    assert found.tolist() == [[-8, -7, -6, -5, -2, -2, -1, 0], [0, 1, 2, 3, 2, 2, 3, 4]]
    assert tvmdml.dequantize(found, [scale], device=target.name).tolist()[0] == [-8, -7, -6, -5, -4, -4, -2, 0]


def test_functions_have_no_arrays_of_4_bit_elements() -> None:
    with pytest.raises(InvalidArgument, match=r"tvmdml\.quantize: output: given int4; .*bytes of two elements"):
        tvmdml.quantize(np.ones(4, np.float32), [np.ones(1, np.float32)], output_dtype="int4")


# -- Fills --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_gaps_between_the_elements_of_a_fill_stay_untouched(target: Target) -> None:
    for dtype in ("uint8", "float16", "float32", "int64"):
        memory = np.full((7, 2, 40), 99, dtype)
        tvmdml.fill_value_sequence((7, 20), 3, 1, dtype=dtype, out=memory[:, 1, ::2], device=target.name)
        expected = np.full_like(memory, 99)
        expected[:, 1, ::2] = (np.arange(140).reshape(7, 20) + 3).astype(dtype)
        assert_same_bits(memory, expected)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int16", "uint64"])
def test_a_sequence_counts_in_row_major_order_whatever_the_strides_are(dtype: str, target: Target) -> None:
    turned = np.zeros((70, 45), dtype).T
    tvmdml.fill_value_sequence((45, 70), 1, 2, dtype=dtype, out=turned, device=target.name)
    with np.errstate(over="ignore"):
        assert_same_bits(np.ascontiguousarray(turned), (np.arange(45 * 70).reshape(45, 70) * 2 + 1).astype(dtype))


def test_numbers_that_the_type_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"fill_value_constant: value: given 300; allowed: an integer from 0 to 255"):
        tvmdml.fill_value_constant((2,), 300, dtype="uint8")
    with pytest.raises(InvalidArgument, match=r"value_data_type: given int8; allowed: uint8, the output's type"):
        tvmdml.FillValueConstant(output_tensor=TensorDesc("uint8", (2,)), value_data_type="int8", value=1).validate(
            NEWEST_FEATURE_LEVEL
        )


def test_the_bits_of_a_nan_are_kept(target: Target) -> None:
    nan = np.array([0x7FC12345], np.uint32).view(np.float32)
    assert_same_bits(tvmdml.fill_value_constant((1,), float(nan[0]), device=target.name), nan)


# -- ONNX ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "said"),
    [
        ("Affine", [(2, 3)], {"alpha": 2.0, "beta": 0.5}, ""),
        ("Sum", [(2, 3)] * 3, {}, "it has 3 inputs: DirectML adds two at a time"),
        ("Transpose", [(2, 3)], {"perm": [0, 0]}, r"its perm is \[0, 0\], for 2 dimensions"),
        ("Expand", [(2, 3), (2,)], {}, "its shape is not a constant"),
        ("Dropout", [(2, 3), (), ()], {}, "it may be in training"),
        ("com.microsoft.FusedMatMul", [(3, 5, 8), (3, 8, 6)], {"transBatchA": 1}, "it transposes a batch"),
    ],
)
def test_nodes_that_are_another_operator_in_directml(kind: str, inputs: Any, attributes: Any, said: str) -> None:
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
    known = {f"x{i}": descriptors.OnnxTensor(np.dtype(np.float32), shape) for i, shape in enumerate(inputs)}
    node = descriptors.OnnxNode(onnx.helper.make_node(kind.rpartition(".")[2], list(known), ["y"], **attributes), known, {})
    if said:
        with pytest.raises(descriptors.NotConvertible, match=said):
            descriptors.OPERATORS[kind](node)
    else:
        x = np.ones((2, 3), np.float32)
        assert_same_bits(descriptors.OPERATORS[kind](node).reference(x)[0], 2 * x + np.float32(0.5))  # type: ignore[arg-type]


def test_nodes_that_models_convert_by_rules_are_descriptors_as_well() -> None:
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed")

    def described(kind: str, operands: list[Array], **attributes: Any) -> Any:
        known = {f"x{i}": descriptors.OnnxTensor(x.dtype, x.shape) for i, x in enumerate(operands)}
        node = onnx.helper.make_node(kind, list(known), ["y"], domain="com.microsoft", **attributes)
        return descriptors.OPERATORS[f"com.microsoft.{kind}"](descriptors.OnnxNode(node, known, {}))

    rng = seeded("descriptors")
    a, b = rng.integers(-4, 5, (3, 8, 5)).astype(np.float32), rng.integers(-4, 5, (3, 6, 8)).astype(np.float32)
    product = described("FusedMatMul", [a, b], transA=1, transB=1, alpha=0.5).reference(a, b, None)[0].values
    assert np.array_equal(product, 0.5 * (np.swapaxes(a, 1, 2) @ np.swapaxes(b, 1, 2)))

    pairs = np.array(list(itertools.product(range(256), repeat=2)), np.uint8)
    scales, zeros = np.array([0.5, 0.25, 1], np.float32), np.array([3, 28, 100], np.uint8)
    operands = [
        pairs[:, 0],
        scales[0, ...],
        zeros[0, ...],
        pairs[:, 1],
        scales[1, ...],
        zeros[1, ...],
        scales[2, ...],
        zeros[2, ...],
    ]
    total = described("QLinearAdd", operands).reference(*operands)[0]
    real = (operands[0] - 3.0) * 0.5 + (operands[3] - 28.0) * 0.25
    assert_same_bits(total.reshape(-1), np.clip(np.rint(real) + 100, 0, 255).astype(np.uint8))


# -- The family ---------------------------------------------------------------------------------------------------


def test_an_integer_scale_that_is_cut_to_0_leaves_the_bias(target: Target) -> None:
    for bias in (0.5, 7.9):
        found = tvmdml.identity(np.arange(9, dtype=np.int32), scale_bias=(0.5, bias), device=target.name)
        assert found.tolist() == [int(bias)] * 9
