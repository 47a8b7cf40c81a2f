"""The movement family: NumPy's and PyTorch's views copied to the output, or their functions for it; nodes of ONNX Runtime.

The tables here have an entry for each operator by the name of the function here, which has the same name for all its versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tvmdml.operators import by_name
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers import _names
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

Call = Callable[[], object]


def given(task: Task) -> list[NumpyArray]:
    """The inputs; indices as int64, as every library takes them."""
    found = []
    for (name, _), array in zip(task.desc.tensors(), task.given, strict=False):
        assert array is not None
        found.append(array.astype(np.int64) if name == "indices_tensor" else array)
    return found


def window(task: Task) -> tuple[slice, ...]:
    """The window of a slice, whose steps are positive."""
    names = ("input_window_offsets", "input_window_sizes", "input_window_strides")
    parts = zip(*(task.work[name] for name in names), strict=True)
    return tuple(slice(offset, offset + size, step) for offset, size, step in parts)


def tuples(indices: NumpyArray) -> tuple[NumpyArray, ...]:
    """The coordinates that tuples of indices consist of."""
    return tuple(np.ascontiguousarray(indices[..., i]) for i in range(indices.shape[-1]))


def parts(task: Task) -> list[tuple[slice, ...]]:
    """Where each output of a split is in the input."""
    axis, begin, found = task.work["axis"], 0, []
    for output in task.desc.outputs():
        found.append((*[slice(None)] * axis, slice(begin, begin + output.sizes[axis])))
        begin += output.sizes[axis]
    return found


def blocks(task: Task, x: Any) -> tuple[Any, tuple[int, ...]]:
    """An image with its blocks as dimensions, and the order in which a result has them."""
    b, (n, c, h, w) = task.work["block_size"], x.shape
    by_depth = dict(task.work.attributes).get("order", "depth_column_row") == "depth_column_row"
    if task.work.operator.startswith("SPACE"):
        return x.reshape(n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4) if by_depth else (0, 1, 3, 5, 2, 4)
    if by_depth:
        return x.reshape(n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)


def repeated(task: Task, x: Any) -> tuple[Any, tuple[int, ...]]:
    """A tensor with a dimension of size 1 before each, and the sizes with its repeats there."""
    repeats = task.work["repeats"]
    single = [n for size in x.shape for n in (1, size)]
    return x.reshape(single), tuple(n for pair in zip(repeats, x.shape, strict=True) for n in pair)


def pads(task: Task) -> list[tuple[int, int]]:
    """The padding of each dimension."""
    return list(zip(task.work["start_padding"], task.work["end_padding"], strict=True))


def fill(task: Task) -> float:
    """What a padding consists of."""
    return float(dict(task.work.attributes).get("padding_value", 0))  # type: ignore[arg-type]


# -- NumPy --------------------------------------------------------------------------------------------------------

Made = tuple[Call, Sequence[NumpyArray]]
"""A call, and the arrays that it writes to."""


def _copied(out: NumpyArray, view: NumpyArray) -> Made:
    """A view of an input, copied to an output of the same elements."""
    return partial(np.copyto, out.reshape(view.shape), view), [out]


def _split_numpy(task: Task, x: NumpyArray) -> Made:
    outs = task.outputs()
    views = [x[part] for part in parts(task)]

    def call() -> None:
        for out, view in zip(outs, views, strict=True):
            np.copyto(out, view)

    return call, outs


def _scatter_numpy(task: Task, x: NumpyArray, indices: NumpyArray, updates: NumpyArray) -> Made:
    (out,) = task.outputs()

    def call() -> None:
        np.copyto(out, x)
        np.put_along_axis(out, indices, updates, task.work["axis"])

    return call, [out]


def _scatter_nd_numpy(task: Task, x: NumpyArray, indices: NumpyArray, updates: NumpyArray) -> Made:
    (out,), places = task.outputs(), tuples(indices)

    def call() -> None:
        np.copyto(out, x)
        out[places] = updates

    return call, [out]


def _sums_numpy(task: Task, x: NumpyArray, indices: NumpyArray, updates: NumpyArray) -> Made:
    (out,), places = task.outputs(), tuples(indices)

    def call() -> None:
        np.copyto(out, x)
        np.add.at(out, places, updates)

    return call, [out]


def _one_hot_numpy(task: Task, indices: NumpyArray, values: NumpyArray) -> Made:
    (out,), (off, on) = task.outputs(), values.reshape(-1)

    def call() -> None:
        out.fill(off)
        np.put_along_axis(out, indices, on, task.work["axis"])

    return call, [out]


def _slice_grad_numpy(task: Task, gradient: NumpyArray) -> Made:
    (out,) = task.outputs()
    part = out[window(task)]

    def call() -> None:
        out.fill(0)
        np.copyto(part, gradient)

    return call, [out]


def _into(task: Task, function: Callable[..., object], *arguments: Any, **named: Any) -> Made:
    """A function of NumPy that writes to ``out``."""
    (out,) = task.outputs()
    return partial(function, *arguments, **named, out=out), [out]


def _tile_numpy(task: Task, x: NumpyArray) -> Made:
    view, sizes = repeated(task, x)
    return _copied(task.outputs()[0], np.broadcast_to(view, sizes))


NUMPY: dict[str, Callable[..., Made]] = {
    "depth_to_space": lambda task, x: _copied(task.outputs()[0], np.transpose(*blocks(task, x))),
    "fused_scatter_nd": _sums_numpy,
    "gather": lambda task, x, indices: _into(task, np.take, x, indices.reshape(-1), task.work["axis"], mode="clip"),
    "join": lambda task, *arrays: _into(task, np.concatenate, arrays, task.work["axis"]),
    "one_hot": _one_hot_numpy,
    "scatter_elements": _scatter_numpy,
    "scatter_nd": _scatter_nd_numpy,
    "slice": lambda task, x: _copied(task.outputs()[0], x[window(task)]),
    "slice_grad": _slice_grad_numpy,
    "space_to_depth": lambda task, x: _copied(task.outputs()[0], np.transpose(*blocks(task, x))),
    "split": _split_numpy,
    "tile": _tile_numpy,
}
"""By the name of the function here."""
NUMPY_NEW: dict[str, Callable[..., Callable[[], NumpyArray]]] = {
    "gather_elements": lambda task, x, indices: partial(np.take_along_axis, x, indices, task.work["axis"]),
    "gather_nd": lambda task, x, indices: partial(x.__getitem__, tuples(indices)),
    "padding": lambda task, x: partial(np.pad, x, pads(task), constant_values=fill(task)),
}
"""Those that allocate their results."""


def _by_numpy(task: Task, threads: int) -> Attempt:
    call, outs = NUMPY[_names.function(task.work.operator)](task, *given(task))
    return Attempt(call, writes(call, *outs))


def _by_numpy_new(task: Task, threads: int) -> Attempt:
    call = NUMPY_NEW[_names.function(task.work.operator)](task, *given(task))
    return Attempt(call, lambda: (call().reshape(task.desc.outputs()[0].sizes),))


# -- PyTorch ------------------------------------------------------------------------------------------------------

Tensors = Any


def _copied_on_torch(out: Any, view: Any) -> Call:
    return partial(out.view(view.shape).copy_, view)


def _split_torch(task: Task, outs: list[Any], x: Any) -> Call:
    sizes = [out.shape[task.work["axis"]] for out in outs]
    return partial(torch().split_with_sizes_copy, x, sizes, task.work["axis"], out=outs)


def _tile_torch(task: Task, outs: list[Any], x: Any) -> Call:
    view, sizes = repeated(task, x)
    return _copied_on_torch(outs[0], view.expand(sizes))


def _scatter_nd_torch(task: Task, outs: list[Any], x: Any, indices: Any, updates: Any) -> Call:
    (out,), places = outs, tuple(map(tensor, tuples(indices.numpy())))

    def call() -> None:
        out.copy_(x)
        out.index_put_(places, updates)

    return call


def _sums_torch(task: Task, outs: list[Any], x: Any, indices: Any, updates: Any) -> Call:
    (out,), rows = outs, tensor(indices.numpy().reshape(-1))

    def call() -> None:
        out.copy_(x)
        out.index_add_(0, rows, updates)

    return call


def _slice_grad_torch(task: Task, outs: list[Any], gradient: Any) -> Call:
    (out,), part = outs, outs[0][window(task)]

    def call() -> None:
        out.zero_()
        part.copy_(gradient)

    return call


TORCH: dict[str, Callable[..., Call]] = {
    "depth_to_space": lambda task, outs, x: _copied_on_torch(outs[0], (found := blocks(task, x))[0].permute(found[1])),
    "fused_scatter": lambda task, outs, x, indices, updates: partial(
        torch().scatter_add, x, task.work["axis"], indices, updates, out=outs[0]
    ),
    "fused_scatter_nd": _sums_torch,
    "gather": lambda task, outs, x, indices: partial(torch().index_select, x, task.work["axis"], indices.reshape(-1), out=outs[0]),
    "gather_elements": lambda task, outs, x, indices: partial(torch().gather, x, task.work["axis"], indices, out=outs[0]),
    "join": lambda task, outs, *given: partial(torch().cat, given, task.work["axis"], out=outs[0]),
    "scatter_elements": lambda task, outs, x, indices, updates: partial(
        torch().scatter, x, task.work["axis"], indices, updates, out=outs[0]
    ),
    "scatter_nd": _scatter_nd_torch,
    "slice": lambda task, outs, x: _copied_on_torch(outs[0], x[window(task)]),
    "slice_grad": _slice_grad_torch,
    "space_to_depth": lambda task, outs, x: _copied_on_torch(outs[0], (found := blocks(task, x))[0].permute(found[1])),
    "split": _split_torch,
    "tile": _tile_torch,
}
"""By the name of the function here."""


def _shuffled(task: Task, x: Any) -> Callable[[], Any]:
    """PyTorch has one order of the channels; the other one differs only in the number of equal runs."""
    name = "pixel_shuffle" if task.work.operator.startswith("DEPTH") else "pixel_unshuffle"
    return partial(getattr(torch().nn.functional, name), x, task.work["block_size"])


def _unfolded(task: Task, x: Any) -> Callable[[], Any]:
    names = ("dilations", "start_padding", "strides")
    numbers = [task.work[name] for name in names]
    return partial(torch().nn.functional.unfold, x, task.work["window_sizes"], *numbers)


def _padded(task: Task, x: Any) -> Callable[[], Any]:
    return partial(torch().nn.functional.pad, x, [n for pair in reversed(pads(task)) for n in pair], value=fill(task))


TORCH_NEW: dict[str, Callable[..., Callable[[], Any]]] = {
    "depth_to_space": _shuffled,
    "gather_nd": lambda task, x, indices: partial(x.__getitem__, tuple(map(tensor, tuples(indices.numpy())))),
    "padding": _padded,
    "space_to_depth": _shuffled,
    "unfold": _unfolded,
}
"""Those that allocate their results."""


def _by_torch(task: Task, threads: int) -> Attempt:
    outs = task.outputs()
    call = TORCH[_names.function(task.work.operator)](task, list(map(tensor, outs)), *map(tensor, given(task)))
    return on_torch(call, writes(call, *outs), threads)


def _by_torch_new(task: Task, threads: int) -> Attempt:
    call = TORCH_NEW[_names.function(task.work.operator)](task, *map(tensor, given(task)))
    return on_torch(call, lambda: (call().numpy().reshape(task.desc.outputs()[0].sizes),), threads)


# -- ONNX Runtime -------------------------------------------------------------------------------------------------

NodeInputs = tuple[list[NumpyArray], dict[str, NumpyArray], dict[str, Any]]
"""Inputs, constants by name, attributes."""


def _axis_node(task: Task, *arrays: NumpyArray) -> NodeInputs:
    return list(arrays), {}, {"axis": task.work["axis"]}


def _plain_node(task: Task, *arrays: NumpyArray) -> NodeInputs:
    return list(arrays), {}, {}


def _gather_node(task: Task, x: NumpyArray, indices: NumpyArray) -> NodeInputs:
    return [x, indices.reshape(-1)], {}, {"axis": task.work["axis"]}


def _blocks_node(task: Task, x: NumpyArray) -> NodeInputs:
    by_depth = dict(task.work.attributes).get("order", "depth_column_row") == "depth_column_row"
    mode = {} if task.work.operator.startswith("SPACE") else {"mode": "DCR" if by_depth else "CRD"}
    return [x], {}, {"blocksize": task.work["block_size"], **mode}


def _slice_node(task: Task, x: NumpyArray) -> NodeInputs:
    parts = window(task)
    numbers = ([p.start for p in parts], [p.stop for p in parts], list(range(x.ndim)), [p.step for p in parts])
    return [x], {f"c{i}": np.array(own, np.int64) for i, own in enumerate(numbers)}, {}


def _numbers_node(task: Task, x: NumpyArray, numbers: Sequence[int], **attributes: Any) -> NodeInputs:
    return [x], {"c": np.array(numbers, np.int64)}, attributes


def _padding_node(task: Task, x: NumpyArray) -> NodeInputs:
    around = np.array([n for side in zip(*pads(task), strict=True) for n in side], np.int64)
    return [x], {"pads": around, "fill": np.array(fill(task), x.dtype)}, {}


def _one_hot_node(task: Task, indices: NumpyArray, values: NumpyArray) -> NodeInputs:
    axis, depth = task.work["axis"], task.desc.outputs()[0].sizes[task.work["axis"]]
    return [np.squeeze(indices, axis)], {"depth": np.array([depth], np.int64), "values": values.reshape(-1)}, {"axis": axis}


def _fold_node(task: Task, columns: NumpyArray) -> NodeInputs:
    sizes = {"image": task.desc.outputs()[0].sizes[2:], "block": task.work["window_sizes"]}
    around = [*task.work["start_padding"], *task.work["end_padding"]]
    steps = {name: list(task.work[name]) for name in ("strides", "dilations")}
    return [columns], {name: np.array(own, np.int64) for name, own in sizes.items()}, {"pads": around, **steps}


ONNX: dict[str, Callable[..., NodeInputs]] = {
    "depth_to_space": _blocks_node,
    "fold": _fold_node,
    "fused_scatter": lambda task, *arrays: (list(arrays), {}, {"axis": task.work["axis"], "reduction": "add"}),
    "fused_scatter_nd": lambda task, *arrays: (list(arrays), {}, {"reduction": "add"}),
    "gather": _gather_node,
    "gather_elements": _axis_node,
    "gather_nd": _plain_node,
    "join": _axis_node,
    "one_hot": _one_hot_node,
    "padding": _padding_node,
    "scatter_elements": _axis_node,
    "scatter_nd": _plain_node,
    "slice": _slice_node,
    "space_to_depth": _blocks_node,
    "split": lambda task, x: _numbers_node(
        task, x, [out.sizes[task.work["axis"]] for out in task.desc.outputs()], axis=task.work["axis"]
    ),
    "tile": lambda task, x: _numbers_node(task, x, task.work["repeats"]),
}
"""By the name of the function here."""


def _by_onnx(task: Task, threads: int) -> Attempt:
    outs, name = task.outputs(), _names.function(task.work.operator)
    sources, constants, attributes = ONNX[name](task, *given(task))
    # The result of tuples has only the dimensions that it needs.
    views = [one.reshape(one.shape[1:]) if name == "gather_nd" else one for one in outs]
    inputs, results = ({f"{letter}{i}": one for i, one in enumerate(some)} for letter, some in (("x", sources), ("y", views)))
    call = onnx_session(_names.in_onnx(task.work.operator), inputs, results, threads, constants=constants, **attributes)
    return Attempt(call, writes(call, *outs))


# -- Which can do what --------------------------------------------------------------------------------------------


def _when(table: dict[str, Any]) -> Callable[[Work], bool]:
    return lambda work: _names.function(work.operator) in table and _is_usual(work)


def _is_usual(work: Work) -> bool:
    """Packed tensors, and zeros as padding."""
    usual = dict(work.attributes).get("padding_mode", "constant") == "constant"
    return usual and all(one.layout == "packed" for one in work.operands()) and by_name(work.operator).FAMILY == "movement"


def _when_torch(work: Work) -> bool:
    """Not where updates meet, of which PyTorch takes any one."""
    meet = work.operator.startswith("SCATTER") and any(
        one.dtype.endswith("int64") and one.data != "permuted" for one in work.operands()
    )
    return _when(TORCH)(work) and not meet


def _when_torch_new(work: Work) -> bool:
    """Images with the order of channels that PyTorch has, and as much padding before as behind."""
    given = dict(work.attributes)
    ordered = "block_size" not in given or given.get("order") == "column_row_depth"
    even = "window_sizes" not in given or (given["start_padding"] == given["end_padding"] and math.prod(work.sizes) > 0)
    return _when(TORCH_NEW)(work) and ordered and even


def _when_onnx(work: Work) -> bool:
    """Not blocks in the order that the node has no name for."""
    nameless = work.operator.startswith("SPACE") and dict(work.attributes).get("order") == "column_row_depth"
    return _when(ONNX)(work) and not nameless


PEERS = (
    Peer("numpy", "out=", _by_numpy, _when(NUMPY)),
    Peer("numpy", "allocates", _by_numpy_new, _when(NUMPY_NEW)),
    Peer("torch", "out=", _by_torch, _when_torch),
    Peer("torch", "allocates", _by_torch_new, _when_torch_new),
    Peer("onnxruntime", "node", _by_onnx, _when_onnx),
)
