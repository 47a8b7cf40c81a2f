"""WHERE an operator runs: one room a target, found by its name, with no list of them anywhere."""

from __future__ import annotations

import abc
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from tvmdml._whole import whole
from tvmdml.errors import CompileError, InvalidArgument, message, safe_repr
from tvmdml.tuning.terms import Machine

if TYPE_CHECKING:
    import numpy as np
    from tvm.tirx import PrimFunc

    from tvmdml.arrays import NumpyArray
    from tvmdml.kernel import Kernel
    from tvmdml.knobs import Value
    from tvmdml.operators import Operator
    from tvmdml.stores import Artifact
    from tvmdml.targets.cpu.caches import Caches
    from tvmdml.tuning.logs import Logs

Launcher: TypeAlias = Any
"""A loaded kernel, in the form that its target's ``launch`` takes: the CPU's is called with tensors, temporaries and integers."""

Form: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...], bool] | None"
"""What an array must be: type, shape, strides in bytes, and whether it is written to; ``None`` for one that is absent."""


class Launch(Protocol):
    """A kernel with everything it takes but its arrays: NumPy's, or the target's own, in field order. An input may be read-only."""

    def __call__(self, *arrays: NumpyArray) -> None:
        """Launch on arrays that have been checked."""

    def bind(self, *arrays: NumpyArray) -> Callable[[], None]:
        """The same for these arrays again and again: what can be done once is done now."""

    def fit(self, forms: tuple[Form, ...]) -> Callable[..., bool]:
        """Check and launch, where that is quick.

        What is returned takes anything, and says whether these were arrays that have the forms, with no output that may share
        memory with another array, and so were launched on. If not, nothing was done.
        """


class Build(abc.ABC):
    """A kernel that was just compiled."""

    @abc.abstractmethod
    def write(self, folder: Path) -> Path | None:
        """Write the artifact into a folder; ``None`` where this machine cannot make one that ``load`` takes."""

    @abc.abstractmethod
    def launcher(self) -> Launcher:
        """The kernel, held in memory."""


class Target(abc.ABC):
    """A machine to run on. Equal targets have equal ``name``; it is written out in full, never "native"."""

    kind: ClassVar[str]
    """The first part of the name: ``cpu``."""
    schedules: ClassVar[str]
    """The folder of schedules that serves this kind."""
    moves: ClassVar[bool] = False
    """Whether NumPy's arrays are moved to it, with all that lies between their elements."""
    suffixes: tuple[str, ...]
    """Kinds of artifact that ``load`` takes here and now."""
    joins: ClassVar[bool] = False
    """Whether the kernels of a pack are joined to libraries; else each is a part of its own."""
    knobs: Mapping[str, Mapping[str, Value]] = MappingProxyType({})
    """Values of knobs, by operator, that hold for this target in place of the defaults."""
    logs: Logs | None = None
    """The logs of tuning that its schedules go by; ``None`` for those that are installed."""
    sources: ClassVar[tuple[str, ...]] = ("",)
    """The modules of the target's room whose text shapes the code that it makes; the room itself is the empty one."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def code(self) -> str:
        """What compiled kernels depend on: for all targets that agree in it, one kernel will do."""
        return self.name

    @property
    def spec_name(self) -> str:
        """What a pack's spec calls it: a name that means the same on another machine, where there is one."""
        return self.name

    @property
    def families(self) -> tuple[str, ...]:
        """What knobs may have defaults for: machines like this one, the most general name first."""
        return (self.kind,)

    @property
    def caches(self) -> Caches | None:
        """The caches that defaults of knobs are derived from; ``None`` for a device, whose schedules ask for its own limits."""
        return None

    def machine(self) -> Machine:
        """What kind of machine it is: what a log's records hold for. No device is started to tell."""
        return Machine(self.spec_name, "", 0)

    @property
    def home(self) -> Target:
        """Whose memory its arrays lie in: its own, unless it names no device of its own."""
        return self

    @classmethod
    @abc.abstractmethod
    def parse(cls, text: str) -> Target:
        """The target for what follows the kind and a colon; empty for this machine's default.

        Raises:
            InvalidArgument: no such target.
            DeviceError: this machine has none.
        """

    @classmethod
    @abc.abstractmethod
    def devices(cls) -> list[dict[str, str]]:
        """What ``tvmdml devices`` says about this kind on this machine: rows with ``target``, ``device`` and ``state``."""

    @abc.abstractmethod
    def tasks(self) -> int:
        """How many parts work is worth cutting into on this machine."""

    def handover(self) -> int:
        """What it costs to give work to others, in microseconds or so: what a schedule multiplies its least task by."""
        return 1

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array in the target's memory; what it holds is undefined."""
        import numpy as np

        return np.empty(shape, dtype)

    def asarray(self, array: NumpyArray) -> Any:
        """A NumPy array in the target's memory."""
        return array

    def place(self, array: NumpyArray) -> Any:
        """The same, with the same strides."""
        return array

    @contextmanager
    def holding(self, buffers: Iterable[NumpyArray]) -> Iterator[Callable[[Any], Any]]:
        """Have the buffers in the target's memory meanwhile; gives a function from views of them to what those are there."""
        yield lambda array: array

    def wait(self) -> None:  # noqa: B027 - a processor's work is done when the call returns
        """Return when all work that was asked for has been done."""

    # -- Packs ------------------------------------------------------------------------------------------------------

    @classmethod
    def elsewhere(cls, text: str) -> tuple[Target, ...]:
        """What to build for, where a name need not mean a machine that is here: a target for each kind of machine it means.

        Raises:
            InvalidArgument, DeviceError: as ``parse``.
        """
        return (cls.parse(text),)

    def variants(self) -> Iterator[tuple[int, Target]]:
        """This target as it may be met, as far as schedules see it: its threads (0 where that does not matter), and itself."""
        yield 0, self

    def relatives(self, codes: Iterable[str]) -> Iterator[Target]:
        """Of what kernels were compiled for elsewhere (``Target.code``), what runs here, the best first."""
        if self.code in codes:
            yield self

    @abc.abstractmethod
    def unit(self, function: PrimFunc, symbol: str) -> bytes:
        """Compile a kernel for a pack: to a part of its own, or to what ``join`` takes.

        Raises:
            CompileError: it does not compile.
        """

    @abc.abstractmethod
    def is_unit(self, content: bytes, symbol: str) -> bool:
        """Whether it may be what ``unit`` gave, on whichever machine that was."""

    def join(self, units: Mapping[str, bytes]) -> bytes:
        """One part of several units, by their symbols.

        Raises:
            CompileError: what it takes is not here.
        """
        raise NotImplementedError(self.kind)

    @abc.abstractmethod
    def open(self, artifact: Artifact) -> Any:
        """Load a part of a pack, for ``entry``."""

    @abc.abstractmethod
    def entry(self, opened: Any, symbol: str) -> Launcher:
        """A kernel of a part.

        Raises:
            CompileError: it has none of this name.
        """

    # -- Kernels ----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def build(self, function: PrimFunc) -> Build:
        """Compile a kernel.

        Raises:
            CompileError: it does not compile.
        """

    @abc.abstractmethod
    def load(self, artifact: Artifact) -> Launcher:
        """Load an artifact that ``Build.write`` made. Imports no compiler."""

    def launch(self, launcher: Launcher, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]) -> Launch:
        """Make a loaded kernel ready: with its integers, and its temporaries (type, elements)."""
        from tvmdml.targets._launch import RuntimeLaunch

        return RuntimeLaunch(launcher, scalars, temporaries)

    @abc.abstractmethod
    def source(self, function: PrimFunc, kind: str) -> str:
        """The compiled kernel as text; ``kind`` is one that the target knows."""

    def kernel(self, desc: Operator, in_place: bool = False) -> Kernel:
        """What this target's schedules decide for an operator: its own schedule's kernel, or the default's."""
        from tvmdml import knobs, operators

        module = operators.module_of(type(desc))
        kernel: Kernel = _schedule(self.schedules, module).kernel(desc, self, in_place)
        turned = knobs.of(module, self)
        tuning = "" if turned is None else turned.tuned(self, desc, in_place).hash
        return kernel._replace(tuning=tuning) if tuning else kernel

    def __repr__(self) -> str:
        """The name."""
        return self.name

    def __eq__(self, other: object) -> bool:
        """Targets are equal by name."""
        return isinstance(other, Target) and other.name == self.name

    def __hash__(self) -> int:
        """Of the name."""
        return hash(self.name)


