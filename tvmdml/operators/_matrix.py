"""The matrix family: sums of products, of matrices and of what a window of an image is with a filter.

An operator says which products are summed to which element (``kernels/contraction.py``), and what becomes of a sum (``finish``).
The family adds the computation and the schedules. A float16 is computed in float32, and rounded once, when it is stored.

The reference computes in higher precision. How far a result may be from it holds for any order of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import CHAIN, KC, Contraction, Operand, bfloat16, factor, multiply_add, place
from tvmdml.kernels.movement import Linear
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._broadcast import repeated
from tvmdml.operators._contract import NumpyArray, Operator, Shared
from tvmdml.operators._frozen import derived
from tvmdml.operators._reduction_activated import activated, activated_near
from tvmdml.tensors import TensorDataType, TensorDesc

_FAR = 1 << 30
"""Numbers from here on are computed with in 64 bits."""


class Matrix(Operator):
    """Base class of operators that sum products."""

    SUMS = True
    FAMILY: ClassVar[str] = "matrix"
    ANY_NAN = True
    BFLOAT16: ClassVar[bool] = False
    """Whether factors, which are float32, are rounded to bfloat16."""
    CONSTANT_SHAPES = "a size of 1 says that an element is repeated"

    if TYPE_CHECKING:  # each operator's own field
        output_tensor: Any

    # -- What an operator defines

    def contraction(self) -> Contraction:
        """Which products are summed."""
        raise NotImplementedError(self.NAME)

    @derived
    def simplified(self) -> Contraction:
        """The same with as few dimensions as possible."""
        return self.contraction().simplified()

    def in_phases(self) -> Contraction:
        """The same without products that cannot exist."""
        return self.simplified()

    def addends(self) -> tuple[tuple[str, TensorDesc], ...]:
        """What a sum needs to become an element: the fields of tensors, each repeated to the output's sizes."""
        return ()

    def finish(self, total: Any, *values: Any) -> Any:
        """The output's element, from a sum and the elements of ``addends``: scalars or vectors. It is rounded afterwards."""
        return activated(self.activation, total)

    # -- What is fused behind a finished and rounded element (``_matrix_fused.py``)

    def head(self) -> Matrix:
        """The operator without that."""
        return self

    def later(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The fields of tensors that it needs, each with the output's sizes; they are the last of ``addends``, too."""
        return ()

    def after(self, value: Any, *values: Any) -> Any:
        """What becomes of an element of the head, and elements of ``later``, each of its tensor's type."""
        return value

    # -- What the family derives from it

    def is_brief(self) -> bool:
        """Whether finishing takes few instructions, so that a kernel may have them for each sum of a tile."""
        return self.activation is None

    @property
    def activation(self) -> Any:
        """The operator that is fused into this one, if there is any."""
        return getattr(self, "fused_activation", None)

    def of_rows(self) -> Any:
        """The operator that is fused and needs whole rows of results, such as softmax; ``None`` if there is none.

        Its input is what ``finish`` gives, not rounded, in row-major order; its output is this operator's.
        """
        return None

    def repeated(self, *names: str) -> tuple[tuple[str, TensorDesc], ...]:
        """Those of the tensors that are present, repeated to the output's sizes."""
        sizes = self.output_tensor.sizes
        return tuple((name, repeated(getattr(self, name), sizes)) for name in names if getattr(self, name) is not None)

    def element(self, total: Any, values: Sequence[Any]) -> Any:
        """A sum as the output's element: finished and rounded."""
        return T.to(self.finish(total, *map(T.wide, values)), self.output_tensor.data_type.tvm)

    @property
    def computed(self) -> str:
        """The type of sums of floats."""
        return "float64" if self.output_tensor.data_type is TensorDataType.FLOAT64 else "float32"

    def formula_key(self) -> tuple[tuple[str, Any], ...]:
        """What a kernel computes of sums: the operator, its types, and what is finished with."""
        present = "".join(str(int(tensor is not None)) for _, tensor in self.tensors())
        types = " ".join(tensor.data_type.tvm for _, tensor in self.tensors() if tensor is not None)
        return (("operator", self.NAME), *self.finished_by(), ("present", present), ("types", types))

    def finished_by(self) -> tuple[tuple[str, str], ...]:
        """The attributes that ``finish`` depends on."""
        return self.attributes_exactly()

    def shape_class(self) -> dict[str, int | str]:
        """How many rows and columns results have, how many results there are, the products of a sum, and the layout."""
        sizes = [int(np.prod(group)) for group in self.contraction().groups]
        names = ("batch", "rows", "columns", "depth")
        return {**dict(zip(names, sizes, strict=True)), "layout": self.layout()}

    # -- The computation

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element, or for each row where a fused operator needs whole rows."""
        contraction = self.simplified()
        with T.function() as f:
            tensors = f.tensors(self)
            if self.of_rows() is not None:
                self._write_rows(each, tensors)
            else:
                with T.elements(each, contraction.outer) as outer:
                    at = counted(contraction, outer)
                    total = summed(contraction, tensors, at, self.BFLOAT16)
                    values = [T.hold(tensors[one.name][place(one, at)[0]]) for one in contraction.addends]
                    found = T.hold(self.element(total, values))
                    T.store(tensors[contraction.result.name], place(contraction.result, at)[0], found)
        return f.result()

    def _write_rows(self, each: T.Each, tensors: dict[str, Any]) -> None:
        raise NotImplementedError(self.NAME)

    # -- The reference

    def near(self, sums: BoundedSums, factor: float, addend: NumpyArray | float, more: NumpyArray | float = 0.0) -> Expected:
        """Results near to ``activation(factor * sum + addend)``; ``more`` is a further relative error."""
        with np.errstate(all="ignore"):
            dtype = self.output_tensor.data_type.numpy
            values = sums.values * factor + addend
            error = sums.bound(dtype, factor, addend) + np.abs(np.where(np.isfinite(values), values, 0)) * more
            values, error = activated_near(self.activation, values, np.asarray(error), dtype)
            return Near(values, np.dtype(dtype), 0, np.broadcast_to(error, values.shape).astype(np.float64))


def counted(contraction: Contraction, at: Sequence[Any]) -> list[Any]:
    """Coordinates in 64 bits, if numbers are too large for 32; otherwise as they are."""
    return [T.let(T.cast(one, "int64")) for one in at] if contraction.span >= _FAR else list(at)


def summed(contraction: Contraction, tensors: dict[str, Any], at: Sequence[Any], rounds: bool = False) -> Any:
    """The sum for the coordinates of an element, in the family's order, or that of factors that are rounded to bfloat16."""
    computed, depth = contraction.computed, contraction.depth
    zero = T.const(0, computed)
    zeros: list[Any] = []
    for one in (contraction.a_zero, contraction.b_zero):
        beginning = [*at, *counted(contraction, [T.index(0) for _ in contraction.inner])]
        zeros.append(None if one is None else T.hold(tensors[one.name][place(one, beginning)[0]]))
    own = T.Variable(computed, zero)

    def add(position: Any) -> None:
        whole = [*at, *counted(contraction, T.unravel(position, contraction.inner))]
        (a, a_inside), (b, b_inside) = (place(one, whole) for one in (contraction.a, contraction.b))
        x, y = (
            T.hold(factor(tensors[one.name][T.let(offset)], offset_zero, computed))
            for one, offset, offset_zero in zip((contraction.a, contraction.b), (a, b), zeros, strict=True)
        )
        if rounds:
            x, y = (T.hold(T.reinterpret(bfloat16(one), computed)) for one in (x, y))
        found = multiply_add(x, y, own.value)
        for inside in (a_inside, b_inside):
            found = found if inside is None else T.Select(inside, found, own.value)
        own.set(found)

    total = T.Variable(computed, zero)

    def add_each(first: Any, count: int) -> Any:
        """The sum of so many products."""
        own.set(zero)
        with T.loop(T.index(count)) as i, T.when(first + i < T.index(depth)):
            add(T.let(first + i))
        return T.hold(own.value)

    if rounds:
        with T.loop(T.index(-(-depth // (2 * CHAIN)))) as block:
            halves = [add_each(T.let(block * T.index(2 * CHAIN) + T.index(start)), CHAIN) for start in (0, CHAIN)]
            total.set(total.value + (halves[0] + halves[1]))
        return T.hold(total.value)
    if depth <= KC:
        with T.loop(T.index(depth)) as i:
            add(i)
        return T.hold(own.value)
    with T.loop(T.index(-(-depth // KC))) as block:
        found = add_each(T.let(block * T.index(KC)), KC)
        total.set(T.Select(block == T.index(0), found, total.value + found))
    return T.hold(total.value)


def linear(tensor: Any, *dimensions: int | None) -> Linear:
    """Where a tensor's element is, by coordinates each of which is that of a dimension, or of none."""
    layout = tensor.layout
    return Linear(0, tuple(0 if one is None else layout[one] for one in dimensions))


def plain(name: str, tensor: Any) -> Operand:
    """A tensor whose dimensions are the coordinates of the result."""
    return Operand(name, Linear(0, tuple(tensor.layout)))


# -- Sums and how exact they are


class BoundedSums(NamedTuple):
    """Sums of products in higher precision, and what follows about those of a kernel."""

    values: NumpyArray
    magnitudes: NumpyArray
    """The sums of the products' magnitudes, without those of an infinite factor."""
    depth: int
    """The products of a sum."""

    def bound(self, dtype: Any, factor: float, addend: NumpyArray | float, extra: float = 4.0) -> NumpyArray:
        """The largest error of ``factor * sum + addend`` in any order of the sum, with or without fused steps.

        NaN where a partial sum may be beyond the range of its type: then a result may be anything.
        """
        limits = np.finfo(np.float64 if np.dtype(dtype) == np.float64 else np.float32)
        unit = float(limits.eps) / 2
        with np.errstate(all="ignore"):
            own = np.where(np.isfinite(addend), np.abs(addend), 0)
            whole = abs(factor) * self.magnitudes + own if np.isfinite(factor) else self.magnitudes
            bound = (1.01 * self.depth + extra) * unit * whole + self.depth * float(limits.tiny) * max(abs(factor), 1.0)
            far = np.maximum(np.maximum(self.magnitudes, own), whole) * (1 + 2.0**-10) >= float(limits.max)
            return np.where(far, np.nan, bound)


def wide(array: NumpyArray) -> NumpyArray:
    """In the precision of references: that of float64, or longer for float64 itself."""
    return array.astype(np.longdouble if array.dtype == np.float64 else np.float64)


def finite(array: NumpyArray) -> NumpyArray:
    """The magnitudes, 0 in place of those that are infinite or no numbers."""
    return np.where(np.isfinite(array), np.abs(array), 0)


def sums_of(a: NumpyArray, b: NumpyArray, product: Callable[[NumpyArray, NumpyArray], NumpyArray], depth: int) -> BoundedSums:
    """The sums that ``product`` makes of two factors, such as ``numpy.matmul``."""
    with np.errstate(all="ignore"):
        x, y = wide(a), wide(b)
        return BoundedSums(product(x, y), product(finite(x), finite(y)), depth)
