"""A branch that is seldom taken, and so must stay a branch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvmdml.kernels import tensorir as T

_SOURCE = """
define void @tvmdml_seldom() alwaysinline {
  call void asm sideeffect "", ""() nounwind willreturn memory(inaccessiblemem: readwrite)
  ret void
}
"""
"""LLVM takes C's fmod of vectors for a cheap instruction, and a quotient too, and would compute them for all."""


@contextmanager
def seldom(condition: Any) -> Iterator[None]:
    """Run the statements if the condition holds."""
    with T.when(condition):
        T.do_imported("tvmdml_seldom", _SOURCE)
        yield
