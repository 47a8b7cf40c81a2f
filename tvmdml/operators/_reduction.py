"""The reduction family: what a slice of a tensor comes to, and what its elements become with that.

A slice has the elements along the reduced axes. An operator says in which walks over a slice it is computed
(``kernels/reduction.py``), and what the results are: of each slice, of each element, or both. The family adds the rules, the
computation, and the schedules. The order in which floats are combined does not depend on threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.layout import collapse
from tvmdml.kernels.reduction import Totals, Walk
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._broadcast import repeated
from tvmdml.operators._contract import NumpyArray, Operator, Role, Shared
from tvmdml.tensors import TensorDataType, TensorDesc


class Spaces(NamedTuple):
    """The coordinates that a schedule goes over: of slices, and of the elements of each."""

    outer: tuple[int, ...]
    """The sizes of the dimensions that are not reduced."""
    inner: tuple[int, ...]
    """The sizes of those that are."""
    outer_steps: tuple[tuple[int, ...], ...]
    """Their strides: of each operand, and of each output of slices."""
    inner_steps: tuple[tuple[int, ...], ...]
    """Of each operand."""

    @property
    def neighbours(self) -> bool:
        """Whether neighbouring slices are contiguous."""
        return self.outer_steps[0][-1] == 1 and self.outer[-1] > 1

    @property
    def contiguous(self) -> bool:
        """Whether elements of a slice are contiguous, or repeat one."""
        return self.inner_steps[0][-1] in (0, 1) and self.inner[-1] > 1


def _collapsed(
    sizes: Sequence[int], dims: Sequence[int], steps: Sequence[Sequence[int]], reorder: bool
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Some dimensions, in the simplest equivalent form; at least one."""
    own = (tuple(one[i] for i in dims) for one in steps)
    found, strides = collapse(tuple(sizes[i] for i in dims), *own, reorder=reorder)
    return found or (1,), tuple(one or (0,) for one in strides)


_SHAPING = ("axes", "axis", "cross_channel")
"""Attributes that say which axes are reduced, and no more."""


