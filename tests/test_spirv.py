"""The SPIR-V generator: what each TensorIR operator computes on a device, bit for bit, and the generated code."""

from __future__ import annotations

import itertools
import math
import os
import platform
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import expressions
import hypothesis
import hypothesis.strategies as st
import kernels
import numpy as np
import pytest
from expressions import (
    ARGUMENTS,
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    DIVISION,
    EXACT,
    FLOATS,
    FUZZED,
    INTEGERS,
    NEAR,
    TYPES,
    Body,
    Rule,
    Tree,
    built,
    castable,
    const,
    fuzz_input,
    pairs_of,
    settled,
    trees,
    values_of,
)
from support import Array, assert_same_bits, bits_of

from tvmdml import errors, targets
from tvmdml import tensorir as T
from tvmdml.targets.vulkan import spirv
from tvmdml.targets.vulkan.capabilities import Capabilities
from tvmdml.targets.vulkan.disassemble import disassemble
from tvmdml.targets.vulkan.spirv_tables import CAPABILITY, DECORATION, INSTRUCTIONS, OPCODES, STORAGE_CLASS

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
# Narrow numbers only in memory: arithmetic on them needs conversions.
POOR = {"int8": False, "int16": False, "float16": False, "subgroup_extended_types": False}


class Written(expressions.Written):
    """A device function, and the names of its parameters."""

    def emit(self, capabilities: Capabilities = RICH) -> spirv.Shader:
        return spirv.emit(self.function, capabilities)


def written(parameters: Mapping[str, str], body: Body, threads: Any = 64, groups: Any = 1) -> Written:
    """The device function whose threads each run ``body(index, *parameters)``; ``name*`` is a buffer, ``name`` a scalar."""
    return Written(*expressions.written(parameters, body, threads, groups))


class Machine:
    """A device, or as much of it as the given capabilities say."""

    def __init__(self, device: Any, capabilities: Capabilities) -> None:
        self.device, self.capabilities = device, capabilities

    def give(self, example: kernels.Example) -> spirv.Shader:
        """Run an example, and look at what comes of it."""
        shader = self.run(example.kernel, example.arguments)
        example.check()
        return shader

    def run(self, kernel: expressions.Written, arguments: Mapping[str, Any], groups: int | None = None) -> spirv.Shader:
        """Run a device function; arrays are changed in place. Parameters go by name."""
        shader = spirv.emit(kernel.function, self.capabilities)
        given = [arguments[name] for name in kernel.parameters]
        device = self.device
        bindings = []
        for place in shader.buffers:
            memory = device.allocate(max(given[place].nbytes, 4))
            device.upload(memory, 0, given[place])
            bindings.append((memory, 0, max(given[place].nbytes, 4)))
        push = bytearray(shader.push_bytes)
        for (place, _), (offset, form) in zip(shader.scalars, shader.push, strict=True):
            struct.pack_into(f"<{form}", push, offset, given[place])
        x, y, z = (groups or shader.grid[0], *shader.grid[1:])
        assert all(isinstance(count, int) for count in (x, y, z))
        device.dispatch(device.pipeline(shader.code, len(bindings), shader.push_bytes), bindings, bytes(push), (x, y, z))
        for place, (memory, _, _), is_written in zip(shader.buffers, bindings, shader.writes, strict=True):
            before = given[place].copy()
            device.download(memory, 0, given[place])
            assert is_written or given[place].tobytes() == before.tobytes()
        return shader


@pytest.fixture(scope="module")
def device(vulkan: targets.Target) -> Any:
    from tvmdml.targets.vulkan import VulkanTarget

    assert isinstance(vulkan, VulkanTarget)
    return vulkan.device


@pytest.fixture(scope="module", params=["as it is", "poor"])
def machine(request: pytest.FixtureRequest, device: Any) -> Machine:
    """The device, and the device as if it lacked narrow arithmetic."""
    return Machine(device, device.capabilities if request.param == "as it is" else device.capabilities._replace(**POOR))


# -- The words ------------------------------------------------------------------------------------------------------


