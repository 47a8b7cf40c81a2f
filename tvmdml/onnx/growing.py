"""``Growth``: a model for sizes that were not seen, where one size grows, without converting the model again.

A decoder is called with one more past word each time. After three such calls, the model is converted for two larger sizes as well.
If it depends on the sizes regularly (``regular.py``), and the five programs are one function of the size (``BySize``), that makes
the programs up to the largest. Beyond, two more sizes are tried: the range becomes four times as long, or twice if that fails.

A model that halves a size three times has a function for each eighth size, and these functions grow alike: the next ones need
three sizes only. Where a pass decides by the size, the function for larger sizes is another one, too.

Small constants that follow from sizes, such as positions and masks, are computed for each size by the model's own nodes.
"""

from __future__ import annotations

import contextlib
import itertools
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
from tvmdml.onnx.lines import Line, Shapes
from tvmdml.onnx.of_sizes import Constants, same
from tvmdml.onnx.regular import Kinds, kinds, period
from tvmdml.onnx.types import Undecided
from tvmdml.onnx.values import Value
from tvmdml.targets import Target

_FEWEST = 3
_NEAR = 16
"""How far beyond the largest size others are tried, if not up to its double."""
_MOST_SEEN = 16
_MOST_FUNCTIONS = 64
_SPANS = (256, 64)
"""How many sizes have the memory of the largest one: the first if that is not much memory."""
_MOST_ROOM = 1 << 24
"""The most bytes of intermediate results for that."""
_AHEAD = 8
"""How many graphs are made at once for a text that grows: after a run of the model the caches have nothing of what makes them, and
the second one takes a fifth of the first one's time."""
_MOST_GROWN = 8
"""Texts of several lengths may grow in turns, and sizes of several lines."""
_MOST_REFUSED = 3
"""After so many attempts without success in between, none is made any more."""


class Converted(NamedTuple):
    """The model for certain shapes."""

    shapes: Shapes
    conversion: Conversion
    programs: dict[tuple[str, ...], Finished]
    """After all passes, by the tensors that are inputs in the places of constants."""


