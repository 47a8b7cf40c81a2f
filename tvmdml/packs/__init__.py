"""Packs: files with many kernels, compiled ahead of time, for machines without a compiler.

``build`` makes a pack from a spec, ``record`` writes the spec of what a program runs, and ``load_pack`` makes this process use the
kernels of a pack. A pack is native code, and runs with all rights of the process that loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmdml.packs.building import Built, build
    from tvmdml.packs.format import Pack
    from tvmdml.packs.recording import Recording, record
    from tvmdml.packs.shelf import LoadedPack, load_pack

__all__ = ["Built", "LoadedPack", "Pack", "Recording", "build", "load_pack", "record"]

_HOMES = {
    "building": ("Built", "build"),
    "format": ("Pack",),
    "recording": ("Recording", "record"),
    "shelf": ("LoadedPack", "load_pack"),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
