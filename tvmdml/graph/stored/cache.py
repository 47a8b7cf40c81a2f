"""JSON and arrays in the cache: what plans of models are made of (``cached_plan``).

A plan and a file of data are what ``PlanStore`` keeps. The plan is::

    size        the bytes of the description, u64
    description JSON, compressed: what is kept, and where its arrays are
    arrays      the small ones, each from a multiple of 256 bytes on

A file of data begins with the bytes of its index (u64) and the index, JSON: what identifies each array, and its bytes. The arrays
follow. What one file of a model has, is in no later one: plans of a model share its weights.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.errors import TvmdmlError
from tvmdml.graph.laid import Weights
from tvmdml.graph.stored.array_forms import aligned, array_of, bytes_of, form, laid, natural, places
from tvmdml.system import apart, whole
from tvmdml.system.disk import plans
from tvmdml.system.disk.plans import ALIGNMENT, PlanStore
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvmdml.tensors.arrays import NumpyArray

_SIZE = struct.Struct("<Q")
_SMALL = 2048
"""Constants of less bytes are in the plan itself."""
_INSIDE = -1
"""In place of a file's number: in the plan."""
_WRONG = (OverflowError, MemoryError, TvmdmlError)
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError, struct.error, zlib.error, RecursionError, *_WRONG)
"""The exceptions of reading what another version has written, or what is not whole."""

DataRange = tuple[int, int, int]
"""The number of a file of data, the first byte, and the number of bytes."""


class Holdings:
    """The files of data of one model, and what is in them."""

    def __init__(self, store: PlanStore, model: str = "") -> None:
        """``model`` identifies the model, and what else decides what weights become."""
        self.store, self.model = store, model
        self.names: list[str] = []
        """Of all files that are known."""
        self.place_of: Callable[[NumpyArray], str | None] = lambda array: None
        """Says where in the model's files an array is, if it is whole as it is there."""
        self._contents: dict[str, NumpyArray] = {}
        self._indices: dict[str, dict[str, tuple[int, int]]] = {}
        self._hashed: dict[tuple[int, int], tuple[Any, str]] = {}

    def content(self, name: str) -> NumpyArray:
        """A file of data, mapped.

        Raises:
            KeyError: it is not there any more.
        """
        if name not in self._contents:
            found = self.store.data(name)
            if found is None:
                raise KeyError(name)
            self._contents[name] = found
        return self._contents[name]

    def find(self, digest: str) -> tuple[str, int, int] | None:
        """Where an array is: the file, the first byte and the number of bytes."""
        for name in list(self.names):
            try:
                if name not in self._indices:
                    content = self.content(name)
                    (size,) = _SIZE.unpack_from(content.data)
                    index = json.loads(content[_SIZE.size : _SIZE.size + size].tobytes())
                    self._indices[name] = _placed(index, _SIZE.size + size)
            except DAMAGED:
                self.names.remove(name)
                continue
            if digest in self._indices[name]:
                return name, *self._indices[name][digest]
        return None

    def digest(self, array: NumpyArray) -> str:
        """What is equal for equal bytes: their hash, which is kept of memory that somebody else owns; or their place in a model."""
        if (place := self.place_of(array)) is not None:
            return self._named(place)
        key = array.ctypes.data, array.nbytes
        if (known := self._hashed.get(key)) is not None:
            return known[1]
        found = hashlib.sha256(bytes_of(array)).hexdigest()
        if array.base is not None:
            self._hashed[key] = array, found
        return found

    def digest_of(self, weights: Weights) -> str:
        """The same of a packed weight: it follows from what is packed, and large weights are hashed in the model's file only."""
        return self._named(repr((weights.layout, [(self.digest(array), offset) for array, offset in weights.sources])))

    def _named(self, text: str) -> str:
        return hashlib.sha256(f"{self.model} {text}".encode()).hexdigest()

    def add(self, arrays: Mapping[str, NumpyArray]) -> str | None:
        """Write a file with arrays, by their hashes; returns its name, or ``None`` if that could not be done."""
        sizes = [array.nbytes for array in arrays.values()]
        if not self.store.room_for(sum(sizes)):
            return None
        index = list(zip(arrays, sizes, strict=True))
        text = json.dumps(index).encode()
        name = hashlib.sha256(text).hexdigest()[:40]
        if not self.store.add(name, laid(_SIZE.pack(len(text)) + text, arrays.values(), ALIGNMENT), plans.DATA):
            return None
        self.names.append(name)
        self._indices[name] = _placed(index, _SIZE.size + len(text))
        return name


def _placed(index: Sequence[tuple[str, int]], begin: int) -> dict[str, tuple[int, int]]:
    """The first byte, and the bytes, of each array of a file, behind an index that ends there."""
    sizes = [nbytes for _, nbytes in index]
    return {key: (at, n) for (key, n), at in zip(index, places(aligned(begin, ALIGNMENT), sizes, ALIGNMENT), strict=False)}


