"""The code generators for devices, SPIR-V and CUDA C++: control flow, memory, atomics, subgroups and vectors on a device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import kernels
import numpy as np
import pytest
from expressions import TYPES, written
from generators import Machine, Run, VulkanMachine
from spirv_words import widths
from support import assert_same_bits

from tvmdml import errors
from tvmdml import tensorir as T
from tvmdml.system import imports
from tvmdml.targets.cuda import source

# -- Control flow ----------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
def test_kernels_do_what_they_say(machine: Machine) -> None:
    makers = (kernels.lazy_reads, kernels.loops, kernels.leaving, kernels.own_memory, kernels.group_scan, kernels.scalars)
    vectors = (kernels.mixed_access, kernels.ramps)
    machine.give({make.__name__: make() for make in (*makers, *vectors)})


def test_what_is_not_asked_for_may_take_statements(machine: Machine) -> None:
    """Vectors, names and changes of lanes are statements: where they may never be computed, they stand in a branch."""

    def body(i: Any, source: Any, result: Any, whole: Any, limit: Any) -> None:
        tirx = imports.tvm().tirx
        x, y = tirx.Var("x", "int32"), tirx.Var("y", "int32")
        # A binding whose value only exists below the limit; in it, a vector whose parts are summed.
        four = source[T.run(i * 4, 4)]
        picked = T.Shuffle([four], [1]) + T.Shuffle([four], [3])
        inner = tirx.Let(y, picked, T.if_then_else(y % 2 == 0, y * y, tirx.Let(x, y + 1, x * x)))
        T.store(result, i, T.if_then_else(i < limit, inner, T.const(-1, "int32")))
        either = T.if_then_else(i < limit, source[T.run(i * 4, 4)], T.splat(i, 4))
        T.store(whole, T.run(i * 4, 4), T.Select(either < T.splat(T.int32(9), 4), either, T.splat(T.int32(-9), 4)))

    source, result, whole = np.arange(40, dtype=np.int32) * 3 % 17, np.zeros(64, np.int32), np.zeros(256, np.int32)
    kernel = written({"source*": "int32", "result*": "int32", "whole*": "int32", "limit": "int32"}, body)
    machine.run(Run(kernel, {"source": source, "result": result, "whole": whole, "limit": 10}))
    sums = source.reshape(10, 4)[:, [1, 3]].sum(1)
    expected = np.where(sums % 2 == 0, sums * sums, (sums + 1) ** 2)
    assert_same_bits(result, np.concatenate([expected, np.full(54, -1)]).astype(np.int32))
    either = np.concatenate([source, np.arange(10, 64, dtype=np.int32).repeat(4)])
    assert_same_bits(whole, np.where(either < 9, either, np.int32(-9)))


def test_conditions_take_statements_too(machine: Machine) -> None:
    def body(i: Any, source: Any, result: Any, limit: Any) -> None:
        tirx = imports.tvm().tirx
        at, total = T.Variable("int32", i), T.Variable("int32", T.const(0, "int32"))
        x, y = tirx.Var("x", "int32"), tirx.Var("y", "int32")
        # Past the limit there is nothing to read; each iteration reads what the one before wrote.
        with T.loop_while(T.And(at.value < limit, tirx.Let(x, source[at.value] + 1, x * x < 100))):
            total.set(total.value + source[at.value])
            with T.when(source[at.value] == 3):
                at.set(at.value + 7)
                T.evaluate(T.continue_loop())
            at.set(at.value + 1)
        either = T.Or(i >= limit, tirx.Let(y, source[i] * 2, T.And(y > 4, y < 14)))
        T.store(result, i, T.if_then_else(either, total.value, -total.value))

    def expected(i: int) -> int:
        at, total = i, 0
        while at < 50 and (int(source[at]) + 1) ** 2 < 100:
            total += int(source[at])
            at += 7 if source[at] == 3 else 1
        return total if i >= 50 or 4 < int(source[i]) * 2 < 14 else -total

    source, result = (np.arange(50, dtype=np.int32) * 7) % 11, np.zeros(64, np.int32)
    kernel = written({"source*": "int32", "result*": "int32", "limit": "int32"}, body)
    machine.run(Run(kernel, {"source": source, "result": result, "limit": 50}))
    assert_same_bits(result, np.array([expected(i) for i in range(64)], np.int32))


def test_a_loop_counts_in_its_own_type(machine: Machine) -> None:
    starts = {"int8": 3, "uint8": 150, "int16": 32000, "uint32": 2**32 - 100, "int32": -50, "int64": 2**40, "uint64": 2**62}
    machine.give({dtype: kernels.counting(dtype, begin, begin + 70) for dtype, begin in starts.items()})


def test_a_loop_ends_where_it_would_have_when_it_began(machine: Machine) -> None:
    def body(i: Any, limits: Any, result: Any) -> None:
        with T.serial(T.const(0, "int32"), limits[i]) as j:
            T.store(limits, i, j)  # each iteration moves the end to its own position
            T.store(result, i, result[i] + 1)
        end = T.Variable("int32", i % 5)
        with T.serial(end.value, end.value + 3):
            end.set(end.value + 1)
            T.store(result, i, result[i] + 100)

    limits, result = np.arange(64, dtype=np.int32) % 9, np.zeros(64, np.int32)
    machine.run(Run(written({"limits*": "int32", "result*": "int32"}, body), {"limits": limits, "result": result}))
    assert_same_bits(result, np.arange(64, dtype=np.int32) % 9 + 300)


def test_a_variable_is_what_was_written_last(machine: Machine) -> None:
    """Also where it is first written in one branch, or in a loop, or where a name was given to what it held before."""

    def body(i: Any, result: Any) -> None:
        a, b = T.Variable("int32"), T.Variable("int32")
        T.either(i % 2 == 0, lambda: a.set(i), lambda: a.set(-i))
        with T.serial(T.const(0, "int32"), T.const(4, "int32")) as j:
            b.set(a.value + j)
            a.set(b.value * 2)
        before = T.let(a.value)
        a.set(T.const(7, "int32"))
        T.store(result, i, before * 100 + a.value + b.value)

    def expected(i: int) -> int:
        a = i if i % 2 == 0 else -i
        for j in range(4):
            b = a + j
            a = b * 2
        return a * 100 + 7 + b

    result = np.zeros(64, np.int32)
    machine.run(Run(written({"result*": "int32"}, body), {"result": result}))
    assert_same_bits(result, np.array([expected(i) for i in range(64)], np.int32))


def test_sums_of_data_wrap_wherever_they_are_kept(machine: Machine) -> None:
    """What data flows through is found also where it flows backwards, by way of a loop."""

    def body(i: Any, source: Any, result: Any) -> None:
        total, last, cells = T.Variable("int32", i), T.Variable("int32", i), T.local("int32", 2)
        T.store(cells, 0, i)
        with T.serial(T.const(0, "int32"), T.const(6, "int32")) as j:
            total.set(total.value + last.value)  # too large from the third iteration on
            last.set(cells[0] * 2)
            T.store(cells, 0, source[i + j])
        T.store(result, i, total.value * 3 - 7)

    source = np.full(128, 2**30 + 12345, np.int32)
    result = np.zeros(64, np.int32)
    machine.run(Run(written({"source*": "int32", "result*": "int32"}, body), {"source": source, "result": result}))
    total, last, cell = (np.arange(64, dtype=np.int32) for _ in range(3))
    with np.errstate(over="ignore"):
        for j in range(6):
            total = total + last
            last, cell = cell * np.int32(2), source[np.arange(64) + j]
        assert_same_bits(result, total * np.int32(3) - np.int32(7))


@pytest.mark.full(first=1)
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

    few = (1, 2, 3, 7, 16, 33)
    runs = [Run(written({"result*": dtype}, partial(body, turns)), {"result": np.zeros(64, dtype)}) for turns in few]
    machine.run(*runs)
    for turns, run in zip(few, runs, strict=True):
        assert (run.arguments["result"] == turns * (turns + 1) // 2 + 1000 * (turns * (turns - 1) // 2)).all(), turns


# -- Groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
def test_a_group_shares_memory(machine: Machine) -> None:
    machine.give({dtype: kernels.shared_memory(dtype, denormals=machine.denormals) for dtype in TYPES})


# -- Atomics ---------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
def test_atomics_lose_nothing(machine: Machine) -> None:
    wide = ("int64", "uint64") if not isinstance(machine, VulkanMachine) or machine.capabilities.atomic64 else ()
    kinds = itertools.product(("int32", "uint32", *wide), ("buffer", "shared"))
    machine.give({f"{dtype} in {scope}": kernels.atomics(dtype, scope) for dtype, scope in kinds})


def test_an_exchange_hands_one_token_on(machine: Machine) -> None:
    example = kernels.token()
    machine.run(Run(example.kernel, example.arguments))
    kernels.check_token(example)


# -- Warps -----------------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
def test_warps_exchange_values(machine: Machine) -> None:
    if machine.warp < 2 or 64 % machine.warp:
        pytest.skip("no warps to speak of")
    examples = {dtype: kernels.exchanges(dtype, machine.warp) for dtype in TYPES}
    if isinstance(machine, VulkanMachine) and not machine.capabilities.subgroup_extended_types:
        for dtype in ("int64", "uint64"):
            with pytest.raises(errors.CompileError, match="shaderSubgroupExtendedTypes"):
                machine.run(Run(examples[dtype].kernel, examples.pop(dtype).arguments))
    machine.run(*(Run(example.kernel, example.arguments) for example in examples.values()))
    for dtype, example in examples.items():
        for name, beyond in (("shuffle_up", 0), ("shuffle_down", -1)) if machine.kind == "vulkan" else ():
            rows, expected = (values[name].reshape(-1, machine.warp) for values in (example.arguments, example.expected))
            rows[:, beyond] = expected[:, beyond]  # any value is accepted there
        example.check(dtype, machine.denormals)


def test_warps_vote(machine: Machine) -> None:
    machine.give({"": kernels.votes(machine.warp)})


# -- Several lanes ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_lanes_are_computed_each_for_itself(machine: Machine) -> None:
    kinds = itertools.product(TYPES, (2, 3, 4, 8, 16))
    machine.give({f"{lanes} {dtype}": kernels.lanes(dtype, lanes, denormals=machine.denormals) for dtype, lanes in kinds})


STARTS: list[tuple[Callable[[Any, Any], Any], int]] = [
    (lambda i, n: i * 4, 16),
    (lambda i, n: i * 4 + 8, 16),
    (lambda i, n: T.shift_left(i, T.int32(2)), 16),
    (lambda i, n: (i * 4 + n * 2) * 2, 16),
    (lambda i, n: T.Select(i < n, i * 4, i * 8), 16),
    (lambda i, n: T.Cast("int32", T.Cast("int64", i) * T.int64(16)), 16),
    (lambda i, n: T.bitwise_and(i + n, T.int32(-4)), 16),
    (lambda i, n: i * 4 + 2, 8),
    (lambda i, n: i * 2, 8),
    (lambda i, n: i * 4 + 1, 0),
    (lambda i, n: i * n, 0),
]
"""Where four int32 may begin, and the bytes that they may move by."""


@pytest.mark.full(first=1)
def test_neighbours_are_moved_together_where_they_lie_so(machine: Machine) -> None:
    def body(start: Callable[[Any, Any], Any], i: Any, source: Any, result: Any, starts: Any, n: Any) -> None:
        T.store(result, T.run(i * 4, 4), source[T.run(start(i, n), 4)])
        T.store(starts, i, start(i, n))

    runs = []
    for start, _ in STARTS:
        names = {"source*": "int32", "result*": "int32", "starts*": "int32", "n": "int32"}
        kernel = written(names, partial(body, start))
        arrays = {"result": np.zeros(256, np.int32), "starts": np.zeros(64, np.int32)}
        runs.append(Run(kernel, {"source": np.arange(1100, dtype=np.int32), **arrays, "n": 10}))
    for made, (_, align) in zip(machine.run(*runs), STARTS, strict=True):
        if isinstance(machine, VulkanMachine):
            assert widths(made.code)[: 16 // (align or 4)] == [(align or 4) // 4] * (16 // (align or 4))
        else:
            assert (f"*(const Lanes<int32_t, 4, {align}> *)&source[" in made.text) == bool(align), made.text
            assert "*(Lanes<int32_t, 4, 16> *)&result[" in made.text
    for run in runs:
        starts, result = run.arguments["starts"], run.arguments["result"]
        assert_same_bits(result.reshape(64, 4), starts[:, None] + np.arange(4, dtype=np.int32))


def test_all_lanes_are_read_before_any_is_written(machine: Machine) -> None:
    def body(way: str, i: Any, x: Any, places: Any) -> None:
        base = T.let(i * 8)
        if way == "shifted":
            T.store(x, T.run(base + 1, 7), x[T.run(base, 7)])
        elif way == "repeated":
            T.store(x, T.run(base + 1, 7), T.splat(x[base + 2], 7))
        elif way == "scattered":
            T.store(x, x[T.run(base, 4)] + T.splat(base, 4), T.ramp(T.int32(5), T.int32(-1), 4))
        elif way == "aliased":
            words = T.decl_buffer((1 << 20,), "uint32", data=x.data)
            T.store(words, T.run(base + 1, 3), T.Cast("uint32x3", x[T.run(base, 3)]))
        else:
            own = T.local("int32", 8)
            with T.serial(T.const(0, "int32"), T.const(8, "int32")) as j:
                T.store(own, j, x[base + j])
            T.store(own, T.run(T.const(1, "int32"), 7), own[T.run(T.const(0, "int32"), 7)])
            T.store(x, T.run(base, 8), own[T.run(T.const(0, "int32"), 8)])

    given = np.stack([np.random.default_rng(k).permutation(8) for k in range(64)]).astype(np.int32)
    given[:, :4] = np.sort(given, 1)[:, [0, 3, 1, 2]]  # where "scattered" writes to: places that it reads from as well
    runs = {
        way: Run(
            written({"x*": "int32", "places*": "int32"}, partial(body, way)),
            {"x": given.reshape(-1).copy(), "places": np.zeros(1, np.int32)},
        )
        for way in ("shifted", "repeated", "scattered", "aliased", "own")
    }
    machine.run(*runs.values())
    expected = {way: given.copy() for way in runs}
    expected["shifted"][:, 1:] = expected["own"][:, 1:] = given[:, :7]
    expected["repeated"][:, 1:] = given[:, 2:3]
    np.put_along_axis(expected["scattered"], given[:, :4].astype(np.int64), np.array([[5, 4, 3, 2]], np.int32).repeat(64, 0), 1)
    expected["aliased"][:, 1:4] = given[:, :3]
    for way, run in runs.items():
        machine.same(run.arguments["x"], expected[way].reshape(-1), way)


def test_ramps_are_picked_from(machine: Machine) -> None:
    def body(i: Any, wide: Any) -> None:
        named = T.let(T.ramp(T.int64(0), T.int64(1), 4))
        picks = [7, 0, 6, 1, 5, 2, 4, 3]
        T.store(wide, T.run(i * 8, 8), T.Shuffle([named, T.ramp(T.Cast("int64", i), T.int64(2**33), 4)], picks))

    wide = np.zeros(512, np.int64)
    machine.run(Run(written({"wide*": "int64"}, body), {"wide": wide}))
    i = np.arange(64)[:, None]
    steps = [i + 2**33 * 3, 0 * i, i + 2**33 * 2, 0 * i + 1, i + 2**33, 0 * i + 2, i, 0 * i + 3]
    assert_same_bits(wide, np.concatenate(steps, 1).reshape(-1))


def test_vectors_are_repeated_and_picked_from(machine: Machine) -> None:
    def body(i: Any, x: Any, again: Any, one: Any) -> None:
        pair = x[T.run(i * 2, 2)]
        T.store(again, T.run(i * 6, 6), T.Shuffle([pair + T.splat(i, 2)] * 3, [0, 1, 0, 1, 0, 1]) - T.splat(T.int32(1), 6))
        T.store(one, i, T.Shuffle([pair, T.splat(i, 2)], [1]) * 3)

    x, again, one = np.arange(128, dtype=np.int32) * 5, np.zeros(64 * 6, np.int32), np.zeros(64, np.int32)
    machine.run(Run(written({"x*": "int32", "again*": "int32", "one*": "int32"}, body), {"x": x, "again": again, "one": one}))
    pairs = x.reshape(64, 2) + np.arange(64, dtype=np.int32)[:, None]
    assert_same_bits(again, np.tile(pairs, 3).reshape(-1) - 1)
    assert_same_bits(one, x[1::2] * 3)


@pytest.mark.full(first=1)
def test_lanes_may_be_cut_and_joined(machine: Machine) -> None:
    more = (("float16x2", "int32"), ("int8x16", "float16x8"), ("float64x2", "uint8x16"))
    machine.give({f"{one} as {other}": kernels.cut(one, other) for one, other in (*kernels.CUTS, *more)})


# -- Names, and what is very large -----------------------------------------------------------------------------------


@pytest.mark.full
def test_what_is_deep_is_cut_in_parts(machine: Machine) -> None:
    """Compilers give up on too many parentheses, and on terms past some thousands."""

    def body(i: Any, source: Any, result: Any, chosen: Any) -> None:
        total = lazy = T.let(source[i])
        for k in range(150):
            total = (T.max(total ^ 3, i) - k) * 3
        T.store(result, i, total)
        for k in range(30):
            lazy = T.if_then_else(i % 3 == k % 3, source[i + k], lazy + 1)
        T.store(chosen, i, lazy)

    source_, result, chosen = np.arange(128, dtype=np.int32) * 37 % 1009, np.zeros(64, np.int32), np.zeros(64, np.int32)
    kernel = written({"source*": "int32", "result*": "int32", "chosen*": "int32"}, body)
    machine.run(Run(kernel, {"source": source_, "result": result, "chosen": chosen}))
    total = lazy = source_[:64]
    i = np.arange(64, dtype=np.int32)
    with np.errstate(over="ignore"):
        for k in range(150):
            total = (np.maximum(total ^ np.int32(3), i) - np.int32(k)) * np.int32(3)
    for k in range(30):
        lazy = np.where(i % 3 == k % 3, source_[i + k], lazy + np.int32(1))
    assert_same_bits(result, total)
    assert_same_bits(chosen, lazy)
    for line in source.emit(kernel.function).text.splitlines():
        depth = max(itertools.accumulate((letter in "([") - (letter in ")]") for letter in line), default=0)
        assert depth < 100, line
