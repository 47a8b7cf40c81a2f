"""What changed between the versions of ONNX's operators. ``modernize`` gives an older node the form of the newest version.

Rules know the newest meaning. One that must know an older meaning, too, asks ``Node.is_before`` for a version that is in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.onnx.values import Value


class Change(NamedTuple):
    """What a version of an operator changed."""

    version: int
    """The first version of ONNX's operators that has the later meaning."""
    what: str
    """The change, in words."""
    moved: Mapping[str, int] = {}
    """Attributes that are inputs from this version on, and which."""
    usual: Mapping[str, Any] = {}
    """What a node before this version means that does not say it, in its attributes or later ones."""
    inputs: tuple[int, ...] = ()
    """Which inputs of the later version the earlier ones are."""
    inferred: bool = False
    """Whether shapes of earlier nodes follow from the later schema: ONNX infers none of the earlier one, or refuses it."""


_FROM_AXIS_ON = Change(
    13, "along the axis, which is usually the last one; before, all dimensions from the axis on are one", usual={"axis": 1}
)
_AXES_18 = Change(18, "axes are an input", {"axes": 1})
_AXES_13 = Change(13, "axes are an input", {"axes": 1})
_SIMPLE = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "simple"}
_TENSORS = Change(18, "takes tensors, too, as optional ones are here", inferred=True)

CHANGES: Mapping[str, tuple[Change, ...]] = {
    "BatchNormalization": (
        Change(9, "scales are those of channels; before, spatial=0 gave each element its own"),
        Change(14, "training_mode says whether it is in training; before, that were outputs after the first"),
    ),
    "Clip": (Change(11, "limits are inputs", {"min": 1, "max": 2}),),
    "Constant": (Change(9, "is of every type; before, the schema had floats only, but models had others", inferred=True),),
    "DFT": (Change(20, "the axis is an input, and usually the last but one", {"axis": 2}, {"axis": 1}),),
    "Dropout": (Change(12, "the ratio is an input, and so is whether it is in training", {"ratio": 1}),),
    "GridSample": (Change(20, "the modes bilinear and bicubic are linear and cubic", usual={"mode": "bilinear"}),),
    "GroupNormalization": (Change(21, "scales are those of channels; before, those of groups", inferred=True),),
    "Hardmax": (_FROM_AXIS_ON,),
    "LogSoftmax": (_FROM_AXIS_ON,),
    "OptionalGetElement": (_TENSORS,),
    "OptionalHasElement": (_TENSORS,),
    "Pad": (Change(11, "pads and the value are inputs", {"pads": 1, "value": 2}),),
    **{f"Reduce{name}": (_AXES_18,) for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")},
    "ReduceSum": (_AXES_13,),
    "Resize": (
        Change(
            11,
            "modes of coordinates and of rounding, a region, and sizes; before, places were those of Upsample",
            usual=_SIMPLE,
            inputs=(0, 2),
        ),
    ),
    "RoiAlign": (
        Change(
            16,
            "regions are moved by half a pixel; before, they were not, and not smaller than 1 x 1",
            usual={"coordinate_transformation_mode": "output_half_pixel"},
        ),
    ),
    "Scan": (Change(9, "without batches and their lengths"),),
    "Scatter": (Change(11, "is ScatterElements"),),
    "Slice": (Change(10, "starts, ends and axes are inputs", {"starts": 1, "ends": 2, "axes": 3}),),
    "Softmax": (_FROM_AXIS_ON,),
    "Split": (Change(13, "the sizes are an input", {"split": 1}),),
    "Squeeze": (_AXES_13,),
    "TopK": (Change(10, "the number is an input", {"k": 1}),),
    "Unsqueeze": (_AXES_13,),
    "Upsample": (
        Change(9, "scales are an input", {"scales": 1}),
        Change(10, "is Resize", usual=_SIMPLE, inputs=(0, 2)),
    ),
}
"""The changes of each operator that has other meanings, inputs or attributes before."""

_OF_INPUT = (("Clip", "min"), ("Clip", "max"), ("Dropout", "ratio"), ("Pad", "value"))
"""Attributes that have the type of the first input."""


def modernize(node: Any) -> None:
    """Give a node the inputs and attributes of the newest version."""
    for change in CHANGES.get(node.kind, ()):
        if node.opset < change.version:
            for name, value in change.usual.items():
                node.attributes.setdefault(name, value)
        for name, position in change.moved.items():
            if name in node.attributes:
                node.inputs += [None] * (position + 1 - len(node.inputs))
                node.inputs[position] = _moved(node, name)
        if node.opset < change.version and change.inputs:
            inputs: list[Value | None] = [None] * (max(change.inputs) + 1)
            for place, value in zip(change.inputs, node.inputs, strict=False):
                inputs[place] = value
            node.inputs = inputs


def is_before(kind: str, opset: int, version: int) -> bool:
    """Whether a version of an operator is older than one that changed it."""
    assert any(change.version == version for change in CHANGES.get(kind, ())), (kind, version)
    return opset < version


def schema_version(kind: str, opset: int) -> int:
    """The version whose schema says the shapes of an operator's results."""
    return max([opset, *(change.version for change in CHANGES.get(kind, ()) if change.inferred)])


def _moved(node: Any, name: str) -> Value:
    given = np.asarray(node.attributes.pop(name))
    dtype = node.dtype() if (node.kind, name) in _OF_INPUT else np.float32 if given.dtype.kind == "f" else np.int64
    with np.errstate(all="ignore"):
        if np.dtype(dtype).kind in "iu":
            limits = np.iinfo(dtype)
            given = np.clip(given, int(limits.min), int(limits.max))
        return Value.known(given.astype(dtype))
