"""Vulkan: kernels as SPIR-V, for any GPU with a Vulkan driver, and for the CPU through Mesa's driver."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from tvmdml.errors import DeviceError, InvalidArgument, Lacking, Unsupported, message
from tvmdml.system import not_collected
from tvmdml.targets import Launch, Launcher, Machine, ReadySequence, SequenceStep, Target
from tvmdml.targets._device import DeviceTarget
from tvmdml.targets._program import DeviceFunction, Image, KernelProgram
from tvmdml.targets.vulkan import driver, physical
from tvmdml.targets.vulkan.capabilities import PROFILES, Capabilities

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.targets.vulkan.spirv import Shader


_CPU_TASKS = 16
"""The number of groups that keeps a CPU busy."""


class VulkanTarget(DeviceTarget):
    """A Vulkan device, such as ``vulkan:0``, or a set of features that many devices have, such as ``vulkan:desktop``."""

    kind: ClassVar[str] = "vulkan"
    suffixes = (".spirv",)
    _tasks = 0
    sources = (
        "", "capabilities", "spirv", "spirv_arithmetic", "spirv_calls", "spirv_exact", "spirv_matrices", "spirv_memory",
        "spirv_module", "spirv_pairs", "spirv_rounding", "spirv_tables",
    )  # fmt: skip

    def __init__(self, name: str, found: Capabilities, info: driver.DeviceInfo | None) -> None:
        super().__init__(f"vulkan:{name}")
        self.info = info
        """The device; ``None`` for a set of features to compile for."""
        self.capabilities = found
        self.subgroup_size = found.subgroup_size
        self.max_threads = min(found.max_threads, found.max_group_size[0])
        self.max_shared_bytes = found.max_shared_bytes
        self.lookback = found.lookback
        self.max_groups = 65535
        self.most_arrays = found.max_buffers

    @property
    def code(self) -> str:
        """Devices with equal capabilities share kernels."""
        return f"vulkan {self.capabilities.text()}"

    def machine(self) -> Machine:
        """The name of the device, if the target is one: the name implies the capabilities."""
        return Machine("vulkan", "" if self.info is None else f"{self.info.name}, {self.info.type}", 0)

    @property
    def device(self) -> driver.Device:
        """The opened device."""
        if self.info is None:
            raise DeviceError(f"{self.name} is a set of features to compile for, not a device. `tvmdml devices` lists devices.")
        return driver.open_device(self.info.index)

    def flushed(self) -> frozenset[str]:
        """As the device answers when it is asked, once."""
        from tvmdml.targets.vulkan import subnormals

        return frozenset() if self.info is None else subnormals.flushed(self.info)

    def tasks(self) -> int:
        """Few, if the device is really a CPU."""
        if self._tasks:
            return self._tasks
        return _CPU_TASKS if self.info is not None and self.info.type == "CPU" else super().tasks()

    @property
    def is_cpu(self) -> bool:
        """As the driver says, or as a variant is meant."""
        return self.tasks() == _CPU_TASKS

    @property
    def max_rounds(self) -> int | None:
        """That of Mesa's driver for the CPU."""
        return 65535 if self.is_cpu else None

    @classmethod
    def elsewhere(cls, text: str) -> tuple[VulkanTarget, ...]:
        """A named set of features (``core``, ``desktop``), or the features of a device of this machine."""
        if text in PROFILES:
            return (cls(text, PROFILES[text], None),)
        try:
            found = cls.parse(text)
        except (DeviceError, InvalidArgument) as error:
            profiles = ", ".join(f"vulkan:{name}" for name in PROFILES)
            raise type(error)(f"{error} To compile for devices of other machines: {profiles}.") from None
        return (cls(text or "0", found.capabilities, None),)

    def variants(self) -> Iterator[tuple[int, Target]]:
        """The target as a GPU, and as a driver for the CPU."""
        for tasks in (super().tasks(), _CPU_TASKS):
            variant = VulkanTarget(self.name.partition(":")[2], self.capabilities, None)
            variant._tasks, variant.knobs, variant.logs = tasks, self.knobs, self.logs
            yield tasks, variant

    def relatives(self, codes: Iterable[str]) -> Iterator[Target]:
        """The target itself first, then the sets of features that it includes, the largest first."""
        usable = []
        for code in codes:
            if code.startswith("vulkan "):
                with contextlib.suppress(ValueError):
                    found = Capabilities.parse(code.removeprefix("vulkan "))
                    if self.capabilities.runs(found):
                        usable.append(found)
        usable.sort(key=lambda found: (found == self.capabilities, len(found.text())), reverse=True)
        for found in usable:
            yield _relative(self.name.partition(":")[2], found, self.info)

    def has(self, feature: str) -> bool:
        """By the name of a capability, or by ``subgroup_`` and a group of operations."""
        if feature.startswith("subgroup_") and feature != "subgroup_extended_types":
            return feature.removeprefix("subgroup_") in self.capabilities.subgroup
        if feature in ("tensor_cores", "async_copies", "packed_floats", "predicates", "unrolled_loops"):
            return False
        return bool(getattr(self.capabilities, feature))

    def matrices(self, dtype: str) -> tuple[int, int, int] | None:
        """As the driver says; of float16 where there is arithmetic with it, too."""
        if dtype == "float16" and not self.has("float16"):
            return None
        found = (one.split("x") for one in self.capabilities.matrices)
        return next(((int(m), int(n), int(k)) for kind, m, n, k in found if kind == dtype), None)

    def lacking(self, function: PrimFunc) -> str:
        """Found by translating the kernel, on devices that lack something at all."""
        if not all(self.has(feature) for feature in ("storage8", "storage16", "float64")):
            try:
                self.program(function)
            except Lacking as error:
                return error.feature
        return ""

    def advice(self, feature: str) -> str:
        """A set of features that has it, if this one is no device."""
        fields = [field for names in physical.FEATURES.values() for field, called in names.items() if called == feature]
        having = [name for name, one in PROFILES.items() if any(getattr(one, field) for field in fields)]
        return f"Compile it for vulkan:{having[0]}." if self.info is None and having else super().advice(feature)

    @classmethod
    def parse(cls, text: str) -> VulkanTarget:
        """``""`` is the best device present; otherwise a device's number, or a part of its name."""
        found = driver.devices()
        usable = [info for info in found if not info.problem]
        matching = [info for info in found if text == str(info.index)] or [info for info in usable if text in info.name.lower()]
        if not usable or (matching and matching[0].problem):
            problem = next(iter(matching or found)).problem
            raise DeviceError(f"vulkan: {problem}")
        if not matching:
            shown = ", ".join(f"vulkan:{info.index} ({info.name})" for info in usable)
            raise InvalidArgument(message("target", f"'vulkan:{text}'", shown, "Give a number, or a part of a device's name."))
        return _of(matching[0])

    @classmethod
    def devices(cls) -> list[dict[str, str]]:
        """One row for each device, or one row that says what is missing."""
        try:
            found = driver.devices()
        except DeviceError as error:
            return [{"target": "vulkan", "device": "none", "state": str(error)}]
        return [
            {
                "target": f"vulkan:{info.index}",
                "device": f"{info.name}, {info.type}",
                "state": info.problem or f"ready; Vulkan {info.api}; {info.driver}",
            }
            for info in found
        ]

    def check_size(self, where: str, nbytes: int) -> None:
        """Refuse a tensor that is larger than the device's storage buffers."""
        if self.info is None:
            return
        most = self.device.max_storage_range
        if nbytes > most:
            allowed = f"up to {most}, the device's maxStorageBufferRange"
            given = f"{nbytes} bytes on {self.name}"
            raise Unsupported(message(where, given, allowed, "Work in smaller parts, or on another device."))

    def program(self, function: PrimFunc) -> KernelProgram:
        """Compile to SPIR-V."""
        return compile_function(function, self.capabilities)

    def loaded(self, program: KernelProgram) -> Launcher:
        """Create pipelines from a program's shaders."""
        from tvmdml.targets.vulkan.launch import Loaded

        return Loaded(self.device, program)

    def launch(self, launcher: Launcher, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]) -> Launch:
        """A launch with the program's integers evaluated."""
        from tvmdml.targets.vulkan.launch import Loaded, VulkanLaunch

        assert isinstance(launcher, Loaded)
        return VulkanLaunch(self, launcher, scalars, temporaries)

    def sequence(self, steps: Sequence[SequenceStep], slots: int) -> ReadySequence:
        """Recorded together as one command."""
        from tvmdml.targets._device_sequence import DeviceSequence

        return DeviceSequence(self, steps, slots)

    def source(self, function: PrimFunc, kind: str) -> str:
        """``spirv``: SPIR-V as readable assembly."""
        if kind != "spirv":
            raise InvalidArgument(message("source kind", repr(kind), "tir, spirv"))
        from tvmdml.targets.vulkan.disassemble import disassemble

        program = compile_function(function, self.capabilities)
        return "\n".join(f"; {one.name}\n{disassemble(program.images[one.image].content)}" for one in program.functions)


