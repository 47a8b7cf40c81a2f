"""The operators of ``operators/tile.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.operators import Operator
from tvmdml.operators.tile import ReverseSubsequences, Tile
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _tiled(*repeats: int) -> Callable[[TensorDesc], Operator]:
    """The repeats of the last dimensions; 1 for the others."""

    def made(x: TensorDesc) -> Operator:
        own = repeats[-x.rank :]
        return Tile.of(x, repeats=(1,) * (x.rank - len(own)) + own)

    return made


def _reversed(axis: int, lengths: str = "uint32") -> Callable[[TensorDesc], Operator]:
    def made(x: TensorDesc) -> Operator:
        along = axis % x.rank
        sizes = [1 if i == along else n for i, n in enumerate(x.sizes)]
        return ReverseSubsequences.of(x, x.with_sizes(sizes, TensorDesc(lengths, (1,)).data_type), axis=axis)

    return made


X = _movement.X
RULES = {
    "TILE: too few repeats": Broken(change(_tiled(1)(X), repeats=(2,)), "TILE repeats", "1 number", "4, one for each dimension"),
    "TILE: no repeat": Broken(change(_tiled(1)(X), repeats=(1, 0, 1, 1)), "TILE repeats[1]", "0", "1 or more"),
    "TILE: another size of the output": Broken(
        change(_tiled(1)(X), repeats=(1, 2, 1, 1)), "TILE output_tensor.sizes", "(2, 4, 4, 6)", "(2, 8, 4, 6)"
    ),
    "REVERSE_SUBSEQUENCES: an axis too many": Broken(
        change(_reversed(1)(X), axis=4), "REVERSE_SUBSEQUENCES axis", "4", "0 to 3, the dimensions of the tensor"
    ),
    "REVERSE_SUBSEQUENCES: other lengths": Broken(
        change(_reversed(1)(X), sequence_lengths_tensor=TensorDesc("uint32", (2, 4, 1, 6))),
        *("REVERSE_SUBSEQUENCES sequence_lengths_tensor.sizes", "(2, 4, 1, 6)", "(2, 1, 4, 6)"),
    ),
}

DESCRIBED, BROKEN, reference = _movement.of(
    "tile",
    {
        Tile: (_tiled(1, 2, 1, 3), _tiled(2), _tiled(3, 1)),
        ReverseSubsequences: (_reversed(0), _reversed(-1, "uint64"), _reversed(-2, "int64"), _reversed(-1, "int32")),
    },
    RULES,
)
