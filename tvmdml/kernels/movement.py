"""``Transfer``: what a kernel of the movement family does, as a value: which elements move where, and what the others become.

A transfer is a list of moves. A move has the coordinates of a loop, and says for them where an element is read and where it is
written. Most of that is linear: a base and a step for each coordinate. What is not linear is a rule for one dimension of the
source: a coordinate that may be outside, or one that is looked up in a tensor of indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.layout import collapse
from tvmdml.tensors import TensorDesc

SliceSteps = tuple[int, ...]

INSIDE, WHOLE, EQUAL = "inside", "whole", "equal"
CLAMP, MIRROR, SYMMETRIC, WRAP = "clamp", "mirror", "symmetric", "wrap"
PICKED, TURNED = "picked", "turned"

FILLS = (INSIDE, WHOLE, EQUAL)
"""The rules with which an element may come from nowhere: it is the fill."""
BENT = (CLAMP, MIRROR, SYMMETRIC, WRAP)
"""The rules that bring a coordinate back inside, and leave those inside as they are."""


class Linear(NamedTuple):
    """An integer that follows from the coordinates of a loop: a base, and a step for each coordinate."""

    base: int
    steps: SliceSteps

    def range(self, sizes: Sequence[int]) -> tuple[int, int]:
        """The least and the greatest value."""
        reach = [step * (size - 1) for step, size in zip(self.steps, sizes, strict=True)]
        return self.base + sum(min(one, 0) for one in reach), self.base + sum(max(one, 0) for one in reach)


class Look(NamedTuple):
    """An element of another tensor, such as one of indices."""

    tensor: int
    """Which of the transfer's tensors it is."""
    place: Linear


class CoordinateRule(NamedTuple):
    """A dimension of the source whose coordinate is not linear.

    With ``x`` the linear part, ``n`` the size and ``i`` the element looked up, the coordinate is:

    - ``inside``: x; an x outside means the fill
    - ``whole``: x / divisor if that is whole and inside; otherwise it means the fill
    - ``clamp``, ``mirror``, ``symmetric``, ``wrap``: x brought back inside; ``mirror`` does not repeat the last element
    - ``picked``: i, counted from the end if it is negative, then brought inside by clamping
    - ``turned``: i - 1 - x if x is below i (at most n), else x
    - ``equal``: 0 if i, counted from the end if it is negative, is x; otherwise it means the fill
    """

    kind: str
    size: int
    step: int
    """The source's stride."""
    at: Linear
    divisor: int = 1
    look: Look | None = None

    def follows(self, dimension: int) -> bool:
        """Whether it depends on a coordinate of the loop."""
        return bool(self.at.steps[dimension] or (self.look is not None and self.look.place.steps[dimension]))


