"""DirectML's enumerations, with the same names and numbers."""

from __future__ import annotations

from tvmdml._enum import DmlEnum as DmlEnum
from tvmdml._enum import TensorFlags as TensorFlags
from tvmdml.errors import InvalidArgument, message, safe_repr


class FeatureLevel(DmlEnum):
    """``DML_FEATURE_LEVEL``: the version of DirectML's rules that a program was written for."""

    LEVEL_1_0 = 0x1000
    LEVEL_2_0 = 0x2000
    LEVEL_2_1 = 0x2100
    LEVEL_3_0 = 0x3000
    LEVEL_3_1 = 0x3100
    LEVEL_4_0 = 0x4000
    LEVEL_4_1 = 0x4100
    LEVEL_5_0 = 0x5000
    LEVEL_5_1 = 0x5100
    LEVEL_5_2 = 0x5200
    LEVEL_6_0 = 0x6000
    LEVEL_6_1 = 0x6100
    LEVEL_6_2 = 0x6200
    LEVEL_6_3 = 0x6300
    LEVEL_6_4 = 0x6400

    def __str__(self) -> str:
        """``6.4`` for ``LEVEL_6_4``, as DirectML's documentation writes it."""
        return f"{self.value >> 12}.{(self.value >> 8) & 0xF}"

    @classmethod
    def of(cls, value: FeatureLevel | str | float | None) -> FeatureLevel:
        """The level for ``value``: a member, ``"5.1"``, ``5.1``, ``"LEVEL_5_1"``; ``None`` is the newest."""
        if value is None:
            return NEWEST_FEATURE_LEVEL
        if isinstance(value, cls):
            return value
        text = str(value) if isinstance(value, (str, float)) else ""
        for level in cls:
            if text == str(level) or text.upper().removeprefix("DML_FEATURE_") == level.name:
                return level
        choices = ", ".join(str(level) for level in cls)
        raise InvalidArgument(message("feature_level", safe_repr(value), choices, 'Write it as a string, such as "5.1".'))


NEWEST_FEATURE_LEVEL = FeatureLevel.LEVEL_6_4


class AxisDirection(DmlEnum):
    """``DML_AXIS_DIRECTION``: the direction of an operator along its axis."""

    INCREASING = 0
    DECREASING = 1


class ReduceFunction(DmlEnum):
    """``DML_REDUCE_FUNCTION``: what a slice comes to."""

    ARGMAX = 0
    """The position of the largest element."""
    ARGMIN = 1
    AVERAGE = 2
    L1 = 3
    """The sum of the magnitudes."""
    L2 = 4
    """The square root of the sum of the squares."""
    LOG_SUM = 5
    LOG_SUM_EXP = 6
    MAX = 7
    MIN = 8
    MULTIPLY = 9
    SUM = 10
    SUM_SQUARE = 11


class RoundingMode(DmlEnum):
    """``DML_ROUNDING_MODE``: how a fraction is rounded."""

    HALVES_TO_NEAREST_EVEN = 0
    TOWARD_ZERO = 1
    TOWARD_INFINITY = 2
    """To the nearest integer, halves away from zero. In spite of its name, it is not a ceiling."""


class PaddingMode(DmlEnum):
    """``DML_PADDING_MODE``: what the elements around a tensor are."""

    CONSTANT = 0
    EDGE = 1
    REFLECTION = 2
    """Mirrored; the first and the last element are not repeated."""
    SYMMETRIC = 3
    """Mirrored; the first and the last element are repeated."""
    WRAP = 4


class ConvolutionMode(DmlEnum):
    """``DML_CONVOLUTION_MODE``: whether a filter is turned round."""

    CONVOLUTION = 0
    """The filter's last element meets the first one of a window, in every spatial dimension."""
    CROSS_CORRELATION = 1


class ConvolutionDirection(DmlEnum):
    """``DML_CONVOLUTION_DIRECTION``: from the image to what filters see in it, or the other way."""

    FORWARD = 0
    BACKWARD = 1
    """The transposed convolution: each element of the input adds the filter, times itself, to the output."""


class RecurrentNetworkDirection(DmlEnum):
    """``DML_RECURRENT_NETWORK_DIRECTION``: in which order a recurrent network takes the elements of a sequence."""

    FORWARD = 0
    BACKWARD = 1
    BIDIRECTIONAL = 2
    """Both, each with its own weights and states."""


class DepthSpaceOrder(DmlEnum):
    """``DML_DEPTH_SPACE_ORDER``: how the depth dimension is composed."""

    DEPTH_COLUMN_ROW = 0
    COLUMN_ROW_DEPTH = 1


class InterpolationMode(DmlEnum):
    """``DML_INTERPOLATION_MODE``: what is between two elements."""

    NEAREST_NEIGHBOR = 0
    LINEAR = 1


class IsInfinityMode(DmlEnum):
    """``DML_IS_INFINITY_MODE``: which infinities are meant."""

    EITHER = 0
    POSITIVE = 1
    NEGATIVE = 2


class MatrixTransform(DmlEnum):
    """``DML_MATRIX_TRANSFORM``: what is done to a matrix before it is a factor."""

    NONE = 0
    TRANSPOSE = 1


class MultiheadAttentionMaskType(DmlEnum):
    """``DML_MULTIHEAD_ATTENTION_MASK_TYPE``: what the mask of an attention has."""

    NONE = 0
    KEY_SEQUENCE_LENGTH = 1
    """For each batch how many keys are kept."""
    KEY_SEQUENCE_END_START = 2
    """For each batch the first key that is not kept any more, and the first that is."""
    KEY_QUERY_SEQUENCE_LENGTH_START_END = 3
    """For each batch how many keys are kept, and where its query rows and keys begin among those of all batches."""
    BOOLEAN = 4
    """For each query row and key whether that is kept."""


class QuantizationType(DmlEnum):
    """``DML_QUANTIZATION_TYPE``: what quantised numbers need to become real ones."""

    NONE = 0
    SCALE = 1
    SCALE_ZERO_POINT = 2


class RandomGeneratorType(DmlEnum):
    """``DML_RANDOM_GENERATOR_TYPE``: how random bits are made."""

    PHILOX_4X32_10 = 0


def public_name(name: str) -> object:
    """An enumeration, by its name.

    Raises:
        AttributeError: there is no such enumeration.
    """
    if name in public_names_by_module()["enums"]:
        return globals()[name]
    raise AttributeError(name)


def public_names_by_module() -> dict[str, list[str]]:
    """The names of DirectML's enumerations here."""
    return {"enums": [name for name, value in globals().items() if isinstance(value, type(DmlEnum)) and value is not DmlEnum]}
