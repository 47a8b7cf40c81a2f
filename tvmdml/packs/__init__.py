"""Packs: files with many kernels, compiled ahead of time, for machines without a compiler.

``build`` makes a pack from a spec, ``record`` writes the spec of what a program runs, and ``load_pack`` makes this process use the
kernels of a pack. A pack is native code, and runs with all rights of the process that loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.system import on_first_use

if TYPE_CHECKING:
    from tvmdml.library.format import Pack as Pack
    from tvmdml.library.recording import Recording as Recording
    from tvmdml.library.recording import record as record
    from tvmdml.library.shelf import LoadedPack as LoadedPack
    from tvmdml.library.shelf import load_pack as load_pack
    from tvmdml.packs.building import Built as Built
    from tvmdml.packs.building import build as build


__getattr__, __dir__, __all__ = on_first_use(
    __name__,
    {
        "building": ("Built", "build"),
        ".library.format": ("Pack",),
        ".library.recording": ("Recording", "record"),
        ".library.shelf": ("LoadedPack", "load_pack"),
    },
)