class Move(NamedTuple):
    """Elements that move from one tensor to another."""

    sizes: SliceSteps
    source: int
    """Which of the transfer's tensors is read."""
    result: int
    """Which of them is written."""
    read: Linear
    written: Linear
    rules: tuple[CoordinateRule, ...] = ()
    beside: tuple[Look, ...] = ()
    """Elements that what follows in the kernel takes, too: where they are for the result's element."""

    def simplified(self, reorder: bool = True) -> Move:
        """The same with as few rules and dimensions as possible, in the order of the result's elements in memory."""
        read, rules = self.read, []
        for rule in self.rules:
            low, high = rule.at.range(self.sizes)
            if rule.kind == WHOLE and rule.divisor == 1:
                rule = rule._replace(kind=INSIDE)
            if rule.kind in (INSIDE, *BENT) and low >= 0 and high < rule.size:
                read = _sum(read, rule.at, rule.step)
            else:
                rules.append(rule)
        looks = [rule.look.place.steps for rule in rules if rule.look is not None]
        others = [one.place.steps for one in self.beside]
        rows = (read.steps, *(rule.at.steps for rule in rules), *looks, *others, self.written.steps)
        sizes, found = collapse(self.sizes, *rows, reorder=reorder)
        sizes, waiting = sizes or (1,), iter([own or (0,) for own in found] if sizes else [(0,)] * len(rows))
        read = Linear(read.base, next(waiting))
        rules = [rule._replace(at=Linear(rule.at.base, next(waiting))) for rule in rules]
        after = [
            rule if rule.look is None else rule._replace(look=Look(rule.look.tensor, Linear(rule.look.place.base, next(waiting))))
            for rule in rules
        ]
        beside = tuple(Look(one.tensor, Linear(one.place.base, next(waiting))) for one in self.beside)
        return Move(sizes, self.source, self.result, read, Linear(self.written.base, next(waiting)), tuple(after), beside)

    def ordered(self, order: Sequence[int]) -> Move:
        """The same with its dimensions in another order."""
        each = iter([Linear(one.base, tuple(one.steps[i] for i in order)) for one in self.linears()])
        read, written = next(each), next(each)
        rules = [rule._replace(at=next(each)) for rule in self.rules]
        rules = [rule if rule.look is None else rule._replace(look=rule.look._replace(place=next(each))) for rule in rules]
        beside = tuple(one._replace(place=next(each)) for one in self.beside)
        sizes = tuple(self.sizes[i] for i in order)
        return self._replace(sizes=sizes, read=read, written=written, rules=tuple(rules), beside=beside)

    def linears(self) -> tuple[Linear, ...]:
        """Everything linear in it, in a fixed order."""
        looks = [rule.look.place for rule in self.rules if rule.look is not None]
        return (self.read, self.written, *(rule.at for rule in self.rules), *looks, *(one.place for one in self.beside))

    def numbers(self) -> tuple[int, ...]:
        """Its integers, as ``expressions`` takes them."""
        rules = (number for rule in self.rules for number in (rule.size, rule.step, rule.divisor))
        linear = (number for one in self.linears() for number in (one.base, *one.steps))
        return (*self.sizes, *linear, *rules)

    def integers(self) -> int:
        """How many integers ``numbers`` has."""
        return len(self.numbers())

    def expressions(self, numbers: Sequence[Any]) -> Move:
        """The move with other integers: those of a launch."""
        rank, waiting = len(self.sizes), iter(numbers)

        def linear() -> Linear:
            return Linear(next(waiting), tuple(next(waiting) for _ in range(rank)))

        sizes = tuple(next(waiting) for _ in range(rank))
        read, written, rules = linear(), linear(), [rule._replace(at=linear()) for rule in self.rules]
        rules = [rule if rule.look is None else rule._replace(look=Look(rule.look.tensor, linear())) for rule in rules]
        beside = tuple(one._replace(place=linear()) for one in self.beside)
        rules = [rule._replace(size=next(waiting), step=next(waiting), divisor=next(waiting)) for rule in rules]
        return Move(sizes, self.source, self.result, read, written, tuple(rules), beside)

    def form(self) -> str:
        """What the code of a kernel depends on: its tensors and rules, without the integers."""
        looks = (f" by {rule.look.tensor}" if rule.look else "" for rule in self.rules)
        rules = ", ".join(rule.kind + look for rule, look in zip(self.rules, looks, strict=True))
        beside = f", beside {[one.tensor for one in self.beside]}" if self.beside else ""
        return f"{self.source} to {self.result}: {rules}{beside}"


class Transfer(NamedTuple):
    """What a kernel moves."""

    tensors: tuple[TensorDesc, ...]
    """In field order."""
    moves: tuple[Move, ...]
    fill: int = 0
    """The bits of elements that come from nowhere."""
    filled_from: tuple[int, int] | None = None
    """Instead of ``fill``: a tensor, and the offset of the element that they are."""

    def simplified(self) -> Transfer:
        """The same with simple moves of the same rank."""
        moves = [move.simplified() for move in self.moves]
        rank = max(len(move.sizes) for move in moves)
        return self._replace(moves=tuple(_of_rank(move, rank) for move in moves))

    @property
    def span(self) -> int:
        """The largest number that is computed."""
        found = [tensor.span for tensor in self.tensors] + [tensor.element_count for tensor in self.tensors]
        for move in self.moves:
            found += [abs(number) for number in move.numbers()]
            found += [abs(number) for one in move.linears() for number in one.range(move.sizes)]
            found += [rule.size * 2 + max(map(abs, rule.at.range(move.sizes))) for rule in move.rules]
            found.append(sum(rule.size * abs(rule.step) for rule in move.rules) + max(map(abs, move.read.range(move.sizes))))
        return max(found)


