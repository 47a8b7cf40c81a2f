"""DML_OPERATOR_REDUCE, ARGMIN and ARGMAX: what the elements along some axes come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tvmdml.enums import AxisDirection, ReduceFunction
from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.reduction import LARGEST, PRODUCT, SMALLEST, SUM, Walk, itself, places
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Axes, Input, NumpyArray, Operator, Output, defaults
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._reduction import Reduction, additions, spacing
from tvmdml.operators._support import Support, support
from tvmdml.tensors import TensorDataType, TensorDesc

_INDICES = "1.0 u r4 · 3.0 iuLW r8"


class _Reduced(Reduction):
    """An input, and an output that has size 1 along the axes."""

    if TYPE_CHECKING:  # each class has its fields in DirectML's order
        input_tensor: Input
        output_tensor: Output
        axes: Axes

    def reduced(self) -> tuple[int, ...]:
        return tuple(sorted(self.axes))

    @classmethod
    def of(cls, *inputs: Any, **given: Any) -> Any:
        """Without axes, along all."""
        if given.get("axes") is None and inputs and inputs[0] is not None:
            given["axes"] = tuple(range(inputs[0].rank))
        return super().of(*inputs, **given)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has size 1 along the axes."""
        self.require_axes(self.axes)
        data_type = TensorDataType.UINT32 if self.place() else self.input_tensor.data_type
        return {"output_tensor": self.input_tensor.with_sizes(self.slice_sizes(), data_type)}

    def place(self) -> tuple[bool, bool] | None:
        """Whether it is the place of the largest element, and of the last of several; ``None`` if the result is no place."""
        raise NotImplementedError

    def check(self) -> None:
        """The axes are dimensions of the input, and the output has size 1 along them. Places fit into its type."""
        self.require_axes(self.axes)
        self.require_reduced("output_tensor")
        if self.place() or getattr(self, "function", None) in (F.MAX, F.MIN):
            self.require_elements()
        if not self.place():
            self.require_same("data_type", "output_tensor", "input_tensor")
            return
        data_type = self.output_tensor.data_type
        most = int(np.iinfo(data_type.tvm).max)
        advice = "Use a wider type."
        self.require(
            self.slice_length - 1 <= most,
            "output_tensor.data_type",
            data_type.tvm,
            f"a type that has {self.slice_length - 1}",
            advice,
        )

    def walks(self) -> tuple[Walk, ...]:
        place = self.place()
        assert place is not None
        return places(*place)

    def slice_results(self, *found: Any) -> Any:
        return found[1]

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """NumPy's ``argmax`` or ``argmin``: a NaN is the first or the last place, too."""
        place = self.place()
        assert place is not None
        largest, last = place
        x = self.slices(inputs[0])  # type: ignore[arg-type]
        x = x[..., ::-1] if last else x
        found = (np.argmax if largest else np.argmin)(x, axis=-1)
        found = x.shape[-1] - 1 - found if last else found
        return (self.unsliced(found).astype(self.output_tensor.data_type.numpy),)


class _Arg(_Reduced):
    LARGEST: ClassVar[bool]

    input_tensor: Input
    output_tensor: Output
    axes: Axes
    axis_direction: AxisDirection

    def place(self) -> tuple[bool, bool]:
        return self.LARGEST, self.axis_direction is AxisDirection.DECREASING

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """One axis; the place is ONNX's INT64."""
        last = node.integer("select_last_index", 0)
        direction = AxisDirection.DECREASING if last else AxisDirection.INCREASING
        if not node.integer("keepdims", 1):
            raise NotConvertible("its keepdims is 0: DirectML keeps a dimension of size 1")
        return cls.of(node.tensor(), axes=(node.integer("axis", 0),), axis_direction=direction, output_tensor=TensorDataType.INT64)


