"""The code generators for devices, as their tests see them: a machine runs kernels, each on arrays that it changes in place."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from expressions import Rule, Written, settled, written
from kernels import Example
from support import Array, assert_same_bits

from tvmdml import tensorir as T
from tvmdml.targets import Target
from tvmdml.targets._program import evaluate
from tvmdml.targets.cuda import CudaTarget, compilers, source
from tvmdml.targets.vulkan import VulkanTarget, spirv


class Run(NamedTuple):
    """A kernel, and what it is given: arrays are changed in place. Parameters go by name."""

    kernel: Written
    arguments: Mapping[str, Any]

    def given(self) -> list[Any]:
        return [self.arguments[name] for name in self.kernel.parameters]

    def groups(self) -> int:
        scalars = [0 if isinstance(value, np.ndarray) else int(value) for value in self.arguments.values()]
        return int(evaluate(self.kernel.groups, scalars))


class Machine:
    """A device that kernels are generated for."""

    kind: str
    warp: int
    """Threads that exchange values without memory."""
    denormals = True
    """Whether it computes with denormals; other devices may take them for zeros."""
    narrow = True
    """Whether float16 keeps all its bits wherever it is only moved."""
    device: Any

    def run(self, *runs: Run) -> list[Any]:
        """Run one kernel after the other; returns what was generated for each."""
        raise NotImplementedError

    def give(self, examples: Mapping[str, Example]) -> list[Any]:
        """Run examples, and look at what comes of each."""
        generated = self.run(*(Run(example.kernel, example.arguments) for example in examples.values()))
        for name, example in examples.items():
            example.check(name, self.denormals)
        return generated

    def uploaded(self, run: Run, places: Any) -> list[Any]:
        """The device's memories of a kernel's buffers."""
        memories = []
        for place in places:
            array = run.given()[place]
            memories.append(self.device.allocate(max(array.nbytes, 4)))
            self.device.upload(memories[-1], 0, array)
        return memories

    def download(self, run: Run, generated: Any, memories: list[Any]) -> None:
        """Fetch the arrays; those that the generator says are only read have not changed."""
        for place, memory, is_written in zip(generated.buffers, memories, generated.writes, strict=True):
            array = run.given()[place]
            before = array.copy()
            self.device.download(memory, 0, array)
            assert is_written or array.tobytes() == before.tobytes()

    def same(self, actual: Array, expected: Array, what: str) -> None:
        """The same bits, but that a NaN is a NaN."""
        try:
            assert_same_bits(settled(actual, self.denormals), settled(expected, self.denormals))
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error


class CudaMachine(Machine):
    """A GPU, or the emulator. Kernels are compiled together, since the compiler is the slow part."""

    kind, warp = "cuda", 32

    def __init__(self, target: Target, form: str | None = None) -> None:
        assert isinstance(target, CudaTarget)
        self.device = target.device
        self.form = form or self.device.info.arch
        """The architecture to compile for."""

    def run(self, *runs: Run) -> list[source.Emitted]:
        emitted = [
            source.emit(run.kernel.function.with_attr("global_symbol", f"kernel_{number}")) for number, run in enumerate(runs)
        ]
        images = {image.form: image.content for image in compilers.compile_text(source.unit(emitted), [self.form])}
        module = self.device.module(images[self.form])
        for one, run in zip(emitted, runs, strict=True):
            memories = self.uploaded(run, one.buffers)
            block = _packed(one.block_bytes, one.scalars, one.block, run)
            parameters = struct.pack(f"<{len(memories)}Q", *(memory.address for memory in memories)) + block
            self.device.launch(module.function(one.name), (run.groups(), 1, 1), one.threads, parameters, 0)
            self.download(run, one, memories)
        return emitted


class VulkanMachine(Machine):
    """A Vulkan device, or as much of it as some capabilities say."""

    kind, denormals = "vulkan", False

    def __init__(self, target: Target, **lacking: bool) -> None:
        assert isinstance(target, VulkanTarget)
        self.device = target.device
        self.capabilities = target.device.capabilities._replace(**lacking)
        self.narrow, self.warp = self.capabilities.float16, self.capabilities.subgroup_size

    def run(self, *runs: Run) -> list[spirv.Shader]:
        shaders = [spirv.emit(run.kernel.function, self.capabilities) for run in runs]
        for shader, run in zip(shaders, runs, strict=True):
            memories = self.uploaded(run, shader.buffers)
            sizes = [memory.nbytes for memory in memories]
            pipeline = self.device.pipeline(shader.code, len(memories), shader.push_bytes)
            push = _packed(shader.push_bytes, shader.scalars, shader.push, run)
            bindings = [(memory, 0, size) for memory, size in zip(memories, sizes, strict=True)]
            self.device.dispatch(pipeline, bindings, push, (run.groups(), 1, 1))
            self.download(run, shader, memories)
        return shaders


def _packed(size: int, scalars: Any, layout: Any, run: Run) -> bytes:
    """A kernel's scalars, as it is given them."""
    block = bytearray(size)
    for (place, _), (offset, form) in zip(scalars, layout, strict=True):
        struct.pack_into(f"<{form}", block, offset, run.given()[place])
    return bytes(block)


# -- Functions of elements -------------------------------------------------------------------------------------------

Outputs = Mapping[str, tuple[str, Callable[..., Any]]]


class Case(NamedTuple):
    """Each output is a function of the inputs' elements: its type, and how it is computed. All of them in one kernel."""

    inputs: Mapping[str, Array]
    outputs: Outputs
    expected: Mapping[str, Array]


def case_of(rules: Mapping[str, Rule], a: Array, b: Array, result: str | None = None) -> Case:
    """What the rules make of two arrays."""
    with np.errstate(all="ignore"):
        expected = {name: reference(a, b).astype(result or a.dtype) for name, (_, reference) in rules.items()}
    return Case({"a": a, "b": b}, {name: (result or str(a.dtype), compute) for name, (compute, _) in rules.items()}, expected)


def kernel_of(case: Case) -> Written:
    count = next(iter(case.inputs.values())).size

    def body(i: Any, *buffers: Any) -> None:
        sources, results = buffers[: len(case.inputs)], buffers[len(case.inputs) :]
        with T.when(i < count):
            values = [T.let(source[i]) for source in sources]
            for result, (_, compute) in zip(results, case.outputs.values(), strict=True):
                T.store(result, i, compute(*values))

    types = {name: str(x.dtype) for name, x in case.inputs.items()} | {name: dtype for name, (dtype, _) in case.outputs.items()}
    return written({f"{name}*": dtype for name, dtype in types.items()}, body, groups=-(-count // 64))


def computed(machine: Machine, cases: Mapping[str, Case]) -> dict[str, dict[str, Array]]:
    """The outputs of all cases."""
    runs, found = [], {}
    for name, case in cases.items():
        count = next(iter(case.inputs.values())).size
        found[name] = {output: np.zeros(count, dtype) for output, (dtype, _) in case.outputs.items()}
        runs.append(Run(kernel_of(case), {**case.inputs, **found[name]}))
    machine.run(*runs)
    return found


def check(machine: Machine, cases: Mapping[str, Case]) -> None:
    """Each case's outputs are what is expected."""
    for name, outputs in computed(machine, cases).items():
        for output, actual in outputs.items():
            machine.same(actual, cases[name].expected[output], f"{output} of {name}")
