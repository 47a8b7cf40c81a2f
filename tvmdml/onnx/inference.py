"""What ONNX's schemas say of a node: the types and shapes of its outputs, and the function that defines it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.onnx.node import Result
from tvmdml.onnx.scopes import kind_of
from tvmdml.onnx.types import dtype_of, is_narrow
from tvmdml.onnx.values import Value
from tvmdml.onnx.versions import schema_version
from tvmdml.operators._onnx_messages import attribute_of, element_of, inferred, messages, schemas, tensor_of, tensor_type
from tvmdml.tensors.sizes import Record, hint, is_open, key_of, texts_for_keys, texts_for_messages

_MOST_DATA = 1024
"""The most elements of a tensor that shapes may follow from."""


_FEW = 8
"""So many elements are shown in messages."""
_PLACES = ("axis", "axes", "batch_axis", "time_axis", "batch_dims", "perm", "scan_input_axes", "scan_output_axes")
"""Attributes that name dimensions: ONNX's inference reads memory by some of them without a check."""


_OF_64_BITS = (("Pad", 3),)
"""Inputs that may be of 32 bits, and that ONNX's inference reads as if they were of 64."""
_DEFINED = {"GroupNormalization": 18}
"""Operators whose version is deprecated because a later one replaced it; models with it are valid."""


_TENSOR = 4
"""ONNX's number of attributes that are tensors."""
_SMALL = (1, 2, 3, 6, 7, 8)
"""ONNX's numbers of attributes that are numbers and texts."""
_BY_SHAPES = {
    "Add", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "ConvTranspose", "Div", "Equal", "Gather", "Gemm", "Identity",
    "InstanceNormalization", "LayerNormalization", "MatMul", "Mul", "Pow", "PRelu", "Relu", "Sigmoid", "Softmax", "Sqrt", "Sub",
    "Transpose", "Where",
}  # fmt: skip
"""Operators whose results follow from types, shapes and attributes alone: elements, such as those of weights, are not looked at."""
_SINGLE = ("bool", "int32", "int64")
"""Types of outputs that have one only."""


class Malformed(Exception):
    """A node does not fit its operator's schema."""


def schema(proto: Any, versions: Mapping[str, int]) -> Any:
    """The schema of a node's operator; ``None`` if ONNX has none."""
    domain = "" if proto.domain == "ai.onnx" else str(proto.domain)
    try:
        return _schema(str(proto.op_type), versions.get(domain, 1), domain)
    except Exception:  # ONNX's own kind of exception
        return None


@functools.lru_cache(1024)
def _schema(kind: str, version: int, domain: str) -> Any:
    """ONNX makes a new object each time."""
    return schemas().get_schema(kind, version, domain)


Known = dict[object, list[Result]]
"""The results of nodes of a model, by all that they follow from: layers are alike."""


def results(
    proto: Any, attributes: Mapping[str, Any], inputs: Sequence[Value | None], versions: Mapping[str, int], known: Known
) -> list[Result]:
    """The types and shapes of a node's outputs, as far as its schema says them.

    Raises:
        Malformed: the node has the wrong inputs or attributes.
    """
    forms = [(one.name, one.type) for one in proto.attribute]
    if kind_of(proto) == "Constant" and forms == [("value", _TENSOR)] and not inputs and len(proto.output) == 1:
        tensor = attributes.get("value")
        if tensor is not None:
            return [Result(dtype_of(tensor.data_type), tuple(tensor.dims))]
    key = _key(proto, inputs, versions)
    if key is None:
        return _results(proto, attributes, inputs, versions)
    if key not in known:
        known[key] = _results(proto, attributes, inputs, versions)
    return known[key]


def _key(proto: Any, inputs: Sequence[Value | None], versions: Mapping[str, int]) -> object:
    """All that the results of a node follow from; ``None`` if that is more than can be a key."""
    if any(one.ref_attr_name or one.type not in _SMALL for one in proto.attribute):
        return None
    if any(one is not None and one.shape is None for one in inputs):
        return None
    attributes = tuple([one.SerializeToString() for one in proto.attribute])
    form = _shape_form if kind_of(proto) in _BY_SHAPES else _form
    forms = tuple([None if one is None else form(one) for one in inputs])
    names = tuple(map(bool, proto.input)), tuple(map(bool, proto.output))
    return str(proto.op_type), str(proto.domain), attributes, names, forms, tuple(versions.items())


def _shape_form(value: Value) -> tuple[object, ...]:
    """The type and shape of a tensor."""
    return None if value.dtype is None else np.dtype(value.dtype), tuple(map(key_of, value.shape or ()))


