"""``Kernel``: a schedule's decisions as data, so that the compiled code can be found again without the schedule."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from enum import Flag, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tvmdml.system import not_collected

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.kernels.formula import Parameter
    from tvmdml.targets import Target

NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,99}", re.ASCII)
"""The name of an operator's module, a kernel or a type. It has no character that is special in a path."""


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

    @property
    def choices(self) -> dict[str, Parameter]:
        """The parameters by name; a name that comes again is marked, so that none is lost."""
        found: dict[str, Parameter] = {}
        for name, value in self.parameters:
            while name in found:
                name += "'"
            found[name] = value
        return found


class Owned(NamedTuple):
    """An input that a kernel takes in a packed form, in a buffer with one dimension."""

    name: str
    """The input, as ``Operator.tensors`` names it."""
    dtype: str
    """The type of the buffer's elements."""
    elements: int
    layout: str
    """Identifies the packed form, and how the inputs lie: where it is the same, the same memory has equal buffers."""
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
