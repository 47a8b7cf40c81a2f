"""What the README shows is what comes out."""

from __future__ import annotations

import doctest
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tvmdml import DeviceError, operators, targets
from tvmdml.bench import results
from tvmdml.cli import main
from tvmdml.packs import building, sources

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


def test_every_operator_is_in_the_table() -> None:
    table = README.partition("## Operators")[2].partition("##")[0]
    assert [name for name in operators.all_operators() if name not in table] == []


# -- Commands -----------------------------------------------------------------------------------------------------

# A pack of few kernels, in place of the 57 that take a minute: the operation of the example in C, and one of the wheel's tests.
_SPEC = """
targets = ["cpu"]

[[operators]]
operator = "TOP_K1"
types = "float32"
sizes = [4, 1000]
K = 3
Axis = 1
AxisDirection = "DECREASING"

[[operators]]
operator = "ELEMENT_WISE_ROUND"
types = "float32"
sizes = [4, 3]
in_place = [false, true]
"""
_APP = """
import numpy as np, tvmdml
assert tvmdml.top_k(np.arange(4000, dtype="float32").reshape(4, 1000), 3).indices.tolist() == [[999, 998, 997]] * 4
"""
_MINUTES, _SERVER = "it takes minutes", "it is a server"
# The commands that are not run as they stand, and why: those of `tvmdml` are read by its parser, as far as running them.
_NOT_RUN = {
    "tvmdml tune TOP_K1 --shape 1000,4096 --attr K=5 --attr Axis=0 --attr AxisDirection=DECREASING --trials 64": _MINUTES,
    "tvmdml tune --spec tests/models/pack.toml --target cpu": _MINUTES,
    "tvmdml tune --bench --report tuned.html": _MINUTES,
    "tvmdml bench --tuned": _MINUTES,
    "tvmdml conformance --device vulkan --json report.json": _MINUTES,
    "tvmdml bench --json now.json --plot now.png": _MINUTES,
    "tvmdml bench --full --json full.json": _MINUTES,
    'tvmdml bench --operator TOP_K1 --filter "k 50" --compare now.json': _MINUTES,
    "python -m tvm.exec.rpc_tracker --host=10.0.0.1 --port=9190 --port-end=9191": _SERVER,
    "python -m tvm.exec.rpc_server --host=10.0.0.2 --port=9090 --port-end=9091 --tracker=10.0.0.1:9190 --key=bench": _SERVER,
    "pip install '.[bench]' torch": "it downloads",
}
_RUN = (
    "tvmdml run tests/models/round.json",
    "tvmdml pack build tests/models/pack.toml -o ops.tvmdml",
    "tvmdml pack verify ops.tvmdml --seed 1",
    "TVMDML_PACKS=ops.tvmdml TVMDML_DISABLE_JIT=1 python app.py",
)
# Commands within sentences that are run as well, in this order; of the others the names of commands and options are looked at.
_RUN_OF_TEXT = (
    "tvmdml operators",
    "tvmdml operators --json",
    "tvmdml devices",
    "tvmdml cache info",
    "tvmdml source TOP_K1 --sizes 32,32000 --attr K=50 --attr Axis=1 --device cuda:sm_90 --kind cuda",
    "tvmdml pack record -o spec.toml -- python app.py",
    "tvmdml pack header ops.tvmdml -o folder",
    "tvmdml pack keygen private.pem public.pem",
    "tvmdml pack sign ops.tvmdml --key private.pem",
    "tvmdml pack verify ops.tvmdml --key public.pem",
)


def _shown() -> list[tuple[str, list[str]]]:
    """The commands of README's blocks, without their comments, and the lines that are shown to come out."""
    found: list[tuple[str, list[str]]] = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        if language:
            continue
        into: list[str] | None = None
        prompts = ("$ ",) if "$ " in block else ("python ", "tvmdml ", "pip ")
        for line in block.splitlines():
            if line.startswith(prompts):
                found.append((" ".join(shlex.join(shlex.split(line, comments=True)).removeprefix("'$'").split()), into := []))
            elif into is not None:
                into.append(line)
    return found


def _of_text() -> list[str]:
    """The commands in README's sentences."""
    text = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(found.split()) for found in re.findall(r"`((?:tvmdml|python|TVMDML_\w+=\S+) [^`]+)`", text)]


def _masked(lines: list[str]) -> list[str]:
    """Without what differs from machine to machine and from run to run: numbers, sizes and names of processors."""
    shown = [re.sub(r"'[^']*threads'", "'…'", line) for line in lines]
    return [line if line.startswith("Resource") else re.sub(r"[\d.]+( [KM]i?B)?", "#", line) for line in shown]


def _look_up(words: list[str]) -> tuple[click.Command, list[str], click.Context]:
    """The command that words begin with, the words after its name, and what surrounds it."""
    command, context = main, click.Context(main, **main.context_settings)
    while isinstance(command, click.Group):
        if not words or words[0].startswith(("-", "…")):
            return command, words, context
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"{name!r} is no command of {command.name}"
        command = found
    return command, words, context


