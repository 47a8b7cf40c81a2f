"""ONNX's messages and schemas without the rest of the package onnx, and small messages as arrays.

``import onnx`` imports ml_dtypes, which takes the processor half a second: longer than a small network takes from its file to its
first result. So the two modules that models need are loaded by themselves, under their own names. A program that imports the
package afterwards gets the same two: nothing is there twice.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tvmdml.errors import message, safe_repr
from tvmdml.system import at_hand, imported
from tvmdml.tensors.arrays import NumpyArray

_MESSAGES, _SCHEMAS = "onnx.onnx_ml_pb2", "onnx.onnx_cpp2py_export"


class _Loader:
    """The package's own loader, which gives the package the modules that are there already as its attributes."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        """What else it has, such as ``get_data``."""
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> ModuleType:
        """Only makes it: the loader of the module, and from now on of its spec, is the package's own one."""
        spec.loader = self._own
        made = ModuleType(spec.name)
        _bind(made)
        return made

    def exec_module(self, module: Any) -> None:
        """Load it anew: this is the loader only then."""
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)


class _Binder:
    """Finds the package as it would be found without this."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As a finder of modules."""
        if name != "onnx":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec: Any = next((spec for spec in others if spec is not None), None)
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _bind(package: Any) -> None:
    for name in (_MESSAGES, _SCHEMAS):
        setattr(package, name.rpartition(".")[2], sys.modules[name])


def _load() -> None:
    import importlib.util
    from importlib.machinery import PathFinder

    if "onnx" in sys.modules:  # or its import is forbidden
        for name in ("onnx", _MESSAGES, _SCHEMAS):
            importlib.import_module(name)
        return
    package = importlib.util.find_spec("onnx")
    bootstrap: Any = sys.modules["_frozen_importlib"]
    for name in (_MESSAGES, _SCHEMAS):
        spec = None if package is None else PathFinder.find_spec(name, package.submodule_search_locations)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        with bootstrap._ModuleLockManager(name):  # another thread may import the package now
            if name not in sys.modules:
                bootstrap._load_unlocked(spec)
    sys.meta_path.insert(0, _Binder())
    if "onnx" in sys.modules:
        _bind(sys.modules["onnx"])


def _part(name: str) -> Any:
    if sys.modules.get(name) is None or sys.modules.get("onnx", sys) is None:
        imported(_load)
    return sys.modules[name]


def messages() -> Any:
    """The module with ``ModelProto``, ``TensorProto`` and ONNX's other messages.

    Raises:
        ImportError: the package onnx is not installed.
    """
    return _part(_MESSAGES)


def schemas() -> Any:
    """The module with the schemas of operators, ``get_schema``."""
    return _part(_SCHEMAS).defs


# -- Attributes and types

_FIELDS = (
    *("", "f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs"),
    *("sparse_tensor", "sparse_tensors", "tp", "type_protos"),
)
"""Where the value of an attribute is, by the number of its type."""


def attribute_value(attribute: Any) -> Any:
    """The value of an attribute: a list, if it has several; ``None`` if it has no type.

    Raises:
        ValueError: it refers to an attribute of a function.
    """
    if attribute.ref_attr_name:
        raise ValueError(f"the attribute {attribute.name} refers to another one")
    if not attribute.type:
        return None
    field = _FIELDS[attribute.type]
    value = getattr(attribute, field)
    return list(value) if len(field) > 2 and field != "sparse_tensor" else value


def attribute_of(name: str, value: Any, kind: int = 0) -> Any:
    """An ``AttributeProto`` of what ``attribute_value`` returns. ``kind`` is the number of its type, if that is known."""
    value = value.tolist() if isinstance(value, np.ndarray) and value.ndim < 2 else value
    several = isinstance(value, (list, tuple))
    made = messages().AttributeProto(name=name, type=kind or _kind(value))
    field = _FIELDS[made.type]
    if several:
        getattr(made, field).extend([_plain(one) for one in value])
    elif hasattr(value, "SerializeToString"):
        getattr(made, field).CopyFrom(value)
    else:
        setattr(made, field, _plain(value))
    return made


def _kind(value: Any) -> int:
    """The number of the type of an attribute.

    Raises:
        TypeError: there is none for such a value.
    """
    if isinstance(value, (list, tuple)):
        kinds = [5 + _kind(one) for one in value]
        return 6 if 6 in kinds else max(kinds, default=7)
    if isinstance(value, (int, np.integer)):
        return 2
    if isinstance(value, (float, np.floating)):
        return 1
    kind = 3 if isinstance(value, (str, bytes)) else _OF_MESSAGES.get(type(value).__name__)
    if kind is None:
        raise TypeError(
            message("ONNX attribute", safe_repr(value), "a number, a text, bytes, a message of ONNX, or a list of these")
        )
    return kind


