"""``Work``: one operator with one shape, type and input; its descriptor, and the bytes it must move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import tvmdml
from tvmdml.bench import inputs
from tvmdml.bench.inputs import Array, Sizes
from tvmdml.operators import Operator
from tvmdml.tensors import TensorDesc

NO_BOUND = (-(2**31), 2**31 - 1)

LARGE = 1 << 24
"""For at least this many elements, the NumPy reference uses a faster algorithm."""

Attribute = int | float | str


@dataclasses.dataclass(frozen=True)
class Work:
    """What a contender has to do."""

    operator: str
    """DirectML's name."""
    sizes: Sizes
    dtype: str = "float32"
    data: str = "normal"
    """One of ``inputs.FILLS``; empty for no input."""
    layout: str = "packed"
    """One of ``inputs.LAYOUTS``: the input's layout, or the output's if there is no input."""
    attributes: tuple[tuple[str, Attribute], ...] = ()
    in_place: bool = False
    door: str = "bound"
    """How it is called: ``bound`` (converted once), ``operator`` (arrays checked each time) or ``function`` (results allocated)."""

    def __getitem__(self, name: str) -> Any:
        """An attribute."""
        return dict(self.attributes)[name]

    def at_most(self, size: int) -> Work:
        """The same work with dimensions limited to a size."""
        sizes = tuple(min(n, size) for n in self.sizes)
        attributes = tuple((name, min(value, size) if name == "k" else value) for name, value in self.attributes)
        return dataclasses.replace(self, sizes=sizes, attributes=attributes)

    def describe(self) -> Operator:
        """The descriptor."""
        return KINDS[self.operator].describe(self)

    def as_json(self) -> dict[str, Any]:
        """As JSON, for people and for programs that read results."""
        return {**dataclasses.asdict(self), "sizes": list(self.sizes), "attributes": dict(self.attributes)}


def of(desc: Operator, in_place: bool = False, data: str = "") -> Work | None:
    """The work that a descriptor describes, with an input of this fill (by default the operator's usual one).

    Returns:
        The work; ``None`` if ``Work`` cannot express it.
    """
    desc = desc.canonical()
    if desc.NAME not in KINDS:
        return None
    first = next(tensor for _, tensor in desc.tensors() if tensor is not None)
    usual = desc.samples()[:1]  # none for an operator without input
    fields: dict[str, Any] = {
        "dtype": first.data_type.tvm,
        "data": (data or usual[0]) if usual else "",
        "attributes": tuple(KINDS[desc.NAME].attributes(desc).items()),
        "in_place": in_place,
    }
    for layout in ("packed",) if in_place else inputs.LAYOUTS:  # in place, the input is a packed copy
        work = Work(desc.NAME, first.sizes, layout=layout, **fields)
        if _written_out(work.describe()) == _written_out(desc):
            return work
    return None


def _written_out(desc: Operator) -> str:
    """A descriptor as text, equal for tensors with equal layouts."""
    tensors = {name: tensor and TensorDesc(tensor.data_type, tensor.sizes, tensor.layout) for name, tensor in desc.tensors()}
    return dataclasses.replace(desc, **tensors).exactly()  # type: ignore[type-var] # a dataclass, as all descriptors are


class Traffic(NamedTuple):
    """The bytes that work must move, by what happens to them."""

    copied: int = 0
    """Read, and written elsewhere."""
    rewritten: int = 0
    """Read and written in place."""
    read: int = 0
    """Only read."""
    written: int = 0
    """Only written."""
    zeroed: int = 0
    """Only written, with zeros, which may be faster."""

    @property
    def total(self) -> int:
        """Bytes over the memory bus: copied bytes count twice."""
        return 2 * (self.copied + self.rewritten) + self.read + self.written + self.zeroed


