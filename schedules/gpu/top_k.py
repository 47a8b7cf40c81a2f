"""TOP_K1 on a GPU: each row (sequence along the axis) on its own, by whichever of four ways suits its length and K.

short  rows that fit in shared memory: a group sorts as many of them as there is room for, no further than to the K-th
queue  a small K: a group looks at a row once, and keeps what may be among the K best
select a larger K: a group finds the K-th best digit by digit, and then collects what goes before it
sort   K best that do not fit in shared memory: radix sort of the whole row, cut into tiles

Where there are fewer rows than groups, a row is split among several, for queue and select: each finds the K best of its part, and
another launch or two those of what the parts found. All ways order by key and position: of equal elements the earlier goes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tvmdml.schedules.gpu import require, strided
from tvmdml.schedules.gpu._bitonic import POSITION, Entries, Entry, Queue, entry_bytes, i32, stream
from tvmdml.schedules.gpu._keys import Keys
from tvmdml.schedules.gpu._radix import TileSort
from tvmdml.schedules.gpu._rows import Batch, Rows
from tvmdml.schedules.gpu._select import Select, Sums, highest_shift

from tvmdml import tensorir as T
from tvmdml.errors import Unsupported, message
from tvmdml.kernel import Kernel
from tvmdml.knobs import Knob, Knobs
from tvmdml.operators.top_k import TopK1
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_POWERS = tuple(1 << n for n in range(25))
KNOBS = Knobs(
    "top_k",
    algorithm=Knob("auto", ("auto", "short", "queue", "select", "sort"), "the way; auto goes by length and K"),
    threads=Knob(256, (32, 64, 128, 256, 512), "most threads of a group"),
    subgroups=Knob(8, (1, 2, 4, 8, 16, 32, 64), "most threads of a group, in subgroups of the device"),
    per_thread=Knob(16, (1, 2, 4, 8, 16, 32), "least elements of a row, or a part of it, for each thread that selects from it"),
    most_groups=Knob(65535, (*_POWERS[:16], 65535), "most groups of a launch; each goes on to what is left"),
    short_length=Knob(1024, _POWERS[:12], "the longest row that is sorted in shared memory where its K is a good part of it"),
    short_per_thread=Knob(8, (2, 4, 8, 16, 32), "elements that are sorted together, for each thread"),
    short_entries=Knob(512, _POWERS[5:12], "elements of short rows that a group sorts at once"),
    queue_length=Knob(256, _POWERS[:12], "the shortest row that is not sorted whole, whatever its K"),
    queue_per_k=Knob(8, (1, 2, 4, 8, 16), "least elements of a row, for each of the K, that is not sorted whole"),
    queue_k=Knob(256, _POWERS[:11], "the largest K for a queue"),
    queue_entries=Knob(2048, _POWERS[6:12], "elements that a queue has room for, shared memory permitting"),
    bests_per_k=Knob(2, (1, 2, 4), "elements that the bound of a queue is chosen from, for each of the K"),
    select_k=Knob(2048, _POWERS[:12], "the largest K to be selected; rows of more are sorted"),
    select_entries=Knob(2048, _POWERS[6:12], "elements that a selection may be left with, shared memory permitting"),
    batch=Knob(4, (1, 2, 4, 8), "elements that a thread loads at once"),
    digit_bits=Knob(8, (4, 8, 11), "bits of a key that a pass of a selection looks at"),
    part_elements=Knob(4096, _POWERS[:17], "least elements of a row for each of the groups that share it"),
    part_most=Knob(1 << 16, _POWERS[10:], "elements of a row past which it is split, however many rows there are"),
    part_per_k=Knob(4, (1, 2, 4, 8), "least elements of a row for each of the groups that share it, for each of the K"),
    join_elements=Knob(8192, _POWERS[:17], "most elements that are joined in one launch; more take two"),
    tile_per_thread=Knob(8, (2, 4, 8, 16), "elements of a tile that is sorted by a digit, for each thread"),
    sort_groups=Knob(1024, _POWERS[:13], "most groups to cut rows for that are sorted"),
)  # fmt: skip
_SECTOR_BYTES = 32
"""What memory is read in: neighbouring rows that lie so close are read together."""
_MOST_LENGTH = (1 << 31) - (1 << 20)
"""Places in a row are counted in 32 bits."""
_LEAST_THREADS = 32
_SPARE_BYTES = 256
"""Shared memory for counts and the like."""


def choose(length: int, k: int, most: int, knobs: Any) -> str:
    """The way for rows of this length, where ``most`` elements fit in shared memory."""
    fits = {"short": length <= most, "queue": 2 * k <= most, "select": k <= most, "sort": True}
    if fits.get(str(knobs.algorithm)):
        return str(knobs.algorithm)
    table = (
        ("queue", k <= knobs.queue_k and length >= max(knobs.queue_length, knobs.queue_per_k * k)),
        ("short", length <= knobs.short_length),
        ("queue", k <= knobs.queue_k),
        ("select", k <= knobs.select_k),
        ("short", True),  # sooner than the launches that a sort takes
        ("sort", True),
    )
    return next(way for way, suits in table if suits and fits[way])


def kernel(desc: TopK1, target: DeviceTarget, in_place: bool) -> Kernel:
    """The way for these rows on this device."""
    knobs = KNOBS.now()
    keys, batch = Keys(desc.input_tensor.data_type, desc.axis_direction), Batch.of(desc)
    threads = _below(min(knobs.threads, target.max_threads, max(_LEAST_THREADS, knobs.subgroups * target.subgroup_size)))
    most = _below(
        (target.max_shared_bytes - _SPARE_BYTES - Sums.shared_bytes(1 << _digit_bits(target, knobs))) // entry_bytes(keys)
    )
    way = choose(batch.length, batch.k, most, knobs)
    index_words = desc.output_index_tensor.data_type.itemsize // 4
    rows = Rows(keys, batch, index_words, target, min(knobs.most_groups, target.max_groups), often=way != "short")
    writer = _WAYS[way](way, rows, target, knobs, threads, most)
    require(desc, target, writer.numbers, keys.element)
    if batch.length > _MOST_LENGTH:
        raise Unsupported(message(f"{desc.NAME} axis", f"size {batch.length} on {target.name}", f"up to {_MOST_LENGTH}"))
    return Kernel("top_k", way, writer.parameters, writer.function, writer.numbers.scalars, writer.temporaries)


def _digit_bits(target: DeviceTarget, knobs: Any) -> int:
    """Bits of a digit of which all values can be counted in half of the shared memory."""
    return min(int(knobs.digit_bits), _below(target.max_shared_bytes // 2 // Sums.shared_bytes(1)).bit_length() - 1)


def _below(value: int) -> int:
    """The largest power of two that is no more."""
    return 1 << (value.bit_length() - 1)


def _above(value: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << (value - 1).bit_length()


class _Way:
    """A way, for rows of a kind: decides, and then writes the kernel."""

    each_turn: tuple[str, ...] = ()
    """Of the numbers, those of which each launch has one of its own."""
    scratch: tuple[int, ...] = ()
    """Counts in the device's memory: how many, for each buffer."""
    rooms: tuple[int, ...] = ()
    """Room for entries in the device's memory: how many, for each pair of buffers."""

    def __init__(self, way: str, rows: Rows, target: DeviceTarget, knobs: Any, threads: int, most: int) -> None:
        self.way, self.rows, self.keys, self.batch, self.knobs = way, rows, rows.keys, rows.batch, knobs
        self.threads, self.most = threads, most
        self.most_groups = min(knobs.most_groups, target.max_groups)
        own, span, numbers = self.plan(target)
        self.numbers = rows.numbers(span, **numbers)
        self.parameters = (("threads", self.threads), *rows.parameters, *own.items(), *self.numbers.parameters)

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        """Decide; gives what the code depends on, the largest number that it computes, and the numbers it is given."""
        raise NotImplementedError

    def launches(self) -> None:
        """Write the launches."""
        raise NotImplementedError

    @property
    def temporaries(self) -> tuple[tuple[str, int], ...]:
        """Type and size of each buffer after the tensors."""
        counts = tuple(("int32", size) for size in self.scratch)
        entries = tuple((dtype, size) for size in self.rooms for dtype in (self.keys.word, POSITION))
        return (*self.rows.temporaries, *counts, *entries)

    def groups(self, items: int) -> int:
        """How many groups to launch for so many items: each goes on to what is left."""
        count: int = min(items, self.most_groups)
        return max(1, count)

    def function(self) -> PrimFunc:
        with T.on_device(), T.function() as f:
            self.rows.declare(f)
            self.counts = [f.buffer("counts", "int32") for _ in self.scratch]
            # Launches that differ in nothing else are to be the same for a driver: names are a part of them.
            self.found = [(f.buffer("keys", self.keys.word), f.buffer("positions", POSITION)) for _ in self.rooms]
            self.rows.n = self.numbers.declare(f)
            self.rows.gather(self.numbers)
            self.launches()
        return f.result()

    @property
    def n(self) -> Any:
        """The integers."""
        return self.rows.n

    def number(self, value: Any) -> Any:
        return self.rows.number(value)

    def small(self, *names: str) -> Any:
        """Some of the integers, which are known to be small, in 32 bits: what loops count in."""
        return SimpleNamespace(**{name: T.let(T.cast(getattr(self.n, name), "int32")) for name in names})

    def launch(self, turn: int, groups: str, threads: int) -> Any:
        """One launch of several."""
        own = {name: value[turn] if name in self.each_turn else value for name, value in vars(self.n).items()}
        return self.rows.launch(own[groups], threads, SimpleNamespace(**own))


