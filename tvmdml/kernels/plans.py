"""Plans of calls, which hold kernels: they are dropped when kernels may come from another place than before."""

from __future__ import annotations

from collections.abc import Callable

_planners: list[Callable[[], None]] = []
generation = 0
"""Changes whenever kernels may come from another place than before. A plan of an older generation is made again."""


def plan_anew(forget: Callable[[], None]) -> None:
    """Call a function whenever plans of calls must be dropped."""
    _planners.append(forget)


def forget() -> None:
    """Make all functions plan their calls again."""
    global generation
    generation += 1
    for planner in _planners:
        planner()
