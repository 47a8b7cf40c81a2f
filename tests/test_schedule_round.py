"""Each algorithm of the CPU schedule of ELEMENT_WISE_ROUND: every float16, difficult wider floats, every length and start."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import (
    Array,
    Placed,
    assert_same_bits,
    awkward,
    mixture,
    ready,
    reference,
    round_desc,
    seeded,
)

from tvmdml import RoundingMode, TensorDataType, TensorDesc, errors, knobs, targets
from tvmdml.targets.cpu import CpuTarget

FLOATS = (TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.FLOAT64)
STREAMED: dict[str, Any] = {"stream_bytes": 1, "aligned_elements": 1}
TASKS: dict[str, Any] = {"task_elements": 1}
# An algorithm: the target, threads, knobs, the layouts of input and output; without an output, it is in place.
VARIANTS: dict[str, tuple[str, int, dict[str, Any], str, str | None]] = {
    "lines": ("cpu", 1, {}, "packed", "packed"),
    "lines, aligned": ("cpu", 1, {"aligned_elements": 1}, "shifted", "shifted"),
    "streamed": ("cpu", 1, STREAMED, "packed", "shifted"),
    "one by one": ("cpu", 1, {}, "spread", "spread"),
    "into steps": ("cpu", 1, {}, "packed", "spread"),
    "rows": ("cpu", 1, STREAMED, "padded", "padded"),
    "tiles": ("cpu", 1, {}, "transposed", "packed"),
    "tiles, three tasks": ("cpu", 3, TASKS, "packed", "transposed"),
    "tiles, level 2": ("cpu:x86-64-v2", 1, {}, "transposed", "shifted"),
    "three tasks": ("cpu", 3, TASKS, "packed", "packed"),
    "three tasks, streamed": ("cpu", 3, TASKS | STREAMED, "shifted", "packed"),
    "three tasks, one by one": ("cpu", 3, TASKS, "spread", "packed"),
    "in place": ("cpu", 1, {}, "shifted", None),
    "in place, three tasks": ("cpu", 3, TASKS | STREAMED, "packed", None),
    "level 2": ("cpu:x86-64-v2", 1, {}, "packed", "packed"),
    "level 2, streamed": ("cpu:x86-64-v2", 1, STREAMED, "packed", "shifted"),
    "level 3": ("cpu:x86-64-v3", 1, {}, "packed", "packed"),
    "level 3, streamed": ("cpu:x86-64-v3", 1, STREAMED, "packed", "shifted"),
}
# Down, up and toward zero, as defined in the C library's header.
WAYS_TO_ROUND = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (0x800000, 0x400000, 0xC00000)}
Variant = tuple[targets.Target, str, "str | None"]
modes = pytest.mark.parametrize("mode", tuple(RoundingMode), ids=lambda mode: mode.name.lower())
types = pytest.mark.parametrize("data_type", FLOATS, ids=str)
variants = pytest.mark.parametrize("variant", VARIANTS, indirect=True)


@pytest.fixture
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Variant]:
    """The target and layouts of a variant, while its knobs and threads are in force."""
    name, threads, values, layout_in, layout_out = VARIANTS[request.param]
    try:
        target = targets.resolve(name)
    except errors.TvmdmlError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    with knobs.using(element_wise_round=values):
        yield target, layout_in, layout_out


def agrees(variant: Variant, mode: RoundingMode, values: Array) -> None:
    """The result is the reference's bit for bit, NaN stays NaN, and nothing else was written to."""
    target, layout_in, layout_out = variant
    x = Placed.holding(values, layout_in)
    y = x if layout_out is None else Placed(x.desc.data_type, x.desc.sizes, layout_out)
    desc = round_desc(x.desc, mode, layout_out or layout_in)
    (expected,) = reference(desc, values)
    ready(desc, target)(x.array, y.array)
    assert_same_bits(y.array, expected, any_nan=True)
    y.assert_nothing_else_was_written()


