"""The launches of attention on a GPU: rows that are kept for the next step, blocks of query rows, and sums of the keys' parts.

How a group computes a block is left to ``_attention_plain.py`` and ``_attention_cores.py``.
"""

from __future__ import annotations

import abc
import itertools
from typing import Any

from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._attention import Attention
from tvmdml.operators._attention_steps import AttentionSteps, DescribedAttention, HeadRows, Joined, numbers, with_numbers
from tvmdml.operators._contract import Shared
from tvmdml.schedules.gpu import Numbers, strided
from tvmdml.schedules.gpu._words import unravel
from tvmdml.targets._device import DeviceTarget


def _plain(d: DescribedAttention) -> DescribedAttention:
    """A description in which nothing is twice."""

    def rows(one: HeadRows | None) -> Any:
        return one and one._replace(length=0)

    def joined(one: Joined) -> Joined:
        return one._replace(past=rows(one.past), new=rows(one.new), present=rows(one.present))

    return d._replace(
        query=rows(d.query), result=rows(d.result), beside=tuple(map(rows, d.beside)),
        keys=joined(d.keys), values=joined(d.values),
        mask=d.mask and d.mask._replace(batch=0, rows=0, total=0),
    )  # fmt: skip


def _passed(d: DescribedAttention) -> DescribedAttention:
    """1 for each number that is passed at launch, for one kernel of all lengths, and 0 for each that is a constant."""
    none: DescribedAttention = with_numbers(d, itertools.repeat(0))

    def rows(one: HeadRows | None, whole: int) -> Any:
        return one and one._replace(steps=(1, whole, 0, 0))

    def joined(one: Joined) -> Joined:
        return one._replace(past=rows(one.past, 1), new=rows(one.new, 0), present=rows(one.present, 1))

    mask = none.mask
    if mask is not None and mask.kind is MaskType.BOOLEAN:
        mask = mask._replace(steps=(1, 1, 1, 0))
    return none._replace(
        sizes=none.sizes._replace(batch=1, rows=1, new=1, past=1, total=1),
        query=rows(none.query, 0), result=rows(none.result, 0), beside=tuple(rows(one, 0) for one in none.beside),
        keys=joined(none.keys), values=joined(none.values),
        mask=mask, added=none.added and (1, 1, 1, 0), most_past=1,
    )  # fmt: skip


