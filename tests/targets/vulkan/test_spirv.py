"""The SPIR-V generator: the generated code, what it declares, what is refused. What it computes: ``test_generated_*``."""

from __future__ import annotations

import math
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import expressions
import kernels
import numpy as np
import pytest
from expressions import Body
from generators import Run, VulkanMachine
from spirv_words import declared, decorations, instructions, widths
from support import assert_same_bits

from tvmdml import errors, targets
from tvmdml import tensorir as T
from tvmdml.targets.vulkan import spirv
from tvmdml.targets.vulkan.capabilities import Capabilities
from tvmdml.targets.vulkan.disassemble import disassemble
from tvmdml.targets.vulkan.spirv_tables import ENUMERANTS, INSTRUCTIONS, STORAGE_CLASS

RICH = Capabilities(
    int8=True,
    int16=True,
    int64=True,
    float16=True,
    float64=True,
    storage8=True,
    storage16=True,
    atomic64=True,
    shared_atomic64=True,
    subgroup_size=32,
    subgroup=("basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle_relative"),
    subgroup_extended_types=True,
    nearest_even=(16, 32, 64),
    keep_special=(16, 32, 64),
    max_threads=1024,
    max_group_size=(1024, 1024, 64),
    max_shared_bytes=32768,
    max_buffers=32,
)


class Written(expressions.Written):
    """A device function, and the names of its parameters."""

    def emit(self, capabilities: Capabilities = RICH) -> spirv.Shader:
        return spirv.emit(self.function, capabilities)


def written(parameters: Mapping[str, str], body: Body, threads: Any = 64, groups: Any = 1) -> Written:
    """The device function whose threads each run ``body(index, *parameters)``; ``name*`` is a buffer, ``name`` a scalar."""
    return Written(*expressions.written(parameters, body, threads, groups))


def emitted(example: kernels.Example) -> spirv.Shader:
    return spirv.emit(example.kernel.function, RICH)


# -- What is generated ------------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_read_in_a_branch() -> None:
    opened, buffers = False, set()
    for name, operands in instructions(emitted(kernels.lazy_reads()).code):
        opened |= name == "BranchConditional"
        if name == "TypePointer" and operands[1] == STORAGE_CLASS["StorageBuffer"]:
            buffers.add(operands[0])
        assert name != "AccessChain" or operands[0] not in buffers or opened
    assert opened


def test_scalars_come_as_push_constants() -> None:
    shader = emitted(kernels.scalars())
    sizes = [struct.calcsize(form) for _, form in shader.push]
    assert sizes == sorted(sizes, reverse=True)
    assert [offset for offset, _ in shader.push] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert shader.push_bytes == sum(sizes)


def test_the_grid_may_depend_on_a_scalar() -> None:
    def body(i: Any, result: Any, count: Any) -> None:
        with T.when(i < count):
            T.store(result, i, T.Cast("int32", i))

    shader = written({"result*": "int32", "count": "int64"}, body, T.const(64, "int64"), lambda _, count: T.max(count, 3)).emit()
    assert not isinstance(shader.grid[0], int)
    assert (shader.grid[1:], shader.block) == ((1, 1), (64, 1, 1))


def test_atomics_are_coherent() -> None:
    assert len(decorations(emitted(kernels.token()).code, "Coherent")) == 3


@pytest.mark.parametrize(
    ("dtype", "lanes", "expected"),
    [
        ("float32", 4, [4]), ("float32", 8, [4, 4]), ("int32", 2, [2]), ("float32", 3, [1, 1, 1]), ("uint8", 16, [4]),
        ("uint8", 8, [2]), ("bool", 4, [1]), ("int8", 2, [0, 0]), ("float16", 8, [4]), ("float16", 2, [1]), ("int64", 2, [4]),
        ("float64", 4, [4, 4]), ("uint32", 12, [4, 4, 4]), ("uint16", 6, [1, 1, 1]),
    ],
)  # fmt: skip
def test_neighbours_are_moved_together(dtype: str, lanes: int, expected: list[int]) -> None:
    def body(i: Any, source: Any, result: Any) -> None:
        T.store(result, T.run(i * lanes, lanes), source[T.run(i * lanes, lanes)])

    code = written({"source*": dtype, "result*": dtype}, body).emit().code
    assert widths(code) == expected * 2
    assert len(decorations(code, "Restrict")) == 2


