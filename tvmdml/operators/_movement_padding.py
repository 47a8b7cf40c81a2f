"""``Padded``: the base class of PADDING and PADDING1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel, PaddingMode
from tvmdml.operators._contract import NumpyArray
from tvmdml.operators._movement import Coordinate, Movement, SourceCoordinates, padded
from tvmdml.operators._scalars import element
from tvmdml.tensors import TensorDesc

_NUMPY = {
    PaddingMode.CONSTANT: "constant",
    PaddingMode.EDGE: "edge",
    PaddingMode.REFLECTION: "reflect",
    PaddingMode.SYMMETRIC: "symmetric",
    PaddingMode.WRAP: "wrap",
}
_SINCE = {PaddingMode.SYMMETRIC: "3.0", PaddingMode.WRAP: "6.4"}


class Padded(Movement):
    """Base class of both operators: they differ in the type of the number."""

    def check_attributes(self, level: FeatureLevel) -> None:
        """Newer modes."""
        mode = self.mode()
        since = _SINCE.get(mode, "1.0")
        known = ", ".join(repr(one.name.lower()) for one in PaddingMode if FeatureLevel.of(_SINCE.get(one, "1.0")) <= level)
        advice = f"Feature level {since} has it."
        self.require(level >= FeatureLevel.of(since), "padding_mode", repr(mode.name.lower()), f"{known}, at {level}", advice)

    def check(self) -> None:
        """The padding of each dimension is added to its size."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("rank", "output_tensor", "input_tensor")
        self.require_count("start_padding", "end_padding")
        self.require_sizes("output_tensor", self._sizes())
        if self.mode() is not PaddingMode.CONSTANT:
            self.require_elements("input_tensor")

    def infer(self) -> Mapping[str, TensorDesc]:
        """The padding of each dimension is added to its size."""
        self.require_count("start_padding", "end_padding")
        return {"output_tensor": self._own.input_tensor.with_sizes(self._sizes())}

    def mode(self) -> PaddingMode:
        """What the new elements are."""
        return self._own.padding_mode

    def number(self) -> int | float:
        """The number that they are with the mode CONSTANT, in the tensors' type."""
        raise NotImplementedError(self.NAME)

    @property
    def _own(self) -> Any:
        """The fields of the subclasses."""
        return self

    def _sizes(self) -> tuple[int, ...]:
        own = self._own
        return tuple(a + n + b for a, n, b in zip(own.start_padding, own.input_tensor.sizes, own.end_padding, strict=True))

    def fill(self) -> int:
        found = element(self.number(), self._own.input_tensor.data_type)
        return int(found.view(f"u{found.itemsize}"))

    def source(self, *at: Coordinate) -> SourceCoordinates:
        return [padded(x - start, self.mode()) for x, start in zip(at, self._own.start_padding, strict=True)]

    def numpy(self, x: NumpyArray) -> NumpyArray:
        constant = (
            {}
            if self.mode() is not PaddingMode.CONSTANT
            else {"constant_values": element(self.number(), self._own.input_tensor.data_type)}
        )
        pads = list(zip(self._own.start_padding, self._own.end_padding, strict=True))
        return np.pad(x, pads, _NUMPY[self.mode()], **constant)  # type: ignore[call-overload]
