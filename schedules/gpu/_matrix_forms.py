"""What the parts of the matrix schedule know of each other: a tile, the leaf that multiplies, and the writer of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tvmdml.kernels.contraction import Contraction, Operand


class MatrixTile(NamedTuple):
    """The rows and columns of a group's part of a result, of a thread's, and of a subgroup's with tensor cores."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int
    warp_rows: int
    warp_columns: int

    @property
    def threads(self) -> int:
        """The threads of a group, without tensor cores."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns)

    @property
    def sums(self) -> int:
        """The sums of a thread, without tensor cores."""
        return self.own_rows * self.own_columns

    def wider(self) -> MatrixTile:
        """The same with twice as many sums for each thread."""
        if self.own_rows <= self.own_columns:
            return self._replace(own_rows=2 * self.own_rows)
        return self._replace(own_columns=2 * self.own_columns)

    def groups(self, rows: int, columns: int) -> int:
        """How many tiles a result has."""
        return -(-rows // self.rows) * -(-columns // self.columns)

    def __str__(self) -> str:
        """Its name, as a knob's value."""
        return f"{self.rows}x{self.columns}"


class SumPlace(NamedTuple):
    """Where a sum is: in the slab, in the result, and in a sum's blocks of products."""

    line: Any
    across: Any
    row: Any
    column: Any
    block: Any


class FactorTile(Protocol):
    """A factor's part of a tile."""

    moved: Any
    """How its elements are moved."""

    memory: Any
    """Shared memory, with as many parts as there are stages."""

    def declare(self, memory: Any) -> None:
        """With the shared memory that it goes to; inside of a launch."""


class TileWriter(Protocol):
    """The writer of a kernel, while it writes."""

    c: Contraction
    batch: Sequence[Any]
    """Coordinates of the tile."""
    buffers: dict[str, Any]
    dtype: str
    """What it counts in."""
    deep: bool
    """Whether sums are added up in blocks of products."""
    own: Any
    """The thread's sums."""
    sizes: Sequence[Any]
    """Of the batch, rows, columns, and products."""
    thread: Any

    def scale(self, column: Any, step: Any) -> Any:
        """What the products of a column of the tile are multiplied by, in a step; ``None``: in the last one."""

    @property
    def leaf(self) -> Leaf:
        """What multiplies."""

    @property
    def parts(self) -> Sequence[FactorTile]:
        """Those of both factors."""

    def number(self, value: int) -> Any:
        """A constant of the integers' type."""

    def unraveled(self, index: Any, sizes: Sequence[Any]) -> list[Any]:
        """The coordinates of a group for an index."""

    def number_of(self, value: Any) -> Any:
        """An integer that may be a constant."""

    def scaled(self, at: Any, step: Any) -> Any:
        """A coordinate times its step."""

    def part(self, linear: Any, group: int, at: Sequence[Any]) -> Any:
        """What a group of coordinates contributes to a linear integer; ``None`` for nothing."""

    def sum(self, *parts: Any) -> Any:
        """The sum of what is present."""

    def zero_at(self, zero: Operand, group: int, at: Sequence[Any]) -> Any:
        """A zero point, for the coordinates of a row or column."""

    def count(self, block: Any) -> Any:
        """How many products a sum has, or its block."""


class Leaf(Protocol):
    """How factors lie in shared memory, and how a group multiplies what is there."""

    name: str
    tile: MatrixTile
    step: int
    """The products of each sum that are in shared memory at once."""
    loops: int
    """The rounds of a loop in which they are multiplied."""
    stages: int
    """How often there is such memory."""
    stored: Sequence[str]
    """The types of both factors there."""
    keeps_type: bool
    """Whether elements are in shared memory as they are in tensors."""
    has_words: bool
    """Whether shared memory may be written as words."""
    crosses: bool
    """Whether products have to be neighbours in shared memory, whatever is in tensors."""
    threads: int
    """The threads of a group."""
    sums: int
    """The sums of a thread."""
    sum_registers: int
    """Their registers."""
    flips: Sequence[int]
    """For both factors, what words change by on their way to shared memory, by an exclusive or."""
    bytes: int
    """The shared memory of a group."""
    rounds: int
    """In so many rounds the sums are finished."""
    slab_rows: int
    """The rows of the tile that are in shared memory in each of these rounds."""
    slab_pitch: int
    """How far apart they are."""

    def is_run_along(self, which: int, inner_first: bool) -> bool:
        """Whether elements that are neighbours in a tensor may be neighbours in shared memory."""

    def size(self, which: int) -> int:
        """The elements of a factor's part."""

    def place(self, which: int, own: Any, inner: Any) -> Any:
        """Where the element of a row or column and a product is."""

    def factor(self, x: Any, zero: Any, product: Any, inside: Any) -> Any:
        """An element as it is in shared memory, if there is such a ``product``, and it is ``inside`` of all dimensions."""

    def declare(self, parts: Sequence[FactorTile]) -> Any:
        """Shared memory for both factors; returns the slab, which is there when they are no longer needed."""

    def begin(self, writer: TileWriter) -> None:
        """Compute where the thread's part is."""

    def clear(self) -> None:
        """A new tile begins."""

    def fold(self, writer: TileWriter, step: Any) -> None:
        """Add the sums of a block of products, up to a step, that are not a thread's own to the others', and clear them."""

    def multiply(self, writer: TileWriter, stage: Any) -> None:
        """The products that are in shared memory, added to the sums in order."""

    def settle(self, writer: TileWriter, above: Any, left: Any, block: Any) -> None:
        """Make the sums what they are to be."""

    def keep(self, writer: TileWriter, slab: Any, i: Any) -> None:
        """The sums of a round, to the slab. They are chosen, because registers have no index."""

    def settled(self, writer: TileWriter, slab: Any, place: SumPlace) -> Any:
        """A sum that is in the slab, as it is to be."""

    def row(self, line: Any, i: Any) -> Any:
        """The row of the tile that is in a line of the slab."""
