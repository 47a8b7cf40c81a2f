"""Machines that are not present: the meaning of a target's name on other machines, and which kernels run on which machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tvmdml import InvalidArgument, targets
from tvmdml.targets.cpu import CpuTarget, elf, host
from tvmdml.targets.cuda import CudaTarget
from tvmdml.targets.vulkan.capabilities import PROFILES, Capabilities


def _processor(text: str) -> host.Processor:
    return host.parse(text, here=False)


@pytest.mark.parametrize(
    ("one", "other", "runs"),
    [
        ("x86-64-v3", "x86-64-v3", True),
        ("x86-64-v3", "x86-64", True),
        ("x86-64-v3", "x86-64-v4", False),
        ("x86-64-v4+gfni", "x86-64-v4", True),
        ("x86-64-v4", "x86-64-v4+gfni", False),
        ("x86-64-v4+avx512vbmi+gfni", "x86-64-v3", True),
        ("x86-64-v4", "aarch64", False),
        ("aarch64+sve", "aarch64", True),
        ("aarch64", "x86-64", False),
    ],
)
def test_what_runs_on_which_processor(one: str, other: str, runs: bool) -> None:
    assert _processor(one).runs(_processor(other)) is runs
    words = set(_processor(one).words), set(_processor(other).words)
    assert not runs or words[0] >= words[1]


@pytest.mark.parametrize("text", ["x86-64-v5", "aarch64+gfni", "x86-64-v4+sve", "x86-64-v4+", "mips", "native"])
def test_processors_that_there_are_none_of(text: str) -> None:
    assert host.known(text) is None
    with pytest.raises(InvalidArgument, match="target cpu: given"):
        targets.elsewhere(f"cpu:{text}")


def test_the_triple_is_the_processors_own() -> None:
    assert _processor("aarch64").triple.startswith("aarch64-")
    assert _processor("x86-64-v2").triple.startswith("x86_64-")
    assert (_processor("aarch64").cpu, _processor("x86-64-v2").cpu) == ("generic", "x86-64-v2")


def test_a_processors_relatives_are_in_order() -> None:
    codes = ["cpu:x86-64", "cpu:x86-64-v4", "cuda sm_90", "cpu:aarch64", "cpu:x86-64-v2", "cpu:nonsense", "cpu:"]
    v3 = CpuTarget(_processor("x86-64-v3"))
    assert [relative.code for relative in v3.relatives(codes)] == ["cpu:x86-64-v2", "cpu:x86-64"]


@pytest.mark.parametrize(("threads", "tasks"), [(1, 1), (5, 4), (64, 64), (65, 64), (1024, 256)])
def test_threads_are_rounded_down(threads: int, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    v3 = CpuTarget(_processor("x86-64-v3"))
    assert [relative.tasks() for relative in v3.relatives(["cpu:x86-64"])] == [tasks]


@pytest.mark.parametrize(
    ("here", "packed", "best"),
    [
        ("sm_90", ["sm_80", "sm_90", "sm_100"], ["sm_90", "sm_80"]),
        ("sm_89", ["sm_80", "sm_86", "sm_90"], ["sm_86", "sm_80"]),
        ("sm_75", ["sm_80"], []),
        ("sm_120", ["sm_90"], ["sm_90"]),  # from its PTX
    ],
)
def test_a_gpus_relatives(here: str, packed: list[str], best: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    target = CudaTarget((here,), SimpleNamespace(index=0, arch=here))  # type: ignore[arg-type]
    monkeypatch.setattr("tvmdml.targets.cuda._relative", lambda name, info: CudaTarget((name,), info))
    relatives = list(target.relatives([f"cuda {name}" for name in packed] + ["cpu:x86-64"]))
    assert [relative.architectures for relative in relatives] == [(name,) for name in best]
    assert {relative.name for relative in relatives} <= {"cuda:0"}


def test_architectures_are_their_own_only_relatives() -> None:
    target = CudaTarget(("sm_80", "sm_90"))
    assert [one.code for one in target.relatives(["cuda sm_90", "cuda sm_75"])] == ["cuda sm_90"]
    assert [one.code for one in targets.elsewhere("cuda:sm_80,sm_90")] == ["cuda sm_80", "cuda sm_90"]


@pytest.mark.parametrize("name", PROFILES)
def test_features_are_read_as_they_are_written(name: str) -> None:
    profile = PROFILES[name]
    assert Capabilities.parse(profile.text()) == profile
    assert profile.runs(profile)
    assert profile.runs(PROFILES["core"])


@pytest.mark.parametrize(
    ("more", "runs"),
    [
        ({"float64": True}, False),
        ({"subgroup": ("basic",)}, False),
        ({"max_threads": 2048}, False),
        ({"max_group_size": (1024, 1024, 1024)}, False),
        ({"max_group_size": (512, 512, 64)}, True),
        ({"int64": False}, True),
        ({"nearest_even": (16, 32, 64)}, False),
        ({"keep_special": ()}, True),
        ({"subgroup_size": 64}, True),  # no subgroup operations are used
    ],
)
def test_what_runs_on_which_device(more: dict[str, object], runs: bool) -> None:
    desktop = PROFILES["desktop"]
    assert desktop.runs(desktop._replace(**more)) is runs


def test_subgroups_have_to_be_as_large() -> None:
    of_32 = PROFILES["desktop"]._replace(subgroup=("basic", "ballot"))
    assert of_32._replace(subgroup=("basic", "ballot", "vote")).runs(of_32)
    assert not of_32._replace(subgroup_size=64).runs(of_32)


@pytest.mark.parametrize(
    "text", ["int8=3", "nothing", "max_threads", "subgroup_size=x", "subgroup_size=", "nearest_even=a", "=", "int8 ="]
)
def test_features_that_nobody_wrote(text: str) -> None:
    with pytest.raises(ValueError, match=r"capability|literal"):
        Capabilities.parse(text)


def test_libraries_are_looked_at_before_they_are_loaded() -> None:
    header = bytearray(64)
    assert elf.problem(b"", "x86_64") == elf.problem(bytes(header), "x86_64") == "it is not an ELF file"
    header[:5] = b"\x7fELF\x02"
    header[5], header[16], header[18] = 1, 3, 62
    assert elf.problem(bytes(header), "x86_64") == ""
    assert elf.problem(bytes(header), "aarch64") == "it is not for aarch64"
    header[32] = 65  # the segments begin past the end of the file
    assert elf.problem(bytes(header), "x86_64") == "it is truncated"
    header[16] = 2
    assert elf.problem(bytes(header), "x86_64") == "it is not a 64-bit shared library"
