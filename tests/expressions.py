"""Expressions for the tests of every code generator: values, rules, random expressions, and their expected results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
from support import Array, seeded, special_values

from tvmdml import TensorDataType
from tvmdml import tensorir as T
from tvmdml.system import imports
from tvmdml.targets._lower import lower
from tvmdml.targets._program import IntegerExpression

INTEGERS = tuple(f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in ("int", "uint"))
FLOATS = ("float16", "float32", "float64")
TYPES = ("bool", *INTEGERS, *FLOATS)

Body = Callable[..., None]


class Written(NamedTuple):
    """A device function, and the names of its parameters."""

    function: Any
    parameters: tuple[str, ...]
    groups: IntegerExpression
    """How many are launched along x."""


def written(parameters: Mapping[str, str], body: Body, threads: Any = 64, groups: Any = 1) -> Written:
    """The device function whose threads each run ``body(index, *parameters)``; ``name*`` is a buffer, ``name`` a scalar."""
    with T.function() as f:
        arguments = [
            f.buffer(key.removesuffix("*"), dtype) if key.endswith("*") else T.arg(key, getattr(T, dtype)())
            for key, dtype in parameters.items()
        ]
        blocks = groups(*arguments) if callable(groups) else groups
        with T.launch_thread("blockIdx.x", blocks) as block, T.launch_thread("threadIdx.x", threads) as thread:
            body(block * threads + thread, *arguments)
    lowered = lower(f.result())
    ((function,), (step,)) = lowered.functions.values(), lowered.steps
    names = [name.removesuffix("*") for name in parameters]
    order = tuple(names[place if isinstance(place, int) else place[1]] for place in step.arguments)
    return Written(function, order, step.extents.get("blockIdx.x", 1))


# -- Values ---------------------------------------------------------------------------------------------------------


def values_of(dtype: str, denormals: bool = False) -> Array:
    """Awkward values of a type; without denormals, which some devices take for zero."""
    if dtype == "bool":
        return np.array([False, True])
    values = special_values(TensorDataType.parse(dtype, "dtype"))
    if dtype in FLOATS:
        more = np.array([-2.5, -0.75, -0.25, 0.1, 0.25, 0.75, 3.5, 7.0, 100.3, 1000.0], dtype)
        values = np.concatenate([values, more])
        with np.errstate(all="ignore"):
            return values if denormals else values[~((values != 0) & (abs(values) < np.finfo(dtype).tiny))]
    small = np.array([3, 5, 7, 11, 100, 77], dtype)
    signed = [-small[:4]] if dtype.startswith("int") else []
    return np.unique(np.concatenate([values, small, *signed]))


def pairs_of(dtype: str, denormals: bool = False) -> tuple[Array, Array]:
    """Every value beside every other."""
    values = values_of(dtype, denormals)
    a, b = np.meshgrid(values, values)
    return a.reshape(-1), b.reshape(-1)


def settled(values: Array, denormals: bool = False) -> Array:
    """One NaN, whichever it is, and denormals as zeros: what devices are free to choose."""
    if values.dtype.kind != "f":
        return values
    values = values.copy()
    if not denormals:
        with np.errstate(all="ignore"):
            values[abs(values) < np.finfo(values.dtype).tiny] = 0
    values[np.isnan(values)] = np.nan
    return values


def extremes(dtype: str) -> list[Any]:
    """Values that are easily lost: the sign of zero, the last bit, numbers without a literal in C++."""
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


# -- Operators ------------------------------------------------------------------------------------------------------

Rule = tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]]


def _quotients(a: Array, b: Array) -> Array:
    """Of exact integers, towards zero."""
    found = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array(found, object)


ARITHMETIC: dict[str, Rule] = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "max": (lambda a, b: T.max(a, b), lambda a, b: np.where(a > b, a, b)),
    "min": (lambda a, b: T.min(a, b), lambda a, b: np.where(a < b, a, b)),
}
DIVISION: dict[str, Rule] = {
    "div": (lambda a, b: T.truncdiv(a, b), _quotients),
    "mod": (lambda a, b: T.truncmod(a, b), lambda a, b: a.astype(object) - _quotients(a, b) * b.astype(object)),
    "floordiv": (lambda a, b: T.floordiv(a, b), np.floor_divide),
    "floormod": (lambda a, b: T.floormod(a, b), np.mod),
}
BITWISE: dict[str, Rule] = {
    "and_": (lambda a, b: a & b, np.bitwise_and),
    "or_": (lambda a, b: a | b, np.bitwise_or),
    "xor": (lambda a, b: a ^ b, np.bitwise_xor),
    "not_": (lambda a, b: ~a, lambda a, b: ~a),
}
COMPARISONS: dict[str, Rule] = {
    "lt": (lambda a, b: a < b, np.less),
    "le": (lambda a, b: a <= b, np.less_equal),
    "gt": (lambda a, b: a > b, np.greater),
    "ge": (lambda a, b: a >= b, np.greater_equal),
    "eq": (lambda a, b: a == b, np.equal),
    # As in TVM's CPU code: every comparison with NaN is false.
    "ne": (lambda a, b: T.NE(a, b), lambda a, b: (a < b) | (a > b)),
}


def castable(source: str, target: str) -> Array:
    """Values that have a meaning in the target type, and those at its edges."""
    values = values_of(source)
    if source in FLOATS:
        with np.errstate(over="ignore"):
            more = np.array([2049, 2051, 65519, 65520, 0.30078125, 16777217, 1e-3, 255.9, -0.9]).astype(source)
        values = np.concatenate([values, more])
        if target in INTEGERS:
            info = np.iinfo(target)
            with np.errstate(invalid="ignore"):
                whole = np.trunc(values.astype(np.float64))
            values = values[(whole >= float(info.min)) & (whole < float(info.max))]
    elif target in FLOATS and source != "bool":
        many = seeded(source).integers(np.iinfo(source).min, np.iinfo(source).max, 100, source, endpoint=True)
        values = np.concatenate([values, many])
    return values


# -- Functions --------------------------------------------------------------------------------------------------------

EXACT: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "nearbyint": (lambda x: T.nearbyint(x), np.rint),
    "round": (lambda x: T.round(x), np.rint),
    "floor": (lambda x: T.floor(x), np.floor),
    "ceil": (lambda x: T.ceil(x), np.ceil),
    "trunc": (lambda x: T.trunc(x), np.trunc),
    "fabs": (lambda x: T.fabs(x), np.abs),
    "sqrt": (lambda x: T.sqrt(x), np.sqrt),
}


NEAR: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "atan": np.arctan, "asin": lambda x: np.arcsin(x / 4),
    "acos": lambda x: np.arccos(x / 4), "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp10": lambda x: 10**x, "acosh": lambda x: np.arccosh(x + 1), "asinh": np.arcsinh, "atanh": lambda x: np.arctanh(x / 4),
}  # fmt: skip
ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "asin": lambda x: x / 4, "acos": lambda x: x / 4, "atanh": lambda x: x / 4, "acosh": lambda x: x + 1,
}  # fmt: skip


# -- Atomics ----------------------------------------------------------------------------------------------------------------

ATOMIC: dict[str, Callable[[Array], Any]] = {
    "add": lambda x: x.sum(dtype=x.dtype),
    "sub": lambda x: np.negative(x).sum(dtype=x.dtype),
    "min": lambda x: min(0, x.min()),
    "max": lambda x: max(0, x.max()),
    "and": lambda x: x.dtype.type(0),
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


# -- Any expression -------------------------------------------------------------------------------------------------------------

# The parts of an expression, by its type: the operands' types, with "=" for the same type and "?" for any; and the TensorIR.
# Guards avoid undefined results: no division by zero, shifts by less than the width, and no overflow, which TVM's LLVM code assumes
# cannot happen, even for unsigned integers. No part is zero for all inputs: TVM and Mesa would fold such a zero to a constant, and
# each treats division by it, or dividing it by NaN, in its own way.
Maker = Callable[..., Any]
_GUARDED: dict[str, tuple[str, Maker]] = {
    "add": ("==", lambda t, a, b: _shrunk(t, a, 1) + _shrunk(t, b, 1)),
    "sub": ("==", lambda t, a, b: _less(t, _shrunk(t, a, 1), _shrunk(t, b, 2))),
    "mul": ("==", lambda t, a, b: _shrunk(t, a, _bits(t) // 2 + 1) * _shrunk(t, b, _bits(t) // 2 + 1)),
    "div": ("==", lambda t, a, b: _te().truncdiv(a, _positive(t, b))),
    "mod": ("==", lambda t, a, b: _te().truncmod(a, _positive(t, b))),
    "floordiv": ("==", lambda t, a, b: _te().floordiv(a, _positive(t, b))),
    "floormod": ("==", lambda t, a, b: _te().floormod(a, _positive(t, b))),
    "and": ("==", lambda t, a, b: a & b),
    "or": ("==", lambda t, a, b: a | b),
    "xor": ("==", lambda t, a, b: a ^ _shrunk(t, b, 1)),
    "not": ("=", lambda t, a: ~a),
    "left": ("==", lambda t, a, b: a << (b & const(t, _bits(t) - 1))),
    "right": ("==", lambda t, a, b: a >> (b & const(t, _bits(t) - 1))),
}
_FLOATING: dict[str, tuple[str, Maker]] = {
    "add": ("==", lambda t, a, b: a + b),
    "sub": ("==", lambda t, a, b: a - _te().trunc(b)),
    "mul": ("==", lambda t, a, b: a * b),
    # Neither TVM nor Mesa divides by a value known to be zero.
    "div": ("==", lambda t, a, b: _te().div(a, _te().Select(_te().EQ(b, const(t, 0.0)), const(t, 0.5), b))),
    "fabs": ("=", lambda t, a: _te().abs(a)),
    "floor": ("=", lambda t, a: _te().floor(a)),
    "ceil": ("=", lambda t, a: _te().ceil(a)),
    "trunc": ("=", lambda t, a: _te().trunc(a)),
    "nearbyint": ("=", lambda t, a: _te().nearbyint(a)),
    "sqrt": ("=", lambda t, a: _te().sqrt(a)),
}
_TRUTHS: dict[str, tuple[str, Maker]] = {
    "lt": ("??", lambda t, a, b: a < b),
    "le": ("??", lambda t, a, b: a <= b),
    "eq": ("??", lambda t, a, b: _te().EQ(a, b)),
    "ne": ("??", lambda t, a, b: _te().NE(a, b)),
    "and": ("==", lambda t, a, b: _te().all(a, b)),
    "or": ("==", lambda t, a, b: _te().any(a, b)),
    "not": ("=", lambda t, a: _te().Not(a)),
}
_ANY: dict[str, tuple[str, Maker]] = {
    "select": ("b==", lambda t, c, a, b: _te().Select(c, a, b)),
    "lazy": ("b==", lambda t, c, a, b: _te().if_then_else(c, a, b)),
}
_ORDERED: dict[str, tuple[str, Maker]] = {
    "max": ("==", lambda t, a, b: _te().max(a, b)),
    "min": ("==", lambda t, a, b: _te().min(a, b)),
}


def _te() -> Any:
    imports.tvm()
    from tvm import tirx

    return tirx


def _bits(dtype: str) -> int:
    return 8 * np.dtype(dtype).itemsize


def const(dtype: str, value: Any) -> Any:
    return _te().const(value, dtype)


def _shrunk(dtype: str, value: Any, bits: int) -> Any:
    return value >> const(dtype, bits)


def _less(dtype: str, a: Any, b: Any) -> Any:
    return (a if dtype.startswith("int") else a | b) - b


def _positive(dtype: str, value: Any) -> Any:
    return (value & const(dtype, 63)) + const(dtype, 1)


def _converted(source: str, target: str, value: Any) -> Any:
    if source in FLOATS and target in INTEGERS:
        low = -100.0 if target.startswith("int") else 0.0
        inside = _te().all(value > const(source, low), value < const(source, 100.0))
        value = _te().Select(inside, value, const(source, 1.5))
    return value.astype(target)


Tree = tuple[Any, ...]


@st.composite
def trees(draw: Any, dtype: str, depth: int = 4) -> Tree:
    """An expression of a type, as nested tuples."""
    kind = draw(st.sampled_from(["input", *(["operator"] * 6 + ["cast"] * 2 if depth else [])]))
    if kind == "input":  # no constants: TVM's constant folding is not tested here
        return ("input", dtype)
    if kind == "cast":
        source = draw(st.sampled_from(TYPES))
        return ("cast", source, dtype, draw(trees(source, depth - 1)))
    operators = {**_ANY, **(_TRUTHS if dtype == "bool" else {**_ORDERED, **(_FLOATING if dtype in FLOATS else _GUARDED)})}
    name = draw(st.sampled_from(sorted(operators)))
    operands, compute = operators[name]
    other = draw(st.sampled_from(TYPES[1:])) if "?" in operands else dtype
    types = [{"=": dtype, "b": "bool", "?": other}[letter] for letter in operands]
    return ("operator", compute, dtype, *(draw(trees(one, depth - 1)) for one in types))


def built(tree: Tree, inputs: Mapping[str, Any]) -> Any:
    kind, *rest = tree
    if kind == "input":
        return inputs[rest[0]]
    if kind == "cast":
        source, target, operand = rest
        return _converted(source, target, built(operand, inputs))
    compute, dtype, *operands = rest
    return compute(dtype, *(built(operand, inputs) for operand in operands))


FUZZED = 96


def fuzz_input(dtype: str) -> Array:
    random = seeded("fuzz", dtype)
    if dtype == "bool":
        return random.integers(0, 2, FUZZED).astype(bool)
    if dtype in FLOATS:
        values = [0, -0.0, 0.5, -0.5, 1, 1.5, -2.5, 3, -7, 100.25, 1000, 0.1, np.inf, -np.inf, np.nan]
        return random.choice(np.array(values, dtype), FUZZED)
    info = np.iinfo(dtype)
    whole = random.integers(info.min, info.max, FUZZED, dtype, endpoint=True)
    small = random.integers(0, 9, FUZZED).astype(dtype)
    return np.where(random.integers(0, 3, FUZZED) == 0, small, whole)


# -- Names ---------------------------------------------------------------------------------------------------------

AWKWARD = [
    "float", "least", "threadIdx", "exp", "expf", "NULL", "INFINITY", "EOF", "int32_t", "lane", "kernel_0", "main_kernel", "1x",
    "é", "a b", "", "__x__", "_", "half", "__half", "and", "atomic_add", "Lanes", "bits_as", "WARP", "errno", "x", "x_1", "x",
    "memcpy", "I", "subgroup_add", "min", "class", "auto", "assert", "stdin", "linux", "unix", "uint", "M_PI", "blockDim", "Word",
    "name", "part",
]  # fmt: skip
"""Names that mean something to a compiler, or are none to it."""
