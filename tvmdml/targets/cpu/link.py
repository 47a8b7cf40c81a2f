"""Turn an object file into something that can be loaded, with the tools that this machine has."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

# The command line of each program that can make a shared library from one object, the fastest first.
_LINKERS = (
    ("ld", ("-shared", "-s", "-z", "noexecstack")),
    ("ld.lld", ("-shared", "-s", "-z", "noexecstack")),
    ("cc", ("-shared", "-s", "-nostdlib")),
    ("gcc", ("-shared", "-s", "-nostdlib")),
    ("clang", ("-shared", "-s", "-nostdlib")),
)


@functools.cache
def linker() -> str | None:
    """The linker's path, or ``None``."""
    import shutil  # slow

    return next((path for name, _ in _LINKERS if (path := shutil.which(name))), None)


@functools.cache
def object_loader() -> bool:
    """Whether object files can be loaded without linking: the ``orcjit`` extra."""
    return importlib.util.find_spec("tvm_ffi_orcjit") is not None


def link(obj: Path) -> Path | None:
    """Link an object file into a shared library beside it; ``None`` if there is no linker.

    Raises:
        OSError: every linker failed; with the last linker's message.
    """
    import shutil  # slow imports, which only compiling needs
    import subprocess

    failed = None
    for name, options in _LINKERS:
        if (path := shutil.which(name)) is None:
            continue
        library = obj.with_suffix(".so")
        try:
            done = subprocess.run([path, *options, "-o", library, obj], capture_output=True, text=True, check=False)
        except OSError as error:  # it cannot be executed, or there is not enough memory
            failed = str(error)
            continue
        if done.returncode == 0:
            return library
        failed = f"{path}: {done.stderr.strip() or f'exit status {done.returncode}'}"
    if failed is not None:
        raise OSError(failed)
    return None
