"""The CUDA C++ generator: what each TensorIR operator computes, bit for bit, on a GPU or on the emulator.

Many kernels are compiled together, since the compiler is the slow part.
"""

from __future__ import annotations

import itertools
import math
import platform
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import kernels
import numpy as np
import pytest
from expressions import (
    ARGUMENTS,
    ARITHMETIC,
    AWKWARD,
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
    Written,
    built,
    castable,
    const,
    fuzz_input,
    pairs_of,
    settled,
    trees,
    values_of,
    written,
)
from kernels import Example
from support import Array, assert_same_bits, bits_of, seeded
from test_vulkan_te import CASES, scheduled

from tvmdml import _imports, targets
from tvmdml import tensorir as T
from tvmdml.targets._lower import lower
from tvmdml.targets._program import evaluate
from tvmdml.targets.cuda import CudaTarget, compile_function, compilers, source, translate
from tvmdml.targets.cuda.launch import CudaLaunch, Loaded


class Run(NamedTuple):
    """A kernel, and what it is given: arrays are changed in place. Parameters go by name."""

    kernel: Written
    arguments: Mapping[str, Any]


class Machine:
    """A device."""

    def __init__(self, target: CudaTarget) -> None:
        self.device = target.device

    def run(self, *runs: Run) -> None:
        """One after the other; they are compiled together."""
        emitted = [
            source.emit(run.kernel.function.with_attr("global_symbol", f"kernel_{number}")) for number, run in enumerate(runs)
        ]
        form = self.device.info.arch
        images = {image.form: image.content for image in compilers.compile_text(source.unit(emitted), [form])}
        module = self.device.module(images[form])
        for one, (kernel, arguments) in zip(emitted, runs, strict=True):
            self._run(module.function(one.name), one, kernel, arguments)

    def give(self, examples: Mapping[str, Example]) -> None:
        """Run them, and look at what comes of each."""
        self.run(*(Run(example.kernel, example.arguments) for example in examples.values()))
        for name, example in examples.items():
            example.check(name, denormals=True)

    def _run(self, function: int, emitted: source.Emitted, kernel: Written, arguments: Mapping[str, Any]) -> None:
        device = self.device
        given = [arguments[name] for name in kernel.parameters]
        memories = []
        for place in emitted.buffers:
            memory = device.allocate(max(given[place].nbytes, 4))
            device.upload(memory, 0, given[place])
            memories.append(memory)
        block = bytearray(emitted.block_bytes)
        for (place, _), (offset, form) in zip(emitted.scalars, emitted.block, strict=True):
            struct.pack_into(f"<{form}", block, offset, given[place])
        parameters = struct.pack(f"<{len(memories)}Q", *(memory.address for memory in memories)) + bytes(block)
        scalars = [0 if isinstance(value, np.ndarray) else int(value) for value in arguments.values()]
        device.launch(function, (evaluate(kernel.groups, scalars), 1, 1), emitted.threads, parameters, 0)
        for place, memory, is_written in zip(emitted.buffers, memories, emitted.writes, strict=True):
            before = given[place].copy()
            device.download(memory, 0, given[place])
            assert is_written or given[place].tobytes() == before.tobytes()


@pytest.fixture(scope="module")
def target() -> CudaTarget:
    """A GPU, or the emulator."""
    import conftest

    found = conftest._found("cuda")
    assert isinstance(found, CudaTarget)
    return found


@pytest.fixture(scope="module")
def machine(target: CudaTarget) -> Machine:
    return Machine(target)


# -- What is computed ------------------------------------------------------------------------------------------------

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


def same(actual: Array, expected: Array, what: str) -> None:
    """The same bits, but that a NaN is a NaN."""
    try:
        assert_same_bits(settled(actual, denormals=True), settled(expected, denormals=True))
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


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
            same(actual, cases[name].expected[output], f"{output} of {name}")


def test_arithmetic_is_numpys(machine: Machine) -> None:
    check(machine, {dtype: case_of(ARITHMETIC, *pairs_of(dtype, denormals=True)) for dtype in (*INTEGERS, *FLOATS)})


