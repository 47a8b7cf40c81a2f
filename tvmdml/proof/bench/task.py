"""``Task``: work with its inputs and its expected outputs; ``Kind``: what is particular about an operator's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tvmdml import doors, operators
from tvmdml.doors._parameters import parameters
from tvmdml.operators._contract import Role
from tvmdml.proof.bench import inputs, rows
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.work import Operand, Traffic, Work
from tvmdml.tensors import TensorDesc


class Task:
    """Work with its inputs and its expected outputs."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.desc = work.describe()
        self.kind = kind(work.operator)
        self.tensors = [desc for _, desc in self.desc.tensors(Role.INPUT)]
        """The descriptions of the inputs; ``None`` for one that is absent."""
        self.given = list(self._given())
        """The inputs as a caller has them, not repeated."""
        self.inputs = [_repeated(array, desc) for array, desc in zip(self.given, self.tensors, strict=True)]
        """The same, with the sizes and strides of the descriptor."""
        with np.errstate(all="ignore"):
            self.expected = self.kind.reference(self)
        self.traffic = self.kind.traffic(self)

    def _given(self) -> Iterator[NumpyArray | None]:
        operands: list[Operand | None] = []
        for one in self.work.inputs:
            operands += one if isinstance(one, tuple) else [one]
        operands += [None] * (len(self.tensors) - len(operands))
        names = [name for name, _ in self.desc.tensors(Role.INPUT)]
        for place, (name, operand, desc) in enumerate(zip(names, operands, self.tensors, strict=True)):
            if operand is None or desc is None:
                yield None
                continue
            stored = desc.stored
            sizes, dtype = (stored.sizes, stored.data_type.tvm) if stored is not desc else (operand.sizes, operand.dtype)
            bounds = self.desc.bounds(name)
            if name == "indices_tensor" and bounds is not None:
                bounds = (0, bounds[1])  # as most callers have them, and as other libraries take them
            yield inputs.filled(sizes, dtype, operand.data, operand.layout, place, bounds)

    @property
    def x(self) -> NumpyArray:
        """The first input."""
        return next(array for array in self.given if array is not None)

    def newest(self) -> Task:
        """The same task as peers are asked: of the newest operator that does the same."""
        work = self.work.newest()
        return self if work is self.work else Task(work)

    def outputs(self) -> list[NumpyArray]:
        """New arrays for the outputs, in the layouts of the descriptor."""
        return [_new(desc.stored) for desc in self.desc.outputs()]


def _repeated(array: NumpyArray | None, desc: TensorDesc | None) -> NumpyArray | None:
    if array is None or desc is None or array.shape == desc.stored.sizes:
        return array
    strides = [0] * (desc.rank - array.ndim) + [0 if n == 1 else step for n, step in zip(array.shape, array.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(array, desc.sizes, strides)


def _new(desc: TensorDesc) -> NumpyArray:
    dtype = desc.data_type.numpy
    if desc.is_packed:
        return inputs.empty(desc.sizes, dtype)
    memory = inputs.empty((desc.span,), dtype)
    return np.lib.stride_tricks.as_strided(memory, desc.sizes, [step * dtype.itemsize for step in desc.layout])


# -- What is particular about an operator -------------------------------------------------------------------------


def streamed(task: Task) -> Traffic:
    """Every input is read once, and every output is written. What is repeated is read once, too."""
    sizes = [0 if array is None else array.nbytes for array in task.given]
    names = [name for name, _ in task.desc.tensors(Role.INPUT)]
    written = sum(desc.stored.element_count * desc.stored.data_type.itemsize for desc in task.desc.outputs())
    rewritten = sum(sizes[names.index(source)] for source, _ in task.work.shared())
    read, written = sum(sizes) - rewritten, written - rewritten
    copied = min(read, written)
    return Traffic(copied=copied, rewritten=rewritten, read=read - copied, written=written - copied)


def by_function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    """A call of the function that is made from the descriptor's class. Defaults are omitted, as in most programs."""
    cls = type(task.desc)
    function = next(one for one in doors.functions(operators.module_of(cls)).values() if getattr(one, "operator", None) is cls)
    usual = {name for name, value in cls.DEFAULTS.items() if getattr(task.desc, name, ...) == value}
    outputs = {field.name for field in cls.fields() if cls.ARGUMENTS and field.role is Role.OUTPUT}
    own = (one for one in task.work.attributes if one[0] not in usual and one[0] not in outputs)
    given = {cls.KEYWORDS.get(name, name): value for name, value in own}
    given |= {name: _argument(name, task.desc) for name in cls.ARGUMENTS if name not in cls.DEFAULTS}
    waiting = iter(arrays)
    inputs = [[next(waiting) for _ in one] if isinstance(one, tuple) else next(waiting) for one in task.work.inputs]
    names = [field.name for field in cls.fields() if field.role is Role.INPUT]
    by_name = dict(zip(names, inputs, strict=False))
    later = {name for name, field in parameters(cls).inputs.items() if field.optional}
    ordered = [(name, by_name.get(field.name)) for name, field in parameters(cls).inputs.items()]
    optional: dict[str, Any] = {name: one for name, one in ordered if name in later and one is not None}
    return partial(function, *(one for name, one in ordered if name not in later), **given, **optional)


def _argument(name: str, desc: Any) -> Any:
    """An argument of a function that says the outputs' sizes: of each along the axis, along the axis, or all."""
    sizes = [output.sizes for output in desc.outputs()]
    if name == "output_axis_sizes":
        return [one[desc.axis] for one in sizes]
    return sizes[0][desc.axis] if name == "output_length" else sizes[0]


class Kind(NamedTuple):
    """How an operator's work differs from the usual. A file of rows may define one, as ``KIND``."""

    traffic: Callable[[Task], Traffic] = streamed
    function: Callable[[Task, list[Any]], Callable[[], Any]] = by_function
    """A call of tvmdml's function on the inputs, wherever their memory is."""
    reference: Callable[[Task], tuple[Any, ...]] = lambda task: task.desc.reference(*task.inputs)
    """The expected outputs."""
    counted: bool = False
    """Whether only the first rows of the second output are defined, as many as the first output says."""
    close: bool = False
    """Whether a peer's values may be rounded in another way, since it computes them in other steps."""
    steps: int = 8
    """By how many rounding errors of the largest value they may then differ."""
    weights: tuple[str, ...] = ()
    """The inputs that are given once, if it is called so."""
    free: bool = False
    """Whether a peer's values may be any others, such as other random numbers; a peer may leave out further outputs."""


def kind(operator: str) -> Kind:
    """What is particular about an operator: what the file of its own rows says, or that of its family's."""
    for module in rows.of(operator):
        if (found := getattr(module, "KIND", None)) is not None:
            assert isinstance(found, Kind)
            return found
    return Kind()
