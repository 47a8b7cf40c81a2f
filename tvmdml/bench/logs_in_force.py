"""Which tuning logs were in force in a run: the folders they were read from, and the record that each case used."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping

from tvmdml import knobs, operators
from tvmdml.bench.results import LogFolder, LogUsed
from tvmdml.knobs import Value
from tvmdml.operators import Operator
from tvmdml.targets import Target
from tvmdml.tuning import log_lines, logs
from tvmdml.tuning.logs import Logs
from tvmdml.tuning.terms import Record


def folders() -> list[LogFolder]:
    """The folders whose records are in force, in search order."""
    counts = Counter(origins[0][0] for origins in _origins(logs.installed()).values())
    return [LogFolder(folder, count) for folder, count in counts.items()]


def used(desc: Operator, in_place: bool, target: Target) -> LogUsed:
    """The record that sets an operation's knobs on a target."""
    module = operators.module_of(type(desc))
    installed = logs.installed() if target.logs is None else target.logs
    found = installed.find(module, desc, in_place, target.machine()) if knobs.logs_count() else None
    declared = knobs.of(module, target)
    if found is None or declared is None:
        return LogUsed()
    defaults: Mapping[str, Value] = vars(declared.now(target))
    values = declared.tuned(target, desc, in_place).values
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    origins = _origins(installed).get(log_lines.key(found.record), ())
    folder = next((folder for folder, record in origins if record == found.record), "")
    return LogUsed("exact" if found.exact else "nearest", folder, changed)


@functools.lru_cache(maxsize=1)
def _origins(installed: Logs) -> Mapping[log_lines.Key, list[tuple[str, Record]]]:
    """The records of each key with their folders, in order of precedence. Computed again when other logs are installed."""
    found: dict[log_lines.Key, list[tuple[str, Record]]] = {}
    for folder in () if logs.are_off() else logs.folders():
        for record in logs.read([folder]):
            found.setdefault(log_lines.key(record), []).append((str(folder), record))
    return found