def test_division_is_exact(machine: Machine) -> None:
    cases = {dtype: case_of({"div": (lambda a, b: T.Div(a, b), np.divide)}, *pairs_of(dtype, denormals=True)) for dtype in FLOATS}
    for dtype in INTEGERS:
        a, b = pairs_of(dtype)
        defined = b != 0
        if dtype.startswith("int"):
            defined &= ~((a == np.iinfo(dtype).min) & (b == -1))
        cases[dtype] = case_of(DIVISION, a[defined], b[defined])
    check(machine, cases)


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


def test_comparisons_are_numpys_but_for_nan(machine: Machine) -> None:
    cases = {dtype: case_of(COMPARISONS, *pairs_of(dtype, denormals=True), result="bool") for dtype in TYPES}
    for narrow, wide in itertools.product(INTEGERS, ("int32", "int64", "uint64")):
        if np.dtype(narrow).itemsize >= np.dtype(wide).itemsize:
            continue
        a = np.arange(-64, 64).astype(narrow)
        for bound in (-5, 0, 3, 200) if wide.startswith("i") else (0, 3, 200):
            rules: dict[str, Rule] = {
                "lt": (lambda a, b, w=wide, c=bound: T.cast(a, w) < T.const(c, w), lambda a, b, w=wide, c=bound: a.astype(w) < c),
                "ge": (lambda a, b, w=wide, c=bound: T.const(c, w) <= T.cast(a, w), lambda a, b, w=wide, c=bound: a.astype(w) >= c),
            }
            cases[f"{narrow} as {wide} and {bound}"] = case_of(rules, a, a, result="bool")
    check(machine, cases)


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


def test_one_of_two_is_chosen(machine: Machine) -> None:
    cases = {}
    for dtype in TYPES:
        a, b = pairs_of(dtype, denormals=True)
        c = np.arange(a.size) % 3 == 1
        ways: Outputs = {
            "select": (dtype, lambda c, a, b: T.Select(c, a, b)),
            "if_then_else": (dtype, lambda c, a, b: T.if_then_else(c, a, b)),
        }
        cases[dtype] = Case({"c": c, "a": a, "b": b}, ways, dict.fromkeys(ways, np.where(c, a, b)))
    for name, outputs in computed(machine, cases).items():
        for actual in outputs.values():  # any NaN is accepted
            assert_same_bits(actual, cases[name].expected["select"])


# Values that are easily lost: the sign of zero, the last bit, numbers without a literal in C++.
def extremes(dtype: str) -> list[Any]:
    if dtype == "bool":
        return [True, False]
    if dtype in FLOATS:
        info = np.finfo(dtype)
        numbers = [0.0, 1.0, 0.1, 1 / 3, 65504, info.max, info.tiny, info.smallest_subnormal, info.tiny - info.smallest_subnormal]
        positive = [*map(float, numbers), math.inf]
        return [*positive, *(-number for number in positive), math.nan]
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    near = {edge + step for edge in (least, most, 0, 2**31, 2**32, -(2**31)) for step in (-1, 0, 1)}
    return sorted(number for number in near if least <= number <= most)


def number_of(dtype: str, value: Any) -> Any:
    return T.word(value, 64) if dtype == "uint64" else const(dtype, value)


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
        same(run.arguments["result"], values, dtype)


def test_constants_take_part_in_arithmetic(machine: Machine) -> None:
    cases = {}
    for dtype in (*INTEGERS, *FLOATS):
        a = values_of(dtype, denormals=True)
        rules: dict[str, Rule] = {}
        for number in extremes(dtype):
            if dtype in FLOATS and number == 0:
                continue  # TVM assumes that adding zero changes nothing, but it changes -0.0
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
        cases[dtype] = case_of(rules, a, a)
    check(machine, cases)


# -- Conversions -----------------------------------------------------------------------------------------------------


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
    edges = [
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
    ]
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


def test_floats_are_rounded_to_float16_once_and_evenly(machine: Machine) -> None:
    halves = np.arange(0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float64)  # including denormal numbers
    middles = (halves[:-1] + halves[1:]) / 2
    cases = {}
    for dtype in ("float32", "float64"):
        exact = middles.astype(dtype)
        near = np.nextafter(exact, np.array(0, dtype)), np.nextafter(exact, np.array(np.inf, dtype))
        values = np.concatenate([exact, *near, -exact])
        cases[dtype] = Case({"x": values}, {"r": ("float16", lambda x: T.Cast("float16", x))}, {"r": values.astype(np.float16)})
    check(machine, cases)


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
    for name, result in results.items():
        assert np.array_equal(bits_of(result), bits_of(every)), name


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
        same(actual[name], expected, name)
    bits = bits_of(every)
    for name, expected in {"bits": bits, "back": bits, "fabs": bits & 0x7FFF, "minus": bits | 0x8000}.items():
        assert np.array_equal(bits_of(actual[name]), expected), name


