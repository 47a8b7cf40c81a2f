"""DML_OPERATOR_ACTIVATION_SOFTMAX, LOG_SOFTMAX and HARDMAX, and their forms with axes: what an element is of its slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.reduction import LARGEST_NUMBER, SUM, Walk, places
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Axes, Input, NumpyArray, Operator, Output, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._reduction import Reduction, additions, spacing
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc


class _Slices(Reduction):
    """An output with the input's sizes."""

    EACH = ("output_tensor",)
    OLDER: ClassVar[type[Operator]]
    """The form without axes."""

    input_tensor: Input
    output_tensor: Output

    def reduced(self) -> tuple[int, ...]:
        """The axes, or the last dimension."""
        return tuple(sorted(getattr(self, "axes", (self.input_tensor.rank - 1,))))

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's type and sizes."""
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    def check(self) -> None:
        """Both tensors have the same type and sizes. The axes are dimensions; without axes, there are at most two."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("sizes", "output_tensor", "input_tensor")
        if hasattr(self, "axes"):
            self.require_axes(self.axes)
        else:
            sizes = self.input_tensor.sizes
            flat = all(size == 1 for size in sizes[:-2])
            advice = f"Use {self.NAME}1, which has axes."
            self.require(flat, "input_tensor.sizes", sizes, "sizes of 1 before the last two dimensions", advice)

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """Without axes, the form that has none."""
        return cls.of(*inputs, **given) if given["axes"] is not None else cls.OLDER.of(*inputs)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Along one axis."""
        return cls.of(node.tensor(), axes=(node.integer("axis", -1),))


class _Exponentials(_Slices):
    FINDS: ClassVar[int] = 1
    """How many values ``of_total`` returns."""

    def walks(self) -> tuple[Walk, ...]:
        return (
            Walk((LARGEST_NUMBER,), lambda x: x),
            Walk(
                (SUM,), lambda x, m: mathematics.decay(x - m), lambda t, *_: self.of_total(t), finds=self.FINDS, kept=self.FINDS > 1
            ),
        )

    def of_total(self, total: Any) -> Any:
        """What elements need of the sum of exponentials."""
        raise NotImplementedError(self.NAME)

    def distances(self, x: NumpyArray) -> tuple[NumpyArray, NumpyArray, int]:
        """Of slices: the distances to the largest, the sum of exponentials, and the length."""
        d = np.max(x, axis=-1, keepdims=True) - x
        return d, np.sum(np.exp(-d), axis=-1, keepdims=True), x.shape[-1]


class _Softmax(_Exponentials):
    FINDS = 2

    def of_total(self, total: Any) -> Any:
        """One over it, and the exponential from which on results would be below the normal numbers: they become 0."""
        tiny = float(np.finfo(T.scalar_type(total)).tiny)
        return T.like(total, 1.0) / total, T.rounded(total * T.like(total, 1 - 1e-5)) * T.like(total, tiny)

    def element(self, x: Any, largest: Any, inverse: Any, least: Any, kept: Any) -> Any:
        return T.select(kept < least, 0, kept * inverse)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formula in NumPy."""
        (x,) = inputs
        assert x is not None
        with np.errstate(all="ignore"):
            d, total, n = self.distances(self.slices(x))
            y = np.exp(-d) / total
            e = spacing(x.dtype)
            error = np.where(y > 0, y * (additions(n, x.dtype) + e * (12 + 3 * np.where(y > 0, d, 0) + 3 * np.log(n))), 0)
            return (self.near(y, error, x.dtype),)


class _LogSoftmax(_Exponentials):
    def of_total(self, total: Any) -> Any:
        return mathematics.log(total)

    def element(self, x: Any, largest: Any, logarithm: Any) -> Any:
        return (x - largest) - logarithm

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formula in NumPy."""
        (x,) = inputs
        assert x is not None
        with np.errstate(all="ignore"):
            d, total, n = self.distances(self.slices(x))
            y = -d - np.log(total)
            size = np.where(np.isfinite(y), np.abs(y), 0)
            return (self.near(y, additions(n, x.dtype) + spacing(x.dtype) * (8 + 8 * np.log(n) + size), x.dtype),)


