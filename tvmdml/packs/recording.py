"""Recording the operators that a program runs, as the spec of a pack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tvmdml import stores
from tvmdml.packs import lines, shelf

if TYPE_CHECKING:
    from tvmdml.operators import Operator
    from tvmdml.packs.spec import Spec
    from tvmdml.targets import Target

_written: set[tuple[str, str]] = set()
"""The entries that this process has appended, with their folders."""


class Recording:
    """A context manager that records the operators that are prepared within it, each once."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def __enter__(self) -> Recording:
        """Start."""
        shelf.listen(self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop. The recorded operators are kept."""
        shelf.stop(self._note)

    def _note(self, desc: Operator, target: Target, in_place: bool) -> None:
        self._found.setdefault(_entry(desc, target, in_place))

    @property
    def spec(self) -> Spec:
        """The recorded operators and their targets, as a spec."""
        return _spec(self._found)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the spec.

        Raises:
            OSError: the file cannot be written.
        """
        from tvmdml.packs import spec

        found = self.spec
        spec.write(Path(path), found.wanted, found.targets)


def record() -> Recording:
    """Record the operators that run within a ``with`` block, in all threads: ``with packs.record() as recording: …``."""
    return Recording()


def append(folder: str, desc: Operator, target: Target, in_place: bool) -> None:
    """Append a line to this process's file in a folder, for ``gather``. It is written immediately: the process may be killed."""
    entry = _entry(desc, target, in_place)
    if (folder, entry) in _written:
        return
    _written.add((folder, entry))
    try:
        with open(Path(folder) / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as stream:
            stream.write(f"{entry}\n")
    except OSError as error:
        stores.warn_once(folder, f"tvmdml: the recording in {folder} is not complete: it cannot be written ({error}).")


def gather(folder: Path) -> Spec:
    """The spec of what all processes have appended in a folder."""
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for entry in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if entry.endswith("\n"):  # otherwise the process was killed while it wrote the line
                found.setdefault(entry.strip())
    return _spec(found)


def _entry(desc: Operator, target: Target, in_place: bool) -> str:
    return json.dumps([lines.of(desc), in_place, target.spec_name])


def _spec(entries: dict[str, None]) -> Spec:
    from tvmdml.packs.spec import Spec, Wanted

    read = [json.loads(entry) for entry in entries]
    wanted = dict.fromkeys(Wanted(lines.read(line, "a recording"), in_place) for line, in_place, _ in read)
    return Spec(tuple(sorted({target for _, _, target in read})), tuple(wanted), {})
