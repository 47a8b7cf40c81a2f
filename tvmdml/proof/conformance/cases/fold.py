"""The operators of ``operators/fold.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmdml.operators import Operator
from tvmdml.operators.fold import Fold, Unfold
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, Sizes, change
from tvmdml.tensors import TensorDesc


def _numbers(k: int, window: int, stride: int, dilation: int, start: int, end: int) -> dict[str, Any]:
    names = ("window_sizes", "strides", "dilations", "start_padding", "end_padding")
    return {name: [number] * k for name, number in zip(names, (window, stride, dilation, start, end), strict=True)}


def _unfolded(*numbers: int) -> Callable[[TensorDesc], Operator]:
    """Windows that fit: of one element where the image has a dimension that is too small."""

    def made(x: TensorDesc) -> Operator:
        if x.rank < 3:
            return Unfold.of(x, output_tensor=x, **_numbers(1, *numbers))
        given = _numbers(x.rank - 2, *numbers)
        _, _, dilation, start, end = numbers
        rooms = (start + n + end for n in x.sizes[2:])
        given["window_sizes"] = [min(w, (room - 1) // dilation + 1) for w, room in zip(given["window_sizes"], rooms, strict=True)]
        return Unfold.of(x, **given)

    return made


def _as_many(x: TensorDesc) -> Operator:
    """Columns of as many dimensions as the image has."""
    desc = _unfolded(2, 1, 1, 0, 1)(x)
    columns = desc.outputs()[0]
    wide = TensorDesc(columns.data_type, ((1,) * (x.rank - 3) + columns.sizes)[-x.rank :])
    return change(desc, output_tensor=wide)()


def _folded(image: Callable[[Sizes], Sizes], *numbers: int) -> Callable[[TensorDesc], Operator]:
    """Columns for an image whose sizes follow from the first tensor's."""

    def made(x: TensorDesc) -> Operator:
        if x.rank != 3:
            whole = (1, 1, *x.sizes[2:])
            given = TensorDesc(x.data_type, (*(1,) * (x.rank - 1), math.prod(whole)))
            ones = _numbers(max(x.rank - 2, 1), 1, 1, 1, 0, 0)
            return Fold.of(given, output_tensor=TensorDesc(x.data_type, whole[: x.rank]), **ones)
        columns = _unfolded(*numbers)(TensorDesc(x.data_type, image(x.sizes)))
        fields = {name: getattr(columns, name) for name in _numbers(1, *numbers)}
        return Fold.of(columns.outputs()[0], output_tensor=TensorDesc(x.data_type, image(x.sizes)), **fields)

    return made


def _spatial(k: int) -> Callable[[Sizes], Sizes]:
    return lambda sizes: (1, 2, *(max(3, min(9, n)) for n in (sizes * k)[-k:]))


def _plain(sizes: Sizes) -> Sizes:
    return (sizes[0], 1, sizes[2])


X = TensorDesc("float32", (2, 3, 4, 6))
COLUMNS = TensorDesc("float32", (2, 3, 6))
UNFOLD, FOLD = _unfolded(2, 1, 1, 0, 0)(X), _folded(_plain, 2, 1, 1, 0, 0)(COLUMNS)
RULES = {
    "UNFOLD: no stride": Broken(change(UNFOLD, strides=(1, 0)), "UNFOLD strides[1]", "0", "1 or more"),
    "UNFOLD: too few paddings": Broken(change(UNFOLD, end_padding=(1,)), "UNFOLD end_padding", "1 number", "2, as in window_sizes"),
    "UNFOLD: a window that is too large": Broken(
        change(UNFOLD, dilations=(1, 6)), "UNFOLD window_sizes[1]", "2, over 7", "within 6 elements"
    ),
    "UNFOLD: other columns": Broken(
        change(UNFOLD, output_tensor=TensorDesc("float32", (2, 12, 14))),
        *("UNFOLD output_tensor.sizes", "(2, 12, 14)", "(2, 12, 15), or as many as the image's with leading 1"),
    ),
    "FOLD: an image of another rank": Broken(
        change(FOLD, output_tensor=X), "FOLD output_tensor.sizes", str(X.sizes), "3 sizes: batch, channels and 1 spatial dimensions"
    ),
    "FOLD: other columns": Broken(
        change(FOLD, input_tensor=COLUMNS),
        *("FOLD input_tensor.sizes", str(COLUMNS.sizes), "(2, 2, 5), or as many as the image's with leading 1"),
    ),
}

DESCRIBED, BROKEN, reference = _movement.of(
    "fold",
    {
        Unfold: (_unfolded(2, 1, 1, 0, 0), _unfolded(3, 2, 1, 1, 2), _unfolded(2, 1, 3, 2, 0), _unfolded(2, 5, 1, 5, 4), _as_many),
        Fold: (
            *(_folded(_plain, 1, 1, 1, 0, 0), _folded(_spatial(2), 3, 2, 1, 1, 2), _folded(_spatial(2), 2, 1, 2, 1, 0)),
            *(_folded(_spatial(1), 2, 1, 1, 0, 0), _folded(_spatial(3), 2, 2, 1, 0, 1)),
            _folded(_spatial(1), 2, 1, 3, 30, 40),
        ),
    },
    RULES,
    first=COLUMNS,
)
