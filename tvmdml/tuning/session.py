"""A job's session on disk: every finished trial is stored at once, so that the same command continues an interrupted run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import filelock

from tvmdml import stores
from tvmdml.errors import InvalidArgument, message, naming
from tvmdml.knobs import Value
from tvmdml.tuning import log_lines
from tvmdml.tuning.terms import Job, Knobs, Machine, Outcome, Record, Trial

_TRIALS = "trials.jsonl"
_DONE = "done.json"
_MOST_SECONDS = 1e6


def folder() -> Path:
    """The folder of sessions and candidates' kernels, in the cache."""
    return stores.DiskStore().root.parent / "tuning"


class Session:
    """The trials of a job, for a kind of machine and the current schedules.

    Args:
        stamp: a hash of the schedules' source; when it changes, a new session starts.
        fresh: discard earlier trials.
    """

    def __init__(self, job: Job, machine: Machine, stamp: str, *, fresh: bool = False) -> None:
        about = {"job": [job.line, job.in_place], "machine": machine, "schedules": stamp}
        text = json.dumps(about, sort_keys=True)
        self._folder = folder() / "sessions" / hashlib.sha256(text.encode()).hexdigest()[:24]
        if fresh:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        with naming(self._folder / "about.json"):
            (self._folder / "about.json").write_text(json.dumps(about, indent=1))
        self.trials: list[Trial] = list(self._read())
        self._known = {_key(trial.knobs): trial for trial in self.trials}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the job against other tuners.

        Raises:
            InvalidArgument: another process is tuning it.
        """
        try:
            with filelock.FileLock(self._folder / "lock", timeout=0):
                yield
        except filelock.Timeout:
            given = "a job that another process is tuning"
            raise InvalidArgument(message("tune", given, "one process per job", "Wait for that process, or end it.")) from None

    def find(self, knobs: Knobs) -> Trial | None:
        """The earlier trial of a candidate, if there is one."""
        return self._known.get(_key(knobs))

    def add(self, trial: Trial) -> None:
        """Store a trial."""
        line = json.dumps({"knobs": trial.knobs, **trial.outcome._asdict()})
        path = self._folder / _TRIALS
        with naming(path), open(path, "a+b") as stream:  # an incomplete line of a killed process stays a separate line
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
            stream.write(b"" if stream.read(1) in (b"", b"\n") else b"\n")
            stream.write(line.encode() + b"\n")
        self.trials.append(trial)
        self._known[_key(trial.knobs)] = trial

    def finish(self, trials: int, record: Record) -> None:
        """Store the job's result, and that the requested number of trials is done, or all that exist."""
        written = self._folder / f"{_DONE}.new"
        with naming(written):
            written.write_text(json.dumps({"trials": trials, "record": log_lines.encode(record)}))
        os.replace(written, self._folder / _DONE)

    def finished(self, trials: int) -> Record | None:
        """The job's result, if it is finished for so many trials."""
        try:
            found = json.loads((self._folder / _DONE).read_text())
            return log_lines.parse(found["record"].encode()) if found["trials"] >= trials else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _read(self) -> Iterator[Trial]:
        """Complete trials, each candidate once."""
        with contextlib.suppress(OSError):
            seen: set[tuple[tuple[str, Value], ...]] = set()
            for line in (self._folder / _TRIALS).read_text(errors="replace").splitlines():
                trial = _trial(line)
                if trial is not None and _key(trial.knobs) not in seen:
                    seen.add(_key(trial.knobs))
                    yield trial


def _trial(line: str) -> Trial | None:
    try:
        found = json.loads(line)
        knobs = found.pop("knobs")
        outcome = Outcome(**found)
        figures = (outcome.seconds, outcome.default, outcome.spread, outcome.worst)
        whole = isinstance(knobs, dict) and all(type(value) in (int, str) for value in knobs.values())
        whole = whole and all(isinstance(figure, float) and figure >= 0 for figure in figures) and isinstance(outcome.problem, str)
        whole = whole and (bool(outcome.problem) or 0 < outcome.seconds < _MOST_SECONDS > outcome.default > 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return Trial(knobs, outcome) if whole else None


def _key(knobs: Knobs) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(knobs.items()))
