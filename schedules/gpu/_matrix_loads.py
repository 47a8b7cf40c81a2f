"""How a group brings its part of a factor to shared memory: in registers, or by copies that go on while it computes.

Elements that are neighbours in memory are moved together, as many as 16 bytes hold, if every run of so many is aligned, is whole in
its dimension, and is there as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction, Operand
from tvmdml.kernels.movement import INSIDE, both, coordinate
from tvmdml.schedules.gpu._matrix_forms import Leaf, TileWriter
from tvmdml.schedules.gpu._words import save, words

_BYTES = 16
"""The most that are moved together."""
_NEAR = 4
"""Elements that are so near are read together."""


class Moved(NamedTuple):
    """How a factor's elements are moved."""

    inner_first: bool
    """Neighbouring threads have neighbouring products, not neighbouring rows or columns."""
    run: int
    """Elements that are moved together, along those."""
    size: int
    """Bytes of one."""
    copied: bool
    """By copies that go on meanwhile."""
    crossed: bool = False
    """Four products of four neighbours together, which change places: products are neighbours in shared memory."""
    packed: int = 1
    """Elements of a word, if they have few bits: words are moved."""
    flat: bool = False
    """A product's number alone says where it is, as inner coordinates are one in memory."""
    predicated: bool = False
    """What is outside is not read: where it would be is linear in all coordinates."""
    loose: bool = False
    """Runs of bytes may begin anywhere: their words are made of those that they are in."""
    turned: bool = False
    """Four neighbouring products of four rows or columns, which change places: rows or columns are neighbours in shared memory."""
    even: bool = False
    """Four products are there as a whole or not at all, and as far apart as others."""

    def slots(self, leaf: Leaf, which: int) -> int:
        """How many runs, or blocks of four by four, a thread moves of a factor's part."""
        side = (leaf.tile.rows, leaf.tile.columns)[which]
        if self.turned:
            return int(-(-side * leaf.step // (leaf.threads * 16))) * 4
        return int(-(-side * leaf.step // (leaf.threads * (16 if self.crossed else self.packed * self.run))))

    def __str__(self) -> str:
        """What the code depends on."""
        ways = [way for way in ("copied", "crossed", "flat", "predicated", "loose", "turned", "even") if getattr(self, way)]
        return " ".join(("inner" if self.inner_first else "own", str(self.run), *ways))


def is_inner_first(contraction: Contraction, which: int) -> bool:
    """Whether neighbours in memory of a factor (0 or 1) are nearer along inner coordinates than along its rows or columns."""
    operand = (contraction.a, contraction.b)[which]
    inner, own = (_reach(operand, _end(contraction, group)) for group in (3, which + 1))
    return inner <= own


def are_near(contraction: Contraction, which: int) -> bool:
    """Whether neighbouring rows or columns of a factor are neighbours in memory, or nearly."""
    return _reach((contraction.a, contraction.b)[which], _end(contraction, which + 1)) <= _NEAR


def moved(contraction: Contraction, which: int, size: int, leaf: Leaf, can_copy: bool, predicates: bool) -> Moved:
    """How a factor with elements of so many bytes is moved."""
    operand = (contraction.a, contraction.b)[which]
    zero = (contraction.a_zero, contraction.b_zero)[which]
    inner_first, run = is_inner_first(contraction, which), 1
    if flat := _is_flat(contraction, operand):
        steps = operand.place.steps
        operand = operand._replace(place=operand.place._replace(steps=(*steps[: -len(contraction.inner)], steps[-1])))
        contraction = contraction._replace(inner=(contraction.depth,))
    # What is outside has the zero point, if there is one, which is known while a kernel runs, or what becomes of 0.
    filled = bool(operand.rules) and (zero is not None or leaf.flips[which] != 0)
    if leaf.is_run_along(which, inner_first):
        run = _run(operand, contraction.sizes, _end(contraction, 3 if inner_first else which + 1), _BYTES // size)
    elif leaf.crosses and not filled and _run(operand, contraction.sizes, _end(contraction, which + 1), 4) == 4:
        even = len(contraction.inner) == 1 and contraction.depth % 4 == 0 and not operand.rules
        return Moved(inner_first, 4, size, copied=False, crossed=True, flat=flat, even=even)
    if run == size == 1 and leaf.crosses and _may_be_loose(contraction, operand, 3 if inner_first else which + 1):
        many = _BYTES if inner_first else 4
        return Moved(inner_first, many, size, copied=False, crossed=not inner_first, flat=flat, loose=True)
    turned = leaf.has_words and inner_first and run == 1 and not can_copy and not filled
    if turned and (turned := _run(operand, contraction.sizes, _end(contraction, 3), 4) == 4):
        run = 4
    whole = leaf.keeps_type and run * size >= 4 and not filled
    copied = whole and can_copy
    run = run if copied or (whole and leaf.has_words) else 1
    linear = bool(operand.rules) and all(rule.kind == INSIDE for rule in operand.rules)
    predicated = linear and (copied or (predicates and run == 1))
    return Moved(inner_first, run, size, copied, flat=flat, predicated=predicated, turned=turned)


def _may_be_loose(contraction: Contraction, operand: Operand, group: int) -> bool:
    """Whether neighbours of a group are neighbours in memory, whose end is that of the last coordinates, and products follow on."""
    place = operand.place
    is_run = len(contraction.groups[group]) == len(contraction.inner) == 1 and place.steps[_end(contraction, group)] == 1
    return is_run and not operand.rules and min(place.steps) >= 0


def _is_flat(contraction: Contraction, operand: Operand) -> bool:
    """Whether several inner coordinates are one in memory."""
    sizes, steps = contraction.inner, operand.place.steps[-len(contraction.inner) :]
    follow = (outer == inner * size for outer, inner, size in zip(steps, steps[1:], sizes[1:], strict=False))
    return not operand.rules and len(sizes) > 1 and all(follow)


def _end(contraction: Contraction, group: int) -> int:
    """The last coordinate of a group."""
    return sum(len(sizes) for sizes in contraction.groups[: group + 1]) - 1


def _reach(operand: Operand, coordinate: int) -> int:
    """How far apart neighbours along a coordinate are."""
    steps = [operand.place.steps[coordinate], *(rule.step * rule.at.steps[coordinate] for rule in operand.rules)]
    return abs(sum(steps)) or 1 << 62


def _run(operand: Operand, sizes: Sequence[int], last: int, most: int) -> int:
    """How many neighbours along a coordinate, the last one of its group, may be moved together."""
    return aligned(operand, sizes, last, most | sizes[last])


def aligned(operand: Operand, sizes: Sequence[int], last: int, most: int) -> int:
    """How many neighbours along a coordinate are aligned together, wherever a run of so many begins: a divisor of ``most``."""
    place = operand.place
    if place.steps[last] != 1 or any(rule.at.steps[last] for rule in operand.rules):
        return 1
    others = [step for i, (step, size) in enumerate(zip(place.steps, sizes, strict=True)) if i != last and size > 1]
    found = most | place.base
    for number in (*others, *(rule.step for rule in operand.rules)):
        found |= number
    return found & -found


class FactorLoads:
    """A factor's part of a tile, while a kernel is written."""

    def __init__(self, writer: TileWriter, which: int, way: Moved) -> None:
        self.writer, self.which, self.group, self.moved = writer, which, which + 1, way
        self.operand = (writer.c.a, writer.c.b)[which]
        self.zero = (writer.c.a_zero, writer.c.b_zero)[which]
        self.memory: Any = None
        """Shared memory, with as many parts as there are stages."""
        self._held: Any = None
        self._outer: list[dict[str, Any]] = []

    @property
    def buffer(self) -> Any:
        """The factor."""
        return self.writer.buffers[self.operand.name]

    @property
    def slots(self) -> int:
        """How many runs each thread moves."""
        return self.moved.slots(self.writer.leaf, self.which)

    @property
    def in_words(self) -> int:
        """The words that a thread moves together; 0 if it moves a single element."""
        return 4 if self.moved.crossed else self.moved.run * self.moved.size // 4 if self.moved.run > 1 else 0

    def declare(self, memory: Any) -> None:
        """With the shared memory that it goes to; inside of a launch."""
        leaf, self.memory = self.writer.leaf, memory
        self.step, self.tile = leaf.step, (leaf.tile.rows, leaf.tile.columns)[self.which]
        if not self.moved.copied:
            count = self.slots * max(self.in_words, 1)
            own = self.moved.size == 4  # an element is a word: it keeps its type
            self._held = T.local(self.writer.leaf.stored[self.which] if own or not self.in_words else "uint32", count)
            if self.in_words:
                self._words = (self.buffer, memory) if own else (words(self.buffer), words(memory))
        if self.moved.loose:
            self._find_end()

    def _find_end(self) -> None:
        """Count the words of the factor, and read the bytes that follow them: no word behind its end is read."""
        writer, place = self.writer, self.operand.place
        lasts = [[writer.number_of(size) - 1 for size in sizes] for sizes in writer.c.groups]
        end = T.let(writer.sum(place.base, *(writer.part(place, group, last) for group, last in enumerate(lasts))) + 1)
        whole = T.let(end >> T.const(2, writer.dtype))
        self._ends = [T.hold(whole - i) for i in range(_BYTES // 4 + 1)]
        self._tail = T.Variable("uint32", T.const(0, "uint32"))
        for i in range(3):
            at = T.let(whole * 4 + i)
            with T.when(at < end):
                byte = T.cast(self.buffer[at], "uint32") & T.const(255, "uint32")
                self._tail.set(self._tail.value | T.shift_left(byte, T.const(8 * i, "uint32")))

    def _from(self, place: Any, count: int) -> list[Any]:
        """Words that begin at any byte."""
        first = T.let(place >> T.const(2, self.writer.dtype))
        digits = T.let(T.cast(place & 3, "uint32") * 0x1111 + 0x3210)
        each = ((end, T.let(first + i)) for i, end in enumerate(self._ends[: count + 1]))
        found = [T.let(T.if_then_else(first < end, self._words[0][at], self._tail.value)) for end, at in each]
        return [T.let(T.chosen_bytes(*found[i : i + 2], digits)) for i in range(count)]

    def _slot(self, slot: int) -> tuple[Any, Any, bool]:
        """Of a thread's run: the number of its row or column, and of its product; whether all threads have such a run."""
        threads, run, step = self.writer.leaf.threads, self.moved.run, self.step
        place = T.let(self.writer.thread + slot * threads) if slot else self.writer.thread
        along = (step if self.moved.inner_first else self.tile) // run
        second = T.let(T.truncdiv(place, T.const(along, "int32")))
        first = T.let((place - second * along) * run)
        own, inner = (second, first) if self.moved.inner_first else (first, second)
        return own, inner, (slot + 1) * threads * run <= self.tile * step

    def start(self, first: Any) -> None:
        """Compute what does not follow from inner coordinates, of each of the thread's runs; the tile begins at ``first``."""
        writer, self._outer = self.writer, []
        run = 1 if self.moved.inner_first or self.moved.loose else self.moved.run
        for slot in range(self.slots):
            own, inner, _ = self._slot(slot)
            position = T.let(T.min(first + T.cast(own, writer.dtype), writer.sizes[self.group] - run))
            at = writer.unraveled(position, writer.c.groups[self.group])
            self._outer.append({**self.outside(at), "inner": T.let(T.cast(inner, writer.dtype))})

    def outside(self, at: Sequence[Any]) -> dict[str, Any]:
        """What the batch and a row or column contribute to places, and the zero point."""
        writer = self.writer
        parts = [
            T.let(writer.sum(one.base, writer.part(one, 0, writer.batch), writer.part(one, self.group, at)))
            for one in self.operand.linears()
        ]
        parts = self._summed(parts)
        return {"parts": parts, "zero": None if self.zero is None else T.let(writer.zero_at(self.zero, self.group, at))}

    # -- From memory

    def load(self, first: Any) -> None:
        """The runs of the next products, to registers."""
        for slot, own, (there, place) in self._places(first):
            if not self.in_words:
                element = self.buffer[place]
                if self.moved.predicated:
                    element = T.if_then_else(both(*there), element, T.const(0, T.type_of(element)))
                    there = (T.const(True, "bool"), None) if self.zero is None else there
                T.store(self._held, slot, self.writer.leaf.factor(T.let(element), own["zero"], *there))
                continue
            if self.moved.loose:
                left = T.let(T.cast(T.min(self.writer.sizes[3] - (first + own["inner"]), self.writer.number(_BYTES)), "int32"))
                # Behind the last product the second factor is 0, whatever the first one is, unless that one is summed up, too.
                is_any = self.which == 0 and self.writer.c.b_zero is None
                for i, word in enumerate(self._from(place, self.in_words)):
                    T.store(self._held, slot * self.in_words + i, word if is_any else _first_bytes(word, left - 4 * i))
                continue
            first_word, count, every = slot * self.in_words, self.in_words, both(*there)
            T.store(self._held, T.run(T.const(first_word, "int32"), count), self._words[0][T.run(self._word(place), count)])
            for i in range(first_word, first_word + count):
                word = self._flipped(self._held[i])
                T.store(self._held, i, T.Select(every, word, T.const(0, T.type_of(word))))

    def keep(self, stage: Any) -> None:
        """The thread's runs, from registers to shared memory."""
        for slot in range(self.slots):
            place, mine = self._target(slot, stage)
            with mine:
                if not self.in_words:
                    T.store(self.memory, place, self._held[slot])
                    continue
                run = self._held[T.run(T.const(slot * self.in_words, "int32"), self.in_words)]
                T.store(self._words[1], T.run(self._word(place), self.in_words), run)

    def copy(self, first: Any, stage: Any) -> None:
        """Begin to copy the runs of some products to shared memory."""
        for slot, _, (there, place) in self._places(first):
            target, mine = self._target(slot, stage)
            with mine:
                T.copy_async(self.memory, target, self.buffer, place, self.moved.run * self.moved.size, both(*there))

    def _flipped(self, word: Any) -> Any:
        flip = self.writer.leaf.flips[self.which]
        return word ^ T.const(flip, "uint32") if flip else word

    def _word(self, place: Any) -> Any:
        """The number of a run's first word."""
        shift = {1: 2, 2: 1, 4: 0}[self.moved.size]
        return T.let(T.multiple(place >> T.const(shift, T.type_of(place)), self.in_words))

    def _target(self, slot: int, stage: Any) -> tuple[Any, Any]:
        """Where a run goes, and the condition under which the thread has it."""
        own, inner, every = self._slot(slot)
        place = self.writer.leaf.place(self.which, own, inner)
        place = T.let(place if stage is None else place + stage * self.writer.leaf.size(self.which))
        limit = self.tile * self.step // (self.moved.run * self.moved.packed)
        own_slot = self.writer.thread + slot * self.writer.leaf.threads
        return place, nullcontext() if every else T.when(own_slot < T.const(limit, "int32"))

    def _places(self, first: Any) -> Iterator[tuple[int, dict[str, Any], tuple[tuple[Any, Any], Any]]]:
        """Each slot, what is known of it, whether its run is there, and where."""
        known: dict[Any, tuple[Any, list[Any]]] = {}
        for slot, own in enumerate(self._outer):
            # With inner coordinates first, all of a thread's runs have the same, if they divide the threads.
            same = self.moved.inner_first and self.writer.leaf.threads * self.moved.run % self.step == 0
            key = 0 if same else slot
            if key not in known:
                known[key] = self._inner(T.let(first + own["inner"]))
            yield slot, own, self.located(own["parts"], *known[key])

    def _inner(self, position: Any) -> tuple[Any, list[Any]]:
        """Whether there is such a product, and what its coordinates contribute to places."""
        writer, depth = self.writer, self.writer.sizes[3]
        run = self.moved.run if self.moved.even or (self.moved.inner_first and not self.moved.loose) else 1
        number = T.let(T.min(position, depth - run))
        if self.moved.flat:
            return T.let(position < depth), [writer.scaled(number, self.operand.place.steps[-1])]
        at, product = writer.unraveled(number, writer.c.inner), T.let(position < depth)
        parts = self._summed([writer.part(one, 3, at) for one in self.operand.linears()])
        if self.moved.predicated and self.zero is None:  # where there is no product, a coordinate is outside
            far = writer.number(-(1 << 30 if writer.dtype == "int32" else 1 << 62))
            parts[-1], product = T.let(T.Select(product, writer.sum(parts[-1]), far)), None
        return product, parts

    def _summed(self, parts: list[Any]) -> list[Any]:
        """Of what is read only inside, places with the dimensions that may be outside."""
        if self.moved.predicated:
            place, *ats = parts
            scaled = [
                None if at is None else self.writer.scaled(at, rule.step) for rule, at in zip(self.operand.rules, ats, strict=True)
            ]
            parts = [T.let(self.writer.sum(place, *scaled)), *ats]
        return parts

    def located(self, own: Sequence[Any], product: Any, parts: Sequence[Any]) -> tuple[tuple[Any, Any], Any]:
        """Whether there is such a product, whether it is inside of all dimensions (``None``: always), and where.

        It follows from what outer and inner coordinates contribute to places.
        """
        place, *ats = (self.writer.sum(mine, other) for mine, other in zip(own, parts, strict=True))
        there: Any = None
        for rule, at in zip(self.operand.rules, ats, strict=True):
            if self.moved.predicated:
                whole = f"u{self.writer.dtype}"  # below 0 it is larger than any size
                # TVM fails to simplify a comparison with a constant without a sign, which it takes from 0: it sees none.
                number, size = (T.reinterpret(one, whole) for one in (at, self.writer.number_of(rule.size)))
                there = both(there, T.let(number < size))
                continue
            found, inside = coordinate(rule, T.let(at))
            found = T.let(found)
            place = place + self.writer.scaled(found, rule.step)
            there = both(there, None if inside is None else T.let(inside))
        return (product, None if there is None else T.let(there)), T.let(place)


def _first_bytes(word: Any, count: Any) -> Any:
    """A word with so many of its bytes, or all, and zeros."""
    others = T.let(T.max(T.const(0, "int32"), T.min(T.const(4, "int32"), 4 - count)))
    kept = T.shift_right(T.const(0xFFFFFFFF, "uint32"), T.reinterpret(T.min(others, T.const(3, "int32")) * 8, "uint32"))
    return T.Select(others < T.const(4, "int32"), word & kept, T.const(0, "uint32"))


class TurnedLoads(FactorLoads):
    """Words whose neighbours in memory are products, four of each of four rows or columns: each product's are stored together."""

    def _slot(self, slot: int) -> tuple[Any, Any, bool]:
        """Of a row or column of a thread's block: its number, and its first product; whether all threads have such a block."""
        threads, (block, row) = self.writer.leaf.threads, divmod(slot, 4)
        place = T.let(self.writer.thread + block * threads) if block else self.writer.thread
        second = T.let(T.truncdiv(place, T.const(self.step // 4, "int32")))
        first = T.let((place - second * (self.step // 4)) * 4)
        return T.let(second * 4 + row), first, (block + 1) * threads * 16 <= self.tile * self.step

    def load(self, first: Any) -> None:
        """The blocks of the next products, to registers."""
        blocks = self.tile * self.step // 16
        with nullcontext() if blocks >= self.writer.leaf.threads else T.when(self.writer.thread < T.const(blocks, "int32")):
            super().load(first)

    def keep(self, stage: Any) -> None:
        """The blocks, from registers to shared memory."""
        for slot in range(0, self.slots, 4):
            own, inner, every = self._slot(slot)
            with nullcontext() if every else T.when(own < T.const(self.tile, "int32")):
                for k in range(4):
                    place = self.writer.leaf.place(self.which, own, inner + k)
                    place = T.let(place if stage is None else place + stage * self.writer.leaf.size(self.which))
                    save(self.memory, T.multiple(place, 4), [self._held[4 * (slot + i) + k] for i in range(4)])


class Crossed(FactorLoads):
    """Bytes whose neighbours in memory are rows or columns, of four products at a time: they become words of four products each."""

    def _slot(self, slot: int) -> tuple[Any, Any, bool]:
        """Of a thread's block: its first row or column, and its first product; whether all threads have such a block.

        A subgroup has 8 neighbours and 4 after another: it reads whole sectors of memory, and writes to all banks.
        """
        threads, step = self.writer.leaf.threads, self.step
        place, near = T.let(self.writer.thread + slot * threads), min(8, self.tile // 4)
        many, inner = T.let(T.truncdiv(place, T.const(near, "int32"))), step // 16
        rest = T.let(many >> T.const(2, "int32"))
        across = T.let(T.truncdiv(rest, T.const(inner, "int32")))
        own = T.let((place - many * near + across * near) * 4)
        first = T.let(((many & T.const(3, "int32")) + (rest - across * inner) * 4) * 4)
        return own, first, (slot + 1) * threads * 16 <= self.tile * step

    def load(self, first: Any) -> None:
        """The blocks of the next products, to registers."""
        for slot, own in enumerate(self._outer):
            if self.moved.even or self.moved.loose:
                position, step = T.let(first + own["inner"]), self.writer.number_of(self.operand.place.steps[-1])
                (product, _), place = self.located(own["parts"], *self._inner(position))
                shift = T.const(2, T.type_of(place))
                begin, apart = T.let(place >> shift), T.let(step >> shift)
                for k in range(4):
                    if self.moved.even:
                        word = self._words[0][T.let(begin + k * apart)]
                    else:
                        product, word = position + k < self.writer.sizes[3], self._from(T.let(place + k * step), 1)[0]
                    T.store(self._held, 4 * slot + k, T.Select(T.let(product), T.let(word), T.const(0, "uint32")))
                continue
            for k in range(4):
                (product, inside), place = self.located(own["parts"], *self._inner(T.let(first + own["inner"] + k)))
                word = self._words[0][T.let(place >> T.const(2, T.type_of(place)))]
                T.store(self._held, 4 * slot + k, T.Select(both(product, inside), T.let(word), T.const(0, "uint32")))

    def keep(self, stage: Any) -> None:
        """The blocks, from registers to shared memory. Neighbouring threads begin with other words, for other banks."""
        for slot in range(self.slots):
            own, inner, every = self._slot(slot)
            with nullcontext() if every else T.when(own < T.const(self.tile, "int32")):
                for k in range(4):
                    which = T.let(((own >> T.const(3, "int32")) + k) & T.const(3, "int32"))
                    two = T.let(T.cast(which * 0x11 + 0x40, "uint32"))  # that byte of two words
                    low, high = (T.chosen_bytes(*(self._held[4 * slot + i + j] for j in (0, 1)), two) for i in (0, 2))
                    word = T.chosen_bytes(low, high, T.const(0x5410, "uint32"))
                    place = self.writer.leaf.place(self.which, own + which, inner)
                    place = place if stage is None else place + stage * self.writer.leaf.size(self.which)
                    T.store(self._words[1], T.let(place >> T.const(2, "int32")), word)
