"""Words of expressions give the same bits on every target: for scalars and vectors, difficult values and all pairs of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from drawn import of
from support import Array, seeded, special_values, with_subnormals

import tvmdml
from tvmdml import TensorDataType, TensorDesc, operators, targets
from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula
from tvmdml.library.finding import find
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._accuracy import difference
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators.element_wise_unary import ElementWiseAbs
from tvmdml.proof.conformance.cases import _pointwise as cases
from tvmdml.proof.conformance.cases import reference
from tvmdml.schedules.cpu import pointwise as on_cpu
from tvmdml.schedules.gpu import pointwise as on_gpu
from tvmdml.targets import Target
from tvmdml.targets.vulkan import spirv_exact
from tvmdml.targets.vulkan.spirv_tables import Scalar

FLOATS, SIGNED = ("float32", "float64", "float16"), ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS, ALL = SIGNED + UNSIGNED, FLOATS + SIGNED + UNSIGNED


def _divided(a: Array, b: Array) -> Array:
    """In Python's integers, toward zero."""
    limits = np.iinfo(a.dtype)
    found = [
        0 if not y else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return np.array([limits.min if one > limits.max else one for one in found], a.dtype)


def _cast(x: Array, dtype: str) -> Array:
    """DirectML's CAST."""
    if x.dtype.kind != "f" or dtype.startswith("float"):
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    inside = (x > limits.min - 1.0) & (x < float(limits.max + 1))
    found = np.where(inside, x, 0).astype(dtype)
    found[x >= float(limits.max + 1)] = limits.max
    found[x <= limits.min - 1.0] = limits.min
    return found


class Word(NamedTuple):
    """An expression, and what is right, for several types."""

    types: tuple[str, ...]
    value: Callable[..., Any]
    numpy: Callable[..., Array]
    inputs: int = 1
    result: str = ""


def _shifted(a: Array, b: Array, left: bool) -> Array:
    width = 8 * a.itemsize
    some = b % a.dtype.type(width)
    return np.where(b < width, a << some if left else a >> some, a.dtype.type(0))


TABLES = tuple(tuple(float(np.float32(number)) for number in row) for row in np.arange(1, 57).reshape(7, 8) / 7)


def _looked_up(x: Any) -> Any:
    """Of seven tables, a number each; the result has all of them."""
    return functools.reduce(lambda a, b: T.rounded(a * T.like(a, 2)) - b, T.looked_up(x & ~T.like(x, 8), TABLES))


def _in_tables(x: Array) -> Array:
    return functools.reduce(lambda a, b: a * np.float32(2) - b, np.array(TABLES, np.float32)[:, x & 7])


WORDS: dict[str, Word] = {
    "looked_up": Word(("uint32",), _looked_up, _in_tables, 1, "float32"),
    **{f"to {d}": Word(ALL, functools.partial(T.to, dtype=d), functools.partial(_cast, dtype=d), 1, d) for d in ALL},
    "to bool": Word(ALL, lambda x: T.to(T.to(x, "bool"), "uint8"), lambda x: (x != 0).astype("uint8"), 1, "uint8"),
    "is_nan": Word(FLOATS, T.is_nan, lambda x: np.isnan(x).astype("uint8"), 1, "uint8"),
    "is_infinite": Word(FLOATS, lambda x: T.is_infinite(T.wide(x)), lambda x: np.isinf(x).astype("uint8"), 1, "uint8"),
    "absolute": Word(ALL, T.absolute, np.abs),
    "negative": Word(FLOATS + SIGNED, T.negative, np.negative),
    "maximum": Word(ALL, T.maximum, lambda a, b: np.where((a > b) | (a != a), a, b), 2),
    "minimum": Word(ALL, T.minimum, lambda a, b: np.where((a < b) | (a != a), a, b), 2),
    "round_even": Word(FLOATS[:2], T.round_even, np.rint),
    "times 0": Word(FLOATS[:2], lambda x: x * T.like(x, 0), lambda x: x * x.dtype.type(0)),
    "times -0": Word(FLOATS[:2], lambda x: x * T.like(x, -0.0), lambda x: x * x.dtype.type(-0.0)),
    "plus 0": Word(FLOATS[:2], lambda x: x + T.like(x, 0), lambda x: x + x.dtype.type(0)),
    "plus -0": Word(FLOATS[:2], lambda x: x + T.like(x, -0.0), lambda x: x),
    "quotient of floats": Word(FLOATS[:2], lambda a, b: a / b, lambda a, b: a / b, 2),
    "square root": Word(FLOATS[:2], lambda x: T.sqrt(x), np.sqrt),
    "product and sum": Word(FLOATS[:2], lambda a, b: T.rounded(a * b) + T.rounded(a * a) - b, lambda a, b: a * b + a * a - b, 2),
    "quotient": Word(INTS, T.quotient, _divided, 2),
    "remainder": Word(INTS, T.remainder, lambda a, b: np.where(b == 0, 0, a - b * _divided(a, b)).astype(a.dtype), 2),
    "floor_remainder": Word(INTS, T.floor_remainder, lambda a, b: np.where(b, np.mod(a, np.where(b, b, 1)), 0).astype(a.dtype), 2),
    "shift_left": Word(UNSIGNED, T.shift_left, lambda a, b: _shifted(a, b, True), 2),
    "shift_right": Word(UNSIGNED, T.shift_right, lambda a, b: _shifted(a, b, False), 2),
    "bit_count": Word(UNSIGNED, T.bit_count, lambda x: np.bitwise_count(x).astype(x.dtype)),
    "wrapped": Word(INTS, lambda x: T.wrapped(x * T.like(x, 2) - T.like(x, 3)) < T.like(x, 5), lambda x: _wrapped(x), 1, "uint8"),
    "select": Word(ALL, lambda a, b: T.select(a == b, 1, T.select(a > b, a, b)), lambda a, b: _selected(a, b), 2),
}  # fmt: skip


def _selected(a: Array, b: Array) -> Array:
    return np.where(a == b, 1, np.where(a > b, a, b)).astype(a.dtype)


def _wrapped(x: Array) -> Array:
    return (x * x.dtype.type(2) - x.dtype.type(3) < 5).astype("uint8")


def _values(dtype: str, count: int) -> Array:
    """Small numbers, halves and limits of all types that this one may be cast to, difficult values, and random bits."""
    data_type = TensorDataType.parse(dtype, "dtype")
    if data_type.is_float:
        powers = np.ldexp(1.0, np.array([7, 8, 15, 16, 31, 32, 63, 64, -1, -24, -25]))
        near = [
            powers,
            powers - 1,
            powers + 1,
            powers - 0.5,
            powers + 0.5,
            [65519.0, 65520.0, 65504.0, 2.98e-8, 1.0 + 2**-11, 1.0 + 2**-11 + 2**-40],
        ]
        some = np.concatenate([*map(np.asarray, near), np.arange(9) / 2])
        with np.errstate(over="ignore"):
            small = np.concatenate([some, -some]).astype(dtype)
    else:
        small = np.arange(-9 if data_type.is_signed else 0, 70).astype(dtype)
    bits = seeded(dtype, count).integers(0, 256, 512 * data_type.itemsize, dtype=np.uint8).view(dtype)
    return np.concatenate([special_values(data_type), small, bits])


def _inputs(word: Word, dtype: str) -> list[Array]:
    values = _values(dtype, 0)
    if word.inputs == 1:
        return [values]
    few = np.concatenate([special_values(TensorDataType.parse(dtype, "dtype")), values[-600:-512], values[-20:]])
    if dtype.startswith(("int", "uint")):
        few = np.concatenate(
            [few, np.array([0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64]).astype(dtype), -np.ones(1).astype("int64").astype(dtype)]
        )
    return [np.ascontiguousarray(one.ravel()) for one in np.meshgrid(few, few)]


def _run(word: Word, dtype: str, target: Target) -> tuple[Array, Array]:
    """What a kernel gives, and what is right."""
    inputs = _inputs(word, dtype)
    with np.errstate(all="ignore"):
        expected = np.asarray(word.numpy(*inputs))
    result = word.result or dtype
    tensors = tuple(TensorDesc(dtype, x.shape) for x in inputs)
    output = TensorDesc(result, inputs[0].shape)
    formula = Formula(
        tensors, (output,), lambda *x: (T.to(word.value(*x), result),), (("word", f"{word} {dtype}"),), ("test_words",)
    )
    if target.schedules == "cpu":
        kernel = on_cpu.kernel_of(formula, target, on_cpu.KNOBS.now(target))
        found, places = np.zeros(output.sizes, result), inputs
        target.launch(target.build(kernel.build()).launcher(), kernel.scalars, ())(*places, found)
        return found, expected
    desc = ElementWiseAbs(input_tensor=tensors[0], output_tensor=output)
    kernel = on_gpu.kernel_of(formula, desc, target, on_gpu.KNOBS.now(target))
    out = tvmdml.asarray(np.zeros(output.sizes, result), target.name)
    target.launch(find(kernel, target), kernel.scalars, kernel.temporaries)(*(tvmdml.asarray(x, target.name) for x in inputs), out)
    return out.numpy(), expected


SOME = 4
"""Types of a word that a run draws for each target; on the CPU in turn at its level and at the lowest that has what all have."""


@pytest.mark.full(first=1)
@pytest.mark.some(25)
@pytest.mark.parametrize("name", WORDS)
def test_words_give_the_same_bits_on_every_target(target: Target, name: str, pytestconfig: pytest.Config) -> None:
    rng = of(pytestconfig.getoption("--case-seed"), "words", target.kind, name)
    types = with_subnormals(target, WORDS[name].types)
    count = len(types) if pytestconfig.getoption("--every-case") else min(SOME, len(types))
    for number, dtype in enumerate(rng.sample(types, count)):
        level = targets.resolve("cpu:x86-64-v2") if target.kind == "cpu" and number % 2 else target
        found, expected = _run(WORDS[name], dtype, level)
        problem = difference(found, expected.astype(found.dtype), any_nan=True)
        assert not problem, f"{name} of {dtype} on {level}: {problem}"


@pytest.mark.parametrize("dtype", INTS)
def test_a_constant_keeps_its_bits_as_another_type(dtype: str) -> None:
    other, limits = dtype.removeprefix("u") if dtype.startswith("u") else f"u{dtype}", np.iinfo(dtype)
    numbers = [0, 1, int(limits.max), int(limits.min), int(limits.max) - 1]
    with tensorir.function() as f:
        output = f.buffer("output", other)
        for place, number in enumerate(numbers):
            one = tensorir.word(number, 64) if dtype == "uint64" else tensorir.const(number, dtype)
            tensorir.store(output, tensorir.i64(place), T.reinterpret(one, other))
    found = np.full(len(numbers), 7, other)
    targets.resolve("cpu").build(f.result()).launcher()(found)
    assert found.view(dtype).tolist() == numbers


# -- No contraction in any operator ---------------------------------------------------------------------------------

FUSED = re.compile(r"^\s*(v?fn?m(?:add|sub|la|ls)[\w.]*)", re.MULTILINE)
FAMILY = [name for name, cls in operators.all_operators().items() if issubclass(cls, Pointwise) and not cls.STEPS and not cls.FUSED]
"""Those whose results are exact without such instructions; functions have them where they like."""


@pytest.mark.full(first=1)
@pytest.mark.some(20)
@pytest.mark.parametrize("operator", FAMILY)
def test_no_operator_of_the_family_has_a_fused_multiply_add(operator: str) -> None:
    (target,) = targets.elsewhere("cpu:x86-64-v3")
    found = [case.desc for case in reference(operator)]
    of_floats = (one for one in found if any(tensor.data_type is TensorDataType.FLOAT32 for _, tensor in one.tensors() if tensor))
    desc = next(of_floats, found[0])
    own = {"scale_bias": (1.5, 0.1)} if hasattr(desc, "scale_bias") else {}
    assert not FUSED.findall(target.source(kernel_for(cases.change(desc, **own)(), target).build(), "asm"))


# -- Exact quotients and roots on devices that are not exact ----------------------------------------------------------


class Twin:
    """``spirv_exact.ExactArithmetic`` on NumPy's integers, with a device that is off by some units in the last place."""

    def __init__(self, off: int) -> None:
        self.off = off

    def constant(self, scalar: Any, value: Any) -> Any:
        return np.asarray(value, {"uint": np.uint32, "int": np.int32, "float": np.float32}[scalar.kind])

    def binary(self, node: str, scalar: Any, a: Any, b: Any) -> Any:
        if node in ("LShift", "RShift"):
            assert (np.asarray(b) < 32).all()
        with np.errstate(all="ignore"):
            return {
                "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide, "Min": np.minimum,
                "LShift": np.left_shift, "RShift": np.right_shift, "BitwiseAnd": np.bitwise_and,
                "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
            }[node](a, b)  # fmt: skip

    def compare(self, node: str, scalar: Any, a: Any, b: Any) -> Any:
        return {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "GT": np.greater, "GE": np.greater_equal}[node](a, b)

    def select(self, scalar: Any, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, a, b)

    def cast(self, source: Any, target: Any, value: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(value).astype({"uint": np.uint32, "int": np.int32, "float": np.float32}[target.kind])

    def bits(self, source: Any, target: Any, value: Any) -> Any:
        return np.asarray(value).view(np.uint32 if target.kind == "uint" else np.float32)

    def leading_zeros(self, scalar: Any, value: Any) -> Any:
        return np.array([32 - int(one).bit_length() for one in np.asarray(value).ravel()], np.int32).reshape(np.shape(value))

    def words(self, value: Any) -> Any:
        bits = np.asarray(value).view(np.uint64)
        return bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)

    def of_words(self, low: Any, high: Any) -> Any:
        return (high.astype(np.uint64) << np.uint64(32) | low).view(np.float64)

    def both(self, a: Any, b: Any) -> Any:
        return a & b

    def any(self, a: Any, b: Any) -> Any:
        return a | b

    def approximate_quotient(self, a: Any, b: Any) -> Any:
        return self._near(a / b)

    def approximate_root(self, value: Any) -> Any:
        return self._near(np.sqrt(value))

    def _near(self, value: Any) -> Any:
        return (value.view(np.int32) + self.off).view(np.float32)


@pytest.mark.parametrize("off", [-3, 0, 3])
def test_quotients_and_roots_are_exact_on_a_device_that_is_not(off: int) -> None:
    special = special_values(TensorDataType.FLOAT32)
    a, b = (one.ravel() for one in np.meshgrid(special, special))
    rng = seeded("exact")
    bits = rng.integers(0, 1 << 32, (2, 20_000), dtype=np.uint32)
    close = (bits & 0x7FFFFF | 0x3F800000, bits & 0x07FFFFFF)  # quotients from 0.5 to 2; subnormals, and what is near to them
    for x, y in (
        (a, b),
        bits.view(np.float32),
        close[0].view(np.float32),
        (close[1][0].view(np.float32), close[0][1].view(np.float32) * 4),
    ):
        with np.errstate(all="ignore"):
            found, roots = spirv_exact.quotient(Twin(off), x, y), spirv_exact.root(Twin(off), x)  # type: ignore[arg-type]
            assert not difference(found, x / y, any_nan=True)
            assert not difference(roots, np.sqrt(x), any_nan=True)


def test_fused_sums_are_rounded_once() -> None:
    rng = seeded("fused")
    a, b, c = (np.ldexp(rng.uniform(1, 2, 20000), rng.integers(-4, 5, 20000)).astype(np.float32) for _ in range(3))
    near = np.where(rng.random(20000) < 0.5, -(a * b), c).astype(np.float32)  # half of them cancel
    near = near + np.where(rng.random(20000) < 0.5, np.spacing(near), 0).astype(np.float32)
    for last in (c, -c, near):
        exact = a.astype(np.longdouble) * b.astype(np.longdouble) + last.astype(np.longdouble)
        found = spirv_exact.fused(Twin(0), Scalar("float", 32), a, b, last)  # type: ignore[arg-type]
        assert np.array_equal(found, exact.astype(np.float32))


def test_fused_sums_of_float64_are_rounded_once() -> None:
    rng = seeded("fused float64")
    a, b, c = (np.ldexp(rng.uniform(1, 2, 2000), rng.integers(-4, 5, 2000)) for _ in range(3))
    near = np.where(rng.random(2000) < 0.5, -(a * b), c)
    near = near + np.where(rng.random(2000) < 0.5, np.spacing(near), 0)
    for last in (c, -c, near, near * 2.0**-60):
        exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, last, strict=True)]
        found = spirv_exact.fused(Twin(0), Scalar("float", 64), a, b, last)  # type: ignore[arg-type]
        assert np.array_equal(found, exact)


