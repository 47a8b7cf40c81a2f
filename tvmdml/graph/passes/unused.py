"""Drop calls whose results nobody reads."""

from __future__ import annotations

from tvmdml.graph.program import Program, needed
from tvmdml.targets import Target


def run(program: Program, target: Target) -> None:
    """Keep what the results depend on."""
    kept = set(map(id, needed(program.calls, program.results)))
    program.forget([call for call in program.calls if id(call) not in kept], "not needed for the outputs")
