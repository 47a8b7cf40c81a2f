"""CUDA: kernels for NVIDIA's GPUs, compiled on any machine, with or without a GPU, and launched through the driver alone."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from tvmdml.errors import DeviceError, InvalidArgument, TvmdmlError, message
from tvmdml.system import not_collected
from tvmdml.targets import Launch, Launcher, Machine, ReadySequence, SequenceStep, Target
from tvmdml.targets._device import DeviceTarget
from tvmdml.targets._program import DeviceFunction, KernelProgram
from tvmdml.targets.cuda import architectures, driver

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


class CudaTarget(DeviceTarget):
    """A GPU, such as ``cuda:0``, or architectures to compile for, such as ``cuda:sm_80,sm_90``, which need not be present."""

    kind: ClassVar[str] = "cuda"
    suffixes = (".cuda",)
    sources = ("", "architectures", "calls", "compilers", "cubin", "prelude", "source", "terms")
    subgroup_size = lockstep = 32
    max_threads = 1024
    max_shared_bytes = 48 << 10
    lookback = True
    max_groups = (1 << 31) - 1

    def __init__(self, names: tuple[str, ...], info: driver.DeviceInfo | None = None) -> None:
        super().__init__(f"cuda:{','.join(names)}" if info is None else f"cuda:{info.index}")
        self.architectures = names
        """The architectures that kernels are compiled for, the oldest first."""
        self.info = info
        self._largest = architectures.of(names)

    @property
    def code(self) -> str:
        """Devices of one architecture share kernels, including those that were compiled for it on another machine."""
        return f"cuda {','.join(self.architectures)}"

    @property
    def spec_name(self) -> str:
        """The target's architectures."""
        return f"cuda:{','.join(self.architectures)}"

    @property
    def families(self) -> tuple[str, ...]:
        """The kind, and the kind with the newest architecture."""
        return ("cuda", self.architectures[-1])

    def machine(self) -> Machine:
        """The architectures, and the name of the device if the target is one."""
        return Machine(self.spec_name, "" if self.info is None else f"{self.info.name}, {self.info.arch}", 0)

    @property
    def home(self) -> Target:
        """The device that holds the arrays: for architectures, the first device here that can run code for them."""
        if self.info is not None:
            return self
        forms = [*self.architectures, self.architectures[-1].replace("sm", "compute")]
        for info in driver.devices():
            if not info.problem and architectures.best(forms, info.arch) is not None:
                return _of(info)
        shown = ", ".join(f"cuda:{info.index} is {info.arch}" for info in driver.devices())
        raise DeviceError(f"{self.name}: no device here runs code for it ({shown or 'there is none'})")

    @property
    def device(self) -> driver.Device:
        """The opened device."""
        home = self.home
        assert isinstance(home, CudaTarget)
        assert home.info is not None
        return driver.open_device(home.info.index)

    def tasks(self) -> int:
        """As many groups of 256 as the architecture's largest device holds, so that all its devices make the same decisions."""
        return self._largest.processors * self._largest.threads // 256

    def has(self, feature: str) -> bool:
        """Whether one of the architectures has a feature; the others' code does the same without it."""
        return any(architectures.has(name, feature) for name in self.architectures)

    @classmethod
    def parse(cls, text: str) -> CudaTarget:
        """``""`` is the first GPU; otherwise a GPU's number, a part of its name, or architectures (``sm_80,sm_90``)."""
        if text.startswith(("sm", "compute")):
            return cls(architectures.parse(text))
        try:
            found = driver.devices()
        except DeviceError as error:
            raise DeviceError(f"{error} To compile without a GPU, name architectures: 'cuda:sm_90'.") from None
        usable = [info for info in found if not info.problem]
        matching = [info for info in found if text == str(info.index)] or [info for info in usable if text in info.name.lower()]
        if not usable or (matching and matching[0].problem):
            problem = next((info.problem for info in matching or found), "there is no GPU here")
            raise DeviceError(f"cuda: {problem}")
        if not matching:
            shown = ", ".join([*(f"cuda:{info.index} ({info.name})" for info in usable), "cuda:sm_90"])
            advice = "Give a number, a part of a device's name, or architectures to compile for."
            raise InvalidArgument(message("target", f"'cuda:{text}'", shown, advice))
        return _of(matching[0])

    @classmethod
    def elsewhere(cls, text: str) -> tuple[CudaTarget, ...]:
        """One target for each architecture of a list, each with its own PTX: schedules decide differently for each."""
        named = cls.parse(text)
        return tuple(cls((name,)) for name in named.architectures)

    def relatives(self, codes: Iterable[str]) -> Iterator[CudaTarget]:
        """For a device, the architectures whose code or PTX it runs, the newest first; for architectures, only themselves."""
        named = {code.removeprefix("cuda ") for code in codes if code.startswith("cuda ")}
        names = {name for name in named if architectures.is_one(name)}
        if self.info is None:
            usable = [name for name in reversed(self.architectures) if name in names]
        else:
            ptx = {name: name.replace("sm", "compute") for name in names}
            usable = [name for name in names if architectures.best((name, ptx[name]), self.info.arch) is not None]
            usable.sort(key=architectures.number, reverse=True)
        for name in usable:
            yield _relative(name, self.info)

    @classmethod
    def devices(cls) -> list[dict[str, str]]:
        """One row for each device, or one row that says what is missing."""
        from tvmdml.targets.cuda import compilers

        try:
            found = driver.devices()
        except DeviceError as error:
            found, state = (), str(error)
        else:
            state = "the driver is installed, but there is no GPU"
        try:
            compiler = f"compiles with {compilers.describe()}"
        except TvmdmlError as error:
            compiler = str(error).removeprefix("cuda: ")
        if not found:
            return [{"target": "cuda", "device": "none", "state": f"{compiler}; {state.removeprefix('cuda: ')}"}]
        return [
            {
                "target": f"cuda:{info.index}",
                "device": f"{info.name}, {info.arch}",
                "state": info.problem or f"ready; CUDA {info.driver}; {compiler}",
            }
            for info in found
        ]

    def program(self, function: PrimFunc) -> KernelProgram:
        """Compile for all architectures."""
        return compile_function(function, self.architectures)

    def loaded(self, program: KernelProgram) -> Launcher:
        """Keep the program as it is; a device loads it at its first launch there."""
        from tvmdml.targets.cuda.launch import Loaded

        return Loaded(program)

    def launch(self, launcher: Launcher, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]) -> Launch:
        """A launch with the program's integers evaluated."""
        from tvmdml.targets.cuda.launch import CudaLaunch, Loaded

        assert isinstance(launcher, Loaded)
        return CudaLaunch(self, launcher, scalars, temporaries)

    def sequence(self, steps: Sequence[SequenceStep], slots: int) -> ReadySequence:
        """Launched together on the current stream."""
        from tvmdml.targets._device_sequence import DeviceSequence

        return DeviceSequence(self, steps, slots)

    def source(self, function: PrimFunc, kind: str) -> str:
        """``cuda``: C++. ``ptx`` and ``sass``: for the newest architecture; ``sass`` needs one of NVIDIA's tools."""
        from tvmdml.targets.cuda import compilers

        if kind not in ("cuda", "ptx", "sass"):
            raise InvalidArgument(message("source kind", repr(kind), "tir, cuda, ptx, sass"))
        text = translate(function)[0]
        if kind == "cuda":
            return text
        images = {image.form: image.content for image in compilers.compile_text(text, self.architectures[-1:])}
        if kind == "ptx":
            return images[self.architectures[-1].replace("sm", "compute")].rstrip(b"\0").decode()
        return compilers.sass(images[self.architectures[-1]])


