"""The operators of ``operators/matrix_multiply_integer.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tvmdml.operators import Operator
from tvmdml.operators.matrix_multiply_integer import (
    MatrixMultiplyInteger,
    MatrixMultiplyIntegerToFloat,
    QuantizedLinearMatrixMultiply,
)
from tvmdml.proof.conformance.cases import _matrix
from tvmdml.proof.conformance.cases._common import Broken, Case, change
from tvmdml.proof.conformance.cases._matrix import MatrixForm
from tvmdml.tensors import TensorDataType, TensorDesc

_BYTES = (TensorDataType.UINT8, TensorDataType.INT8)
_WIDER = tuple(TensorDataType[name] for name in ("INT16", "UINT16", "INT32", "UINT32"))


def _zeros(form: MatrixForm, kinds: Sequence[Any], rank: int) -> dict[str, Any]:
    """Zero points: none, for all, for each row or column."""
    own = form.way % 9
    return {
        "a_zero_point_tensor": form.small(kinds[0], rank, own % 3 == 2) if own % 3 else None,
        "b_zero_point_tensor": form.small(kinds[1], rank, own // 3 == 2, True) if own // 3 else None,
    }


def _scales(form: MatrixForm, kind: Any, rank: int) -> dict[str, TensorDesc]:
    return {
        "a_scale_tensor": form.small(kind, rank, bool(form.way & 1)),
        "b_scale_tensor": form.small(kind, rank, bool(form.way & 2), True),
    }


def integers(kinds: Sequence[Any], form: MatrixForm, rank: int = 0) -> Operator:
    """The product itself."""
    a, b = form.factors(kinds)
    zeros = _zeros(form, kinds, rank or 1 + (form.way + form.m + form.n) % 8)
    return MatrixMultiplyInteger(a_tensor=a, b_tensor=b, output_tensor=form.output("int32"), **zeros)


def floats(kinds: Sequence[Any], form: MatrixForm, rank: int = 0) -> Operator:
    """Scaled, and with something added or not."""
    a, b = form.factors(kinds)
    rank = rank or 1 + (form.way + form.m + form.n) % 8
    kind, output = kinds[2], form.output(kinds[2])
    steps = tuple(0 if i < output.rank - 1 else 1 for i in range(output.rank)) if form.way & 4 else None
    return MatrixMultiplyIntegerToFloat(
        a_tensor=a,
        b_tensor=b,
        output_tensor=output,
        bias_tensor=TensorDesc(kind, output.sizes, steps) if form.way % 3 else None,
        **_scales(form, kind, rank),
        **_zeros(form, kinds, rank),
    )


def quantized(kinds: Sequence[Any], form: MatrixForm, rank: int = 0) -> Operator:
    """Quantized, for all or for each row."""
    a, b = form.factors(kinds)
    rank, each = rank or 1 + (form.way + form.m + form.n) % 8, bool(form.way & 4)
    return QuantizedLinearMatrixMultiply(
        a_tensor=a,
        b_tensor=b,
        output_tensor=form.output(kinds[2]),
        output_scale_tensor=form.small(kinds[3], rank, each),
        output_zero_point_tensor=form.small(kinds[2], rank, each and form.way % 3 == 1) if form.way % 3 else None,
        **_scales(form, kinds[3], rank),
        **_zeros(form, kinds, rank),
    )


def _described(make: Any, more: tuple[Any, ...], cls: Any, x: TensorDesc) -> Operator:
    """With a zero point for each row and column."""
    if x.rank == 1:  # no operator takes it
        small = {field.name: TensorDesc(x.data_type, (1,)) for field in cls.fields() if field.name.endswith("_tensor")}
        return cls(**small)
    form = MatrixForm(x.sizes[:-2], x.sizes[-2], x.sizes[-1], 6, 8)
    return make((x.data_type, x.data_type, *more), form, min(x.rank, 4))


DESCRIBED: dict[type[Operator], Callable[[TensorDesc], Operator]] = {
    MatrixMultiplyInteger: partial(_described, integers, (), MatrixMultiplyInteger),
    MatrixMultiplyIntegerToFloat: partial(_described, floats, ("float32",), MatrixMultiplyIntegerToFloat),
    QuantizedLinearMatrixMultiply: partial(_described, quantized, ("int8", "float32"), QuantizedLinearMatrixMultiply),
}


def _broken(cls: Any) -> dict[str, Broken]:
    name = cls.NAME
    good: Any = DESCRIBED[cls](TensorDesc("uint8", (2, 3, 5, 7)))
    result = good.output_tensor.data_type.tvm
    one = "(1, 1, 1, 1): one for all, or"
    return _matrix.rules(name, good, result, "float16") | {
        f"{name} with a zero point of another type": Broken(
            change(good, a_zero_point_tensor=TensorDesc("int8", (1, 1, 1, 1))),
            *(f"{name} a_zero_point_tensor.data_type", "int8", "uint8, as in a_tensor"),
        ),
        f"{name} with zero points of columns for rows": Broken(
            change(good, a_zero_point_tensor=TensorDesc("uint8", (1, 1, 1, 5))),
            *(f"{name} a_zero_point_tensor.sizes", "(1, 1, 1, 5)", f"{one} (1, 1, 5, 1): one for each row"),
        ),
        f"{name} with zero points of a batch": Broken(
            change(good, b_zero_point_tensor=TensorDesc("uint8", (2, 3, 1, 6))),
            *(f"{name} b_zero_point_tensor.sizes", "(2, 3, 1, 6)", f"{one} (1, 1, 1, 6): one for each column"),
        ),
    }


_TO_FLOAT: Any = DESCRIBED[MatrixMultiplyIntegerToFloat](TensorDesc("uint8", (2, 3, 5, 7)))
_QUANTIZED: Any = DESCRIBED[QuantizedLinearMatrixMultiply](TensorDesc("uint8", (2, 3, 5, 7)))

BROKEN: dict[str, Broken] = {
    **{rule: broken for cls in DESCRIBED for rule, broken in _broken(cls).items()},
    "MATRIX_MULTIPLY_INTEGER_TO_FLOAT with scales of two types": Broken(
        change(_TO_FLOAT, b_scale_tensor=TensorDesc("float16", (1, 1, 1, 1))),
        *("MATRIX_MULTIPLY_INTEGER_TO_FLOAT b_scale_tensor.data_type", "float16", "float32, as in a_scale_tensor"),
    ),
    "MATRIX_MULTIPLY_INTEGER_TO_FLOAT with scales of two ranks": Broken(
        change(_TO_FLOAT, b_scale_tensor=TensorDesc("float32", (1,))),
        *("MATRIX_MULTIPLY_INTEGER_TO_FLOAT b_scale_tensor.rank", "1", "4, as in a_scale_tensor"),
    ),
    "MATRIX_MULTIPLY_INTEGER_TO_FLOAT with a small bias": Broken(
        change(_TO_FLOAT, bias_tensor=TensorDesc("float32", (1, 1, 1, 6))),
        *("MATRIX_MULTIPLY_INTEGER_TO_FLOAT bias_tensor.sizes", "(1, 1, 1, 6)", "(2, 3, 5, 6), as in output_tensor"),
    ),
    "QUANTIZED_LINEAR_MATRIX_MULTIPLY with another zero point": Broken(
        change(_QUANTIZED, output_zero_point_tensor=TensorDesc("uint8", (1, 1, 1, 1))),
        *("QUANTIZED_LINEAR_MATRIX_MULTIPLY output_zero_point_tensor.data_type", "uint8", "int8, as in output_tensor"),
    ),
    "QUANTIZED_LINEAR_MATRIX_MULTIPLY with two ranks": Broken(
        change(_QUANTIZED, output_scale_tensor=TensorDesc("float32", (1, 1))),
        *("QUANTIZED_LINEAR_MATRIX_MULTIPLY output_scale_tensor.rank", "2", "4, as in a_scale_tensor"),
    ),
}  # fmt: skip


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Both kinds of bytes in either place; wider integers where there are any."""
    f32, f16 = TensorDataType.FLOAT32, TensorDataType.FLOAT16
    (u, i), fills = _BYTES, ("bits", "factors", "special", "constant")
    if cls is MatrixMultiplyInteger:
        yield from _matrix.cases(integers, ((u, i), (i, i), (i, u), (u, u)), fills)
        yield Case(integers((u, u), MatrixForm((), 2, 33_026, 3, 0)), "all NaN")  # every product is the largest: sums wrap
    elif cls is QuantizedLinearMatrixMultiply:
        yield from _matrix.cases(quantized, ((u, i, u, f32), (i, i, i, f32), (u, u, i, f32), (i, u, u, f16)), fills)
    else:
        yield from _matrix.cases(floats, ((u, i, f32), (i, u, f16), (i, i, f32)), fills)
        for number, kind in enumerate(_WIDER):
            for way in range(6):
                other = (kind, i, u, _WIDER[number - 1])[way % 4]
                output = (f32, f16)[number % 2]
                sizes = (12 + way, 270 if way == 3 else 20, 19)
                yield Case(floats((kind, other, output), MatrixForm((2,) * (way % 2), *sizes, way + number)), fills[way % 4])
        for rank in range(2, 9):
            kinds = (_WIDER[rank % 4], _WIDER[rank // 2 % 4], f16 if rank % 2 else f32)
            yield Case(floats(kinds, MatrixForm((1,) * (rank - 2), 5, 6, 7, rank), rank), "bits")
