"""How queries, keys and values come to shared memory, for tensor cores: neighbours together, or single elements with their bias."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._attention_steps import AttentionSteps, DescribedAttention, HeadRows, Joined
from tvmdml.schedules.gpu import strided, taken_steps
from tvmdml.schedules.gpu._words import words

_PAD = 8
"""Elements after each row in shared memory: rows begin in other banks, and stay aligned."""
_RUN = 8
"""The most elements that are moved together."""
_SLOTS = 8
"""The most copies that a thread begins at once: of each it knows two addresses. Half as many if it counts in 64 bits."""


class LoadWriter(Protocol):
    """What a load needs of the writer of a kernel."""

    steps: AttentionSteps
    dtype: str
    threads: int
    thread: Any
    meanwhile: bool
    """Whether copies go on while the group computes."""
    memory: Any
    memory_words: Any
    batch: Any
    joint: Any
    past: Any
    limit: Any
    """The first key that is not seen."""

    def each(self, count: int) -> Any:
        """A thread's elements of so many, and whether each is one."""

    def split(self, element: Any, by: int) -> tuple[Any, Any]:
        """The number of its row, and of its place there."""

    def row_of(self, row: Any) -> tuple[Any, Any]:
        """The head and the number of a query row, of a row of the block."""


class AttentionInput(NamedTuple):
    """Queries (0), keys (1) or values (2)."""

    part: int
    run: int
    """Elements that are moved together; single ones may have a bias, and any strides."""
    channels: int

    @property
    def width(self) -> int:
        """The channels in shared memory: those after the last one are 0."""
        return -(-self.channels // 16) * 16

    @property
    def pitch(self) -> int:
        """From one row in shared memory to the next."""
        return self.width + _PAD

    def load(self, writer: LoadWriter, first: Any, at: int, rows: int) -> None:
        """Rows into shared memory, or the beginning of copies; 0 in place of what is not there."""
        run, across, tensors = self.run, self.width // self.run, _rows(writer.steps.d, self.part)
        for inside, element in slots(writer, rows * across):
            line, column = writer.split(element, across)
            column = column if run == 1 else T.hold(column * T.index(run))
            there: Any = T.const(True, "bool") if self.channels == self.width else column < T.index(self.channels)
            before: Any = None
            if self.part == 0:
                head, row = writer.row_of(line)
            else:
                head, row = writer.joint, T.hold(first + line)
                there = there & (row < writer.limit)
                before = row < writer.past if len(tensors) > 1 else None
            target = T.hold(line * T.index(self.pitch) + column + T.index(at))
            places = [(writer.batch, head, T.hold(row - writer.past) if i else row, column) for i, _ in enumerate(tensors)]
            with nullcontext() if inside is None else T.when(inside):
                if run == 1:
                    self._load_one(writer, tensors, places, before, target, there)
                elif before is None:
                    self._move(writer, tensors[0], places[0], target, there)
                else:
                    with T.when(before):
                        self._move(writer, tensors[0], places[0], target, there)
                    with T.when(~before):
                        self._move(writer, tensors[1], places[1], target, there)

    def _load_one(
        self, writer: LoadWriter, tensors: Sequence[HeadRows], places: Sequence[Any], before: Any, target: Any, there: Any
    ) -> None:
        """A single element, with its bias."""
        d = writer.steps.d
        found = T.Variable("float32", T.const(0.0, "float32"))

        def take(i: int) -> None:
            own = (d.query, d.keys, d.values)[self.part]
            new, bias = (own.new, own.bias) if isinstance(own, Joined) else (own, 0)
            found.set(writer.steps.element(tensors[i], bias if tensors[i] is new else None, places[i]))

        with T.when(there):
            if before is None:
                take(0)
            else:
                T.either(before, lambda: take(0), lambda: take(1))
        T.store(writer.memory, target, T.to(found.value, "float16"))

    def _move(self, writer: LoadWriter, rows: HeadRows, at: Any, target: Any, there: Any) -> None:
        """Neighbours together, which are aligned."""
        place, buffer = T.hold(rows.place(*at)), writer.steps.buffers[rows.tensor]
        if writer.meanwhile:
            T.copy_async(writer.memory, target, buffer, place, 2 * self.run, there)
            return
        count, one = self.run // 2, T.const(1, writer.dtype)
        held, whole = T.local("uint32", count), T.run(T.const(0, "int32"), count)
        for i in range(count):
            T.store(held, i, T.const(0, "uint32"))
        with T.when(there):
            T.store(held, whole, words(buffer)[T.run(T.multiple(T.let(place >> one), count), count)])
        T.store(writer.memory_words, T.run(T.multiple(T.let(target >> one), count), count), held[whole])


def _rows(d: DescribedAttention, part: int) -> list[HeadRows]:
    """Where they are: earlier rows, then new ones. Where all rows are kept, they are in one place, with their bias."""
    if part == 0:
        return [d.query]
    own = (d.keys, d.values)[part - 1]
    return [own.present] if own.present is not None else [one for one in (own.past, own.new) if one is not None]


def sources_of(d: DescribedAttention) -> list[AttentionInput]:
    """As many elements are moved together as are neighbours, and aligned, wherever a row begins."""
    found = []
    for part, channels in enumerate((d.sizes.channels, d.sizes.channels, d.sizes.value_channels)):
        own = (d.keys, d.values)[part - 1]
        biased = d.bias is not None and (part == 0 or (own.present is None and own.new is not None))
        run, heads = 1 if biased else _RUN, d.sizes.joint if part else d.sizes.heads
        for rows in _rows(d, part):
            steps = taken_steps((d.sizes.batch, heads, rows.length), rows.steps[:3])
            run = min(run, math.gcd(_RUN, channels, rows.base, *steps) if rows.steps[3] == 1 else 1)
        found.append(AttentionInput(part, run, channels))
    return found


def slots(writer: LoadWriter, count: int) -> Iterator[tuple[Any, Any]]:
    """The thread's elements of so many, in a loop, and whether each is one; ``None`` if they all are."""
    if count > writer.threads * _SLOTS // (1 if writer.dtype == "int32" else 2):
        with strided(writer.thread, T.index(count), T.index(writer.threads)) as element:
            yield None, element
        return
    with writer.each(count) as (there, element):
        yield (None if count % writer.threads == 0 else there), element
