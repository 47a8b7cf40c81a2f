"""Knobs by operation: what tuning logs change, what has precedence; in packs too. Shape classes, machines, constraints."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tuning_records
from hypothesis import given
from hypothesis import strategies as st
from support import ALL, IN_PLACE, diagonal_desc, nonzero_desc, round_desc, tensor, top_k_desc

import tvmdml
from tvmdml import DiagonalMatrix, Operator, PackError, TopK, errors, knobs, packs, targets
from tvmdml.kernels.knobs import Constraint, Knob, Knobs
from tvmdml.library import format as container
from tvmdml.library import log_folders, logs, opened, scheduling, spec, stamps
from tvmdml.library.log_terms import Machine, Record
from tvmdml.library.logs import Logs
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators import tuned_as
from tvmdml.packs import change, look, verify, work
from tvmdml.proof.bench.inputs import FILLS
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget, host

LEVEL = "cpu:x86-64"
HERE = targets.resolve("cpu")
pytestmark = pytest.mark.skipif(not HERE.name.startswith(LEVEL), reason="packs here are for x86-64")


def record(desc: Operator, machine: Machine, values: Mapping[str, int | str], date: str = "2026-11-22", **changes: Any) -> Record:
    """A log's record of an operation."""
    return tuning_records.record(desc, machine=machine, knobs=values, date=f"{date}T03:14:15+00:00", **changes)


def tuned(target: Target, *records: Record) -> Target:
    """The target with logs of its own."""
    found = copy.copy(target)
    found.logs = Logs(records)
    return found


def top_k(length: int = 100, k: int = 7, rows: int = 4) -> Operator:
    return top_k_desc(tensor("float32", (rows, length)), 1, k, "decreasing")


@pytest.fixture
def sorting() -> Target:
    """This processor, with a log that has ``top_k()`` sorted."""
    return tuned(HERE, record(top_k(), HERE.machine(), {"algorithm": "sort", "digit_bits": 8}))


def values(target: Target, desc: Operator) -> Any:
    declared = knobs.of(tuned_as(type(desc)), target)
    assert declared is not None
    return declared.now(target, scheduling.tuned(declared, desc, target).values)


# -- What counts --------------------------------------------------------------------------------------------------


def test_a_log_says_otherwise_than_the_defaults(sorting: Target) -> None:
    assert (kernel_for(top_k(), HERE).name, kernel_for(top_k(), sorting).name) == ("select", "sort")
    found, defaults = values(sorting, top_k()), values(HERE, top_k())
    assert (found.algorithm, found.digit_bits) == ("sort", 8)
    assert {**vars(defaults), "algorithm": "sort", "digit_bits": 8} == vars(found)


def test_a_log_says_nothing_about_other_operations(sorting: Target) -> None:
    others = (top_k(length=100_000), top_k_desc(tensor("int32", (4, 100)), 1, 7, "decreasing"), round_desc(tensor("float32", (9,))))
    for desc in others:
        assert kernel_for(desc, sorting).identity == kernel_for(desc, HERE).identity
    declared = knobs.of("top_k", sorting)
    assert declared is not None
    assert declared.now(sorting) == declared.now(HERE)


def test_what_a_target_has_of_its_own_is_stronger_and_using_is_strongest(sorting: Target) -> None:
    sorting.knobs = {"top_k": {"algorithm": "rank"}}
    assert (values(sorting, top_k()).algorithm, values(sorting, top_k()).digit_bits) == ("rank", 8)
    with knobs.using(top_k={"algorithm": "select"}):
        assert (values(sorting, top_k()).algorithm, values(sorting, top_k()).digit_bits) == ("select", 8)


def test_without_logs_the_defaults_hold(sorting: Target) -> None:
    with knobs.untuned():
        assert not knobs.logs_count()
        with knobs.untuned():
            assert values(sorting, top_k()) == values(HERE, top_k())
        assert kernel_for(top_k(), sorting).identity == kernel_for(top_k(), HERE).identity
        with knobs.using(top_k={"algorithm": "rank"}):
            assert kernel_for(top_k(), sorting).name == "rank"
    assert knobs.logs_count()
    assert kernel_for(top_k(), sorting).name == "sort"
    with pytest.raises(KeyError), knobs.untuned():
        raise KeyError
    assert kernel_for(top_k(), sorting).name == "sort"


