"""``Graph``: records calls of functions, and compiles what was recorded."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from tvmdml import functions, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL, FeatureLevel, TensorFlags
from tvmdml.errors import InvalidArgument, Unsupported, bounded, counted, message, safe_repr
from tvmdml.graph import passes
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.expression import Expression
from tvmdml.graph.laying import laid_out
from tvmdml.graph.nodes import Call, Constant, Edge, Input, SizesArray, never_changes
from tvmdml.graph.open_graph import OWN_SIZES, OpenGraph
from tvmdml.graph.packing import SharedWeights
from tvmdml.graph.program import Finished, NodeOutput, Program, ProgramOutput, needed
from tvmdml.graph.templates import ProgramTemplate, Template
from tvmdml.library.scheduling import remembering
from tvmdml.operators._contract import Operator, Role, called_by
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.tensors import MOST_VALUES, PRECISIONS, ArrayTensorDesc, TensorDataType, TensorDesc, arrays
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray
from tvmdml.tensors.arrays.numbers import PYTHON, as_arrays
from tvmdml.tensors.sizes import Record, hint, is_open, key_of, naming_sizes, texts_for_messages

if TYPE_CHECKING:
    import numpy.typing as npt

    from tvmdml.typing import Array, DType, Number

_PACKAGE = str(Path(__file__).parent.parent)
_HINTS = (1009, 1103, 1201, 1301, 1409, 1511)
"""What open sizes are while a graph is recorded, if bounds allow it: numbers with which no kernel or shape is special."""
_MOST_SIZE = (1 << 63) - 1
_MOST_OUTPUTS = 1 << 16
"""How many expressions are taken from a sequence that may have no end."""


class Graph:
    """A graph of operators (``DML_GRAPH_DESC``).

    ``input`` and ``constant`` make expressions; every function of tvmdml, given an expression, adds a node and returns expressions.
    A function without input arrays takes the graph as its ``device``. ``compile`` makes a ``CompiledGraph`` of all that some
    expressions depend on; the graph may be compiled again, extended, or dropped after that.
    """

    def __init__(self, name: str = "", record: Record | None = None, *, precision: str = PRECISIONS[0]) -> None:
        """
        Args:
            name: for messages and pictures.
            record: not public: of sizes that are open, with the case at hand.
            precision: "bf16" lets products and convolutions of float32 by weights that never change round both factors to bfloat16,
                with sums in float32, on processors; with "exact" nothing is rounded that operators do not round.

        Raises:
            InvalidArgument: there is no such precision.
        """
        if not isinstance(precision, str) or precision not in PRECISIONS:  # an array is compared by elements
            raise InvalidArgument(message("Graph precision", safe_repr(precision), " or ".join(map(repr, PRECISIONS))))
        self.precision = precision
        self.name = name
        """A name for messages and pictures."""
        self.inputs: list[Input] = []
        """The inputs, in the order in which they were made."""
        self.calls: list[Call] = []
        """The calls, each after those whose results it reads."""
        self.shared: SharedWeights | None = None
        """Packed weights of other graphs with the same constants, which never change; ``None`` if there are none."""
        self.described: dict[object, Any] = {}
        """Descriptors, by what they were made from: layers are alike."""
        self._constants: dict[int, tuple[Any, Expression]] = {}
        self._bounds: dict[str, tuple[Any, ...]] = {}
        """Those of each size, as a caller gave them."""
        self.record = Record(assumed=True, asker=self._asker) if record is None else record
        """The sizes that are open, and what was asked of them."""

    def __repr__(self) -> str:
        """The number of nodes."""
        named = f" {self.name!r}" if self.name else ""
        return bounded(f"<Graph{named} of {counted(len(self.inputs), 'input')} and {counted(len(self.calls), 'call')}>")

    # -- What a program writes

    def size(self, name: str, *, least: int = 1, most: int | None = None) -> int:
        """A size that is open: it is known when the graph runs, from the shapes of the inputs that have it.

        It computes as an integer does: ``2 * n``, ``n // 8``. A comparison is answered for a number between the bounds, and the
        graph then holds for the sizes with the same answer only.

        Args:
            name: its name. The same name is the same size.
            least: the least value. It may follow from other sizes: ``graph.size("n", least=graph.size("m") + 1)``.
            most: the largest value, which may, too; ``None`` if there is none.

        Raises:
            InvalidArgument: the name is no identifier, or the bounds are not integers, or it has other bounds already.
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument(message("Graph.size name", safe_repr(name), "an identifier, such as 'n'"))
        limits: Any = least, most
        if any(is_open(limit) and limit.record is not self.record for limit in limits):
            raise InvalidArgument(message(f"Graph.size {name}", "sizes of another graph", *OWN_SIZES))
        begin, end = map(hint, limits)
        inside = type(begin) is int and 0 <= begin <= _MOST_SIZE
        if not inside or not (end is None or (type(end) is int and max(begin, 1) <= end <= _MOST_SIZE)):
            with texts_for_messages():
                given = ", ".join(f"{key}={safe_repr(limit)}" for key, limit in (("least", least), ("most", most)))
            case = ", ".join(f"{key} is {hint(limit)}" for key, limit in (("least", least), ("most", most)) if is_open(limit))
            advice = f"While the graph is recorded, {case}: give the sizes in it bounds first." if case else ""
            raise InvalidArgument(
                message(f"Graph.size {name}", given, "integers, 0 <= least <= most < 2^63, and 1 <= most", advice)
            )
        bounds = tuple(map(key_of, limits))
        if bounds != (1, None) and self._bounds.get(name, bounds) != bounds:
            mine, first = (
                ", ".join(
                    f"{key}={self.record.text(limit[1]) if isinstance(limit, tuple) else limit}"
                    for key, limit in zip(("least", "most"), pair, strict=True)
                )
                for pair in (bounds, self._bounds[name])
            )
            raise InvalidArgument(message(f"Graph.size {name}", mine, f"{first}, as it was made with, or no bounds"))
        if name in self.record.symbols:
            return self.record.size(self.record.symbol_terms(name))  # type: ignore[return-value] # it passes for an integer
        self._bounds[name] = bounds
        lowest: Any = max(0, self.record.bounds(limits[0].terms)[0]) if is_open(least) else least
        highest = math.inf if most is None or is_open(most) else most
        size: Any = self.record.symbol(name, self._hint(begin, end), lowest, highest)
        if not (size >= least and (most is None or size <= most)):  # these are guards
            raise AssertionError(f"{name} is {hint(size)}, which is not from {begin} to {end}")
        return size

    def _hint(self, least: int, most: int | None) -> int:
        """What a size is while the graph is recorded: between its bounds, and that of no other size, if there is such a number."""
        others = {self.record.value(self.record.symbol_terms(name)) for name in self.record.symbols}
        last = least + _HINTS[0]  # not far above: products of sizes are tensors, too
        between = range(last if most is None else min(last, most - 1), least, -1)
        free = [n for n in (*_HINTS, *between) if least < n and (most is None or n < most) and n not in others]
        return next((n for n in free if math.gcd(n, 210) == 1), free[0] if free else max(least, most or least))

    def input(
        self,
        shape: Sequence[int | str],
        dtype: DType = "float32",
        *,
        strides: Sequence[int] | None = None,
        owned: bool = False,
        name: str = "",
    ) -> Expression:
        """An array that is given at each run.

        Args:
            shape: its sizes. A name is a size that is open (``size``): ``("n", 8)``.
            dtype: its type: one of DirectML's, or bool.
            strides: its strides in elements, without repetition; by default row-major without gaps.
            owned: it is given once, to ``CompiledGraph.initialize``, and kept (``DML_TENSOR_FLAG_OWNED_BY_DML``).
            name: its name, by which it is given. Each name may be used once.

        Raises:
            InvalidArgument: the shape, type or strides are invalid, or another input has this name.
        """
        kind = np.dtype(np.bool_) if getattr(dtype, "name", dtype) in ("bool", bool, np.bool_) else None
        data_type = TensorDataType.UINT8 if kind else TensorDataType.of(dtype, "Graph.input dtype")
        if data_type.is_nibble:
            given, allowed = data_type.tvm, "types of whole bytes"
            raise InvalidArgument(message("Graph.input dtype", given, allowed, "Give uint8, and DEQUANTIZE's own descriptor."))
        if isinstance(shape, str):
            raise InvalidArgument(message("Graph.input shape", safe_repr(shape), f"a sequence of sizes, such as ({shape!r}, 8)"))
        try:
            sizes = tuple(self.size(n) if isinstance(n, str) else n for n in itertools.islice(shape, MOST_VALUES))
        except TypeError:
            raise InvalidArgument(message("Graph.input shape", safe_repr(shape), "a sequence of sizes")) from None
        if any(n is None or (type(n) is int and n < 0) for n in sizes):
            allowed = "integers from 0 on; the name of a size that is open, such as ('n', 8)"
            raise InvalidArgument(message("Graph.input shape", safe_repr(shape), allowed))
        desc = ArrayTensorDesc(data_type, sizes or (1,), strides, zero_dimensional=not sizes)
        return self.described_input(desc, data_type.numpy if kind is None else kind, owned=owned, name=name)

    def described_input(self, desc: ArrayTensorDesc, dtype: npt.DTypeLike, *, owned: bool = False, name: str = "") -> Expression:
        """``input``, by a description of the array; ``dtype`` may be bool for UINT8."""
        if not isinstance(name, str):
            raise InvalidArgument(message("Graph.input name", safe_repr(name), "a string"))
        if name and any(one.name == name for one in self.inputs):
            raise InvalidArgument(message("Graph.input name", repr(name), "a name that no other input of the graph has"))
        self._require_own(desc, "Graph.input shape")
        node = Input(desc, np.dtype(dtype), owned, name, self.line())
        self.inputs.append(node)
        return Expression(self, Edge(node), desc, np.dtype(dtype))

    def constant(self, array: Array | Number, *, name: str = "") -> Expression:
        """An array that never changes. It is kept, not copied, unless it has gaps: do not write to it.

        Raises:
            InvalidArgument: it is not an array of one of DirectML's types, or bool.
        """
        if (known := self._constants.get(id(array))) is not None and known[0] is array:
            return known[1]
        found = self._constant(array, name)
        self._constants[id(array)] = (array, found)
        return found

    def _constant(self, array: Any, name: str) -> Expression:
        number = isinstance(array, (int, float, bool)) and not is_open(array)
        view = np.asarray(array) if number else arrays.view(array, "Graph.constant array")
        if type(view) is DeviceArray:
            view = view.numpy()
        packed = np.ascontiguousarray(view).reshape(view.shape)
        if packed.dtype.byteorder == ">" or not packed.flags.aligned:
            packed = packed.astype(packed.dtype.newbyteorder("="), copy=True)
        desc = functions.describe_array(packed, "Graph.constant array")
        return Expression(self, Edge(Constant(packed, name, self.line())), desc, packed.dtype)

    def sizes_array(self, elements: NumpyArray, dtype: npt.DTypeLike) -> Expression:
        """An array of integers that follow from sizes: a NumPy array of objects, which are sizes or Python's own integers."""
        data_type = TensorDataType.from_numpy(np.dtype(dtype))
        desc = ArrayTensorDesc(data_type, elements.shape or (1,), zero_dimensional=not elements.shape)
        node = SizesArray(tuple(elements.reshape(-1).tolist()), desc, "", self.line())
        return Expression(self, Edge(node), desc, np.dtype(dtype))

    def _number(self, size: Any, dtype: np.dtype[Any], where: str) -> Expression:
        """A size as an array without dimensions."""
        if dtype.kind != "f" and not np.iinfo(dtype).min <= size <= np.iinfo(dtype).max:
            with texts_for_messages():
                raise InvalidArgument(message(where, f"{size}", f"a number that {dtype}, the type of the arrays, can hold"))
        return self.sizes_array(np.array(size, object), dtype)

    def follows_from_sizes(self, expression: Expression) -> bool:
        """Whether the elements of an expression depend on sizes that are open."""
        return any(template.is_open for template in ProgramTemplate.of(recorded(self, [expression])).templates())

    def evaluated(self, expression: Expression) -> NumpyArray:
        """The elements of an expression that depends on no input. Sizes that are open are Python's own integers from then on."""
        program = ProgramTemplate.of(recorded(self, [expression])).filled(lambda size: size.own())
        place = targets.resolve("cpu", "")
        with remembering():
            passes.run_all(program.program, place)
            laid = laid_out(program, place)
        (array,) = CompiledGraph(laid, place)()
        return array

    def add(
        self, desc: Operator, inputs: Mapping[str, Expression | None] | Sequence[Expression | None], *, name: str = ""
    ) -> tuple[Expression | None, ...]:
        """Add a call of an operator by its descriptor, as DirectML's graphs do.

        Each input tensor of the descriptor reads the memory of an expression from its first element on, with its own sizes, strides
        and type: nothing is converted.

        Args:
            desc: the descriptor.
            inputs: an expression for each input tensor that is present: by the tensors' names, or in DirectML's order with ``None``
                for those that are absent.
            name: a name for messages.

        Returns:
            The outputs in DirectML's order, with ``None`` for those that are absent.

        Raises:
            InvalidArgument, Unsupported: the descriptor breaks its contract, an input is missing, or would read outside of memory.
        """
        if not issubclass(type(desc), Operator):  # an object may say that it is of another class
            raise InvalidArgument(message("Graph.add desc", safe_repr(desc), "an operator's descriptor"))
        if not isinstance(inputs, (Mapping, Sequence)):
            raise InvalidArgument(message(f"{desc.NAME} inputs", safe_repr(inputs), "a mapping or a sequence of expressions"))
        desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        wanted = dict(desc.tensors(Role.INPUT))
        given = inputs if isinstance(inputs, Mapping) else dict(zip(wanted, inputs, strict=False))
        if not isinstance(inputs, Mapping) and len(inputs) > len(wanted):
            raise InvalidArgument(message(f"{desc.NAME} inputs", len(inputs), f"{len(wanted)}: {', '.join(wanted)}"))
        edges = {}
        for key in given:
            if key not in wanted:
                raise InvalidArgument(message(f"{desc.NAME} inputs", repr(key), ", ".join(wanted)))
        for key, tensor in wanted.items():
            found = given.get(key)
            if (found is None) != (tensor is None):
                allowed = "None: the descriptor has no such tensor" if tensor is None else f"an expression for {tensor}"
                raise InvalidArgument(message(desc.where(key), "an expression" if found is not None else "None", allowed))
            if found is not None and tensor is not None:
                edges[key] = self._edge(found, tensor, desc.where(key))
        return self._added(Call(desc, edges, name, self.line()))

    def compile(
        self,
        outputs: Expression | Sequence[Expression],
        target: str | targets.Target = "cpu",
        *,
        feature_level: str | FeatureLevel | None = None,
        flags: object = None,
        progress: Callable[[int, int], None] | None = None,
        known: Mapping[Expression, Array] = MappingProxyType({}),
    ) -> CompiledGraph:
        """Compile all that some expressions depend on (``IDMLDevice1::CompileGraph``).

        Args:
            outputs: the expressions whose arrays each run returns; views and inputs, too.
            target: where to run, as for ``tvmdml.compile``.
            feature_level: the feature level that all operators must be part of; ``None`` is the newest.
            flags: DirectML's execution flags are accepted: none of them changes a result here.
            progress: called with (kernels ready, kernels in all) while kernels compile.
            known: arrays of owned inputs, by expression: constants of what is compiled, which ``initialize`` is not given. They are
                kept, not copied: do not write to them.

        Raises:
            InvalidArgument: an output is not an expression of this graph, or a known array does not fit.
            Unsupported: the target or the feature level does not support an operator.
            CompileError: a kernel does not compile.
        """
        several = self._several(outputs, "Graph.compile outputs")
        if not issubclass(type(known), Mapping):
            raise InvalidArgument(message("Graph.compile known", safe_repr(known), "a mapping from owned inputs to arrays"))
        if feature_level is not None:
            level = FeatureLevel.of(feature_level)
            for call in self.calls:
                call.desc.validate(level)
        place = targets.resolve(target, "Graph.compile target")
        values = dict(self._known(one, array) for one, array in known.items())
        if self.record.symbols:
            graph = OpenGraph(recorded(self, several, values), self.record, place)
            graph.check()
            return graph
        with remembering():
            laid = laid_out(finished(self, several, place, values), place, calls=self.calls, progress=progress, shared=self.shared)
        return CompiledGraph(laid, place)

    def _several(self, given: Any, where: str) -> list[Expression]:
        """The expressions of this graph in a sequence, which need not have an end, or the only one."""
        waiting = None
        if not isinstance(given, Mapping):
            with contextlib.suppress(TypeError):
                waiting = iter((given,) if _is_expression(given) else given)
        if waiting is None:
            allowed = "a sequence of expressions of this graph: results come in its order"
            raise InvalidArgument(message(where, safe_repr(given), allowed))
        found: list[Expression] = []
        for one in waiting:
            if not _is_expression(one) or one.graph is not self:
                shown = "an expression of another graph" if _is_expression(one) else safe_repr(one)
                raise InvalidArgument(message(where, shown, "expressions of this graph"))
            if len(found) == _MOST_OUTPUTS:
                raise InvalidArgument(message(where, f"more than {_MOST_OUTPUTS} expressions", f"at most {_MOST_OUTPUTS}"))
            found.append(one)
        if not found:
            raise InvalidArgument(message(where, "none", "at least one expression"))
        return found

    # -- What functions call

    def trace_call(
        self,
        describe: functions.Describe,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        optional: bool,
        boolean: bool,
        finish: functions.Finish | None,
    ) -> tuple[Any, ...]:
        """Add the call of a function; the arguments are those of ``functions.call``."""
        function = functions.name_of(describe)
        names = [functions.input_name(describe, i) for i in range(len(inputs))]
        takes = getattr(describe, "scalars", None)
        if takes is not None and any(type(one) in PYTHON or is_open(one) for one in inputs):
            arrays_of = as_arrays(tuple(1 if is_open(one) else one for one in inputs), attributes, takes, lambda i: names[i])
            inputs = tuple(
                self._number(one, array.dtype, name)
                if is_open(one) and type(array) is np.ndarray
                else one
                if is_open(one)
                else array
                for one, array, name in zip(inputs, arrays_of, names, strict=True)
            )
        tensors = [None if one is None and optional else self._traced(one, name) for one, name in zip(inputs, names, strict=True)]
        for i, one in enumerate(tensors):
            if one is not None and one.dtype == np.bool_ and not boolean:
                raise InvalidArgument(
                    message(names[i], "data type bool", "numbers", "Pass x.view('uint8'), which has the same bytes.")
                )
        with called_by(function):
            found = self._described(describe, tuple([None if one is None else one.desc for one in tensors]), attributes)
        desc, dtypes, shapes = found
        wanted = [(name, tensor) for name, tensor in desc.tensors(Role.INPUT) if tensor is not None]
        present = [one for one in tensors if one is not None]
        edges = {name: self._edge(one, tensor, names[0]) for (name, tensor), one in zip(wanted, present, strict=True)}
        results = [one for one in self._added(Call(desc, edges, "", self.line())) if one is not None]
        own: tuple[None, ...] = (None,) * len(results)
        if finish is not None:
            before = [one.desc.sizes if shape is None else shape for one, shape in zip(results, shapes or own, strict=True)]
            rule = getattr(finish, "shapes", None)
            if rule is None or [list(one) for one in rule([None if t is None else t.shape for t in tensors], before)] != [
                list(one) for one in before
            ]:
                given = "an expression of a graph, for a result whose shape depends on the elements"
                raise Unsupported(message(function, given, "arrays", "Ask for the whole result, where the function has a way."))
        return tuple(map(_as_named, results, dtypes or own, shapes or own))

    def _described(self, describe: functions.Describe, descs: tuple[Any, ...], attributes: tuple[Any, ...]) -> functions.Described:
        try:
            key = describe, Template((descs, attributes)).key
            known = self.described.get(key)
        except Exception:  # an attribute that cannot be hashed: what is wrong with it is said there
            return functions.described(describe, descs, attributes)
        if known is None:
            known = self.described[key] = functions.described(describe, descs, attributes)
        return known

    def line(self) -> object:
        """The line of the program that is running, as what ``str`` makes of it: the nearest one outside of tvmdml."""
        return _line(_caller()[1])

    @staticmethod
    def _asker() -> str:
        """What of tvmdml the program calls, and where: for messages about guards."""
        function, frame = _caller()
        return f"{'a comparison' if function.startswith('__') else function} at {_line(frame)}"

    def _require_own(self, tensor: TensorDesc, where: str) -> None:
        sizes: tuple[Any, ...] = tensor.sizes
        if any(is_open(size) and size.record is not self.record for size in sizes):
            raise InvalidArgument(message(where, "sizes of another graph", *OWN_SIZES))

    def _traced(self, given: Any, where: str) -> Expression:
        if _is_expression(given):
            if given.graph is not self:
                raise InvalidArgument(message(where, "an expression of another graph", "expressions of one graph"))
            return given
        return self.constant(given)

    def _known(self, given: Any, array: Any) -> tuple[NodeOutput, Edge]:
        where = "Graph.compile known"
        node = given.edge.source if _is_expression(given) and given.graph is self else None
        if not isinstance(node, Input) or not node.owned or given.edge.offset:
            raise InvalidArgument(message(where, safe_repr(given), "owned inputs of this graph"))
        found = self._constant(array, node.name)
        if not node.desc.is_packed or (found.dtype, found.shape) != (node.dtype, given.shape):
            form = f"{found.dtype}{list(found.shape)} for {node}"
            raise InvalidArgument(message(where, form, f"{node.dtype}{list(given.shape)}, for an input without strides"))
        return given.edge.value, found.edge

    @naming_sizes
    def _edge(self, given: Expression, tensor: TensorDesc, where: str) -> Edge:
        if not _is_expression(given) or given.graph is not self:
            shown = "one of another graph" if _is_expression(given) else safe_repr(given)
            raise InvalidArgument(message(where, shown, "an expression of this graph"))
        room = given.edge.source.bytes_of(given.edge.output) - given.edge.offset
        if tensor.span_in_bytes > room:
            raise InvalidArgument(
                message(where, f"{given.edge.source} with {room} bytes", f"the {tensor.span_in_bytes} bytes of {tensor}")
            )
        if given.edge.offset % tensor.data_type.itemsize:
            allowed = f"one that begins at a multiple of {tensor.data_type.itemsize} bytes"
            raise InvalidArgument(message(where, f"{given.edge.source} from byte {given.edge.offset} on", allowed))
        owned = bool(tensor.flags & TensorFlags.OWNED_BY_DML)
        if owned and not never_changes(given.edge.source):
            raise InvalidArgument(message(where, f"OWNED_BY_DML, of {given.edge.source}", "an owned input or a constant"))
        return given.edge

    def _added(self, call: Call) -> tuple[Expression | None, ...]:
        self.calls.append(call)
        results: list[Expression | None] = []
        for i, tensor in enumerate(call.outputs()):
            if tensor is None:
                results.append(None)
                continue
            self._require_own(tensor, call.desc.NAME)
            zero = getattr(tensor, "zero_dimensional", False)
            desc = ArrayTensorDesc(tensor.data_type, tensor.sizes, tensor.strides, zero_dimensional=zero)
            results.append(Expression(self, Edge(call, i), desc, tensor.data_type.numpy))
        return tuple(results)