def test_reinterpret_keeps_the_bits(machine: Machine) -> None:
    cases = {}
    for one, other in itertools.product(TYPES[1:], TYPES[1:]):
        if np.dtype(one).itemsize == np.dtype(other).itemsize:
            values = np.concatenate([values_of(one, True), values_of(other, True).view(one)])
            rule: Outputs = {"r": (other, lambda x, t=other: T.reinterpret(t, x))}
            cases[f"{one} to {other}"] = Case({"x": values}, rule, {"r": values.view(other)})
    for name, outputs in computed(machine, cases).items():
        assert_same_bits(outputs["r"], cases[name].expected["r"])


# -- Functions -------------------------------------------------------------------------------------------------------


def test_exact_functions_are_numpys(machine: Machine) -> None:
    cases = {}
    signs: dict[str, Rule] = {
        "copysign": (lambda a, b: T.copysign(a, b), np.copysign),
        "fmod": (lambda a, b: T.fmod(a, b), np.fmod),
        "mod": (lambda a, b: T.truncmod(a, b), np.fmod),
    }
    tests = {"isnan": (T.isnan, np.isnan), "isinf": (T.isinf, np.isinf), "isfinite": (T.isfinite, np.isfinite)}
    for dtype in FLOATS:
        a, b = pairs_of(dtype, denormals=True)
        rules = {name: (lambda a, b, f=f: f(a), lambda a, b, g=g: g(a)) for name, (f, g) in EXACT.items()}
        cases[dtype] = case_of({**rules, **signs}, a, b)
        classes: dict[str, Rule] = {name: (lambda a, b, f=test: f(a), lambda a, b, g=g: g(a)) for name, (test, g) in tests.items()}
        cases[f"{dtype} classified"] = case_of(classes, a, b, result="bool")
    check(machine, cases)


MORE: dict[str, Callable[[Any], Any]] = {
    "cbrt": np.cbrt,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "expm1": np.expm1,
    "log1p": np.log1p,
    "lgamma": np.vectorize(math.lgamma),
    "tgamma": np.vectorize(math.gamma),
}
"""Called by their names in C."""


def test_transcendental_functions_come_near(machine: Machine) -> None:
    cases, wide = {}, {}
    for dtype in FLOATS:
        x = wide[dtype] = np.linspace(0.05, 3, 300).astype(dtype)
        known: Outputs = {
            name: (dtype, lambda v, name=name: getattr(T, name)(ARGUMENTS.get(name, lambda v: v)(v))) for name in NEAR
        }
        called = {name: (dtype, lambda v, t=dtype, f=name: T.call_pure_extern(t, f, v)) for name in MORE}
        cases[dtype] = Case({"x": x}, {**known, **called}, {})
    for dtype, outputs in computed(machine, cases).items():
        near = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}[dtype]
        for name, actual in outputs.items():
            expected = {**NEAR, **MORE}[name](wide[dtype].astype(np.float64))
            np.testing.assert_allclose(actual, expected, near, near, err_msg=f"{name} of {dtype}")


def test_functions_of_several_numbers_come_near(machine: Machine) -> None:
    cases = {}
    for dtype in FLOATS:
        a, b = np.linspace(0.5, 3, 100).astype(dtype), np.linspace(2, 0.25, 100).astype(dtype)
        letter = "" if dtype == "float64" else "f"
        outputs: Outputs = {
            "pow": (dtype, lambda a, b: T.pow(a, b)),
            "atan2": (dtype, lambda a, b: T.atan2(a, b)),
            "fma": (dtype, lambda a, b: T.fma(a, b, a)),
            "hypot": (dtype, lambda a, b: T.hypot(a, b)),
            "ldexp": (dtype, lambda a, b: T.ldexp(a, T.Cast("int32", b))),
            "named": (dtype, lambda a, b, t=dtype, f=f"atan2{letter}": T.call_pure_extern(t, f, a, b)),
        }
        cases[dtype] = Case({"a": a, "b": b}, outputs, {})
    for dtype, results in computed(machine, cases).items():
        a, b = (x.astype(np.float64) for x in cases[dtype].inputs.values())
        expected = {"pow": a**b, "fma": a * b + a, "hypot": np.hypot(a, b), "ldexp": np.ldexp(a, b.astype(int))}
        near = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
        for name, actual in results.items():
            np.testing.assert_allclose(actual, expected.get(name, np.arctan2(a, b)), near, err_msg=f"{name} of {dtype}")


