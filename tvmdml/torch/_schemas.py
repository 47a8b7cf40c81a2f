"""PyTorch schemas of functions: name, arguments and results, read from the signature."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from tvmdml.doors._made import signatures

# The text of a parameter's annotation, and PyTorch's type for it.
_TYPES = {
    "AnyArray": "Tensor",
    "Operand": "Tensor",
    "Sequence[AnyArray]": "Tensor[]",
    "int": "SymInt",
    "Sequence[int]": "SymInt[]",
    "int | float": "Scalar",
    "float": "float",
    "Sequence[float]": "float[]",
    "bool": "bool",
    "str": "str",
}
_LEFT_OUT = ("out", "device")  # results are new tensors on the inputs' device
_OPERATORS = ("Operator | None", "Sequence[Operator] | None")
"""Fused operators, which PyTorch's operators cannot have: they run without any, or with the usual ones."""
_SEVERAL = "tuple[AnyArray, ...]"
"""The result of a function with as many results as it is asked for."""
_LITERAL = re.compile(r"Literal\[(.*)\]")


class Schema(NamedTuple):
    """A function, or one overload of it, as a PyTorch operator."""

    function: Callable[..., Any]
    overload: str
    """The overload's name; empty for the default overload."""
    arguments: Mapping[str, str]
    """PyTorch's types of the parameters."""
    pinned: Mapping[str, Any]
    """Parameters with a fixed value in this overload; another value would give other results."""
    results: tuple[str, ...]
    """The names of the results; ``result`` if there is one."""
    text: str
    """The schema in PyTorch's notation, without the name."""

    @property
    def name(self) -> str:
        """``top_k``, or ``nonzero_coordinates.trim_false`` for an overload that is not the default."""
        return f"{self.function.__name__}.{self.overload}" if self.overload else self.function.__name__

    @property
    def makes_tensors(self) -> bool:
        """Whether it can be called without a tensor, and therefore needs an argument for the results' device."""
        return not any(kind in ("Tensor", "Tensor[]") for kind in self.arguments.values())


def schemas(function: Callable[..., Any]) -> list[Schema]:
    """A schema for each overload of a function, the default first. A function without overloads has one schema.

    A function has overloads if an argument determines the kind of its results. An overload with a ``Literal`` for that argument is
    named after its value; the default overload leaves the argument out.

    Raises:
        TypeError: PyTorch has no type for the annotation of a parameter or result.
    """
    forms = signatures(function)
    deciding = {p.name for form in forms for p in form.parameters.values() if _LITERAL.fullmatch(str(p.annotation))}
    return sorted((_schema(function, form, deciding) for form in forms), key=lambda schema: schema.overload)


def _schema(function: Callable[..., Any], form: inspect.Signature, deciding: set[str]) -> Schema:
    arguments: dict[str, str] = {}
    pinned: dict[str, Any] = {}
    positional: list[str] = []
    keywords: list[str] = []
    for parameter in form.parameters.values():
        name, annotation = parameter.name, str(parameter.annotation)
        if literal := _LITERAL.fullmatch(annotation):
            pinned[name] = ast.literal_eval(literal[1])
            annotation = type(pinned[name]).__name__
        elif name in deciding or name in _LEFT_OUT or annotation in _OPERATORS:
            continue
        kind = arguments[name] = _type(function, name, annotation)
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default, kind)}"
        (keywords if parameter.kind is parameter.KEYWORD_ONLY else positional).append(f"{kind} {name}{default}")
    overload = "_".join(f"{name}_{value}".lower() for name, value in pinned.items())
    results = _results(function, str(form.return_annotation))
    schema = Schema(function, overload, arguments, pinned, results or ("result",), "")
    several = str(form.return_annotation) == _SEVERAL
    if schema.makes_tensors:
        keywords.append("Device? device=None")
    written = ", ".join([*positional, *(["*"] if keywords else []), *keywords])
    return schema._replace(text=f"({written}) -> {'Tensor[]' if several else _tensors(results)}")


def _type(function: Callable[..., Any], name: str, annotation: str) -> str:
    inner = annotation.removesuffix(" | None")
    optional = "" if inner == annotation else "?"
    if inner in _TYPES:
        return _TYPES[inner] + optional
    if inner.endswith(" | str"):  # an enumeration
        return "str" + optional
    if inner == "DType" and (name == "dtype" or name.endswith("_dtype")):
        return "ScalarType?"
    raise TypeError(f"{function.__module__}.{function.__name__}: PyTorch has no type for {name}: {annotation}")


def _default(value: object, kind: str) -> str:
    if value is None or kind == "ScalarType?":  # None means the function's own default
        return "None"
    if isinstance(value, Enum):
        return f'"{value.name.lower()}"'
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _results(function: Callable[..., Any], annotation: str) -> tuple[str, ...]:
    """The names of several results; none for a single one."""
    if annotation in ("AnyArray", _SEVERAL):
        return ()
    fields: tuple[str, ...] | None = getattr(function.__globals__.get(annotation), "_fields", None)
    if fields is None:
        allowed = "AnyArray or a NamedTuple of them"
        raise TypeError(f"{function.__module__}.{function.__name__}: its result is {annotation}, but may be {allowed}")
    return fields


def _tensors(results: tuple[str, ...]) -> str:
    return f"({', '.join(f'Tensor {field}' for field in results)})" if results else "Tensor"
