"""``Stage``: nodes of a model that are converted together, for all sizes that pass the guards of a recording.

A model is one stage, unless elements that it computes decide sizes: how many boxes a detector finds, how long a sentence is spoken.
Then a stage ends where such elements are needed. They are read, and the next stage takes them as open sizes, as a model takes those
of its inputs: another count converts and compiles nothing. Nodes that NumPy computes (NonMaxSuppression) run between stages.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import numpy as np

from tvmdml.errors import ModelError, Unsupported, message
from tvmdml.onnx.following import Following, Rest
from tvmdml.onnx.kept import names_of
from tvmdml.onnx.kinds import Kind, part
from tvmdml.onnx.recording import Pattern, Recording, Recordings, StageProtocol, pattern_of
from tvmdml.onnx.running import Argument, Ready
from tvmdml.onnx.types import Undecided, decides, wide_of
from tvmdml.system import not_collected
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvmdml.graph.kernels import Progress
    from tvmdml.graph.program import Finished
    from tvmdml.onnx.kept import CachedModel

Shapes = Mapping[str, tuple[int, ...]]
Decided = Mapping[str, NumpyArray]
_MOST_PLANS = 64
"""How many compiled graphs a stage keeps: one for each combination of sizes."""
_MOST_PATTERNS = 512
"""Of so many patterns recordings stay: elements of inputs that decide, and are not open, make one for each of their values."""
_MOST_TURNS = 16
_OF_OTHERS = 2
"""NumPy's number of types that other packages add: the narrow ones."""


class OriginProtocol(Protocol):
    """What converts nodes."""

    def recording(self, shapes: Shapes, pattern: Pattern, decided: Decided, part: Rest | None) -> Recording:
        """Convert them for all sizes of which they ask the same as for these."""

    def finished(self, shapes: Shapes, decided: Decided, part: Rest | None) -> Finished:
        """Convert them for sizes; the graph after all passes."""


