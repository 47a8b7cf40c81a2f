"""The register tile of convolutions whose vectors are of filters: where such a tile pays, and which one is fastest, about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmdml.kernels.contraction import KC
from tvmdml.kernels.tiles import of_places, wastes_columns
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_filters import together
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, ConvolutionPlan

LANES = 16


class RegisterTile(NamedTuple):
    """The register tile."""

    run: int
    """Neighbours of a row."""
    lines: int
    """Rows."""
    vectors: int
    """Vectors of filters."""

    @property
    def places(self) -> int:
        """Its places."""
        return self.run * self.lines

    @property
    def width(self) -> int:
        """Its filters."""
        return self.vectors * LANES


def parts_of_vectors(target: Any) -> bool:
    """Whether the processor has vectors of 16 floats, and reads and writes parts of them."""
    processor = getattr(target, "processor", None)
    return processor is not None and all(map(processor.has, ("avx512f", "avx512bw", "avx512vl")))


def suits(desc: Any, plan: ConvolutionPlan, target: Any) -> bool:
    """Whether this pays, and the processor has what it needs."""
    if not parts_of_vectors(target):
        return False
    processor = target.processor
    if desc.filters()[0] < LANES or (After(desc).apart and plan.output_step2 * plan.backward2 != 1):
        return False
    if desc.computed == "int32":
        return bool(processor.has("avx512vnni") and not plan.backward)
    if desc.computed != "float32" or not together(plan):
        return False
    if plan.backward:
        return bool(all(plan.numbers[f"output{i}"] >= plan.numbers[f"backward{i}"] for i in range(DIMENSIONS)))
    deep = late(desc, plan) and _filled(plan)
    return bool(deep or few(desc, plan) or plan.products <= KC or plan.output2 <= _NARROW)


def late(desc: Any, plan: ConvolutionPlan) -> bool:
    """Whether blocks of filters that are given in a call can be packed just before the tiles that read them."""
    given = "filter_tensor" not in desc.owned() and desc.computed != "int32"
    return bool(given and plan.rows_contiguous and not plan.backward)


def few(desc: Any, plan: ConvolutionPlan) -> bool:
    """Whether filters have one tap, and a product of matrices would compute many of its columns for nothing, or pack more."""
    if plan.taps != 1:
        return False
    deep = late(desc, plan) and _filled(plan) and plan.channels >= KC and KC * plan.frame <= _NEAR
    return bool(deep or wastes_columns(plan.places, 2 * LANES))


_NEAR = 1 << 16
"""The most elements over which the channels of a block may lie: 64 pages. Each tile reads all of them, and first-level TLBs have 64
to 96 entries. With more, each step would wait for a page and a line that a product of matrices packs once for several tiles.
"""


def _filled(plan: ConvolutionPlan) -> bool:
    """Whether panels of two vectors have few filters for nothing."""
    return bool(100 * -(-plan.filters // (2 * LANES)) * 2 * LANES <= 107 * plan.filters)


TILES = ((12, 2), (7, 3), (6, 4), (14, 1))
"""The most places, and vectors of filters: with more sums, LLVM would not keep all of them in registers."""

DEEP = ((14, 2), *TILES)
"""Those of loops so deep that LLVM keeps nothing else in registers meanwhile."""


class Cycles(NamedTuple):
    """The cycles of a step besides those of its sums."""

    begin: float
    read: float
    """For each vector of filters, which is in the second cache."""
    line: float
    """For each row but the first."""


_CYCLES = Cycles(2.0, 0.75, 1.0)
OF_FLOATS = Cycles(0.4, 0.2, 0.3)
"""Between what was seen on processors that hide this work (0.2 cycles in all) and on others (3.5): tiles that leave places over
cost more on both."""
_NARROW = 32
"""Rows up to which sums of places that are no places of the output take too long (``_convolution_direct.py``)."""


def tile_for(
    plan: Any,
    most_vectors: int,
    tiles: Sequence[tuple[int, int]] = TILES,
    cycles: Cycles = _CYCLES,
    knobs: Any = None,
) -> RegisterTile:
    """The tile that is fastest, about. What knobs set is nearly so."""
    own = (0, 0, 0) if knobs is None else (knobs.run, knobs.lines, knobs.vectors)
    return RegisterTile(*of_places(plan.output1, plan.output2, plan.filters, most_vectors, tuple(tiles), LANES, (*cycles,), own))
