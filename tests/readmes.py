"""Parses the README files of the repository: code blocks, commands with the shown output, links and paths."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from folders import TOP

_NOT_OURS = {"build", "dist"}
_BLOCK = re.compile(r"(?:^Save this as `([^`\n]+)`[^\n]*\n\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    text: str
    line: int
    """Of the file, from 1."""
    saved_as: str
    """The file that the reader is told to make of it; empty where there is none."""


class Command(NamedTuple):
    """A line of a ``console`` block, and what is shown to come out."""

    text: str
    output: str


def paths() -> list[Path]:
    """Every README.md, found by looking; links, hidden folders and what builds leave behind are passed over."""
    found = []
    for folder, folders, files in os.walk(TOP):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OURS)
        if "README.md" in files:
            found.append(Path(folder, "README.md"))
    return found


def name(path: Path) -> str:
    """What a file is called in the repository."""
    return str(path.relative_to(TOP))


def blocks(text: str) -> list[Block]:
    """The fenced blocks, in order."""
    found = _BLOCK.finditer(text)
    return [Block(one[2], one[3], text.count("\n", 0, one.start(2)) + 1, one[1] or "") for one in found]


def prose(text: str) -> str:
    """What stands outside of the blocks."""
    return _BLOCK.sub("", text)


def commands(block: str) -> list[Command]:
    """The commands of a ``console`` block: lines after a ``$``, which a backslash at the end continues."""
    found: list[tuple[list[str], list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif found and not found[-1][1] and found[-1][0][-1].endswith("\\"):
            found[-1][0].append(line)
        elif found:
            found[-1][1].append(line)
        else:
            raise AssertionError(f"output before the first command: {line!r}")
    return [Command("\n".join(words), "\n".join(output)) for words, output in found]


def commands_in_prose(text: str) -> list[str]:
    """The commands of this package that sentences and tables name."""
    return [" ".join(found.split()) for found in re.findall(r"`(?:TVMDML_\w+=\S+ )?(tvmdml [^`]+)`", prose(text))]


def headings(text: str) -> set[str]:
    """What may follow ``#`` in a link to the file."""
    lines = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


class Shell:
    """One bash for all commands of a README, so that folders and variables last, as they do for a reader.

    Args:
        folder: where it starts.
        programs: a folder of its own for the programs that must be this Python's, whatever ``PATH`` has.
    """

    _MODULES = (("python", ""), ("tvmdml", "-m tvmdml"), ("tvm-ffi-config", "-m tvm_ffi.config"))

    def __init__(self, folder: Path, programs: Path) -> None:
        programs.mkdir()
        for program, module in self._MODULES:
            script = programs / program
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            script.chmod(0o755)
        links = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(TOP), "XDG_DATA_HOME": str(programs)}
        self._files = programs / "stdout", programs / "stderr"
        self.folder = folder
        self._bash = subprocess.Popen(
            ["bash"], cwd=folder, env={**os.environ, **links}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, command: str) -> str:
        """What a command prints. It must succeed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        stdout, stderr = map(str, self._files)
        redirected = f"{{ {command}\n}} </dev/null >{shlex.quote(stdout)} 2>{shlex.quote(stderr)}"
        self._bash.stdin.write(f"{redirected}\necho $? $PWD\n")
        self._bash.stdin.flush()
        code, _, folder = self._bash.stdout.readline().strip().partition(" ")
        assert code == "0", f"{command}\nexit code {code or 'of bash'}\n{self._files[0].read_text()}{self._files[1].read_text()}"
        self.folder = Path(folder)
        return self._files[0].read_text()

    def close(self) -> None:
        """End bash."""
        self._bash.communicate("exit\n")


def masked(text: str) -> str:
    """Without what differs from machine to machine and from run to run: numbers, sizes, names of processors, trailing spaces."""
    return "\n".join(_masked_line(line.rstrip()) for line in text.strip().splitlines())


def _masked_line(line: str) -> str:
    if line.startswith("Resource"):  # the results are the same on every device
        return line
    line = re.sub(r"'[^']*threads'", "'a processor'", line)
    return re.sub(r"\d[\d.]*( [KM]i?B)?", "#", line)


def links(text: str) -> Iterator[tuple[str, str]]:
    """Relative links: the path, and what follows ``#``."""
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", prose(text)):
        path, _, heading = (target[0] or target[1]).partition("#")
        if "://" not in path:
            yield path, heading
