"""Log files: an invalid line has no other effect, and no logged record is lost."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from commands import call
from hypothesis import given, settings
from support import nonzero_desc, tensor, top_k_desc
from tuning_records import HERE, ROWS, THERE, changed, contents, found, installed_bits, record, rows, write

from tvmdml.errors import InvalidArgument
from tvmdml.library import log_files, log_lines, logs
from tvmdml.library.log_terms import Machine, Record
from tvmdml.library.logs import Logs
from tvmdml.tuning import log_checks

pytestmark = pytest.mark.usefixtures("own_place")

# -- Lines --------------------------------------------------------------------------------------------------------


def test_a_line_says_it_in_a_fixed_order() -> None:
    assert list(json.loads(log_lines.encode(record()))) == [
        "operator", "machine", "types", "shape_class", "knobs", "seconds", "spread", "default_seconds", "trials", "versions",
        "date", "measured",
    ]  # fmt: skip
    turned: dict[str, Any] = {
        name: dict(reversed(list(getattr(record(), name).items()))) for name in ("types", "shape_class", "versions")
    }
    shuffled = record(ROWS, **turned)
    assert log_lines.encode(shuffled) == log_lines.encode(record())


LINES = {
    "no JSON": ("top_k", "not JSON"),
    "half a line": (changed()[:-40], "not JSON"),
    "no text": (b"\xff\xfe{}", "not JSON"),
    "a mark of byte order": (b"\xef\xbb\xbf" + changed().encode(), "not JSON"),
    "a lone surrogate": (changed(date="\ud800"), "date: given"),
    "not an object": ("[1, 2]", "line: given [1, 2]"),
    "a number": ("17", "line: given 17"),
    "a long line": ("[" + " " * 70000 + "]", "line: given 70002 bytes; allowed: at most 65536"),
    "much nesting": ("[" * 60000, "not JSON"),
    "less nesting": (changed(measured=None)[:-1] + ', "measured": ' + '{"operator":' * 200 + "1" + "}" * 201, "measured: given"),
    "a huge integer": (changed(trials=None)[:-1] + ', "trials": ' + "9" * 5000 + "}", ""),
    "NaN": (changed(seconds=float("nan")), "NaN is not a number"),
    "infinity": (changed(seconds=float("inf")), "Infinity is not a number"),
    "more than a float holds": (changed().replace("1.25e-05", "1e999"), "seconds: given inf"),
    "a name twice": (changed()[:-1] + ', "trials": 3}', "a name occurs twice"),
    "a name twice inside": (changed().replace('"k": 16', '"k": 16, "k": 16'), "a name occurs twice"),
    "a field less": (changed(trials=None), "allowed: an object with operator, machine"),
    "a field more": (changed(speed=1), "allowed: an object with operator, machine"),
    "an unknown operator": (changed(operator="no_operator"), "operator: given 'no_operator'; allowed: an operator's module"),
    "an operator's name": (changed(operator="TOP_K"), "operator: given 'TOP_K'"),
    "a path": (changed(operator="../top_k"), "operator: given"),
    "a module elsewhere": (changed(operator="_contract"), "operator: given '_contract'"),
    "an operator that is no string": (changed(operator=["top_k"]), "operator: given ['top_k']"),
    "no machine": (changed(machine="cpu"), "machine: given 'cpu'"),
    "half a machine": (changed(machine={"target": "cpu"}), "machine: given ['target']"),
    "a machine without a target": (changed(machine={"target": "", "processor": "", "threads": 1}), "machine target: given ''"),
    "threads below 0": (changed(machine={"target": "cpu", "processor": "", "threads": -1}), "machine threads: given -1"),
    "threads that are true": (changed(machine={"target": "cpu", "processor": "", "threads": True}), "machine threads: given True"),
    "colours for the terminal": (changed(machine={"target": "\x1b[31m", "processor": "", "threads": 1}), "printable characters"),
    "a line break": (changed(machine={"target": "cpu\ncpu", "processor": "", "threads": 1}), "printable characters"),
    "a long name": (changed(machine={"target": "x" * 600, "processor": "", "threads": 1}), "at most 512 printable characters"),
    "an unknown type": (changed(types={"InputTensor": "float8"}), "types InputTensor: given 'float8'; allowed: float32"),
    "types that are a list": (changed(types=["float32"]), "types: given ['float32']"),
    "many types": (changed(types={f"Input{i}": "float32" for i in range(100)}), "at most 64 members"),
    "a class of fractions": (changed(shape_class={"k": 1.5}), "shape_class k: given 1.5"),
    "a class that is not rounded": (changed(shape_class={"k": 1000}), "allowed: 0, a power of two, or a word"),
    "a size below 0": (changed(shape_class={"k": -8}), "shape_class k: given -8"),
    "knobs that are null": (changed()[:-1].replace('"knobs": {"digit_bits": 8}', '"knobs": null') + "}", "knobs: given None"),
    "a knob that is true": (changed(knobs={"digit_bits": True}), "knobs digit_bits: given True"),
    "a knob that is a list": (changed(knobs={"digit_bits": [8]}), "knobs digit_bits: given [8]"),
    "a knob without a name": (changed(knobs={"": 8}), "a name: given ''"),
    "time below 0": (changed(seconds=-1e-6), "seconds: given -1e-06"),
    "no time": (changed(seconds=0), "seconds: given 0; allowed: more than 0"),
    "the defaults' time below 0": (changed(default_seconds=-1), "default_seconds: given -1"),
    "a time that is true": (changed(seconds=True), "seconds: given True"),
    "a time in words": (changed(seconds="1 us"), "seconds: given '1 us'"),
    "spread below 0": (changed(spread=-0.1), "spread: given -0.1"),
    "trials below 0": (changed(trials=-1), "trials: given -1"),
    "half a trial": (changed(trials=1.5), "trials: given 1.5"),
    "versions that are numbers": (changed(versions={"tvmdml": 1}), "versions tvmdml: given 1"),
    "a day": (changed(date="2026-11-22"), "date: given '2026-11-22'; allowed: a time in UTC"),
    "another zone": (changed(date="2026-11-22T03:14:15+01:00"), "date: given"),
    "no such day": (changed(date="2026-02-30T03:14:15+00:00"), "date: given '2026-02-30"),
    "a date that is a number": (changed(date=20261122), "date: given 20261122"),
    "nothing measured": (changed(measured={}), "measured operator: given None"),
    "measured is a list": (changed(measured=[]), "measured: given []"),
    "measured colours": (changed(measured={"operator": "TOP_K", "\x1b": 1}), "measured: given"),
    "a huge number measured": (changed(measured={"operator": "TOP_K", "K": 10**30}), "measured: given"),
}
"""Bad lines, and what is said about them."""


@pytest.mark.parametrize(("line", "said"), LINES.values(), ids=LINES)
def test_a_bad_line_is_reported_and_skipped(line: bytes | str, said: str, own_place: Path) -> None:
    path = write(own_place / "any" / "top_k.jsonl", record(rows(64)), line, "", record())
    with pytest.warns(RuntimeWarning) as warned:
        assert found(logs.installed()) is not None
    assert len(logs.installed()) == 2
    (text,) = (str(one.message) for one in warned)
    assert text.startswith(f"tvmdml: {path}:2: left out of the tuning logs: ")
    assert said in text
    assert text.isprintable()
    assert len(text) < 1000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logs.forget()
        logs.installed()  # the warning is issued once


def test_of_many_bad_lines_the_first_are_reported(own_place: Path) -> None:
    write(own_place / "any" / "top_k.jsonl", *["{}"] * 50, record())
    with pytest.warns(RuntimeWarning) as warned:
        assert len(logs.installed()) == 1
    assert len(warned) == 4
    assert "47 more lines are left out" in str(warned[-1].message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.full
@settings(max_examples=200)
@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_random_lines_are_never_taken_and_never_an_exception_of_another_kind(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        log_lines.parse(raw)


@pytest.mark.full
@settings(max_examples=200)
@given(st.sampled_from(Record._fields), JSON)
def test_a_line_with_a_random_member_is_refused_or_can_be_used(name: str, value: Any) -> None:
    try:
        taken = log_lines.parse(json.dumps({**json.loads(log_lines.encode(record())), name: value}).encode())
    except InvalidArgument:
        return
    assert log_lines.parse(log_lines.encode(taken).encode()) == taken
    assert isinstance(log_checks.outdated(taken), str)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found(Logs([taken]), machine=taken.machine)


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=9)
MEMBERS = st.dictionaries(WORDS, st.integers(-(2**63), 2**63) | WORDS, max_size=4)
RECORDS = st.builds(
    record,
    machine=st.sampled_from([HERE, THERE]) | st.builds(Machine, WORDS, WORDS, st.integers(0, 256)),
    shape_class=st.dictionaries(WORDS, st.sampled_from([0, 1, 2, 1024, 2**63]) | WORDS, max_size=4),
    types=st.dictionaries(WORDS, st.sampled_from(["float32", "int8"]), max_size=3),
    knobs=MEMBERS,
    seconds=st.floats(1e-9, 1e3),
    spread=st.floats(0, 10),
    default_seconds=st.floats(1e-9, 1e3),
    trials=st.integers(0, 10**6),
    versions=st.dictionaries(WORDS, WORDS, max_size=3),
    date=st.datetimes().map(lambda when: f"{when.isoformat(timespec='microseconds')}+00:00"),
)


@given(RECORDS)
def test_what_is_written_is_what_is_read(made: Record) -> None:
    line = log_lines.encode(made)
    assert "\n" not in line
    assert log_lines.parse(line.encode()) == log_lines.checked(made) == made


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"default_seconds": 0.0},
        {"operator": "no_operator"},
        {"knobs": {"digit_bits": True}},
        {"shape_class": {"k": 1000}},
        {"date": "now"},
        {"measured": {"operator": "TOP_K", "K": {1, 2}}},
        {"measured": {"operator": "x" * 70000}},
        {"machine": Machine("cpu\x1b", "", 1)},
    ],
    ids=str,
)
def test_a_record_that_would_not_be_read_is_not_written(changes: dict[str, Any], own_place: Path) -> None:
    with pytest.raises(InvalidArgument):
        logs.add(own_place, [record(), record()._replace(**changes)])
    assert not own_place.exists()


# -- Files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (HERE, "cpu-x86-64-v3-AuthenticAMD-25.17-2-threads"),
        (Machine("cpu:x86-64-v4+gfni", "", 1), "cpu-x86-64-v4+gfni-1-threads"),
        (THERE, "vulkan-llvmpipe-LLVM-15.0.6-256-bits-CPU"),
        (Machine("cuda:sm_90", "NVIDIA H100 80GB HBM3, sm_90", 0), "cuda-sm_90-NVIDIA-H100-80GB-HBM3-sm_90"),
        (Machine("../../etc", "..\\x/\0", 0), "etc-..-x"),
        (Machine("..", "..", 0), "machine"),
    ],
)
def test_a_machine_s_folder_has_a_name_that_is_safe(machine: Machine, name: str) -> None:
    assert log_files.slug(machine) == name


def test_a_long_name_is_cut_and_stays_its_own() -> None:
    names = {log_files.slug(Machine("vulkan", "x" * 300 + end, 0)) for end in "ab"}
    assert len(names) == 2
    assert all(len(name) < 230 for name in names)


def test_lines_are_sorted_by_types_and_class(own_place: Path) -> None:
    half = top_k_desc(tensor("float16", (32, 1000)), 1, 16, "decreasing")
    made = [record(half), *(record(rows(length)) for length in (16, 128, 1024, 4096)), record(rows(16, k=9))]
    (path,) = logs.add(own_place, reversed(made))
    assert path == own_place / "cpu-x86-64-v3-AuthenticAMD-25.17-2-threads" / "top_k.jsonl"
    sizes = [(line.record.shape_class["k"], line.record.shape_class["length"]) for line in log_files.read(path) if line.record]
    assert sizes == [(16, 1024), (8, 16), (16, 16), (16, 128), (16, 1024), (16, 4096)]
    assert sorted(sizes[1:]) == sizes[1:]  # as numbers


def test_each_operator_and_machine_has_its_file(own_place: Path) -> None:
    desc = nonzero_desc(tensor("int8", (4, 5)))
    paths = logs.add(own_place, [record(desc), record(), record(machine=THERE)])
    assert [str(path.relative_to(own_place)) for path in paths] == [
        "cpu-x86-64-v3-AuthenticAMD-25.17-2-threads/nonzero_coordinates.jsonl",
        "cpu-x86-64-v3-AuthenticAMD-25.17-2-threads/top_k.jsonl",
        "vulkan-llvmpipe-LLVM-15.0.6-256-bits-CPU/top_k.jsonl",
    ]
    assert len(logs.installed()) == 3


def test_of_one_key_the_newest_stays(own_place: Path) -> None:
    old, new = (record(knobs={"digit_bits": bits}, date=f"2026-11-2{bits % 5}T00:00:00+00:00") for bits in (6, 8))
    for order in ([old, new], [new, old]):
        for one in order:
            (path,) = logs.add(own_place, [one])
        assert path.read_text() == log_lines.encode(new) + "\n"
        path.unlink()


FEW = st.builds(
    lambda length, machine, bits, day, knobs: record(
        rows(length), machine=machine, seconds=bits * 1e-6, date=f"2026-11-0{day}T00:00:00+00:00", knobs={"digit_bits": knobs}
    ),
    st.sampled_from([16, 100, 1000]),
    st.sampled_from([HERE, THERE]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([6, 8]),
)
"""Records that have keys in common."""


@pytest.mark.full
@settings(max_examples=25)
@given(st.lists(FEW, max_size=6), st.lists(FEW, max_size=6))
def test_merging_is_idempotent_and_its_order_does_not_matter(one: list[Record], other: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, number) for number in "abc"]
        for folder, batches in zip(folders, ([one, other], [other, one, other], [one + other]), strict=True):
            for batch in batches:
                log_files.merge(folder, batch)
        a, b, c = (contents(folder) if folder.exists() else {} for folder in folders)
        assert a == b == c
        assert sum(content.count(b"\n") for content in a.values()) == len({log_lines.key(made) for made in one + other})


def test_bad_lines_of_a_file_are_kept(own_place: Path) -> None:
    path = log_files.file_of(own_place, record())
    write(path, b"\xff what is this", record(rows(64)), "{}", changed(operator="no_operator"))
    logs.add(own_place, [record()])
    known = path.read_bytes().split(b"\n")
    assert known[:2] == [log_lines.encode(one).encode() for one in (record(rows(64)), record())]
    assert known[2:] == [b"\xff what is this", b"{}", changed(operator="no_operator").encode(), b""]
    before = path.read_bytes()
    logs.add(own_place, [record()])
    assert path.read_bytes() == before


def test_a_last_line_without_its_end_is_no_matter(own_place: Path) -> None:
    path = log_files.file_of(own_place, record())
    write(path, record(rows(64)))
    path.write_bytes(path.read_bytes().rstrip() + b"\n\r\n  \n" + changed()[:99].encode())
    logs.add(own_place, [record()])
    assert [line.record is None for line in log_files.read(path)] == [False, False, True]


def test_a_file_is_never_half_written(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = logs.add(own_place, [record()])
    before = contents(own_place)

    def fail(*arguments: object) -> None:
        raise OSError("the disk is full")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="the disk is full"):
                logs.add(own_place, [record(rows(64))])
        assert contents(own_place) == before
    logs.add(own_place, [record(rows(64))])
    assert len(log_files.read(path)) == 2


def test_a_file_is_for_all_to_read_and_stands_alone(own_place: Path) -> None:
    before = os.umask(0o077)
    try:
        (path,) = logs.add(own_place, [record()])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(contents(own_place)) == [str(path.relative_to(own_place))]  # no lock and no temporary file


def test_a_link_to_a_file_stays_one(own_place: Path, tmp_path: Path) -> None:
    real = write(tmp_path / "elsewhere" / "top_k.jsonl", record(rows(64)))
    path = log_files.file_of(own_place, record())
    path.parent.mkdir(parents=True)
    path.symlink_to(real)
    logs.add(own_place, [record()])
    assert path.is_symlink()
    assert len(log_files.read(real)) == 2


def make(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to nowhere":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(bytes(log_files.LARGEST_FILE + 1))


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nowhere", "large file"])
def test_a_file_that_cannot_be_read_is_reported_and_left_alone(kind: str, own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "LARGEST_FILE", 4096)
    path = log_files.file_of(own_place, record())
    make(kind, path)
    write(own_place / "other" / "top_k.jsonl", record(rows(64)))
    with pytest.warns(RuntimeWarning, match=rf"{path.name}: left out of the tuning logs: cannot be read: "):
        assert len(logs.installed()) == 1
    if kind != "link to nowhere":
        with pytest.raises(OSError, match=str(path)):
            logs.add(own_place, [record()])
    assert call("tuning", "prune", str(own_place)).exit_code == 0
    assert os.path.lexists(path)


def test_a_pair_of_lines_that_git_left_beside_each_other_is_no_harm(own_place: Path) -> None:
    new = record(date="2027-01-01T00:00:00+00:00", knobs={"digit_bits": 6})
    write(own_place / "one" / "top_k.jsonl", new)
    write(own_place / "two" / "any.jsonl", record())
    assert installed_bits() == 6
    assert len(logs.installed()) == 1


ADD = """
import sys
from pathlib import Path
from tvmdml.library import log_lines, logs
record = log_lines.parse(sys.stdin.buffer.read())
for turn in range(12):
    name = sys.argv[2] + str(turn)
    logs.add(Path(sys.argv[1]), [record._replace(shape_class={"who": name})])
"""


@pytest.mark.full
def test_processes_that_add_at_once_lose_nothing(own_place: Path) -> None:
    count = 4
    start = [sys.executable, "-c", ADD, str(own_place)]
    running = [subprocess.Popen([*start, f"{number}-"], stdin=subprocess.PIPE) for number in range(count)]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(log_lines.encode(record()).encode())
        process.stdin.close()
    assert [process.wait(120) for process in running] == [0] * count
    known = {one.shape_class["who"] for one in logs.installed().records}
    assert known == {f"{number}-{turn}" for number in range(count) for turn in range(12)}
