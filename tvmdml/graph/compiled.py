"""``CompiledGraph``: a graph compiled for a target, which runs by one call."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from tvmdml.errors import InvalidArgument, bounded, counted, message, safe_repr
from tvmdml.graph.explaining import Explanation
from tvmdml.graph.forms import Forms, GraphArguments, forms_of, misfit_advice
from tvmdml.graph.laid import Given, Laid, Returned, Weights
from tvmdml.system import at_hand
from tvmdml.targets import ReadySequence, Target
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, arrays, native
from tvmdml.tensors.arrays import NumpyArray, recycled
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvmdml.graph.expression import Expression
    from tvmdml.graph.nodes import Input
    from tvmdml.graph.program import Finished
    from tvmdml.typing import Array

    _A = TypeVar("_A")
    Arrays: TypeAlias = Mapping[str, _A] | Mapping[Expression, _A] | Sequence[_A]

Inputs = Mapping[Any, Any] | Sequence[Any] | None
_Array = TypeVar("_Array", bound="Array")


class Timed(NamedTuple):
    """The time of one kernel in a run."""

    name: str
    """The operator, and the call's name and line."""
    kernel: str
    """The kernel's name."""
    nanoseconds: int
    skipped: bool = False
    """Whether the run left it out: what it computes is of the branch that was not taken. Then it took no time."""


