"""Kernels as data: launches read from lowered functions, their expressions, and the file they are kept in."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmdml import CompileError
from tvmdml import tensorir as T
from tvmdml.targets._lower import lower
from tvmdml.targets._program import Function, Image, Program, Step, evaluate
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


def program() -> Program:
    images = (Image("spirv", b"\x03\x02\x23\x07"), Image("spirv", b"\x03\x02\x23\x07" * 3))
    functions = (Function("one", 0, 2, ((0, "i"), (8, "q")), 16, (8, 1, 1)), Function("two", 1, 1, (), 0, (64, 2, 1)))
    steps = (
        Step(1, (2,), (), (1, 1, 1)),
        Step(0, (0, 2), (("scalar", 4), ("*", ("scalar", 3), -2)), (("truncdiv", ("scalar", 3), 2), 1, ("scalar", 4))),
    )
    return Program(images, functions, steps, 5, (0,), (2,))


def test_launches_have_their_numbers() -> None:
    first, second = program().launches((9, 7))
    assert first == (1, (2,), b"", (1, 1, 1))
    assert (second.function, second.buffers, second.groups) == (0, (0, 2), (4, 1, 7))
    assert second.scalars == np.array([7, 0], "<i4").tobytes() + np.array([-18], "<i8").tobytes()


def test_a_program_survives_its_file() -> None:
    assert Program.from_bytes(program().to_bytes()) == program()


def test_what_is_no_program_is_refused() -> None:
    content = program().to_bytes()
    for wrong in (b"", b"no program", content[:20], content[:-1], content + b"x", content.replace(b'"steps"', b'"stops"')):
        with pytest.raises(ValueError, match=r"program|Expecting|Unterminated|char|delimiter"):
            Program.from_bytes(wrong)


@given(st.integers(0, len(program().to_bytes()) - 1), st.integers(1, 255))
def test_a_damaged_file_is_an_error_or_another_program(at: int, change: int) -> None:
    content = bytearray(program().to_bytes())
    content[at] ^= change
    try:
        found = Program.from_bytes(bytes(content))
    except ValueError:
        return
    assert isinstance(found, Program)


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
    assert [step.extents["blockIdx.x"] for step in lowered.steps] == [
        ("scalar", 2),
        ("truncdiv", ("+", ("scalar", 2), 3), 4),
    ]
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

    with pytest.raises(CompileError, match="a For stands between launches"):
        work()
