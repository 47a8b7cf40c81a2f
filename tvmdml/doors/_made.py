"""Makes the function of an operator from its descriptor class.

The function has the inputs as positional parameters, the attributes as keywords with the defaults of the class, ``out`` and
``device``. It is written as source text and compiled, as dataclasses do with their methods: a call then costs no more than one of a
function written by hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tvmdml import functions
from tvmdml.doors import _docs
from tvmdml.doors._index_types import index_type, usual_index_type
from tvmdml.doors._indices import check_indices
from tvmdml.doors._parameters import INDEX, Parameters, numbers, parameters
from tvmdml.doors._renamed import ABSENT, MEANT, REQUIRED, hidden, refuse
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import Describe, Described, call, describes
from tvmdml.operators._contract import Field, Operator, Role
from tvmdml.operators._roles import MISSING as _MISSING
from tvmdml.operators._roles import SEQUENCES, STRUCTS, TENSORS
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

F = TypeVar("F", bound=Callable[..., Any])
RESULT = "Result"
"""What names of types of results end with."""

_ANNOTATIONS = {
    Role.UINT: "int",
    Role.INT: "int",
    Role.FLOAT: "float",
    Role.SCALAR: "int | float",
    Role.BOOL: "bool",
    Role.UINTS: "Sequence[int]",
    Role.INTS: "Sequence[int]",
    Role.FLOATS: "Sequence[float]",
    Role.SCALE_BIAS: "Sequence[float]",
    Role.SIZE_2D: "Sequence[int]",
    Role.OPERATOR: "Operator",
}


def made(cls: type[Operator]) -> dict[str, Any]:
    """The function of an operator, and the type of its results if there are several, by their public names."""
    name, own = cls.FUNCTION, parameters(cls)
    outputs = [field for field in cls.fields() if field.role is Role.OUTPUT and not field.optional]
    names: dict[str, Any] = {
        "_functions": functions,
        "_call": call,
        "_describe": _describing(cls, own),
        "_tuple": as_tuple,
        "_tensors": _tensors(name),
        "_index": usual_index_type,
        "_check_indices": check_indices,
        "_absent": ABSENT,
        "_refuse": refuse,
        "_required": REQUIRED,
        "_defaults": {one: field.default for one, field in own.attributes.items()},
        "__name__": __name__,
    }
    result, kind = "", "AnyArray"
    if len(outputs) > 1:
        result = f"{name.title().replace('_', '')}{RESULT}"
        kind = result
        fields = [(field, "AnyArray") for field in _results(cls, outputs)]
        names[result] = NamedTuple(result, fields)
        names[result].__doc__ = f"The results of ``{name}``."
        names[result].__module__ = "tvmdml"
    elif outputs[0].many:
        kind = "tuple[AnyArray, ...]"
    exec(_source(cls, own, result, [field.name for field in outputs], kind), names)  # noqa: S102 - see above
    function = hidden(names[name])
    function.__doc__ = _docs.text(cls, own, names.get(result))
    function.__module__ = "tvmdml"
    function.operator = cls
    return {**dict.fromkeys((name, *cls.ALIASES), function), **({result: names[result]} if result else {})}


def _results(cls: type[Operator], outputs: Sequence[Field]) -> Sequence[str]:
    return cls.RESULTS or [field.name.removeprefix("output_").removesuffix("_tensor") for field in outputs]


def _source(cls: type[Operator], own: Parameters, result: str, outputs: list[str], kind: str) -> str:
    """The function's source text."""
    array = "Operand" if len(own.inputs) > 1 and not any(field.many for field in own.inputs.values()) else "AnyArray"
    stated = [f"{name}: {annotation(field, array)}{' = None' if field.optional else ''}" for name, field in own.inputs.items()]
    stated.append("*")
    refused = {name: MEANT[name] for name in own.attributes if MEANT.get(name, name) not in own.attributes}
    for name, field in sorted(own.attributes.items(), key=lambda item: item[1].default is not _MISSING):
        default = f" = _defaults[{name!r}]" if field.default is not _MISSING else " = _required" * (name in refused)
        stated.append(f"{name}: {annotation(field)}{default}")
    stated += [f"{name}: DType | None = None" for name in own.dtypes]
    stated += [f"{name}: object = _absent" for name in refused.values()]
    stated += ["check_indices: bool = False"] * cls.CHECKS_INDICES
    stated.append(f"out: {'AnyArray' if kind == 'AnyArray' else 'Sequence[AnyArray]'} | None = None")
    stated.append("device: str | None = None")
    inputs = "".join(f"*_tensors({name}, {name!r}), " if field.many else f"{name}, " for name, field in own.ordered.items())
    plain = "".join(f", {name}" for name in (*own.ordered, *own.attributes, *own.dtypes))
    values = "".join(
        f"_tuple({name}), " if field.role in SEQUENCES or field.role in STRUCTS else f"{name}, "
        for name, field in own.attributes.items()
    )
    values += "".join(f"{name}, " for name in own.dtypes)
    flags = ", optional=True" * any(field.optional for field in own.inputs.values()) + ", boolean=True" * cls.TAKES_BOOL
    one = kind == "AnyArray" and not any(field.many for field in own.ordered.values())
    planned = f"_functions._quick_plans(_describe, device, ({values}), ({inputs}), out)"
    if one:
        planned = f"_functions._quick_plans.one(_describe, device, out, {len(own.ordered)}{plain})"
    answer = f"_call(_describe, ({inputs}), ({values}), out, device{flags})"
    lines = [f"def {cls.FUNCTION}({', '.join(stated)}) -> {kind}:"]
    for name, other in refused.items():
        missing = f" or {name} is _required" * (own.attributes[name].default is _MISSING)
        lines += [f"    if {other} is not _absent{missing}:", f"        _refuse({cls.FUNCTION!r}, {name!r}, {other!r}, {other})"]
    if INDEX in own.dtypes:
        place = outputs.index(own.dtypes[INDEX])
        lines += [f"    if {INDEX} is None:", f"        {INDEX} = _index({next(iter(own.inputs))}, out, {place}, {len(outputs)})"]
    if cls.CHECKS_INDICES:
        lines += ["    if check_indices:", f"        _check_indices(_describe, ({inputs}), ({values}))"]
    whole = f"{result}(*{{}})" if result else "{}[0]" if kind == "AnyArray" else "{}"
    # `call` tries this first, too. Here it saves the time of one Python call.
    lines += [f"    if _functions._quick_plans is not None and (results := {planned}) is not None:"]
    lines += [f"        return {'results' if one else whole.format('results')}", f"    return {whole.format(answer)}"]
    return "\n".join(lines)


