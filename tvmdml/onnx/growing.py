"""``Growth``: a model for sizes that were not seen, where one size grows, without converting the model again.

A decoder is called with one more past word each time. After three such calls, the model is converted for two larger sizes as well.
If it depends on the sizes regularly (``regular.py``), and the five programs are one function of the size (``BySize``), that makes
the programs up to the largest. Beyond, two more sizes are tried, which doubles the range.

Small constants that follow from sizes, such as positions and masks, are computed for each size by the model's own nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.errors import TvmdmlError
from tvmdml.graph.building import finished
from tvmdml.graph.by_size import BySize, Described, Differs
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.grown import Grown
from tvmdml.graph.laying import laid_out
from tvmdml.graph.nodes import Edge, Input, Node
from tvmdml.graph.packing import Shared
from tvmdml.graph.plan import Launches
from tvmdml.graph.program import Finished
from tvmdml.onnx.converting import Conversion, Model, kind_of
from tvmdml.onnx.regular import irregular
from tvmdml.onnx.types import Undecided
from tvmdml.onnx.values import Value
from tvmdml.targets import Target

Shapes = Mapping[str, tuple[int, ...]]
_FEWEST = 3
_NEAR = 16
"""How far beyond the largest size others are tried, if not up to its double."""
_MOST_SEEN = 8
_SPAN = 64
"""How many sizes have the memory of the largest one."""
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
        self._from, to = self._flat(shapes), self._flat(other)
        self._steps = [b - a for a, b in zip(self._from, to, strict=True)]
        self._along = next(i for i, step in enumerate(self._steps) if step)
        whole = abs(self._steps[self._along])
        self.step = math.lcm(*(whole // math.gcd(whole, step) for step in self._steps))
        """The difference of two places that are next to each other."""

    @classmethod
    def through(cls, shapes: Shapes, other: Shapes) -> _Line | None:
        """The line through both, if they are different, and differ in sizes only."""
        ranks = [list(map(len, one.values())) for one in (shapes, other)]
        return cls(shapes, other) if shapes != other and ranks[0] == ranks[1] else None

    def _flat(self, shapes: Shapes) -> list[int]:
        return [n for name in self._names for n in shapes[name]]

    def place(self, shapes: Shapes) -> int | None:
        """Where shapes are; ``None`` if they are not on the line, or a size that grows is 0 or 1, which may be special."""
        if list(shapes) != self._names or [len(shapes[name]) for name in self._names] != self._ranks:
            return None
        given = self._flat(shapes)
        whole, own = self._steps[self._along], given[self._along] - self._from[self._along]
        pairs = zip(given, self._from, self._steps, strict=True)
        if any((n - start) * whole != step * own for n, start, step in pairs):
            return None
        return None if any(n < 2 for n, step in zip(given, self._steps, strict=True) if step) else given[self._along]

    def at(self, place: int) -> Shapes | None:
        """The shapes at a place; ``None`` if they are not integers."""
        whole, own = self._steps[self._along], place - self._from[self._along]
        if any(step * own % whole for step in self._steps):
            return None
        flat = iter(start + step * own // whole for start, step in zip(self._from, self._steps, strict=True))
        return {name: tuple(itertools.islice(flat, rank)) for name, rank in zip(self._names, self._ranks, strict=True)}


class _Constants:
    """Constants that follow from sizes: the model's nodes that compute them, from what its Shape nodes give."""

    def __init__(self, model: Model, wanted: Sequence[str], tensors: Mapping[int, Mapping[str, Value]]) -> None:
        """
        Args:
            model: the model.
            wanted: the tensors that they are.
            tensors: those of the model, by name, for each size that is known.

        Raises:
            Differs: they are not computed in this way.
        """
        self._model, self._wanted = model, wanted
        every = model.source.model.graph.node
        makers = {str(name): i for i, proto in enumerate(every) for name in proto.output}
        needed: set[int] = set()
        sized: set[str] = set()
        waiting = list(wanted)
        while waiting:
            name = waiting.pop()
            if (i := makers.get(name)) is None or i in needed:
                continue
            if kind_of(every[i]) in ("Shape", "Size"):
                sized.add(name)
            else:
                needed.add(i)
                waiting += map(str, every[i].input)
        nodes = [every[i] for i in sorted(needed)]
        self._sizes: dict[str, tuple[Described, tuple[int, ...]]] = {}
        self._given: dict[str, NumpyArray] = {}
        for name in sized:
            known = [one.array for own in tensors.values() if (one := own.get(name)) is not None and one.array is not None]
            if len(known) < len(tensors):
                raise Differs
            self._sizes[name] = Described(list(tensors), [tuple(one.reshape(-1).tolist()) for one in known]), known[0].shape
        varying = {name for name, (one, _) in self._sizes.items() if one.varies}
        fixed = []
        self._nodes = []
        for proto in nodes:
            if varying.isdisjoint(map(str, proto.input)):
                fixed.append(proto)
            else:
                self._nodes.append(proto)
                varying.update(map(str, proto.output))
        self._given = self._values(next(iter(tensors)), fixed, sorted({str(name) for one in fixed for name in one.output} - {""}))
        for n, own in tensors.items():
            if not all(_same(array, own[name].array) for name, array in zip(wanted, self.at(n), strict=True)):
                raise Differs

    def at(self, n: int) -> list[NumpyArray]:
        """The constants for a size, row-major.

        Raises:
            Differs: they cannot be computed.
        """
        found = self._values(n, self._nodes, self._wanted)
        return [np.ascontiguousarray(found[name]).reshape(found[name].shape) for name in self._wanted]

    def _values(self, n: int, nodes: Sequence[Any], wanted: Sequence[str]) -> dict[str, NumpyArray]:
        """Tensors that some nodes compute for a size.

        Raises:
            Differs: they cannot be computed.
        """
        given = {name: np.array(one.at(n), np.int64).reshape(shape) for name, (one, shape) in self._sizes.items()}
        found = Conversion.part(self._model, {**self._given, **given}, nodes, wanted)
        known = {name: one for name, one in zip(wanted, found, strict=True) if one is not None}
        if len(known) < len(found):
            raise Differs
        return known


