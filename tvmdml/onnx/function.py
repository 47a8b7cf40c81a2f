"""``Function``: the programs of a model for the sizes of a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tvmdml.arrays import NumpyArray
from tvmdml.graph.by_size import BySize, Described
from tvmdml.graph.sizes import Sizes
from tvmdml.onnx.lines import Line, Shapes

if TYPE_CHECKING:
    from tvmdml.graph.program import Finished
    from tvmdml.onnx.converting import Conversion


class Needed(NamedTuple):
    """What small constants that follow from sizes are computed from (``of_sizes``)."""

    wanted: tuple[str, ...]
    """Their names."""
    sizes: Mapping[str, tuple[Described, tuple[int, ...]]]
    """What Shape nodes give, by name: as integers, and its shape."""
    given: Mapping[str, NumpyArray]
    """What other nodes give that are the same for all sizes."""
    nodes: tuple[int, ...]
    """The places in the model of the nodes that depend on the size."""
    first: int
    """The least size."""

    def is_like(self, other: Needed) -> bool:
        """Whether what the Shape nodes give grows as that of others."""
        mine, others = self.sizes, other.sizes
        return mine.keys() == others.keys() and all(one.is_like(others[name][0]) for name, (one, _) in mine.items())


class Converted(NamedTuple):
    """The model for certain shapes."""

    shapes: Shapes
    conversion: Conversion
    programs: dict[tuple[str, ...], Finished]
    """After all passes, by the tensors that are inputs in the places of constants."""


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """The programs on a line."""

    line: Line
    places: tuple[int, ...]
    """Some that were tried, among them the first and the last."""
    kinds: tuple[int, ...]
    """What each known tensor is (``regular``)."""
    programs: BySize
    needed: Needed
    constants: Callable[[int], Sequence[NumpyArray]]
    """Those that follow from sizes. Raises ``Differs`` where they cannot be computed."""
    sizes: Sizes
    """What follows from sizes, of all places between those that were tried."""
    seen: dict[int, Converted]
    """The model for the places, as far as this process converted it."""
    is_read: bool = False
    """Whether it comes from a file."""

    @property
    def least(self) -> int:
        """The first place."""
        return self.places[0]

    @property
    def most(self) -> int:
        """The last place."""
        return self.places[-1]

    def has(self, shapes: Shapes) -> int | None:
        """The place of shapes; ``None`` if it has no program for them."""
        n = self.line.place(shapes)
        return n if n is not None and self.least <= n <= self.most else None

    def is_like(self, other: Function) -> bool:
        """Whether its numbers grow as those of another one do."""
        alike = self.kinds == other.kinds and self.needed.is_like(other.needed)
        return alike and self.programs.is_like(other.programs)
