"""What users must trust: no network access, no code from data, no files that others can write."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import setuptools
from folders import TOP

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOTS = ("tvmdml", "schedules")

# -- What the source does not do ------------------------------------------------------------------------------------

RUN_CODE = {
    "tvmdml/doors/_made.py": "the text of a function, which is made of the names of a class's fields, as dataclasses does it",
    "tvmdml/directml/activations.py": "the text of functions, which is made of a table in the same file",
    "tvmdml/directml/functions.py": "the text of functions, which is made of a table in the same folder",
    "tvmdml/operators/_frozen.py": "the annotations of fields, which stand in the operators' classes",
    "tvmdml/tensors/sizes/evaluating.py": "the text of a function, which is made of integers and names made in the same file",
    "tvmdml/torch/_gradients.py": "the formulas of gradients, which stand in the operators' classes",
    "tvmdml/tuning/lanes.py": "what a tuner starts its own lanes with, through a pipe that they alone have",
    "tvmdml/tuning/parcels.py": "a file in a private folder, between a tuner and its own lanes",
    "tvmdml/system/workers.py": "what a tuner and its own workers say to each other, through pipes that they alone have",
}
"""Where data are read that can run code, and why nobody else can have written them."""
_PICKLES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "jsonpickle"}
_CODE = {"eval", "exec", "__import__"}
_CODE_OF_MODULES = {("os", "system"), ("os", "popen"), ("torch", "load")}
_OPEN_TO_ALL = ("/tmp", "/var/tmp", "/dev/shm")
_GUESSABLE = {"mktemp", "tempnam", "tmpnam"}


@functools.cache
def trees() -> dict[str, list[ast.AST]]:
    """The nodes of the package's files, as the oldest Python that may be used reads them."""
    version = (3, int(described()["project"]["requires-python"].removeprefix(">=3.")))
    paths = [path for root in ROOTS for path in sorted((TOP / root).rglob("*.py"))]
    assert len(paths) > 100
    return {
        str(path.relative_to(TOP)): list(ast.walk(ast.parse(path.read_bytes(), str(path), feature_version=version)))
        for path in paths
    }


def runs_code(nodes: Iterable[ast.AST]) -> bool:
    """Whether a file has what runs code that is in data."""
    return any(
        (isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in _PICKLES for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _PICKLES)
        or (isinstance(node, ast.Call) and (_calls_code(node.func) or any(map(_lets_code_run, node.keywords))))
        for node in nodes
    )


def _calls_code(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _CODE
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return (function.value.id, function.attr) in _CODE_OF_MODULES
    return False


def _lets_code_run(keyword: ast.keyword) -> bool:
    off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
    return keyword.arg in ("allow_pickle", "shell") and not off


@pytest.mark.full
def test_only_a_tuner_and_its_own_processes_pickle_and_only_doors_write_functions() -> None:
    found = {name for name, nodes in trees().items() if runs_code(nodes)}
    assert found == set(RUN_CODE)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "def f(x): return eval(x)",
        "np.load(p, allow_pickle=True)",
        "np.load(p, allow_pickle=flag)",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "torch.load(path)",
    ],
)
def test_what_runs_code_is_noticed(source: str) -> None:
    assert runs_code(ast.walk(ast.parse(source)))
    assert not runs_code(ast.walk(ast.parse("np.load(p, allow_pickle=False); model.eval(); tvmdml.compile(d)")))


@pytest.mark.full
def test_temporary_files_have_names_that_nobody_can_guess() -> None:
    guessable, fixed = [], []
    for name, nodes in trees().items():
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in _GUESSABLE:
                guessable.append(f"{name}:{node.lineno}")
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(_OPEN_TO_ALL):
                fixed.append(f"{name}:{node.lineno}")
    assert (guessable, fixed) == ([], [])


# -- What is installed ----------------------------------------------------------------------------------------------


def described() -> dict[str, Any]:
    """pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((TOP / "pyproject.toml").read_text())
    return found


def of_the_package() -> Iterator[tuple[str, Path]]:
    """The files in the package's folders, each with the name of its package. ``schedules`` and ``tuning_logs`` are links."""
    for folder, _, names in os.walk(TOP / "tvmdml", followlinks=True):
        inside = Path(folder).relative_to(TOP).parts
        for path in (Path(folder) / name for name in sorted(names)):
            if "__pycache__" not in inside and path.suffix != ".so":
                yield ".".join(inside), path


