"""Asking for memory before it is read or written."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T

AHEAD = 1 << 14
"""Bytes between what is asked for and what is read. With half of it, the processors that were tried wait for large inputs."""

_SOURCE = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @tvmdml_read_ahead(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 3, i32 1)
  ret void
}
define void @tvmdml_write_ahead(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 1, i32 3, i32 1)
  ret void
}
"""


def read_ahead(buffer: Any, at: Any) -> None:
    """Ask for an element's cache line before it is read; it may be outside of the buffer."""
    T.do_imported("tvmdml_read_ahead", _SOURCE, T.address_of(buffer[at]))


def write_ahead(buffer: Any, at: Any) -> None:
    """Ask for an element's cache line before it is written; it may be outside of the buffer."""
    T.do_imported("tvmdml_write_ahead", _SOURCE, T.address_of(buffer[at]))
