"""A job's session on disk: every finished trial is stored at once, so that the same command continues an interrupted run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tvmdml.errors import InvalidArgument, message, naming
from tvmdml.kernels.knobs import Value
from tvmdml.library import log_lines
from tvmdml.library.log_terms import Job, Knobs, Machine, Outcome, Record, Trial
from tvmdml.system.disk import _trust, stores
from tvmdml.system.disk.locks import Busy, locked

_TRIALS = "trials.jsonl"
_DONE = "done.json"
_MOST_SECONDS = 1e6


def folder() -> Path:
    """The folder of sessions and candidates' kernels, in the cache."""
    return stores.DiskStore().cache / "tuning"


class Session:
    """The trials of a job, for a kind of machine and the current schedules.

    Args:
        stamp: a hash of the schedules' source; when it changes, a new session starts.
        fresh: discard earlier trials.
    """

    def __init__(self, job: Job, machine: Machine, stamp: str, *, fresh: bool = False) -> None:
        about = {"job": [job.line, job.in_place], "machine": machine, "schedules": stamp}
        text = json.dumps(about, sort_keys=True)
        self._cache = stores.DiskStore().cache
        self._place = ("tuning", "sessions", hashlib.sha256(text.encode()).hexdigest()[:24])
        self._folder = stores.room(self._cache, *self._place)
        if fresh:
            shutil.rmtree(self._folder, ignore_errors=True)
            stores.room(self._cache, *self._place)
        with naming(self._folder / "about.json"):
            _trust.replace(self._folder / "about.json", json.dumps(about, indent=1).encode())
        self.trials: list[Trial] = list(self._read())
        self._known = {_key(trial.knobs): trial for trial in self.trials}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the job against other tuners.

        Raises:
            InvalidArgument: another process is tuning it.
        """
        try:
            with locked(self._folder / "lock", timeout=0):
                yield
        except Busy:
            given = "a job that another process is tuning"
            raise InvalidArgument(message("tune", given, "one process per job", "Wait for that process, or end it.")) from None

    def find(self, knobs: Knobs) -> Trial | None:
        """The earlier trial of a candidate, if there is one."""
        return self._known.get(_key(knobs))

    def add(self, trial: Trial) -> None:
        """Store a trial."""
        line = json.dumps({"knobs": trial.knobs, **trial.outcome._asdict()})
        path = self._folder / _TRIALS
        # An incomplete line of a killed process stays a separate line.
        with naming(path), open(path, "a+b", opener=_trust.create) as stream:
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
            stream.write(b"" if stream.read(1) in (b"", b"\n") else b"\n")
            stream.write(line.encode() + b"\n")
        self.trials.append(trial)
        self._known[_key(trial.knobs)] = trial

    def finish(self, trials: int, record: Record) -> None:
        """Store the job's result, and that the requested number of trials is done, or all that exist."""
        with naming(self._folder / _DONE):
            content = json.dumps({"trials": trials, "record": log_lines.encode(record)})
            _trust.replace(self._folder / _DONE, content.encode())

    def finished(self, trials: int) -> Record | None:
        """The job's result, if it is finished for so many trials."""
        try:
            found = json.loads(stores.read(self._cache, *self._place, _DONE))
            return log_lines.parse(found["record"].encode()) if found["trials"] >= trials else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _read(self) -> Iterator[Trial]:
        """Complete trials, each candidate once. A file of another user is removed, because more trials are to be written to it."""
        try:
            content = stores.read(self._cache, *self._place, _TRIALS)
        except stores.Untrusted:
            (self._folder / _TRIALS).unlink(missing_ok=True)
            return
        except OSError:
            return
        seen: set[tuple[tuple[str, Value], ...]] = set()
        for line in content.decode(errors="replace").splitlines():
            trial = _trial(line)
            if trial is not None and _key(trial.knobs) not in seen:
                seen.add(_key(trial.knobs))
                yield trial


def _trial(line: str) -> Trial | None:
    try:
        found = json.loads(line)
        knobs = found.pop("knobs")
        outcome = Outcome(**found)
        figures = (outcome.seconds, outcome.default, outcome.spread, outcome.worst, outcome.noise)
        whole = isinstance(knobs, dict) and all(type(value) in (int, str) for value in knobs.values())
        whole = whole and all(isinstance(figure, float) and figure >= 0 for figure in figures) and isinstance(outcome.problem, str)
        whole = whole and (bool(outcome.problem) or 0 < outcome.seconds < _MOST_SECONDS > outcome.default > 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return Trial(knobs, outcome) if whole else None


def _key(knobs: Knobs) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(knobs.items()))
