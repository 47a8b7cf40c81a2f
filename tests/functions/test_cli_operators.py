"""The command on operators, and what ``help`` says of them; terminals, and completion in shells."""

from __future__ import annotations

import json
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
from commands import call
from test_cli import failure, lines, misuse

import tvmdml
from tvmdml import operators
from tvmdml.commands import reference
from tvmdml.system import console


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TOP_K1", ["TOP_K1"]),
        ("DML_OPERATOR_TOP_K1", ["TOP_K1"]),
        ("DML_TOP_K1_OPERATOR_DESC", ["TOP_K1"]),
        ("TopK1", ["TOP_K1"]),
        ("top_k", ["TOP_K1"]),
        ("pow", ["ELEMENT_WISE_POW"]),
        ("multihead_attention", ["MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1"]),
    ],
)
def test_an_operator_is_shown_by_any_of_its_names(name: str, expected: list[str]) -> None:
    assert [row["name"] for row in json.loads(call("operators", name, "--json").stdout)] == expected


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TOPK", "TOP_K or TOP_K1"),
        ("topk", "top_k"),
        ("maxpool", "max_pooling"),
        ("matmul", "gemm"),
        ("softmax", "activation_softmax"),
        ("concat", "join"),
    ],
)
def test_a_wrong_name_of_an_operator_is_told_the_near_one(name: str, near: str) -> None:
    assert f"Did you mean {near}" in " ".join(misuse("operators", name).split())


def test_what_is_shown_of_an_operator_is_what_its_contract_and_schedules_say() -> None:
    text = "\n".join(lines("operators", "TOP_K1"))
    for part in (
        "DML_OPERATOR_TOP_K1, from feature level 2.1",
        "tvmdml.top_k(input, k, *, axis=-1, axis_direction=DECREASING",
        "AxisDirection: increasing, decreasing",
        "5.0        InputTensor, OutputValueTensor: float16, float32, int8 to int64, uint8 to uint64;",
        "cpu: schedules/cpu/top_k.py",
        "cuda, vulkan: schedules/gpu/top_k.py",
        "rank_length       64: the longest row that is ranked as a whole (8, 16, …, 512)",
    ):
        assert part in text


def test_operators_are_listed_by_a_part_of_a_name() -> None:
    found = [row["name"] for row in json.loads(call("operators", "--match", "Pool", "--json").stdout)]
    assert found == [name for name in operators.all_operators() if "POOL" in name]
    assert [line.split()[0] for line in lines("operators", "--match", "top_k")[1:]] == ["TOP_K", "TOP_K1"]
    assert "--match: given 'zzz'" in failure("operators", "--match", "zzz")


@pytest.mark.parametrize("name", [cls.__name__ for cls in operators.all_operators().values()])
def test_help_of_a_descriptor_is_short_and_describes_the_operator(name: str) -> None:
    cls = getattr(tvmdml, name)
    text = pydoc.plain(pydoc.render_doc(cls))
    assert f"DML_OPERATOR_{cls.NAME}, from feature level {cls.feature_level()}" in text
    assert all(field.dml_name in text for field in cls.fields())
    assert len(text.splitlines()) < 170
    assert "shape_class" not in text  # of schedules
    assert dir(cls) == sorted(dir(cls))


# -- Terminals and shells -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_operators(shell: str) -> None:
    page = (Path(tvmdml.__file__).parent / "COMMAND.md").read_text()
    assert f"_TVMDML_COMPLETE={shell}_source tvmdml" in page

    def completed(*words: str) -> str:
        line = " ".join(words)
        own = {"_TVMDML_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        own["COMP_CWORD"] = words[-1] if shell == "fish" else own["COMP_CWORD"]
        command = [sys.executable, "-m", "tvmdml"]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **own}).stdout

    source = subprocess.run(
        [sys.executable, "-m", "tvmdml"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "_TVMDML_COMPLETE": f"{shell}_source"},
    )
    assert "_TVMDML_COMPLETE" in source.stdout
    assert "operators" in completed("tvmdml", "op")
    assert "TOP_K1" in completed("tvmdml", "operators", "top_")
    assert "--match" in completed("tvmdml", "operators", "--ma")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("cpu:x86-64-v4+gfni+avx512vnni", "cpu:x86-64-v4 +2"),
        ("cpu:aarch64", "cpu:aarch64"),
        ("cuda:sm_90", "cuda:sm_90"),
        ("vulkan features", "vulkan #bfc0dc13"),
    ],
)
def test_names_of_targets_are_short_in_tables(name: str, short: str) -> None:
    assert console.short_target(name) == short


def test_no_color_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in call("operators", "--match", "zzz", color=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in call("operators", "--match", "zzz", color=True).stderr


def test_a_narrow_terminal_gets_narrow_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = reference.text(operators.by_name("GEMM"), width=60)
    assert "alpha" in text
    assert max(map(len, text.splitlines())) <= 68  # a long word is not cut
    monkeypatch.setattr(console, "width", lambda: 40)
    assert max(map(len, lines("operators", "--match", "gemm"))) <= 40
