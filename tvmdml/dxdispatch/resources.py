"""A model's resources: named buffers of bytes, and their initial values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tvmdml.dxdispatch import images
from tvmdml.errors import InvalidArgument, safe_repr
from tvmdml.operators._json.nodes import JsonNode, as_number, shown
from tvmdml.system import inside
from tvmdml.tensors import BYTE_TYPES, TYPE_NAMES, TensorDataType

AnyArray = np.ndarray[Any, np.dtype[Any]]
Buffer = np.ndarray[Any, np.dtype[np.uint8]]

DATA_TYPE_PREFIX = "DML_TENSOR_DATA_TYPE_"
_ELEMENTS: Mapping[str, TensorDataType] = {data_type.name: data_type for data_type in BYTE_TYPES}
"""The types of a buffer's elements. The bytes of a 4-bit tensor are UINT8 or UNKNOWN, each with two elements."""
_DATA_TYPES: Mapping[str, TensorDataType | None] = {**_ELEMENTS, "UNKNOWN": None}
_MAX_COUNT = 2**32 - 1
_CHUNK = 1 << 16
_MAX_DIMENSIONS = 64
"""The most dimensions of a NumPy array."""
_FIELDS = ("initialValues", "initialValuesDataType", "initialValuesOffsetInBytes", "resampleSize", "sizeInBytes", "type")


class Initial(NamedTuple):
    """The initial values of a buffer."""

    data_type: TensorDataType | None
    """The elements' type; ``None`` if there is no single type: UNKNOWN."""
    size: int
    """Bytes."""
    write: Callable[[Buffer], None]
    """Writes exactly that number of bytes."""


