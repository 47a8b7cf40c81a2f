"""DIAGONAL_MATRIX1 on a GPU: memory-bound, so each thread writes 16 bytes at once, and reads only what it copies.

In each row the band is one segment, ``[low, high)`` relative to the diagonal. Elements inside or outside of it are a constant or
the input's. Elements are moved as plain bits in 32-bit words, so one kernel serves every type of a size. There are three variants:

- ``vectors``: the elements of a row are contiguous. 16 bytes are all outside, all inside, or a blend; they span at most two rows.
- ``tiles``: rows of the output are columns of the input.
- ``elements``: any other strides, one element at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators.diagonal_matrix import DiagonalMatrix1, bits
from tvmdml.schedules.gpu import VECTOR_BYTES, Numbers, _tiles, group_knobs, groups_for, position, require, strided, taken_steps
from tvmdml.schedules.gpu._words import load, offset, save, unravel, words
from tvmdml.targets._device import DeviceTarget
from tvmdml.tensors import packed_strides

KNOBS = group_knobs("diagonal_matrix")

WORDS = VECTOR_BYTES // 4
"""The words that a thread moves at once."""


def kernel(desc: DiagonalMatrix1, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The kernel over the rows of all matrices; columns are used as rows if the output is contiguous along them."""
    source, result = desc.input_tensor, desc.output_tensor
    itemsize = result.data_type.itemsize
    layouts = [result.layout, result.layout if source is None else source.layout]
    height, width = result.sizes[-2:]
    begin, end = desc.diagonal_fill_begin, desc.diagonal_fill_end
    if result.layout[-2] < result.layout[-1]:
        layouts = [(*rest, x, y) for *rest, y, x in layouts]
        height, width, begin, end = width, height, 1 - end, 1 - begin
    inverted = begin > end  # then the value is written outside of [end, begin)
    # Beyond the matrix's corners a bound has no further effect. Clamping keeps sums with it small.
    low, high = (max(-height, min(width, bound)) for bound in (min(begin, end), max(begin, end)))
    batch, batch_steps = collapse(result.sizes[:-2], *(layout[:-2] for layout in layouts))
    sizes = (*batch, height, width)
    steps = tuple(
        (*batch_step, *taken_steps((height, width), layout[-2:])) for batch_step, layout in zip(batch_steps, layouts, strict=True)
    )

    lanes = VECTOR_BYTES // itemsize
    packed = all(_is_packed(sizes, step) for step in steps)
    aligned = width % lanes == 0 and all(step[-1] == 1 and all(s % lanes == 0 for s in step[:-1]) for step in steps)
    way = "vectors" if aligned or (packed and width >= lanes) else "elements"
    if way == "vectors" and packed:
        sizes, steps = (result.element_count // width, width), ((width, 1), (width, 1))
    if way == "elements" and _tiles.crossing((height, width), steps[1][-2:], steps[0][-2:]) == 0:
        way = "tiles" if target.max_threads >= _tiles.THREADS else way
    if way == "tiles":
        threads = _tiles.THREADS
        groups = min(_tiles.count(sizes), target.max_groups, knobs.most_groups)
    else:
        threads = min(knobs.threads, target.max_threads)
        groups = groups_for(-(-result.element_count // (lanes if way == "vectors" else 1)), threads, target, knobs.most_groups)
    span = max(result.span, source.span if source is not None else 0, result.element_count)
    numbers = Numbers(
        span * max(1, itemsize // 4),
        _words_of(desc),
        elements=result.element_count,
        groups=groups,
        low=low,
        high=high,
        height=height,
        sizes=sizes,
        steps_out=steps[0],
        steps_in=steps[1],
    )
    writer = _Writer(
        numbers,
        itemsize=itemsize,
        way=way,
        copied="none" if source is None else "inside" if inverted else "outside",
        inverted=inverted,
        packed=packed,
        aligned=aligned,
        batched=packed and bool(batch),
        rank=len(sizes),
        threads=threads,
    )
    whole_words = way == "vectors" and aligned
    require(desc, target, "uint32" if whole_words else writer.element)
    return Kernel("diagonal_matrix", way, writer.parameters, writer.function, numbers.scalars)


def _is_packed(sizes: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(sizes, steps, packed_strides(sizes), strict=True))


def _words_of(desc: DiagonalMatrix1) -> tuple[int, ...]:
    """The value as words: repeated to fill one word, or split into two."""
    found, width = bits(desc.element()), 8 * desc.output_tensor.data_type.itemsize
    found *= sum(1 << i for i in range(0, 32, width)) if width < 32 else 1
    return (found & 0xFFFFFFFF, found >> 32) if width == 64 else (found,)


class _Writer:
    """Writes the kernel."""

    itemsize: int
    way: str
    copied: str
    inverted: bool
    packed: bool
    aligned: bool
    batched: bool
    rank: int
    threads: int

    def __init__(self, numbers: Numbers, **choices: Any) -> None:
        self.numbers, self.dtype = numbers, numbers.dtype
        self.__dict__.update(choices)
        self.parameters = (*choices.items(), *numbers.parameters)
        self.lanes = VECTOR_BYTES // self.itemsize
        self.element = f"uint{8 * min(self.itemsize, 4)}"  # a 64-bit element is two of these

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.function() as f:
            self.source: Any = None if self.copied == "none" else f.buffer("input", self.element)
            self.result = f.buffer("output", self.element)
            self.n = n = self.numbers.declare(f)
            self.value = [T.cast(word, "uint32") for word in n.words]
            if self.way == "tiles":
                parts = [self.element] * len(self.value)
                _tiles.move(n.groups, self.numbers, n.sizes, parts, self._choose, self._store)
            else:
                with T.launch(n.groups, self.threads) as (group, thread):
                    first = position(group, thread, self.threads, self.dtype)
                    step = T.let(n.groups * self.threads)
                    if self.way == "vectors":
                        self._vectors(first, step)
                    else:
                        with strided(first, n.elements, step) as i:
                            self._element(i)
        return f.result()

    # -- Sixteen bytes at once -----------------------------------------------------------------------------------------

    def _vectors(self, first: Any, step: Any) -> None:
        n, lanes = self.n, self.lanes
        self.result_words = words(self.result)
        self.source_words = None if self.source is None else words(self.source)
        whole = T.let(T.truncdiv(n.elements, self._const(lanes)))
        with strided(first, whole, step) as i:
            self._vector(i)
        if not self.aligned:
            with T.when(first < n.elements - whole * lanes):  # the rest is less than a vector
                self._element(T.let(whole * lanes + first))

    def _vector(self, number: Any) -> None:
        lanes, width = self.lanes, self.n.sizes[-1]
        if self.aligned:
            across = T.truncdiv(width, self._const(lanes))
            *rows, column = unravel(number, [*self.n.sizes[:-1], across])
            row, column = T.let(self._wide(rows[-1])), T.let(self._wide(column) * lanes)
            room: Any = self._const(lanes)
        else:
            *rows, column = unravel(number * lanes, self.n.sizes)
            row, column = T.let(self._wide(rows[-1])), T.let(self._wide(column))
            room = T.let(T.min(self._const(lanes), width - column))
        if self.packed:
            out_at = in_at = T.let(number * WORDS)
        else:
            out_at, in_at = (
                self._word(offset(rows, steps[:-1], self.dtype) + column) for steps in (self.n.steps_out, self.n.steps_in)
            )
        if self.batched:
            row = T.let(self._wide(unravel(row, [self._const(1), self.n.height])[1]))

        # The band's part of these elements; elements beyond the row's end belong to the next row.
        bounds = [tuple(self._clamped(row + bound - column, room) for bound in (self.n.low, self.n.high))]
        if not self.aligned:
            after = T.let(T.Select(row + 1 == self.n.height, self._const(0), row + 1)) if self.batched else row + 1
            rest = lanes - room
            bounds.append(tuple(T.let(room + self._clamped(after + bound, rest)) for bound in (self.n.low, self.n.high)))
        inside = T.let(sum((last - first for first, last in bounds[1:]), bounds[0][1] - bounds[0][0]))

        def put(part: str) -> None:
            save(self.result_words, out_at, self._part(part, in_at))

        def blend() -> None:
            parts = zip(self._part("inside", in_at), self._part("outside", in_at), strict=True)
            blended = []
            for k, (one, other) in enumerate(parts):
                mask = T.const(0, "uint32")
                for first, last in bounds:
                    mask = mask | (self._below(last, k) & ~self._below(first, k))
                mask = T.let(mask)
                blended.append((one & mask) | (other & ~mask))
            save(self.result_words, out_at, blended)

        def some() -> None:
            T.either(inside == lanes, lambda: put("inside"), blend)

        T.either(inside == 0, lambda: put("outside"), some)

    def _clamped(self, value: Any, most: Any) -> Any:
        return T.hold(T.max(self._const(0), T.min(most, value)))

    def _word(self, element: Any) -> Any:
        """The number of the word in which an element starts; only for elements that start a word."""
        return T.let(element * (self.itemsize // 4) if self.itemsize >= 4 else T.truncdiv(element, self._const(4 // self.itemsize)))

    def _part(self, part: str, at: Any) -> list[Any]:
        """The words inside or outside of the band."""
        if part == self.copied:
            return load(self.source_words, at, WORDS)
        if (part == "inside") == self.inverted:
            return [T.const(0, "uint32")] * WORDS
        return [self.value[k % len(self.value)] for k in range(WORDS)]

    def _below(self, bound: Any, k: int) -> Any:
        """A mask of the elements in the vector's word ``k`` that come before a bound."""
        ones = T.word(-1, 32)
        if self.itemsize >= 4:
            return T.Select(bound > k * 4 // self.itemsize, ones, T.const(0, "uint32"))
        many = 4 // self.itemsize
        before = self._clamped(bound - k * many, self._const(many))
        bits_before = T.cast(before * (8 * self.itemsize), "uint32") & T.const(31, "uint32")
        return T.Select(before == many, ones, (T.const(1, "uint32") << bits_before) - T.const(1, "uint32"))

    # -- One by one ----------------------------------------------------------------------------------------------------

    def _element(self, number: Any) -> None:
        at = [T.let(self._wide(c)) for c in unravel(number, self.n.sizes)]
        self._store(at, self._choose(at))

    def _choose(self, at: list[Any]) -> list[Any]:
        """The new value of an element, as several words if it is wider than one."""
        row = self._wide(unravel(at[-2], [self._const(1), self.n.height])[1]) if self.batched else at[-2]
        diagonal = T.let(at[-1] - row)
        found = [T.Variable(self.element) for _ in self.value]

        def take(part: str) -> None:
            start: Any = T.let(T.dot(at, self.n.steps_in) * len(found)) if part == self.copied else None
            for k, (one, value) in enumerate(zip(found, self.value, strict=True)):
                if part == self.copied:
                    one.set(self.source[start + k])
                elif (part == "inside") == self.inverted:
                    one.set(T.const(0, self.element))
                else:
                    one.set(T.cast(value, self.element))

        inside = (diagonal >= self.n.low) & (diagonal < self.n.high)
        T.either(inside, lambda: take("inside"), lambda: take("outside"))
        return [one.value for one in found]

    def _store(self, at: list[Any], values: Sequence[Any]) -> None:
        start = T.let(T.dot(at, self.n.steps_out) * len(values))
        for k, value in enumerate(values):
            T.store(self.result, start + k, value)

    def _const(self, value: int) -> Any:
        return self.numbers.const(value)

    def _wide(self, value: Any) -> Any:
        """A value in the type of offsets."""
        return T.cast(value, self.dtype)
