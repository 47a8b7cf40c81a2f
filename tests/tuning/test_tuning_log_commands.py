"""The commands for logs, and whether a record is still valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import call
from support import diagonal_desc, nonzero_desc, round_desc, tensor, top_k_desc
from tuning_records import HERE, ROWS, THERE, contents, record, rows, write

from tvmdml import targets
from tvmdml.library import lines, log_files, log_lines, logs
from tvmdml.library.log_terms import Machine, Record
from tvmdml.library.stamps import source_stamp
from tvmdml.operators import Operator
from tvmdml.system import console
from tvmdml.tuning import log_checks

pytestmark = pytest.mark.usefixtures("own_place")

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
        ({"measured": {"operator": "NO_SUCH_OPERATOR"}}, "NO_SUCH_OPERATOR"),
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


def test_show_lists_what_is_in_use(own_place: Path) -> None:
    logs.add(own_place, [record(), record(rows(64), machine=THERE, knobs={})])
    lines = call("tuning", "show", str(own_place)).stdout.splitlines()
    assert len(lines) == 6
    assert re.fullmatch(rf"top_k on cpu-x86-64-v3-.*, in {re.escape(str(own_place))}", lines[0])
    assert lines[1].split()[:3] == ["shape", "class", "types"]
    for part in ("k=16", "digit_bits=8", "12.5 µs", "25 µs", "2.00", "64", "2026-11-22"):
        assert part in lines[2]
    assert "the defaults" in lines[5]
    for option in ("--target", "--device"):
        assert len(call("tuning", "show", option, "cpu").stdout.splitlines()) == 3
        assert len(call("tuning", "show", option, "cpu:x86-64").stdout.splitlines()) == 1
    assert len(call("tuning", "show", "--operator", "top_k1").stdout.splitlines()) == 6
    assert call("tuning", "show", "--operator", "DIAGONAL_MATRIX").stdout == f"no records, in {own_place}\n"
    assert "allowed: the names of" in call("tuning", "show", "--operator", "NO_SUCH_OPERATOR").stderr


def test_show_without_arguments_only_counts_the_records(own_place: Path) -> None:
    logs.add(own_place, [record(), record(rows(64)), record(rows(64), machine=THERE)])
    here, there, advice = call("tuning", "show").stdout.splitlines()
    assert re.fullmatch(rf"2 records of top_k on cpu-x86-64-v3-.*, in {re.escape(str(own_place))}", here)
    assert there.startswith("1 record of top_k on ")
    assert advice == "Give a FOLDER, --operator or --target to show the records."


def test_show_is_legible_on_a_narrow_terminal(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No word of a table is cut, however long the machine's name is."""
    monkeypatch.setattr(console, "width", lambda: 100)
    logs.add(own_place, [record(machine=Machine("cpu:x86-64-v4+" + "+".join(f"avx512feature{i}" for i in range(9)), "Maker", 64))])
    heading, *table = call("tuning", "show", str(own_place)).stdout.splitlines()
    assert "avx512feature8" in heading
    assert max(map(len, table)) <= 100
    words = " ".join(table).split()
    members = [f"{name}={value}" for name, value in record().shape_class.items()]
    assert {"median", "default", "ratio", "trials", "date", "2026-11-22", *members} <= set(words)


def test_show_lists_other_folders_and_prints_json(tmp_path: Path) -> None:
    logs.add(tmp_path / "logs", [record()])
    (row,) = json.loads(call("tuning", "show", str(tmp_path / "logs"), "--json").stdout)
    assert row.pop("folder") == str(tmp_path / "logs")
    assert row == json.loads(log_lines.encode(record()))


OPERATION = (
    "--operator", "TOP_K1", "--shape", "32,1000", "--attr", "K=16", "--attr", "Axis=1", "--attr", "AxisDirection=DECREASING",
)  # fmt: skip


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
    assert "none within distance 0: inner=1 k=16" in call("tuning", "show", *near).stdout
    monkeypatch.setenv("TVMDML_TUNING", "0")
    assert call("tuning", "show", *OPERATION).stdout.endswith(
        "no record, so the defaults are used: TVMDML_TUNING=0 disables all logs.\n"
    )


def test_show_says_why_there_is_no_record(own_place: Path) -> None:
    def why(*made: Record) -> str:
        for path in own_place.rglob("*.jsonl"):
            path.unlink()
        logs.add(own_place, made)
        return call("tuning", "show", *OPERATION).stdout.partition("no record, so the defaults are used: ")[2]

    here = targets.resolve("cpu").machine()
    half = top_k_desc(tensor("float16", (32, 1000)), 1, 16, "decreasing")
    assert why() == "the logs have no records of top_k.\n"
    assert why(record(machine=THERE)) == f"the logs have records for other machines: {log_files.slug(THERE)}.\n"
    assert "other types: InputTensor=float16" in why(record(half, machine=here))
    assert "none within distance 2: inner=1 k=16 layout=packed length=16384" in why(record(rows(16000), machine=here))
    many = [record(rows(1 << n), machine=here) for n in range(14, 20)]
    assert why(*many).endswith("; and 3 more.\n")
    with pytest.warns(RuntimeWarning):
        assert "no longer accepted by any schedule" in why(record(machine=here, knobs={"digit_bits": 7}))


def test_show_wants_a_whole_operation() -> None:
    assert "Give the operation's --operator" in call("tuning", "show", "--sizes", "3").stderr
    assert "Give the input's --sizes" in call("tuning", "show", "--operator", "TOP_K1", "--attr", "K=3").stderr
    assert "given in_place = true for TOP_K1; allowed: false" in call("tuning", "show", *OPERATION, "--in-place").stderr


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
    assert said[2] == f"{path}:1: note: {path}:4 has a newer record of this key, which is used instead"
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
    assert done.stdout.endswith(f"{own_place}: 6 would be removed, 2 left\n")
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
