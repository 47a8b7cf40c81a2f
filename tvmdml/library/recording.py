"""Recording the operators that a program runs, as the spec of a pack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tvmdml.library import lines, notices
from tvmdml.operators import _shared
from tvmdml.system.disk import stores

if TYPE_CHECKING:
    from tvmdml.library.spec import Spec
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared
    from tvmdml.targets import Target

_written: set[tuple[str, str]] = set()
"""The entries that this process has appended, with their folders."""


class Recording:
    """A context manager that records the operators that are prepared within it, each once."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def __enter__(self) -> Recording:
        """Start."""
        notices.listen(self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop. The recorded operators are kept."""
        notices.stop(self._note)

    def _note(self, desc: Operator, target: Target, shared: Shared) -> None:
        self._found.setdefault(_entry(desc, target, shared))

    @property
    def spec(self) -> Spec:
        """The recorded operators and their targets, as a spec."""
        return _spec(self._found)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the spec.

        Raises:
            OSError: the file cannot be written.
        """
        from tvmdml.library import spec

        found = self.spec
        spec.write(Path(path), found.wanted, found.targets)


def record() -> Recording:
    """Record the operators that run within a ``with`` block, in all threads: ``with packs.record() as recording: …``."""
    return Recording()


def append(folder: str, desc: Operator, target: Target, shared: Shared) -> None:
    """Append a line to this process's file in a folder, for ``gather``. It is written immediately: the process may be killed."""
    entry = _entry(desc, target, shared)
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


def _entry(desc: Operator, target: Target, shared: Shared) -> str:
    return json.dumps([lines.of(desc), _shared.write(desc, shared), target.spec_name])


def _spec(entries: dict[str, None]) -> Spec:
    from tvmdml.library.spec import Spec, Wanted

    read = [json.loads(entry) for entry in entries]
    descs = [lines.read(line, "a recording") for line, _, _ in read]
    shared = [_shared.read(desc, in_place, "a recording") for desc, (_, in_place, _) in zip(descs, read, strict=True)]
    wanted = dict.fromkeys(map(Wanted, descs, shared))
    return Spec(tuple(sorted({target for _, _, target in read})), tuple(wanted), {})
