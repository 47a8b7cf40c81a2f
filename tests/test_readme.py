"""What the README shows is what comes out."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tvmdml import DeviceError, operators, targets
from tvmdml.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_sessions_run_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 7
    for i, block in enumerate(blocks):
        if lacking := next((why for word, missing in _NEEDS.items() if word in block and (why := missing())), ""):
            print(f"README block {i} was not run: {lacking}")  # noqa: T201 - what was skipped, and why
            continue
        test = doctest.DocTestParser().get_doctest(block, names, f"README block {i}", "README.md", 0)
        runner.run(test, clear_globs=False)
        names.update(test.globs)
    assert runner.summarize().failed == 0
    assert runner.summarize().attempted > 12


def _no_vulkan() -> str:
    try:
        targets.resolve("vulkan")
    except DeviceError as error:
        if os.environ.get("TVMDML_EXPECT_VULKAN") == "1":
            raise
        return str(error)
    return ""


# What sessions take that a machine may lack, by a word that they have.
_NEEDS: dict[str, Callable[[], str]] = {
    "vulkan": _no_vulkan,
    "torch": lambda: "" if importlib.util.find_spec("torch") else "there is no PyTorch",
}


def test_the_model_prints_what_is_shown() -> None:
    shown = re.search(r"\$ tvmdml (run .*?)\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    model = Path(__file__).parents[1] / shown[1].split()[1]
    printed = CliRunner().invoke(main, ["run", str(model)])
    assert printed.exit_code == 0, printed.output
    resources = [line for line in shown[2].splitlines() if line.startswith("Resource")]
    assert len(resources) == 4
    assert [line for line in printed.output.splitlines() if line.startswith("Resource")] == resources


def test_every_operator_is_in_the_table() -> None:
    table = README.partition("## Operators")[2].partition("##")[0]
    assert [name for name in operators.all_operators() if name not in table] == []
