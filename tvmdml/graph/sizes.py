"""``Sizes``: what follows from descriptions for many sizes, found for all of them at once.

A schedule chooses a kernel by comparing sizes, and computes its integers from them. It runs once for all sizes with the same
answers (``tvmdml.sizes``): each size has the kernel, and the integers, that the schedule chooses for this size alone. That is
checked for two of those that have a kernel in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from tvmdml.compiler import Launches
from tvmdml.graph.by_size import Described, Differs, Values, input_of
from tvmdml.graph.laid import Given
from tvmdml.graph.laying import given
from tvmdml.graph.nodes import Call
from tvmdml.graph.surroundings import are_usual
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._contract import Operator
from tvmdml.operators._contract import Shared as InPlace
from tvmdml.scheduling import kernel_for
from tvmdml.sizes.template import Template, own
from tvmdml.targets import Launch, Target

_MOST_RECORDED = 32
"""The most answers for one description; beyond, each other size is looked at alone."""
_MOST_FAILED = 8
"""After so many sizes that had no such answers, each is looked at alone."""

Spans = tuple[tuple[str, int], ...]
"""The bytes that each tensor spans, by name."""


class Sized(NamedTuple):
    """A launch for a size."""

    launch: Launch
    name: str
    """The kernel's."""
    packed: tuple[tuple[Any, ...], ...]
    """The inputs that it takes packed."""
    room: tuple[int, ...]
    """The bytes of each output."""
    spans: Callable[[], Spans]


class Choice(NamedTuple):
    """What a schedule chooses, and what it needs to know of memory."""

    identity: tuple[object, ...]
    """Of the kernel."""
    scalars: tuple[int, ...]
    temporaries: tuple[tuple[str, int], ...]
    packed: tuple[tuple[Any, ...], ...]
    room: tuple[int, ...]
    spans: Spans

    @classmethod
    def of(cls, desc: Operator, in_place: InPlace, kernel: Kernel) -> Choice:
        """What matters of a kernel.

        Raises:
            Differs: not all that is in place may be.
        """
        if any(pair not in desc.shareable() for pair in in_place):
            raise Differs
        return cls(own(kernel.identity), kernel.scalars, kernel.temporaries, own(packed(kernel, desc)), room(desc), spans(desc))


T = TypeVar("T")
Check = Callable[[int, T], Any]


class _Recorded(Generic[T]):
    """A result for all sizes with the same answers."""

    def __init__(self, template: Template[T], first: int, launches: Any) -> None:
        self._template, self._first, self.launches = template, first, launches
        self._is_checked = False

    def at(self, n: int, check: Check[T]) -> T | None:
        """The result for a size; ``None`` if it has other answers."""
        found = self._template.at((n,))
        if found is not None and not self._is_checked and n != self._first:
            check(n, found)
            self._is_checked = True
        return found


class _Table(Generic[T]):
    """What a function makes of a description for sizes."""

    def __init__(self, described: Described, function: Callable[[Any], T], check: Check[T]) -> None:
        self._described, self._function, self._check = described, function, check
        self._recorded: list[_Recorded[T]] = []
        self._failed = 0

    def at(self, n: int) -> tuple[T, Any] | None:
        """The result for a size, and what the check gave; ``None`` if the size must be looked at alone."""
        if self._failed == _MOST_FAILED:
            return None
        try:
            for i, recorded in enumerate(self._recorded):
                if (known := recorded.at(n, self._check)) is not None:
                    self._recorded.insert(0, self._recorded.pop(i))
                    return known, recorded.launches
            if len(self._recorded) == _MOST_RECORDED:
                return None
            template = self._described.recorded(n, self._function)
            if (first := template.at((n,))) is None:
                raise Differs
            self._recorded.insert(0, _Recorded(template, n, self._check(n, first)))
            return first, self._recorded[0].launches
        except Exception:  # looked at alone, a size has the right error, too
            self._failed += 1
            return None


class Sizes:
    """What follows from descriptions for the sizes of a line."""

    def __init__(self, target: Target, every: range) -> None:
        """
        Args:
            target: where kernels run.
            every: all sizes.
        """
        self.target, self._every = target, every
        self._tables: dict[tuple[object, ...], _Table[Any]] = {}

    def now(self) -> int | None:
        """For how many threads schedules choose now; ``None`` if kernels come from elsewhere."""
        return self.target.tasks() if are_usual(self.target) else None

    def kernel(self, one: Described, in_place: InPlace, n: int, threads: int | None) -> Sized | None:
        """The launch of a description for a size; ``None`` if it must be looked at alone. ``threads`` is what ``now`` said.

        Raises:
            CompileError: the kernel cannot be made.
        """
        if (found := self._chosen(one, in_place, n, threads)) is None:
            return None
        choice, launches = found
        launch = launches.launch(choice.scalars, choice.temporaries)
        return Sized(launch, launches.name, choice.packed, choice.room, lambda: choice.spans)

    def choice(self, one: Described, in_place: InPlace, n: int) -> Choice | None:
        """What the schedule chooses for a size; ``None`` if it must be looked at alone."""
        found = self._chosen(one, in_place, n, self.now())
        return None if found is None else found[0]

    def given(self, one: Described, values: Values) -> Given:
        """An input of this description, as callers give it."""

        def made(form: Any) -> Given:
            return given(input_of(form, ""), 0, 0)._replace(node=None)

        found = self._table((id(one),), one, values.n, made, lambda n, found: None)
        return made(values.of(one)) if found is None else found[0]

    def _chosen(self, one: Described, in_place: InPlace, n: int, threads: int | None) -> tuple[Choice, Launches] | None:
        if not one.varies or threads is None:
            return None

        def choose(desc: Operator) -> Choice:
            return Choice.of(desc, in_place, kernel_for(desc.canonical(), self.target, in_place))

        def check(n: int, found: Choice) -> Launches:
            desc = one.at(n)
            kernel = kernel_for(desc.canonical(), self.target, in_place)
            if Choice.of(desc, in_place, kernel) != found:
                raise Differs
            return Launches(kernel, self.target)

        return self._table((id(one), in_place, threads), one, n, choose, check)

    def _table(
        self, key: tuple[object, ...], one: Described, n: int, function: Callable[[Any], T], check: Check[T]
    ) -> tuple[T, Any] | None:
        """What a function makes of a description for a size."""
        if n not in self._every:
            return None
        if (table := self._tables.get(key)) is None:
            table = self._tables[key] = _Table(one, function, check)
        return table.at(n)


def room(desc: Operator) -> tuple[int, ...]:
    """The bytes of each output."""
    call = Call(desc, {}, "", "")
    return tuple(call.bytes_of(i) for i in range(len(call.outputs())))


def packed(kernel: Kernel, desc: Operator) -> tuple[tuple[Any, ...], ...]:
    """The inputs that a kernel takes packed, and what they are made of."""
    if not kernel.owned:
        return ()
    tensors = dict(desc.tensors())
    return tuple((*one[:-1], *(repr(tensors[name]) for name in one.inputs)) for one in kernel.owned)


def spans(desc: Operator) -> Spans:
    """The bytes that each tensor spans."""
    return tuple((name, tensor.span_in_bytes) for name, tensor in desc.tensors() if tensor is not None)
