"""Logs of tuning: the right record is found, a bad line harms nobody, and nothing that was logged is lost."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from support import diagonal_desc, nonzero_desc, round_desc, tensor, top_k_desc

from tvmdml import TensorDesc, TopK, stores, targets
from tvmdml.cli import main
from tvmdml.errors import InvalidArgument
from tvmdml.kernel import source_stamp
from tvmdml.operators import Operator
from tvmdml.packs import lines
from tvmdml.tuning import log_checks, log_files, log_lines, logs
from tvmdml.tuning.logs import Found, Logs
from tvmdml.tuning.terms import Machine, Record

HERE = Machine("cpu:x86-64-v3", "AuthenticAMD 25.17", 2)
THERE = Machine("vulkan", "llvmpipe (LLVM 15.0.6, 256 bits), CPU", 0)
ROWS = top_k_desc(tensor("float32", (32, 1000)), 1, 16, "decreasing")


@pytest.fixture(autouse=True)
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Each test has a user's folder of its own, no other logs, and has not been warned of anything."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("TVMDML_TUNING", "TVMDML_TUNING_NEAREST", "TVMDML_TUNING_LOGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(logs, "_shipped", lambda: ())
    monkeypatch.setattr(stores, "_warned", set())
    logs.forget()
    yield tmp_path / "data" / "tvmdml" / "tuning_logs"
    logs.forget()


def record(desc: Operator = ROWS, **changes: Any) -> Record:
    """A record of an operation."""
    in_place = changes.pop("in_place", False)
    made = Record(
        operator=type(desc).__module__.rpartition(".")[2],
        machine=HERE,
        types=logs.types_of(desc),
        shape_class=logs.class_of(desc, in_place),
        knobs={"digit_bits": 8} if "TOP_K" in desc.NAME else {},
        seconds=1.25e-05,
        spread=0.02,
        default_seconds=2.5e-05,
        trials=64,
        versions={"tvmdml": "0.1.0", "apache-tvm": "0.27.0"},
        date="2026-11-22T03:14:15+00:00",
        measured={**lines.of(desc), **({"in_place": True} if in_place else {})},
    )
    return made._replace(**changes)


def rows(length: int, k: int = 16, count: int = 32) -> Operator:
    return top_k_desc(tensor("float32", (count, length)), 1, k, "decreasing")


def found(known: Logs, desc: Operator = ROWS, machine: Machine = HERE, in_place: bool = False) -> Found | None:
    return known.find("top_k", desc, in_place, machine)


def write(path: Path, *content: bytes | str | Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    each = (log_lines.encode(one) if isinstance(one, Record) else one for one in content)
    path.write_bytes(b"".join((one.encode() if isinstance(one, str) else one) + b"\n" for one in each))
    return path


def changed(**members: Any) -> str:
    """A line with other members; ``None`` takes one out."""
    line = {**json.loads(log_lines.encode(record())), **members}
    return json.dumps({name: value for name, value in line.items() if value is not None})


# -- Shape classes ------------------------------------------------------------------------------------------------

SIZES = [(0, 0), (1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (45, 32), (46, 64), (32000, 32768), (2**40 + 1, 2**40), (2**62 - 1, 2**62)]


class Sketch:
    """As much of a descriptor as a class is made of."""

    def __init__(self, **shape_class: int | str) -> None:
        self._shape_class = shape_class

    def shape_class(self) -> dict[str, int | str]:
        return self._shape_class


def class_of(in_place: bool = False, **shape_class: int | str) -> Mapping[str, int | str]:
    return logs.class_of(Sketch(**shape_class), in_place)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "power"), SIZES)
def test_a_size_is_the_power_of_two_that_is_nearest_by_ratio(size: int, power: int) -> None:
    assert class_of(rows=size) == {"rows": power}


@given(st.integers(1, 1 << 70))
def test_no_other_power_of_two_is_nearer(size: int) -> None:
    power = class_of(rows=size)["rows"]
    assert isinstance(power, int)
    assert power.bit_count() == 1
    assert size * size <= 2 * power * power
    assert power * power <= 2 * size * size


def test_words_stay_and_in_place_is_one() -> None:
    assert class_of(mode="up", rows=5) == {"mode": "up", "rows": 4}
    assert class_of(in_place=True, rows=5) == {"rows": 4, "in_place": "yes"}


def test_types_are_those_of_the_tensors_that_are_there() -> None:
    assert logs.types_of(ROWS) == {"InputTensor": "float32", "OutputValueTensor": "float32", "OutputIndexTensor": "uint32"}
    desc = diagonal_desc(tensor("float16", (6, 9)), 3.0, 0, 1, has_input=False)
    assert logs.types_of(desc) == {"OutputTensor": "float16"}


def test_an_older_operator_is_of_the_class_of_the_one_that_covers_it() -> None:
    value, index = TensorDesc("float32", (1, 1, 3, 8)), TensorDesc("uint32", (1, 1, 3, 8))
    desc = TopK(
        input_tensor=TensorDesc("float32", (1, 1, 3, 99)), output_value_tensor=value, output_index_tensor=index, axis=3, k=8
    )
    assert logs.class_of(desc) == logs.class_of(desc.canonical())
    assert logs.types_of(desc) == logs.types_of(desc.canonical())


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ({"k": 8, "rows": 4}, {"k": 8, "rows": 4}, 0),
        ({"k": 8, "rows": 4}, {"k": 16, "rows": 1}, 3),
        ({"k": 0}, {"k": 1}, 1),
        ({"k": 0}, {"k": 4}, 3),
        ({"k": 0}, {"k": 0}, 0),
        ({"k": 8, "mode": "up"}, {"k": 8, "mode": "down"}, None),
        ({"k": 8}, {"k": "8"}, None),
        ({"k": 8}, {"k": 8, "rows": 4}, None),
        ({"k": 8}, {"n": 8}, None),
    ],
)
def test_how_far_apart_classes_are(one: dict[str, int | str], other: dict[str, int | str], apart: int | None) -> None:
    assert logs.distance(one, other) == logs.distance(other, one) == apart


# -- Looking up ---------------------------------------------------------------------------------------------------


def test_a_record_of_the_very_class_is_found() -> None:
    known = Logs([record(rows(4000), knobs={"digit_bits": 11}), record()])
    assert found(known) == Found(record(), True, logs.stamp({"digit_bits": 8}))
    assert found(known, rows(1100)) == found(known)  # which is of this class, too
    assert len(known) == 2


def test_a_record_without_knobs_counts_as_well() -> None:
    known = Logs([record(knobs={}), record(rows(2000))])
    answer = found(known)
    assert answer is not None
    assert answer.exact
    assert not answer.record.knobs


def test_the_nearest_class_will_do_where_there_is_no_exact_one() -> None:
    known = Logs([record(rows(16000)), record(rows(4000)), record(rows(4000, k=32))])
    answer = found(known)
    assert answer is not None
    assert not answer.exact
    assert answer.record == record(rows(4000))
    assert found(Logs(known.records, nearest=False)) is None


def test_a_class_that_is_too_far_away_will_not_do() -> None:
    assert found(Logs([record(rows(4000))])) is not None
    assert found(Logs([record(rows(8000))])) is None
    assert found(Logs([record(rows(2000, k=32))])) is not None
    assert found(Logs([record(rows(2000, k=32, count=64))])) is None


def test_of_equally_near_classes_the_first_by_name_and_size_is_taken() -> None:
    near = [record(rows(500)), record(rows(2000)), record(rows(1000, k=8)), record(rows(1000, k=32))]
    for turn in range(4):
        answer = found(Logs(near[turn:] + near[:turn]))
        assert answer is not None
        assert answer.record == near[2]  # "k" comes before "length", and 8 before 32


def test_what_must_be_equal() -> None:
    known = Logs([record()])
    assert found(known) is not None
    assert known.find("element_wise_round", ROWS, False, HERE) is None
    assert found(known, machine=HERE._replace(threads=3)) is None
    assert found(known, machine=HERE._replace(target="cpu:x86-64-v4")) is None
    assert found(known, machine=HERE._replace(processor="GenuineIntel 6.85")) is None
    assert found(known, top_k_desc(tensor("float16", (32, 1000)), 1, 16, "decreasing")) is None
    assert found(known, in_place=True) is None
    assert found(known, top_k_desc(tensor("float32", (32, 1000), "spread"), 1, 16, "decreasing")) is None


def test_in_place_is_a_class_of_its_own() -> None:
    desc = round_desc(tensor("float32", (1000,)), "toward_zero")
    known = Logs([record(desc, in_place=True, knobs={})])
    assert known.find("element_wise_round", desc, True, HERE) is not None
    assert known.find("element_wise_round", desc, False, HERE) is None


def test_a_pack_s_records_hold_on_every_processor_with_the_target() -> None:
    other = HERE._replace(processor="GenuineIntel 6.85")
    own, near = record(knobs={"digit_bits": 6}), record(rows(2000), machine=other)
    known = Logs([record(machine=other), near, own], any_processor=True)
    assert found(known) == Found(own, True, logs.stamp(own.knobs))  # its own is preferred
    answer = found(known, machine=HERE._replace(processor=""))
    assert answer is not None
    assert answer.exact
    assert found(known, machine=HERE._replace(threads=1)) is None
    assert found(known, machine=HERE._replace(target="cpu:x86-64-v4")) is None


def test_of_records_of_one_key_the_first_counts() -> None:
    known = Logs([record(knobs={"digit_bits": 6}), record()])
    answer = found(known)
    assert answer is not None
    assert answer.record.knobs == {"digit_bits": 6}
    assert len(known) == 1


def test_a_record_whose_knobs_nobody_takes_is_as_if_it_were_absent() -> None:
    known = Logs([record(knobs={"digit_bits": 7}), record(rows(2000), knobs={"digit_bits": 6})])
    with pytest.warns(RuntimeWarning, match=r"left out: top_k knob digit_bits: given 7; .*`tvmdml tuning validate`"):
        answer = found(known)
    assert answer is not None
    assert answer.record.knobs == {"digit_bits": 6}
    assert found(Logs([record(knobs={"speed": "high"})], nearest=False)) is None  # and the warning comes once


def test_the_hash_stands_for_the_knobs_in_any_order() -> None:
    assert logs.stamp({"a": 1, "b": "x"}) == logs.stamp({"b": "x", "a": 1})
    assert len({logs.stamp(knobs) for knobs in ({}, {"a": 1}, {"a": "1"}, {"b": 1}, {"a": 2})}) == 5
    assert len(logs.stamp({})) == 12


def test_a_real_target_s_machine_is_found(own_place: Path) -> None:
    machine = targets.resolve("cpu").machine()
    logs.add(own_place, [record(machine=machine)])
    assert found(logs.installed(), machine=machine) == Found(record(machine=machine), True, logs.stamp({"digit_bits": 8}))


# -- What is installed --------------------------------------------------------------------------------------------


def installed_bits() -> object:
    answer = found(logs.installed())
    return None if answer is None else answer.record.knobs["digit_bits"]


def test_the_user_s_own_goes_before_what_is_shipped(own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_shipped", lambda: (tmp_path / "shipped",))
    assert logs.folders() == (own_place, tmp_path / "shipped")
    logs.add(tmp_path / "shipped", [record(knobs={"digit_bits": 6}, date="2027-01-01T00:00:00+00:00")])
    assert installed_bits() == 6
    logs.add(own_place, [record(knobs={"digit_bits": 8})])
    assert installed_bits() == 8


def test_the_folders_that_are_named_go_first(own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.add(own_place, [record(knobs={"digit_bits": 8})])
    for bits in (6, 11):
        logs.add(tmp_path / str(bits), [record(knobs={"digit_bits": bits})])
    assert installed_bits() == 8
    monkeypatch.setenv("TVMDML_TUNING_LOGS", f"{tmp_path / '11'}{os.pathsep}{os.pathsep}{tmp_path / '6'}")
    assert installed_bits() == 11
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path / "6"))
    assert installed_bits() == 6
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path / "6" / log_files.slug(HERE)))  # one machine's
    assert installed_bits() == 6


@pytest.mark.parametrize("name", ["absent", "~nobody-of-this-name/logs", "a file"])
def test_a_folder_that_is_not_there_is_warned_of_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("TVMDML_TUNING_LOGS", name if name.startswith("~") else str(tmp_path / name))
    with pytest.warns(RuntimeWarning, match=rf"TVMDML_TUNING_LOGS: '.*{name}' is no folder; it is left out"):
        assert len(logs.installed()) == 0
    logs.forget()
    assert len(logs.installed()) == 0


def test_the_environment_turns_logs_off(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.add(own_place, [record()])
    assert found(logs.installed(), rows(2000)) is not None
    monkeypatch.setenv("TVMDML_TUNING_NEAREST", "0")
    assert found(logs.installed(), rows(2000)) is None
    assert found(logs.installed()) is not None
    monkeypatch.setenv("TVMDML_TUNING", "0")
    assert found(logs.installed()) is None
    monkeypatch.setenv("TVMDML_TUNING", "1")
    assert found(logs.installed()) is not None


def test_logs_are_read_once_until_something_is_added(own_place: Path) -> None:
    logs.add(own_place, [record()])
    first = logs.installed()
    write(own_place / "x" / "top_k.jsonl", record(rows(64)))
    assert logs.installed() is first
    logs.add(own_place, [record(rows(9))])
    assert len(logs.installed()) == 3


def test_without_any_folder_there_are_no_records() -> None:
    assert logs.installed().records == ()
    assert found(logs.installed()) is None


def test_without_a_home_there_is_a_place_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    def fail(*arguments: object, **named: object) -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(platformdirs, "user_data_path", fail)
    assert logs.user_folder().is_absolute()


@pytest.mark.parametrize("module", ["tvmdml", "tvmdml.tuning.logs", "tvmdml.tuning.cli"])
def test_importing_is_quick(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "tvm", "tvm_ffi", "platformdirs", "filelock", "tvmdml.operators", "tvmdml.schedules"}
    assert not heavy & set(done.stdout.split())
    assert ("tvmdml.tuning" in done.stdout.split()) == (module != "tvmdml")


def test_what_is_shipped_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    folders = logs._shipped()
    assert [(folder / "README.md").is_file() for folder in folders] == [True]
    for line in log_files.read_all(log_files.files(folders[0])):
        assert line.record is not None, f"{line.where}: {line.problem}"
        assert not (problem := log_checks.outdated(line.record)), f"{line.where}: {problem}"
        assert line.path == log_files.file_of(folders[0], line.record)
    for path in log_files.files(folders[0]):
        before = path.read_bytes()
        known = [line.record for line in log_files.read(path) if line.record is not None]
        ordered = sorted(log_files.newest(known).values(), key=log_lines.order)
        assert "".join(log_lines.encode(one) + "\n" for one in ordered).encode() == before, f"{path} is as a merge leaves it"


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
    "NaN": (changed(seconds=float("nan")), "NaN is no number"),
    "infinity": (changed(seconds=float("inf")), "Infinity is no number"),
    "more than a float holds": (changed().replace("1.25e-05", "1e999"), "seconds: given inf"),
    "a name twice": (changed()[:-1] + ', "trials": 3}', "a name is there twice"),
    "a name twice inside": (changed().replace('"k": 16', '"k": 16, "k": 16'), "a name is there twice"),
    "a field less": (changed(trials=None), "allowed: an object with operator, machine"),
    "a field more": (changed(speed=1), "allowed: an object with operator, machine"),
    "an unknown operator": (changed(operator="gemm"), "operator: given 'gemm'; allowed: an operator's module"),
    "an operator's name": (changed(operator="TOP_K"), "operator: given 'TOP_K'"),
    "a path": (changed(operator="../top_k"), "operator: given"),
    "a module elsewhere": (changed(operator="_contract"), "operator: given '_contract'"),
    "an operator that is no string": (changed(operator=["top_k"]), "operator: given ['top_k']"),
    "no machine": (changed(machine="cpu"), "machine: given 'cpu'"),
    "half a machine": (changed(machine={"target": "cpu"}), "machine: given ['target']"),
    "a machine without a target": (changed(machine={"target": "", "processor": "", "threads": 1}), "machine target: given ''"),
    "threads below 0": (changed(machine={"target": "cpu", "processor": "", "threads": -1}), "machine threads: given -1"),
    "threads that are true": (changed(machine={"target": "cpu", "processor": "", "threads": True}), "machine threads: given True"),
    "colours for the terminal": (changed(machine={"target": "\x1b[31m", "processor": "", "threads": 1}), "can be printed"),
    "a line break": (changed(machine={"target": "cpu\ncpu", "processor": "", "threads": 1}), "can be printed"),
    "a long name": (changed(machine={"target": "x" * 600, "processor": "", "threads": 1}), "at most 512 characters"),
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
        logs.installed()  # it is said once


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


@settings(max_examples=200)
@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_random_lines_are_never_taken_and_never_an_exception_of_another_kind(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        log_lines.parse(raw)


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
        {"operator": "gemm"},
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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    write(path, b"\xff what is this", record(rows(64)), "{}", changed(operator="gemm"))
    logs.add(own_place, [record()])
    known = path.read_bytes().split(b"\n")
    assert known[:2] == [log_lines.encode(one).encode() for one in (record(rows(64)), record())]
    assert known[2:] == [b"\xff what is this", b"{}", changed(operator="gemm").encode(), b""]
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
    assert list(contents(own_place)) == [str(path.relative_to(own_place))]  # no lock, nothing left over


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
from tvmdml.tuning import log_lines, logs
record = log_lines.parse(sys.stdin.buffer.read())
for turn in range(12):
    name = sys.argv[2] + str(turn)
    logs.add(Path(sys.argv[1]), [record._replace(shape_class={"who": name})])
"""


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


