"""Values of every kind, among them objects that lie, raise, recurse, or change what they are given."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

with contextlib.suppress(ImportError):
    import torch  # noqa: F401 - it is looked for where it would be, if it is here

from fuzz.choices import Choices
from fuzz.oracle import Own
from tvmdml import AxisDirection, FeatureLevel, RoundingMode, TensorDataType, TensorFlags

# The exceptions that code around a hostile object might take for its own.
_RAISED = [
    type(f"Own{base.__name__}", (Own, base), {})
    for base in (
        ValueError, TypeError, KeyError, AttributeError, IndexError, RuntimeError, OSError, BufferError, StopIteration,
        NotImplementedError, RecursionError, ZeroDivisionError, MemoryError, Exception, KeyboardInterrupt, GeneratorExit,
    )
]  # fmt: skip
_METHODS = (
    "__index__", "__int__", "__float__", "__bool__", "__len__", "__iter__", "__next__", "__getitem__", "__eq__", "__ne__", "__lt__",
    "__hash__", "__contains__", "__repr__", "__str__", "__format__", "__fspath__", "__call__", "__array__", "__dlpack__",
    "__dlpack_device__", "__array_namespace__", "__array_function__", "__array_ufunc__", "__array_finalize__", "__instancecheck__",
    "__reduce_ex__", "__length_hint__", "keys", "items", "validate", "canonical", "numpy", "upper", "lower", "strip", "startswith",
)  # fmt: skip
_ATTRIBUTES = (
    "__array_interface__", "__cuda_array_interface__", "__class__", "__module__", "shape", "dtype", "strides", "device", "is_cuda",
    "requires_grad", "flags", "name", "NAME", "value", "kind", "__len__", "__dict__",
)  # fmt: skip
_DTYPES = (
    "f4", "f2", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", ">f4", ">i2", "O", "c8", "S3", "U2", "M8[s]", "m8[s]",
    "g", "V3", "f4,i4", "T" if hasattr(np.dtypes, "StringDType") else "O",
)  # fmt: skip
_BASES = (object, int, str, tuple, list, dict, float, np.ndarray, bytes, set)
WORDS = (
    "float32", "float16", "int64", "uint8", "bool", "cpu", "cpu:", "cpu:0", "cpu:x86-64-v3", "cuda:0", "cuda:sm_90", "vulkan",
    "cuda", "decreasing", "increasing", "halves_to_nearest_even", "toward_zero", "DML_ROUNDING_MODE_", "uint32", "5.1", "6.4",
    "LEVEL_1_0", "inf", "nan", "object", "O", "V8", "datetime64[ns]", "S3", ">f4", "=i2", "f4,i4", "1e999", "0x10", "None",
    "top_k", "round",
)  # fmt: skip


def value(choices: Choices, depth: int = 2) -> Any:
    """Anything."""
    kinds = _PLAIN if depth <= 0 else _KINDS
    return choices.pick(kinds)(choices, depth - 1)


def integer(choices: Choices) -> Any:
    """Something that may pass for an integer."""
    number = choices.number()
    small = max(min(number, 2**63 - 1), -(2**63))
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: number, lambda: np.int64(small), lambda: bool(number), lambda: float(small), lambda: np.array(small),
        lambda: str(small), lambda: np.uint8(number % 256), lambda: hostile(choices, 1), lambda: np.array([small]),
        lambda: np.float32(small), lambda: np.timedelta64(small, "s"), lambda: Anything(int, {}, number),
    )  # fmt: skip
    return choices.pick(kinds)()


def array(choices: Choices, depth: int = 0) -> Any:
    """An array of any type and layout, of few elements."""
    dtype = choices.pick(_DTYPES)
    sizes = tuple(choices.several(lambda: choices.pick((3, 1, 2, 5, 0, 17, 70)), 4))
    if choices.flag(12):
        sizes = (*sizes, *choices.several(lambda: 1, 30))
    while np.prod(sizes, dtype=float) > 5000:
        sizes = sizes[1:]
    count = int(np.prod(sizes, dtype=int))
    kind = np.dtype(dtype)
    if kind.hasobject:
        found = np.full(sizes, None, kind) if dtype == "O" else np.zeros(sizes, kind)
    else:
        seed = choices.bytes(8)
        raw = np.frombuffer((seed * (count * kind.itemsize // 8 + 1))[: count * kind.itemsize], np.uint8).copy()
        if dtype == "?":
            raw &= 1
        found = raw.view(kind).reshape(sizes) if count else np.zeros(sizes, kind)
        if choices.flag() and kind.kind in "fiu":
            found[...] = np.arange(count).reshape(sizes) % 7 - (3 if kind.kind != "u" else 0)
    for change in choices.several(lambda: choices.pick(_LAYOUTS), 3):
        found = change(choices, found)
    return found


def _reversed(choices: Choices, found: Any) -> Any:
    return found[(slice(None, None, -1),) * choices.integer(0, found.ndim)]


def _broadcast(choices: Choices, found: Any) -> Any:
    return np.broadcast_to(found, (choices.pick((2, 1, 3)), *found.shape)) if found.ndim < 32 and found.size < 3000 else found


def _unaligned(choices: Choices, found: Any) -> Any:
    if found.dtype.hasobject or not found.size:
        return found
    room = np.zeros(found.nbytes + 1, np.uint8)[1:].view(found.dtype).reshape(found.shape)
    room[...] = found
    return room


def _frozen(choices: Choices, found: Any) -> Any:
    found = found.view()
    found.flags.writeable = False
    return found


def _overlapping(choices: Choices, found: Any) -> Any:
    if found.dtype.hasobject or found.ndim != 1 or found.size < 4:
        return found
    return np.lib.stride_tricks.as_strided(found, (found.size - 2, 3), (found.strides[0], found.strides[0]))


def _far(choices: Choices, found: Any) -> Any:
    """With strides that reach no element, and so may be anything: of dimensions of one element, or of arrays of none."""
    if found.ndim > 30 or found.dtype.hasobject:
        return found
    step = choices.pick((2**62, -(2**62), 2**63 - 1, -(2**63), 1, 2**34, 0))
    if choices.flag(3):
        return np.lib.stride_tricks.as_strided(found, (0, *found.shape), (step, *found.strides))
    at = choices.integer(0, found.ndim)
    sizes, strides = [*found.shape[:at], 1, *found.shape[at:]], [*found.strides[:at], step, *found.strides[at:]]
    return np.lib.stride_tricks.as_strided(found, sizes, strides, writeable=found.flags.writeable)


def _of_a_class(choices: Choices, found: Any) -> Any:
    if found.ndim == 2 and choices.flag(3):
        return np.matrix(found)
    return found.view(type("Subclass", (np.ndarray,), {})) if choices.flag() else np.ma.masked_array(found)


def _torch(choices: Choices, found: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or type(found) is not np.ndarray:
        return found
    try:
        tensor = torch.from_numpy(found if found.flags.writeable else found.copy())
    except (TypeError, ValueError):
        return found
    makers: tuple[Callable[[], Any], ...] = (
        lambda: tensor, lambda: tensor.to_sparse(), lambda: tensor.float().requires_grad_(), lambda: tensor.to("meta"),
        lambda: torch._neg_view(tensor), lambda: tensor.to(torch.bfloat16), lambda: tensor.to(torch.complex64).conj(),
        lambda: tensor.T if tensor.ndim == 2 else tensor, lambda: torch.nn.Parameter(tensor.float()),
    )  # fmt: skip
    try:
        return choices.pick(makers)()
    except (RuntimeError, TypeError, NotImplementedError):
        return tensor


def _speaking(choices: Choices, found: Any) -> Any:
    return Speaker(found, choices) if type(found) is np.ndarray else found


_LAYOUTS: tuple[Callable[[Choices, Any], Any], ...] = (
    lambda choices, found: found.T if type(found) is np.ndarray else found,
    *(lambda choices, found, change=change: change(choices, found) if type(found) is np.ndarray else found
      for change in (_reversed, _broadcast, _unaligned, _frozen, _overlapping, _far, _far, _of_a_class)),
    lambda choices, found: found[..., ::2] if isinstance(found, np.ndarray) and found.ndim else found,
    _torch, _speaking,
)  # fmt: skip


class Speaker:
    """An array that is known by DLPack alone; its device, and what it exports later, may be lies."""

    def __init__(self, found: Any, choices: Choices) -> None:
        self.found = found
        self.device = (
            (1, 0) if choices.flag() else choices.pick(((1, 0), (2, 0), (13, 7), (1, -1), (99, 0), (), None, "cpu", (1.5, 0)))
        )
        self.fails = choices.pick((None, None, None, *_RAISED[:8]))

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.fails is not None:
            raise self.fails("__dlpack__")
        return self.found.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.device


def Anything(base: type, members: dict[str, Any], content: Any = None) -> Any:  # noqa: N802 - it stands for a class
    """An object of a new class."""
    try:
        made = type("Anything", (base,), members)
        if base is np.ndarray:
            return np.zeros((2, 3), np.float32).view(made)
        return made() if content is None else made(content)
    except Exception:  # such a class cannot be
        return object()


def hostile(choices: Choices, depth: int) -> Any:
    """An object some of whose methods raise, lie, recurse, or change what they are given."""
    members: dict[str, Any] = {}
    for _ in range(choices.integer(1, 4)):
        if choices.flag(3):
            name = choices.pick(_ATTRIBUTES)
            members[name] = property(_behaviour(choices, depth, name, getter=True)) if choices.flag() else value(choices, depth - 1)
        else:
            name = choices.pick(_METHODS)
            members[name] = _behaviour(choices, depth, name)
    if "__eq__" in members and "__hash__" not in members and choices.flag():
        members["__hash__"] = object.__hash__
    return Anything(choices.pick(_BASES), members)


def _behaviour(choices: Choices, depth: int, name: str, getter: bool = False) -> Callable[..., Any]:
    kind = choices.integer(0, 4)
    if kind == 0:
        raised = choices.pick(_RAISED)

        def behave(*arguments: Any, **keywords: Any) -> Any:
            raise raised(name)
    elif kind == 1:

        def behave(*arguments: Any, **keywords: Any) -> Any:
            try:
                return getattr(arguments[0], name) if getter else getattr(type(arguments[0]), name)(*arguments, **keywords)
            except RecursionError:
                raise _RAISED[10](name) from None
    elif kind == 2:

        def behave(*arguments: Any, **keywords: Any) -> Any:
            for one in arguments:  # change what can be changed
                if type(one) in (list, dict, set):
                    one.clear()
                elif type(one) is np.ndarray and one.flags.writeable and not one.dtype.hasobject:
                    one.fill(0)
            return arguments[-1] if arguments else None
    elif kind == 3:
        turns = itertools.cycle([value(choices, depth - 1), value(choices, depth - 1)])  # another thing each time

        def behave(*arguments: Any, **keywords: Any) -> Any:
            return next(turns)
    else:
        said = value(choices, depth - 1)

        def behave(*arguments: Any, **keywords: Any) -> Any:
            return said

    return behave


_PLAIN: tuple[Callable[[Choices, int], Any], ...] = (
    lambda choices, depth: choices.number(),
    lambda choices, depth: None,
    lambda choices, depth: choices.flag(),
    lambda choices, depth: choices.real(),
    lambda choices, depth: choices.text(WORDS),
    lambda choices, depth: choices.text(WORDS).encode("utf-8", "surrogatepass"),
    lambda choices, depth: choices.pick((*RoundingMode, *AxisDirection, *TensorDataType, *TensorFlags, *FeatureLevel)),
    lambda choices, depth: choices.pick((int, float, object, type, np.float32, np.dtype("f4"), np.dtype("f4,i4"), Ellipsis, len)),
    lambda choices, depth: choices.pick(
        (complex(1, 2), NotImplemented, slice(1), range(3), range(2**70), bytearray(3), memoryview(b"ab"))
    ),
)
_KINDS = (
    *_PLAIN,
    lambda choices, depth: tuple(choices.several(lambda: value(choices, depth), 4)),
    lambda choices, depth: choices.several(lambda: value(choices, depth), 4),
    lambda choices, depth: {choices.text(WORDS): value(choices, depth) for _ in range(choices.integer(0, 2))},
    lambda choices, depth: array(choices),
    lambda choices, depth: choices.pick((iter, itertools.cycle, frozenset, (itertools.repeat)))([1, 2]),
    lambda choices, depth: hostile(choices, depth),
    lambda choices, depth: hostile(choices, depth),
    lambda choices, depth: integer(choices),
)