class _Hardmax(_Slices):
    COUNTED = True

    def walks(self) -> tuple[Walk, ...]:
        return places(largest=True)

    def element(self, position: Any, x: Any, key: Any, place: Any) -> Any:
        return T.select(position == place, T.like(x, 1), 0)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """1 at the place that ``argmax`` gives."""
        (x,) = inputs
        assert x is not None
        slices = self.slices(x)
        first = np.argmax(slices, axis=-1)[..., None]
        return (self.unsliced(np.where(np.arange(slices.shape[-1]) == first, 1, 0)).astype(x.dtype),)


class ActivationSoftmax(_Softmax):
    """``exp(x)`` as a part of its sum over the last dimension (``DML_ACTIVATION_SOFTMAX_OPERATOR_DESC``).

    All dimensions before the last two have size 1; ``ActivationSoftmax1`` has axes.
    """

    SUPPORT = support("1.0 F r4 · 2.0 r45 · 3.0 r8 · ext +D")


class ActivationSoftmax1(_Softmax):
    """``exp(x)`` as a part of its sum along axes (``DML_ACTIVATION_SOFTMAX1_OPERATOR_DESC``).

    A slice with a NaN or with positive infinity, or with nothing but negative infinity, is NaN.
    """

    FUNCTION = "activation_softmax"
    DEFAULTS = defaults(axes=None)
    ONNX = ("Softmax",)
    SUPPORT = support("5.1 F r8 · ext +D")
    OLDER = ActivationSoftmax
    GRADIENT = gradients(
        input="multiply(result, subtract(gradient, "
        "reduce(multiply(gradient, result), function='sum', axes=(-1,) if axes is None else axes)))"
    )

    axes: Axes


class ActivationLogSoftmax(_LogSoftmax):
    """The logarithm of softmax along the last dimension (``DML_ACTIVATION_LOG_SOFTMAX_OPERATOR_DESC``).

    All dimensions before the last two have size 1; ``ActivationLogSoftmax1`` has axes.
    """

    SUPPORT = support("1.0 F r4 · 2.0 r45 · 3.0 r8 · ext +D")


class ActivationLogSoftmax1(_LogSoftmax):
    """The logarithm of softmax along axes (``DML_ACTIVATION_LOG_SOFTMAX1_OPERATOR_DESC``), without computing softmax."""

    FUNCTION = "activation_log_softmax"
    DEFAULTS = defaults(axes=None)
    ONNX = ("LogSoftmax",)
    SUPPORT = support("5.1 F r8 · ext +D")
    OLDER = ActivationLogSoftmax
    GRADIENT = gradients(
        input="subtract(gradient, multiply(exp(result), reduce(gradient, function='sum', axes=(-1,) if axes is None else axes)))"
    )

    axes: Axes


class ActivationHardmax(_Hardmax):
    """1 at the largest element along the last dimension, otherwise 0 (``DML_ACTIVATION_HARDMAX_OPERATOR_DESC``).

    All dimensions before the last two have size 1; ``ActivationHardmax1`` has axes.
    """

    SUPPORT = support("1.0 F r4 · 2.0 r45 · 3.0 r8 · ext +D")


class ActivationHardmax1(_Hardmax):
    """1 at the first of the largest elements along axes, otherwise 0 (``DML_ACTIVATION_HARDMAX1_OPERATOR_DESC``).

    A NaN is larger than all numbers.
    """

    FUNCTION = "activation_hardmax"
    DEFAULTS = defaults(axes=None)
    ONNX = ("Hardmax",)
    SUPPORT = support("5.1 F r8 · ext +D")
    OLDER = ActivationHardmax

    axes: Axes