def test_knobs_of_other_schedules_are_passed_over() -> None:
    desc = diagonal_desc(tensor("float32", (64, 64)), 1, 0, 1, has_input=False)
    both = tuned(HERE, record(desc, HERE.machine(), {"task_bytes": 1, "threads": 64}))  # the second is for devices
    assert values(both, desc).task_bytes == 1
    neither = tuned(HERE, record(desc, HERE.machine(), {"threads": 64}))
    assert (values(neither, desc), kernel_for(desc, neither).tuning) == (values(HERE, desc), "")


def test_an_operation_in_place_has_records_of_its_own() -> None:
    desc = round_desc(tensor("float32", (1 << 20,)))
    target = tuned(HERE, record(desc, HERE.machine(), {"aligned_elements": 64}, in_place=True))
    found = [dict(kernel_for(desc, target, shared).parameters)["aligned"] for shared in ((), IN_PLACE)]
    assert found == [4096, 64]


def test_a_record_that_breaks_a_constraint_is_passed_over() -> None:
    """Groups that wait for one another hang a device whose groups may not."""
    (waits,), (not_waits,) = targets.elsewhere("cuda:sm_90"), targets.elsewhere("vulkan:core")
    desc = nonzero_desc(tensor("float32", (1 << 20,)))
    found = [
        kernel_for(desc, tuned(target, record(desc, target.machine(), {"algorithm": "lookback", "most_groups": 4096})))
        for target in (waits, not_waits)
    ]
    assert [(kernel.name, bool(kernel.tuning)) for kernel in found] == [("lookback", True), ("scan", False)]


@pytest.mark.full
def test_installed_logs_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desc = top_k(length=150, k=11)
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path))
    logs.add(tmp_path, [record(desc, HERE.machine(), {"algorithm": "sort"})])
    assert tvmdml.compile(desc, HERE)._kernel.name == "select"  # TVMDML_TUNING=0
    monkeypatch.setenv("TVMDML_TUNING", "1")
    assert tvmdml.compile(desc, HERE)._kernel.name == "sort"


# -- Keys ---------------------------------------------------------------------------------------------------------


def test_the_hash_of_what_a_log_turned_is_in_the_key(sorting: Target) -> None:
    plain, found = kernel_for(top_k(), HERE), kernel_for(top_k(), sorting)
    assert (plain.tuning, found.tuning) == ("", logs.stamp({"algorithm": "sort", "digit_bits": 8}))
    assert "tuning" not in stamps.manifest(plain, HERE)
    assert stamps.manifest(found, sorting)["tuning"] == found.tuning
    with knobs.using(top_k={"algorithm": "sort", "digit_bits": 8}):
        same = kernel_for(top_k(), HERE)
    assert found._replace(tuning="").identity == same.identity != found.identity


def test_a_log_that_has_the_defaults_win_changes_no_key() -> None:
    target = tuned(HERE, record(top_k(), HERE.machine(), {}))
    assert kernel_for(top_k(), target).identity == kernel_for(top_k(), HERE).identity


# -- Packs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    """As on another machine: nothing is on disk, nothing in memory."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(opened, "_libraries", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of somebody else's processors: sorted on two threads; and of a GPU."""
    path = tmp_path_factory.mktemp("logs")
    machine = Machine(LEVEL, "GenuineSomebody 1.2", 2)
    some = [
        record(top_k(), machine, {"algorithm": "sort"}),
        record(top_k(), machine._replace(processor="GenuineSomebody 1.1"), {"algorithm": "rank"}, "2026-11-21"),
        record(top_k(), machine._replace(target="cpu:x86-64-v3"), {"algorithm": "rank"}),
    ]
    logs.add(path, some)
    return path


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def of(*found: Path, wanted: Operator | None = None, names: tuple[str, ...] = (LEVEL,)) -> Path:
        path = tmp_path_factory.mktemp("packs") / "tuned.tvmdml"
        packs.build(Spec(names, (Wanted(wanted or top_k()),), {}, tuple(map(str, found))), path, jobs=1)
        return path

    return of


@pytest.fixture(scope="module")
def pack(build: Callable[..., Path], folder: Path) -> Path:
    return build(folder)


def kernels(path: Path) -> dict[int, str]:
    """The kernel of the only operation, by threads."""
    found = packs.Pack(path)
    names = {kernel.key: kernel.kernel for kernel in found.kernels()}
    (operation,) = found.operations()
    found.close()
    return {launch.threads: names[launch.kernel] for launch in operation.launches}


