"""The CUDA C++ generator: what only CUDA can do, bit for bit, on a GPU or on the emulator."""

from __future__ import annotations

from functools import partial
from typing import Any

import kernels
import numpy as np
import pytest
from expressions import AWKWARD, Written, written
from generators import CudaMachine, Run
from support import assert_same_bits, bits_of, seeded

from tvmdml import targets
from tvmdml import tensorir as T
from tvmdml.targets._lower import lower
from tvmdml.targets.cuda import source

WARP = 32


@pytest.fixture(scope="module")
def machine(cuda: targets.Target) -> CudaMachine:
    return CudaMachine(cuda)


def test_floats_are_added_atomically(machine: CudaMachine) -> None:
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


def test_tensor_cores_multiply(machine: CudaMachine) -> None:
    machine.give({f"{a} {b}": kernels.tiles(a, b) for a, b in kernels.TILES})


def test_copies_go_on_meanwhile(machine: CudaMachine) -> None:
    machine.give({"": kernels.copies()})


def test_infinities_are_in_no_sum_before_they_come(machine: CudaMachine) -> None:
    def body(i: Any, x: Any, result: Any) -> None:
        T.store(result, i, T.let(T.subgroup("exclusive_add", "float32", x[i])))

    x, result = np.ones(64, np.float32), np.zeros(64, np.float32)
    x[20] = np.inf
    machine.run(Run(written({"x*": "float32", "result*": "float32"}, body), {"x": x, "result": result}))
    machine.same(result[:32], np.array([*range(21), *[np.inf] * 11], np.float32), "exclusive_add")


def test_threads_of_a_warp_are_counted_along_x_first(machine: CudaMachine) -> None:
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


def test_memory_may_be_seen_as_another_type(machine: CudaMachine) -> None:
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


def test_narrow_memory_may_be_seen_as_wider_words(machine: CudaMachine) -> None:
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


def test_any_name_will_do(machine: CudaMachine) -> None:
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


def test_whole_words_are_moved_of_what_is_narrow(machine: CudaMachine) -> None:
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
