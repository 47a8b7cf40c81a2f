"""Tuning: a search over the knobs of schedules, the logs of the winners, and the fleet of servers for measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.system import on_first_use

if TYPE_CHECKING:
    from tvmdml.library.log_terms import Machine as Machine
    from tvmdml.library.log_terms import Outcome as Outcome
    from tvmdml.library.log_terms import Record as Record
    from tvmdml.library.log_terms import Trial as Trial
    from tvmdml.library.log_terms import Tuned as Tuned
    from tvmdml.tuning.tuner import tune as tune


# Programs that only run kernels need nothing but the logs.
__getattr__, __dir__, __all__ = on_first_use(
    __name__, {".library.log_terms": ("Machine", "Outcome", "Record", "Trial", "Tuned"), "tuner": ("tune",)}
)