# -- Whether a record still holds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "desc",
    [
        ROWS,
        round_desc(tensor("float16", (7, 33)), "toward_infinity"),
        nonzero_desc(tensor("int8", (40, 50))),
        diagonal_desc(tensor("float32", (6, 9)), float("inf"), 0, 1, has_input=False),
        diagonal_desc(tensor("uint16", (6, 9), "spread"), 3, -1, 2),
    ],
    ids=repr,
)
def test_a_good_record_holds(desc: Operator) -> None:
    made = log_lines.checked(record(desc))
    assert not log_checks.outdated(made)
    assert log_checks.outdated(made._replace(shape_class={**made.shape_class, "depth": 2})).startswith("shape_class: given")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"knobs": {"digit_bits": 7}}, "top_k knob digit_bits: given 7"),
        ({"knobs": {"speed": 7}}, "top_k knob: given 'speed'"),
        ({"operator": "element_wise_round", "knobs": {}}, "operator: given element_wise_round; allowed: top_k, as measured"),
        ({"types": {"InputTensor": "float16"}}, "types: given"),
        ({"shape_class": {"k": 16}}, "shape_class: given"),
        ({"measured": {"operator": "GEMM"}}, "GEMM"),
        ({"measured": {"operator": "TOP_K1", "K": 3}}, "measured"),
    ],
    ids=str,
)
def test_what_does_not_hold_any_more_is_said(changes: dict[str, Any], said: str) -> None:
    assert said in log_checks.outdated(log_lines.checked(record(**changes)))


