"""The search space of an operation: the knobs, and their values, that change which kernel it gets.

A schedule chooses a kernel from its knobs without compiling anything, so the effect of a knob on an operation can be tested
beforehand. Most have no effect on most operations, such as a threshold far from the shape, or a tile size of an algorithm that is
not used. The search samples the remaining knobs, an algorithm's name like any other. Two candidates with the same kernel count as
one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tvmdml import operators
from tvmdml.errors import TvmdmlError
from tvmdml.kernels.knobs import Value
from tvmdml.library import knobs
from tvmdml.library.log_terms import Knobs
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.targets import Target

_PROBES = 24
"""The number of settings of all knobs in which each value of a knob is tested, to see what it changes."""
Decision = tuple[object, ...]
"""A kernel and its launch parameters: the result of a schedule's decisions."""


class Space:
    """The choices for an operation on a target.

    Attributes:
        choices: the values of each knob that matters, its default first.
    """

    def __init__(self, desc: Operator, shared: Shared, target: Target) -> None:
        self._desc, self._shared, self._target = desc.canonical(), shared, target
        self.operator = operators.tuned_as(type(desc))
        self._knobs = knobs.of(self.operator, target)
        self.default = self.decide({})
        self.choices: dict[str, tuple[Value, ...]] = {} if self._knobs is None else self._that_matter()

    def decide(self, values: Knobs) -> Decision | None:
        """The kernel for some values, with defaults for the others; ``None`` if there is no kernel or a constraint is violated."""
        if self._knobs is not None and self._knobs.allowed(values, self._target):
            return None
        try:
            with knobs.untuned(), knobs.using(**{self.operator: values}):
                kernel = kernel_for(self._desc, self._target, self._shared)
        except TvmdmlError:
            return None
        return (*kernel.identity, tuple(kernel.scalars), tuple(kernel.temporaries))

    def values(self, places: Sequence[int]) -> Knobs:
        """The knobs that a candidate sets to other values than their defaults, from the index of each knob's choice."""
        return {name: choices[place] for (name, choices), place in zip(self.choices.items(), places, strict=True) if place}

    def places(self, values: Knobs) -> tuple[int, ...] | None:
        """The inverse of ``values``; ``None`` if a value is not in this space."""
        if not all(name in self.choices and value in self.choices[name] for name, value in values.items()):
            return None
        return tuple(choices.index(values[name]) if name in values else 0 for name, choices in self.choices.items())

    def _that_matter(self) -> dict[str, tuple[Value, ...]]:
        assert self._knobs is not None
        defaults = vars(self._knobs.now(self._target))
        every = {name: _nearest_first(knob.choices, defaults[name]) for name, knob in self._knobs.knobs.items()}
        settings = list(_settings(every))
        found = {}
        for name, choices in every.items():
            by_effect: dict[tuple[Decision | None, ...], Value] = {}
            for value in choices:  # of values with the same effect, only the one nearest to the default is kept
                effect = tuple(self.decide({**setting, name: value}) for setting in settings)
                if any(effect):
                    by_effect.setdefault(effect, value)
            if len(by_effect) > 1:
                found[name] = tuple(by_effect.values())
        return found


def _settings(every: Mapping[str, tuple[Value, ...]]) -> list[dict[str, Value]]:
    """The defaults; each word instead of its default; and random values, the same in every run."""
    found: list[dict[str, Value]] = [{}]
    found += [{name: value} for name, choices in every.items() for value in choices[1:] if isinstance(value, str)]
    rng = random.Random(0)  # noqa: S311 - the same settings in every run
    while len(found) < _PROBES:
        found.append({name: rng.choice(choices) for name, choices in every.items()})
    return found


def _nearest_first(choices: Sequence[Value], default: Value) -> tuple[Value, ...]:
    """The default, then the values by their distance from it."""
    place: Any = choices.index(default)
    return tuple(sorted(choices, key=lambda value: abs(choices.index(value) - place)))