def changed(path: Path, to: Path, **head: Any) -> Path:
    found = packs.Pack(path)
    contents = found.contents()
    found.close()
    container.write(to, contents._replace(head={**contents.head, **head}))
    return to


def test_a_pack_is_built_by_its_logs(pack: Path, build: Callable[..., Path]) -> None:
    """Those for its targets, of whichever processor, the newest."""
    assert set(kernels(build()).values()) == {"select"}
    assert {threads: name for threads, name in kernels(pack).items() if name == "sort"} == {2: "sort"}
    found = packs.Pack(pack)
    assert [line["knobs"] for line in found.head["logs"]] == [{"algorithm": "sort"}]
    assert look.summary(found)["logs"] == 1
    found.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.usefixtures("elsewhere")
def test_its_kernels_are_found_whatever_this_machine_has_in_its_logs(
    pack: Path, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    own = [HERE.machine()._replace(target=name, threads=threads) for name in (HERE.name, LEVEL)]
    logs.add(tmp_path / "own", [record(top_k(), machine, {"algorithm": "rank"}) for machine in own])
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path / "own"))
    monkeypatch.setenv("TVMDML_TUNING", "1")
    x = np.random.default_rng(3).standard_normal((4, 100)).astype(np.float32)
    with tvmdml.load_pack(pack, strict=True):
        operator = tvmdml.compile(top_k())
        assert (operator._kernel.name, bool(operator._kernel.tuning)) == (("sort", True) if threads == 2 else ("select", False))
        assert np.array_equal(tvmdml.top_k(x, 7).values, -np.sort(-x, axis=1)[:, :7])


def test_this_machines_logs_are_not_built_in(
    pack: Path, build: Callable[..., Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [HERE.machine()._replace(target=LEVEL, threads=threads) for threads in (1, 2, 3, 4)]
    logs.add(tmp_path, [record(top_k(), machine, {"algorithm": "rank"}) for machine in own])
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path))
    monkeypatch.setenv("TVMDML_TUNING", "1")
    assert build(folder).read_bytes() == pack.read_bytes()


@pytest.mark.usefixtures("elsewhere")
def test_a_pack_with_logs_is_verified(pack: Path, tmp_path: Path) -> None:
    assert verify.verify(pack, seed=1).ok
    report = verify.verify(changed(pack, tmp_path / "x", logs=[]), seed=1)
    assert not report.ok
    assert "the schedules choose" in report.text()


@pytest.mark.full
@pytest.mark.usefixtures("elsewhere")
def test_a_pack_that_is_built_untuned_has_no_logs(build: Callable[..., Path], folder: Path) -> None:
    with knobs.untuned():
        path = build(folder)
    assert path.read_bytes() == build().read_bytes()


@pytest.mark.full
@pytest.mark.usefixtures("elsewhere")
def test_whoever_compiles_needs_no_logs(monkeypatch: pytest.MonkeyPatch, build: Callable[..., Path], folder: Path) -> None:
    jobs: list[work.CompileJob] = []
    compile_units = work.compile_units
    monkeypatch.setattr(work, "compile_units", lambda some: [jobs.extend(some), *compile_units(some)][1:])
    build(folder)
    assert {job.threads: job.knobs for job in jobs}[2] == {"top_k": {"algorithm": "sort"}}


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "more": lambda line: {**line, "more": 1},
    "less": lambda line: {name: value for name, value in line.items() if name != "date"},
    "sizes": lambda line: {**line, "shape_class": {"length": [1]}},
    "operator": lambda line: {**line, "operator": "bubbles"},
    "knobs": lambda line: {**line, "knobs": {"algorithm": None}},
    "machine": lambda line: {**line, "machine": {"target": LEVEL}},
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.usefixtures("elsewhere")
def test_logs_that_nobody_writes_are_refused(pack: Path, tmp_path: Path, name: str) -> None:
    found = packs.Pack(pack)
    (line,) = found.head["logs"]
    found.close()
    odd = changed(pack, tmp_path / "odd", logs=[BROKEN[name](line)])
    with tvmdml.load_pack(odd), pytest.raises(PackError, match="one of its tuning records is invalid"):
        tvmdml.compile(top_k())
    with pytest.raises(PackError, match="is invalid"):
        verify.verify(odd)
    look.summary(packs.Pack(odd))


