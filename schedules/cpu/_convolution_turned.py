"""Finished tiles whose vectors are of filters, for images whose channels are not last: turned, and stored filter by filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import up
from tvmdml.schedules.cpu._convolution_register_tile import LANES, RegisterTile
from tvmdml.schedules.cpu._part import load_part, store_part
from tvmdml.schedules.cpu._sums import zeros
from tvmdml.schedules.cpu._tiles import SIDE, transposed


class Turned(NamedTuple):
    """What a kernel's tiles have in common."""

    tile: RegisterTile
    after: After
    tensors: dict[str, Any]
    totals: Any
    """The buffer in which tiles are turned: ``width`` times ``SIDE`` elements from a tile's ``scratch`` on."""
    steps: Sequence[Any]
    """The steps of addends from one channel to the next, and of what follows."""
    step: int
    """How far apart the output's columns are, if they are 1 or 2; otherwise 0."""
    column_step: Any
    """How far apart they are."""

    @property
    def ends(self) -> list[tuple[int, int]]:
        """The places of each row."""
        return [(line * self.tile.run, (line + 1) * self.tile.run) for line in range(self.tile.lines)]

    def turn(self, total: Callable[[Any, Any], Any], scratch: Any, count: Any, kept: bool) -> None:
        """Turn a tile: ``total(place, vector)`` are its sums, of ``count`` filters. ``kept``: a loop can take them, from memory."""
        tile, dtype = self.tile, str(self.totals.dtype)

        def vector(j: Any) -> None:
            rows = [T.hold(total(r, j)) for r in range(tile.places)]
            rows += [zeros(LANES, dtype)] * (SIDE - tile.places)
            for f, row in enumerate(transposed(rows)):
                T.store(self.totals, T.run(scratch + (j * LANES + f) * SIDE, SIDE), row)

        if kept and tile.vectors > 1:
            with T.loop(T.let(up(count, LANES))) as some:
                vector(some)
        else:
            for j in range(tile.vectors):
                vector(j)

    def store(
        self,
        scratch: Any,
        count: Any,
        first: Any,
        places: Callable[[Any], list[Any]],
        corrected: Callable[[Any, Any, Any], Any] = lambda found, f, channel: found,
    ) -> None:
        """Store the turned filters of a tile.

        Args:
            scratch: where they are.
            count: how many there are.
            first: the output's channel of the first.
            places: where each of the tile's rows begins in a channel of the output.
            corrected: the sums, given those of the tile, the filter's number and its channel.
        """
        out = self.tensors["output_tensor"]
        with T.loop(count) as f:
            channel = T.let(first + f)
            rows = list(zip(places(channel), self.ends, strict=True))

            def of_channel(name: str, number: int, channel: Any = channel) -> Any:
                return T.hold(T.splat(self.tensors[name][T.let(channel * self.steps[number])], SIDE))

            def of_output(buffer: Any, rows: list[Any] = rows) -> Any:
                kept = zeros(SIDE, str(buffer.dtype))
                for place, (begin, end) in rows:
                    kept = T.hold(load_part(buffer, T.let(place - begin), T.const(begin, "int32"), T.const(end, "int32"), kept))
                return kept

            addends = [T.wide(of_channel(name, number)) for number, name in enumerate(self.after.addends())]
            found = corrected(T.hold(self.totals[T.run(scratch + f * SIDE, SIDE)]), f, channel)
            value = T.hold(self.after.head.element(found, addends))
            if self.after.changes:
                value = T.hold(self.after.value(value, self.tensors, of_channel, of_output))
            for to, (begin, end) in rows:
                if self.step:
                    store_part(out, T.let(to - begin * self.step), T.const(begin, "int32"), T.const(end, "int32"), value, self.step)
                else:
                    for i in range(begin, end):
                        T.store(out, to + (i - begin) * self.column_step, T.Shuffle([value], [i]))
