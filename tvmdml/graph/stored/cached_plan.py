"""Open plans in the cache: as JSON and arrays, and back. Reading imports neither the compiler nor operators nor schedules.

A plan is written once. What schedules answer afterwards, for other sizes, is written in parts of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmdml.graph.laid import Weights
from tvmdml.graph.launching import AnswerMissing, Chosen, MemorySource, PackedKey, ScheduleAnswer
from tvmdml.graph.open_plan import OpenPlan, Wired
from tvmdml.graph.stored.written import ABSENT, MOST, ReadPlan, place, weights
from tvmdml.library import finding
from tvmdml.system import apart
from tvmdml.system.disk import stores
from tvmdml.targets import Launch, Target
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes.evaluating import GuardedIntegers

if TYPE_CHECKING:
    from tvmdml.graph.program import Finished


# -- Writing


def written_part(plan: OpenPlan) -> tuple[dict[str, Any], list[NumpyArray | Weights]] | None:
    """What the cache has not: answers, packed weights, and constants that are read as they are. They count as written.

    ``None`` if they cannot be written.
    """
    answers = []
    for i, group in enumerate(plan.groups):
        for tasks, answer in group.new:
            kernel: Any = getattr(answer, "kernel", None)
            try:
                name, function = finding.name_of(kernel, plan.target), answer.function.written()
            except (AttributeError, ValueError):
                return None
            answers.append([i, tasks, name, answer.name, answer.count, answer.types, answer.packed, function])
    packed: dict[PackedKey, Weights] = {}
    constants: dict[MemorySource, NumpyArray] = {}
    for wired in plan.wired():
        if wired.buffers is not None and not wired.is_written:
            packed |= zip(wired.weights, wired.buffers, strict=True)
            constants |= {one: plan.constants[one.number] for one in wired.constants if one.kind == "constant"}
            wired.is_written = True
    packed = {key: array for key, array in packed.items() if key not in plan.written_weights}
    constants = {source: array for source, array in constants.items() if source not in plan.written_weights}
    plan.written_weights |= {*packed, *constants}
    for group in plan.groups:
        group.new.clear()
    arrays: list[NumpyArray | Weights] = []
    own = weights(((source.number, array) for source, array in constants.items()), packed.items(), arrays)
    return {"answers": answers, **own}, arrays


def has_new(plan: OpenPlan) -> bool:
    """Whether a plan has what the cache has not."""
    return any(group.new for group in plan.groups) or any(not wired.is_written for wired in plan.wired())


# -- Reading


_NOTHING = GuardedIntegers((), (), (), (), ())


class _Stored(ScheduleAnswer):
    """What a schedule chose in another process."""

    def __init__(self, written: Any, count: int, types: Sequence[str], packed: Any, digest: str, name: str) -> None:
        """``written`` is the function: it is read when it is asked for, as most answers are for other sizes."""
        super().__init__(_NOTHING, count, types, packed)
        self._written, self._digest, self._name = written, digest, name
        self._launcher: Any = None

    @functools.cached_property
    def function(self) -> GuardedIntegers:
        """What makes the integers.

        Raises:
            ValueError, TypeError: it is damaged.
        """
        function = GuardedIntegers.read(self._written, asks_schedules=True)
        if len(function.wanted) != self.count + len(self.types):
            raise ValueError(f"{len(function.wanted)} integers of {self.count} and {len(self.types)}")
        return function

    def is_like(self, other: ScheduleAnswer) -> bool:
        """Whether another one says the same."""
        return isinstance(other, _Stored) and (self._digest, self._written) == (other._digest, other._written)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._name

    def launch(self, numbers: tuple[int, ...], target: Target) -> Launch:
        """The launch with these integers.

        Raises:
            AnswerMissing: the kernel is in the cache no more.
        """
        if self._launcher is None:
            self._launcher = apart(lambda: finding.stored(stores.DiskStore(), self._digest, target))
            if self._launcher is None:
                raise AnswerMissing
        return target.launch(self._launcher, numbers[: self.count], self.temporaries(numbers))


class KeptPlan(ReadPlan):
    """A plan of the cache."""

    def __init__(
        self,
        described: Mapping[str, Any],
        arrays: Sequence[NumpyArray],
        target: Target,
        arenas: list[Any],
        finish: Callable[[Sequence[int]], Finished],
    ) -> None:
        """
        Args:
            described: what ``written`` described.
            arrays: the arrays.
            target: where it runs.
            arenas: intermediate memory that plans share.
            finish: makes the program for sizes, if somebody asks for it.

        Raises:
            Exception: it is damaged.
        """
        super().__init__(described, arrays, target, arenas)
        self._finish = finish

    def add_part(self, part: Mapping[str, Any], arrays: Sequence[NumpyArray]) -> None:
        """Add answers and packed weights.

        Raises:
            Exception: they are damaged.
        """
        for group, tasks, digest, name, scalars, types, packed, function in part["answers"]:
            own = [
                (str(each), str(layout), place(nbytes, 1 << 62), tuple(map(str, names))) for each, layout, nbytes, names in packed
            ]
            count_of = place(scalars, 1 << 16)
            answer = _Stored(function, count_of, list(map(str, types)), own, str(digest), str(name))
            own_group = self.groups[place(group, len(self.groups))]
            if not any(answer.is_like(other) for other in own_group.answers.get(tasks, ())):
                own_group.add(place(tasks, MOST), answer)
        self.add_weights(part, arrays)
        for one in self.groups:
            one.new.clear()

    def check_wiring(self, wired: Wired) -> None:
        """Refuse what the cache has not whole.

        Raises:
            AnswerMissing: a constant that is read as it is was not kept.
        """
        if any(source.kind == "constant" and self.constants[source.number] is ABSENT for source in wired.constants):
            raise AnswerMissing

    def packed(self, wired: Wired, chosen: Sequence[Chosen]) -> list[Weights]:
        """The packed weights.

        Raises:
            AnswerMissing: the cache has not all of them.
        """
        found = []
        for key, (_, weight) in wired.weights.items():
            array = self.packed_weights.get(key)
            if array is None or array.nbytes != weight.nbytes:
                raise AnswerMissing
            found.append(Weights(self.target.place(array) if self.target.moves else array))
        return found

    def finished(self, values: Sequence[int]) -> Finished:
        """The program for sizes, after all passes."""
        return self._finish(values)
