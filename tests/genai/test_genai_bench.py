"""``tvmdml bench FOLDER``: words and prompts of a language model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from commands import call

from tvmdml.proof.bench import language, measure

LEAST = measure.QUICK._replace(rounds=1, least_rounds=1, budget=0.0)


def test_a_word_and_a_prompt_are_measured(folder: Path) -> None:
    rows = language.figures(str(folder), None, 1, LEAST)
    assert [row["what"] for row in rows] == ["a token after 63", "a prompt of 64"]
    for row in rows:
        assert list(row) == list(language.COLUMNS)
        assert (row["model"], row["threads"]) == (folder.name, 1)
        assert float(row["tvmdml"].split()[0]) > 0
        if importlib.util.find_spec("onnxruntime") is not None:
            assert float(row["difference"]) < 1e-5
        else:
            assert "is not installed" in row["ONNX Runtime"]


@pytest.mark.parametrize("more", [["--vary", "rows=1:2:1"], ["--size", "rows=1"], ["other.onnx"]])
def test_folders_are_measured_alone(folder: Path, more: list[str], tmp_path: Path) -> None:
    (tmp_path / "other.onnx").touch()
    given = [str(tmp_path / name) if name.endswith(".onnx") else name for name in more]
    done = call("bench", folder, *given)
    assert done.exit_code == 2
    assert "folders of language models are measured alone" in done.output
