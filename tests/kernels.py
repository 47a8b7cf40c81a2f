"""Kernels that every code generator must compile correctly, with their inputs and expected results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from expressions import ATOMIC, TYPES, Written, settled, values_of, written
from support import Array, assert_same_bits, seeded

from tvmdml import tensorir as T


class Example(NamedTuple):
    """A kernel; its arguments by name, of which it changes the arrays; and what these hold then."""

    kernel: Written
    arguments: dict[str, Any]
    expected: Mapping[str, Array]
    is_moved: bool = False
    """Nothing is computed: not even what NaN it is may change."""

    def check(self, what: str = "", denormals: bool = False) -> None:
        """The arrays hold what they should."""
        for name, expected in self.expected.items():
            actual = self.arguments[name]
            if not self.is_moved:
                actual, expected = settled(actual, denormals), settled(expected, denormals)
            try:
                assert_same_bits(actual, expected)
            except AssertionError as error:
                raise AssertionError(f"{name} of {what}: {error}") from error


def _of(dtype: str, body: Callable[..., None], expected: Array, **more: Any) -> Example:
    """A kernel with a result of its own."""
    return Example(written({"result*": dtype}, body, **more), {"result": np.zeros(expected.size, dtype)}, {"result": expected})


# -- Control flow -------------------------------------------------------------------------------------------------------


def lazy_reads() -> Example:
    """What is not asked for is not read."""

    def body(i: Any, source: Any, result: Any, limit: Any) -> None:
        far = T.if_then_else(i < limit, source[i], T.const(-1, "int32"))
        nested = T.if_then_else(T.if_then_else(i < limit, source[i] > 5, T.const(False, "bool")), source[i] * 2, far)
        T.store(result, i, nested)

    kernel = written({"source*": "int32", "result*": "int32", "limit": "int32"}, body)
    expected = np.array([i if i <= 5 else i * 2 if i < 10 else -1 for i in range(64)], np.int32)
    arguments = {"source": np.arange(10, dtype=np.int32), "result": np.zeros(64, np.int32), "limit": 10}
    return Example(kernel, arguments, {"result": expected})


def loops() -> Example:
    """Loops go on and end where they are told."""

    def body(i: Any, result: Any) -> None:
        total, step = T.Variable("int32", T.const(0, "int32")), T.Variable("int32", T.const(0, "int32"))
        with T.loop_while(T.if_then_else(step.value < 100, total.value < 1000, T.const(False, "bool"))):
            step.set(step.value + 1)
            with T.when(step.value % 3 == 0):
                T.evaluate(T.continue_loop())
            with T.serial(T.const(2, "int32"), i + 2) as j:
                with T.when(j > 7):
                    T.evaluate(T.break_loop())
                with T.when((j & 1) == 0):
                    T.evaluate(T.continue_loop())
                total.set(total.value + j * step.value)
            with T.when(step.value > 40):
                T.evaluate(T.break_loop())
        T.store(result, i, total.value * 1000 + step.value)

    def expected(i: int) -> int:
        total = step = 0
        while step < 100 and total < 1000:
            step += 1
            if step % 3 == 0:
                continue
            for j in range(2, 2 + i):
                if j > 7:
                    break
                if j % 2:
                    total += j * step
            if step > 40:
                break
        return total * 1000 + step

    return _of("int32", body, np.array([expected(i) for i in range(64)], np.int32))


def leaving() -> Example:
    """Both ways of a branch may leave a loop, or the kernel."""

    def body(i: Any, result: Any) -> None:
        T.store(result, i, T.const(1, "int32"))
        with T.when(i > 50):
            T.evaluate(T.thread_return())
        with T.serial(T.const(0, "int32"), T.const(9, "int32")) as j:
            T.either(
                i == j,
                lambda: (T.store(result, i, T.const(2, "int32")), T.evaluate(T.break_loop())),
                lambda: T.evaluate(T.continue_loop()),
            )
        with T.when(i > 30):
            T.either(
                i > 40,
                lambda: (T.store(result, i, T.const(3, "int32")), T.evaluate(T.thread_return())),
                lambda: T.evaluate(T.thread_return()),
            )
        T.store(result, i, result[i] + 10)

    expected = [(12 if i < 9 else 11) if i <= 30 else 3 if 40 < i <= 50 else 1 for i in range(64)]
    return _of("int32", body, np.array(expected, np.int32))


def counting(dtype: str, begin: int, end: int) -> Example:
    """A loop counts in its own type."""

    def body(i: Any, result: Any) -> None:
        first, last = (T.word(number, 64) if dtype == "uint64" else T.const(number, dtype) for number in (begin, end))
        with T.serial(first, last) as j:
            T.store(result, i, result[i] + T.Cast("int32", j % T.const(100, dtype)))

    return _of("int32", body, np.full(64, sum(j % 100 for j in range(begin, end)), np.int32))


# -- Memory -------------------------------------------------------------------------------------------------------------


def own_memory() -> Example:
    """Variables and arrays of every type are the thread's own."""

    def body(i: Any, result: Any) -> None:
        for dtype in TYPES:
            cells = T.local(dtype, 5)
            with T.serial(T.const(0, "int32"), T.const(5, "int32")) as j:
                T.store(cells, j, T.Cast(dtype, (i + j) % 2))
            T.store(result, i, result[i] * 2 + T.Cast("int32", cells[i % 5]))

    expected = [sum(((i + i % 5) % 2) << k for k in range(len(TYPES))) for i in range(64)]
    return _of("int32", body, np.array(expected, np.int32))