@pytest.mark.full
def test_packs_are_merged_where_their_logs_agree(build: Callable[..., Path], pack: Path, folder: Path, tmp_path: Path) -> None:
    newer = build(folder, names=("cpu:x86-64-v3",))
    both = build(folder, names=(LEVEL, "cpu:x86-64-v3"))
    change.merge([newer, pack], tmp_path / "merged")
    found, expected = packs.Pack(tmp_path / "merged"), packs.Pack(both)
    assert found.head == expected.head
    assert len(found.head["logs"]) == 2
    assert look.diff(found, expected) == []
    change.split(both, [LEVEL], tmp_path / "split")
    assert packs.Pack(tmp_path / "split").head["logs"] == packs.Pack(pack).head["logs"]
    plain = build()
    with pytest.raises(PackError, match=r"given other tuning records than .* for the same targets; allowed: the same"):
        change.merge([pack, plain], tmp_path / "no")
    told = look.diff(packs.Pack(plain), packs.Pack(pack))
    assert any(line.startswith(f"only in {pack}: tuning of top_k for {LEVEL}: ") for line in told)


# -- Specs --------------------------------------------------------------------------------------------------------


def test_a_spec_names_logs_from_its_own_folder_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").symlink_to(folder)
    one = next(path for path in folder.glob("*/*.jsonl"))
    (tmp_path / "one.jsonl").write_bytes(one.read_bytes())
    (tmp_path / "pack.toml").write_text(f'logs = ["logs", "one.jsonl", {str(folder)!r}, "logs"]')
    found = spec.read(tmp_path / "pack.toml")
    assert found.logs == (str(tmp_path / "logs"), str(tmp_path / "one.jsonl"), str(folder))
    spec.write(tmp_path / "again.toml", [], logs=found.logs)
    assert spec.read(tmp_path / "again.toml") == found


def _refused_files(folder: Path) -> None:
    good = log_folders.files(folder)[0].read_bytes()
    (folder / "empty").mkdir()
    (folder / "text.jsonl").write_text("sort everything\n")
    (folder / "knob.jsonl").write_bytes(good.replace(b'"sort"', b'"bubbles"').replace(b'"rank"', b'"bubbles"'))


REFUSED = {
    "logs = 'a'": "pack.toml: logs: given .*; allowed: a list",
    "logs = [3]": r"pack.toml: logs\[0\]: given 3",
    "logs = ['missing']": r"pack.toml: logs\[0\]: tuning log: given '.*missing', where there is no log; allowed: a tuning log",
    "logs = ['empty']": r"pack.toml: logs\[0\]: .*where there is no log",
    'logs = ["a\\u0000b"]': r"pack.toml: logs\[0\]: ",
    "logs = ['text.jsonl']": r"pack.toml: logs\[0\]: .*text.jsonl:1: not JSON",
    "logs = ['knob.jsonl']": r"pack.toml: logs\[0\]: .*knob.jsonl:1: top_k knob algorithm: given 'bubbles'",
}


@pytest.mark.parametrize("text", REFUSED)
def test_logs_that_are_none_are_refused_with_their_place(text: str, tmp_path: Path) -> None:
    logs.add(tmp_path, [record(top_k(), HERE.machine(), {"algorithm": "sort"})])
    _refused_files(tmp_path)
    (tmp_path / "pack.toml").write_text(text)
    with pytest.raises(errors.InvalidArgument, match=REFUSED[text]):
        spec.read(tmp_path / "pack.toml")


# -- Shape classes ------------------------------------------------------------------------------------------------

LAYOUTS = st.sampled_from(["packed", "padded", "transposed", "spread"])
SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple)
BOUNDS = st.sampled_from([-(2**31), -12, -3, -1, 0, 1, 2, 5, 12, 2**31 - 1])


@st.composite
def _descs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Operator:
    x = tensor(draw(st.sampled_from(ALL)), draw(SIZES), draw(LAYOUTS))
    kind = draw(st.sampled_from(["round", "top_k", "nonzero", "diagonal"]))
    if kind == "round":
        floats = tensor(draw(st.sampled_from(["float16", "float32"])), x.sizes, draw(LAYOUTS))
        return round_desc(floats, draw(st.sampled_from(["toward_zero", "toward_infinity"])), draw(LAYOUTS))
    if kind == "top_k":
        axis = draw(st.integers(0, x.rank - 1))
        k, direction = draw(st.integers(1, x.sizes[axis])), draw(st.sampled_from(["increasing", "decreasing"]))
        return top_k_desc(x, axis, k, direction, layout=draw(LAYOUTS))
    if kind == "nonzero":
        return nonzero_desc(x, layout=draw(LAYOUTS))
    return diagonal_desc(x, 1, draw(BOUNDS), draw(BOUNDS), draw(st.booleans()), draw(LAYOUTS))


