"""Tuning: a search over the knobs of schedules, the logs of the winners, and the fleet of servers for measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmdml.tuning.terms import Machine, Outcome, Record, Trial, Tuned
    from tvmdml.tuning.tuner import tune

__all__ = ["Machine", "Outcome", "Record", "Trial", "Tuned", "tune"]


def __getattr__(name: str) -> Any:
    """Public names, loaded at first use: programs that only run kernels need nothing but the logs."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "tune":
        from tvmdml.tuning import tuner

        return tuner.tune
    from tvmdml.tuning import terms

    return getattr(terms, name)