def test_every_folder_of_source_is_installed() -> None:
    find = described()["tool"]["setuptools"]["packages"]["find"]
    found = setuptools.PackageFinder.find(str(TOP), include=find["include"])
    assert set(found) == {name for name, path in of_the_package() if path.suffix == ".py"}


def test_every_other_file_is_installed_or_built() -> None:
    described_there = described()["tool"]["setuptools"]
    shipped = {
        path
        for name, patterns in described_there["package-data"].items()
        for path in chain.from_iterable(TOP.joinpath(*name.split(".")).glob(pattern) for pattern in patterns)
    }
    built = {TOP / path for module in described_there["ext-modules"] for path in (*module["sources"], *module["depends"])}
    others = {path for _, path in of_the_package() if path.suffix != ".py"}
    assert others <= shipped | built, sorted(map(str, others - shipped - built))


def test_a_clone_is_the_whole_package_however_it_was_installed(tmp_path: Path) -> None:
    """Python started in a clone finds the clone's ``tvmdml`` first: all of it must be there, without an editable install."""
    command = "import tvmdml.schedules.cpu.top_k, tvmdml.tuning_logs as logs; print(tvmdml.schedules.__file__, logs.__file__)"
    links = {
        "PYTHONPATH": os.pathsep.join([str(TOP), *(path for path in sys.path if path and Path(path) != TOP)]),
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run([sys.executable, "-S", "-c", command], cwd=TOP, env=links, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(TOP / "tvmdml" / name / "__init__.py") for name in ("schedules", "tuning_logs")], done.stderr


def test_readme_has_the_licences_of_what_it_asks_for() -> None:
    project = described()["project"]
    extras = {name: asked for name, asked in project["optional-dependencies"].items() if name != "test"}
    lines = chain(project["dependencies"], *extras.values())
    asked = {name for line in lines for name in re.findall(r"^[\w-]+", line)} - {"tvmdml"}
    table = (TOP / "tvmdml" / "README.md").read_text().partition("## Dependencies")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")][2:]
    assert {name for row in rows for name in row[0].split(", ")} == asked
    assert all(licence for _, licence, _ in rows)


def test_the_lowest_versions_are_those_of_the_project() -> None:
    """``lowest.txt`` is what CI runs once, so that a lower bound is true."""
    project = described()["project"]
    stated = [*project["dependencies"], *project["optional-dependencies"]["compiler"]]
    lowest = dict(line.split("==") for line in (TOP / "tests" / "lowest.txt").read_text().splitlines() if not line.startswith("#"))
    for requirement in stated:
        name, bound = re.match(r"([\w-]+)(?:>=|==)([\w.]+)", requirement).groups()  # type: ignore[union-attr]
        padded = (*re.findall(r"\w+", bound.removesuffix(".")), "0", "0")[:3]
        assert name in lowest, f"{name} is not in lowest.txt"
        assert lowest[name] == bound or (*re.findall(r"\w+", lowest[name]), "0", "0")[:3] == padded, requirement


# -- What a program does not do -------------------------------------------------------------------------------------

WATCHED = r"""
import json, os, stat, sys, tempfile

found = {"network": [], "programs": [], "temporary": 0, "open to others": []}
NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostby", "socket.sendto", "socket.sendmsg",
           "urllib.", "http.", "ftplib.", "smtplib.", "imaplib.", "poplib.", "telnetlib.", "nntplib.", "webbrowser.")
STARTED = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.spawn", "os.startfile")
TEMPORARY = os.environ["TMPDIR"]

def look(path):
    mode = os.lstat(path).st_mode
    found["temporary"] += 1
    if mode & (0o077 if stat.S_ISDIR(mode) else 0o022) and not stat.S_ISLNK(mode):
        found["open to others"].append(f"{path} {mode:o}")

def hook(event, arguments):
    if event.startswith(NETWORK):
        found["network"].append(f"{event} {arguments!r}")
    elif event.startswith(STARTED):
        program = arguments[0] or arguments[1][0]
        found["programs"].append(os.path.basename(os.fspath(program)))
    elif event in ("os.remove", "os.rmdir", "shutil.rmtree") and str(arguments[0]).startswith(TEMPORARY):
        if os.path.lexists(arguments[0]) and os.path.dirname(arguments[0]) == TEMPORARY:
            look(arguments[0])

os.umask(0o022)
sys.addaudithook(hook)

import numpy as np
import tvmdml
from tvmdml import packs
from tvmdml.cli import main

x = np.arange(24, dtype="float32").reshape(4, 6) / 4
with packs.record() as recorded:
    tvmdml.round(x), tvmdml.top_k(x, 2), tvmdml.nonzero_coordinates(x), tvmdml.diagonal_matrix(x, diagonal_fill_end=1)
like = tvmdml.TensorDesc("float32", (4, 6))
rounding = tvmdml.ElementWiseRound(input_tensor=like, output_tensor=like, rounding_mode="toward_zero")
operator = tvmdml.compile(rounding)
operator.bind(x, np.empty_like(x))()
assert operator.source("asm")
os.chdir(os.environ["WORK"])
recorded.write("spec.toml")

def command(*words):
    try:
        code = main(list(words), standalone_mode=False)
    except SystemExit as end:
        code = end.code
    assert not code, (words, code)

command("pack", "build", "spec.toml", "-o", "ops.tvmdml", "--jobs", "1")
command("pack", "verify", "ops.tvmdml")
with tvmdml.load_pack("ops.tvmdml"):
    tvmdml.top_k(x, 2)
command("run", os.environ["MODEL"])
command("operators")
command("devices")
command("tuning", "validate")
command("cache", "info")
command("cache", "prune")
print("FOUND", json.dumps(found))
"""


def watched(folder: Path, *before: str) -> dict[str, Any]:
    """What a program that uses everything was seen to do; ``before`` is what it is started with."""
    for name in ("work", "cache", "temporary"):
        (folder / name).mkdir(mode=0o700)
    environment = {
        **os.environ,
        "TVMDML_CACHE_DIR": str(folder / "cache"),
        "TMPDIR": str(folder / "temporary"),
        "WORK": str(folder / "work"),
        "MODEL": str(TOP / "tests" / "models" / "top_k1.json"),
    }
    command = [*before, sys.executable, "-c", WATCHED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.rpartition("FOUND")[2])
    return found


def isolated() -> tuple[str, ...]:
    """What starts a program that has no network at all, where this system lets one do so."""
    for options in (("-n",), ("-rn",)):
        command = (shutil.which("unshare") or "unshare", *options)
        if shutil.which("unshare") and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
            return command
    return ()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder, and what a program did that had it for everything."""
    folder = tmp_path_factory.mktemp("watched")
    return folder, watched(folder, *isolated())


@pytest.mark.full
def test_nothing_is_asked_of_a_network(seen: tuple[Path, dict[str, Any]]) -> None:
    """Where the system has namespaces, the program also ran in one that has no network."""
    _, found = seen
    assert found["network"] == []


@pytest.mark.full
def test_no_programs_are_started_but_compilers(seen: tuple[Path, dict[str, Any]]) -> None:
    _, found = seen
    allowed = {"ld", "cc", "gcc", "clang", "ld.lld", "ldconfig", "lscpu", "uname", Path(sys.executable).name}
    assert {name.rpartition("-")[2] for name in found["programs"]} <= allowed, found["programs"]


@pytest.mark.full
def test_nobody_else_can_write_what_is_kept(seen: tuple[Path, dict[str, Any]]) -> None:
    folder, found = seen
    assert found["temporary"] > 0, "no temporary file was seen"
    assert found["open to others"] == []
    kept = list((folder / "cache").rglob("*"))
    assert any(path.suffix == ".so" for path in kept)
    assert [
        f"{path} {path.stat().st_mode:o}" for path in (*kept, *(folder / "work").rglob("*")) if path.stat().st_mode & 0o022
    ] == []
    assert list((folder / "temporary").iterdir()) == []