def _form(value: Value) -> object:
    """All that is known of a tensor, as far as inference may read it."""
    elements = None if value.array is None else value.array.tobytes() if value.array.size <= _MOST_DATA else value.array.size
    sizes = None if value.sizes is None else tuple(map(key_of, value.sizes.reshape(-1).tolist()))
    return *_shape_form(value), elements, sizes


def _results(
    proto: Any, attributes: Mapping[str, Any], inputs: Sequence[Value | None], versions: Mapping[str, int]
) -> list[Result]:
    unknown = [Result(None, None)] * len(proto.output)
    if proto.domain in ("", "ai.onnx"):
        versions = {**versions, "": schema_version(str(proto.op_type), versions.get("", 1))}
    found = schema(proto, versions)
    if found is None or (found.deprecated and found.since_version <= _DEFINED.get(found.name, 0)):
        return unknown
    if not found.min_input <= len(proto.input) <= found.max_input:
        raise Malformed(f"it has {len(proto.input)} inputs; allowed: {found.min_input} to {found.max_input}")
    _check_places(attributes, inputs)
    types, data = {}, {}
    sizes: dict[str, Any] = {}
    node = _plain(proto, attributes, inputs)
    for i, value in enumerate(inputs):
        if value is None:
            continue
        name = node.input[i] = f"x{i}"
        kind = _element(value)
        if kind is None:
            return unknown
        shape = () if found.name == "Range" and value.size == 1 else value.shape  # ONNX Runtime takes vectors, too
        array = value.array
        if (found.name, i) in _OF_64_BITS and array is not None:
            array, kind = array.astype(np.int64), element_of(np.int64)
        types[name] = tensor_type(kind, None if shape is None else [_named(n, sizes) for n in shape])
        few = array is not None and array.size <= _MOST_DATA and array.ndim <= 1 and found.name not in _BY_SHAPES
        if few and array is not None and not is_narrow(value.dtype):
            data[name] = tensor_of(np.ascontiguousarray(array).reshape(shape), name)
    names = [f"y{i}" if name else "" for i, name in enumerate(proto.output)]
    del node.output[:]
    node.output.extend(names)

    def infer() -> list[Result]:
        try:
            made = inferred(found, node, types, data, dict(versions))
        except MemoryError:
            raise
        except Exception as error:  # ONNX does not document its exceptions
            raise Malformed(" ".join(str(error).split())[:300]) from None
        return [_result(made.get(name), sizes) for name in names]

    several = infer()
    if sizes:  # it checks more where sizes are known
        _close(types, sizes)
        data |= {
            f"x{i}": tensor_of(_in_this_case(value), f"x{i}")
            for i, value in enumerate(inputs)
            if value is not None and value.array is None and value.sizes is not None and value.sizes.ndim <= 1
        }
        several = [_confirmed(one, own.shape) for one, own in zip(several, infer(), strict=True)]
    return [Result(_type(found, i, inputs), None) if one.dtype is None else one for i, one in enumerate(several)]


def _confirmed(result: Result, case: tuple[int, ...] | None) -> Result:
    """The result's shape if it is that of the case at hand: onnx 1.23 takes an open size for 0 where it computes with one."""
    if result.shape is not None and (case is None or tuple(map(hint, result.shape)) == case):
        return result
    return result._replace(shape=None, case=case)


def shown(inputs: Sequence[Value | None], record: Record) -> str:
    """What a node is given, in words, if sizes are open."""
    if not record.symbols:
        return ""
    texts = []
    with texts_for_messages():
        for value in inputs:
            if value is None or value.shape is None:
                texts.append("nothing" if value is None else f"{value.dtype}")
                continue
            elements = value.sizes if value.array is None else value.array
            few = elements is not None and elements.ndim == 1 and elements.size <= _FEW
            own = f" of {', '.join(map(str, elements.tolist()))}" if few and elements is not None else ""
            texts.append(f"{value.dtype}[{', '.join(map(str, value.shape))}]{own}")
    case = ", ".join(f"{name}={record.value(record.symbol_terms(name))}" for name in record.symbols)
    return f". It is given {'; '.join(texts)}; with {case}" if texts else f", with {case}"


def _type(found: Any, position: int, inputs: Sequence[Value | None]) -> Any:
    """The type that a schema itself says of an output: the only one, or that of an input; ONNX infers none of some functions."""
    formal = found.outputs[min(position, len(found.outputs) - 1)]
    for other, value in zip(found.inputs, inputs, strict=False):
        if other.type_str == formal.type_str and formal.is_homogeneous and value is not None:
            return value.dtype
    (only, *more) = formal.types
    name = only.removeprefix("tensor(").removesuffix(")")
    return np.dtype(name) if not more and name in _SINGLE else None