class Frame(abc.ABC):
    """Writes a kernel."""

    name: str
    """How a group computes a block."""
    threads: int
    """The threads of a group."""
    rows: int
    """Query rows of a block."""
    keys: int
    """Keys of a block."""
    stacked: int = 1
    """The heads whose rows are in a block together, after another, as they have the same keys."""
    busy: int
    """Blocks that keep the device busy: with fewer the keys have parts."""
    fits: bool
    """Whether it can be computed in this way."""
    rounds: int
    """Rounds of loops for a block of keys."""
    choices: tuple[Any, ...] = ()
    """What else the code depends on."""
    steps: AttentionSteps
    """The description that the launch has, which is being written."""
    parts: Any
    """The parts of the keys."""
    own: Any
    """The thread's number, of 32 bits."""

    def __init__(self, desc: Attention, target: DeviceTarget, shared: Shared, knobs: Any) -> None:
        self.desc, self.target, self.shared = desc, target, shared
        self.knobs = knobs
        self.choose()
        if self.fits:
            self._plan()

    @abc.abstractmethod
    def choose(self) -> None:
        """The threads of a group, and the rows and keys of a block."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Declare shared memory; and compute what is the same for all blocks."""

    @abc.abstractmethod
    def unit(self, batch: Any, head: Any, block: Any, part: Any) -> None:
        """A block of query rows of a head, or of some that are stacked, and a part of its keys."""

    def _plan(self) -> None:
        desc, target, knobs = self.desc, self.target, self.knobs
        s, d = desc.sizes(), _plain(desc.described())
        rows = s.batch * s.heads * s.rows
        units = s.batch * (s.heads // self.stacked) * -(-s.rows * self.stacked // self.rows)
        parts = -(-s.total // knobs.part_keys) if units < self.busy else 1
        self.part_keys = knobs.part_keys if parts > 1 else 0
        self.temporaries = (("float32", rows * parts * (s.value_channels + 2)),) if parts > 1 else ()
        self.whole_rounds = -(-min(s.total, self.part_keys or s.total) // self.keys) * self.rounds
        whole = AttentionSteps(desc, desc.described(), {})
        kept = [list(whole.kept(own, self.shared)) for own in (d.keys, d.values)]
        self.kept = [(which, i) for which, own in enumerate(kept) for i, _ in enumerate(own)]
        most = min(target.max_groups, knobs.most_groups)
        items = [-(-count // self.threads) for own in kept for count, _ in own] + [units * parts]
        items += [-(-rows * s.value_channels // self.threads)] if parts > 1 else []
        # A separate number for each launch, as TVM would name one that two launches share.
        groups = tuple(max(1, min(most, count)) for count in items)
        flags, given = list(numbers(_passed(d))), list(numbers(d))
        self.known = tuple(-1 if flag else one for flag, one in zip(flags, given, strict=True))
        tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
        span = max(max(tensor.span, tensor.element_count, *tensor.layout) for tensor in tensors)
        self.numbers = Numbers(
            max(span, *(count for _, count in self.temporaries)) if parts > 1 else span,
            each=tuple(one for flag, one in zip(flags, given, strict=True) if flag),
            parts=parts,
            groups=groups,
        )
        self.dtype = self.numbers.dtype
        self.parameters = (
            ("operator", desc.NAME),
            *desc.attributes_exactly(("head_count", "query_head_count", "key_value_head_count")),
            *desc.behind(),
            ("type", desc.computed().tvm),
            ("present", "".join(str(int(tensor is not None)) for _, tensor in desc.tensors())),
            ("joins", whole.joins),
            ("launches", len(groups)),
            ("known", self.known),
            ("way", (self.name, *self.choices)),
            ("block", (self.rows, self.keys, self.threads, self.part_keys)),
            ("shared", self.shared),
            *self.numbers.parameters,
        )

    def function(self) -> T.PrimFunc:
        """The kernel."""
        desc = self.desc
        with T.on_device(), T.counting(self.dtype), T.function() as f:
            buffers = f.tensors(desc, self.shared)
            if self.part_keys:
                self.found = f.buffer("found", "float32")
            n = self.numbers.declare(f)
            for turn, (which, number) in enumerate(self.kept):
                with T.launch(n.groups[turn], self.threads) as (group, thread):
                    steps = self._steps(n, buffers)
                    count, keep = list(steps.kept((steps.d.keys, steps.d.values)[which], self.shared))[number]
                    self._items(n.groups[turn], group, thread, count, keep)
            turn = len(self.kept)
            with T.launch(n.groups[turn], self.threads) as (group, thread):
                self.steps, self.own = self._steps(n, buffers), thread
                self.thread = T.hold(self._cast(thread))
                self.begin()
                s = self.steps.d.sizes
                self.parts = T.hold(n.parts)
                all_rows = s.rows if self.stacked == 1 else s.rows * T.index(self.stacked)
                blocks = T.hold(T.truncdiv(all_rows + T.index(self.rows - 1), T.index(self.rows)))
                heads = T.index(s.heads // self.stacked)
                units = T.hold(s.batch * heads * blocks * self.parts)
                with strided(T.let(self._cast(group)), units, T.hold(n.groups[turn])) as unit:
                    at = unravel(unit, [T.index(s.batch), heads, blocks, self.parts])
                    self.unit(*(T.hold(self._cast(one)) for one in at))
            if self.part_keys:
                with T.launch(n.groups[turn + 1], self.threads) as (group, thread):
                    self.steps, self.parts = self._steps(n, buffers), T.hold(n.parts)
                    s = self.steps.d.sizes
                    count = T.hold(s.batch * T.index(s.heads) * s.rows * T.index(s.value_channels))
                    self._items(n.groups[turn + 1], group, thread, count, self._join)
        return f.result()

    def _steps(self, n: Any, buffers: Any) -> AttentionSteps:
        """A launch's own description: TVM would pass what launches have in common as parameters."""
        given = iter(n.each)
        own = (T.hold(next(given)) if one < 0 else one for one in self.known)
        d: DescribedAttention = with_numbers(_plain(self.desc.described()), own)
        s = d.sizes
        mask = d.mask and d.mask._replace(batch=s.batch, rows=s.rows, total=s.total)
        return AttentionSteps(self.desc, d._replace(mask=mask), buffers)

    def _items(self, groups: Any, group: Any, thread: Any, count: Any, each: Any) -> None:
        """Do something for so many items, each by a thread."""
        first = T.let(self._cast(group) * self.threads + self._cast(thread))
        with strided(first, T.hold(T.index(count)), T.hold(groups * T.index(self.threads))) as item:
            each(item)

    def _cast(self, value: Any) -> Any:
        return T.cast(value, self.dtype)

    def each(self, count: int) -> Any:
        """A thread's elements of so many, and whether each is one."""
        return _each(self.thread, count, self.threads)

    def split(self, element: Any, by: int) -> tuple[Any, Any]:
        """The number of its row, and of its place there."""
        row = T.hold(T.truncdiv(element, T.index(by)))
        return row, T.hold(element - row * T.index(by))

    def weight(self, score: Any) -> Any:
        """The weight of a score, less the largest one."""
        return mathematics.exp(score)

    def keys_of(self, part: Any, limit: Any, first: Any = None) -> tuple[Any, Any, Any]:
        """The first key of a part, the first after it, and how many blocks of keys it has. No row sees a key before ``first``."""
        begin = T.index(0)
        if self.part_keys:
            begin = T.hold(part * T.index(self.part_keys))
            limit = T.hold(T.min(limit, begin + T.index(self.part_keys)))
        begin = begin if first is None else T.hold(T.max(begin, first))
        left = T.hold(T.max(limit - begin, T.index(0)))
        return begin, limit, T.hold(T.truncdiv(left + T.index(self.keys - 1), T.index(self.keys)))

    def place_found(self, batch: Any, head: Any, row: Any, part: Any) -> Any:
        """Where the sums of a row's part are; after them the largest score, and the sum of weights."""
        s = self.steps.d.sizes
        whole = T.hold((batch * T.index(s.heads) + head) * s.rows + row)
        return T.hold((whole * self.parts + part) * T.index(s.value_channels + 2))

    def _join(self, item: Any) -> None:
        """A result from the sums of all parts, in their order."""
        steps, s = self.steps, self.steps.d.sizes
        at = unravel(item, [T.index(one) for one in (s.batch, s.heads, s.rows, s.value_channels)])
        batch, head, row, channel = (T.hold(self._cast(one)) for one in at)
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        most, total, own = (T.Variable("float32", one) for one in (least, zero, zero))
        first = self.place_found(batch, head, row, T.index(0))
        step = T.index(s.value_channels + 2)
        with T.loop(self.parts) as part:
            one = T.hold(self.found[first + part * step + T.index(s.value_channels)])
            most.set(T.Select(one > most.value, one, most.value))
        base = T.hold(T.select(T.expression(most.value == least), 0.0, most.value))
        with T.loop(self.parts) as part:
            place = T.hold(first + part * step)
            weight = T.hold(self.weight(T.hold(self.found[place + T.index(s.value_channels)] - base)))
            total.set(total.value + weight * self.found[place + T.index(s.value_channels + 1)])
            own.set(own.value + weight * self.found[place + channel])
        found = T.hold(T.select(T.expression(total.value == zero), steps.desc.WITHOUT_WEIGHTS, own.value / total.value))
        steps.put((batch, head, row, channel), found)


class _each:  # noqa: N801 - used as a function
    """A thread's elements of so many: whether each is one, and its number."""

    def __init__(self, thread: Any, count: int, threads: int) -> None:
        self._thread, self._count, self._threads = thread, count, threads
        self._loop = T.loop(T.index(-(-count // threads)))

    def __enter__(self) -> tuple[Any, Any]:
        i = self._loop.__enter__()
        element = T.hold(i * T.index(self._threads) + self._thread)
        return element < T.index(self._count), element

    def __exit__(self, *error: object) -> None:
        self._loop.__exit__(*error)
