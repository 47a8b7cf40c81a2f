"""The pointwise family: each element of the output depends on the elements at the same place in the inputs.

Such an operator is a class of a few lines: a name, a support table, ``value``, which is an expression for TensorIR, and ``numpy``,
the reference. The family adds the rules, the computation, the schedules and the conformance cases. See README.md in this folder.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula, Parameter, Values
from tvmdml.kernels.launched import Word, Words, with_fields
from tvmdml.kernels.layout import collapse
from tvmdml.operators._accuracy import within_steps
from tvmdml.operators._contract import Input, NumpyArray, Operator, Output, Role, Shared
from tvmdml.operators._frozen import derived
from tvmdml.operators._support import FLOATS
from tvmdml.tensors import TensorDataType, TensorDesc, packed_strides

_WORDS = {n.itemsize: TensorDataType[f"UINT{8 * n.itemsize}"] for n in TensorDataType}


class Pointwise(Operator):
    """Base class of pointwise operators."""

    FAMILY: ClassVar[str] = "pointwise"
    ANY_NAN = True
    BROADCAST = True
    BITS: ClassVar[bool] = False
    """Whether ``value`` and ``numpy`` get the elements' bits, as unsigned integers: for operators that copy or combine bits."""
    NARROW: ClassVar[bool] = False
    """Whether ``value`` takes a float16 as it is: for operators that only change its sign."""
    SINGLE: ClassVar[tuple[str, ...]] = ()
    """Inputs of a single element, which is that of every place: all their sizes are 1."""
    STEPS: ClassVar[int] = 0
    """How many representable numbers a result may be away from the correctly rounded one (a float16: 1); 0 is exact, bit for bit.

    If there are any, ``numpy`` returns values in higher precision than the elements'."""
    FUSED: ClassVar[bool] = False
    """Whether exact results come from fused multiply-adds, as the rest of a division does; other exact operators have none."""
    COUNTED: ClassVar[bool] = False
    """Whether ``value`` and ``numpy`` get the number of the element in row-major order as their last argument, a uint32.

    An operator without inputs gets a number in any case, so that it knows how many lanes there are."""

    KERNEL: ClassVar[Any] = None
    """The function that is ``value``, if one is."""
    NUMPY: ClassVar[Any] = None
    """The function that is ``numpy``, if one is. With ``STEPS`` it gets arrays in higher precision."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A function is made from an operator, and has its name, unless the class says otherwise."""
        super().__init_subclass__(**kwargs)
        if cls._is_operator() and "FUNCTION" not in vars(cls):
            cls.FUNCTION = cls.NAME.lower().removeprefix("element_wise_")

    # -- What an operator defines

    def value(self, *values: Any, **_: Any) -> Any:
        """The output's element, in TensorIR: from scalars a scalar, from vectors a vector. With several outputs, a tuple.

        A float16 is given as float32, and what is returned is converted to the output's type.
        """
        return type(self).KERNEL(*values)

    def numpy(self, *arrays: Any, **_: Any) -> Any:
        """The same in NumPy, for arrays, written independently. A float16 array is given as float32."""
        return type(self).NUMPY(*(map(precise, arrays) if self.STEPS else arrays))

    def counts(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The steps of the number that ``value`` gets with ``COUNTED``; without, it is always 0."""
        return packed_strides(sizes) if self.COUNTED else (0,) * len(sizes)

    def steps(self) -> int:
        """``STEPS``; an operator with a part of another one has that one's."""
        return self.STEPS

    def error(self, *arrays: Any) -> Any:
        """An absolute error that each result may have beside ``STEPS``, from the arrays that ``numpy`` gets."""
        return 0.0

    def expression(self, *values: Any) -> Any:
        """``value``; an operator that has a field of that name defines this instead."""
        return self.value(*values)

    # -- What the family derives from it

    def infer(self) -> Mapping[str, TensorDesc]:
        """Outputs have the sizes of the inputs, and their type unless the support table gives an output types of its own."""
        (first, *_), row = self.inputs(), self.SUPPORT[-1]
        alike = next((tensor for name, tensor in self.tensors(Role.INPUT) if tensor is not None and name not in row.own), first)
        return {
            name: first.with_sizes(first.sizes, row.tensors[name].types[-1] if name in row.own else alike.data_type)
            for name in (field.name for field in self.fields() if field.role is Role.OUTPUT)
        }

    def check(self) -> None:
        """All tensors have the same sizes, and the same type unless the support table gives types to each."""
        own = self.SUPPORT[0].own
        (first, tensor), *others = ((name, tensor) for name, tensor in self.tensors() if tensor is not None)
        for name, other in others:
            if name in self.SINGLE:
                ones = (1,) * tensor.rank
                self.require(other.sizes == ones, f"{name}.sizes", other.sizes, f"{ones}: one element, with the rank of {first}")
            else:
                self.require_same("sizes", name, first)
        alike = [name for name in (first, *(name for name, _ in others)) if name not in own]
        for name in alike[1:]:
            self.require_same("data_type", name, alike[0])

    def layout(self) -> str:
        """All elements are treated alike, so tensors that are transposed in the same way count as packed."""
        if not self.is_strided():
            return "strided"
        operands = self.operands()
        _, steps = collapse(operands[-1].sizes, *(tensor.layout for tensor in operands), reorder=True)
        return "packed" if set(steps) <= {(), (1,)} else "strided"

    def shape_class(self) -> dict[str, int | str]:
        """The number of elements and the layout: rows of any length run alike."""
        return {"elements": self.outputs()[0].element_count, "layout": self.layout()}

    @derived
    def inputs(self) -> tuple[TensorDesc, ...]:
        """The input tensors that are present, in DirectML's order."""
        return tuple(tensor for _, tensor in self.tensors(Role.INPUT) if tensor is not None)

    def is_strided(self) -> bool:
        """Whether each element's place follows from strides, as ``operands`` says. Otherwise ``computation`` is the kernel."""
        return True

    @derived
    def operands(self) -> tuple[TensorDesc, ...]:
        """The tensors that are present, outputs last, each with the sizes of the outputs: single elements are repeated."""
        sizes = self.outputs()[0].sizes
        inputs = [(name, tensor) for name, tensor in self.tensors(Role.INPUT) if tensor is not None]
        same = (_repeated(tensor, sizes) if name in self.SINGLE else tensor for name, tensor in inputs)
        return (*same, *self.outputs())

    def broadcast(self, *names: str) -> tuple[tuple[int, ...], dict[str, TensorDesc]]:
        """The other inputs are broadcast; single elements get the rank."""
        single = {name: one for name, one in self.tensors(Role.INPUT) if name in self.SINGLE and one is not None}
        sizes, found = super().broadcast(*(names or (name for name, _ in self.tensors(Role.INPUT) if name not in single)))
        ones = {name: one.with_sizes([1] * len(sizes)) for name, one in single.items() if one.element_count == 1}
        return sizes, found | ones

    def number(self, attribute: float) -> Any:
        """A FLOAT attribute as a value of the first input's type: rounded for a float, saturating toward zero for an integer."""
        data_type = self.inputs()[0].data_type
        if isinstance(attribute, Word):
            return attribute._replace(rounded="" if data_type is TensorDataType.FLOAT32 else data_type.tvm)
        if not data_type.is_float:
            return T.saturated(attribute, data_type.tvm)
        with np.errstate(over="ignore"):
            return float(data_type.numpy.type(attribute))

    def array(self, attribute: float, dtype: np.dtype[Any]) -> Any:
        """The same for NumPy, as a scalar of a type."""
        return dtype.type(self.number(attribute))

    def require_numbers(self, *names: str) -> None:
        """Refuse attributes that are NaN."""
        for name in names:
            given = getattr(self, name)
            self.require(given == given, name, given, "a number other than NaN")

    def formula(self, shared: Shared = ()) -> Formula:
        """What its kernel computes. FLOAT attributes of floats are passed at launch."""
        words = Words()
        open_ = self._launched(words) if self._computes_in_float32() else self
        return open_._formula(self.operands(), shared)._replace(words=tuple(words.values))

    def words(self) -> int:
        """How many numbers are passed at launch."""
        words = Words()
        if self._computes_in_float32():
            self._launched(words)
        return len(words.values)

    def _computes_in_float32(self) -> bool:
        return bool(self.inputs()) and self.inputs()[0].data_type in FLOATS

    def _launched(self, words: Words) -> Pointwise:
        """A copy with words in place of the FLOAT attributes."""
        changed: dict[str, Any] = {}
        for field in self.fields():
            value = getattr(self, field.name)
            if field.role is Role.FLOAT:
                changed[field.name] = words.add(value)
            elif field.role is Role.FLOATS:
                changed[field.name] = tuple(map(words.add, value))
            elif field.role is Role.SCALAR:
                changed[field.name] = words.add(self.number(value))
            elif field.role is Role.SCALE_BIAS and self._scale_bias() is not None:
                changed[field.name] = tuple(map(words.add, value))
            elif isinstance(value, Pointwise):
                changed[field.name] = value._launched(words)
        return with_fields(self, **changed) if changed else self

    def _formula(self, operands: tuple[TensorDesc, ...], shared: Shared) -> Formula:
        if self._in_bits():
            operands = tuple(map(_as_word, operands))
        count = len(self.inputs())
        inputs, outputs = operands[:count], operands[count:]
        counted = (count,) if self._is_counted() else ()
        if counted:  # without any input, a number that is always 0 says how many lanes there are
            inputs = (*inputs, TensorDesc("uint32", outputs[0].sizes, self.counts(outputs[0].sizes)))

        places = self.positions(shared)
        # Inputs are read at once: with several outputs, the first may overwrite what the next one is made of, and of two inputs in
        # the same memory TVM's simplifier would cancel a difference, which is wrong for NaN, infinities and -0.
        held = bool(shared) and len(shared) + len(outputs) > 2

        def value(*x: Any) -> Values:
            x = tuple(map(T.hold, x)) if held else x
            found = self.expression(*(self._scaled(x) if self.NARROW else map(T.wide, self._scaled(x))))
            found = found if isinstance(found, tuple) else (found,)
            return tuple(T.to(one, tensor.data_type.tvm) for one, tensor in zip(found, outputs, strict=True))

        tensors = [field.name for field in self.fields() if field.role in (Role.INPUT, Role.OUTPUT)]
        attributes = [(f.name, _exactly(getattr(self, f.name))) for f in self.fields() if f.name not in tensors]
        present = "".join(str(int(tensor is not None)) for _, tensor in self.tensors())
        types = " ".join(tensor.data_type.tvm for tensor in (*inputs, *outputs))
        key: tuple[tuple[str, Parameter], ...] = (
            ("operator", self.NAME),
            *attributes,
            ("present", present),
            ("types", types),
            ("shared", sum(places, ())),
        )
        copied = self._in_bits() and type(self).KERNEL is unchanged
        return Formula(inputs, outputs, value, key, self.modules(), places, counted, copied=copied)

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element."""
        with T.function() as f:
            buffers = list(f.tensors(self, shared).values())
            tensors = {name: tensor for name, tensor in self.tensors() if tensor is not None}
            formula = self._formula(tuple(tensors.values()), shared)
            with T.elements(each, formula.outputs[0].sizes) as at:
                places = [self.place(name, tensor, at) for name, tensor in tensors.items()]
                inputs = formula.inputs[: len(self.inputs())]  # without elements' numbers, which are not in memory
                read = [T.reinterpret(b[i], t.data_type.tvm) for b, i, t in zip(buffers, places, inputs, strict=False)]
                numbers = [T.cast(T.dot(at, formula.inputs[i].layout), "uint32") for i in formula.counted]
                results = zip(buffers[len(read) :], places[len(read) :], formula.value(*read, *numbers), strict=True)
                for buffer, place, value in results:
                    T.store(buffer, place, T.reinterpret(value, str(buffer.dtype)))
        return f.result()

    def place(self, name: str, tensor: Any, at: list[Any]) -> Any:
        """The offset of a tensor's element for coordinates of the output."""
        return T.index(0) if name in self.SINGLE else T.dot(at, tensor.layout)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Any, ...]:
        """The operator in NumPy, with the scale and bias, and one rounding at the end."""
        given = [x for x in inputs if x is not None]
        bits = self._in_bits()
        arrays = [x.view(f"u{x.itemsize}") if bits else _wide(x) for x in given]
        if arrays:
            arrays[0] = self.scaled_numpy(arrays[0])
        if self._is_counted():
            sizes = self.outputs()[0].sizes
            each = (np.arange(n).reshape(-1, *(1 for _ in sizes[i + 1 :])) for i, n in enumerate(sizes))
            numbers = sum(n * step for n, step in zip(each, self.counts(sizes), strict=True))
            arrays.append(np.broadcast_to(numbers, sizes).astype(np.uint32))
        with np.errstate(all="ignore") if self.steps() else nullcontext():
            found, error = self.numpy(*arrays), self.error(*arrays)
        found = found if isinstance(found, tuple) else (found,)
        outputs = [tensor.data_type.unpacked.numpy for tensor in self.outputs()]
        if self.steps():
            allowed = ((1 if dtype == np.float16 else self.steps()) for dtype in outputs)
            return tuple(within_steps(x, dtype, n, error) for x, dtype, n in zip(found, outputs, allowed, strict=True))
        return tuple(x.view(dtype) if bits else x.astype(dtype) for x, dtype in zip(map(np.asarray, found), outputs, strict=True))

    # -- ScaleBias

    def of_value(self, value: Any) -> Any:
        """What a single operand becomes, before it is rounded: for operators that are fused into others."""
        return self.expression(*self._scaled((value,)))

    def scaled_numpy(self, x: NumpyArray) -> NumpyArray:
        """The first operand after ScaleBias, in NumPy."""
        scale_bias = self._scale_bias()
        if scale_bias is None:
            return x
        scale, bias = (_number(x.dtype, number) for number in scale_bias)
        return x * scale + bias

    def _scale_bias(self) -> tuple[float, float] | None:
        """The scale and the bias; ``None`` if they change nothing."""
        found: tuple[float, float] | None = getattr(self, "scale_bias", None)
        return None if found is None or tuple(found) == (1, 0) else found

    def _scaled(self, values: Values) -> Values:
        scale_bias = self._scale_bias()
        if scale_bias is None:
            return values
        x = T.wide(values[0])
        scale, bias = (T.like(x, number) if T.is_float(x) else T.hidden(x, number) for number in scale_bias)
        if not T.is_float(x) and T.saturated(scale_bias[0], T.scalar_type(x)) == 0:
            # TVM simplifies the product to 0, whose bits it cannot translate, and an operator on a constant to what it cannot make.
            return (T.hold(bias), *values[1:])
        return (T.wrapped(T.rounded(x * scale) + bias), *values[1:])

    def _is_counted(self) -> bool:
        return self.COUNTED or not self.inputs()

    def _in_bits(self) -> bool:
        return self.BITS and self._scale_bias() is None


