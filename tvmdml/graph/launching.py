"""What a program of open sizes launches: its arrays, and of each launch the answers that its schedule gave."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.targets import Launch, Target
from tvmdml.tensors.sizes.evaluating import Evaluator, GuardedIntegers

if TYPE_CHECKING:
    from tvmdml.tensors.arrays import NumpyArray

_MOST_ANSWERS = 32


class AnswerMissing(Exception):
    """A plan that was read has no answer for a launch, or not the weights that it needs: the program must be planned again."""


class MemorySource(NamedTuple):
    """Memory: a piece of the arena, a constant, an array of sizes, an input, or an output."""

    kind: str
    number: int


PackedKey = tuple[str, tuple[tuple[MemorySource, int], ...]]
"""A layout, and the constants that are packed, with the places of their offsets among the plan's numbers."""


class LaunchArgument(NamedTuple):
    """An array of a launch."""

    source: MemorySource
    name: str
    """The tensor's; empty for a condition."""
    offset: int
    """The place of the offset among the plan's numbers."""
    size: int
    """The place of its bytes there."""


SAME_MEMORY = {"past_key_tensor": "output_present_key_tensor", "past_value_tensor": "output_present_value_tensor"}
"""The outputs that may be in the memory of an input although the kernel was not made for that: where both are, it writes what is
there. Only with lengths of the past: others move all rows."""


class Launching(NamedTuple):
    """A launch of the program."""

    group: int
    title: str
    """The call, for messages."""
    arguments: tuple[LaunchArgument, ...]
    wanted: tuple[bool, ...]
    """What each condition must be."""


class LaunchTensor(NamedTuple):
    """An input, an output, or an array of sizes: the places of its integers among the plan's numbers."""

    name: str
    shown: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    source: MemorySource | None
    """Where it is computed, for an output; for an input itself, or ``None`` if nothing reads it."""
    copies: int | NumpyArray | None = None
    """For an output an earlier one with the same bytes, or an array."""
    owned: bool = False
    """Whether an input is given once, before the first run."""


class Weight(NamedTuple):
    """An input that a kernel takes packed: its name, how it is packed, and from what."""

    name: str
    layout: str
    nbytes: int
    sources: tuple[tuple[MemorySource, int], ...]
    """The constants, or owned inputs, and the places of the offsets among the plan's numbers."""

    @property
    def key(self) -> PackedKey:
        """Equal for weights that are the same bytes."""
        return self.layout, self.sources


class ScheduleAnswer(abc.ABC):
    """What a schedule chooses, for all sizes for which it is asked the same and answers the same."""

    def __init__(self, function: GuardedIntegers, count: int, types: Sequence[str], packed: Sequence[tuple[Any, ...]]) -> None:
        """
        Args:
            function: makes the integers of the launch, and then the numbers of elements of temporaries.
            count: how many integers there are.
            types: of the temporaries.
            packed: of each input that the kernel takes packed its name, the layout, the bytes, and the names of what is packed.
        """
        self._function, self.count, self.types, self.packed = function, count, tuple(types), tuple(packed)
        self._first: tuple[tuple[int, ...], tuple[int, ...] | None] | None = None
        """The sizes that it was asked for first, and the integers for them."""
        self._code: Evaluator | None = None

    @property
    def function(self) -> GuardedIntegers:
        """What makes the integers."""
        return self._function

    def numbers(self, *values: int) -> tuple[int, ...] | None:
        """The integers for sizes; ``None`` if the answer is another one."""
        if self._code is None:
            if self._first is None:  # code takes longer than one answer does
                self._first = values, self.function.evaluated(*values)
            if values == self._first[0]:
                return self._first[1]
            self._code = self.function.compiled()
        return self._code(*values)

    def temporaries(self, numbers: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """The types and the numbers of elements."""
        return tuple(zip(self.types, numbers[self.count :], strict=True)) if self.types else ()

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The kernel's name."""

    @abc.abstractmethod
    def launch(self, numbers: tuple[int, ...], target: Target) -> Launch:
        """The launch with these integers.

        Raises:
            CompileError: the kernel cannot be made.
        """


class Chosen(NamedTuple):
    """A launch for certain sizes."""

    launch: Launch
    answer: ScheduleAnswer
    numbers: tuple[int, ...]


class LaunchGroup:
    """Launches of one descriptor with one kernel and its integers."""

    def __init__(self, answers: Mapping[int, list[ScheduleAnswer]] | None = None) -> None:
        self.answers: dict[int, list[ScheduleAnswer]] = dict(answers or {})
        """By the number of tasks that schedules choose for. The last used is the first. A list never changes: threads read it."""
        self.new: list[tuple[int, ScheduleAnswer]] = []
        """Those that the cache has not."""
        self.most = _MOST_ANSWERS
        """So many are known for a number of tasks; the oldest is forgotten."""

    def known(self, values: Sequence[int], tasks: int) -> tuple[ScheduleAnswer, tuple[int, ...]] | None:
        """The answer that holds for sizes, and the integers."""
        answers = self.answers.get(tasks, ())
        for i, answer in enumerate(answers):
            if (numbers := answer.numbers(*values)) is not None:
                if i:
                    self.answers[tasks] = [answer, *answers[:i], *answers[i + 1 :]]
                return answer, numbers
        return None

    def add(self, tasks: int, answer: ScheduleAnswer) -> None:
        """Know one more."""
        self.answers[tasks] = [answer, *self.answers.get(tasks, ())][: self.most]
        self.new.append((tasks, answer))
