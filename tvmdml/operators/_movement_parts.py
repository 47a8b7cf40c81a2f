"""``Parts``: the base class of JOIN and SPLIT."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvmdml.operators._movement import Coordinate, Movement, SourceCoordinates
from tvmdml.tensors import TensorDesc


class Parts(Movement):
    """Base class: a whole, and its parts along an axis."""

    def check_parts(self, whole: str, parts: str) -> None:
        """All sizes are equal, except along the axis, where the parts' sizes are added."""
        tensor, some = getattr(self, whole), getattr(self, parts)
        self.require(len(some) >= 1, parts, "none", "1 or more tensors")
        self.require_axis()
        axis = self._axis()
        for i, part in enumerate(some):
            name, kind = f"{parts}[{i}]", part.data_type.tvm
            self.require(part.data_type is tensor.data_type, f"{name}.data_type", kind, f"{tensor.data_type.tvm}, as in {whole}")
            wanted = tensor.sizes[:axis], tensor.sizes[axis + 1 :]
            same = (part.sizes[:axis], part.sizes[axis + 1 :]) == wanted and part.rank == tensor.rank
            allowed = f"those of {whole}, {tensor.sizes}, but for dimension {axis}"
            self.require(same, f"{name}.sizes", part.sizes, allowed)
        total = sum(part.sizes[axis] for part in some)
        self.require(total == tensor.sizes[axis], f"{whole}.sizes[{axis}]", tensor.sizes[axis], f"{total}, the sum of the parts'")

    def begins(self, parts: Sequence[TensorDesc]) -> list[int]:
        """Where each part begins."""
        return list(itertools.accumulate((part.sizes[self._axis()] for part in parts[:-1]), initial=0))

    def shifted(self, begin: int) -> Any:
        """A map to coordinates further along the axis."""

        def source(*at: Coordinate) -> SourceCoordinates:
            return [x + begin if i == self._axis() else x for i, x in enumerate(at)]

        return source


def same(*at: Coordinate) -> SourceCoordinates:
    """A map to the same coordinates."""
    return at
