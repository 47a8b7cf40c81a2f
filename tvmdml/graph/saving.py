"""A compiled graph as a file: its plan after all passes, and its constants. Its kernels are in a pack, or in the cache.

A file is, with all numbers little-endian::

    header      32 bytes: magic, format version, 0, bytes of the description, bytes of the arrays
    description JSON: the name, the kind of target, the plan (``written``), the descriptor of each launch, and where arrays are
    arrays      their bytes, each from a multiple of 64 bytes on

Arrays are mapped into memory, not copied. A reader trusts nothing (``saved_plan``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, ModelError, TvmdmlError, Unsupported, message, reason, safe_repr
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.launching import MemorySource
from tvmdml.graph.saved_plan import PackedKey, SavedPlan
from tvmdml.graph.written import ABSENT, Said, place, text, type_of, written
from tvmdml.library import files
from tvmdml.system import at_hand
from tvmdml.system.disk import mapping
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.graph.program import Finished

FORMAT = 3
"""Raised when an older reader would misunderstand a newer file. Graphs in packs have it, too."""
MOST_JSON = 256 << 20  # a file that is not trusted cannot ask for more memory than this
_HEADER = struct.Struct("<8sIIQQ")
_ALIGNMENT = 64  # a cache line: constants are mapped, and kernels read them where they lie
_MOST_RANK = 8  # DirectML's
_NOTHING = Said((), None)
_AGAIN = "Save the graph, or build the pack, again."


class WrittenPlan(NamedTuple):
    """A plan as it is written."""

    described: dict[str, Any]
    """JSON, without the places of arrays."""
    constants: list[NumpyArray]
    arrays: list[NumpyArray]
    """Those of outputs that no kernel computes."""


def save_graph(compiled: CompiledGraph, path: str | os.PathLike[str]) -> None:
    """Write a compiled graph to a file, atomically.

    Raises:
        InvalidArgument: it is not a compiled graph, or the place cannot be written to.
        Unsupported: it is of a pack that has weights only as kernels read them.
        OSError: the file cannot be written.
    """
    if not isinstance(compiled, CompiledGraph):
        raise InvalidArgument(message("save_graph compiled", safe_repr(compiled), "a CompiledGraph, which Graph.compile returns"))
    read = compiled.laid.saved
    plan = read if isinstance(read, SavedPlan) else planned(compiled.parts(), compiled.target)
    if plan.absent:
        given = "a graph of a pack that has weights only as kernels read them"
        raise Unsupported(message("save_graph compiled", given, "one with its weights", "Build the pack with --plain-weights."))
    described, *several = describe(plan)
    arrays = [array for own in several for array in own]
    at = list(_places([array.nbytes for array in arrays]))
    described["arrays"] = [form(array, begin) for array, begin in zip(arrays, at, strict=False)]
    content = json.dumps(described, separators=(",", ":")).encode()
    content += b" " * (-(_HEADER.size + len(content)) % _ALIGNMENT)
    with files.replacing(path) as stream:
        stream.write(_HEADER.pack(files.GRAPH, FORMAT, 0, len(content), at[-1]))
        stream.write(content)
        start = stream.tell()
        for array, begin in zip(arrays, at, strict=False):
            stream.write(b"\0" * (start + begin - stream.tell()))
            stream.write(bytes_of(array))
        stream.write(b"\0" * (start + at[-1] - stream.tell()))


def read(path: str | os.PathLike[str]) -> Saved:
    """A graph that ``save_graph`` wrote. Its arrays stay in the file.

    Raises:
        ModelError: the file cannot be read, or is not such a file.
    """
    with reading(path):
        described, memory = _read(path)
        arrays = [_placed(form, memory) for form in described["arrays"]]
        return Saved(str(path), text(described["name"]), text(described["kind"]), described, arrays)


class Saved(NamedTuple):
    """A graph in a file."""

    path: str
    name: str
    kind: str
    """The kind of target that it is for."""
    described: Mapping[str, Any]
    arrays: Sequence[NumpyArray]

    def plan(self, target: Target) -> SavedPlan:
        """Its plan for a target of this kind.

        Raises:
            ModelError: it is damaged.
            Unsupported: it is for another kind of target.
        """
        if self.kind != target.kind:
            allowed = f"a target of the kind that {self.path} was compiled for: {self.kind}"
            raise Unsupported(message("load_graph target", target.name, allowed, "Save the graph once for each kind."))
        with reading(self.path):
            count = place(self.described["plan"]["constants"], len(self.arrays) + 1)
            plan = SavedPlan(self.described["plan"], self.arrays[count:], self.arrays[:count], target, {})
            assert plan.calls is not None  # they are checked
            return plan


@contextlib.contextmanager
def reading(path: object) -> Iterator[None]:
    """Whatever a damaged or hostile description leads to is a ``ModelError``, which names the path."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"{path}: {reason(error)}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, MemoryError, RecursionError) as error:
        if isinstance(error, TvmdmlError) and not isinstance(error, InvalidArgument):
            raise
        raise ModelError(f"{path} is not a graph: {type(error).__name__}: {error}") from error


