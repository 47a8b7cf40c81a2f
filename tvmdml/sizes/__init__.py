"""Sizes that are open: integers that are expressions over named symbols, and what was asked of them."""

from tvmdml.sizes.record import Record
from tvmdml.sizes.size import Size

__all__ = ["Record", "Size"]