def _sum(first: Linear, other: Linear, factor: int) -> Linear:
    steps = (a + factor * b for a, b in zip(first.steps, other.steps, strict=True))
    return Linear(first.base + factor * other.base, tuple(steps))


def _of_rank(move: Move, rank: int) -> Move:
    """The move with more dimensions, of size 1."""
    missing = rank - len(move.sizes)

    def padded(one: Linear) -> Linear:
        return Linear(one.base, (0,) * missing + one.steps)

    looks = (rule.look and Look(rule.look.tensor, padded(rule.look.place)) for rule in move.rules)
    rules = tuple(rule._replace(at=padded(rule.at), look=look) for rule, look in zip(move.rules, looks, strict=True))
    beside = tuple(one._replace(place=padded(one.place)) for one in move.beside)
    sizes = (1,) * missing + move.sizes
    return move._replace(sizes=sizes, read=padded(move.read), written=padded(move.written), rules=rules, beside=beside)


# -- In TensorIR --------------------------------------------------------------------------------------------------


def value(linear: Linear, at: Sequence[Any], first: int = 0) -> Any:
    """A linear integer for coordinates, of which those before ``first`` are left out."""
    total = None
    for coordinate, step in zip(at, linear.steps[first:], strict=False):
        if isinstance(step, int) and step == 0:
            continue
        own = coordinate if isinstance(step, int) and step == 1 else coordinate * _like(step, coordinate)
        total = own if total is None else total + own
    if total is None:
        return _like(linear.base, at[0]) if at else T.index(linear.base)
    return total if isinstance(linear.base, int) and linear.base == 0 else total + _like(linear.base, total)


def _like(number: Any, other: Any) -> Any:
    return T.const(number, T.type_of(other)) if isinstance(number, int) else number


def coordinate(rule: CoordinateRule, x: Any, looked: Any = None) -> tuple[Any, Any]:
    """The source's coordinate, which is always inside, and whether the element comes from there (``None``: always)."""
    n, zero, one = _like(rule.size, x), T.const(0, T.type_of(x)), T.const(1, T.type_of(x))
    if rule.kind in FILLS:
        if rule.kind == EQUAL:
            return zero, normalized(looked, n) == x
        whole = x
        if rule.kind == WHOLE:
            divisor = _like(rule.divisor, x)
            whole = T.hold(T.truncdiv(x, divisor))
            inside = (x >= zero) & (whole * divisor == x) & (whole < n)
        else:
            inside = (x >= zero) & (x < n)
        return T.Select(inside, whole, zero), inside
    if rule.kind == CLAMP:
        return T.max(zero, T.min(x, n - one)), None
    if rule.kind == PICKED:
        return T.max(zero, T.min(normalized(looked, n), n - one)), None
    if rule.kind == TURNED:
        turned = T.hold(length(looked, n))
        return T.Select(x < turned, turned - one - x, x), None
    period = n if rule.kind == WRAP else n + n if rule.kind == SYMMETRIC else T.max(n + n - one - one, one)
    period = T.hold(period)
    rest = T.hold(T.truncmod(x, period))
    rest = T.hold(T.Select(rest < zero, rest + period, rest))
    if rule.kind == WRAP:
        return rest, None
    last = period - one if rule.kind == SYMMETRIC else period
    return T.Select(rest < n, rest, last - rest), None