def annotation(field: Field, array: str = "") -> str:
    """The annotation of a parameter that takes a field's value; ``array`` is that of a tensor."""
    if field.role in TENSORS:
        kind = array
    else:
        kind = f"{field.enum.__name__} | str" if field.enum is not None else _ANNOTATIONS[field.role]
    kind = f"Sequence[{kind}]" if field.many else kind
    return f"{kind} | None" if field.optional or field.default is None else kind


def as_tuple(values: Any) -> Any:
    """A list as a tuple, so that it can be part of a plan's key; whatever is no sequence is refused later."""
    return tuple(values) if isinstance(values, list) else values


def _tensors(function: str) -> Callable[[Any, str], Any]:
    def check(given: Any, name: str) -> Any:
        if not isinstance(given, (tuple, list)):
            raise InvalidArgument(message(f"tvmdml.{function}: {name}", type(given).__name__, "a list or tuple of arrays"))
        return given

    return check


def _describing(cls: type[Operator], own: Parameters) -> Describe:
    fields = [field.name for field in cls.fields() if field.role is Role.INPUT]
    many = next((field.name for field in own.inputs.values() if field.many), None)
    after = len(own.attributes) + len(own.dtypes)
    order = [field.name for field in own.ordered.values()]

    @describes(f"tvmdml.{cls.FUNCTION}", *(own.ordered if many is None else ()))
    def describe(*given: Any) -> Described:
        tensors, values = (
            list(given[: len(given) - after]),
            dict(zip((*own.attributes, *own.dtypes), given[len(given) - after :], strict=True)),
        )
        if many is not None:  # a list of tensors is given as single ones
            first = order.index(many)
            last = len(tensors) - (len(order) - first - 1)
            tensors[first:last] = [tuple(tensors[first:last])]
        by_name = dict(zip(order, tensors, strict=True))
        attributes = {field.name: values[name] for name, field in own.attributes.items()}
        kinds: dict[str, str] = {}
        for name, output in own.dtypes.items():
            if name == INDEX:
                kinds[output], attributes[output] = index_type(values[name], cls.where(name))
            elif values[name] is not None:
                attributes[output] = TensorDataType.of(values[name], cls.where(name))
        desc = cls.of_call(*(by_name[name] for name in fields), **attributes)
        if (sizes := cls.result_sizes(*(by_name[name] for name in fields), **attributes)) is not None:
            return Described(desc, shapes=(sizes,))
        present = [name for name, one in desc.tensors(Role.OUTPUT) if one is not None]
        return described(desc, tensors, tuple(map(kinds.get, present)) if kinds else ())

    describe.scalars = numbers(cls, own) if len(own.inputs) > 1 and many is None else None  # type: ignore[attr-defined]
    return describe


