"""What an operator of the recurrent family says of a step: its stages, and what each makes of a unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

UnitFunction = Callable[[Any], Any]


class Unit(NamedTuple):
    """What a stage of a step knows of a unit, or of a vector of units."""

    functions: tuple[UnitFunction, ...]
    """The activations, in the operator's order."""
    sums: Mapping[int, Any]
    """The sum of each of the stage's gates, biases included; of a gate that is apart only what the hidden state contributes."""
    apart: Mapping[int, Any]
    """What the input contributes to the gates that are apart."""
    state: Any
    """The hidden state before the step."""
    cell: Any
    """The cell's; ``None`` of an operator without cells."""
    peepholes: tuple[Any, ...]
    """The weights of the cell in the gates; none if there is no such tensor."""
    kept: tuple[Any, ...]
    """What the stage before has kept."""


class StepPart(NamedTuple):
    """A part of a step: products with one vector, and what units make of the sums."""

    gates: tuple[int, ...]
    value: Callable[[Unit], tuple[Any, ...]]
    """Of the last stage the hidden state and the cell after the step; of another one an element of the next stage's vector, and
    what is kept for it."""
    kept: int = 0
    """The number of values that are kept."""
