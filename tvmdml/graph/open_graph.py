"""``OpenGraph``: a compiled graph whose sizes are open. It is recorded once; for new sizes its integers are filled in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from tvmdml.errors import InvalidArgument, Unsupported, bounded, counted, message, safe_repr
from tvmdml.graph import passes
from tvmdml.graph.compiled import CompiledGraph, Inputs, Timed
from tvmdml.graph.explaining import Explanation, explanation
from tvmdml.graph.forms import misfit_advice
from tvmdml.graph.kernels import Progress
from tvmdml.graph.laid import Given, Laid
from tvmdml.graph.laying import given
from tvmdml.graph.open_planning import ProgramPlan
from tvmdml.graph.packing import SharedWeights
from tvmdml.graph.program import Finished
from tvmdml.graph.surroundings import are_usual
from tvmdml.graph.templates import ProgramTemplate
from tvmdml.library.scheduling import remembering
from tvmdml.system import not_collected
from tvmdml.targets import Target
from tvmdml.tensors import arrays, native
from tvmdml.tensors.sizes import Record, is_open, texts_for_messages
from tvmdml.tensors.sizes.evaluating import evaluator, terms_of

T = TypeVar("T")

_MOST_GRAPHS = 64
"""The sizes whose graphs are cached. Each has some KB beside the intermediate memory, which all of them share."""
_MOST_PLANS = 64

OWN_SIZES = "sizes of this graph", "Make them with its own Graph.size."
"""What is allowed instead of sizes of another graph."""


class _Read(NamedTuple):
    """Where a size is read from."""

    input: int
    dimension: int


class OpenGraph(CompiledGraph):
    """A graph compiled for a target, with sizes that are known when it runs.

    It is called as any compiled graph. What follows from sizes, such as ``kernel_count``, is that of ``graph.at(n=…)``.
    """

    def __init__(self, finished: Finished, record: Record, target: Target, shared: SharedWeights | None = None) -> None:
        """Not public: ``Graph.compile`` makes it, of a graph before all passes. ``shared`` are packed weights of other graphs."""
        if any(node.owned for node in finished.inputs):
            raise Unsupported(message("Graph.compile", "owned inputs beside open sizes", "constants", "Give them as known=…"))
        self.name, self.target = finished.name, target
        self._record = record.copy()  # the graph may be extended after this
        self._whole = ProgramTemplate.of(finished)
        every = [size for template in self._whole.templates() for size in template.numbers if is_open(size)]
        if any(size.record is not record for size in every):
            raise InvalidArgument(message("Graph.compile", "sizes of another graph", *OWN_SIZES))
        self.holds_for = evaluator(self._record, [])
        """Called with values of the symbols: ``None`` if the recorded graph does not hold for them."""
        self._inputs_open = [given(node, i, i) for i, node in enumerate(finished.inputs)]
        self.symbols = tuple(record.symbols)
        self.plans: list[ProgramPlan] = []
        """The program after passes, for sizes of which they asked the same. The last used is the first."""
        self._graphs: dict[tuple[int, ...], tuple[int | None, CompiledGraph]] = {}
        self._packed_weights: SharedWeights = WeakValueDictionary() if shared is None else shared
        self._all_arenas: list[Any] = []

    def check(self) -> None:
        """Refuse sizes that the shapes of arrays do not say.

        Raises:
            InvalidArgument: one is a dimension of no input.
        """
        missing = [name for name, place in zip(self.symbols, self._places, strict=True) if place is None]
        if missing:
            allowed = "sizes that are a dimension of an input each"
            raise InvalidArgument(message("Graph.compile", f"sizes {', '.join(missing)}", allowed))

    @functools.cached_property
    def _places(self) -> list[_Read | None]:
        """Where each size is read from; ``None`` for one that is a dimension of no input."""
        places: dict[Any, _Read] = {}
        for i, about in enumerate(self._inputs_open):
            sizes: tuple[Any, ...] = about.shape
            for dimension, size in enumerate(sizes):
                if is_open(size):
                    places.setdefault(size.terms, _Read(i, dimension))
        return [places.get(self._record.symbol_terms(name)) for name in self.symbols]

    # -- The graph for sizes

    def allows(self, /, **sizes: int) -> bool:
        """Whether the recorded graph holds for values of all sizes."""
        return self.holds_for(*(sizes[name] for name in self.symbols)) is not None

    def holds(self, values: tuple[int, ...]) -> bool:
        """The same for values in the order of ``symbols``."""
        return self.holds_for(*values) is not None

    def at(self, /, **sizes: int) -> CompiledGraph:
        """The compiled graph for values of all sizes, as ``CompiledGraph.at`` says."""
        if sizes.keys() != set(self.symbols) or any(type(size) is not int for size in sizes.values()):
            given_sizes = ", ".join(f"{name}={safe_repr(value)}" for name, value in sizes.items()) or "nothing"
            raise InvalidArgument(message("OpenGraph.at", given_sizes, f"an integer for each of {', '.join(self.symbols)}"))
        return self.for_values(tuple(sizes[name] for name in self.symbols))

    def plan_for(self, /, **sizes: int) -> ProgramPlan:
        """The recording that holds for values of all sizes."""
        self.at(**sizes)
        return next(plan for plan in self.plans if plan.holds([sizes[name] for name in self.symbols]))

    def plan_at(self, values: tuple[int, ...]) -> ProgramPlan:
        """The recording that holds for values of all sizes, in the order of ``symbols``. No kernel is made.

        Raises:
            InvalidArgument: the graph does not hold for them.
        """
        plans = self.plans
        for plan in plans:
            if plan.holds(values):
                return plan
        self.plans = [self._planned(values), *plans]
        return self.plans[0]

    def for_values(self, values: tuple[int, ...], progress: Progress | None = None) -> CompiledGraph:
        """The compiled graph for values of all sizes, in the order of ``symbols``.

        Raises:
            InvalidArgument: the graph does not hold for them.
            Unsupported, CompileError: a kernel cannot be made.
        """
        known = self._graphs.get(values)
        if known is None or known[0] != self._tasks():
            known = self._tasks(), self._made(values, progress)
            if len(self._graphs) >= _MOST_GRAPHS:
                self._graphs.pop(list(self._graphs)[0], None)  # noqa: RUF015 # a copy: other threads may add
            self._graphs[values] = known
        return known[1]

    def _tasks(self) -> int | None:
        return self.target.tasks() if are_usual(self.target) else None

    def _made(self, values: tuple[int, ...], progress: Progress | None) -> CompiledGraph:
        plans = self.plans
        for i, plan in enumerate(plans):
            if (graph := plan.at(values, progress)) is not None:
                if i:
                    self.plans = [plan, *plans[:i], *plans[i + 1 :]]
                return graph
        with remembering():  # the plan asks schedules what passes have asked
            plan = self._planned(values)
            self.plans = [plan, *plans[: _MOST_PLANS - 1]]
            graph = plan.at(values, progress)
        assert graph is not None, "a guard fails in the case that it was recorded for"
        return graph

    @not_collected()
    def _planned(self, values: tuple[int, ...]) -> ProgramPlan:
        """The program after passes, for all sizes of which they ask the same."""
        if self.holds_for(*values) is None:
            shown = ", ".join(f"{name}={value}" for name, value in zip(self.symbols, values, strict=True))
            allowed = "; ".join(self._record.failed(dict(zip(self.symbols, values, strict=True))))
            advice = "The program was recorded for these; record another graph for others."
            raise InvalidArgument(message(f"OpenGraph {self.name}".rstrip(), shown, allowed, advice))
        record = self._record.at(dict(zip(self.symbols, values, strict=True)))
        finished = self._whole.filled(lambda size: record.size(size.terms))
        calls = list(finished.program.calls)
        with remembering():
            passes.run_all(finished.program, self.target)
            return ProgramPlan(finished, record, self.target, self._packed_weights, self._all_arenas, calls)

    def _for(self, inputs: Inputs) -> tuple[CompiledGraph, list[Any]]:
        """The graph for arrays, and these in the order of the inputs."""
        order = self._inputs_open
        with texts_for_messages():
            by_place = self._by_input(inputs, order, "call")
        several = [by_place[id(about)] for about in order]
        values = []
        for place in self._places:
            assert place is not None
            about = order[place.input]
            where = f"OpenGraph {about.shown}"
            shape = arrays.view(several[place.input], where).shape
            if len(shape) != len(about.shape):
                raise InvalidArgument(message(where, f"sizes {list(shape)}", _form(about)))
            values.append(shape[place.dimension])
        return self.for_values(tuple(values)), several

    # -- What a compiled graph does

    @property
    def _laid(self) -> Laid:
        names = ", ".join(f"{name}=…" for name in self.symbols)
        raise InvalidArgument(message("OpenGraph", "a graph whose sizes are open", "one for certain sizes", f"Use .at({names})."))

    def _with(self, inputs: Inputs, use: Callable[[CompiledGraph, list[Any]], T]) -> T:
        """What a function makes of the graph for arrays, and of these."""
        graph, several = self._for(inputs)
        try:
            return use(graph, several)
        except InvalidArgument:
            self._check(several)
            raise

    def _check(self, several: Sequence[Any]) -> None:
        """Refuse arrays that do not fit, in names of sizes."""
        read = {place: name for name, place in zip(self.symbols, self._places, strict=True)}
        shapes = [arrays.view(array, "").shape for array in several]
        known = {name: shapes[place.input][place.dimension] for place, name in read.items() if place is not None}
        record = self._record.at(known)
        for about, array, shape in zip(self._inputs_open, several, shapes, strict=True):
            sizes = tuple(record.value(terms_of(size)) for size in about.shape)
            dtype = native(arrays.view(array, "").dtype)
            if (dtype, shape) != (about.dtype, sizes):
                given, where = ", ".join(f"{name}={n}" for name, n in known.items()), f"OpenGraph {about.shown}"
                allowed = f"{_form(about)} with {given}"
                advice = misfit_advice(dtype, shape, about.dtype, sizes)
                raise InvalidArgument(message(where, f"{dtype}{list(shape)}", allowed, advice))

    def __call__(self, inputs: Inputs = None) -> list[Any]:
        """Run on arrays, as a compiled graph does. Their sizes decide the open ones."""
        return self._with(inputs, lambda graph, several: graph(several))

    run = __call__

    def timed(self, inputs: Inputs = None) -> tuple[list[Any], list[Timed]]:
        """Run on arrays: the results, and the time of each kernel."""
        return self._with(inputs, lambda graph, several: graph.timed(several))

    def trace(self, inputs: Inputs, path: Any) -> list[Timed]:
        """Write the time of each kernel to a file, as a compiled graph does."""
        return self._with(inputs, lambda graph, several: graph.trace(several, path))

    def bind(self, inputs: Inputs, outputs: Sequence[Any]) -> Callable[[], None]:
        """Check arrays once and return a function that runs on them."""
        return self._with(inputs, lambda graph, several: graph.bind(several, outputs))

    def initialize(self, weights: Inputs = None) -> None:
        """There are no owned inputs."""
        if weights:
            raise InvalidArgument(message("OpenGraph initialize", "arrays", "none: a graph with open sizes has no owned inputs"))

    @property
    def initialized(self) -> bool:
        """There are no owned inputs."""
        return True

    def input_names(self) -> tuple[str, ...]:
        """The name of each input, in their order."""
        return tuple(about.name for about in self._inputs_open)

    def explain(self) -> Explanation:
        """Each recording: the sizes that it holds for, and its calls with expressions of sizes."""
        lines = [("recorded for", "; ".join(self._record.conditions()) or "all sizes")]
        lines += [line for plan in self.plans for line in plan.explained(self.symbols)]
        total = f"{counted(len(self.plans), 'recording')}, {counted(len(self._graphs), 'size')} with a plan"
        return explanation(lines, total)

    def __repr__(self) -> str:
        """The inputs, with the names of sizes, and the target."""
        shown = ", ".join(f"{about.shown}: {_form(about)}" for about in self._inputs_open)
        return bounded(f"<OpenGraph ({shown}) on {self.target}>")


def _form(about: Given) -> str:
    with texts_for_messages():
        return f"{about.dtype}[{', '.join(f'{size}' for size in about.shape)}]"
