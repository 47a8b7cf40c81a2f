"""The K best of many columns at once, for small K: each lane is a column, and every column has a short sorted list."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._order import Order


class ColumnLists:
    """Sorted lists of keys and positions, for as many adjacent columns as a few registers have lanes."""

    def __init__(self, order: Order, leaves: Leaves, vectors: int) -> None:
        self.order, self.leaves, self.vectors = order, leaves, vectors
        self.lanes = order.lanes
        self.columns = vectors * order.lanes

    def declare(self, f: T.Function) -> None:
        """Declare the scratch, K times ``columns`` for each task, as parameters."""
        self.keys, self.positions = f.buffer("list_keys", self.order.word), f.buffer("list_positions", "int32")

    def fill(self, source: Any, start: Any, step: Any, length: Any, k: Any, task: Any) -> None:
        """Read the columns once, from top to bottom; element ``i`` of the first column is at ``start + i * step``."""
        self.base, self.k = T.let(task * k * self.columns), k
        with T.loop(k) as i:  # entry i of a list and those after it are still empty
            for v in range(self.vectors):
                key = T.let(self._load(source, start, step, i, v))
                self._insert(key, i, v, lambda entry: T.splat(i <= entry, self.lanes))
        last = T.let(self.base + (k - 1) * self.columns)
        with T.loop(T.let(length - k)) as rest:
            i = T.let(k + rest)
            for v in range(self.vectors):
                key = T.let(self._load(source, start, step, i, v))
                better = self.leaves.bits(key > self.keys[T.run(last + v * self.lanes, self.lanes)])
                with T.when(better != T.const(0, f"uint{self.lanes}")):
                    self._insert(key, i, v, None)

    def entry(self, place: Any, column: Any) -> Any:
        """The position (int64) of a column's entry at a place of its list."""
        return T.cast(T.cast(self.positions[self.base + place * self.columns + column], "uint32"), "int64")

    def _load(self, source: Any, start: Any, step: Any, i: Any, v: Any) -> Any:
        return self.order.key(source[T.run(start + i * step + v * self.lanes, self.lanes)])

    def _insert(self, key: Any, i: Any, v: Any, is_empty: Any) -> None:
        """Insert each lane's key before the first smaller key of its list; that key and all later ones move down by one."""
        lanes, register = self.lanes, T.run(T.i64(0), self.lanes)
        sinking, position = T.local(self.order.word, lanes), T.local("int32", lanes)
        T.store(sinking, register, key)
        T.store(position, register, T.splat(T.cast(i, "int32"), lanes))
        with T.loop(self.k) as entry:
            at = T.run(T.let(self.base + entry * self.columns + v * lanes), lanes)
            down, down_number = T.hold(sinking[register]), T.hold(position[register])
            here, here_number = T.hold(self.keys[at]), T.hold(self.positions[at])
            moves = key > here if is_empty is None else (key > here) | is_empty(entry)
            T.store(self.keys, at, T.Select(moves, down, here))
            T.store(self.positions, at, T.Select(moves, down_number, here_number))
            T.store(sinking, register, T.Select(moves, here, down))
            T.store(position, register, T.Select(moves, here_number, down_number))