def _run(command: str) -> list[str]:
    """What a command prints."""
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words))
    program, *arguments = [sys.executable if word == "python" else word for word in words[len(variables) :]]
    if program == "tvmdml":
        done = CliRunner().invoke(main, arguments, catch_exceptions=False, env=variables)
        assert done.exit_code == 0, f"{command}: {done.output}"
        return done.stdout.splitlines()
    ran = subprocess.run([program, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command}: {ran.stderr}"
    return ran.stdout.splitlines()


def test_every_command_is_known() -> None:
    """A new command in README belongs in one of the tables above."""
    assert {command for command, _ in _shown()} == {*_RUN, *_quoted(_NOT_RUN)}
    assert set(_RUN_OF_TEXT) <= set(_of_text())
    assert len(_shown()) == 15


def _quoted(commands: Iterable[str]) -> list[str]:
    return [shlex.join(shlex.split(command)) for command in commands]


def test_commands_of_blocks_and_sentences_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    root = Path(__file__).parents[1]
    shutil.copytree(root / "tests" / "models", tmp_path / "tests" / "models")
    (tmp_path / "tests" / "models" / "pack.toml").write_text(_SPEC)
    (tmp_path / "app.py").write_text(_APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root))
    for command, shown in _shown():
        if command in _RUN:
            printed = _run(command)
            assert _masked(printed) == _masked(shown), command
    for command in _RUN_OF_TEXT:
        if "pack keygen" in command and importlib.util.find_spec("cryptography") is None:
            print("README: signatures were not tried: there is no cryptography")  # noqa: T201 - what was skipped, and why
            break
        _run(command)
    _compile_in_c(tmp_path)


def _compile_in_c(folder: Path) -> None:
    """What README shows of C, against the header that was written."""
    (snippet,) = re.findall(r"```c\n(.*?)```", README, re.DOTALL)
    head, _, body = snippet.partition("\n\n")
    values = "static float scores[4 * 1000], best[4 * 3];\nstatic uint32_t where[4 * 3];\nstatic int failed(void) { return 1; }\n"
    (folder / "app.c").write_text(f"{head}\n{values}int main(void) {{\n{body}return 0;\n}}\n")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("README: the example in C was not compiled: there is no C compiler")  # noqa: T201 - what was skipped, and why
        return
    import tvm_ffi

    options = ["-std=c99", "-Wall", "-Werror", "-fsyntax-only", "-I", "folder", "-isystem", tvm_ffi.libinfo.find_include_path()]
    done = subprocess.run([compiler, *options, "app.c"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_pack_is_of_as_many_kernels_as_are_shown() -> None:
    spec = sources.read([Path(__file__).parents[1] / "tests" / "models" / "pack.toml"]).spec
    shown = dict(_shown())["tvmdml pack build tests/models/pack.toml -o ops.tvmdml"]
    assert re.findall(r"(\d+) kernels", shown[0]) == [str(len(building.plan(spec)))]


@pytest.mark.parametrize("command", [command for command in _NOT_RUN if command.startswith("tvmdml")])
def test_what_is_not_run_is_read_by_the_parser(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "vulkan" in command and (lacking := _no_vulkan()):
        pytest.skip(lacking)
    monkeypatch.chdir(tmp_path)
    results.write(results.Run(2, "quick", {}, {}), Path("now.json"))
    found, words, context = _look_up(shlex.split(command)[1:])
    with found.make_context(found.name, words, parent=context) as parsed:
        assert parsed.params


def test_commands_within_sentences_are_ones_that_there_are() -> None:
    looked_at = 0
    for text in _of_text():
        program, *words = text.split()
        if program == "tvmdml":
            command, rest, context = _look_up(words)
            options = {name.replace("-", "_") for option in command.get_params(context) for name in option.opts}
            given = {word.partition("=")[0].replace("-", "_") for word in rest[: (*rest, "--").index("--")] if word.startswith("-")}
            assert given <= options, f"{text}: {given - options}"
            looked_at += 1
    assert looked_at > 20


@pytest.mark.parametrize("command", [command for command in _NOT_RUN if command.startswith("python -m tvm.")])
def test_servers_know_their_options(command: str) -> None:
    if importlib.util.find_spec("tornado") is None:
        pytest.skip("there is no tornado, which TVM's servers take")
    _, _, module, *options = command.split()
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [one for one in options if one.partition("=")[0] not in done.stdout] == []


def test_what_pip_is_to_install_is_an_extra_that_there_is() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    named = set(re.findall(r"pip install [^`\n]*\[(\w+)\]", README))
    assert {"bench", "compiler", "cuda", "orcjit", "sign", "test", "tune"} <= named
    assert [extra for extra in named if not re.search(rf"^{extra} = \[", project, re.MULTILINE)] == []


def test_pytorch_on_a_gpu_as_shown() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    (snippet,) = re.findall(r"```\n(import torch, tvmdml\n.*?)```", README, re.DOTALL)
    if not torch.cuda.is_available():  # where there is no GPU, the same on the CPU
        snippet = snippet.replace('device="cuda"', 'device="cpu"').replace('"cuda:0"', '"cpu"')
        assert 'cuda"' not in snippet
    names: dict[str, Any] = {}
    exec(snippet, names)
    expected = names["x"].clone()
    names["run"]()
    assert torch.equal(names["y"], torch.trunc(expected))
    assert names["indices"].dtype == torch.int64
