"""Tuning logs: the right record is found, by its shape class, in the right folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from programs import python
from support import IN_PLACE, diagonal_desc, round_desc, tensor, top_k_desc
from tuning_records import HERE, ROWS, found, installed_bits, record, rows, write

from tvmdml import TensorDesc, TopK, targets
from tvmdml.library import log_files, log_folders, log_lines, logs
from tvmdml.library.logs import AppliedRecord, Logs
from tvmdml.operators._contract import Shared
from tvmdml.system.disk import places, stores
from tvmdml.tuning import log_checks

pytestmark = pytest.mark.usefixtures("own_place")

# -- Shape classes ------------------------------------------------------------------------------------------------


class Sketch:
    """As much of a descriptor as a class is made of."""

    def __init__(self, **shape_class: int | str) -> None:
        self._shape_class = shape_class

    def pairs(self) -> Shared:
        return IN_PLACE

    def shape_class(self) -> dict[str, int | str]:
        return self._shape_class


def class_of(in_place: bool = False, **shape_class: int | str) -> Mapping[str, int | str]:
    return logs.class_of(Sketch(**shape_class), IN_PLACE if in_place else ())  # type: ignore[arg-type]


@given(st.integers(1, 1 << 70))
def test_a_size_is_the_power_of_two_that_is_nearest_by_ratio(size: int) -> None:
    power = class_of(rows=size)["rows"]
    assert isinstance(power, int)
    assert power.bit_count() == 1
    assert size * size <= 2 * power * power
    assert power * power <= 2 * size * size


def test_words_stay_and_in_place_is_one() -> None:
    assert class_of(mode="up", rows=5) == {"mode": "up", "rows": 4}
    assert class_of(rows=0) == {"rows": 0}
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
    assert found(known) == AppliedRecord(record(), True, logs.stamp({"digit_bits": 8}))
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
    assert known.find("pointwise", ROWS, (), HERE) is None
    assert found(known, machine=HERE._replace(threads=3)) is None
    assert found(known, machine=HERE._replace(target="cpu:x86-64-v4")) is None
    assert found(known, machine=HERE._replace(processor="GenuineIntel 6.85")) is None
    assert found(known, top_k_desc(tensor("float16", (32, 1000)), 1, 16, "decreasing")) is None
    assert found(known, in_place=True) is None
    assert found(known, top_k_desc(tensor("float32", (32, 1000), "spread"), 1, 16, "decreasing")) is None


def test_in_place_is_a_class_of_its_own() -> None:
    desc = round_desc(tensor("float32", (1000,)), "toward_zero")
    known = Logs([record(desc, in_place=True, knobs={})])
    assert known.find("pointwise", desc, IN_PLACE, HERE) is not None
    assert known.find("pointwise", desc, (), HERE) is None


def test_a_pack_s_records_hold_on_every_processor_with_the_target() -> None:
    other = HERE._replace(processor="GenuineIntel 6.85")
    own, near = record(knobs={"digit_bits": 6}), record(rows(2000), machine=other)
    known = Logs([record(machine=other), near, own], any_processor=True)
    assert found(known) == AppliedRecord(own, True, logs.stamp(own.knobs))  # its own record is preferred
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
    assert found(Logs([record(knobs={"speed": "high"})], nearest=False)) is None  # and there is only one warning


def test_the_hash_stands_for_the_knobs_in_any_order() -> None:
    assert logs.stamp({"a": 1, "b": "x"}) == logs.stamp({"b": "x", "a": 1})
    assert len({logs.stamp(knobs) for knobs in ({}, {"a": 1}, {"a": "1"}, {"b": 1}, {"a": 2})}) == 5
    assert len(logs.stamp({})) == 12


def test_a_real_target_s_machine_is_found(own_place: Path) -> None:
    machine = targets.resolve("cpu").machine()
    logs.add(own_place, [record(machine=machine)])
    assert found(logs.installed(), machine=machine) == AppliedRecord(record(machine=machine), True, logs.stamp({"digit_bits": 8}))


@pytest.mark.filterwarnings("ignore:tvmdml. a record")
def test_where_knobs_are_gone_the_next_folders_record_counts() -> None:
    desc = top_k_desc(tensor("float32", (4, 150)), 1, 11, "decreasing")
    machine = targets.resolve("cpu").machine()
    good = record(desc, machine=machine)
    found = Logs([good._replace(knobs={"digit_bits": 77}), good]).find("top_k", desc, False, machine)
    assert found is not None
    assert found.record == good


# -- What is installed --------------------------------------------------------------------------------------------


def test_the_user_s_own_goes_before_what_is_shipped(own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_folders, "_shipped", lambda: (tmp_path / "shipped",))
    assert log_folders.folders() == (own_place, tmp_path / "shipped")
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
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path / "6" / log_files.slug(HERE)))  # of one machine
    assert installed_bits() == 6


@pytest.mark.parametrize("name", ["absent", "~nobody-of-this-name/logs", "a file"])
def test_a_folder_that_is_not_there_is_warned_of_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("TVMDML_TUNING_LOGS", name if name.startswith("~") else str(tmp_path / name))
    with pytest.warns(RuntimeWarning, match=rf"TVMDML_TUNING_LOGS: '.*{name}' is not a folder; it is left out"):
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

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(platformdirs, "user_data_dir", fail)
    assert log_folders.user_folder().is_absolute()


@pytest.mark.parametrize("home", ["/home/one", "there", ""])
@pytest.mark.parametrize("given", ["/large/place", "place", ""])
def test_a_user_s_folders_are_those_of_platformdirs(monkeypatch: pytest.MonkeyPatch, given: str, home: str) -> None:
    import platformdirs

    for name, value in {"HOME": home, "XDG_CACHE_HOME": given, "XDG_DATA_HOME": given}.items():
        monkeypatch.setenv(name, value)
    assert places.user_folder("cache") == Path(platformdirs.user_cache_dir("tvmdml", appauthor=False))
    assert places.user_folder("data") == Path(platformdirs.user_data_dir("tvmdml", appauthor=False))


@pytest.mark.parametrize("module", ["tvmdml", "tvmdml.library.logs", "tvmdml.tuning.cli"])
def test_importing_is_quick(module: str) -> None:
    loaded = set(python(f"import sys, {module}; print(*sys.modules)").split())
    heavy = {"numpy", "tvm", "tvm_ffi", "platformdirs", "tvmdml.operators", "tvmdml.schedules"}
    assert not heavy & loaded
    assert bool({"tvmdml.library", "tvmdml.tuning"} & loaded) == (module != "tvmdml")


def test_what_is_shipped_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    folders = log_folders._shipped()
    assert [(folder / "README.md").is_file() for folder in folders] == [True]
    for line in log_files.read_all(log_folders.files(folders[0])):
        assert line.record is not None, f"{line.where}: {line.problem}"
        assert not (problem := log_checks.outdated(line.record)), f"{line.where}: {problem}"
        assert line.path == log_files.file_of(folders[0], line.record)
    for path in log_folders.files(folders[0]):
        before = path.read_bytes()
        known = [line.record for line in log_files.read(path) if line.record is not None]
        ordered = sorted(log_files.newest(known).values(), key=log_lines.order)
        assert "".join(log_lines.encode(one) + "\n" for one in ordered).encode() == before, f"{path} is as a merge leaves it"


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
