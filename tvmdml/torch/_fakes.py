"""The functions for tensors without data: they return results of the right shapes, types and strides, or raise the usual errors.

A function runs with a ``Tracer`` instead of a device: it describes and checks the operation, and computes nothing. Descriptors
accept PyTorch's symbolic sizes as they are (``tvmdml.tensors.sizes.symbols``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import expect_true

from tvmdml import functions
from tvmdml.errors import Unsupported, message
from tvmdml.operators._contract import called_by
from tvmdml.tensors import ArrayTensorDesc, TensorDataType
from tvmdml.tensors.sizes import symbols

Shape = Sequence[Any]

symbols.add(torch.SymInt, torch.SymBool, expect_true)


def without_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for tensors without data. Its ``device`` is the results' device if there is no input tensor."""

    @functools.wraps(function)
    def fake(*arguments: Any, device: Any = None, **keywords: Any) -> Any:
        return function(*arguments, device=_Fakes(device), **keywords)

    return fake


class _Fakes:
    """Answers calls with tensors that have no data."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def trace_call(
        self,
        describe: functions.Describe,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        optional: bool,
        boolean: bool,
        finish: functions.Finish | None,
    ) -> tuple[Any, ...]:
        """The part of ``functions.call`` that works without data."""
        function = functions.name_of(describe)
        first = next((tensor for tensor in inputs if isinstance(tensor, torch.Tensor)), None)
        inputs = tuple(first.new_empty(()) if first is not None and isinstance(one, (int, float)) else one for one in inputs)
        names = (functions.input_name(describe, i) for i in range(len(inputs)))
        descs = [None if one is None else _describe(one, name, boolean) for one, name in zip(inputs, names, strict=True)]
        with called_by(function):
            desc, dtypes, shapes = functions.described(describe, descs, attributes)
        outputs = desc.outputs()
        own: tuple[None, ...] = (None,) * len(outputs)
        types = [out.data_type.tvm if name is None else name for out, name in zip(outputs, dtypes or own, strict=True)]
        sizes: list[Shape] = [out.sizes if shape is None else shape for out, shape in zip(outputs, shapes or own, strict=True)]
        if finish is not None:
            sizes = _finished(function, finish, inputs, sizes)
        device = next((tensor.device for tensor in inputs if tensor is not None), self._device)
        return tuple(
            torch.empty(tuple(shape), dtype=getattr(torch, t), device=device) for shape, t in zip(sizes, types, strict=True)
        )


def _describe(tensor: Any, where: str, boolean: bool) -> ArrayTensorDesc:
    data_type = TensorDataType.of(torch.uint8 if boolean and tensor.dtype == torch.bool else tensor.dtype, where)
    return ArrayTensorDesc(data_type, tuple(tensor.shape) or (1,), zero_dimensional=not tensor.ndim)


def _finished(function: str, finish: functions.Finish, inputs: tuple[Any, ...], sizes: list[Shape]) -> list[Shape]:
    """The results' shapes after the last step, which must declare them in its attribute ``shapes``."""
    rule = getattr(finish, "shapes", None)
    if rule is None:
        advice = f"{finish.__module__}.{finish.__name__} does not define `shapes`."
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
