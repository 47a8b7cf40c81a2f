"""Operators defined by the tests, each difficult in a way that no operator of the package is (yet)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml import AxisDirection, FeatureLevel, TensorDataType
from tvmdml.kernels import tensorir as T
from tvmdml.kernels import tensorir_values as V
from tvmdml.operators import Operator
from tvmdml.operators._contract import (
    Bool,
    Float,
    Floats,
    Input,
    Inputs,
    Int,
    Ints,
    NumpyArray,
    Operators,
    OptionalFloat,
    OptionalInput,
    OptionalOperator,
    OptionalOutput,
    OptionalScaleBias,
    Output,
    Outputs,
    Role,
    Scalar,
    Shared,
    Size,
    Uint,
    Uints,
    defaults,
)
from tvmdml.operators._pointwise import Binary, Pointwise
from tvmdml.operators._support import support

__all__ = ["Act", "EveryRole", "Graded", "Joined", "Less", "Mixed", "MixedByFamily", "Pairs", "Parted", "Pick", "Recoded"]


class Pairs(Operator):
    """The elements of the input beside a table of floats: ``output[i, j] = factors[i]``, and the input's element in the last row.

    Its attributes are floats in a sequence, whose bits (-0.0, NaN payloads) decide the kernel.
    """

    NAME = "SPECIMEN_PAIRS"
    SUPPORT = support("1.0 all r8")

    input_tensor: Input
    output_tensor: Output
    alpha: Float
    factors: Floats

    def computation(self, each: T.Each, shared: Shared = ()) -> Any:
        source, result = self.input_tensor, self.output_tensor
        with T.function() as f:
            tensors = f.tensors(self, shared)
            with T.elements(each, result.sizes) as at:
                offset = T.dot(at, result.layout)
                own = tensors["input_tensor"][T.dot(at[-source.rank :], source.layout)]
                T.store(tensors["output_tensor"], offset, own)
                row = at[-source.rank - 1]
                for i, factor in enumerate((self.alpha, *self.factors)):
                    with T.when(row == T.i64(i)):
                        T.store(tensors["output_tensor"], offset, T.const(factor, result.data_type.tvm))
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        (x,) = inputs
        assert x is not None
        out = np.broadcast_to(x, self.output_tensor.sizes).copy()
        for i, factor in enumerate((self.alpha, *self.factors)):
            out[..., i, :] = factor
        return (out,)


class Act(Operator):
    """An activation with a rule for its attribute, which may be fused into ``EveryRole`` from level 3.0."""

    NAME = "SPECIMEN_ACT"
    SUPPORT = support("1.0 F r8")

    input_tensor: Input
    output_tensor: Output
    alpha: Float
    scale_bias: OptionalScaleBias = None

    def check_attributes(self, level: FeatureLevel) -> None:
        self.require(self.alpha >= 0 or level >= FeatureLevel.LEVEL_6_4, "alpha", self.alpha, "0 or more")

    def infer(self) -> Mapping[str, Any]:
        return {"output_tensor": self.input_tensor}


FUSED = {"SPECIMEN_ACT": "3.0", "ACTIVATION_RELU": "1.0"}


class EveryRole(Operator):
    """A field of each kind that DirectML's structures have."""

    NAME = "SPECIMEN_EVERY_ROLE"
    SUPPORT = support("1.0 all r8")
    FUSES = FUSED

    input_tensor: Input
    other_tensor: OptionalInput = None
    part_tensors: Inputs
    output_tensor: Output
    extra_tensor: OptionalOutput = None
    result_tensors: Outputs
    value_data_type: TensorDataType
    value: Scalar
    count: Uint
    offset: Int
    alpha: Float
    epsilon: OptionalFloat = None
    exact: Bool
    axes: Uints
    strides: Ints
    scales: Floats
    scale_bias: OptionalScaleBias = None
    pooled_size: Size
    direction: AxisDirection
    fused_activation: OptionalOperator = None
    activation_descs: Operators

    def infer(self) -> Mapping[str, Any]:
        return {"output_tensor": self.input_tensor, "result_tensors": (self.input_tensor,)}


TENSOR = {"DataType": "FLOAT32", "Sizes": [2, 3]}
JSON: dict[str, Any] = {
    "InputTensor": TENSOR,
    "PartTensors": [TENSOR, TENSOR],
    "OutputTensor": TENSOR,
    "ResultTensors": [TENSOR],
    "ValueDataType": "DML_TENSOR_DATA_TYPE_FLOAT16",
    "Value": {"UInt16": 0x3800},
    "Count": 7,
    "Offset": -7,
    "Alpha": 0.1,
    "Exact": True,
    "Axes": [0, 1],
    "Strides": [-1, 1],
    "Scales": [0.1, 2],
    "ScaleBias": {"Scale": 0.5, "Bias": 1.9},
    "PooledSize": {"Width": 4, "Height": 5},
    "Direction": "DML_AXIS_DIRECTION_INCREASING",
    "FusedActivation": {"Type": "SPECIMEN_ACT", "Desc": {"Alpha": 1, "ScaleBias": {"Scale": 2, "Bias": -0.0}}},
    "ActivationDescs": [{"Type": "DML_OPERATOR_SPECIMEN_ACT", "Alpha": 2}],
}
"""``EveryRole`` as a model has it."""


