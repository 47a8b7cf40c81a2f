"""The docstring of a function that is made from a descriptor class.

What the class's docstring says comes first; its section ``Args`` describes inputs and attributes. The types and ranks of inputs are
those of the support table. What is true of all functions (``out``, ``device``, results, errors) is written here, once.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from tvmdml.doors._parameters import INDEX, Parameters, alike
from tvmdml.operators._contract import Field, Operator
from tvmdml.operators._support import in_words

_WIDTH = 120
_DEVICE = 'where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of the inputs.'
_INDEX = (
    '``"uint32"``, ``"uint64"``, ``"int32"`` or ``"int64"``; by default the type of the array in ``out``. Without ``out`` it is '
    "int64 for a PyTorch tensor, because PyTorch cannot index with uint32, and uint32 for other arrays."
)
_RAISES = "InvalidArgument, Unsupported: an argument breaks a rule above."
_BROADCAST = "Inputs are broadcast by NumPy's rules"


def text(cls: type[Operator], parameters: Parameters, results: Any = None) -> str:
    """The docstring.

    Args:
        cls: the operator.
        parameters: the parameters of its function.
        results: the type of the function's results, if there are several.
    """
    what, described = _read(cls)
    if cls.BROADCAST and len(parameters.inputs) > 1:
        what = f"{what}\n\n{_BROADCAST}{_numbers(cls, parameters)}."
    rows = {
        name: described.get(field.name) or described.get(name) or _input(cls, field) for name, field in parameters.inputs.items()
    }
    rows |= {name: described.get(field.name) or _attribute(field) for name, field in parameters.attributes.items()}
    rows |= {
        name: described.get(name) or (_INDEX if name == INDEX else _dtype(cls, output))
        for name, output in parameters.dtypes.items()
    }
    if cls.CHECKS_INDICES:
        rows["check_indices"] = "whether an index that is out of range is an error; the indices are then read first."
    rows["out"] = _out(cls, parameters, results)
    rows["device"] = _DEVICE
    answer = f"An array of the kind of the input{'s' * (len(parameters.inputs) > 1)}."
    if results is not None:
        answer = f"``({', '.join(results._fields)})``, arrays of the kind of the inputs."
    sections = {"Args": [f"{name}: {row}" for name, row in rows.items()], "Returns": [answer], "Raises": [_RAISES]}
    if cls.CHECKS_INDICES:
        sections["Raises"].append("IndexOutOfRange: an index is out of range, with ``check_indices``.")
    return _joined(what, sections)


def completed(function: Any) -> str:
    """The docstring of a function that is written by hand, with what it does not say about parameters, results and errors.

    That is what its operator says about a field of the same name, and what is true of all functions.
    """
    text, _, raises = inspect.cleandoc(function.__doc__).partition("\n\nRaises:\n")
    text, _, returns = text.partition("\n\nReturns:\n")
    what, _, arguments = text.partition("\n\nArgs:\n")
    described = {"device": _DEVICE, **_read(function.operator)[1], **_entries(arguments)}
    names = inspect.signature(function).parameters
    sections = {
        "Args": [f"{name}: {described[name]}" for name in names],
        "Returns": [" ".join(returns.split()) or "An array of the kind of the input."],
        "Raises": [" ".join(raises.split()) or _RAISES],
    }
    return _joined(what, sections)


def _joined(what: str, sections: dict[str, list[str]]) -> str:
    parts = [what, *(f"{title}:\n" + "\n".join(map(_hanging, lines)) for title, lines in sections.items())]
    return textwrap.indent("\n\n".join(parts), "    ").lstrip() + "\n    "


def _read(cls: type[Operator]) -> tuple[str, dict[str, str]]:
    """What the class's docstring says, and what it and those of its base classes say about each field."""
    what = inspect.cleandoc(vars(cls).get("__doc__") or "").partition("\nArgs:\n")[0]
    what = re.sub(r" \(``DML_\w+_OPERATOR_DESC``\)", f" (DML_OPERATOR_{cls.NAME})", what).strip()
    found: dict[str, str] = {}
    for own in reversed(cls.__mro__):
        arguments = inspect.cleandoc(vars(own).get("__doc__") or "").partition("\nArgs:\n")[2] if issubclass(own, Operator) else ""
        found |= _entries(arguments)
    return what, found


def _entries(arguments: str) -> dict[str, str]:
    """What a section ``Args`` says about each name."""
    entries = (entry.strip().partition(": ") for entry in re.split(r"\n(?=    \w+: )", "\n" + arguments))
    return {name: " ".join(row.split()) for name, _, row in entries}


def _input(cls: type[Operator], field: Field) -> str:
    rows = [row.tensors[field.name] for row in cls.SUPPORT]
    low, high = min(row.min_rank for row in rows), max(row.max_rank for row in rows)
    types = in_words({one for row in rows for one in row.types})
    ranks = f"{low}" if low == high else f"up to {high}" if low == 1 else f"{low} to {high}"
    each = "arrays, each " if field.many else ""
    return f"{each}{types}{', or bool' * cls.TAKES_BOOL}; a shape of {ranks} dimensions.{' It may be absent.' * field.optional}"


def _numbers(cls: type[Operator], parameters: Parameters) -> str:
    """Which inputs may be Python numbers: those beside an array of the same types."""
    names = list(parameters.ordered)
    if cls.NUMBERS:
        usual = [f"``{name}`` {cls.NUMBERS[field.name]}" for name, field in parameters.ordered.items() if field.name in cls.NUMBERS]
        return f". A Python number takes the type of an array that supports the same types, or else is: {', '.join(usual)}"
    groups = [group for group in dict.fromkeys(alike(cls, parameters)) if len(group) > 1]
    if not groups:
        return ""
    if len(groups) > 1:
        return ". A Python number takes the type of an array among the inputs that support the same types"
    if len(groups[0]) == len(names):
        return "; one of them may be a Python number, which takes the type of the arrays"
    return f"; {' or '.join(f'``{names[i]}``' for i in groups[0])} may be a Python number, which takes the type of the other"


def _attribute(field: Field) -> str:
    if field.enum is None:
        return f"{field.role.value}.{' A negative number counts from the last dimension.' * field.is_axis}"
    names = [f'``"{member.name.lower()}"``' for member in field.enum]
    return f"{', '.join(names[:-1])} or {names[-1]}." if len(names) > 1 else f"{names[0]}."


def _dtype(cls: type[Operator], output: str) -> str:
    types = in_words({one for row in cls.SUPPORT for one in row.tensors[output].types})
    return f"the type of {output.removesuffix('_tensor').replace('_', ' ')}: {types}."


def _out(cls: type[Operator], parameters: Parameters, results: Any) -> str:
    if results is not None:
        return f"arrays for the results: {', '.join(results._fields)}."
    shared = {source for source, _ in cls.SHARES}
    names = " or ".join(f"``{name}``" for name, field in parameters.inputs.items() if field.name in shared)
    return f"an array for the result{f'; may be {names} itself' if names else ''}."


def _hanging(line: str) -> str:
    return textwrap.fill(line, _WIDTH - 4, initial_indent="    ", subsequent_indent="        ", break_long_words=False)
