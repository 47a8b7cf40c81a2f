"""TOP_K1 on a GPU: each row (sequence along the axis) independently, by one of four algorithms, chosen by its length and K.

short  rows that fit in shared memory: a group sorts as many of them as fit at once, only as far as the K-th
queue  a small K: a group reads a row once, and stores only entries that may be among the K best
select a larger K: a group finds the K-th best digit by digit (radix select), and then collects the entries before it
sort   the K best do not fit in shared memory: radix sort of the whole row, in tiles

If there are fewer rows than groups, queue and select split a row among several groups: each finds the K best of its part, and one
or two more launches combine the results. All algorithms order by key and position, so of equal elements the earlier comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tvmdml.errors import Unsupported, message
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Constraint, Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators.top_k import TopK1
from tvmdml.schedules.gpu import VECTOR_BYTES, enough_groups, require, strided
from tvmdml.schedules.gpu._bitonic import POSITION, BitonicQueue, Entries, KeyedPosition, Load, Neighbours, entry_bytes, i32
from tvmdml.schedules.gpu._keys import Keys
from tvmdml.schedules.gpu._rows import Batch, KeyRows
from tvmdml.schedules.gpu._select import Counters, PrefixSums, Select, highest_shift
from tvmdml.schedules.gpu._sort import Sort
from tvmdml.schedules.gpu._way import SCANNED_BYTES, SPARE_BYTES, Way, above, below
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    pass

_POWERS = tuple(1 << n for n in range(25))
KNOBS = Knobs(
    "top_k",
    enough_groups(32768),
    Constraint("part_elements is no more than part_most", lambda knobs, _: knobs.part_elements <= knobs.part_most),
    algorithm=Knob("auto", ("auto", "short", "queue", "select", "sort"), "the algorithm; auto chooses by length and K"),
    threads=Knob(256, (32, 64, 128, 256, 512), "maximum threads per group"),
    subgroups=Knob(8, (1, 2, 4, 8, 16, 32, 64), "maximum subgroups per group"),
    per_thread=Knob(16, (1, 2, 4, 8, 16, 32), "minimum elements of a row, or a part of it, for each thread that selects from it"),
    most_groups=Knob(65535, (*_POWERS[:16], 65535), "maximum groups per launch; each strides over the rest"),
    short_length=Knob(1024, _POWERS[:12], "the longest row that is sorted in shared memory if K is a large part of it"),
    short_per_thread=Knob(8, (2, 4, 8, 16, 32), "elements sorted together, per thread"),
    short_entries=Knob(512, _POWERS[5:12], "elements of short rows that a group sorts at once"),
    queue_length=Knob(256, _POWERS[:12], "the shortest row that is not sorted completely, whatever its K"),
    queue_per_k=Knob(8, (1, 2, 4, 8, 16), "minimum ratio of length to K for rows that are not sorted completely"),
    queue_k=Knob(256, _POWERS[:11], "the largest K for a queue"),
    queue_entries=Knob(
        2048, _POWERS[6:13], "maximum elements in a queue, if shared memory permits",
        {"sm_80": 4096, "sm_90": 4096, "sm_100": 4096},
    ),
    bests_per_k=Knob(2, (1, 2, 4), "elements that the bound of a queue is chosen from, per K"),
    select_k=Knob(2048, _POWERS[:12], "the largest K for select; rows with a larger K are sorted"),
    select_entries=Knob(2048, _POWERS[6:12], "maximum remaining elements of a selection, if shared memory permits"),
    batch=Knob(4, (1, 2, 4, 8, 16), "elements that a thread loads at once", {"cuda": 8}),
    digit_bits=Knob(8, (4, 8, 11), "bits of a key that a pass of a selection examines"),
    copies=Knob(1, (1, 2, 4, 8, 16), "counters per digit", {"cuda": 8}),
    part_elements=Knob(4096, _POWERS[:17], "minimum elements of a row for each of the groups that share it", {"cuda": 2048}),
    part_most=Knob(1 << 16, _POWERS[10:], "maximum elements of a row that is not split, however many rows there are"),
    part_per_k=Knob(4, (1, 2, 4, 8), "minimum elements per group that shares a row, per K"),
    join_elements=Knob(8192, _POWERS[:17], "maximum elements combined in one launch; more need two"),
    tile_per_thread=Knob(8, (2, 4, 8, 16), "elements of a tile that is sorted by a digit, per thread"),
    sort_groups=Knob(1024, _POWERS[:13], "maximum groups for which sorted rows are split"),
)  # fmt: skip
_SECTOR_BYTES = 32
"""The unit of memory reads: neighbouring rows this close together are read together."""
_MOST_LENGTH = (1 << 31) - (1 << 20)
"""Places in a row are 32-bit integers."""
_LEAST_THREADS = 32


def choose(length: int, k: int, most: int, knobs: Any) -> str:
    """The algorithm for rows of this length, if ``most`` elements fit in shared memory."""
    fits = {"short": length <= most, "queue": 2 * k <= most, "select": k <= most, "sort": True}
    if fits.get(str(knobs.algorithm)):
        return str(knobs.algorithm)
    table = (
        ("queue", k <= knobs.queue_k and length >= max(knobs.queue_length, knobs.queue_per_k * k)),
        ("short", length <= knobs.short_length),
        ("queue", k <= knobs.queue_k),
        ("select", k <= knobs.select_k),
        ("short", True),  # faster than the several launches of a sort
        ("sort", True),
    )
    return next(way for way, suits in table if suits and fits[way])


def kernel(desc: TopK1, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The algorithm for these rows on this device."""
    keys, batch = Keys(desc.input_tensor.data_type, desc.axis_direction), Batch.of(desc)
    threads = below(min(knobs.threads, target.max_threads, max(_LEAST_THREADS, knobs.subgroups * target.subgroup_size)))
    most = below((target.max_shared_bytes - SPARE_BYTES - _counted_bytes(target, knobs)) // entry_bytes(keys))
    way = choose(batch.length, batch.k, most, knobs)
    index_words = desc.output_index_tensor.data_type.itemsize // 4
    rows = KeyRows(keys, batch, index_words, target, min(knobs.most_groups, target.max_groups), often=way != "short")
    writer = _WAYS[way](way, rows, target, knobs, threads, most)
    require(desc, target, keys.element)
    if batch.length > _MOST_LENGTH:
        raise Unsupported(message(desc.where("axis"), f"size {batch.length} on {target.name}", f"up to {_MOST_LENGTH}"))
    return Kernel("top_k", way, writer.parameters, writer.function, writer.numbers.scalars, writer.temporaries)


def _digit_bits(target: DeviceTarget, knobs: Any) -> int:
    """The bits of a digit whose values can all be counted in half of the shared memory."""
    each = PrefixSums.shared_bytes(1) + Counters.shared_bytes(1, 1)
    return min(int(knobs.digit_bits), below(target.max_shared_bytes // 2 // each).bit_length() - 1)


def _copies(target: DeviceTarget, knobs: Any) -> int:
    """The counters per digit: at most as many as fit in half of the shared memory, together with the sums."""
    bins = 1 << _digit_bits(target, knobs)
    room = target.max_shared_bytes // 2 - PrefixSums.shared_bytes(bins)
    return min(int(knobs.copies), below(room // Counters.shared_bytes(bins, 1)))


def _counted_bytes(target: DeviceTarget, knobs: Any) -> int:
    """The shared memory that a selection needs besides its entries."""
    bins = 1 << _digit_bits(target, knobs)
    return PrefixSums.shared_bytes(bins) + Counters.shared_bytes(bins, _copies(target, knobs)) + SCANNED_BYTES


def _whole(value: int) -> int:
    """The value rounded up to whole vectors of any type."""
    vectors: int = -(-value // VECTOR_BYTES)
    return vectors * int(VECTOR_BYTES)


class _Short(Way):  # type: ignore[misc] # imported as Any here; checked in its own file
    """Rows that fit in shared memory, several at once if they are short."""

    threads: int

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        batch = self.batch
        width, keep = above(batch.length), above(batch.k)
        # If rows are contiguous side by side, a sector of them is read at a time.
        side = max(1, _SECTOR_BYTES * 8 // self.keys.bits) if batch.neighbours else 1
        wanted = min(self.most, max(self.knobs.short_entries, side * width))
        together = min(max(1, wanted // width), above(batch.rows))
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
            entries = Entries(self.keys, self.room, thread, self.threads, self.lockstep)
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
        """One slot per thread, ``1 << bits`` for each row: the row's number here and among all rows, and the place in the row.

        Consecutive threads have consecutive places, or consecutive rows if these are contiguous side by side.
        """
        across = T.let(i32(1) << small.across_bits)
        with strided(thread, T.let(small.together * (i32(1) << bits)), self.threads) as slot:
            place = T.let((slot >> small.across_bits) & ((i32(1) << bits) - 1))
            own = T.let((slot & (across - 1)) + (slot >> (small.across_bits + bits)) * across)
            yield own, T.let(batch * self.n.together + self.number(own)), place


class _Partwise(Way):  # type: ignore[misc] # imported as Any here; checked in its own file
    """Rows of which only the K best are kept in shared memory; a row may be split among groups."""

    threads: int
    each_turn = ("head", "parts", "given", "groups", "share", "extra")

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        batch, knobs, k = self.batch, self.knobs, self.batch.k
        self.keep = above(k)
        queue = self.way == "queue"
        least = max(knobs.part_elements, knobs.part_per_k * k)
        # Enough parts for as many groups as possible, and no part too long: Mesa's CPU driver silently ends a loop after 65535
        # iterations.
        wanted = max(-(-target.tasks() // batch.rows), -(-batch.length // knobs.part_most))
        parts = [max(1, min(batch.length // least, wanted))]
        if parts[0] > 1:
            if parts[0] * k > knobs.join_elements and parts[0] > 3:
                parts.append(math.isqrt(parts[0] - 1) + 1)
            parts.append(1)
        self.threads = max(_LEAST_THREADS, min(self.threads, below(batch.length // parts[0] // knobs.per_thread + 1)))
        self.loads = knobs.batch
        # A queue has space for the K best and for two batches, if that is not too much.
        batches = above(max(2 * self.keep, k + 2 * self.loads * self.threads))
        wanted = min(batches, max(knobs.queue_entries, 2 * self.keep)) if queue else max(knobs.select_entries, self.keep)
        self.room = min(self.most, wanted)
        if queue:  # a batch must fit beside the K best
            self.threads = min(self.threads, below(self.room - k))
            self.loads = min(self.loads, below((self.room - k) // self.threads))
        self.vector = self.rows.vector(self.loads)
        bests = min(self.room, max(self.threads, knobs.bests_per_k * self.keep))
        self.levels = len(parts)
        given = [batch.length, *parts[:-1]]
        groups = [self.groups(batch.rows * part) for part in parts]
        found = [batch.rows * part * k for part in parts[:-1]]
        self.rooms = tuple(found)
        # The number of entries that a group examines, by level.
        most_given = [n * (k if level else 1) // part for level, (n, part) in enumerate(zip(given, parts, strict=True))]
        self.digit_bits, self.copies = _digit_bits(target, knobs), _copies(target, knobs)
        # The first level counts in vectors.
        shares = [n // self.vector if level == 0 else n for level, n in enumerate(given)]
        position_shift = highest_shift(max(batch.length - 1, 1).bit_length(), self.digit_bits)
        numbers = {
            "keep": self.keep, "bests": bests, "position_shift": position_shift, "parts": tuple(parts), "given": tuple(given),
            "groups": tuple(groups), "head": tuple(_whole(max(8 * bests, n // 8, n * 2 * k // self.room)) for n in most_given),
            "share": tuple(n // part for n, part in zip(shares, parts, strict=True)),
            "extra": tuple(n % part for n, part in zip(shares, parts, strict=True)),
        }  # fmt: skip
        own = {"room": self.room, "levels": self.levels, "loads": self.loads, "vector": self.vector}
        if not queue:
            own |= {"digit_bits": self.digit_bits, "copies": self.copies}
        return own, max(0, *found, batch.rows * parts[0], batch.length + knobs.batch * max(bests, self.threads)), numbers

    def launches(self) -> None:
        for level in range(self.levels):
            with self.launch(level, "groups", self.threads) as (group, thread):
                self._level(level, group, thread)

    def _level(self, level: int, group: Any, thread: Any) -> None:
        """The K best of each part: of the row's elements, or of the results of the previous level."""
        n = self.n
        entries = Entries(self.keys, self.room, thread, self.threads, self.lockstep)
        choice = (
            BitonicQueue(entries, self.loads) if self.way == "queue" else Select(entries, self.loads, self.digit_bits, self.copies)
        )
        parts, last = n.parts, level == self.levels - 1
        small = self.small("k", "keep", "share", "extra", *(("bests", "head") if self.way == "queue" else ("position_shift",)))
        with strided(self.number(group), T.let(n.rows * parts), n.groups) as item:
            row = T.hold(T.truncdiv(item, parts)) if not last else item
            part = T.let(T.cast(item - row * parts, "int32")) if not last else i32(0)
            unit = self.vector if level == 0 else 1
            begin = T.hold((part * small.share + T.min(part, small.extra)) * unit)
            count = T.let((small.share + T.cast(part < small.extra, "int32")) * unit)
            load: Load | Neighbours
            if unit > 1:
                start = self.rows.start(row, 0)

                def load_all(i: Any) -> list[tuple[Any, ...]]:
                    place = T.let(begin + i)
                    keys = self.rows.keys_from(start, self.number(place), unit)
                    return [(key, T.let(T.cast(place + n, POSITION))) for n, key in enumerate(keys)]

                load = Neighbours(unit, load_all)
            elif level == 0:
                start = self.rows.start(row, 0)

                def load(i: Any) -> KeyedPosition:
                    place = T.let(begin + i)
                    return T.hold(self.rows.key(start, self.number(place))), T.let(T.cast(place, POSITION))
            else:
                keys, positions = self.found[level - 1]
                at = T.let((row * n.given + self.number(begin)) * n.k)
                count = T.let(count * small.k)

                def load(i: Any) -> KeyedPosition:
                    place = T.let(at + self.number(i))
                    return T.hold(keys[place]), T.hold(positions[place])

            if isinstance(choice, BitonicQueue):
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


_WAYS: dict[str, type[Way]] = {"short": _Short, "queue": _Partwise, "select": _Partwise, "sort": Sort}
