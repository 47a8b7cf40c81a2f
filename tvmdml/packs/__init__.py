"""Packs: files with many kernels, compiled ahead of time, for machines without a compiler.

``build`` makes a pack from a spec, ``record`` writes the spec of what a program runs, and ``load_pack`` makes this process use the
kernels of a pack. A pack is native code, and runs with all rights of the process that loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.system import on_first_use

if TYPE_CHECKING:
    from tvmdml.library.format import Pack
    from tvmdml.library.recording import Recording, record
    from tvmdml.library.shelf import LoadedPack, load_pack
    from tvmdml.packs.building import Built, build

__all__ = ["Built", "LoadedPack", "Pack", "Recording", "build", "load_pack", "record"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "building": ("Built", "build"),
        ".library.format": ("Pack",),
        ".library.recording": ("Recording", "record"),
        ".library.shelf": ("LoadedPack", "load_pack"),
    },
)
