"""Every README shows what its commands really print. New README files are found and run automatically.

``>>>`` sessions, ``console`` commands and files that the reader is told to save are run in order, in a folder with a copy of
``tests/models`` and ``tests/c``. tests/README.md describes the kinds of blocks.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pyjson5
import pytest
import readmes
from readmes import TOP, Block, Command, Shell

from tvmdml import DeviceError, targets
from tvmdml.cli import main
from tvmdml.doors import _table
from tvmdml.proof.bench import results

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FRONT = TOP / "README.md"
READMES = readmes.paths()
every_readme = pytest.mark.parametrize("path", READMES, ids=readmes.name)

_MINUTES, _SERVER, _DOWNLOADS = "it takes minutes", "it is a server", "it downloads"
# The commands that are not run, by their beginning, with the reason. Those of `tvmdml` are only parsed.
_NOT_RUN = {
    "tvmdml tune": _MINUTES, "tvmdml bench": _MINUTES, "tvmdml conformance": _MINUTES, "python -m pytest": _MINUTES,
    "python -m fuzz": _MINUTES, "python soak.py": _MINUTES, "python -m tvm.exec.rpc_tracker": _SERVER,
    "python -m tvm.exec.rpc_server": _SERVER, "pip install": _DOWNLOADS,
}  # fmt: skip


def _no_vulkan() -> str:
    try:
        targets.resolve("vulkan")
    except DeviceError as error:
        if os.environ.get("TVMDML_EXPECT_VULKAN") == "1":
            raise
        return str(error)
    return ""


def _without(module: str, name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(module) else f"{name} is not installed"


def _no_compiler() -> str:
    return "" if shutil.which("cc") and shutil.which("c++") else "there is no C and C++ compiler"


# What blocks and commands need that a machine may lack, by a pattern in their text.
_NEEDS: dict[str, Callable[[], str]] = {
    r"vulkan\b(?!:)|vulkan:\d": _no_vulkan,
    r"\bimport torch\b|\btorch\.": _without("torch", "PyTorch"),
    r"\.pem\b": _without("cryptography", "cryptography"),
    r"^(?:cc|c\+\+|\./\w+) ": _no_compiler,
}


def _lacking(text: str) -> list[str]:
    """What a block or a command takes that is not here."""
    return [why for pattern, missing in _NEEDS.items() if re.search(pattern, text) and (why := missing())]


# -- Blocks -----------------------------------------------------------------------------------------------------------


@every_readme
def test_what_is_shown_is_what_comes_out(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    folder = tmp_path / "clone"
    for name in ("models", "c"):
        shutil.copytree(TOP / "tests" / name, folder / "tests" / name)
    results.write(results.BenchRun(2, "quick", {}, {}), folder / "now.json")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    skipped: list[str] = []
    with contextlib.closing(Shell(folder, tmp_path / "programs")) as shell:
        for block in readmes.blocks(path.read_text()):
            where = f"{readmes.name(path)}, line {block.line}"
            commands = readmes.commands(block.text) if block.language == "console" else []
            if block.saved_as:
                shell.folder.joinpath(block.saved_as).write_text(block.text)
            elif block.language == "python" and ">>>" in block.text:
                monkeypatch.chdir(shell.folder)
                skipped += (lacking := _lacking(block.text))
                if not lacking:
                    _session(block, names, where)
            elif not commands:
                _KINDS[block.language](block.text)
            for command in commands:
                skipped += (lacking := _lacking(command.text))
                if not lacking:
                    _command(command, shell, where)
    if skipped:  # everything else was run; CI runs the test again where nothing is missing
        pytest.skip("; ".join(dict.fromkeys(skipped)))


def _session(block: Block, names: dict[str, Any], where: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
    test = doctest.DocTestParser().get_doctest(block.text, names, where, where, block.line)
    said: list[str] = []
    found = runner.run(test, clear_globs=False, out=said.append)
    names.update(test.globs)
    assert found.failed == 0, "".join(said)


def _command(command: Command, shell: Shell, where: str) -> None:
    if _not_run(command.text):
        os.chdir(shell.folder)
        _read_by_its_parser(command.text)
        return
    printed = shell.run(command.text)
    if command.output:
        wanted, found = f"{readmes.masked(command.output)}\n", f"{readmes.masked(printed)}\n"
        same = doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert same, f"{where}: {command.text}\nshown:\n{wanted}\ncame out:\n{found}"


def _only_a_picture(text: str) -> None:
    assert not re.search(r"^(\$|>>>) ", text, re.MULTILINE), f"a block of commands says `console`, one of Python `python`:\n{text}"


def _of_the_examples(text: str) -> None:
    """C that is shown is C of a whole program, which other tests compile and run."""
    programs = "".join(path.read_text() for path in sorted((TOP / "tests" / "c").glob("example.*")))
    assert [line for line in text.splitlines() if line.strip() not in programs] == []


# What is checked in a block that is neither run nor saved.
_KINDS: dict[str, Callable[[str], object]] = {
    "": _only_a_picture,
    "c": _of_the_examples,
    "json": pyjson5.decode,
    "python": lambda text: compile(text, "README.md", "exec"),
    "sh": lambda text: None,  # only of the front page: CI runs them
    "toml": tomllib.loads,
}


def test_the_front_page_has_the_two_lines_that_ci_runs() -> None:
    """The first sets up and runs a model, the second sets up and runs the tests: a line each."""
    shown = {readmes.name(path): [b.text for b in readmes.blocks(path.read_text()) if b.language == "sh"] for path in READMES}
    model, tests = shown.pop("README.md")
    assert model.count("\n") == tests.count("\n") == 1
    assert re.search(r"tvmdml run tests/models/\w+\.json$", model.strip())
    assert "'.[test]'" in tests
    assert "-m pytest" in tests
    assert not any(shown.values()), "CI takes the first two `sh` blocks of the front page; elsewhere commands stand in `console`"


def test_pytorch_on_a_gpu_as_shown() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    text = (TOP / "tvmdml" / "targets" / "cuda" / "README.md").read_text()
    (snippet,) = [block.text for block in readmes.blocks(text) if block.text.startswith("import torch, tvmdml\n")]
    if not torch.cuda.is_available():  # without a GPU, the same on the CPU
        snippet = snippet.replace('device="cuda"', 'device="cpu"').replace('"cuda:0"', '"cpu"')
        assert 'cuda"' not in snippet
    names: dict[str, Any] = {}
    exec(snippet, names)
    expected = names["x"].clone()
    names["run"]()
    assert torch.equal(names["y"], torch.trunc(expected))
    assert names["indices"].dtype == torch.int64


# -- Commands that are not run ------------------------------------------------------------------------------------------


def _not_run(command: str) -> str:
    return next((why for begin, why in _NOT_RUN.items() if f"{command} ".startswith(f"{begin} ")), "")


def _read_by_its_parser(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "tvmdml":
        found, rest, context = _look_up(words[1:])
        with found.make_context(found.name, rest, parent=context) as parsed:
            assert parsed.params
    elif words[:2] == ["python", "-m"] and words[2].startswith("tvm."):
        module = importlib.util.find_spec(words[2])
        assert module is not None
        options = re.findall(r"\"(--[\w-]+)\"", Path(str(module.origin)).read_text())
        assert {word.partition("=")[0] for word in words[3:]} <= set(options)


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


@every_readme
def test_commands_within_sentences_are_ones_that_there_are(path: Path) -> None:
    for text in readmes.commands_in_prose(path.read_text()):
        command, rest, context = _look_up(text.split()[1:])
        options = {name.replace("-", "_") for option in command.get_params(context) for name in option.opts} | {"--help", "__help"}
        given = {word.partition("=")[0].replace("-", "_") for word in rest[: (*rest, "--").index("--")] if re.match("--?\\w", word)}
        assert given <= options, f"{text}: {given - options}"


# -- What is said -------------------------------------------------------------------------------------------------------


_PAGES = sorted(path for path in (*TOP.glob(".github/*.md"), *TOP.glob("tvmdml/*/*.md")) if path.name != "README.md")
"""The pages that are not a folder's own: their examples are not run."""