class CompiledGraph:
    """A graph compiled for a target (``IDMLCompiledOperator``): kernels, their order, and a place for each intermediate result.

    Call it with the inputs; it returns a list of arrays, one for each output. Several threads may run it at the same time: each run
    has intermediate memory of its own, which is kept for the next one.
    """

    def __init__(
        self,
        laid: Laid,
        target: Target,
        arenas: list[Any] | None = None,
        in_place: Callable[[], Collection[tuple[int, int]]] = tuple,
    ) -> None:
        """Not public: ``Graph.compile`` makes it.

        ``arenas`` are intermediate memory that several graphs share, and ``in_place`` is as for ``of_parts``.
        """
        self.name = laid.name
        """The graph's name."""
        self.target = target
        """Where it runs."""
        self._lay: Callable[[], Laid] = lambda: laid
        self._tell: Callable[[], tuple[Sequence[Given], Sequence[Returned]]] = lambda: (laid.inputs, laid.outputs)
        self._in_place = in_place
        self._temporary = laid.temporary
        self._sequence = target.sequence(laid.steps, laid.slots)
        self._constants: list[Any] = list(map(target.asarray, laid.constants)) if target.moves else list(laid.constants)
        self._weights: list[Weights] = []
        self._packed: list[Any] = []
        self._owned: dict[int, Any] = {}
        if not any(one.owned and one.slot >= 0 for one in self._inputs):
            self._pack({})
        self._calls = GraphArguments.of(laid.inputs, laid.outputs, target)
        self._forms = forms_of(laid)
        self._arenas: list[Any] = [] if arenas is None else arenas

    @classmethod
    def of_parts(
        cls,
        name: str,
        target: Target,
        sequence: ReadySequence,
        calls: GraphArguments,
        forms: Forms,
        constants: list[Any],
        weights: list[Weights],
        temporary: int,
        arenas: list[Any],
        lay: Callable[[], Laid],
        tell: Callable[[], tuple[Sequence[Given], Sequence[Returned]]],
        in_place: Callable[[], Collection[tuple[int, int]]],
    ) -> CompiledGraph:
        """A graph whose parts are made: there may be one for each length of a text.

        ``lay`` says what is not needed to run, ``tell`` what it takes and gives, and ``in_place`` which inputs' memory may be that
        of which outputs.
        """
        graph = object.__new__(cls)
        graph.name, graph.target, graph._lay, graph._temporary = name, target, lay, temporary
        graph._tell, graph._in_place = tell, in_place
        graph._sequence, graph._calls, graph._forms, graph._constants = sequence, calls, forms, constants
        graph._weights, graph._packed = weights, [one.buffer for one in weights]
        graph._owned, graph._arenas = {}, arenas
        return graph

    # -- Facts

    symbols: tuple[str, ...] = ()
    """The names of the sizes that are open."""

    def at(self, /, **sizes: int) -> CompiledGraph:
        """The graph for values of all sizes that are open: itself if none is.

        Raises:
            InvalidArgument: a size is missing or unknown, or the graph does not allow it.
            Unsupported, CompileError: a kernel cannot be made.
        """
        if sizes:
            raise InvalidArgument(message("CompiledGraph.at", ", ".join(sizes), "nothing: no size of this graph is open"))
        return self

    @functools.cached_property
    def _laid(self) -> Laid:
        return self._lay()

    @functools.cached_property
    def _arrays(self) -> tuple[Sequence[Given], Sequence[Returned]]:
        return self._tell()

    @property
    def _inputs(self) -> Sequence[Given]:
        return self._arrays[0]

    @property
    def _outputs(self) -> Sequence[Returned]:
        return self._arrays[1]

    @property
    def temporary_size(self) -> int:
        """The bytes of the intermediate results of one run (``DML_BINDING_PROPERTIES.TemporaryResourceSize``)."""
        return self._laid.temporary

    @property
    def temporary_bound(self) -> int:
        """The most bytes of intermediate results that are needed at one moment: ``temporary_size`` cannot be below."""
        return self._laid.bound

    @property
    def persistent_size(self) -> int:
        """The bytes of constants and of owned inputs (``DML_BINDING_PROPERTIES.PersistentResourceSize``)."""
        owned = sum(one.nbytes for one in self._inputs if one.owned and one.slot >= 0)
        return sum(array.nbytes for array in self._laid.constants) + sum(self._laid.packed) + owned

    @property
    def kernel_count(self) -> int:
        """The number of launches of one run."""
        return len(self._laid.steps)

    @property
    def binding_count(self) -> int:
        """The arrays that one run binds (``DML_BINDING_PROPERTIES.RequiredDescriptorCount``): what is given, kept and returned, and
        one for all intermediate results.
        """
        return self._laid.slots

    @property
    def initialized(self) -> bool:
        """Whether all owned inputs were given."""
        return all(one.slot in self._owned for one in self._inputs if one.owned and one.slot >= 0)

    def explain(self) -> Explanation:
        """What became of every call: as text, and as a picture where Graphviz is installed."""
        return Explanation(self._laid.reports(), self._laid)

    def __repr__(self) -> str:
        """The inputs, outputs and target."""
        given = ", ".join(f"{one.shown}: {one.dtype}{list(one.shape)}" for one in self._inputs)
        found = ", ".join(f"{one.dtype}{list(one.shape)}" for one in self._outputs)
        return bounded(f"<CompiledGraph ({given}) -> [{found}], {counted(self.kernel_count, 'kernel')} on {self.target}>")

    def inputs(self) -> list[Input]:
        """All inputs, in the order in which callers give them."""
        return [node_of(one) if one.node is None else one.node for one in self._inputs]

    def parts(self) -> Finished:
        """What it computes, after all passes."""
        return self._laid.finished()

    def input_names(self) -> tuple[str, ...]:
        """The name of each input, in their order."""
        return self._calls.order

    def forms(self) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
        """The type and shape of each output."""
        return [(one.dtype, one.shape) for one in self._outputs]

    @property
    def laid(self) -> Laid:
        """What runs."""
        return self._laid

    @property
    def sequence(self) -> ReadySequence:
        """The launches."""
        return self._sequence

    @property
    def weights(self) -> list[Weights]:
        """The packed weights."""
        return self._weights

    # -- Running

    def initialize(self, weights: Inputs = None) -> None:
        """Give the owned inputs (``IDMLOperatorInitializer``), by name, by expression, or in order. They are copied.

        Raises:
            InvalidArgument: one is missing, unknown, or has another type or shape.
        """
        owned = [one for one in self._inputs if one.owned]
        given = self._by_input(weights, owned, "initialize")
        found = {}
        for one in owned:
            if one.slot >= 0:
                found[one.slot] = self._ready(one, given[id(one)]).copy()
        self._pack({id(one.node): found[one.slot] for one in owned if one.slot >= 0})
        self._owned = found

    def _pack(self, owned: Mapping[int, Any]) -> None:
        """Make the packed weights: of constants, and of owned inputs by the identities of their nodes."""
        self._weights = self._laid.weights(owned)
        self._packed = [one.buffer for one in self._weights]

    @overload
    def __call__(self, inputs: Arrays[NumpyArray] | None = None) -> list[NumpyArray]: ...
    @overload
    def __call__(self, inputs: Arrays[_Array | NumpyArray]) -> list[_Array]: ...
    def __call__(self, inputs: Inputs = None) -> list[Any]:
        """Run on arrays.

        Args:
            inputs: an array for each input that is not owned: a mapping by name or expression, or a sequence in the order in which
                the inputs were made. Arrays of any library, of exactly the input's type and shape.

        Returns:
            An array for each output, of the kind of the first input that is not NumPy's.

        Raises:
            InvalidArgument: an input is missing, unknown, or has another type or shape; or owned inputs were not given before.
        """
        at_once = self._at_once(inputs)
        given, ready, restore = ((), at_once, None) if at_once is not None else self._given(inputs)
        results = self._new_outputs()
        arena = self._arena()
        try:
            self._sequence([arena, *self._constants, *self._packed, *ready, *results[1]])
            if self.target.moves:
                self.target.wait()
        finally:
            self._arenas.append(arena)
        return self._handed(results[0], given, restore)

    run = __call__

    def profile(self, inputs: Inputs = None) -> list[Timed]:
        """Run once, and return the time of each kernel."""
        return self.timed(inputs)[1]

    def timed(self, inputs: Inputs = None) -> tuple[list[Any], list[Timed]]:
        """Run on arrays, as a call does: the results, and the time of each kernel."""
        given, ready, restore = self._given(inputs)
        results = self._new_outputs()
        arena = self._arena()
        try:
            spent = self._sequence.timed([arena, *self._constants, *self._packed, *ready, *results[1]])
        finally:
            self._arenas.append(arena)
        said = zip(self._laid.reports().titles, self._laid.kernels, spent, strict=True)
        times = [Timed(title, kernel, max(ns, 0), ns < 0) for title, kernel, ns in said]
        return self._handed(results[0], given, restore), times

    def _handed(self, results: list[Any], given: Sequence[Any], restore: Any) -> list[Any]:
        """Results as the caller gets them: where and of the kind that its arrays are."""
        found = self._finished(results)
        if self.target.moves and not any(type(array) is DeviceArray for array in given):
            found = [array.numpy() for array in found]
        return found if restore is None else [restore(array) for array in found]

    def trace(self, inputs: Inputs, path: str | os.PathLike[str]) -> list[Timed]:
        """Write ``profile`` to a file in Chrome's trace format, which chrome://tracing and https://ui.perfetto.dev show; return it.

        Raises:
            OSError: the file cannot be written.
        """
        times, events = self.events(inputs)
        text = json.dumps({"traceEvents": events, "otherData": {"graph": self.name, "target": self.target.name}})
        Path(path).write_text(text)
        return times

    def events(self, inputs: Inputs, begin: float = 0.0) -> tuple[list[Timed], list[dict[str, Any]]]:
        """``profile``, and the same as events of Chrome's trace format, which begin at a time in microseconds."""
        events: list[dict[str, Any]] = []
        times = self.profile(inputs)
        at = begin
        for tensors, one in zip(self._laid.reports().tensors, times, strict=True):
            duration = one.nanoseconds / 1000
            about = {**tensors, "skipped": "yes"} if one.skipped else tensors
            event = {"name": one.name, "cat": one.kernel, "ph": "X", "pid": 0, "tid": 0, "ts": at, "dur": duration, "args": about}
            events.append(event)
            at += duration
        return times, events

    def bind(self, inputs: Inputs, outputs: Sequence[Array]) -> Callable[[], None]:
        """Check arrays once and return a function that runs on them: the quickest way to run repeatedly.

        The arrays must lie as the graph reads and writes them: row-major, unless an input was made with strides. They stay alive as
        long as the function does. Calls of one such function must not overlap in time. Rows that attention keeps may be where those
        of earlier steps are: the same array is given for both, and only new rows are written.

        Raises:
            InvalidArgument: an array does not fit, or an output shares memory with another array.
        """
        arrays_given, ready, _ = self._given(inputs)
        wanted = [one for one in self._read() if not one.owned]
        used = {one.slot: array for one, array in zip(sorted(self._read(), key=lambda one: one.slot), ready, strict=True)}
        for one, array in zip(wanted, arrays_given, strict=True):
            view = arrays.view(array, one.shown)
            if self.target.moves and type(view) is not DeviceArray:
                raise InvalidArgument(message(f"bind {one.shown}", "an array of the CPU", f"one on {self.target}"))
            if not arrays.are_one(view, used[one.slot]):
                advice = "Copy it first, or make the input with its strides."
                raise InvalidArgument(
                    message(f"bind {one.shown}", "an array with other strides", "one that lies as the input", advice)
                )
        results = self._checked_outputs(outputs)
        slots = [one.slot for one in sorted(self._read(), key=lambda one: one.slot)]
        in_place = {(self._inputs[i].slot, j) for i, j in self._in_place()}
        for i, result in enumerate(results):
            others = [
                one for one, slot in zip(ready, slots, strict=True) if not ((slot, i) in in_place and arrays.are_one(one, result))
            ]
            if arrays.overlaps_any(result, [*results[:i], *others, *self._constants]):
                raise InvalidArgument(message(f"bind output {i}", "memory that overlaps another array's", "separate memory"))
        ready, results = list(map(arrays.fixed, ready)), list(map(arrays.fixed, results))
        arena = self.target.empty((max(self._temporary, 1),), np.uint8)
        written = [array for array, one in zip(results, self._outputs, strict=True) if one.slot >= 0]
        run: Callable[[], None] = self._sequence.bind([arena, *self._constants, *self._packed, *ready, *written])
        if self._calls.all_are_written:
            return run

        def then_copy() -> None:
            run()
            self._copy(results)

        return then_copy

    # -- How

    def _read(self) -> list[Given]:
        """The inputs that are read."""
        return [one for one in self._inputs if one.slot >= 0]

    def _arena(self) -> Any:
        """Intermediate memory that no other run uses, until it is given back to the list."""
        try:
            found = self._arenas.pop()  # lists are safe for threads; a lock would be held for ever in a forked process
        except IndexError:
            found = None
        if found is None or found.shape[0] < self._temporary:
            found = self.target.empty((max(self._temporary, 1),), np.uint8)
        return found

    def _at_once(self, inputs: Inputs) -> list[Any] | None:
        """The arrays as kernels read them, if nothing is to be converted, copied or refused: this takes a tenth of the time."""
        calls = self._calls
        if calls.plain is None:
            return None
        if isinstance(inputs, dict):
            if "" in inputs or inputs.keys() != calls.names:
                return None
            inputs = [inputs[name] for name in calls.order]
        if not isinstance(inputs, (list, tuple)) or len(inputs) != len(calls.order):
            return None
        found, forms = [], self._forms.inputs
        for i, dtype, form in calls.plain:
            array = inputs[i]
            shape, strides = forms[form]
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                return None
            own = array.strides
            if own != strides and not all(n < 2 or a == b for n, a, b in zip(shape, own, strides, strict=True)):
                return None
            if not array.flags.aligned:
                return None
            found.append(array)
        return found

    def _given(self, inputs: Inputs) -> tuple[list[Any], list[Any], Any]:
        """The arrays as given and as the kernels read them, in the order of their slots, and how to make results of their kind."""
        if not self.initialized:
            names = ", ".join(one.shown for one in self._inputs if one.owned and one.slot not in self._owned)
            raise InvalidArgument(
                message("CompiledGraph call", "a graph that is not initialized", f"initialize(…) first, with {names}")
            )
        wanted = [one for one in self._inputs if not one.owned]
        by_input = self._by_input(inputs, wanted, "call")
        ready: dict[int, Any] = dict(self._owned)
        given, restore = [], None
        for one in wanted:
            array = by_input[id(one)]
            if one.slot < 0:
                continue
            given.append(array)
            if restore is None and type(array) not in (np.ndarray, DeviceArray):
                restore = arrays.restorer(array)
            ready[one.slot] = self._ready(one, array)
        return given, [ready[slot] for slot in sorted(ready)], restore

    def _by_input(self, given: Inputs, wanted: Sequence[Given], what: str) -> dict[int, Any]:
        """The given arrays by the identities of ``wanted``."""
        where = f"{type(self).__name__} {what}"
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            given = _several(given, where, "a mapping by name, or a sequence of arrays")
            if len(given) != len(wanted):
                allowed = f"{len(wanted)}: {', '.join(one.shown for one in wanted) or 'none'}"
                raise InvalidArgument(message(where, counted(len(given), "array"), allowed))
            return {id(one): array for one, array in zip(wanted, given, strict=True)}
        found = {}
        names = {one.name: one for one in wanted if one.name}
        nodes = {id(one.node): one for one in wanted if one.node is not None}
        for key, array in given.items():
            edge = None if isinstance(key, str) else getattr(key, "edge", None)  # of an expression
            one = names.get(key) if isinstance(key, str) else None if edge is None else nodes.get(id(edge.source))
            if one is None:
                raise InvalidArgument(message(where, safe_repr(key), ", ".join(one.shown for one in wanted) or "no inputs"))
            found[id(one)] = array
        missing = [one for one in wanted if id(one) not in found]
        for one in missing:
            if one.slot >= 0:
                raise InvalidArgument(message(where, f"no {one.shown}", f"{one.dtype}{list(one.shape)}"))
            found[id(one)] = None
        return found

    def _ready(self, one: Given, array: Any) -> Any:
        """The array as the kernels read it: itself, or a copy."""
        where = f"CompiledGraph {one.shown}"
        view = arrays.view(array, where) if type(array) is not np.ndarray else array
        if native(view.dtype) != one.dtype or view.shape != one.shape:
            given, allowed = f"{view.dtype}{list(view.shape)}", f"{one.dtype}{list(one.shape)}"
            advice = misfit_advice(native(view.dtype), view.shape, one.dtype, one.shape)
            raise InvalidArgument(message(where, given, allowed, advice))
        arrays.require_on(view, self.target, where)
        steps = one.strides
        lies = all(n < 2 or a == b for n, a, b in zip(one.shape, view.strides, steps, strict=True))
        if type(view) is DeviceArray:
            return view if lies and view.aligned else self._moved(one, view.numpy(), steps)
        if lies and view.dtype.isnative and view.flags.aligned and not self.target.moves:
            return view
        return self._moved(one, view, steps)

    def _moved(self, one: Given, view: NumpyArray, steps: tuple[int, ...]) -> Any:
        try:
            memory = np.zeros(one.nbytes, np.uint8)
        except MemoryError:
            given = f"an array to be copied to {one.nbytes} bytes"
            raise InvalidArgument(message(f"CompiledGraph {one.shown}", given, "a copy that fits in memory")) from None
        if 0 not in one.shape:
            arrays.assign(np.ndarray(one.shape, one.dtype, memory, 0, steps), view)
        return self.target.asarray(memory)

    def _new_outputs(self) -> tuple[list[Any], list[Any]]:
        """New arrays for the outputs: all, and those that kernels write."""
        new = self.target.empty if self.target.moves else recycled.empty
        calls, shapes = self._calls, self._forms.outputs
        found = [new(shapes[form], dtype) for dtype, form, _, _ in calls.results]
        if calls.all_are_written:
            return found, found
        return found, [array for array, one in zip(found, calls.results, strict=True) if one.is_written]

    def _finished(self, results: list[Any]) -> list[Any]:
        self._copy(results)
        return results

    def _copy(self, results: Sequence[Any]) -> None:
        """Fill the outputs that no kernel writes."""
        if self._calls.all_are_written:
            return
        for array, one in zip(results, self._calls.results, strict=True):
            if one.copies is not None:
                source = results[one.copies] if isinstance(one.copies, int) else one.copies
                source = source.numpy() if type(source) is DeviceArray else source
                same = source.reshape(-1).view(array.dtype).reshape(array.shape)  # an output may be a view of an equal one
                arrays.assign(array, same)

    def _checked_outputs(self, given: Sequence[Any]) -> list[Any]:
        given = _several(given, "bind outputs", "a sequence of arrays")
        if len(given) != len(self._outputs):
            raise InvalidArgument(message("bind outputs", counted(len(given), "array"), str(len(self._outputs))))
        found = []
        for i, (array, one) in enumerate(zip(given, self._outputs, strict=True)):
            view = arrays.view(array, f"bind output {i}", write=True)
            arrays.require_on(view, self.target, f"bind output {i}")
            form = f"{view.dtype}{list(view.shape)}"
            writable = view.flags.c_contiguous and view.flags.aligned and view.flags.writeable
            if self.target.moves and type(view) is not DeviceArray:
                raise InvalidArgument(message(f"bind output {i}", "an array of the CPU", f"one on {self.target}"))
            if view.dtype != one.dtype or view.shape != one.shape or not writable:
                allowed = f"a writable row-major array of {one.dtype}{list(one.shape)}"
                raise InvalidArgument(message(f"bind output {i}", form, allowed))
            found.append(view)
        return found


def node_of(one: Given) -> Input:
    """An input of a graph that was read."""
    at_hand("tvmdml.graph.nodes")
    from tvmdml.graph.nodes import Input

    strides = [step // one.dtype.itemsize for step in one.strides] if one.shape else None
    desc = ArrayTensorDesc(TensorDataType.from_numpy(one.dtype), one.shape or (1,), strides, zero_dimensional=not one.shape)
    return Input(desc, one.dtype, one.owned, one.name, "")


def _several(given: Any, where: str, allowed: str) -> Sequence[Any]:
    if hasattr(given, "__dlpack__"):  # its rows would be taken for arrays
        raise InvalidArgument(message(where, "one array", allowed, "Put it into a list."))
    try:
        len(given)
    except TypeError:
        raise InvalidArgument(message(where, safe_repr(given), allowed)) from None
    return given
