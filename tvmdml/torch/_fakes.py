"""The functions for tensors without data: they return results of the right shapes, types and strides, or raise the usual errors.

The code of an operator's module runs unchanged, but with some names replaced. ``call`` describes and checks the operation, and
computes nothing. Descriptors and ``operator.index`` accept a symbol instead of an integer, as PyTorch uses for a symbolic size.
All other code asks a symbol for its value, and PyTorch then treats that size as fixed: the result is still correct, but less
general.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import expect_true

from tvmdml import functions
from tvmdml.errors import Unsupported, message
from tvmdml.operators import Operator
from tvmdml.operators._contract import called_by
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

Shape = Sequence[Any]
_OPERATORS = Operator.__module__.rpartition(".")[0] + "."


def without_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for tensors without data. Its ``device`` is the results' device if there is no input tensor."""
    fake: Callable[..., Any] = _names(function.__module__)[function.__name__]
    return fake


@functools.cache
def _names(module: str) -> dict[str, Any]:
    """The names in an operator's module, some of them replaced. Functions have the same code, but use these names."""
    own = vars(sys.modules[module])
    names = {"min": _either(min, operator.le), "max": _either(max, operator.ge), **own}
    for name, value in own.items():
        if value is functions.call:
            names[name] = _call
        elif value is operator:
            names[name] = _OPERATOR_MODULE
        elif value is ArrayTensorDesc:
            names[name] = _OpenTensorDesc
        elif inspect.isclass(value) and issubclass(value, Operator) and value is not Operator:
            names[name] = type(value.__name__, (_OpenOperator, value), {})
        elif inspect.isfunction(value) and value.__module__ == module:
            names[name] = _among(names, value)
        elif inspect.isfunction(value) and value.__module__.startswith(_OPERATORS):  # from another operator's module
            names[name] = _names(value.__module__).get(value.__name__, value)
    return names


def _among(names: dict[str, Any], function: FunctionType) -> FunctionType:
    same = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    same.__kwdefaults__ = function.__kwdefaults__
    same.__dict__.update(function.__dict__)
    return same


def _call(
    describe: functions.Describe,
    inputs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    out: None = None,
    device: Any = None,
    *,
    optional: bool = False,
    boolean: bool = False,
    finish: functions.Finish | None = None,
) -> tuple[Any, ...]:
    """The part of ``functions.call`` that works without data."""
    function = functions.name_of(describe)
    descs = [None if tensor is None else _describe(tensor, f"{function}: input", boolean) for tensor in inputs]
    with called_by(function):
        desc, dtypes, shapes = functions.described(describe, descs, attributes)
    outputs = desc.outputs()
    own: tuple[None, ...] = (None,) * len(outputs)
    types = [out.data_type.tvm if name is None else name for out, name in zip(outputs, dtypes or own, strict=True)]
    sizes: list[Shape] = [out.sizes if shape is None else shape for out, shape in zip(outputs, shapes or own, strict=True)]
    if finish is not None:
        sizes = _finished(function, finish, inputs, sizes)
    device = next((tensor.device for tensor in inputs if tensor is not None), device)
    return tuple(torch.empty(tuple(shape), dtype=getattr(torch, t), device=device) for shape, t in zip(sizes, types, strict=True))


def _describe(tensor: Any, where: str, boolean: bool) -> ArrayTensorDesc:
    data_type = TensorDataType.of(torch.uint8 if boolean and tensor.dtype == torch.bool else tensor.dtype, where)
    return _OpenTensorDesc(data_type, tuple(tensor.shape) or (1,), zero_dimensional=not tensor.ndim)


def _finished(function: str, finish: functions.Finish, inputs: tuple[Any, ...], sizes: list[Shape]) -> list[Shape]:
    """The results' shapes after the last step, which must declare them in its attribute ``shapes``."""
    rule = getattr(finish, "shapes", None)
    if rule is None:
        advice = f"{finish.__module__}.{finish.__name__} does not tell its `shapes`."
        raise Unsupported(message(f"{function}: input", "a tensor without data", "one with data", advice))
    finished = rule([None if tensor is None else tuple(tensor.shape) for tensor in inputs], sizes)
    return [
        [_counted(before[i]) if size is None else size for i, size in enumerate(after)]
        for before, after in zip(sizes, finished, strict=True)
    ]


def _counted(room: Any) -> Any:
    """A size that depends on the data, up to the allocated size."""
    # PyTorch assumes that a symbolic size is above 1, so a bound of 2 or less would leave no possible size.
    return torch.library.get_ctx().new_dynamic_size(min=0, max=room if isinstance(room, int) and room > 2 else None)


def _is_open(value: object) -> bool:
    return isinstance(value, torch.SymInt) or (isinstance(value, tuple) and any(map(_is_open, value)))


class _Open:
    """A dataclass that accepts symbols as integers. The checks of its fields see the number 1 in place of a symbol."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if _is_open(value)}
        for name, value in given.items():
            checked = tuple(1 if _is_open(item) else item for item in value) if isinstance(value, tuple) else 1
            object.__setattr__(self, name, checked)
        super().__post_init__()  # type: ignore[misc] # the dataclass's
        for name, value in given.items():
            object.__setattr__(self, name, value)


class _OpenTensorDesc(_Open, ArrayTensorDesc):
    if TYPE_CHECKING:

        def __init__(self, data_type: Any, sizes: Any, strides: None = None, *, zero_dimensional: bool = False) -> None: ...

    @property
    def effective_rank(self) -> int:
        """A symbolic size counts as a dimension, without a test whether it is 1."""
        leading = next((i for i, size in enumerate(self.sizes) if _is_open(size) or size != 1), self.rank)
        return self.rank - leading


class _OpenOperator(_Open):
    def require(self, holds: Any, *rule: Any, **named: Any) -> None:
        """A rule about a size that depends on data is checked later, in the call with data."""
        if isinstance(holds, torch.SymBool):
            holds = expect_true(holds)
        super().require(holds, *rule, **named)  # type: ignore[misc] # the operator's


def _either(choose: Callable[..., Any], first: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A ``min`` or ``max`` that returns one of two sizes, instead of a new symbol for both."""

    def chosen(*values: Any, **keywords: Any) -> Any:
        if len(values) == 2 and any(map(_is_open, values)):
            return values[0] if first(*values) else values[1]
        return choose(*values, **keywords)

    return chosen


_OPERATOR_MODULE = SimpleNamespace(**vars(operator))
_OPERATOR_MODULE.index = lambda value: value if isinstance(value, torch.SymInt) else operator.index(value)
