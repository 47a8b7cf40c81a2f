"""DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION, 1 and 2, and LP_NORMALIZATION: slices of a mean, a variance or a norm."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.reduction import SUM, Walk
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import (
    Axes,
    Axis,
    Bool,
    Float,
    Input,
    NumpyArray,
    Operator,
    OptionalBool,
    OptionalInput,
    OptionalOperator,
    Output,
    Uint,
    defaults,
)
from tvmdml.operators._fused import ACTIVATIONS
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._reduction import Reduction, additions, spacing
from tvmdml.operators._reduction_activated import activated, activated_near
from tvmdml.operators._reduction_means import anything_past_range, mean_errors, mean_walks, normalized_error, of_first
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc


class _Normalization(Reduction):
    """An output with the input's type and sizes."""

    EACH = ("output_tensor",)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's type and sizes."""
        return {"output_tensor": self.source.with_sizes(self.source.sizes)}

    def require_finite(self, *names: str) -> None:
        """Numbers, neither NaN nor infinite."""
        for name in names:
            given = getattr(self, name)
            self.require(bool(np.isfinite(given)), name, given, "a finite number")


class _MeanVariance(_Normalization):
    """The three forms: each says which axes, and whether the mean and the variance are used."""

    FUSES = MappingProxyType(ACTIVATIONS)

    def uses(self) -> tuple[bool, bool]:
        """Whether the mean and the variance are used."""
        return True, bool(self.normalize_variance)  # type: ignore[attr-defined]

    def check_attributes(self, level: FeatureLevel) -> None:
        self.require_finite("epsilon")

    def check_level(self, level: FeatureLevel) -> None:
        if level < FeatureLevel.LEVEL_5_2:
            both = (self.scale_tensor is None) == (self.bias_tensor is None)  # type: ignore[attr-defined]
            self.require(both, "bias_tensor", self.bias_tensor, "present if the scale is, below feature level 5.2")  # type: ignore[attr-defined]

    def check(self) -> None:
        """All tensors have one type; scale and bias have the input's sizes or 1."""
        names = [name for name, tensor in self.tensors() if tensor is not None and name != "input_tensor"]
        for name in names:
            self.require_same("data_type", name, "input_tensor")
        self.require_same("sizes", "output_tensor", "input_tensor")
        self.require_repeatable("scale_tensor", "bias_tensor")
        if hasattr(self, "axes"):
            self.require_axes(self.axes)

    def reduced(self) -> tuple[int, ...]:
        return tuple(sorted(self.axes))  # type: ignore[attr-defined]

    def walks(self) -> tuple[Walk, ...]:
        inputs = 1 + (self.scale_tensor is not None) + (self.bias_tensor is not None)  # type: ignore[attr-defined]
        of_mean, of_variance = self.uses()
        own = mean_walks(of_mean, self.epsilon if of_variance else None)  # type: ignore[attr-defined]
        return tuple(one._replace(before=of_first(one.before, inputs)) for one in own)

    def element(self, x: Any, *rest: Any) -> Any:
        of_mean, of_variance = self.uses()
        values = [*rest]
        scale = values.pop(0) if self.scale_tensor is not None else None  # type: ignore[attr-defined]
        bias = values.pop(0) if self.bias_tensor is not None else None  # type: ignore[attr-defined]
        y = x - values.pop(0) if of_mean else x
        if of_variance:
            y = T.rounded(y * values.pop())  # one over the deviation
        y = y if scale is None else T.rounded(scale * y)
        y = y if bias is None else y + bias
        return activated(self.fused_activation, y)  # type: ignore[attr-defined]

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formula in NumPy, in higher precision."""
        given, scale, bias = inputs
        assert given is not None
        of_mean, of_variance = self.uses()
        e = spacing(given.dtype)
        with np.errstate(all="ignore"):
            x = self.slices(given)
            s = np.ones(()) if scale is None else self.slices(scale)
            b = np.zeros(()) if bias is None else self.slices(bias)
            m = np.mean(x, axis=-1, keepdims=True) if of_mean else np.zeros((*x.shape[:-1], 1), x.dtype)
            v = np.mean((x - m) ** 2, axis=-1, keepdims=True)
            e_m, e_v = mean_errors(x, m, v, of_mean, given.dtype)
            error = normalized_error(x, m, v, s, b, e_m, e_v, self.epsilon if of_variance else None, e)  # type: ignore[attr-defined]
            y = s * ((x - m) / np.sqrt(v + self.epsilon) if of_variance else x - m) + b  # type: ignore[attr-defined]
            error = anything_past_range(error, x, given.dtype, squared=of_variance)
            y, error = activated_near(self.fused_activation, y, np.broadcast_to(error, y.shape), given.dtype)  # type: ignore[attr-defined]
            return (self.near(y, error, given.dtype),)


_COMMON = {"normalize_variance": True, "epsilon": 0.00001, "fused_activation": None}


class MeanVarianceNormalization(_MeanVariance):
    """Each image less its mean, divided by its deviation (``DML_MEAN_VARIANCE_NORMALIZATION_OPERATOR_DESC``).

    With ``cross_channel`` the mean is over channels, too.
    """

    SUPPORT = support("1.0 F r4 · ext +D")
    DEFAULTS = defaults(cross_channel=False, **_COMMON)

    input_tensor: Input
    scale_tensor: OptionalInput = None
    bias_tensor: OptionalInput = None
    output_tensor: Output
    cross_channel: Bool
    normalize_variance: Bool
    epsilon: Float
    fused_activation: OptionalOperator = None

    def reduced(self) -> tuple[int, ...]:
        return (1, 2, 3) if self.cross_channel else (2, 3)


class MeanVarianceNormalization1(_MeanVariance):
    """Each slice less its mean, divided by its deviation (``DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC``)."""

    FUNCTION = "mean_variance_normalization"
    SUPPORT = support("2.1 F r4 · 3.1 r8 · ext +D")
    DEFAULTS = defaults(normalize_mean=None, **_COMMON)
    ARGUMENTS = MappingProxyType({"normalize_mean": OptionalBool})
    ONNX = ("MeanVarianceNormalization", "InstanceNormalization")

    input_tensor: Input
    scale_tensor: OptionalInput = None
    bias_tensor: OptionalInput = None
    output_tensor: Output
    axes: Axes
    normalize_variance: Bool
    epsilon: Float
    fused_activation: OptionalOperator = None

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """The last dimensions of scale and bias are the input's. With ``normalize_mean`` it is the form that may leave the mean."""
        x, *others = inputs
        tensors = [None if one is None else with_rank(one, x.rank) for one in others]
        of_mean, of_variance = given.pop("normalize_mean"), given.pop("normalize_variance")
        if of_mean is None:
            return cls.of(x, *tensors, normalize_variance=of_variance, **given)
        return MeanVarianceNormalization2.of(x, *tensors, use_mean=of_mean, use_variance=of_variance, **given)

    def check_level(self, level: FeatureLevel) -> None:
        super().check_level(level)
        if level < FeatureLevel.LEVEL_4_0 and self.input_tensor.rank > 1:
            wanted = self.input_tensor.sizes[1]
            for name in ("scale_tensor", "bias_tensor"):
                tensor = getattr(self, name)
                given = wanted if tensor is None else tensor.sizes[1]
                self.require(given == wanted, f"{name}.sizes[1]", given, f"{wanted}, as in the input, below feature level 4.0")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """InstanceNormalization has a scale and a bias for each channel. ONNX adds 1e-9 to a deviation, and here is its square."""
        x = node.tensor()
        if node.kind == "MeanVarianceNormalization":
            return cls.of(x, axes=tuple(node.attributes.get("axes", (0, 2, 3))), epsilon=1e-18)
        scale, bias = (_of_dimensions(node.tensor(i), x, (1,)) for i in (1, 2))
        return cls.of(x, scale, bias, axes=tuple(range(2, x.rank)), epsilon=node.attributes.get("epsilon", 1e-5))


