"""Leaf functions: each gives the same result as its equivalent in plain TensorIR, and as NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits, random_bits, round_desc, seeded, special_values, tensor, top_k_desc

from tvmdml import TensorDataType, errors, targets
from tvmdml import tensorir as T
from tvmdml.enums import RoundingMode
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator
from tvmdml.schedules.cpu._leaves import _LEAVES, Leaves

LEVELS = ("", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
Launcher = Callable[..., Any]


@pytest.fixture(scope="module", params=[*LEVELS, "portable"], ids=lambda level: level or "this processor")
def leaves(request: pytest.FixtureRequest) -> tuple[targets.Target, Leaves]:
    """Each level's leaves, and the twins."""
    portable = request.param == "portable"
    try:
        target = targets.resolve("cpu" if portable else f"cpu:{request.param}")
    except errors.TvmdmlError as error:
        pytest.skip(str(error))
    return target, Leaves(target, portable)


def build(leaves: tuple[targets.Target, Leaves], buffers: dict[str, str], body: Callable[..., None]) -> Launcher:
    """A kernel on these buffers that runs ``body(leaves, length, *buffers)``; called with arrays and the length."""
    target, functions = leaves
    with T.function() as f:
        parameters = [f.buffer(name, dtype) for name, dtype in buffers.items()]
        length = f.scalar("length")
        with functions.available():
            body(functions, length, *parameters)
    return target.build(f.result()).launcher()


