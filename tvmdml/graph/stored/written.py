"""Plans as JSON and arrays, and back: those of the cache (``cached_plan``), of files and of packs (``saved_plan``).

A reader trusts nothing: each number is one of what it counts, each type one of DirectML's, and no launch reads or writes outside
of what a run gives it, as far as sizes and offsets say (``OpenPlan.check``). Reading imports neither operators nor schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.errors import counted
from tvmdml.graph.laid import Picture, Reports
from tvmdml.graph.launching import LaunchArgument, LaunchGroup, Launching, LaunchTensor, MemorySource, PackedKey
from tvmdml.graph.open_plan import OpenPlan
from tvmdml.tensors import TensorDataType
from tvmdml.tensors.sizes.evaluating import GuardedIntegers

if TYPE_CHECKING:
    from tvmdml.graph.laid import Laid
    from tvmdml.targets import Target
    from tvmdml.tensors.arrays import NumpyArray

_TYPES = {kind.numpy.str: kind.numpy for kind in TensorDataType} | {np.dtype(np.bool_).str: np.dtype(np.bool_)}
_LONGEST_TEXT = 1000
MOST = 1 << 24
"""So many constants, groups or pieces a plan may have."""
ABSENT = np.empty(0, np.uint8)
"""In the place of a constant that was not written."""


class Written(NamedTuple):
    """A plan, or a part of one."""

    described: dict[str, Any]
    """JSON."""
    arrays: list[NumpyArray]


class Said(NamedTuple):
    """What is said of a plan's graph, apart from its kernels."""

    lines: Sequence[Sequence[str]]
    picture: Picture | None


# -- Writing


def written(plan: OpenPlan, said: Said) -> Written | None:
    """A plan, without its constants; ``None`` if it cannot be written."""
    arrays: list[NumpyArray] = []

    def place(array: NumpyArray) -> int:
        arrays.append(array)
        return len(arrays) - 1

    try:
        described = {
            "name": plan.name,
            "function": plan.function.written(),
            "groups": len(plan.groups),
            "launchings": [
                [
                    launching.group,
                    launching.title,
                    [[*each.source, *each[1:]] for each in launching.arguments],
                    [int(must) for must in launching.wanted],
                ]
                for launching in plan.launchings
            ],
            "pieces": list(plan.pieces),
            "order": [[i, list(below)] for i, below in plan.order],
            "constants": len(plan.constants),
            "inputs": [
                [node.name, node.shown, node.dtype.str, node.shape, node.strides, node.nbytes, node.source is not None, node.owned]
                for node in plan.inputs
            ],
            "results": [
                [
                    result.dtype.str,
                    result.shape,
                    None if result.source is None else result.source.number,
                    [place(result.copies)] if isinstance(result.copies, np.ndarray) else result.copies,
                ]
                for result in plan.results
            ],
            "arrays": [[array.dtype.str, array.shape, array.strides] for array in plan.arrays],
            "tensors": plan.tensors(),
            "writes": plan.writes(),
            "said": [*said],
        }
    except ValueError:
        return None
    return Written(described, arrays)


def constants_read(plan: OpenPlan) -> list[tuple[int, NumpyArray]]:
    """The constants that launches read, with their numbers."""
    read = {argument.source for launching in plan.launchings for argument in launching.arguments}
    return [(i, array) for i, array in enumerate(plan.constants) if MemorySource("constant", i) in read]


def weights(
    constants: Iterable[tuple[int, NumpyArray]], packed: Iterable[tuple[PackedKey, Any]], arrays: list[Any]
) -> dict[str, Any]:
    """Constants by their numbers, and weights as kernels read them. Their arrays, or ``Weights``, are added to others."""

    def add(array: Any) -> int:
        arrays.append(array)
        return len(arrays) - 1

    return {
        "constants": [[i, add(array)] for i, array in constants],
        "packed": [[layout, [[one.number, at] for one, at in sources], add(array)] for (layout, sources), array in packed],
    }


# -- Reading


