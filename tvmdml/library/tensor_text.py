"""A tensor as a text: data type, sizes, ``strides`` if it is not packed, and ``owned`` if it is OWNED_BY_DML."""

from __future__ import annotations

import re

from tvmdml.enums import TensorFlags
from tvmdml.errors import InvalidArgument, message
from tvmdml.tensors import TensorDataType, TensorDesc

_NUMBERS = r"\[((?:\s*\d{1,20}\s*,)*\s*(?:\d{1,20}\s*)?)\]"
_TENSOR = re.compile(rf"\s*(\w+)\s*{_NUMBERS}\s*(?:strides\s*{_NUMBERS}\s*)?(owned\s*)?", re.ASCII)


def parse_tensor(text: str, where: str) -> TensorDesc:
    """The tensor of a text such as ``"float32[2, 3] strides [4, 1] owned"``.

    Raises:
        InvalidArgument: the text has another form, or there is no such tensor.
    """
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            message(where, repr(text), 'a type and sizes, such as "float32[2, 3]", "int8[2, 3] strides [4, 1]" or "int8[3] owned"')
        )
    strides = None if match[3] is None else _integers(match[3])
    flags = TensorFlags.OWNED_BY_DML if match[4] else TensorFlags.NONE
    return TensorDesc(TensorDataType.parse(match[1], where), _integers(match[2]), strides, flags=flags)


def is_plain(text: str) -> bool:
    """Whether all numbers of a text are known."""
    return _TENSOR.fullmatch(text) is not None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())