class _Function(NamedTuple):
    """The programs on a line."""

    line: _Line
    seen: dict[int, Converted]
    """The places that were tried."""
    programs: BySize
    constants: _Constants


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
        self._grown: Grown | None = None
        self._refused = 0

    def graph(self, shapes: Shapes) -> CompiledGraph | None:
        """The compiled graph for shapes, if it is known without converting the model."""
        if self._function is None:
            return None
        line, seen, programs, constants = self._function
        n = line.place(shapes)
        if n is None or not min(seen) <= n <= max(seen):
            return None
        try:
            self._fits(shapes)
            arrays = constants.at(n)
        except (Differs, TvmdmlError):
            return None
        try:
            return self._near(n).at(n, arrays)
        except (Differs, TvmdmlError):  # it has other launches than its neighbours
            pass
        try:
            program = programs.at(n, arrays)
            return CompiledGraph(laid_out(program, self._target, shared=self._weights, launches=self._launches), self._target)
        except (Differs, TvmdmlError):
            return None

    def _near(self, n: int) -> Grown:
        """What makes the graphs of sizes near one.

        Raises:
            Differs, TvmdmlError: nothing does.
        """
        assert self._function is not None
        line, seen, programs, constants = self._function
        if self._grown is None or not 0 <= self._grown.largest - n < _SPAN * line.step:
            largest = min(n + (_SPAN - 1) * line.step, max(seen))
            largest -= (largest - n) % line.step
            self._grown = Grown(programs, largest, constants.at(largest), self._target, self._weights, self._launches)
        return self._grown

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
        for far in (2 * most, most + _NEAR):
            more = {n: self._tried(line, n) for n in (most + (far - most) * 5 // 8 | 1, far)}
            found = {n: one for n, one in more.items() if one is not None}
            if len(found) == len(more) and (larger := self._made(line, {**seen, **found})) is not None:
                self._function, self._seen = larger, []
                return
        self._refused += 1
        if self._function is not None:
            self._function = known

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
            constants = _Constants(self._model, programs.wanted, tensors)
        except (Differs, TvmdmlError, Undecided):  # nodes read what is known in a whole conversion only
            return None
        some = list(ordered)
        kept = {*some[:3], *some[-2:]}
        return _Function(line, {n: ordered[n] for n in kept}, programs, constants)

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
        if id(one) in irregular or not all(name in own and _same(array, own[name].array) for own in others)
    )


def _same(array: NumpyArray, other: NumpyArray | None) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    if other is None or (array.shape, array.dtype) != (other.shape, other.dtype):
        return False
    return array is other or array.tobytes() == other.tobytes()