# -- Tensors in the same memory -----------------------------------------------------------------------------------


def _mixed(a: Any, b: Any) -> Any:
    """Neither commutative nor idempotent, so that operands in the wrong order, and what is done twice, are seen."""
    return a + a - b


class Mixed(Operator):
    """``a + a - b``, with the default schedule. Either input may be in the output's memory."""

    NAME = "SPECIMEN_MIXED"
    SUPPORT = support("1.0 F r8 · ext D")
    SHARES = (("a_tensor", "output_tensor"), ("b_tensor", "output_tensor"))
    ANY_NAN = True

    a_tensor: Input
    b_tensor: Input
    output_tensor: Output

    def infer(self) -> Mapping[str, Any]:
        return {"output_tensor": self.a_tensor}

    def computation(self, each: T.Each, shared: Shared = ()) -> Any:
        with T.function() as f:
            tensors = f.tensors(self, shared)
            with each(self.output_tensor.element_count) as element:
                at = T.unravel(element, self.output_tensor.sizes)
                a, b = (
                    T.hold(tensors[name][T.dot(at, desc.layout)]) for name, desc in self.tensors(Role.INPUT) if desc is not None
                )
                wide = "float32" if T.type_of(a) == "float16" else T.type_of(a)
                mixed = T.cast(_mixed(T.cast(a, wide), T.cast(b, wide)), T.type_of(a))
                T.store(tensors["output_tensor"], T.dot(at, self.output_tensor.layout), mixed)
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        a, b = (x.astype(np.float32) if x.dtype == np.float16 else x for x in inputs if x is not None)
        return (_mixed(a, b).astype(inputs[0].dtype),)


class MixedByFamily(Binary):
    """The same, with the schedules of the pointwise family."""

    NAME = "SPECIMEN_MIXED_BY_FAMILY"
    SUPPORT = support("1.0 F r8 · ext D")

    def value(self, a: Any, b: Any) -> Any:
        return _mixed(a, b)

    def numpy(self, *arrays: NumpyArray) -> Any:
        return _mixed(*arrays)


class Parted(Pointwise):
    """Two outputs of two inputs: each input may be in the memory of either output, or both in the memory of one."""

    NAME = "SPECIMEN_PARTED"
    SUPPORT = support("1.0 F r8 · ext D")
    SHARES = tuple((source, result) for result in ("first_tensor", "second_tensor") for source in ("a_tensor", "b_tensor"))

    a_tensor: Input
    b_tensor: Input
    first_tensor: Output
    second_tensor: Output

    def value(self, a: Any, b: Any) -> Any:
        return _mixed(a, b), _mixed(b, a)

    def numpy(self, *arrays: NumpyArray) -> Any:
        a, b = arrays
        return _mixed(a, b), _mixed(b, a)


class Joined(Operator):
    """Several inputs in one field. It has no computation."""

    NAME = "SPECIMEN_JOINED"
    SUPPORT = support("1.0 F r8 · ext D")
    SHARES = (("input_tensors", "output_tensor"),)

    input_tensors: Inputs
    output_tensor: Output


# -- Inputs with bounds -------------------------------------------------------------------------------------------


class Pick(Operator):
    """Elements of a vector by their indices; a negative index counts from the end, and one outside gives 0."""

    NAME = "SPECIMEN_PICK"
    SUPPORT = support("1.0 all r1", indices_tensor="1.0 IULW r1")

    input_tensor: Input
    indices_tensor: Input
    output_tensor: Output

    def bounds(self, name: str) -> tuple[int, int] | None:
        length = self.input_tensor.sizes[0]
        return (-length, length - 1) if name == "indices_tensor" else None

    def computation(self, each: T.Each, shared: Shared = ()) -> Any:
        source, indices, result = self.input_tensor, self.indices_tensor, self.output_tensor
        with T.function() as f:
            tensors = f.tensors(self, shared)
            with T.elements(each, result.sizes) as at:
                length = source.sizes[0]
                index = T.let(T.cast(tensors["indices_tensor"][T.dot(at, indices.layout)], "int64"))
                place = T.let(T.Select(index < 0, index + length, index))
                inside = (place >= 0) & (place < length)
                value = tensors["input_tensor"][T.dot([T.Select(inside, place, T.i64(0))], source.layout)]
                T.store(
                    tensors["output_tensor"], T.dot(at, result.layout), T.Select(inside, value, T.const(0, result.data_type.tvm))
                )
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        x, indices = inputs
        assert x is not None
        assert indices is not None
        places = indices.astype(np.int64)
        places = np.where(places < 0, places + len(x), places)
        inside = (places >= 0) & (places < len(x))
        return (np.where(inside, x[np.where(inside, places, 0)], x.dtype.type(0)),)


