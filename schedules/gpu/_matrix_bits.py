"""How a group brings its part of a matrix of few bits to shared memory: words in registers, which become floats on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.gpu._bits import BitMatrix
from tvmdml.schedules.gpu._matrix_forms import TileWriter
from tvmdml.schedules.gpu._matrix_loads import FactorLoads, Moved
from tvmdml.schedules.gpu._words import save, words


class BitPart(FactorLoads):  # type: ignore[misc] # mypy knows these modules by another name
    """A part of which a thread moves words: neighbouring threads have neighbouring columns, as shared memory has."""

    def __init__(self, writer: TileWriter, which: int, way: Moved, matrix: BitMatrix) -> None:
        super().__init__(writer, which, way)
        self.matrix = matrix

    def declare(self, memory: Any) -> None:
        """With the shared memory that it goes to; inside of a launch."""
        leaf, self.memory = self.writer.leaf, memory
        self.step, self.tile = leaf.step, (leaf.tile.rows, leaf.tile.columns)[self.which]
        kinds = ["uint32", "int32", "float32", *({"": [], "bits": ["uint32"], "floats": ["float32"]}[self.matrix.zero])]
        self._held = [T.local(kind, self.slots) for kind in kinds]
        self._halves = words(memory) if leaf.stored[self.which] == "float16" else None

    def _slot(self, slot: int) -> tuple[Any, Any, bool]:
        """Of a thread's word: the number of its column, and of its first product; whether all threads have such a word."""
        threads, packed = self.writer.leaf.threads, self.matrix.per_word
        place = T.let(self.writer.thread + slot * threads) if slot else self.writer.thread
        word = T.let(T.truncdiv(place, T.const(self.tile, "int32")))
        return T.let(place - word * self.tile), T.let(word * packed), (slot + 1) * threads * packed <= self.tile * self.step

    def outside(self, at: Sequence[Any]) -> dict[str, Any]:
        """Where a column, its scales and its zero points begin."""
        return {**super().outside(at), "column": self.matrix.column(at[0])}

    def load(self, first: Any) -> None:
        """The words of the next products, with their scales and zero points, to registers."""
        matrix, depth = self.matrix, self.writer.sizes[3]
        for slot, own in enumerate(self._outer):
            place = T.let(first + own["inner"])
            block = matrix.block_of(T.let(T.min(place, depth - 1)))
            word = matrix.word(own["parts"][0], T.let(T.truncdiv(place, matrix.number(matrix.per_word))))
            left = T.cast(T.min(depth - place, matrix.number(matrix.per_word)), "int32")
            values = [word, left, matrix.scale(own["column"], block), matrix.zero_point(own["column"], block)]
            for held, value in zip(self._held, values, strict=False):
                T.store(held, slot, value)

    def keep(self, stage: Any) -> None:
        """The thread's words, as floats, from registers to shared memory; 0 behind the last product, where they may be infinite."""
        matrix, leaf = self.matrix, self.writer.leaf
        for slot in range(self.slots):
            word, left, scale, zero = (*(held[slot] for held in self._held), None)[:4]
            place, mine = self._target(slot, stage)
            step = leaf.place(self.which, 0, 1)
            with mine:
                elements = matrix.floats(word, matrix.less(zero), zero)
                if self._halves is not None:
                    self._keep_halves(place, elements)
                    continue
                for i, element in enumerate(elements):
                    value = T.Select(T.const(i, "int32") < left, element * scale, T.const(0, "float32"))
                    T.store(self.memory, place + i * step, value)

    def _keep_halves(self, place: Any, elements: Sequence[Any]) -> None:
        """Neighbours, which are exact integers: their block's sums are scaled. Behind the last product the other factor is 0."""
        pairs = [T.let(T.halves(*elements[i : i + 2])) for i in range(0, len(elements), 2)]
        for i in range(0, len(pairs), 4):
            some = pairs[i : i + 4]
            save(self._halves, T.let(T.multiple((place >> T.const(1, "int32")) + i, len(some))), some)