class Argmax(_Arg):
    """The place of the largest element along axes (``DML_ARGMAX_OPERATOR_DESC``).

    It counts the elements along the axes in row-major order. Of equal elements the first counts, or with ``DECREASING`` the last.
    A NaN is larger than all numbers.
    """

    FUNCTION = "argmax"
    DEFAULTS = defaults(axes=None, axis_direction=AxisDirection.INCREASING)
    DTYPES = {"output_dtype": "output_tensor"}  # noqa: RUF012 - as in the base class
    ONNX = ("ArgMax",)
    SUPPORT = support("3.0 FIU r8 · 4.1 +LW · ext +D", output_tensor="3.0 iuLW r8")
    LARGEST = True


class Argmin(_Arg):
    """The place of the smallest element along axes (``DML_ARGMIN_OPERATOR_DESC``).

    It counts the elements along the axes in row-major order. Of equal elements the first counts, or with ``DECREASING`` the last.
    A NaN is smaller than all numbers.
    """

    FUNCTION = "argmin"
    DEFAULTS = defaults(axes=None, axis_direction=AxisDirection.INCREASING)
    DTYPES = {"output_dtype": "output_tensor"}  # noqa: RUF012
    ONNX = ("ArgMin",)
    SUPPORT = support("3.0 FIU r8 · 4.1 +LW · ext +D", output_tensor="3.0 iuLW r8")
    LARGEST = False


class _Function(NamedTuple):
    """A function that is no place."""

    rows: tuple[Support, ...]
    walks: Callable[[], tuple[Walk, ...]]
    result: Callable[..., Any]
    """Of what the walks have found, and the number of elements."""
    reference: Callable[..., Any]
    """Of slices in NumPy and the type: the values, and the allowed error."""
    onnx: str


F = ReduceFunction


def _plain(combination: Any, before: Callable[..., Any] = itself) -> Callable[[], tuple[Walk, ...]]:
    return lambda: (Walk((combination,), before),)


def _log_sum_exp() -> tuple[Walk, ...]:
    def before(x: Any, m: Any) -> Any:
        # Nothing exceeds the largest element, unless that is infinite and 0 was taken: then the sum is infinite.
        return T.select(x > m, x, mathematics.decay(x - m))

    return (Walk((LARGEST,), lambda x: x, lambda m, _: T.select(T.is_infinite(m), 0, m)), Walk((SUM,), before))


def _root(total: Any, _: Any) -> Any:
    return T.sqrt(total)


def _finite(x: NumpyArray) -> NumpyArray:
    return np.where(np.isfinite(x), x, 0)


def _sum(x: NumpyArray, dtype: Any, terms: NumpyArray | None = None) -> tuple[NumpyArray, NumpyArray]:
    """A sum, and what it may be off: anything where a part of it may overflow."""
    if x.dtype.kind != "f":
        return np.sum(x, axis=-1, dtype=x.dtype), np.zeros(())
    terms = x if terms is None else terms
    n = x.shape[-1]
    magnitudes = np.sum(np.abs(_finite(terms)), axis=-1)
    free = magnitudes >= (np.finfo(np.float64 if dtype == np.float64 else np.float32).max / 2)
    return np.sum(terms, axis=-1), np.where(free, np.nan, additions(n, dtype) * magnitudes)


def _average(x: NumpyArray, dtype: Any) -> Any:
    total, error = _sum(x, dtype)
    n = x.shape[-1]
    return total / n, error / n + 4 * spacing(dtype) * np.abs(_finite(total / n))


def _l1(x: NumpyArray, dtype: Any) -> Any:
    return _sum(np.abs(x) if x.dtype.kind == "f" else _magnitude(x), dtype)


def _magnitude(x: NumpyArray) -> NumpyArray:
    return x if x.dtype.kind == "u" else np.where(x < 0, np.negative(x), x)


def _squares(x: NumpyArray, dtype: Any) -> Any:
    if x.dtype.kind != "f":
        return _sum(x * x, dtype)
    total, error = _sum(x * x, dtype)
    e = spacing(dtype)
    tiny = x.shape[-1] * float(np.finfo(np.float64 if dtype == np.float64 else np.float32).tiny)
    return total, error + e * np.abs(_finite(total)) + tiny