def test_nothing_is_fused_that_was_not_asked_for(machine: Machine) -> None:
    cases = {}
    for dtype in ("float32", "float64"):
        bits = np.finfo(dtype).nmant
        a = np.array([1 + 2.0**-bits], dtype).repeat(64)
        b = np.array([-1 - 2.0 ** (1 - bits)], dtype).repeat(64)
        rules: dict[str, Rule] = {"apart": (lambda a, b: a * a + b, lambda a, b: a * a + b)}
        cases[dtype] = case_of(rules, a, b)
        fused: Outputs = {"fused": (dtype, lambda a, b: T.fma(a, a, b))}
        cases[f"{dtype} fused"] = Case({"a": a, "b": b}, fused, {"fused": np.full_like(a, 2.0 ** (-2 * bits))})
        assert (cases[dtype].expected["apart"] == 0).all()
    check(machine, cases)


# -- Control flow ----------------------------------------------------------------------------------------------------


def test_kernels_do_what_they_say(machine: Machine) -> None:
    makers = (kernels.lazy_reads, kernels.loops, kernels.leaving, kernels.own_memory, kernels.group_scan, kernels.scalars)
    vectors = (kernels.mixed_access, kernels.ramps)
    machine.give({make.__name__: make() for make in (*makers, *vectors)})


def test_what_is_not_asked_for_may_take_statements(machine: Machine) -> None:
    """Vectors, names and changes of lanes are statements: where they may never be computed, they stand in a branch."""

    def body(i: Any, source: Any, result: Any, whole: Any, limit: Any) -> None:
        tirx = _imports.tvm().tirx
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
        tirx = _imports.tvm().tirx
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


# -- Groups ----------------------------------------------------------------------------------------------------------


def test_a_group_shares_memory(machine: Machine) -> None:
    machine.give({dtype: kernels.shared_memory(dtype, denormals=True) for dtype in TYPES})


