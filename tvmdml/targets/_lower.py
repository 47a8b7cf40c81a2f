"""Lower a scheduled TensorIR function to what a device runs: its launches, in order, each with a device function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tvmdml.errors import CompileError
from tvmdml.system import imports
from tvmdml.targets import _program
from tvmdml.targets._program import IntegerExpression

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.tirx import PrimFunc

# The passes for a kernel, with their arguments: it is written as explicit loops, which need few. What is common to expressions
# is looked for in each launch alone: before they are split, what two launches share would become an argument of both.
_PASSES: tuple[tuple[Any, ...], ...] = (
    ("StmtSimplify",), ("VectorizeLoop", True), ("UnrollLoop",), ("AnnotateEntryFunc",),
    ("SplitHostDevice",), ("CommonSubexprElim",), ("LowerIntrin",),
)  # fmt: skip


class LoweredStep(NamedTuple):
    """One launch: a device function's name and its arguments. A buffer is a parameter's number, a scalar an expression."""

    name: str
    arguments: tuple[int | IntegerExpression, ...]
    extents: dict[str, IntegerExpression]
    """The extents of ``blockIdx.x``, ``threadIdx.x`` and so on."""


class Lowered(NamedTuple):
    """A lowered function."""

    functions: dict[str, PrimFunc]
    """The device functions, by name."""
    steps: tuple[LoweredStep, ...]
    parameters: tuple[str, ...]
    """The type of each parameter; empty for a buffer."""


class Emitted(Protocol):
    """What a target's code generator reports about a device function to the code that launches it."""

    @property
    def buffers(self) -> tuple[int, ...]:
        """Which parameters are buffers."""

    @property
    def scalars(self) -> tuple[tuple[int, str], ...]:
        """Which parameters are scalars, and their types, in the order of the scalar block."""

    @property
    def reads(self) -> tuple[bool, ...]:
        """Which of the buffers are read."""

    @property
    def writes(self) -> tuple[bool, ...]:
        """Which of the buffers are written."""


def lower(function: PrimFunc) -> Lowered:
    """Lower a function for a device: it is written as explicit loops.

    Raises:
        CompileError: TVM rejects it, or it needs work between launches that only the host could do.
    """
    tvm = imports.tvm()
    try:
        split = _passes()(tvm.IRModule({"main": function}))
    except Exception as error:
        raise CompileError(f"TVM could not lower the kernel: {error}") from error
    return _read(split)


def launches(
    lowered: Lowered, emitted: Mapping[str, Emitted], numbers: Mapping[str, int]
) -> tuple[tuple[_program.ProgramStep, ...], tuple[int, ...], tuple[int, ...]]:
    """The launches of a program, and the buffers that they read and write; ``numbers`` are the functions' numbers, by name."""
    steps: list[_program.ProgramStep] = []
    reads: set[int] = set()
    writes: set[int] = set()
    for step in lowered.steps:
        found = emitted[step.name]
        buffers = tuple(place for position in found.buffers if isinstance(place := step.arguments[position], int))
        reads.update(buffer for buffer, read in zip(buffers, found.reads, strict=True) if read)
        writes.update(buffer for buffer, written in zip(buffers, found.writes, strict=True) if written)
        scalars = tuple(step.arguments[position] for position, _ in found.scalars)
        x, y, z = (step.extents.get(f"blockIdx.{axis}", 1) for axis in "xyz")
        steps.append(_program.ProgramStep(numbers[step.name], buffers, scalars, (x, y, z)))
    return tuple(steps), tuple(sorted(reads)), tuple(sorted(writes))


def _passes() -> Any:
    tvm = imports.tvm()
    from tvm import tirx

    found = [getattr(tirx.transform, name)(*arguments) for name, *arguments in _PASSES]
    return tvm.transform.Sequential([tirx.transform.BindTarget(tvm_target()), *found])


def tvm_target() -> Any:
    """The target for TVM's passes, the same for all devices: with Vulkan they keep the names of TensorIR's functions."""
    tvm = imports.tvm()
    features = {f"supports_{name}": True for name in ("int8", "int16", "int64", "float16", "float64")}
    return tvm.target.Target({"kind": "vulkan", "max_num_threads": 1024, "max_threads_per_block": 1024, **features}, host="llvm")


def _read(module: IRModule) -> Lowered:
    functions = {str(var.name_hint): function for var, function in module.functions.items()}
    host = functions.pop("main")
    places: dict[Any, Any] = {parameter: number for number, parameter in enumerate(host.params)}
    parameters = tuple(_scalar_type(parameter) for parameter in host.params)
    named: dict[Any, int | IntegerExpression] = {
        p: ("scalar", places[p]) for p, kind in zip(host.params, parameters, strict=True) if kind
    }
    steps: list[LoweredStep] = []

    def expression(node: Any) -> int | IntegerExpression:
        kind = type(node).__name__
        if kind == "IntImm":
            return int(node.value)
        if kind == "Var" and node in named:
            return named[node]
        if kind == "Cast":
            return expression(node.value)
        if kind in _OPERATORS:
            return (_OPERATORS[kind], expression(node.a), expression(node.b))
        if kind == "Call" and str(node.op.name) in _CALLS:
            return (_CALLS[str(node.op.name)], *map(expression, node.args))
        raise CompileError(f"a launch depends on {node}, but only integer arithmetic is supported there")

    def argument(node: Any) -> int | IntegerExpression:
        if type(node).__name__ == "Call" and str(node.op.name) == "tirx.buffer_data":
            return places[node.args[0]]
        return expression(node)

    def walk(statement: Any) -> None:
        kind = type(statement).__name__
        if kind == "SeqStmt":
            for one in statement.seq:
                walk(one)
        elif kind == "Evaluate" and str(getattr(getattr(statement.value, "op", None), "name", "")) == "tirx.call_ffi_kernel":
            call = statement.value
            name, *given = call.args
            axes = [str(axis) for axis in call.attrs["launch_params"]]
            own = len(given) - len(axes)
            extents = dict(zip(axes, map(expression, given[own:]), strict=True))
            steps.append(LoweredStep(str(name.value), tuple(map(argument, given[:own])), extents))
        elif kind == "DeclBuffer":
            places[statement.buffer] = argument(statement.data)  # another name for a parameter
        elif kind == "Bind":
            named[statement.var] = expression(statement.value)
        elif kind == "Evaluate" and type(statement.value).__name__ == "IntImm":
            pass
        elif kind == "AttrStmt":
            walk(statement.body)
        else:
            raise CompileError(f"a {kind} is between launches, where only launches are supported: {statement}")

    walk(host.body)
    return Lowered(functions, tuple(steps), parameters)


_OPERATORS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "truncdiv", "Mod": "truncmod", "FloorDiv": "//", "FloorMod": "%",
    "Min": "min", "Max": "max", "LShift": "<<", "RShift": ">>", "BitwiseAnd": "&", "BitwiseOr": "|",
}  # fmt: skip
_CALLS = {"tirx.shift_right": ">>", "tirx.shift_left": "<<", "tirx.bitwise_and": "&", "tirx.bitwise_or": "|"}


def _scalar_type(parameter: Any) -> str:
    kind = type(parameter.ty).__name__
    return "" if kind == "BufferType" or kind == "PointerType" else str(parameter.ty.dtype)