def test_elements_and_vectors_of_one_buffer_are_said_to_be_the_same_memory() -> None:
    code = spirv.emit(kernels.mixed_access().kernel.function, RICH).code
    assert len(decorations(code, "Aliased")) == 2


def test_a_parameter_may_be_seen_as_another_type(vulkan: targets.Target) -> None:
    def body(i: Any, source: Any, result: Any) -> None:
        bits = T.decl_buffer((64,), "uint32", data=source.data)
        T.store(result, i, bits[i])
        T.store(source, i, source[i] + T.float32(1))

    source, result = np.linspace(-1, 1, 64, dtype=np.float32), np.zeros(64, np.uint32)
    before = source.copy()
    VulkanMachine(vulkan).run(Run(written({"source*": "float32", "result*": "uint32"}, body), {"source": source, "result": result}))
    assert_same_bits(result, before.view(np.uint32))
    assert_same_bits(source, before + np.float32(1))


# -- What is declared, and what is refused ------------------------------------------------------------------------------------


def capabilities_of(dtype: str, compute: Callable[[Any], Any], capabilities: Capabilities = RICH, result: str = "") -> set[str]:
    def body(i: Any, source: Any, target: Any) -> None:
        T.store(target, i, compute(source[i]))

    code = written({"source*": dtype, "target*": result or dtype}, body).emit(capabilities).code
    return declared(code) - {"Shader", "DenormPreserve", "SignedZeroInfNanPreserve", "RoundingModeRTE"}


@pytest.mark.parametrize(
    ("dtype", "needed"),
    [
        ("bool", {"StorageBuffer8BitAccess"}), ("int8", {"StorageBuffer8BitAccess"}), ("uint16", {"StorageBuffer16BitAccess"}),
        ("int32", set()), ("float32", set()), ("uint64", {"Int64"}), ("float64", {"Float64"}),
        ("float16", {"StorageBuffer16BitAccess"}),
    ],
)  # fmt: skip
def test_a_copy_declares_no_arithmetic(dtype: str, needed: set[str]) -> None:
    assert capabilities_of(dtype, lambda x: x) == needed