def _caller() -> tuple[str, FrameType]:
    """The name of the function of tvmdml that the program called, and the frame that did so."""
    frame = sys._getframe(2)
    name = ""
    while frame.f_back is not None and (frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"):
        name, frame = frame.f_code.co_name, frame.f_back
    return name, frame


def _line(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _as_named(one: Expression, dtype: str | None, shape: tuple[int, ...] | None) -> Expression:
    """A result with the type and shape that the caller of the function sees."""
    if dtype is None and shape is None:
        return one
    sizes = one.desc.sizes if shape is None else tuple(shape)
    kind = one.dtype if dtype is None else np.dtype(dtype)
    desc = ArrayTensorDesc(TensorDataType.from_numpy(kind), sizes or (1,), zero_dimensional=not sizes)
    return Expression(one.graph, one.edge, desc, kind)


def _is_expression(given: Any) -> TypeGuard[Expression]:
    """Whether it is one: an object may say that it is of another class."""
    return issubclass(type(given), Expression)


def finished(
    graph: Graph, outputs: Sequence[Expression], target: targets.Target, instead: Mapping[NodeOutput, Edge] = MappingProxyType({})
) -> Finished:
    """What some expressions of a graph depend on, after all passes, with other memory in the places of some values."""
    found = recorded(graph, outputs, instead)
    passes.run_all(found.program, target)
    return found


def recorded(graph: Graph, outputs: Sequence[Expression], instead: Mapping[NodeOutput, Edge] = MappingProxyType({})) -> Finished:
    """The same before all passes."""
    results, copies = _results(outputs)
    every = [*graph.calls, *copies]
    program = Program(needed(every, results), results, graph.precision)
    program.replace(instead)
    return Finished(graph.name, list(graph.inputs), program, [(one.dtype, one.shape) for one in outputs])


def _results(outputs: Sequence[Expression]) -> tuple[list[ProgramOutput], list[Call]]:
    """The outputs as whole results of calls, and the copies for that: of a view, an input, or the same output again."""
    results: list[ProgramOutput] = []
    copies: list[Call] = []
    seen: set[NodeOutput] = set()
    for one in outputs:
        edge, desc = one.edge, one.desc
        whole = isinstance(edge.source, Call) and edge.offset == 0 and desc.is_packed
        if not whole or edge.value in seen or edge.source.bytes_of(edge.output) != desc.span_in_bytes:
            source = TensorDesc(desc.data_type, desc.sizes, desc.strides) if desc.element_count else desc
            copy = Call(ElementWiseIdentity.of(source), {"input_tensor": edge}, "", "")
            copies.append(copy)
            edge = Edge(copy)
        seen.add(edge.value)
        results.append(ProgramOutput(edge, TensorDesc(desc.data_type, desc.sizes) if desc.element_count else desc))
    return results, copies
