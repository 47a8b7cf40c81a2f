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
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import InvalidArgument, ModelError, TvmdmlError, Unsupported, message, reason, safe_repr
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.launching import PackedKey
from tvmdml.graph.open_plan import OpenPlan
from tvmdml.graph.stored.array_forms import Content, array_of, form, laid, places
from tvmdml.graph.stored.saved_plan import SavedPlan
from tvmdml.graph.stored.written import Said, Written, constants_read, text, type_of, weights, written
from tvmdml.library import files
from tvmdml.system import at_hand
from tvmdml.system.disk import mapping
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.graph.program import Finished

FORMAT = 4
"""Raised when an older reader would misunderstand a newer file. Graphs in packs have it, too."""
MOST_JSON = 256 << 20  # a file that is not trusted cannot ask for more memory than this
_HEADER = struct.Struct("<8sIIQQ")
_ALIGNMENT = 64  # a cache line: constants are mapped, and kernels read them where they lie
_AGAIN = "Save the graph, or build the pack, again."
Numbered = Iterable[tuple[int, NumpyArray]]
"""Constants with their numbers."""


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
    described, arrays = described_plan(plan, constants_read(plan), ())
    *at, size = places(0, [array.nbytes for array in arrays], _ALIGNMENT)
    described["arrays"] = list(map(form, arrays, at))
    content = json.dumps(described, separators=(",", ":")).encode()
    content += b" " * (-(_HEADER.size + len(content)) % _ALIGNMENT)
    with files.replacing(path) as stream:
        stream.writelines(laid(_HEADER.pack(files.GRAPH, FORMAT, 0, len(content), size) + content, arrays, _ALIGNMENT))


def read(path: str | os.PathLike[str]) -> Saved:
    """A graph that ``save_graph`` wrote. Its arrays stay in the file.

    Raises:
        ModelError: the file cannot be read, or is not such a file.
    """
    with reading(path):
        described, memory = _read(path)

        def content(at: Any, size: int) -> NumpyArray:
            if type(at) is not int or at < 0 or at % _ALIGNMENT or at + size > memory.nbytes:
                raise ValueError(f"an array of {size} bytes at {safe_repr(at)} of {memory.nbytes}")
            return memory[at : at + size]

        name, kind = text(described["name"]), text(described["kind"])
        return Saved(str(path), name, kind, described, read_arrays(described, content))


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
            plan = SavedPlan(self.described, self.arrays, target)
            if plan.absent:
                raise ValueError(f"no constants {sorted(plan.absent)}")
            plan.check_calls()
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
    calls = []
    for template, shared in plan.templates():
        desc = template.filled(lambda size: size.own())
        plain = lines.read(lines.of(desc), desc.NAME)
        calls.append([lines.of(plain), _shared.write(plain, shared)])
    return SavedPlan(*describe(plan, calls, constants_read(plan), ()), target)


def described_plan(plan: SavedPlan, constants: Numbered, packed: Iterable[tuple[PackedKey, NumpyArray]]) -> Written:
    """What is written of a plan for certain sizes, as ``describe`` says."""
    return describe(plan, [[group.line, group.in_place] for group in plan.groups], constants, packed)


def describe(plan: OpenPlan, calls: Sequence[Any], constants: Numbered, packed: Iterable[tuple[PackedKey, NumpyArray]]) -> Written:
    """What is written of a graph. The writer adds the forms of the arrays, with their places.

    Args:
        plan: its plan.
        calls: the descriptors.
        constants: those that are stored.
        packed: weights that are stored as kernels read them.

    Raises:
        Unsupported: it has choices of schedules that cannot be written.
    """
    whole = written(plan, Said((), None))
    if whole is None:
        raise Unsupported(f"{plan.name}: a choice about its sizes cannot be written.")
    arrays = list(whole.arrays)
    own = weights(constants, packed, arrays)
    return Written(
        {"format": FORMAT, "name": plan.name, "kind": plan.target.kind, "plan": {**whole.described, "calls": calls}, **own}, arrays
    )


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


def read_arrays(described: Mapping[str, Any], content: Content) -> list[NumpyArray]:
    """The arrays of a graph.

    Raises:
        ValueError, TypeError: they are damaged.
    """
    return [array_of(given, content, type_of) for given in described["arrays"]]
