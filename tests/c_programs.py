"""Programs in C and C++ for tests: compiled without a warning, and run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import tvm_ffi.libinfo as info

STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# The sanitizer guesses where thread-local variables of libraries opened later are, and may crash itself.
ASAN = "detect_leaks=1:intercept_tls_get_addr=0"


def compiled(compiler: str, source: Path, folder: Path, *options: str, name: str = "", before: Sequence[str] = ()) -> Path:
    program = folder / (name or source.stem + source.suffix.replace(".", "_"))
    include = [f"-I{folder}", "-isystem", info.find_include_path(), "-isystem", info.find_dlpack_include_path()]
    done = subprocess.run(
        [compiler, *before, "-O1", *STRICT, *include, str(source), "-o", str(program), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return program


def said(program: Path, *arguments: object, ok: bool = True, **environment: str) -> str:
    """What a program wrote, which succeeded (or not)."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == ok, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr
