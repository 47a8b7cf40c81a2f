"""NumPy's threads: those of the OpenBLAS that its wheels bring, which is asked where it is loaded."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FORMS = tuple(f"{before}openblas_{{}}_num_threads{after}" for before in ("scipy_", "") for after in ("64_", ""))


@contextmanager
def limited(count: int) -> Iterator[bool]:
    """Let NumPy's products use this many threads; yields whether it can be told so."""
    found = _functions()
    if found is None:
        yield False
        return
    get, set_to = found
    before = get()
    set_to(count)
    try:
        yield True
    finally:
        set_to(before)


def _functions() -> tuple[Any, Any] | None:
    """The functions that tell and set the number of threads."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # another system
        return None
    for path in sorted(set(re.findall(r"/\S*openblas\S*", maps))):
        library = ctypes.CDLL(path)
        for form in _FORMS:
            if hasattr(library, form.format("set")):
                return getattr(library, form.format("get")), getattr(library, form.format("set"))
    return None
