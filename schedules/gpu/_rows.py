"""Rows (the sequences along an axis) in tensors of any layout: where they lie, and what all kernels that go through them share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvmdml import tensorir as T
from tvmdml.layout import collapse
from tvmdml.operators.top_k import TopK1
from tvmdml.schedules.gpu import VECTOR_BYTES, Numbers, _tiles, taken_steps
from tvmdml.schedules.gpu._keys import Keys
from tvmdml.schedules.gpu._words import load
from tvmdml.targets._device import DeviceTarget


class Batch(NamedTuple):
    """The rows: their sizes as a batch, each tensor's steps between them, and along the axis."""

    rows: int
    length: int
    k: int
    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    along: tuple[int, ...]
    span: int
    """The largest offset in any tensor."""

    @classmethod
    def of(cls, desc: TopK1) -> Batch:
        tensors = (desc.input_tensor, desc.output_value_tensor, desc.output_index_tensor)
        length = desc.input_tensor.sizes[desc.axis]
        sizes, steps = collapse(
            *(_without(desc.axis, values) for values in (desc.input_tensor.sizes, *(t.layout for t in tensors)))
        )
        along = tuple(taken_steps(t.sizes, t.layout)[desc.axis] for t in tensors)
        rows = desc.input_tensor.element_count // length
        span = max(t.span for t in tensors)
        return cls(rows, length, desc.k, sizes or (1,), tuple(s or (0,) for s in steps), along, span)

    @property
    def neighbours(self) -> bool:
        """Whether rows lie side by side, rather than their elements."""
        return self.steps[0][-1] == 1 and self.sizes[-1] > 1 and self.along[0] != 1


def _without(axis: int, values: tuple[int, ...]) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]


class Rows:
    """The rows of a kernel: how its launches read their keys, and write what they found of them.

    Where rows lie side by side, and are read so often that it pays, a launch before all others copies them.
    """

    def __init__(self, keys: Keys, batch: Batch, index_words: int, target: DeviceTarget, most_groups: int, often: bool) -> None:
        self.keys, self.batch = keys, batch
        self.index_words = (
            index_words  # a position of 64 bits is written as two words, so that no device needs such integers for it
        )
        wide = min(batch.sizes[-1], batch.length) >= _tiles.LEAST and target.max_threads >= _tiles.THREADS
        self.gathered = often and batch.neighbours and wide
        self._tile_groups = min(_tiles.count((*batch.sizes, batch.length)), most_groups) if self.gathered else 0
        own = ("index_words", index_words), ("rank", len(batch.sizes)), ("gathered", self.gathered)
        self.parameters = (*keys.parameters, *own)
        """What their code depends on."""
        self.temporaries = ((keys.element, batch.rows * batch.length),) if self.gathered else ()
        """Type and size of the scratch that they take."""
        self.n: Any = None
        """The kernel's integers, while it is written."""

    def numbers(self, span: int, **own: int | tuple[int, ...]) -> Numbers:
        """A kernel's integers: those of the rows, and its ``own``, with which it computes others of up to ``span``."""
        batch = self.batch
        if self.gathered:
            span = max(span, batch.rows * batch.length)
            own["tile_groups"] = self._tile_groups
        found = Numbers(
            max(span, self.index_words * batch.span), rows=batch.rows, length=batch.length, k=batch.k,
            sizes=batch.sizes, steps=sum(batch.steps, ()), along=batch.along, **own,
        )  # fmt: skip
        self.dtype = found.dtype
        return found

    def declare(self, f: T.Function) -> None:
        """The kernel's first parameters."""
        self.source, self.values = f.buffer("input", self.keys.element), f.buffer("values", self.keys.element)
        self.indices = f.buffer("indices", "uint32")
        self._copies = f.buffer("rows", self.keys.element) if self.gathered else None

    @contextmanager
    def launch(self, groups: Any, threads: int, numbers: Any) -> Iterator[tuple[Any, Any]]:
        """One launch of several, which has ``numbers`` of its own meanwhile.

        They are held: what launches compute alike TVM would compute once, and pass to each, which is soon more than can be passed.
        """
        given = self.n
        with T.launch(groups, threads) as place:
            held = {n: [T.hold(one) for one in v] if isinstance(v, list) else T.hold(v) for n, v in vars(numbers).items()}
            self.n = SimpleNamespace(**held)
            yield place
        self.n = given

    def gather(self, numbers: Numbers) -> None:
        """Copy rows, if they are to be, so that the elements of each lie side by side."""
        if not self.gathered:
            return
        n, source, copies = self.n, self.source, self._copies
        sizes = [*n.sizes, n.length]

        def read(at: list[Any]) -> list[Any]:
            return [T.cast(source[T.dot(at, [*n.steps[: len(at) - 1], n.along[0]])], self.keys.wide)]

        def write(at: list[Any], values: Sequence[Any]) -> None:
            to = at[0]
            for place, size in zip(at[1:], sizes[1:], strict=True):
                to = to * size + place
            T.store(copies, to, T.cast(values[0], self.keys.element))

        _tiles.move(n.tile_groups, numbers, sizes, [self.keys.wide], read, write)
        self.source = copies

    def number(self, value: Any) -> Any:
        """A value as one of the kernel's integers."""
        return T.cast(value, self.dtype)

    def start(self, row: Any, tensor: int) -> Any:
        """Where a row begins in the input, the values or the indices (0, 1, 2)."""
        if tensor == 0 and self.gathered:
            return T.let(row * self.n.length)
        rank = len(self.batch.sizes)
        return T.let(T.dot(T.unravel(row, self.n.sizes), self.n.steps[tensor * rank : (tensor + 1) * rank]))

    def starts(self, row: Any) -> list[Any]:
        """Where a row begins in each tensor."""
        return [self.start(row, tensor) for tensor in range(3)]

    def element(self, start: Any, place: Any) -> Any:
        """A row's element."""
        return self.source[start + (place if self.gathered else place * self.n.along[0])]

    def key(self, start: Any, place: Any) -> Any:
        """The key of a row's element."""
        return self.keys.key(self.element(start, place))

    def vector(self, most: int) -> int:
        """How many neighbours of a row can be loaded at once, wherever it begins: ``most``, or a smaller power of two."""
        batch, rank = self.batch, len(self.batch.sizes)
        if batch.along[0] != 1 and not self.gathered:
            return 1
        steps = () if self.gathered else batch.steps[0][:rank]
        width: int = min(most, max(1, VECTOR_BYTES * 8 // self.keys.bits))
        while any(number % width for number in (batch.length, *steps)):
            width //= 2
        return width

    def keys_from(self, start: Any, place: Any, width: int) -> list[Any]:
        """The keys of so many neighbours, as ``vector`` allows."""
        at = T.let(T.multiple(start + place, width))
        return [T.hold(self.keys.key(element)) for element in load(self.source, at, width)]

    def emit(self, starts: list[Any], place: Any, position: Any) -> None:
        """Write one of the K of a row that ``starts`` there in each tensor."""
        T.store(self.values, starts[1] + place * self.n.along[1], self.element(starts[0], self.number(position)))
        at = T.let((starts[2] + place * self.n.along[2]) * self.index_words)
        T.store(self.indices, at, position)
        if self.index_words == 2:
            T.store(self.indices, at + 1, T.const(0, "uint32"))
