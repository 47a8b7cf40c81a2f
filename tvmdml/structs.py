"""DirectML's small structures, which descriptors have as fields."""

from __future__ import annotations

from typing import NamedTuple


class ScaleBias(NamedTuple):
    """``DML_SCALE_BIAS``: an operator computes ``x * scale + bias`` first, and its own function of that."""

    scale: float
    """Kept in single precision."""
    bias: float
    """Kept in single precision."""


class Size2D(NamedTuple):
    """``DML_SIZE_2D``."""

    width: int
    height: int
