"""Descriptors, and what is compiled of them: any fields, any arrays; outputs are the reference's, and nothing else is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import support

import tvmdml
from fuzz import hostile
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml.operators import Operator, all_operators
from tvmdml.operators._contract import Field, Role
from tvmdml.proof.conformance import cases
from tvmdml.tensors import TensorDesc

EXAMPLES = 60
_LARGEST = 5000
_FIELDS = ("data_type", "sizes", "strides", "total_tensor_size_in_bytes", "guaranteed_base_offset_alignment", "flags")
_TYPES = ("float32", "float16", "int32", "uint8", "uint64", "int8", "float64")


def one(choices: Choices) -> None:
    """A descriptor that is nearly right, compiled, and called with arrays that are nearly right."""
    with refusals(MemoryError):
        tensor = _tensor(choices)
        if choices.flag(4):
            str(tensor), repr(tensor), hash(tensor), tensor.is_packed, tensor.span, tensor.minimum_size_in_bytes
            tensor.check_writable(choices.text())
        desc = _desc(choices, tensor)
        hash(desc), repr(desc), desc.exactly()
        level = hostile.value(choices, 2) if choices.flag(8) else choices.pick((None, "6.4", 6.4, "2.1", "1.0"))
        target = hostile.value(choices, 2) if choices.flag(8) else "cpu"
        desc.validate(tvmdml.FeatureLevel.of(level))
        if all(tensor is None or tensor.span <= _LARGEST for _, tensor in desc.tensors()):
            _run(choices, desc, tvmdml.compile(desc, target, level))


def _tensor(choices: Choices) -> TensorDesc:
    sizes = tuple(choices.several(lambda: choices.pick((2, 1, 3, 5)), 4, 1))
    fields: dict[str, Any] = {"data_type": choices.pick(_TYPES), "sizes": sizes}
    if choices.flag(3):
        strides = choices.pick((support._padded, support._transposed, support._spread, support._broadcast_outer))(sizes)
        fields["strides"] = choices.pick((strides, list(strides), np.array(strides)))
    for _ in range(choices.pick((0, 0, 0, 1, 2))):
        name = choices.pick(_FIELDS)
        kind = choices.integer(0, 2)
        several = (lambda: hostile.value(choices, 3)) if kind == 0 else (lambda: hostile.integer(choices))
        fields[name] = choices.several(several, 9) if kind == 2 else several()
    return TensorDesc(**fields)


def _desc(choices: Choices, tensor: TensorDesc) -> Operator:
    cls = choices.pick(list(all_operators().values()))
    likely = cases.described(cls.NAME)(tensor)
    values = {field.name: getattr(likely, field.name) for field in cls.fields()}
    for _ in range(choices.pick((0, 0, 1, 2))):
        field: Field = choices.pick(list(cls.fields()))
        values[field.name] = choices.pick(
            (lambda: hostile.value(choices, 3), lambda: hostile.integer(choices), lambda: _tensor(choices))
        )()
    return cls(**values)


def _run(choices: Choices, desc: Operator, compiled: Any) -> None:
    repr(compiled)
    tensors: list[Any] = [None if tensor is None else _array(tensor, choices) for _, tensor in desc.tensors()]
    roles = [role for role in (Role.INPUT, Role.OUTPUT) for _ in desc.tensors(role)]
    before = [None if array is None else array.copy() for array in tensors]
    given: list[Any] = list(tensors)
    wild = False
    for _ in range(choices.pick((0, 0, 1, 2))):
        kind, at = choices.integer(0, 5), choices.integer(0, len(given) - 1)
        if kind == 5:
            given = given[:-1] if choices.flag() else [*given, given[0]]
        else:
            mine = given[at] if at < len(given) else None
            makers: tuple[Callable[[], Any], ...] = (
                lambda: hostile.value(choices, 3), lambda: hostile.array(choices),
                lambda: choices.pick(tensors), lambda mine=mine: hostile.Speaker(mine, choices),
                lambda mine=mine: _spoilt(choices, mine),
            )  # fmt: skip
            if at < len(given):
                given[at] = makers[kind]()
        wild = True
        if not given:
            return
    named = {}
    if choices.flag(6):
        named = {choices.pick([name for name, _ in desc.tensors()]): given.pop()}
    if choices.flag(3):
        compiled.bind(*given, **named)()
    else:
        compiled(*given, **named)
    if wild:
        return
    inputs = [array for array, role in zip(before, roles, strict=True) if role is Role.INPUT]
    with np.errstate(all="ignore"):
        expected = desc.reference(*inputs)
    outputs = tuple(array for array, role in zip(tensors, roles, strict=True) if role is Role.OUTPUT and array is not None)
    problem = desc.mismatch(tuple(array.copy() for array in outputs), expected)
    assert not problem, f"{desc}: {problem}"
    for array, old, role in zip(tensors, before, roles, strict=True):
        if role is Role.INPUT and array is not None:
            assert array.tobytes() == old.tobytes(), "an input was changed"


def _array(desc: TensorDesc, choices: Choices) -> Any:
    itemsize, seed = desc.data_type.itemsize, choices.bytes(8)
    memory = (
        np.frombuffer(seed * (desc.span * itemsize // 8 + 1), np.uint8)[: desc.span * itemsize].copy().view(desc.data_type.numpy)
    )
    return np.lib.stride_tricks.as_strided(memory, desc.sizes, [step * itemsize for step in desc.layout])


def _spoilt(choices: Choices, array: Any) -> Any:
    if type(array) is not np.ndarray:
        return array
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: hostile._frozen(choices, array), lambda: hostile._unaligned(choices, array), lambda: array[..., ::-1],
        lambda: array.T, lambda: array.astype(array.dtype.newbyteorder()), lambda: array[None], lambda: array.tolist(),
        lambda: memoryview(array), lambda: hostile._torch(choices, array), lambda: hostile._of_a_class(choices, array),
        lambda: array.reshape(-1),
    )  # fmt: skip
    return choices.pick(kinds)()
