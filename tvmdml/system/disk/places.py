"""Where a user's files are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_XDG = {"cache": ("XDG_CACHE_HOME", ".cache"), "data": ("XDG_DATA_HOME", ".local/share")}


def user_folder(kind: str) -> Path | None:
    """The folder for files of this package, ``cache`` or ``data``; ``None`` without a home folder.

    It is the answer of ``platformdirs``, whose import takes 2 ms, and which is asked if the environment is unusual.
    """
    variable, below = _XDG[kind]
    given, home = os.environ.get(variable, ""), os.environ.get("HOME", "")
    if sys.platform == "linux":
        if os.path.isabs(given):
            return Path(given, "tvmdml")
        if not given and os.path.isabs(home):
            return Path(home, below, "tvmdml")
    import platformdirs

    find = {"cache": platformdirs.user_cache_dir, "data": platformdirs.user_data_dir}[kind]
    try:
        return Path(find("tvmdml", appauthor=False))
    except (OSError, RuntimeError, KeyError):
        return None