def described(desc: Operator, tensors: Sequence[Any], dtypes: tuple[str | None, ...] = ()) -> Described:
    """What a function runs: its results have no dimensions if none of the inputs has."""
    outputs = desc.outputs()
    scalar = all(one.zero_dimensional for one in _arrays(tensors)) and all(one.sizes == (1,) for one in outputs)
    return Described(desc, dtypes, tuple(() for _ in outputs) if scalar else ())


def _arrays(tensors: Sequence[Any]) -> list[ArrayTensorDesc]:
    flat = [one for tensor in tensors for one in (tensor if isinstance(tensor, tuple) else (tensor,))]
    return [one for one in flat if one is not None]


def door(cls: type[Operator], *forms: tuple[dict[str, str], str]) -> Callable[[F], F]:
    """Mark a function that is written by hand with the operator that it runs.

    Args:
        cls: the operator.
        forms: the function's types where they depend on an argument: for each the annotations that differ, and the result's. A
            ``Literal`` has no default.
    """

    def mark(function: F) -> F:
        shown: Any = hidden(function)
        shown.operator = cls
        shown.forms = [_form(inspect.signature(shown), changed, result) for changed, result in forms]
        return function

    return mark


def _form(signature: inspect.Signature, changed: dict[str, str], result: str) -> inspect.Signature:
    parameters = []
    for parameter in signature.parameters.values():
        if (kind := changed.get(parameter.name)) is not None:
            default = parameter.empty if kind.startswith("Literal") else parameter.default
            parameter = parameter.replace(annotation=kind, default=default)
        parameters.append(parameter)
    return signature.replace(parameters=parameters, return_annotation=result)


def signatures(function: Callable[..., Any]) -> list[inspect.Signature]:
    """A function's signatures: one for each of its forms or overloads."""
    from typing_extensions import get_overloads  # only for who asks: a call does not need it

    forms: list[inspect.Signature] = getattr(function, "forms", [])
    return forms or [inspect.signature(form) for form in get_overloads(function) or [function]]


def truth(function: str, name: str, given: Any) -> bool:
    """A truth value that decides what a function returns.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(given, (int, np.bool_)):  # bool is an int
        raise InvalidArgument(message(f"tvmdml.{function}: {name}", safe_repr(given), "True or False"))
    return bool(given)
