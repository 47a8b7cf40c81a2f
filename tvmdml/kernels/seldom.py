"""What keeps seldom taken branches apart from the code around them."""

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


_VECTORS = (("avx512f", "zmm", 32), ("avx2", "ymm", 16))


def forget_registers() -> None:
    """Keep no vector register over this place: LLVM would load constants of what follows before the loops around it.

    Their registers are then missing in these loops. Of processors with other registers nothing is known, and nothing is done.
    """
    for feature, name, count in _VECTORS:
        if T.has_instructions(feature):
            registers = ",".join(f"~{{{name}{i}}}" for i in range(count))
            source = _SOURCE.replace("seldom", "forget_registers").replace('"", ""', f'"", "{registers}"')
            T.do_imported("tvmdml_forget_registers", source)
            return
