"""Leaf functions: what TensorIR has no words for, as LLVM IR that is inlined where it is called.

A kernel that calls one does so inside of ``with available():``.
"""

from __future__ import annotations

from typing import Any

from tvmdml import tensorir as T

_IR = """
define i64 @tvmdml_misalignment(ptr %p) alwaysinline {
  %address = ptrtoint ptr %p to i64
  %low = and i64 %address, 63
  ret i64 %low
}
"""


def available() -> Any:
    """The statements inside may call the leaf functions."""
    return T.attr(0, "pragma_import_llvm", _IR)


def misalignment(buffer: Any, index: Any) -> Any:
    """How many bytes an element lies past a multiple of 64."""
    return T.let(T.call_extern("int64", "tvmdml_misalignment", T.address_of(buffer[index])))
