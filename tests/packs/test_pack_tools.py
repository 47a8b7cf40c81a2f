"""Packs inspected, changed and verified; their errors are found."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import python
from support import IN_PLACE, assert_same_bits, diagonal_desc, nonzero_desc, round_desc, tensor, top_k_desc

import tvmdml
from tvmdml import packs, targets
from tvmdml.errors import DeviceError, InvalidArgument, PackError
from tvmdml.library import format as container
from tvmdml.library.format import Contents, Part
from tvmdml.library.records import KernelRecord, OperationRecord
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators._trial import any_values
from tvmdml.packs import Pack, change, look, verify
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3")
ROW = tensor("float32", (40,))
CUT, AWAY = (round_desc(ROW, mode) for mode in ("toward_zero", "toward_infinity"))
"""Kernels that take the same arguments."""
WANTED = (
    Wanted(CUT),
    Wanted(AWAY),
    Wanted(round_desc(tensor("float16", (7, 33), "padded"), layout="padded")),
    Wanted(round_desc(tensor("float16", (7, 33), "padded"), layout="padded"), IN_PLACE),
    Wanted(top_k_desc(tensor("float32", (5, 70), "transposed"), 1, 4, "decreasing", layout="shuffled")),
    Wanted(nonzero_desc(tensor("int8", (40, 50), "broadcast inner"), layout="padded")),
    Wanted(nonzero_desc(tensor("float32", (70, 1000)))),
    Wanted(diagonal_desc(tensor("uint16", (6, 9), "spread"), 3, -1, 2, layout="padded")),
    Wanted(diagonal_desc(tensor("float32", (6, 9)), 3.0, 0, 1, has_input=False)),
)

HERE = targets.resolve("cpu")
assert isinstance(HERE, CpuTarget)
pytestmark = pytest.mark.skipif(not HERE.processor.has("avx2"), reason="packs here are for x86-64-v3")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds packs; the same one only once."""
    folder = tmp_path_factory.mktemp("packs")
    built: dict[str, Path] = {}

    def of(names: Sequence[str], wanted: Sequence[Wanted] = WANTED, **knobs: dict[str, Any]) -> Path:
        spec = Spec(tuple(names), tuple(wanted), knobs)
        if repr(spec) not in built:
            path = folder / f"{len(built)}.tvmdml"
            packs.build(spec, path, jobs=1)
            built[repr(spec)] = path
        return built[repr(spec)]

    return of


@pytest.fixture(scope="session")
def cpu_pack(build: Callable[..., Path]) -> Path:
    return build(LEVELS)


@pytest.fixture(scope="session")
def mixed_pack(build: Callable[..., Path], vulkan: Target) -> Path:
    """For a processor, and for a device."""
    return build(("cpu:x86-64-v2", "vulkan:desktop"))


def contents_of(path: Path) -> Contents:
    pack = Pack(path)
    try:
        return pack.contents()
    finally:
        pack.close()


def rewritten(path: Path, output: Path, **changes: Any) -> Path:
    """The pack with something put in its place, by members of ``Contents``, or functions of what was there."""
    contents = contents_of(path)
    container.write(output, contents._replace(**{n: v(getattr(contents, n)) if callable(v) else v for n, v in changes.items()}))
    return output


def relaunched(
    which: Callable[[OperationRecord], bool], **changes: Any
) -> Callable[[Sequence[OperationRecord]], list[OperationRecord]]:
    """Operations, of which some are launched otherwise."""

    def of(operation: OperationRecord) -> OperationRecord:
        if not which(operation):
            return operation
        new = [launch._replace(**{n: v(getattr(launch, n)) for n, v in changes.items()}) for launch in operation.launches]
        return operation._replace(launches=tuple(new))

    return lambda operations: [of(operation) for operation in operations]


def is_round(record: KernelRecord | OperationRecord) -> bool:
    return record.operator == "element_wise_round" if isinstance(record, KernelRecord) else "ROUND" in record.line["operator"]


def differences(one: Path, other: Path) -> list[str]:
    return look.diff(Pack(one), Pack(other))


