"""The code generators for devices, SPIR-V and CUDA C++: what each TensorIR operator computes on a device, bit for bit."""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis
import hypothesis.strategies as st
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
    Rule,
    Tree,
    built,
    castable,
    const,
    extremes,
    fuzz_input,
    number_of,
    pairs_of,
    settled,
    trees,
    values_of,
    written,
)
from generators import Case, Machine, Outputs, Run, case_of, check, computed
from support import Array, assert_same_bits, bits_of, seeded

from tvmdml import targets
from tvmdml import tensorir as T

OUTPUTS = 24
"""As many as a kernel has for certain: Vulkan devices have at least 32 buffers."""


@pytest.mark.full(first=1)
def test_arithmetic_is_numpys(machine: Machine) -> None:
    check(machine, {dtype: case_of(ARITHMETIC, *pairs_of(dtype, denormals=machine.denormals)) for dtype in (*INTEGERS, *FLOATS)})


@pytest.mark.full(first=1)
def test_division_is_exact(machine: Machine) -> None:
    cases = {
        dtype: case_of({"div": (lambda a, b: T.Div(a, b), np.divide)}, *pairs_of(dtype, denormals=machine.denormals))
        for dtype in FLOATS
    }
    for dtype in INTEGERS:
        a, b = pairs_of(dtype)
        defined = b != 0
        if dtype.startswith("int"):
            defined &= ~((a == np.iinfo(dtype).min) & (b == -1))
        cases[dtype] = case_of(DIVISION, a[defined], b[defined])
    check(machine, cases)


@pytest.mark.full(first=1)
def test_bits_are_numpys(machine: Machine) -> None:
    cases = {}
    shifts: dict[str, Rule] = {
        "left": (lambda a, b: T.shift_left(a, b), np.left_shift),
        "right": (lambda a, b: T.shift_right(a, b), np.right_shift),
    }
    for dtype in INTEGERS:
        a, b = pairs_of(dtype)
        bits = 8 * a.itemsize
        cases[dtype] = case_of(BITWISE, a, b)
        cases[f"{dtype} shifted"] = case_of(shifts, a, (np.arange(a.size) % bits).astype(dtype))
        words = [int(word) for word in bits_of(a)]
        expected = {
            "set": np.array([word.bit_count() for word in words], dtype),
            "zeros": np.array([bits - word.bit_length() for word in words], np.int32),
        }
        counts: Outputs = {"set": (dtype, lambda a: T.popcount(a)), "zeros": ("int32", lambda a: T.clz(a))}
        cases[f"{dtype} counted"] = Case({"a": a}, counts, expected)
    check(machine, cases)


@pytest.mark.full
def test_comparisons_are_numpys_but_for_nan(machine: Machine) -> None:
    cases = {dtype: case_of(COMPARISONS, *pairs_of(dtype, denormals=machine.denormals), result="bool") for dtype in TYPES}
    for narrow, wide in itertools.product(INTEGERS, ("int32", "int64", "uint64")):
        if np.dtype(narrow).itemsize >= np.dtype(wide).itemsize:
            continue
        a = np.arange(-64, 64).astype(narrow)
        for bound in (-5, 0, 3, 200) if wide.startswith("i") else (0, 3, 200):
            rules: dict[str, Rule] = {
                "lt": (lambda a, b, w=wide, c=bound: T.cast(a, w) < T.const(c, w), lambda a, b, w=wide, c=bound: a.astype(w) < c),
                "ge": (lambda a, b, w=wide, c=bound: T.const(c, w) <= T.cast(a, w), lambda a, b, w=wide, c=bound: a.astype(w) >= c),
                "eq": (lambda a, b, w=wide, c=bound: T.cast(a, w) == T.const(c, w), lambda a, b, w=wide, c=bound: a.astype(w) == c),
            }
            cases[f"{narrow} as {wide} and {bound}"] = case_of(rules, a, a, result="bool")
    check(machine, cases)