def placed(dtype: Any, count: int, past: int = 0) -> Array:
    """Elements, the first of which lies a number of bytes past a multiple of 64."""
    memory = np.zeros(count * np.dtype(dtype).itemsize + 128, np.uint8)
    start = -memory.ctypes.data % 64 + past
    return memory[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def test_the_portable_leaves_are_all_twins() -> None:
    twins = Leaves(targets.resolve("cpu"), portable=True)
    assert not any(twins.has(name) for name in _LEAVES)


@pytest.mark.full(first=1)
@pytest.mark.some(16)
@pytest.mark.parametrize("name", ["bits", "bits_here"])
@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
def test_bits_of_a_mask_are_a_word(leaves: tuple[targets.Target, Leaves], lanes: int, name: str) -> None:
    def body(functions: Leaves, length: Any, source: Any, result: Any) -> None:
        with T.loop(length) as i:
            truths = source[T.run(i * lanes, lanes)] > T.splat(T.const(0, "uint8"), lanes)
            T.store(result, i, getattr(functions, name)(truths))

    kernel = build(leaves, {"source": "uint8", "result": f"uint{lanes}"}, body)
    truths = np.concatenate([np.eye(lanes), 1 - np.eye(lanes), np.zeros((1, lanes)), np.ones((1, lanes))]).astype(np.uint8)
    truths = np.concatenate([truths, seeded(lanes).integers(0, 2, (500, lanes), np.uint8) * np.uint8(200)])
    words = np.zeros(len(truths), f"u{lanes // 8}")
    kernel(truths.reshape(-1), words, len(truths))
    expected = np.packbits(truths != 0, axis=1, bitorder="little").reshape(-1).view(f"<u{lanes // 8}")
    assert_same_bits(words, expected)


@pytest.mark.full(first=1)
def test_compress_moves_the_lanes_of_every_word_to_the_front(leaves: tuple[targets.Target, Leaves]) -> None:
    def body(functions: Leaves, length: Any, source: Any, result: Any) -> None:
        with T.loop(length) as i:
            front = functions.compress(T.cast(i, "uint16"), source[T.run(T.i64(0), 16)])
            T.store(result, T.run(i * 16, 16), front)

    kernel = build(leaves, {"source": "int32", "result": "int32"}, body)
    source = seeded("compress").integers(1, 2**31, 16, np.int32)
    fronts = np.full((1 << 16, 16), -1, np.int32)
    kernel(source, fronts.reshape(-1), len(fronts))
    chosen = (np.arange(1 << 16)[:, None] >> np.arange(16)) & 1 == 1
    order = np.argsort(~chosen, axis=1, kind="stable")
    assert_same_bits(fronts, np.where(np.take_along_axis(chosen, order, 1), source[order], 0).astype(np.int32))


@pytest.mark.full(first=1)
@pytest.mark.some(16)
@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_not_less_holds_for_nan(leaves: tuple[targets.Target, Leaves], dtype: str, lanes: int) -> None:
    def body(functions: Leaves, length: Any, one: Any, other: Any, result: Any) -> None:
        with T.loop(length) as i:
            at = T.run(i * lanes, lanes)
            T.store(result, at, T.cast(functions.not_less(one[at], other[at]), f"uint8x{lanes}"))

    kernel = build(leaves, {"one": dtype, "other": dtype, "result": "uint8"}, body)
    values = special_values(TensorDataType.parse(dtype, "dtype"))
    one, other = (np.resize(a.reshape(-1), 64 * 20) for a in np.meshgrid(values, values))
    result = np.full(one.size, 9, np.uint8)
    kernel(one, other, result, one.size // lanes)
    assert_same_bits(result, (~(one < other)).astype(np.uint8))


@pytest.mark.full(first=1)
@pytest.mark.some(16)
@pytest.mark.parametrize("lanes", [16, 32])
def test_wide_changes_nothing(leaves: tuple[targets.Target, Leaves], lanes: int) -> None:
    def body(functions: Leaves, length: Any, source: Any, result: Any) -> None:
        with T.loop(length) as i:
            T.store(result, T.run(i * lanes, lanes), functions.wide(source[T.run(i * lanes, lanes)]))

    kernel = build(leaves, {"source": "float32", "result": "float32"}, body)
    x = random_bits(seeded(lanes), TensorDataType.FLOAT32, (40 * lanes,))
    x[: len(special_values(TensorDataType.FLOAT32))] = special_values(TensorDataType.FLOAT32)
    result = np.zeros_like(x)
    kernel(x, result, 40)
    assert_same_bits(result, x)


def code_for(level: str, desc: Operator) -> str:
    """The assembly of an operator's kernel for a processor that need not be here."""
    (target,) = targets.elsewhere(f"cpu:{level}")
    return target.source(kernel_for(desc.canonical(), target).build(), "asm")


@pytest.mark.parametrize("mode", RoundingMode, ids=str)
@pytest.mark.parametrize(("level", "instruction"), [("x86-64-v3", "vroundps"), ("x86-64-v4", "vrndscaleps")])
def test_float16_is_rounded_a_register_at_a_time(level: str, instruction: str, mode: RoundingMode) -> None:
    code = code_for(level, round_desc(tensor("float16", (1 << 16,)), mode))
    assert instruction in code
    assert code.count("vroundss") < 32, "what is left of a run, and no more, is rounded element by element"


@pytest.mark.full(first=1)
@pytest.mark.drawn("data_type", ["float16", "float32", "float64", "int32", "uint8"], 2)
@pytest.mark.parametrize("direction", ["increasing", "decreasing"])
def test_without_avx512_masks_are_not_taken_apart(data_type: str, direction: str) -> None:
    code = code_for("x86-64-v3", top_k_desc(tensor(data_type, (32, 32000)), 1, 50, direction))
    assert "movmsk" in code
    assert code.count("vpextrb") == 0


@pytest.mark.full(first=1)
@pytest.mark.some(16)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "int64", "float16", "float32", "float64"])
def test_stream_stores_whole_lines(leaves: tuple[targets.Target, Leaves], dtype: str) -> None:
    lanes = 64 // np.dtype(dtype).itemsize

    def body(functions: Leaves, length: Any, source: Any, result: Any) -> None:
        with T.loop(length) as i:
            # Every second line, beginning with the second.
            functions.stream(result, (i * 2 + 1) * lanes, source[T.run(i * lanes, lanes)])
        functions.fence()

    kernel = build(leaves, {"source": dtype, "result": dtype}, body)
    source = random_bits(seeded(dtype), TensorDataType.parse(dtype, "dtype"), (50 * lanes,))
    result = placed(dtype, 102 * lanes)
    result.view(np.uint8)[:] = 0xA5
    expected = result.copy().reshape(102, lanes)
    expected[1:-1:2] = source.reshape(50, lanes)
    kernel(source, result, 50)
    assert_same_bits(result, expected.reshape(-1))


@pytest.mark.full(first=1)
@pytest.mark.some(16)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
def test_misalignment_is_how_far_past_a_line_an_element_lies(leaves: tuple[targets.Target, Leaves], dtype: str) -> None:
    def body(functions: Leaves, length: Any, source: Any, result: Any) -> None:
        with T.loop(length) as i:
            T.store(result, i, functions.misalignment(source, i))

    kernel = build(leaves, {"source": dtype, "result": "int64"}, body)
    for past in (0, 8, 56):
        source, result = placed(dtype, 200, past), np.full(200, -1)
        kernel(source, result, 200)
        addresses = past + np.arange(200) * np.dtype(dtype).itemsize
        native = leaves[1].has("misalignment")
        np.testing.assert_array_equal(result, addresses % 64 if native else 0)