class Less(Binary):
    """Whether elements are less than others, plus an offset that is not used for anything else: two inputs and a type of its own.

    Args:
        offset: it is added to the first input; the sign of a zero is kept.
    """

    NAME = "SPECIMEN_LESS"
    FUNCTION = "specimen_less"
    SUPPORT = support("1.0 FIU r8", output_tensor="1.0 B r8")
    DEFAULTS = defaults(offset=-0.0)

    offset: Float

    def value(self, a: Any, b: Any) -> Any:
        return V.to(a + V.like(a, self.number(self.offset)) < b, "uint8")

    def numpy(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return np.less(a + a.dtype.type(self.number(self.offset)), b)


# -- 4-bit tensors ------------------------------------------------------------------------------------------------


class Recoded(Operator):
    """Integers in another type: the low bits of the input, of 4-bit types too, with the default schedule."""

    NAME = "SPECIMEN_RECODED"
    SUPPORT = support("1.0 NIU r8")

    input_tensor: Input
    output_tensor: Output

    def computation(self, each: T.Each, shared: Shared = ()) -> Any:
        with T.function() as f:
            tensors = f.tensors(self, shared)
            source, result = self.input_tensor, self.output_tensor

            def value(at: list[Any]) -> Any:
                found = V.load(source, tensors["input_tensor"], T.dot(at, source.layout))
                return found if result.data_type.is_nibble else T.cast(found, result.data_type.tvm)

            V.store_each(each, result, tensors["output_tensor"], value)
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        values = self.input_tensor.unpack(inputs[0])
        return (self.output_tensor.pack(values.astype(self.output_tensor.data_type.numpy)),)


# -- What a class may state for its function ----------------------------------------------------------------------


class Graded(Operator):
    """Elements of a vector by their places, those out of range as 0; and how they were found. A grade may be added to them.

    Args:
        axis_direction: ``"increasing"`` counts places from the first element, ``"decreasing"`` from the last.
    """

    NAME = "SPECIMEN_GRADED"
    FUNCTION = "specimen_graded"
    SUPPORT = support(
        "1.0 F r1",
        indices_tensor="1.0 IU r1",
        output_index_tensor="1.0 uW r1",
        output_flag_tensor="1.0 B r1",
    )
    DEFAULTS = defaults(axis_direction=AxisDirection.INCREASING, factor=1.0)
    DTYPES = defaults(index_dtype="output_index_tensor", flag_dtype="output_flag_tensor")
    RESULTS = ("values", "places", "flags")

    input_tensor: Input
    grade_tensor: OptionalInput = None
    indices_tensor: Input
    output_tensor: Output
    output_index_tensor: Output
    output_flag_tensor: Output
    axis_direction: AxisDirection
    factor: Float

    def infer(self) -> Mapping[str, Any]:
        indices = self.indices_tensor
        return {
            "output_tensor": self.input_tensor.with_sizes(indices.sizes),
            "output_index_tensor": indices.with_sizes(indices.sizes, TensorDataType.UINT32),
            "output_flag_tensor": indices.with_sizes(indices.sizes, TensorDataType.UINT8),
        }

    def bounds(self, name: str) -> tuple[int, int] | None:
        return (0, self.input_tensor.sizes[0] - 1) if name == "indices_tensor" else None

    def computation(self, each: T.Each, shared: Shared = ()) -> Any:
        source, grade, indices, result = self.input_tensor, self.grade_tensor, self.indices_tensor, self.output_tensor
        dtype = source.data_type.tvm
        with T.function() as f:
            tensors = f.tensors(self, shared)
            with T.elements(each, result.sizes) as at:
                length = source.sizes[0]
                place = T.let(T.cast(tensors["indices_tensor"][T.dot(at, indices.layout)], "int64"))
                inside = (place >= 0) & (place < length)
                own = T.Select(inside, place, T.i64(0))
                own = own if self.axis_direction is AxisDirection.INCREASING else length - 1 - own
                value = tensors["input_tensor"][T.dot([own], source.layout)] * T.const(self.factor, dtype)
                if grade is not None:
                    value = value + tensors["grade_tensor"][T.dot([own], grade.layout)]
                for name, found in (
                    ("output_tensor", T.Select(inside, value, T.const(0, dtype))),
                    ("output_index_tensor", T.cast(own, self.output_index_tensor.data_type.tvm)),
                    ("output_flag_tensor", T.cast(inside, self.output_flag_tensor.data_type.tvm)),
                ):
                    T.store(tensors[name], T.dot(at, getattr(self, name).layout), found)
        return f.result()