class Resource(NamedTuple):
    """The declaration of a buffer."""

    node: JsonNode
    initial: Initial
    offset: int
    """The offset of the initial values, in bytes."""
    size: int
    """Bytes, as declared, or else as needed."""

    @property
    def data_type(self) -> TensorDataType | None:
        """The type in which it is printed and written."""
        return self.initial.data_type

    @property
    def deferred(self) -> bool:
        """Whether it has no size and no values before an ONNX model writes a result to it."""
        return self.initial.size == 0

    @property
    def itemsize(self) -> int:
        """The bytes of an element; 1 if there is no single type."""
        return 1 if self.data_type is None else self.data_type.itemsize

    def elements(self, buffer: Buffer, size: int) -> AnyArray:
        """The first ``size`` bytes as elements."""
        assert self.data_type is not None
        return buffer[: size // self.itemsize * self.itemsize].view(self.data_type.numpy)


def read(node: JsonNode, folder: Path) -> Resource:
    """The resource that a node declares. Data files are read only from inside the folder.

    Raises:
        ModelError: the declaration is invalid.
    """
    node.only(_FIELDS, ignored=("resampleMode",))  # images are always resampled by cubic polynomials
    if kind := node.get("type"):
        kind.choice({"buffer": None})
    named = node.get("initialValuesDataType")
    data_type = named.choice(_DATA_TYPES, DATA_TYPE_PREFIX) if named else None
    initial = _initial(node, node.need("initialValues", "the initial values of the buffer"), data_type, folder)
    offset_node, size_node = node.get("initialValuesOffsetInBytes"), node.get("sizeInBytes")
    offset = offset_node.integer() if offset_node else 0
    if initial.size == 0 and (offset_node or size_node):
        raise node.error("a deferred resource with a size or an offset", "neither", "The result that is written to it decides.")
    size = size_node.integer(1) if size_node else offset + initial.size
    if size < offset + initial.size:
        allowed = f"at least {offset + initial.size}: {initial.size} bytes of initial values at offset {offset}"
        raise (size_node or node).error(f"{size} bytes", allowed, "Leave sizeInBytes out to have it computed.")
    return Resource(node, initial, offset, size)


def allocate(resources: Mapping[str, Resource]) -> dict[str, Buffer]:
    """Buffers for all resources but the deferred ones, with their initial values.

    Raises:
        ModelError: they do not fit in memory, or a data file cannot be read.
    """
    free = _available_memory()
    if sum(r.size for r in resources.values()) > free:
        largest = max(resources.values(), key=lambda r: r.size)
        raise largest.node.error(
            f"{largest.size} bytes", f"{free} bytes for all resources together, the free memory of this machine"
        )
    return {name: _allocate(resource) for name, resource in resources.items() if not resource.deferred}


def _allocate(resource: Resource) -> Buffer:
    try:
        # In words of 8 bytes: aligned for every type, and at least the multiple of 4 bytes to which DirectML rounds tensors up.
        buffer = np.zeros(-(-resource.size // 8), np.uint64).view(np.uint8)
        resource.initial.write(buffer[resource.offset : resource.offset + resource.initial.size])
    except (MemoryError, OSError) as error:
        given = f"{resource.size} bytes, which cannot be allocated or read ({error})"
        raise resource.node.error(given, "a size that fits in memory, and a file that can be read") from None
    return buffer[: -(-resource.size // 4) * 4]


def _available_memory() -> int:
    """The bytes that can be used before the system kills processes; allocating more would seem to work at first."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        if match := re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text()):
            found.append(int(match[1]) << 10)
    with suppress(OSError, ValueError):  # a container's limit; "max" means no limit
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(min(found), 0)


# -- The forms of initial values ----------------------------------------------------------------------------------


def _initial(resource: JsonNode, node: JsonNode, data_type: TensorDataType | None, folder: Path) -> Initial:
    if isinstance(node.value, list):
        return _list(resource, node, data_type)
    if node.value == "deferred":
        return Initial(_known(resource, data_type), 0, lambda view: None)
    if not isinstance(node.value, dict):
        raise node.wrong('a list, an object of one of the forms, or "deferred" for what an ONNX model writes')
    forms = [form for key, form in _FORMS.items() if key in node.value]
    if len(forms) != 1:
        raise node.wrong(f"an object with one of {', '.join(_FORMS)}")
    fields, make = forms[0]
    node.only(fields)
    return make(resource, node, data_type, folder)


def _constant(resource: JsonNode, node: JsonNode, data_type: TensorDataType | None, folder: Path) -> Initial:
    known = _known(resource, data_type)
    count, value = _count(node), _element(node.need("value", _wanted(known)), known)

    def write(view: Buffer) -> None:
        view.view(known.numpy)[:] = value

    return Initial(known, count * known.itemsize, write)


def _sequence(resource: JsonNode, node: JsonNode, data_type: TensorDataType | None, folder: Path) -> Initial:
    known = _known(resource, data_type)
    count = _count(node)
    start, delta = (_element(node.need(name, _wanted(known)), known) for name in ("valueStart", "valueDelta"))

    def write(view: Buffer) -> None:
        """Add the delta repeatedly, rounding to the type each time as DxDispatch does. In chunks, because the sum needs a copy."""
        values = view.view(known.numpy)
        values[0] = start
        with np.errstate(all="ignore"):
            for first in range(0, count, _CHUNK):
                chunk = values[first : first + _CHUNK + 1]  # the last value is the start of the next chunk
                chunk[1:] = delta
                np.add.accumulate(chunk, out=chunk)

    return Initial(known, count * known.itemsize, write)


def _list(resource: JsonNode, node: JsonNode, data_type: TensorDataType | None) -> Initial:
    if not node.value:
        raise node.wrong("a list of at least one value")
    if data_type is None:
        if not isinstance(node.value[0], dict):
            _known(resource, data_type)
        content = b"".join(_typed_element(item) for item in node.items())
        return Initial(None, len(content), _writer(np.frombuffer(content, np.uint8)))
    elements = np.empty(len(node.value), data_type.numpy)
    cast = _cast(data_type)
    with np.errstate(over="ignore"):  # values outside the range of a float type become infinite
        for i, value in enumerate(node.value):
            element = cast(value)
            if element is None:
                raise node.items()[i].wrong(_wanted(data_type))
            elements[i] = element
    return Initial(data_type, elements.nbytes, _writer(elements.view(np.uint8)))


def _typed_element(node: JsonNode) -> bytes:
    node.only(("name", "type", "value"))
    kind = node.need("type", TYPE_NAMES).choice(_ELEMENTS, DATA_TYPE_PREFIX)
    return _element(node.need("value", _wanted(kind)), kind).tobytes()


def _file(resource: JsonNode, node: JsonNode, data_type: TensorDataType | None, folder: Path) -> Initial:
    source = node.need("sourcePath", "the path of a file")
    with opened(source, folder) as file:
        suffix = os.path.splitext(source.text())[1].lower()
        if suffix in images.SUFFIXES:
            return _image(resource, source, file, folder, data_type)
        if suffix == ".npy":
            return _npy(source, file, folder, data_type)
        known, size = _known(resource, data_type), _size(file)
    if size == 0 or size % known.itemsize:
        raise source.error(f"a file of {size} bytes", f"{known.itemsize} bytes for each element, and at least one element")
    return Initial(known, size, lambda view: _fill(view, source, folder, 0))


def _npy(source: JsonNode, file: BinaryIO, folder: Path, data_type: TensorDataType | None) -> Initial:
    wanted = "a .npy file of a type that DirectML has, with at least one element"
    try:
        shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ValueError("it contains Python objects")
        start, size, there = file.tell(), math.prod(shape) * dtype.itemsize, _size(file)
        if size > there - start:
            raise ValueError(f"its header declares {size} bytes of elements, but it contains {there - start}")
    except Exception as error:  # a damaged file can make NumPy raise nearly anything
        raise source.error(f"a file that cannot be read ({type(error).__name__}: {error})", wanted) from None
    try:
        found = TensorDataType.from_numpy(dtype)
    except InvalidArgument:
        raise source.error(f"a file of {dtype}", TYPE_NAMES, "Convert the array first.") from None
    if data_type not in (None, found):
        raise source.error(f"a file of {found.name}", f"{data_type.name}, as in initialValuesDataType")
    if len(shape) > _MAX_DIMENSIONS or min(shape, default=1) < 1:
        raise source.error(f"a file of sizes {safe_repr(shape)}", wanted)

    def write(view: Buffer) -> None:
        if dtype == found.numpy and not is_fortran:
            _fill(view, source, folder, start)
            return
        content = np.empty(size, np.uint8)
        _fill(content, source, folder, start)
        elements = content.view(dtype).reshape(shape, order="F" if is_fortran else "C")
        view.view(found.numpy).reshape(shape)[...] = elements

    return Initial(found, size, write)


def _image(resource: JsonNode, source: JsonNode, file: BinaryIO, folder: Path, data_type: TensorDataType | None) -> Initial:
    known = _known(resource, data_type)
    if not known.is_float:
        raise source.error(f"an image as {known.name}", "an image as FLOAT32, FLOAT16 or FLOAT64: pixels are from 0 to 1")
    sizes = images.sizes_of(file, source, resource.get("resampleSize"))

    def write(view: Buffer) -> None:
        with opened(source, folder) as again:
            view.view(known.numpy)[:] = images.read(again, source, sizes).reshape(-1)

    return Initial(known, math.prod(sizes) * known.itemsize, write)


_HEADERS: Mapping[tuple[int, int], Callable[[BinaryIO], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""By the version of a .npy file. Later versions are for named fields, which DirectML's types do not have."""


def _fill(content: Buffer, source: JsonNode, folder: Path, start: int) -> None:
    with opened(source, folder) as file:
        file.seek(start)
        if file.readinto(content.data) != content.nbytes:  # type: ignore[attr-defined]
            raise OSError("the file became shorter while it was read")


def opened(source: JsonNode, folder: Path) -> BinaryIO:
    """Open the file that a model names, which must be inside the folder.

    Raises:
        ModelError: there is no such file, or it may not be read.
    """
    try:
        return inside.open_to_read(folder, source.text())
    except inside.NotOpened as error:
        wanted = f"a file in {str(folder.absolute())!r}"
        raise source.error(f"{shown(source.value)}, {error}", wanted, "Choose another folder with --input_path.") from None


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


_Form = Callable[[JsonNode, JsonNode, "TensorDataType | None", Path], Initial]
# The field that identifies a form, all fields of the form, and the function that reads it.
_FORMS: Mapping[str, tuple[tuple[str, ...], _Form]] = {
    "value": (("valueCount", "value"), _constant),
    "valueStart": (("valueCount", "valueStart", "valueDelta"), _sequence),
    "sourcePath": (("sourcePath",), _file),
}


# -- Their parts --------------------------------------------------------------------------------------------------


def _known(resource: JsonNode, data_type: TensorDataType | None) -> TensorDataType:
    if data_type is None:
        given = resource.get("initialValuesDataType")
        where = given or resource
        raise where.error("UNKNOWN" if given else "no initialValuesDataType", ", ".join(_ELEMENTS))
    return data_type


def _count(node: JsonNode) -> int:
    return node.need("valueCount", "the number of elements").integer(1, _MAX_COUNT)


def _element(node: JsonNode, data_type: TensorDataType) -> AnyArray:
    found = _cast(data_type)(node.value)
    if found is None:
        raise node.wrong(_wanted(data_type))
    with np.errstate(over="ignore"):
        return np.array(found).astype(data_type.numpy)


def _cast(data_type: TensorDataType) -> Callable[[object], int | float | None]:
    """A function that converts a JSON value to a number of a data type; it returns ``None`` if that is not possible."""
    if not data_type.is_float:
        limits = np.iinfo(data_type.tvm)
        low, high = int(limits.min), int(limits.max)
        return lambda value: value if type(value) is int and low <= value <= high else None

    def cast(value: object) -> float | None:
        found = as_number(value)
        try:
            return None if found is None else float(found)
        except OverflowError:
            return None

    return cast


def _wanted(data_type: TensorDataType) -> str:
    if data_type.is_float:
        return f'a number, "nan", "inf" or "-inf", for {data_type.name}'
    limits = np.iinfo(data_type.tvm)
    return f"an integer from {limits.min} to {limits.max}, for {data_type.name}"


def _writer(content: Buffer) -> Callable[[Buffer], None]:
    def write(view: Buffer) -> None:
        view[:] = content

    return write