class Task:
    """Work with its input and its expected outputs."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.desc = work.describe()
        self.input = inputs.filled(work.sizes, work.dtype, work.data, work.layout) if work.data else None
        with np.errstate(all="ignore"):
            self.expected = KINDS[work.operator].reference(self)
        self.traffic = KINDS[work.operator].traffic(self)

    @property
    def x(self) -> Array:
        """The input, if there is one."""
        assert self.input is not None
        return self.input

    def outputs(self) -> list[Array]:
        """New arrays for the outputs, in the layouts of the descriptor."""
        layout = "packed" if self.work.data else self.work.layout
        return [inputs.LAYOUTS[layout](desc.sizes, desc.data_type.numpy) for desc in self.desc.outputs()]


def _tensor(sizes: Sizes, dtype: str, layout: str = "packed") -> TensorDesc:
    if layout == "packed":
        return TensorDesc(dtype, sizes)
    array = inputs.LAYOUTS[layout](sizes, dtype)
    return TensorDesc(dtype, sizes, tuple(s // array.itemsize for s in array.strides))


# -- Operators ----------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """How an operator is benchmarked."""

    describe: Callable[[Work], Operator]
    attributes: Callable[[Any], dict[str, Attribute]]
    """The fields of the work that a descriptor describes."""
    traffic: Callable[[Task], Traffic]
    function: Callable[[Task, Any], Callable[[], Any]]
    """A call of tvmdml's function on the input, wherever its memory is."""
    reference: Callable[[Task], tuple[Any, ...]] = lambda task: task.desc.reference(task.input)
    """The expected outputs."""
    counted: bool = False
    """Whether only the first rows of the second output are defined, as many as the first output says."""


def _round(work: Work) -> Operator:
    return tvmdml.ElementWiseRound(
        input_tensor=_tensor(work.sizes, work.dtype, work.layout),
        output_tensor=_tensor(work.sizes, work.dtype),
        rounding_mode=work["rounding_mode"],
    )


def _round_attributes(desc: tvmdml.ElementWiseRound) -> dict[str, Attribute]:
    return {"rounding_mode": desc.rounding_mode.name.lower()}


def _round_traffic(task: Task) -> Traffic:
    return Traffic(rewritten=task.x.nbytes) if task.work.in_place else Traffic(copied=task.x.nbytes)


def _top_k(work: Work) -> Operator:
    axis, k = work["axis"], work["k"]
    sizes = (*work.sizes[:axis], k, *work.sizes[axis + 1 :])
    return tvmdml.TopK1(
        input_tensor=_tensor(work.sizes, work.dtype, work.layout),
        output_value_tensor=_tensor(sizes, work.dtype),
        output_index_tensor=_tensor(sizes, "uint32"),
        axis=axis,
        k=k,
        axis_direction=work["axis_direction"],
    )


def _top_k_attributes(desc: tvmdml.TopK1) -> dict[str, Attribute]:
    return {"axis": desc.axis, "k": desc.k, "axis_direction": desc.axis_direction.name.lower()}


def _top_k_traffic(task: Task) -> Traffic:
    return Traffic(read=task.x.nbytes, written=sum(output.nbytes for output in task.expected))


def _top_k_reference(task: Task) -> tuple[Any, ...]:
    """The operator's reference, which sorts whole rows; for many elements, one that sorts only those that may be in the result."""
    x, axis, k = task.x, task.work["axis"], task.work["k"]
    rows = x.reshape(-1, x.shape[axis])
    selects = axis == x.ndim - 1 and task.work["axis_direction"] == "decreasing" and x.dtype.kind == "f" and 2 * k <= x.shape[axis]
    if x.size < LARGE or not selects or np.isnan(x).any():
        return task.desc.reference(x)
    values = np.empty((len(rows), k), x.dtype)
    indices = np.empty((len(rows), k), np.uint32)
    for row, into, places in zip(rows, values, indices, strict=True):
        least = np.partition(row, len(row) - k)[len(row) - k]
        (found,) = np.nonzero(row >= least)  # including all elements equal to the K-th, in order of position
        places[:] = found[np.argsort(-row[found], kind="stable")[:k]]
        into[:] = row[places]
    shape = task.desc.outputs()[0].sizes
    return values.reshape(shape), indices.reshape(shape)


