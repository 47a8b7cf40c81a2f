"""``Functions``: what is known of a model for sizes that grow: its programs as functions of the size, and their compiled graphs.

``growing.py`` learns them; ``learned.py`` keeps them in the cache. Nothing here needs the package onnx, nor reads the model, unless
constants follow from sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from tvmdml.errors import TvmdmlError
from tvmdml.graph.by_size import BySize, Differs
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.grown import Grown
from tvmdml.graph.kept import DAMAGED
from tvmdml.graph.kept_by_size import require_rooms
from tvmdml.graph.laid import Weights
from tvmdml.graph.laying import laid_out
from tvmdml.graph.plan import Launches
from tvmdml.onnx.function import Function
from tvmdml.onnx.lines import Shapes
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvmdml.onnx.converting import Model
    from tvmdml.onnx.learned import Learned

_MOST = 64
_SPANS = (256, 64)
"""How many sizes have the memory of the largest one: the first if that is not much memory."""
_MOST_ROOM = 1 << 24
"""The most bytes of intermediate results for that."""
_AHEAD = 8
"""How many graphs are made at once for a text that grows: after a run of the model the caches have nothing of what makes them, and
the second one takes a fifth of the first one's time."""
_MOST_GROWN = 8
"""Texts of several lengths may grow in turns, and sizes of several lines."""


class Functions:
    """The functions of a model."""

    def __init__(self, target: Target, learned: Learned | None = None) -> None:
        """
        Args:
            target: where it runs.
            learned: what the cache has, and gets.
        """
        self._target, self._learned = target, learned
        self.weights: WeakValueDictionary[object, Weights] = WeakValueDictionary()
        """The packed weights of all sizes."""
        self._launches: Launches = {}
        """Kernels of the programs that were made here."""
        self.every: list[Function] = []
        """The last used at the end."""
        self._grown: list[tuple[int, BySize, Grown]] = []
        """What makes the graphs of sizes near each other: of how many, and of which programs. The last used is at the end."""
        self._read: set[str] = set()
        """The names of functions that were read."""
        self._last: int | None = None
        """The size that was asked for last."""

    def add(self, one: Function, instead: Function | None = None) -> None:
        """Keep one, instead of another one that it includes."""
        others = [other for other in self.every if other is not instead]
        self.every = [*others[1 - _MOST :], one]
        self._last = None
        if self._learned is not None and not one.is_read:
            self._learned.keep(one)

    def read(self, name: str, model: Callable[[], Model]) -> bool:
        """Read a function of the cache, as ``Learned.read``; returns whether there is a new one."""
        if self._learned is None or name in self._read or (one := self._learned.read(name, model)) is None:
            return False
        self._read.add(name)
        self.add(one)
        return True

    def graph(self, shapes: Shapes) -> CompiledGraph | None:
        """The compiled graph for shapes that the model takes, if it is known without converting the model."""
        for i in range(len(self.every) - 1, -1, -1):
            one = self.every[i]
            if (n := one.has(shapes)) is not None:
                self.every.append(self.every.pop(i))
                return self._graph(one, n)
        return None

    def _graph(self, one: Function, n: int) -> CompiledGraph | None:
        """The compiled graph for a place between those that were tried."""
        wrong = (Differs, *DAMAGED) if one.is_read else (Differs, TvmdmlError)
        step = one.line.step
        grows, self._last = one.line.period == 1 and n - step == self._last, n
        try:
            near = self._near(one, n)
            is_new = not near.knows(n)
            found = near.kept(n, one.constants)
            if grows and is_new and near.knows(n):
                _make_ahead(one, near, range(n + step, near.largest + 1, step)[: _AHEAD - 1])
            return found
        except wrong:  # it has other launches than its neighbours
            pass
        try:
            program = one.programs.at(n, one.constants(n))
            if one.is_read:
                require_rooms(program)
            return CompiledGraph(laid_out(program, self._target, shared=self.weights, launches=self._launches), self._target)
        except wrong:
            return None

    def _near(self, one: Function, n: int) -> Grown:
        """What makes the graphs of sizes near one.

        Raises:
            Differs, TvmdmlError: nothing does.
        """
        step = one.line.step
        for i, (span, programs, found) in enumerate(self._grown):
            if programs is one.programs and 0 <= found.largest - n < span * step:
                self._grown.append(self._grown.pop(i))
                return found
        for span in _SPANS:
            largest = one.line.before(min(n + (span - 1) * step, one.most))
            constants = one.constants(largest)
            if one.is_read:
                require_rooms(one.programs.at(largest, constants))
            found = Grown(one.programs, largest, constants, one.sizes, self.weights, self._launches)
            if found.graph.temporary_size <= _MOST_ROOM:
                break
        self._grown = [*self._grown[1 - _MOST_GROWN :], (span, one.programs, found)]
        return found


def _make_ahead(one: Function, near: Grown, sizes: Sequence[int]) -> None:
    """Make the graphs for sizes that are asked for next, as far as that is quick."""
    with contextlib.suppress(Differs, TvmdmlError):
        for n in sizes:
            near.kept(n, one.constants)