def test_what_is_declared_is_what_is_used() -> None:
    assert capabilities_of("float16", lambda x: x + x) == {"StorageBuffer16BitAccess", "Float16"}
    assert capabilities_of("float16", lambda x: T.Cast("float32", x) + T.float32(1), result="float32") == {
        "StorageBuffer16BitAccess"
    }
    assert capabilities_of("float16", lambda x: x + x, RICH._replace(float16=False)) == {"StorageBuffer16BitAccess"}
    for dtype in ("int8", "uint8"):  # computed in 32 bits
        assert capabilities_of(dtype, lambda x: x + x * x) == {"StorageBuffer8BitAccess"}
    assert capabilities_of("float32", lambda x: T.Cast("float32", T.Cast("int64", x))) == {"Int64"}
    words = capabilities_of("int64", lambda x: x // x + x * x, RICH._replace(int64=False))
    assert words == set()  # integers of 64 bits are pairs of words
    vote = capabilities_of("int32", lambda x: T.Cast("int32", T.call_extern("bool", "subgroup_any", x > 0)))
    assert vote == {"GroupNonUniform", "GroupNonUniformVote"}


def test_float_rules_are_stated_where_the_device_has_them() -> None:
    def body(i: Any, source: Any, result: Any) -> None:
        T.store(result, i, T.Cast("float16", source[i] + T.float32(1)))

    kernel = written({"source*": "float32", "result*": "float16"}, body)
    modes = [operands[1:] for name, operands in instructions(kernel.emit().code) if name == "ExecutionMode"]
    assert sorted(modes) == [(17, 64, 1, 1), (4461, 16), (4461, 32), (4462, 16), (4462, 32)]
    assert len(decorations(kernel.emit().code, "NoContraction")) == 1
    assert not decorations(kernel.emit().code, "FPRoundingMode")
    bare = kernel.emit(RICH._replace(nearest_even=(), keep_special=())).code
    assert [operands[1] for name, operands in instructions(bare) if name == "ExecutionMode"] == [17]
    assert len(decorations(bare, "FPRoundingMode")) == 1


def test_buffers_say_how_they_are_used() -> None:
    def body(i: Any, source: Any, result: Any, both: Any) -> None:
        T.store(result, i, source[i])
        T.store(both, i, both[i] + 1)

    shader = written({"source*": "int32", "result*": "int32", "both*": "int32"}, body).emit()
    assert sum(shader.reads) == sum(shader.writes) == 2
    assert [len(decorations(shader.code, name)) for name in ("NonWritable", "NonReadable", "Restrict", "Aliased")] == [1, 1, 3, 0]


def store_of(dtype: str, value: Callable[..., Any]) -> Written:
    def body(i: Any, source: Any, result: Any) -> None:
        T.store(result, i, value(i, source))

    return written({"source*": dtype, "result*": dtype}, body)


def called(dtype: str, name: str, *arguments: Any) -> Callable[..., Any]:
    return lambda i, source: T.call_extern(dtype, name, T.address_of(source[i]), *arguments)


REFUSED: dict[str, tuple[Callable[[], Written], dict[str, Any], str]] = {
    "float64": (lambda: store_of("float64", lambda i, x: x[i]), {"float64": False}, "the device lacks shaderFloat64"),
    "8 bits": (lambda: store_of("int8", lambda i, x: x[i]), {"storage8": False}, "the device lacks storageBuffer8BitAccess"),
    "16 bits": (lambda: store_of("float16", lambda i, x: x[i]), {"storage16": False}, "the device lacks storageBuffer16BitAccess"),
    "exp of float64": (lambda: store_of("float64", lambda i, x: T.exp(x[i])), {}, "exp of float64: Vulkan supports it only up to"),
    "unknown function": (
        lambda: store_of("float32", lambda i, x: T.call_extern("float32", "frobnicate", x[i])),
        {},
        "main_kernel: cannot translate Call tirx.call_extern of frobnicate to SPIR-V",
    ),
    "unknown intrinsic": (lambda: store_of("float32", lambda i, x: T.nextafter(x[i], x[i])), {}, "cannot translate .*nextafter"),
    "atomic of float": (lambda: store_of("float32", called("float32", "atomic_add", 1.0)), {}, "atomic_add on float32 in Storage"),
    "atomic of 16 bits": (lambda: store_of("uint16", called("uint16", "atomic_max", 1)), {}, "atomic_max on uint16 in Storage"),
    "atomic of 64 bits": (
        lambda: store_of("int64", called("int64", "atomic_load")),
        {"atomic64": False},
        "the device lacks shaderBufferInt64Atomics",
    ),
    "atomic of a number": (
        lambda: store_of("int32", lambda i, x: T.call_extern("int32", "atomic_load", x[i])),
        {},
        r"atomic_load needs address_of\(buffer\[index\]\)",
    ),
    "subgroups": (
        lambda: store_of("int32", lambda i, x: T.call_extern("int32", "subgroup_add", x[i])),
        {"subgroup": ("basic",)},
        "subgroup_add: the device lacks subgroup operations of the group 'arithmetic'",
    ),
    "buffers": (
        lambda: store_of("int32", lambda i, x: x[i]),
        {"max_buffers": 1},
        "storage buffers: given 2; allowed: up to 1 on this device",
    ),
    "threads": (
        lambda: store_of("int32", lambda i, x: x[i]),
        {"max_threads": 32},
        "threads in a group: given 64; allowed: up to 32 on this device",
    ),
    "threads along x": (
        lambda: store_of("int32", lambda i, x: x[i]),
        {"max_group_size": (32, 64, 64)},
        "threads in a group along x: given 64; allowed: up to 32 on this device",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_name(case: str) -> None:
    make, lacking, words = REFUSED[case]
    kernel = make()
    if lacking:
        kernel.emit()
    with pytest.raises(errors.CompileError, match=words):
        kernel.emit(RICH._replace(**lacking))


def test_memory_past_the_limits_is_refused() -> None:
    def body(i: Any, source: Any, result: Any, *scalars: Any) -> None:
        shared = T.alloc_buffer((1024,), "int8", scope="shared")
        T.store(shared, i, T.Cast("int8", source[i]))
        T.evaluate(T.tvm_storage_sync("shared"))
        T.store(result, i, T.Cast("int32", shared[63 - i]) + sum(scalars, T.int32(0)))

    names = {f"s{k}": "int32" for k in range(5)}
    kernel = written({"source*": "int32", "result*": "int32", **names}, body)
    kernel.emit(RICH._replace(max_shared_bytes=1024, max_push_bytes=20))
    with pytest.raises(errors.CompileError, match="push-constant bytes: given 20; allowed: up to 16 on this device"):
        kernel.emit(RICH._replace(max_push_bytes=16))
    with pytest.raises(errors.CompileError, match="shared memory: given 1024 bytes; allowed: up to 1000"):
        kernel.emit(RICH._replace(max_shared_bytes=1000))
    # Without 8-bit arithmetic, each is in a 32-bit word.
    with pytest.raises(errors.CompileError, match="shared memory: given 4096 bytes"):
        kernel.emit(RICH._replace(max_shared_bytes=1024, int8=False))


def test_the_function_is_named_in_what_goes_wrong() -> None:
    kernel = store_of("int32", lambda i, x: x[i])
    named = kernel._replace(function=kernel.function.with_attr("global_symbol", "here"))
    with pytest.raises(errors.CompileError, match=r"^here: "):
        named.emit(RICH._replace(max_threads=1))


# -- Disassembly ----------------------------------------------------------------------------------------------------------------


def _plain_shader() -> spirv.Shader:
    def body(i: Any, source: Any, result: Any, limit: Any) -> None:
        cells = T.alloc_buffer((64,), "float32", scope="shared")
        T.store(cells, i % 64, T.exp(source[i]) + T.float32(0.1))
        T.evaluate(T.tvm_storage_sync("shared"))
        with T.when(i < limit), T.serial(T.const(0, "int32"), limit) as j:
            T.store(result, i, cells[j] + T.float32(math.inf) * T.Cast("float32", T.int64(2**40 + 1)))

    return written({"source*": "float32", "result*": "float32", "limit": "int32"}, body).emit()


def test_assembly_reads_like_the_khronos_groups() -> None:
    text = disassemble(_plain_shader().code)
    assert "%float = OpTypeFloat 32" in text
    assert 'OpEntryPoint GLCompute %main "main"' in text
    assert "OpExecutionMode %main LocalSize 64 1 1" in text
    assert "OpDecorate %LocalInvocationId BuiltIn LocalInvocationId" in text
    assert "OpExtInst %float %1 Exp" in text
    assert "OpLoopMerge" in text
    assert "%float_0_1" in text


def tool(name: str) -> str:
    """A program of SPIRV-Tools; skips the test where that is not installed."""
    found = shutil.which(name)
    if found is None:
        assert os.environ.get("TVMDML_EXPECT_VULKAN") != "1", f"{name} is not here"
        pytest.skip(f"{name} is not installed: apt-get install spirv-tools")
    return found


def test_assembly_is_the_khronos_groups_but_for_names() -> None:
    command = [tool("spirv-dis"), "--no-header", "--no-indent", "--raw-id", "-"]
    theirs = subprocess.run(command, input=_plain_shader().code, capture_output=True, check=True).stdout.decode()

    def without_names(text: str) -> list[str]:
        return [re.sub(r"%\w+", "%", line.strip()) for line in text.splitlines() if line.strip()]

    assert without_names(disassemble(_plain_shader().code)) == without_names(theirs)


def test_assembly_assembles_to_the_same_instructions() -> None:
    code = _plain_shader().code
    command = [tool("spirv-as"), "--target-env", "spv1.5", "-o", "-", "-"]
    again = subprocess.run(command, input=disassemble(code).encode(), capture_output=True, check=True).stdout
    assert [(name, len(operands)) for name, operands in instructions(again)] == [
        (name, len(operands)) for name, operands in instructions(code)
    ]


@pytest.mark.parametrize("code", [b"", b"abc", bytes(20), struct.pack("<6I", 0x07230203, 0x10500, 0, 1, 0, 1 << 16 | 9999)])
def test_what_is_no_module_is_not_disassembled(code: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a SPIR-V module|is unknown"):
        disassemble(code)


def test_every_instruction_states_its_operands() -> None:
    for name, instruction in INSTRUCTIONS.items():
        assert instruction.operands.count("*") <= 1, name
        assert not set(instruction.operands) - {*"trinslx*", *ENUMERANTS}, name
