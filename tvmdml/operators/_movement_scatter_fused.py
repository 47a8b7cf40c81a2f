"""Scatters that combine: the element that is there and each update come to a sum, a product, the larger or the smaller one.

They are no operators of DirectML, whose scatters replace, and have no functions: ``graph.scattering`` records them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel, ReduceFunction
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.tensorir_types import maximum, minimum
from tvmdml.operators._contract import NumpyArray
from tvmdml.operators._movement_indices import normal
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.operators.scatter import Scatter, ScatterNd

_STEPS: Mapping[ReduceFunction, tuple[Callable[[Any, Any], Any], Any]] = MappingProxyType(
    {
        ReduceFunction.SUM: (lambda old, new: old + new, np.add),
        ReduceFunction.MULTIPLY: (lambda old, new: old * new, np.multiply),
        # A NaN in either is kept, and of two zeros the update.
        ReduceFunction.MAX: (maximum, lambda old, new: np.where((old > new) | (old != old), old, new)),
        ReduceFunction.MIN: (minimum, lambda old, new: np.where((old < new) | (old != old), old, new)),
    }
)
"""What an element and an update come to, in TensorIR and in NumPy."""


class Combining(Scattered):
    """Base class: updates of an element are combined with it in their order, each rounded to its type.

    So the bits depend neither on threads nor on the device.
    """

    ANY_NAN = True
    SCHEDULE = "scatter"

    function: ReduceFunction
    """``SUM``, ``MULTIPLY``, ``MAX`` or ``MIN``."""

    def modules(self) -> tuple[str, ...]:
        """The file of the operators that replace."""
        return (self.SCHEDULE,)

    def check_attributes(self, level: FeatureLevel) -> None:
        """Two numbers come to one."""
        allowed = ", ".join(function.name for function in _STEPS)
        self.require(self.function in _STEPS, "function", self.function.name, allowed)

    def combination(self) -> str:
        """What kernels depend on: the function and the type."""
        return f"{self.function.name.lower()} {self._own().data_type.tvm}"

    def combined(self, old: Any, new: Any) -> Any:
        """What an element and an update come to; all are bits, of scalars or of vectors."""
        kind, bits = self._own().data_type, f"uint{8 * self._own().data_type.itemsize}"
        dtype = kind.tvm
        # Sums and products of integers are the same with and without signs, and unsigned ones may overflow.
        if not dtype.startswith("float") and self.function in (ReduceFunction.SUM, ReduceFunction.MULTIPLY):
            dtype = bits
        values = [T.reinterpret(value, dtype) for value in (old, new)]
        if dtype == "float16":
            values = [T.to(value, "float32") for value in values]
        return T.reinterpret(T.to(_STEPS[self.function][0](*values), dtype), bits)

    def _combine(self, result: NumpyArray, places: tuple[NumpyArray, ...], updates: NumpyArray) -> None:
        """For the reference: first the first update of each place, then the second one of each, and so on."""
        numbers = np.ravel_multi_index(places, result.shape[: len(places)])
        order = np.argsort(numbers, kind="stable")
        ranked = numbers[order]
        turn = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)
        with np.errstate(all="ignore"):
            for i in range(int(turn.max(initial=-1)) + 1):
                now = order[turn == i]
                at = tuple(place[now] for place in places)
                result[at] = _STEPS[self.function][1](result[at], updates[now])

    def _own(self) -> Any:
        own: Any = self
        return own.output_tensor


class FusedScatter(Combining, Scatter):
    """SCATTER with updates that are combined with what is there."""

    NAME = "FUSED_SCATTER"
    FUNCTION = ""

    def numpy(self, x: Any, indices: Any, updates: Any) -> NumpyArray:
        result: NumpyArray = x.copy()
        places, inside = normal(indices, x.shape[self.axis])
        at: Any = np.indices(indices.shape)
        at[self.axis] = np.where(inside, places, 0)
        self._combine(result, tuple(coordinate[inside] for coordinate in at), updates[inside])
        return result


class FusedScatterNd(Combining, ScatterNd):
    """SCATTER_ND with updates that are combined with what is there."""

    NAME = "FUSED_SCATTER_ND"
    FUNCTION = ""

    def numpy(self, x: Any, indices: Any, updates: Any) -> NumpyArray:
        result: NumpyArray = x.copy().reshape(self.own("input_tensor", "input_dimension_count"))
        places, slices = self.placed(result.shape, indices, updates)
        self._combine(result, places, slices)
        return result.reshape(x.shape)
