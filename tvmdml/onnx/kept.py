"""``Kept``: what the cache has of one model: its inputs and outputs, and a plan for each combination of sizes.

All is found by the hash of the model's files, and of what decides about plans (``graph.surroundings``). A changed file has another
hash, and so other plans. What was compiled is kept only if the files still have that hash afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml._whole import at_hand
from tvmdml.arrays import NumpyArray
from tvmdml.disk.plans import PlanStore
from tvmdml.graph import kept
from tvmdml.graph.surroundings import key_of, surroundings
from tvmdml.onnx.content import Content
from tvmdml.onnx.counting import COUNTING
from tvmdml.onnx.following import Following, Next, Rest
from tvmdml.onnx.kinds import Kind
from tvmdml.onnx.looping import Looped, Stacked
from tvmdml.onnx.own_operators import own_operators_key
from tvmdml.onnx.running import About, AfterGraph, Argument, Ready
from tvmdml.onnx.session import ModelMetadata
from tvmdml.onnx.tail import Counting, HostNode, Tail
from tvmdml.onnx.types import is_narrow, named
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvmdml.graph.kept_plan import KeptPlan
    from tvmdml.graph.open_plan import OpenPlan
    from tvmdml.graph.program import Finished

Shapes = Mapping[str, tuple[int, ...]]
Decided = Mapping[str, NumpyArray]


class Header(NamedTuple):
    """What is known of a model without reading it."""

    about: About
    deciding: frozenset[str]
    """The inputs whose elements decide how it is computed, as far as was seen."""


class Kept:
    """The cache's entries of a model. ``of`` makes it."""

    def __init__(
        self, content: Content, around: str, own: str, options: tuple[str, str], sizes: Mapping[str, int], target: Target
    ) -> None:
        """Not public."""
        self.content = content
        self._target, self._around, self._own, self._options = target, around, own, options
        self._key = key_of("model", around, own, *options, content.digest, dict(sizes))
        self._others = ""
        self._store = PlanStore()
        self._holdings = kept.Holdings(self._store)
        self._header: Header | None = None
        self._parts: dict[str, int] = {}
        """So many parts each recording has at least."""

    @classmethod
    def of(cls, given: Any, sizes: Mapping[str, int], target: Target, fallback: str = "", accuracy: str = "") -> Kept | None:
        """Of a path, or bytes; ``None`` for anything else, for what cannot be read, and where no plans are kept.

        Args:
            given: as for ``load``.
            sizes: as for ``load``.
            target: where it will run.
            fallback: the name of the library that runs other nodes.
            accuracy: as for ``load``.
        """
        around, own = surroundings(target), own_operators_key()
        if not isinstance(given, (str, os.PathLike, bytes)) or around is None or own is None:
            return None
        if any(type(name) is not str or not isinstance(n, (int, np.integer)) for name, n in sizes.items()):
            return None
        try:
            return cls(Content(given), around, own, (fallback, accuracy), {name: int(n) for name, n in sizes.items()}, target)
        except (OSError, ValueError, TypeError):
            return None

    # -- The model

    def header(self) -> Header | None:
        """What is kept of the model itself."""
        content = self._store.find(self._key)
        if content is None:
            return None
        with contextlib.suppress(*kept.DAMAGED):
            found = json.loads(content.tobytes())
            inputs, outputs, defaults = ([_argument(*one) for one in found[kind]] for kind in ("inputs", "outputs", "defaults"))
            about = About(inputs, outputs, ModelMetadata(*found["metadata"]), tuple(found["elsewhere"]), defaults)
            if not self._knows(about):
                return None
            self._holdings.names[:] = found["data"]
            self._header = Header(about, frozenset(found["deciding"]))
            return self._header
        return None

    def keep_header(self, about: About, deciding: frozenset[str]) -> None:
        """Keep it. The files with weights are hashed here, if they were not."""
        if self._header is None and not self._knows(about):
            return
        described = {
            "inputs": [_written(one) for one in about.inputs],
            "outputs": [_written(one) for one in about.outputs],
            "defaults": [_written(one) for one in about.defaults],
            "metadata": list(about.metadata),
            "elsewhere": list(about.elsewhere),
            "deciding": sorted(deciding),
            "data": self._holdings.names,
        }
        try:
            content = json.dumps(described).encode()
        except (TypeError, ValueError):  # what it says of itself is no text: Protocol Buffers gives bytes
            return
        self._header = Header(about, deciding)
        self._store.add(self._key, [content])

    def _knows(self, about: About) -> bool:
        """Hash the files with weights; returns whether all can be read."""
        others = self.content.others(about.elsewhere)
        self._others = others or ""
        return others is not None

    # -- Recordings

    def recordings(self, pattern: Hashable) -> list[str]:
        """The names of the recordings of a pattern."""
        found = self.find_part(f"recordings {pattern!r}")
        return [] if found is None else names_of(found.described.get("names"))

    def recording(
        self, name: str, arenas: list[Any], finish: Callable[[Sequence[int]], Finished], following: Following, outputs: int | None
    ) -> tuple[KeptPlan, Ready] | None:
        """A recording without its parts, and what is the same for all sizes; ``None`` if it is not there, or not whole.

        Args:
            name: its own.
            arenas: the memory that plans share.
            finish: makes the program for sizes.
            following: the stages that follow.
            outputs: how many it computes; ``None`` for those of the model.
        """
        at_hand("tvmdml.graph.kept_plan")
        from tvmdml.graph.kept_plan import KeptPlan

        found = self.find_part(name)
        if found is None:
            return None
        with contextlib.suppress(*kept.DAMAGED):
            about = found.described
            plan = KeptPlan(about["plan"], found.arrays, self._target, arenas, finish)
            known = {_index(i): found.arrays[_index(number)] for i, number in about["known"]}
            reads, lengths = tuple(map(str, about["reads"])), tuple(about["lengths"])
            if self._header is None or not all(n is None or type(n) is int for n in lengths):
                return None
            tail = None if about["tail"] is None else _tail(about["tail"], found.arrays, following)
            ready = Ready(None, reads, known, tail, lengths)
            outputs = len(self._header.about.outputs) if outputs is None else outputs
            given = ready.count(outputs) - len(known) + (0 if tail is None else tail.tensors - len(tail.makes))
            later = () if tail is None else tail.makes
            if len(lengths) not in (0, outputs) or len(plan.results) != given:
                return None
            if len({*known, *later}) != len(known) + len(later) or not {*known, *later} <= set(range(ready.count(outputs))):
                return None
            return plan, ready
        return None

    def parts(self, name: str) -> Iterator[kept.Kept]:
        """The answers and weights of a recording: a part for each time that something was new."""
        for i in itertools.count():
            if (part := self.find_part(f"{name} {i}")) is None:
                return
            self._parts[name] = i + 1
            yield part

    def keep_recording(self, pattern: Hashable, plan: OpenPlan, ready: Ready) -> str | None:
        """Keep a recording, or what is new in it; returns its name, or ``None`` if it cannot be kept."""
        at_hand("tvmdml.graph.written")
        from tvmdml.graph.written import Said, written

        said = Said((), "") if plan.last is None else Said(*plan.last().reports()[2:5:2])
        if (whole := written(plan, said)) is None:
            return None
        known = [[i, len(whole.arrays) + k] for k, i in enumerate(ready.known)]
        described: dict[str, Any] = {
            "plan": whole.described,
            "reads": list(ready.inputs),
            "known": known,
            "lengths": list(ready.lengths),
        }
        arrays = [*whole.arrays, *ready.known.values()]
        described["tail"] = None if ready.tail is None else _written_tail(ready.tail, arrays)
        if ready.tail is not None and described["tail"] is None:
            return None
        named: dict[str, Any] = {**described, "plan": {**whole.described, "said": None}}  # what is said is of the first sizes
        name = key_of("recording", repr(pattern), json.loads(json.dumps(named)), [array.tobytes().hex() for array in arrays])
        names = self.recordings(pattern)
        if self.find_part(name) is None and not self.keep_part(name, described, arrays):
            return None
        if name not in names:
            self.keep_part(f"recordings {pattern!r}", {"names": [*names, name]})
        return name if self.keep_answers(name, plan) else None

    def keep_answers(self, name: str, plan: OpenPlan) -> bool:
        """Keep what is new in a recording that is kept; returns whether that could be done."""
        at_hand("tvmdml.graph.kept_plan")
        from tvmdml.graph import kept_plan

        part = kept_plan.written_part(plan)
        numbers = itertools.count(self._parts.get(name, 0))
        number = next(i for i in numbers if self._store.find(self._part(f"{name} {i}")) is None)
        self._parts[name] = number
        return part is not None and self.keep_part(f"{name} {number}", part.described, part.arrays)

    def find_part(self, name: str) -> kept.Kept | None:
        """Something else of the model, by its name."""
        if own_operators_key() != self._own:
            return None
        return kept.find(self._store, self._part(name), self._holdings)

    def keep_part(self, name: str, described: Mapping[str, Any], arrays: Sequence[NumpyArray] = ()) -> bool:
        """Keep something else, under the same conditions as a plan; returns whether that could be done."""
        if self._header is None or own_operators_key() != self._own or surroundings(self._target) != self._around:
            return False
        if not self.content.is_unchanged():
            return False
        before = len(self._holdings.names)
        done = kept.keep(self._store, self._part(name), self._holdings, described, arrays)
        if done and len(self._holdings.names) != before:
            self.keep_header(*self._header)
        return done

    def _part(self, name: str) -> str:
        return key_of("part", self._around, self._own, *self._options, self.content.digest, self._others, name)


