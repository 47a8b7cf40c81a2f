"""Pointwise operators: a function of NumPy and of PyTorch that writes to ``out``, and a node of ONNX Runtime.

Which function that is follows from the operator's name (``_names.py``) and from ONNX's names on its class. Only operators for which
a library has no such function, or one with other parameters, are in the tables here.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import DENSITIES, Array
from tvmdml.proof.bench.peers import _names
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

Call = Callable[[], object]
_OURS = {"scale_bias", "fused_activation"}
"""Attributes that no other library's function has."""


def _is_plain(work: Work) -> bool:
    """Whether the operator does nothing beside what its name says."""
    given = dict(work.attributes)
    return not _OURS & set(given) and given.get("infinity_mode", "either") == "either"


# -- The arrays ---------------------------------------------------------------------------------------------------


def arrays(task: Task) -> list[Array]:
    """The inputs that are present; in place, the first is a copy. Truth values are bool, for which libraries have faster code."""
    found = [array for array in task.given if array is not None]
    operands = list(task.work.operands())
    if task.work.in_place:
        found[0] = inputs.like(found[0])
    return [
        array.view(bool) if operand.data in DENSITIES and operand.dtype == "uint8" else array
        for array, operand in zip(found, operands, strict=True)
    ]


def output(task: Task, given: Sequence[Array], is_bool: bool) -> Array:
    """The array for the result, as bool if that is what the library writes; in place, the first input."""
    out = given[0] if task.work.in_place else task.outputs()[0]
    return out.view(bool) if is_bool and out.dtype == np.uint8 else out


def _results(call: Call, out: Array, task: Task) -> Callable[[], tuple[Array, ...]]:
    dtype = task.desc.outputs()[0].data_type.numpy
    return writes(call, out.view(dtype) if out.dtype == bool else out)


def of_one(given: Sequence[Any]) -> list[Any]:
    """The first element of each array."""
    return [one.reshape(-1)[:1] for one in given]


# -- NumPy --------------------------------------------------------------------------------------------------------


def _numpy_clip(task: Task, given: list[Array], out: Array) -> Call:
    low, high = (given[0].dtype.type(task.work[name]) for name in ("min", "max"))
    return partial(np.clip, given[0], low, high, out)


def _numpy_where(task: Task, given: list[Array], out: Array) -> Call:
    condition, a, b = given

    def call() -> None:
        np.copyto(out, b)
        np.copyto(out, a, where=condition)

    return call


def _numpy_quantize(task: Task, given: list[Array], out: Array) -> Call:
    x, scale, *zero_point = given
    limits, between = np.iinfo(out.dtype), np.empty_like(x)
    zero = zero_point[0].astype(x.dtype) if zero_point else x.dtype.type(0)

    def call() -> None:
        np.divide(x, scale, between)
        np.rint(between, between)
        np.add(between, zero, between)
        np.clip(between, limits.min, limits.max, between)
        np.copyto(out, between, casting="unsafe")

    return call


def _numpy_dequantize(task: Task, given: list[Array], out: Array) -> Call:
    x, scale, *zero_point = given
    zero = zero_point[0].astype(out.dtype) if zero_point else out.dtype.type(0)

    def call() -> None:
        np.subtract(x, zero, out, dtype=out.dtype)
        np.multiply(out, scale, out)

    return call


def _numpy_mean(task: Task, given: list[Array], out: Array) -> Call:
    half = out.dtype.type(0.5)

    def call() -> None:
        np.add(given[0], given[1], out)
        np.multiply(out, half, out)

    return call


def _numpy_difference_square(task: Task, given: list[Array], out: Array) -> Call:
    def call() -> None:
        np.subtract(given[0], given[1], out)
        np.square(out, out)

    return call


NUMPY: dict[str, Callable[[Task, list[Array], Array], Call]] = {
    "activation_relu": lambda task, given, out: partial(np.maximum, given[0], out.dtype.type(0), out=out),
    "cast": lambda task, given, out: partial(np.copyto, out, given[0], "unsafe"),
    "clip": _numpy_clip,
    "dequantize_linear": _numpy_dequantize,
    "difference_square": _numpy_difference_square,
    "fill_value_constant": lambda task, given, out: partial(out.fill, task.work["value"]),
    "mean": _numpy_mean,
    "quantize_linear": _numpy_quantize,
    "threshold": lambda task, given, out: partial(np.maximum, given[0], out.dtype.type(task.work["min"]), out=out),
    "where": _numpy_where,
}
"""By the name of the function here."""


