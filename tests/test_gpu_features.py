"""Devices without a feature: a kernel compiles for them, or is refused with the name of the missing feature, and only then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from support import ALL, FLOATING, diagonal_desc, nonzero_desc, round_desc, tensor, top_k_desc

from tvmdml import Operator, RoundingMode, TensorDataType, TensorDesc, knobs
from tvmdml.errors import CompileError, Unsupported
from tvmdml.schedules import gpu
from tvmdml.schedules.gpu import _default
from tvmdml.targets import Target
from tvmdml.targets.vulkan import VulkanTarget, compile_function

# The features to load and store elements; no kernel needs arithmetic on narrow numbers.
LACKING: dict[str, dict[str, Any]] = {
    "narrow arithmetic": {"int8": False, "int16": False, "float16": False, "nearest_even": ()},
    **{feature: {feature: False} for feature in ("storage8", "storage16", "int64", "float64")},
}
LACKING["all"] = {name: value for lacking in LACKING.values() for name, value in lacking.items()}
LAYOUTS = ("packed", "padded", "transposed")
VULKAN_NAMES = {
    "storage8": "storageBuffer8BitAccess",
    "storage16": "storageBuffer16BitAccess",
    "int64": "shaderInt64",
    "float64": "shaderFloat64",
}


def without(vulkan: Target, **lacking: Any) -> VulkanTarget:
    """The same device, but without some of its features."""
    assert isinstance(vulkan, VulkanTarget)
    return VulkanTarget(str(vulkan.info.index), vulkan.capabilities._replace(**lacking), vulkan.info)


def rounds(data_type: TensorDataType) -> Iterator[Operator]:
    if data_type in FLOATING:
        for mode, layout in itertools.product(RoundingMode, LAYOUTS):
            yield round_desc(tensor(data_type, (3, 40, 64)), mode, layout)


def diagonals(data_type: TensorDataType) -> Iterator[Operator]:
    for sizes, layout, has_input in itertools.product(((64, 64), (33, 37)), LAYOUTS, (False, True)):
        yield diagonal_desc(tensor(data_type, sizes), 3, -1, 2, has_input, layout)


def nonzeros(data_type: TensorDataType) -> Iterator[Operator]:
    for layout, index in zip(LAYOUTS, ("uint32", "uint64", "uint32"), strict=True):
        yield nonzero_desc(tensor(data_type, (90, 64), layout), index=index)


def tops(data_type: TensorDataType) -> Iterator[Operator]:
    if ALL.index(data_type) % 2:
        yield top_k_desc(tensor(data_type, (300, 64)), 0, 20, "decreasing", "uint32")
    else:
        yield top_k_desc(tensor(data_type, (64, 300)), 1, 20, "increasing", "uint64")


OPERATORS = {
    "element_wise_round": (rounds, ()),
    "diagonal_matrix": (diagonals, ()),
    "nonzero_coordinates": (nonzeros, ("alone", "scan", "lookback")),
    "top_k": (tops, ("short", "queue", "select", "sort")),
}


def refused(desc: Operator, target: VulkanTarget) -> str:
    """The feature that a refusal names; nothing where the kernel compiles."""
    try:
        kernel = target.kernel(desc)
    except Unsupported as error:
        text = str(error)
        assert text.startswith(f"{desc.NAME} "), text
        assert f" on {target.name}; allowed: " in text, text
        assert text.endswith(". Run it on another device."), text
        return text.partition("the device lacks ")[2].partition(".")[0]
    compile_function(kernel.build(), target.capabilities)
    return ""


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_kernel_is_refused_by_name_if_it_would_not_compile(
    vulkan: Target, operator: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = without(vulkan, **LACKING[lacking])
    descs, algorithms = OPERATORS[operator]
    for place, (data_type, algorithm) in enumerate(itertools.product(ALL, algorithms or ("",))):
        if algorithms and (place + place // len(algorithms) + list(LACKING).index(lacking)) % 2:
            continue  # this is slow: every second kernel, each on some of the devices
        with knobs.using(**{operator: {"algorithm": algorithm} if algorithm else {}}):
            for desc in descs(data_type):
                if not (feature := refused(desc, target)):
                    continue
                with monkeypatch.context() as patch:
                    patch.setattr(f"tvmdml.schedules.gpu.{operator}.require", lambda *_: None)
                    with pytest.raises(CompileError, match=feature):
                        compile_function(target.kernel(desc).build(), target.capabilities)


def test_narrow_elements_that_lie_in_whole_words_are_moved_without_their_feature(vulkan: Target) -> None:
    target = without(vulkan, **LACKING["all"])
    for data_type in (TensorDataType.UINT8, TensorDataType.FLOAT16):
        assert not refused(diagonal_desc(tensor(data_type, (40, 64)), 3, -1, 2), target)
        assert refused(diagonal_desc(tensor(data_type, (40, 63)), 3, -1, 2), target)


@pytest.mark.parametrize("operator", OPERATORS)
def test_large_offsets_are_refused_where_64_bits_are_missing(
    vulkan: Target, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_NARROW", 1)
    target = without(vulkan, int64=False)
    for desc in OPERATORS[operator][0](TensorDataType.FLOAT32):
        with pytest.raises(
            Unsupported, match=r"_tensor: given offsets past 2\^30 on vulkan:\d+; allowed: .* lacks shaderInt64\. Run"
        ):
            target.kernel(desc)


def test_a_refusal_names_the_first_tensor_of_the_type(vulkan: Target) -> None:
    x = tensor("uint8", (5, 7))
    for desc, name in ((diagonal_desc(x, 3, 0, 1), "input_tensor"), (diagonal_desc(x, 3, 0, 1, has_input=False), "output_tensor")):
        with pytest.raises(Unsupported, match=rf"^DIAGONAL_MATRIX1 {name}: given uint8 on .* lacks storageBuffer8BitAccess\. Run"):
            without(vulkan, storage8=False).kernel(desc)


def test_the_kernel_without_a_schedule_counts_in_64_bits_only_where_it_has_to(
    vulkan: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    desc = round_desc(TensorDesc("float16", (5, 7)))
    target = without(vulkan, float16=False, float64=False, int64=False)
    compile_function(_default.kernel(desc, target, False).build(), target.capabilities)
    monkeypatch.setattr(gpu, "_NARROW", 1)
    for feature, given in (("int64", r"offsets past 2\^30"), ("storage16", "float16")):
        with pytest.raises(
            Unsupported, match=rf"^ELEMENT_WISE_ROUND input_tensor: given {given} .* lacks {VULKAN_NAMES[feature]}\. Run"
        ):
            _default.kernel(desc, without(vulkan, **{feature: False}), False)
