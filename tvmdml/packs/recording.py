"""What a program runs, written down as the spec of a pack."""

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
"""What this process has appended, and where."""


class Recording:
    """The operators that were made ready for the first time since it was started, each once; a context manager."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def __enter__(self) -> Recording:
        """Start."""
        shelf.listen(self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop; what was recorded stays."""
        shelf.stop(self._note)

    def _note(self, desc: Operator, target: Target, in_place: bool) -> None:
        self._found.setdefault(_entry(desc, target, in_place))

    @property
    def spec(self) -> Spec:
        """What was recorded, as a spec: the kernels, and the targets that they ran on."""
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
    """Write down what runs within a ``with`` block, in all threads: ``with packs.record() as recording: …``."""
    return Recording()


def append(folder: str, desc: Operator, target: Target, in_place: bool) -> None:
    """Write a line to this process's own file in a folder, for ``gather``: at once, however the process may end."""
    entry = _entry(desc, target, in_place)
    if (folder, entry) in _written:
        return
    _written.add((folder, entry))
    try:
        with open(Path(folder) / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as stream:
            stream.write(f"{entry}\n")
    except OSError as error:
        stores.warn_once(folder, f"tvmdml: not all that this process uses is written down in {folder} ({error}).")


def gather(folder: Path) -> Spec:
    """The spec of what processes wrote to a folder."""
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for entry in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if entry.endswith("\n"):  # else the process was killed within it
                found.setdefault(entry.strip())
    return _spec(found)


def _entry(desc: Operator, target: Target, in_place: bool) -> str:
    return json.dumps([lines.of(desc), in_place, target.spec_name])


def _spec(entries: dict[str, None]) -> Spec:
    from tvmdml.packs.spec import Spec, Wanted

    read = [json.loads(entry) for entry in entries]
    wanted = dict.fromkeys(Wanted(lines.read(line, "a recording"), in_place) for line, in_place, _ in read)
    return Spec(tuple(sorted({target for _, _, target in read})), tuple(wanted), {})