def precise(x: Any) -> Any:
    """Floats in higher precision: float32 as float64, and float64 as NumPy's longest float."""
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def unchanged(x: Any) -> Any:
    """The element itself."""
    return x


class Unary(Pointwise):
    """Base class of operators with one input, of the output's type."""

    SHARES: ClassVar[Shared] = (("input_tensor", "output_tensor"),)

    input_tensor: Input
    output_tensor: Output


class Binary(Pointwise):
    """Base class of operators with two inputs."""

    SHARES: ClassVar[Shared] = (("a_tensor", "output_tensor"), ("b_tensor", "output_tensor"))

    a_tensor: Input
    b_tensor: Input
    output_tensor: Output


def _exactly(attribute: Any) -> str:
    """An attribute as text that differs whenever its bits do."""
    if isinstance(attribute, float):
        return struct.pack("<d", attribute).hex()
    if isinstance(attribute, tuple) and not isinstance(attribute, Word):
        return f"({' '.join(map(_exactly, attribute))})"
    if isinstance(attribute, Operator):
        attributes = (_exactly(getattr(attribute, field.name)) for field in attribute.fields())
        return f"{attribute.NAME}({' '.join(attributes)})"
    return str(attribute)


def _as_word(tensor: TensorDesc) -> TensorDesc:
    return dataclasses.replace(tensor, data_type=_WORDS[tensor.data_type.itemsize])


def _repeated(tensor: TensorDesc, sizes: tuple[int, ...]) -> TensorDesc:
    return dataclasses.replace(tensor, sizes=sizes, strides=(0,) * len(sizes))


def _wide(array: NumpyArray) -> NumpyArray:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _number(dtype: np.dtype[Any], number: float) -> Any:
    return dtype.type(number) if dtype.kind == "f" else dtype.type(T.saturated(number, dtype.name))
