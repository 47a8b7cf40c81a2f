"""``emit``: from a device function that TVM has lowered to SPIR-V, without a compiler in between.

A vector value is a tuple of scalar values: drivers vectorize again as their processor needs it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import message
from tvmdml.targets.vulkan.capabilities import Capabilities
from tvmdml.targets.vulkan.spirv_arithmetic import Arithmetic, Value, each
from tvmdml.targets.vulkan.spirv_calls import Calls
from tvmdml.targets.vulkan.spirv_memory import ShaderMemory
from tvmdml.targets.vulkan.spirv_module import ENTRY, Module
from tvmdml.targets.vulkan.spirv_tables import BINARY, BOOL, COMPARE, LOOP_CONTROL, SCALARS, SELECTION_CONTROL, UINT, Scalar

if TYPE_CHECKING:
    from tvm.tirx import PrimExpr, PrimFunc

_AXES = "xyz"
# The ``struct`` format of a push constant.
_FORMATS = {
    SCALARS[name]: form for name, form in zip(("int32", "uint32", "float32", "int64", "uint64", "float64"), "iIfqQd", strict=True)
}


class Shader(NamedTuple):
    """A device function's code, and the facts needed to launch it."""

    code: bytes
    entry: str
    block: tuple[int, int, int]
    """Threads in a group."""
    grid: tuple[PrimExpr | int, PrimExpr | int, PrimExpr | int]
    """Groups: expressions over the scalar parameters."""
    buffers: tuple[int, ...]
    """Which parameters are storage buffers: set 0, bindings in this order."""
    scalars: tuple[tuple[int, str], ...]
    """Which parameters are scalars, and their types, in the order of the push constants."""
    push: tuple[tuple[int, str], ...]
    """The offsets in the block of push constants, and the ``struct`` formats, which have at least 32 bits."""
    push_bytes: int
    reads: tuple[bool, ...]
    """Which of the buffers are read."""
    writes: tuple[bool, ...]


class _Loop(NamedTuple):
    merge: int
    proceed: int


def emit(function: PrimFunc, capabilities: Capabilities) -> Shader:
    """Translate a lowered device function for devices of these capabilities.

    Raises:
        CompileError: SPIR-V or the device has no equivalent for a part of it, or it exceeds a limit of the device.
    """
    writer = _Writer(function, capabilities, has_matrices=False)
    shader = writer.shader()
    # With matrices the memory model is another one, in which code before the first of them was written as well.
    return _Writer(function, capabilities, has_matrices=True).shader() if writer.module.has_matrices else shader


