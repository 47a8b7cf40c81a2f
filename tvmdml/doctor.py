"""``tvmdml doctor``: whether an installation works, in plain words: what does not, why, and what to do about it.

A check is a function that yields findings; ``doctor_checks.CHECKS`` is the table of them. What runs other people's code (the
compiler, drivers, kernels) is checked in a process of its own, so that a crash there, or a hang, is a finding too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tvmdml import _children
from tvmdml.errors import TvmdmlError

OK, LIMITED, BROKEN, ABSENT = "ok", "limited", "broken", "absent"
"""Works; works with something missing or slow; fails; is not here and need not be."""
PATIENCE = 90.0
"""Seconds that a process of a check may take."""
_SETTINGS, _KERNEL, _PACKS = "settings", "kernel", "packs"
"""Names of checks: of the variables of the environment; of a kernel on the processor; of the packs in use."""
_CHILD = "from tvmdml import doctor; doctor.answer({name!r})"


class Finding(NamedTuple):
    """What came of a check."""

    state: str
    """``ok``, ``limited``, ``broken`` or ``absent``."""
    words: str
    advice: str = ""
    """What to do; empty where there is nothing to do."""
    runs: bool = False
    """Whether it shows that kernels can run here."""


class Check(NamedTuple):
    """One thing to look at."""

    group: str
    name: str
    look: Callable[[], Iterable[Finding]]
    apart: bool = False
    """Whether it runs code that may crash or hang, and so gets a process of its own."""


class Row(NamedTuple):
    """A finding, and whose it is."""

    group: str
    check: str
    state: str
    words: str
    advice: str
    runs: bool = False


# -- All of it ----------------------------------------------------------------------------------------------------


def examine(names: Iterable[str] = (), *, apart: bool = True) -> list[Row]:
    """Make checks; one that fails itself is a finding, too.

    Args:
        names: which; all there are, if none is named.
        apart: give those a process of their own that are to have one.
    """
    wanted = set(names)
    checks = [check for check in _checks() if not wanted or check.name in wanted]
    with ThreadPoolExecutor(2) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is warned of elsewhere is a finding here
        answers = {check.name: pool.submit(_asked, check.name) for check in checks if check.apart and apart}
        try:
            found = [(check, answers[check.name].result() if check.name in answers else _made(check)) for check in checks]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)  # what has not begun
            raise
    return _each_fault_once([Row(check.group, check.name, *finding) for check, findings in found for finding in findings])


def verdict(rows: Iterable[Row]) -> str:
    """All of it in one sentence."""
    rows = list(rows)
    count = Counter(row.state for row in rows)
    if count[BROKEN]:
        first = next(row for row in rows if row.state == BROKEN)
        more = f", and {count[BROKEN] - 1} more" if count[BROKEN] > 1 else ""
        return f"Something is broken: {first.check}{more}; see what is said of it above."
    if cannot_run(rows):
        advice = next((row.advice for row in rows if row.check == _KERNEL and row.advice), "")
        return f"tvmdml is limited here: no kernel can run. {advice}".strip()
    limited = f"; {count[LIMITED]} of the points above could be better" if count[LIMITED] else ""
    return f"tvmdml works here{limited}."


def is_well(rows: Iterable[Row]) -> bool:
    """Whether nothing is broken, and kernels can run."""
    rows = list(rows)
    return all(row.state != BROKEN for row in rows) and not cannot_run(rows)


def cannot_run(rows: Iterable[Row]) -> bool:
    """Whether it was tried to run a kernel on the processor, and neither that nor anything else shows that kernels can run."""
    rows = list(rows)
    return any(row.check == _KERNEL for row in rows) and not any(row.runs for row in rows)


def _each_fault_once(rows: list[Row]) -> list[Row]:
    """Say once that a variable is wrong. What could not be looked at because of it only says so."""
    broken = [row for row in rows if row.state == BROKEN]
    told = {row.words.partition("=")[0]: _SETTINGS for row in broken if row.check == _SETTINGS}
    if any(row.check == _PACKS for row in broken):
        told["TVMDML_PACKS"] = _PACKS
    found = []
    for row in rows:
        because = next((name for name in told if name in row.words), "") if row.state in (BROKEN, LIMITED) else ""
        if because and row.check not in (_SETTINGS, told[because]):
            row = row._replace(state=LIMITED, words=f"not looked at, because of {because}: see {told[because]}", advice="")
        found.append(row)
    return found


def answer(name: str) -> None:
    """In a process of its own: make a check, and print what came of it as the last line."""
    (check,) = (check for check in _checks() if check.name == name)
    print("\n" + json.dumps(_made(check)), flush=True)  # noqa: T201 - it is read by the process that asked


def _checks() -> tuple[Check, ...]:
    from tvmdml.doctor_checks import CHECKS

    return CHECKS


def _made(check: Check) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check.look())
    except TvmdmlError as error:
        found.append(Finding(BROKEN, str(error)))
    except ImportError as error:
        words = f"the Python package {error.name or 'that it takes'} cannot be imported: {error}"
        found.append(Finding(BROKEN, words, "Install tvmdml anew with pip, which brings what it takes."))
    except Exception as error:  # whatever else goes wrong on a machine that nobody has seen
        found.append(Finding(BROKEN, f"this could not be looked at: {type(error).__name__}: {error}"))
    return found


def _asked(name: str) -> list[Finding]:
    """What a process of its own says."""
    command = _children.command(_CHILD.format(name=name))
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return [Finding(BROKEN, f"no answer within {PATIENCE:g} s", "Is the machine very busy, or the driver stuck? Try again.")]
    except OSError as error:
        return [Finding(BROKEN, f"a process of its own could not be started: {error}")]
    with contextlib.suppress(ValueError, TypeError, IndexError):
        return [Finding(*one) for one in json.loads(done.stdout.splitlines()[-1])]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
    return [Finding(BROKEN, f"the process that tried it crashed ({how}): {said}")]
