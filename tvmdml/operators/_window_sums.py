"""Windows whose elements are summed: averages, norms, and the regions of a local response normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators import _window_reference as windows
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import NumpyArray, Shared
from tvmdml.operators._window import Cascade, Reach, Window, levels_of
from tvmdml.operators._window_reference import TapTable


class Seen(NamedTuple):
    """What the result of a window may depend on beside the sum."""

    desc: Any
    tensors: dict[str, Any]
    at: Sequence[Any]
    """The coordinates of the output's element."""
    reaches: Sequence[Reach]

    def number(self, padded: bool, dtype: str) -> Any:
        """How many taps are inside, or with ``padded`` counted; at least 1."""
        total: Any = None
        sizes = self.desc.whole().sizes
        for along, reach in zip(self.desc.windows(), self.reaches, strict=True):
            own = self.desc.counted(along, reach, sizes[along.dimension]) if padded and not reach.certain else reach.count
            total = T.cast(own, dtype) if total is None else total * T.cast(own, dtype)
        total = T.hold(total)
        return T.select(total > T.like(total, 0), total, 1)

    def element(self, name: str, dtype: str) -> Any:
        """The element of a tensor of the output's sizes at the same place."""
        tensor = getattr(self.desc, name)
        return T.to(self.tensors[name][T.dot(self.at, tensor.layout)], dtype)

    def of_channel(self, name: str) -> Any:
        """The element of a tensor that has one, or one for each channel; ``None`` of one that is absent."""
        tensor = getattr(self.desc, name)
        if tensor is None:
            return None
        if tensor.rank < 2:
            return self.tensors[name][T.index(0)]
        own, channel = tensor.sizes[1], self.at[1]
        if isinstance(own, int):
            return self.tensors[name][T.index(0) if own == 1 else channel * T.index(tensor.layout[1])]
        return self.tensors[name][T.Select(own == T.const(1, T.type_of(own)), T.index(0), channel) * T.index(tensor.layout[1])]


class Summed(Window):
    """Base class of such operators."""

    SUMS = True

    def term(self, x: Any) -> Any:
        """What is summed of an element, in the type in which floats are combined."""
        return x

    def result(self, total: Any, seen: Seen) -> Any:
        """What the output is, from the sum."""
        raise NotImplementedError(self.NAME)

    def check(self) -> None:
        """Both tensors have one type, and sizes that the windows say."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.check_pooled()

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
        x, y, dtype = self.whole(), self.pooled(), self.computed
        reaches = self.reaches(at)
        total = Cascade(dtype, levels_of(self.taps()))
        with self.inside(at, reaches) as place:
            total.add(self.term(T.hold(T.to(tensors[self.WHOLE][T.dot(place, x.layout)], dtype))))
        found = self.result(T.hold(total.value()), Seen(self, tensors, at, reaches))
        T.store(tensors[self.POOLED], T.dot(at, y.layout), T.to(found, y.data_type.tvm))

    # -- The reference

    def terms(self, x: NumpyArray) -> NumpyArray:
        """What is summed, in NumPy."""
        return x

    def finished(
        self, total: NumpyArray, magnitudes: NumpyArray, found: list[TapTable], x: NumpyArray, dtype: Any
    ) -> tuple[NumpyArray, NumpyArray]:
        """The results, and the error that they may have before they are rounded."""
        raise NotImplementedError(self.NAME)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision."""
        (x,) = (one for one in inputs if one is not None)
        found = windows.tables(self)
        with np.errstate(all="ignore"):
            terms = self.terms(windows.wide(x))
            total = windows.combined(terms, found, np.sum, 0)
            magnitudes = windows.combined(np.where(np.isfinite(terms), np.abs(terms), 0), found, np.sum, 0)
            result, error = self.finished(total, magnitudes, found, windows.wide(x), x.dtype)
            error = windows.unless_overflow(np.broadcast_to(error, result.shape), magnitudes, total, x.dtype)
        return (Near(result, x.dtype, 0, error),)