def test_in_place_is_a_part_of_what_was_measured() -> None:
    desc = round_desc(tensor("float32", (1000,)), "toward_zero")
    made = record(desc, in_place=True)
    assert not log_checks.outdated(made)
    assert log_checks.outdated(made._replace(measured=lines.of(desc))).startswith("shape_class")


def test_other_schedules_are_noticed() -> None:
    stamp = source_stamp("top_k", targets.elsewhere(HERE.target)[0])
    assert not log_checks.has_other_schedules(record())
    assert not log_checks.has_other_schedules(record(versions={"schedules": stamp}))
    assert log_checks.has_other_schedules(record(versions={"schedules": "0123"}))
    assert not log_checks.has_other_schedules(record(versions={"schedules": "0123"}, machine=Machine("tpu:v9", "", 0)))


# -- The command --------------------------------------------------------------------------------------------------


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_show_lists_what_is_in_use(own_place: Path) -> None:
    logs.add(own_place, [record(), record(rows(64), machine=THERE, knobs={})])
    lines = call("tuning", "show").stdout.splitlines()
    assert lines[0].split()[:3] == ["operator", "shape", "class"]
    assert len(lines) == 3
    for part in ("top_k", "k=16", "cpu-x86-64-v3-", "digit_bits=8", "12.5 µs", "25 µs", "2.00", "64", "2026-11-22", str(own_place)):
        assert part in lines[1]
    assert "the defaults" in lines[2]
    assert len(call("tuning", "show", "--target", "cpu").stdout.splitlines()) == 2
    assert len(call("tuning", "show", "--target", "cpu:x86-64").stdout.splitlines()) == 1
    assert len(call("tuning", "show", "--operator", "top_k1").stdout.splitlines()) == 3
    assert call("tuning", "show", "--operator", "DIAGONAL_MATRIX").stdout == f"no records, in {own_place}\n"
    assert "allowed: DIAGONAL_MATRIX" in call("tuning", "show", "--operator", "GEMM").stderr


