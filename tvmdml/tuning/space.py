"""The search space of an operation: those knobs, and those of their values, that change which kernel it gets.

A schedule decides a kernel from its knobs without compiling anything, so what a knob does to an operation can be asked
beforehand. Most do nothing to most operations: a threshold that is far from the shape, a tile of an algorithm that is not taken.
What is left is what the search samples, an algorithm's name like any other knob. Two candidates that come to one kernel are one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tvmdml import knobs, operators
from tvmdml.errors import TvmdmlError
from tvmdml.knobs import Value
from tvmdml.operators import Operator
from tvmdml.targets import Target
from tvmdml.tuning.terms import Knobs

_PROBES = 24
"""Settings of all knobs that each value of one is tried in, to see what it changes."""
Decision = tuple[object, ...]
"""A kernel and what it is launched with: what a schedule makes of its knobs."""


class Space:
    """What there is to choose for an operation on a target.

    Attributes:
        choices: values by knob, of those that matter: its default first.
    """

    def __init__(self, desc: Operator, in_place: bool, target: Target) -> None:
        self._desc, self._in_place, self._target = desc.canonical(), in_place, target
        self.operator = operators.module_of(type(desc))
        self._knobs = knobs.of(self.operator, target)
        self.default = self.decide({})
        self.choices: dict[str, tuple[Value, ...]] = {} if self._knobs is None else self._that_matter()

    def decide(self, values: Knobs) -> Decision | None:
        """The kernel for some values, the others being defaults; nothing where the schedule has none or a constraint is broken."""
        if self._knobs is not None and self._knobs.allowed(values, self._target):
            return None
        try:
            with knobs.untuned(), knobs.using(**{self.operator: values}):
                kernel = self._target.kernel(self._desc, self._in_place)
        except TvmdmlError:
            return None
        return (*kernel.identity, tuple(kernel.scalars), tuple(kernel.temporaries))

    def values(self, places: Sequence[int]) -> Knobs:
        """The knobs that a candidate sets: those that are not at their default, by each one's place among its choices."""
        return {name: choices[place] for (name, choices), place in zip(self.choices.items(), places, strict=True) if place}

    def places(self, values: Knobs) -> tuple[int, ...] | None:
        """The opposite of ``values``; nothing where one of them is not of this space."""
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
            for value in choices:  # of values that do the same, the one next to the default stands for all
                effect = tuple(self.decide({**setting, name: value}) for setting in settings)
                if any(effect):
                    by_effect.setdefault(effect, value)
            if len(by_effect) > 1:
                found[name] = tuple(by_effect.values())
        return found


def _settings(every: Mapping[str, tuple[Value, ...]]) -> list[dict[str, Value]]:
    """The defaults; each word in place of its default; and any values at all, the same ones every time."""
    found: list[dict[str, Value]] = [{}]
    found += [{name: value} for name, choices in every.items() for value in choices[1:] if isinstance(value, str)]
    rng = random.Random(0)  # noqa: S311 - nobody is to be surprised
    while len(found) < _PROBES:
        found.append({name: rng.choice(choices) for name, choices in every.items()})
    return found


def _nearest_first(choices: Sequence[Value], default: Value) -> tuple[Value, ...]:
    """The default, then what stands next to it."""
    place: Any = choices.index(default)
    return tuple(sorted(choices, key=lambda value: abs(choices.index(value) - place)))