def _l2(x: NumpyArray, dtype: Any) -> Any:
    total, error = _squares(x, dtype)
    y = np.sqrt(total)
    bound = (additions(x.shape[-1], dtype) / 2 + 6 * spacing(dtype)) * _finite(y)
    wide = np.float64 if dtype == np.float64 else np.float32
    size = np.abs(x)
    lost = np.any((size > 0) & (size < np.sqrt(np.finfo(wide).tiny) * 2**3), axis=-1)  # a square below the normal numbers
    return y, np.where(np.isnan(error), np.nan, bound + np.where(lost, np.sqrt(x.shape[-1] * float(np.finfo(wide).tiny)), 0))


def _log_sum(x: NumpyArray, dtype: Any) -> Any:
    total, error = _sum(x, dtype)
    y = np.log(total)
    relative = error / np.abs(total)
    free = np.isnan(error) | ~(relative <= 0.25)
    # NaN settle the result, and so do infinities, unless finite terms overflow on the way: to the opposite one, perhaps.
    given = np.isnan(x).any(axis=-1) | (np.isinf(x).any(axis=-1) & ~np.isnan(error))
    bound = np.where(given, 0, relative) + 4 * spacing(dtype) * (1 + np.abs(_finite(y)))
    return y, np.where(free & ~given & (error != 0), np.nan, bound)


def _log_sum_exp_reference(x: NumpyArray, dtype: Any) -> Any:
    m = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    m = np.where(np.isinf(m), 0, m)
    y = m[..., 0] + np.log(np.sum(np.exp(x - m), axis=-1))
    n = x.shape[-1]
    return y, additions(n, dtype) + spacing(dtype) * (8 + 8 * np.log(n) + np.abs(_finite(y)))


def _product(x: NumpyArray, dtype: Any) -> Any:
    if x.dtype.kind != "f":
        return np.prod(x, axis=-1, dtype=x.dtype), np.zeros(())
    limits = np.finfo(np.float64 if dtype == np.float64 else np.float32)
    sizes = np.log2(np.where((x == 0) | ~np.isfinite(x), 1, np.abs(x)))
    high, low = np.sum(np.maximum(sizes, 0), axis=-1), np.sum(np.minimum(sizes, 0), axis=-1)
    free = (high >= limits.maxexp - 1) | (low <= limits.minexp + 1)
    y = np.prod(x, axis=-1)
    settled = np.isnan(x).any(axis=-1)
    return y, np.where(free & ~settled, np.nan, x.shape[-1] / 2 * spacing(dtype) * np.abs(_finite(y)))


def _extreme(function: Callable[..., Any]) -> Callable[[NumpyArray, Any], Any]:
    return lambda x, dtype: (function(x, axis=-1), np.zeros(()))


_SUMS = support("1.0 F r4 · 2.1 +iu · 3.0 r8 · 5.0 +LW · ext +D")
_FLOATS = support("1.0 F r4 · 3.0 r8 · ext +D")
_MAGNITUDES = support("1.0 F r4 · 3.0 r8 · 5.0 +iuLW · ext +D")
_EXTREMES = support("1.0 F r4 · 2.1 +iu · 3.0 FIU r8 · 5.0 +LW · ext +D")
_PLACES = support("1.0 F r4 · 2.1 +IU · 3.0 r8 · 4.1 +LW · ext +D", output_tensor=_INDICES)