@pytest.mark.full(first=1)
def test_truths_are_combined(machine: Machine) -> None:
    rules: dict[str, Rule] = {
        "both": (lambda a, b: T.And(a, b), np.logical_and),
        "either": (lambda a, b: T.Or(a, b), np.logical_or),
        "neither": (lambda a, b: T.Not(T.Or(a, b)), lambda a, b: ~(a | b)),
        "one": (lambda a, b: a ^ b, np.logical_xor),
        "bits": (lambda a, b: ~(a & b) | (a & b), lambda a, b: ~(a & b) | (a & b)),
        "same": (lambda a, b: T.EQ(a | b, a & b), lambda a, b: (a | b) == (a & b)),
        "most": (lambda a, b: T.max(a | b, b), np.logical_or),
        "chosen": (lambda a, b: T.Select(a & b, a ^ b, T.Not(a | b)), lambda a, b: np.where(a & b, a ^ b, ~(a | b))),
    }
    numbers: dict[str, Rule] = {
        dtype: (lambda a, b, t=dtype: T.Cast(t, a & b) + T.Cast(t, a), lambda a, b, t=dtype: (a & b).astype(t) + a.astype(t))
        for dtype in TYPES[1:]
    }
    cases = {name: case_of({name: rule}, *pairs_of("bool"), result=name) for name, rule in numbers.items()}
    check(machine, {"bool": case_of(rules, *pairs_of("bool")), **cases})


@pytest.mark.full(first=1)
def test_one_of_two_is_chosen(machine: Machine) -> None:
    cases = {}
    for dtype in TYPES:
        a, b = pairs_of(dtype, denormals=machine.denormals)
        c = np.arange(a.size) % 3 == 1
        ways: Outputs = {
            "select": (dtype, lambda c, a, b: T.Select(c, a, b)),
            "if_then_else": (dtype, lambda c, a, b: T.if_then_else(c, a, b)),
        }
        cases[dtype] = Case({"c": c, "a": a, "b": b}, ways, dict.fromkeys(ways, np.where(c, a, b)))
    for name, outputs in computed(machine, cases).items():
        for actual in outputs.values():
            if name == "float16" and not machine.narrow:  # float32 cannot preserve the bits of a NaN
                machine.same(actual, cases[name].expected["select"], name)
            else:
                assert_same_bits(actual, cases[name].expected["select"])


@pytest.mark.full
def test_constants_are_what_they_say(machine: Machine) -> None:
    runs, expected = [], {}

    def body(dtype: str, numbers: list[Any], i: Any, source: Any, result: Any) -> None:
        for place, number in enumerate(numbers):
            T.store(result, i + 64 * place, number_of(dtype, number))
            either = T.Select(source[i] == 0, number_of(dtype, number), number_of(dtype, numbers[1]))
            T.store(result, i + 64 * (place + len(numbers)), either)

    for dtype in TYPES:
        numbers = extremes(dtype)
        result = np.zeros(128 * len(numbers), dtype)
        kernel = written({"source*": "int32", "result*": dtype}, partial(body, dtype, numbers))
        runs.append(Run(kernel, {"source": np.arange(64, dtype=np.int32) % 2, "result": result}))
        plain = np.repeat(np.array(numbers, dtype), 64)
        chosen = np.where(np.arange(plain.size) % 2 == 0, plain, np.array(numbers[1], dtype))
        expected[dtype] = np.concatenate([plain, chosen])
    machine.run(*runs)
    for (dtype, values), run in zip(expected.items(), runs, strict=True):
        machine.same(run.arguments["result"], values, dtype)


@pytest.mark.full
def test_constants_take_part_in_arithmetic(machine: Machine) -> None:
    cases = {}
    for dtype in (*INTEGERS, *FLOATS):
        a = values_of(dtype, denormals=machine.denormals)
        rules: dict[str, Rule] = {}
        for number in extremes(dtype):
            if dtype in FLOATS and number == 0:
                continue  # TVM assumes that adding zero changes nothing, but it changes -0.0
            if dtype in FLOATS and not machine.denormals and abs(number) < np.finfo(dtype).tiny:
                continue
            value = np.array(number, dtype)
            of: Callable[..., Any] = partial(number_of, dtype, number)
            rules |= {
                f"x + {number}": (lambda a, b, of=of: a + of(), lambda a, b, v=value: a + v),
                f"{number} - x": (lambda a, b, of=of: of() - a, lambda a, b, v=value: v - a),
                f"x * {number}": (lambda a, b, of=of: a * of(), lambda a, b, v=value: a * v),
                f"min(x, {number})": (lambda a, b, of=of: T.min(a, of()), lambda a, b, v=value: np.where(a < v, a, v)),
            }
            if dtype in INTEGERS:
                rules |= {
                    f"x & {number}": (lambda a, b, of=of: a & of(), lambda a, b, v=value: a & v),
                    f"{number} >> x": (
                        lambda a, b, t=dtype, of=of: of() >> (a & const(t, 7)),
                        lambda a, b, t=dtype, v=value: np.right_shift(v, a & np.array(7, t)),
                    ),
                }
        for first in range(0, len(rules), OUTPUTS):
            cases[f"{dtype} from {first}"] = case_of(dict(list(rules.items())[first : first + OUTPUTS]), a, a)
    check(machine, cases)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint16"])