def shared_memory(dtype: str, denormals: bool = False) -> Example:
    """A group's threads see what the others wrote."""

    def body(i: Any, source: Any, result: Any) -> None:
        shared = T.alloc_buffer((64,), dtype, scope="shared")
        T.store(shared, i % 64, source[i])
        T.barrier()
        T.store(result, i, shared[63 - i % 64])

    source = np.resize(values_of(dtype, denormals), 128)
    expected = source.reshape(2, 64)[:, ::-1].reshape(-1).copy()
    kernel = written({"source*": dtype, "result*": dtype}, body, groups=2)
    return Example(kernel, {"source": source, "result": np.zeros_like(source)}, {"result": expected})


def group_scan() -> Example:
    """A group adds up, with barriers in a loop; the sums do not fit."""

    def body(i: Any, source: Any, result: Any) -> None:
        cells, here = T.alloc_buffer((256,), "int32", scope="shared"), i % 256
        T.store(cells, here, source[i])
        stride = T.Variable("int32", T.const(1, "int32"))
        with T.loop_while(stride.value < 256):
            T.barrier()
            held = T.Variable("int32", cells[here])
            with T.when(here >= stride.value):
                held.set(held.value + cells[here - stride.value])
            T.barrier()
            T.store(cells, here, held.value)
            stride.set(stride.value * 2)
        T.store(result, i, cells[here])

    source = seeded("scan").integers(-(2**31), 2**31, 1024).astype(np.int32)
    expected = source.reshape(4, 256).cumsum(1, np.int32).reshape(-1)
    kernel = written({"source*": "int32", "result*": "int32"}, body, 256, 4)
    return Example(kernel, {"source": source, "result": np.zeros_like(source)}, {"result": expected})


TILES = (("float16", "float16"), ("int8", "int8"), ("int8", "uint8"), ("uint8", "int8"), ("uint8", "uint8"))
"""The types of factors that tensor cores multiply."""