class CachedPlan(NamedTuple):
    """What a plan has."""

    described: Mapping[str, Any]
    arrays: Sequence[NumpyArray]


# -- Writing


def keep(
    store: PlanStore, key: str, holdings: Holdings, described: Mapping[str, Any], arrays: Sequence[NumpyArray | Weights] = ()
) -> bool:
    """Write a plan; returns whether that could be done.

    Args:
        store: where.
        key: its name.
        holdings: the model's files of data; there may be one more afterwards.
        described: JSON.
        arrays: arrays that are kept with it.
    """
    data = _Data(holdings)
    try:
        about = {"described": dict(described), "arrays": [data.add(array) for array in arrays]}
    except (OSError, MemoryError):  # a mapped file of weights went away
        return False
    files = data.written()
    if files is None:
        return False
    text = zlib.compress(json.dumps({**about, "places": data.places, "files": files}).encode(), 1)
    return store.add(key, laid(_SIZE.pack(len(text)) + text, data.small, ALIGNMENT))


class _Data:
    """Collects the arrays of a plan."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self.small: list[NumpyArray] = []
        """Those in the plan."""
        self.places: list[tuple[int, int, int]] = []
        """Of each array that was added: the number of the file, and the place there; of a small one its number."""
        self._files: list[str] = []
        self._new: dict[str, NumpyArray] = {}
        self._known: dict[str, int] = {}

    def add(self, given: NumpyArray | Weights) -> list[Any]:
        """The form of an array, or of a packed weight: its place is its number."""
        array: Any = given.buffer if isinstance(given, Weights) else given
        array = array.numpy() if type(array) is DeviceArray else array
        packed = np.ascontiguousarray(array).reshape(array.shape)
        if isinstance(given, Weights) and given.sources:
            digest = self._holdings.digest_of(given)
        else:
            digest = self._holdings.digest(packed)
        if digest not in self._known:
            self._known[digest] = len(self.places)
            self.places.append(self._place(packed, digest))
        return form(packed, self._known[digest])

    def _place(self, array: NumpyArray, digest: str) -> DataRange:
        if array.nbytes < _SMALL:
            self.small.append(array)
            return _INSIDE, len(self.small) - 1, array.nbytes
        found = self._holdings.find(digest)
        if found is None:
            self._new[digest] = array
            return _INSIDE - 1, len(self._new) - 1, array.nbytes
        return self._number(found[0]), found[1], found[2]

    def _number(self, name: str) -> int:
        if name not in self._files:
            self._files.append(name)
        return self._files.index(name)

    def written(self) -> list[str] | None:
        """The files of data, with what none of them had; ``None`` if it could not be written."""
        if self._new:
            name = self._holdings.add(self._new)
            if name is None:
                return None
            new = [self._holdings.find(digest) for digest in self._new]
            for i, (number, at, _) in enumerate(self.places):
                if number < _INSIDE:
                    if (found := new[at]) is None:
                        return None
                    self.places[i] = self._number(found[0]), found[1], found[2]
        return self._files


# -- Reading


def find(store: PlanStore, key: str, holdings: Holdings) -> CachedPlan | None:
    """Read a plan; ``None`` if it, or its data, is not there or not whole.

    Args:
        store: where.
        key: its name.
        holdings: the model's files of data, as far as they are known.
    """
    content = store.find(key)
    if content is None:
        return None

    def read() -> CachedPlan | None:
        with whole():
            return _read(content, holdings)

    try:
        return apart(read)
    except DAMAGED:
        return None


def _read(content: NumpyArray, holdings: Holdings) -> CachedPlan:
    (size,) = _SIZE.unpack_from(content.data)
    end = _SIZE.size + size
    about = json.loads(zlib.decompress(content[_SIZE.size : end].data))
    found_at: list[DataRange] = [tuple(place) for place in about["places"]]
    small = [size for number, _, size in found_at if number == _INSIDE]
    small_at = list(places(aligned(end, ALIGNMENT), small, ALIGNMENT))

    def part(i: int, wanted: int) -> NumpyArray:
        number, at, size = found_at[natural(i)]
        if size != wanted:
            raise ValueError(f"{size} bytes for an array of {wanted}")
        whole, at = (content, small_at[at]) if number == _INSIDE else (holdings.content(about["files"][number]), at)
        if at < 0 or at + size > whole.nbytes:
            raise ValueError(f"{size} bytes at {at} of {whole.nbytes}")
        return whole[at : at + size]

    found = [array_of(each, part, np.dtype) for each in about["arrays"]]
    holdings.names += [name for name in about["files"] if name not in holdings.names]
    return CachedPlan(about["described"], found)