def _written_tail(tail: AfterGraph, arrays: list[NumpyArray]) -> dict[str, Any] | None:
    """A tail as JSON, and arrays that are added to others; ``None`` if it has a node that is converted in each run."""
    assert isinstance(tail, Tail)
    host = [_written_node(node) for node in tail.host]
    if None in host or not all(isinstance(array, np.ndarray) for array in tail.known.values()):
        return None
    known = [[name, len(arrays) + i] for i, name in enumerate(tail.known)]
    arrays += tail.known.values()
    stage = None if tail.stage is None else _written_stage(tail.stage)
    makes = list(tail.makes.items())
    return {"reads": tail.reads, "known": known, "host": host, "makes": makes, "kinds": tail.kinds, "stage": stage}


def _tail(about: Any, arrays: Sequence[NumpyArray], following: Following) -> Tail:
    """What ``_written_tail`` wrote."""

    def stage(about: Any) -> Next:
        name, given, wanted, draws = about
        return following(Rest(str(name), [_argument(*one) for one in given], list(map(str, wanted)), _index(draws)))

    def node(kind: str, *parts: Any) -> HostNode:
        if kind in COUNTING:
            attributes, inputs, outputs = parts
            if not all(type(value) is int for value in attributes.values()):
                raise ValueError(f"the attributes {attributes!r}")
            return Counting(kind, attributes, tuple(map(str, inputs)), tuple(map(str, outputs)))
        if kind != "Loop":
            raise ValueError(f"a node {kind!r} between stages")
        *names, stacked, body = parts
        inputs, outputs, takes, captured = (tuple(map(str, each)) for each in names)
        forms = tuple(_stacked(*form) for form in stacked)
        looped = Looped(inputs, outputs, takes, captured, forms, stage(body))
        if not looped.is_whole():
            raise ValueError("a loop that does not fit its body")
        return looped

    reads = tuple((str(name), None if count is None else _index(count)) for name, count in about["reads"])
    known = {str(name): arrays[_index(number)] for name, number in about["known"]}
    host = tuple(node(*parts) for parts in about["host"])
    rest = None if about["stage"] is None else stage(about["stage"])
    tail = Tail(reads, known, host, rest, {_index(i): str(name) for i, name in about["makes"]}, tuple(about["kinds"]))
    if missing := tail.missing():
        raise ValueError(f"nothing makes {missing}")
    return tail