class ReadPlan(OpenPlan):
    """A plan that was read."""

    def __init__(
        self,
        described: Mapping[str, Any],
        arrays: Sequence[NumpyArray],
        target: Target,
        arenas: list[Any],
        groups: Sequence[LaunchGroup] | None = None,
    ) -> None:
        """
        Args:
            described: what ``written`` described.
            arrays: the arrays.
            target: where it runs.
            arenas: intermediate memory that plans share.
            groups: of the launches, if they are known.

        Raises:
            Exception: it is damaged.
        """
        function = GuardedIntegers.read(described["function"])
        count = len(function.wanted)
        if groups is None:
            groups = [LaunchGroup() for _ in range(place(described["groups"], MOST))]
        launchings = [_launching(given, described, len(groups), count) for given in described["launchings"]]
        inputs = [
            LaunchTensor(
                text(name),
                text(shown),
                type_of(dtype),
                places(shape, count),
                places(strides, count),
                place(nbytes, count),
                MemorySource("input", i) if reads else None,
                owned=bool(owned),
            )
            for i, (name, shown, dtype, shape, strides, nbytes, reads, owned) in enumerate(described["inputs"])
        ]
        if any(len(node.shape) != len(node.strides) for node in inputs):
            raise ValueError("an input with other strides than dimensions")
        results = [_result(i, given, arrays, count) for i, given in enumerate(described["results"])]
        own = [
            LaunchTensor("", "", type_of(dtype), places(shape, count), places(elements, count), 0, None)
            for dtype, shape, elements in described["arrays"]
        ]
        constants = [ABSENT] * place(described["constants"], MOST)
        self.packed_weights: dict[PackedKey, NumpyArray] = {}
        """Weights as kernels read them."""
        self._said = described["said"]  # read when it is asked for: most loads only run
        self._tensors = [{str(name): str(shown) for name, shown in tensors.items()} for tensors in described["tensors"]]
        self._writes = [list(map(str, names)) for names in described["writes"]]
        pieces = described["pieces"]
        super().__init__(
            text(described["name"]),
            target,
            function,
            groups,
            launchings,
            places(pieces, count),
            [(place(i, len(pieces)), places(below, len(pieces))) for i, below in described["order"]],
            constants,
            (inputs, results, own),
            arenas,
        )
        if function.wanted[:1] != (0,) or sorted(i for i, _ in self.order) != list(range(len(self.pieces))):
            raise ValueError("numbers or pieces that are not there")
        if not len(self._tensors) == len(self._writes) == len(groups):
            raise ValueError(f"the tensors of {len(self._tensors)} launches of {len(groups)}")
        seen: set[int] = set()
        for i, below in self.order:
            if not seen.issuperset(below):
                raise ValueError(f"a piece that lies on {below}")
            seen.add(i)

    def add_weights(self, given: Mapping[str, Any], arrays: Sequence[NumpyArray]) -> None:
        """Add what ``weights`` wrote.

        Raises:
            Exception: it is damaged.
        """
        for layout, sources, number in given["packed"]:
            read = [
                (MemorySource("constant", place(i, len(self.constants))), place(at, len(self.function.wanted))) for i, at in sources
            ]
            self.packed_weights[text(layout), tuple(read)] = arrays[place(number, len(arrays))]
        for i, number in given["constants"]:
            self.constants[place(i, len(self.constants))] = arrays[place(number, len(arrays))]

    def reports(self, laid: Laid) -> Reports:
        """What was said of the graph when it was written. Sizes, and kernels that depend on them, are those of then."""
        titles = [launching.title for launching in self.launchings]
        total = f"{counted(len(titles), 'kernel')}; {laid.temporary} bytes of intermediate results"
        tensors = [self._tensors[launching.group] for launching in self.launchings]
        lines, picture = self._said
        said = [(str(call), str(fate)) for call, fate in lines]
        return Reports(titles, tensors, said, total, None if picture is None else _picture(*picture), self.written())

    def written(self) -> list[list[bool]]:
        """Of each array of each launch whether it is written."""
        return [
            [argument.name in self._writes[launching.group] for argument in launching.arguments] for launching in self.launchings
        ]

    def tensors(self) -> list[dict[str, str]]:
        """The tensors of each group, with the names of sizes."""
        return self._tensors

    def writes(self) -> list[list[str]]:
        """The tensors of each group that are written."""
        return self._writes


def place(value: Any, count: int) -> int:
    """A number below another one.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{value!r} of {count}")
    return value


def places(values: Any, count: int) -> tuple[int, ...]:
    """Several."""
    return tuple([place(value, count) for value in values])


def text(value: Any) -> str:
    """A name.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not str or len(value) > _LONGEST_TEXT:
        raise ValueError(f"a name {str(value)[:100]!r}")
    return value


def type_of(value: Any) -> np.dtype[Any]:
    """The type of an input, an output or a constant.

    Raises:
        ValueError: it is none of DirectML's.
    """
    if type(value) is not str or value not in _TYPES:
        raise ValueError(f"the type {str(value)[:100]!r}")
    return _TYPES[value]


def _picture(name: Any, kernels: Any, edges: Any, results: Any) -> Picture:
    count = len(kernels)
    return Picture(
        str(name),
        list(map(str, kernels)),
        [(place(a, count) if type(a) is int else str(a), place(reader, count), str(shown)) for a, reader, shown in edges],
        [(place(writer + 1, count + 1) - 1, str(shown)) for writer, shown in results],
    )


def _launching(given: Any, described: Mapping[str, Any], groups: int, count: int) -> Launching:
    group, title, arguments, wanted = given
    most = {
        "piece": len(described["pieces"]),
        "constant": described["constants"],
        "array": len(described["arrays"]),
        "input": len(described["inputs"]),
        "output": len(described["results"]),
    }
    if len(wanted) > len(arguments):
        raise ValueError(f"{len(wanted)} conditions of {len(arguments)} arrays")
    own = [
        LaunchArgument(MemorySource(kind, place(number, most[kind])), str(name), place(offset, count), place(size, count))
        for kind, number, name, offset, size in arguments
    ]
    return Launching(place(group, groups), str(title), tuple(own), tuple(map(bool, wanted)))


def _result(i: int, given: Any, arrays: Sequence[NumpyArray], count: int) -> LaunchTensor:
    dtype, shape, source, copies = given
    own = None if source is None else MemorySource("output", place(source, i + 1))
    if isinstance(copies, list):
        copied: Any = arrays[place(copies[0], len(arrays))]
    elif own is None:
        copied = place(copies, i)
    else:
        copied = None
    return LaunchTensor("", "", type_of(dtype), places(shape, count), (), 0, own, copied)