def _nonzero(work: Work) -> Operator:
    return tvmdml.NonzeroCoordinates(
        input_tensor=_tensor(work.sizes, work.dtype, work.layout),
        output_count_tensor=_tensor((1,), "uint32"),
        output_coordinates_tensor=_tensor((int(np.prod(work.sizes)), len(work.sizes)), "uint32"),
    )


def _nonzero_attributes(desc: tvmdml.NonzeroCoordinates) -> dict[str, Attribute]:
    return {}


def _nonzero_traffic(task: Task) -> Traffic:
    count = int(task.expected[0][0])
    return Traffic(read=task.x.nbytes, written=4 * (count * task.x.ndim + 1))


def _diagonal(work: Work) -> Operator:
    layout = work.layout
    return tvmdml.DiagonalMatrix1(
        input_tensor=_tensor(work.sizes, work.dtype, layout) if work.data else None,
        output_tensor=_tensor(work.sizes, work.dtype, "packed" if work.data else layout),
        value_data_type=work.dtype,  # type: ignore[arg-type] # a name is as good as the member
        value=work["value"],
        diagonal_fill_begin=work["begin"],
        diagonal_fill_end=work["end"],
    )


def _diagonal_attributes(desc: tvmdml.DiagonalMatrix1) -> dict[str, Attribute]:
    return {"value": desc.value, "begin": desc.diagonal_fill_begin, "end": desc.diagonal_fill_end}


def _diagonal_traffic(task: Task) -> Traffic:
    """Outside the band is copied, or zero; inside is the value."""
    *batch, height, width = task.work.sizes
    rows = np.arange(height)
    begin, end = (np.clip(rows + task.work[bound], 0, width) for bound in ("begin", "end"))
    band = int((end - begin).sum())
    size = int(np.prod(batch, dtype=np.int64)) * task.expected[0].itemsize
    rest, filled = size * (height * width - band), size * band
    parts = {"copied" if task.work.data else "zeroed": rest}
    into = "zeroed" if task.work["value"] == 0 else "written"
    parts[into] = parts.get(into, 0) + filled
    return Traffic(**parts)


def _round_function(task: Task, x: Any) -> Callable[[], Any]:
    mode = task.work["rounding_mode"]
    # The default is omitted, as in most programs.
    return partial(tvmdml.round, x, **({} if mode == "halves_to_nearest_even" else {"rounding_mode": mode}))


def _top_k_function(task: Task, x: Any) -> Callable[[], Any]:
    attributes: dict[str, Any] = dict(task.work.attributes)
    return partial(tvmdml.top_k, x, attributes.pop("k"), **attributes)


def _nonzero_function(task: Task, x: Any) -> Callable[[], Any]:
    return partial(tvmdml.nonzero_coordinates, x, trim=False)


def _diagonal_function(task: Task, x: Any) -> Callable[[], Any]:
    work = task.work
    form: dict[str, Any] = {} if work.data else {"sizes": work.sizes, "dtype": work.dtype}
    band: dict[str, Any] = {"value": work["value"], "diagonal_fill_begin": work["begin"], "diagonal_fill_end": work["end"]}
    return partial(tvmdml.diagonal_matrix, x, **form, **band)


KINDS = {
    "ELEMENT_WISE_ROUND": Kind(_round, _round_attributes, _round_traffic, _round_function),
    "TOP_K1": Kind(_top_k, _top_k_attributes, _top_k_traffic, _top_k_function, _top_k_reference),
    "NONZERO_COORDINATES": Kind(_nonzero, _nonzero_attributes, _nonzero_traffic, _nonzero_function, counted=True),
    "DIAGONAL_MATRIX1": Kind(_diagonal, _diagonal_attributes, _diagonal_traffic, _diagonal_function),
}
