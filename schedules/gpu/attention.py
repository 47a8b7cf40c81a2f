"""Attention on a GPU: a group of threads for a block of query rows of a head, which goes over blocks of keys.

Queries, keys and weights of a block are in shared memory, and values in the place of the keys. Each thread has some query rows and,
of them, some keys and some channels; sums are in its registers. There is never a matrix of all scores.

One kernel serves all lengths. Where query rows are few, as in decoding, the keys have parts, each with a group of threads; a second
launch adds what the parts come to, in their order.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tvmdml import mathematics
from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._attention import Attention
from tvmdml.operators._attention_steps import Described, Joined, Rows, Steps, numbers, with_numbers
from tvmdml.operators._contract import Shared
from tvmdml.schedules.gpu import Numbers, _default, checked, enough_groups, refuse, require, strided
from tvmdml.schedules.gpu._words import unravel
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

KNOBS = Knobs(
    "attention",
    enough_groups(1024),
    threads=Knob(128, (64, 128, 256), "threads per group"),
    rows=Knob(32, (4, 8, 16, 32, 64), "query rows of a block, at most"),
    keys=Knob(32, (8, 16, 32, 64), "keys of a block, at most"),
    rows_per_thread=Knob(2, (1, 2, 4), "query rows of a thread, at most"),
    part_keys=Knob(512, tuple(64 << n for n in range(9)), "keys of a part, where query rows are too few for all groups"),
    most_groups=Knob(8192, tuple(1 << n for n in range(16)), "maximum groups per launch; each strides over the rest"),
)

_MOST_SUMS = 128
"""The most sums in a thread's registers."""


