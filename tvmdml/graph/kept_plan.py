"""Open plans in the cache: as JSON and arrays, and back. Reading imports neither the compiler nor operators nor schedules.

A plan is written once. What schedules answer afterwards, for other sizes, is written in parts of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml import finding
from tvmdml.arrays import NumpyArray
from tvmdml.arrays.device_array import DeviceArray
from tvmdml.disk import stores
from tvmdml.errors import counted
from tvmdml.graph.laid import Laid, Reports, Weights
from tvmdml.graph.launching import Answer, Argument, Chosen, Group, Launching, Missing, Source, Tensor
from tvmdml.graph.open_plan import OpenPlan, Wired
from tvmdml.sizes.evaluating import Function
from tvmdml.targets import Launch, Target

if TYPE_CHECKING:
    from tvmdml.graph.program import Finished


class Written(NamedTuple):
    """What is kept."""

    described: dict[str, Any]
    """JSON."""
    arrays: list[NumpyArray]


# -- Writing


def written(plan: OpenPlan) -> Written | None:
    """A plan that was made in this process; ``None`` if it cannot be kept."""
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
                [one.group, one.title, [[*each.source, *each[1:]] for each in one.arguments], [int(must) for must in one.wanted]]
                for one in plan.launchings
            ],
            "pieces": list(plan.pieces),
            "order": [[i, list(below)] for i, below in plan.order],
            "constants": len(plan.constants),
            "inputs": [
                [one.name, one.shown, one.dtype.str, one.shape, one.strides, one.nbytes, one.source is not None]
                for one in plan.inputs
            ],
            "results": [
                [
                    one.dtype.str,
                    one.shape,
                    None if one.source is None else one.source.number,
                    [place(one.copies)] if isinstance(one.copies, np.ndarray) else one.copies,
                ]
                for one in plan.results
            ],
            "arrays": [[one.dtype.str, one.shape, one.strides] for one in plan.arrays],
            "tensors": plan.tensors(),
            "said": [[], ""] if plan.last is None else [*plan.last().reports()[2:5:2]],
        }
    except ValueError:
        return None
    return Written(described, arrays)


def written_part(plan: OpenPlan) -> Written | None:
    """What the cache has not: answers, packed weights, and constants that are read as they are. They count as written.

    ``None`` if they cannot be written.
    """
    arrays: list[NumpyArray] = []

    def place(array: NumpyArray) -> int:
        arrays.append(array)
        return len(arrays) - 1

    answers = []
    for i, group in enumerate(plan.groups):
        for tasks, answer in group.new:
            kernel: Any = getattr(answer, "kernel", None)
            try:
                name, function = finding.name_of(kernel, plan.target), answer.function.written()
            except (AttributeError, ValueError):
                return None
            answers.append([i, tasks, name, answer.name, answer.count, answer.types, answer.packed, function])
    packed, constants = [], []
    for wired in plan.wired():
        if wired.buffers is not None and not wired.is_written:
            for (_, weight), buffer in zip(wired.weights.values(), wired.buffers, strict=True):
                if weight.key not in plan.written_weights:
                    array = buffer.buffer.numpy() if type(buffer.buffer) is DeviceArray else buffer.buffer
                    packed.append([weight.layout, weight.sources, array.dtype.str, place(array)])
                    plan.written_weights.add(weight.key)
            for source in wired.constants:
                if source.kind == "constant" and source not in plan.written_weights:
                    constants.append([source.number, place(plan.constants[source.number])])
                    plan.written_weights.add(source)
            wired.is_written = True
    for group in plan.groups:
        group.new.clear()
    return Written({"answers": answers, "packed": packed, "constants": constants}, arrays)


def has_new(plan: OpenPlan) -> bool:
    """Whether a plan has what the cache has not."""
    return any(group.new for group in plan.groups) or any(not wired.is_written for wired in plan.wired())


# -- Reading


_NOTHING = Function((), (), (), (), ())


class _Stored(Answer):
    """What a schedule chose in another process."""

    def __init__(self, written: Any, count: int, types: Sequence[str], packed: Any, digest: str, name: str) -> None:
        """``written`` is the function: it is read when it is asked for, as most answers are for other sizes."""
        super().__init__(_NOTHING, count, types, packed)
        self._written, self._digest, self._name = written, digest, name
        self._launcher: Any = None

    @functools.cached_property
    def function(self) -> Function:
        """What makes the integers.

        Raises:
            ValueError, TypeError: it is damaged.
        """
        function = Function.read(self._written)
        if len(function.wanted) != self.count + len(self.types):
            raise ValueError(f"{len(function.wanted)} integers of {self.count} and {len(self.types)}")
        return function

    def is_like(self, other: Answer) -> bool:
        """Whether another one says the same."""
        return isinstance(other, _Stored) and (self._digest, self._written) == (other._digest, other._written)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._name

    def launch(self, numbers: tuple[int, ...], target: Target) -> Launch:
        """The launch with these integers.

        Raises:
            Missing: the kernel is in the cache no more.
        """
        if self._launcher is None:
            self._launcher = finding.stored(stores.DiskStore(), self._digest, target)
            if self._launcher is None:
                raise Missing
        return target.launch(self._launcher, numbers[: self.count], self.temporaries(numbers))


class KeptPlan(OpenPlan):
    """A plan that was read."""

    def __init__(
        self,
        described: Mapping[str, Any],
        arrays: Sequence[NumpyArray],
        target: Target,
        arenas: list[Any],
        finish: Callable[[Sequence[int]], Finished],
    ) -> None:
        """
        Args:
            described: what ``written`` described.
            arrays: the arrays.
            target: where it runs.
            arenas: intermediate memory that plans share.
            finish: makes the program for sizes, if somebody asks for it.

        Raises:
            Exception: it is damaged.
        """
        function = Function.read(described["function"])
        count = len(function.wanted)
        launchings = [_launching(one, described, count) for one in described["launchings"]]
        inputs = [
            Tensor(
                str(name),
                str(shown),
                np.dtype(dtype),
                _places(shape, count),
                _places(strides, count),
                _place(nbytes, count),
                Source("input", i) if reads else None,
            )
            for i, (name, shown, dtype, shape, strides, nbytes, reads) in enumerate(described["inputs"])
        ]
        results = [_result(i, one, arrays, count) for i, one in enumerate(described["results"])]
        own = [
            Tensor("", "", np.dtype(dtype), _places(shape, count), _places(elements, count), 0, None)
            for dtype, shape, elements in described["arrays"]
        ]
        constants = [_ABSENT] * _place(described["constants"], 1 << 24)
        self._finish, self._said = finish, described["said"]
        self._tensors = [{str(name): str(text) for name, text in tensors.items()} for tensors in described["tensors"]]
        self._buffers: dict[object, NumpyArray] = {}
        super().__init__(
            str(described["name"]),
            target,
            function,
            [Group() for _ in range(_place(described["groups"], 1 << 24))],
            launchings,
            _places(described["pieces"], count),
            [(_place(i, len(described["pieces"])), _places(below, len(described["pieces"]))) for i, below in described["order"]],
            constants,
            (inputs, results, own),
            arenas,
        )
        if function.wanted[:1] != (0,) or sorted(i for i, _ in self.order) != list(range(len(self.pieces))):
            raise ValueError("numbers or pieces that are not there")
        seen: set[int] = set()
        for i, below in self.order:
            if not seen.issuperset(below):
                raise ValueError(f"a piece that lies on {below}")
            seen.add(i)

    def add_part(self, part: Mapping[str, Any], arrays: Sequence[NumpyArray]) -> None:
        """Add answers and packed weights.

        Raises:
            Exception: they are damaged.
        """
        count = len(self.function.wanted)
        for group, tasks, digest, name, scalars, types, packed, function in part["answers"]:
            own = [
                (str(each), str(layout), _place(nbytes, 1 << 62), tuple(map(str, names))) for each, layout, nbytes, names in packed
            ]
            count_of = _place(scalars, 1 << 16)
            answer = _Stored(function, count_of, list(map(str, types)), own, str(digest), str(name))
            own_group = self.groups[_place(group, len(self.groups))]
            if not any(answer.is_like(other) for other in own_group.answers.get(tasks, ())):
                own_group.add(_place(tasks, 1 << 24), answer)
        for layout, sources, dtype, number in part["packed"]:
            key = str(layout), tuple((_place(i, len(self.constants)), _place(offset, count)) for i, offset in sources)
            self._buffers[key] = arrays[_place(number, len(arrays))].view(np.dtype(dtype))
        for i, number in part["constants"]:
            self.constants[_place(i, len(self.constants))] = arrays[_place(number, len(arrays))]
        for one in self.groups:
            one.new.clear()

    def check_wiring(self, wired: Wired) -> None:
        """Refuse what the cache has not whole.

        Raises:
            Missing: a constant that is read as it is was not kept.
        """
        if any(source.kind == "constant" and self.constants[source.number] is _ABSENT for source in wired.constants):
            raise Missing

    def packed(self, wired: Wired, chosen: Sequence[Chosen]) -> list[Weights]:
        """The packed weights.

        Raises:
            Missing: the cache has not all of them.
        """
        found = []
        for key, (_, weight) in wired.weights.items():
            array = self._buffers.get(key)
            if array is None or array.nbytes != weight.nbytes:
                raise Missing
            found.append(Weights(self.target.place(array) if self.target.moves else array))
        return found

    def finished(self, values: Sequence[int]) -> Finished:
        """The program for sizes, after all passes."""
        return self._finish(values)

    def reports(self, laid: Laid) -> Reports:
        """What was said of the graph when it was kept. Sizes, and kernels that depend on them, are those of then."""
        titles = [launching.title for launching in self.launchings]
        lines = [(str(call), str(fate)) for call, fate in self._said[0]]
        total = f"{counted(len(titles), 'kernel')}; {laid.temporary} bytes of intermediate results"
        tensors = [self._tensors[launching.group] for launching in self.launchings]
        return Reports(titles, tensors, lines, total, str(self._said[1]))

    def tensors(self) -> list[dict[str, str]]:
        """The tensors of each group, with the names of sizes."""
        return self._tensors


_ABSENT = np.empty(0, np.uint8)


def _place(value: Any, count: int) -> int:
    """A number below another one.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{value!r} of {count}")
    return value


