"""``Kernel``: what a schedule decides, written down so that the compiled code can be found again without it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import pkgutil
from collections.abc import Callable
from importlib.abc import InspectLoader
from typing import TYPE_CHECKING, NamedTuple

from tvmdml import _imports

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.targets import Target

FORMAT = 1
"""Raised when the meaning of a stored kernel changes; older entries are then left alone and not found."""

Parameter = int | str | bool | tuple[int, ...]


class Kernel(NamedTuple):
    """A kernel to be found or built, and how to launch it.

    The code depends on ``module``, ``name`` and ``parameters`` alone: two kernels that agree in those are one. What may
    differ from launch to launch (sizes, strides, offsets) goes in ``scalars``, so that one kernel serves a class of shapes.
    """

    module: str
    """The operator's module, which its schedule shares."""
    name: str
    """Which of the schedule's kernels."""
    parameters: tuple[tuple[str, Parameter], ...]
    """Every choice the code was generated from, tuned knobs included."""
    build: Callable[[], PrimFunc]
    """Writes the TensorIR; called only when no store has the kernel."""
    scalars: tuple[int, ...] = ()
    """64-bit integers passed after the tensors and temporaries."""
    temporaries: tuple[tuple[str, int], ...] = ()
    """Scratch buffers (type, elements) passed after the tensors."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What the memory store knows the kernel by, together with the target."""
        return (self.module, self.name, self.parameters)

    def manifest(self, target: Target) -> dict[str, object]:
        """Everything that the disk store's key is made of, for a target."""
        return {
            "format": FORMAT,
            "operator": self.module,
            "kernel": self.name,
            "parameters": dict(self.parameters),
            "target": target.code,
            "source": _source_stamp(self.module, target.schedules, target.kind, target.sources),
            "tvm": _imports.version("apache-tvm"),
            "tvm_ffi": _imports.version("apache-tvm-ffi"),
        }


def digest(manifest: dict[str, object]) -> str:
    """The disk store's name for a manifest: 40 hexadecimal digits."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:40]


@functools.cache
def _source_stamp(module: str, schedules: str, kind: str, sources: tuple[str, ...]) -> str:
    """A hash of all source that shapes an operator's kernels: a changed schedule never meets an old kernel."""
    package = f"tvmdml.schedules.{schedules}"
    found = importlib.util.find_spec(package)
    shared = [m.name for m in pkgutil.iter_modules(found.submodule_search_locations if found else None) if m.name.startswith("_")]
    names = ["tvmdml.tensorir", "tvmdml.layout", f"tvmdml.operators.{module}", package]
    names += [f"tvmdml.targets.{kind}" + (f".{source}" if source else "") for source in sources]
    if schedules == "gpu":
        names += ["tvmdml.targets._lower", "tvmdml.targets._program"]
    names += [f"{package}.{name}" for name in (*sorted(shared), module)]
    stamp = hashlib.sha256()
    for name in names:
        spec = importlib.util.find_spec(name)
        # An operator may have no schedule of its own, and a package may be installed without its source.
        source = spec.loader.get_source(name) if spec and isinstance(spec.loader, InspectLoader) else None
        stamp.update((source or name).encode())
    return stamp.hexdigest()[:16]
