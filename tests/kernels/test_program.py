"""Kernels as data: launches read from lowered functions, their expressions, and the files that store them."""

from __future__ import annotations

import json
import operator
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmdml import CompileError
from tvmdml import tensorir as T
from tvmdml.targets._device_launch import DeviceLaunch
from tvmdml.targets._lower import lower
from tvmdml.targets._program import DeviceFunction, Image, KernelProgram, ProgramStep, evaluate
from tvmdml.targets.vulkan import compile_function
from tvmdml.targets.vulkan.capabilities import Capabilities

_REFERENCE = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "truncdiv": lambda a, b: int(np.trunc(np.longdouble(a) / np.longdouble(b))),
    "truncmod": lambda a, b: int(np.fmod(np.int64(a), np.int64(b))), "min": min, "max": max,
    "&": operator.and_, "|": operator.or_,
}  # fmt: skip


@given(st.sampled_from(sorted(_REFERENCE)), st.integers(-(2**40), 2**40), st.integers(-(2**20), 2**20).filter(bool))
def test_operations_are_those_of_integers(name: str, a: int, b: int) -> None:
    assert evaluate((name, ("scalar", 1), b), [0, a]) == _REFERENCE[name](a, b)
    assert evaluate((name, a, ("scalar", 0)), [b]) == _REFERENCE[name](a, b)


def test_shifts() -> None:
    assert evaluate(("<<", ("scalar", 0), 3), [5]) == 40
    assert evaluate((">>", ("scalar", 0), 3), [-41]) == -6


def program() -> KernelProgram:
    images = (Image("spirv", b"\x03\x02\x23\x07"), Image("spirv", b"\x03\x02\x23\x07" * 3))
    functions = (DeviceFunction("one", 0, 2, ((0, "i"), (8, "q")), 16, (8, 1, 1)), DeviceFunction("two", 1, 1, (), 0, (64, 2, 1)))
    steps = (
        ProgramStep(1, (2,), (), (1, 1, 1)),
        ProgramStep(0, (0, 2), (("scalar", 4), ("*", ("scalar", 3), -2)), (("truncdiv", ("scalar", 3), 2), 1, ("scalar", 4))),
    )
    return KernelProgram(images, functions, steps, 5, (0,), (2,))


def test_launches_have_their_numbers() -> None:
    first, second = program().launches((9, 7))
    assert first == (1, (2,), b"", (1, 1, 1))
    assert (second.function, second.buffers, second.groups) == (0, (0, 2), (4, 1, 7))
    assert second.scalars == np.array([7, 0], "<i4").tobytes() + np.array([-18], "<i8").tobytes()


def test_a_program_survives_its_file() -> None:
    assert KernelProgram.from_bytes(program().to_bytes()) == program()


def test_what_is_no_program_is_refused() -> None:
    content = program().to_bytes()
    for wrong in (b"", b"no program", content[:20], content[:-1], content + b"x", content.replace(b'"steps"', b'"stops"')):
        with pytest.raises(ValueError, match=r"this (is not a tvmdml program|program is damaged)"):
            KernelProgram.from_bytes(wrong)


