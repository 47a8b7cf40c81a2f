"""What decides about a plan besides what is planned: the sources, versions, target, logs of winners and switches."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tvmdml import system
from tvmdml.kernels import knobs
from tvmdml.system import at_hand, imports
from tvmdml.system.disk import plans
from tvmdml.targets import Target

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "onnx")
_APART = ("commands/", "directml/", "dxdispatch/", "proof/", "torch/", "tuning_logs/")
"""Folders of this package that take no part in planning. (The state of the logs is added by itself.)"""
_WITHOUT_EFFECT = ("TVMDML_CACHE_DIR", "TVMDML_CACHE_SIZE", "TVMDML_DISABLE_JIT", "TVMDML_DISABLE_PLANS")
"""Switches that change where kernels are, and not which ones."""


def key_of(*parts: Any) -> str:
    """The name of a file in the store: JSON values, hashed."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def surroundings(target: Target) -> str | None:
    """A hash of them; ``None`` where plans are not kept: they are off, or kernels come from packs or are chosen by a caller."""
    if plans.is_off() or not are_usual(target):
        return None
    sources = _sources()
    if sources is None:
        return None
    at_hand("tvmdml.library.log_folders")
    from tvmdml.library import log_folders

    switches = sorted(
        (name, value) for name, value in os.environ.items() if name.startswith("TVMDML_") and name not in _WITHOUT_EFFECT
    )
    machine = [target.name, target.code, target.tasks(), target.handover(), list(target.machine()), repr(target.caches)]
    return key_of(sources, log_folders.state(), switches, machine, list(target.families), list(target.suffixes), target.most_arrays)


def are_usual(target: Target) -> bool:
    """Whether kernels are what schedules choose: none comes from a pack or is chosen by a caller, and nobody is told of them."""
    if knobs.in_force() or not knobs.logs_count() or target.knobs or target.logs is not None:
        return False
    return not (os.environ.get("TVMDML_PACKS") or os.environ.get("TVMDML_PACK_RECORD") or _uses_packs())


def _uses_packs() -> bool:
    """Whether packs are loaded, or somebody is told which operators are prepared. (What is not imported has none.)"""
    shelf, notices = sys.modules.get("tvmdml.library.shelf"), sys.modules.get("tvmdml.library.notices")
    return bool(getattr(shelf, "_loaded", ()) or getattr(notices, "_listeners", ()))


@functools.cache
def _sources() -> str | None:
    """A stamp of this package's files and of the packages that it uses; ``None`` if a file changed after this process began: what
    is imported may be older.
    """
    try:
        files = sorted(_files(str(Path(__file__).parents[1]), ""))
    except OSError:  # it is in an archive
        return None
    if any(changed > system.BEGAN for *_, changed in files):
        return None
    versions = [sys.version, *(f"{name} {imports.version(name)}" for name in _PACKAGES)]
    return hashlib.sha256(repr((versions, [file[:3] for file in files])).encode()).hexdigest()


def _files(folder: str, below: str) -> list[tuple[str, int, int, float]]:
    """The name, size, time of the last change of content, and time of any change, of each file."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                within = f"{below}{entry.name}/"
                found += _files(entry.path, within) if entry.name != "__pycache__" and within not in _APART else []
            else:
                about = entry.stat()
                found.append((below + entry.name, about.st_size, about.st_mtime_ns, about.st_ctime))
    return found
