"""Compiled graphs in the cache, as they run: a plan names the kernels, and where the constants and the packed weights are.

A plan and a file of data are what ``PlanStore`` keeps. The plan is::

    sizes       the bytes of the next two, u64 each
    description JSON, compressed: launches, slots, inputs, outputs, files of data, and what else is kept with the graph
    reports     JSON, compressed: what ``explain``, ``profile`` and ``trace`` say; read when they are called
    constants   the small ones, each from a multiple of 256 bytes on

A file of data begins with the bytes of its index (u64) and the index, JSON: the SHA-256, place and bytes of each array. What one
file of a model has, is in no later one: sizes of a model share its weights. Kernels are those of the cache, by their digests.
Nothing here imports operators, schedules or passes, and reading needs no compiler.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml._whole import apart, at_hand, whole
from tvmdml.arrays.device_array import DeviceArray
from tvmdml.disk import plans, stores
from tvmdml.disk.plans import ALIGNMENT, PlanStore
from tvmdml.errors import TvmdmlError
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.laid import Given, Laid, Reports, Returned, Weights
from tvmdml.kernels import loaded
from tvmdml.targets import Step, Target

if TYPE_CHECKING:
    from tvmdml.arrays import NumpyArray
    from tvmdml.graph.program import Finished

_SIZES = struct.Struct("<QQ")
_SIZE = struct.Struct("<Q")
_SMALL = 2048
"""Constants of less bytes are in the plan itself."""
_INSIDE = -1
"""In place of a file's number: in the plan."""
_WRONG = (OverflowError, MemoryError, TvmdmlError)
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError, struct.error, zlib.error, RecursionError, *_WRONG)
"""The exceptions of reading what another version has written, or what is not whole."""

Place = tuple[int, int, int]
"""The number of a file of data, the first byte, and the number of bytes."""


class Holdings:
    """The files of data of one model, and what is in them."""

    def __init__(self, store: PlanStore, names: Sequence[str] = ()) -> None:
        self.store = store
        self.names = list(names)
        """Of all files that are known."""
        self.weights: MutableMapping[object, Weights] = {}
        """Packed weights on a device, which graphs share."""
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
                    self._indices[name] = {one: (at, nbytes) for one, at, nbytes in index}
            except DAMAGED:
                self.names.remove(name)
                continue
            if digest in self._indices[name]:
                return name, *self._indices[name][digest]
        return None

    def digest(self, array: NumpyArray) -> str:
        """The hash of an array's bytes. That of memory which somebody else owns, such as a model's weights, is kept."""
        key = array.ctypes.data, array.nbytes
        if (known := self._hashed.get(key)) is not None:
            return known[1]
        found = hashlib.sha256(bytes_of(array)).hexdigest()
        if array.base is not None:
            self._hashed[key] = array, found
        return found

    def add(self, arrays: Mapping[str, NumpyArray]) -> str | None:
        """Write a file with arrays, by their hashes; returns its name, or ``None`` if that could not be done."""
        sizes = [array.nbytes for array in arrays.values()]
        if not self.store.room_for(sum(sizes)):
            return None
        length = 0
        while True:  # the index has the places, which depend on its own length
            index = json.dumps([[key, at, n] for key, at, n in zip(arrays, _places(length, sizes), sizes, strict=True)]).encode()
            if (begin := _aligned(_SIZE.size + len(index))) == length:
                break
            length = begin
        name = hashlib.sha256(index).hexdigest()[:40]
        if not self.store.add(name, _laid(_SIZE.pack(len(index)) + index, arrays.values()), plans.DATA):
            return None
        self.names.append(name)
        self._indices[name] = {key: (at, n) for key, at, n in zip(arrays, _places(length, sizes), sizes, strict=True)}
        return name


class Kept(NamedTuple):
    """What a plan has."""

    graph: CompiledGraph | None
    """``None`` if nothing is computed."""
    described: Mapping[str, Any]
    """What else was kept."""
    arrays: Sequence[NumpyArray]


def bytes_of(array: NumpyArray) -> memoryview:
    """The elements of an array as they lie in memory."""
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


# -- Writing


