"""Rows (the sequences along an axis) in tensors of any layout: their addresses, and code that all kernels over rows share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.layout import collapse
from tvmdml.operators.top_k import TopK1
from tvmdml.schedules.gpu import VECTOR_BYTES, Numbers, _tiles, taken_steps
from tvmdml.schedules.gpu._keys import Keys
from tvmdml.schedules.gpu._words import load
from tvmdml.targets._device import DeviceTarget


class Batch(NamedTuple):
    """The rows: their sizes as a batch, and each tensor's steps between rows and along the axis."""

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
        """Whether neighbouring rows are contiguous in memory, rather than the elements of a row."""
        return self.steps[0][-1] == 1 and self.sizes[-1] > 1 and self.along[0] != 1


def _without(axis: int, values: tuple[int, ...]) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]


class KeyRows:
    """The rows of a kernel: how its launches read keys, and write results.

    If neighbouring rows are contiguous, and are read often enough, an additional first launch copies them so that each row is.
    """

    def __init__(self, keys: Keys, batch: Batch, index_words: int, target: DeviceTarget, most_groups: int, often: bool) -> None:
        self.keys, self.batch = keys, batch
        self.index_words = index_words  # a 64-bit position is written as two words, so no device needs 64-bit integers for it
        wide = min(batch.sizes[-1], batch.length) >= _tiles.LEAST and target.max_threads >= _tiles.THREADS
        self.gathered = often and batch.neighbours and wide
        self._tile_groups = min(_tiles.count((*batch.sizes, batch.length)), most_groups) if self.gathered else 0
        own = ("index_words", index_words), ("rank", len(batch.sizes)), ("gathered", self.gathered)
        self.parameters = (*keys.parameters, *own)
        """The parameters that their code depends on."""
        self.temporaries = ((keys.element, batch.rows * batch.length),) if self.gathered else ()
        """The type and size of the scratch buffers that they need."""
        self.n: Any = None
        """The kernel's integers, while its code is generated."""

    def numbers(self, span: int, **own: int | tuple[int, ...]) -> Numbers:
        """A kernel's integers: those of the rows and its ``own``, from which it computes others of up to ``span``."""
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
        """Declare the kernel's first parameters."""
        self.source, self.values = f.buffer("input", self.keys.element), f.buffer("values", self.keys.element)
        self.indices = f.buffer("indices", "uint32")
        self._copies = f.buffer("rows", self.keys.element) if self.gathered else None

    @contextmanager
    def launch(self, groups: Any, threads: int, numbers: Any) -> Iterator[tuple[Any, Any]]:
        """One launch of several, with its own variables for the ``numbers``.

        They are held: otherwise TVM computes expressions that launches have in common only once, and passes the results to each
        launch, which soon exceeds the limit for parameters.
        """
        given = self.n
        with T.launch(groups, threads) as place:
            held = {n: [T.hold(one) for one in v] if isinstance(v, list) else T.hold(v) for n, v in vars(numbers).items()}
            self.n = SimpleNamespace(**held)
            yield place
        self.n = given

    def gather(self, numbers: Numbers) -> None:
        """Copy rows, if this is needed, so that the elements of each are contiguous."""
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
        """The offset of a row's start in the input, the values or the indices (0, 1, 2)."""
        if tensor == 0 and self.gathered:
            return T.let(row * self.n.length)
        rank = len(self.batch.sizes)
        return T.let(T.dot(T.unravel(row, self.n.sizes), self.n.steps[tensor * rank : (tensor + 1) * rank]))

    def starts(self, row: Any) -> list[Any]:
        """The offset of a row's start in each tensor."""
        return [self.start(row, tensor) for tensor in range(3)]

    def element(self, start: Any, place: Any) -> Any:
        """An element of a row."""
        return self.source[start + (place if self.gathered else place * self.n.along[0])]

    def key(self, start: Any, place: Any) -> Any:
        """The key of a row's element."""
        return self.keys.key(self.element(start, place))

    def vector(self, most: int) -> int:
        """How many neighbours of a row can be loaded at once, at any row start: ``most``, or a smaller power of two."""
        batch, rank = self.batch, len(self.batch.sizes)
        if batch.along[0] != 1 and not self.gathered:
            return 1
        steps = () if self.gathered else batch.steps[0][:rank]
        width: int = min(most, max(1, VECTOR_BYTES * 8 // self.keys.bits))
        while any(number % width for number in (batch.length, *steps)):
            width //= 2
        return width

    def keys_from(self, start: Any, place: Any, width: int) -> list[Any]:
        """The keys of ``width`` neighbours, where ``vector`` allows it."""
        at = T.let(T.multiple(start + place, width))
        return [T.hold(self.keys.key(element)) for element in load(self.source, at, width)]

    def emit(self, starts: list[Any], place: Any, position: Any) -> None:
        """Write one of a row's K results; ``starts`` is the row's start in each tensor."""
        T.store(self.values, starts[1] + place * self.n.along[1], self.element(starts[0], self.number(position)))
        at = T.let((starts[2] + place * self.n.along[2]) * self.index_words)
        T.store(self.indices, at, position)
        if self.index_words == 2:
            T.store(self.indices, at + 1, T.const(0, "uint32"))