def test_show_lists_other_folders_and_prints_json(tmp_path: Path) -> None:
    logs.add(tmp_path / "logs", [record()])
    (row,) = json.loads(call("tuning", "show", str(tmp_path / "logs"), "--json").stdout)
    assert row.pop("folder") == str(tmp_path / "logs")
    assert row == json.loads(log_lines.encode(record()))


OPERATION = (
    "--operator",
    "TOP_K1",
    "--shape",
    "32,1000",
    "--attr",
    "K=16",
    "--attr",
    "Axis=1",
    "--attr",
    "AxisDirection=DECREASING",
)


def test_show_says_which_record_an_operation_uses(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = targets.resolve("cpu").machine()
    logs.add(own_place, [record(machine=here)])
    exact = call("tuning", "show", *OPERATION).stdout.splitlines()
    assert exact[1:3] == ["exact", f"knobs: digit_bits=8 ({logs.stamp({'digit_bits': 8})})"]
    assert exact[3] == "12.5 µs, the defaults 25 µs: ratio 2.00 (64 trials, 2026-11-22T03:14:15+00:00)"
    near = [word.replace("1000", "2000").replace("K=16", "K=8") for word in OPERATION]
    assert "nearest, 2 away: inner=1 k=16 layout=packed length=1024 rows=32" in call("tuning", "show", *near).stdout
    answer = json.loads(call("tuning", "show", *near, "--json").stdout)
    assert (answer["distance"], answer["found"]["exact"], answer["found"]["record"]["knobs"]) == (2, False, {"digit_bits": 8})
    monkeypatch.setenv("TVMDML_TUNING_NEAREST", "0")
    assert "none at most 0 away: inner=1 k=16" in call("tuning", "show", *near).stdout
    monkeypatch.setenv("TVMDML_TUNING", "0")
    assert call("tuning", "show", *OPERATION).stdout.endswith(
        "no record, so the defaults hold: TVMDML_TUNING=0 leaves out all logs.\n"
    )


def test_show_says_why_there_is_no_record(own_place: Path) -> None:
    def why(*made: Record) -> str:
        for path in own_place.rglob("*.jsonl"):
            path.unlink()
        logs.add(own_place, made)
        return call("tuning", "show", *OPERATION).stdout.partition("no record, so the defaults hold: ")[2]

    here = targets.resolve("cpu").machine()
    half = top_k_desc(tensor("float16", (32, 1000)), 1, 16, "decreasing")
    assert why() == "the logs have none of top_k.\n"
    assert why(record(machine=THERE)) == f"the logs have it for other machines: {log_files.slug(THERE)}.\n"
    assert "other types: InputTensor=float16" in why(record(half, machine=here))
    assert "none at most 2 away: inner=1 k=16 layout=packed length=16384" in why(record(rows(16000), machine=here))
    many = [record(rows(1 << n), machine=here) for n in range(14, 20)]
    assert why(*many).endswith("; and 3 more.\n")
    with pytest.warns(RuntimeWarning):
        assert "no schedule takes any more" in why(record(machine=here, knobs={"digit_bits": 7}))


def test_show_wants_a_whole_operation() -> None:
    assert "Give the operation's --operator" in call("tuning", "show", "--sizes", "3").stderr
    assert "Give the input's --sizes" in call("tuning", "show", "--operator", "TOP_K1", "--attr", "K=3").stderr
    assert "in_place: given TOP_K1" in call("tuning", "show", *OPERATION, "--in-place").stderr


def test_show_takes_an_operation_that_only_an_extension_has(own_place: Path) -> None:
    desc = round_desc(tensor("float64", (1000,)), "halves_to_nearest_even")
    logs.add(own_place, [record(desc, machine=targets.resolve("cpu").machine(), in_place=True)])
    words = ("--operator", "ELEMENT_WISE_ROUND", "--sizes", "1000", "--dtype", "float64", "--in-place")
    assert call("tuning", "show", *words).stdout.splitlines()[1] == "exact"


def test_validate_lists_bad_lines(tmp_path: Path) -> None:
    twin = record(date="2026-11-23T00:00:00+00:00")
    old = record(rows(64), versions={"schedules": "0123"})
    path = write(tmp_path / "m" / "top_k.jsonl", record(), "{}", record(rows(9), knobs={"digit_bits": 7}), twin, old)
    done = call("tuning", "validate", str(tmp_path))
    assert done.exit_code == 1
    said = done.stdout.splitlines()
    assert said[0].startswith(f"{path}:2: line: given []; allowed: an object with operator")
    assert said[1].startswith(f"{path}:3: top_k knob digit_bits: given 7")
    assert said[2] == f"{path}:1: note: {path}:4 has a newer one of this key, which counts instead"
    assert said[3].startswith(f"{path}: note: 1 were made with other schedules")
    assert said[4] == "3 good, 2 bad, in 1 files"


def test_validate_looks_at_all_that_is_in_use(own_place: Path) -> None:
    assert call("tuning", "validate").stdout == "0 good, 0 bad, in 0 files\n"
    (path,) = logs.add(own_place, [record()])
    done = call("tuning", "validate")
    assert (done.exit_code, done.stdout) == (0, "1 good, 0 bad, in 1 files\n")
    assert call("tuning", "validate", str(path)).stdout == "1 good, 0 bad, in 1 files\n"
    assert call("tuning", "validate", str(path / "absent")).exit_code == 2


def test_a_key_in_two_folders_is_nothing_to_note(own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path / "more"))
    logs.add(own_place, [record(date="2027-01-01T00:00:00+00:00")])
    logs.add(tmp_path / "more", [record()])
    assert call("tuning", "validate").stdout == "2 good, 0 bad, in 2 files\n"