def _of_dimensions(parameter: TensorDesc, x: TensorDesc, dimensions: tuple[int, ...]) -> TensorDesc:
    """A parameter with as many dimensions as the input: sizes in some of them, and 1 in others."""
    return parameter.with_sizes([x.sizes[i] if i in dimensions else 1 for i in range(x.rank)])


class MeanVarianceNormalization2(_MeanVariance):
    """Each slice less its mean, divided by its deviation (``DML_MEAN_VARIANCE_NORMALIZATION2_OPERATOR_DESC``).

    Without ``use_mean`` the mean counts as 0, as in RMS normalization. Without ``use_variance`` nothing is divided.
    """

    SUPPORT = support("6.3 F r8 · ext +D")
    DEFAULTS = defaults(use_mean=True, use_variance=True, epsilon=0.00001, fused_activation=None)
    ONNX = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")

    input_tensor: Input
    scale_tensor: OptionalInput = None
    bias_tensor: OptionalInput = None
    output_tensor: Output
    axes: Axes
    use_mean: Bool
    use_variance: Bool
    epsilon: Float
    fused_activation: OptionalOperator = None

    def uses(self) -> tuple[bool, bool]:
        return bool(self.use_mean), bool(self.use_variance)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """From an axis on; the scale and the bias have these dimensions. Only the first result is computed."""
        if node.results > 1:
            raise NotConvertible("its mean and deviation are used, which DirectML does not give")
        x = node.tensor()
        axis = node.integer("axis", -1)
        axes = tuple(range(axis % x.rank, x.rank))
        others = [with_rank(node.tensor(i), x.rank) if node.has(i) else None for i in (1, 2)]
        return cls.of(
            x, *others, axes=axes, use_mean=node.kind == "LayerNormalization", epsilon=node.attributes.get("epsilon", 1e-5)
        )


