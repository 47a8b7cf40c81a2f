"""The package's enumerations: DirectML's, where only members of the right enumeration count, not numbers and not names."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from tvmdml import enums, tensors

E = TypeVar("E", bound="Enumeration")


class Enumeration(enum.Enum):
    """Base class of the enumerations. ``str`` gives ``Class.MEMBER``."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class _Flags(Enumeration):
    """Flags can be combined; the result is a number."""

    def __or__(self, other: Any) -> int:
        return int(self) | int(other)

    __ror__ = __or__

    def __and__(self, other: Any) -> int:
        return int(self) & int(other)

    __rand__ = __and__


def _like(original: type[enums.DmlEnum], *, without: tuple[str, ...] = (), first: tuple[str, ...] = ()) -> Any:
    """The members of one of tvmdml's enumerations, with their numbers; ``first`` are added before them, from 0 on."""
    members = {name: i for i, name in enumerate(first)} | {one.name: one.value for one in original if one.name not in without}
    return _made(original.__name__, members, original.__doc__)


def _made(name: str, members: dict[str, int], doc: str | None, base: type[Enumeration] = Enumeration) -> Any:
    made: Any = base  # its functional form
    found = made(name, members, module=__name__)
    found.__doc__ = doc
    return found


TensorDataType: Any = _like(tensors.TensorDataType, without=("UINT4", "INT4"), first=("UNKNOWN",))
TensorFlags: Any = _like(enums.TensorFlags)
MatrixTransform: Any = _like(enums.MatrixTransform)
RecurrentNetworkDirection: Any = _like(enums.RecurrentNetworkDirection)
ConvolutionMode: Any = _like(enums.ConvolutionMode)
ConvolutionDirection: Any = _like(enums.ConvolutionDirection)
InterpolationMode: Any = _like(enums.InterpolationMode)
PaddingMode: Any = _like(enums.PaddingMode, without=("SYMMETRIC", "WRAP"))
RoundingMode: Any = _like(enums.RoundingMode)
IsInfinityMode: Any = _like(enums.IsInfinityMode)
AxisDirection: Any = _like(enums.AxisDirection)
DepthSpaceOrder: Any = _like(enums.DepthSpaceOrder)
ReduceFunction: Any = _like(enums.ReduceFunction)
RandomGeneratorType: Any = _like(enums.RandomGeneratorType)
QuantizationType: Any = _like(enums.QuantizationType, without=("NONE",))
GRUOutputOptions: Any = _made("GRUOutputOptions", {"Both": 0, "Sequence": 1, "Single": 2}, "Which results ``gru`` returns.")
ExecutionFlags: Any = _made(
    "ExecutionFlags",
    {"NONE": 0, "ALLOW_HALF_PRECISION_COMPUTATION": 1, "DISABLE_META_COMMANDS": 2, "DESCRIPTORS_VOLATILE": 4},
    "``DML_EXECUTION_FLAGS``. They are accepted, and change no result.",
    _Flags,
)

_OPERATORS = """
INVALID
ELEMENT_WISE_: IDENTITY ABS ACOS ADD ASIN ATAN CEIL CLIP COS DIVIDE EXP FLOOR LOG LOGICAL_AND LOGICAL_EQUALS LOGICAL_GREATER_THAN
ELEMENT_WISE_: LOGICAL_LESS_THAN LOGICAL_NOT LOGICAL_OR LOGICAL_XOR MAX MEAN MIN MULTIPLY POW CONSTANT_POW RECIP SIN SQRT SUBTRACT
ELEMENT_WISE_: TAN THRESHOLD QUANTIZE_LINEAR DEQUANTIZE_LINEAR
ACTIVATION_: ELU HARDMAX HARD_SIGMOID IDENTITY LEAKY_RELU LINEAR LOG_SOFTMAX PARAMETERIZED_RELU PARAMETRIC_SOFTPLUS RELU SCALED_ELU
ACTIVATION_: SCALED_TANH SIGMOID SOFTMAX SOFTPLUS SOFTSIGN TANH THRESHOLDED_RELU
CONVOLUTION GEMM REDUCE AVERAGE_POOLING LP_POOLING MAX_POOLING ROI_POOLING SLICE CAST SPLIT JOIN PADDING VALUE_SCALE_2D UPSAMPLE_2D
GATHER SPACE_TO_DEPTH DEPTH_TO_SPACE TILE TOP_K BATCH_NORMALIZATION MEAN_VARIANCE_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION
LP_NORMALIZATION RNN LSTM GRU
ELEMENT_WISE_: SIGN IS_NAN ERF SINH COSH TANH ASINH ACOSH ATANH IF ADD1
ACTIVATION_: SHRINK
MAX_POOLING1 MAX_UNPOOLING DIAGONAL_MATRIX SCATTER ONE_HOT RESAMPLE
ACTIVATION_: CELU GELU
"""


def _operators() -> dict[str, int]:
    lines = (line.rpartition(": ") for line in _OPERATORS.split("\n"))
    names = [prefix + name for prefix, _, rest in lines for name in rest.split()]
    return {name: i for i, name in enumerate(names)}


OperatorType: Any = _made(
    "OperatorType", _operators(), "``DML_OPERATOR_TYPE``: the members that the package has. Only names count."
)


def member(kind: type[E], value: object, where: str) -> E:
    """``value``, if it is a member.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, kind):
        return value
    raise TypeError(f"{where}: given {type(value).__name__}; allowed: a member of directml.{kind.__name__}")
