"""The folders of logs, the files in them, and whether those changed: a plan of the cache needs no more of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tvmdml.system.disk import places, stores

_VARIABLES = ("TVMDML_TUNING", "TVMDML_TUNING_NEAREST", "TVMDML_TUNING_LOGS", "XDG_DATA_HOME", "HOME")
"""The environment variables that decide which logs are used."""


def variables() -> tuple[str | None, ...]:
    """The values of the environment variables that decide which logs are used."""
    return tuple(map(os.environ.get, _VARIABLES))


def folders() -> tuple[Path, ...]:
    """The folders of logs: ``TVMDML_TUNING_LOGS``, the user's own folder, the shipped ones. For a key the first folder counts."""
    return (*_given(), user_folder(), *_shipped())


def user_folder() -> Path:
    """The folder where ``tvmdml tune`` stores records by default."""
    return (places.user_folder("data") or Path(sys.prefix) / "var" / "lib" / "tvmdml") / "tuning_logs"


def files(folder: Path) -> list[Path]:
    """The log files of a folder: of every machine, or of one, if the folder is a single machine's."""
    return sorted(folder.glob("*.jsonl")) + sorted(folder.glob("*/*.jsonl"))


_states: dict[tuple[str | None, ...], str] = {}


def state() -> str:
    """A stamp of what ``logs.installed`` reads: the environment variables, and the files' names, sizes and times."""
    now = variables()
    if now not in _states:
        stamps: list[tuple[str, int, int]] = []
        for folder in folders():
            with contextlib.suppress(OSError):  # as ``read`` leaves it out
                about = [(path, path.stat()) for path in files(folder)]
                stamps += [(str(path), one.st_size, one.st_mtime_ns) for path, one in about]
        _states[now] = hashlib.sha256(repr((now[:2], stamps)).encode()).hexdigest()
    return _states[now]


def forget() -> None:
    """Make ``state`` look at the files again."""
    _states.clear()


def _given() -> Iterator[Path]:
    for text in os.environ.get("TVMDML_TUNING_LOGS", "").split(os.pathsep):
        if not text.strip():
            continue
        folder = Path(text)
        with contextlib.suppress(RuntimeError):  # a ~ without a home folder is an ordinary name
            folder = folder.expanduser()
        try:
            found = folder.is_dir()
        except (OSError, ValueError):  # no permission, or an invalid name
            found = False
        if found:
            yield folder
        else:
            what = f"{text!r} is not a folder; it is left out."
            stores.warn_once(f"TVMDML_TUNING_LOGS {text}", f"tvmdml: TVMDML_TUNING_LOGS: {what}")


@functools.cache
def _shipped() -> tuple[Path, ...]:
    # Not with importlib.resources, whose import takes longer than reading the logs.
    spec = importlib.util.find_spec("tvmdml.tuning_logs")
    return tuple(map(Path, spec.submodule_search_locations or ())) if spec else ()
