"""``Growth`` learns programs for sizes that were not seen, where one size grows, without converting the model again.

A decoder is called with one more past word each time. After three such calls, the model is converted for two larger sizes as well.
If it depends on the sizes regularly (``regular.py``), and the five programs are one function of the size (``BySize``), that makes
the programs up to the largest. Beyond, two more sizes are tried: the range becomes four times as long, or twice if that fails.

A model that halves a size three times has a function for each eighth size, and these functions grow alike: the next ones need
three sizes only. Where a pass decides by the size, the function for larger sizes is another one, too.

Small constants that follow from sizes, such as positions and masks, are computed for each size by the model's own nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from tvmdml.errors import TvmdmlError
from tvmdml.graph.building import finished
from tvmdml.graph.by_size import BySize, Differs
from tvmdml.graph.nodes import Edge, Input, Node
from tvmdml.graph.program import Finished
from tvmdml.graph.sizes import Sizes
from tvmdml.onnx.converting import Conversion, Model
from tvmdml.onnx.function import Converted, Function
from tvmdml.onnx.functions import Functions
from tvmdml.onnx.lines import Line, Shapes
from tvmdml.onnx.of_sizes import Constants, same
from tvmdml.onnx.regular import kinds, period
from tvmdml.onnx.types import Undecided
from tvmdml.onnx.values import Value
from tvmdml.targets import Target

_FEWEST = 3
_NEAR = 16
"""How far beyond the largest size others are tried, if not up to its double."""
_MOST_SEEN = 16
_MOST_REFUSED = 3
"""After so many attempts without success in between, none is made any more."""


class Growth:
    """The programs of a model where sizes grow."""

    def __init__(
        self,
        model: Model,
        target: Target,
        fits: Callable[[Shapes], object],
        convert: Callable[[Shapes], Conversion | None],
        functions: Functions,
    ) -> None:
        """
        Args:
            model: the model.
            target: where it runs.
            fits: raises an error for shapes that the model does not take.
            convert: converts the model for shapes; ``None`` if an output is known, or something decides beside shapes.
            functions: what is known; what is learned is added.
        """
        self._model, self._target, self._fits, self._convert, self._functions = model, target, fits, convert, functions
        self._seen: list[Converted] = []
        self._refused = 0

    def saw(self, shapes: Shapes, conversion: Conversion) -> None:
        """Learn from the model for shapes whose program was not known."""
        if self._refused >= _MOST_REFUSED:
            self._seen = []
            return
        one = Converted(shapes, conversion, {})
        for known in reversed(self._functions.every):
            if (n := known.line.place(shapes)) is not None and self._extend(known, n, one):
                return
        self._seen = [*self._seen[1 - _MOST_SEEN :], one]
        if (found := self._aligned(one)) is None:
            return
        line, places = found
        like = [other for other in self._functions.every if line.is_beside(other.line)]
        if len(places) < (_FEWEST - 1 if like else _FEWEST):
            return
        learned = self._next(line, places, like) if like else None
        if learned is None and len(places) >= _FEWEST:
            learned = self._first(line, places)
        if learned is None:
            self._refused += 1
            return
        self._refused = 0
        self._functions.add(learned)
        own = range(learned.least, learned.most + 1)
        self._seen = [other for other in self._seen if line.place(other.shapes) not in own]

    def _aligned(self, one: Converted) -> tuple[Line, dict[int, Converted]] | None:
        """A line through these shapes and others that were seen: the nearest three, these included, or all if there are fewer."""
        for known in self._functions.every:
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

    def _first(self, line: Line, seen: dict[int, Converted]) -> Function | None:
        """The function of the size where none of another line grows alike: it needs two larger sizes."""
        return None if self._made(line, seen) is None else self._farther(line, seen, ())

    def _next(self, line: Line, seen: dict[int, Converted], like: Sequence[Function]) -> Function | None:
        """The function of the size that grows as one of those that are known, for the same sizes if two of them were seen."""
        first = min(seen)
        near = min(like, key=lambda one: max(one.least - first, first - one.most))
        ends = {line.before(near.most), line.before(near.least + line.step - 1)} if len(seen) < _FEWEST else set()
        tried = {n: one for n in ends if n not in seen and (one := self._tried(line, n)) is not None}
        for own in ({**seen, **tried}, *({**seen, n: one} for n, one in tried.items() if len(tried) > 1)):
            if len(own) >= _FEWEST and (found := self._made(line, own)) is not None and any(map(found.is_like, like)):
                return found
        return None

    def _extend(self, known: Function, n: int, one: Converted) -> bool:
        """Learn from one more size on a line, if it has the same function."""
        line = known.line
        for place in known.places:  # another process may have tried them
            if place not in known.seen and (found := self._tried(line, place)) is not None:
                known.seen[place] = found
        if len(known.seen) < len(known.places):
            return False
        seen = {**known.seen, n: one}
        if (longer := self._made(line, seen)) is None:
            return False
        if n > known.most:
            longer = self._farther(line, seen, (4,)) or longer
        self._functions.add(longer, known)
        return True

    def _farther(self, line: Line, seen: dict[int, Converted], factors: tuple[int, ...]) -> Function | None:
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

    def _made(self, line: Line, seen: Mapping[int, Converted]) -> Function | None:
        """The function of the size that agrees with all programs, if there is one."""
        ordered = {n: seen[n] for n in sorted(seen)}
        known = kinds(list(ordered), line.step, [one.conversion for one in ordered.values()])
        if known is None:
            return None
        tensors = {n: one.conversion.tensors() for n, one in ordered.items()}
        varying = _varying(list(tensors.values()), known.others)
        try:
            programs = BySize.through({n: self._finished(one, varying) for n, one in ordered.items()})
            constants = Constants.through(self._model, programs.wanted, tensors)
        except (Differs, TvmdmlError, Undecided):  # nodes read what is known in a whole conversion only
            return None
        some = list(ordered)
        kept = tuple(sorted({*some[:3], *some[-2:]}))
        sizes = Sizes(self._target, range(some[0], some[-1] + 1, line.step))
        seen = {n: ordered[n] for n in kept}
        return Function(line, kept, known.every, programs, constants.needed, constants.at, sizes, seen)

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
