"""Windows of which the largest element is taken, and where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators import _window_reference as windows
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import NumpyArray, Shared
from tvmdml.operators._window import Reach, Window
from tvmdml.tensors import TensorDataType, TensorDesc


def least(dtype: str) -> float | int:
    """What is in place of the largest element where there is none."""
    return float("-inf") if dtype.startswith("float") else int(np.iinfo(dtype).min)


def exceeds(x: Any, best: Any) -> Any:
    """Whether an element is taken in place of the best one before it: it is larger, or the first NaN."""
    if not T.is_float(x):
        return x > best
    return (x > best) | (T.is_nan(x) & (best <= T.like(best, float("inf"))))


def logical(place: Sequence[Any], sizes: Sequence[Any], dtype: str) -> Any:
    """The index of an element in a whole tensor."""
    number: Any = None
    for size, one in zip(sizes, place, strict=True):
        own = T.cast(one, dtype)
        number = own if number is None else number * T.cast(T.index(size), dtype) + own
    return number


class Best:
    """The largest element so far, and its place of ``count`` coordinates, which are any values before the first element.

    Without coordinates it is not known whether there was an element: one of -inf changes nothing.
    """

    def __init__(self, dtype: str, count: int, index: str) -> None:
        self._dtype = dtype
        self._value = T.Variable(dtype, T.like(T.const(0, dtype), least(dtype)))
        self._place = [T.Variable(index, T.const(0, index)) for _ in range(count)]
        self._found = T.Variable("int32", T.const(0, "int32"))

    def add(self, x: Any, place: Sequence[Any]) -> None:
        """One more element."""
        taken = exceeds(x, self._value.value)
        with T.when(taken | (self._found.value == T.const(0, "int32")) if self._place else taken):
            self._value.set(x)
            for own, one in zip(self._place, place, strict=False):
                own.set(one)
            self._found.set(T.const(1, "int32"))

    @property
    def found(self) -> Any:
        """Whether there was an element."""
        return self._found.value != T.const(0, "int32")

    @property
    def value(self) -> Any:
        """The largest element."""
        return self._value.value

    @property
    def place(self) -> list[Any]:
        """Where it is."""
        return [one.value for one in self._place]


class Largest(Window):
    """Base class of such operators."""

    def indices(self) -> Any:
        """The tensor of places; ``None`` if there is none."""
        return getattr(self, "output_indices_tensor", None)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the floor size, unless it is given, and so have the places."""
        found = dict(super().infer())
        if hasattr(self, "output_indices_tensor"):
            given = getattr(self, "output_tensor", None) or found["output_tensor"]
            found["output_indices_tensor"] = given.with_sizes(given.sizes, TensorDataType.UINT32)
        return found

    def check(self) -> None:
        """Both tensors have one type, and sizes that the windows say; places have those of the output."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.check_pooled()
        if self.indices() is not None:
            self.require_same("sizes", "output_indices_tensor", "output_tensor")

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each window."""
        with T.function() as f:
            self.write(each, f.tensors(self, shared))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        with T.elements(each, self.pooled().sizes, self.pooled().layout, self.several()) as at:
            self.element(tensors, at)

    def element(self, tensors: dict[str, Any], at: Sequence[Any]) -> None:
        """Compute and store an element."""
        x, y, places = self.whole(), self.pooled(), self.indices()
        best = self.best(at, self.reaches(at), tensors["input_tensor"], x, places is not None)
        T.store(tensors["output_tensor"], T.dot(at, y.layout), T.cast(best.value, y.data_type.tvm))
        if places is not None:
            kind = places.data_type.tvm
            none = T.word(-1, 8 * places.data_type.itemsize)
            number = logical(best.place, x.sizes, kind)
            T.store(tensors["output_indices_tensor"], T.dot(at, places.layout), T.Select(best.found, number, none))

    def best(self, at: Sequence[Any], reaches: Sequence[Reach], buffer: Any, x: Any, placed: bool = True) -> Best:
        """The largest element of a window, and with ``placed`` where it is; a float16 as float32."""
        dtype = self.computed
        index = "int64" if self.wide() else T.type_of(T.index(0))
        best = Best(dtype, x.rank if placed else 0, index)
        with self.inside(at, reaches) as place:
            value = T.hold(T.to(buffer[T.dot(place, x.layout)], dtype))
            best.add(value, [T.cast(one, index) if T.type_of(one) != index else one for one in place])
        return best

    def takes(self, window: Sequence[Any], reaches: Sequence[Reach], buffer: Any, x: Any, at: Sequence[Any]) -> Any:
        """Whether the largest element of a window, or its first NaN, is the one at these coordinates, which is a tap of it.

        Others are compared with that one, whose place is known: none of those before it is as large, and none behind it larger.
        """
        dtype = self.computed
        one = T.hold(T.to(buffer[T.dot(at, x.layout)], dtype))
        largest, first_nan = (T.Variable("int32", T.const(1, "int32")) for _ in range(2))
        with self.inside(window, reaches) as place:
            kind, sizes = T.type_of(place[-1]), x.sizes[2:]
            here, there = (logical(some[2:], sizes, kind) for some in (place, at))
            before, other = T.let(here < there), T.hold(T.to(buffer[T.dot(place, x.layout)], dtype))
            with T.when(T.Not((one > other) | ((one == other) & T.Not(before)))):
                largest.set(T.const(0, "int32"))
            with T.when(before & T.is_nan(other)):
                first_nan.set(T.const(0, "int32"))
        return T.Select(T.is_nan(one), first_nan.value, largest.value) != T.const(0, "int32")

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: taps one after the other."""
        (x,) = (one for one in inputs if one is not None)
        value, place, found = largest(self, x)
        if self.indices() is None:
            return (value,)
        kind = self.indices().data_type.numpy
        return value, np.where(found, place, -1).astype(np.int64).astype(kind)


def largest(desc: Window, x: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """The largest element of each window, its index in the whole tensor, and whether there is one."""
    table = windows.tables(desc)
    sizes = desc.pooled().sizes
    value = np.full(sizes, least(x.dtype.name), x.dtype)
    place, found = np.zeros(sizes, np.int64), np.zeros(sizes, bool)
    for places, fits in windows.in_order(table, x.ndim):
        at = windows.indices(x.shape, table, places)
        own = np.broadcast_to(x[at], sizes)
        nan = np.isnan(own) & ~np.isnan(value) if x.dtype.kind == "f" else np.False_
        with np.errstate(invalid="ignore"):
            take = fits & (~found | (own > value) | nan)
        value = np.where(take, own, value)
        place = np.where(take, np.ravel_multi_index(np.broadcast_arrays(*at, np.zeros(sizes, np.int8))[:-1], x.shape), place)
        found |= np.broadcast_to(take, sizes)
    return value, place, found