@functools.cache
def _of(info: driver.DeviceInfo) -> CudaTarget:
    """One target object for each device, however it is named: comparing the devices of arrays is then faster."""
    return CudaTarget((info.arch,), info)


@functools.cache
def _relative(name: str, info: driver.DeviceInfo | None) -> CudaTarget:
    """A device, as a target for one of the architectures whose code it runs."""
    return CudaTarget((name,), info)


def translate(function: PrimFunc) -> tuple[str, KernelProgram]:
    """The CUDA C++ of a TensorIR function, and its program without the images.

    Raises:
        CompileError: TVM rejects it, or CUDA has no equivalent.
    """
    from tvmdml.targets._lower import launches, lower
    from tvmdml.targets.cuda.source import emit, unit

    with not_collected():
        lowered = lower(function)
        emitted = {name: emit(device_function) for name, device_function in lowered.functions.items()}
    steps, reads, writes = launches(lowered, emitted, {name: number for number, name in enumerate(emitted)})
    functions = tuple(DeviceFunction(f.name, -1, len(f.buffers), f.block, f.block_bytes, f.threads) for f in emitted.values())
    return unit(list(emitted.values())), KernelProgram((), functions, steps, len(lowered.parameters), reads, writes)


def compile_function(function: PrimFunc, names: Sequence[str]) -> KernelProgram:
    """The program of a TensorIR function, with machine code for architectures.

    Raises:
        CompileError: as ``translate``; or there is no compiler, or the compiler rejects the text.
    """
    from tvmdml.targets.cuda import compilers

    text, program = translate(function)
    return program._replace(images=compilers.compile_text(text, names))


TARGET = CudaTarget
