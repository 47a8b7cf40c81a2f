"""Sizes that are open: integers that are expressions over named symbols, and what was asked of them."""

from tvmdml.tensors.sizes.record import Record
from tvmdml.tensors.sizes.size import (
    Size,
    are_equal,
    cached,
    choice,
    fraction,
    has_open_sizes,
    hint,
    is_one,
    is_open,
    key_of,
    naming_sizes,
    texts_for_keys,
    texts_for_messages,
)

__all__ = [
    "Record",
    "Size",
    "are_equal",
    "cached",
    "choice",
    "fraction",
    "has_open_sizes",
    "hint",
    "is_one",
    "is_open",
    "key_of",
    "naming_sizes",
    "texts_for_keys",
    "texts_for_messages",
]