@pytest.mark.parametrize("path", [*READMES, *_PAGES], ids=readmes.name)
def test_links_and_paths_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    for target, heading in readmes.links(text):
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), target
        if heading:
            assert heading in readmes.headings((found / "README.md" if found.is_dir() else found).read_text()), heading
    named = set(re.findall(r"`((?:tvmdml|schedules|tests|tuning_logs)/[\w./-]*)`", readmes.prose(text)))
    assert [one for one in sorted(named) if not (TOP / one).exists()] == []
    beside = {
        one for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE) for one in re.findall(r"`(\w[\w*]*\.(?:py|c)|\w+/)`", row)
    }
    assert [one for one in sorted(beside) if not list(path.parent.rglob(one)) and not (TOP / one).exists()] == []


@every_readme
def test_what_pip_installs_is_an_extra_and_leaves_an_editable_install_alone(path: Path) -> None:
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for options, named in re.findall(r"pip install (\S* ?)'?(?:\.|tvmdml)\[([\w,]+)\]", path.read_text()):
        assert set(named.split(",")) <= set(extras)
        assert options == "-e ", "an install from the clone without -e replaces an editable one"
    assert "pip install ." not in path.read_text()


def test_every_extra_is_spoken_of() -> None:
    extras = set(tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    text = "".join(path.read_text() for path in READMES)
    assert extras <= {name for names in re.findall(r"\.\[([\w,]+)\]", text) for name in names.split(",")}


def test_the_tables_have_the_operators_that_there_are() -> None:
    page = (TOP / "tvmdml" / "operators" / "README.md").read_text()
    assert _table.families() in page, "put in what `python -m tvmdml.doors._table families` prints"
    assert _table.text() in page, "put in what `python -m tvmdml.doors._table` prints"


def test_the_front_page_is_short() -> None:
    assert FRONT.read_text().count("\n") <= 150


def test_measurements_stand_only_in_the_pages_of_bench() -> None:
    """A time, a rate or a ratio is true of one machine: it is in a page that names the machine."""
    measured = re.compile(
        r"\d ?(?:ns|µs|us|ms)\b|\d s\b(?! of)|\d ?[GM]B/s|\d ?G(?:FLOPS|op/s)|\b\d[\d.]* (?:times as|of (?:the|its|their) time)"
        r"|\b(?:minutes?|hours?) (?:on|with) |\b\d+ (?:minutes|hours)\b"
    )
    found = {
        f"{path.relative_to(TOP)}: {line.strip()[:120]}"
        for path in TOP.rglob("*.md")
        if "bench" not in path.parts and not {part[0] for part in path.relative_to(TOP).parts} & {"."}
        for line in readmes.prose(path.read_text()).splitlines()
        if measured.search(line)
    }
    assert found == set()


def test_every_room_with_a_readme_is_linked_from_the_front_page_or_the_house() -> None:
    linked = {
        (path.parent / target).resolve()
        for path in (FRONT, TOP / "tvmdml" / "README.md")
        for target, _ in readmes.links(path.read_text())
    }
    assert [readmes.name(path) for path in READMES[1:] if not {path, path.parent} & linked] == []
