"""Sessions of tuning, as they are kept on disk: what is broken in them counts as not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock

from fuzz import trees
from fuzz.aims import logs as _logs
from fuzz.choices import Choices
from tvmdml.kernels.knobs import Value
from tvmdml.library.log_terms import Job, Machine, Outcome, Trial
from tvmdml.tuning.session import Session

EXAMPLES = 100
WORDS = (
    "knobs", "seconds", "default", "spread", "worst", "problem", "trials", "record", "NaN", "Infinity", "1e999", "-1",
    "algorithm", "sort",
)  # fmt: skip
_JOB, _MACHINE = Job({"operator": "TOP_K1"}, False, "cpu"), Machine("cpu", "", 2)
_TRIAL = {"knobs": {"algorithm": "sort", "lanes": 16}, **Outcome(1e-6, 2e-6, 0.1, 1.5)._asdict()}


def seeds() -> list[bytes]:
    """Lines as they are."""
    return [b"\0" + json.dumps(_TRIAL).encode()]


def one(choices: Choices) -> None:
    """Trials that were changed, beside a result that was."""
    if choices.flag(3):
        trials = choices.rest()
    else:
        lines = [trees.text(trees.changed(choices, _TRIAL, WORDS, 2)).encode() for _ in range(choices.integer(1, 3))]
        trials = b"\n".join(trees.damaged(choices, line, WORDS) if choices.flag(3) else line for line in lines)
    done = {"trials": 4, "record": json.dumps(_logs._lines()[0])}
    check(trials, trees.text(trees.changed(choices, done, WORDS)).encode())


def check(trials: bytes, done: bytes = b"") -> None:
    """Begin with them, and go on."""
    with mock.patch.dict(os.environ, {"TVMDML_CACHE_DIR": "cache"}):
        Session(_JOB, _MACHINE, "stamp")
        (folder,) = Path("cache", "tuning", "sessions").iterdir()
        (folder / "trials.jsonl").write_bytes(trials)
        (folder / "done.json").write_bytes(done)
        session = Session(_JOB, _MACHINE, "stamp")
        count = len(session.trials)
        for trial in session.trials:
            assert session.find(trial.knobs) is not None
            assert trial.outcome.ratio >= 0
        session.finished(4)
        knobs: dict[str, Value] = {"algorithm": "another", "lanes": 3}
        session.add(Trial(knobs, Outcome(1e-6, 2e-6)))
        again = Session(_JOB, _MACHINE, "stamp")
        assert again.find(knobs) is not None
        assert len(again.trials) == count + 1
