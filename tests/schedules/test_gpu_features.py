"""Devices without a feature: a kernel compiles for them, or is refused with the name of the missing feature, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from drawn import budget, forced, of, plain, some_operators, spread
from support import diagonal_desc, round_desc, tensor

from tvmdml import Operator, TensorDataType, TensorDesc
from tvmdml.errors import Lacking, Unsupported
from tvmdml.library.scheduling import kernel_for
from tvmdml.proof.conformance import SEED
from tvmdml.schedules import gpu
from tvmdml.schedules.gpu import _default
from tvmdml.targets import Target
from tvmdml.targets.vulkan import VulkanTarget, compile_function
from tvmdml.targets.vulkan.capabilities import PROFILES

# The features to load and store elements; no kernel needs arithmetic on narrow numbers.
LACKING: dict[str, dict[str, Any]] = {
    "narrow arithmetic": {"int8": False, "int16": False, "float16": False, "nearest_even": ()},
    **{feature: {feature: False} for feature in ("storage8", "storage16", "float64")},
}
LACKING["all"] = {name: value for lacking in LACKING.values() for name, value in lacking.items()} | {"int64": False}
WORDS_ONLY = {"int64": False, "atomic64": False, "shared_atomic64": False}
SOME: dict[str, dict[str, Any]] = {
    "int64": WORDS_ONLY,
    **{one: {one: False} for one in ("float64", "float16", "storage8", "storage16")},
    "none": LACKING["all"] | WORDS_ONLY,
}
"""The features that a driver may lack, each alone, and all of them."""
LAYOUTS = ("packed", "padded", "transposed")


_WORDS = ("float32", "int32", "uint32")
_NEVER_OF_WORDS = {
    "CONVOLUTION_INTEGER", "DEQUANTIZE", "DYNAMIC_QUANTIZE_LINEAR", "ELEMENT_WISE_IF", "ELEMENT_WISE_IS_INFINITY",
    "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", "ELEMENT_WISE_QUANTIZE_LINEAR", "MATRIX_MULTIPLY_INTEGER", "QUANTIZE",
    "QUANTIZED_LINEAR_AVERAGE_POOLING", "QUANTIZED_LINEAR_CONVOLUTION", "QUANTIZED_LINEAR_MATRIX_MULTIPLY",
}  # fmt: skip
"""The operators with tensors of bytes or truths in all of their cases."""


def _types(desc: Operator) -> list[str]:
    return [tensor.data_type.tvm for _, tensor in desc.tensors() if tensor is not None]


def without(vulkan: Target, **lacking: Any) -> VulkanTarget:
    """The same device, but without some of its features."""
    assert isinstance(vulkan, VulkanTarget)
    return VulkanTarget(str(vulkan.info.index), vulkan.capabilities._replace(**lacking), vulkan.info)


def refused(desc: Operator, target: VulkanTarget) -> str:
    """The feature that a refusal names; nothing where the kernel compiles."""
    try:
        function = kernel_for(desc, target).build()
    except Unsupported as error:
        text = str(error)
        assert text.startswith(f"{desc.NAME} "), text
        assert f" on {target.name}; allowed: " in text, text
        assert text.endswith(". Run it on another device."), text
        return text.partition("the device lacks ")[2].partition(".")[0]
    compile_function(function, target.capabilities)
    return ""


@pytest.mark.full
@some_operators(10)
def test_a_kernel_is_refused_by_name_if_it_would_not_compile(
    vulkan: Target, name: str, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    rng = of(pytestconfig.getoption("--case-seed"), name)
    for served in spread(forced(name, vulkan, rng, 60), budget(name, 12, 3), rng):
        drawn = served[0]
        desc = drawn.case.desc.canonical()
        for lacking in LACKING:
            target = without(vulkan, **LACKING[lacking])
            with drawn._replace(widths={}).in_force():
                if not (feature := refused(desc, target)):
                    continue
                with monkeypatch.context() as patch:
                    patch.setattr(gpu, "_NEEDS", {})
                    patch.setattr(VulkanTarget, "lacking", lambda *_: "")
                    kernel, missed = kernel_for(desc, target), None
                    try:
                        compile_function(kernel.build(), target.capabilities)
                    except Lacking as error:
                        missed = error.feature
                if missed is None:  # refused by its types, it could do without the feature: all of its vectors are whole words
                    assert (kernel.name, dict(kernel.parameters)["lanes"] > 1) == ("rows", True), str(drawn)
                assert lacking == "all" or missed in (feature, None), str(drawn)


def test_narrow_elements_that_lie_in_whole_words_are_moved_without_their_feature(vulkan: Target) -> None:
    target = without(vulkan, **LACKING["all"])
    for data_type in (TensorDataType.UINT8, TensorDataType.FLOAT16):
        assert not refused(diagonal_desc(tensor(data_type, (40, 64)), 3, -1, 2), target)
        assert refused(diagonal_desc(tensor(data_type, (40, 63)), 3, -1, 2), target)


@pytest.mark.full(first=4)
@some_operators(10)
def test_words_do_for_integers_of_64_bits(vulkan: Target, name: str, pytestconfig: pytest.Config) -> None:
    target = without(vulkan, **WORDS_ONLY)
    rng = of(pytestconfig.getoption("--case-seed"), name)
    candidates = [drawn._replace(widths={"_NARROW": 1}) for drawn in forced(name, target, rng, 40)]
    said = [served[0].problem(SEED) for served in spread(candidates, budget(name, 6, 2), rng)]
    assert said
    assert not any(said), "\n".join(filter(None, said))


@pytest.mark.full
@pytest.mark.parametrize("feature", SOME)
@some_operators(10)
def test_what_a_device_has_without_a_feature_is_right(vulkan: Target, name: str, feature: str, pytestconfig: pytest.Config) -> None:
    target = without(vulkan, **SOME[feature])
    rng = of(pytestconfig.getoption("--case-seed"), name, feature)
    able = [drawn for drawn in plain(name, target) if all(map(target.has, filter(None, map(_need, _types(drawn.case.desc)))))]
    said = [served[0].problem(SEED) for served in spread(able, 1, rng)]
    assert not any(said), "\n".join(filter(None, said))
    assert said or name in _NEVER_OF_WORDS


def _need(dtype: str) -> str:
    return gpu._NEEDS.get(dtype.removeprefix("u").replace("bool", "int8"), ("", ""))[0]


@pytest.mark.full(first=8)
@some_operators(40)
def test_every_device_has_float32_and_integers_of_32_bits(name: str, pytestconfig: pytest.Config) -> None:
    target = VulkanTarget("core", PROFILES["core"]._replace(max_buffers=16), None)
    rng = of(pytestconfig.getoption("--case-seed"), name)
    words = [drawn for drawn in plain(name, target) if all(kind in _WORDS for kind in _types(drawn.case.desc))]
    for served in spread(words, budget(name, 6, 2), rng):
        assert not refused(served[0].case.desc.canonical(), target), str(served[0])
    assert words or name in _NEVER_OF_WORDS


def test_a_refusal_names_the_first_tensor_of_the_type(vulkan: Target) -> None:
    x = tensor("uint8", (5, 7))
    for desc, name in ((diagonal_desc(x, 3, 0, 1), "input_tensor"), (diagonal_desc(x, 3, 0, 1, has_input=False), "output_tensor")):
        with pytest.raises(Unsupported, match=rf"^DIAGONAL_MATRIX1 {name}: given uint8 on .* lacks storageBuffer8BitAccess\. Run"):
            kernel_for(desc, without(vulkan, storage8=False))
        with pytest.raises(Unsupported, match=r"lacks storageBuffer8BitAccess\. Compile it for vulkan:desktop\.$"):
            kernel_for(desc, VulkanTarget("core", PROFILES["core"], None))
    with pytest.raises(Unsupported, match=r"lacks shaderFloat64\. Run it on another device\.$"):  # no set of features has it
        kernel_for(round_desc(tensor("float64", (5, 7))), VulkanTarget("desktop", PROFILES["desktop"], None)).build()


def test_the_kernel_without_a_schedule_needs_what_its_elements_need(vulkan: Target) -> None:
    desc = round_desc(TensorDesc("float16", (5, 7)))
    target = without(vulkan, float16=False, float64=False, int64=False)
    compile_function(_default.kernel(desc, target, ()).build(), target.capabilities)
    with pytest.raises(
        Unsupported, match=r"^ELEMENT_WISE_ROUND input_tensor: given float16 .* lacks storageBuffer16BitAccess\. Run"
    ):
        _default.kernel(desc, without(vulkan, storage16=False), ())