def test_the_grid_may_depend_on_a_scalar(machine: Machine) -> None:
    def body(i: Any, result: Any, count: Any) -> None:
        with T.when(i < count):
            T.store(result, i, T.Cast("int32", i))

    kernel = written({"result*": "int32", "count": "int64"}, body, T.const(64, "int64"), lambda _, count: T.max(count // 50, 1))
    result = np.zeros(100, np.int32)
    machine.run(Run(kernel, {"result": result, "count": 100}))
    assert_same_bits(result, np.arange(100, dtype=np.int32))


# -- Atomics ---------------------------------------------------------------------------------------------------------


def test_atomics_lose_nothing(machine: Machine) -> None:
    kinds = itertools.product(("int32", "uint32", "int64", "uint64"), ("buffer", "shared"))
    machine.give({f"{dtype} in {scope}": kernels.atomics(dtype, scope) for dtype, scope in kinds})


def test_floats_are_added_atomically(machine: Machine) -> None:
    def body(dtype: str, i: Any, source: Any, result: Any) -> None:
        cell = T.alloc_buffer((1,), dtype, scope="shared")
        with T.when(i == 0):
            T.store(cell, 0, T.const(0.5, dtype))
        T.evaluate(T.tvm_storage_sync("shared"))
        T.evaluate(T.call_extern(dtype, "atomic_add", T.address_of(cell[0]), source[i]))
        T.evaluate(T.call_extern(dtype, "atomic_sub", T.address_of(result[0]), source[i]))
        T.evaluate(T.call_extern(dtype, "atomic_store", T.address_of(result[2]), T.const(-1.5, dtype)))
        if dtype == "float32":
            T.evaluate(T.call_extern(dtype, "atomic_exchange", T.address_of(result[3]), T.const(9, dtype)))
        T.evaluate(T.tvm_storage_sync("shared"))
        T.store(result, 1, cell[0])
        T.store(result, 4, T.call_extern(dtype, "atomic_load", T.address_of(result[2])))

    runs = []
    for dtype in ("float32", "float64"):
        kernel = written({"source*": dtype, "result*": dtype}, partial(body, dtype))
        runs.append(Run(kernel, {"source": np.arange(64).astype(dtype), "result": np.zeros(5, dtype)}))
    machine.run(*runs)
    for run in runs:
        x, result = run.arguments.values()
        exchanged = 9 if x.dtype == np.float32 else 0
        assert_same_bits(result, np.array([-x.sum(), 0.5 + x.sum(), -1.5, exchanged, -1.5], x.dtype))


def test_an_exchange_hands_one_token_on(machine: Machine) -> None:
    example = kernels.token()
    machine.run(Run(example.kernel, example.arguments))
    kernels.check_token(example)


# -- Warps -----------------------------------------------------------------------------------------------------------

WARP = 32


def test_warps_exchange_values(machine: Machine) -> None:
    machine.give({dtype: kernels.exchanges(dtype, WARP) for dtype in TYPES})


def test_infinities_are_in_no_sum_before_they_come(machine: Machine) -> None:
    def body(i: Any, x: Any, result: Any) -> None:
        T.store(result, i, T.let(T.subgroup("exclusive_add", "float32", x[i])))

    x, result = np.ones(64, np.float32), np.zeros(64, np.float32)
    x[20] = np.inf
    machine.run(Run(written({"x*": "float32", "result*": "float32"}, body), {"x": x, "result": result}))
    same(result[:32], np.array([*range(21), *[np.inf] * 11], np.float32), "exclusive_add")


def test_warps_vote(machine: Machine) -> None:
    machine.give({"": kernels.votes(WARP)})


def test_threads_of_a_warp_are_counted_along_x_first(machine: Machine) -> None:
    def body(i: Any, lanes: Any, warps: Any, sums: Any) -> None:
        with T.launch_thread("threadIdx.y", 3) as y, T.launch_thread("threadIdx.z", 2) as z:
            place = T.let(i + 16 * (y + 3 * z))
            T.store(lanes, place, T.subgroup("lane", "int32"))
            T.store(warps, place, T.subgroup("index", "int32"))
            T.store(sums, place, T.let(T.subgroup("inclusive_add", "int32", place)))

    arrays = {name: np.zeros(96, np.int32) for name in ("lanes", "warps", "sums")}
    machine.run(Run(written({f"{name}*": "int32" for name in arrays}, body, 16), arrays))
    place = np.arange(96, dtype=np.int32)
    assert_same_bits(arrays["lanes"], place % WARP)
    assert_same_bits(arrays["warps"], place // WARP)
    assert_same_bits(arrays["sums"], place.reshape(3, WARP).cumsum(1, np.int32).reshape(-1))


# -- Several lanes ---------------------------------------------------------------------------------------------------


def test_lanes_are_computed_each_for_itself(machine: Machine) -> None:
    kinds = itertools.product(TYPES, (2, 3, 4, 8, 16))
    machine.give({f"{lanes} {dtype}": kernels.lanes(dtype, lanes, denormals=True) for dtype, lanes in kinds})


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


def test_neighbours_are_moved_together_where_they_lie_so(machine: Machine) -> None:
    def body(start: Callable[[Any, Any], Any], i: Any, source: Any, result: Any, starts: Any, n: Any) -> None:
        T.store(result, T.run(i * 4, 4), source[T.run(start(i, n), 4)])
        T.store(starts, i, start(i, n))

    runs = []
    for start, align in STARTS:
        names = {"source*": "int32", "result*": "int32", "starts*": "int32", "n": "int32"}
        kernel = written(names, partial(body, start))
        text = source.emit(kernel.function).text
        assert (f"*(const Lanes<int32_t, 4, {align}> *)&source[" in text) == bool(align), text
        assert "*(Lanes<int32_t, 4, 16> *)&result[" in text
        arrays = {"result": np.zeros(256, np.int32), "starts": np.zeros(64, np.int32)}
        runs.append(Run(kernel, {"source": np.arange(1100, dtype=np.int32), **arrays, "n": 10}))
    machine.run(*runs)
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
        same(run.arguments["x"], expected[way].reshape(-1), way)


def test_memory_may_be_seen_as_another_type(machine: Machine) -> None:
    """What is written as the one is read as the other, in whatever order, also by pieces of another size."""

    def body(place: str, i: Any, source: Any, bits: Any, bytes_: Any, back: Any) -> None:
        memory = source
        if place == "shared":
            memory = T.alloc_buffer((64,), "float32", scope="shared")
        elif place == "own":
            memory = T.local("float32", 64)
        at = i if place != "variable" else T.const(0, "int32")
        if place == "variable":
            memory = T.local("float32", 1)
        if memory is not source:
            T.store(memory, at, source[i])
        words = T.decl_buffer((64,), "uint32", data=memory.data)
        pieces = T.decl_buffer((256,), "uint8", data=memory.data)
        T.store(bits, i, words[at])
        T.store(memory, at, memory[at] + T.float32(1))
        T.store(words, at, words[at] ^ T.const(1 << 31, "uint32"))
        T.store(memory, at, memory[at] * T.float32(2))
        T.store(bytes_, T.run(i * 4, 4), pieces[T.run(at * 4, 4)])
        T.store(back, i, memory[at])

    runs = []
    for place in ("parameter", "shared", "own", "variable"):
        x = np.linspace(-1, 1, 64, dtype=np.float32)
        results = {"bits": np.zeros(64, np.uint32), "bytes_": np.zeros(256, np.uint8), "back": np.zeros(64, np.float32)}
        names = {"source*": "float32", **{f"{name}*": str(result.dtype) for name, result in results.items()}}
        runs.append(Run(written(names, partial(body, place)), {"source": x, **results}))
    machine.run(*runs)
    before = np.linspace(-1, 1, 64, dtype=np.float32)
    after = -(before + np.float32(1)) * np.float32(2)
    for run in runs:
        assert_same_bits(run.arguments["bits"], before.view(np.uint32))
        assert_same_bits(run.arguments["bytes_"], after.view(np.uint8))
        assert_same_bits(run.arguments["back"], after)


def test_narrow_memory_may_be_seen_as_wider_words(machine: Machine) -> None:
    """It lies as wide words have to, whatever else there is."""

    def body(place: str, i: Any, x: Any, words: Any) -> None:
        first = T.alloc_buffer((3,), "uint8", scope="shared")
        own = {"shared": lambda: T.alloc_buffer((256,), "uint8", scope="shared"), "thread": lambda: T.local("uint8", 256)}[place]()
        T.store(first, i % 3, x[i])
        with T.serial(T.const(0, "int32"), T.const(4, "int32")) as k:
            T.store(own, i * 4 + k, x[i * 4 + k])
        T.barrier()
        seen = T.decl_buffer((64,), "uint32", data=own.data)
        wide = T.decl_buffer((32,), "uint64", data=own.data)
        T.store(words, i, seen[i] + T.Cast("uint32", first[0]) * T.const(0, "uint32"))
        with T.when(i % 2 == 1):
            T.store(words, i, T.Cast("uint32", T.shift_right(wide[i // 2], T.const(32, "uint64"))))

    x = np.frombuffer(seeded("wide").bytes(256), np.uint8).copy()
    names = {"x*": "uint8", "words*": "uint32"}
    runs = [Run(written(names, partial(body, place)), {"x": x, "words": np.zeros(64, np.uint32)}) for place in ("shared", "thread")]
    machine.run(*runs)
    assert_same_bits(runs[0].arguments["words"], x.view(np.uint32))
    assert_same_bits(runs[1].arguments["words"][::2], x.view(np.uint32)[::2])


def test_whole_words_are_moved_of_what_is_narrow(machine: Machine) -> None:
    def body(i: Any, x: Any, y: Any) -> None:
        source, target = (T.decl_buffer((1 << 20,), "uint32", data=memory.data) for memory in (x, y))
        T.store(target, T.run(i * 4, 4), source[T.run(i * 4, 4)])

    x = np.arange(512, dtype=np.uint16).view(np.float16)
    kernel = written({"x*": "float16", "y*": "float16"}, body)
    run = Run(kernel, {"x": x, "y": np.zeros_like(x)})
    machine.run(run)
    assert np.array_equal(bits_of(run.arguments["y"]), bits_of(x))
    text = source.emit(kernel.function).text
    assert "const Lanes<uint32_t, 4, 16> whole = *(const Lanes<uint32_t, 4, 16> *)&x_as_uint32[" in text


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


def test_lanes_may_be_cut_and_joined(machine: Machine) -> None:
    more = (("float16x2", "int32"), ("int8x16", "float16x8"), ("float64x2", "uint8x16"))
    machine.give({f"{one} as {other}": kernels.cut(one, other) for one, other in (*kernels.CUTS, *more)})


# -- Names, and what is very large -----------------------------------------------------------------------------------


def test_any_name_will_do(machine: Machine) -> None:
    count = len(AWKWARD)
    with T.function() as f:
        buffers = [f.buffer(name, "float32") for name in AWKWARD]
        scalars = [f.scalar(name, "int32") for name in AWKWARD]
        with T.launch_thread("blockIdx.x", 1), T.launch_thread("threadIdx.x", 64) as i:
            for result, scalar in zip(buffers, scalars, strict=True):
                own = T.Variable("float32", T.exp(T.Cast("float32", scalar)))
                T.store(result, i, T.max(own.value, T.Cast("float32", T.popcount(i) + scalar)))
            T.evaluate(T.tvm_storage_sync("global"))
            T.evaluate(T.call_extern("float32", "atomic_add", T.address_of(buffers[0][0]), T.const(1, "float32")))
    lowered = lower(f.result())
    ((function,), (step,)) = lowered.functions.values(), lowered.steps
    places = [place if isinstance(place, int) else place[1] for place in step.arguments]
    arguments: dict[str, Any] = {str(place): np.zeros(64, np.float32) for place in range(count)}
    arguments |= {str(count + place): place % 3 for place in range(count)}
    machine.run(Run(Written(function, tuple(map(str, places)), 1), arguments))
    bits = np.array([n.bit_count() for n in range(64)])
    for place in range(count):
        expected = np.maximum(np.exp(np.float32(place % 3)), (bits + place % 3).astype(np.float32))
        expected[0] += 64 * (place == 0)
        np.testing.assert_allclose(arguments[str(place)], expected, 1e-6)


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


# -- Any expression --------------------------------------------------------------------------------------------------

TOGETHER = 25
"""Expressions that are compiled together."""
_typed = st.sampled_from(TYPES).flatmap(lambda dtype: st.tuples(st.just(dtype), trees(dtype)))


@pytest.fixture(scope="module")
def cpu() -> targets.Target:
    """A processor that multiplies and adds in two steps, as devices are told to."""
    return targets.resolve("cpu:x86-64-v2" if platform.machine() in ("x86_64", "AMD64") else "cpu")


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
        same(values, expected[name], f"{dtype}: {tree}")


# -- Scheduled computations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_scheduled_computation_runs(name: str, target: CudaTarget) -> None:
    _imports.tvm()
    from tvm import te, topi

    make, reference = CASES[name]
    placeholders, result = make(te, topi)
    rng = seeded("te", name)
    arrays: list[Array] = []
    for placeholder in placeholders:
        shape, dtype = tuple(int(n) for n in placeholder.shape), str(placeholder.dtype)
        arrays.append((rng.standard_normal(shape) if dtype.startswith("f") else rng.integers(0, 30, shape)).astype(dtype))
    expected = reference(*arrays)
    output = np.zeros(expected.shape, expected.dtype)
    function = scheduled(te.create_prim_func([*placeholders, result]))
    program = compile_function(function, target.architectures, blocks=True)
    CudaLaunch(target, Loaded(program), (), ())(*arrays, output)
    if expected.dtype.kind == "f":
        near = {2: 1e-2, 4: 1e-4, 8: 1e-12}[expected.dtype.itemsize]  # sums are computed in another order
        np.testing.assert_allclose(output, expected, rtol=near, atol=near)
    else:
        np.testing.assert_array_equal(output, expected)
    assert translate(function, blocks=True)[1]._replace(images=program.images) == program