def written(header: Any, images: bytes | None = None) -> bytes:
    """The file of a program with another header."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    code = b"".join(image.content for image in program().images) if images is None else images
    return b"TVMDML-PROGRAM-1\n" + struct.pack("<I", len(encoded)) + encoded + code


def header() -> Any:
    content = program().to_bytes()
    (size,) = struct.unpack_from("<I", content, 17)
    return json.loads(content[21 : 21 + size])


def test_the_helper_changes_nothing_by_itself() -> None:
    assert KernelProgram.from_bytes(written(header())) == program()


DEEP: Any = 1
for _ in range(101):
    DEEP = ["+", DEEP, 1]


SENSELESS: dict[str, tuple[Any, ...]] = {
    "parameters": (-1, 5.0, True, 1 << 20, 3),
    "reads": ([5], None),
    "writes": ([[]], ["0"]),
    "images": ({}, None),
    "images 0 bytes": (-4, 2, 1 << 60),
    "images 0 form": ("sm_90a", "../sm_90", "sm_0", 3),
    "functions": ([], [1]),
    "functions 0 image": (2, -2, None),
    "functions 0 name": ("", "a b", "é", "x" * 300, 3),
    "functions 0 buffers": (-1, 3, 1 << 40),
    "functions 0 threads": ([8, 1], [8, 0, 1], [1 << 20, 1, 1], [True, 1, 1]),
    "functions 0 scalar_bytes": (15, -1, 1 << 50),
    "functions 0 scalars": ([], [[0, "i"]], 3),
    "functions 0 scalars 0": ([0, "1000s"], [13, "i"], [-1, "i"], [0]),
    "steps": ([1], {"a": 1}),
    "steps 0 function": (2, True),
    "steps 0 buffers": ([5], [0, 1]),
    "steps 0 groups": ([1, 1], 1),
    "steps 0 groups 0": (1.5, "1", None, True, 1 << 64, [], {"+": 1}, [[], 1, 1], DEEP),
    "steps 1 groups 1": (["scalar"], ["scalar", 5], ["scalar", -1], ["scalar", 1, 2]),
    "steps 1 groups 2": (["**", 9, 9], ["+", 1], ["+", 1, 1, 1], ["+", 1, "1"]),
    "steps 1 scalars": ([1], [1, 1, 1]),
}


@pytest.mark.parametrize("place", SENSELESS)
def test_a_program_that_makes_no_sense_is_refused(place: str) -> None:
    for value in SENSELESS[place]:
        changed = holder = header()
        *way, last = (int(key) if key.isdigit() else key for key in place.split())
        for key in way:
            holder = holder[key]
        holder[last] = value
        with pytest.raises(ValueError, match=r"this program is damaged: .+"):
            KernelProgram.from_bytes(written(changed))


@pytest.mark.parametrize(
    "content", [b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b"{}" + b" " * (1 << 20), b'{"images":' + b"9" * 5000 + b"}"]
)
def test_a_header_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"this program is damaged: .+"):
        KernelProgram.from_bytes(written(content))


def test_a_program_has_code() -> None:
    with pytest.raises(ValueError, match="it has no code"):
        KernelProgram.from_bytes(written({**header(), "images": []}, b""))


def test_a_header_is_neither_too_long_nor_longer_than_the_file() -> None:
    with pytest.raises(ValueError, match=r"its header claims \d+ bytes"):
        KernelProgram.from_bytes(written({**header(), "more": "x" * (1 << 20)}))
    content = program().to_bytes()
    with pytest.raises(ValueError, match="its header claims 4294967295 bytes"):
        KernelProgram.from_bytes(content[:17] + b"\xff" * 4 + content[21:])


@pytest.mark.parametrize(
    "code", [b"\x03\x02\x23\x07" * 3 + b"\x07\x23\x02\x03", b"\x03\x02\x23\x07" + bytes(3) + b"\x03\x02\x23\x07"]
)
def test_what_is_no_spirv_is_refused(code: bytes) -> None:
    changed = header()
    changed["images"] = [{"form": "spirv", "bytes": len(code) - 4}, {"form": "spirv", "bytes": 4}]
    with pytest.raises(ValueError, match="not SPIR-V"):
        KernelProgram.from_bytes(written(changed, code))


def power(bits: int) -> Any:
    expression: Any = ("scalar", 3)
    for _ in range(bits):
        expression = ("*", expression, expression)
    return expression


@pytest.mark.parametrize(
    ("expression", "scalars", "why"),
    [
        (("<<", 1, ("scalar", 4)), (1, 1 << 40), "a shift by 1099511627776 bits"),
        (("<<", 1, ("scalar", 4)), (1, -1), "a shift by -1 bits"),
        ((">>", 1, ("scalar", 4)), (1, 64), "a shift by 64 bits"),
        (("<<", ("scalar", 3), 63), (4, 1), "does not fit in 64 bits"),
        (power(12), (2, 1), "does not fit in 64 bits"),
        (("//", 1, ("scalar", 4)), (1, 0), "zero"),
        (("truncmod", 1, ("scalar", 4)), (1, 0), "zero"),
        (("-", 0, ("scalar", 4)), (1, 1), "groups"),
        (("+", 1 << 31, 1 << 31), (1, 1), "groups"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_an_error(expression: Any, scalars: tuple[int, int], why: str) -> None:
    changed = program()._replace(steps=(ProgramStep(1, (2,), (), (expression, 1, 1)),))
    with pytest.raises(ValueError, match=why):
        KernelProgram.from_bytes(changed.to_bytes()).launches(scalars)


def test_integers_that_a_kernel_does_not_take_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"launching one with \(9, 2147483648\): "):
        program().launches((9, 1 << 31))
    with pytest.raises(ValueError, match="3 integers are too many"):
        program().launches((1, 2, 3))
    with pytest.raises(ValueError, match="integers are too many"):
        program().launches(range(20))
    with pytest.raises(ValueError, match="launching one with"):
        program()._replace(parameters=6, steps=(ProgramStep(0, (0, 2), (("scalar", 9), 1), (1, 1, 1)),)).launches((1, 2))


class _Nowhere(DeviceLaunch):
    dispatch = steps = runner = alignment = begins_well = identity = seconds = None  # type: ignore[assignment]


def test_a_kernel_that_does_not_fit_its_operator_is_an_error() -> None:
    target: Any = SimpleNamespace(name="vulkan:0", home=None)
    launch = _Nowhere(target, program(), (9, 7), (("int32", 4),))
    form: Any = (np.dtype("float32"), (2,), (4,), False)
    assert callable(launch.fit((form, None, form)))
    with pytest.raises(CompileError, match="vulkan:0: a stored kernel takes 2 arrays, not 1"):
        launch.fit((form, None))
    with pytest.raises(CompileError, match="vulkan:0: a stored kernel cannot be launched: 3 integers are too many"):
        _Nowhere(target, program(), (9, 7, 1), ())
    with pytest.raises(CompileError, match="cannot be launched: launching one with"):
        _Nowhere(target, program(), (9, 1 << 40), ())


def several(between: Any = lambda: None) -> Any:
    with T.on_device(), T.function() as f:
        a, b, n = f.buffer("a", "float32"), f.buffer("b", "int32"), f.scalar("n", "int32")
        with T.launch(n, 8) as (group, thread):
            T.store(b, group * 8 + thread, n)
        between()
        with T.launch(T.truncdiv(n + 3, T.const(4, "int32")), 4) as (group, thread):
            T.store(a, group * 4 + thread, T.cast(b[group], "float32"))
    return f.result()


def test_each_launch_is_a_function_and_a_step() -> None:
    lowered = lower(several())
    assert lowered.parameters == ("", "", "int32")
    assert [step.name for step in lowered.steps] == list(lowered.functions)
    assert [step.extents["blockIdx.x"] for step in lowered.steps] == [("scalar", 2), ("truncdiv", ("+", ("scalar", 2), 3), 4)]
    assert [step.extents["threadIdx.x"] for step in lowered.steps] == [8, 4]


def test_what_two_launches_have_in_common_may_have_a_name() -> None:
    with T.on_device(), T.function() as f:
        a, n = f.buffer("a", "float32"), f.scalar("n")
        for _ in range(2):
            with T.launch(n * 3, 8) as (group, thread):
                T.store(a, group * 8 + thread, T.const(0, "float32"))
    first, second = (step.extents["blockIdx.x"] for step in lower(f.result()).steps)
    assert first == second == ("*", ("scalar", 1), 3)


def test_launches_that_differ_in_names_share_one() -> None:
    with T.on_device(), T.function() as f:
        a, b, n = f.buffer("a", "float32"), f.buffer("b", "float32"), f.scalar("n", "int32")
        for buffer in (a, b, a):
            with T.launch(n, 8) as (group, thread):
                T.store(buffer, group * 8 + thread, T.const(0, "float32"))
        with T.launch(n, 8) as (group, thread):
            T.store(a, group * 8 + thread, T.const(1, "float32"))
    program = compile_function(f.result(), Capabilities(max_threads=64))
    assert [step.function for step in program.steps] == [0, 0, 0, 1]
    assert [step.buffers for step in program.steps] == [(0,), (1,), (0,), (0,)]
    assert len(program.functions) == 2
    assert (program.reads, program.writes) == ((), (0, 1))


def test_what_only_a_processor_could_do_between_launches_is_refused() -> None:
    def work() -> None:
        with T.on_device(), T.function() as f:
            a, n = f.buffer("a", "float32"), f.scalar("n", "int32")
            with T.loop(n), T.launch(1, 8) as (_, thread):
                T.store(a, thread, T.const(0, "float32"))
        lower(f.result())

    with pytest.raises(CompileError, match="a For is between launches"):
        work()