def test_merge_says_what_it_did(tmp_path: Path) -> None:
    one, other, into = (tmp_path / name for name in ("one", "other", "into"))
    (path,) = logs.add(one, [record(), record(rows(64))])
    logs.add(other, [record(date="2027-01-01T00:00:00+00:00"), record(rows(99)), record(machine=THERE)])
    write(other / "m" / "x.jsonl", "{}")
    assert call("tuning", "merge", str(path), "-o", str(into)).stdout == f"{into}: 2 added, 0 replaced, 0 kept, in 1 files\n"
    done = call("tuning", "merge", str(one), str(other), "-o", str(into))
    assert done.stdout == f"{into}: 2 added, 1 replaced, 1 kept, in 2 files\n"
    assert "x.jsonl:1: left out: line: given []" in done.stderr
    assert call("tuning", "validate", str(into)).stdout == "4 good, 0 bad, in 2 files\n"
    assert "0 added, 0 replaced, 4 kept" in call("tuning", "merge", str(one), str(other), "-o", str(into)).stdout


def test_prune_removes_what_is_of_no_use(own_place: Path) -> None:
    good, twin = record(), record(date="2026-11-23T00:00:00+00:00")
    illegal, old = record(rows(9), knobs={"digit_bits": 7}), record(rows(64), date="2001-01-01T00:00:00+00:00")
    path = write(own_place / "m" / "top_k.jsonl", good, "{}", illegal, twin, twin, old, "{}")
    lonely = write(own_place / "n" / "top_k.jsonl", "{}")
    before = contents(own_place)
    done = call("tuning", "prune", "--dry-run")
    assert done.stdout.endswith(f"{own_place}: 6 would go, 2 left\n")
    assert contents(own_place) == before
    done = call("tuning", "prune")
    assert f"{path}:1: " in done.stdout
    assert f"{path}:3: top_k knob digit_bits" in done.stdout
    assert path.read_text() == "".join(log_lines.encode(one) + "\n" for one in (old, twin))
    assert not lonely.parent.exists()
    done = call("tuning", "prune", "--older-than", "3650")
    assert "of 2001-01-01" in done.stdout
    assert path.read_text() == log_lines.encode(twin) + "\n"
    assert call("tuning", "prune").stdout == f"{own_place}: 0 removed, 1 left\n"


