"""Attention of factors that are rounded to bfloat16: blocks of query rows by blocks of keys, as in ``_attention_blocks.py``.

Scores are products of panels of 32 keys and 32 query rows, and weighed sums those of 32 channels of values and the same rows: so
both have a vector of query rows, and weights become a factor as they lie. Values are turned when they are packed.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._attention_bfloat16_fused import KEYS
from tvmdml.operators._attention_steps import AttentionSteps
from tvmdml.schedules.cpu._amx import AmxBlock
from tvmdml.schedules.cpu._attention_blocks import AttentionBlocks, BlockForm
from tvmdml.schedules.cpu._attention_tiles import Registers, safe_base
from tvmdml.schedules.cpu._gemm_arithmetic import TilePairs
from tvmdml.schedules.cpu._gemm_bfloat16 import NeighbouringPairs, TileBfloat16, product_of_panels
from tvmdml.schedules.cpu._gemm_panels import ALONG, Factor
from tvmdml.schedules.cpu._gemm_tile_rows import PairColumns, PairRows
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._sums import zeros
from tvmdml.schedules.cpu._tiles import SIDE, transposed

PANEL = 2 * SIDE
"""Lines of a panel: rows of keys, columns of query rows, channels of values."""
_WORDS = SIDE * PANEL
"""The words of a panel for 32 places."""
_PARTS = 8
"""Panels of query rows for which keys and values are packed once, at most."""


def form_of(rows: Any, units: tuple[str, ...]) -> BlockForm:
    """The blocks: of one size on all processors, as sums depend on it."""
    return BlockForm(Registers(SIDE, 24), PANEL // SIDE, KEYS, max(1, min(_PARTS, -(-rows // PANEL))), units)


def _panels(count: int) -> int:
    return -(-count // PANEL)


def scratch_of(form: BlockForm, channels: int, values: int) -> tuple[int, int]:
    """The floats and the words of a task: scores and what each part has; keys, values, weights, and the queries of each part."""
    floats = KEYS * PANEL + form.parts * PANEL * (PANEL * _panels(values) + 3)
    depth = _panels(channels)
    words = _panels(KEYS) * (depth + _panels(values) + 1) + form.parts * depth
    return floats + SIDE, words * _WORDS + SIDE


class RoundedBlocks(AttentionBlocks):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the work of a task."""

    def __init__(
        self, steps: AttentionSteps, form: BlockForm, scratch: Any, first: Any, words: Any, first_word: Any, in_tiles: bool
    ) -> None:
        self.steps, self.form, self.scratch, self.words = steps, form, scratch, words
        s = steps.d.sizes
        self.channels, self.value_channels = int(s.channels), int(s.value_channels)
        self.depth, self.wide = _panels(self.channels), PANEL * _panels(self.value_channels)
        self.block = AmxBlock(2, 2, None) if in_tiles else None
        self.arithmetic: TilePairs = TileBfloat16() if in_tiles else NeighbouringPairs()
        self.weights, self.parts = first, T.hold(first + KEYS * PANEL)
        self.key_words = first_word
        self.value_words = T.hold(self.key_words + _panels(KEYS) * self.depth * _WORDS)
        self.weight_words = T.hold(self.value_words + _panels(KEYS) * self.wide // PANEL * _WORDS)
        self.query_words = T.hold(self.weight_words + _panels(KEYS) * _WORDS)
        self.by_row = self.by_key = False

    def enter(self) -> None:
        """What a task begins with."""
        if self.block is not None:
            self.block.configure(T.i64(SIDE))

    def leave(self) -> None:
        """What a task ends with."""
        if self.block is not None:
            self.block.release()

    def unit(self, batch: Any, head: Any, block: Any) -> None:
        """A block of query rows of a head."""
        form, s = self.form, self.steps.d.sizes
        first = T.hold(block * form.block)
        rows = T.hold(T.min(T.i64(form.block), s.rows - first))
        parts = T.hold(T.truncdiv(rows + (PANEL - 1), T.i64(PANEL)))
        with T.loop(parts) as part:
            self._part(part, first, rows)
            self._pack_queries(batch, head)
            self._begin(head)
        total = T.index(s.total)
        with T.loop(T.hold(T.truncdiv(total + (KEYS - 1), T.i64(KEYS)))) as number:
            key = T.hold(number * KEYS)
            count = T.hold(T.min(T.i64(KEYS), total - key))
            panels = T.hold(T.truncdiv(count + (PANEL - 1), T.i64(PANEL)))
            self._pack_keys(batch, head, key, panels)
            self._pack_values(batch, head, key, panels)
            with T.loop(parts) as part:
                self._part(part, first, rows)
                self._scores(panels)
                if self.steps.d.added is not None:
                    self._filter((batch, head), self.first, self.rows, key, count)
                self._weigh(count, panels)
                self._sum(panels, T.hold(T.expression(number == T.i64(0))))
        with T.loop(parts) as part:
            self._part(part, first, rows)
            self._results(batch, head, self.first, self.rows)

    def _part(self, part: Any, first: Any, rows: Any) -> None:
        self.first = T.hold(first + part * PANEL)
        self.rows = T.hold(T.min(T.i64(PANEL), rows - part * PANEL))
        self.query = T.hold(self.query_words + part * (self.depth * _WORDS))
        self.sums = T.hold(self.parts + part * (PANEL * (self.wide + 3)))
        self.most = T.hold(self.sums + PANEL * self.wide)
        self.total, self.old = T.hold(self.most + PANEL), T.hold(self.most + 2 * PANEL)

    # -- Packing

    def _pack_queries(self, batch: Any, head: Any) -> None:
        rows = self.steps.d.query
        scaled = type(self.arithmetic)(self.steps.desc.scale)
        packer = PairColumns(Factor(1, self.steps.buffers[rows.tensor], ALONG, PANEL, T.index(rows.steps[2]), 1), scaled)
        base = T.hold(rows.place(batch, head, T.i64(0), T.i64(0)))
        packer.pack(base, None, self.words, self.query, self.first, self.first + (self.rows - 1), T.i64(0), T.i64(self.channels))

    def _pack_keys(self, batch: Any, head: Any, key: Any, panels: Any) -> None:
        rows, s = self.steps.d.keys.new, self.steps.d.sizes
        assert rows is not None
        packer = PairRows(Factor(0, self.steps.buffers[rows.tensor], ALONG, PANEL, T.index(rows.steps[2]), 1), self.arithmetic)
        base = T.hold(rows.place(batch, head, T.i64(0), T.i64(0)))
        with T.loop(panels) as p:
            at = T.hold(self.key_words + p * (self.depth * _WORDS))
            line, last = T.hold(key + p * PANEL), T.hold(T.index(s.total) - 1)
            packer.pack(base, None, self.words, at, line, last, T.i64(0), T.i64(self.channels))

    def _pack_values(self, batch: Any, head: Any, key: Any, panels: Any) -> None:
        """Values of keys behind the last one repeat its own: their weights are 0."""
        rows, s, nothing = self.steps.d.values.new, self.steps.d.sizes, zeros(SIDE)
        assert rows is not None
        buffer = self.steps.buffers[rows.tensor]
        last = T.hold(T.index(s.total) - 1)
        with T.loop(panels) as p:
            lines = []
            for i in range(PANEL):
                row = T.hold(T.min(key + p * PANEL + i, last))
                lines.append(T.hold(rows.place(batch, head, row, T.i64(0))))

            def square(c: Any, count: int, p: Any = p, lines: list[Any] = lines) -> None:
                raws = []
                for line in lines:
                    at = T.hold(line + c * SIDE)
                    zero, end = T.const(0, "int32"), T.const(count, "int32")
                    raws.append(T.hold(buffer[T.run(at, SIDE)] if count == SIDE else load_part(buffer, at, zero, end, nothing)))
                words = [self.arithmetic.woven_pairs([raws[i] for i in self._pair(j)])[0] for j in range(SIDE)]
                to = T.hold(self.value_words + T.truncdiv(c, T.i64(2)) * (_panels(KEYS) * _WORDS) + p * _WORDS)
                to = T.hold(to + T.truncmod(c, T.i64(2)) * (SIDE * SIDE))
                for i, column in enumerate(transposed(words)):
                    T.store(self.words, T.run(to + i * SIDE, SIDE), column)

            whole, rest = divmod(self.value_channels, SIDE)
            with T.loop(T.i64(whole)) as c:
                square(c, SIDE)
            if rest:
                square(T.i64(whole), rest)

    def _pair(self, j: int) -> tuple[int, int]:
        """The keys of a word, of 32."""
        apart = self.arithmetic.apart
        return (j, j + apart) if apart > 1 else (2 * j, 2 * j + 1)

    # -- Steps

    def _product(self, a: Any, b: Any, at: Any, units: Any, first: Any = None) -> None:
        """Sums of 32 by 32 products over so many units of places; ``first`` says whether they begin with 0, ``None``: they do."""
        if self.block is None:
            product_of_panels(self.words, a, b, self.scratch, at, units, first)
            return
        if first is None:
            self.block.clear()
        else:
            T.either(first, self.block.clear, lambda: self.block.load(self.scratch, at))
        with T.loop(units) as u:
            self.block.step(T.address_of(self.words[a + u * _WORDS]), T.address_of(self.words[b + u * _WORDS]))
        self.block.store(self.scratch, at)

    def _scores(self, panels: Any) -> None:
        with T.loop(panels) as p:
            a = T.hold(self.key_words + p * (self.depth * _WORDS))
            self._product(a, self.query, T.hold(self.weights + p * (PANEL * PANEL)), T.i64(self.depth))

    def _weigh(self, count: Any, panels: Any) -> None:
        """Scores become weights of the largest score so far, and words."""
        form = self.form
        least = T.splat(T.const(float("-inf"), "float32"), SIDE)
        with T.loop(T.hold(panels * PANEL - count)) as i:
            for v in range(form.vectors):
                self._store(self.weights + (count + i) * PANEL + v * SIDE, least)
        with T.loop(T.i64(form.vectors)) as v:
            column, word = T.hold(self.weights + v * SIDE), T.hold(self.weight_words + v * SIDE)
            before = T.hold(self._load(self.most + v * SIDE))
            largest = [T.Variable(f"float32x{SIDE}", before) for _ in range(4)]
            with T.loop(panels) as p:
                for i in range(PANEL):
                    one, score = largest[i % 4], T.hold(self._load(column + (p * PANEL + i) * PANEL))
                    one.set(T.Select(score > one.value, score, one.value))
            most = T.hold(largest[0].value)
            for one in largest[1:]:
                most = T.hold(T.Select(one.value > most, one.value, most))
            base = safe_base(most)
            old = T.hold(mathematics.decay(T.hold(before - base)))
            self._store(self.most + v * SIDE, most)
            self._store(self.old + v * SIDE, old)
            sums = [T.Variable(f"float32x{SIDE}", zeros(SIDE)) for _ in range(2)]
            with T.loop(panels) as p:
                for j in range(SIDE):
                    pair = []
                    for i in self._pair(j):
                        score = self._load(column + (p * PANEL + i) * PANEL)
                        pair.append(T.hold(mathematics.decay(T.hold(score - base))))
                        half = sums[i // SIDE]
                        half.set(half.value + pair[-1])
                    (found,) = self.arithmetic.woven_pairs(pair)
                    T.store(self.words, T.run(word + (p * SIDE + j) * PANEL, SIDE), found)
            more = T.hold(sums[0].value + sums[1].value)
            self._store(self.total + v * SIDE, self._load(self.total + v * SIDE) * old + more)

    def _sum(self, panels: Any, first: Any) -> None:
        """Weighed sums of a block's values, added to those of the blocks before."""
        with T.loop(T.i64(self.wide // PANEL)) as c:
            at = T.hold(self.sums + c * (PANEL * PANEL))

            def rescale(at: Any = at) -> None:
                olds = [T.hold(self._load(self.old + v * SIDE)) for v in range(self.form.vectors)]
                with T.loop(T.i64(PANEL)) as i:
                    for v, old in enumerate(olds):
                        place = T.hold(at + i * PANEL + v * SIDE)
                        self._store(place, T.rounded(self._load(place) * old))

            with T.when(T.Not(first)):
                rescale()
            a = T.hold(self.value_words + c * (_panels(KEYS) * _WORDS))
            self._product(a, self.weight_words, at, panels, first)

    def _results(self, batch: Any, head: Any, first: Any, rows: Any) -> None:
        """Sums are turned to rows of channels."""
        contiguous = self.steps.d.result.tensor in self.form.units
        for v in range(self.form.vectors):
            total = T.hold(self._load(self.total + v * SIDE))
            none = T.hold(T.cast(T.expression(total == T.like(total, 0)), "float32"))
            divisor = T.hold(total + none)

            def square(c: Any, count: int, v: int = v, none: Any = none, divisor: Any = divisor) -> None:
                columns = []
                for i in range(SIDE):
                    value = self._load(T.hold(self.sums + (c * SIDE + i) * PANEL + v * SIDE)) / divisor
                    columns.append(T.hold(self._cleared(T.hold(value), none, 1)))
                for i, row in enumerate(transposed(columns)):
                    with T.when(T.i64(v * SIDE + i) < rows):
                        at = (batch, head, T.hold(first + (v * SIDE + i)))
                        if contiguous and count == SIDE:
                            self.steps.put((*at, T.hold(c * SIDE)), row)
                        else:
                            for lane in range(count):
                                self.steps.put((*at, T.hold(c * SIDE + lane)), T.hold(T.Shuffle([row], [lane])))

            whole, rest = divmod(self.value_channels, SIDE)
            with T.loop(T.i64(whole)) as c:
                square(c, SIDE)
            if rest:
                square(T.i64(whole), rest)