class _Function(NamedTuple):
    """The programs on a line."""

    line: Line
    seen: dict[int, Converted]
    """Places that were tried."""
    least: int
    most: int
    """The first and the last of them."""
    kinds: Kinds
    programs: BySize
    constants: Constants
    sizes: Sizes
    """What follows from sizes, of all places between those that were tried."""

    def is_like(self, other: _Function) -> bool:
        """Whether its numbers grow as those of another one do."""
        alike = self.kinds.every == other.kinds.every and self.constants.is_like(other.constants)
        return alike and self.programs.is_like(other.programs)


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
        self._functions: list[_Function] = []
        """The last used at the end."""
        self._grown: list[tuple[int, BySize, Grown]] = []
        """What makes the graphs of sizes near each other: of how many, and of which programs. The last used is at the end."""
        self._refused = 0
        self._last: int | None = None
        """The size that was asked for last."""

    def graph(self, shapes: Shapes) -> CompiledGraph | None:
        """The compiled graph for shapes that the model takes, if it is known without converting the model."""
        for i in range(len(self._functions) - 1, -1, -1):
            one = self._functions[i]
            if (n := one.line.place(shapes)) is not None and one.least <= n <= one.most:
                self._functions.append(self._functions.pop(i))
                return self._graph(one, n)
        return None

    def _graph(self, one: _Function, n: int) -> CompiledGraph | None:
        """The compiled graph for a place between those that were tried."""
        step = one.line.step
        grows, self._last = one.line.period == 1 and n - step == self._last, n
        try:
            near = self._near(one, n)
            is_new = not near.knows(n)
            found = near.kept(n, one.constants.at)
            if grows and is_new and near.knows(n):
                _make_ahead(one, near, range(n + step, near.largest + 1, step)[: _AHEAD - 1])
            return found
        except (Differs, TvmdmlError):  # it has other launches than its neighbours
            pass
        try:
            program = one.programs.at(n, one.constants.at(n))
            return CompiledGraph(laid_out(program, self._target, shared=self._weights, launches=self._launches), self._target)
        except (Differs, TvmdmlError):
            return None

    def _near(self, one: _Function, n: int) -> Grown:
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
            found = Grown(one.programs, largest, one.constants.at(largest), one.sizes, self._weights, self._launches)
            if found.graph.temporary_size <= _MOST_ROOM:
                break
        self._grown = [*self._grown[1 - _MOST_GROWN :], (span, one.programs, found)]
        return found

    # -- Learning

    def saw(self, shapes: Shapes, conversion: Conversion) -> None:
        """Learn from the model for shapes whose program was not known."""
        if self._refused >= _MOST_REFUSED:
            self._seen = []
            return
        one = Converted(shapes, conversion, {})
        for known in reversed(self._functions):
            if (n := known.line.place(shapes)) is not None and self._extend(known, n, one):
                return
        self._seen = [*self._seen[1 - _MOST_SEEN :], one]
        if (found := self._aligned(one)) is None:
            return
        line, places = found
        like = [other for other in self._functions if line.is_beside(other.line)]
        if len(places) < (_FEWEST - 1 if like else _FEWEST):
            return
        learned = self._next(line, places, like) if like else None
        if learned is None and len(places) >= _FEWEST:
            learned = self._first(line, places)
        if learned is None:
            self._refused += 1
            return
        self._refused = 0
        self._keep(learned)
        own = range(learned.least, learned.most + 1)
        self._seen = [other for other in self._seen if line.place(other.shapes) not in own]

    def _keep(self, one: _Function, instead: _Function | None = None) -> None:
        others = [other for other in self._functions if other is not instead]
        self._functions = [*others[1 - _MOST_FUNCTIONS :], one]
        self._last = None

    def _aligned(self, one: Converted) -> tuple[Line, dict[int, Converted]] | None:
        """A line through these shapes and some others; three, those next to it, if that are enough."""
        for known in self._functions:
            if (line := known.line.beside(one.shapes)) is not None:
                return self._nearest(line, one)
        for first, second in itertools.combinations(self._seen[:-1], 2):
            line = Line.through(first.shapes, second.shapes)
            if line is None or line.place(one.shapes) is None:
                continue
            places = {place: other for other in (first, second, one) if (place := line.place(other.shapes)) is not None}
            if len(places) < _FEWEST:
                continue
            steps = period(list(places), [other.conversion for other in places.values()])
            return None if steps is None else self._nearest(line.every(steps, one.shapes), one)
        return None

    def _nearest(self, line: Line, one: Converted) -> tuple[Line, dict[int, Converted]]:
        places = {n: other for other in self._seen if (n := line.place(other.shapes)) is not None}
        own = line.place(one.shapes)
        assert own is not None
        return line, {n: places[n] for n in sorted(places, key=lambda n: abs(n - own))[:_FEWEST]}

    def _first(self, line: Line, seen: dict[int, Converted]) -> _Function | None:
        """The function of the size where none of another line grows alike: it needs two larger sizes."""
        return None if self._made(line, seen) is None else self._farther(line, seen, ())

    def _next(self, line: Line, seen: dict[int, Converted], like: Sequence[_Function]) -> _Function | None:
        """The function of the size that grows as one of those that are known, for the same sizes if two of them were seen."""
        first = min(seen)
        near = min(like, key=lambda one: max(one.least - first, first - one.most))
        ends = {line.before(near.most), line.before(near.least + line.step - 1)} if len(seen) < _FEWEST else set()
        tried = {n: one for n in ends if n not in seen and (one := self._tried(line, n)) is not None}
        for own in ({**seen, **tried}, *({**seen, n: one} for n, one in tried.items() if len(tried) > 1)):
            if len(own) >= _FEWEST and (found := self._made(line, own)) is not None and any(map(found.is_like, like)):
                return found
        return None

    def _extend(self, known: _Function, n: int, one: Converted) -> bool:
        """Learn from one more size on a line, if it has the same function."""
        line, seen = known.line, {**known.seen, n: one}
        if (longer := self._made(line, seen)) is None:
            return False
        if n > known.most:
            longer = self._farther(line, seen, (4,)) or longer
        self._keep(longer, known)
        return True

    def _farther(self, line: Line, seen: dict[int, Converted], factors: tuple[int, ...]) -> _Function | None:
        """The function of the size for larger ones, too; some multiples of the largest are tried before its double."""
        most = max(seen)
        for far in (*(factor * most for factor in factors), 2 * most, most + _NEAR * line.period):
            last = line.before(far)
            places = {line.between(most, last), last}
            found = {n: one for n in places if (one := self._tried(line, n)) is not None}
            if len(found) == 2 and (larger := self._made(line, {**seen, **found})) is not None:
                return larger
        return None

    def _tried(self, line: Line, n: int) -> Converted | None:
        shapes = line.at(n)
        if shapes is None or line.place(shapes) is None:
            return None
        try:
            self._fits(shapes)
            found = self._convert(shapes)
        except (TvmdmlError, Undecided):
            return None
        return None if found is None else Converted(shapes, found, {})

    def _made(self, line: Line, seen: Mapping[int, Converted]) -> _Function | None:
        """The function of the size that agrees with all programs, if there is one."""
        ordered = {n: seen[n] for n in sorted(seen)}
        known = kinds(list(ordered), line.step, [one.conversion for one in ordered.values()])
        if known is None:
            return None
        tensors = {n: one.conversion.tensors() for n, one in ordered.items()}
        varying = _varying(list(tensors.values()), known.others)
        try:
            programs = BySize({n: self._finished(one, varying) for n, one in ordered.items()})
            constants = Constants(self._model, programs.wanted, tensors)
        except (Differs, TvmdmlError, Undecided):  # nodes read what is known in a whole conversion only
            return None
        some = list(ordered)
        kept = {*some[:3], *some[-2:]}
        places = range(some[0], some[-1] + 1, line.step)
        seen = {n: ordered[n] for n in kept}
        return _Function(line, seen, some[0], some[-1], known, programs, constants, Sizes(self._target, places))

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


def _make_ahead(one: _Function, near: Grown, sizes: Sequence[int]) -> None:
    """Make the graphs for sizes that are asked for next, as far as that is quick."""
    with contextlib.suppress(Differs, TvmdmlError):
        for n in sizes:
            near.kept(n, one.constants.at)


def _varying(tensors: Sequence[Mapping[str, Value]], irregular: AbstractSet[int]) -> tuple[str, ...]:
    """The tensors whose known elements depend on the size, or may do so: these have the identities ``irregular``."""
    first, *others = tensors
    known = ((name, one, one.array) for name, one in first.items() if one.array is not None)
    return tuple(
        name
        for name, one, array in known
        if id(one) in irregular or not all(name in own and same(array, own[name].array) for own in others)
    )
