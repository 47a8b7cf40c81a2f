"""``Sizes``: what follows from descriptions for many sizes, found for all of them at once.

A schedule chooses a kernel by comparing sizes, and computes its integers from them. It runs once for all sizes with the same
answers (``lanes``): each size has the kernel, and the integers, that the schedule chooses for this size alone. That is checked for
two of those that have a kernel in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from tvmdml import lanes
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
from tvmdml.targets import Launch, Target

_TOGETHER = 256
"""Sizes that are looked at together."""
_FEW = 4
"""It pays for at least so many with a kernel in common."""
_MOST_FEW = 8
"""After so many times that it did not pay, each is looked at alone."""

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
        identity, own = lanes.fixed(kernel.identity), lanes.fixed(packed(kernel, desc))
        return cls(identity, kernel.scalars, kernel.temporaries, own, room(desc), spans(desc))


T = TypeVar("T")
Check = Callable[[int, T], Launches | None]


class _Alike(NamedTuple, Generic[T]):
    """A result for a size: in one of the cases of a result for several."""

    result: T
    case: int
    launches: Launches | None


class _Table(Generic[T]):
    """What a function makes of a description for some sizes."""

    def __init__(self, one: Described, sizes: Sequence[int], function: Callable[[Any], T], check: Check[T]) -> None:
        self._one, self._function, self._check = one, function, check
        self._found: dict[int, _Alike[T]] = {}
        self._waiting = list(sizes)
        self._few = 0

    def at(self, n: int) -> _Alike[T] | None:
        """The result for a size, found together with those of all others with the same answers; ``None`` if that does not pay."""
        if (known := self._found.get(n)) is not None or self._few >= _MOST_FEW or n not in self._waiting:
            return known
        sizes = self._waiting
        try:
            cases, result = self._one.together(sizes, sizes.index(n), self._function)
            own = [self._check(sizes[cases[i]], lanes.at(result, i)) for i in (0, -1)]
        except Exception:  # looked at alone, a size has the right error, too
            self._few += 1
            return None
        self._few = self._few + 1 if len(cases) < _FEW else 0
        self._found |= {sizes[case]: _Alike(result, i, own[0]) for i, case in enumerate(cases)}
        self._waiting = [one for one in sizes if one not in self._found]
        return self._found[n]


class Sizes:
    """What follows from descriptions for the sizes of a line."""

    def __init__(self, target: Target, every: range) -> None:
        """
        Args:
            target: where kernels run.
            every: all sizes, of which there may be more than memory can hold.
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
        choice, case, launches = found
        assert launches is not None
        launch = launches.launch(lanes.at(choice.scalars, case), lanes.at(choice.temporaries, case))
        return Sized(launch, launches.name, choice.packed, lanes.at(choice.room, case), lambda: lanes.at(choice.spans, case))

    def choice(self, one: Described, in_place: InPlace, n: int) -> Choice | None:
        """What the schedule chooses for a size; ``None`` if it must be looked at alone."""
        found = self._chosen(one, in_place, n, self.now())
        return None if found is None else lanes.at(found.result, found.case)

    def given(self, one: Described, values: Values) -> Given:
        """An input of this description, as callers give it."""

        def made(form: Any) -> Given:
            return given(input_of(form, ""), 0, 0)._replace(node=None)

        found = self._table((id(one),), one, values.n, made, lambda n, found: None)
        return made(values.of(one)) if found is None else lanes.at(found.result, found.case)

    def _chosen(self, one: Described, in_place: InPlace, n: int, threads: int | None) -> _Alike[Choice] | None:
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
    ) -> _Alike[T] | None:
        """What a function makes of a description for a size."""
        if n not in self._every:
            return None
        place = self._every.index(n)
        begin = place - place % _TOGETHER
        key = *key, begin
        if (table := self._tables.get(key)) is None:
            table = self._tables[key] = _Table(one, self._every[begin : begin + _TOGETHER], function, check)
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