def keep(
    store: PlanStore,
    key: str,
    holdings: Holdings,
    graph: CompiledGraph | None,
    described: Mapping[str, Any],
    arrays: Sequence[NumpyArray] = (),
) -> bool:
    """Write a plan; returns whether that could be done.

    Args:
        store: where.
        key: its name.
        holdings: the model's files of data; there may be one more afterwards.
        graph: what was compiled in this process, without owned inputs; ``None`` if nothing is computed.
        described: JSON that is kept with it.
        arrays: arrays that are kept with it.
    """
    if graph is not None and (graph.laid.plan is None or any(one.owned for one in graph.laid.inputs)):
        return False
    data = _Data(holdings)
    try:
        about = {"described": dict(described), "arrays": [data.add(array) for array in arrays]}
        if graph is not None:
            about["graph"] = _described(graph, data)
    except (OSError, MemoryError):  # a mapped file of weights went away
        return False
    files = data.written()
    if files is None:
        return False
    text = zlib.compress(json.dumps({**about, "places": data.places, "files": files}).encode(), 1)
    said = zlib.compress(json.dumps([] if graph is None else graph.laid.reports()).encode(), 1)
    return store.add(key, _laid(_SIZES.pack(len(text), len(said)) + text + said, data.small))


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

    def add(self, array: NumpyArray) -> list[Any]:
        """The type, shape and number of an array."""
        packed = np.ascontiguousarray(array).reshape(array.shape)
        digest = self._holdings.digest(packed)
        if digest not in self._known:
            self._known[digest] = len(self.places)
            self.places.append(self._place(packed, digest))
        return [packed.dtype.str, list(packed.shape), self._known[digest]]

    def _place(self, array: NumpyArray, digest: str) -> Place:
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


def _described(graph: CompiledGraph, data: _Data) -> dict[str, Any]:
    laid, target = graph.laid, graph.target
    assert laid.plan is not None
    launches: dict[str, int] = {}
    steps = []
    digests = _digests(target)
    for step in laid.plan.steps:
        kernel = step.kernel
        launch = json.dumps([digests(kernel), kernel.name, list(kernel.scalars), [list(one) for one in kernel.temporaries]])
        number = launches.setdefault(launch, len(launches))
        steps.append([number, [n for place in step.places for n in place], list(step.sizes), [int(one) for one in step.wanted]])
    buffers = [one.buffer.numpy() if type(one.buffer) is DeviceArray else one.buffer for one in graph.weights]
    return {
        "name": laid.name,
        "launches": [json.loads(one) for one in launches],
        "steps": steps,
        "slots": laid.slots,
        "arena": [laid.temporary, laid.bound],
        "constants": [data.add(array) for array in laid.constants],
        "packed": [data.add(array) for array in buffers],
        "inputs": [[one.name, one.shown, one.dtype.str, one.shape, one.strides, one.nbytes, one.slot] for one in laid.inputs],
        "outputs": [
            [one.dtype.str, one.shape, one.slot, data.add(one.copies) if isinstance(one.copies, np.ndarray) else one.copies]
            for one in laid.outputs
        ],
    }


def _digests(target: Target) -> Callable[[Any], str]:
    at_hand("tvmdml.kernels.kernel")
    from tvmdml.kernels.kernel import digest

    known: dict[object, str] = {}

    def found(kernel: Any) -> str:
        if kernel.identity not in known:
            known[kernel.identity] = digest(kernel.manifest(target))
        return known[kernel.identity]

    return found


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _places(begin: int, sizes: Sequence[int]) -> Iterator[int]:
    at = begin
    for size in sizes:
        yield at
        at += _aligned(size)


def _laid(head: bytes, arrays: Any) -> Iterator[Any]:
    """The bytes of a file: a head, and arrays from multiples of the alignment on."""
    yield head + bytes(-len(head) % ALIGNMENT)
    for array in arrays:
        yield bytes_of(array)
        yield bytes(-array.nbytes % ALIGNMENT)


# -- Reading


def find(store: PlanStore, key: str, holdings: Holdings, target: Target, finished: Callable[[], Finished]) -> Kept | None:
    """Read a plan; ``None`` if it, its data or one of its kernels is not there or not whole.

    Args:
        store: where.
        key: its name.
        holdings: the model's files of data, as far as they are known.
        target: where it will run.
        finished: makes the graph after all passes, if somebody asks for it.
    """
    content = store.find(key)
    if content is None:
        return None

    def read() -> Kept | None:
        with whole():
            return _read(content, holdings, target, finished)

    try:
        return apart(read)
    except DAMAGED:
        return None


