"""DML_OPERATOR_AVERAGE_POOLING, LP_POOLING and MAX_POOLING in all versions: windows of an image, each combined to an element."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tvmdml.operators._contract import Bool, Input, Operator, OptionalOutput, Output, Uint, Uints, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._support import support
from tvmdml.operators._window import ABSENT
from tvmdml.operators._window_largest import Largest
from tvmdml.operators._window_onnx import everywhere, image, pooled
from tvmdml.operators._window_pooling import Average, Dilated, Norm, Pooling
from tvmdml.operators.reduce import Reduce
from tvmdml.tensors import TensorDataType

_SIZES = MappingProxyType({"output_sizes": Uints})
_ABSENT = {**dict.fromkeys(ABSENT), "output_sizes": None}


class AveragePooling(Pooling, Average):
    """The average of each window of an image (``DML_AVERAGE_POOLING_OPERATOR_DESC``)."""

    SUPPORT = support("1.0 F r45 · ext +D")
    ONNX = ("GlobalAveragePool",)

    include_padding: Bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """A reduction, whose kernel serves images of all sizes; a window over the whole image is another one for each."""
        x = image(node)
        return Reduce.of(x, function="average", axes=range(2, x.rank))

    def canonical(self) -> Operator:
        return _dilated(AveragePooling1, self)


class AveragePooling1(Dilated, Average):
    """The average of each window of an image (``DML_AVERAGE_POOLING1_OPERATOR_DESC``).

    The sum of a window's elements is divided by their number, or with ``include_padding`` by the number of its taps that are in the
    image or its padding. A window without an element gives 0. An image has a batch, channels and two or three spatial dimensions;
    with one, it is taken as one row.

    Args:
        include_padding: whether padding counts; it does not by default.
        output_sizes: the sizes of the result: by default as many windows as fit. One more in a dimension is allowed if a part of it
            fits, and so are fewer.
    """

    FUNCTION = "average_pooling"
    SUPPORT = support("6.2 F r45 · ext +D")
    DEFAULTS = defaults(**_ABSENT, include_padding=False)
    ARGUMENTS = _SIZES
    ONNX = ("AveragePool",)
    GRADIENT = gradients(
        input="average_pooling_grad(gradient, output_gradient_sizes=input_sizes, strides=undilated(strides, dilations), "
        "window_sizes=window_sizes, start_padding=start_padding, end_padding=end_padding, include_padding=include_padding)"
    )

    include_padding: Bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        x = image(node)
        return cls.of(x, include_padding=bool(node.integer("count_include_pad", 0)), **pooled(node, x))


class LpPooling(Pooling, Norm):
    """The norm of each window of an image (``DML_LP_POOLING_OPERATOR_DESC``)."""

    SUPPORT = support("1.0 F r45 · ext +D")
    ONNX = ("GlobalLpPool",)

    p: Uint

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """One window over the whole image."""
        x = image(node)
        return cls.of(x, p=node.integer("p", 2), **everywhere(x))

    def canonical(self) -> Operator:
        return _dilated(LpPooling1, self)


class LpPooling1(Dilated, Norm):
    """The norm of each window of an image (``DML_LP_POOLING1_OPERATOR_DESC``).

    It is the sum of ``abs(x) ** p`` to the power of ``1 / p``.

    An image has a batch, channels and two or three spatial dimensions; with one, it is taken as one row.

    Args:
        p: the power, 1 or more; 2 by default.
        output_sizes: the sizes of the result, by default as many windows as fit.
    """

    FUNCTION = "lp_pooling"
    SUPPORT = support("6.2 F r45 · ext +D")
    DEFAULTS = defaults(**_ABSENT, p=2)
    ARGUMENTS = _SIZES
    ONNX = ("LpPool",)

    p: Uint

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        x = image(node)
        return cls.of(x, p=node.integer("p", 2), **pooled(node, x))


_TYPES = "F r45 · 3.0 +bytes · 5.0 F +IU +LW · ext +D"
_INDICES = "u r45 · 5.0 +W"


class MaxPooling(Pooling, Largest):
    """The largest element of each window of an image (``DML_MAX_POOLING_OPERATOR_DESC``)."""

    SUPPORT = support(f"1.0 {_TYPES}")
    ONNX = ("GlobalMaxPool",)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """One window over the whole image."""
        x = image(node)
        return cls.of(x, **everywhere(x))

    def canonical(self) -> Operator:
        return _dilated(MaxPooling2, self, output_indices_tensor=None)


class MaxPooling1(Largest):
    """The largest element of each window of an image, and its index (``DML_MAX_POOLING1_OPERATOR_DESC``)."""

    SUPPORT = support(f"2.0 {_TYPES}", output_indices_tensor=f"2.0 {_INDICES}")

    input_tensor: Input
    output_tensor: Output
    output_indices_tensor: OptionalOutput = None
    strides: Uints
    window_size: Uints
    start_padding: Uints
    end_padding: Uints

    def canonical(self) -> Operator:
        return _dilated(MaxPooling2, self)


class MaxPooling2(Largest):
    """The largest element of each window of an image, and its index in the image (``DML_MAX_POOLING2_OPERATOR_DESC``).

    Of equal elements the first is taken, and a NaN before all numbers. An index counts all elements of the image, with batch and
    channels. A window without an element gives -inf, or an integer type's least number, and an index with all bits set.
    """

    SUPPORT = support(f"2.1 {_TYPES}", output_indices_tensor=f"2.1 {_INDICES}")
    DEFAULTS = defaults(**_ABSENT)
    ONNX = ("MaxPool",)
    GRADIENT = gradients(
        input="max_pooling_grad(input, gradient, strides=strides, window_sizes=window_sizes, start_padding=start_padding, "
        "end_padding=end_padding, dilations=dilations)"
    )

    input_tensor: Input
    output_tensor: Output
    output_indices_tensor: OptionalOutput = None
    strides: Uints
    window_size: Uints
    start_padding: Uints
    end_padding: Uints
    dilations: Uints

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Its indices are ONNX's INT64."""
        x = image(node)
        if node.integer("storage_order", 0):
            raise NotConvertible("its indices count columns first")
        kind = {"output_indices_tensor": TensorDataType.UINT64} if node.results > 1 else {}
        return cls.of(x, **pooled(node, x), **kind)


def _dilated(cls: type[Operator], desc: Any, **fields: Any) -> Operator:
    """The newer operator, with dilations of 1."""
    given = {field.name: getattr(desc, field.name) for field in desc.fields()}
    return cls(**{**given, "dilations": (1,) * len(desc.strides), **fields})
