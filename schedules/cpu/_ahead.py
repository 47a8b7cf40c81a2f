"""Asking for memory before it is read or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir as T

AHEAD = 1 << 14
"""Bytes between what is asked for and what is read. With half of it, the processors that were tried wait for large inputs."""

_SOURCE = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @tvmdml_read_ahead(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 3, i32 1)
  ret void
}
define void @tvmdml_read_far_ahead(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 2, i32 1)
  ret void
}
define void @tvmdml_write_ahead(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 1, i32 3, i32 1)
  ret void
}
"""


FAR = 512
"""Elements between one that is looked up, or updated, and one whose index is asked for: processors hardly notice what is read in
order between elements in no order.
"""
ROWS = 16
"""The same in rows of a few lines each."""

_LINE = 64


def ask(how: Callable[[Any, Any], None], buffer: Any, place: Any, count: int) -> None:
    """Ask for as many neighbouring elements: ``how`` is one of the next two functions."""
    for line in range(0, count, max(_LINE // np.dtype(str(buffer.dtype)).itemsize, 1)):
        how(buffer, T.let(place + line))


def read_ahead(buffer: Any, at: Any) -> None:
    """Ask for an element's cache line before it is read; it may be outside of the buffer."""
    T.do_imported("tvmdml_read_ahead", _SOURCE, T.address_of(buffer[at]))


def read_far_ahead(buffer: Any, at: Any) -> None:
    """Ask for it in the second cache: it is read much later."""
    T.do_imported("tvmdml_read_far_ahead", _SOURCE, T.address_of(buffer[at]))


def write_ahead(buffer: Any, at: Any) -> None:
    """Ask for an element's cache line before it is written; it may be outside of the buffer."""
    T.do_imported("tvmdml_write_ahead", _SOURCE, T.address_of(buffer[at]))
