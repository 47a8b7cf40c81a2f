"""NONZERO_COORDINATES on a GPU: elements become bits, 32 to a word and a word to a thread, and words become rows.

A tile is what one group processes at once. Its threads read neighbouring elements, 16 bytes each, and then exchange the bits, so
that each has the word of 32 neighbours. The group computes prefix sums of the bit counts. With these, any of its threads finds any
row of the tile by two short searches, so neighbouring threads write neighbouring rows, and equally many, wherever the elements are.
There are three variants:

- ``alone``: one group processes all tiles in turn, if there are few.
- ``scan``: one launch stores words and counts them; the next writes rows. The input is read once, and its bits are few. A group of
  the second launch adds up the counts of the tiles before its own, or, for many tiles, a launch in between does. If memory order
  differs from element order, an additional first launch gathers the words: each thread one, next to threads with contiguous ones.
- ``lookback``: one launch reads and writes. A group gets the number of earlier rows from the groups with earlier tiles (decoupled
  look-back). It saves little, and needs a device whose groups may wait for one another.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Constraint, Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates
from tvmdml.schedules.gpu import VECTOR_BYTES, Numbers, _scan, enough_groups, position, require, strided, taken_steps
from tvmdml.schedules.gpu._walk import LEAST_PIECE, WORD, walk_of
from tvmdml.schedules.gpu._words import load, offset, save, unravel, words
from tvmdml.targets._device import DeviceTarget

KNOBS = Knobs(
    "nonzero_coordinates",
    enough_groups(1024),
    Constraint("least_threads is no more than threads", lambda knobs, _: knobs.least_threads <= knobs.threads),
    Constraint(
        "lookback needs a device whose groups may wait for one another",
        lambda knobs, target: knobs.algorithm != "lookback" or not isinstance(target, DeviceTarget) or target.lookback,
    ),
    algorithm=Knob("auto", ("auto", "alone", "scan", "lookback"), "the variant; auto chooses by the number of tiles and device"),
    threads=Knob(256, (32, 64, 128, 256, 512), "maximum threads per group; a tile has 32 elements per thread"),
    least_threads=Knob(64, (32, 64, 128, 256, 512), "threads per group if more would leave the device partly idle"),
    alone_elements=Knob(1 << 12, tuple(1 << n for n in range(21)), "maximum elements for a single group"),
    direct_tiles=Knob(2048, tuple(1 << n for n in range(16)), "maximum tiles for which each group adds up earlier counts"),
    most_parts=Knob(8, (1, 2, 4, 8, 16), "maximum groups that write the rows of one tile, if there are few tiles"),
    most_groups=Knob(8192, tuple(1 << n for n in range(16)), "maximum groups per launch; each strides over the rest"),
)

COUNTS = 8
"""The number of tile counts that a thread of the launch in between adds up."""
NOTHING, OWN, ALL = 0, 1, 2
"""A tile's state, in the two highest bits: nothing yet; its own count; the count of all tiles up to it."""
STATE_BITS = 30  # of a word, whose others say what kind of count it is