class Stage:
    """A stage: the recordings of nodes, and the compiled graphs of the sizes that were used last."""

    def __init__(
        self,
        name: str,
        feeds: Sequence[Argument],
        origin: Callable[[], OriginProtocol],
        kept: Callable[[], CachedModel | None],
        following: Following,
        part: Rest | None = None,
        progress: Progress | None = None,
    ) -> None:
        """
        Args:
            name: of the model, for messages.
            feeds: what a call gives.
            origin: reads the model.
            kept: the cache's entries of the model, as long as there are any.
            following: the stages of parts that follow it.
            part: the nodes; ``None`` for the whole model.
            progress: called with (kernels ready, kernels in all) while kernels compile.
        """
        self.name, self.feeds, self.part = name, feeds, part
        self.deciding: AbstractSet[str] = frozenset()
        """The inputs whose elements decide how it is computed, as far as was seen."""
        self._origin, self._kept, self._following, self._progress = origin, kept, following, progress
        self._source: Callable[[], object] | None = None
        self._lock = threading.RLock()
        renew_at_fork(self)
        self._recordings: OrderedDict[Hashable, Recordings] = OrderedDict()
        self._ready: OrderedDict[Any, Ready] = OrderedDict()
        self.deciding |= self._kept_deciding()

    @property
    def plans(self) -> int:
        """The number of combinations of sizes with a plan."""
        return len(self._ready)

    def recordings(self) -> Iterator[Recordings]:
        """Those of each pattern."""
        yield from list(self._recordings.values())

    def ready(
        self,
        shapes: Shapes,
        views: Mapping[str, Any],
        check: Callable[[Shapes], object] | None = None,
        decide: Callable[[AbstractSet[str]], object] | None = None,
    ) -> Ready:
        """What computes the outputs from inputs of these shapes.

        Args:
            shapes: of the inputs.
            views: the inputs.
            check: raises an error for shapes that are not allowed, before anything is made for them.
            decide: is told when more inputs decide.

        Raises:
            ModelError, Unsupported, CompileError: a node cannot be computed for these sizes.
        """
        with self._lock:
            for _ in range(_MOST_TURNS):
                # What other inputs decide is computed after the graph.
                there = [name for name in sorted(self.deciding) if name in views and _decides(views[name])]
                decided = {name: elements(views[name]) for name in there}
                if (ready := self._ready.get(key := _key(shapes, decided))) is not None:
                    self._ready.move_to_end(key)
                    return ready
                if check is not None:
                    check(shapes)
                try:
                    return self.made(shapes, decided)
                except Undecided as error:
                    self.deciding |= error.inputs
                    self._keep_deciding()
                    if decide is not None:
                        decide(self.deciding)
        raise Unsupported(f"{self.name}: the values of too many inputs decide how it is computed")

    def for_arrays(self, arrays: Mapping[str, Any]) -> tuple[Ready, dict[str, Any], Sequence[str]]:
        """What computes the outputs from these arrays, lists of arrays, or ``None`` for nothing; the tensors; the outputs' names.

        Raises:
            ModelError, Unsupported, CompileError: a node cannot be computed for these sizes.
        """
        assert self.part is not None
        shapes: dict[str, tuple[int, ...]] = {}
        tensors: dict[str, Any] = {}
        feeds = []
        for about in self.part.given:
            value = arrays[about.name]
            if is_sequence := isinstance(value, list):
                shapes[about.name] = (len(value),)
                several = {part(about.name, i): tensor for i, tensor in enumerate(value)}
            else:
                several = {} if value is None else {about.name: value}
            for name, tensor in several.items():
                shapes[name], tensors[name] = tuple(tensor.shape), _wide(tensor)
            dtype = about.dtype or next((np.dtype(tensor.dtype) for tensor in several.values()), None)
            same = dtype is about.dtype and is_sequence == about.kind.is_sequence
            feeds.append(about if same else about._replace(dtype=dtype, kind=Kind(is_sequence)))
        with self._lock:
            if feeds != self.feeds:
                self.feeds, self.part = feeds, self.part._replace(given=feeds)
            return self.ready(shapes, tensors), tensors, self.part.wanted

    def complete(self, part: Rest) -> None:
        """Tell it its nodes, which a plan of the cache does not have."""
        if self.part is not None and self.part.nodes is None:
            self.part = self.part._replace(nodes=part.nodes, known=part.known)

    def follow(self, source: Callable[[], object]) -> None:
        """Where its nodes come from: a conversion of the stage before completes it."""
        self._source = source

    def made(self, shapes: Shapes, decided: Decided) -> Ready:
        """What computes the outputs: of a recording, here or in the cache, or of a new one.

        Raises:
            Undecided: the elements of more inputs must be known.
            ModelError, Unsupported, CompileError: a node cannot be computed for these sizes.
        """
        pattern = pattern_of(shapes, self.feeds, decided)
        values = pattern.values(shapes, decided)
        with self._lock:
            known = self._recordings.get(pattern.key)
            if known is None:
                known = self._recordings[pattern.key] = Recordings(pattern, self._place(), self._kept())
                while len(self._recordings) > _MOST_PATTERNS:
                    self._recordings.popitem(last=False)
            self._recordings.move_to_end(pattern.key)
            ready = known.at(values, self._progress)
            if ready is None:
                with not_collected():  # until the last step: to look at all that was made after each of them takes longer
                    ready = known.add(self.recording(pattern, values), values, self._progress)
            self._ready[_key(shapes, decided)] = ready
            while len(self._ready) > _MOST_PLANS:
                self._ready.popitem(last=False)
        return ready

    def recording(self, pattern: Pattern, values: tuple[int, ...]) -> Recording:
        """Convert the nodes."""
        return self._origin().recording(pattern.shapes(values), pattern, pattern.decided(values), self._whole())

    def _finished(self, pattern: Pattern, values: Sequence[int]) -> Finished:
        return self._origin().finished(pattern.shapes(values), pattern.decided(values), self._whole())

    def _place(self) -> StageProtocol:
        """What its recordings know of it."""
        if self.part is None:
            return StageProtocol("", None, self._following, self.recording, self._finished)
        return StageProtocol(self.part.name, len(self.part.wanted), self._following, self.recording, self._finished)

    def _whole(self) -> Rest | None:
        """The part with its nodes."""
        if self.part is not None and self.part.nodes is None:
            assert self._source is not None
            self._source()
            if self.part.nodes is None:  # the stage before is converted in the same way
                given = "a cache whose entries are not of one model"
                raise ModelError(message(self.name, given, "what a conversion wrote", "Delete the cache."))
        return self.part

    def _keep_deciding(self) -> None:
        if self.part is not None and (kept := self._kept()) is not None:
            kept.keep_part(f"deciding {self.part.name}", {"inputs": sorted(self.deciding)})

    def _kept_deciding(self) -> AbstractSet[str]:
        kept = None if self.part is None else self._kept()
        described = None if kept is None or self.part is None else kept.find_part(f"deciding {self.part.name}")
        return frozenset(() if described is None else names_of(described.described.get("inputs")))


def _key(shapes: Shapes, decided: Decided) -> Any:
    """Both in the order of the inputs."""
    return tuple(shapes.items()), tuple([(name, array.tobytes()) for name, array in decided.items()]) if decided else ()


def _decides(view: Any) -> bool:
    """Whether an input may decide."""
    return decides(view.dtype, math.prod(view.shape))


def _wide(tensor: Any) -> Any:
    """A tensor as a graph takes it."""
    return tensor.astype(wide_of(tensor.dtype)) if type(tensor) is np.ndarray and tensor.dtype.isbuiltin == _OF_OTHERS else tensor


def elements(view: Any) -> NumpyArray:
    """The elements of an array, on the CPU."""
    return np.array(view.numpy() if type(view) is DeviceArray else np.asarray(view))


_holders: WeakSet[Any] = WeakSet()


def renew_at_fork(holder: Any) -> None:
    """Let the lock of a model, or of a stage of one, be a new one in a forked process."""
    _holders.add(holder)


def _renew_locks() -> None:
    for holder in list(_holders):
        holder._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)  # the thread that held a lock does not exist in the child
