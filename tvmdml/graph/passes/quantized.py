"""Compute convolutions and products between quantized tensors on the integers themselves.

Where a DequantizeLinear is before every input, and a QuantizeLinear behind the result, the operator becomes its quantized
counterpart: sums are exact, and are rounded once, to the result's integers. The chain of separate operators rounds sums of floats
before. So a result may differ by one step of its scale, where the sum is about half-way between two integers. A bias that is
no integer multiple of the product of both scales is rounded to one, if that is less than a 128th of the result's step.
``quantized_moves.py`` has what only moves quantized elements.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tvmdml.enums import ConvolutionDirection, ConvolutionMode
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.packers import reading
from tvmdml.graph.passes import unused
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.program import Program
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._contract import Operator
from tvmdml.operators.convolution import QuantizedLinearConvolution
from tvmdml.operators.matrix_multiply_integer import QuantizedLinearMatrixMultiply
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc
from tvmdml.tensors.arrays import NumpyArray

DEQUANTIZE, QUANTIZE = "ELEMENT_WISE_DEQUANTIZE_LINEAR", "ELEMENT_WISE_QUANTIZE_LINEAR"
_BYTES = (TensorDataType.INT8, TensorDataType.UINT8)
_LARGEST = 2**31 - 1  # of int32, in which products of bytes are summed
_SCALES = (2.0**-60, 2.0**40)
"""Scales between these: products and quotients of two are far from the limits of float32."""
_HALF = 0.499
"""What is nearer to an integer is rounded to it, however the quotient was computed."""
_SMALL = 1 / 128
"""The most of a step of the result that a bias may be changed by."""


class Quantized(NamedTuple):
    """A tensor of bytes that stand for floats, as a reader of the floats sees it."""

    edge: Edge
    tensor: TensorDesc
    scale: NumpyArray
    """One number, or one for each place along ``axis``."""
    zero: NumpyArray
    axis: int | None


class Folded(NamedTuple):
    """An operator in the place of a call."""

    desc: Operator
    edges: dict[str, Edge]


def run(program: Program, target: Target) -> None:
    """Fold wherever only a QuantizeLinear reads the floats."""
    uses, kept = program.uses(), program.kept()

    def is_alone(edge: Edge) -> bool:
        return not edge.offset and len(uses.get(edge.value, ())) == 1 and edge.value not in kept

    folded = False
    for call in list(program.calls):
        if call.desc.NAME != QUANTIZE or (to := parameters(call)) is None or to.axis is not None:
            continue
        members, edge = [call], call.edges["input_tensor"]
        if is_alone(edge) and isinstance(edge.source, Call) and is_implied(edge.source, call, to):
            members, edge = [edge.source, call], edge.source.edges["input_tensor"]
        head = edge.source
        if not is_alone(edge) or not isinstance(head, Call) or head.desc.NAME not in _FOLDS:
            continue
        made, read = head.outputs()[edge.output], dict(members[0].desc.tensors())["input_tensor"]
        result: TensorDesc = call.desc.output_tensor  # type: ignore[attr-defined]
        if made is None or read is None or not lies_alike(made, read) or not lies_alike(read, result):
            continue
        try:
            found = _FOLDS[head.desc.NAME](head, to, TensorDesc(result.data_type, made.sizes, made.strides))
            if found is None:
                continue
            found.desc.check()
            if Offers.OWN not in offered(found.desc, target):
                continue
        except TvmdmlError:
            continue
        program.fuse([head, *members], found.desc, found.edges, {(call, 0): 0})
        folded = True
    if folded:
        unused.run(program, target)


def parameters(call: Call) -> Quantized | None:
    """A DequantizeLinear or QuantizeLinear of bytes with a constant scale and zero point; of the latter, what it writes."""
    desc: Any = call.desc
    writes = desc.NAME == QUANTIZE
    tensor, floats = (desc.output_tensor, desc.input_tensor) if writes else (desc.input_tensor, desc.output_tensor)
    if tensor.data_type not in (_BYTES if writes else (*_BYTES, TensorDataType.INT32)) or not tensor.element_count:
        return None
    if floats.data_type is not TensorDataType.FLOAT32:
        return None
    arrays, axes = [], set()
    for name in ("scale_tensor", "zero_point_tensor"):
        own = getattr(desc, name)
        if own is None:
            arrays.append(np.zeros(1, np.int64))
            continue
        edge = call.edges[name]
        if not isinstance(edge.source, Constant):
            return None
        steps = [i for i, (n, step) in enumerate(zip(own.sizes, own.layout, strict=True)) if n > 1 and step]
        if len(steps) > 1:
            return None
        axes.update(steps)
        elements = TensorDesc(own.data_type, [n if i in steps else 1 for i, n in enumerate(own.sizes)], own.layout)
        arrays.append(reading(edge.source.array, edge.offset, elements).flatten())
    scale, zero = arrays
    if len(axes) > 1 or not np.all((scale >= _SCALES[0]) & (scale <= _SCALES[1])):
        return None
    edge = Edge(call) if writes else call.edges["input_tensor"]
    return Quantized(edge, tensor, scale.astype(np.float64), zero.astype(np.int64), axes.pop() if axes else None)


def dequantized(call: Call, name: str) -> Quantized | None:
    """What a DequantizeLinear gives to an input of a call, as a view of the bytes."""
    edge, view = call.edges[name], dict(call.desc.tensors())[name]
    head = edge.source
    if not isinstance(head, Call) or head.desc.NAME != DEQUANTIZE or view is None or (found := parameters(head)) is None:
        return None
    floats = head.outputs()[0]
    if floats is None or floats.sizes != found.tensor.sizes or not lies_alike(floats, found.tensor):
        return None
    if found.axis is not None and (edge.offset or not floats.is_like(view)):
        return None  # which scale an element has would follow from its place in another view
    size = found.tensor.data_type.bits // 8
    edge = found.edge._replace(offset=found.edge.offset + edge.offset * size // 4)
    return found._replace(edge=edge, tensor=TensorDesc(found.tensor.data_type, view.sizes, view.strides))


def is_implied(call: Call, behind: Call, to: Quantized) -> bool:
    """Whether an activation changes nothing but what saturates, or is rounded to the same integers, anyway."""
    desc: Any = call.desc
    if desc.NAME not in ("ACTIVATION_RELU", "ELEMENT_WISE_CLIP", "ELEMENT_WISE_CLIP1"):
        return False
    if getattr(desc, "scale_bias", None) is not None or not lies_alike(desc.input_tensor, desc.output_tensor):
        return False
    limits = np.iinfo(to.tensor.data_type.numpy)  # type: ignore[type-var]
    low, high = 0.0, math.inf
    if desc.NAME != "ACTIVATION_RELU":
        low, high = (_number(getattr(desc, name)) for name in ("min", "max"))
    scale, zero = float(to.scale[0]), int(to.zero[0])
    return bool(low <= high and low / scale + zero < limits.min + _HALF and high / scale + zero > limits.max - _HALF)


def _number(value: Any) -> float:
    return float(getattr(value, "value", value))


def lies_alike(one: TensorDesc, other: TensorDesc) -> bool:
    """Whether the elements are at the same places of both memories."""
    if one.sizes == other.sizes:
        steps = zip(one.sizes, one.layout, other.layout, strict=True)
        return all(n == 1 or a == b for n, a, b in steps)
    return one.is_packed and other.is_packed and one.element_count == other.element_count


# -- What each operator becomes -----------------------------------------------------------------------------------


def _small(values: NumpyArray, dtype: Any, sizes: tuple[int, ...], where: Call) -> tuple[TensorDesc, Edge]:
    """A constant of few elements."""
    array = np.ascontiguousarray(values.astype(dtype).reshape(sizes))
    return TensorDesc(TensorDataType.from_numpy(array.dtype), array.shape), Edge(Constant(array, "", where.where))


class _Parts:
    """The tensors and edges of a quantized operator."""

    def __init__(self, head: Call) -> None:
        self.head = head
        self.tensors: dict[str, Any] = {}
        self.edges: dict[str, Edge] = {}

    def add(self, name: str, one: Quantized, axis: int = 0, rank: int = 1) -> None:
        """A tensor with its scale and zero point, which is left out where it is 0."""
        self.tensors[f"{name}_tensor"], self.edges[f"{name}_tensor"] = one.tensor, one.edge
        self.add_numbers(name, one, axis, rank, not one.zero.any())

    def add_numbers(self, name: str, one: Quantized, axis: int = 0, rank: int = 1, plain: bool = False) -> None:
        """A scale and a zero point, along a dimension of the result."""
        zeros = one.zero if one.zero.size == 1 or (one.zero != one.zero[0]).any() else one.zero[:1]
        numbers: list[tuple[str, NumpyArray, Any]] = [("scale", one.scale, np.float32)]
        numbers += [] if plain else [("zero_point", zeros, one.tensor.data_type.numpy)]
        self.tensors[f"{name}_zero_point_tensor"] = None
        for kind, values, dtype in numbers:
            sizes = tuple(values.size if i == axis else 1 for i in range(rank))
            key = f"{name}_{kind}_tensor"
            self.tensors[key], self.edges[key] = _small(values, dtype, sizes, self.head)


def _convolution(head: Call, to: Quantized, result: TensorDesc) -> Folded | None:
    desc: Any = head.desc
    if desc.direction is not ConvolutionDirection.FORWARD or desc.mode is not ConvolutionMode.CROSS_CORRELATION:
        return None
    if desc.fused_activation is not None or any(desc.output_padding) or desc.input_tensor.rank != 4:
        return None
    x, w = dequantized(head, "input_tensor"), dequantized(head, "filter_tensor")
    if x is None or w is None or not _are_bytes(x, w) or x.axis is not None or w.axis not in (None, 0):
        return None
    parts = _Parts(head)
    parts.add("input", x, 1, 4)
    parts.add("filter", w, 1, 4)
    if not _add_bias(parts, head, "bias_tensor", (x, w, to), desc.products(), 1):
        return None
    parts.add_numbers("output", to, 1, 4)
    names = ("strides", "dilations", "start_padding", "end_padding", "group_count")
    numbers: Any = {name: getattr(desc, name) for name in names}
    return Folded(QuantizedLinearConvolution(**parts.tensors, output_tensor=result, **numbers), parts.edges)


def _product(head: Call, to: Quantized, result: TensorDesc) -> Folded | None:
    """Without a bias a product; with one a convolution of single places, whose channels are columns."""
    desc: Any = head.desc
    a, b = dequantized(head, "a_tensor"), dequantized(head, "b_tensor")
    if a is None or b is None or not _are_bytes(a, b) or desc.fused_activation is not None or desc.alpha != 1:
        return None
    turned = desc.transposed()
    rank, column = b.tensor.rank, b.tensor.rank - (2 if turned[1] else 1)
    if a.axis is not None or b.axis not in (None, column):
        return None
    a, b = (one._replace(tensor=_turned(one.tensor)) if turn else one for one, turn in zip((a, b), turned, strict=True))
    depth, columns = b.tensor.sizes[-2:]
    parts = _Parts(head)
    if desc.c_tensor is None or desc.beta == 0:
        if not _fits(depth, 0):
            return None
        parts.add("a", a, 0, rank)
        parts.add("b", b, rank - 1, rank)
        parts.add_numbers("output", to, 0, rank)
        return Folded(QuantizedLinearMatrixMultiply(**parts.tensors, output_tensor=result), parts.edges)
    if desc.beta != 1 or any(n != 1 for n in (*a.tensor.sizes[:-2], *b.tensor.sizes[:-2])):
        return None

    def image(tensor: TensorDesc) -> TensorDesc:
        down, across = tensor.layout[-2:]
        return TensorDesc(tensor.data_type, (1, tensor.sizes[-1], 1, tensor.sizes[-2]), (0, across, 0, down))

    down, across = b.tensor.layout[-2:]
    parts.add("input", a._replace(tensor=image(a.tensor)), 1, 4)
    parts.add("filter", b._replace(tensor=TensorDesc(b.tensor.data_type, (columns, depth, 1, 1), (across, down, 0, 0))), 1, 4)
    if not _add_bias(parts, head, "c_tensor", (a, b, to), depth, desc.c_tensor.rank - 1):
        return None
    parts.add_numbers("output", to, 1, 4)
    numbers: Any = {"strides": (1, 1), "dilations": (1, 1), "start_padding": (0, 0), "end_padding": (0, 0), "group_count": 1}
    return Folded(QuantizedLinearConvolution(**parts.tensors, output_tensor=image(result), **numbers), parts.edges)


def _turned(tensor: TensorDesc) -> TensorDesc:
    sizes, steps = list(tensor.sizes), list(tensor.layout)
    sizes[-2:], steps[-2:] = sizes[:-3:-1], steps[:-3:-1]
    return TensorDesc(tensor.data_type, sizes, steps)


def _are_bytes(*given: Quantized) -> bool:
    return all(one.tensor.data_type in _BYTES for one in given)


def _fits(depth: int, most: int) -> bool:
    """Whether no sum of so many products of bytes leaves the range of int32."""
    return depth * 255 * 255 + most <= _LARGEST


def _add_bias(parts: _Parts, head: Call, name: str, given: tuple[Quantized, Quantized, Quantized], depth: int, axis: int) -> bool:
    """Add a bias for each channel as integers, multiples of both scales; whether that is possible."""
    x, w, to = given
    parts.tensors["bias_tensor"] = None
    tensor = getattr(head.desc, name)
    if tensor is None:
        return _fits(depth, 0)
    real = _constant(head, name)
    if real is None:
        return False
    channels = tensor.sizes[axis]
    if any(n > 1 and step and i != axis for i, (n, step) in enumerate(zip(tensor.sizes, tensor.layout, strict=True))):
        return False
    index = tuple(slice(None) if i == axis else 0 for i in range(tensor.rank))
    values = np.broadcast_to(real[index], (channels,))
    unit = np.float64(np.float32(x.scale) * np.float32(w.scale))
    with np.errstate(all="ignore"):
        whole = np.rint(values / unit)
        if not np.all(np.abs(whole) < _LARGEST) or not _fits(depth, int(np.abs(whole).max())):
            return False
        if np.any(np.abs(whole * unit - values) > _SMALL * to.scale[0]):
            return False
    parts.tensors["bias_tensor"], parts.edges["bias_tensor"] = _small(whole, np.int32, (1, channels, 1, 1), head)
    return True


def _constant(call: Call, name: str) -> NumpyArray | None:
    """The floats of an input that never changes, in double precision; they may be dequantized."""
    edge, view = call.edges[name], dict(call.desc.tensors())[name]
    assert view is not None
    if isinstance(edge.source, Constant):
        return reading(edge.source.array, edge.offset, view).astype(np.float64)
    head = edge.source
    if not isinstance(head, Call) or head.desc.NAME != DEQUANTIZE or (one := parameters(head)) is None:
        return None
    floats = head.outputs()[0]
    if not isinstance(one.edge.source, Constant) or floats is None or not floats.is_packed or edge.offset:
        return None
    integers = reading(one.edge.source.array, one.edge.offset, one.tensor).astype(np.int64)
    shape = [-1 if i == one.axis else 1 for i in range(integers.ndim)]
    zero, scale = (values.reshape(shape) if values.size > 1 else values for values in (one.zero, one.scale))
    flat = np.ascontiguousarray((integers - zero) * scale).view(np.uint8).reshape(-1)
    return reading(flat, 0, TensorDesc(TensorDataType.FLOAT64, view.sizes, view.strides))


_FOLDS = {"CONVOLUTION": _convolution, "GEMM": _product}
