"""WHERE an operator runs: one package per kind of target. Packages are found by their name; there is no list of them."""

from __future__ import annotations

import abc
import functools
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message, safe_repr
from tvmdml.system import at_hand, whole
from tvmdml.targets._sequence import ReadySequence as ReadySequence
from tvmdml.targets._sequence import SequenceStep as SequenceStep
from tvmdml.targets._terms import Form as Form
from tvmdml.targets._terms import Launch as Launch
from tvmdml.targets._terms import Launcher as Launcher
from tvmdml.targets._terms import Logs, Value
from tvmdml.targets._terms import Machine as Machine

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.system.disk.stores import Artifact
    from tvmdml.targets.cpu.caches import Caches
    from tvmdml.tensors.arrays import NumpyArray
    from tvmdml.tensors.arrays.device_array import Home

Step = SequenceStep
"""The name under which programs have it."""
_TARGET = "target"
"""The first word of the messages about a target."""


class Build(abc.ABC):
    """A kernel that was just compiled."""

    @abc.abstractmethod
    def write(self, folder: Path) -> Path | None:
        """Write the artifact into a folder; ``None`` if this machine cannot make one that ``load`` accepts."""

    @abc.abstractmethod
    def launcher(self) -> Launcher:
        """The kernel, loaded in memory."""


class Target(abc.ABC):
    """A machine to run on. Equal targets have equal names. A name is always explicit, never "native"."""

    kind: ClassVar[str]
    """The first part of the name: ``cpu``."""
    schedules: ClassVar[str]
    """The folder with the schedules for this kind."""
    moves: ClassVar[bool] = False
    """Whether NumPy's arrays must be copied to it, including the gaps between their elements."""
    suffixes: tuple[str, ...]
    """The kinds of artifact that ``load`` accepts on this machine."""
    joins: ClassVar[bool] = False
    """Whether the kernels of a pack are linked into libraries; if not, each kernel is a part of its own."""
    knobs: Mapping[str, Mapping[str, Value]] = MappingProxyType({})
    """Knob values, by operator, that replace the defaults on this target."""
    logs: Logs | None = None
    """The tuning logs that its schedules use; ``None`` for the installed ones."""
    most_arrays: int = 64
    """How many arrays a kernel may have."""
    sources: ClassVar[tuple[str, ...]] = ("",)
    """The modules of the target's package whose source affects the generated code; ``""`` is the package itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def code(self) -> str:
        """What compiled kernels depend on: targets with the same code can share kernels."""
        return self.name

    @property
    def spec_name(self) -> str:
        """The target's name in a pack's spec; if possible, a name that means the same on another machine."""
        return self.name

    @property
    def families(self) -> tuple[str, ...]:
        """The groups of machines this one belongs to, the most general first. Knobs may have defaults for each."""
        return (self.kind,)

    @property
    def caches(self) -> Caches | None:
        """The caches that defaults of knobs are derived from; ``None`` for a device, whose schedules ask for its own limits."""
        return None

    def machine(self) -> Machine:
        """The kind of machine that a log's records apply to. Finding it starts no device."""
        return Machine(self.spec_name, "", 0)

    @property
    def home(self) -> Target:
        """The target that owns its arrays' memory: the target itself, unless it names no specific device."""
        return self

    @classmethod
    @abc.abstractmethod
    def parse(cls, text: str) -> Target:
        """The target for the text after the kind and a colon; empty text means this machine's default.

        Raises:
            InvalidArgument: there is no such target.
            DeviceError: this machine has no such device.
        """

    @classmethod
    @abc.abstractmethod
    def devices(cls) -> list[dict[str, str]]:
        """The rows that ``tvmdml devices`` shows for this kind on this machine, with ``target``, ``device`` and ``state``."""

    @abc.abstractmethod
    def tasks(self) -> int:
        """The number of parts that work should be divided into on this machine."""

    def handover(self) -> int:
        """The cost of handing work to others, in about microseconds: a factor for a schedule's minimum task size."""
        return 1

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array in the target's memory, with undefined contents."""
        import numpy as np

        return np.empty(shape, dtype)

    def asarray(self, array: NumpyArray) -> Any:
        """A copy of a NumPy array in the target's memory; the array itself if the target uses the same memory."""
        return array

    def place(self, array: NumpyArray) -> Any:
        """The same as ``asarray``, and the strides are kept."""
        return array

    def flushed(self) -> frozenset[str]:
        """The float types whose subnormals it takes for 0: ``float32`` …

        Raises:
            DeviceError: the device cannot be used.
        """
        return frozenset()

    @contextmanager
    def holding(self, buffers: Iterable[NumpyArray]) -> Iterator[Callable[[Any], Any]]:
        """Keep the buffers in the target's memory until exit. Yields a function that maps a view of a buffer to its view there."""
        yield lambda array: array

    def wait(self) -> None:  # noqa: B027 - on a CPU, work is done when the call returns
        """Return when all requested work is done."""

    # -- Packs ------------------------------------------------------------------------------------------------------

    @classmethod
    def elsewhere(cls, text: str) -> tuple[Target, ...]:
        """The targets to build for, one for each kind of machine that the name means; such a machine need not be present.

        Raises:
            InvalidArgument, DeviceError: as ``parse``.
        """
        return (cls.parse(text),)

    def variants(self) -> Iterator[tuple[int, Target]]:
        """The variants of this target that schedules can see: (threads, target), with 0 threads if the number does not matter."""
        yield 0, self

    def relatives(self, codes: Iterable[str]) -> Iterator[Target]:
        """Those targets among the given codes (``Target.code``) whose kernels run here, the best first."""
        if self.code in codes:
            yield self

    def takes(self, name: str) -> bool:
        """Whether kernels for another target, given by its name in packs, may run here, and as fast as its own."""
        return name.partition(":")[0] == self.kind

    @abc.abstractmethod
    def unit(self, function: PrimFunc, symbol: str) -> bytes:
        """Compile a kernel for a pack: to a part of its own, or to input for ``join``.

        Raises:
            CompileError: the kernel does not compile.
        """

    @abc.abstractmethod
    def is_unit(self, content: bytes, symbol: str) -> bool:
        """Whether the content may be the result of ``unit``, on any machine."""

    def require_join(self) -> None:  # noqa: B027 - most targets need nothing
        """Find what ``join`` needs, before hours are spent on units.

        Raises:
            CompileError: a tool is missing.
        """

    def join(self, units: Mapping[str, bytes]) -> bytes:
        """Join several units, given by symbol, into one part.

        Raises:
            CompileError: a tool that it needs is missing.
        """
        raise NotImplementedError(self.kind)

    @abc.abstractmethod
    def open(self, artifact: Artifact) -> Any:
        """Load a part of a pack. The result is passed to ``entry``."""

    @abc.abstractmethod
    def entry(self, opened: Any, symbol: str) -> Launcher:
        """A kernel of a loaded part.

        Raises:
            CompileError: the part has no kernel of this name.
        """

    # -- Kernels ----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def build(self, function: PrimFunc) -> Build:
        """Compile a kernel.

        Raises:
            CompileError: the kernel does not compile.
        """

    @abc.abstractmethod
    def load(self, artifact: Artifact) -> Launcher:
        """Load an artifact that ``Build.write`` made. This imports no compiler."""

    def launch(self, launcher: Launcher, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]) -> Launch:
        """Prepare a loaded kernel for launches, with its integer arguments and its temporaries (type, number of elements)."""
        at_hand("tvmdml.targets._launch")
        from tvmdml.targets._launch import RuntimeLaunch

        return RuntimeLaunch(launcher, scalars, temporaries)

    def sequence(self, steps: Sequence[SequenceStep], slots: int) -> ReadySequence:
        """Launches that run in turn by one call.

        Args:
            steps: the launches, each with the places of its arrays.
            slots: how many arrays there are to find places in: each call is given one for each slot.

        Raises:
            ValueError: a place has a slot that does not exist, or a negative offset.
        """
        at_hand("tvmdml.targets._sequence")
        from tvmdml.targets._sequence import InTurn

        return InTurn(steps, slots)

    @abc.abstractmethod
    def source(self, function: PrimFunc, kind: str) -> str:
        """The compiled kernel as text; ``kind`` is one of the kinds of text that the target has."""

    def check_size(self, where: str, nbytes: int) -> None:  # noqa: B027 - most targets allow all that fits in memory
        """Refuse a tensor that kernels of this target cannot access.

        Raises:
            Unsupported: it is too large; ``where`` names it in the message.
        """

    def __repr__(self) -> str:
        """Return the name."""
        return self.name

    def __eq__(self, other: object) -> bool:
        """Targets with equal names are equal."""
        return isinstance(other, Target) and other.name == self.name

    def __hash__(self) -> int:
        """Return the hash of the name."""
        return hash(self.name)