@variants
@modes
def test_every_float16_is_rounded_right(variant: Variant, mode: RoundingMode) -> None:
    agrees(variant, mode, np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256))


@variants
@modes
@pytest.mark.parametrize("data_type", FLOATS[1:], ids=str)
def test_awkward_values_are_rounded_right(variant: Variant, data_type: TensorDataType, mode: RoundingMode) -> None:
    values = awkward(data_type)
    agrees(variant, mode, values[: values.size // 9 * 9].reshape(9, -1))


@pytest.mark.parametrize("variant", ["lines", "lines, aligned", "streamed", "three tasks", "in place"], indirect=True)
@types
def test_every_length_is_rounded_to_its_end(variant: Variant, data_type: TensorDataType) -> None:
    values = mixture(seeded(data_type), data_type, (200,))
    for length in range(1, 201):
        agrees(variant, tuple(RoundingMode)[length % 3], values[:length])


@pytest.mark.parametrize("variant", ["tiles", "tiles, three tasks"], indirect=True)
@types
def test_tiles_cover_every_size(variant: Variant, data_type: TensorDataType) -> None:
    values = mixture(seeded(data_type), data_type, (3, 50, 50))
    for height, width in ((16, 16), (17, 16), (16, 31), (50, 33), (15, 40), (40, 15), (1, 50)):
        agrees(variant, tuple(RoundingMode)[width % 3], values[0, :height, :width].copy())
        agrees(variant, tuple(RoundingMode)[height % 3], values[:, :height, :width].copy())


@pytest.mark.parametrize("variant", ["lines, aligned", "streamed", "three tasks, streamed"], indirect=True)
@types
def test_every_start_in_a_line_is_as_good(variant: Variant, data_type: TensorDataType) -> None:
    target = variant[0]
    line = 64 // data_type.itemsize
    for length in (line, 2 * line - 1, 5 * line + 3):
        x = mixture(seeded(length), data_type, (length,))
        desc = round_desc(TensorDesc(data_type, (length,)))
        operator, (expected,) = ready(desc, target), reference(desc, x)
        for start in range(line):
            memory = np.full(length + 3 * line, 42, data_type.numpy)
            start += -memory.ctypes.data % 64 // data_type.itemsize
            operator(x, memory[start : start + length])
            assert_same_bits(memory[start : start + length], expected, any_nan=True)
            assert (memory[:start] == 42).all()
            assert (memory[start + length :] == 42).all()


@pytest.mark.parametrize("variant", ["lines", "one by one", "tiles", "three tasks", "level 2", "level 3"], indirect=True)
@modes
@types
def test_how_a_program_has_its_thread_round_changes_nothing(
    variant: Variant, data_type: TensorDataType, mode: RoundingMode
) -> None:
    values = np.concatenate([awkward(data_type), (np.arange(-600, 600) / 4).astype(data_type.numpy)])
    values = values[: values.size // 40 * 40].reshape(40, -1)
    source, place = Placed.holding(values, variant[1]), Placed(data_type, values.shape, str(variant[2]))
    desc = round_desc(source.desc, mode, str(variant[2]))
    operator, (expected,) = ready(desc, variant[0]), reference(desc, values)
    library = ctypes.CDLL("libm.so.6")
    usual = library.fegetround()
    for way in WAYS_TO_ROUND[platform.machine()]:
        assert library.fesetround(way) == 0
        try:
            operator(source.array, place.array)
        finally:
            library.fesetround(usual)
        assert_same_bits(place.array, expected, any_nan=True)


@pytest.mark.exhaustive
@modes
def test_every_float32_is_rounded_right(mode: RoundingMode) -> None:
    count = 1 << 24
    desc = round_desc(TensorDesc("float32", (count,)), mode)
    operator, result = ready(desc, targets.resolve("cpu")), np.empty(count, np.float32)
    for first in range(0, 1 << 32, count):
        x = np.arange(first, first + count, dtype=np.uint32).view(np.float32)
        operator(x, result)
        (expected,) = reference(desc, x)
        assert_same_bits(result, expected, any_nan=True)
