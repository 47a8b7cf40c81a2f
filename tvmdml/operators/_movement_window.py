"""``MovedWindow``: the base class of SLICE1 and its gradient."""

from __future__ import annotations

from typing import Any

from tvmdml.operators._movement import Movement
from tvmdml.tensors import TensorDesc

NO_ZERO = "A repeated dimension has the stride 0 in its TensorDesc."


class MovedWindow(Movement):
    """Base class of SLICE1 and its gradient: a window, and a step in each dimension, from the window's end if it is negative."""

    def whole(self) -> TensorDesc:
        """The tensor that has the window."""
        raise NotImplementedError(self.NAME)

    def part(self) -> TensorDesc:
        """The tensor of its elements."""
        raise NotImplementedError(self.NAME)

    def window(self) -> list[tuple[int, int, int]]:
        """The offset, the size and the step in each dimension."""
        own: Any = self
        return list(zip(own.input_window_offsets, own.input_window_sizes, own.input_window_strides, strict=True))

    def starts(self) -> list[tuple[int, int]]:
        """Where the first element is in each dimension, and the step."""
        return [(offset + (size - 1 if step < 0 else 0), step) for offset, size, step in self.window()]

    def check(self) -> None:
        """A number for each dimension, and the window inside of the tensor."""
        (first, _), (second, _) = self.tensors()
        self.require_same("data_type", second, first)
        self.require_same("rank", second, first)
        self.require_count("input_window_offsets", "input_window_sizes", "input_window_strides")
        name = next(name for name, tensor in self.tensors() if tensor is self.part())
        for i, (offset, size, step) in enumerate(self.window()):
            n, taken = self.whole().sizes[i], self.part().sizes[i]
            self.require(step != 0, f"input_window_strides[{i}]", step, "other than 0", NO_ZERO)
            self.require(size >= 1, f"input_window_sizes[{i}]", size, "1 or more")
            self.require(offset + size <= n, f"input_window_sizes[{i}]", f"{size}, from {offset}", f"a window within {n} elements")
            most = 1 + (size - 1) // abs(step)
            self.require(taken <= most, f"{name}.sizes[{i}]", taken, f"up to {most}: all that the window has")
