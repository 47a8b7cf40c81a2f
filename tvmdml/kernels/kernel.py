"""``Kernel``: a schedule's decisions as data, so that the compiled code can be found again without the schedule."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import pkgutil
import re
from collections.abc import Callable
from enum import Flag, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tvmdml.system import imports, not_collected

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.kernels.formula import Parameter
    from tvmdml.targets import Target

NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,99}", re.ASCII)
"""The name of an operator's module, a kernel or a type. It has no character that is special in a path."""
FORMAT = 1
"""Incremented when the meaning of a stored kernel changes; older entries are then ignored."""


class Offers(Flag):
    """What a kernel offers, for passes that choose between forms of a graph."""

    NOTHING = 0
    """It serves any operator, and computes one element at a time."""
    OWN = auto()
    """It was written for the operator, or its family."""
    VECTORS = auto()
    """It computes vectors, however the tensors of this call lie."""
    CHANNELS_LAST = auto()
    """It gains where the channels of images come last."""


class Kernel(NamedTuple):
    """A kernel to find or build, and how to launch it.

    The code depends only on ``module``, ``name`` and ``parameters``: a pack contains one kernel for each combination of these. The
    stores of this machine also distinguish kernels by ``tuning``. Values that may differ between launches (sizes, strides, offsets)
    are in ``scalars``, so that one kernel serves a class of shapes.
    """

    module: str
    """The operator's module; its schedule has the same name, or is its family's."""
    name: str
    """The name of one of the schedule's kernels."""
    parameters: tuple[tuple[str, Parameter], ...]
    """Every choice that the code was generated from, tuned knobs included."""
    build: Callable[[], PrimFunc]
    """Writes the TensorIR; called only when no store has the kernel."""
    scalars: tuple[int, ...] = ()
    """64-bit integers that are passed after the tensors and temporaries."""
    temporaries: tuple[tuple[str, int], ...] = ()
    """Scratch buffers (type, elements) that are passed after the tensors."""
    also: tuple[str, ...] = ()
    """The modules of further operators whose expressions are part of the code: of fused ones."""
    tuning: str = ""
    """The hash of the knobs from a tuning log, if there are any. ``Target.kernel`` sets it; schedules leave it empty."""
    owned: tuple[Owned, ...] = ()
    """The inputs that it takes in a packed form: inputs of the descriptor that are OWNED_BY_DML, and so never change. The
    parameters of the code say that they are packed."""
    offers: Offers = Offers.OWN | Offers.VECTORS

    def written(self, target: Target) -> PrimFunc:
        """The TensorIR for a target: expressions may ask which instructions it has.

        Raises:
            ValueError: a pack could not take the kernel, because of a name.
        """
        for name in (self.module, self.name, *self.also):
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a kernel or of an operator's module")
        from tvmdml.kernels import tensorir  # which those who only look for kernels do not need

        with not_collected(), tensorir.instructions_of(getattr(target, "processor", None)):
            return self.build()

    @property
    def identity(self) -> tuple[object, ...]:
        """The kernel's key in the memory store, together with the target."""
        return (self.module, self.name, self.parameters, self.tuning)

    @property
    def every(self) -> tuple[Kernel, ...]:
        """The kernel, and those that pack its inputs."""
        return (self, *(one.packer for one in self.owned))

    def built_by(self, again: Callable[[], Kernel]) -> Kernel:
        """The same without the descriptors that ``build`` holds: if it is called after all, the kernel is asked for again."""
        owned = tuple(
            one._replace(packer=one.packer._replace(build=functools.partial(_build_packer, again, i)))
            for i, one in enumerate(self.owned)
        )
        return self._replace(build=functools.partial(_build, again), owned=owned)

    def sources(self, target: Target) -> dict[str, str]:
        """Stamps of the source that generated the code, by operators' modules."""
        return {module: source_stamp(module, target) for module in (self.module, *self.also)}

    def source(self, target: Target) -> str:
        """One stamp of all that source."""
        stamps = list(self.sources(target).values())
        return stamps[0] if len(stamps) == 1 else hashlib.sha256(" ".join(stamps).encode()).hexdigest()[:16]

    @property
    def choices(self) -> dict[str, Parameter]:
        """The parameters by name; a name that comes again is marked, so that none is lost."""
        found: dict[str, Parameter] = {}
        for name, value in self.parameters:
            while name in found:
                name += "'"
            found[name] = value
        return found

    def manifest(self, target: Target) -> dict[str, object]:
        """Everything that the disk store's key is computed from, for a target."""
        return {
            "format": FORMAT,
            "operator": self.module,
            "kernel": self.name,
            "parameters": self.choices,
            "target": target.code,
            "source": self.source(target),
            "tvm": imports.version("apache-tvm"),
            "tvm_ffi": imports.version("apache-tvm-ffi"),
            **({"tuning": self.tuning} if self.tuning else {}),
        }


class Owned(NamedTuple):
    """An input that a kernel takes in a packed form, in a buffer with one dimension."""

    name: str
    """The input, as ``Operator.tensors`` names it."""
    dtype: str
    """The type of the buffer's elements."""
    elements: int
    layout: str
    """Identifies the packed form: where it is the same, equal inputs have equal buffers."""
    inputs: tuple[str, ...]
    """What the packer reads: the input, and the zero points that it subtracts. All of them are owned."""
    packer: Kernel
    """Launched on these inputs and the buffer."""

    @property
    def nbytes(self) -> int:
        """The size of the buffer."""
        return self.elements * np.dtype(self.dtype).itemsize


def _build(again: Callable[[], Kernel]) -> PrimFunc:
    return again().build()


def _build_packer(again: Callable[[], Kernel], i: int) -> PrimFunc:
    return again().owned[i].packer.build()


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