# -- Looking ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_row_says_what_an_operation_is(mixed_pack: Path) -> None:
    pack = Pack(mixed_pack)
    rows = look.rows(pack)
    assert len(rows) == 2 * len(WANTED) == len(pack.operations())
    top_k, there = (row for row in rows if row["operator"] == "TOP_K1")
    assert top_k["tensors"] == "float32[5, 70] strides [1, 5] -> float32[5, 4] strides [1, 6], uint32[5, 4] strides [1, 6]"
    assert top_k["attributes"] == "Axis=1, K=4, AxisDirection=DECREASING"
    assert (top_k["target"], there["target"]) == ("cpu:x86-64-v2", "vulkan:desktop")
    assert [row["attributes"] for row in rows if "in place" in row["attributes"]] == ["RoundingMode=TOWARD_ZERO, in place"] * 2
    assert "-> float32[6, 9]" in {row["tensors"] for row in rows}


@pytest.mark.full
def test_bytes_are_those_of_the_parts(mixed_pack: Path) -> None:
    pack = Pack(mixed_pack)
    kernels = {kernel.key: kernel for kernel in pack.kernels()}
    for row, operation in zip(look.rows(pack), sorted_as_rows(pack), strict=True):
        used = {launch.kernel for launch in operation.launches}
        assert row["kernels"] == len(used)
        stored = [pack.part(kernels[key].part).stored for key in used]
        if row["target"] == "vulkan:desktop":
            assert row["bytes"] == sum(stored)
        else:
            assert 0 < row["bytes"] <= sum(stored)
    library = next(kernel.part for kernel in kernels.values() if is_round(kernel) and kernel.target.startswith("cpu"))
    rounds = [row for row in look.rows(pack) if "ROUND" in row["operator"] and row["target"].startswith("cpu")]
    assert sum(row["bytes"] for row in rounds) == pytest.approx(pack.part(library).stored, abs=len(rounds))


def sorted_as_rows(pack: Pack) -> list[OperationRecord]:
    return sorted(pack.operations(), key=lambda one: (look.named(pack, one.target), look.shown(one), one.key))


@pytest.mark.full
def test_an_operator_that_is_not_known_is_shown_all_the_same(cpu_pack: Path, tmp_path: Path) -> None:
    line = {"operator": "JOIN9", "InputTensors": ["int8[2]", "int8[3]"], "OutputTensor": "int8[5]", "Axis": 0}
    path = rewritten(cpu_pack, tmp_path / "x", operations=lambda operations: [operations[0]._replace(line=line)])
    (row,) = look.rows(Pack(path))
    assert (row["operator"], row["tensors"], row["attributes"]) == ("JOIN9", "int8[2], int8[3] -> int8[5]", "Axis=0")


@pytest.mark.full
def test_a_summary_counts(mixed_pack: Path) -> None:
    pack = Pack(mixed_pack)
    summary = look.summary(pack)
    assert summary["bytes"] == mixed_pack.stat().st_size
    assert summary["targets"] == ["cpu:x86-64-v2", "vulkan:desktop"]
    assert (summary["kernels"], summary["parts"]) == (len(pack.kernels()), pack.part_count)
    assert summary["producer"]["tvmdml"] == tvmdml.__version__
    assert (summary["knobs"], summary["signers"]) == ({}, [])


@pytest.mark.full
def test_what_only_one_pack_has_is_told(build: Callable[..., Path], cpu_pack: Path) -> None:
    less = build(LEVELS[:1], WANTED[:1])
    found = differences(less, cpu_pack)
    assert not any(line.startswith(f"only in {less}") for line in found)
    only = [line.removeprefix(f"only in {cpu_pack}: ") for line in found if line.startswith(f"only in {cpu_pack}: ")]
    assert f"target {LEVELS[1]} ({LEVELS[1]})" in only
    text = "ELEMENT_WISE_ROUND float32[40] -> float32[40] RoundingMode=TOWARD_INFINITY for cpu:x86-64-v2"
    assert text in only
    assert sum(line.startswith("kernel ") for line in only) == len(Pack(cpu_pack).kernels()) - len(Pack(less).kernels())
    for line in found:
        assert line.startswith(("only in", "different code: kernel element_wise_round/"))
    turned = differences(cpu_pack, less)
    assert sorted(line for line in turned if "only" in line) == sorted(line for line in found if "only" in line)