def tiles(a_type: str, b_type: str) -> Example:
    """A warp multiplies small matrices: 16 rows and 16 columns of 32 bytes. Of float16, the second one's rows are in memory."""
    count = 16 if a_type == "float16" else 32
    total = "float32" if a_type == "float16" else "int32"

    def body(i: Any, a: Any, b: Any, result: Any) -> None:
        at = [T.alloc_buffer((16 * count,), dtype, scope="shared") for dtype in (a_type, b_type)]
        for buffer, memory in zip((a, b), at, strict=True):
            with T.serial(T.const(0, "int32"), T.const(count // 2, "int32")) as k:
                T.store(memory, i + 32 * k, buffer[i + 32 * k])
        T.barrier()
        words = [T.local("uint32", 4) for _ in at]
        sums, half = T.local(total, 8), count // 2
        for k in range(8):
            T.store(sums, k, T.const(0, total))
        T.load_tiles(words[0], 0, at[0], i % 16 * count + i // 16 * half)
        if a_type == "float16":
            T.load_tiles(words[1], 0, at[1], i % 16 * count + i // 16 * half, turned=True)
        else:
            T.load_tiles(words[1], 0, at[1], (i % 8 + i // 16 * 8) * count + i // 8 % 2 * half)
        a_words, b_words = ([one[k] for k in range(4)] for one in words)
        for k in (0, 1):
            T.multiply_tiles((a_type, b_type), sums, 4 * k, a_words, b_words[2 * k : 2 * k + 2])
        for k in range(8):
            row, column = i // 4 + k // 2 % 2 * 8, i % 4 * 2 + k % 2 + k // 4 * 8
            T.store(result, row * 16 + column, sums[k])

    kernel = written({"a*": a_type, "b*": b_type, "result*": total}, body, 32)
    rng = seeded("tiles", a_type, b_type)
    limits = [(-8, 8) if one == "float16" else (-128, 127) if one == "int8" else (0, 255) for one in (a_type, b_type)]
    a, b = (rng.integers(*limit, (16, count), endpoint=True) for limit in limits)
    expected = a @ (b if a_type == "float16" else b.T)
    arguments = {"a": a.astype(a_type), "b": b.astype(b_type), "result": np.zeros(256, total)}
    flat = {name: np.ascontiguousarray(one).reshape(-1) for name, one in arguments.items()}
    return Example(kernel, flat, {"result": expected.astype(total).reshape(-1)})


def copies() -> Example:
    """Copies to shared memory go on in two batches, and some of them have nothing to copy."""

    def body(i: Any, source: Any, result: Any) -> None:
        memory = T.alloc_buffer((64 * 7,), "int32", scope="shared")
        for first, count in ((0, 4), (256, 2), (384, 1)):
            place = first + i * count
            T.copy_async(memory, place, source, place, 4 * count, i % 3 != 1)
            T.end_copies()
        T.await_copies(1)
        T.barrier()
        for k in range(6):
            T.store(result, i + 64 * k, memory[(i + 64 * k + 5) % 384])
        T.await_copies(0)
        T.barrier()
        T.store(result, i + 384, memory[384 + (i + 1) % 64])

    source = np.arange(1, 449, dtype=np.int32)
    copied = source.copy()
    for first, count in ((0, 4), (256, 2), (384, 1)):
        copied[first : first + 64 * count].reshape(64, count)[1::3] = 0
    expected = np.concatenate([np.roll(copied[:384], -5), np.roll(copied[384:], -1)])
    kernel = written({"source*": "int32", "result*": "int32"}, body)
    return Example(kernel, {"source": source, "result": np.zeros_like(source)}, {"result": expected})


def pairs() -> Example:
    """Products that are added two at a time, with one rounding each: in float64 they are exact, and sums nearly so."""

    def body(i: Any, a: Any, b: Any, result: Any) -> None:
        sums = T.local("float32", 2)
        for k in (0, 1):
            T.store(sums, k, result[2 * i + k])
        T.multiply_add_pair(sums, 0, a[i], (b[2 * i], b[2 * i + 1]))
        for k in (0, 1):
            T.store(result, 2 * i + k, sums[k])

    rng = seeded("pairs")
    a, b, c = (rng.normal(size=size).astype(np.float32) for size in (64, 128, 128))
    exact = a.astype(np.float64).repeat(2) * b + c
    assert (exact.astype(np.float32) != a.repeat(2) * b + c).any()
    kernel = written({"a*": "float32", "b*": "float32", "result*": "float32"}, body)
    return Example(kernel, {"a": a, "b": b, "result": c}, {"result": exact.astype(np.float32)})


def scalars() -> Example:
    """A scalar of each type."""
    values: dict[str, Any] = {
        "bool": True, "int8": -100, "uint8": 200, "int16": -30000, "uint16": 60000, "int32": -(2**31), "uint32": 2**32 - 1,
        "int64": -(2**63), "uint64": 2**63 + 5, "float16": 0.25, "float32": -1.5, "float64": math.pi,
    }  # fmt: skip

    def body(i: Any, *parameters: Any) -> None:
        with T.when(i < 1):
            for result, scalar in zip(parameters[: len(TYPES)], parameters[len(TYPES) :], strict=True):
                T.store(result, i, scalar)

    kernel = written({**{f"r{dtype}*": dtype for dtype in TYPES}, **{f"of {dtype}": dtype for dtype in TYPES}}, body)
    arguments = {**{f"r{t}": np.zeros(1, t) for t in TYPES}, **{f"of {t}": value for t, value in values.items()}}
    return Example(kernel, arguments, {f"r{dtype}": np.array([values[dtype]], dtype) for dtype in TYPES})


# -- Threads together ------------------------------------------------------------------------------------------------------


def atomics(dtype: str, scope: str) -> Example:
    """Atomic operations lose nothing, in a ``buffer`` or in ``shared`` memory."""
    names = list(ATOMIC)

    def body(i: Any, source: Any, result: Any) -> None:
        cells = result
        if scope == "shared":
            cells = T.alloc_buffer((len(names) + 1,), dtype, scope="shared")
            with T.when(i < len(names) + 1):
                T.store(cells, i, T.const(0, dtype))
            T.barrier()
        for place, name in enumerate(names):
            T.atomic_do(name, cells, place, source[i])
        # Each thread reads another element before its own: their sum is that of 0 to 255.
        before = T.atomic("add", cells, len(names), T.const(1, dtype))
        T.atomic_do("add", result, len(names) + 1, before)
        T.barrier()
        if scope == "shared":
            with T.when(i < len(names) + 1):
                T.store(result, i, cells[i])

    source = seeded(dtype).integers(-1000 if dtype.startswith("int") else 0, 1000, 256).astype(dtype)
    source[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max  # the smallest integer has no negative
    with np.errstate(over="ignore"):
        values = [*(compute(source) for compute in ATOMIC.values()), 256, sum(range(256))]
        expected = np.array([np.array(value).astype(dtype) for value in values], dtype)
    kernel = written({"source*": dtype, "result*": dtype}, body, 256)
    return Example(kernel, {"source": source, "result": np.zeros(len(names) + 2, dtype)}, {"result": expected})


def token() -> Example:
    """An exchange hands one token on, to whom nobody can say; ``check_token`` looks."""

    def body(i: Any, cell: Any, won: Any, seen: Any) -> None:
        before = T.atomic("compare_exchange", cell, 0, T.const(7, "uint32"), T.Cast("uint32", i) + 100)
        T.store(won, i, T.Cast("int32", before == T.const(7, "uint32")))
        T.atomic_do("store", cell, 1, T.const(3, "uint32"))
        T.evaluate(T.call_extern("uint32", "memory_fence"))
        T.store(seen, i, T.atomic("load", cell, 1))
        T.atomic_do("exchange", cell, 2, T.Cast("uint32", i))

    kernel = written({"cell*": "uint32", "won*": "int32", "seen*": "uint32"}, body, groups=4)
    cell, won, seen = np.array([7, 0, 999], np.uint32), np.zeros(256, np.int32), np.zeros(256, np.uint32)
    return Example(kernel, {"cell": cell, "won": won, "seen": seen}, {"seen": np.full_like(seen, 3)})


def check_token(example: Example) -> None:
    """One thread has it, and left its number."""
    example.check()
    cell, won = example.arguments["cell"], example.arguments["won"]
    assert won.sum() == 1
    assert cell[0] == 100 + int(won.argmax())
    assert cell[2] < 256


def exchanges(dtype: str, size: int) -> Example:
    """What subgroups of a size work out together. Beyond an end, ``shuffle_up`` and ``shuffle_down`` leave a lane its own."""
    names = ["shuffle", "shuffle_xor", "shuffle_up", "shuffle_down", "broadcast", "warp", "warp_up", "warp_down"]
    if dtype != "bool":
        names += ["add", "exclusive_add", "inclusive_add", "min", "max"]

    def body(i: Any, source: Any, *results: Any) -> None:
        lane = T.let(T.subgroup("lane", "int32"))
        x = T.let(source[i])
        one, width, every = (T.const(number, "int32") for number in (1, size // 2, size))
        warp = (T.word(-1, 32), x)
        values = {
            "shuffle": lambda: T.subgroup("shuffle", dtype, x, size - 1 - lane),
            "shuffle_xor": lambda: T.subgroup("shuffle_xor", dtype, x, one),
            "shuffle_up": lambda: T.subgroup("shuffle_up", dtype, x, one),
            "shuffle_down": lambda: T.subgroup("shuffle_down", dtype, x, one),
            "broadcast": lambda: T.subgroup("broadcast", dtype, x, one),
            "warp": lambda: T.tvm_warp_shuffle(*warp, one, width, every),
            "warp_up": lambda: T.tvm_warp_shuffle_up(*warp, one, width, every),
            "warp_down": lambda: T.tvm_warp_shuffle_down(*warp, one, width, every),
        }
        for name, result in zip(names, results, strict=True):
            T.store(result, i, T.let(values.get(name, partial(T.subgroup, name, dtype, x))()))

    source = np.resize(np.array([3, 1, 2, 7, 5, 0, 6, 4, 9, 8], np.int32) % (2 if dtype == "bool" else 99), 64).astype(dtype)
    arguments = {"x": source, **{name: np.zeros_like(source) for name in names}}
    rows, halves, lane = source.reshape(-1, size), source.reshape(-1, size // 2), np.arange(size)
    expected = {
        "shuffle": rows[:, ::-1],
        "shuffle_xor": rows[:, lane ^ 1],
        "shuffle_up": rows[:, np.maximum(lane - 1, 0)],
        "shuffle_down": rows[:, np.minimum(lane + 1, size - 1)],
        "broadcast": np.repeat(rows[:, 1:2], size, 1),
        "warp": np.repeat(halves[:, 1:2], size // 2, 1),
        "warp_up": np.concatenate([halves[:, :1], halves[:, :-1]], 1),
        "warp_down": np.concatenate([halves[:, 1:], halves[:, -1:]], 1),
    }
    if dtype != "bool":
        sums = rows.cumsum(1, dtype)
        expected |= {"inclusive_add": sums, "exclusive_add": sums - rows}
        for name, reduce in {"add": np.add, "min": np.minimum, "max": np.maximum}.items():
            expected[name] = np.repeat(reduce.reduce(rows, 1, dtype=dtype, keepdims=True), size, 1)
    kernel = written({f"{name}*": dtype for name in arguments}, body)
    return Example(kernel, arguments, {name: values.reshape(-1).astype(dtype) for name, values in expected.items()})


def votes(size: int) -> Example:
    """What subgroups of a size count and vote."""

    def body(i: Any, *results: Any) -> None:
        odd = T.let((i & 1) == 1)
        values = [
            T.subgroup("size", "uint32"),
            T.subgroup("lane", "int32"),
            T.subgroup("index", "int32"),
            T.subgroup("elect", "bool"),
            T.subgroup("any", "bool", i == 0),
            T.subgroup("all", "bool", T.Cast("int32", i >= 0)),
            T.subgroup("ballot", "uint32", odd),
            T.subgroup("ballot", "uint32"),
            T.subgroup("ballot_high", "uint32", odd),
            T.tvm_warp_activemask(),
        ]
        for result, value in zip(results, values, strict=True):
            T.store(result, i, T.Cast("uint32", value))

    i = np.arange(64)
    lanes = (1 << min(size, 32)) - 1
    expected = {
        "size": 0 * i + size, "lane": i % size, "index": i // size, "elect": i % size == 0, "any": i < size, "all": 0 * i + 1,
        "ballot": 0 * i + (0xAAAAAAAA & lanes), "everyone": 0 * i + lanes, "high": 0 * i + (0xAAAAAAAA if size == 64 else 0),
        "active": 0 * i + lanes,
    }  # fmt: skip
    kernel = written({f"{name}*": "uint32" for name in expected}, body)
    arguments = {name: np.zeros(64, np.uint32) for name in expected}
    return Example(kernel, arguments, {name: values.astype(np.uint32) for name, values in expected.items()})


# -- Several lanes ------------------------------------------------------------------------------------------------------


def lanes(dtype: str, count: int, denormals: bool = False) -> Example:
    """Neighbours are loaded and stored at once, also where they do not begin at a multiple of their number."""

    def body(i: Any, source: Any, result: Any, mixed: Any) -> None:
        x, y = source[T.run(i * count, count)], source[T.run(i * count + 1, count)]
        here = T.run(i * count, count)
        if dtype == "bool":
            T.store(result, here, T.Cast(f"boolx{count}", T.Cast(f"int32x{count}", x) != T.Cast(f"int32x{count}", y)))
        else:
            T.store(result, here, T.Select(x < y, x + y, T.splat(T.const(3, dtype), count)))
        spread = source[T.ramp(i, T.int32(3), count)]
        T.store(mixed, here, T.Shuffle([x, spread], [count + k if k % 2 else count - 1 - k for k in range(count)]))

    total = 64 * count
    source = np.resize(values_of(dtype, denormals), max(total + 1, 64 + 3 * count))
    x, y = source[:total], source[1 : total + 1]
    with np.errstate(all="ignore"):
        result = x != y if dtype == "bool" else np.where(x < y, x + y, np.array(3, dtype))
    i, k = np.divmod(np.arange(total), count)
    mixed = np.where(k % 2, source[i + 3 * k], source[i * count + count - 1 - k])
    kernel = written({"source*": dtype, "result*": dtype, "mixed*": dtype}, body)
    arguments = {"source": source, "result": np.zeros(total, dtype), "mixed": np.zeros(total, dtype)}
    return Example(kernel, arguments, {"result": result, "mixed": mixed})


def mixed_access() -> Example:
    """Elements and vectors of one buffer are the same memory."""

    def body(i: Any, cells: Any, result: Any) -> None:
        T.store(cells, i * 4 + 1, T.int32(7))
        T.store(result, T.run(i * 4, 4), cells[T.run(i * 4, 4)] * T.splat(T.int32(2), 4))
        T.store(cells, i * 4 + 2, cells[i * 4 + 2] + 1)

    cells = np.arange(256, dtype=np.int32)
    rows = cells.reshape(64, 4).copy()
    rows[:, 1] = 7
    doubled = (rows * 2).reshape(-1)
    rows[:, 2] += 1
    kernel = written({"cells*": "int32", "result*": "int32"}, body)
    return Example(kernel, {"cells": cells, "result": np.zeros_like(cells)}, {"cells": rows.reshape(-1), "result": doubled})


def ramps() -> Example:
    """Ramps are values too."""

    def body(i: Any, result: Any) -> None:
        ramp = T.ramp(i, i + 1, 4) * T.ramp(T.int32(1), T.int32(2), 4)
        T.store(result, T.run(i * 4, 4), T.if_then_else(i < 10, ramp, T.splat(i, 4)))

    i, k = np.divmod(np.arange(256), 4)
    return _of("int32", body, np.where(i < 10, (i + k * (i + 1)) * (1 + 2 * k), i).astype(np.int32))


CUTS = (
    ("uint8x4", "uint32"), ("int16x2", "float32"), ("uint8x8", "uint64"), ("float32x4", "uint32x4"), ("uint16x4", "uint32x2"),
    ("int32x2", "float64"),
)  # fmt: skip


def cut(one: str, other: str) -> Example:
    """Lanes are joined to others of the same bits, and cut again."""
    (few, _, lanes), (many, _, others) = one.partition("x"), other.partition("x")
    n, m = int(lanes), int(others or 1)

    def body(i: Any, source: Any, joined: Any, cut: Any) -> None:
        value = T.let(T.reinterpret(other, source[T.run(i * n, n)]))
        T.store(joined, T.run(i * m, m) if m > 1 else i, value)
        T.store(cut, T.run(i * n, n), T.reinterpret(one, value))

    source = np.frombuffer(seeded(one).bytes(64 * n * np.dtype(few).itemsize), few).copy()
    kernel = written({"source*": few, "joined*": many, "cut*": few}, body)
    arguments = {"source": source, "joined": np.zeros(64 * m, many), "cut": np.zeros_like(source)}
    return Example(kernel, arguments, {"joined": source.view(many), "cut": source}, is_moved=True)
