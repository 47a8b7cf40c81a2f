"""``OpenSaved``: the plan of a graph whose sizes are open, in a pack. For certain sizes it is a ``SavedPlan``.

It is what ``saving`` writes of a plan, with a function of the sizes in the place of its numbers, and with the descriptors of one
case, in which other integers are filled in: for each descriptor it has their places among the numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import InvalidArgument, Unsupported, message
from tvmdml.graph.laid import Weights
from tvmdml.graph.stored import saving
from tvmdml.graph.stored.saved_plan import SavedGroup, SavedPlan
from tvmdml.graph.stored.written import MOST, Written, constants_read, place, places, text
from tvmdml.system import at_hand
from tvmdml.targets import Target
from tvmdml.tensors.sizes.evaluating import GuardedIntegers

if TYPE_CHECKING:
    import numpy as np

    from tvmdml.graph.open_planning import ProgramPlan
    from tvmdml.graph.templates import Template
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared
    from tvmdml.tensors.arrays import NumpyArray


_MOST_CORNERS = 64  # of the 3^n that n ranges have
_MOST_SIZE = 1 << 32  # DirectML's sizes have 32 bits


class Limits(NamedTuple):
    """The values of an open size that a pack was built for."""

    name: str
    values: range

    @classmethod
    def read(cls, name: Any, least: Any, most: Any, step: Any) -> Limits:
        """Limits of a description.

        Raises:
            ValueError: they are none.
        """
        values = range(place(least, _MOST_SIZE), place(most, _MOST_SIZE) + 1, place(step, _MOST_SIZE))
        if not values:
            raise ValueError(f"no values of {name}")
        return cls(text(name), values)

    def written(self) -> list[Any]:
        """As ``read`` takes them."""
        return [self.name, self.values[0], self.values[-1], self.values.step]

    def nearest(self, value: int) -> int:
        """The largest of the values that is not larger, or the least."""
        return max(self.values[0], min(value - (value - self.values[0]) % self.values.step, self.values[-1]))

    def __str__(self) -> str:
        return f"{self.name}={shown(self.values)}"


def shown(values: range) -> str:
    """A range as the command line takes it."""
    step = f":{values.step}" if values.step > 1 and len(values) > 1 else ""
    return f"{values[0]}..{values[-1]}{step}"


def drawn(limits: Sequence[Limits], count: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """The corners of ranges of sizes, and sizes from inside: some with small ones as often as large ones, some with the least ones.

    All sizes, if they are not more than ``count``.
    """
    if math.prod(len(limit.values) for limit in limits) <= count:
        yield from itertools.product(*(limit.values for limit in limits))
        return
    ends = [dict.fromkeys((limit.values[0], limit.values[:2][-1], limit.values[-1])) for limit in limits]
    yield from itertools.islice(itertools.product(*ends), _MOST_CORNERS)
    for i in range(count):
        if i % 3:
            sizes = [limit.values[int(rng.integers(len(limit.values)))] for limit in limits]
            if i % 3 == 2:  # a size of 1 has recordings of its own
                sizes = [limit.values[0] if rng.random() < 0.5 else size for limit, size in zip(limits, sizes, strict=True)]
            yield tuple(sizes)
        else:
            sizes = [round(math.exp(rng.uniform(math.log(limit.values[0]), math.log(limit.values[-1])))) for limit in limits]
            yield tuple(limit.nearest(n) for n, limit in zip(sizes, limits, strict=True))


# -- Writing


def describe(plan: ProgramPlan) -> Written:
    """What is written of a graph, as ``saving.describe`` says.

    Raises:
        Unsupported: it cannot be written.
    """
    at_hand("tvmdml.library.lines", "tvmdml.operators._shared", "tvmdml.graph.templates")
    from tvmdml.graph.templates import Template
    from tvmdml.library import lines
    from tvmdml.operators import _shared
    from tvmdml.tensors.sizes.evaluating import terms_of

    terms = {number: i for i, number in enumerate(plan.function.wanted)}
    calls = []
    for template, shared in plan.templates():
        desc = template.filled(lambda size: plan.record.value(size.terms))  # which, unlike its own integer, is no guard
        plain = lines.read(lines.of(desc), desc.NAME)
        if Template(plain).numbers != Template(desc).numbers:
            raise Unsupported(f"{desc.NAME}: its descriptor has other integers when it is read again.")
        numbers = [terms.setdefault(terms_of(number), len(terms)) for number in template.numbers]
        calls.append([lines.of(plain), _shared.write(plain, shared), numbers])
    if plan.record.choices:
        raise Unsupported(f"{plan.name}: a choice about its sizes cannot be written.")
    whole = saving.describe(plan, calls, constants_read(plan), ())
    whole.described["plan"]["function"] = GuardedIntegers.of(plan.record, list(terms)).written()
    return whole


# -- Reading


class _Filled(SavedGroup):
    """Launches with one descriptor, for certain sizes."""

    def __init__(self, template: Template, shared: Shared, numbers: Sequence[int], title: str) -> None:
        super().__init__({}, False, title)
        self._template, self._shared, self._numbers = template, shared, numbers

    @functools.cached_property
    def call(self) -> tuple[Operator, Shared]:
        """The descriptor, and which of its tensors share memory.

        Raises:
            InvalidArgument, ModelError, ValueError: it breaks its contract.
        """
        from tvmdml.enums import NEWEST_FEATURE_LEVEL

        desc: Operator = self._template.with_numbers(self._numbers)
        desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        return desc, self._shared


class OpenSaved:
    """The plan of a graph whose sizes are open."""

    def __init__(
        self,
        described: Mapping[str, Any],
        arrays: Sequence[NumpyArray],
        limits: Sequence[Limits],
        target: Target,
        made: dict[object, Weights],
    ) -> None:
        """
        Args:
            described: what ``describe`` described.
            arrays: its arrays.
            limits: the values that the pack was built for, of each open size, in the order of the function's symbols.
            target: where it runs.
            made: the weights that were packed in this process, for other plans with the same arrays, too.

        Raises:
            Exception: it is damaged.
        """
        plan = described["plan"]
        self.name, self.limits = text(plan["name"]), tuple(limits)
        function = GuardedIntegers.read(plan["function"])
        if len(function.symbols) != len(self.limits):
            raise ValueError(f"{len(self.limits)} limits of {len(function.symbols)} sizes")
        self._evaluate = function.compiled()
        count = len(function.wanted)
        self._places = [places(numbers, count) for _, _, numbers in plan["calls"]]
        self._titles = {place(group, MOST): text(title) for group, title, *_ in reversed(plan["launchings"])}
        self.parts = described, arrays, target, made
        """What a ``StoredPlan`` for all sizes takes."""

    @functools.cached_property
    def _templates(self) -> list[tuple[Template, Shared]]:
        at_hand("tvmdml.graph.templates")
        from tvmdml.graph.templates import Template

        templates = []
        for line, in_place, _ in self.parts[0]["plan"]["calls"]:
            desc, shared = SavedGroup(line, in_place, "").call
            templates.append((Template(desc), shared))
        return templates

    def allows(self, values: Sequence[int]) -> bool:
        """Whether the pack was built for sizes, and the plan holds for them."""
        return self.are_inside(values) and self._evaluate(*values) is not None

    def are_inside(self, values: Sequence[int]) -> bool:
        """Whether sizes are in the ranges that the pack was built for."""
        return all(value in limit.values for limit, value in zip(self.limits, values, strict=True))

    def at(self, values: Sequence[int]) -> SavedPlan:
        """The plan for sizes.

        Raises:
            ValueError, ModelError: it is damaged.
            InvalidArgument: the pack was not built for them.
        """
        numbers = self._evaluate(*values) if self.allows(values) else None
        if numbers is None:
            given = ", ".join(f"{limit.name}={value}" for limit, value in zip(self.limits, values, strict=True))
            raise InvalidArgument(message(self.name, given, ", ".join(map(str, self.limits))))
        groups = [
            _Filled(template, shared, [numbers[i] for i in own], self._titles.get(k, ""))
            for k, ((template, shared), own) in enumerate(zip(self._templates, self._places, strict=True))
        ]
        described, arrays, target, made = self.parts
        fixed = {**described, "plan": {**described["plan"], "function": [[], [], [], [], numbers]}}
        plan = SavedPlan(fixed, arrays, target, made, groups)
        plan.is_case = True
        return plan
