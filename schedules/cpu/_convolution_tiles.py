"""Bytes in direct convolutions with matrix tiles (AMX): a tile has neighbouring places of the frame, as they lie.

A place of the frame has the bytes of 64 channels, so a step multiplies all of them: those of up to 16 neighbours by those of up to
four vectors of filters. Everything else is that of ``_convolution_lanes.py``, and the results are the same bits.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._amx import SIDE, AmxBlock
from tvmdml.schedules.cpu._convolution_arranged import Phase, up
from tvmdml.schedules.cpu._convolution_bytes import GROUP
from tvmdml.schedules.cpu._convolution_lanes import Lanes
from tvmdml.schedules.cpu._convolution_register_tile import RegisterTile
from tvmdml.schedules.cpu._gemm_arithmetic import TileBytes
from tvmdml.schedules.cpu._tiles import transposed
from tvmdml.targets import Target

WORDS = 16
"""The words of a tile's row."""
_MOST_VECTORS = 4
_LEAST_CHANNELS = WORDS * GROUP // 4
"""With fewer, most of a tile would be zeros."""


def suits(desc: Any, target: Target) -> bool:
    """Whether the processor has tiles, and channels fill them."""
    processor = getattr(target, "processor", None)
    has = processor is not None and all(map(processor.has, ("amx-int8", "amx-tile")))
    return bool(has and desc.computed == "int32" and desc.filters()[1] >= _LEAST_CHANNELS)


class TileLanes(Lanes):  # type: ignore[misc] # mypy knows these modules by another name
    """Such a convolution as a kernel."""

    WAY, words = "tile_lanes", WORDS

    def _shape(self, sizes: Any, knobs: Any) -> RegisterTile:
        run = -(-sizes.output2 // -(-sizes.output2 // SIDE))
        return RegisterTile(run, 1, max(1, min(_MOST_VECTORS, sizes.filters // SIDE)))

    def _bytes(self, signed: tuple[bool, bool]) -> TileBytes:
        return TileBytes(signed)

    @property
    def _block(self) -> AmxBlock:
        return AmxBlock(1, self.shape.vectors, self.arithmetic.signed)

    # -- The image

    def copy_steps(self, x: Any, lines: Any, row: Any, room: Any, task: Any) -> None:
        """Words of neighbours, which are transposed in registers."""
        scratch = T.let(task * self._scratch_room)
        with T.loop(T.let(T.truncdiv(room + (SIDE - 1), T.i64(SIDE)))) as i:
            at = T.let(i * SIDE)
            with T.loop(T.i64(WORDS)) as w:
                some, to = lines(w), T.let(scratch + w * SIDE)
                if self.copy_step:
                    T.store(self.totals, T.run(to, SIDE), self.woven(x, some, at))
                else:
                    with T.loop(T.i64(SIDE)) as lane:
                        T.store(self.totals, to + lane, self.word(x, some, T.let(at + lane)))
            rows = [T.hold(self.totals[T.run(scratch + w * SIDE, SIDE)]) for w in range(WORDS)]
            for k, column in enumerate(transposed(rows)):
                with T.when(at + k < room):
                    T.store(self.frame, T.run(row + (at + k) * WORDS, WORDS), column)

    def _window_room(self) -> int:
        return int(super()._window_room() + self.plan.groups * -(-self.plan.frame // SIDE) * SIDE)

    def sum_places(self) -> None:
        """The sums of all bytes of each place of the frame, which are behind those of windows."""
        per_task(self.count, self._sum_places)

    def _of_places(self) -> Any:
        n = self.n
        return T.let(n.groups * n.output0 * n.output1 * (n.output2 + SIDE) + SIDE)

    def _sum_places(self, task: Any) -> None:
        n, to = self.n, self._of_places()
        vectors = T.let(up(n.frame, SIDE))
        begin, end = share(task, self.count, T.let(n.groups * vectors))
        with T.loop(T.let(end - begin)) as i:
            group, vector = T.unravel(T.let(begin + i), [None, vectors])
            origin = T.let(group * n.channels * n.frame + vector * SIDE)
            nothing = T.splat(T.const(0, "int32"), WORDS)
            sums = [T.Variable(f"int32x{WORDS}", nothing) for _ in range(SIDE)]
            with T.loop(n.channels) as c:
                line = T.let((origin + c * n.frame) * WORDS)
                for k, own in enumerate(sums):
                    own.set(self.arithmetic.sum_step(0, self.frame[T.run(line + k * WORDS, WORDS)], own.value))
            columns = transposed([T.hold(one.value) for one in sums])
            while len(columns) > 1:
                columns = [T.hold(one + other) for one, other in zip(columns[::2], columns[1::2], strict=True)]
            T.store(self.windows, T.run(to + (begin + i) * SIDE, SIDE), columns[0])

    def sum_windows(self, task: Any) -> None:
        """The sums of the bytes that a filter meets at each place."""
        n, places = self.n, self._of_places()
        begin, end = share(task, self.count, T.let(n.groups * n.output0 * n.output1))
        other = T.let(n.channels * n.taps)
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group, z, y = T.unravel(unit, [None, n.output0, n.output1])
            origin = T.let(places + group * up(n.frame, SIDE) * SIDE + z * n.plane_step + y * n.row_step)
            with T.loop(n.output2) as x:
                total = T.Variable("int32", T.const(0, "int32"))
                with T.loop(n.taps) as tap:
                    total.set(total.value + self.windows[T.let(origin + x + self.table[other + tap * 2])])
                T.store(self.windows, unit * (n.output2 + SIDE) + x, total.value)

    # -- Tiles

    def _compute(self, image: Any, phase: Phase, task: Any) -> None:
        self._block.configure(T.i64(self.shape.run))
        super()._compute(image, phase, task)
        self._block.release()

    def _tile(self, image: Any, phase: Phase, group: Any, panel: Any, at: tuple[Any, Any, Any], task: Any, start: Any) -> None:
        n, width, block = self.n, self.shape.width, self._block
        _, origin = self.origin_of(image, group, T.let(at[0] * n.plane_step + at[1] * n.row_step + at[2]))
        totals = T.let(task * self._scratch_room + width * SIDE)
        block.clear()
        with T.loop(T.let(n.channels * phase.taps)) as k:
            line = T.let((origin + self.table[k]) * WORDS)
            filters = T.let(start + k * (WORDS * width))
            block.step(T.address_of(self.frame[line]), T.address_of(self.filters[filters]))
        block.store(self.totals, totals)
        self._finish(
            *(image, phase, group, panel, at, task),
            lambda r, j: self.totals[T.run(totals + (r * width + j * SIDE), SIDE)],
            kept=True,
        )