@given(desc=_descs())
def test_a_shape_class_is_of_sizes_and_words(desc: Operator) -> None:
    found = desc.shape_class()
    assert found
    assert all(isinstance(value, str) or (type(value) is int and value >= 0) for value in found.values())
    assert desc.canonical().shape_class() == found
    assert (found["layout"] == "packed") >= all(t.is_packed for _, t in desc.tensors() if t is not None)
    assert set(desc.samples()) <= set(FILLS)
    assert desc.canonical().samples() == desc.samples()


@given(height=st.integers(1, 9), width=st.integers(1, 9), begin=BOUNDS, end=BOUNDS)
def test_a_band_is_as_wide_as_it_is_in_the_middle(height: int, width: int, begin: int, end: int) -> None:
    desc = diagonal_desc(tensor("int32", (3, height, width)), 1, begin, end, has_input=False)
    filled = int(desc.reference(None)[0].sum()) // 3
    assert desc.shape_class()["band"] == -(-filled // height)


def test_the_same_work_is_of_one_class() -> None:
    x, values_, places = tensor("float32", (5, 8, 6)), tensor("float32", (5, 3, 6)), tensor("uint32", (5, 3, 6))
    old = TopK(input_tensor=x, output_value_tensor=values_, output_index_tensor=places, axis=1, k=3)
    for direction in ("increasing", "decreasing"):  # which does not matter for speed
        assert top_k_desc(x, 1, 3, direction).shape_class() == old.shape_class()
    assert old.shape_class() == {"length": 8, "k": 3, "rows": 30, "inner": 6, "layout": "packed"}
    flat = top_k_desc(tensor("float32", (30, 8)), 1, 3, "increasing")
    assert flat.shape_class() == {**old.shape_class(), "inner": 1}
    y = tensor("float16", (1, 1, 7, 9))
    diagonal = DiagonalMatrix(output_tensor=y, offset=1, value=2)
    expected = {"rows": 7, "width": 9, "matrices": 1, "band": 1, "input": "no", "layout": "packed"}
    assert diagonal.shape_class() == diagonal_desc(y, 2, 1, 2, has_input=False).shape_class() == expected
    transposed = round_desc(tensor("float32", (5, 6), "transposed"), layout="transposed")
    assert transposed.shape_class() == round_desc(tensor("float32", (30,))).shape_class()
    assert round_desc(tensor("float32", (5, 6), "transposed")).shape_class()["layout"] == "strided"


def test_what_differs_in_speed_differs_in_class() -> None:
    x = tensor("float32", (5, 6))
    found = [
        *(round_desc(x, mode).shape_class() for mode in ("toward_zero", "toward_infinity", "halves_to_nearest_even")),
        *(nonzero_desc(tensor("float32", sizes)).shape_class() for sizes in ((30,), (5, 6), (6, 5))),
        *(diagonal_desc(x, 1, 0, 1, has_input).shape_class() for has_input in (False, True)),
        nonzero_desc(tensor("float32", (5, 6), "padded")).shape_class(),
    ]
    for one, other in itertools.combinations(found, 2):
        assert one != other


def test_samples_are_what_a_type_can_hold() -> None:
    assert "all NaN" in top_k().samples()
    assert "all NaN" not in top_k_desc(tensor("int8", (4,)), 0, 1, "increasing").samples()
    x = tensor("float32", (4, 4))
    assert (diagonal_desc(x, 1, 0, 1, has_input=False).samples(), diagonal_desc(x, 1, 0, 1).samples()) == ((), ("normal",))


# -- Constraints --------------------------------------------------------------------------------------------------

TWO = Knobs(
    "some_operator",
    Constraint("least is no more than most", lambda knobs, _: knobs.least <= knobs.most),
    Constraint("wide takes a device", lambda knobs, target: not knobs.wide or (target is not None and target.kind != "cpu")),
    least=Knob(2, (1, 2, 4), "the least", {"cuda": 4}),
    most=Knob(4, (2, 4, 8), "the most"),
    wide=Knob(0, (0, 1), "whether it is wide"),
)


def test_the_first_constraint_that_is_broken_is_named() -> None:
    (cuda,) = targets.elsewhere("cuda:sm_90")
    assert TWO.allowed({}) == TWO.allowed({"most": 2}) == TWO.allowed({"wide": 1}, cuda) == ""
    assert TWO.allowed({"most": 2}, cuda) == TWO.allowed({"least": 4, "most": 2, "wide": 1}) == "least is no more than most"
    assert TWO.allowed({"wide": 1}) == TWO.allowed({"wide": 1}, HERE) == "wide takes a device"
    with pytest.raises(errors.InvalidArgument, match="knob: given 'narrow'"):
        TWO.allowed({"narrow": 1})


def every_target() -> Iterator[Target]:
    for name in ("cpu", "cpu:x86-64", "cuda:sm_75", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100", "vulkan:core", "vulkan:desktop"):
        yield from targets.elsewhere(name)


@pytest.mark.parametrize("operator", ["diagonal_matrix", "nonzero_coordinates", "pointwise", "top_k"])
def test_defaults_keep_the_constraints_and_each_can_be_broken(operator: str) -> None:
    broken = set()
    for target in every_target():
        declared = knobs.of(operator, target)
        assert declared is not None
        assert declared.operator == operator
        assert declared.allowed({}, target) == ""
        least, most = ({name: knob.choices[at] for name, knob in declared.knobs.items()} for at in (0, -1))
        pairs = itertools.permutations(declared.knobs, 2)
        tried = [{one: least[one], other: most[other]} for one, other in pairs]
        broken |= {text for some in tried if (text := declared.allowed(some, target))}
    texts = {one.text for target in every_target() for one in getattr(knobs.of(operator, target), "constraints", ())}
    assert broken == texts


def test_an_operator_without_a_schedule_has_no_knobs() -> None:
    assert knobs.of("bubbles", HERE) is None


# -- Machines -----------------------------------------------------------------------------------------------------

CPUINFO = {
    "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14\n": "AuthenticAMD 25.17",
    "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n": "CPU implementer 0x41 part 0xd0c",
    "": "",
    "vendor_id\t: AuthenticAMD\n": "",
}


@pytest.mark.parametrize("text", CPUINFO, ids=CPUINFO.values())
def test_a_processor_is_named_by_its_maker_family_and_model(text: str) -> None:
    assert host.processor_name(text) == CPUINFO[text]


def test_every_level_is_of_this_machines_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", "3")
    assert HERE.machine() == Machine(HERE.name, host.processor_name(), 3)
    assert targets.resolve(LEVEL).machine() == Machine(LEVEL, host.processor_name(), 3)
    assert isinstance(HERE, CpuTarget)
    assert [variant.machine().threads for _, variant in HERE.variants()][:4] == [1, 2, 3, 4]


def test_what_is_no_device_has_no_processor() -> None:
    assert targets.resolve("cuda:sm_80,sm_90").machine() == Machine("cuda:sm_80,sm_90", "", 0)
    (desktop,) = targets.elsewhere("vulkan:desktop")
    assert desktop.machine() == Machine("vulkan", "", 0)


def test_a_device_goes_by_its_name(device: Target) -> None:
    found = device.machine()
    assert found == Machine("vulkan" if device.kind == "vulkan" else device.spec_name, targets.shown(device), 0)
    (relative,) = device.relatives([device.code])
    assert relative.machine() == found


@pytest.mark.parametrize("operator", ["diagonal_matrix", "nonzero_coordinates", "pointwise", "top_k"])
def test_no_log_has_a_few_groups_go_round_too_often(operator: str) -> None:
    """Mesa's software device leaves a thread's loops after 65535 rounds, and says nothing."""
    (device,) = targets.elsewhere("vulkan:core")
    declared = knobs.of(operator, device)
    assert declared is not None
    for groups in (1, 64, 512):
        assert "most_groups is" in declared.allowed({"most_groups": groups}, device)


def test_a_group_alone_takes_no_more_than_it_can() -> None:
    (device,) = targets.elsewhere("vulkan:core")
    with knobs.using(nonzero_coordinates={"algorithm": "alone", "threads": 32, "least_threads": 32}):
        names = [kernel_for(nonzero_desc(tensor("float32", (size,))), device).name for size in (1 << 20, (1 << 20) + 1)]
    assert names == ["alone", "scan"]
