"""Pointwise operators: a function of NumPy and of PyTorch that writes to ``out``, and a node of ONNX Runtime.

On a CUDA device PyTorch has the same functions, and CuPy has NumPy's; what reads or writes several times is left out there, since
CuPy makes a kernel of each. Which function that is follows from the operator's name (``_names.py``) and from ONNX's names on its
class. Only operators for which a library has no such function, or one with other parameters, are in the tables here.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import DENSITIES, NumpyArray
from tvmdml.proof.bench.peers import _arrays, _names
from tvmdml.proof.bench.peers._arrays import IN_TORCH, Arrays
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


def _operands(task: Task) -> list[NumpyArray]:
    """The inputs that are present; in place, the first is a copy. Truth values are bool, for which libraries have faster code."""
    found = [array for array in task.given if array is not None]
    operands = list(task.work.operands())
    if task.work.in_place:
        found[0] = inputs.like(found[0])
    return [
        array.view(bool) if operand.data in DENSITIES and operand.dtype == "uint8" else array
        for array, operand in zip(found, operands, strict=True)
    ]


def _output(task: Task, is_bool: bool) -> NumpyArray:
    """The array for the result, as bool if that is what the library writes."""
    (out,) = task.outputs()
    return out.view(bool) if is_bool and out.dtype == np.uint8 else out


def _as_numbers(found: NumpyArray, task: Task) -> NumpyArray:
    """A result of bool in the type of the output."""
    return found.view(task.desc.outputs()[0].data_type.numpy) if found.dtype == bool else found


# -- NumPy --------------------------------------------------------------------------------------------------------


def _numpy_clip(task: Task, given: list[NumpyArray], out: NumpyArray) -> Call:
    low, high = (given[0].dtype.type(task.work[name]) for name in ("min", "max"))
    return partial(np.clip, given[0], low, high, out)


def _numpy_where(task: Task, given: list[NumpyArray], out: NumpyArray) -> Call:
    condition, a, b = given

    def call() -> None:
        np.copyto(out, b)
        np.copyto(out, a, where=condition)

    return call


def _numpy_quantize(task: Task, given: list[NumpyArray], out: NumpyArray) -> Call:
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


def _numpy_dequantize(task: Task, given: list[NumpyArray], out: NumpyArray) -> Call:
    x, scale, *zero_point = given
    zero = zero_point[0].astype(out.dtype) if zero_point else out.dtype.type(0)

    def call() -> None:
        np.subtract(x, zero, out, dtype=out.dtype)
        np.multiply(out, scale, out)

    return call


def _numpy_mean(task: Task, given: list[NumpyArray], out: NumpyArray) -> Call:
    half = out.dtype.type(0.5)

    def call() -> None:
        np.add(given[0], given[1], out)
        np.multiply(out, half, out)

    return call


def _numpy_difference_square(task: Task, given: list[NumpyArray], out: NumpyArray) -> Call:
    def call() -> None:
        np.subtract(given[0], given[1], out)
        np.square(out, out)

    return call


NUMPY: dict[str, Callable[[Task, list[NumpyArray], NumpyArray], Call]] = {
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


# -- By name ------------------------------------------------------------------------------------------------------


def _by_name(arrays: Arrays, task: Task, threads: int) -> Attempt:
    table, named = (TORCH, _names.in_torch) if arrays.library == "torch" else (NUMPY, _names.in_numpy)
    given, name = list(map(arrays.of, _operands(task))), _names.function(task.work.operator)
    function = None if name in table else getattr(arrays.functions, named(task.work.operator))
    is_bool = function is not None and str(function(*(one.reshape(-1)[:1] for one in given)).dtype).endswith("bool")
    out = given[0] if task.work.in_place else arrays.of(_output(task, is_bool))
    call = table[name](task, given, out) if function is None else partial(function, *given, out=out)

    def results() -> tuple[NumpyArray, ...]:
        call()
        return (_as_numbers(arrays.back(out), task),)

    return arrays.attempt(call, results, threads)


def _by_name_new(arrays: Arrays, task: Task, threads: int) -> Attempt:
    named = _names.in_torch if arrays.library == "torch" else _names.in_numpy
    call = partial(getattr(arrays.functions, named(task.work.operator)), *map(arrays.of, _operands(task)))
    return arrays.returns(threads, call, lambda found: _as_numbers(found, task))


# -- Quantized numbers of PyTorch ---------------------------------------------------------------------------------


def _quantized_type(dtype: np.dtype[Any]) -> Any:
    return {"uint8": torch().quint8, "int8": torch().qint8}[dtype.name]


def _parameters(task: Task) -> tuple[float, int]:
    """The scale and the zero point, if each is a single number."""
    _, scale, *zero_point = _operands(task)
    return float(scale.item()), int(zero_point[0].item()) if zero_point else 0


def _quantize_torch(task: Task, threads: int) -> Attempt:
    kind = _quantized_type(task.desc.outputs()[0].data_type.numpy)
    call = partial(torch().quantize_per_tensor, tensor(_operands(task)[0]), *_parameters(task), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once: PyTorch plans to replace it
        call()
    return on_torch(call, lambda: (call().int_repr().numpy(),), threads)


def _dequantize_torch(task: Task, threads: int) -> Attempt:
    x = _operands(task)[0]
    call = torch()._make_per_tensor_quantized_tensor(tensor(x), *_parameters(task)).dequantize
    return on_torch(call, lambda: (call().numpy(),), threads)


# -- ONNX Runtime -------------------------------------------------------------------------------------------------


def _onnx_kind(task: Task) -> str:
    return _names.in_onnx(task.work.operator)


def _node(task: Task, given: list[NumpyArray]) -> tuple[list[NumpyArray], list[NumpyArray], dict[str, Any]]:
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
    kind, given = _onnx_kind(task), _operands(task)
    schema = _schema(kind)
    out = _output(task, _only_bool(schema.outputs[0]))
    sources, constants, attributes = _node(task, given)
    call = onnx_session(
        kind,
        {f"x{i}": array for i, array in enumerate(sources)},
        {"y": out},
        threads,
        constants={f"c{i}": array for i, array in enumerate(constants)},
        **attributes,
    )
    return Attempt(call, writes(call, out.view(_output_type(task)) if out.dtype == bool else out))


# -- Which can do what --------------------------------------------------------------------------------------------


def _given(work: Work, new: bool) -> bool:
    return _is_plain(work) and (work.door == "function") is new


def _when_numpy(new: bool) -> Callable[[Work], bool]:
    """For what NumPy can do; ``new`` if results are allocated."""

    def when(work: Work) -> bool:
        known = bool(_names.in_numpy(work.operator)) or (not new and _names.function(work.operator) in NUMPY)
        return _given(work, new) and known

    return when


def _when_cupy(new: bool) -> Callable[[Work], bool]:
    """For what CuPy has NumPy's function for."""
    return lambda work: _given(work, new) and bool(_names.in_numpy(work.operator))


def _when_torch(new: bool) -> Callable[[Work], bool]:
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
    _arrays.NUMPY.peer("out=", _by_name, _when_numpy(new=False)),
    _arrays.NUMPY.peer("allocates", _by_name_new, _when_numpy(new=True)),
    _arrays.CUPY.peer("out=", _by_name, _when_cupy(new=False)),
    _arrays.CUPY.peer("allocates", _by_name_new, _when_cupy(new=True)),
    *(one.peer("out=", _by_name, _when_torch(new=False)) for one in IN_TORCH),
    *(one.peer("allocates", _by_name_new, _when_torch(new=True)) for one in IN_TORCH),
    Peer("torch", "quantize_per_tensor", _quantize_torch, _when_single("quantize_linear"), "allocates"),
    Peer("torch", "dequantize", _dequantize_torch, _when_single("dequantize_linear"), "allocates"),
    Peer("onnxruntime", "node", _by_onnx, _when_onnx),
)
