"""Several channels in one item of a computation: what does not depend on the channel is computed once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvmdml.kernels import tensorir as T


class Channels:
    """The channels of an item: a block's number, and the same place in other blocks, so that neighbouring items have neighbours.

    Args:
        block: the item's number among those that share all channels, of which there are ``blocks``.
        channels: how many there are.
        count: how many of them an item has; the last item may have fewer.
    """

    def __init__(self, block: Any, channels: Any, count: int) -> None:
        self._block, self._channels = block, T.index(channels)
        self._blocks = self.blocks(channels, count)
        self._last = self._channels - T.const(1, T.type_of(self._channels))
        self.count = count

    @staticmethod
    def blocks(channels: Any, count: int) -> Any:
        """How many items share so many channels."""
        return channels if count == 1 else T.truncdiv(T.index(channels) + (count - 1), T.const(count, T.type_of(T.index(0))))

    @property
    def places(self) -> list[Any]:
        """The channels, all of which exist: the last one in place of those after it."""
        if self.count == 1:
            return [self._block]
        found = [T.min(self._place(i), self._last) for i in range(self.count)]
        return [one.value for one in T.Variable.several(T.type_of(self._block), found)]

    def offsets(self, base: Any, step: Any) -> list[Any]:
        """Where each of the ``places`` is in a tensor."""
        found = [base + one * step for one in self.places]
        return [one.value for one in T.Variable.several(T.type_of(found[0]), found)]

    @contextmanager
    def existing(self, number: int) -> Iterator[Any]:
        """Run the statements for one of them if it exists; gives the channel."""
        if number == 0:
            yield self._block
            return
        place = T.let(self._place(number))
        with T.when(place <= self._last):
            yield place

    def _place(self, number: int) -> Any:
        return self._block + number * T.index(self._blocks) if number else self._block
