"""What PyTorch has to know of a function before any call: its name, arguments and results, read from its signature."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from typing_extensions import get_overloads

# A parameter's annotation, as it is written, and PyTorch's type for it.
_TYPES = {
    "AnyArray": "Tensor",
    "Sequence[AnyArray]": "Tensor[]",
    "int": "SymInt",
    "Sequence[int]": "SymInt[]",
    "int | float": "Scalar",
    "float": "float",
    "Sequence[float]": "float[]",
    "bool": "bool",
    "str": "str",
}
_LEFT_OUT = ("out", "device")  # results are new, and lie where the inputs do
_LITERAL = re.compile(r"Literal\[(.*)\]")


class Schema(NamedTuple):
    """A function, or one form of it, as an operator of PyTorch's."""

    function: Callable[..., Any]
    overload: str
    """Empty for the form that is meant when nothing else is said."""
    arguments: Mapping[str, str]
    """PyTorch's types of the parameters."""
    pinned: Mapping[str, Any]
    """Parameters that have one value in this form: another would mean other results."""
    text: str
    """In PyTorch's language, without the name."""

    @property
    def name(self) -> str:
        """``top_k``, or ``nonzero_coordinates.trim_false`` for a form that is not the usual one."""
        return f"{self.function.__name__}.{self.overload}" if self.overload else self.function.__name__

    @property
    def makes_tensors(self) -> bool:
        """Whether it can be called without a tensor, so that it must be told where the results are to lie."""
        return not any(kind in ("Tensor", "Tensor[]") for kind in self.arguments.values())


def schemas(function: Callable[..., Any]) -> list[Schema]:
    """A schema for each form of a function, the usual form first. A function that is not overloaded has one form.

    A function is overloaded where an argument decides what the results are. A form that has a ``Literal`` for that argument
    is asked for by it and named after it; the usual form has none, and leaves the argument out.

    Raises:
        TypeError: a parameter or result is annotated with something that has no type in PyTorch.
    """
    forms = [inspect.signature(form) for form in get_overloads(function)] or [inspect.signature(function)]
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
        elif name in deciding or name in _LEFT_OUT:
            continue
        kind = arguments[name] = _type(function, name, annotation)
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default, kind)}"
        (keywords if parameter.kind is parameter.KEYWORD_ONLY else positional).append(f"{kind} {name}{default}")
    overload = "_".join(f"{name}_{value}".lower() for name, value in pinned.items())
    schema = Schema(function, overload, arguments, pinned, "")
    if schema.makes_tensors:
        keywords.append("Device? device=None")
    written = ", ".join([*positional, *(["*"] if keywords else []), *keywords])
    return schema._replace(text=f"({written}) -> {_results(function, str(form.return_annotation))}")


def _type(function: Callable[..., Any], name: str, annotation: str) -> str:
    inner = annotation.removesuffix(" | None")
    optional = "" if inner == annotation else "?"
    if inner in _TYPES:
        return _TYPES[inner] + optional
    if inner.endswith(" | str"):  # an enumeration
        return "str" + optional
    if inner == "Any" and (name == "dtype" or name.endswith("_dtype")):
        return "ScalarType?"
    raise TypeError(f"{function.__module__}.{function.__name__}: PyTorch has no type for {name}: {annotation}")


def _default(value: object, kind: str) -> str:
    if value is None or kind == "ScalarType?":  # None stands for the function's own default
        return "None"
    if isinstance(value, Enum):
        return f'"{value.name.lower()}"'
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _results(function: Callable[..., Any], annotation: str) -> str:
    if annotation == "AnyArray":
        return "Tensor"
    fields = getattr(function.__globals__.get(annotation), "_fields", None)
    if fields is None:
        allowed = "AnyArray or a NamedTuple of them"
        raise TypeError(f"{function.__module__}.{function.__name__}: its result is {annotation}, but may be {allowed}")
    return f"({', '.join(f'Tensor {field}' for field in fields)})"
