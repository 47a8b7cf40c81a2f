"""DML_OPERATOR_BATCH_NORMALIZATION, its training form, and the gradients of both."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.reduction import SUM, Walk
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._broadcast import repeated
from tvmdml.operators._contract import (
    Bool,
    Float,
    Input,
    NumpyArray,
    Operator,
    OptionalFloat,
    OptionalInput,
    OptionalOperator,
    Output,
    Role,
    defaults,
)
from tvmdml.operators._fused import ACTIVATIONS
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators._reduction import Reduction, additions, precise, spacing
from tvmdml.operators._reduction_activated import activated, activated_near
from tvmdml.operators._reduction_means import anything_past_range, mean, mean_errors, mean_walks, normalized_error, of_first
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc


def _require_finite(desc: Operator, name: str) -> None:
    given = getattr(desc, name)
    desc.require(bool(np.isfinite(given)), name, given, "a finite number")


class BatchNormalization(Pointwise):
    """``scale * (x - mean) / sqrt(variance + epsilon) + bias``, of given values (``DML_BATCH_NORMALIZATION_OPERATOR_DESC``).

    Mean, variance, scale and bias have the input's sizes, or 1 where they are repeated. ``spatial`` has no effect since level 4.0.
    """

    SUPPORT = support("1.0 F r4 · 3.1 r8 · ext +D")
    DEFAULTS = defaults(spatial=True, epsilon=0.00001, fused_activation=None)
    FUSES = MappingProxyType(ACTIVATIONS)
    ONNX = ("BatchNormalization",)
    ONNX_INPUTS = (0, 3, 4, 1, 2)
    SHARES = ()
    BROADCAST = False
    STEPS = 1
    CONSTANT_SHAPES = "a size of 1 says that an input is repeated"

    input_tensor: Input
    mean_tensor: Input
    variance_tensor: Input
    scale_tensor: Input
    bias_tensor: Input
    output_tensor: Output
    spatial: Bool
    epsilon: Float
    fused_activation: OptionalOperator = None

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's type and sizes."""
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    def check_attributes(self, level: FeatureLevel) -> None:
        _require_finite(self, "epsilon")

    def check_level(self, level: FeatureLevel) -> None:
        if level < FeatureLevel.LEVEL_4_0 and not self.spatial:
            for name in ("mean_tensor", "variance_tensor"):
                sizes, wanted = getattr(self, name).sizes[2:4], self.input_tensor.sizes[2:4]
                self.require(
                    sizes == wanted, f"{name}.sizes[2:4]", sizes, f"{wanted}, as spatial is false, below feature level 4.0"
                )

    def check(self) -> None:
        """All tensors have one type; the output has the input's sizes, the others those or 1."""
        for name, tensor in self.tensors():
            if name == "input_tensor" or tensor is None:
                continue
            self.require_same("data_type", name, "input_tensor")
            self.require_same("rank", name, "input_tensor")
            if name == "output_tensor":
                self.require_same("sizes", name, "input_tensor")
            sizes = self.input_tensor.sizes
            fits = all(one in (1, size) for one, size in zip(tensor.sizes, sizes, strict=True))
            self.require(fits, f"{name}.sizes", tensor.sizes, f"{sizes}, with 1 in place of any of them")

    def operands(self) -> tuple[TensorDesc, ...]:
        """The tensors, all with the input's sizes."""
        return tuple(repeated(tensor, self.input_tensor.sizes) for _, tensor in self.tensors() if tensor is not None)

    def place(self, name: str, tensor: Any, at: list[Any]) -> Any:
        """The offset of a tensor's element; where its size is 1, it is repeated."""
        return T.dot(at, repeated(tensor, self.input_tensor.sizes).layout)

    def value(self, x: Any, mean: Any, variance: Any, scale: Any, bias: Any) -> Any:
        factor = scale / T.sqrt(variance + T.like(variance, self.epsilon))
        return activated(self.fused_activation, T.rounded((x - mean) * factor) + bias)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formula in NumPy, in higher precision."""
        x, mean, variance, scale, bias = (np.broadcast_to(precise(one), self.input_tensor.sizes) for one in inputs)  # type: ignore[arg-type]
        dtype = self.output_tensor.data_type.numpy
        e = spacing(dtype)
        with np.errstate(all="ignore"):
            normal = scale * ((x - mean) / np.sqrt(variance + self.epsilon))
            error = 12 * e * np.abs(normal) + 2 * e * np.abs(bias) + lost(variance + self.epsilon, x - mean, scale, dtype)
            y, error = activated_near(self.fused_activation, normal + bias, error, dtype)
            return (Near(y, np.dtype(dtype), 0, error.astype(np.float64)),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """The parameters are of channels, and come in another order."""
        if node.integer("training_mode", 0):
            raise NotConvertible("its training_mode is 1: it has results that DirectML's operator does not give")
        x, scale, bias, mean, variance = (node.tensor(i) for i in range(5))
        sizes = [x.sizes[i] if i == 1 else 1 for i in range(x.rank)]
        others = (one.with_sizes(sizes) for one in (mean, variance, scale, bias))
        return cls.of(x, *others, epsilon=node.attributes.get("epsilon", 1e-5))


def lost(variance: NumpyArray, difference: NumpyArray, scale: NumpyArray, dtype: Any) -> NumpyArray:
    """What a result may be off where a step leaves the normal numbers: anything where it is too large, little where it is small."""
    limits = np.finfo(np.float64 if np.dtype(dtype) == np.float64 else np.float32)
    most, least = 2.0 ** (limits.maxexp - 2), float(limits.tiny)
    factor = np.abs(scale) / np.sqrt(variance)
    parts = (np.abs(difference), factor, np.abs(difference) * factor)
    large = functools.reduce(np.logical_or, ((one > most) & np.isfinite(one) for one in parts))
    tiny = (factor < least) & (factor > 0)
    small = (variance < 4 * least) & (variance > 0)
    return np.where(large | small, np.nan, np.where(tiny, np.where(np.isfinite(difference), np.abs(difference) * least, np.nan), 0))


class BatchNormalizationTraining(Reduction):
    """Normalised by the input's own mean and variance (``DML_BATCH_NORMALIZATION_TRAINING_OPERATOR_DESC``), which are results, too.

    They are computed over the dimensions where the scale has size 1; the
    variance is divided by the number of elements.
    """

    FUNCTION = "batch_normalization_training"
    SUPPORT = support("4.1 F r8 · ext +D")
    DEFAULTS = defaults(epsilon=0.00001, fused_activation=None)
    FUSES = MappingProxyType(ACTIVATIONS)
    RESULTS = ("output", "mean", "variance")
    EACH = ("output_tensor",)

    input_tensor: Input
    scale_tensor: Input
    bias_tensor: Input
    fused_add_tensor: OptionalInput = None
    output_tensor: Output
    output_mean_tensor: Output
    output_variance_tensor: Output
    epsilon: Float
    fused_activation: OptionalOperator = None

    def reduced(self) -> tuple[int, ...]:
        return tuple(i for i, size in enumerate(self.scale_tensor.sizes) if size == 1)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's sizes, the others the scale's."""
        x, own = self.input_tensor, self.input_tensor.with_sizes(self.scale_tensor.sizes)
        return {"output_tensor": x.with_sizes(x.sizes), "output_mean_tensor": own, "output_variance_tensor": own}

    def check_attributes(self, level: FeatureLevel) -> None:
        _require_finite(self, "epsilon")

    def check(self) -> None:
        """One type; the sizes are the input's, or the scale's, which are those or 1."""
        _check_types(self)
        self.require_repeatable("scale_tensor")
        for name in ("bias_tensor", "output_mean_tensor", "output_variance_tensor"):
            self.require_same("sizes", name, "scale_tensor")
        for name in ("output_tensor", "fused_add_tensor") if self.fused_add_tensor is not None else ("output_tensor",):
            self.require_same("sizes", name, "input_tensor")

    def walks(self) -> tuple[Walk, ...]:
        inputs = sum(tensor is not None for _, tensor in self.tensors(Role.INPUT))
        return tuple(one._replace(before=of_first(one.before, inputs)) for one in mean_walks(True, self.epsilon))

    def slice_results(self, mean: Any, variance: Any, *_: Any) -> Any:
        return mean, variance

    def element(self, x: Any, scale: Any, bias: Any, *rest: Any) -> Any:
        *added, mean, _, inverse = rest
        y = T.rounded((x - mean) * (scale * inverse)) + bias
        return activated(self.fused_activation, y + added[0] if added else y)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formula in NumPy, in higher precision."""
        given, scale, bias, added = inputs
        assert given is not None
        assert scale is not None
        assert bias is not None
        dtype, e = given.dtype, spacing(given.dtype)
        with np.errstate(all="ignore"):
            x, s, b = (self.slices(one) for one in (given, scale, bias))
            a = np.zeros_like(x) if added is None else self.slices(added)
            m = mean(x)
            v = mean((x - m) ** 2)
            e_m, e_v = mean_errors(x, m, v, True, dtype)
            error = (
                normalized_error(x, m, v, s, b, e_m, e_v, self.epsilon, e)
                + 2 * e * np.abs(a)
                + lost(v + self.epsilon, x - m, s, dtype)
            )
            y = s * ((x - m) / np.sqrt(v + self.epsilon)) + b + a
            error = anything_past_range(error, x, dtype, squared=True)
            y, error = activated_near(self.fused_activation, y, error, dtype)
            of_mean = anything_past_range(e_m + 4 * e * np.abs(m), x, dtype, squared=False)
            of_variance = anything_past_range(e_v + 4 * e * v, x, dtype, squared=True)
            return (
                self.near(y, error, dtype),
                self.near(m[..., 0], of_mean[..., 0], dtype),
                self.near(v[..., 0], of_variance[..., 0], dtype),
            )


def _check_types(desc: Operator) -> None:
    for name, tensor in desc.tensors():
        if tensor is not None and name != "input_tensor":
            desc.require_same("data_type", name, "input_tensor")
            desc.require_same("rank", name, "input_tensor")


_USUAL = 0.00001
"""The usual epsilon."""


class _Gradient(Reduction):
    """The gradients of the input, the scale and the bias."""

    if TYPE_CHECKING:
        epsilon: float | None

    EACH = ("output_gradient_tensor",)

    input_tensor: Input
    input_gradient_tensor: Input
    mean_tensor: Input
    variance_tensor: Input
    scale_tensor: Input
    output_gradient_tensor: Output
    output_scale_gradient_tensor: Output
    output_bias_gradient_tensor: Output

    def reduced(self) -> tuple[int, ...]:
        return tuple(i for i, size in enumerate(self.mean_tensor.sizes) if size == 1)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The input's gradient has the input's sizes, the others the mean's."""
        x, own = self.input_tensor, self.input_tensor.with_sizes(self.mean_tensor.sizes)
        outputs = ("output_gradient_tensor", "output_scale_gradient_tensor", "output_bias_gradient_tensor")
        return dict(zip(outputs, (x.with_sizes(x.sizes), own, own), strict=True))

    def check_attributes(self, level: FeatureLevel) -> None:
        if self.epsilon is not None:
            _require_finite(self, "epsilon")

    @property
    def added(self) -> float:
        """What is added to the variance: epsilon."""
        return _USUAL if self.epsilon is None else float(self.epsilon)

    def check(self) -> None:
        """One type; the sizes are the input's, or the mean's, which are those or 1."""
        _check_types(self)
        self.require_repeatable("mean_tensor")
        for name in ("variance_tensor", "scale_tensor", "output_scale_gradient_tensor", "output_bias_gradient_tensor"):
            self.require_same("sizes", name, "mean_tensor")
        for name in ("input_gradient_tensor", "output_gradient_tensor"):
            self.require_same("sizes", name, "input_tensor")

    def walks(self) -> tuple[Walk, ...]:
        def terms(x: Any, gradient: Any, mean: Any, variance: Any, *_: Any) -> Any:
            return T.rounded(gradient * ((x - mean) * self._inverse(variance))), gradient

        def means(of_scale: Any, of_bias: Any, count: Any) -> Any:
            return of_scale, of_bias, of_scale / count, of_bias / count

        return (Walk((SUM, SUM), terms, means, finds=4),)

    def _inverse(self, variance: Any) -> Any:
        return T.like(variance, 1.0) / T.sqrt(variance + T.like(variance, self.added))

    def slice_results(self, of_scale: Any, of_bias: Any, *_: Any) -> Any:
        return of_scale, of_bias

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formulas in NumPy, in higher precision."""
        dtype = inputs[0].dtype  # type: ignore[union-attr]
        e = spacing(dtype)
        with np.errstate(all="ignore"):
            x, dy, mean, variance, scale = (self.slices(one) for one in inputs)  # type: ignore[arg-type]
            w = (variance + self.added)[..., :1]
            d, c, s = x - mean, 1 / np.sqrt(w), scale[..., :1]
            n = x.shape[-1]
            terms = dy * d * c
            both = [_summed(one, dtype, more) for one, more in ((terms, 12 * e), (dy, 0.0))]
            free = lost(w, d, s, dtype) + lost(w, dy, s, dtype) + lost(w, d, dy, dtype)
            y, error = self.input_gradient(dy, d, w, s, n, e, additions(n, dtype))
            error = error + free + np.where(np.isnan(both[0][1] + both[1][1]), np.nan, 0)[..., None]
            anything = np.where(np.isnan(free).any(axis=-1), np.nan, 0)
            return (
                self.near(y, error, dtype),
                self.near(both[0][0], both[0][1] + anything, dtype),
                self.near(*both[1], dtype),
            )

    def input_gradient(
        self, dy: NumpyArray, d: NumpyArray, w: NumpyArray, s: NumpyArray, n: int, e: float, sums: float
    ) -> tuple[NumpyArray, NumpyArray]:
        """The input's gradient in NumPy, and what it may be off."""
        raise NotImplementedError(self.NAME)


