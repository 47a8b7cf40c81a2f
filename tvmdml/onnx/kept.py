"""``CachedModel``: what the cache has of one model: its inputs and outputs, and a plan for each combination of sizes.

All is found by the hash of the model's files, and of what decides about plans (``graph.surroundings``). A changed file has another
hash, and so other plans. What was compiled is kept only if the files still have that hash afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.graph.stored import cache
from tvmdml.graph.stored.array_forms import natural
from tvmdml.graph.surroundings import key_of, surroundings
from tvmdml.onnx.arguments import ModelMetadata
from tvmdml.onnx.content import Content
from tvmdml.onnx.following import Following
from tvmdml.onnx.running import About, Argument, Ready
from tvmdml.system import at_hand
from tvmdml.system.disk.plans import PlanStore
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.graph.laid import Weights
    from tvmdml.graph.open_plan import OpenPlan
    from tvmdml.graph.program import Finished
    from tvmdml.graph.stored.cached_plan import KeptPlan

Shapes = Mapping[str, tuple[int, ...]]
Decided = Mapping[str, NumpyArray]


class Header(NamedTuple):
    """What is known of a model without reading it."""

    about: About
    deciding: frozenset[str]
    """The inputs whose elements decide how it is computed, as far as was seen."""


class CachedModel:
    """The cache's entries of a model. ``of`` makes it."""

    def __init__(
        self, content: Content, around: str, own: str, options: tuple[str, ...], sizes: Mapping[str, int], target: Target
    ) -> None:
        """Not public."""
        self.content = content
        self._target, self._around, self._own, self._options = target, around, own, options
        self._key = key_of("model", around, own, *options, content.digest, dict(sizes))
        self._others = ""
        self._store = PlanStore()
        self._holdings = cache.Holdings(self._store, self._key)
        self._header: Header | None = None
        self._parts: dict[str, int] = {}
        """So many parts each recording has at least."""

    @classmethod
    def of(
        cls, given: Any, sizes: Mapping[str, int], target: Target, fallback: str = "", exactness: Sequence[str] = ()
    ) -> CachedModel | None:
        """Of a path, or bytes; ``None`` for anything else, for what cannot be read, and where no plans are kept.

        Args:
            given: as for ``load``.
            sizes: as for ``load``.
            target: where it will run.
            fallback: the name of the library that runs other nodes.
            exactness: as for ``load``.
        """
        around, own = surroundings(target), _own_operators()
        if not isinstance(given, (str, os.PathLike, bytes)) or around is None or own is None:
            return None
        if any(type(name) is not str or not isinstance(n, (int, np.integer)) for name, n in sizes.items()):
            return None
        try:
            return cls(Content(given), around, own, (fallback, *exactness), {name: int(n) for name, n in sizes.items()}, target)
        except (OSError, ValueError, TypeError):
            return None

    # -- The model

    def is_read(self, place_of: Callable[[NumpyArray], str | None]) -> None:
        """Tell it where arrays are in the model's files, which are as they were when they were hashed."""
        self._holdings.place_of = place_of

    def header(self) -> Header | None:
        """What is kept of the model itself."""
        content = self._store.find(self._key)
        if content is None:
            return None
        with contextlib.suppress(*cache.DAMAGED):
            found = json.loads(content.tobytes())
            inputs, outputs, defaults = ([Argument.read(*one) for one in found[kind]] for kind in ("inputs", "outputs", "defaults"))
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
            "inputs": [one.written() for one in about.inputs],
            "outputs": [one.written() for one in about.outputs],
            "defaults": [one.written() for one in about.defaults],
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
        self._holdings.model = f"{self._key} {self._others}"
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
        at_hand("tvmdml.graph.stored.cached_plan")
        from tvmdml.graph.stored.cached_plan import KeptPlan

        found = self.find_part(name)
        if found is None:
            return None
        with contextlib.suppress(*cache.DAMAGED):
            about = found.described
            plan = KeptPlan(about["plan"], found.arrays, self._target, arenas, finish)
            known = {natural(i): found.arrays[natural(number)] for i, number in about["known"]}
            reads, lengths = tuple(map(str, about["reads"])), tuple(about["lengths"])
            if self._header is None or not all(n is None or type(n) is int for n in lengths):
                return None
            tail = None
            if about["tail"] is not None:
                at_hand("tvmdml.onnx.kept_tail")
                from tvmdml.onnx.kept_tail import read

                tail = read(about["tail"], found.arrays, following)
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

    def parts(self, name: str) -> Iterator[cache.CachedPlan]:
        """The answers and weights of a recording: a part for each time that something was new."""
        for i in itertools.count():
            if (part := self.find_part(f"{name} {i}")) is None:
                return
            self._parts[name] = i + 1
            yield part

    def keep_recording(self, pattern: Hashable, plan: OpenPlan, ready: Ready) -> str | None:
        """Keep a recording, or what is new in it; returns its name, or ``None`` if it cannot be kept."""
        at_hand("tvmdml.graph.stored.written")
        from tvmdml.graph.stored.written import Said, written

        reports = None if plan.last is None else plan.last().reports()
        said = Said((), None) if reports is None else Said(reports.lines, reports.picture)
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
        described["tail"] = None
        if ready.tail is not None:
            at_hand("tvmdml.onnx.kept_tail")
            from tvmdml.onnx.kept_tail import written as written_tail

            if (tail := written_tail(ready.tail, arrays)) is None:
                return None
            described["tail"] = tail
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
        at_hand("tvmdml.graph.stored.cached_plan")
        from tvmdml.graph.stored import cached_plan

        part = cached_plan.written_part(plan)
        numbers = itertools.count(self._parts.get(name, 0))
        number = next(i for i in numbers if self._store.find(self._part(f"{name} {i}")) is None)
        self._parts[name] = number
        return part is not None and self.keep_part(f"{name} {number}", *part)

    def find_part(self, name: str) -> cache.CachedPlan | None:
        """Something else of the model, by its name."""
        if _own_operators() != self._own:
            return None
        return cache.find(self._store, self._part(name), self._holdings)

    def keep_part(self, name: str, described: Mapping[str, Any], arrays: Sequence[NumpyArray | Weights] = ()) -> bool:
        """Keep something else, under the same conditions as a plan; returns whether that could be done."""
        if self._header is None or _own_operators() != self._own or surroundings(self._target) != self._around:
            return False
        if not self.content.is_unchanged():
            return False
        before = len(self._holdings.names)
        done = cache.keep(self._store, self._part(name), self._holdings, described, arrays)
        if done and len(self._holdings.names) != before:
            self.keep_header(*self._header)
        return done

    def _part(self, name: str) -> str:
        return key_of("part", self._around, self._own, *self._options, self.content.digest, self._others, name)


def _own_operators() -> str | None:
    """What the program's own operators decide about plans; without its module there is none."""
    module = sys.modules.get("tvmdml.onnx.own_operators")
    return "" if module is None else module.own_operators_key()


def names_of(value: Any) -> list[str]:
    """The names in what may be a list of them."""
    return [name for name in value if type(name) is str] if isinstance(value, list) else []