@functools.cache
def _of(info: driver.DeviceInfo) -> VulkanTarget:
    """One target object for each device, however it is named: comparing the devices of arrays is then faster."""
    return VulkanTarget(str(info.index), info.capabilities, info)


@functools.cache
def _relative(name: str, found: Capabilities, info: driver.DeviceInfo | None) -> VulkanTarget:
    """A device, as a target with fewer features."""
    return VulkanTarget(name, found, info)


def compile_function(function: PrimFunc, capabilities: Capabilities) -> KernelProgram:
    """The program of a TensorIR function.

    Raises:
        CompileError: TVM rejects it, or the device lacks a feature that it needs.
    """
    from tvmdml.targets._lower import launches, lower
    from tvmdml.targets.vulkan.spirv import emit
    from tvmdml.targets.vulkan.spirv_module import without_names

    with not_collected():
        lowered = lower(function)
        emitted = {name: emit(device_function, capabilities) for name, device_function in lowered.functions.items()}
    shaders: dict[tuple[object, ...], tuple[str, Shader]] = {}
    numbers: dict[str, int] = {}
    for name, shader in emitted.items():  # similar passes often differ only in their names
        same = (without_names(shader.code), shader.push)
        shaders.setdefault(same, (name, shader))
        numbers[name] = list(shaders).index(same)
    images = tuple(Image("spirv", shader.code) for _, shader in shaders.values())
    functions = tuple(
        DeviceFunction(name, number, len(shader.buffers), shader.push, shader.push_bytes, shader.block)
        for number, (name, shader) in enumerate(shaders.values())
    )
    steps, reads, writes = launches(lowered, emitted, numbers)
    return KernelProgram(images, functions, steps, len(lowered.parameters), reads, writes)


TARGET = VulkanTarget
