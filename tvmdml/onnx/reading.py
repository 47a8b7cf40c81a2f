"""Reading ONNX files: the model without its large weights, and the weights as arrays, mapped if they are in other files."""

from __future__ import annotations

import io
import math
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tvmdml.errors import ModelError, TvmdmlError, Unsupported, message, reason, safe_repr
from tvmdml.onnx import bounds, order, weights
from tvmdml.onnx.types import is_narrow
from tvmdml.operators._onnx_messages import elements, messages, numpy_type
from tvmdml.system import inside
from tvmdml.system.disk import mapping
from tvmdml.tensors.arrays import NumpyArray

MOST_BYTES = 1 << 31
"""The limit of a Protocol Buffers message; larger models keep their weights in separate files."""
_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
"""The bits of an element, of types whose elements have no bytes of their own."""
_MOST_RANK = 64


class ReadModel:
    """A model and where it came from."""

    def __init__(self, given: Any, file: BinaryIO | None = None) -> None:
        """Read a path, the bytes of a file, or an ``onnx.ModelProto``.

        Args:
            given: one of these.
            file: the file at the path, where it was opened before; it is closed.

        Raises:
            ModelError: it is not an ONNX model, or asks for more than a model may.
            Unsupported: ONNX is not installed.
        """
        self.folder: Path | None = None
        """Where files with weights may be."""
        self.home: Path | None = None
        """Where they may really be, if they are links."""
        self.name = "model"
        """For messages."""
        if isinstance(given, (str, os.PathLike)) and file is None:
            self._opened(given, None).close()  # a missing file is said before a missing package
        self.messages = known = _messages()
        self._files: dict[tuple[int, int], NumpyArray] = {}
        """The files with weights that were mapped."""
        self._places: dict[tuple[int, int], str] = {}
        """Where weights are in files, by the address and bytes of each."""
        self._apart: dict[int, tuple[Any, NumpyArray]] = {}
        """The bytes of tensors that the message lacks, by the identities of the tensors, which are kept."""
        if isinstance(given, known.ModelProto):
            self.model = known.ModelProto()
            self.model.CopyFrom(given)
            size = self.model.ByteSize()
        else:
            with self._opened(given, file) as opened:
                size = opened.seek(0, os.SEEK_END)
                found = weights.apart(opened, size)
                self.model = self._parsed(self._bytes(opened, 0, size) if found is None else found.message)
                for i, place in ({} if found is None else found.places).items():
                    tensor = self.model.graph.initializer[i]
                    self._apart[id(tensor)] = tensor, self._at(repr(place), self._bytes(opened, *place))
        self._check_names()
        self._check_tensors(size)
        try:
            bounds.check_nodes(Path(self.name), self.model)
        except TvmdmlError as error:
            raise ModelError(str(error)) from None
        order.arrange(self.model, self.error)

    def error(self, given: str, allowed: str, advice: str = "") -> ModelError:
        """An error of this model."""
        return ModelError(message(self.name, given, allowed, advice))

    def _opened(self, given: Any, file: BinaryIO | None) -> BinaryIO:
        if isinstance(given, (bytes, bytearray, memoryview)):
            return io.BytesIO(given)
        if not isinstance(given, (str, os.PathLike)):
            raise self.error(safe_repr(given), "a path, the bytes of a file, or an onnx.ModelProto")
        path = Path(os.fspath(given))
        self.name, self.folder = str(path), path.parent
        try:
            about = path.stat() if file is None else os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size >= MOST_BYTES:
                raise self.error("a folder, a device or a larger file", f"a file of less than {MOST_BYTES >> 20} MiB")
            self.home = path.resolve().parent
            return path.open("rb") if file is None else file
        except (OSError, ValueError) as error:
            raise self.error(f"a file that cannot be read ({reason(error)})", "an ONNX model") from None

    def _bytes(self, file: BinaryIO, start: int, count: int) -> NumpyArray:
        """Bytes of the file, in memory that any type may be read from."""
        try:
            file.seek(start)
            return mapping.copied(file, count)
        except OSError as error:
            raise self.error(f"a file that cannot be read ({reason(error)})", "an ONNX model") from None

    def _at(self, place: str, array: NumpyArray) -> NumpyArray:
        """An array that lies in a file, and as long as this ``ReadModel`` in memory."""
        self._places[array.ctypes.data, array.nbytes] = place
        return array

    def place_of(self, array: NumpyArray) -> str | None:
        """Where in the model's files the bytes of an array are, if it is a weight as it is there."""
        return self._places.get((array.ctypes.data, array.nbytes))

    def _parsed(self, content: bytes | NumpyArray) -> Any:
        model = self.messages.ModelProto()
        try:
            model.ParseFromString(bytes(content))
        except MemoryError:
            raise
        except Exception as error:  # from Protocol Buffers, whose exceptions are not imported here
            said = " ".join(str(error).split())[:200]
            raise self.error(f"content that is not an ONNX model ({said})", "an ONNX model") from None
        if not model.opset_import and not model.graph.node:
            raise self.error("content without a graph", "an ONNX model", "The file is empty, or was cut off.")
        return model

    def _check_names(self) -> None:
        """All names are text: Protocol Buffers gives what is none as bytes."""
        for graph in bounds.graphs(self.model):
            for one in (*graph.initializer, *graph.input, *graph.output):
                self._require_text(one.name)
        functions = [node for one in self.model.functions for node in one.node]
        for function in self.model.functions:
            self._require_text(function.name, function.domain, *function.input, *function.output, *function.attribute)
        for node in bounds.all_nodes([*self.model.graph.node, *functions]):
            attributes = [name for one in node.attribute for name in (one.name, one.ref_attr_name)]
            self._require_text(node.op_type, node.domain, node.name, *node.input, *node.output, *attributes)

    def _require_text(self, *names: Any) -> None:
        for name in names:
            if type(name) is not str:
                raise self.error(f"a name of the bytes {safe_repr(name)}", "text", "The file is damaged.")

    def _check_tensors(self, size: int) -> None:
        """Sizes that the file can hold, before anything is made of them."""
        for tensor in bounds.tensors(self.model):
            count = math.prod(tensor.dims)
            outside = tensor.data_location == self.messages.TensorProto.EXTERNAL
            if len(tensor.dims) > _MOST_RANK or min(tensor.dims, default=1) < 0 or (not outside and count > 4 * size):
                given = f"a tensor {safe_repr(tensor.name)} of sizes {list(tensor.dims[:8])}"
                raise self.error(given, f"as many elements as the file of {size} bytes has", "The file is damaged.")

    # -- Tensors

    def array(self, tensor: Any) -> NumpyArray:
        """The elements of a tensor: mapped, if they are in another file.

        Raises:
            ModelError: the data does not fit the sizes, or is outside of the model's folder.
            Unsupported: NumPy has no such type.
        """
        known_types = self.messages.TensorProto
        name, shape = safe_repr(tensor.name), tuple(tensor.dims)
        dtype = numpy_type(tensor.data_type)
        if dtype is None or np.dtype(dtype).kind == "O":
            known = {number: text for text, number in known_types.DataType.items()}
            raise Unsupported(f"tensor {name} of type {known.get(tensor.data_type, tensor.data_type)}: DirectML has no such type")
        dtype = np.dtype(dtype)
        bits = _BITS.get(dtype.name, 0)
        nbytes = -(-math.prod(shape) * (bits or 8 * dtype.itemsize) // 8)
        if tensor.data_location == known_types.EXTERNAL:
            if not bits:
                return self._mapped(tensor, dtype, shape)
            outside: NumpyArray | None = self._mapped(tensor, np.dtype(np.uint8), (nbytes,))
        else:
            kept, there = self._apart.get(id(tensor), (None, None))
            outside = there if kept is tensor else None
        raw = outside is not None or tensor.HasField("raw_data")
        if raw or is_narrow(dtype):
            if raw:
                content = np.frombuffer(tensor.raw_data if outside is None else outside, np.uint8)
            else:
                content = _words(tensor.int32_data, dtype, bits).view(np.uint8)
            if len(content) != nbytes:
                raise self.error(f"{len(content)} bytes for {name}, {dtype}{list(shape)}", f"{nbytes}")
            if bits:
                return _unpacked(content, dtype, bits, math.prod(shape)).reshape(shape)
            return _native(content.view(dtype).reshape(shape))
        try:
            found = elements(tensor)
        except MemoryError:
            raise
        except Exception as error:  # ONNX does not document its exceptions
            raise self.error(f"damaged data of {name} ({' '.join(str(error).split())[:200]})", f"{dtype}{list(shape)}") from None
        if found.shape != shape:
            raise self.error(f"data of sizes {list(found.shape)} for {name}", f"{dtype}{list(shape)}")
        return found

    def _mapped(self, tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NumpyArray:
        where = {entry.key: entry.value for entry in tensor.external_data}
        location = where.get("location", "")
        nbytes = dtype.itemsize * math.prod(shape)
        if self.folder is None:
            raise self.error(f"bytes, with data of {safe_repr(tensor.name)} in {safe_repr(location)}", "the path of the model")
        allowed, advice = f"files in {str(self.folder.absolute())!r}", "Put them beside the model."
        try:
            offset, length = int(where.get("offset") or 0), int(where.get("length") or nbytes)
            with inside.open_to_read(self.folder, location, self.home) as file:
                about = os.fstat(file.fileno())
                there = about.st_size
                if length == nbytes and there < offset + nbytes and offset >= 0:
                    allowed, advice = f"{offset + nbytes} or more", "The file is truncated: copy it again."
                    raise inside.NotOpened(f"which has {there} bytes")
                if length != nbytes or offset < 0:
                    raise inside.NotOpened(f"of {there} bytes: from {offset} on {length} bytes for {nbytes}")
                if not nbytes:
                    return np.empty(shape, dtype)
                whole = self._files.get(place := (about.st_dev, about.st_ino))
                if whole is None or whole.nbytes < offset + nbytes:
                    whole = self._files[place] = mapping.mapped(file.fileno(), there)
                found = self._at(repr((location, offset, nbytes)), whole[offset : offset + nbytes])
                return _native(found.view(dtype).reshape(shape))
        except inside.NotOpened as error:
            problem = str(error)
        except (ValueError, OverflowError, OSError) as error:
            problem = f"which cannot be mapped ({reason(error)})"
        given = f"data of {safe_repr(tensor.name)} in {safe_repr(location)}, {problem}"
        raise self.error(given, allowed, advice)


def _words(given: Any, dtype: np.dtype[Any], bits: int) -> NumpyArray:
    """The bytes of elements that are numbers of 32 bits in a message: each, or a byte of several; of 6 bits each."""
    words = np.array(given, np.int32)
    if bits == 6:
        shifted = (words[:, None] >> np.arange(bits) & 1).astype(np.uint8)
        return np.packbits(shifted.reshape(-1), bitorder="little")
    return words.astype(f"<u{dtype.itemsize}")


def _unpacked(packed: NumpyArray, dtype: np.dtype[Any], bits: int, count: int) -> NumpyArray:
    """Elements of a few bits, of which the first are the lowest ones."""
    size = math.lcm(bits, 8) // 8  # after so many bytes an element begins with a byte again
    words = packed.reshape(-1, 1)
    if size > 1:
        groups = np.zeros((-(-packed.size // size), size), np.uint32)
        groups.reshape(-1)[: packed.size] = packed
        words = (groups << 8 * np.arange(size, dtype=np.uint32)).sum(1, keepdims=True, dtype=np.uint32)
    places = bits * np.arange(8 * size // bits, dtype=words.dtype)
    codes: NumpyArray = (words >> places & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8, copy=False)
    return codes.view(dtype)


def _native(array: NumpyArray) -> NumpyArray:
    """ONNX stores the low byte first."""
    return array if sys.byteorder == "little" else array.byteswap()


def _messages() -> Any:
    try:
        return messages()
    except ImportError:
        text = message("tvmdml.onnx", "no package onnx", "1.17 or later", "`pip install onnx`.")
        raise Unsupported(text) from None


def opsets(source: Any) -> Iterator[tuple[str, int]]:
    """The versions of the operator sets that a model or function imports."""
    for one in source.opset_import:
        yield bounds.domain_of(one), int(one.version)