def _places(values: Any, count: int) -> tuple[int, ...]:
    return tuple([_place(value, count) for value in values])


def _launching(one: Any, described: Mapping[str, Any], count: int) -> Launching:
    group, title, arguments, wanted = one
    most = {
        "piece": len(described["pieces"]),
        "constant": described["constants"],
        "array": len(described["arrays"]),
        "input": len(described["inputs"]),
        "output": len(described["results"]),
    }
    if len(wanted) > len(arguments):
        raise ValueError(f"{len(wanted)} conditions of {len(arguments)} arrays")
    found = [
        Argument(Source(kind, _place(number, most[kind])), str(name), _place(offset, count), _place(size, count))
        for kind, number, name, offset, size in arguments
    ]
    return Launching(_place(group, described["groups"]), str(title), tuple(found), tuple(map(bool, wanted)))


def _result(i: int, one: Any, arrays: Sequence[NumpyArray], count: int) -> Tensor:
    dtype, shape, source, copies = one
    own = None if source is None else Source("output", _place(source, i + 1))
    if isinstance(copies, list):
        copied: Any = arrays[_place(copies[0], len(arrays))]
    elif own is None:
        copied = _place(copies, i)
    else:
        copied = None
    return Tensor("", "", np.dtype(dtype), _places(shape, count), (), 0, own, copied)
