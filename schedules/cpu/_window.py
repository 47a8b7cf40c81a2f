"""What the ways to compute windows on the CPU share: vectors of windows, and what was combined in each lane so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.open_shapes import OpenShapes
from tvmdml.operators._window import Cascade
from tvmdml.operators._window_largest import least
from tvmdml.operators._window_sums import Seen, Summed
from tvmdml.schedules.cpu import per_task


class WindowContext(NamedTuple):
    """What the results of a vector of windows may depend on beside the sums (``Seen``)."""

    seen: Seen
    lanes: int
    inside: Any = None
    """How many taps along the vector's dimension are inside, for each window, if they differ."""
    counted: Any = None
    """The same, with the padding."""
    others: Any = None
    """The windows' other dimensions, as places of ``seen.reaches``."""

    def number(self, padded: bool, dtype: str) -> Any:
        """The number of taps, which is the same for all without edges."""
        if self.inside is None:
            return splat(self.seen.number(padded, dtype), self.lanes)
        own = T.to(self.counted if padded else self.inside, dtype)
        sizes, total = self.seen.desc.whole().sizes, T.const(1, dtype)
        windows = self.seen.desc.windows()
        for i in self.others:
            along, reach = windows[i], self.seen.reaches[i]
            found = self.seen.desc.counted(along, reach, sizes[along.dimension]) if padded else reach.count
            total = total * T.cast(found, dtype)
        every = T.hold(own * T.splat(T.hold(total), self.lanes))
        return T.select(every > T.like(every, 0), every, 1)

    def element(self, name: str, dtype: str) -> Any:
        """The elements at the same places."""
        tensor = getattr(self.seen.desc, name)
        return load(self.seen.tensors[name], T.let(T.dot(self.seen.at, tensor.layout)), self.lanes, dtype)


def splat(value: Any, lanes: int) -> Any:
    return T.splat(value, lanes) if lanes > 1 else value


def load(buffer: Any, offset: Any, lanes: int, dtype: str) -> Any:
    """Contiguous elements in the type in which they are combined."""
    return T.hold(T.to(T.wide(buffer[T.run(offset, lanes)]), dtype))


class Vector:
    """Elements that were taken so far in each lane: a sum, or the largest one and its index."""

    def __init__(self, desc: Any, lanes: int, levels: int, first: Any = None) -> None:
        self._desc, self._dtype = desc, desc.computed
        self._sum = Cascade(self._dtype, levels, lanes) if isinstance(desc, Summed) else None
        self._best = self._index = None
        if self._sum is None:
            none = T.like(T.const(0, self._dtype), least(self._dtype))
            self._best = T.Variable(f"{self._dtype}x{lanes}", T.splat(none, lanes))
            if first is not None:
                self._index = T.Variable(T.type_of(first), first)

    def add(self, row: Mapping[int, Any], index: Callable[[int], Any]) -> None:
        """The next taps of all lanes by number, in their order."""
        if self._sum is not None:
            total = None
            for x in row.values():
                term = self._desc.term(x)
                total = term if total is None else total + term
            self._sum.add(total)
            return
        assert self._best is not None
        if self._index is None:
            self._best.set(largest([self._best.value, *row.values()]))
            return
        for tap, x in row.items():
            best = self._best.value
            stays = kept(x, best)
            self._index.set(T.Select(stays, self._index.value, index(tap)))
            self._best.set(T.Select(stays, best, x))

    def total(self) -> Any:
        """The sums."""
        assert self._sum is not None
        return T.hold(self._sum.value())

    @property
    def best(self) -> Any:
        """The largest elements."""
        assert self._best is not None
        return self._best.value

    @property
    def index(self) -> Any:
        """Their indices; ``None`` if there are none."""
        return None if self._index is None else self._index.value


def largest(values: Sequence[Any]) -> Any:
    """The largest of vectors, in each lane: of equal ones the first, and a NaN if there is one."""
    found, *more = values
    nan = None
    for x in more:
        found = T.hold(T.Select(x > found, x, found))
        nan = (T.is_nan(x) if nan is None else nan | T.is_nan(x)) if T.is_float(x) else None
    # No number is larger than a NaN, so one that came first is kept; but a NaN is not larger than a number.
    return found if nan is None else T.hold(T.select(nan, float("nan"), found))


def kept(x: Any, best: Any) -> Any:
    """Whether the best elements so far stay: what ``exceeds`` denies, in fewer comparisons."""
    return T.hold((x <= best) | T.is_nan(best)) if T.is_float(x) else x <= best


def larger(x: Any, best: Any) -> Any:
    """The larger one, of equal ones the second, and a NaN rather than a number."""
    return T.maximum(x, best)


class WindowWay:
    """What the ways to write a kernel share."""

    NAME = ""

    def __init__(self, desc: Any, tasks: int, **choices: Any) -> None:
        self.given, self.tasks = desc, tasks
        self.shapes = OpenShapes()
        self.wanted = desc.with_tensors(self.shapes.open)
        self.choices = choices

    def kernel(self) -> Kernel:
        """The kernel."""
        module, *also = self.wanted.modules()
        parameters = (("desc", self.wanted.exactly_in_code()), *self.choices.items())
        scalars = (*self.shapes.scalars, self.tasks)
        return Kernel(module, self.NAME, parameters, self.function, scalars, also=tuple(also))

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(OpenShapes().open)
        with T.function() as f:
            self.tensors = f.tensors(self.desc)
            tasks = f.scalar("tasks")
            per_task(tasks, lambda task: self.task(task, tasks))
        return f.result()

    def task(self, task: Any, tasks: Any) -> None:
        """A task's share."""
        raise NotImplementedError

    def store(self, place: Any, offset: Any, total: Vector, lanes: int) -> None:
        """The results of a vector of windows."""
        y = self.desc.pooled()
        found = self.desc.result(total.total(), place) if isinstance(self.desc, Summed) else total.best
        T.store(self.tensors[self.desc.POOLED], T.run(offset, lanes), T.to(found, y.data_type.tvm))
