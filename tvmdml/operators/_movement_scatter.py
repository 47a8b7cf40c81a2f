"""``Scattered``: the base class of SCATTER and SCATTER_ND."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.movement import Updates
from tvmdml.operators._contract import Shared
from tvmdml.operators._movement_indices import Indexed
from tvmdml.tensors import TensorDesc


class Scattered(Indexed):
    """Base class: the input is copied, and then updated. Where updates meet, the last one counts."""

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

    def updates(self) -> Updates:
        """Which elements are replaced by which, and in which order."""
        raise NotImplementedError(self.NAME)

    def combination(self) -> str:
        """How an update and the element that is there are combined; empty if it is replaced."""
        return ""

    def combined(self, old: Any, new: Any) -> Any:
        """What an element comes to with an update, which are bits: of scalars, or of vectors."""
        return new

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element that is copied, then one for each column, whose updates happen one after the other."""
        own: Any = self
        x, result, found = own.input_tensor, own.output_tensor, self.updates()
        with T.function() as f:
            buffers = [f.buffer(name, kind) for name, kind in zip(("x", "indices", "updates", "y"), self.kinds(), strict=True)]
            with T.elements(each, result.sizes) as at:
                T.store(buffers[3], T.dot(at, result.layout), buffers[0][T.dot(at, x.layout)])
            with T.elements(each, found.columns or (1,)) as at, T.loop(T.index(found.length)) as number:
                column = at[: len(found.columns)]
                whole = [*column, *T.unravel(number, found.order)]
                place, fits = movement.value(found.result, column) if column else T.index(0), None
                for index in found.indices:
                    size = T.index(index.size)
                    one = T.let(movement.normalized(buffers[1][movement.value(index.at, whole)], size))
                    place = place + one * T.index(index.result)
                    fits = movement.both(fits, (one >= T.index(0)) & (one < size))
                with T.when(fits):
                    update = buffers[2][movement.value(found.given, whole)]
                    T.store(buffers[3], place, self.combined(buffers[3][place], update) if self.combination() else update)
        return f.result()

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Indices in range for all dimensions."""
        size = int(self.limits().min())
        return (self.lowest(name, size), size - 1) if name in self.INDICES else None

    def limits(self) -> Any:
        """The size that each index counts."""
        raise NotImplementedError(self.NAME)
