"""``tvmdml doctor``: checks whether an installation works, and says what does not work, why, and what to do about it.

A check is a function that yields findings; ``checks.CHECKS`` is the table of checks. Checks that run external code (the compiler,
drivers, kernels) run in a separate process, so that a crash or a hang there is a finding too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tvmdml.errors import TvmdmlError, counted
from tvmdml.proof.doctor.terms import BROKEN, LIMITED, CheckFinding, MachineCheck
from tvmdml.system import children

PATIENCE = 90.0
"""The most seconds that a check's process may take."""
_SETTINGS, _KERNEL, _PACKS = "settings", "kernel", "packs"
"""Names of checks: the environment variables; a kernel on the processor; the packs in use."""
_CHILD = "from tvmdml.proof import doctor; doctor.answer({name!r})"


class FindingRow(NamedTuple):
    """A finding, with its check and group."""

    group: str
    check: str
    state: str
    words: str
    advice: str
    runs: bool = False


# -- Running the checks -------------------------------------------------------------------------------------------


def examine(names: Iterable[str] = (), *, apart: bool = True) -> list[FindingRow]:
    """Run checks. If a check itself fails, that is a finding too.

    Args:
        names: the names of the checks; all checks if empty.
        apart: run those checks that ask for it in a separate process.
    """
    wanted = set(names)
    checks = [check for check in _checks() if not wanted or check.name in wanted]
    with ThreadPoolExecutor(2) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks report these problems as findings
        answers = {check.name: pool.submit(_asked, check.name) for check in checks if check.apart and apart}
        try:
            found = [(check, answers[check.name].result() if check.name in answers else _made(check)) for check in checks]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)  # drop the checks that have not begun
            raise
    return _each_fault_once([FindingRow(check.group, check.name, *finding) for check, findings in found for finding in findings])


def verdict(rows: Iterable[FindingRow]) -> str:
    """The overall result in one sentence."""
    rows = list(rows)
    count = Counter(row.state for row in rows)
    if count[BROKEN]:
        first = next(row for row in rows if row.state == BROKEN)
        more = f", and {count[BROKEN] - 1} more" if count[BROKEN] > 1 else ""
        return f"Something is broken: {first.check}{more}; see the details above."
    if cannot_run(rows):
        advice = next((row.advice for row in rows if row.check == _KERNEL and row.advice), "")
        return f"tvmdml is limited here: no kernel can run. {advice}".strip()
    limited = f", with {counted(count[LIMITED], 'limitation')} (see above)" if count[LIMITED] else ""
    return f"tvmdml works here{limited}."


def is_well(rows: Iterable[FindingRow]) -> bool:
    """Whether nothing is broken, and kernels can run."""
    rows = list(rows)
    return all(row.state != BROKEN for row in rows) and not cannot_run(rows)


def cannot_run(rows: Iterable[FindingRow]) -> bool:
    """Whether running a kernel on the processor was tried, and no check has shown that kernels can run."""
    rows = list(rows)
    return any(row.check == _KERNEL for row in rows) and not any(row.runs for row in rows)


def _each_fault_once(rows: list[FindingRow]) -> list[FindingRow]:
    """Report each wrong variable once. Other checks that failed because of it only refer to that report."""
    broken = [row for row in rows if row.state == BROKEN]
    told = {row.words.partition("=")[0]: _SETTINGS for row in broken if row.check == _SETTINGS}
    if any(row.check == _PACKS for row in broken):
        told["TVMDML_PACKS"] = _PACKS
    found = []
    for row in rows:
        because = next((name for name in told if name in row.words), "") if row.state in (BROKEN, LIMITED) else ""
        if because and row.check not in (_SETTINGS, told[because]):
            row = row._replace(state=LIMITED, words=f"not checked, because of {because}: see {told[because]}", advice="")
        found.append(row)
    return found


def answer(name: str) -> None:
    """In the separate process: run a check, and print its findings as the last line."""
    (check,) = (check for check in _checks() if check.name == name)
    print("\n" + json.dumps(_made(check)), flush=True)  # noqa: T201 - the parent process reads it


def _checks() -> tuple[MachineCheck, ...]:
    from tvmdml.proof.doctor.checks import CHECKS

    return CHECKS


def _made(check: MachineCheck) -> list[CheckFinding]:
    found: list[CheckFinding] = []
    try:
        found.extend(check.look())
    except TvmdmlError as error:
        found.append(CheckFinding(BROKEN, str(error)))
    except ImportError as error:
        words = f"the Python package {error.name or 'that it requires'} cannot be imported: {error}"
        found.append(CheckFinding(BROKEN, words, "Reinstall tvmdml with pip, which also installs its dependencies."))
    except Exception as error:  # anything else that can go wrong on an unknown machine
        found.append(CheckFinding(BROKEN, f"this could not be checked: {type(error).__name__}: {error}"))
    return found


def _asked(name: str) -> list[CheckFinding]:
    """Run a check in a separate process; returns its findings."""
    command = children.command(_CHILD.format(name=name))
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return [
            CheckFinding(
                BROKEN, f"no answer within {PATIENCE:g} s", "The machine may be very busy, or the driver may hang. Try again."
            )
        ]
    except OSError as error:
        return [CheckFinding(BROKEN, f"the process for this check could not be started: {error}")]
    with contextlib.suppress(ValueError, TypeError, IndexError):
        return [CheckFinding(*one) for one in json.loads(done.stdout.splitlines()[-1])]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "no error message")
    return [CheckFinding(BROKEN, f"the process that ran this check crashed ({how}): {said}")]
