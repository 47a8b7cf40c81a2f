"""ONNX Runtime's own operators: the results are ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from contrib_cases import CASES, Case, Rng, X, f, is_  # noqa: E402 - it needs ONNX
from newer_contrib_cases import DEFINED, NEWER, Defined  # noqa: E402 - it needs ONNX
from onnx_nodes import N, model, result, single  # noqa: E402 - they need ONNX
from standard_cases import STANDARD  # noqa: E402 - it needs ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX


@pytest.mark.some(40)
@pytest.mark.parametrize("case", [*CASES, *NEWER], ids=lambda case: case.id)
def test_an_operator_gives_what_onnx_runtime_computes(case: Case) -> None:
    is_onnx_runtimes(case)


@pytest.mark.full(first=24)
@pytest.mark.parametrize("case", STANDARD, ids=lambda case: case.id)
def test_windows_products_and_recurrent_networks_are_onnx_runtimes(case: Case) -> None:
    is_onnx_runtimes(case)


def is_onnx_runtimes(case: Case) -> None:
    """The node's results are those of ONNX Runtime."""
    arrays = case.inputs(np.random.default_rng(11))
    about = {"outputs": case.outputs, "opset": case.opset, "domain": case.domain, **case.attributes}
    made, given = single(case.kind, arrays, case.weights, **about)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        pytest.skip(f"this ONNX Runtime does not take it: {' '.join(str(error).split())[:200]}")
    found = tvmdml.onnx.load(made)(given)
    for n, (one, right) in enumerate(zip(found, session.run(None, given), strict=True)):
        assert (one.dtype, one.shape) == (right.dtype, right.shape)
        one, right = case.written(n, one), case.written(n, right)
        most = case.tolerance if right.dtype.kind in "iu" else case.tolerance * np.abs(right).max()
        assert np.abs(one.astype(np.float64) - right.astype(np.float64)).max() <= most


@pytest.mark.parametrize("case", DEFINED, ids=lambda case: case.id)
def test_an_operator_gives_what_its_definition_says(case: Defined) -> None:
    rng = np.random.default_rng(6)
    arrays = [one(rng) for one in case.inputs]
    found = result(case.kind, arrays, known=case.weights, domain="com.microsoft", **case.attributes)
    right = np.asarray(case.result(*arrays))
    assert (found.dtype, found.shape) == (right.dtype, right.shape)
    assert np.abs(found.astype(np.float64) - right).max() <= (0 if right.dtype.kind in "biu" else 1e-5 * np.abs(right).max())


@pytest.mark.parametrize("rows", [1, 20])
def test_a_model_may_round_what_it_multiplies(rows: int) -> None:
    """As ONNX Runtime does where a node's accuracy_level is 4; without that, and without being asked, nothing is rounded."""
    rng, sizes = np.random.default_rng(3), {"K": 320, "N": 96, "bits": 4, "block_size": 32}
    weights = {"b": rng.integers(0, 256, (96, 10, 16), np.uint8), "s": (rng.standard_normal((96, 10)) * 0.1).astype(np.float32)}
    x = rng.standard_normal((rows, 320)).astype(np.float32)
    results = {}
    for level in (0, 4):
        node = onnx.helper.make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", accuracy_level=level, **sizes)
        info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 320])
        made = model([node], [info], [onnx.helper.ValueInfoProto(name="y")], weights, 17)
        made.ir_version = 10
        for accuracy in ("exact", "file"):
            session = tvmdml.onnx.InferenceSession(made.SerializeToString(), accuracy=accuracy, providers=["CPUExecutionProvider"])
            results[level, accuracy] = session.run(None, {"x": x})[0]
            kernels = str(session.compiled(x=(rows, 320)).explain())
            assert ("bit_integers" in kernels) <= (level == 4 and accuracy == "file")
    exact = results[0, "exact"]
    assert np.array_equal(exact, results[4, "exact"])
    assert np.array_equal(exact, results[0, "file"])
    assert np.abs(exact - results[4, "file"]).max() < 0.02 * np.abs(exact).max()


def test_a_network_may_round_what_it_multiplies() -> None:
    """As ONNX Runtime does with each DynamicQuantizeLSTM; without being asked, nothing is rounded."""
    rng, one, zero = np.random.default_rng(3), np.array([0.002], np.float32), np.zeros(1, np.int8)
    names = ["x", "w", "r", *[""] * 5, "scale", "zero", "scale", "zero"]
    weights = {name: rng.integers(-127, 128, (1, 48, 192)).astype(np.int8) for name in "wr"}
    node = onnx.helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=48)
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["steps", 1, 48])
    made = model([node], [info], [onnx.helper.ValueInfoProto(name="y")], {**weights, "scale": one, "zero": zero}, 17)
    x = rng.standard_normal((7, 1, 48)).astype(np.float32)
    exact, rounded = (tvmdml.onnx.load(made, accuracy=way).run(None, {"x": x})[0] for way in ("exact", "file"))
    orders = [weights[name].astype(float).transpose(0, 2, 1)[None] * one[0] for name in "wr"]
    right = tvmdml.lstm(x.astype(float)[None], *orders).sequence
    assert np.abs(exact - right).max() < 2e-6
    assert np.abs(rounded - right).max() < 0.02


