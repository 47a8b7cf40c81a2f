"""The real compilers for CUDA, nvcc and NVRTC, in place of the emulator's."""

from __future__ import annotations

import os

import pytest

from tvmdml.errors import CompileError
from tvmdml.targets.cuda import compilers

COMPILERS = ("nvcc", "nvrtc")
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the real compiler used, not the emulator's; skips the test where it is not here, unless it is expected."""
    monkeypatch.delenv("TVMDML_NVCC", raising=False)
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", name)
    try:
        compilers.describe()
    except CompileError as error:
        if os.environ.get(f"TVMDML_EXPECT_{name.upper()}") == "1":
            raise
        pytest.skip(f"no {name} here: {error}")
    return name


def need_disassembler() -> None:
    """Skips the test where machine code cannot be read."""
    if not any(map(compilers._tool, ("nvdisasm", "cuobjdump"))):
        pytest.skip("no nvdisasm here, nor cuobjdump")
