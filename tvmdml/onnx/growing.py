"""``Growth``: a model for sizes that were not seen, where one size grows, without converting the model again.

A decoder is called with one more past word each time. After three such calls, the model is converted for two larger sizes as well.
If it depends on the sizes regularly (``regular.py``), and the five programs are one function of the size (``BySize``), that makes
the programs up to the largest. Beyond, two more sizes are tried: the range becomes four times as long, or twice if that fails.

Small constants that follow from sizes, such as positions and masks, are computed for each size by the model's own nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from tvmdml.errors import TvmdmlError
from tvmdml.graph.building import finished
from tvmdml.graph.by_size import BySize, Differs
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.grown import Grown
from tvmdml.graph.laying import laid_out
from tvmdml.graph.nodes import Edge, Input, Node
from tvmdml.graph.packing import Shared
from tvmdml.graph.plan import Launches
from tvmdml.graph.program import Finished
from tvmdml.graph.sizes import Sizes
from tvmdml.onnx.converting import Conversion, Model
from tvmdml.onnx.of_sizes import Constants, same
from tvmdml.onnx.regular import irregular
from tvmdml.onnx.types import Undecided
from tvmdml.onnx.values import Value
from tvmdml.targets import Target

Shapes = Mapping[str, tuple[int, ...]]
_FEWEST = 3
_NEAR = 16
"""How far beyond the largest size others are tried, if not up to its double."""
_MOST_SEEN = 8
_SPANS = (256, 64)
"""How many sizes have the memory of the largest one: the first if that is not much memory."""
_MOST_ROOM = 1 << 24
"""The most bytes of intermediate results for that."""
_AHEAD = 8
"""How many graphs are made at once for a text that grows: after a run of the model the caches have nothing of what makes them, and
the second one takes a fifth of the first one's time."""
_MOST_GROWN = 4
"""Texts of several lengths may grow in turns."""
_MOST_REFUSED = 2
"""After so many attempts without success, none is made any more."""


class Converted(NamedTuple):
    """The model for certain shapes."""

    shapes: Shapes
    conversion: Conversion
    programs: dict[tuple[str, ...], Finished]
    """After all passes, by the tensors that are inputs in the places of constants."""