# -- Writing


def planned(finished: Finished, target: Target) -> SavedPlan:
    """The plan of a graph for certain sizes, after all passes."""
    at_hand("tvmdml.graph.open_planning", "tvmdml.library.lines", "tvmdml.operators._shared")
    from tvmdml.graph.open_planning import ProgramPlan
    from tvmdml.library import lines
    from tvmdml.operators import _shared
    from tvmdml.tensors.sizes import Record

    plan = ProgramPlan(finished, Record(), target, {}, [])
    whole = written(plan, _NOTHING)
    assert whole is not None, "what is written of certain sizes has no choices of schedules"
    calls = []
    for template, shared in plan.templates():
        desc = template.filled(lambda size: size.own())
        plain = lines.read(lines.of(desc), desc.NAME)
        calls.append([lines.of(plain), _shared.write(plain, shared)])
    read = {argument.source for launching in plan.launchings for argument in launching.arguments}
    constants = [array if MemorySource("constant", i) in read else ABSENT for i, array in enumerate(plan.constants)]
    return SavedPlan({**whole.described, "calls": calls}, whole.arrays, constants, target, {})


def describe(plan: SavedPlan) -> WrittenPlan:
    """What is written of a plan."""
    whole = written(plan, _NOTHING)
    assert whole is not None, "it was read, and so can be written"
    calls = [[group.line, group.in_place] for group in plan.groups]
    described = {"format": FORMAT, "name": plan.name, "kind": plan.target.kind, "plan": {**whole.described, "calls": calls}}
    return WrittenPlan(described, list(plan.constants), whole.arrays)


def form(array: NumpyArray, at: int | None) -> list[Any]:
    """An array in a description."""
    return [array.dtype.str, list(array.shape), at]


def bytes_of(array: NumpyArray) -> memoryview:
    """The elements of an array as they lie in memory."""
    array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def _places(sizes: Sequence[int]) -> Iterator[int]:
    at = 0
    for size in sizes:
        yield at
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    yield at


# -- Reading


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], NumpyArray]:
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(files.GRAPH):
            raise ModelError(f"{path} is not a graph that tvmdml saved.")
        _, version, _, length, rest = _HEADER.unpack(header)
        if version != FORMAT:
            raise of_another_format(path, version)
        if length > MOST_JSON or _HEADER.size + length + rest != size:
            raise ModelError(
                f"{path} has {size} bytes, and says that it has {_HEADER.size + length + rest}: it is damaged or cut off."
            )
        described = json.loads(stream.read(length))
        return described, mapping.mapped(stream.fileno(), size)[_HEADER.size + length :]


def of_another_format(where: object, version: object) -> ModelError:
    """The error for a graph of another version."""
    return ModelError(f"{where} has format {version}; this version of tvmdml reads format {FORMAT}. {_AGAIN}")


def array_of(given: Any, content: Callable[[Any, int], NumpyArray]) -> NumpyArray:
    """An array of a description (``form``); ``content`` finds its bytes.

    Raises:
        ValueError: it is damaged.
    """
    kind, sizes, at = given
    dtype = type_of(kind)
    if type(sizes) is not list or len(sizes) > _MOST_RANK or any(type(n) is not int or not 0 <= n < 1 << 32 for n in sizes):
        raise ValueError(f"sizes {safe_repr(sizes)}")
    size = math.prod(sizes) * dtype.itemsize
    return content(at, size).view(dtype).reshape(sizes) if size else np.empty(sizes, dtype)


def _placed(given: Any, memory: NumpyArray) -> NumpyArray:
    def content(at: Any, size: int) -> NumpyArray:
        if type(at) is not int or at < 0 or at % _ALIGNMENT or at + size > memory.nbytes:
            raise ValueError(f"an array of {size} bytes at {safe_repr(at)} of {memory.nbytes}")
        return memory[at : at + size]

    return array_of(given, content)


def read_packed(plan: Mapping[str, Any], given: Any, content: Callable[[Any, int], NumpyArray]) -> dict[PackedKey, NumpyArray]:
    """The packed weights of a description.

    Raises:
        ValueError, TypeError: they are damaged.
    """
    weights = {}
    count = len(plan["function"][4])
    for layout, sources, at, nbytes in given:
        read = tuple((MemorySource("constant", place(i, plan["constants"])), place(offset, count)) for i, offset in sources)
        if type(nbytes) is not int or nbytes < 0:
            raise ValueError(f"a packed weight of {safe_repr(nbytes)} bytes")
        weights[text(layout), read] = content(at, nbytes)
    return weights
