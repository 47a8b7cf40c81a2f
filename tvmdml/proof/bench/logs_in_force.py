"""Which tuning logs were in force in a run: the folders they were read from, and the record that each case used."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping

from tvmdml import operators
from tvmdml.kernels import knobs
from tvmdml.kernels.knobs import Value
from tvmdml.library import log_folders, log_lines, logs, scheduling
from tvmdml.library.log_terms import Record
from tvmdml.library.logs import Logs
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.proof.bench.results import LogFolder, LogUsed
from tvmdml.targets import Target


def folders() -> list[LogFolder]:
    """The folders whose records are in force, in search order."""
    counts = Counter(origins[0][0] for origins in _origins(logs.installed()).values())
    return [LogFolder(folder, count) for folder, count in counts.items()]


def used(desc: Operator, shared: Shared, target: Target) -> LogUsed:
    """The record that sets an operation's knobs on a target."""
    module = operators.tuned_as(type(desc))
    installed = target.logs if isinstance(target.logs, Logs) else logs.installed()
    found = installed.find(module, desc, shared, target.machine()) if knobs.logs_count() else None
    declared = knobs.of(module, target)
    if found is None or declared is None:
        return LogUsed()
    defaults: Mapping[str, Value] = vars(declared.now(target))
    values = scheduling.tuned(declared, desc, target, shared).values
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    origins = _origins(installed).get(log_lines.key(found.record), ())
    folder = next((folder for folder, record in origins if record == found.record), "")
    return LogUsed("exact" if found.exact else "nearest", folder, changed)


@functools.lru_cache(maxsize=1)
def _origins(installed: Logs) -> Mapping[log_lines.Key, list[tuple[str, Record]]]:
    """The records of each key with their folders, in order of precedence. Computed again when other logs are installed."""
    found: dict[log_lines.Key, list[tuple[str, Record]]] = {}
    for folder in () if logs.are_off() else log_folders.folders():
        for record in logs.read([folder]):
            found.setdefault(log_lines.key(record), []).append((str(folder), record))
    return found
