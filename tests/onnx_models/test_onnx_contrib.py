"""ONNX Runtime's own operators: the results are ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from test_onnx_models import N, model  # noqa: E402 - it needs ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX

Rng = Any


class Case(NamedTuple):
    """An operator with made-up inputs."""

    kind: str
    inputs: Callable[[Rng], list[Any]]
    outputs: int = 1
    attributes: Mapping[str, Any] = {}
    weights: tuple[int, ...] = ()
    """The inputs that are constants of the model."""
    tolerance: float = 1e-4
    domain: str = "com.microsoft"
    opset: int = 17

    @property
    def id(self) -> str:
        """The operator and its attributes."""
        return f"{self.kind} {' '.join(f'{key}={value}' for key, value in self.attributes.items())}".strip()


def f(*shape: int, scale: float = 1.0) -> Callable[[Rng], Any]:
    return lambda rng: (rng.standard_normal(shape) * scale).astype(np.float32)


def i(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Callable[[Rng], Any]:
    return lambda rng: rng.integers(low, high, shape).astype(dtype)


def u8(*shape: int) -> Callable[[Rng], Any]:
    return i(0, 256, *shape, dtype=np.uint8)


def is_(value: Any, dtype: Any = np.float32) -> Callable[[Rng], Any]:
    return lambda rng: np.asarray(value, dtype)


def all_of(*makers: Callable[[Rng], Any] | None) -> Callable[[Rng], list[Any]]:
    return lambda rng: [None if one is None else one(rng) for one in makers]


X = f(2, 5, 16)
EMBED = (i(0, 9, 2, 5), i(0, 2, 2, 5), f(9, 16), f(7, 16), f(2, 16), f(16), f(16))
ANGLES = (f(8, 4), f(8, 4))
Q = (is_(0.05), is_(120, np.uint8))
QKV = tuple(f(2, 5, 16) for _ in range(3))
CASES = [
    Case("Gelu", all_of(X)),
    Case("FastGelu", all_of(X)),
    Case("FastGelu", all_of(X, f(16))),
    Case("BiasGelu", all_of(X, f(16))),
    Case("QuickGelu", all_of(X), 1, {"alpha": 1.5}),
    Case("FusedMatMul", all_of(X, f(2, 7, 16)), 1, {"transB": 1, "alpha": 0.5}),
    Case("FusedMatMul", all_of(f(2, 16, 5), f(16, 7)), 1, {"transA": 1}),
    Case("FusedConv", all_of(f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)), 1, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    Case("FusedConv", all_of(f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)), 1, {"activation": "LeakyRelu", "activation_params": [0.3]}),
    Case("FusedGemm", all_of(f(3, 4), f(5, 4), f(5)), 1, {"activation": "LeakyRelu", "activation_alpha": 0.2, "transB": 1}),
    Case("BiasSoftmax", all_of(f(2, 3, 4, 4), f(2, 1, 1, 4)), 1, {"axis": 3, "is_inner_broadcast": 0}),
    Case("SkipLayerNormalization", all_of(X, X, f(16), f(16), f(16))),
    Case("SkipLayerNormalization", all_of(X, X, f(16))),
    Case("SkipSimplifiedLayerNormalization", all_of(X, X, f(16)), 1, {"epsilon": 1e-5}),
    Case("EmbedLayerNormalization", all_of(*EMBED), 2, {"epsilon": 1e-5}),
    Case("EmbedLayerNormalization", all_of(*EMBED, i(0, 2, 2, 5)), 2),
    Case("EmbedLayerNormalization", all_of(EMBED[0], None, *EMBED[2:4], None, *EMBED[5:]), 2),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48)), 1, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48)), 1, {"num_heads": 4, "unidirectional": 1}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), is_([5, 3], np.int32)), 1, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), i(0, 2, 2, 5)), 1, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), None, f(2, 2, 2, 3, 8)), 2, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), None, None, f(2, 2, 5, 5)), 1, {"num_heads": 2, "scale": 0.5}),
    Case("MultiHeadAttention", all_of(*QKV), 1, {"num_heads": 2}),
    Case("MultiHeadAttention", all_of(QKV[0], f(2, 7, 16), f(2, 7, 16), f(48)), 1, {"num_heads": 2}),
    Case("MultiHeadAttention", all_of(*QKV, None, is_([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]], np.int32)), 1, {"num_heads": 2}),
    Case("RotaryEmbedding", all_of(f(2, 5, 16), is_([0], np.int64), *ANGLES)),
    Case("RotaryEmbedding", all_of(f(2, 2, 5, 8), i(0, 8, 2, 5, dtype=np.int64), *ANGLES), 1, {"interleaved": 1}),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 4, 32), f(1, 4, 16), f(1, 4, 16), None, None, is_([3], np.int32), is_(4, np.int32)),
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 4, 64), f(1, 4, 32), f(1, 4, 32), None, None, is_([3], np.int32), is_(4, np.int32), f(8, 8), f(8, 8)),
        3,
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
    ),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 4, 64), None, None, None, None, is_([3], np.int32), is_(4, np.int32)),
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 1, 32), f(1, 1, 16), f(1, 1, 16), f(1, 2, 6, 8), f(1, 2, 6, 8), is_([6], np.int32), is_(7, np.int32)),
        3,
        {"num_heads": 4, "kv_num_heads": 2},
        (6,),
    ),
    *(
        Case(
            "GroupQueryAttention",
            all_of(
                *(f(batch, rows, n) for n in (64, 32, 32)),
                *(f(batch, 2, room, 16) for _ in range(2)),
                is_([before + rows - 1] * batch, np.int32),
                is_(before + rows, np.int32),
                f(16, 8),
                f(16, 8),
            ),
            3,
            {"num_heads": 4, "kv_num_heads": 2, **more},
            (5, 6),
        )
        for batch, rows, room, before, more in (
            (2, 1, 6, 6, {"do_rotary": 1}),
            (1, 3, 6, 6, {"do_rotary": 1, "rotary_interleaved": 1}),
            (1, 3, 6, 6, {"local_window_size": 4}),
            (1, 3, 8, 5, {"do_rotary": 1}),
            (2, 1, 6, 6, {"local_window_size": 3}),
        )
    ),
    Case("MatMulNBits", all_of(f(3, 32), u8(8, 2, 8), f(8 * 2)), 1, {"K": 32, "N": 8, "bits": 4, "block_size": 16}, (1, 2)),
    Case(
        "MatMulNBits",
        all_of(f(2, 3, 48), u8(8, 3, 8), f(8 * 3), u8(8 * 2)),
        1,
        {"K": 48, "N": 8, "bits": 4, "block_size": 16},
        (1, 2, 3),
    ),
    Case("QLinearAdd", all_of(u8(2, 9), *Q, u8(2, 9), *Q, *Q), tolerance=1),
    Case("QLinearMul", all_of(u8(2, 9), *Q, u8(9), *Q, *Q), tolerance=1),
    Case("QLinearSigmoid", all_of(u8(2, 9), *Q, is_(1 / 256), is_(0, np.uint8)), tolerance=1, weights=(1, 2, 3, 4)),
    Case("QLinearLeakyRelu", all_of(u8(2, 9), *Q, *Q), 1, {"alpha": 0.1}, tolerance=1, weights=(1, 2, 3, 4)),
    *(
        Case(
            "QLinearSoftmax",
            all_of(u8(2, 3, 9), *Q, is_(1 / 256), is_(0, np.uint8)),
            1,
            {"opset": version, "axis": 1},  # before 13, all dimensions from the axis on
            tolerance=1,
            weights=(1, 2, 3, 4),
        )
        for version in (12, 13)
    ),
    Case(
        "QLinearConcat",
        all_of(*Q, u8(2, 3), *Q, u8(2, 4), is_(0.1), is_(100, np.uint8)),
        1,
        {"axis": 1},
        tolerance=1,
        weights=(0, 1, 3, 4, 6, 7),
    ),
    Case(
        "QLinearAveragePool",
        all_of(u8(1, 2, 6, 6), *Q, *Q),
        1,
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        tolerance=1,
        weights=(1, 2, 3, 4),
    ),
    Case("QLinearGlobalAveragePool", all_of(u8(1, 2, 6, 6), *Q, *Q), tolerance=1, weights=(1, 2, 3, 4)),
    Case("DynamicQuantizeMatMul", all_of(f(3, 16), u8(16, 8), is_(0.02), is_(120, np.uint8)), weights=(1, 2, 3), tolerance=2e-3),
    Case(
        "DynamicQuantizeMatMul", all_of(f(3, 16), u8(16, 8), is_(0.02), is_(120, np.uint8), f(8)), weights=(1, 2, 3), tolerance=2e-3
    ),
    Case(
        "MatMulIntegerToFloat",
        all_of(u8(3, 16), u8(16, 8), is_(0.1), is_(0.2), is_(3, np.uint8), is_(9, np.uint8)),
        weights=(1, 2, 3),
    ),
    Case(
        "QGemm",
        all_of(u8(3, 16), *Q, u8(16, 8), *Q, i(-50, 50, 8), is_(0.3), is_(100, np.uint8)),
        weights=(1, 2, 3, 4, 5, 6, 7, 8),
        tolerance=1,
    ),
    Case("QGemm", all_of(u8(3, 16), *Q, u8(8, 16), *Q), 1, {"transB": 1}, weights=(1, 2, 3, 4, 5)),
    Case(
        "QAttention",
        all_of(u8(2, 5, 16), u8(16, 48), f(48), is_(0.02), is_(0.01), None, is_(128, np.uint8), is_(120, np.uint8)),
        1,
        {"num_heads": 2},
        (1, 3, 4, 6, 7),
    ),
    Case(
        "QAttention",
        all_of(
            u8(2, 5, 16), u8(16, 48), f(48), is_(0.02), is_(0.01), is_([5, 3], np.int32), is_(128, np.uint8), is_(120, np.uint8)
        ),
        1,
        {"num_heads": 2, "unidirectional": 1},
        (1, 3, 4, 6, 7),
    ),
    Case("ConvTransposeWithDynamicPads", all_of(f(1, 3, 5, 5), f(3, 2, 3, 3), is_([1, 1, 1, 1], np.int64), f(2)), weights=(2,)),
    Case("ScaledTanh", all_of(X), 1, {"alpha": 1.2, "beta": 0.7}, domain="", opset=9),
    Case("ParametricSoftplus", all_of(X), 1, {"alpha": 1.2, "beta": 0.7}, domain="", opset=9),
    Case("ImageScaler", all_of(f(1, 3, 4, 4)), 1, {"scale": 2.0, "bias": [0.1, -0.2, 3.0]}, domain="", opset=9),
    Case("Crop", all_of(f(1, 3, 8, 8)), 1, {"border": [1, 2, 3, 1]}, domain="", opset=9),
    Case("Crop", all_of(f(1, 3, 8, 8)), 1, {"border": [1, 2, 3, 1], "scale": [4, 3]}, domain="", opset=9),
    Case("Affine", all_of(X), 1, {"alpha": 1.2, "beta": 0.7}, domain="", opset=9),
    Case("QuantizeLinear", all_of(X, *Q), weights=(1, 2), tolerance=1),
    Case("DequantizeLinear", all_of(u8(3, 4), *Q), weights=(1, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_operator_gives_what_onnx_runtime_computes(case: Case) -> None:
    arrays = case.inputs(np.random.default_rng(11))
    names = ["" if one is None else f"x{n}" for n, one in enumerate(arrays)]
    results = [f"y{n}" for n in range(case.outputs)]
    given = {name: one for name, one in zip(names, arrays, strict=True) if name}
    weights = {name: given.pop(name) for n, name in enumerate(names) if n in case.weights}
    to_type = onnx.helper.np_dtype_to_tensor_dtype
    inputs = [onnx.helper.make_tensor_value_info(name, to_type(one.dtype), one.shape) for name, one in given.items()]
    outputs = [onnx.helper.ValueInfoProto(name=name) for name in results]
    node = onnx.helper.make_node(case.kind, names, results, domain=case.domain, **case.attributes)
    made = model([node], inputs, outputs, weights, case.opset)
    made.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        pytest.skip(f"this ONNX Runtime does not take it: {' '.join(str(error).split())[:200]}")
    found = tvmdml.onnx.load(made)(given)
    for one, right in zip(found, session.run(None, given), strict=True):
        assert (one.dtype, one.shape) == (right.dtype, right.shape)
        most = case.tolerance if right.dtype.kind in "iu" else case.tolerance * np.abs(right).max()
        assert np.abs(one.astype(np.float64) - right.astype(np.float64)).max() <= most


class Same(NamedTuple):
    """An operator that ONNX Runtime has not on the CPU, and operators of ONNX that compute the same."""

    node: Any
    others: list[Any]
    inputs: dict[str, Callable[[Rng], Any]]

    @property
    def id(self) -> str:
        """The operator."""
        return str(self.node.op_type)


def microsoft(kind: str, *inputs: str, **attributes: Any) -> Any:
    return N(kind, inputs, ["y"], domain="com.microsoft.dml" if kind.startswith("Dml") else "com.microsoft", **attributes)


A, B = f(3, 4), f(4, 5)
IMAGE = f(1, 4, 6, 6)
SAME = [
    Same(
        microsoft("FusedMatMulActivation", "a", "b", activation="LeakyRelu", activation_alpha=0.3, alpha=0.5),
        [N("MatMul", ["a", "b"], ["c"]), N("Mul", ["c", "half"], ["d"]), N("LeakyRelu", ["d"], ["y"], alpha=0.3)],
        {"a": A, "b": B, "half": is_(0.5)},
    ),
    Same(microsoft("BiasAdd", "a", "b", "c"), [N("Sum", ["a", "b", "c"], ["y"])], {"a": X, "b": f(16), "c": X}),
    Same(
        microsoft("BiasSplitGelu", "a", "b"),
        [
            N("Add", ["a", "b"], ["c"]),
            N("Split", ["c"], ["d", "e"], axis=-1, num_outputs=2),
            N("Gelu", ["e"], ["g"]),
            N("Mul", ["d", "g"], ["y"]),
        ],
        {"a": X, "b": f(16)},
    ),
    Same(
        microsoft("BiasSoftmax", "a", "b", axis=1, is_inner_broadcast=0),
        [N("Add", ["a", "b"], ["c"]), N("Softmax", ["c"], ["y"], axis=1)],
        {"a": A, "b": f(1, 4)},
    ),
    Same(
        microsoft("GroupNorm", "x", "s", "b", groups=2, activation=1, epsilon=1e-5),
        [
            N("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
            N("GroupNormalization", ["t", "s", "b"], ["n"], num_groups=2, epsilon=1e-5),
            N("Sigmoid", ["n"], ["g"]),
            N("Mul", ["n", "g"], ["m"]),
            N("Transpose", ["m"], ["y"], perm=[0, 2, 3, 1]),
        ],
        {"x": f(2, 3, 3, 4), "s": f(4), "b": f(4)},
    ),
    Same(
        microsoft("NhwcConv", "x", "w", "b", pads=[1, 1, 1, 1]),
        [
            N("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
            N("Transpose", ["w"], ["u"], perm=[0, 3, 1, 2]),
            N("Conv", ["t", "u", "b"], ["c"], pads=[1, 1, 1, 1]),
            N("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
        ],
        {"x": f(1, 5, 5, 3), "w": f(4, 3, 3, 3), "b": f(4)},
    ),
    Same(
        microsoft("DmlFusedConv", "x", "w", fused_activation="LeakyRelu", fused_alpha=0.3, strides=[2, 2]),
        [N("Conv", ["x", "w"], ["c"], strides=[2, 2]), N("LeakyRelu", ["c"], ["y"], alpha=0.3)],
        {"x": IMAGE, "w": f(2, 4, 3, 3)},
    ),
    Same(
        microsoft("DmlFusedConvTranspose", "x", "w", fused_activation="Relu"),
        [N("ConvTranspose", ["x", "w"], ["c"]), N("Relu", ["c"], ["y"])],
        {"x": IMAGE, "w": f(4, 2, 3, 3)},
    ),
    Same(
        microsoft("DmlFusedGemm", "a", "b", "c", fused_activation="Tanh", alpha=0.5),
        [N("Gemm", ["a", "b", "c"], ["d"], alpha=0.5), N("Tanh", ["d"], ["y"])],
        {"a": A, "b": B, "c": f(5)},
    ),
    Same(
        microsoft("DmlFusedMatMul", "a", "b", fused_activation="Sigmoid"),
        [N("MatMul", ["a", "b"], ["d"]), N("Sigmoid", ["d"], ["y"])],
        {"a": A, "b": B},
    ),
    Same(
        microsoft("DmlFusedAdd", "a", "a", fused_activation="Relu"),
        [N("Add", ["a", "a"], ["d"]), N("Relu", ["d"], ["y"])],
        {"a": A},
    ),
    Same(
        microsoft("DmlFusedSum", "a", "a", fused_activation="Relu"),
        [N("Sum", ["a", "a"], ["d"]), N("Relu", ["d"], ["y"])],
        {"a": A},
    ),
    Same(
        microsoft("DmlFusedBatchNormalization", "x", "s", "b", "m", "v", fused_activation="Elu", fused_alpha=0.7),
        [N("BatchNormalization", ["x", "s", "b", "m", "v"], ["c"]), N("Elu", ["c"], ["y"], alpha=0.7)],
        {"x": IMAGE, "s": f(4), "b": f(4), "m": f(4), "v": lambda rng: f(4)(rng) ** 2},
    ),
    Same(
        microsoft("DmlFusedInstanceNormalization", "x", "s", "b", fused_activation="Relu"),
        [N("InstanceNormalization", ["x", "s", "b"], ["c"]), N("Relu", ["c"], ["y"])],
        {"x": IMAGE, "s": f(4), "b": f(4)},
    ),
    Same(
        microsoft("DmlFusedMeanVarianceNormalization", "x", fused_activation="Relu"),
        [N("MeanVarianceNormalization", ["x"], ["c"]), N("Relu", ["c"], ["y"])],
        {"x": IMAGE},
    ),
]


@pytest.mark.parametrize("case", SAME, ids=lambda case: case.id)
def test_an_operator_gives_what_others_give(case: Same) -> None:
    rng = np.random.default_rng(5)
    given = {name: make(rng) for name, make in case.inputs.items()}
    found = []
    for nodes in ([case.node], case.others):
        read = {name for node in nodes for name in node.input}
        inputs = [onnx.helper.make_tensor_value_info(name, 1, one.shape) for name, one in given.items() if name in read]
        made = model(nodes, inputs, [onnx.helper.ValueInfoProto(name="y")], {}, 21, ir_version=10)
        if nodes is case.others:
            session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
            found += session.run(None, {name: given[name] for name in read & set(given)})
        else:
            made.opset_import.append(onnx.helper.make_opsetid("com.microsoft.dml", 1))
            found += tvmdml.onnx.load(made)({name: given[name] for name in read & set(given)})
    one, right = found
    assert (one.dtype, one.shape) == (right.dtype, right.shape)
    assert np.abs(one - right).max() <= 1e-4 * np.abs(right).max()
