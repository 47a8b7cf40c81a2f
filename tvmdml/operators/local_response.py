"""DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION and its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.loops import nested
from tvmdml.operators import _window_reference as windows
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import Bool, Float, Input, NumpyArray, Operator, Output, Shared, Uint, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._support import support
from tvmdml.operators._window import Cascade, levels_of
from tvmdml.operators._window_response import Response
from tvmdml.operators._window_sums import Seen, Summed
from tvmdml.tensors import TensorDesc

_DEFAULTS = defaults(alpha=0.0001, beta=0.75, bias=1.0)


class LocalResponseNormalization(Response, Summed):
    """Each element divided by a power of a sum of squares around it (``DML_LOCAL_RESPONSE_NORMALIZATION_OPERATOR_DESC``).

    The result is ``input / (bias + alpha / local_size * sum) ** beta``. The sum has the squares of ``local_size`` channels around
    the element, or without ``cross_channel`` of as many rows and columns. If their number is even, one more comes after the element
    than before it. Elements outside of the array do not count.

    Args:
        cross_channel: whether regions extend over channels.
        local_size: the size of a region, 1 or more.
        alpha: the factor of the mean of squares.
        beta: the exponent.
        bias: what is added to the sum.
    """

    FUNCTION = "local_response_normalization"
    SUPPORT = support("1.0 F r4 · ext +D")
    DEFAULTS = _DEFAULTS
    ONNX = ("LRN",)
    GRADIENT = gradients(
        input="local_response_normalization_grad(input, gradient, cross_channel=cross_channel, local_size=local_size, alpha=alpha, "
        "beta=beta, bias=bias)"
    )

    input_tensor: Input
    output_tensor: Output
    cross_channel: Bool
    local_size: Uint
    alpha: Float
    beta: Float
    bias: Float

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Regions of channels."""
        x = node.tensor()
        if x.rank != 4:
            raise NotConvertible(f"its input has {x.rank} dimensions, not 4")
        given = {name: float(node.attributes.get(name, usual)) for name, usual in _DEFAULTS.items()}
        return cls.of(x, cross_channel=True, local_size=node.integer("size", 0), **given)

    def check(self) -> None:
        self.require_alike("output_tensor")

    def result(self, total: Any, seen: Seen) -> Any:
        return seen.element("input_tensor", T.scalar_type(total)) / self.power(self.base(total))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision."""
        (x,) = (one for one in inputs if one is not None)
        unit, beta = windows.unit(x.dtype), abs(self.beta)
        with np.errstate(all="ignore"):
            base, count, held = self.bases(windows.wide(x))
            result = windows.wide(x) / base**self.beta
            log = np.abs(self.beta * np.log2(base))
            error = np.abs(result) * (beta * windows.growth(count, x.dtype) + 8 * unit * (1 + beta + log))
        return (Near(result, x.dtype, 0, np.where(held, error, np.nan).astype(np.float64)),)


class LocalResponseNormalizationGrad(Response):
    """The gradient of ``local_response_normalization`` (``DML_LOCAL_RESPONSE_NORMALIZATION_GRAD_OPERATOR_DESC``).

    Args:
        input_gradient_tensor: the gradient of its result.
        cross_channel: whether regions extend over channels.
        local_size: the size of a region, 1 or more.
        alpha: the factor of the mean of squares.
        beta: the exponent.
        bias: what is added to the sum.
    """

    FUNCTION = "local_response_normalization_grad"
    SUPPORT = support("3.1 F r4 · ext +D")
    DEFAULTS = _DEFAULTS
    POOLED = "output_gradient_tensor"

    input_tensor: Input
    input_gradient_tensor: Input
    output_gradient_tensor: Output
    cross_channel: Bool
    local_size: Uint
    alpha: Float
    beta: Float
    bias: Float

    def infer(self) -> Mapping[str, TensorDesc]:
        return {"output_gradient_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    def check(self) -> None:
        self.require_alike("input_gradient_tensor", "output_gradient_tensor")

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element: it gathers from the regions that have it, whose sums are computed again."""
        with T.function() as f:
            self.write(each, f.tensors(self, shared))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        x, gradient, y = self.input_tensor, self.input_gradient_tensor, self.output_gradient_tensor
        dtype, levels = self.computed, levels_of(self.taps())

        def read(name: str, tensor: Any, at: Any) -> Any:
            return T.hold(T.to(tensors[name][T.dot(at, tensor.layout)], dtype))

        def base(at: Any) -> Any:
            total = Cascade(dtype, levels)
            with self.inside(at, self.reaches(at)) as place:
                own = read("input_tensor", x, place)
                total.add(self.term(own))
            return self.base(T.hold(total.value()))

        with T.elements(each, y.sizes, y.layout) as at:
            others = Cascade(dtype, levels)
            reaches = [self.reach(one, at[one.dimension], x.sizes[one.dimension]) for one in self.mirrored()]
            with nested([one.places() for one in reaches]) as places:
                there = list(at)
                for along, place in zip(self.mirrored(), places, strict=True):
                    there[along.dimension] = place
                own = base(there)
                others.add(self.share(read("input_gradient_tensor", gradient, there), read("input_tensor", x, there), own))
            found = self.difference(
                read("input_gradient_tensor", gradient, at), read("input_tensor", x, at), base(at), T.hold(others.value())
            )
            T.store(tensors["output_gradient_tensor"], T.dot(at, y.layout), T.to(found, y.data_type.tvm))

    def share(self, gradient: Any, x: Any, base: Any) -> Any:
        """What an element gives to those of its region, but for a factor."""
        return T.rounded(gradient * x) / T.rounded(base * self.power(base))

    def difference(self, gradient: Any, x: Any, base: Any, others: Any) -> Any:
        """The result: an element's own part, less what it is given."""
        factor = T.like(x, 2 * self.alpha / self.local_size * self.beta)
        return T.rounded(gradient / self.power(base)) - T.rounded(T.rounded(x * factor) * others)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision."""
        x, gradient = (windows.wide(one) for one in inputs if one is not None)
        dtype = next(one for one in inputs if one is not None).dtype
        unit, beta = windows.unit(dtype), abs(self.beta)
        table = [windows.table(one, x.shape[one.dimension], x.shape[one.dimension]) for one in self.mirrored()]
        with np.errstate(all="ignore"):
            base, count, held = self.bases(x)
            parts = gradient * x * base ** (-self.beta - 1)
            growth = windows.growth(count, dtype)
            off = (beta + 1) * growth + 8 * unit * (2 + beta + (beta + 1) * np.abs(np.log2(np.where(base > 0, base, 1)))) + growth
            factor = 2 * self.alpha / self.local_size * self.beta * x
            first = gradient * base**-self.beta
            result = first - factor * windows.combined(parts, table, np.sum, 0)
            error = np.abs(first) * off + np.abs(factor) * windows.combined(np.abs(parts) * off, table, np.sum, 0)
            # The factor may be below the normal numbers, where it is rounded to a multiple of the least one.
            least = 2.0**-1074 if dtype == np.float64 else 2.0**-149
            error = error + least * windows.combined(np.abs(parts), table, np.sum, 0)
            size = np.maximum(np.abs(parts), np.abs(gradient * x))
            most = windows.combined(np.where(np.isnan(size), 0, size), table, np.max, 0) * np.maximum(np.abs(factor), 1)
            all_held = windows.combined(np.where(held, 1.0, 0.0), table, np.min, 1) > 0
            free = (~all_held | (most > (2.0**1000 if dtype == np.float64 else 2.0**120))) & ~np.isnan(result)
        # Products of small numbers lose digits below the least normal number.
        error = error + (np.abs(factor) + 1) * (2.0**-1000 if dtype == np.float64 else 2.0**-120)
        return (Near(result, dtype, 0, np.where(free, np.nan, error).astype(np.float64)),)