class Reduction(Operator):
    """Base class of reductions. The first input is what is reduced; others have its sizes, or 1 where they are repeated."""

    FAMILY: ClassVar[str] = "reduction"
    ANY_NAN = True
    EACH: ClassVar[tuple[str, ...]] = ()
    """The outputs that have all elements. The others have one for each slice."""
    COUNTED: ClassVar[bool] = False
    """Whether ``element`` gets the element's position in the slice, as its first argument."""

    # -- What an operator defines

    def reduced(self) -> tuple[int, ...]:
        """The reduced axes, in ascending order."""
        raise NotImplementedError(self.NAME)

    def walks(self) -> tuple[Walk, ...]:
        """The walks over a slice."""
        raise NotImplementedError(self.NAME)

    def slice_results(self, *found: Any) -> Any:
        """The elements of the outputs of slices: of what the walks have found, and the number of elements as a float."""
        return found[0]

    def element(self, *values: Any) -> Any:
        """The elements of the outputs in ``EACH``: of the inputs' elements, and what the walks have found."""
        raise NotImplementedError(self.NAME)

    # -- What the family derives from it

    def require_axes(self, axes: Sequence[int], name: str = "axes") -> None:
        """At least one axis, each a dimension of the input, none twice."""
        rank = self.source.rank
        self.require(bool(axes), name, axes, f"1 to {rank} axes")
        for i, axis in enumerate(axes):
            self.require(axis < rank, f"{name}[{i}]", axis, f"0 to {rank - 1}", "The input has no such dimension.")
            self.require(axis not in axes[:i], f"{name}[{i}]", axis, "an axis that is not there already")

    def require_elements(self) -> None:
        """Slices have elements: of none there is no result."""
        found = self.slice_length != 0 or math.prod(self.slice_sizes()) == 0
        self.require(
            found, "input_tensor.sizes", self.source.sizes, "1 or more elements along the axes", "Without any there is no result."
        )

    def require_reduced(self, *names: str) -> None:
        """Outputs of slices have the input's sizes, but 1 along the reduced axes."""
        wanted = self.slice_sizes()
        for name in names:
            sizes = getattr(self, name).sizes
            self.require(sizes == wanted, f"{name}.sizes", sizes, f"{wanted}: 1 along the axes {self.reduced()}")

    def require_repeatable(self, *names: str) -> None:
        """Each size is that of the first input, or 1."""
        source = self.source
        for name in names:
            tensor: TensorDesc | None = getattr(self, name)
            if tensor is None:
                continue
            self.require(tensor.rank == source.rank, f"{name}.rank", tensor.rank, f"{source.rank}, as the input")
            fits = all(one in (1, size) for one, size in zip(tensor.sizes, source.sizes, strict=True))
            self.require(fits, f"{name}.sizes", tensor.sizes, f"{source.sizes}, with 1 in place of any of them")

    def slice_sizes(self) -> tuple[int, ...]:
        """The first input's sizes, but 1 along the reduced axes."""
        axes = self.reduced()
        return tuple(1 if i in axes else size for i, size in enumerate(self.source.sizes))

    @property
    def source(self) -> Any:
        """The first input."""
        return next(tensor for _, tensor in self.tensors(Role.INPUT))

    @property
    def slice_length(self) -> int:
        """The number of elements in a slice."""
        return math.prod(self.source.sizes[axis] for axis in self.reduced())

    @property
    def computed(self) -> str:
        """The type of sums of floats; float16 is computed in float32 and rounded once."""
        return "float64" if self.source.data_type is TensorDataType.FLOAT64 else "float32"

    @property
    def position_type(self) -> str:
        """The type of positions: of the width that elements are compared in, if that is enough."""
        wide = self.source.data_type.itemsize == 8 or (isinstance(self.slice_length, int) and self.slice_length >= 1 << 31)
        return "int64" if wide else "int32"

    def state_types(self, walk: Walk) -> tuple[str, ...]:
        """The types of a walk's totals; integers have at least 32 bits."""
        kind = self.source.data_type
        own = self.computed if kind.is_float else f"{'' if kind.is_signed else 'u'}int{max(32, 8 * kind.itemsize)}"
        found: tuple[str, ...] = ()
        for one in walk.combinations:
            found += (own,) if one.width == 1 else (f"int{max(32, 8 * kind.itemsize)}", self.position_type)
        return found

    def operands(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The inputs that are present, and the outputs in ``EACH``: all with the sizes of the first input."""
        sizes = self.source.sizes
        inputs = [(name, tensor) for name, tensor in self.tensors(Role.INPUT) if tensor is not None]
        return tuple((name, repeated(tensor, sizes)) for name, tensor in inputs) + tuple(
            (name, tensor) for name, tensor in self.tensors(Role.OUTPUT) if name in self.EACH and tensor is not None
        )

    def slice_outputs(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The outputs that have an element for each slice."""
        return tuple((name, one) for name, one in self.tensors(Role.OUTPUT) if name not in self.EACH and one is not None)

    def spaces(self) -> Spaces:
        """The slices, and the elements of each, in their simplest form; dimensions are in the order of the input's strides."""
        sizes, axes = self.source.sizes, self.reduced()
        (_, source), *others = self.operands()
        own = [tensor.layout for _, tensor in self.slice_outputs()]
        kept = [i for i in range(len(sizes)) if i not in axes]
        ordered = self.COUNTED or any(walk.counted for walk in self.walks())
        layouts = [tensor.layout for _, tensor in others]
        outer, outer_steps = _collapsed(sizes, kept, (*layouts, *own, source.layout), True)
        inner, inner_steps = _collapsed(sizes, axes, (*layouts, source.layout), not ordered)
        return Spaces(outer, inner, (outer_steps[-1], *outer_steps[:-1]), (inner_steps[-1], *inner_steps[:-1]))

    def shape_class(self) -> dict[str, int | str]:
        """The length and number of slices, the number of neighbouring slices, and the layout."""
        sizes, axes = self.source.sizes, self.reduced()
        inner = math.prod(sizes[max(axes) + 1 :])
        return {
            "length": self.slice_length,
            "slices": math.prod(sizes) // self.slice_length,
            "inner": inner,
            "layout": self.layout(),
        }

    def element_of(self, position: Any, elements: Sequence[Any], found: Sequence[Any], kept: Any = None) -> Any:
        """``element`` with all its arguments. ``kept`` is what a walk has kept, if that is at hand."""
        own = [position] * self.COUNTED + [*elements, *found]
        before = 0
        for walk in self.walks():
            if walk.kept:
                own.append(walk.values(found[:before], position, elements)[0] if kept is None else kept)
            before += walk.found
        return self.element(*own)

    def results_of(self, values: Any, names: Sequence[tuple[str, Any]]) -> list[Any]:
        """Results in the types of outputs."""
        values = values if isinstance(values, tuple) else (values,)
        return [T.to(value, tensor.data_type.tvm) for value, (_, tensor) in zip(values, names, strict=True)]

    CONSTANT_SHAPES = "a size of 1 says that an input is repeated"

    def formula_key(self) -> tuple[tuple[str, Any], ...]:
        """What a kernel computes: the operator, its types and its attributes, but for those that say which axes are reduced."""
        present = "".join(str(int(tensor is not None)) for _, tensor in self.tensors())
        types = " ".join(tensor.data_type.tvm for _, tensor in self.tensors() if tensor is not None)
        return (("operator", self.NAME), *self.attributes_exactly(_SHAPING), ("present", present), ("types", types))

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each slice, from its first to its last element."""
        axes, sizes = self.reduced(), self.source.sizes
        kept = [i for i in range(len(sizes)) if i not in axes]
        with T.function() as f:
            tensors = f.tensors(self)
            operands, slices = self.operands(), self.slice_outputs()
            steps = {name: tensor.layout for name, tensor in (*operands, *slices)}
            inputs = [name for name, _ in operands if name not in self.EACH]
            outputs = [(name, tensor) for name, tensor in operands if name in self.EACH]
            length = self.slice_length
            with T.elements(each, [sizes[i] for i in kept] or [1]) as outer:

                def place(name: str, inner: Sequence[Any]) -> Any:
                    at: list[Any] = [T.index(0)] * len(sizes)
                    for i, one in (*zip(kept, outer, strict=False), *zip(axes, inner, strict=False)):
                        at[i] = one
                    return T.dot(at, steps[name])

                def read(position: Any) -> list[Any]:
                    inner = T.unravel(position, [sizes[i] for i in axes])
                    return [T.hold(T.wide(tensors[name][place(name, inner)])) for name in inputs]

                found: list[Any] = []
                count = T.const(float(length), self.computed)
                for walk in self.walks():
                    like = walk.values(found, T.const(0, self.position_type), read(T.index(0)))
                    totals = Totals(walk, tuple(map(T.hold, like)))
                    with T.loop(T.index(length)) as i:
                        totals.add(walk.values(found, T.cast(i, self.position_type), read(i)))
                        totals.fold_after(i + 1)
                    found += map(T.hold, walk.totals(totals.values, found, count))
                if slices:
                    results = self.results_of(self.slice_results(*found, count), slices)
                    for (name, _), value in zip(slices, results, strict=True):
                        T.store(tensors[name], place(name, []), value)
                if outputs:
                    with T.loop(T.index(length)) as i:
                        values = self.element_of(T.cast(i, self.position_type), read(i), found)
                        results = self.results_of(values, outputs)
                        inner = T.unravel(i, [sizes[j] for j in axes])
                        for (name, _), value in zip(outputs, results, strict=True):
                            T.store(tensors[name], place(name, inner), value)
        return f.result()

    # -- The reference

    def slices(self, array: NumpyArray) -> NumpyArray:
        """An array's slices, each in order along a last dimension, in higher precision than the kernel's."""
        axes = self.reduced()
        kept = [i for i in range(array.ndim) if i not in axes]
        moved = np.broadcast_to(array, self.source.sizes).transpose(*kept, *axes)
        flat = np.ascontiguousarray(moved).reshape(*moved.shape[: len(kept)], -1)
        return precise(flat)

    def unsliced(self, slices: NumpyArray) -> NumpyArray:
        """What ``slices`` has made, as before; of one element for each slice if there is no last dimension."""
        axes, sizes = self.reduced(), self.source.sizes
        kept = [i for i in range(len(sizes)) if i not in axes]
        if slices.ndim == len(kept):
            return np.asarray(slices).reshape(self.slice_sizes())
        moved = slices.reshape(*(sizes[i] for i in kept), *(sizes[i] for i in axes))
        return np.ascontiguousarray(moved.transpose(np.argsort([*kept, *axes])))

    def near(self, values: NumpyArray, error: NumpyArray | float, dtype: Any) -> Expected:
        """Results near to values, given for slices or for their elements."""
        error = np.broadcast_to(error, np.shape(values)).astype(np.float64)
        return Near(self.unsliced(np.asarray(values)), np.dtype(dtype), 0, self.unsliced(error))


def precise(x: NumpyArray) -> NumpyArray:
    """In higher precision than the kernel's; integers stay as they are."""
    return x if x.dtype.kind != "f" else x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def spacing(dtype: Any) -> float:
    """The spacing at 1 of the floats that a type is computed in."""
    return 2.0**-52 if np.dtype(dtype) == np.float64 else 2.0**-23


def additions(count: int, dtype: Any) -> float:
    """What adding so many terms may cost, relative to the sum of their magnitudes."""
    return spacing(dtype) * min(count / 2, 32 + 4 * math.ceil(math.log2(count))) if count > 1 else 0.0