def _read(content: NumpyArray, holdings: Holdings, target: Target, finished: Callable[[], Finished]) -> Kept | None:
    text_size, said_size = _SIZES.unpack_from(content.data)
    said_at = _SIZES.size + text_size
    about = json.loads(zlib.decompress(content[_SIZES.size : said_at].data))
    arrays = _Arrays(content, _aligned(said_at + said_size), about, holdings)
    others = [arrays.read(one) for one in about["arrays"]]
    holdings.names += [name for name in about["files"] if name not in holdings.names]
    if (graph := about.get("graph")) is None:
        return Kept(None, about["described"], others)
    kernels = stores.DiskStore()
    launches = []
    for digest, name, scalars, temporaries in graph["launches"]:
        if (launcher := loaded.stored(kernels, digest, target)) is None:
            return None
        launches.append((target.launch(launcher, _integers(scalars), tuple(map(tuple, temporaries))), name))
    steps = [
        (launches[_index(number)], Step(launches[number][0], _places_of(places), tuple(sizes), tuple(map(bool, wanted))))
        for number, places, sizes, wanted in graph["steps"]
    ]
    packed = [arrays.read(one) for one in graph["packed"]]
    places = [arrays.where(one) for one in graph["packed"]]

    def weights(owned: Mapping[int, Any]) -> list[Weights]:
        if not target.moves:
            return [Weights(array) for array in packed]
        found = []
        for array, place in zip(packed, places, strict=True):
            key = (target.name, place)
            if (known := holdings.weights.get(key)) is None:
                known = holdings.weights[key] = Weights(target.place(array))
            found.append(known)
        return found

    @functools.cache
    def reports() -> Reports:
        found = json.loads(zlib.decompress(content[said_at : said_at + said_size].data))
        titles, tensors, lines, total, dot = found
        return Reports(titles, tensors, [tuple(line) for line in lines], total, dot)

    temporary, bound = graph["arena"]
    laid = Laid(
        graph["name"],
        tuple(_given(*one) for one in graph["inputs"]),
        tuple(_returned(arrays, *one) for one in graph["outputs"]),
        tuple(step for _, step in steps),
        tuple(name for (_, name), _ in steps),
        graph["slots"],
        tuple(arrays.read(one) for one in graph["constants"]),
        tuple(array.nbytes for array in packed),
        temporary,
        bound,
        weights,
        reports,
        finished,
        None,
    )
    _check(laid)
    return Kept(CompiledGraph(laid, target), about["described"], others)


def _places_of(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _integers(scalars: Sequence[int]) -> tuple[int, ...]:
    """Integers of 64 bits: launches in Python pass on what others refuse."""
    struct.pack(f"<{len(scalars)}q", *scalars)
    return tuple(scalars)


def _index(number: int) -> int:
    if number < 0:
        raise ValueError(f"the launch {number}")
    return number


def _check(laid: Laid) -> None:
    """Refuse launches that would write, or read, outside of what a run gives them.

    Raises:
        ValueError: there is one; or an output is none.
    """
    most = [laid.temporary, *(array.nbytes for array in laid.constants), *laid.packed]
    ends = {**dict(enumerate(most)), **{one.slot: one.nbytes for one in laid.inputs if one.slot >= 0}}
    ends |= {one.slot: one.dtype.itemsize * math.prod(one.shape) for one in laid.outputs if one.slot >= 0}
    if set(ends) != set(range(laid.slots)):
        raise ValueError(f"{laid.slots} slots")
    for step in laid.steps:
        if len(step.places) != len(step.sizes):
            raise ValueError(f"{len(step.sizes)} sizes of {len(step.places)} places")
        for (slot, offset), size in zip(step.places, step.sizes, strict=True):
            if offset < 0 or size < 0 or offset + size > ends[slot]:
                raise ValueError(f"bytes {offset} to {offset + size} of {ends[slot]}")
    for i, one in enumerate(laid.outputs):
        if isinstance(one.copies, int) and not 0 <= one.copies < i:
            raise ValueError(f"output {i} copies {one.copies}")


class _Arrays:
    """The arrays of a plan."""

    def __init__(self, content: NumpyArray, begin: int, about: Mapping[str, Any], holdings: Holdings) -> None:
        self._places: list[Place] = [tuple(place) for place in about["places"]]
        self._files: list[str] = about["files"]
        small = [size for number, _, size in self._places if number == _INSIDE]
        self._small = list(_places(begin, small))
        self._content, self._holdings = content, holdings

    def where(self, one: Sequence[Any]) -> tuple[str, int, int]:
        """What identifies the bytes of an array."""
        number, at, size = self._places[one[2]]
        return ("" if number == _INSIDE else self._files[number]), at, size

    def read(self, one: Sequence[Any]) -> NumpyArray:
        dtype, shape = np.dtype(one[0]), tuple(one[1])
        number, at, size = self._places[one[2]]
        if size != dtype.itemsize * math.prod(shape):
            raise ValueError(f"{size} bytes for {dtype}{shape}")
        if not size:
            return np.empty(shape, dtype)
        content, at = (self._content, self._small[at]) if number == _INSIDE else (self._holdings.content(self._files[number]), at)
        if at < 0 or at + size > content.nbytes:
            raise ValueError(f"{size} bytes at {at} of {content.nbytes}")
        found: NumpyArray = content[at : at + size].view(dtype).reshape(shape)
        return found


def _given(name: str, shown: str, dtype: str, shape: list[int], strides: list[int], nbytes: int, slot: int) -> Given:
    return Given(name, shown, np.dtype(dtype), tuple(shape), tuple(strides), nbytes, False, slot, None)


def _returned(arrays: _Arrays, dtype: str, shape: list[int], slot: int, copies: Any) -> Returned:
    array = arrays.read(copies) if isinstance(copies, list) else copies
    return Returned(np.dtype(dtype), tuple(shape), slot, array)
