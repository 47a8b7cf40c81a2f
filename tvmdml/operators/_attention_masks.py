"""Masks of attention: which keys a query row keeps. Every type is a predicate of a batch, a head, a query row and a key."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import NumpyArray


class Mask(NamedTuple):
    """A mask. Lengths, starts and ends may be any integers: they are only compared."""

    kind: MaskType
    steps: tuple[int, ...]
    """The strides of the mask's tensor: of a tensor of numbers, of a batch's limits and of the batches; or of a truth value's
    batch, head, row and key."""
    batch: int
    rows: int
    total: int

    @property
    def by_row(self) -> bool:
        """Whether it depends on the query row."""
        if self.kind is MaskType.BOOLEAN:
            return self.steps[2] != 0 and self.rows > 1
        return self.kind is MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END

    def kept(self, buffer: Any, at: Any) -> Any:
        """Whether a key is kept."""
        batch, _, row, key = at
        if self.kind is MaskType.BOOLEAN:
            own = T.dot(at, [T.index(step) for step in self.steps])
            return T.expression(buffer[own] != T.const(0, "int32"))
        low, high = self.limits(buffer, batch)
        kept: Any = (_wide(key) >= low) & (_wide(key) < high)
        if self.by_row:
            first, last = self.row_limits(buffer, batch)
            kept = kept & (_wide(row) >= first) & (_wide(row) < last)
        return kept

    def limits(self, buffer: Any, batch: Any) -> tuple[Any, Any]:
        """The first key of a batch that is kept, and the first after those; not of truth values."""
        if self.kind is MaskType.KEY_SEQUENCE_LENGTH:
            return T.const(0, "int32"), T.hold(buffer[batch * T.index(self.steps[-1])])
        if self.kind is MaskType.KEY_SEQUENCE_END_START:
            outer, inner = (T.index(step) for step in self.steps[-2:])
            return T.hold(buffer[batch * inner + outer]), T.hold(buffer[batch * inner])
        length = self._number(buffer, batch)
        start = self._number(buffer, batch + T.index(2 * self.batch + 1))
        offset = T.cast(batch * T.index(self.total), "int32")
        low = _less(start, offset)
        return low, _more(low, length)

    def row_limits(self, buffer: Any, batch: Any) -> tuple[Any, Any]:
        """The first query row of a batch that is kept, and the first after those."""
        first, last = (self._number(buffer, batch + T.index(self.batch + i)) for i in (0, 1))
        offset = T.cast(batch * T.index(self.rows), "int32")
        return _less(first, offset), _less(last, offset)

    def _number(self, buffer: Any, position: Any) -> Any:
        return T.hold(buffer[position * T.index(self.steps[-1])])


def _wide(number: Any) -> Any:
    return number if T.type_of(number) == "int32" else T.cast(number, "int32")


def _less(number: Any, offset: Any) -> Any:
    """A difference of integers, of which the second is not negative; the least one if it is less."""
    least = T.const(-(2**31), "int32")
    found = T.hold(T.wrapped(number - offset))
    return T.hold(T.Select(found > number, least, found))


def _more(number: Any, length: Any) -> Any:
    """A sum of integers; the nearest limit if it is beyond."""
    found = T.hold(T.wrapped(number + length))
    over = (length >= T.const(0, "int32")) & (found < number)
    under = (length < T.const(0, "int32")) & (found >= number)
    limits = T.const(2**31 - 1, "int32"), T.const(-(2**31), "int32")
    return T.hold(T.Select(over, limits[0], T.Select(under, limits[1], found)))


def mask_sizes(kind: MaskType, s: Any) -> tuple[int, ...]:
    """The sizes of the tensor of a mask."""
    if kind is MaskType.KEY_SEQUENCE_LENGTH:
        return 1, s.batch
    if kind is MaskType.KEY_SEQUENCE_END_START:
        return 2, s.batch
    if kind is MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END:
        return (3 * s.batch + 2,)
    return s.batch, s.heads, s.rows, s.total


def mask_of(kind: MaskType, tensor: Any, s: Any) -> Mask:
    """The mask that a tensor of a type has."""
    rank = 1 if kind is MaskType.KEY_SEQUENCE_LENGTH else len(mask_sizes(kind, s))
    return Mask(kind, tuple(tensor.layout[-rank:]), s.batch, s.rows, s.total)


def kept_keys(kind: MaskType, array: NumpyArray, s: Any) -> NumpyArray:
    """Which keys are kept, in NumPy: of each batch, head, query row and key, some repeated."""
    keys = np.arange(s.total, dtype=object if s.batch * s.total >= 2**62 else np.int64)
    if kind is MaskType.BOOLEAN:
        return array.reshape(array.shape[-4:]) != 0
    numbers = array.reshape(-1).astype(np.int64)
    if kind is MaskType.KEY_SEQUENCE_LENGTH:
        return (keys < numbers[:, None])[:, None, None, :]
    if kind is MaskType.KEY_SEQUENCE_END_START:
        end, start = numbers.reshape(2, s.batch)[..., None]
        return ((keys >= start) & (keys < end))[:, None, None, :]
    lengths, rows, starts = numbers[: s.batch], numbers[s.batch : 2 * s.batch + 1], numbers[2 * s.batch + 1 :][: s.batch]
    batches = np.arange(s.batch)[:, None]
    at, own = batches * s.total + keys, batches * s.rows + np.arange(s.rows)
    of_keys = (at >= starts[:, None]) & (at < (starts + lengths)[:, None])
    of_rows = (own >= rows[:-1, None]) & (own < rows[1:, None])
    return (of_keys[:, None, :] & of_rows[:, :, None])[:, None]