def with_rank(tensor: TensorDesc, rank: int) -> TensorDesc:
    """With sizes of 1 in front."""
    if tensor.rank >= rank:
        return tensor
    return tensor.with_sizes([1] * (rank - tensor.rank) + list(tensor.sizes))


class LpNormalization(_Normalization):
    """Each slice along an axis divided by its norm (``DML_LP_NORMALIZATION_OPERATOR_DESC``), or by epsilon if that is larger."""

    FUNCTION = "lp_normalization"
    SUPPORT = support("1.0 F r4 · 3.1 r8 · ext +D")
    DEFAULTS = defaults(axis=-1, epsilon=0.00001, p=2)
    ONNX = ("LpNormalization",)

    input_tensor: Input
    output_tensor: Output
    axis: Axis
    epsilon: Float
    p: Uint

    def reduced(self) -> tuple[int, ...]:
        return (self.axis,)

    def check_attributes(self, level: FeatureLevel) -> None:
        self.require_finite("epsilon")
        self.require(self.p in (1, 2), "p", self.p, "1, 2")

    def check(self) -> None:
        """Both tensors have the same type and sizes; the axis is a dimension."""
        rank = self.input_tensor.rank
        self.require(self.axis < rank, "axis", self.axis, f"0 to {rank - 1}", "The input has no such dimension.")
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("sizes", "output_tensor", "input_tensor")

    def walks(self) -> tuple[Walk, ...]:
        if self.p == 1:
            return (Walk((SUM,), T.absolute, lambda total, _: self._norm(total)),)
        return (Walk((SUM,), lambda x: T.rounded(x * x), lambda total, _: self._norm(T.sqrt(total))),)

    def element(self, x: Any, norm: Any) -> Any:
        return x / norm

    def _norm(self, found: Any) -> Any:
        return T.maximum(found, T.like(found, self.epsilon))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formula in NumPy."""
        (given,) = inputs
        assert given is not None
        with np.errstate(all="ignore"):
            x = self.slices(given)
            total = np.sum(np.abs(x) ** self.p, axis=-1, keepdims=True)
            y = x / self._divisor(total)
            # Terms below the least normal number may be 0 in the kernel. A divisor that may be 0 gives anything.
            least = float(np.finfo(np.float64 if given.dtype == np.float64 else np.float32).tiny)
            lost = least * x.shape[-1]
            low, high = self._divisor(np.maximum(total - lost, 0)), self._divisor(total + lost)
            lowest, highest = np.maximum(np.abs(x) - least, 0) / high, (np.abs(x) + least) / low
            relative = additions(x.shape[-1], given.dtype) / self.p + 10 * spacing(given.dtype)
            bound = np.maximum(highest - np.abs(y), np.abs(y) - lowest) + highest * relative
            bound = np.where(low > 0, np.where(np.isfinite(y), bound, 0), np.nan)
            return (self.near(y, anything_past_range(bound, x, given.dtype, squared=self.p == 2), given.dtype),)

    def _divisor(self, total: NumpyArray) -> NumpyArray:
        return np.maximum(total if self.p == 1 else np.sqrt(total), self.epsilon)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """ONNX has no epsilon; a slice of zeros stays zeros. Norms below the least normal float32 count as that."""
        least = float(np.finfo(np.float32).tiny)
        return cls.of(node.tensor(), axis=node.integer("axis", -1), p=node.integer("p", 2), epsilon=least)
