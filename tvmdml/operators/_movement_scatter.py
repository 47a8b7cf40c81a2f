"""``Scattered``: the base class of SCATTER and SCATTER_ND."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.operators._contract import Shared
from tvmdml.operators._movement_indices import Indexed
from tvmdml.tensors import TensorDesc

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


class Scattered(Indexed):
    """Base class: the input is copied, and then updated.

    Updates of different columns never meet, so columns are independent; within one, they happen in row-major order.
    """

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output is like the input."""
        own: Any = self
        return {"output_tensor": own.input_tensor.with_sizes(own.input_tensor.sizes)}

    def check_tensors(self) -> None:
        """The types, ranks and sizes that both operators ask for."""
        own: Any = self
        super().check_tensors()
        self.require_sizes("output_tensor", own.input_tensor.sizes)

    def is_moved(self) -> bool:
        return False

    def columns(self, each: T.Each) -> AbstractContextManager[tuple[Any, int]]:
        """Run the statements for each column: its coordinates, and how many updates it has."""
        raise NotImplementedError(self.NAME)

    def update(self, at: Any, number: Any) -> tuple[list[Any], list[Any], list[tuple[list[Any], int]]]:
        """An update of a column: its place in the output, its coordinates in the updates, and for each index the coordinates in the
        index tensor, and the dimension of the place that it is.
        """
        raise NotImplementedError(self.NAME)

    def computation(self, each: T.Each, shared: Shared = ()) -> PrimFunc:
        """One item for each element that is copied, then one for each column."""
        own: Any = self
        x, indices, updates, result = own.input_tensor, own.indices_tensor, own.updates_tensor, own.output_tensor
        with T.function() as f:
            buffers = [f.buffer(name, kind) for name, kind in zip(("x", "indices", "updates", "y"), self.kinds(), strict=True)]
            with T.elements(each, result.sizes) as at:
                T.store(buffers[3], T.dot(at, result.layout), buffers[0][T.dot(at, x.layout)])
            with self.columns(each) as (at, count), T.loop(T.index(count)) as number:
                place, given, looked = self.update(at, number)
                fits: Any = None
                for where, dimension in looked:
                    index = T.let(buffers[1][T.dot(where, indices.layout)])
                    size = T.index(result.sizes[dimension])
                    place[dimension] = T.let(movement.normalized(index, size))
                    fits = movement.both(fits, (place[dimension] >= T.index(0)) & (place[dimension] < size))
                with T.when(fits):
                    T.store(buffers[3], T.dot(place, result.layout), buffers[2][T.dot(given, updates.layout)])
        return f.result()

    def limits(self) -> Any:
        """The size that each index counts."""
        own: Any = self
        if hasattr(self, "axis"):
            return np.array([own.output_tensor.sizes[self.axis]])
        return np.array(own.own("input_tensor", "input_dimension_count")[: own.tuple_size()])

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Indices in range for all dimensions."""
        size = int(self.limits().min())
        return (self.lowest(name, size), size - 1) if name in self.INDICES else None