def normalized(index: Any, size: Any) -> Any:
    """An index in the type of a size: one below 0 counts from the end, once; -1 or the size is an index out of range.

    All of it happens in the wider of both types: a large number never becomes a small one.
    """
    kind, own = T.type_of(index), T.type_of(size)
    wide = f"int{max(int(one.partition('int')[2]) for one in (kind, own))}"
    if kind.startswith("u"):
        wide = f"u{wide}"
        return T.Select(T.cast(index, wide) < T.cast(size, wide), T.cast(index, own), size)
    found, limit, zero = T.cast(index, wide), T.cast(size, wide), T.const(0, wide)
    found = T.let(T.Select(found < zero, found + limit, found))
    return T.cast(T.max(T.min(found, limit), T.const(-1, wide)), own)


def length(looked: Any, size: Any) -> Any:
    """A length in the type of a size, at most the size; a negative one counts as 0."""
    kind, own = T.type_of(looked), T.type_of(size)
    wide = f"{kind.partition('int')[0]}int{max(int(one.partition('int')[2]) for one in (kind, own))}"
    found = T.cast(looked, wide)
    found = T.Select(found < T.cast(size, wide), T.cast(found, own), size)
    return found if kind.startswith("u") else T.max(found, T.const(0, own))


def place(move: Move, buffers: Sequence[Any], at: Sequence[Any]) -> tuple[Any, Any]:
    """The offset of the source's element for these coordinates, and whether it is that (``None``: always)."""
    offset, inside = value(move.read, at), None
    for rule in move.rules:
        found, within = resolved(rule, buffers, at)
        offset = offset + found * _like(rule.step, found)
        inside = both(inside, within)
    return offset, inside


def resolved(rule: CoordinateRule, buffers: Sequence[Any], at: Sequence[Any]) -> tuple[Any, Any]:
    """A rule's coordinate for those of the loop, as a value that is computed once."""
    looked = None if rule.look is None else T.let(buffers[rule.look.tensor][value(rule.look.place, at)])
    found, inside = coordinate(rule, T.let(value(rule.at, at)), looked)
    return T.let(found), None if inside is None else T.let(inside)


def both(a: Any, b: Any) -> Any:
    """Whether both hold; ``None`` always holds."""
    return b if a is None else a if b is None else a & b


# -- Updates ------------------------------------------------------------------------------------------------------


class Index(NamedTuple):
    """One of the indices that say where an update goes."""

    at: Linear
    """Where it is in the index tensor, by the coordinates of an update."""
    size: int
    source: int
    """The step of what it counts, in the tensor that is updated."""
    result: int
    """The same in the result."""


class Updates(NamedTuple):
    """A copy of a tensor, some elements of which are replaced in an order: where updates meet, the last one counts.

    An update has the coordinates of its column and its number. Updates of different columns never meet.
    """

    columns: SliceSteps
    """The sizes of the columns' coordinates."""
    order: SliceSteps
    """The sizes of the coordinates that updates are numbered by in a column, in row-major order."""
    given: Linear
    """Where an update is, by its coordinates."""
    source: Linear
    """Where the first element of a column is in the tensor that is updated, by the column's coordinates."""
    result: Linear
    """The same in the result."""
    indices: tuple[Index, ...]

    @property
    def length(self) -> int:
        """How many updates a column has."""
        return math.prod(self.order)

    @property
    def places(self) -> int:
        """How many elements a column has."""
        return math.prod(index.size for index in self.indices)

    def simplified(self) -> Updates:
        """The same with as few dimensions as possible, the columns' in the order of the result's elements in memory."""
        split = len(self.columns)
        linears = (self.given, *(index.at for index in self.indices))
        rows = [one.steps[:split] for one in linears]
        columns, found = collapse(self.columns, self.source.steps, *rows, self.result.steps, reorder=True)
        source, *before, result = found
        order, behind = collapse(self.order, *(one.steps[split:] for one in linears))
        given, *at = (Linear(one.base, (*a, *b)) for one, a, b in zip(linears, before, behind, strict=True))
        indices = tuple(index._replace(at=own) for index, own in zip(self.indices, at, strict=True))
        return Updates(columns, order, given, Linear(0, source), Linear(0, result), indices)
