"""Packs: files with many kernels, compiled ahead of time, for machines without a compiler.

``build`` makes a pack from a spec, ``record`` writes the spec of what a program runs, and ``load_pack`` makes this process use the
kernels of a pack. A pack is native code, and runs with all rights of the process that loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.system import on_first_use

if TYPE_CHECKING:
    from tvmdml.packs.building import Built, build
    from tvmdml.packs.format import Pack
    from tvmdml.packs.recording import Recording, record
    from tvmdml.packs.shelf import LoadedPack, load_pack

__all__ = ["Built", "LoadedPack", "Pack", "Recording", "build", "load_pack", "record"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "building": ("Built", "build"),
        "format": ("Pack",),
        "recording": ("Recording", "record"),
        "shelf": ("LoadedPack", "load_pack"),
    },
)