def test_one_of_two_constants_is_chosen(machine: Machine, dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    minus_one = {16: 0xBC00, 32: 0xBF800000, 64: 0xBFF0 << 48}[bits]
    patterns = np.array([0, 1 << bits - 1, minus_one, minus_one ^ 1 << bits - 1, 1, (1 << bits) - 2], f"u{bits // 8}").view(dtype)
    numbers = [value for value in patterns.tolist() if value == value]
    condition = np.arange(64) % 3 == 0
    cases = {}
    for one, other in itertools.permutations(numbers, 2):
        if one == other == 0:  # zeros of both signs, which TVM considers equal
            continue
        ways: Outputs = {
            "select": (dtype, lambda c, a=one, b=other: T.Select(c, const(dtype, a), const(dtype, b))),
            "if_then_else": (dtype, lambda c, a=one, b=other: T.if_then_else(c, const(dtype, a), const(dtype, b))),
        }
        expected = np.where(condition, np.array(one, dtype), np.array(other, dtype))
        cases[f"{one} or {other}"] = Case({"c": condition}, ways, dict.fromkeys(ways, expected))
    check(machine, cases)


# -- Conversions -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_every_cast_gives_the_nearest_value(machine: Machine) -> None:
    cases = {}
    for one, other in itertools.product(TYPES, TYPES):
        values = castable(one, other)
        with np.errstate(all="ignore"):
            expected = values.astype(other)
        cases[f"{one} to {other}"] = Case({"x": values}, {"r": (other, lambda x, t=other: T.Cast(t, x))}, {"r": expected})
    check(machine, cases)


def test_integers_become_the_nearest_float16(machine: Machine) -> None:
    """By way of float32, which rounds them first: that shows in no result, for what it rounds is too large."""
    edges = (
        0,
        1,
        2047,
        2048,
        2049,
        2051,
        4097,
        65503,
        65504,
        65519,
        65520,
        65536,
        2**24 - 1,
        2**24,
        2**24 + 1,
        2**25 + 3,
        2**53 + 1,
    )
    cases = {}
    for dtype in ("int32", "uint32", "int64", "uint64"):
        most = int(np.iinfo(dtype).max)
        few = [edge for edge in [*edges, most] if edge <= most] + (
            [-edge for edge in edges if edge <= most] if dtype[0] == "i" else []
        )
        values = np.concatenate([np.array(few, dtype), seeded(dtype).integers(0, 70000, 2000).astype(dtype)])
        with np.errstate(over="ignore"):
            expected = values.astype(np.float64).astype(np.float16)
        cases[dtype] = Case({"x": values}, {"r": ("float16", lambda x: T.Cast("float16", x))}, {"r": expected})
    check(machine, cases)


def test_integers_are_rounded_to_float32_once(machine: Machine) -> None:
    """Also where they are near the middle between two floats, and above 2^31, which some drivers take apart."""
    cases = {}
    for dtype in ("int32", "uint32", "int64", "uint64"):
        limits = np.iinfo(dtype)
        values = seeded(dtype).integers(limits.min, limits.max, 4000, dtype, endpoint=True)
        bits = limits.bits - 24  # of those from half the limit on, so many are rounded off
        middle = values >> bits << bits | 1 << (bits - 1)
        values = np.concatenate([values, middle, middle - 1, middle + 1]).astype(dtype)
        cases[dtype] = Case({"x": values}, {"r": ("float32", lambda x: T.Cast("float32", x))}, {"r": values.astype(np.float32)})
    check(machine, cases)


def test_floats_are_rounded_to_float16_once_and_evenly(machine: Machine) -> None:
    least = 0 if machine.denormals else 0x0400
    halves = np.arange(least, 0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[:-1] + halves[1:]) / 2
    cases = {}
    for dtype in ("float32", "float64"):
        exact = middles.astype(dtype)
        near = [np.nextafter(exact, np.array(limit, dtype)) for limit in (0, np.inf)]
        values = np.concatenate([exact, *near, -exact, *(-number for number in near)])
        cases[dtype] = Case({"x": values}, {"r": ("float16", lambda x: T.Cast("float16", x))}, {"r": values.astype(np.float16)})
    check(machine, cases)


def whole_in_float32(halves: Array) -> Array:
    """Which of them a device without float16, or without denormals, need not change: neither NaN nor denormal."""
    return ~np.isnan(halves) & ((abs(halves) >= np.finfo(np.float16).tiny) | (halves == 0))


def test_float16_that_is_only_moved_keeps_its_bits(machine: Machine) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)

    def body(i: Any, source: Any, named: Any, chosen: Any, shared_: Any, vectors: Any, local: Any) -> None:
        cells = T.alloc_buffer((64,), "float16", scope="shared")
        own = T.local("float16", 3)
        x = T.let(source[i])
        variable = T.Variable("float16", x)
        T.store(named, i, variable.value)
        T.store(chosen, i, T.if_then_else(i % 2 == 0, T.Select(i % 3 == 0, x, source[i]), variable.value))
        T.store(cells, i % 64, x)
        T.store(own, i % 3, x)
        T.evaluate(T.tvm_storage_sync("shared"))
        T.store(shared_, i, cells[i % 64])
        T.store(local, i, own[i % 3])
        with T.when(i < (1 << 16) // 8):
            T.store(vectors, T.run(i * 8, 8), source[T.run(i * 8, 8)])

    names = ("named", "chosen", "shared_", "vectors", "local")
    results = {name: np.zeros_like(every) for name in names}
    kernel = written({f"{name}*": "float16" for name in ("source", *names)}, body, groups=1 << 10)
    machine.run(Run(kernel, {"source": every, **results}))
    kept = np.full(every.size, True) if machine.narrow else whole_in_float32(every)
    for name, result in results.items():
        assert np.array_equal(bits_of(result[kept]), bits_of(every[kept])), name


def test_every_float16_is_read_and_written_as_bits(machine: Machine) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    outputs: Outputs = {
        "wide": ("float32", lambda x: T.Cast("float32", x)),
        "wider": ("float64", lambda x: T.Cast("float64", x)),
        "bits": ("uint16", lambda x: T.reinterpret("uint16", x)),
        "back": ("float16", lambda x: T.reinterpret("float16", T.reinterpret("uint16", x))),
        "fabs": ("float16", lambda x: T.fabs(x)),
        "minus": ("float16", lambda x: T.copysign(x, T.const(-1, "float16"))),
        "around": ("float16", lambda x: T.Cast("float16", T.Cast("float64", x))),
    }
    actual = computed(machine, {"": Case({"x": every}, outputs, {})})[""]
    with np.errstate(invalid="ignore"):
        wide, wider = every.astype(np.float32), every.astype(np.float64)
    for name, expected in {"wide": wide, "wider": wider, "around": every}.items():
        machine.same(actual[name], expected, name)
    bits = bits_of(every)
    kept = np.full(every.size, True) if machine.denormals else whole_in_float32(every)
    for name, expected in {"bits": bits, "back": bits, "fabs": bits & 0x7FFF, "minus": bits | 0x8000}.items():
        assert np.array_equal(bits_of(actual[name])[kept], expected[kept]), name


@pytest.mark.full(first=1)
def test_reinterpret_keeps_the_bits(machine: Machine) -> None:
    cases = {}
    for one, other in itertools.product(TYPES[1:], TYPES[1:]):
        if np.dtype(one).itemsize == np.dtype(other).itemsize:
            values = np.concatenate([values_of(one, machine.denormals), values_of(other, machine.denormals).view(one)])
            rule: Outputs = {"r": (other, lambda x, t=other: T.reinterpret(t, x))}
            cases[f"{one} to {other}"] = Case({"x": values}, rule, {"r": values.view(other)})
    for name, outputs in computed(machine, cases).items():
        assert_same_bits(outputs["r"], cases[name].expected["r"])


# -- Functions -------------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
def test_exact_functions_are_numpys(machine: Machine) -> None:
    cases = {}
    signs: dict[str, Rule] = {
        "copysign": (lambda a, b: T.copysign(a, b), np.copysign),
        "fmod": (lambda a, b: T.fmod(a, b), np.fmod),
        "mod": (lambda a, b: T.truncmod(a, b), np.fmod),
    }
    tests = {"isnan": (T.isnan, np.isnan), "isinf": (T.isinf, np.isinf), "isfinite": (T.isfinite, np.isfinite)}
    for dtype in FLOATS:
        a, b = pairs_of(dtype, denormals=machine.denormals)
        rules = {name: (lambda a, b, f=f: f(a), lambda a, b, g=g: g(a)) for name, (f, g) in EXACT.items()}
        cases[dtype] = case_of({**rules, **signs}, a, b)
        classes: dict[str, Rule] = {name: (lambda a, b, f=test: f(a), lambda a, b, g=g: g(a)) for name, (test, g) in tests.items()}
        cases[f"{dtype} classified"] = case_of(classes, a, b, result="bool")
    check(machine, cases)


@pytest.mark.full(first=1)
def test_remainders_are_exact_even_of_subnormals(machine: Machine) -> None:
    """Whatever a device takes for 0: it must neither round them nor look for them without end."""
    rules: dict[str, Rule] = {"fmod": (lambda a, b: T.fmod(a, b), np.fmod)}
    cases = {dtype: case_of(rules, *pairs_of(dtype, denormals=True)) for dtype in FLOATS}
    for dtype, outputs in computed(machine, cases).items():
        assert_same_bits(settled(outputs["fmod"], denormals=True), settled(cases[dtype].expected["fmod"], denormals=True))


MORE: dict[str, Callable[[Any], Any]] = {
    "cbrt": np.cbrt,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "expm1": np.expm1,
    "log1p": np.log1p,
    "lgamma": np.vectorize(math.lgamma),
    "tgamma": np.vectorize(math.gamma),
}
"""Called by their names in C, which only CUDA has."""
CLOSENESS = {"cuda": {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}, "vulkan": {"float16": 1e-2, "float32": 1e-3}}


@pytest.mark.full(first=1)
def test_transcendental_functions_come_near(machine: Machine) -> None:
    cases, wide = {}, {}
    for dtype in CLOSENESS[machine.kind]:
        x = wide[dtype] = np.linspace(0.05, 3, 300).astype(dtype)
        known: Outputs = {
            name: (dtype, lambda v, name=name: getattr(T, name)(ARGUMENTS.get(name, lambda v: v)(v))) for name in NEAR
        }
        more = MORE if machine.kind == "cuda" else {}
        called = {name: (dtype, lambda v, t=dtype, f=name: T.call_pure_extern(t, f, v)) for name in more}
        cases[dtype] = Case({"x": x}, {**known, **called}, {})
    for dtype, outputs in computed(machine, cases).items():
        near = CLOSENESS[machine.kind][dtype]
        for name, actual in outputs.items():
            expected = {**NEAR, **MORE}[name](wide[dtype].astype(np.float64))
            np.testing.assert_allclose(
                actual, expected, near, near if machine.kind == "cuda" else 1e-4, err_msg=f"{name} of {dtype}"
            )


def test_functions_of_several_numbers_come_near(machine: Machine) -> None:
    cases = {}
    for dtype in CLOSENESS[machine.kind]:
        a, b = np.linspace(0.5, 3, 100).astype(dtype), np.linspace(2, 0.25, 100).astype(dtype)
        letter = "" if dtype == "float64" else "f"
        outputs: Outputs = {
            "pow": (dtype, lambda a, b: T.pow(a, b)),
            "atan2": (dtype, lambda a, b: T.atan2(a, b)),
            "fma": (dtype, lambda a, b: T.fma(a, b, a)),
            "named": (dtype, lambda a, b, t=dtype, f=f"atan2{letter}": T.call_pure_extern(t, f, a, b)),
        }
        only_cuda: Outputs = {
            "hypot": (dtype, lambda a, b: T.hypot(a, b)),
            "ldexp": (dtype, lambda a, b: T.ldexp(a, T.Cast("int32", b))),
        }
        cases[dtype] = Case({"a": a, "b": b}, {**outputs, **(only_cuda if machine.kind == "cuda" else {})}, {})
    for dtype, results in computed(machine, cases).items():
        a, b = (x.astype(np.float64) for x in cases[dtype].inputs.values())
        expected = {"pow": a**b, "fma": a * b + a, "hypot": np.hypot(a, b), "ldexp": np.ldexp(a, b.astype(int))}
        for name, actual in results.items():
            near = CLOSENESS[machine.kind][dtype]
            np.testing.assert_allclose(actual, expected.get(name, np.arctan2(a, b)), near, err_msg=f"{name} of {dtype}")


def test_nothing_is_fused_that_was_not_asked_for(machine: Machine) -> None:
    cases = {}
    for dtype in ("float32", "float64"):
        bits = np.finfo(dtype).nmant
        a = np.array([1 + 2.0**-bits], dtype).repeat(64)
        b = np.array([-1 - 2.0 ** (1 - bits)], dtype).repeat(64)
        rules: dict[str, Rule] = {"apart": (lambda a, b: a * a + b, lambda a, b: a * a + b)}
        cases[dtype] = case_of(rules, a, b)
        assert (cases[dtype].expected["apart"] == 0).all()
        if machine.kind != "cuda":  # Vulkan leaves open whether its Fma rounds once
            continue
        fused: Outputs = {"fused": (dtype, lambda a, b: T.fma(a, a, b))}
        cases[f"{dtype} fused"] = Case({"a": a, "b": b}, fused, {"fused": np.full_like(a, 2.0 ** (-2 * bits))})
    check(machine, cases)


# -- Any expression --------------------------------------------------------------------------------------------------

TOGETHER = 25
"""Expressions that are compiled together."""
_typed = st.sampled_from(TYPES).flatmap(lambda dtype: st.tuples(st.just(dtype), trees(dtype)))


@pytest.fixture(scope="module")
def cpu() -> targets.Target:
    """A processor that multiplies and adds in two steps, as devices are told to."""
    return targets.resolve("cpu:x86-64-v2" if platform.machine() in ("x86_64", "AMD64") else "cpu")


@pytest.mark.full(first=1)
@hypothesis.settings(max_examples=max(hypothesis.settings.default.max_examples // 12, 1))
@hypothesis.given(typed=st.tuples(*[_typed] * TOGETHER))
def test_any_expression_is_what_the_cpu_makes_of_it(
    machine: Machine, cpu: targets.Target, typed: tuple[tuple[str, Tree], ...]
) -> None:
    inputs = {dtype: fuzz_input(dtype) for dtype in TYPES}
    names = {f"r{place}": dtype for place, (dtype, _) in enumerate(typed)}

    def body(i: Any, *buffers: Any) -> None:
        given = {dtype: buffer[i] for dtype, buffer in zip(TYPES, buffers, strict=False)}
        for (_, tree), result in zip(typed, buffers[len(TYPES) :], strict=True):
            T.store(result, i, built(tree, given))

    with T.function() as f:
        buffers = [f.buffer(name, dtype) for name, dtype in {**{dtype: dtype for dtype in TYPES}, **names}.items()]
        with T.serial(T.const(0, "int32"), T.const(FUZZED, "int32")) as index:
            body(index, *buffers)
    expected, actual = ({name: np.zeros(FUZZED, dtype) for name, dtype in names.items()} for _ in range(2))
    cpu.build(f.result()).launcher()(*inputs.values(), *expected.values())
    types = {**{f"{dtype}*": dtype for dtype in TYPES}, **{f"{name}*": dtype for name, dtype in names.items()}}
    machine.run(Run(written(types, body, 32, FUZZED // 32), {**inputs, **actual}))
    for (dtype, tree), (name, values) in zip(typed, actual.items(), strict=True):
        machine.same(values, expected[name], f"{dtype}: {tree}")