@pytest.mark.full
def test_other_launches_knobs_producers_and_code_are_told(cpu_pack: Path, tmp_path: Path) -> None:
    other = tmp_path / "x"
    rewritten(cpu_pack, other, operations=relaunched(is_round, scalars=lambda scalars: (*scalars, 1)))
    assert len(found := differences(cpu_pack, other)) == 8
    assert all(line.startswith("launched differently: ELEMENT_WISE_ROUND ") for line in found)
    head = contents_of(cpu_pack).head
    changed_head = {**head, "knobs": {"top_k": {"algorithm": "sort"}}, "producer": {**head["producer"], "tvmdml": "9"}}
    rewritten(cpu_pack, other, head=changed_head)
    assert differences(cpu_pack, other) == [
        f"producer tvmdml: {tvmdml.__version__} in {cpu_pack}, 9 in {other}",
        f"knobs top_k: none in {cpu_pack}, {{'algorithm': 'sort'}} in {other}",
    ]
    rewritten(cpu_pack, other, head={**head, "sources": {**head["sources"], "cpu top_k": "0123"}})
    (told,) = differences(cpu_pack, other)
    assert told == f"schedules for cpu top_k: {head['sources']['cpu top_k']} in {cpu_pack}, 0123 in {other}"
    top_k = next(k for k in contents_of(cpu_pack).kernels if k.operator == "top_k")

    def changed(parts: Sequence[Part]) -> list[Part]:
        return [part._replace(content=part.content + b"\0") if i == top_k.part else part for i, part in enumerate(parts)]

    rewritten(cpu_pack, other, parts=changed)
    found = differences(cpu_pack, other)
    assert found
    assert all(line.startswith("different code: kernel top_k/") and f"for {top_k.target} (" in line for line in found)


# -- Changing -----------------------------------------------------------------------------------------------------


