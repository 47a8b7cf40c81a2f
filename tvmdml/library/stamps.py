"""What a compiled kernel is known by: the source that generated it, the target, the versions of TVM."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import pkgutil
from typing import TYPE_CHECKING

from tvmdml.system import imports

if TYPE_CHECKING:
    from tvmdml.kernels.kernel import Kernel
    from tvmdml.targets import Target

FORMAT = 1
"""Incremented when the meaning of a stored kernel changes; older entries are then ignored."""


def sources(kernel: Kernel, target: Target) -> dict[str, str]:
    """Stamps of the source that generated the code, by operators' modules."""
    return {module: source_stamp(module, target) for module in (kernel.module, *kernel.also)}


def source(kernel: Kernel, target: Target) -> str:
    """One stamp of all that source."""
    stamps = list(sources(kernel, target).values())
    return stamps[0] if len(stamps) == 1 else hashlib.sha256(" ".join(stamps).encode()).hexdigest()[:16]


def manifest(kernel: Kernel, target: Target) -> dict[str, object]:
    """Everything that the disk store's key is computed from, for a target."""
    return {
        "format": FORMAT,
        "operator": kernel.module,
        "kernel": kernel.name,
        "parameters": kernel.choices,
        "target": target.code,
        "source": source(kernel, target),
        "tvm": imports.version("apache-tvm"),
        "tvm_ffi": imports.version("apache-tvm-ffi"),
        **({"tuning": kernel.tuning} if kernel.tuning else {}),
    }


def source_stamp(module: str, target: Target) -> str:
    """A stamp of the source that generates an operator's kernels for a kind of target."""
    return _source_stamp(module, target.schedules, target.kind, target.sources)


def digest(manifest: dict[str, object]) -> str:
    """The disk store's name for a manifest: 40 hexadecimal digits."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:40]


@functools.cache
def _listed(folders: tuple[str, ...]) -> list[str]:
    """The modules in folders."""
    return [module.name for module in pkgutil.iter_modules(folders)]


@functools.cache
def _source_stamp(module: str, schedules: str, kind: str, sources: tuple[str, ...]) -> str:
    """A hash of all source that affects an operator's kernels, so that a changed schedule never uses an old kernel."""
    from tvmdml import kernels, operators
    from tvmdml.kernels import mathematics

    package = f"tvmdml.schedules.{schedules}"
    found = importlib.util.find_spec(package)
    shared = [name for name in _listed(tuple(found.submodule_search_locations or ()) if found else ()) if name.startswith("_")]
    names = [
        "tvmdml.operators._reduction_activated",
        f"tvmdml.operators.{module}",
        package,
    ]
    families = operators.families_of(module)
    bases = [name for name in _listed(tuple(operators.__path__)) if name.startswith(tuple(f"_{one}" for one in families))]
    names += [f"tvmdml.operators.{base}" for base in sorted(bases)]
    names += [f"tvmdml.targets.{kind}" + (f".{source}" if source else "") for source in sources]
    names += [f"{room.__name__}.{name}" for room in (kernels, mathematics) for name in _listed(tuple(room.__path__))]
    if schedules == "gpu":
        names += ["tvmdml.targets._lower", "tvmdml.targets._program"]
    names += [f"{package}.{name}" for name in (*sorted(shared), module, *families)]
    return hashlib.sha256("".join(map(_stamp_of, names)).encode()).hexdigest()[:16]


@functools.cache
def _stamp_of(name: str) -> str:
    """A hash of a module's source."""
    spec = importlib.util.find_spec(name)
    # An operator may have no schedule of its own, and a package may be installed without its source.
    read = None if spec is None else getattr(spec.loader, "get_source", None)
    return hashlib.sha256(((read and read(name)) or name).encode()).hexdigest()