class _Short(_Way):
    """Rows that fit in shared memory, several at once where they are shorter."""

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        batch = self.batch
        width, keep = _above(batch.length), _above(batch.k)
        # Rows that lie side by side are read a sector at a time.
        side = max(1, _SECTOR_BYTES * 8 // self.keys.bits) if batch.neighbours else 1
        wanted = min(self.most, max(self.knobs.short_entries, side * width))
        together = min(max(1, wanted // width), _above(batch.rows))
        self.room = width * together
        self.threads = max(_LEAST_THREADS, min(self.threads, self.room // self.knobs.short_per_thread))
        across = min(together, side)
        batches = -(-batch.rows // together)
        groups = self.groups(batches)
        numbers = {
            "batches": batches, "groups": groups, "together": together, "width_bits": width.bit_length() - 1,
            "keep_bits": keep.bit_length() - 1, "across_bits": across.bit_length() - 1,
        }  # fmt: skip
        return {"room": self.room}, (batches + groups) * together, numbers

    def launches(self) -> None:
        n = self.n
        with T.launch(n.groups, self.threads) as (group, thread):
            entries = Entries(self.keys, self.room, thread, self.threads)
            small = self.small("width_bits", "keep_bits", "across_bits", "together")
            width, keep = (T.let(i32(1) << bits) for bits in (small.width_bits, small.keep_bits))
            with strided(self.number(group), n.batches, n.groups) as batch:
                with self._slots(batch, thread, small, small.width_bits) as (own, row, place):
                    to = T.let(own * width + place)
                    key, position = T.Variable(self.keys.word, self.keys.last()), T.Variable(POSITION, T.word(-1, 32))
                    with T.when((row < n.rows) & (self.number(place) < n.length)):
                        key.set(self.rows.key(self.rows.start(row, 0), self.number(place)))
                        position.set(T.cast(place, POSITION))
                    entries.put(to, key.value, position.value)
                T.barrier()
                entries.sort(i32(self.room), width, keep)
                with (
                    self._slots(batch, thread, small, small.keep_bits) as (own, row, place),
                    T.when((row < n.rows) & (self.number(place) < n.k)),
                ):
                    starts = self.rows.starts(row)
                    self.rows.emit(starts, self.number(place), T.hold(entries.positions[own * width + place]))
                T.barrier()

    @contextmanager
    def _slots(self, batch: Any, thread: Any, small: Any, bits: Any) -> Iterator[tuple[Any, Any, Any]]:
        """A slot a thread, of ``1 << bits`` for each row: the row's number here and among all, and the place in it.

        Threads that follow each other have places that do, or rows, where those are neighbours.
        """
        across = T.let(i32(1) << small.across_bits)
        with strided(thread, T.let(small.together * (i32(1) << bits)), self.threads) as slot:
            place = T.let((slot >> small.across_bits) & ((i32(1) << bits) - 1))
            own = T.let((slot & (across - 1)) + (slot >> (small.across_bits + bits)) * across)
            yield own, T.let(batch * self.n.together + self.number(own)), place


class _Partwise(_Way):
    """Rows of which only the K best are kept in shared memory; each row may be split among groups."""

    each_turn = ("head", "parts", "given", "groups", "share", "extra")

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        batch, knobs, k = self.batch, self.knobs, self.batch.k
        self.keep = _above(k)
        queue = self.way == "queue"
        wanted = max(knobs.queue_entries, 2 * self.keep) if queue else max(knobs.select_entries, self.keep)
        self.room = min(self.most, wanted)
        least = max(knobs.part_elements, knobs.part_per_k * k)
        # Enough parts for as many groups as there may be; and none is too long: Mesa's software device silently leaves a thread's
        # loops once it has gone round 65535 times.
        wanted = max(-(-target.tasks() // batch.rows), -(-batch.length // knobs.part_most))
        parts = [max(1, min(batch.length // least, wanted))]
        if parts[0] > 1:
            if parts[0] * k > knobs.join_elements and parts[0] > 3:
                parts.append(math.isqrt(parts[0] - 1) + 1)
            parts.append(1)
        self.threads = max(_LEAST_THREADS, min(self.threads, _below(batch.length // parts[0] // knobs.per_thread + 1)))
        self.loads = knobs.batch
        if queue:  # a batch has to find room beside the K
            self.threads = min(self.threads, _below(self.room - k))
            self.loads = min(self.loads, _below((self.room - k) // self.threads))
        bests = min(self.room, max(self.threads, knobs.bests_per_k * self.keep))
        self.levels = len(parts)
        given = [batch.length, *parts[:-1]]
        groups = [self.groups(batch.rows * part) for part in parts]
        found = [batch.rows * part * k for part in parts[:-1]]
        self.rooms = tuple(found)
        # What a group is given to look at, by level.
        most_given = [n * (k if level else 1) // part for level, (n, part) in enumerate(zip(given, parts, strict=True))]
        self.digit_bits = _digit_bits(target, knobs)
        position_shift = highest_shift(max(batch.length - 1, 1).bit_length(), self.digit_bits)
        numbers = {
            "keep": self.keep, "bests": bests, "position_shift": position_shift, "parts": tuple(parts), "given": tuple(given),
            "groups": tuple(groups), "head": tuple(max(8 * bests, n // 8, n * 2 * k // self.room) for n in most_given),
            "share": tuple(n // part for n, part in zip(given, parts, strict=True)),
            "extra": tuple(n % part for n, part in zip(given, parts, strict=True)),
        }  # fmt: skip
        own = {"room": self.room, "levels": self.levels, "loads": self.loads, **({} if queue else {"digit_bits": self.digit_bits})}
        return own, max(0, *found, batch.rows * parts[0], batch.length + knobs.batch * max(bests, self.threads)), numbers

    def launches(self) -> None:
        for level in range(self.levels):
            with self.launch(level, "groups", self.threads) as (group, thread):
                self._level(level, group, thread)

    def _level(self, level: int, group: Any, thread: Any) -> None:
        """The K best of each part: of the row's elements, or of what the parts of the level before found."""
        n = self.n
        entries = Entries(self.keys, self.room, thread, self.threads)
        choice = Queue(entries, self.loads) if self.way == "queue" else Select(entries, self.loads, self.digit_bits)
        parts, last = n.parts, level == self.levels - 1
        small = self.small("k", "keep", "share", "extra", *(("bests", "head") if self.way == "queue" else ("position_shift",)))
        with strided(self.number(group), T.let(n.rows * parts), n.groups) as item:
            row = T.hold(T.truncdiv(item, parts)) if not last else item
            part = T.let(T.cast(item - row * parts, "int32")) if not last else i32(0)
            begin = T.hold(part * small.share + T.min(part, small.extra))
            count = T.let(small.share + T.cast(part < small.extra, "int32"))
            if level == 0:
                start = self.rows.start(row, 0)

                def load(i: Any) -> Entry:
                    place = T.let(begin + i)
                    return T.hold(self.rows.key(start, self.number(place))), T.let(T.cast(place, POSITION))
            else:
                keys, positions = self.found[level - 1]
                at = T.let((row * n.given + self.number(begin)) * n.k)
                count = T.let(count * small.k)

                def load(i: Any) -> Entry:
                    place = T.let(at + self.number(i))
                    return T.hold(keys[place]), T.hold(positions[place])

            if isinstance(choice, Queue):
                choice.collect(load, count, small.k, small.keep, small.bests, small.head)
            else:
                choice.collect(load, count, small.k, small.keep, small.position_shift)
            starts = self.rows.starts(row) if last else []
            with strided(thread, small.k, self.threads) as place:
                position = T.hold(entries.positions[place])
                if last:
                    self.rows.emit(starts, self.number(place), position)
                else:
                    to = T.let(item * n.k + self.number(place))
                    keys, positions = self.found[level]
                    T.store(keys, to, entries.keys[place])
                    T.store(positions, to, position)
            T.barrier()


class _Sort(_Way):
    """All of a row in order, by one digit after the other from the lowest: count digits, add up, move."""

    each_turn = ("shifts",)

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        batch, each = self.batch, self.knobs.tile_per_thread
        room = target.max_shared_bytes - _SPARE_BYTES - Sums.shared_bytes(TileSort.BINS)
        while TileSort.shared_bytes(self.threads, each) > room:
            self.threads, each = (self.threads // 2, each) if self.threads > 64 else (self.threads, each // 2)
        self.each = each
        tile = self.threads * each
        tiles = -(-batch.length // tile)
        wanted = max(min(self.knobs.sort_groups, target.tasks()) // batch.rows, -(-batch.length // self.knobs.part_most))
        blocks = max(1, min(tiles, wanted))
        block = -(-tiles // blocks) * tile
        blocks = -(-batch.length // block)
        self.single = blocks == 1
        self.passes = -(-self.keys.bits // TileSort.BITS)
        elements, counts = batch.rows * batch.length, batch.rows * TileSort.BINS * blocks
        self.scratch = (counts,) if self.single else (counts, batch.rows * TileSort.BINS)
        self.rooms = (elements,) * min(self.passes - 1, 2)
        self.sum_threads = max(min(32, self.threads), min(self.threads, _above(blocks)))
        numbers = {
            "blocks": blocks, "block": block, "shifts": tuple(range(0, self.keys.bits, TileSort.BITS)),
            "groups": self.groups(batch.rows * blocks), "sum_groups": self.groups(batch.rows * TileSort.BINS),
        }  # fmt: skip
        own = {"each": each, "single": self.single, "sum_threads": self.sum_threads, "loads": self.knobs.batch}
        return own, max(elements, counts, batch.length + 8 * tile), numbers

    def launches(self) -> None:
        for turn in range(self.passes):
            with self.launch(turn, "groups", self.threads) as (group, thread):
                self._count(turn, group, thread)
            if not self.single:
                with self.launch(turn, "sum_groups", self.sum_threads) as (group, thread):
                    self._add_up(group, thread)
            with self.launch(turn, "groups", self.threads) as (group, thread):
                self._move(turn, group, thread)

    @contextmanager
    def _blocks(self, group: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        """The blocks of a group: row, number, first element and end."""
        n = self.n
        with strided(self.number(group), T.let(n.rows * n.blocks), n.groups) as item:
            row = T.hold(T.truncdiv(item, n.blocks))
            block = T.let(item - row * n.blocks)
            small = self.small("block", "length")
            begin = T.let(T.cast(block, "int32") * small.block)
            yield row, block, begin, T.hold(T.min(begin + small.block, small.length))

    def _key(self, turn: int, row: Any) -> Any:
        """How to get a row's key, by its place before a pass."""
        if turn == 0:
            start = self.rows.start(row, 0)
            return lambda place: self.rows.key(start, self.number(place))
        first = T.let(row * self.n.length)
        return lambda place: self.found[(turn - 1) % 2][0][first + self.number(place)]

    def _count(self, turn: int, group: Any, thread: Any) -> None:
        """How often each block has each digit."""
        bins = TileSort.BINS
        digits = T.shared("int32", bins)
        with self._blocks(group) as (row, block, begin, end):
            with strided(thread, i32(bins), self.threads) as digit:
                T.store(digits, digit, i32(0))
            T.barrier()
            key = self._key(turn, row)
            load = lambda place: (T.hold(self.keys.digit(key(place), self._shift(), bins)),)  # noqa: E731
            use = lambda digit: T.atomic_do("add", digits, digit, i32(1))  # noqa: E731
            stream(thread, self.threads, T.Variable("int32", begin), end, self.knobs.batch, load, use)
            T.barrier()
            with strided(thread, i32(bins), self.threads) as digit:
                T.store(self.counts[0], self._counter(row, digit) + block, digits[digit])
            T.barrier()

    def _shift(self) -> Any:
        return T.cast(self.n.shifts, "int32")

    def _counter(self, row: Any, digit: Any) -> Any:
        """Where the counts of a row's digit begin, a number for each block."""
        return (row * TileSort.BINS + self.number(digit)) * self.n.blocks

    def _add_up(self, group: Any, thread: Any) -> None:
        """Of each row and digit: what the blocks before each block have of it, and all of them."""
        n, threads = self.n, self.sum_threads
        sums = Sums(threads, thread, threads)
        with strided(self.number(group), T.let(n.rows * TileSort.BINS), n.sum_groups) as line:
            carry, blocks = T.Variable("int32", i32(0)), self.small("blocks").blocks
            with strided(i32(0), blocks, threads) as begin:
                own, at = T.Variable("int32", i32(0)), T.let(line * n.blocks + self.number(begin + thread))
                with T.when(begin + thread < blocks):
                    own.set(self.counts[0][at])
                T.store(sums.numbers, thread, own.value)
                T.barrier()
                base = T.let(sums.run())
                with T.when(begin + thread < blocks):
                    T.store(self.counts[0], at, carry.value + sums.numbers[base + thread] - own.value)
                carry.set(carry.value + sums.numbers[base + threads - 1])
                T.barrier()
            with T.when(thread == 0):
                T.store(self.counts[1], line, carry.value)

    def _move(self, turn: int, group: Any, thread: Any) -> None:
        """Each element to its place by a digit; in the last pass, the K best to where they are wanted."""
        bins = TileSort.BINS
        tiles = TileSort(thread, self.threads, self.each)
        sums = Sums(bins, thread, self.threads)
        with self._blocks(group) as (row, block, begin, end):
            totals = self.counts[-1]
            with strided(thread, i32(bins), self.threads) as digit:
                T.store(sums.numbers, digit, totals[row * bins + self.number(digit)])
            T.barrier()
            base = T.let(sums.run())
            with strided(thread, i32(bins), self.threads) as digit:
                first = T.Variable("int32", i32(0))
                with T.when(digit > 0):
                    first.set(sums.numbers[base + digit - 1])
                if not self.single:
                    first.set(first.value + self.counts[0][self._counter(row, digit) + block])
                tiles.begin(digit, first.value)
            T.barrier()
            self._tiles(turn, tiles, row, begin, end)

    def _tiles(self, turn: int, tiles: TileSort, row: Any, begin: Any, end: Any) -> None:
        n, last = self.n, turn == self.passes - 1
        key, first = self._key(turn, row), T.let(row * n.length)
        starts = self.rows.starts(row) if last else []
        with strided(begin, end, tiles.size) as tile:

            def move(entry: Any, to: Any) -> None:
                place, to = T.let(tile + entry), T.let(self.number(to))
                before = self.found[(turn - 1) % 2][1] if turn else None
                position = T.cast(place, POSITION) if before is None else T.hold(before[first + self.number(place)])
                if last:
                    with T.when(to < n.k):
                        self.rows.emit(starts, to, position)
                else:
                    keys, positions = self.found[turn % 2]
                    T.store(keys, first + to, key(place))
                    T.store(positions, first + to, position)

            digit = lambda entry: self.keys.digit(key(tile + entry), self._shift(), TileSort.BINS)  # noqa: E731
            tiles.scatter(T.hold(T.min(end - tile, i32(tiles.size))), digit, move)


_WAYS: dict[str, type[_Way]] = {"short": _Short, "queue": _Partwise, "select": _Partwise, "sort": _Sort}