def _by_numpy(task: Task, threads: int) -> Attempt:
    given, operator = arrays(task), task.work.operator
    name = _names.in_numpy(operator)
    ufunc = getattr(np, name) if name else None
    out = output(task, given, ufunc is not None and ufunc(*of_one(given)).dtype == bool)
    call = NUMPY[_names.function(operator)](task, given, out) if ufunc is None else partial(ufunc, *given, out=out)
    return Attempt(call, _results(call, out, task))


def _by_numpy_new(task: Task, threads: int) -> Attempt:
    call = partial(getattr(np, _names.in_numpy(task.work.operator)), *arrays(task))
    return Attempt(call, lambda: (as_numbers(call(), task),))


def as_numbers(found: Array, task: Task) -> Array:
    """A result of bool in the type of the output."""
    return found.view(task.desc.outputs()[0].data_type.numpy) if found.dtype == bool else found


# -- PyTorch ------------------------------------------------------------------------------------------------------


Tensors = list[Any]


def _torch_clip(task: Task, given: Tensors, out: Any) -> Call:
    return partial(torch().clamp, given[0], task.work["min"], task.work["max"], out=out)


def _torch_copy(task: Task, given: Tensors, out: Any) -> Call:
    return partial(out.copy_, given[0])


def _torch_leaky_relu(task: Task, given: Tensors, out: Any) -> Call:
    return partial(torch().ops.aten.leaky_relu.out, given[0], task.work["alpha"], out=out)


def _torch_softplus(task: Task, given: Tensors, out: Any) -> Call:
    """Without the threshold from which PyTorch takes the input itself."""
    return partial(torch().ops.aten.softplus.out, given[0], task.work["steepness"], 1e30, out=out)


def _torch_swish(task: Task, given: Tensors, out: Any) -> Call:
    assert task.work["sigmoid_input_scale"] == 1
    return partial(torch().ops.aten.silu.out, given[0], out=out)


def _torch_relu_grad(task: Task, given: Tensors, out: Any) -> Call:
    return partial(torch().ops.aten.threshold_backward.grad_input, given[1], given[0], 0, grad_input=out)


def _torch_thresholded_relu(task: Task, given: Tensors, out: Any) -> Call:
    return partial(torch().ops.aten.threshold.out, given[0], task.work["alpha"], 0, out=out)


TORCH: dict[str, Callable[[Task, Tensors, Any], Call]] = {
    "activation_elu": lambda task, given, out: partial(torch().ops.aten.elu.out, given[0], task.work["alpha"], out=out),
    "activation_gelu": lambda task, given, out: partial(torch().ops.aten.gelu.out, given[0], out=out),
    "activation_identity": _torch_copy,
    "activation_leaky_relu": _torch_leaky_relu,
    "activation_softplus": _torch_softplus,
    "activation_swish": _torch_swish,
    "activation_relu": lambda task, given, out: partial(torch().clamp_min, given[0], 0, out=out),
    "activation_relu_grad": _torch_relu_grad,
    "activation_thresholded_relu": _torch_thresholded_relu,
    "cast": _torch_copy,
    "clip": _torch_clip,
    "fill_value_constant": lambda task, given, out: partial(out.fill_, task.work["value"]),
    "identity": _torch_copy,
    "threshold": lambda task, given, out: partial(torch().clamp_min, given[0], task.work["min"], out=out),
    "where": lambda task, given, out: partial(torch().where, *given, out=out),
}
"""By the name of the function here."""


def _by_torch(task: Task, threads: int) -> Attempt:
    given, name = arrays(task), _names.function(task.work.operator)
    tensors = list(map(tensor, given))
    if name in TORCH:
        out = output(task, given, False)
        return on_torch(call := TORCH[name](task, tensors, tensor(out)), _results(call, out, task), threads)
    function = getattr(torch(), _names.in_torch(task.work.operator))
    out = output(task, given, function(*of_one(tensors)).dtype == torch().bool)
    call = partial(function, *tensors, out=tensor(out))
    return on_torch(call, _results(call, out, task), threads)


def _by_torch_new(task: Task, threads: int) -> Attempt:
    call = partial(getattr(torch(), _names.in_torch(task.work.operator)), *map(tensor, arrays(task)))
    return on_torch(call, lambda: (as_numbers(call().numpy(), task),), threads)


def _quantized_type(dtype: np.dtype[Any]) -> Any:
    return {"uint8": torch().quint8, "int8": torch().qint8}[dtype.name]


def _parameters(task: Task) -> tuple[float, int]:
    """The scale and the zero point, if each is a single number."""
    _, scale, *zero_point = arrays(task)
    return float(scale.item()), int(zero_point[0].item()) if zero_point else 0


