"""ONNX Runtime's operators that are two or three of ONNX's in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvmdml
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import RULES, Node, Results, channels_first, channels_last, rule
from tvmdml.onnx.rules.elements import gelu
from tvmdml.onnx.rules.products import turned
from tvmdml.onnx.values import Value


@rule("com.microsoft.BiasGelu")
def _bias_gelu(node: Node) -> Results:
    return gelu(node.x() + node.x(1), False)


@rule("com.microsoft.FastGelu")
def _fast_gelu(node: Node) -> Results:
    return gelu(node.x() + node.x(1) if node.has(1) else node.x(), True)


@rule("com.microsoft.BiasSplitGelu")
def _split_gelu(node: Node) -> Results:
    x = node.x() + node.x(1)
    half = x.shape[-1] // 2
    return x[..., :half] * gelu(x[..., half:], False)


@rule("com.microsoft.BiasAdd")
def _bias_add(node: Node) -> Results:
    return node.x() + node.x(1) + node.x(2)


@rule("com.microsoft.BiasSoftmax")
def _bias_softmax(node: Node) -> Results:
    x = node.x() + node.x(1)
    axis = node.axis(x.ndim, 1)
    return tvmdml.activation_softmax(x, axes=list(range(axis, x.ndim)))


_ACTIVATIONS: dict[str, Callable[[Any, list[float]], Any]] = {
    "": lambda x, given: x,
    "Relu": lambda x, given: tvmdml.activation_relu(x),
    "Tanh": lambda x, given: tvmdml.tanh(x),
    "Sigmoid": lambda x, given: tvmdml.activation_sigmoid(x),
    "LeakyRelu": lambda x, given: tvmdml.activation_leaky_relu(x, alpha=given[0]),
    "Clip": lambda x, given: tvmdml.clip(x, min=given[0], max=given[1]),
    "HardSigmoid": lambda x, given: tvmdml.activation_hard_sigmoid(x, alpha=given[0], beta=given[1]),
}


@rule("com.microsoft.ConvTransposeWithDynamicPads")
def _dynamic_pads(node: Node) -> Results:
    pads = {"pads": node.integers(2)} if node.has(2) else {}
    inputs = [*node.inputs[:2], *([node.value(3)] if node.has(3) else [])]
    return described.convert(node.replaced("ConvTranspose", inputs, **{**node.attributes, **pads}))


@rule("com.microsoft.FusedMatMulActivation")
def _product(node: Node) -> Results:
    own = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    (found,) = _several(RULES["com.microsoft.FusedMatMul"](node.replaced("com.microsoft.FusedMatMul", **own)))
    return _activated(node, found, "activation", ("alpha", "beta", "gamma"), "activation_")


_DML = "com.microsoft.dml.DmlFused"
_FUSABLE = (
    "Add",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "Gemm",
    "InstanceNormalization",
    "MatMul",
    "MeanVarianceNormalization",
    "Sum",
)


@rule(*(_DML + name for name in _FUSABLE))
def _dml(node: Node) -> Results:
    """What ONNX Runtime's provider writes into optimized models: an operator of ONNX, and an activation of ONNX after it."""
    own = {name: value for name, value in node.attributes.items() if not name.startswith("fused_")}
    kind = node.kind.removeprefix(_DML)
    inner = node.replaced(kind, **own)
    inner.opset = _OPSET
    found = _several((RULES.get(kind) or described.convert)(inner))
    return _activated(node, found[0], "fused_activation", ("alpha", "beta", "gamma", "ratio", "axis"), "fused_")


_OPSET = 13
"""The version of ONNX's operators whose attributes the provider's operators have."""


def _several(found: Results) -> Any:
    return found if isinstance(found, (list, tuple)) else [found]


def _activated(node: Node, x: Any, name: str, numbers: tuple[str, ...], prefix: str) -> Results:
    """An activation by the name of ONNX's operator."""
    kind = node.text(name, "")
    if not kind:
        return x
    given = {one: node.attributes[prefix + one] for one in numbers if prefix + one in node.attributes}
    inner = node.replaced(kind, [Value.computed(x)], **given)
    inner.opset = _OPSET
    if kind not in RULES and not described.is_mapped(kind):
        raise NotConvertible(f"its activation is {kind}")
    return _several((RULES.get(kind) or described.convert)(inner))[0]


@rule("com.microsoft.FusedConv", "com.microsoft.FusedGemm")
def _fused(node: Node) -> Results:
    """A convolution or product, what is added to it, and an activation."""
    own = dict(node.attributes)
    name = node.text("activation", "")
    numbers = [float(n) for n in own.get("activation_params", [])]
    numbers += [own[key] for key in ("activation_alpha", "activation_beta") if key in own]
    for key in list(own):
        if key.startswith("activation"):
            del own[key]
    if name not in _ACTIVATIONS:
        raise NotConvertible(f"its activation is {name}")
    if "Gemm" in node.kind:
        a, b = node.x(), node.x(1)
        found: Any = tvmdml.gemm(a, b, alpha=own.get("alpha", 1.0), **turned(node))
        if node.has(2):
            found = found + node.x(2) * own.get("beta", 1.0)
    else:
        (found,) = described.convert(node.replaced("Conv", node.inputs[:3], **own))
        if node.has(3):
            found = found + node.x(3)
    return _ACTIVATIONS[name](found, numbers)


@rule("com.microsoft.NhwcConv", "com.microsoft.NhwcFusedConv")
def _channels_last(node: Node) -> Results:
    """Channels last in the input, the filter and the result."""
    turned = [Value.computed(channels_first(one)) for one in (node.x(), node.x(1))]
    kind = "com.microsoft.FusedConv" if "Fused" in node.kind else "Conv"
    inner = node.replaced(kind, [*turned, *node.inputs[2:3]], **node.attributes)
    found = _fused(inner) if "Fused" in node.kind else described.convert(inner)[0]
    return channels_last(found)