def _check_places(attributes: Mapping[str, Any], inputs: Sequence[Value | None]) -> None:
    """The dimensions that attributes name are those that the inputs, or the outputs, may have."""
    tensors = [tensor for one in inputs if one is not None for tensor in one.tensors()]
    rank = max((len(one.shape) for one in tensors if one.shape is not None), default=0)
    for name in _PLACES:
        given = attributes.get(name, ())
        several = [given] if isinstance(given, int) else given
        if isinstance(several, (list, tuple)) and any(isinstance(n, int) and abs(n) > rank + len(several) for n in several):
            raise Malformed(f"its {name} is {given}, for {rank} dimensions")


_BODIES_NOT_USED = (
    "Range",  # a loop with a round for each element, of types that the operator's own rule takes all
    "SequenceMap",  # onnx would read types that are not there, and end the process
)


def body(proto: Any, attributes: Mapping[str, Any], inputs: Sequence[Value | None], versions: Mapping[str, int]) -> Any:
    """The function that defines a node's operator; ``None`` if there is none."""
    found = schema(proto, versions)
    if found is None or found.name in _BODIES_NOT_USED:
        return None
    version = versions.get("" if proto.domain == "ai.onnx" else proto.domain, 1)
    try:
        if found.has_function:
            able = [one for one in found.function_opset_versions if one <= version]
            content = found.get_function_with_opset_version(max(able)) if able else found._function_body
            content = content if isinstance(content, bytes) else content.SerializeToString()
        elif found.has_context_dependent_function:
            types = []
            for value in inputs:
                kind = None if value is None else _element(value)
                one = messages().TypeProto()
                if value is not None and kind is not None:
                    shape = None if value.shape is None else [_named(n, {}) for n in value.shape]
                    one = tensor_type(kind, shape)
                types.append(one.SerializeToString())
            able = [one for one in found.context_dependent_function_opset_versions if one <= version]
            node = _plain(proto, attributes, inputs).SerializeToString()
            if able:
                content = found.get_context_dependent_function_with_opset_version(max(able), node, types)
            else:
                content = found.get_context_dependent_function(node, types)
        else:
            return None
        function = messages().FunctionProto()
        function.ParseFromString(content)
    except MemoryError:
        raise
    except Exception:  # ONNX does not document its exceptions
        return None
    if not len(function.node):
        return None
    for one in found.attributes.values():
        default = messages().AttributeProto.FromString(one._default_value)
        if default.name:
            function.attribute_proto.append(default)
    return function


def _plain(proto: Any, attributes: Mapping[str, Any], inputs: Sequence[Value | None]) -> Any:
    """The node without the inputs that are left out, with the values of attributes that refer to those of a function."""
    node = messages().NodeProto()
    node.CopyFrom(proto)
    node.input[:] = ["" if one is None else name for name, one in zip(proto.input, inputs, strict=False)]
    if any(one.ref_attr_name for one in proto.attribute):
        del node.attribute[:]
        kinds = {one.name: one.type for one in proto.attribute}
        for name, value in attributes.items():
            node.attribute.append(attribute_of(name, value, kinds.get(name, 0)))
    return node


def _element(value: Value) -> int | None:
    """ONNX's number of a value's type."""
    if value.dtype is None:
        return None
    try:
        return element_of(value.dtype)
    except (KeyError, ValueError, TypeError):
        return None


def _close(types: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Put the sizes of the case at hand in the places of those that are open."""
    for kind in types.values():
        for dimension in kind.tensor_type.shape.dim:
            if dimension.dim_param in sizes:
                dimension.dim_value = hint(sizes[dimension.dim_param])


def _in_this_case(value: Value) -> Any:
    assert value.sizes is not None
    return np.array([hint(n) for n in value.sizes.reshape(-1).tolist()], value.dtype).reshape(value.sizes.shape)


def _named(size: Any, sizes: dict[str, Any]) -> int | str:
    """A size, or the name of one that is open."""
    if not is_open(size):
        return int(size)
    with texts_for_keys():
        name = f"{size}"
    sizes[name] = size
    return name


def _result(kind: Any, sizes: Mapping[str, Any]) -> Result:
    """What was inferred; ``sizes`` are those that are open, by their names."""
    if kind is None or not kind.HasField("tensor_type"):
        return Result(None, None)
    tensor = kind.tensor_type
    shape: tuple[int, ...] | None = None
    if tensor.HasField("shape") and all(_is_known(one, sizes) for one in tensor.shape.dim):
        shape = tuple(sizes[one.dim_param] if one.dim_param else int(one.dim_value) for one in tensor.shape.dim)
    return Result(dtype_of(tensor.elem_type), shape)


def _is_known(dimension: Any, sizes: Mapping[str, Any]) -> bool:
    return dimension.dim_param in sizes or (dimension.HasField("dim_value") and dimension.dim_value >= 0)