def instructions(code: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each instruction's name and operands."""
    names = {number: name for name, number in OPCODES.items()}
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = 5
    while at < len(words):
        length = words[at] >> 16
        yield names[words[at] & 0xFFFF], words[at + 1 : at + length]
        at += length


def declared(code: bytes) -> set[str]:
    """The capabilities of a module."""
    names = {number: name for name, number in CAPABILITY.items()}
    return {names[operands[0]] for name, operands in instructions(code) if name == "Capability"}


def decorations(code: bytes, name: str) -> list[int]:
    """What carries a decoration."""
    found = [operands for instruction, operands in instructions(code) if instruction == "Decorate"]
    return [operands[0] for operands in found if operands[1] == DECORATION[name]]


# -- Operators ------------------------------------------------------------------------------------------------------


def on_all(
    machine: Machine, inputs: Mapping[str, Array], outputs: Mapping[str, tuple[str, Callable[..., Any]]]
) -> dict[str, Array]:
    """Each output is a function of the inputs' elements: its type, and how it is computed. All of them in one kernel."""
    count = next(iter(inputs.values())).size

    def body(i: Any, *buffers: Any) -> None:
        sources, results = buffers[: len(inputs)], buffers[len(inputs) :]
        with T.when(i < count):
            values = [T.let(source[i]) for source in sources]
            for result, (_, compute) in zip(results, outputs.values(), strict=True):
                T.store(result, i, compute(*values))

    types = {**{name: str(x.dtype) for name, x in inputs.items()}, **{name: dtype for name, (dtype, _) in outputs.items()}}
    arrays = {**inputs, **{name: np.zeros(count, dtype) for name, (dtype, _) in outputs.items()}}
    machine.run(written({f"{name}*": dtype for name, dtype in types.items()}, body, groups=-(-count // 64)), arrays)
    return {name: arrays[name] for name in outputs}


def agree(machine: Machine, rules: Mapping[str, Rule], a: Array, b: Array, result: str | None = None) -> None:
    outputs = {name: (result or str(a.dtype), compute) for name, (compute, _) in rules.items()}
    actual = on_all(machine, {"a": a, "b": b}, outputs)
    for name, (_, reference) in rules.items():
        with np.errstate(all="ignore"):
            expected = reference(a, b).astype(result or a.dtype)
        try:
            assert_same_bits(settled(actual[name]), settled(expected))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_arithmetic_is_numpys(machine: Machine, dtype: str) -> None:
    agree(machine, ARITHMETIC, *pairs_of(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_divided_as_they_should(machine: Machine, dtype: str) -> None:
    a, b = pairs_of(dtype)
    defined = b != 0
    if dtype.startswith("int"):
        defined &= ~((a == np.iinfo(dtype).min) & (b == -1))
    agree(machine, DIVISION, a[defined], b[defined])


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_divided_exactly(machine: Machine, dtype: str) -> None:
    agree(machine, {"div": (lambda a, b: T.Div(a, b), np.divide)}, *pairs_of(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_are_numpys(machine: Machine, dtype: str) -> None:
    a, b = pairs_of(dtype)
    agree(machine, BITWISE, a, b)
    bits = 8 * a.itemsize
    counts = (np.arange(a.size) % bits).astype(dtype)
    shifts: dict[str, Rule] = {
        "left": (lambda a, b: T.shift_left(a, b), np.left_shift),
        "right": (lambda a, b: T.shift_right(a, b), np.right_shift),
    }
    agree(machine, shifts, a, counts)
    words = bits_of(a)
    one = on_all(machine, {"a": a}, {"set": (dtype, lambda a: T.popcount(a)), "zeros": ("int32", lambda a: T.clz(a))})
    assert_same_bits(one["set"], np.array([int(word).bit_count() for word in words], dtype))
    assert_same_bits(one["zeros"], np.array([bits - int(word).bit_length() for word in words], np.int32))


@pytest.mark.parametrize("dtype", TYPES)
def test_comparisons_are_numpys_but_for_nan(machine: Machine, dtype: str) -> None:
    agree(machine, COMPARISONS, *pairs_of(dtype), result="bool")


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [(n, w) for n in ("int8", "int16", "int32", "uint8", "uint32") for w in ("int32", "int64") if np.dtype(n) < np.dtype(w)],
)
def test_widened_numbers_compare_with_constants(machine: Machine, narrow: str, wide: str) -> None:
    a = np.arange(-64, 64).astype(narrow)
    for bound in (-5, 0, 3, 200):
        rules: dict[str, Rule] = {
            "lt": (lambda a, b: T.cast(a, wide) < T.const(bound, wide), lambda a, b: a.astype(wide) < bound),  # noqa: B023
            "ge": (lambda a, b: T.const(bound, wide) <= T.cast(a, wide), lambda a, b: a.astype(wide) >= bound),  # noqa: B023
            "eq": (lambda a, b: T.cast(a, wide) == T.const(bound, wide), lambda a, b: a.astype(wide) == bound),  # noqa: B023
        }
        agree(machine, rules, a, a, result="bool")


def test_truths_are_combined(machine: Machine) -> None:
    rules: dict[str, Rule] = {
        "both": (lambda a, b: T.And(a, b), np.logical_and),
        "either": (lambda a, b: T.Or(a, b), np.logical_or),
        "neither": (lambda a, b: T.Not(T.Or(a, b)), lambda a, b: ~(a | b)),
        "one": (lambda a, b: a ^ b, np.logical_xor),
        "most": (lambda a, b: T.max(a, b), np.logical_or),
    }
    agree(machine, rules, *pairs_of("bool"))


@pytest.mark.parametrize("dtype", TYPES)
def test_select_takes_one_of_two(machine: Machine, dtype: str) -> None:
    a, b = pairs_of(dtype)
    c = np.arange(a.size) % 3 == 1
    chosen = on_all(machine, {"c": c, "a": a, "b": b}, {"r": (dtype, lambda c, a, b: T.Select(c, a, b))})["r"]
    if dtype == "float16" and not machine.capabilities.float16:  # float32 cannot preserve the bits of a NaN
        assert_same_bits(settled(chosen), settled(np.where(c, a, b)))
    else:
        assert_same_bits(chosen, np.where(c, a, b))


# -- Conversions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint32", "int64", "uint16"])
def test_select_takes_one_of_two_constants(machine: Machine, dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    minus_one = {16: 0xBC00, 32: 0xBF800000, 64: 0xBFF0 << 48}[bits]
    patterns = np.array([0, 1 << bits - 1, minus_one, minus_one ^ 1 << bits - 1, 1, (1 << bits) - 2], f"u{bits // 8}").view(dtype)
    numbers = [value for value in patterns.tolist() if value == value]
    condition = np.arange(64) % 3 == 0
    for one, other in itertools.permutations(numbers, 2):
        if one == other == 0:  # zeros of both signs, which TVM considers equal
            continue
        expected = np.where(condition, np.array(one, dtype), np.array(other, dtype))
        ways = {
            "select": (dtype, lambda c: T.Select(c, const(dtype, one), const(dtype, other))),  # noqa: B023
            "if_then_else": (dtype, lambda c: T.if_then_else(c, const(dtype, one), const(dtype, other))),  # noqa: B023
        }
        for result in on_all(machine, {"c": condition}, ways).values():
            assert_same_bits(settled(result), settled(expected))


@pytest.mark.parametrize("source", TYPES)
def test_every_cast_gives_the_nearest_value(machine: Machine, source: str) -> None:
    for target in TYPES:
        values = castable(source, target)
        actual = on_all(machine, {"x": values}, {"r": (target, lambda x, target=target: T.Cast(target, x))})["r"]
        with np.errstate(all="ignore"):
            expected = values.astype(target)
        try:
            assert_same_bits(settled(actual), settled(expected))
        except AssertionError as error:
            raise AssertionError(f"{source} to {target}: {error}") from error


def test_every_float16_comes_and_goes(machine: Machine) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    outputs = {
        "copy": ("float16", lambda x: x),
        "wide": ("float32", lambda x: T.Cast("float32", x)),
        "bits": ("uint16", lambda x: T.reinterpret("uint16", x)),
        "back": ("float16", lambda x: T.reinterpret("float16", T.reinterpret("uint16", x))),
    }
    actual = on_all(machine, {"x": every}, outputs)
    assert_same_bits(actual["copy"], every)
    assert_same_bits(settled(actual["wide"]), settled(every.astype(np.float32)))
    some = ~np.isnan(every) & ((abs(every) >= np.finfo(np.float16).tiny) | (every == 0))
    if machine.capabilities.float16:
        some[:] = True
    assert_same_bits(actual["bits"][some], every.view(np.uint16)[some])
    assert_same_bits(actual["back"][some], every[some])


def test_float32_is_rounded_to_float16_evenly(machine: Machine) -> None:
    halves = np.arange(0x0400, 0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate([middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))])
    for source in ("float32", "float64"):
        actual = on_all(machine, {"x": values.astype(source)}, {"r": ("float16", lambda x: T.Cast("float16", x))})["r"]
        assert_same_bits(actual, values.astype(np.float16))


@pytest.mark.parametrize(
    ("one", "other"), [(a, b) for a in TYPES[1:] for b in TYPES[1:] if np.dtype(a).itemsize == np.dtype(b).itemsize]
)
def test_reinterpret_keeps_the_bits(machine: Machine, one: str, other: str) -> None:
    values = np.concatenate([values_of(one), values_of(other).view(one)])
    if "float16" in (one, other) and not machine.capabilities.float16:
        values = values[~np.isnan(values.view(np.float16))]
    actual = on_all(machine, {"x": values}, {"r": (other, lambda x: T.reinterpret(other, x))})["r"]
    assert_same_bits(actual, values.view(other))


# -- Functions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_functions_are_numpys(machine: Machine, dtype: str) -> None:
    values = values_of(dtype)
    actual = on_all(machine, {"x": values}, {name: (dtype, compute) for name, (compute, _) in EXACT.items()})
    for name, (_, reference) in EXACT.items():
        with np.errstate(all="ignore"):
            assert_same_bits(settled(actual[name]), settled(reference(values)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_are_classified(machine: Machine, dtype: str) -> None:
    values = values_of(dtype)
    tests = {"isnan": T.isnan, "isinf": T.isinf, "isfinite": T.isfinite}
    actual = on_all(machine, {"x": values}, {name: ("bool", test) for name, test in tests.items()})
    for name in tests:
        assert_same_bits(actual[name], getattr(np, name)(values))


@pytest.mark.parametrize("dtype", FLOATS)
def test_copysign_and_fmod_are_exact(machine: Machine, dtype: str) -> None:
    a, b = pairs_of(dtype)
    rules: dict[str, Rule] = {
        "copysign": (lambda a, b: T.copysign(a, b), np.copysign),
        "fmod": (lambda a, b: T.fmod(a, b), np.fmod),
        "mod": (lambda a, b: T.truncmod(a, b), np.fmod),
    }
    agree(machine, rules, a, b)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_transcendental_functions_come_near(machine: Machine, dtype: str) -> None:
    x = np.linspace(0.05, 3, 300).astype(dtype)
    outputs = {name: (dtype, lambda v, name=name: getattr(T, name)(ARGUMENTS.get(name, lambda v: v)(v))) for name in NEAR}
    actual = on_all(machine, {"x": x}, outputs)
    for name, values in actual.items():
        expected = NEAR[name](x.astype(np.float64))
        np.testing.assert_allclose(values, expected, 1e-2 if dtype == "float16" else 1e-3, 1e-4, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_functions_of_several_numbers_come_near(machine: Machine, dtype: str) -> None:
    a, b = np.linspace(0.5, 3, 100).astype(dtype), np.linspace(2, 0.25, 100).astype(dtype)
    outputs = {
        "pow": (dtype, lambda a, b: T.pow(a, b)),
        "atan2": (dtype, lambda a, b: T.atan2(a, b)),
        "fma": (dtype, lambda a, b: T.fma(a, b, a)),
        "named": (dtype, lambda a, b: T.call_pure_extern(dtype, "atan2f", a, b)),
    }
    actual = on_all(machine, {"a": a, "b": b}, outputs)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    expected = {"pow": wide_a**wide_b, "atan2": np.arctan2(wide_a, wide_b), "fma": wide_a * wide_b + wide_a}
    for name, values in actual.items():
        np.testing.assert_allclose(values, expected.get(name, expected["atan2"]), 1e-2 if dtype == "float16" else 2e-4)


# -- Control flow -------------------------------------------------------------------------------------------------------


def test_what_is_not_asked_for_is_not_read(machine: Machine) -> None:
    shader = machine.give(kernels.lazy_reads())
    opened = 0  # every read of the source is inside a branch
    for name, _ in instructions(shader.code):
        opened += name == "BranchConditional"
        assert name != "AccessChain" or opened or shader.scalars


@pytest.mark.parametrize(
    "example", [kernels.loops, kernels.leaving, kernels.own_memory, kernels.group_scan, kernels.mixed_access, kernels.ramps]
)
def test_kernels_do_what_they_say(machine: Machine, example: Callable[[], kernels.Example]) -> None:
    machine.give(example())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64"])
def test_a_loop_counts_in_its_own_type(machine: Machine, dtype: str) -> None:
    machine.give(kernels.counting(dtype, 3, 90))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_loops_of_few_turns_take_them_all(machine: Machine, dtype: str) -> None:
    def body(turns: int, index: Any, result: Any) -> None:
        at, total = T.Variable(dtype, T.const(0, dtype)), T.Variable(dtype, T.const(0, dtype))
        with T.loop_while(at.value < T.const(turns, dtype)):
            total.set(total.value + at.value + 1)
            at.set(at.value + 1)
        with T.loop(T.const(turns, dtype)) as i:
            total.set(total.value + i * 1000)
        T.store(result, index, total.value)

    for turns in (1, 2, 3, 7, 16, 33):
        result = np.zeros(64, dtype)
        machine.run(written({"result*": dtype}, partial(body, turns)), {"result": result})
        assert (result == turns * (turns + 1) // 2 + 1000 * (turns * (turns - 1) // 2)).all(), turns


# -- Groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_a_group_shares_memory(machine: Machine, dtype: str) -> None:
    machine.give(kernels.shared_memory(dtype))


def test_scalars_come_as_push_constants(machine: Machine) -> None:
    shader = machine.give(kernels.scalars())
    sizes = [struct.calcsize(form) for _, form in shader.push]
    assert sizes == sorted(sizes, reverse=True)
    assert [offset for offset, _ in shader.push] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert shader.push_bytes == sum(sizes)


def test_the_grid_may_depend_on_a_scalar(machine: Machine) -> None:
    def body(i: Any, result: Any, count: Any) -> None:
        with T.when(i < count):
            T.store(result, i, T.Cast("int32", i))

    kernel = written({"result*": "int32", "count": "int64"}, body, T.const(64, "int64"), lambda _, count: T.max(count, 3))
    result = np.zeros(100, np.int32)
    shader = machine.run(kernel, {"result": result, "count": 100}, groups=2)
    assert not isinstance(shader.grid[0], int)
    assert shader.grid[1:] == (1, 1)
    assert shader.block == (64, 1, 1)
    assert_same_bits(result, np.arange(100, dtype=np.int32))


# -- Atomics ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["buffer", "shared"])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_atomics_lose_nothing(machine: Machine, dtype: str, scope: str) -> None:
    machine.give(kernels.atomics(dtype, scope))


def test_an_exchange_hands_one_token_on(machine: Machine) -> None:
    example = kernels.token()
    shader = machine.run(example.kernel, example.arguments)
    kernels.check_token(example)
    assert len(decorations(shader.code, "Coherent")) == 3


# -- Subgroups ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_subgroups_exchange_values(machine: Machine, dtype: str) -> None:
    size, extended = machine.capabilities.subgroup_size, machine.capabilities.subgroup_extended_types
    if size < 2 or 64 % size:
        pytest.skip("no subgroups to speak of")
    example = kernels.exchanges(dtype, size)
    if dtype in ("int64", "uint64") and not extended:
        with pytest.raises(errors.CompileError, match="shaderSubgroupExtendedTypes"):
            spirv.emit(example.kernel.function, machine.capabilities)
        return
    machine.run(example.kernel, example.arguments)
    for name, beyond in (("shuffle_up", 0), ("shuffle_down", -1)):  # any value is accepted there
        rows, expected = (values[name].reshape(-1, size) for values in (example.arguments, example.expected))
        rows[:, beyond] = expected[:, beyond]
    example.check(dtype)


def test_subgroups_vote(machine: Machine) -> None:
    machine.give(kernels.votes(machine.capabilities.subgroup_size))


# -- Several lanes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("dtype", TYPES)
def test_lanes_are_computed_each_for_itself(machine: Machine, dtype: str, lanes: int) -> None:
    machine.give(kernels.lanes(dtype, lanes))


def widths(code: bytes) -> list[int]:
    """How many 32-bit words each load and store moves; 0 for part of one."""
    types: dict[int, int] = {}
    pointers: dict[int, int] = {}
    moved = []
    for name, operands in instructions(code):
        if name in ("TypeInt", "TypeFloat"):
            types[operands[0]] = operands[1] // 32
        elif name == "TypeVector":
            types[operands[0]] = types[operands[1]] * operands[2]
        elif name == "TypePointer" and operands[1] == STORAGE_CLASS["StorageBuffer"] and operands[2] in types:
            types[operands[0]] = types[operands[2]]
        elif name == "AccessChain" and operands[0] in types:
            pointers[operands[1]] = types[operands[0]]
        elif name == "Load" and operands[2] in pointers:
            moved.append(pointers[operands[2]])
        elif name == "Store":
            moved.append(pointers[operands[0]])
    return moved


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


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (lambda i, n: i * 4, [4]),
        (lambda i, n: i * 4 + 8, [4]),
        (lambda i, n: T.shift_left(i, T.int32(2)), [4]),
        (lambda i, n: (i * 4 + n * 2) * 2, [4]),
        (lambda i, n: T.Select(i < n, i * 4, i * 8), [4]),
        (lambda i, n: T.Cast("int32", T.Cast("int64", i) * T.int64(16)), [4]),
        (lambda i, n: T.bitwise_and(i + n, T.int32(-4)), [4]),
        (lambda i, n: i * 4 + 2, [2, 2]),
        (lambda i, n: i * 2, [2, 2]),
        (lambda i, n: i * 4 + 1, [1] * 4),
        (lambda i, n: i * n, [1] * 4),
    ],
)
def test_neighbours_are_moved_together_only_where_they_lie_so(start: Any, expected: list[int], machine: Machine) -> None:
    def body(i: Any, source: Any, result: Any, starts: Any, n: Any) -> None:
        T.store(result, T.run(i * 4, 4), source[T.run(start(i, n), 4)])
        T.store(starts, i, start(i, n))

    kernel = written({"source*": "int32", "result*": "int32", "starts*": "int32", "n": "int32"}, body)
    source, result, starts = np.arange(1100, dtype=np.int32), np.zeros(256, np.int32), np.zeros(64, np.int32)
    shader = machine.run(kernel, {"source": source, "result": result, "starts": starts, "n": 10})
    assert widths(shader.code)[: len(expected)] == expected
    assert_same_bits(result.reshape(64, 4), starts[:, None] + np.arange(4, dtype=np.int32))


def test_elements_and_vectors_of_one_buffer_are_said_to_be_the_same_memory() -> None:
    code = spirv.emit(kernels.mixed_access().kernel.function, RICH).code
    assert len(decorations(code, "Aliased")) == 2


def test_a_parameter_may_be_seen_as_another_type(machine: Machine) -> None:
    def body(i: Any, source: Any, result: Any) -> None:
        bits = T.decl_buffer((64,), "uint32", data=source.data)
        T.store(result, i, bits[i])
        T.store(source, i, source[i] + T.float32(1))

    source, result = np.linspace(-1, 1, 64, dtype=np.float32), np.zeros(64, np.uint32)
    before = source.copy()
    machine.run(written({"source*": "float32", "result*": "uint32"}, body), {"source": source, "result": result})
    assert_same_bits(result, before.view(np.uint32))
    assert_same_bits(source, before + np.float32(1))


@pytest.mark.parametrize(("one", "other"), kernels.CUTS)
def test_lanes_may_be_cut_and_joined(machine: Machine, one: str, other: str) -> None:
    machine.give(kernels.cut(one, other))


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
    "int64": (lambda: store_of("int64", lambda i, x: x[i]), {"int64": False}, "main_kernel: the device lacks shaderInt64"),
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


# -- Any expression -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cpu() -> targets.Target:
    """A processor that multiplies and adds in two steps, as devices are told to."""
    return targets.resolve("cpu:x86-64-v2" if platform.machine() in ("x86_64", "AMD64") else "cpu")


@hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 3)
@hypothesis.given(typed=st.sampled_from(TYPES).flatmap(lambda dtype: st.tuples(st.just(dtype), trees(dtype))))
def test_any_expression_is_what_the_cpu_makes_of_it(machine: Machine, cpu: targets.Target, typed: tuple[str, Tree]) -> None:
    made, tree = typed
    arrays = {**{dtype: fuzz_input(dtype) for dtype in TYPES}, "result": np.zeros(FUZZED, made)}
    types = {name: str(array.dtype) for name, array in arrays.items()}

    def body(i: Any, *buffers: Any) -> None:
        inputs = {dtype: buffer[i] for dtype, buffer in zip(TYPES, buffers, strict=False)}
        T.store(buffers[-1], i, built(tree, inputs))

    with T.function() as f:
        buffers = [f.buffer(name, dtype) for name, dtype in types.items()]
        with T.serial(T.const(0, "int32"), T.const(FUZZED, "int32")) as index:
            body(index, *buffers)
    expected, actual = np.zeros(FUZZED, made), arrays["result"]
    cpu.build(f.result()).launcher()(*(arrays[dtype] for dtype in TYPES), expected)
    machine.run(written({f"{name}*": dtype for name, dtype in types.items()}, body, 32, FUZZED // 32), arrays)
    assert_same_bits(settled(actual), settled(expected))


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
        assert not set(instruction.operands) - set("trinslx*ABCDFGLMSXZ"), name