def test_remainders_are_exact_in_as_many_steps_as_the_exponents_differ_by() -> None:
    special = special_values(TensorDataType.FLOAT32)
    a, b = (one.ravel() for one in np.meshgrid(special, special))
    for x, y in (*zip(a, b, strict=True), *seeded("remainders").integers(0, 1 << 32, (300, 2), dtype=np.uint32).view(np.float32)):
        counted = Counted(0)
        with np.errstate(all="ignore"):
            found = spirv_exact.remainder(counted, Scalar("float", 32), x, y)  # type: ignore[arg-type]
            assert not difference(found, np.fmod(x, y, dtype=np.float32), any_nan=True), (x, y)
        assert counted.steps <= 255 + 23


class Counted(Twin):
    """It counts the steps of loops."""

    steps = 0

    def repeated(self, times: Any, scalar: Any, value: Any, step: Callable[[Any], Any]) -> Any:
        self.steps += max(0, int(times))
        return functools.reduce(lambda now, _: step(now), range(int(times)), value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_the_end_of_a_loop_does_not_depend_on_floats(dtype: str) -> None:
    from tvm import tirx

    x, i = tirx.Var("x", dtype), tirx.Var("i", "int32")
    for condition in (x < tirx.const(1, dtype), tirx.And(i > 0, tirx.Not(x == tirx.const(0, dtype)))):
        if dtype == "int32":
            tensorir.loop_while(condition)
            continue
        with pytest.raises(AssertionError, match="that depends on floats"):
            tensorir.loop_while(condition)
