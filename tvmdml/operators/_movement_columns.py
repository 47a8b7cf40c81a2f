"""``Columns``: the base class of UNFOLD and FOLD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvmdml.errors import counted
from tvmdml.operators._contract import Input, Output, Uints, defaults
from tvmdml.operators._movement import Movement
from tvmdml.tensors import TensorDesc

_ABSENT = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}


class Columns(Movement):
    """Base class: an image with spatial dimensions, and its windows as columns."""

    DEFAULTS = defaults(**dict.fromkeys(_ABSENT))

    input_tensor: Input
    output_tensor: Output
    window_sizes: Uints
    strides: Uints
    dilations: Uints
    start_padding: Uints
    end_padding: Uints

    def image(self) -> TensorDesc:
        """The image."""
        raise NotImplementedError(self.NAME)

    def columns(self) -> TensorDesc:
        """The columns."""
        raise NotImplementedError(self.NAME)

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Any:
        """Numbers that are left out are the usual ones."""
        return cls.of(*inputs, **cls.whole_numbers(given))

    @classmethod
    def whole_numbers(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes, with the usual numbers for those that are left out."""
        window = given["window_sizes"]
        k = len(window) if isinstance(window, (tuple, list)) else 0
        return {name: (_ABSENT[name],) * k if value is None else value for name, value in given.items()}

    def check_image(self) -> None:
        """Numbers for each spatial dimension, and windows that fit into the padded image."""
        k, sizes = len(self.window_sizes), self.image().sizes
        self.require(1 <= k <= 6, "window_sizes", counted(k, "number"), "1 to 6 spatial dimensions")
        for name in _ABSENT:
            given = getattr(self, name)
            self.require(len(given) == k, name, counted(len(given), "number"), f"{k}, as in window_sizes")
        for name in ("window_sizes", "strides", "dilations"):
            for i, number in enumerate(getattr(self, name)):
                self.require(number >= 1, f"{name}[{i}]", number, "1 or more")
        name = next(name for name, tensor in self.tensors() if tensor is self.image())
        self.require(len(sizes) == k + 2, f"{name}.sizes", sizes, f"{k + 2} sizes: batch, channels and {k} spatial dimensions")
        for i, room in enumerate(self._rooms()):
            reach = self.dilations[i] * (self.window_sizes[i] - 1) + 1
            self.require(room >= reach, f"window_sizes[{i}]", f"{self.window_sizes[i]}, over {reach}", f"within {room} elements")

    def _rooms(self) -> list[int]:
        return [a + n + b for a, n, b in zip(self.start_padding, self.image().sizes[2:], self.end_padding, strict=True)]

    def counts(self) -> tuple[int, ...]:
        """The number of windows in each spatial dimension."""
        parts = zip(self._rooms(), self.dilations, self.window_sizes, self.strides, strict=True)
        return tuple((room - dilation * (window - 1) - 1) // stride + 1 for room, dilation, window, stride in parts)

    def column_sizes(self) -> tuple[int, ...]:
        """The last three sizes of the columns."""
        n, c = self.image().sizes[:2]
        return (n, c * math.prod(self.window_sizes), math.prod(self.counts()))

    def check(self) -> None:
        """Columns as the windows say; leading dimensions are 1."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.check_image()
        name = next(name for name, tensor in self.tensors() if tensor is self.columns())
        given = self.columns().sizes
        wanted = self.column_sizes()
        fits = given[-3:] == wanted and all(n == 1 for n in given[:-3]) and len(given) in (3, len(self.image().sizes))
        self.require(fits, f"{name}.sizes", given, f"{wanted}, or as many as the image's with leading 1")

    def places(self, window: tuple[int, ...]) -> list[slice]:
        """For a reference: the places of a window's element in all windows, in the padded image."""
        steps = zip(window, self.dilations, self.strides, self.counts(), strict=True)
        return [slice(w * dilation, w * dilation + stride * (count - 1) + 1, stride) for w, dilation, stride, count in steps]
