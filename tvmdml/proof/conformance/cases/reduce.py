"""The operators of ``operators/reduce.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.enums import AxisDirection, ReduceFunction
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators.reduce import Argmax, Argmin, Reduce
from tvmdml.proof.conformance.cases._common import ALL, FLOATING, Broken, Case, change, tensor
from tvmdml.proof.conformance.cases._reduction import axes_rules, cases
from tvmdml.tensors import TensorDataType
from tvmdml.tensors import TensorDesc as T

_INDICES = ("uint32", "int64", "int32", "uint64")
_SUMMED = (*FLOATING, *(TensorDataType[name] for name in ("INT32", "UINT32", "INT64", "UINT64")))


def reduce(function: ReduceFunction, x: T, axes: tuple[int, ...] = (0,), way: int = 0, layout: str = "packed") -> Operator:
    """A function; a position has one of the types of indices."""
    return Reduce(function=function, **_tensors(x, axes, way if function <= ReduceFunction.ARGMIN else None, layout), axes=axes)


def arg(cls: type[Argmax | Argmin], x: T, axes: tuple[int, ...] = (0,), way: int = 0, layout: str = "packed") -> Operator:
    """One of the directions."""
    return cls(**_tensors(x, axes, way // 2, layout), axes=axes, axis_direction=tuple(AxisDirection)[way % 2])


def _tensors(x: T, axes: tuple[int, ...], index: int | None, layout: str) -> dict[str, Any]:
    sizes = tuple(1 if i in axes else size for i, size in enumerate(x.sizes))
    return {"input_tensor": x, "output_tensor": tensor(x.data_type if index is None else _INDICES[index % 4], sizes, layout)}


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {
    Reduce: partial(reduce, ReduceFunction.SUM),
    Argmax: partial(arg, Argmax),
    Argmin: partial(arg, Argmin),
}

X = T("float32", (2, 3, 4, 5))
_GOOD: dict[str, Operator] = {cls.NAME: make(X) for cls, make in DESCRIBED.items()}


def _broken(name: str, good: Operator) -> dict[str, Broken]:
    kind = "uint32" if name != "REDUCE" else "float32"
    return axes_rules(name, good) | {
        f"{name} to other sizes": Broken(
            change(good, output_tensor=T(kind, (2, 1, 4, 5))),
            *(f"{name} output_tensor.sizes", "(2, 1, 4, 5)", "(1, 3, 4, 5): 1 along the axes (0,)"),
        ),
    }


BROKEN: dict[str, Broken] = {
    **_broken("REDUCE", _GOOD["REDUCE"]),
    **_broken("ARGMAX", _GOOD["ARGMAX"]),
    **_broken("ARGMIN", _GOOD["ARGMIN"]),
    "REDUCE to another type": Broken(
        change(_GOOD["REDUCE"], output_tensor=T("float16", (1, 3, 4, 5))),
        *("REDUCE output_tensor.data_type", "float16", "float32, as in input_tensor"),
    ),
    "REDUCE with an unknown function": Broken(
        change(_GOOD["REDUCE"], function=12),
        *("REDUCE function", "12", ", ".join(repr(one.name.lower()) for one in ReduceFunction)),
    ),
    "REDUCE the average of integers": Broken(
        lambda: reduce(ReduceFunction.AVERAGE, T("int32", (2, 3, 4, 5))),
        *("REDUCE input_tensor", "int32 of rank 4", "float32, float16; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
}


def reference(cls: type[Operator]) -> Iterator[Case]:
    """All functions, directions and types of positions."""
    fills = ("normal", "mixed", "special", "zeros", "bits", "constant")
    if cls is not Reduce:
        yield from cases(partial(arg, cls), ALL, fills)  # type: ignore[arg-type]
        return
    for function in ReduceFunction:
        usual = FLOATING if function.name in ("AVERAGE", "L2", "LOG_SUM", "LOG_SUM_EXP") else _SUMMED
        types = ALL if function.name in ("MAX", "MIN", "ARGMAX", "ARGMIN") else usual
        plain = ("factors",) if function is ReduceFunction.MULTIPLY else ("normal",)
        some = [one for i, one in enumerate(types) if one in FLOATING or function.name in ("MAX", "MIN") or i % 3 == function % 3]
        yield from cases(partial(reduce, function), some, (*plain, *fills[1:]))