def _quantize_torch(task: Task, threads: int) -> Attempt:
    kind = _quantized_type(task.desc.outputs()[0].data_type.numpy)
    call = partial(torch().quantize_per_tensor, tensor(arrays(task)[0]), *_parameters(task), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once: PyTorch plans to replace it
        call()
    return on_torch(call, lambda: (call().int_repr().numpy(),), threads)


def _dequantize_torch(task: Task, threads: int) -> Attempt:
    x = arrays(task)[0]
    call = torch()._make_per_tensor_quantized_tensor(tensor(x), *_parameters(task)).dequantize
    return on_torch(call, lambda: (call().numpy(),), threads)


# -- ONNX Runtime -------------------------------------------------------------------------------------------------


def _onnx_kind(task: Task) -> str:
    return _names.in_onnx(task.work.operator)


def _node(task: Task, given: list[Array]) -> tuple[list[Array], list[Array], dict[str, Any]]:
    """A node's inputs, the constants among them, which come last, and its attributes."""
    kind, work = _onnx_kind(task), task.work
    if kind == "Clip":
        return given, [np.array(work[name], given[0].dtype) for name in ("min", "max")], {}
    if kind == "Cast":
        return given, [], {"to": importlib.import_module("onnx").helper.np_dtype_to_tensor_dtype(_output_type(task))}
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        return given[:1], [one.reshape(()) for one in given[1:]], {}
    if kind == "BitShift":
        return given, [], {"direction": "RIGHT" if "RIGHT" in work.operator else "LEFT"}
    return given, [], {name: value for name, value in work.attributes if name in _schema(kind).attributes}


def _schema(kind: str) -> Any:
    return importlib.import_module("onnx").defs.get_schema(kind)


def _output_type(task: Task) -> np.dtype[Any]:
    return task.desc.outputs()[0].data_type.numpy


def _only_bool(formal: Any) -> bool:
    """Whether a node's input or output is bool, and no other type."""
    return set(formal.types) == {"tensor(bool)"}


def _by_onnx(task: Task, threads: int) -> Attempt:
    kind, given = _onnx_kind(task), arrays(task)
    schema = _schema(kind)
    out = output(task, given, _only_bool(schema.outputs[0]))
    sources, constants, attributes = _node(task, given)
    call = onnx_session(
        kind,
        {f"x{i}": array for i, array in enumerate(sources)},
        {"y": out},
        threads,
        constants={f"c{i}": array for i, array in enumerate(constants)},
        **attributes,
    )
    return Attempt(call, _results(call, out, task))


# -- Which can do what --------------------------------------------------------------------------------------------


def _given(work: Work, new: bool) -> bool:
    return _is_plain(work) and (work.door == "function") is new


def when_numpy(new: bool) -> Callable[[Work], bool]:
    """For what NumPy can do; ``new`` if results are allocated."""

    def when(work: Work) -> bool:
        known = bool(_names.in_numpy(work.operator)) or (not new and _names.function(work.operator) in NUMPY)
        return _given(work, new) and known

    return when


def when_cupy(new: bool) -> Callable[[Work], bool]:
    """For what CuPy has NumPy's function for."""
    return lambda work: _given(work, new) and bool(_names.in_numpy(work.operator))


def when_torch(new: bool) -> Callable[[Work], bool]:
    """For what PyTorch can do."""

    def when(work: Work) -> bool:
        known = bool(_names.in_torch(work.operator)) or (not new and _names.function(work.operator) in TORCH)
        return _given(work, new) and known

    return when


def _when_onnx(work: Work) -> bool:
    """Not in place, which a session is not; no division of integers, which ends the process where the divisor is 0."""
    kind = _names.in_onnx(work.operator)
    divides = kind in ("Div", "Mod") and "int" in work.dtype
    packed = all(one.layout == "packed" for one in work.operands())
    return (
        bool(kind) and any(True for _ in work.operands()) and _given(work, False) and not work.in_place and packed and not divides
    )


def _when_single(name: str) -> Callable[[Work], bool]:
    """For parameters of one element."""

    def when(work: Work) -> bool:
        parameters = list(work.operands())[1:]
        return _names.function(work.operator) == name and all(np.prod(one.sizes) == 1 for one in parameters)

    return when


PEERS = (
    Peer("numpy", "out=", _by_numpy, when_numpy(new=False)),
    Peer("numpy", "allocates", _by_numpy_new, when_numpy(new=True)),
    Peer("torch", "out=", _by_torch, when_torch(new=False)),
    Peer("torch", "allocates", _by_torch_new, when_torch(new=True)),
    Peer("torch", "quantize_per_tensor", _quantize_torch, _when_single("quantize_linear"), "allocates"),
    Peer("torch", "dequantize", _dequantize_torch, _when_single("dequantize_linear"), "allocates"),
    Peer("onnxruntime", "node", _by_onnx, _when_onnx),
)