def kinds() -> list[str]:
    """The kinds of target that exist: the packages in this folder."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def target_class(kind: str) -> type[Target]:
    """The class of a kind."""
    at_hand(f"{__name__}.{kind}")
    return importlib.import_module(f"{__name__}.{kind}").TARGET


def resolve(text: str | Target | Home, where: str = _TARGET) -> Target:
    """The target for a string such as ``"cpu"``, ``"cpu:x86-64-v3"`` or ``"vulkan:0"``, or an array's target.

    Args:
        text: the string, or a target, which is returned as it is.
        where: the name of the argument in error messages.

    Raises:
        InvalidArgument: there is no such target.
        DeviceError: this machine has no such kind of device, or no driver for it.
    """
    if isinstance(text, Target):
        return text
    if type(text).__name__ == "device":  # PyTorch's device: its text has the form of a target
        text = str(text)
    if not issubclass(type(text), str):  # an object may say that it is of another class
        raise _unknown(text, where)
    try:
        return _resolved(str.__str__(text))  # a subclass of str may override __str__
    except (InvalidArgument, Unsupported) as error:
        raise type(error)(re.sub(f"^{_TARGET}", where, str(error))) from None


def _unknown(text: object, where: str = _TARGET) -> InvalidArgument:
    return InvalidArgument(message(where, safe_repr(text), ", ".join(kinds()), "`tvmdml devices` lists them."))


@functools.lru_cache(maxsize=64)
def _resolved(text: str) -> Target:
    kind, _, rest = text.strip().lower().partition(":")
    if kind not in kinds():
        raise _unknown(text)
    with whole():
        return target_class(kind).parse(rest)


def elsewhere(text: str) -> tuple[Target, ...]:
    """The targets to build for, on whichever machine has them (``cpu:x86-64-v2``, ``cuda:sm_80,sm_90``).

    Raises:
        InvalidArgument: there is no such target.
        DeviceError: the string names a device of this machine, and there is none.
    """
    kind, _, rest = text.strip().lower().partition(":")
    if kind not in kinds():
        raise _unknown(text)
    return target_class(kind).elsewhere(rest)


def gpus(kind: str) -> list[dict[str, str]]:
    """The rows of a kind's GPUs that work. A Vulkan driver that computes on the processor is none: its name chooses it."""
    try:
        rows = target_class(kind).devices()
    except TvmdmlError:
        return []
    return [row for row in rows if row["state"].startswith("ready") and not row["device"].endswith(", CPU")]


def shown(target: Target) -> str:
    """The name of the target's device, for display."""
    return next((row["device"] for row in target.devices() if row["target"] == target.name), target.name)
