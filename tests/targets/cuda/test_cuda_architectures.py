"""NVIDIA's architectures: their names, what each of them has, and which code a device runs."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import kernels
import pytest
from cuda_compilers import need_disassembler
from generators import CudaMachine

from tvmdml.errors import CompileError, InvalidArgument
from tvmdml.targets import Target
from tvmdml.targets.cuda import architectures, compilers, prelude

# -- Features -------------------------------------------------------------------------------------------------------------

INSTRUCTIONS = {
    "async_copies": (
        r"\bLDGSTS",
        "int *x",
        "__shared__ int4 y[9]; copy_bytes_async<16>(y, x, true); await_copies<0>(); *x = y[*x].x;",
    ),
    "large_tiles": (
        r"\bHMMA\.16816|\bIMMA\.16832",
        "uint32_t *x, float *y, int *z",
        "multiply_tiles_float16(y, *x, 1, 2, 3, 4, 5); multiply_tiles_uint8_int8(z, *x, 1, 2, 3, 4, 5);",
    ),
    "packed_halves": (r"\bF2FP\S*PACK_AB", "uint32_t *x, float *y", "*x = pack_halves(y[0], y[1]);"),
    "packed_floats": (r"\bFFMA2", "float *x", "multiply_add_pair(x, x[2], x[3], x[4]);"),
}  # fmt: skip
"""What each feature is in machine code, and a kernel that has it where the architecture does: its parameters and its body."""


def has(text: str, form: str, pattern: str) -> bool:
    """Whether all instructions are in the machine code for an architecture; not if the assembler refuses them."""
    try:
        found = set(re.findall(pattern, compilers.sass(compilers._compiler()[1](text, form))))
    except CompileError as error:
        if "architecture" in str(error):
            raise
        return False
    return len(found) == pattern.count("|") + 1


@pytest.mark.full
@pytest.mark.parametrize("feature", architectures.FEATURES)
@pytest.mark.usefixtures("any_compiler")
def test_the_table_of_features_is_that_of_the_assembler(feature: str) -> None:
    """What a compiler supports has a feature if its instructions become the device's own, and kernels use them exactly there."""
    need_disassembler()
    pattern, parameters, body = INSTRUCTIONS[feature]
    text = prelude.text(prelude.needed(re.findall(r"\w+", body)))
    text += f'extern "C" __global__ void __launch_bounds__(32) kernel({parameters}) {{ {body} }}\n'
    forced = text.replace(architectures.condition(feature), "1")
    assert forced != text
    for name in compilers.supported():
        wanted = architectures.has(name, feature)
        assert has(text, name, pattern) == wanted, name
        for form in (name, *([f"{name}a"] if architectures.number(name) >= 90 else [])):
            assert has(forced, form, pattern) == wanted, form


def test_conditions_come_from_the_table() -> None:
    here = Path(architectures.__file__)
    assert [path.name for path in here.parent.glob("*.py") if "__CUDA_ARCH__" in path.read_text()] == [here.name]


@pytest.mark.full
@pytest.mark.parametrize("number", [75, 80, 100])
def test_every_architecture_does_the_same_with_what_it_has(cuda: Target, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = CudaMachine(cuda)
    if "emulator" not in machine.device.info.name:
        pytest.skip("a GPU has one architecture")
    monkeypatch.setenv("TVMDML_EMULATED_ARCH", str(number))
    machine.form = f"sm_{number}"
    machine.give(
        {"copies": kernels.copies(), "pairs": kernels.pairs()} | {f"{a} {b}": kernels.tiles(a, b) for a, b in kernels.TILES}
    )


# -- Names ----------------------------------------------------------------------------------------------------------------

_numbers = st.sampled_from(sorted(architectures._KNOWN)) | st.integers(architectures.OLDEST, 150)


def test_a_list_of_architectures_is_read() -> None:
    assert architectures.parse("sm_90") == ("sm_90",)
    assert architectures.parse("sm_100, sm_80,sm_90,sm_80") == ("sm_80", "sm_90", "sm_100")
    for text in (
        "",
        "sm_",
        "sm_9",
        "sm_74",
        "sm_090",
        "sm_90a",
        "90",
        "sm_80,",
        "compute_90",
        "sm_1000",
        "sm_" + chr(0xFF19) + "0",
        "SM_90",
        "sm_90;",
    ):
        with pytest.raises(
            InvalidArgument, match=r"^target architecture: given .*; allowed: sm_75 and newer, such as sm_75, sm_80"
        ):
            architectures.parse(text)


@hypothesis.given(st.lists(_numbers, min_size=1, max_size=5))
def test_lists_of_architectures_are_sorted_and_stay_so(numbers: list[int]) -> None:
    found = architectures.parse(",".join(f"sm_{number}" for number in numbers))
    assert [architectures.number(name) for name in found] == sorted(set(numbers))
    assert architectures.parse(",".join(found)) == found
    known = architectures.of(found)
    assert known == architectures.of(found[-1:])
    assert known in architectures._KNOWN.values()


def test_what_is_not_known_is_taken_for_the_newest_before() -> None:
    assert architectures.of(["sm_95"]) == architectures.of(["sm_90"])
    assert architectures.of(["sm_150"]) == architectures.of(["sm_121"])
    assert architectures.of(["sm_70"]) == architectures.of(["sm_75"])  # refused elsewhere, when it is run


@pytest.mark.parametrize(
    ("forms", "device", "expected"),
    [
        ("sm_80 sm_86 compute_86", "sm_86", "sm_86"),
        ("sm_80 sm_86 compute_86", "sm_89", "sm_86"),
        ("sm_80 sm_86 compute_86", "sm_80", "sm_80"),
        ("sm_80 sm_86 compute_86", "sm_90", "compute_86"),
        ("sm_80 sm_86 compute_86", "sm_87", "compute_86"),  # embedded architectures
        ("sm_87 compute_87", "sm_87", "sm_87"),
        ("sm_87 compute_87", "sm_89", "compute_87"),
        ("sm_90 compute_90", "sm_89", None),
        ("sm_100 compute_100", "sm_103", "sm_100"),
        ("sm_100 compute_100", "sm_120", "compute_100"),
        ("sm_120 compute_120", "sm_121", "sm_120"),
        ("", "sm_90", None),
    ],
)
def test_the_form_that_runs_best_is_taken(forms: str, device: str, expected: str | None) -> None:
    assert architectures.best(forms.split(), device) == expected


@hypothesis.given(st.lists(_numbers, min_size=1, max_size=4), _numbers)
def test_a_device_has_what_is_its_own_else_what_is_older(numbers: list[int], device: int) -> None:
    forms = [*(f"sm_{number}" for number in numbers), f"compute_{max(numbers)}"]
    found = architectures.best(forms, f"sm_{device}")
    if device in numbers:
        assert found == f"sm_{device}"
    elif found is None:
        assert max(numbers) > device
        assert not any(
            number // 10 == device // 10 and number <= device and number not in (87, 88) for number in numbers
        ) or device in (87, 88)
    else:
        assert architectures.number(found) <= device
        assert found.startswith("compute") or architectures.number(found) // 10 == device // 10