def _stacked(dtype: str | None, shape: list[Any] | None) -> Stacked:
    if dtype is not None:
        named(dtype)
    return Stacked(dtype, None if shape is None else tuple(None if n is None else _index(n) for n in shape))


def names_of(value: Any) -> list[str]:
    """The names in what may be a list of them."""
    return [name for name in value if type(name) is str] if isinstance(value, list) else []


def _written_stage(stage: Next) -> list[Any]:
    assert stage.part is not None
    name, given, wanted, draws, *_ = stage.part
    return [name, list(map(_written, given)), wanted, draws]


def _written_node(node: HostNode) -> list[Any] | None:
    if isinstance(node, Looped):
        return ["Loop", *node[:-1], _written_stage(node.stage)]
    return list(node) if isinstance(node, Counting) else None


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"the number {value!r}")
    return value


def _written(one: Argument) -> list[Any]:
    return [one.name, one.type, one.shape, _said(one.dtype)]


def _said(dtype: Any) -> str | None:
    """A type for ``named``."""
    return None if dtype is None else np.dtype(dtype).name if is_narrow(dtype) else np.dtype(dtype).str


def _argument(name: str, kind: str, shape: list[Any] | None, dtype: str | None) -> Argument:
    sizes, own = None if shape is None else tuple(shape), None if dtype is None else named(dtype)
    return Argument(name, kind, sizes, own, Kind.of(kind))
