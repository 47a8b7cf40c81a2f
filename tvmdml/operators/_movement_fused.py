"""Operators that move elements with pointwise operators behind them, as one operator each.

SPLIT has several results, and FOLD, SCATTER and a linear UPSAMPLE_2D compute elements in ways of their own: nothing follows there.
"""

from __future__ import annotations

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula
from tvmdml.operators._followed import Followed, followed_classes
from tvmdml.operators._movement import Movement
from tvmdml.operators.depth_space import DepthToSpace, DepthToSpace1, SpaceToDepth, SpaceToDepth1
from tvmdml.operators.fold import Unfold
from tvmdml.operators.gather import Gather, GatherElements, GatherNd, GatherNd1
from tvmdml.operators.join import Join
from tvmdml.operators.one_hot import OneHot
from tvmdml.operators.padding import Padding, Padding1
from tvmdml.operators.slice import Slice, Slice1
from tvmdml.operators.tile import ReverseSubsequences, Tile
from tvmdml.operators.upsample_2d import Upsample2d
from tvmdml.tensors import TensorDesc


class FollowedMovement(Followed, Movement):
    """Base class of those of the movement family: an element is moved, or the fill, and then passed on."""

    def check(self) -> None:
        """Elements move."""
        super().check()
        self.require(self.head().is_moved(), "epilogue", "behind an operator that computes elements", "behind one that moves them")

    def fill(self) -> int:
        """The head's."""
        return self.head().fill()

    def beside(self) -> tuple[str, ...]:
        """The other inputs of what follows."""
        return tuple(f"epilogue_tensors[{i}]" for i in range(len(self.epilogue_tensors)))

    def formula(self) -> Formula:
        """What follows, of an element's bits."""
        moved = self._chain.input_tensors[0].data_type
        bits = TensorDesc(f"uint{8 * moved.itemsize}", (1,))
        return self._formula._replace(
            inputs=(bits, *self.epilogue_tensors),
            outputs=(self.output_tensor,),
            value=lambda x, *others: (self.after(T.reinterpret(x, moved.tvm), *others),),
        )


CLASSES = followed_classes(
    FollowedMovement,
    *(Slice, Slice1, Padding, Padding1, Tile, Join, ReverseSubsequences, Upsample2d, Unfold, OneHot),
    *(Gather, GatherElements, GatherNd, GatherNd1, SpaceToDepth, SpaceToDepth1, DepthToSpace, DepthToSpace1),
)