_OF_MESSAGES = {"TensorProto": 4, "GraphProto": 5, "SparseTensorProto": 11, "TypeProto": 13}


def _plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else float(value) if isinstance(value, np.floating) else value


def node_of(kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", domain: str = "", **attributes: Any) -> Any:
    """A ``NodeProto``."""
    made = messages().NodeProto(op_type=kind, input=inputs, output=outputs, name=name or None, domain=domain or None)
    made.attribute.extend([attribute_of(key, value) for key, value in attributes.items()])
    return made


def tensor_type(element: int, shape: Sequence[int | str] | None) -> Any:
    """A ``TypeProto``. Sizes that are open have names."""
    made = messages().TypeProto()
    made.tensor_type.elem_type = element
    if shape is not None:
        made.tensor_type.shape.SetInParent()
    for size in shape or ():
        dimension = made.tensor_type.shape.dim.add()
        if isinstance(size, str):
            dimension.dim_param = size
        else:
            dimension.dim_value = size
    return made


def inferred(schema: Any, node: Any, types: dict[str, Any], data: dict[str, Any], versions: dict[str, int]) -> dict[str, Any]:
    """The types of a node's outputs, by their names, as ``onnx.shape_inference.infer_node_outputs`` says them.

    Raises:
        Exception: the node does not fit its schema.
    """
    known = messages()
    texts = ({name: one.SerializeToString() for name, one in several.items()} for several in (types, data))
    made = schema._infer_node_outputs(node.SerializeToString(), *texts, {}, versions, known.IR_VERSION)
    return {name: known.TypeProto.FromString(content) for name, content in made.items()}


# -- Elements

_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "object",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
}
"""NumPy's own types by ONNX's numbers."""
_NARROW = {
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
    27: "float6_e2m3fn",
    28: "float6_e3m2fn",
}
"""Those that the package ml_dtypes has; the package onnx has types of its own for them before 1.19."""
_NUMBERS = {name: number for number, name in (_TYPES | _NARROW).items()}
_STORED = {
    1: ("float_data", "float32"),
    7: ("int64_data", "int64"),
    11: ("double_data", "float64"),
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10), ("int32_data", "int32")),
    **dict.fromkeys((12, 13), ("uint64_data", "uint64")),
}
"""The field of a message that has the elements of a type, as which type."""


@functools.lru_cache(64)
def numpy_type(element: int) -> Any:
    """The NumPy type of an ONNX element type; ``None`` if there is none."""
    if element in _NARROW:
        at_hand("ml_dtypes")
        import ml_dtypes

        return getattr(ml_dtypes, _NARROW[element], None)
    return np.dtype(_TYPES[element]) if element in _TYPES else None


@functools.lru_cache(64)
def element_of(dtype: Any) -> int:
    """ONNX's number of a NumPy type.

    Raises:
        ValueError: it has none.
    """
    kind = np.dtype(dtype)
    number = 8 if kind.kind == "U" else _NUMBERS.get(kind.name)
    if number is None:
        raise ValueError(f"ONNX has no type {kind}")
    return number


def elements(tensor: Any) -> NumpyArray:
    """The elements of a tensor that is whole in its message.

    Raises:
        Exception: it is damaged.
    """
    if tensor.data_type in _STORED and not tensor.HasField("segment"):
        dtype, (field, stored) = np.dtype(_TYPES[tensor.data_type]), _STORED[tensor.data_type]
        if tensor.HasField("raw_data"):
            made: NumpyArray = np.frombuffer(tensor.raw_data, dtype.newbyteorder("<")).astype(dtype, copy=False)
        else:
            made = np.array(getattr(tensor, field), stored)
            made = made.astype(np.uint16).view(dtype) if dtype == np.float16 else made.astype(dtype, copy=False)
    else:
        at_hand("onnx", "onnx.numpy_helper")
        import onnx.numpy_helper

        made = np.asarray(onnx.numpy_helper.to_array(tensor))
    shaped: NumpyArray = made.reshape(tensor.dims)
    return shaped


def tensor_of(array: NumpyArray, name: str = "") -> Any:
    """A ``TensorProto`` with the elements of an array of numbers.

    Raises:
        ValueError: ONNX has no such type.
    """
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return messages().TensorProto(dims=array.shape, data_type=element_of(array.dtype), raw_data=little.tobytes(), name=name or None)
