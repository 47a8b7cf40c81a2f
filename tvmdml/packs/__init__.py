"""Packs: kernels compiled ahead of time, many to a file, run where there is no compiler.

``build`` makes one of a spec, ``record`` writes the spec of what a program runs, ``load_pack`` has this process take its kernels
from one. A pack is native code: what loads it gives it all the rights that it has itself.
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
