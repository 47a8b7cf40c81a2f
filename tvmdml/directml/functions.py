"""Makes the functions of the table: each converts its arguments and adds a call of tvmdml's function to the graph.

The functions are written as source text and compiled, so that they have the signatures that the table says.
"""

from __future__ import annotations
import __future__

import functools
import operator
from collections.abc import Callable
from typing import Any

from tvmdml.directml import enums
from tvmdml.directml.activations import FusedActivation
from tvmdml.directml.enums import Enumeration, member
from tvmdml.directml.expressions import Expression, broadcast, called, reinterpret, required
from tvmdml.directml.graphs import Graph
from tvmdml.directml.table import TABLE, FunctionRow
from tvmdml.directml.tensors import numpy_type, sizes_of
from tvmdml.system.names import takes

Convert = Callable[[Any, str], Any]
"""``convert(given, where)`` raises a TypeError for what is of the wrong kind."""


def _number(kind: Callable[[Any], Any], allowed: str) -> Convert:
    def convert(given: Any, where: str) -> Any:
        try:
            return kind(given)
        except (TypeError, ValueError):
            raise TypeError(f"{where}: given {type(given).__name__}; allowed: {allowed}") from None

    return convert


_integer = _number(operator.index, "an integer")


def _real(given: Any, where: str) -> float:
    if isinstance(given, (str, bytes, Expression)) or not (hasattr(given, "__float__") or hasattr(given, "__index__")):
        raise TypeError(f"{where}: given {type(given).__name__}; allowed: a number")
    return float(given)


def _several(one: Convert) -> Convert:
    def convert(given: Any, where: str) -> Any:
        if isinstance(given, (str, bytes, Expression)) or not hasattr(given, "__iter__"):
            raise TypeError(f"{where}: given {type(given).__name__}; allowed: a sequence")
        return [one(value, where) for value in given]

    return convert


def _optional(one: Convert) -> Convert:
    return lambda given, where: None if given is None else one(given, where)


def _fused(given: Any, where: str) -> Any:
    if not isinstance(given, FusedActivation):
        raise TypeError(f"{where}: given {type(given).__name__}; allowed: a FusedActivation")
    return given.operator()


def _graph(given: Any, where: str) -> Graph:
    if not isinstance(given, Graph):
        raise TypeError(f"{where}: given {type(given).__name__}; allowed: a Graph")
    return given


def _scale_bias(given: Any, where: str) -> tuple[float, float]:
    scale, bias = found if len(found := _several(_real)(given, where)) == 2 else (None, None)
    if scale is None or bias is None:
        raise TypeError(f"{where}: given {given!r}; allowed: a pair of numbers")
    return scale, bias


def _dtype(given: Any, where: str) -> str:
    return str(numpy_type(given).name)


def _enumerated(kind: type[Enumeration]) -> Convert:
    return lambda given, where: member(kind, given, where).name.lower()


_CONVERTERS: dict[str, Convert] = {
    "Any": lambda given, where: given,
    "Graph": _graph,
    "Expression": required,
    "Expression | None": _optional(required),
    "Expression | float": lambda given, where: given if isinstance(given, Expression) else _real(given, where),
    "Sequence[Expression]": _several(required),
    "int": _integer,
    "float": _real,
    "bool": _number(lambda given: bool(operator.index(given)), "a bool"),
    "Sequence[int]": lambda given, where: sizes_of(given, where) or None,
    "Sequence[float]": lambda given, where: _several(_real)(given, where) or None,
    "ScaleBias | None": _optional(_scale_bias),
    "DtypeLike": _dtype,
    "DtypeLike | None": lambda given, where: None if given in (None, enums.TensorDataType.UNKNOWN) else _dtype(given, where),
    "FusedActivation | None": _optional(_fused),
    "Sequence[FusedActivation]": _several(_fused),
    **{name: _enumerated(kind) for name, kind in vars(enums).items() if isinstance(kind, type) and issubclass(kind, Enumeration)},
}
"""What a parameter takes, by its annotation, and how tvmdml's function gets it."""


def _run(function: Callable[..., Any], row: FunctionRow, given: dict[str, Any]) -> Any:
    name, kinds = function.__name__, function.__annotations__
    values = {one: _CONVERTERS[kinds[one]](value, f"{name}() {one}") for one, value in given.items()}
    if row.before is not None:
        row.before(name, values)
    arguments = {row.renamed.get(one, one): value for one, value in values.items() if one != "graph"}
    home = values.get("graph")
    if home is not None:
        arguments["device"] = home.recorder
    found = called(name, home, **arguments, **row.fixed)
    return found if row.after is None else row.after(found, values)


def _made() -> dict[str, Callable[..., Any]]:
    """The functions of the table, by name."""
    names: dict[str, Any] = {**vars(enums), "_run": _run, "_rows": TABLE, "__name__": "tvmdml.directml"}
    wanted = [(name, i, row) for i, row in enumerate(TABLE) for name in row.names.split()]
    source = "".join(
        f'def {name}({row.parameters}):\n    """Add ``tvmdml.{name}`` to the graph, with expressions for arrays."""\n'
        f"    return _run({name}, _rows[{i}], locals())\n"
        for name, i, row in wanted
    )
    exec(compile(source, __file__, "exec", __future__.annotations.compiler_flag), names)  # noqa: S102 - of the table
    return {name: names[name] for name, _, _ in wanted}


def _telling(function: Any) -> Callable[..., Any]:
    """The function; what it is called with is compared with what it takes, for the message of the error."""

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise TypeError(f"{error}; allowed: {takes(function)}") from None  # Python's own: the function did not begin

    return call


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: _telling(function) for name, function in {**_made(), "reinterpret": reinterpret, "broadcast": broadcast}.items()
}
"""All functions, by name."""
Expression.functions = frozenset(FUNCTIONS)