class _Line:
    """Shapes in which sizes grow together: points with a common direction. A place on it is the first size that grows."""

    def __init__(self, shapes: Shapes, other: Shapes) -> None:
        self._names = list(shapes)
        self._ranks = [len(shapes[name]) for name in self._names]
        self._from = [n for one in shapes.values() for n in one]
        self._steps = [b - a for a, b in zip(self._from, (n for name in self._names for n in other[name]), strict=True)]
        self._along = next(i for i, step in enumerate(self._steps) if step)
        whole = abs(self._steps[self._along])
        self.step = math.lcm(*(whole // math.gcd(whole, step) for step in self._steps))
        """The difference of two places that are next to each other."""
        alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
        steps = iter(self._steps)
        for name, rank in zip(self._names, self._ranks, strict=True):
            alike.setdefault((shapes[name], tuple(itertools.islice(steps, rank))), []).append(name)
        self._alike = [(start, step, names) for (start, step), names in alike.items()]
        """The inputs whose shapes are always the same: one of them, how it grows, and their names."""

    @classmethod
    def through(cls, shapes: Shapes, other: Shapes) -> _Line | None:
        """The line through both, if they are different, and differ in sizes only."""
        ranks = [list(map(len, one.values())) for one in (shapes, other)]
        return cls(shapes, other) if shapes != other and ranks[0] == ranks[1] else None

    def place(self, shapes: Shapes) -> int | None:
        """Where shapes are; ``None`` if they are not on the line, or a size that grows is 0 or 1, which may be special."""
        if list(shapes) != self._names:
            return None
        found, whole = None, self._steps[self._along]
        for start, steps, (first, *others) in self._alike:
            shape = shapes[first]
            if len(shape) != len(steps) or any(shapes[name] != shape for name in others):
                return None
            for n, begin, step in zip(shape, start, steps, strict=True):
                if not step:
                    if n != begin:
                        return None
                    continue
                if found is None:  # the first size that grows
                    found = n
                if n < 2 or (n - begin) * whole != step * (found - self._from[self._along]):
                    return None
        return found

    def at(self, place: int) -> Shapes | None:
        """The shapes at a place; ``None`` if they are not integers."""
        whole, own = self._steps[self._along], place - self._from[self._along]
        if any(step * own % whole for step in self._steps):
            return None
        flat = iter(start + step * own // whole for start, step in zip(self._from, self._steps, strict=True))
        return {name: tuple(itertools.islice(flat, rank)) for name, rank in zip(self._names, self._ranks, strict=True)}


class _Function(NamedTuple):
    """The programs on a line."""

    line: _Line
    seen: dict[int, Converted]
    """The places that were tried."""
    programs: BySize
    constants: Constants
    sizes: Sizes
    """What follows from sizes, of all places between those that were tried."""


class Growth:
    """The programs of a model where sizes grow."""

    def __init__(
        self,
        model: Model,
        target: Target,
        fits: Callable[[Shapes], object],
        convert: Callable[[Shapes], Conversion | None],
        weights: Shared,
    ) -> None:
        """
        Args:
            model: the model.
            target: where it runs.
            fits: raises an error for shapes that the model does not take.
            convert: converts the model for shapes; ``None`` if an output is known, or something decides beside shapes.
            weights: the packed weights of all sizes.
        """
        self._model, self._target, self._fits, self._convert, self._weights = model, target, fits, convert, weights
        self._launches: Launches = {}
        """Kernels of the programs that were made here."""
        self._seen: list[Converted] = []
        self._function: _Function | None = None
        self._grown: list[tuple[int, Grown]] = []
        """What makes and keeps the graphs of sizes near each other, and of how many, the last used at the end."""
        self._refused = 0
        self._last: int | None = None
        """The size that was asked for last."""

    def graph(self, shapes: Shapes) -> CompiledGraph | None:
        """The compiled graph for shapes that the model takes, if it is known without converting the model."""
        if self._function is None:
            return None
        line, seen, programs, constants, _ = self._function
        n = line.place(shapes)
        if n is None or not min(seen) <= n <= max(seen):
            return None
        grows, self._last = n - line.step == self._last, n
        try:
            near = self._near(n)
            is_new = not near.knows(n)
            found = near.kept(n, constants.at)
            if grows and is_new and near.knows(n):
                self._make_ahead(near, range(n + line.step, near.largest + 1, line.step)[: _AHEAD - 1])
            return found
        except (Differs, TvmdmlError):  # it has other launches than its neighbours
            pass
        try:
            program = programs.at(n, constants.at(n))
            return CompiledGraph(laid_out(program, self._target, shared=self._weights, launches=self._launches), self._target)
        except (Differs, TvmdmlError):
            return None

    def _make_ahead(self, near: Grown, sizes: Sequence[int]) -> None:
        """Make the graphs for sizes that are asked for next, as far as that is quick."""
        assert self._function is not None
        with contextlib.suppress(Differs, TvmdmlError):
            for n in sizes:
                near.kept(n, self._function.constants.at)

    def _near(self, n: int) -> Grown:
        """What makes the graphs of sizes near one.

        Raises:
            Differs, TvmdmlError: nothing does.
        """
        assert self._function is not None
        line, seen, programs, constants, sizes = self._function
        for i, (span, found) in enumerate(self._grown):
            if 0 <= found.largest - n < span * line.step:
                self._grown.append(self._grown.pop(i))
                return found
        for span in _SPANS:
            largest = min(n + (span - 1) * line.step, max(seen))
            largest -= (largest - n) % line.step
            found = Grown(programs, largest, constants.at(largest), sizes, self._weights, self._launches)
            if found.graph.temporary_size <= _MOST_ROOM:
                break
        self._grown = [*self._grown[1 - _MOST_GROWN :], (span, found)]
        return found

    def saw(self, shapes: Shapes, conversion: Conversion) -> None:
        """Learn from the model for shapes whose program was not known."""
        one = Converted(shapes, conversion, {})
        if self._refused >= _MOST_REFUSED:
            self._seen = []
        elif self._function is None:
            self._seen = [*self._seen[1 - _MOST_SEEN :], one]
            if (found := self._aligned(one)) is not None:
                self._learn(*found)
        elif (n := self._function.line.place(shapes)) is not None:
            self._learn(self._function.line, {**self._function.seen, n: one})

    def _aligned(self, one: Converted) -> tuple[_Line, dict[int, Converted]] | None:
        """A line through these shapes and two others."""
        for first, second in itertools.combinations(self._seen[:-1], 2):
            if (line := _Line.through(first.shapes, second.shapes)) is not None:
                places = {n: other for other in (first, second, one) if (n := line.place(other.shapes)) is not None}
                if len(places) == _FEWEST:
                    return line, places
        return None

    def _learn(self, line: _Line, seen: dict[int, Converted]) -> None:
        """Find the function of the size, also for larger ones."""
        if (known := self._made(line, seen)) is None:
            self._refused += 1
            return
        most = max(seen)
        farther = (4 * most,) if self._function is not None else ()
        for far in (*farther, 2 * most, most + _NEAR):
            more = {n: self._tried(line, n) for n in (most + (far - most) * 5 // 8 | 1, far)}
            found = {n: one for n, one in more.items() if one is not None}
            if len(found) == len(more) and (larger := self._made(line, {**seen, **found})) is not None:
                self._function, self._seen, self._last = larger, [], None
                return
        self._refused += 1
        if self._function is not None:
            self._function, self._last = known, None

    def _tried(self, line: _Line, n: int) -> Converted | None:
        shapes = line.at(n)
        if shapes is None or line.place(shapes) is None:
            return None
        try:
            self._fits(shapes)
            found = self._convert(shapes)
        except (TvmdmlError, Undecided):
            return None
        return None if found is None else Converted(shapes, found, {})

    def _made(self, line: _Line, seen: Mapping[int, Converted]) -> _Function | None:
        """The function of the size that agrees with all programs, if there is one."""
        ordered = {n: seen[n] for n in sorted(seen)}
        others = irregular(list(ordered), line.step, [one.conversion for one in ordered.values()])
        if others is None:
            return None
        tensors = {n: one.conversion.tensors() for n, one in ordered.items()}
        varying = _varying(list(tensors.values()), others)
        try:
            programs = BySize({n: self._finished(one, varying) for n, one in ordered.items()})
            constants = Constants(self._model, programs.wanted, tensors)
        except (Differs, TvmdmlError, Undecided):  # nodes read what is known in a whole conversion only
            return None
        some = list(ordered)
        kept = {*some[:3], *some[-2:]}
        places = range(some[0], some[-1] + 1, line.step)
        return _Function(line, {n: ordered[n] for n in kept}, programs, constants, Sizes(self._target, places))

    def _finished(self, one: Converted, varying: tuple[str, ...]) -> Finished:
        """The program, with inputs in the places of constants that follow from sizes."""
        if (known := one.programs.get(varying)) is not None:
            return known
        graph, tensors = one.conversion.graph, one.conversion.tensors()
        instead: dict[tuple[Node, int], Edge] = {}
        for name in varying:
            if (node := tensors[name].node) is not None:
                other = Input(tensors[name].expression(graph).desc, node.array.dtype, False, name, "")
                instead[node, 0] = Edge(other)
        results = [output.expression(graph) for output in one.conversion.outputs]
        found = one.programs[varying] = finished(graph, results, self._target, instead)
        return found


def _varying(tensors: Sequence[Mapping[str, Value]], irregular: AbstractSet[int]) -> tuple[str, ...]:
    """The tensors whose known elements depend on the size, or may do so: these have the identities ``irregular``."""
    first, *others = tensors
    known = ((name, one, one.array) for name, one in first.items() if one.array is not None)
    return tuple(
        name
        for name, one, array in known
        if id(one) in irregular or not all(name in own and same(array, own[name].array) for own in others)
    )