def test_an_accuracy_that_there_is_not() -> None:
    with pytest.raises(tvmdml.InvalidArgument, match="load accuracy: given 'fast'; allowed: 'exact' or 'file'"):
        tvmdml.onnx.load(b"", accuracy="fast")


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
    Same(
        microsoft("GroupQueryAttention", "q", "k", "k", *[""] * 2, "l", "t", *[""] * 7, "s", "r", num_heads=4, kv_num_heads=2),
        [
            *(
                node
                for name, to, scale in (("q", "n", "s"), ("k", "m", "r"))
                for node in (
                    N("Reshape", [name, f"{name}4"], [f"{name}h"]),
                    N("SimplifiedLayerNormalization", [f"{name}h", scale], [f"{name}n"], epsilon=1e-6),
                    N("Reshape", [f"{name}n", f"{name}3"], [to]),
                )
            ),
            microsoft("GroupQueryAttention", "n", "m", "k", "", "", "l", "t", num_heads=4, kv_num_heads=2),
        ],
        {
            "q": f(2, 3, 64),
            "k": f(2, 3, 32),
            "s": f(16),
            "r": f(16),
            "l": is_([2, 2], np.int32),
            "t": is_(3, np.int32),
            "q4": is_([0, 0, 4, 16], np.int64),
            "k4": is_([0, 0, 2, 16], np.int64),
            **{name: is_([0, 0, -1], np.int64) for name in ("q3", "k3")},
        },
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
        to_type = onnx.helper.np_dtype_to_tensor_dtype
        read &= set(given)
        inputs = [
            onnx.helper.make_tensor_value_info(name, to_type(one.dtype), one.shape) for name, one in given.items() if name in read
        ]
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


def test_experts_that_are_not_chosen_change_nothing() -> None:
    """Not even if their results are infinite."""
    rng = np.random.default_rng(7)
    x, first, second = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (2, 6, 8), (2, 8, 6)))
    routing = np.tile(np.float32([5, -5]), (3, 1))
    node = N("MoE", ["x", "r", "a", "", "b"], ["y"], domain="com.microsoft", k=1, activation_type="relu")
    infos = [onnx.helper.make_tensor_value_info(name, 1, one.shape) for name, one in (("x", x), ("r", routing))]
    found = []
    for scale in (1, 3e38):
        weights = {name: one * np.float32([[[1]], [[scale]]]) for name, one in (("a", first), ("b", second))}
        found += tvmdml.onnx.load(model([node], infos, [onnx.helper.ValueInfoProto(name="y")], weights))(x=x, r=routing)
    assert np.isfinite(found[0]).all()
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("kind", "inputs", "weights", "attributes"),
    [
        ("GroupQueryAttention", [(1, 2, 16)] * 3 + [(1, 1, 4, 16)] * 2, [[1], [1 << 40]], {"num_heads": 1, "kv_num_heads": 1}),
        ("MatMulNBits", [(3, 32)], [np.zeros((8, 2, 0), np.uint8), [1.0]], {"K": 32, "N": 1 << 40, "block_size": 16}),
        ("MatMulBnb4", [(3, 32)], [np.zeros(128, np.uint8), [1.0]], {"K": 32, "N": 8, "block_size": 1 << 40, "quant_type": 1}),
        ("UnfoldTensor", [(1 << 20,)], [], {"size": 1 << 19, "dim": 0}),
        ("Irfft", [(1 << 20, 2)], [], {"signal_ndim": 1}),
        ("RelativePositionBias", [(8, 2)], [[1 << 40], [1 << 40]], {"max_distance": 6}),
        ("MoE", [(3, 8), (3, 4), (4, 6, 8), (4, 6), (4, 8, 6)], [], {"k": 1 << 40}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_hostile_sizes_are_refused_before_memory_is_taken(kind: str, inputs: Any, weights: Any, attributes: Any) -> None:
    names = [f"x{n}" for n in range(len(inputs) + len(weights))]
    known = dict(zip(names[len(inputs) :], map(np.asarray, weights), strict=True))
    infos = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(names, inputs, strict=False)]
    node = onnx.helper.make_node(kind, names, ["y"], domain="com.microsoft", **attributes)
    with pytest.raises((tvmdml.Unsupported, tvmdml.InvalidArgument)):
        tvmdml.onnx.load(model([node], infos, [onnx.helper.ValueInfoProto(name="y")], known))