def kernel(desc: Attention, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """A kernel for a class of shapes; the default one where a head's channels do not fit into shared memory."""
    writer = _Writer(desc, target, shared, knobs)
    if not writer.fits:
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    require(desc, target, writer.numbers, *sorted(desc.stored_types()))
    s = desc.sizes()
    rounds = -(-min(s.total, writer.part_keys or s.total) // writer.keys) * (max(s.channels, writer.keys) + writer.loads + 1)
    if target.max_rounds is not None and rounds > target.max_rounds:
        given = f"{rounds} rounds of loops in a thread on {target.name}"
        refuse(desc.where("loops"), given, f"up to {target.max_rounds}, after which the device's driver leaves loops")
    module, *also = desc.modules()
    name = "parts" if writer.part_keys else "blocks"
    built = Kernel(
        module, name, writer.parameters, writer.function, writer.numbers.scalars, writer.temporaries, also=tuple(also)
    )  # fmt: skip
    found: Kernel = checked(desc, target, built)
    return found


def _plain(d: Described) -> Described:
    """A description in which nothing is twice."""

    def rows(one: Rows | None) -> Any:
        return one and one._replace(length=0)

    def joined(one: Joined) -> Joined:
        return one._replace(past=rows(one.past), new=rows(one.new), present=rows(one.present))

    return d._replace(
        query=rows(d.query), result=rows(d.result), beside=tuple(map(rows, d.beside)),
        keys=joined(d.keys), values=joined(d.values),
        mask=d.mask and d.mask._replace(batch=0, rows=0, total=0),
    )  # fmt: skip


def _passed(d: Described) -> Described:
    """1 for each number that is passed at launch, for one kernel of all lengths, and 0 for each that is a constant."""
    none: Described = with_numbers(d, itertools.repeat(0))

    def rows(one: Rows | None, whole: int) -> Any:
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


class _Writer:
    """Writes the kernel."""

    steps: Steps
    """The description that the launch has, which is being written."""
    parts: Any
    """The parts of the keys."""

    def __init__(self, desc: Attention, target: DeviceTarget, shared: Shared, knobs: Any) -> None:
        self.desc, self.shared = desc, shared
        s, d = desc.sizes(), _plain(desc.described())
        self.threads = min(knobs.threads, target.max_threads)
        self.keys, self.rows = knobs.keys, knobs.rows
        while self.rows > 1 and self.rows // 2 >= s.rows:
            self.rows //= 2
        wide = max(s.channels, s.value_channels) + 1
        while self._bytes(s.channels, wide) > target.max_shared_bytes and self.keys > 4:
            if self.rows > self.keys:
                self.rows //= 2
            else:
                self.keys //= 2
        self.of_thread = min(knobs.rows_per_thread, self.rows)
        self.lanes = self.threads * self.of_thread // self.rows
        while self.lanes < 1:
            self.of_thread *= 2
            self.lanes = self.threads * self.of_thread // self.rows
        self.own_keys = -(-self.keys // self.lanes)
        self.own_channels = -(-s.value_channels // self.lanes)
        self.wide = wide
        self.loads = -(-self.keys * wide // self.threads)
        self.fits = (
            self._bytes(s.channels, wide) <= target.max_shared_bytes
            and self.of_thread * (self.own_channels + self.own_keys) <= _MOST_SUMS
        )
        rows = s.batch * s.heads * s.rows
        units = s.batch * s.heads * -(-s.rows // self.rows)
        parts = -(-s.total // knobs.part_keys) if units < target.tasks() // 2 else 1
        self.part_keys = knobs.part_keys if parts > 1 else 0
        self.temporaries = (("float32", rows * parts * (s.value_channels + 2)),) if parts > 1 else ()
        whole = Steps(desc, desc.described(), {})
        kept = [list(whole.kept(own, shared)) for own in (d.keys, d.values)]
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
            *desc.attributes_exactly(("head_count", "query_head_count", "key_value_head_count", "epilogue")),
            *desc.behind(),
            ("type", desc.computed().tvm),
            ("present", "".join(str(int(tensor is not None)) for _, tensor in desc.tensors())),
            ("joins", whole.joins),
            ("launches", len(groups)),
            ("known", self.known),
            ("block", (self.rows, self.keys, self.of_thread, self.threads, self.part_keys)),
            ("shared", shared),
            *self.numbers.parameters,
        )

    def _bytes(self, channels: int, wide: int) -> int:
        """Shared memory: queries, keys or values, weights, and the largest scores of each thread."""
        return int(4 * (self.rows * channels + self.keys * wide + self.rows * (self.keys + 1) + self.threads * 4) + 64)

    def function(self) -> PrimFunc:
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
                self._begin(self._steps(n, buffers), thread)
                s = self.steps.d.sizes
                self.parts = T.hold(n.parts)
                blocks = T.hold(T.truncdiv(s.rows + T.index(self.rows - 1), T.index(self.rows)))
                units = T.hold(s.batch * T.index(s.heads) * blocks * self.parts)
                with strided(T.let(self._cast(group)), units, T.hold(n.groups[turn])) as unit:
                    at = unravel(unit, [T.index(one) for one in (s.batch, s.heads, blocks, self.parts)])
                    self._unit(*(T.hold(self._cast(one)) for one in at))
            if self.part_keys:
                with T.launch(n.groups[turn + 1], self.threads) as (group, thread):
                    self.steps, self.parts = self._steps(n, buffers), T.hold(n.parts)
                    s = self.steps.d.sizes
                    count = T.hold(s.batch * T.index(s.heads) * s.rows * T.index(s.value_channels))
                    self._items(n.groups[turn + 1], group, thread, count, self._join)
        return f.result()

    def _steps(self, n: Any, buffers: Any) -> Steps:
        """A launch's own description: TVM would pass what launches have in common as parameters."""
        given = iter(n.each)
        own = (T.hold(next(given)) if one < 0 else one for one in self.known)
        d: Described = with_numbers(_plain(self.desc.described()), own)
        s = d.sizes
        mask = d.mask and d.mask._replace(batch=s.batch, rows=s.rows, total=s.total)
        return Steps(self.desc, d._replace(mask=mask), buffers)

    def _items(self, groups: Any, group: Any, thread: Any, count: Any, each: Any) -> None:
        """Do something for so many items, each by a thread."""
        first = T.let(self._cast(group) * self.threads + self._cast(thread))
        with strided(first, T.hold(T.index(count)), T.hold(groups * T.index(self.threads))) as item:
            each(item)

    def _cast(self, value: Any) -> Any:
        return T.cast(value, self.dtype)

    def _begin(self, steps: Steps, thread: Any) -> None:
        self.steps = steps
        s = steps.d.sizes
        self.thread = T.hold(self._cast(thread))
        self.query = T.shared("float32", self.rows * s.channels)
        self.held = T.shared("float32", self.keys * self.wide)
        self.weights = T.shared("float32", self.rows * (self.keys + 1))
        self.largest = T.shared("float32", self.threads * self.of_thread)
        self.lane = T.hold(self.thread % T.index(self.lanes))
        self.row = T.hold(T.truncdiv(self.thread, T.index(self.lanes)) * T.index(self.of_thread))

    def _unit(self, batch: Any, head: Any, block: Any, part: Any) -> None:
        """A block of query rows of a head, and a part of its keys."""
        steps, d = self.steps, self.steps.d
        s = d.sizes
        joint = head if steps.group == 1 else T.hold(T.truncdiv(head, T.index(steps.group)))
        past = T.hold(steps.past(batch))
        first = T.hold(block * T.index(self.rows))
        last = T.index(s.rows - 1)
        T.barrier()  # the block before is done with what is shared
        with self._each(self.rows * s.channels) as (i, element):
            row, channel = self._split(element, s.channels)
            with T.when(i):
                value = steps.element(d.query, 0, (batch, head, T.hold(T.min(first + row, last)), channel))
                T.store(self.query, element, value)
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        self.most = [T.Variable("float32", least) for _ in range(self.of_thread)]
        self.total = [T.Variable("float32", zero) for _ in range(self.of_thread)]
        self.sums = [[T.Variable("float32", zero) for _ in range(self.own_channels)] for _ in range(self.of_thread)]
        limit = T.index(s.total)
        if d.lengths is not None:
            limit = T.hold(past + T.min(first + T.index(self.rows), T.index(s.rows)))
        begin = T.index(0)
        if self.part_keys:
            begin = T.hold(part * T.index(self.part_keys))
            limit = T.hold(T.min(limit, begin + T.index(self.part_keys)))
        self.at = (batch, head, first, past, limit)
        left = T.hold(T.max(limit - begin, T.index(0)))
        rounds = T.hold(T.truncdiv(left + T.index(self.keys - 1), T.index(self.keys)))
        with T.loop(rounds) as number:
            key = T.hold(begin + number * T.index(self.keys))
            self._load(d.keys, s.channels, joint, key)
            T.barrier()
            scores = self._scores(key)
            self._weigh(scores)
            self._load(d.values, s.value_channels, joint, key)
            T.barrier()
            self._add(T.hold(T.min(T.index(self.keys), limit - key)))
            T.barrier()
        self._results(part)

    def _each(self, count: int) -> Any:
        """A thread's elements of so many, and whether each is one."""
        return _each(self.thread, count, self.threads)

    def _split(self, element: Any, by: int) -> tuple[Any, Any]:
        row = T.hold(T.truncdiv(element, T.index(by)))
        return row, T.hold(element - row * T.index(by))

    def _load(self, own: Joined, channels: int, joint: Any, key: Any) -> None:
        """A block of keys or values into shared memory; 0 after the last one."""
        batch, _, _, past, limit = self.at
        with self._each(self.keys * channels) as (i, element):
            row, channel = self._split(element, channels)
            value = T.Variable("float32", T.const(0.0, "float32"))
            with T.when(i & (key + row < limit)):
                value.set(self.steps.joined(own, past, (batch, joint, T.hold(key + row), channel)))
            with T.when(i):
                T.store(self.held, row * T.index(self.wide) + channel, value.value)

    def _scores(self, key: Any) -> list[list[Any]]:
        """The scores of a thread's rows and keys; -inf of a key that a row does not see."""
        s = self.steps.d.sizes
        zero = T.const(0.0, "float32")
        sums = [[T.Variable("float32", zero) for _ in range(self.own_keys)] for _ in range(self.of_thread)]
        own = [T.hold(T.min(self.lane + T.index(i * self.lanes), T.index(self.keys - 1))) for i in range(self.own_keys)]
        with T.loop(T.index(s.channels)) as c:
            queries = [T.hold(self.query[(self.row + T.index(r)) * T.index(s.channels) + c]) for r in range(self.of_thread)]
            for k, place in enumerate(own):
                value = T.hold(self.held[place * T.index(self.wide) + c])
                for r, query in enumerate(queries):
                    sums[r][k].set(sums[r][k].value + query * value)
        batch, head, first, past, limit = self.at
        found: list[list[Any]] = []
        for r, of_row in enumerate(sums):
            row = T.hold(first + self.row + T.index(r))
            here = T.hold(T.min(row, T.index(s.rows - 1)))
            found.append([])
            for k, one in enumerate(of_row):
                number = T.hold(key + self.lane + T.index(k * self.lanes))
                seen = (number < limit) & (self.lane + T.index(k * self.lanes) < T.index(self.keys))
                if self.steps.d.lengths is not None:
                    seen = seen & (number <= past + here)
                score = T.Variable("float32", T.like(zero, float("-inf")))
                with T.when(seen):
                    scaled = T.hold(T.rounded(one.value * T.like(zero, self.desc.scale)))
                    score.set(self.steps.filtered(scaled, (batch, head, here, number)))
                found[-1].append(score)
        return found

    def _weigh(self, scores: list[list[Any]]) -> None:
        """Weights of the largest score so far, in shared memory; sums of other weights are adjusted."""
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        for r, of_row in enumerate(scores):
            largest = self.most[r].value
            for one in of_row:
                largest = T.hold(T.Select(one.value > largest, one.value, largest))
            T.store(self.largest, (self.row + T.index(r)) * T.index(self.lanes) + self.lane, largest)
        T.barrier()
        for r, of_row in enumerate(scores):
            most = T.Variable("float32", least)
            with T.loop(T.index(self.lanes)) as i:
                one = T.hold(self.largest[(self.row + T.index(r)) * T.index(self.lanes) + i])
                most.set(T.Select(one > most.value, one, most.value))
            base = T.hold(T.select(T.expression(most.value == least), 0.0, most.value))
            old = T.hold(mathematics.exp(T.hold(self.most[r].value - base)))
            self.most[r].set(most.value)
            self.total[r].set(self.total[r].value * old)
            for own in self.sums[r]:
                own.set(own.value * old)
            for k, score in enumerate(of_row):
                place = T.hold(self.lane + T.index(k * self.lanes))
                with T.when(place < T.index(self.keys)):
                    weight = T.hold(mathematics.exp(T.hold(score.value - base)))
                    self.total[r].set(self.total[r].value + weight)
                    T.store(self.weights, (self.row + T.index(r)) * T.index(self.keys + 1) + place, weight)

    def _add(self, count: Any) -> None:
        """Weighed sums of the values in shared memory."""
        s = self.steps.d.sizes
        own = [T.hold(T.min(self.lane + T.index(i * self.lanes), T.index(s.value_channels - 1))) for i in range(self.own_channels)]
        with T.loop(count, most=self.keys) as k:
            weights = [T.hold(self.weights[(self.row + T.index(r)) * T.index(self.keys + 1) + k]) for r in range(self.of_thread)]
            for c, place in enumerate(own):
                value = T.hold(self.held[k * T.index(self.wide) + place])
                for r, weight in enumerate(weights):
                    self.sums[r][c].set(self.sums[r][c].value + weight * value)

    def _results(self, part: Any) -> None:
        """The results of a block; or, of a part of its keys, sums, the largest score and the sum of weights."""
        batch, head, first, _, _ = self.at
        steps, s = self.steps, self.steps.d.sizes
        zero = T.const(0.0, "float32")
        for r in range(self.of_thread):
            T.store(self.largest, (self.row + T.index(r)) * T.index(self.lanes) + self.lane, self.total[r].value)
        T.barrier()
        for r in range(self.of_thread):
            total = T.Variable("float32", zero)
            with T.loop(T.index(self.lanes)) as i:
                total.set(total.value + self.largest[(self.row + T.index(r)) * T.index(self.lanes) + i])
            row = T.hold(first + self.row + T.index(r))
            if self.part_keys:
                place = self._found(batch, head, row, part)
                with T.when((row < T.index(s.rows)) & (self.lane == T.index(0))):
                    T.store(self.found, place + T.index(s.value_channels), self.most[r].value)
                    T.store(self.found, place + T.index(s.value_channels + 1), total.value)
            for c, own in enumerate(self.sums[r]):
                channel = T.hold(self.lane + T.index(c * self.lanes))
                if self.part_keys:
                    with T.when((row < T.index(s.rows)) & (channel < T.index(s.value_channels))):
                        T.store(self.found, place + channel, own.value)
                    continue
                found = T.hold(T.select(T.expression(total.value == zero), 0.0, own.value / total.value))
                with T.when((row < T.index(s.rows)) & (channel < T.index(s.value_channels))):
                    steps.put((batch, head, row, channel), found)

    def _found(self, batch: Any, head: Any, row: Any, part: Any) -> Any:
        """Where the sums of a row's part are."""
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
        first = self._found(batch, head, row, T.index(0))
        step = T.index(s.value_channels + 2)
        with T.loop(self.parts) as part:
            one = T.hold(self.found[first + part * step + T.index(s.value_channels)])
            most.set(T.Select(one > most.value, one, most.value))
        base = T.hold(T.select(T.expression(most.value == least), 0.0, most.value))
        with T.loop(self.parts) as part:
            place = T.hold(first + part * step)
            weight = T.hold(mathematics.exp(T.hold(self.found[place + T.index(s.value_channels)] - base)))
            total.set(total.value + weight * self.found[place + T.index(s.value_channels + 1)])
            own.set(own.value + weight * self.found[place + channel])
        found = T.hold(T.select(T.expression(total.value == zero), 0.0, own.value / total.value))
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