def _summed(terms: NumpyArray, dtype: Any, more: float) -> tuple[NumpyArray, NumpyArray]:
    finite = np.where(np.isfinite(terms), np.abs(terms), 0)
    magnitudes = np.sum(finite, axis=-1)
    free = _past_range(magnitudes, dtype)
    return np.sum(terms, axis=-1), np.where(free, np.nan, (additions(terms.shape[-1], dtype) + more) * magnitudes)


def _past_range(magnitudes: NumpyArray, dtype: Any) -> NumpyArray:
    """Whether sums with these magnitudes may be infinite on the way, so that their result may be anything."""
    return magnitudes >= np.finfo(np.float64 if np.dtype(dtype) == np.float64 else np.float32).max / 2


class BatchNormalizationGrad(_Gradient):
    """The gradients with given mean and variance (``DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC``).

    The gradients of scale and bias are sums over the dimensions where the mean has size 1.
    """

    FUNCTION = "batch_normalization_grad"
    SUPPORT = support("3.1 F r8 · ext +D")
    DEFAULTS = defaults(epsilon=_USUAL)
    RESULTS = ("gradient", "scale_gradient", "bias_gradient")

    epsilon: OptionalFloat = None

    def element(self, x: Any, gradient: Any, mean: Any, variance: Any, scale: Any, *_: Any) -> Any:
        return gradient * (scale * self._inverse(variance))

    def input_gradient(
        self, dy: NumpyArray, d: NumpyArray, w: NumpyArray, s: NumpyArray, n: int, e: float, sums: float
    ) -> tuple[NumpyArray, NumpyArray]:
        y = dy * (s / np.sqrt(w))
        return y, 12 * e * np.abs(np.where(np.isfinite(y), y, 0))


