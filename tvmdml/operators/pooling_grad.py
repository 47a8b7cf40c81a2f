"""DML_OPERATOR_AVERAGE_POOLING_GRAD and MAX_POOLING_GRAD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators import _window_reference as windows
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import Bool, Input, NumpyArray, Output, Uints, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._support import support
from tvmdml.operators._window import Reach
from tvmdml.operators._window_gradients import SIZES, USUAL, Gathered
from tvmdml.operators._window_largest import Largest, largest
from tvmdml.operators._window_sums import Seen
from tvmdml.tensors import TensorDesc


class AveragePoolingGrad(Gathered):
    """The gradient of ``average_pooling`` (``DML_AVERAGE_POOLING_GRAD_OPERATOR_DESC``), from that of its result.

    Args:
        output_gradient_sizes: the sizes of the image.
        include_padding: whether padding counts; it does not by default.
    """

    FUNCTION = "average_pooling_grad"
    SUPPORT = support("3.0 F r45 · ext +D")
    DEFAULTS = defaults(**{name: value for name, value in USUAL.items() if name != "dilations"}, include_padding=False)
    ARGUMENTS = SIZES
    GRADIENT = gradients(
        input="average_pooling(gradient, output_sizes=input_sizes, strides=strides, window_sizes=window_sizes, "
        "start_padding=start_padding, end_padding=end_padding, include_padding=include_padding)"
    )

    input_gradient_tensor: Input
    output_gradient_tensor: Output
    strides: Uints
    window_size: Uints
    start_padding: Uints
    end_padding: Uints
    include_padding: Bool

    def check(self) -> None:
        """Both tensors have one type, and sizes that the windows say."""
        self.require_same("data_type", "output_gradient_tensor", "input_gradient_tensor")
        self.check_pooled()

    def term(self, tensors: dict[str, Any], at: Sequence[Any], window: Sequence[Any]) -> Any:
        return None, self._share(tensors, window, self.reaches(window))

    def give(self, tensors: dict[str, Any], window: Sequence[Any], add: Callable[[Sequence[Any], Any], None]) -> None:
        reaches = self.reaches(window)
        share = T.hold(self._share(tensors, window, reaches))
        with self.inside(window, reaches) as place:
            add(place, share)

    def _share(self, tensors: dict[str, Any], window: Sequence[Any], reaches: Sequence[Reach]) -> Any:
        own = T.hold(T.to(tensors[self.POOLED][T.dot(window, self.pooled().layout)], self.computed))
        return own / Seen(self, tensors, window, reaches).number(self.include_padding, self.computed)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: a window's share goes to each of its elements."""
        (gradient,) = (one for one in inputs if one is not None)
        table, rank = windows.tables(self), gradient.ndim
        number = windows.product(table, lambda one: one.counted, rank) if self.include_padding else windows.inside(table, rank)
        with np.errstate(all="ignore"):
            share = windows.wide(gradient) / np.maximum(number, 1)
        return (spread(self, gradient.dtype, share, 4),)


class MaxPoolingGrad(Gathered):
    """The gradient of ``max_pooling`` (``DML_MAX_POOLING_GRAD_OPERATOR_DESC``), from its input and the gradient of its result."""

    FUNCTION = "max_pooling_grad"
    SUPPORT = support("3.0 F r4 · 4.0 r45 · ext +D")
    DEFAULTS = defaults(**USUAL)

    input_tensor: Input
    input_gradient_tensor: Input
    output_gradient_tensor: Output
    strides: Uints
    window_size: Uints
    start_padding: Uints
    end_padding: Uints
    dilations: Uints

    def infer(self) -> Mapping[str, TensorDesc]:
        """As large as the input."""
        return {"output_gradient_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    def check(self) -> None:
        """All tensors have one type, and sizes that the windows say."""
        for name in ("input_gradient_tensor", "output_gradient_tensor"):
            self.require_same("data_type", name, "input_tensor")
        self.require_same("sizes", "output_gradient_tensor", "input_tensor")
        self.check_pooled()

    def give(self, tensors: dict[str, Any], window: Sequence[Any], add: Callable[[Sequence[Any], Any], None]) -> None:
        best = Largest.best(self, window, self.reaches(window), tensors["input_tensor"], self.input_tensor)  # type: ignore[arg-type]
        with T.when(best.found):
            offset = T.dot(window, self.pooled().layout)
            add(best.place, T.hold(T.to(tensors[self.POOLED][offset], self.computed)))

    def reads(self) -> int:
        return self.windows_at() * self.taps()

    def term(self, tensors: dict[str, Any], at: Sequence[Any], window: Sequence[Any]) -> Any:
        own = Largest.takes(self, window, self.reaches(window), tensors["input_tensor"], self.input_tensor, at)  # type: ignore[arg-type]
        offset = T.dot(window, self.pooled().layout)
        return own, T.hold(T.to(tensors[self.POOLED][offset], self.computed))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: a window's gradient goes to the element that it took."""
        x, gradient = (one for one in inputs if one is not None)
        _, place, found = largest(self, x)
        return (spread(self, gradient.dtype, windows.wide(gradient), 0, place, found),)


def spread(desc: Any, dtype: Any, share: NumpyArray, steps: int, place: Any = None, found: Any = None) -> Near:
    """The sum at each element of what windows give it: all their elements, or only those at these places."""
    sizes = desc.whole().sizes
    total, magnitudes, count = (np.zeros(sizes, share.dtype) for _ in range(3))
    finite = np.where(np.isfinite(share), np.abs(share), 0)
    with np.errstate(all="ignore"):
        if place is not None:
            for one, own in ((total, share), (magnitudes, finite), (count, np.ones_like(share))):
                np.add.at(one.reshape(-1), place[found], own[found])
        else:
            table = windows.tables(desc)
            for places, fits in windows.in_order(table, share.ndim):
                at, mask = windows.indices(sizes, table, places), np.broadcast_to(fits, share.shape)
                every = np.broadcast_arrays(*at, share)[:-1]
                flat = np.ravel_multi_index(every, sizes)[mask]
                for one, own in ((total, share), (magnitudes, finite), (count, np.ones_like(share))):
                    np.add.at(one.reshape(-1), flat, own[mask])
        error = (windows.growth(count, dtype) + steps * windows.unit(dtype)) * magnitudes
        return Near(total, dtype, 0, windows.unless_overflow(error, magnitudes, total, dtype))
