"""``TensorDesc`` and ``TensorPolicy``, and the rules by which arrays become tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml import tensors
from tvmdml.directml.enums import TensorDataType, TensorFlags, member
from tvmdml.errors import safe_repr
from tvmdml.tensors.arrays import NumpyArray

_NUMPY = {one: tensors.TensorDataType[one.name].numpy for one in TensorDataType if one is not TensorDataType.UNKNOWN}
_TYPES = {dtype: one for one, dtype in _NUMPY.items()}


def data_type(dtype: Any) -> Any:
    """The ``TensorDataType`` of a type in either spelling, or of an array's type.

    Raises:
        TypeError: DirectML has no such type.
    """
    if isinstance(dtype, TensorDataType):
        found = dtype if dtype is not TensorDataType.UNKNOWN else None
    else:
        try:
            found = _TYPES.get(tensors.native(np.dtype(dtype)))
        except Exception:  # NumPy asks the object for its fields, and shows it
            found = None
    if found is None:
        raise TypeError(f"{safe_repr(dtype)} is not a tensor data type of DirectML; allowed: {', '.join(map(str, _TYPES))}")
    return found


def numpy_type(dtype: Any) -> np.dtype[Any]:
    """The NumPy type of a type in either spelling."""
    return _NUMPY[data_type(dtype)]


def sizes_of(given: Any, where: str) -> list[int]:
    """Sizes or strides, as integers.

    Raises:
        TypeError: they are not.
    """
    try:
        return [int(n.__index__()) for n in itertools.islice(given, tensors.MOST_VALUES)]
    except (AttributeError, TypeError):
        raise TypeError(f"{where}: given {given!r}; allowed: a sequence of integers") from None


class TensorPolicy:
    """How tensors lie in memory: ``default`` is row-major, ``interleaved_channel`` has the channels of a pixel side by side."""

    default: TensorPolicy
    interleaved_channel: TensorPolicy

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<dml.TensorPolicy {self._name}>"

    def strides(self, sizes: Sequence[int]) -> list[int] | None:
        """The strides of a tensor; ``None`` for row-major."""
        if self is TensorPolicy.default or len(sizes) < 3:
            return None
        order = [0, *range(2, len(sizes)), 1]
        steps = tensors.packed_strides(tuple(sizes[i] for i in order))
        return [steps[order.index(i)] for i in range(len(sizes))]


TensorPolicy.default = TensorPolicy("default")
TensorPolicy.interleaved_channel = TensorPolicy("interleaved_channel")


class TensorDesc:
    """A tensor's type, sizes, strides and flags. The attributes can only be read.

    Args:
        data_type: a NumPy type or a ``TensorDataType``.
        sizes: one to eight sizes.
        flags: a ``TensorFlags``.
        strides: a stride for each size, in elements; ``None`` for row-major without gaps.
        total_tensor_size_in_bytes: the size of the memory; by default the least that holds the tensor, rounded up to 4 bytes.
        guaranteed_base_offset_alignment: 0 or a power of two.
        tensor_policy: in place of strides, how the tensor lies.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: there are both strides and a policy, or a number is not allowed.
    """

    __slots__ = ("_desc",)

    def __init__(
        self,
        data_type: Any,
        sizes: Sequence[int],
        *,
        flags: Any = TensorFlags.NONE,
        strides: Sequence[int] | None = None,
        total_tensor_size_in_bytes: int | None = None,
        guaranteed_base_offset_alignment: int = 0,
        tensor_policy: TensorPolicy | None = None,
    ) -> None:
        dims = sizes_of(sizes, "TensorDesc sizes") or [1]
        steps = None if strides is None else sizes_of(strides, "TensorDesc strides")
        if tensor_policy is not None:
            if not isinstance(tensor_policy, TensorPolicy):
                raise TypeError(f"TensorDesc tensor_policy: given {type(tensor_policy).__name__}; allowed: a TensorPolicy")
            if steps is not None:
                raise ValueError("TensorDesc: strides and tensor_policy exclude each other: the policy decides the strides")
            steps = tensor_policy.strides(dims)
        self._desc = tensors.TensorDesc(
            tensors.TensorDataType[_type(data_type).name],
            dims,
            steps,
            total_tensor_size_in_bytes,
            guaranteed_base_offset_alignment,
            member(TensorFlags, flags, "TensorDesc flags").name,
        )

    @property
    def data_type(self) -> Any:
        """The ``TensorDataType``."""
        return TensorDataType[self._desc.data_type.name]

    @property
    def flags(self) -> Any:
        """The ``TensorFlags``."""
        return TensorFlags[self._desc.flags.name]

    @property
    def sizes(self) -> list[int]:
        """The sizes."""
        return list(self._desc.sizes)

    @property
    def strides(self) -> list[int] | None:
        """The strides in elements; ``None`` if none were given."""
        return None if self._desc.strides is None else list(self._desc.strides)

    @property
    def total_tensor_size_in_bytes(self) -> int:
        """The size of the memory."""
        total = self._desc.total_tensor_size_in_bytes
        return self._desc.minimum_size_in_bytes if total is None else total

    @property
    def guaranteed_base_offset_alignment(self) -> int:
        """The alignment that was promised."""
        return self._desc.guaranteed_base_offset_alignment

    @property
    def span_in_bytes(self) -> int:
        """The bytes from the first element to the last, or all that were asked for."""
        total = self._desc.total_tensor_size_in_bytes
        return self._desc.span_in_bytes if total is None or total == self._desc.minimum_size_in_bytes else total

    def __repr__(self) -> str:
        strides = "" if self.strides is None else f" strides {self.strides}"
        return f"<dml.TensorDesc {self._desc.data_type.tvm} {self.sizes}{strides} {self.flags}>"


_type = data_type


def check_cast(array: Any, target: np.dtype[Any], what: str) -> None:
    """Refuse a conversion to another kind of number that may change values.

    Raises:
        ValueError: it is one.
    """
    if array.dtype != target and array.dtype.kind != target.kind and not np.can_cast(array.dtype, target, "safe"):
        raise ValueError(f"{what}: an array of {array.dtype} is not converted to {target.name}; convert it with astype()")


def flat(array: Any, target: np.dtype[Any]) -> NumpyArray:
    """The elements of an array in row-major order, converted; not a copy if none is needed."""
    found: NumpyArray = np.ascontiguousarray(array, target).reshape(-1)
    return found if found.flags.aligned else found.copy()
