"""DML_OPERATOR_SPACE_TO_DEPTH, DEPTH_TO_SPACE, and their newer forms: blocks of an image as channels, and back."""

from __future__ import annotations

from tvmdml.enums import DepthSpaceOrder
from tvmdml.operators._contract import defaults
from tvmdml.operators._movement_blocks import DEPTH_COLUMN_ROW, ToDepth, ToSpace
from tvmdml.operators._support import support


class SpaceToDepth(ToDepth):
    """Blocks of an image as channels (``DML_SPACE_TO_DEPTH_OPERATOR_DESC``)."""

    SUPPORT = support("1.0 F r4 · 2.1 FIU · 5.0 all")


class SpaceToDepth1(ToDepth):
    """Blocks of an image as channels (``DML_SPACE_TO_DEPTH1_OPERATOR_DESC``)."""

    FUNCTION = "space_to_depth"
    SUPPORT = support("2.1 FIU r4 · 5.0 all")
    DEFAULTS = defaults(order=DEPTH_COLUMN_ROW)
    ONNX = ("SpaceToDepth",)

    order: DepthSpaceOrder


class DepthToSpace(ToSpace):
    """Channels as blocks of an image (``DML_DEPTH_TO_SPACE_OPERATOR_DESC``)."""

    SUPPORT = support("1.0 F r4 · 2.1 FIU · 5.0 all")


class DepthToSpace1(ToSpace):
    """Channels as blocks of an image (``DML_DEPTH_TO_SPACE1_OPERATOR_DESC``)."""

    FUNCTION = "depth_to_space"
    SUPPORT = support("2.1 FIU r4 · 5.0 all")
    DEFAULTS = defaults(order=DEPTH_COLUMN_ROW)
    ONNX = ("DepthToSpace",)

    order: DepthSpaceOrder