_FUNCTIONS: Mapping[ReduceFunction, _Function] = {
    F.AVERAGE: _Function(_FLOATS, _plain(SUM), lambda total, n: total / n, _average, "ReduceMean"),
    F.L1: _Function(_MAGNITUDES, _plain(SUM, T.absolute), lambda total, n: total, _l1, "ReduceL1"),
    F.L2: _Function(_FLOATS, _plain(SUM, lambda x: T.rounded(x * x)), _root, _l2, "ReduceL2"),
    F.LOG_SUM: _Function(_FLOATS, _plain(SUM), lambda total, n: mathematics.log(total), _log_sum, "ReduceLogSum"),
    F.LOG_SUM_EXP: _Function(
        _FLOATS, _log_sum_exp, lambda m, z, n: m + mathematics.log(z), _log_sum_exp_reference, "ReduceLogSumExp"
    ),
    F.MAX: _Function(_EXTREMES, _plain(LARGEST), lambda x, n: x, _extreme(np.max), "ReduceMax"),
    F.MIN: _Function(_EXTREMES, _plain(SMALLEST), lambda x, n: x, _extreme(np.min), "ReduceMin"),
    F.MULTIPLY: _Function(_SUMS, _plain(PRODUCT), lambda x, n: x, _product, "ReduceProd"),
    F.SUM: _Function(_SUMS, _plain(SUM), lambda total, n: total, _sum, "ReduceSum"),
    F.SUM_SQUARE: _Function(
        _MAGNITUDES, _plain(SUM, lambda x: T.rounded(x * x)), lambda total, n: total, _squares, "ReduceSumSquare"
    ),
}


class Reduce(_Reduced):
    """What the elements along axes come to (``DML_REDUCE_OPERATOR_DESC``): a sum, a norm, the largest element, ...

    A NaN makes every function of floats NaN. Sums and products of integers wrap. float16 is summed in float32. AVERAGE, L2, LOG_SUM
    and LOG_SUM_EXP take floats; SUM, MULTIPLY, L1 and SUM_SQUARE floats and integers of 32 and 64 bits; the others all types.
    """

    FUNCTION = "reduce"
    DEFAULTS = defaults(axes=None)
    DTYPES = {"output_dtype": "output_tensor"}  # noqa: RUF012
    ONNX = tuple(one.onnx for one in _FUNCTIONS.values())
    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.0 r8 · 4.1 +LW · ext +D", output_tensor="1.0 Fu r4 · 2.1 +i · 3.0 FIULW r8 · ext +D")

    function: ReduceFunction
    input_tensor: Input
    output_tensor: Output
    axes: Axes

    def rows(self) -> tuple[Support, ...]:
        """The rows of the function."""
        names = ("input_tensor", "output_tensor")
        return tuple(row.of(names) for row in (_PLACES if self.place() else _FUNCTIONS[self.function].rows))

    def place(self) -> tuple[bool, bool] | None:
        return (self.function is F.ARGMAX, False) if self.function in (F.ARGMAX, F.ARGMIN) else None

    def walks(self) -> tuple[Walk, ...]:
        return super().walks() if self.place() else _FUNCTIONS[self.function].walks()

    def slice_results(self, *found: Any) -> Any:
        return super().slice_results(*found) if self.place() else _FUNCTIONS[self.function].result(*found)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The function in NumPy."""
        if self.place():
            return super().reference(*inputs)
        (x,) = inputs
        assert x is not None
        with np.errstate(all="ignore"):
            found, error = _FUNCTIONS[self.function].reference(self.slices(x), x.dtype)
            return (self.unsliced(found),) if x.dtype.kind != "f" else (self.near(found, error, x.dtype),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """The axes are an attribute, or a constant input; none means all."""
        if not node.integer("keepdims", 1):
            raise NotConvertible("its keepdims is 0: DirectML keeps a dimension of size 1")
        axes = node.constants("axes", 1) if node.has(1) else node.attributes.get("axes")
        x = node.tensor()
        if not axes and node.integer("noop_with_empty_axes", 0):
            raise NotConvertible("its axes are empty, and it then does nothing")
        function = next(kind for kind, one in _FUNCTIONS.items() if one.onnx == node.kind)
        return cls.of(x, function=function, axes=tuple(axes) if axes else None)
