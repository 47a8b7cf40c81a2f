"""Each algorithm that rounds on the CPU, however the program has its thread round; every float32."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import (
    Placed,
    assert_same_bits,
    awkward,
    ready,
    reference,
    round_desc,
)

from tvmdml import RoundingMode, TensorDataType, TensorDesc, errors, knobs, targets
from tvmdml.targets.cpu import CpuTarget

FLOATS = (TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.FLOAT64)
# An algorithm: the target, threads, knobs, the layouts of input and output.
VARIANTS: dict[str, tuple[str, int, dict[str, Any], str, str]] = {
    "lines": ("cpu", 1, {}, "packed", "packed"),
    "one by one": ("cpu", 1, {}, "spread", "spread"),
    "tiles": ("cpu", 1, {}, "transposed", "packed"),
    "three tasks": ("cpu", 3, {"task_elements": 1}, "packed", "packed"),
    "level 2": ("cpu:x86-64-v2", 1, {}, "packed", "packed"),
    "level 3": ("cpu:x86-64-v3", 1, {}, "packed", "packed"),
}
# Down, up and toward zero, as defined in the C library's header.
WAYS_TO_ROUND = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (0x800000, 0x400000, 0xC00000)}
Variant = tuple[targets.Target, str, str]
modes = pytest.mark.parametrize("mode", tuple(RoundingMode), ids=lambda mode: mode.name.lower())
types = pytest.mark.parametrize("data_type", FLOATS, ids=str)


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
    with knobs.using(pointwise=values):
        yield target, layout_in, layout_out


@pytest.mark.full(first=1)
@pytest.mark.parametrize("variant", VARIANTS, indirect=True)
@types
def test_how_a_program_has_its_thread_round_changes_nothing(
    variant: Variant, data_type: TensorDataType, draw: Callable[..., list[Any]]
) -> None:
    (mode, *_) = draw(RoundingMode)
    values = np.concatenate([awkward(data_type), (np.arange(-600, 600) / 4).astype(data_type.numpy)])
    values = values[: values.size // 40 * 40].reshape(40, -1)
    source, place = Placed.holding(values, variant[1]), Placed(data_type, values.shape, variant[2])
    desc = round_desc(source.desc, mode, variant[2])
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