def test_prune_has_nothing_to_do_where_nothing_is(own_place: Path) -> None:
    assert call("tuning", "prune").stdout == f"{own_place}: 0 removed, 0 left\n"
    assert call("tuning", "prune", "--older-than", "1e9").exit_code == 2


@pytest.mark.filterwarnings("ignore:tvmdml. a record")
def test_where_knobs_are_gone_the_next_folders_record_counts() -> None:
    desc = top_k_desc(tensor("float32", (4, 150)), 1, 11, "decreasing")
    machine = targets.resolve("cpu").machine()
    good = _of(desc, machine, {"digit_bits": 8})
    found = Logs([good._replace(knobs={"digit_bits": 77}), good]).find("top_k", desc, False, machine)
    assert found is not None
    assert found.record == good


def _of(desc: Operator, machine: Machine, knobs: Mapping[str, Any]) -> Record:
    line = lines.of(desc)
    classes = logs.types_of(desc), logs.class_of(desc)
    return Record("top_k", machine, *classes, knobs, 1e-6, 0.1, 2e-6, 3, {"tvmdml": "0"}, "2026-11-22T00:00:00+00:00", line)


def test_a_folder_that_nobody_may_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a service has kept another user's HOME."""

    def refuse(self: Path, *_: object) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refuse)
    monkeypatch.setattr(Path, "glob", refuse)
    monkeypatch.setattr(stores, "_warned", set())
    monkeypatch.setenv("TVMDML_TUNING", "1")
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path))
    logs.forget()
    with pytest.warns(RuntimeWarning, match="left out"):
        assert len(logs.installed()) == 0
    logs.forget()