class BatchNormalizationTrainingGrad(_Gradient):
    """The gradients of training (``DML_BATCH_NORMALIZATION_TRAINING_GRAD_OPERATOR_DESC``), with its mean and variance.

    The gradients of scale and bias are sums over the dimensions where the
    mean has size 1.
    """

    FUNCTION = "batch_normalization_training_grad"
    SUPPORT = support("4.1 F r8 · ext +D")
    DEFAULTS = defaults(epsilon=_USUAL)
    RESULTS = ("gradient", "scale_gradient", "bias_gradient")

    epsilon: Float

    def element(self, x: Any, gradient: Any, mean: Any, variance: Any, scale: Any, *found: Any) -> Any:
        *_, of_scale, of_bias = found
        inverse = self._inverse(variance)
        own = T.rounded((x - mean) * (inverse * of_scale))
        return (scale * inverse) * ((gradient - of_bias) - own)

    def input_gradient(
        self, dy: NumpyArray, d: NumpyArray, w: NumpyArray, s: NumpyArray, n: int, e: float, sums: float
    ) -> tuple[NumpyArray, NumpyArray]:
        factor = s / np.sqrt(w)
        y = factor * (dy - mean(dy) - d * mean(dy * d) / w)
        magnitudes = np.abs(dy) + mean(np.abs(dy)) + np.abs(d) * mean(np.abs(dy * d)) / w
        error = np.abs(factor) * magnitudes
        free = _past_range(np.maximum(error, magnitudes), self.input_tensor.data_type.numpy)
        return y, np.where(free, np.nan, (sums + 16 * e) * error)