class _Writer:
    """Translates one function. ``visit`` handles statements, ``value`` expressions."""

    def __init__(self, function: PrimFunc, device: Capabilities, has_matrices: bool) -> None:
        attributes = function.attrs
        self.function = function
        self.module = Module(str(attributes["global_symbol"]) if "global_symbol" in attributes else "a function", device)
        self.arithmetic = Arithmetic(self.module)
        self.module.has_matrices = has_matrices
        self.memory = ShaderMemory(self.arithmetic, "tirx.noalias" in attributes and bool(attributes["tirx.noalias"]))
        self.calls = Calls(self)
        self._values: dict[int, Value] = {}
        self._extents: dict[str, Any] = {}
        self._runs: dict[int, int] = {}
        """The most elements of a buffer that are loaded or stored at once."""
        self._loops: list[_Loop] = []
        self._is_open = True
        """Whether the next instruction is reachable: not after a break, a continue or a return."""

    def shader(self) -> Shader:
        """Translate the whole function."""
        buffers, scalars = self._parameters()
        push = self._push_constants(scalars)
        self._look_ahead(self.function.body)
        self.visit(self.function.body)
        if self._is_open:
            self.module.emit("Return")
        block = self._block()
        self.memory.finish()
        x, y, z = (_plain(self._extents.get(f"blockIdx.{axis}", 1)) for axis in _AXES)
        names = tuple((place, scalar.name) for place, _, scalar in scalars)
        size = push[-1][0] + struct.calcsize(push[-1][1]) if push else 0
        reads, writes = self.memory.uses()
        return Shader(self.module.assemble(block), ENTRY, block, (x, y, z), buffers, names, push, size, reads, writes)

    # -- Parameters and threads

    def _parameters(self) -> tuple[tuple[int, ...], list[tuple[int, Any, Scalar]]]:
        buffers: list[int] = []
        scalars: list[tuple[int, Any, Scalar]] = []
        for place, parameter in enumerate(self.function.params):
            kind = parameter.ty
            is_buffer = hasattr(kind, "element_type")
            dtype = str(kind.element_type.dtype if is_buffer else kind.dtype)
            if dtype not in SCALARS:
                self.module.refuse(f"parameter {parameter.name} has the type {dtype}, which SPIR-V does not have")
            if is_buffer:
                buffers.append(place)
                self.memory.parameter(parameter, str(parameter.name), SCALARS[dtype])
            else:
                scalars.append((place, parameter, SCALARS[dtype]))
        self._limit("storage buffers", len(buffers), self.module.device.max_buffers)
        # The widest first: then each is aligned to its size, without gaps.
        scalars.sort(key=lambda scalar: -scalar[2].bits)
        return tuple(buffers), scalars

    def _push_constants(self, scalars: list[tuple[int, Any, Scalar]]) -> tuple[tuple[int, str], ...]:
        if not scalars:
            return ()
        # Narrow push constants would need features that not every device has.
        stored = [scalar if scalar.bits >= 32 else Scalar(scalar.kind.replace("bool", "uint"), 32) for _, _, scalar in scalars]
        ends = [0]
        for scalar in stored:
            ends.append(ends[-1] + scalar.bits // 8)
        self._limit("push-constant bytes", ends[-1], self.module.device.max_push_bytes)
        module = self.module
        types = [module.type(scalar) for scalar in stored]
        variable = module.variable("PushConstant", module.structure(types, ends[:-1]))
        for member, (_, parameter, scalar) in enumerate(scalars):
            held, kind = stored[member], types[member]
            element = module.pointer("PushConstant", kind)
            place = module.result("AccessChain", element, variable, module.constant(UINT, member))
            number = module.result("Load", kind, place)
            module.describe(number, str(parameter.name))
            if not scalar.is_narrow:
                number = self.arithmetic.cast(held, scalar, number)
            self._values[parameter.__chandle__()] = Value(scalar, (number,))
        return tuple((offset, _FORMATS[scalar]) for offset, scalar in zip(ends, stored, strict=False))

    def _look_ahead(self, body: Any) -> None:
        """Define all thread indices in the first block, which dominates every use, and find what is loaded or stored in runs."""
        stack = [body]
        indices: dict[str, int] = {}
        while stack:
            node = stack.pop()
            kind = type(node).__name__
            if kind == "SeqStmt":
                stack.extend(node.seq)
            elif kind == "AttrStmt":
                if str(node.attr_key) == "thread_extent":
                    self._declare_thread(node, indices)
                stack.append(node.body)
            elif kind in ("For", "While"):
                stack.append(node.body)
            elif kind == "IfThenElse":
                stack.extend(case for case in (node.then_case, node.else_case) if case is not None)
            elif kind == "BufferStore" and type(index := node.indices[0]).__name__ == "Ramp":
                self._note_run(node.buffer, index)
                if type(node.value).__name__ in ("BufferLoad", "TensorLoad"):
                    self._note_run(node.value.source, node.value.indices[0])

    def _note_run(self, buffer: Any, index: Any) -> None:
        if type(index).__name__ == "Ramp" and type(index.lanes).__name__ == "IntImm":
            handle, lanes = buffer.__chandle__(), int(index.lanes.value)
            self._runs[handle] = max(lanes, self._runs.get(handle, 1))

    def _declare_thread(self, node: Any, indices: dict[str, int]) -> None:
        tag, variable = str(node.node.thread_tag), node.node.var
        room, _, axis = tag.partition(".")
        builtin = {"blockIdx": "WorkgroupId", "threadIdx": "LocalInvocationId"}.get(room)
        if builtin is None or axis not in ("x", "y", "z"):
            self.module.refuse(f"cannot translate the thread index {tag} to SPIR-V")
        self._extents.setdefault(tag, node.value)
        if tag not in indices:
            vector = self.module.result("Load", self.module.vector(UINT, 3), self.module.builtin(builtin, 3))
            indices[tag] = self.module.result("CompositeExtract", self.module.type(UINT), vector, _AXES.index(axis))
            self.module.describe(indices[tag], tag)
        scalar = SCALARS[str(variable.ty.dtype)]
        self._values[variable.__chandle__()] = Value(scalar, (self.arithmetic.cast(UINT, scalar, indices[tag]),))

    def _block(self) -> tuple[int, int, int]:
        device = self.module.device
        extents = [_plain(self._extents.get(f"threadIdx.{axis}", 1)) for axis in _AXES]
        for axis, extent, allowed in zip(_AXES, extents, device.max_group_size, strict=True):
            if not isinstance(extent, int):
                self.module.refuse(f"threadIdx.{axis} has the extent {extent}, which is not a constant")
            self._limit(f"threads in a group along {axis}", extent, allowed)
        x, y, z = extents
        self._limit("threads in a group", x * y * z, device.max_threads)
        return x, y, z

    def _limit(self, what: str, given: int, allowed: int) -> None:
        if given > allowed:
            self.module.refuse(message(what, given, f"up to {allowed} on this device"))

    # -- Statements

    def visit(self, node: Any) -> None:
        """Translate a statement."""
        if not self._is_open:
            return
        kind = type(node).__name__
        visit = _STATEMENTS.get(kind)
        if visit is None:
            self.module.refuse(f"cannot translate {kind} to SPIR-V")
        visit(self, node)

    def _sequence(self, node: Any) -> None:
        for statement in node.seq:
            self.visit(statement)

    def _attribute(self, node: Any) -> None:
        self.visit(node.body)

    def _nothing(self, node: Any) -> None:
        """An assertion: the caller has already checked its condition."""

    def _declare(self, node: Any) -> None:
        self.memory.declare(node.buffer, node.data)

    def _allocate(self, node: Any) -> None:
        self.memory.allocate(node.buffer, self._runs.get(node.buffer.__chandle__(), 1))

    def _bind(self, node: Any) -> None:
        self._values[node.var.__chandle__()] = self.value(node.value)

    def _evaluate(self, node: Any) -> None:
        expression = node.value
        if type(expression).__name__ == "IntImm":
            return
        if type(expression).__name__ == "Call":
            name = str(expression.op.name)
            if name == "tirx.thread_return":
                self._leave("Return")
                return
            if name in ("tirx.break_loop", "tirx.continue_loop"):
                loop = self._loops[-1]
                self._leave("Branch", loop.merge if name == "tirx.break_loop" else loop.proceed)
                return
        self.value(expression)

    def _store(self, node: Any) -> None:
        value, buffer, place = self.value(node.value), node.buffer, self._place(node)
        if (run := self._run(place)) is not None:
            words = self.memory.words(buffer, run.lanes[0], len(value.lanes))
            if words:
                self.memory.store_words(buffer, run.lanes[0], run.scalar, value.lanes, words)
                return
        for index, lane in zip(self._index(place).lanes, value.lanes, strict=True):
            self.memory.store(buffer, index, lane)

    def _if(self, node: Any) -> None:
        (condition,) = self.value(node.condition).lanes
        otherwise = node.else_case
        then, merge = self.module.id(), self.module.id()
        other = merge if otherwise is None else self.module.id()
        self._fork(condition, then, other, merge)
        goes_on = otherwise is None
        for label, case in ((then, node.then_case), (other, otherwise)):
            if case is not None:
                self._enter(label)
                with self.module.branch():
                    self.visit(case)
                goes_on |= self._is_open
                self._proceed(merge)
        self._enter(merge)
        if not goes_on:
            self._leave("Unreachable")

    def _for(self, node: Any) -> None:
        module, arithmetic = self.module, self.arithmetic
        scalar, (begin,) = self.value(node.min)
        _, (end,) = self.value(node.extent)
        if not _is_zero(node.min):
            end = arithmetic.binary("Add", scalar, begin, end)
        step = arithmetic.constant(scalar, 1) if node.step is None else self.value(node.step).lanes[0]
        before, header, body, proceed, merge = module.current_block, *(module.id() for _ in range(4))
        self._proceed(header)
        self._enter(header)
        index, complete = module.loop_phi(arithmetic.type(scalar), begin, before, proceed)
        arithmetic.know_zeros(index, min(arithmetic.zeros(begin), arithmetic.zeros(step)))
        module.describe(index, str(node.loop_var.name))
        self._values[node.loop_var.__chandle__()] = Value(scalar, (index,))
        goes_on = arithmetic.compare("LT", scalar, index, end)
        unrolled = "Unroll" if int(node.kind) == _UNROLLED else "DontUnroll" if scalar.bits == 64 else "None"
        module.emit("LoopMerge", merge, proceed, LOOP_CONTROL[unrolled])
        module.emit("BranchConditional", goes_on, body, merge)
        self._body(node.body, body, _Loop(merge, proceed))
        complete(arithmetic.binary("Add", scalar, index, step))
        module.emit("Branch", header)
        self._enter(merge)

    def _while(self, node: Any) -> None:
        module = self.module
        header, test, body, proceed, merge = (module.id() for _ in range(5))
        self._proceed(header)
        self._enter(header)
        # Mesa 22.3 unrolls a loop with a 64-bit counter one iteration too short.
        module.emit("LoopMerge", merge, proceed, LOOP_CONTROL["DontUnroll"])
        module.emit("Branch", test)
        self._enter(test)  # a separate block, because the condition may contain branches
        (condition,) = self.value(node.condition).lanes
        module.emit("BranchConditional", condition, body, merge)
        self._body(node.body, body, _Loop(merge, proceed))
        module.emit("Branch", header)
        self._enter(merge)

    def _body(self, node: Any, label: int, loop: _Loop) -> None:
        """A loop's body, up to the start of the block that continues with the next iteration."""
        self._enter(label)
        self._loops.append(loop)
        with self.module.branch():
            self.visit(node)
        self._loops.pop()
        self._proceed(loop.proceed)
        self._enter(loop.proceed)

    # -- Blocks

    def _enter(self, label: int) -> None:
        self.module.label(label)
        self._is_open = True

    def _proceed(self, label: int) -> None:
        """End the block with a branch, unless it has already ended."""
        if self._is_open:
            self._leave("Branch", label)

    def _leave(self, name: str, *operands: int) -> None:
        self.module.emit(name, *operands)
        self._is_open = False

    def _fork(self, condition: int, then: int, other: int, merge: int) -> None:
        self.module.emit("SelectionMerge", merge, SELECTION_CONTROL["None"])
        self.module.emit("BranchConditional", condition, then, other)

    # -- Expressions

    def value(self, node: Any) -> Value:
        """Translate an expression."""
        kind = type(node).__name__
        if kind in BINARY or kind in _MORE_BINARY:
            (scalar, a), (_, b) = self.value(node.a), self.value(node.b)
            return Value(scalar, each(lambda x, y: self.arithmetic.binary(kind, scalar, x, y), a, b))
        if kind in COMPARE:
            (scalar, a), (_, b) = self.value(node.a), self.value(node.b)
            return Value(BOOL, each(lambda x, y: self.arithmetic.compare(kind, scalar, x, y), a, b))
        if kind == "Call":
            return self.calls.call(node)
        translate = _EXPRESSIONS.get(kind)
        if translate is None:
            self.module.refuse(f"cannot translate {kind} to SPIR-V")
        return translate(self, node)

    def type_of(self, node: Any) -> tuple[Scalar, int]:
        """An expression's type, and its number of lanes."""
        dtype = str(node.ty.dtype)
        found = _TYPES.get(dtype)
        if found is None:
            name, _, lanes = dtype.partition("x")
            if name not in SCALARS or not (lanes or "1").isdecimal():
                self.module.refuse(f"cannot translate a {dtype} to SPIR-V")
            found = _TYPES[dtype] = SCALARS[name], int(lanes or 1)
        return found

    def address(self, node: Any) -> int:
        """The index of a load of one element."""
        return self._index(self._place(node)).lanes[0]

    def _place(self, node: Any) -> Any:
        """The index of a load or a store."""
        indices = node.indices
        if len(indices) != 1:
            self.module.refuse("cannot translate a buffer of several dimensions to SPIR-V")
        return indices[0]

    def _run(self, index: Any) -> Value | None:
        """The index of the first element, if the elements are contiguous."""
        if type(index).__name__ != "Ramp" or type(index.stride).__name__ != "IntImm" or index.stride.value != 1:
            return None
        return self._index(index.base)

    def _index(self, node: Any) -> Value:
        """The value of an index: a word where the device has nothing longer, as no buffer of it has more elements."""
        scalar, lanes = self.value(node)
        if scalar.bits < 64 or self.module.device.int64:
            return Value(scalar, lanes)
        return Value(UINT, each(lambda lane: self.arithmetic.cast(scalar, UINT, lane), lanes))

    def lazily(self, condition: int, then: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
        """One value or the other; the value that is not selected is not computed."""
        module = self.module
        first, second, merge = module.id(), module.id(), module.id()
        self._fork(condition, first, second, merge)
        arms: list[tuple[Value, int]] = []
        for label, arm in ((first, then), (second, otherwise)):
            module.label(label)
            with module.branch():
                value = arm()
            arms.append((value, module.current_block))
            module.emit("Branch", merge)
        module.label(merge)
        (a, from_a), (b, from_b) = arms
        kind = self.arithmetic.type(a.scalar)
        return Value(a.scalar, each(lambda x, y: module.phi(kind, x, from_a, y, from_b), a.lanes, b.lanes))

    def _variable(self, node: Any) -> Value:
        found = self._values.get(node.__chandle__())
        if found is None:
            self.module.refuse(f"{node.name} has no value here")
        return found

    def _number(self, node: Any) -> Value:
        scalar, _ = self.type_of(node)
        return Value(scalar, (self.arithmetic.constant(scalar, node.value),))

    def _cast(self, node: Any) -> Value:
        (source, lanes), (target, _) = self.value(node.value), self.type_of(node)
        return Value(target, each(lambda x: self.arithmetic.cast(source, target, x), lanes))

    def _not(self, node: Any) -> Value:
        return Value(BOOL, each(self.arithmetic.negation, self.value(node.a).lanes))

    def _inverse(self, node: Any) -> Value:
        scalar, lanes = self.value(node.a)
        return Value(scalar, each(lambda x: self.arithmetic.inverse(scalar, x), lanes))

    def _select(self, node: Any) -> Value:
        condition = self.value(node.condition).lanes
        (scalar, a), (_, b) = self.value(node.true_value), self.value(node.false_value)
        if len(condition) < len(a):
            condition *= len(a)
        return Value(scalar, each(lambda c, x, y: self.arithmetic.select(scalar, c, x, y), condition, a, b))

    def _load(self, node: Any) -> Value:
        buffer, place = node.source, self._place(node)
        scalar = self.memory.scalar(buffer)
        if (run := self._run(place)) is not None:
            _, count = self.type_of(node)
            words = self.memory.words(buffer, run.lanes[0], count)
            if words:
                return Value(scalar, self.memory.load_words(buffer, run.lanes[0], run.scalar, count, words))
        return Value(scalar, tuple(self.memory.load(buffer, index) for index in self._index(place).lanes))

    def _let(self, node: Any) -> Value:
        self._values[node.var.__chandle__()] = self.value(node.value)
        return self.value(node.body)

    def _broadcast(self, node: Any) -> Value:
        scalar, lanes = self.value(node.value)
        _, count = self.type_of(node)
        return Value(scalar, lanes * (count // len(lanes)))

    def _ramp(self, node: Any) -> Value:
        _, count = self.type_of(node)
        scalar, (base,) = self.value(node.base)
        arithmetic, stride = self.arithmetic, node.stride
        if type(stride).__name__ == "IntImm":
            steps = [arithmetic.constant(scalar, lane * int(stride.value)) for lane in range(1, count)]
        else:
            _, (step,) = self.value(stride)
            steps = [arithmetic.binary("Mul", scalar, step, arithmetic.constant(scalar, lane)) for lane in range(1, count)]
        return Value(scalar, (base, *(arithmetic.binary("Add", scalar, base, step) for step in steps)))

    def _shuffle(self, node: Any) -> Value:
        vectors = [self.value(vector) for vector in node.vectors]
        lanes = [lane for vector in vectors for lane in vector.lanes]
        return Value(vectors[0].scalar, tuple(lanes[int(index.value)] for index in node.indices))


_UNROLLED = 3  # tirx.ForKind.UNROLLED
_MORE_BINARY = {"Min", "Max", "Mod"}
_TYPES: dict[str, tuple[Scalar, int]] = {}
_STATEMENTS: dict[str, Callable[[_Writer, Any], None]] = {
    "AllocBuffer": _Writer._allocate,
    "AssertStmt": _Writer._nothing,
    "AttrStmt": _Writer._attribute,
    "Bind": _Writer._bind,
    "BufferStore": _Writer._store,
    "DeclBuffer": _Writer._declare,
    "Evaluate": _Writer._evaluate,
    "For": _Writer._for,
    "IfThenElse": _Writer._if,
    "SeqStmt": _Writer._sequence,
    "While": _Writer._while,
}
_EXPRESSIONS: dict[str, Callable[[_Writer, Any], Value]] = {
    "BitwiseNot": _Writer._inverse,
    "Broadcast": _Writer._broadcast,
    "BufferLoad": _Writer._load,
    "Cast": _Writer._cast,
    "FloatImm": _Writer._number,
    "IntImm": _Writer._number,
    "Let": _Writer._let,
    "Not": _Writer._not,
    "Ramp": _Writer._ramp,
    "Select": _Writer._select,
    "Shuffle": _Writer._shuffle,
    "TensorLoad": _Writer._load,
    "Var": _Writer._variable,
}


def _is_zero(node: Any) -> bool:
    return type(node).__name__ == "IntImm" and node.value == 0


def _plain(extent: Any) -> Any:
    """An extent as an integer, if it is constant."""
    return int(extent.value) if type(extent).__name__ == "IntImm" else extent