def test_what_was_split_and_merged_is_what_was_there(mixed_pack: Path, tmp_path: Path) -> None:
    assert differences(mixed_pack, mixed_pack) == []
    path = tmp_path / "own"
    path.write_bytes(mixed_pack.read_bytes())
    change.split(path, [" VULKAN "], path)  # it may take the place of the whole
    assert look.summary(Pack(path))["targets"] == ["vulkan:desktop"]
    halves = [tmp_path / "cpu", tmp_path / "vulkan"]
    change.split(mixed_pack, ["cpu"], halves[0])
    change.split(mixed_pack, ["vulkan:desktop"], halves[1])
    assert look.summary(Pack(halves[0]))["targets"] == ["cpu:x86-64-v2"]
    assert {record.target for record in Pack(halves[0]).records()} == {"cpu:x86-64-v2"}
    assert {part.suffix for part in contents_of(halves[1]).parts} == {".spirv"}
    assert all(name.startswith("cpu ") for name in Pack(halves[0]).head["sources"])
    change.merge(halves[::-1], tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == mixed_pack.read_bytes()
    assert sum(half.stat().st_size for half in halves) < 1.2 * mixed_pack.stat().st_size


def test_merged_packs_serve_what_each_served(build: Callable[..., Path], tmp_path: Path, forget: None) -> None:
    one, other = build(LEVELS[:1], WANTED[:1]), build(LEVELS[:1], WANTED[1:4])
    change.merge([one, other], tmp_path / "x")
    merged = Pack(tmp_path / "x")
    assert {o.key for o in merged.operations()} == {o.key for pack in (one, other) for o in Pack(pack).operations()}
    assert merged.part_count == Pack(one).part_count + Pack(other).part_count
    x = np.array([1.5, -2.5] * 20, np.float32)
    with packs.load_pack(tmp_path / "x", strict=True):
        for desc, expected in ((CUT, np.trunc(x)), (AWAY, np.copysign(np.floor(np.abs(x) + 0.5), x))):
            y = np.empty_like(x)
            tvmdml.compile(desc, "cpu")(x, y)
            assert_same_bits(y, expected.astype(np.float32))


def test_the_first_pack_that_has_it_is_taken_from(cpu_pack: Path, tmp_path: Path) -> None:
    marked = rewritten(cpu_pack, tmp_path / "marked", parts=lambda parts: [Part(p.suffix, p.content + b"marked") for p in parts])
    for order, is_marked in (([marked, cpu_pack], True), ([cpu_pack, marked], False)):
        change.merge(order, tmp_path / "x")
        assert {part.content.endswith(b"marked") for part in contents_of(tmp_path / "x").parts} == {is_marked}


def test_parts_that_nobody_wants_are_left_behind(cpu_pack: Path, tmp_path: Path) -> None:
    waste = rewritten(cpu_pack, tmp_path / "waste", parts=lambda parts: [*parts, Part(".so", b"unused")])
    assert differences(cpu_pack, waste) == []
    change.merge([waste], tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == cpu_pack.read_bytes()


def test_packs_that_do_not_fit_together_are_not_merged(cpu_pack: Path, tmp_path: Path) -> None:
    head = contents_of(cpu_pack).head
    with pytest.raises(InvalidArgument, match="no packs"):
        change.merge([], tmp_path / "x")
    other = rewritten(cpu_pack, tmp_path / "other", head={**head, "sources": {**head["sources"], "cpu top_k": "0123"}})
    with pytest.raises(
        PackError, match=r"other: given kernels for cpu top_k that were built from other schedules than those of .* again"
    ):
        change.merge([cpu_pack, other], tmp_path / "x")
    other = rewritten(cpu_pack, tmp_path / "other", head={**head, "knobs": {"top_k": {"algorithm": "sort"}}})
    with pytest.raises(PackError, match=r"other: given knobs {'top_k'.*; allowed: the same"):
        change.merge([cpu_pack, other], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_versions_that_differ_are_all_named(cpu_pack: Path, tmp_path: Path) -> None:
    head = contents_of(cpu_pack).head
    other = rewritten(cpu_pack, tmp_path / "other", head={**head, "producer": {**head["producer"], "apache-tvm": "9"}})
    change.merge([cpu_pack, other, cpu_pack], tmp_path / "x")
    assert Pack(tmp_path / "x").head["producer"] == {**head["producer"], "apache-tvm": f"{head['producer']['apache-tvm']}, 9"}


def test_a_target_that_is_not_there_is_not_split_off(cpu_pack: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="target: given 'cuda'; allowed: cpu, cpu:x86-64-v2, cpu:x86-64-v3"):
        change.split(cpu_pack, ["cpu:x86-64-v2", "cuda"], tmp_path / "x")
    with pytest.raises(InvalidArgument, match="no targets"):
        change.split(cpu_pack, [], tmp_path / "x")
    assert not (tmp_path / "x").exists()


# -- Verifying ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_what_was_built_is_right_everywhere(build: Callable[..., Path], target: Target) -> None:
    seen: list[tuple[int, int]] = []
    path = build([target.spec_name])
    report = verify.verify(path, progress=lambda done, total: seen.append((done, total)))
    assert report.ok, report.text()
    assert (report.ran, report.operations, report.not_run) == (len(WANTED), len(WANTED), ())
    assert report.launches >= len(WANTED)
    assert seen[-1] == (len(WANTED), len(WANTED))


_VERIFY_WITHOUT_TVM = """
import sys
sys.modules["tvm"] = None  # as if it were not installed
from tvmdml.packs import verify
report = verify.verify(sys.argv[1])
print(report.text())
assert report.ok and report.ran == report.operations
"""


@pytest.mark.full
def test_no_compiler_is_needed(cpu_pack: Path) -> None:
    python(_VERIFY_WITHOUT_TVM, cpu_pack, may_complain=True)


@pytest.mark.full
def test_all_levels_and_profiles_that_run_here_are_run(cpu_pack: Path, mixed_pack: Path) -> None:
    assert verify.verify(cpu_pack).ran == verify.verify(mixed_pack).ran == 2 * len(WANTED)
    report = verify.verify(cpu_pack, device="cpu:x86-64-v2")
    assert (report.ran, len(report.not_run)) == (len(WANTED), len(WANTED))
    assert {finding.said for finding in report.not_run} == {"another target was requested"}
    assert verify.verify(mixed_pack, device="vulkan:desktop").ran == verify.verify(mixed_pack, device="vulkan").ran == len(WANTED)
    assert verify.verify(mixed_pack, device="cpu").ran == len(WANTED)
    with pytest.raises(InvalidArgument, match="verify seed: given -1"):
        verify.verify(cpu_pack, seed=-1)
    with pytest.raises(InvalidArgument, match=r"^device: given 'abacus'"):
        verify.verify(mixed_pack, device="abacus")


def test_every_way_on_more_threads_is_run(build: Callable[..., Path]) -> None:
    report = verify.verify(build(LEVELS[:1], [Wanted(round_desc(tensor("float32", (1 << 19,))))]))
    assert (report.ran, report.ok) == (1, True)
    assert report.launches > 1


def test_knobs_decide_as_they_did(build: Callable[..., Path]) -> None:
    path = build(LEVELS[:1], WANTED[4:5], top_k={"algorithm": "sort"})
    assert verify.verify(path).ok
    assert {k.key for k in Pack(path).kernels()} != {k.key for k in Pack(build(LEVELS[:1], WANTED[4:5])).kernels()}


def exchanged(path: Path, output: Path, machine: Target) -> Path:
    """The pack with the code of two kernels, which take the same arguments, in each other's place."""
    contents = contents_of(path)
    parts = list(contents.parts)
    units: dict[int, dict[str, bytes]] = {}
    for desc, other in ((CUT, AWAY), (AWAY, CUT)):
        kernel = kernel_for(desc, next(variant for _, variant in machine.variants()))
        mine = next(k for k in contents.kernels if k.parameters == kernel.parameters and k.target == machine.code)
        function = kernel_for(other, next(variant for _, variant in machine.variants())).build()
        units.setdefault(mine.part, {})[mine.symbol] = machine.unit(function, mine.symbol)
    for number, found in units.items():
        parts[number] = Part(parts[number].suffix, machine.join(found) if machine.joins else next(iter(found.values())))
    container.write(output, contents._replace(parts=parts))
    return output


@pytest.mark.full(first=1)
def test_exchanged_code_is_found(build: Callable[..., Path], target: Target, tmp_path: Path) -> None:
    (machine,) = targets.elsewhere(target.spec_name)
    path = exchanged(build([target.spec_name], WANTED[:2]), tmp_path / "x", machine)
    assert differences(path, build([target.spec_name], WANTED[:2]))
    report = verify.verify(path, seed=3)
    assert (report.ok, report.ran) == (False, 2)
    assert {finding.about for finding in report.failed} == {
        f"ELEMENT_WISE_ROUND float32[40] -> float32[40] RoundingMode={mode} for {machine.name}"
        for mode in ("TOWARD_ZERO", "TOWARD_INFINITY")
    }
    assert all("output_tensor: " in finding.said and "elements differ" in finding.said for finding in report.failed)
    assert report.text().count("WRONG: ") == 2
    assert report == verify.verify(path, seed=3)
    assert report.failed != verify.verify(path).failed  # other inputs give other differences


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "scalars": ({"scalars": lambda some: (*some[:-1], some[-1] + 1)}, "its launch is kernel .* and the schedules choose"),
    "temporaries": ({"temporaries": lambda some: (*some, ("uint8", 7))}, r"\('uint8', 7\).* schedules choose kernel .*\[\]"),
    "threads": ({"threads": lambda threads: threads + 1}, "on 2 threads .* on 1 threads"),
    "kernel": ({"kernel": lambda key: bytes(16)}, f"its kernel {'00' * 16} is not in the pack"),
}


@pytest.mark.parametrize("lie", LIES)
def test_launches_that_lie_are_found_before_anything_is_run(
    cpu_pack: Path, tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, said = LIES[lie]
    path = rewritten(cpu_pack, tmp_path / "x", operations=relaunched(is_round, **changes))
    monkeypatch.setattr(CpuTarget, "open", None)
    report = verify.verify(path)
    assert not report.ok
    assert (report.ran, report.launches) == (0, 0)
    assert len(report.failed) == 8
    for finding in report.failed:
        assert finding.about.startswith("ELEMENT_WISE_ROUND ")
        assert re.search(said, finding.said)


def test_a_launch_of_another_targets_kernel_is_found(cpu_pack: Path, tmp_path: Path) -> None:
    of_other = {k._replace(target=LEVELS[0]).key: k.key for k in contents_of(cpu_pack).kernels if k.target == LEVELS[1]}
    lie = relaunched(lambda one: one.target == LEVELS[0], kernel=lambda key: of_other.get(key, key))
    report = verify.verify(rewritten(cpu_pack, tmp_path / "x", operations=lie))
    assert report.ran == 0
    assert report.failed
    assert all(finding.said.endswith(f"its kernel is for {LEVELS[1]}") for finding in report.failed)


def test_a_kernel_that_is_not_where_it_should_be_is_found(mixed_pack: Path, tmp_path: Path) -> None:
    """In another library, or in a device's program."""
    contents = contents_of(mixed_pack)
    places = {contents.parts[kernel.part].suffix: kernel.part for kernel in contents.kernels if not is_round(kernel)}
    here = [kernel for kernel in contents.kernels if kernel.target.startswith("cpu") and is_round(kernel)]
    for part, said in ((places[".so"], "its library has no tvmdml_"), (places[".spirv"], "its code is a part of type '.spirv'")):
        moved = [kernel._replace(part=part) if kernel in here else kernel for kernel in contents.kernels]
        report = verify.verify(rewritten(mixed_pack, tmp_path / "x", kernels=moved))
        assert report.ran == 0
        assert len(report.failed) == len(here)
        assert all(finding.said.startswith(said) for finding in report.failed)


def test_records_without_a_target_or_a_launch_are_found(cpu_pack: Path, tmp_path: Path) -> None:
    head = contents_of(cpu_pack).head
    path = rewritten(cpu_pack, tmp_path / "x", head={**head, "targets": {LEVELS[0]: LEVELS[0]}})
    assert {finding.said for finding in verify.verify(path).failed} == {"its target is not one of the pack's targets"}
    path = rewritten(cpu_pack, tmp_path / "x", operations=lambda some: [one._replace(launches=()) for one in some])
    assert {finding.said for finding in verify.verify(path).failed} == {"it has no launches"}


def test_what_no_schedule_takes_is_found(cpu_pack: Path, tmp_path: Path) -> None:
    for line in ({"operator": "ABACUS"}, {"operator": "ELEMENT_WISE_ROUND", "InputTensor": "float32[0]"}, {}):
        path = rewritten(cpu_pack, tmp_path / "x", operations=lambda some, line=line: [some[0]._replace(line=line)])
        (finding,) = verify.verify(path).failed
        assert finding.said.startswith("the schedules refuse it: ")
    in_place = rewritten(cpu_pack, tmp_path / "x", operations=lambda some: [one._replace(in_place=True) for one in some])
    assert any("given in_place = true for TOP_K1" in finding.said for finding in verify.verify(in_place).failed)


def test_kernels_of_other_schedules_are_not_run(cpu_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = contents_of(cpu_pack).head
    other = {**head, "sources": dict.fromkeys(head["sources"], "0123"), "producer": {**head["producer"], "tvmdml": "9"}}
    path = rewritten(cpu_pack, tmp_path / "x", head=other)
    monkeypatch.setattr(CpuTarget, "open", None)
    report = verify.verify(path)
    assert (report.ok, report.ran, len(report.not_run)) == (False, 0, 2 * len(WANTED))
    (said,) = {finding.said for finding in report.not_run}
    assert said.startswith("it was built from other schedules than those installed (tvmdml 9)")


def test_what_nothing_launches_is_told(cpu_pack: Path, tmp_path: Path) -> None:
    path = rewritten(cpu_pack, tmp_path / "x", operations=lambda some: [one for one in some if not is_round(one)])
    report = verify.verify(path)
    assert report.ok
    assert {finding.said for finding in report.not_run} == {"no operation of the pack launches the kernel"}
    names = {f"element_wise_round/{kernel.kernel} for {kernel.target}" for kernel in contents_of(path).kernels if is_round(kernel)}
    assert {finding.about for finding in report.not_run} == {f"kernel {name}" for name in names}


def test_what_is_too_large_is_not_run(cpu_pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MAX_BYTES", 1 << 16)
    report = verify.verify(cpu_pack)
    assert report.ok
    assert {finding.about.partition(" for ")[0] for finding in report.not_run} == {
        "NONZERO_COORDINATES float32[70, 1000] -> uint32[1, 1], uint32[70000, 2]"
    }
    assert report.ran == report.operations - len(report.not_run)


def test_a_device_that_is_not_here_is_passed_over(mixed_pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(text: str) -> Target:
        raise DeviceError("it was taken away")

    targets._resolved.cache_clear()
    monkeypatch.setattr(targets.target_class("vulkan"), "parse", gone)
    try:
        report = verify.verify(mixed_pack)
        with pytest.raises(DeviceError, match="taken away"):
            verify.verify(mixed_pack, device="vulkan:desktop")
    finally:
        targets._resolved.cache_clear()
    assert (report.ok, report.ran) == (True, len(WANTED))
    assert {finding.said for finding in report.not_run} == {"it was taken away"}
    assert f"not run, {len(WANTED)}: it was taken away" in report.text()


def outside(array: Any) -> None:
    """The byte after the last element."""
    ctypes.memset(array.ctypes.data + array.nbytes, 0, 1)


def into(array: Any) -> None:
    array[0] = -array[0]


@pytest.mark.parametrize(
    ("which", "spoil", "said"),
    [
        (1, outside, "the kernel wrote to memory outside output_tensor"),
        (0, outside, "the kernel wrote to the input input_tensor"),
        (0, into, "the kernel wrote to the input input_tensor"),
    ],
)
def test_what_a_kernel_may_not_write_to_is_guarded(
    build: Callable[..., Path], which: int, spoil: Callable[[Any], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = CpuTarget.launch

    def launch(*arguments: Any) -> Callable[..., None]:
        run = plain(*arguments)

        def spoiling(*arrays: Any) -> None:
            run(*arrays)
            spoil(arrays[which])

        return spoiling

    path = build(LEVELS[:1], WANTED[:1])
    assert verify.verify(path).ok
    monkeypatch.setattr(CpuTarget, "launch", launch)
    assert [finding.said.partition(": ")[2] for finding in verify.verify(path).failed] == [said]


def test_a_kernel_that_raises_is_wrong(build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*arguments: Any) -> Callable[..., None]:
        raise RuntimeError("out of order")

    monkeypatch.setattr(CpuTarget, "launch", launch)
    (finding,) = verify.verify(build(LEVELS[:1], WANTED[:1])).failed
    assert finding.said.endswith(" on 1 threads: RuntimeError: out of order")


@pytest.mark.parametrize("data_type", tvmdml.TensorDataType)
def test_random_input_has_values_of_every_kind(data_type: tvmdml.TensorDataType) -> None:
    x = any_values(np.random.default_rng(1), data_type, (100, 100))
    assert (x.dtype, x.shape) == (data_type.numpy, (100, 100))
    assert 0.2 < np.mean(x == 0) < 0.5
    assert len(np.unique(x)) > min(1000, 200 * (data_type.itemsize > 0))
    if data_type.is_float:
        info: Any = np.finfo(x.dtype)
        denormal = (x != 0) & (np.abs(x) < info.tiny)
        finite = np.where(np.isfinite(x), x, 0)
        half = finite - np.trunc(finite) == 0.5
        kinds = {"nan": np.isnan(x), "infinite": np.isinf(x), "denormal": denormal, "half": half, "-0": (x == 0) & np.signbit(x)}
        assert {name for name, found in kinds.items() if not found.any()} == set()
    else:
        limits = np.iinfo(x.dtype)
        assert {limits.min, limits.max} <= set(x.reshape(-1).tolist())


# -- What is wrong with outputs -----------------------------------------------------------------------------------


def test_every_bit_counts_but_those_of_nan_where_any_will_do() -> None:
    x = np.array([0.0, np.nan, 1.0, 2.0], np.float32)
    other_nan = x.copy()
    other_nan.view(np.uint32)[1] ^= 1
    rounded, cut = round_desc(tensor("float32", (4,))), top_k_desc(tensor("float32", (4,)), 0, 4, "increasing")
    at = np.arange(4, dtype=np.uint32)
    assert rounded.mismatch((x,), (other_nan,)) == cut.mismatch((x, at), (x.copy(), at.copy())) == ""
    problem = cut.mismatch((other_nan, at), (x, at))
    assert problem.startswith("output_value_tensor: 1 of 4 elements differ, first at (1,): nan (0x7fc00001)")
    assert "first at (0,): -0.0 (0x80000000), should be 0.0 (0x0)" in rounded.mismatch((np.copysign(x, np.float32(-1)),), (x,))
    assert rounded.mismatch((x.astype(np.float64),), (x,)).startswith("output_tensor is float64 of shape (4,), should be float32")
    assert "of shape (2, 2), should be" in rounded.mismatch((x.reshape(2, 2),), (x,))
