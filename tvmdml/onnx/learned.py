"""``Learned``: what the cache has of a model for sizes that grow, so that another process need not learn it again.

An index has the line of each function, and from where to where it is known; a file for each has the function. Both are found by the
same hash as the model's plans (``kept``), and are written and read as these are. Of two processes that learn at the same time, one
may write an index without what the other one has learned: that is learned once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml._whole import at_hand
from tvmdml.graph import kept
from tvmdml.graph.surroundings import key_of
from tvmdml.onnx.kept import Kept
from tvmdml.onnx.lines import Line, Shapes
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvmdml.arrays import NumpyArray
    from tvmdml.onnx.converting import Model
    from tvmdml.onnx.function import Function, Needed
    from tvmdml.onnx.of_sizes import Constants

_INDEX = "functions"
_MOST = 64
"""Functions of a model; the oldest ones are forgotten."""


class Learned:
    """The functions of a model in the cache."""

    def __init__(self, store: Kept, target: Target) -> None:
        """
        Args:
            store: where.
            target: where the model runs.
        """
        self._store, self._target = store, target

    def find(self, shapes: Shapes) -> str | None:
        """The name of the function that has a program for shapes."""
        with contextlib.suppress(*kept.DAMAGED):
            for line, least, most, name in reversed(self._index()):
                n = Line.read(line).place(shapes)
                if n is not None and least <= n <= most:
                    return str(name)
        return None

    def _index(self) -> list[Any]:
        found = self._store.find_part(_INDEX)
        return [] if found is None else list(found.described["lines"])

    # -- Writing

    def keep(self, one: Function) -> None:
        """Keep a function, if all of it can be written."""
        at_hand("tvmdml.graph.kept_by_size")
        from tvmdml.graph import kept_by_size

        writer = kept_by_size.Writer()
        line = one.line.written()
        needed = one.needed
        try:
            programs, arrays = kept_by_size.written(one.programs, writer)
            sizes = [[name, writer.number(own), list(shape)] for name, (own, shape) in needed.sizes.items()]
        except ValueError:
            return
        described = {
            "line": line,
            "places": list(one.places),
            "kinds": "".join(map(str, map(int, one.kinds))),
            "programs": programs,
            "sizes": sizes,
            "given": list(needed.given),
            "nodes": list(needed.nodes),
            "first": needed.first,
            "table": writer.table,
        }
        every = [*arrays, *needed.given.values()]
        if not all(np.dtype(array.dtype.str) == array.dtype for array in every):
            return  # a type of another package
        name = key_of(line, one.least, one.most)
        with contextlib.suppress(TypeError, ValueError):  # names that are no text
            if self._store.keep_part(name, described, every):
                self._note(line, one.least, one.most, name)

    def _note(self, line: list[Any], least: int, most: int, name: str) -> None:
        """Add a function to the index, instead of those that it includes."""
        known: list[Any] = []
        own = Line.read(line)
        with contextlib.suppress(*kept.DAMAGED):
            known = [one for one in self._index() if not (own.is_one(Line.read(one[0])) and least <= one[1] and one[2] <= most)]
        self._store.keep_part(_INDEX, {"lines": [*known[1 - _MOST :], [line, least, most, name]]})

    # -- Reading

    def read(self, name: str, model: Callable[[], Model]) -> Function | None:
        """A function; ``None`` if it is not there, or not whole.

        Args:
            name: which one.
            model: reads the model; called later, where constants follow from sizes.
        """
        found = self._store.find_part(name)
        if found is None:
            return None
        with contextlib.suppress(*kept.DAMAGED):
            return self._read(found.described, found.arrays, model)
        return None

    def _read(self, described: Mapping[str, Any], arrays: Sequence[NumpyArray], model: Callable[[], Model]) -> Function:
        at_hand("tvmdml.graph.kept_by_size", "tvmdml.onnx.function")
        from tvmdml.graph import kept_by_size
        from tvmdml.graph.sizes import Sizes
        from tvmdml.onnx.function import Function, Needed

        reader = kept_by_size.Reader(described["table"])
        count = len(described["programs"]["constants"])
        programs = kept_by_size.read(described["programs"], arrays[:count], reader)
        sizes = {name: (reader.of(number), tuple(shape)) for name, number, shape in described["sizes"]}
        given = dict(zip(described["given"], arrays[count:], strict=True))
        needed = Needed(programs.wanted, sizes, given, tuple(described["nodes"]), described["first"])
        line, places = Line.read(described["line"]), tuple(described["places"])
        if list(places) != sorted(places) or len(places) < 2 or any(line.at(n) is None for n in places):
            raise ValueError(f"the places {places}")
        if not self._store.fits(programs.names, line.at(places[0]) or {}, len(programs.results)):
            raise ValueError("a program of another model")
        kinds = tuple(map(int, described["kinds"]))
        every = Sizes(self._target, range(places[0], places[-1] + 1, line.step))
        return Function(line, places, kinds, programs, needed, _Later(needed, model).at, every, {}, is_read=True)


class _Later:
    """Constants that follow from sizes. The model is read if there are any, when they are asked for."""

    def __init__(self, needed: Needed, model: Callable[[], Model]) -> None:
        self._needed, self._model = needed, model
        self._made: Constants | None = None

    def at(self, n: int) -> Sequence[NumpyArray]:
        """Those for a size.

        Raises:
            Differs: they cannot be computed.
        """
        if not self._needed.wanted:
            return ()
        if self._made is None:
            at_hand("tvmdml.onnx.of_sizes")
            from tvmdml.onnx.of_sizes import Constants

            self._made = Constants(self._model(), self._needed)
        return self._made.at(n)
