"""Registers all functions of all operators with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tvmdml import doors, operators
from tvmdml.errors import InvalidArgument, message
from tvmdml.torch._fakes import without_data
from tvmdml.torch._gradients import Gradient
from tvmdml.torch._schemas import Schema, schemas

NAMESPACE = "tvmdml"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def register() -> None:
    """Register the functions that are not registered yet. Importing ``tvmdml.torch`` calls this."""
    for module in operators.modules():
        _register_all(doors.functions(module))


UNREGISTERED: dict[str, str] = {}
"""The functions that are not PyTorch operators, with the reason: PyTorch has no type for one of their parameters."""


def _register_all(functions: Mapping[str, Callable[..., Any]]) -> None:
    registered = getattr(torch.ops, NAMESPACE)
    for function in dict.fromkeys(functions.values()):
        if not hasattr(registered, function.__name__):
            try:
                found = schemas(function)
            except TypeError as error:
                UNREGISTERED[function.__name__] = str(error)
                continue
            for schema in found:
                _register(schema)
    for name, function in functions.items():  # another spelling of a name gives the same operator
        if function.__name__ not in UNREGISTERED:
            setattr(registered, name, getattr(registered, function.__name__))


def _register(schema: Schema) -> None:
    name = f"{NAMESPACE}::{schema.name}"
    _library.define(schema.name + schema.text, tags=torch.Tag.pt2_compliant_tag)
    kernel, fake = _kernel(_pinned(schema, schema.function)), _fake(schema)
    if schema.makes_tensors:
        kernel = _anywhere(schema, kernel, fake)
        _library.impl(schema.name, kernel, "CompositeExplicitAutograd")  # used for calls without a tensor
    for device in ("CPU", "CUDA"):
        _library.impl(schema.name, kernel, device)
    torch.library.register_fake(name, fake, lib=_library)
    gradient = Gradient(schema)
    torch.library.register_autograd(name, gradient.back, setup_context=gradient.keep, lib=_library)


def _pinned(schema: Schema, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a check of the arguments that may have only one value in this overload."""
    if not schema.pinned:
        return function

    def run(*arguments: Any, **keywords: Any) -> Any:
        for name, value in schema.pinned.items():
            if keywords[name] != value:
                where = f"{NAMESPACE}.{schema.function.__name__}: {name}"
                raise InvalidArgument(message(where, keywords[name], str(value), f"Omit {name} to get the usual result."))
        return function(*arguments, **keywords)

    return run


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        results = function(*arguments, **keywords)
        return tuple(map(_usual, results)) if isinstance(results, tuple) else _usual(results)

    return run


def _usual(result: Any) -> Any:
    """A tensor with PyTorch's usual strides; NumPy's differ for a tensor without elements."""
    if not isinstance(result, torch.Tensor):
        result = torch.from_numpy(result)
    return result if result.numel() else torch.empty(result.shape, dtype=result.dtype, device=result.device)


def _anywhere(schema: Schema, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of a function that can be called without a tensor, and then accepts the results' device."""

    def run(*arguments: Any, device: Any = None, **keywords: Any) -> Any:
        if (tensor := _tensor(arguments)) is not None:
            _check_device(schema, device, tensor)
            return kernel(*arguments, **keywords)
        if device is None or device.type == "cpu":
            return kernel(*arguments, **keywords)
        results = fake(*arguments, device=device, **keywords)  # uninitialised memory on that device
        return results if device.type == "meta" else kernel(*arguments, **keywords, out=results)

    return run


def _fake(schema: Schema) -> Callable[..., Any]:
    function = _pinned(schema, without_data(schema.function))

    def run(*arguments: Any, device: Any = None, **keywords: Any) -> Any:
        if (tensor := _tensor(arguments)) is not None:
            _check_device(schema, device, tensor)
        given = {**dict(zip(schema.arguments, arguments, strict=False)), **keywords}
        kinds = schema.arguments
        known = {
            name: _readable(kinds[name], value)
            for name, value in given.items()
            if value is not None or kinds[name] != "ScalarType?"  # None means the function's own default
        }
        results = function(**known, device="cpu" if device is None else device)
        return tuple(results) if isinstance(results, tuple) else results

    return run


def _readable(kind: str, value: Any) -> Any:
    """A value for the function without data, from one that may be a symbol."""
    if kind.startswith("SymInt"):
        return value  # sizes may be symbols
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return 1  # no shape depends on this number; 1 is valid for every data type
    return bool(value) if isinstance(value, torch.SymBool) else value


def _tensor(arguments: Iterable[Any]) -> Any:
    return next((value for value in arguments if isinstance(value, torch.Tensor)), None)


def _check_device(schema: Schema, device: Any, tensor: Any) -> None:
    own = tensor.device
    if device is not None and (device.type != own.type or device.index not in (None, own.index)):
        raise InvalidArgument(
            message(f"{NAMESPACE}.{schema.function.__name__}: device", device, f"{own}, the input's", "Leave it out.")
        )