@functools.cache
def _schedule(folder: str, module: str) -> Any:
    if importlib.util.find_spec("tvmdml.schedules") is None:
        where = Path(__file__).parents[1]
        advice = "Start Python in another folder, or `pip install -e .` there."
        raise CompileError(f"{where} is a part of tvmdml's source, and has no schedules. {advice}")
    for name in (module, "_default"):
        try:
            return importlib.import_module(f"tvmdml.schedules.{folder}.{name}")
        except ModuleNotFoundError as error:
            if not str(error.name).endswith(f".{name}"):
                raise
    raise AssertionError(f"tvmdml.schedules.{folder} has no _default")


def kinds() -> list[str]:
    """The kinds of target there are, by the rooms beside this file."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def target_class(kind: str) -> type[Target]:
    """The class behind a kind."""
    found: type[Target] = importlib.import_module(f"{__name__}.{kind}").TARGET
    return found


def resolve(text: str | Target) -> Target:
    """The target that a string such as ``"cpu"``, ``"cpu:x86-64-v3"`` or ``"vulkan:0"`` means.

    Raises:
        InvalidArgument: no such target.
        DeviceError: this machine has no such kind of device, or no driver for it.
    """
    if isinstance(text, Target):
        return text
    if type(text).__name__ == "device":  # PyTorch's, which is written as a target is
        text = str(text)
    if not isinstance(text, str):
        raise InvalidArgument(message("target", safe_repr(text), ", ".join(kinds()), "`tvmdml devices` shows what is here."))
    return _resolved(str.__str__(text))  # whatever a class of its own does otherwise


@functools.lru_cache(maxsize=64)
def _resolved(text: str) -> Target:
    kind, _, rest = text.strip().lower().partition(":")
    if kind not in kinds():
        raise InvalidArgument(message("target", safe_repr(text), ", ".join(kinds()), "`tvmdml devices` shows what is here."))
    with whole():
        return target_class(kind).parse(rest)


def elsewhere(text: str) -> tuple[Target, ...]:
    """What to build for: the targets that a string means, on whichever machine has them (``cpu:x86-64-v2``, ``cuda:sm_80,sm_90``).

    Raises:
        InvalidArgument: no such target.
        DeviceError: it means a device of this machine, and there is none.
    """
    kind, _, rest = text.strip().lower().partition(":")
    if kind not in kinds():
        raise InvalidArgument(message("target", safe_repr(text), ", ".join(kinds()), "`tvmdml devices` shows what is here."))
    return target_class(kind).elsewhere(rest)


def shown(target: Target) -> str:
    """The name of the device that is the target."""
    return next((row["device"] for row in target.devices() if row["target"] == target.name), target.name)