def kernel(desc: NonzeroCoordinates, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The kernel over tiles in the elements' order, whatever the dimensions."""
    source, result = desc.input_tensor, desc.output_coordinates_tensor
    elements, itemsize = source.element_count, source.data_type.itemsize
    way = _way(elements, target, knobs)
    gather = way != "alone" and knobs.algorithm in ("auto", "scan")
    walk = walk_of(source, max(LEAST_PIECE, VECTOR_BYTES // itemsize), gather)
    if walk.gathered:
        way = "scan"
    threads = _threads(elements, target, knobs)
    tiles = -(-walk.words // threads)
    parts = max(1, min(knobs.most_parts, target.tasks() // tiles)) if way == "scan" else 1
    columns = result.sizes[-1]
    row_step, column_step = taken_steps(result.sizes[-2:], result.layout[-2:])
    rank = max(source.effective_rank, 1)
    span = max(source.span * max(1, itemsize // 4), result.span * (result.data_type.itemsize // 4), tiles * threads * WORD)
    numbers = Numbers(
        span,
        elements=elements,
        tiles=tiles,
        parts=parts,
        # A separate number for each launch: TVM would name a 64-bit extent that two launches share, and the host code has no names.
        groups=tuple(min(n, target.max_groups, knobs.most_groups) for n in (tiles, tiles, tiles * parts, tiles)),
        row=row_step,
        column=column_step,
        sizes=source.sizes[-rank:],
        **walk.numbers,
    )
    writer = _Writer(
        desc,
        numbers,
        way=way,
        direct=tiles <= knobs.direct_tiles,
        threads=threads,
        lockstep=min(target.lockstep, threads),
        piece=walk.piece,
        pieced=walk.pieced,
        vector=walk.vector,
        gathered=walk.gathered,
        gaps=walk.gaps,
        columns=columns,
        packed=(row_step == columns or result.sizes[-2] == 1) and (column_step == 1 or columns == 1),
        rank=rank,
        walk_rank=walk.rank,
    )
    require(desc, target, writer.element)
    temporaries = {
        "alone": (),
        "scan": (("uint32", tiles * threads), ("uint32", tiles)),
        "lookback": (("uint32", tiles + 1),),
    }
    return Kernel("nonzero_coordinates", way, writer.parameters, writer.function, numbers.scalars, temporaries[way])


def _threads(elements: int, target: DeviceTarget, knobs: Any) -> int:
    """The maximum number of threads, or fewer if there would be too few tiles for the whole device."""
    threads: int = knobs.threads
    while threads > target.max_threads or _shared_bytes(threads, target.lockstep) > target.max_shared_bytes:
        threads //= 2
    if elements > knobs.alone_elements:
        while threads > knobs.least_threads and elements < threads * WORD * target.tasks():
            threads //= 2
    return threads


def _shared_bytes(threads: int, lockstep: int) -> int:
    pieces = WORD // LEAST_PIECE
    return _scan.shared_bytes(threads, lockstep) + 4 * (threads + pieces * (threads + WORD // pieces) + 4)


_MOST_ALONE = 1 << 20
"""With more elements, a single group would loop too often, whatever its size."""


def _way(elements: int, target: DeviceTarget, knobs: Any) -> str:
    way: str = knobs.algorithm
    if way == "alone" and elements > _MOST_ALONE:
        way = "auto"
    fits = elements < 1 << STATE_BITS
    if way == "auto":
        if elements <= knobs.alone_elements:
            return "alone"
        return "lookback" if target.lookback and fits else "scan"
    return "scan" if way == "lookback" and not fits else way


class _Writer:
    """Writes the kernel; each method writes one piece."""

    way: str
    direct: bool
    threads: int
    lockstep: int
    piece: int
    pieced: bool
    vector: bool
    gathered: bool
    gaps: bool
    columns: int
    packed: bool
    rank: int
    walk_rank: int

    def __init__(self, desc: NonzeroCoordinates, numbers: Numbers, **choices: Any) -> None:
        self.bits = 8 * desc.input_tensor.data_type.itemsize
        self.is_float = desc.input_tensor.data_type.is_float
        self.index_type = desc.output_coordinates_tensor.data_type.tvm
        self.numbers, self.dtype = numbers, numbers.dtype
        self.__dict__.update(choices)
        own = {"bits": self.bits, "float": self.is_float, "coordinates": self.index_type}
        self.parameters = (*own.items(), *choices.items(), *numbers.parameters)
        self.wide = self.bits == 64
        self.element = f"uint{min(self.bits, 32)}"  # a 64-bit element is two words
        self.pieces = WORD // self.piece
        self.magnitude = (1 << min(self.bits, 32) - self.is_float) - 1
        self.index_words = 2 if self.index_type == "uint64" else 1

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.function() as f:
            self.input = f.buffer("input", self.element)
            self.count = f.buffer("count", "uint32")
            self.rows = f.buffer("coordinates", "uint32")
            if self.way == "scan":
                self.words, self.counts = f.buffer("words", "uint32"), f.buffer("counts", "uint32")
            if self.way == "lookback":
                self.states = f.buffer("states", "uint32")  # the next tile's number, then each tile's state and count
            self.n = self.numbers.declare(f)
            {"alone": self._alone, "scan": self._scan, "lookback": self._lookback}[self.way]()
            if self.way != "alone":
                self._clear_all()
        return f.result()

    # -- The variants --------------------------------------------------------------------------------------------------

    def _alone(self) -> None:
        with T.launch(1, self.threads) as (_, self.thread):
            self._share(reading=True)
            found = T.Variable("uint32", _u32(0))
            with T.loop(self.n.tiles) as tile:
                total = self._sum_bits(self._read(tile))
                self._write_rows(tile, total, found.value)
                found.set(found.value + total)
            with self._once():
                T.store(self.count, 0, found.value)
            self._clear(found.value, self._wide(self.thread), self.numbers.const(self.threads))

    def _scan(self) -> None:
        n, threads = self.n, self.threads
        if self.gathered:
            with T.launch(n.groups[0], threads) as (group, thread):
                first = position(group, thread, threads, self.dtype)
                with strided(first, T.let(n.tiles * threads), T.let(n.groups[0] * threads)) as number:
                    self._gather(number)
        with T.launch(n.groups[1], threads) as (group, self.thread):
            self._share(reading=not self.gathered)
            with strided(self._wide(group), n.tiles, n.groups[1]) as tile:
                place = T.let(tile * threads + self._wide(self.thread))
                word = T.let(self.words[place]) if self.gathered else self._read(tile)
                if not self.gathered:
                    T.store(self.words, place, word)
                total = self.sums.total(self.thread, T.popcount(word))
                with self._once():
                    T.store(self.counts, tile, total)
        if not self.direct:
            with T.launch(1, threads) as (_, self.thread):
                self._share(reading=False)
                self._sum_counts()
        with T.launch(n.groups[2], threads) as (group, self.thread):
            self._share(reading=False)
            with strided(self._wide(group), T.let(n.tiles * n.parts), n.groups[2]) as number:
                tile, part = (T.let(self._wide(c)) for c in unravel(number, [n.tiles, n.parts]))
                before = self._add_counts(tile) if self.direct else T.let(self.counts[tile])
                total = self._sum_bits(T.let(self.words[tile * threads + self._wide(self.thread)]))
                self._write_rows(tile, total, before, part)
                if self.direct:
                    self._write_count(tile, before + total)

    def _lookback(self) -> None:
        n, threads = self.n, self.threads
        groups = T.truncdiv(n.tiles + threads, self.numbers.const(threads))
        with T.launch(groups, threads) as (group, thread):
            place = position(group, thread, threads, self.dtype)
            with T.when(place <= n.tiles):
                T.store(self.states, place, _u32(0))
        with T.launch(n.groups[0], threads) as (_, self.thread):
            self._share(reading=True)
            self.taken, self.found = T.shared("uint32", 1), T.shared("uint32", 3)
            # Tiles are taken in order, so the groups with earlier tiles have already started.
            number = T.Variable(self.dtype, self._take())
            with T.loop_while(number.value < n.tiles):
                tile = T.let(number.value)
                total = self._sum_bits(self._read(tile))
                before = self._look_back(tile, total)
                self._write_rows(tile, total, before)
                self._write_count(tile, before + total)
                number.set(self._take())

    def _clear_all(self) -> None:
        """The last launch, after which all rows are written."""
        groups, threads = self.n.groups[3], self.threads
        with T.launch(groups, threads) as (group, thread):
            self._clear(self.count[0], position(group, thread, threads, self.dtype), T.let(groups * threads))

    def _clear(self, count: Any, first: Any, step: Any) -> None:
        """Set rows behind the count to 0: some of them, from the first one on."""
        with strided(T.let(self._wide(count) + first), self.n.elements, step) as row:
            self._write_row(row, [_u32(0)] * self.rank)

    def _share(self, reading: bool) -> None:
        """Declare the shared memory of a group, and the input as words."""
        self.sums, self.kept = _scan.scan(self.threads, self.lockstep), T.shared("uint32", self.threads)
        if reading:
            self.input_words = words(self.input)
            # The masks of one word are so far apart that neighbouring threads have no bank conflicts.
            self.pitch = self.threads + WORD // self.pieces
            self.masks = T.shared("uint32", self.pieces * self.pitch)

    def _once(self) -> Any:
        """Code for a single thread of the group."""
        return T.when(self.thread == 0)

    def _write_count(self, tile: Any, found: Any) -> None:
        with T.when((self.thread == 0) & (tile == self.n.tiles - 1)):
            T.store(self.count, 0, found)

    def _wide(self, value: Any) -> Any:
        """A value in the type of offsets."""
        return T.cast(value, self.dtype)

    # -- Elements to words -----------------------------------------------------------------------------------------------

    def _read(self, tile: Any) -> Any:
        """This thread's word of a tile."""
        n, threads, pieces = self.n, self.threads, self.pieces

        def number(turn: Any) -> tuple[Any, Any]:
            within = T.let(turn * threads + self.thread)
            return within, T.let(tile * (threads * pieces) + self._wide(within))

        def keep(within: Any, mask: Any) -> None:
            T.store(self.masks, (within & (pieces - 1)) * self.pitch + (within >> (pieces.bit_length() - 1)), mask)

        def piece_by_piece() -> None:
            with T.loop(_i32(pieces)) as turn:
                within, piece = number(turn)
                keep(within, self._mask(piece))

        def together() -> None:
            """Do all loads before the first use."""
            numbers = [number(_i32(turn)) for turn in range(pieces)]
            held = [self._load(T.let(self._offset(piece))) for _, piece in numbers]
            for (within, _), found in zip(numbers, held, strict=True):
                keep(within, self._mask_of(found))

        if self.vector and self.lockstep > 1:
            T.either(tile * (threads * WORD) + threads * WORD <= n.elements, together, piece_by_piece)
        else:
            piece_by_piece()
        T.barrier()
        word = T.Variable("uint32", _u32(0))
        with T.loop(_i32(pieces)) as k:
            mask = self.masks[k * self.pitch + self.thread]
            word.set(word.value | (mask << T.cast(k * self.piece, "uint32")))
        return T.let(word.value)

    def _mask(self, number: Any) -> Any:
        """The bits of a piece, by its number; bits beyond the last element are zero."""
        n, piece = self.n, self.piece
        mask = T.Variable("uint32", _u32(0))
        first = T.let(number * piece)
        start: Any = T.let(self._offset(number)) if self.pieced else None

        def one_by_one() -> None:
            # The end is not a constant: otherwise drivers unroll the loop, with several divisions for each element.
            left = T.let(T.max(T.min(n.elements - first, self.numbers.const(piece)), self.numbers.const(0)))
            with T.loop(left) as j:
                at = start + j * n.inner if self.pieced else self._offset(first + j)
                bit = T.cast(self._is_nonzero(T.let(at)), "uint32")
                mask.set(mask.value | (bit << T.cast(j, "uint32")))

        def at_once() -> None:
            mask.set(self._mask_of(self._load(start)))

        if self.vector:
            T.either(first + piece <= n.elements, at_once, one_by_one)
        else:
            one_by_one()
        return mask.value

    def _load(self, start: Any) -> list[Any]:
        """The words of the piece that starts there."""
        count = self.piece * self.bits // 32
        at = start * 2 if self.wide else T.truncdiv(start, self.numbers.const(32 // self.bits))
        return load(self.input_words, T.let(T.multiple(at, count)), count)

    def _mask_of(self, held: list[Any]) -> Any:
        """The bits of a complete piece, from its words."""
        mask = T.Variable("uint32", _u32(0))
        bits = self._bits_of_pairs(held) if self.wide else [self._bits(word) for word in held]
        for k, found in enumerate(bits):
            mask.set(mask.value | (found << _u32(k * (self.piece // len(bits)))))
        return mask.value

    def _gather(self, number: Any) -> None:
        """Gather a word of a row; contiguous rows have consecutive numbers."""
        n, word = self.n, T.Variable("uint32", _u32(0))
        place = T.Variable(self.dtype, number)  # places beyond the last word are empty

        def elements() -> None:
            at_word, at_row = (T.let(self._wide(c)) for c in unravel(number, [n.tiles, n.rows]))
            at = unravel(at_row, n.walk_sizes)
            first = T.let(at_word * WORD)
            start = T.let(offset(at, n.walk_steps, self.dtype) + first * n.inner)
            place.set(offset(at, n.row_numbers, self.dtype) * n.words_a_row + at_word)
            with T.loop(T.let(T.min(n.width - first, self.numbers.const(WORD)))) as j:
                bit = T.cast(self._is_nonzero(T.let(start + j * n.inner)), "uint32")
                word.set(word.value | (bit << T.cast(j, "uint32")))

        with T.when(number < n.rows * n.words_a_row):
            elements()
        T.store(self.words, place.value, word.value)

    def _offset(self, number: Any) -> Any:
        """The offset in the input of a piece, or of an element that is not in a piece."""
        if self.walk_rank == 1:
            return number * self.n.walk_steps[0]
        return offset(unravel(number, self.n.walk_sizes), self.n.walk_steps, self.dtype)

    def _is_nonzero(self, at: Any) -> Any:
        """Whether an element is nonzero, by its bits: a float's sign is ignored, and NaN is nonzero."""
        if self.wide:
            return (self.input[at * 2] | (self.input[at * 2 + 1] & _u32(self.magnitude))) != _u32(0)
        dtype = f"uint{self.bits}"
        return (self.input[at] & T.const(self.magnitude, dtype)) != T.const(0, dtype)

    def _bits_of_pairs(self, held: list[Any]) -> list[Any]:
        pairs = zip(held[::2], held[1::2], strict=True)
        return [T.cast((low | (high & _u32(self.magnitude))) != _u32(0), "uint32") for low, high in pairs]

    def _bits(self, word: Any) -> Any:
        """One bit for each element in a word of memory; the first element's is the lowest."""
        if self.bits == 32:
            return T.cast((word & _u32(self.magnitude)) != _u32(0), "uint32")
        # Within each element the addition carries into the highest bit if any lower bit is set.
        ones = sum(1 << i for i in range(0, 32, self.bits))
        below = _u32(ones * ((1 << self.bits - 1) - 1))
        carried = (word & below) + below
        top = T.let(((carried if self.is_float else carried | word) >> _u32(self.bits - 1)) & _u32(ones))
        if self.bits == 16:
            return (top | (top >> _u32(15))) & _u32(3)
        return (top * _u32(1 << 24 | 1 << 17 | 1 << 10 | 1 << 3)) >> _u32(24) & _u32(15)

    # -- How many rows come before ------------------------------------------------------------------------------------------

    def _add_counts(self, tile: Any) -> Any:
        """The sum of the counts of all tiles before one."""
        mine = T.Variable("uint32", _u32(0))
        with strided(self._wide(self.thread), tile, self.numbers.const(self.threads)) as other:
            mine.set(mine.value + self.counts[other])
        return self.sums.total(self.thread, mine.value)

    def _sum_counts(self) -> None:
        """Replace each tile's count by the sum of the earlier ones."""
        n, chunk = self.n, self.threads * COUNTS
        found = T.Variable("uint32", _u32(0))
        with T.loop(T.truncdiv(n.tiles + (chunk - 1), self.numbers.const(chunk))) as i:
            first = T.let(i * chunk + self._wide(self.thread) * COUNTS)
            mine = T.Variable("uint32", _u32(0))
            with strided(first, T.min(first + COUNTS, n.tiles), self.numbers.const(1)) as tile:
                mine.set(mine.value + self.counts[tile])
            total = self.sums.sum_up(self.thread, mine.value)
            before = T.Variable("uint32", found.value + self.sums.before(self.thread))
            with strided(first, T.min(first + COUNTS, n.tiles), self.numbers.const(1)) as tile:
                count = T.let(self.counts[tile])
                T.store(self.counts, tile, before.value)
                before.set(before.value + count)
            found.set(found.value + total)
        with self._once():
            T.store(self.count, 0, found.value)

    def _take(self) -> Any:
        """Take the next tile that no group has taken."""
        with self._once():
            T.store(self.taken, 0, T.atomic("add", self.states, 0, _u32(1)))
        T.barrier()
        return self._wide(self.taken[0])

    def _look_back(self, tile: Any, total: Any) -> Any:
        """The number of rows before a tile: reads as many earlier tiles' states at a time as there are threads, the nearest first.

        The states are used only when all that are needed are available, so the threads of a group wait together.
        """
        threads, found, tile = self.threads, self.found, T.let(T.cast(tile, "int32"))
        before, nearest = T.Variable("uint32", _u32(0)), T.Variable("int32", tile - 1)
        with self._once():
            T.atomic_do("store", self.states, tile + 1, _state(OWN, total))
        with T.loop_while(nearest.value >= 0):
            with self._once():
                T.store(found, 0, _u32(threads))  # the nearest with the count of all tiles up to it
                T.store(found, 1, _u32(threads))  # the nearest without any count
                T.store(found, 2, _u32(0))
            T.barrier()
            other, me = T.let(nearest.value - self.thread), T.cast(self.thread, "uint32")
            state = T.Variable("uint32", _state(ALL, _u32(0)))  # the state of the places before the first tile
            with T.when(other >= 0):
                state.set(T.atomic("load", self.states, other + 1))
            with T.when((state.value >> _u32(STATE_BITS)) == _u32(ALL)):
                T.atomic_do("min", found, 0, me)
            with T.when((state.value >> _u32(STATE_BITS)) == _u32(NOTHING)):
                T.atomic_do("min", found, 1, me)
            T.barrier()
            last = T.let(T.min(found[0], _u32(threads - 1)))
            known, is_first = T.let(last < found[1]), T.let(found[0] < _u32(threads))
            with T.when(known & (me <= last)):
                T.atomic_do("add", found, 2, state.value & _u32((1 << STATE_BITS) - 1))
            T.barrier()
            with T.when(known):
                before.set(before.value + found[2])
                nearest.set(T.Select(is_first, _i32(-1), nearest.value - threads))
            T.barrier()
        with self._once():
            T.atomic_do("store", self.states, tile + 1, _state(ALL, before.value + total))
        return T.let(before.value)

    # -- Words to rows ---------------------------------------------------------------------------------------------------

    def _sum_bits(self, word: Any) -> Any:
        """Prefix sums of the number of set bits over all threads; the group keeps both."""
        total = self.sums.sum_up(self.thread, T.popcount(word))
        T.store(self.kept, self.thread, word)
        T.barrier()
        return total

    def _write_rows(self, tile: Any, total: Any, before: Any, part: Any = None) -> None:
        """Write a tile's rows, distributed over the threads; ``part`` is the group's number if several groups write the tile."""
        full = self.threads * WORD
        first_row = T.let(self._wide(before))
        first, step = self.thread, _i32(self.threads)
        if part is not None:
            first, step = T.let(first + T.cast(part, "int32") * step), T.let(T.cast(self.n.parts, "int32") * step)
        with strided(first, T.cast(total, "int32"), step) as row:
            place = T.Variable("int32", row)
            with T.when(total < _u32(full)):
                place.set(self._find(T.cast(row, "uint32")))
            if self.gaps:
                word = T.let(tile * self.threads + self._wide(place.value >> (WORD.bit_length() - 1)))
                at_row, at_word = unravel(word, [self.n.tiles, self.n.words_a_row])
                within = at_word * _u32(WORD) + T.cast(place.value & (WORD - 1), "uint32")
                element = T.let(at_row * T.cast(self.n.width, "uint32") + within)
            else:
                element = T.let(tile * full + self._wide(place.value))
            self._write_row(T.let(first_row + self._wide(row)), unravel(element, self.n.sizes))

    def _find(self, row: Any) -> Any:
        """The element of the tile that a row belongs to: the word's thread, and the bit in the word."""
        thread, rest, bit = T.Variable("int32", _i32(0)), T.Variable("uint32", row), T.Variable("int32", _i32(0))
        with T.loop(_i32(self.threads.bit_length() - 1)) as turn:
            half = T.let(_i32(self.threads // 2) >> turn)
            with T.when(self.sums.upto(thread.value + half - 1) <= rest.value):
                thread.set(thread.value + half)
        rest.set(rest.value - self.sums.before(thread.value))
        word = T.Variable("uint32", self.kept[thread.value])
        with T.loop(_i32(WORD.bit_length() - 1)) as turn:
            half = T.let(_i32(WORD // 2) >> turn)
            below = T.let(T.popcount(word.value & ((_u32(1) << T.cast(half, "uint32")) - _u32(1))))
            with T.when(rest.value >= below):
                rest.set(rest.value - below)
                word.set(word.value >> T.cast(half, "uint32"))
                bit.set(bit.value + half)
        return thread.value * WORD + bit.value

    def _write_row(self, row: Any, at: list[Any]) -> None:
        """Write the last coordinates, one per column; the high word of a 64-bit coordinate is zero."""
        coordinates = [*[_u32(0)] * (self.columns - self.rank), *at]
        if self.packed:
            written = [word for c in coordinates for word in (c, _u32(0))[: self.index_words]]
            start = T.let(row * len(written))
            if len(written) in (2, 4):
                save(self.rows, start, written)
            else:
                for k, word in enumerate(written):
                    T.store(self.rows, start + k, word)
            return
        for column, coordinate in enumerate(coordinates):
            place = T.let((row * self.n.row + column * self.n.column) * self.index_words)
            T.store(self.rows, place, coordinate)
            if self.index_words == 2:
                T.store(self.rows, place + 1, _u32(0))


def _u32(value: int) -> Any:
    return T.const(value, "uint32")


def _i32(value: int) -> Any:
    return T.const(value, "int32")


def _state(kind: int, count: Any) -> Any:
    return _u32(kind << STATE_BITS) | count
