"""The text that the CUDA C++ generator writes: its layout, its beginning, its names, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from expressions import AWKWARD, Body, Written, written

from tvmdml import errors
from tvmdml import tensorir as T
from tvmdml.targets.cuda import prelude, source, terms
from tvmdml.targets.cuda.text import RESERVED, identifier

# -- The text --------------------------------------------------------------------------------------------------------


def text_of(parameters: Mapping[str, str], body: Body, threads: int = 64) -> str:
    return source.emit(written(parameters, body, threads).function).text


def test_a_kernel_reads_like_one_that_was_written() -> None:
    def body(i: Any, x: Any, y: Any, n: Any) -> None:
        cells = T.alloc_buffer((64,), "float32", scope="shared")
        total = T.Variable("float32", T.const(0.5, "float32"))
        T.store(cells, i, x[i] + T.float32(0.1))
        T.barrier()
        with T.when(i < n):
            with T.serial(T.const(0, "int32"), n) as j:
                total.set(total.value * cells[j])
            T.store(y, i, T.Cast("float16", total.value))

    text = text_of({"x*": "float32", "y*": "float16", "n": "int32"}, body)
    expected = """\
extern "C" __global__ void __launch_bounds__(64, 16) main_kernel(const float *__restrict__ x, __half *__restrict__ y, int32_t n) {
  __shared__ float value[64];
  float value_1 = 0.5f;
  value[(int32_t)threadIdx.x] = x[(int32_t)threadIdx.x] + 0.100000001f;
  __syncthreads();
  if ((int32_t)threadIdx.x < n) {
    for (int32_t v = 0; v < n; ++v) {
      value_1 = value_1 * value[v];
    }
    y[(int32_t)threadIdx.x] = __float2half_rn(value_1);
  }
}
"""
    assert text == expected


def test_vectors_read_like_one_statement() -> None:
    def body(i: Any, x: Any, y: Any, result: Any) -> None:
        T.store(result, T.run(i * 4, 4), T.nearbyint(x[T.run(i * 4, 4)]) + y[T.run(i * 4 + 1, 4)])

    text = text_of({"x*": "float32", "y*": "float32", "result*": "float32"}, body)
    assert (
        text.partition("{\n")[2]
        == """\
  const int32_t cse_v1 = (int32_t)threadIdx.x * 4;
  const Lanes<float, 4, 16> whole = *(const Lanes<float, 4, 16> *)&x[cse_v1];
  Lanes<float, 4, 16> whole_1;
  #pragma unroll
  for (int lane = 0; lane < 4; ++lane) whole_1.at[lane] = nearbyintf(whole.at[lane]) + y[cse_v1 + 1 + lane];
  *(Lanes<float, 4, 16> *)&result[cse_v1] = whole_1;
}
"""
    )


EXPRESSIONS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "signed sums wrap": ("int32", lambda a, b, i: a + b, "(uint32_t)a + b"),
    "and stay so": ("int32", lambda a, b, i: (a - b) * (a + 3), "((uint32_t)a - b) * (a + 3u)"),
    "until their sign is asked for": ("int32", lambda a, b, i: T.truncdiv(a + b, T.int32(7)), "(int32_t)((uint32_t)a + b) / 7"),
    "or they are compared": ("int64", lambda a, b, i: T.Select(a + b < 5, a, b), "(int64_t)((uint64_t)a + b) < 5 ? a : b"),
    "indices do not": ("int32", lambda a, b, i: i * 3 + 5, "(int32_t)threadIdx.x * 3 + 5"),
    "nor unsigned sums": ("uint32", lambda a, b, i: (a + b) * b, "(a + b) * b"),
    "narrow": ("int8", lambda a, b, i: a * b + a, "(int8_t)((int8_t)(a * b) + a)"),
    "a product of uint16": ("uint16", lambda a, b, i: a * b, "(uint16_t)((uint32_t)a * b)"),
    "left": ("int64", lambda a, b, i: T.shift_left(a, b), "(uint64_t)a << b"),
    "narrow left": ("int8", lambda a, b, i: T.shift_left(a, b), "(int8_t)((uint32_t)a << b)"),
    "right": ("int64", lambda a, b, i: T.shift_right(a + 1, b), "(int64_t)(a + 1ull) >> b"),
    "one shifted": ("int64", lambda a, b, i: T.shift_left(T.int64(1), b), "1ull << b"),
    "bits": ("uint32", lambda a, b, i: (a & b) | (a ^ b) | ~b, "(a & b) | (a ^ b) | ~b"),
    "a negative number": ("int32", lambda a, b, i: i & -4, "(int32_t)threadIdx.x & (-4)"),
    "the least": ("int32", lambda a, b, i: T.max(a, T.int32(-(2**31))) ^ T.int32(-(2**31)), "a ^ (-2147483647 - 1)"),
    "the least int64": ("int64", lambda a, b, i: T.Select(a < b, a, T.int64(-(2**63))), "a < b ? a : (-9223372036854775807ll - 1)"),
    "least of what wraps": ("int32", lambda a, b, i: T.min(a + b, a), "least<int32_t>((uint32_t)a + b, a)"),
    "a large number": ("uint64", lambda a, b, i: a ^ T.word(-1, 64), "a ^ 18446744073709551615ull"),
    "floats": ("float32", lambda a, b, i: T.Div(a * b + a, a - b), "(a * b + a) / (a - b)"),
    "in their order": ("float32", lambda a, b, i: a - (b * b - (a - b)), "a - (b * b - (a - b))"),
    "float16": ("float16", lambda a, b, i: a + b, "__float2half_rn(__half2float(a) + __half2float(b))"),
    "float16 compared": ("float16", lambda a, b, i: T.Select(a < b, a, b), "__half2float(a) < __half2float(b) ? a : b"),
    "a float16": ("float16", lambda a, b, i: T.const(-1.5, "float16"), "__ushort_as_half(0xbe00)"),
    "minus zero": ("float32", lambda a, b, i: T.const(-0.0, "float32"), "-0.0f"),
    "a third": ("float32", lambda a, b, i: T.const(1 / 3, "float32"), "0.333333343f"),
    "a third of float64": ("float64", lambda a, b, i: T.const(-1 / 3, "float64"), "-0.3333333333333333"),
    "infinity": ("float32", lambda a, b, i: T.const(-math.inf, "float32"), "__uint_as_float(0xff800000u)"),
    "no number": ("float64", lambda a, b, i: T.const(math.nan, "float64"), "__longlong_as_double(0x7ff8000000000000ll)"),
    "unlike": ("float64", lambda a, b, i: T.Select(T.NE(a, b), a, b), "differ(a, b) ? a : b"),
    "functions": ("float32", lambda a, b, i: T.exp(a) * T.sqrt(b), "expf(a) * sqrtf(b)"),
    "of float64": ("float64", lambda a, b, i: T.exp(a) * T.sqrt(b), "exp(a) * sqrt(b)"),
    "rsqrt": ("float32", lambda a, b, i: T.rsqrt(a + b), "1.0f / sqrtf(a + b)"),
    "a quotient's rest": ("float32", lambda a, b, i: T.truncmod(a, b), "fmodf(a, b)"),
    "a truth": ("bool", lambda a, b, i: T.Not(T.And(a, i < 3)), "!a || 3 <= (int32_t)threadIdx.x"),
    "conversions": ("int8", lambda a, b, i: T.Cast("int8", T.Cast("float32", a) * 2.0), "(int8_t)(int32_t)((float)a * 2.0f)"),
    "choices": (
        "int32",
        lambda a, b, i: T.if_then_else(a < b, T.if_then_else(b < 3, a, b), a * b),
        "a < b ? (b < 3 ? a : b) : (int32_t)((uint32_t)a * b)",
    ),
    "the same bits": (
        "float32",
        lambda a, b, i: T.reinterpret("float32", T.reinterpret("int32", a) + 1),
        "bits_as<float>(bits_as<int32_t>(a) + 1u)",
    ),
    "counts": ("uint8", lambda a, b, i: T.popcount(a), "(uint8_t)__popc(a)"),
    "zeros": ("int32", lambda a, b, i: T.clz(T.Cast("int16", i)), "__clz((uint16_t)(int16_t)(int32_t)threadIdx.x) - 16"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_are_spelled_plainly(name: str) -> None:
    dtype, compute, expected = EXPRESSIONS[name]

    def body(i: Any, a: Any, b: Any, result: Any) -> None:
        T.store(result, i, compute(a[i], b[i], i))

    text = text_of({"a*": dtype, "b*": dtype, "result*": dtype}, body)
    text = text.replace("(a[(int32_t)threadIdx.x] != 0)", "a").replace("a[(int32_t)threadIdx.x] != 0", "a")
    text = text.replace("a[(int32_t)threadIdx.x]", "a").replace("b[(int32_t)threadIdx.x]", "b")
    assert text.partition("{\n")[2] == f"  result[(int32_t)threadIdx.x] = {expected};\n}}\n"


@pytest.mark.parametrize(("threads", "name"), [(16, "__syncthreads"), (32, "__syncwarp"), (64, "__syncthreads")])
def test_a_group_of_one_warp_waits_for_its_warp(threads: int, name: str) -> None:
    def body(i: Any, x: Any) -> None:
        T.barrier()
        T.evaluate(T.tvm_storage_sync("global"))

    lines = text_of({"x*": "int32"}, body, threads).splitlines()[1:-1]
    assert [line.strip() for line in lines] == [f"{name}();", f"__threadfence(), {name}();"]


def test_a_text_begins_with_what_it_uses() -> None:
    def unit(parameters: Mapping[str, str], body: Body) -> str:
        return source.unit([source.emit(written(parameters, body).function)])

    def plain(i: Any, x: Any, y: Any) -> None:
        T.store(y, i, x[i])

    assert unit({"x*": "float32", "y*": "float32"}, plain).partition("extern")[0] == prelude.text([]) + "\n"
    assert "cuda_fp16.h" in unit({"x*": "float16", "y*": "float16"}, plain)
    for name, piece in prelude.PIECES.items():
        for word in piece.names:
            assert name in prelude.needed([word])
    assert prelude.needed(["x", "y"]) == frozenset()


def test_what_nobody_needs_is_not_there() -> None:
    def body(i: Any, x: Any, y: Any) -> None:
        unused, dead = T.let(x[i] * 3), T.Variable("int32")
        T.alloc_buffer((8,), "int32", scope="shared")
        T.decl_buffer((64,), "uint32", data=x.data)
        T.let(unused + 1)
        T.let(T.call_extern("int32", "atomic_add", T.address_of(y[i]), T.int32(1)))  # executed nevertheless
        dead.set(T.const(5, "int32"))

    text = text_of({"x*": "int32", "y*": "int32"}, body)
    assert "atomic_add(&y[(int32_t)threadIdx.x], 1)" in text
    assert len(text.splitlines()) == 4, text  # the head, that, the variable that is written to, the end


def test_a_variable_is_declared_where_it_is_first_written() -> None:
    def body(i: Any, result: Any) -> None:
        a, b = T.Variable("int32"), T.Variable("int32")
        T.store(result, 0, T.int32(1))
        a.set(i * 2)
        with T.when(i > 3):
            b.set(a.value)
        T.store(result, i, a.value)

    assert (
        text_of({"result*": "int32"}, body).partition("{\n")[2]
        == """\
  int32_t value_1;
  result[0] = 1;
  int32_t value = (int32_t)threadIdx.x * 2;
  if (3 < (int32_t)threadIdx.x) {
    value_1 = value;
  }
  result[(int32_t)threadIdx.x] = value;
}
"""
    )


def test_buffers_say_how_they_are_used() -> None:
    def body(i: Any, x: Any, result: Any, both: Any, counts: Any) -> None:
        T.store(result, i, x[i])
        T.store(both, i, both[i] + 1)
        T.evaluate(T.call_extern("int32", "atomic_add", T.address_of(counts[0]), T.int32(1)))

    kernel = written({f"{name}*": "int32" for name in ("x", "result", "both", "counts")}, body)
    emitted = source.emit(kernel.function)
    used = dict(zip(kernel.parameters, zip(emitted.reads, emitted.writes, strict=True), strict=True))
    assert used == {"x": (True, False), "result": (False, True), "both": (True, True), "counts": (True, True)}
    head = emitted.text.partition(" {")[0]
    assert "const int32_t *__restrict__ x" in head
    assert head.count("const") == 1
    assert head.count("__restrict__") == 4
    overlapping = source.emit(kernel.function.with_attr("tirx.noalias", False)).text.partition(" {")[0]
    assert "__restrict__" not in overlapping


@pytest.mark.parametrize(
    ("threads", "cells", "bounds"),
    [(64, 0, "64, 16"), (256, 0, "256, 4"), (1024, 0, "1024, 1"), (32, 8, "32, 16"), (256, 64, "256, 2"), (64, 999, "64, 4")],
)
def test_registers_are_left_for_other_threads(threads: int, cells: int, bounds: str) -> None:
    def body(i: Any, result: Any) -> None:
        if cells:
            own = T.local("float32", cells)
            with T.serial(T.const(0, "int32"), T.const(cells, "int32")) as j:
                T.store(own, j, T.Cast("float32", i))
            T.store(result, i, own[i % cells])
        else:
            T.store(result, i, T.float32(1))

    assert f"__launch_bounds__({bounds}) main_kernel(" in text_of({"result*": "float32"}, body, threads)


@pytest.mark.parametrize(("buffers", "bounds"), [(4, "64, 16"), (5, "64, 14")])
def test_places_in_many_buffers_have_registers_where_memory_is_shared(buffers: int, bounds: str) -> None:
    def body(i: Any, result: Any, *others: Any) -> None:
        own = T.shared("float32", 64)
        T.store(own, i % 64, T.float32(1))
        for one in (result, *others):
            T.store(one, i, own[i % 64])

    names = ["result", *(f"other{n}" for n in range(buffers - 1))]
    assert f"__launch_bounds__({bounds}) main_kernel(" in text_of({f"{name}*": "float32" for name in names}, body, 64)


# -- What is refused -------------------------------------------------------------------------------------------------


def store_of(dtype: str, value: Callable[..., Any]) -> Written:
    def body(i: Any, x: Any, result: Any) -> None:
        T.store(result, i, value(i, x))

    return written({"x*": dtype, "result*": dtype}, body)


def called(dtype: str, name: str, *arguments: Any) -> Callable[..., Any]:
    return lambda i, x: T.call_extern(dtype, name, T.address_of(x[i]), *arguments)


def _own(i: Any, x: Any) -> Any:
    return T.call_extern("int32", "atomic_add", T.address_of(T.local("int32", 4)[i]), T.int32(1))


REFUSED: dict[str, tuple[Callable[[], Written], str]] = {
    "unknown function": (
        lambda: store_of("float32", lambda i, x: T.call_extern("float32", "frobnicate", x[i])),
        "main_kernel: cannot translate Call tirx.call_extern of frobnicate",
    ),
    "approximation": (lambda: store_of("float32", lambda i, x: T.call_extern("float32", "__expf", x[i])), "call_extern of __expf"),
    "unknown intrinsic": (
        lambda: store_of("float32", lambda i, x: T.call_intrin("float32", "tirx.ptx.fma", x[i], x[i], x[i])),
        "cannot translate Call tirx.ptx.fma$",
    ),
    "function of integers": (lambda: store_of("int32", lambda i, x: T.exp(x[i])), "there is no exp of int32"),
    "nextafter": (
        lambda: store_of("float16", lambda i, x: T.nextafter(x[i], x[i])),
        "main_kernel: there is no nextafter of float16",
    ),
    "least of floats": (
        lambda: store_of("float32", called("float32", "atomic_min", 1.0)),
        "atomic_min on float32: CUDA has it for int32, uint32, int64, uint64$",
    ),
    "exchange of float64": (lambda: store_of("float64", called("float64", "atomic_exchange", 1.0)), "atomic_exchange on float64"),
    "atomic of 16 bits": (lambda: store_of("uint16", called("uint16", "atomic_max", 1)), "atomic_max on uint16"),
    "atomic of another type": (
        lambda: store_of("uint32", called("uint32", "atomic_max", 1)),
        "atomic_max on uint32 is given a int32",
    ),
    "atomic of a number": (
        lambda: store_of("int32", lambda i, x: T.call_extern("int32", "atomic_load", x[i])),
        r"atomic_load needs address_of\(buffer\[index\]\)",
    ),
    "atomic of one's own": (lambda: store_of("int32", _own), "atomic_add on value: atomics need memory that threads share"),
    "sum of truths": (lambda: store_of("bool", lambda i, x: T.subgroup("add", "bool", x[i])), "there is no subgroup_add of bool"),
    "barrier": (
        lambda: store_of("int32", lambda i, x: T.evaluate(T.tvm_storage_sync("planet")) or x[i]),
        "there is no barrier of 'planet'",
    ),
    "scope": (
        lambda: store_of("int32", lambda i, x: T.alloc_buffer((4,), "int32", scope="wmma.accumulator")[0]),
        "cannot translate memory of int32 of scope 'wmma.accumulator'",
    ),
    "type": (lambda: store_of("bfloat16", lambda i, x: x[i]), "has the type bfloat16, which CUDA does not have"),
    "threads": (
        lambda: written({"x*": "int32"}, lambda i, x: T.store(x, i, i), 2048),
        "threads in a group: given 2048 x 1 x 1; allowed: up to 1024",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_name(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(errors.CompileError, match=words) as caught:
        source.emit(make().function)
    assert str(caught.value).startswith("cuda: main_kernel: ")


def test_memory_past_the_limits_is_refused() -> None:
    def body(cells: int, i: Any, x: Any) -> None:
        narrow, shared = T.alloc_buffer((3,), "int8", scope="shared"), T.alloc_buffer((cells,), "int64", scope="shared")
        T.store(narrow, 0, T.Cast("int8", i))
        T.store(shared, i, T.Cast("int64", narrow[0]))
        T.store(x, i, T.Cast("int32", shared[63 - i]))

    most = (48 << 10) // 8 - 1
    source.emit(written({"x*": "int32"}, partial(body, most)).function)
    with pytest.raises(errors.CompileError, match="shared memory: given 49160 bytes; allowed: up to 49152"):
        source.emit(written({"x*": "int32"}, partial(body, most + 1)).function)


def test_what_is_too_deep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = store_of("int32", lambda i, x: x[i])
    monkeypatch.setattr(source.FunctionWriter, "value", lambda writer, node: writer.value(node))
    with pytest.raises(errors.CompileError, match=r"^cuda: main_kernel: expressions are nested too deeply: name parts of them$"):
        source.emit(kernel.function)


def test_parameters_past_the_limits_are_refused() -> None:
    def body(i: Any, x: Any, *scalars: Any) -> None:
        T.store(x, i, sum(scalars, T.int64(0)))

    def kernel(count: int) -> Any:
        return written({"x*": "int64", **{f"s{k}": "int64" for k in range(count)}}, body).function

    source.emit(kernel(511))
    with pytest.raises(errors.CompileError, match="parameters: given 4104 bytes; allowed: up to 4096"):
        source.emit(kernel(512))


@pytest.mark.parametrize(
    ("dtype", "lanes", "align"),
    [
        ("float32", 4, 16), ("float32", 8, 16), ("int32", 2, 8), ("float32", 3, 0), ("uint8", 16, 16), ("uint8", 8, 8),
        ("bool", 4, 4), ("int8", 2, 2), ("float16", 8, 16), ("float16", 2, 4), ("int64", 2, 16), ("float64", 4, 16),
        ("uint32", 12, 16), ("uint16", 6, 4), ("int8", 3, 0), ("int64", 3, 0),
    ],
)  # fmt: skip
def test_so_many_bytes_are_moved_at_once(dtype: str, lanes: int, align: int) -> None:
    def body(i: Any, x: Any, y: Any) -> None:
        T.store(y, T.run(i * lanes, lanes), x[T.run(i * lanes, lanes)])

    text = source.emit(written({"x*": dtype, "y*": dtype}, body).function).text
    held = "uint8_t" if dtype == "bool" else terms.TYPES[dtype]
    if not align:
        assert "Lanes" not in text
        assert f"for (int lane = 0; lane < {lanes}; ++lane)" in text
        return
    assert f"*(const Lanes<{held}, {lanes}, {align}> *)&x[" in text
    assert f"*(Lanes<{held}, {lanes}, {align}> *)&y[" in text
    if dtype != "bool":  # values that are only moved need no other variable
        assert "for (" not in text


def test_names_are_cpps_and_nothing_elses() -> None:
    for name in [*AWKWARD, *RESERVED, "", "9", "a.b", "ñ", "X", "FLT_MAX"]:
        found = identifier(name)
        assert found.isidentifier(), name
        assert found.isascii()
        assert found not in RESERVED, name
        assert not found.startswith("_")
    assert identifier("x") == "x"
    assert identifier("cse_v12") == "cse_v12"
    assert prelude.NAMES < RESERVED
