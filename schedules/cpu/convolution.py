"""Convolutions on the CPU.

- Filters that are rounded to bfloat16 are factors of a product of matrices, with all that they meet (``_gemm_image.py``).
- Filters with one tap, of stride 1 and without padding, are factors of a product of matrices (``matrix.py``).
- ``direct``: a register tile of filters by places, on a copy of the image with its padding (``_convolution_direct.py``).
- ``lanes``: a register tile of places by vectors of filters, of bytes, narrow images and transposed convolutions
  (``_convolution_lanes.py``); of bytes by matrix tiles, where the processor has them (``_convolution_tiles.py``).
- ``last``: the same for floats by filters that never change, whose image is copied with blocks of channels last
  (``_convolution_last.py``).
- ``spread``: a product of matrices, of transposed ones whose steps are as large as their filters (``_convolution_spread.py``).
- ``depthwise``: vectors along the rows of images whose groups have one filter (``_convolution_depthwise.py``).
- ``channels``: the same of images whose channels are last (``_convolution_channels.py``).
- Others are the computation, one element after the other.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._contract import Shared
from tvmdml.schedules.cpu import (
    _convolution_channels,
    _convolution_last,
    _convolution_register_tile,
    _convolution_spread,
    _convolution_tiles,
    _default,
    matrix,
    split,
)
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import ArrangedTile, Ways
from tvmdml.schedules.cpu._convolution_depthwise import Depthwise, suits
from tvmdml.schedules.cpu._convolution_direct import Direct
from tvmdml.schedules.cpu._convolution_knobs import ORDERS
from tvmdml.schedules.cpu._convolution_lanes import Lanes
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, ConvolutionPlan, plan
from tvmdml.targets import Target

KNOBS = matrix.KNOBS
TILES = {64: ((12, 2), (8, 3), (6, 4)), 32: ((6, 2), (4, 3)), 16: ((4, 2),)}
"""The tiles of processors, by the bytes of a register."""
_MOST_FRAME = 1 << 28
"""The most elements of a frame."""
_MOST_PHASES = 64


def kernel(desc: Any, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The way that suits the convolution."""
    if desc.BFLOAT16:
        return matrix.kernel(desc, target, shared, knobs)
    floats = desc.input_tensor.data_type.tvm == desc.computed
    found = plan(desc, floats) if desc.output_tensor.element_count and desc.products() else None
    lanes = found is not None and _convolution_register_tile.suits(desc, found, target)
    by_lanes = lanes and found is not None and found.in_place and _convolution_register_tile.few(desc, found)
    last = found is not None and _convolution_last.suits(desc, found, target)
    by_last = last and found is not None and _convolution_last.few(desc, found)
    if not by_lanes and not by_last and matrix.plain(desc.simplified()) is not None:
        return matrix.kernel(desc, target, shared, knobs)
    if not (last or After(desc).suits):
        return _default.kernel(desc, target, shared)
    processor = getattr(target, "processor", None)
    width = (
        64 if processor is not None and processor.has("avx512f") else 32 if processor is not None and processor.has("avx") else 16
    )
    if desc.output_tensor.element_count and desc.products() and suits(desc):
        tasks = split(desc.output_tensor.element_count * desc.products(), target, knobs.task_image_products, 1)
        return Depthwise(desc, width, 32 if width == 64 else 16, tasks).kernel()
    if found is not None and _convolution_channels.suits(desc):
        tasks = split(desc.output_tensor.element_count * desc.products(), target, knobs.task_image_products, 1)
        return _convolution_channels.Channels(desc, found, width, tasks, target).kernel()
    if found is None or not _pays(found):
        return _default.kernel(desc, target, shared)
    work = desc.output_tensor.element_count * desc.products()
    tasks = split(work, target, knobs.task_image_products, 1)
    if _convolution_spread.suits(desc, found, target):
        return _convolution_spread.Spread(desc, found, tasks).kernel()
    if last:
        return _convolution_last.Last(desc, found, tasks, target, knobs).kernel()
    if lanes:
        writer = _convolution_tiles.TileLanes if _convolution_tiles.suits(desc, target) else Lanes
        return writer(desc, found, tasks, target, knobs).kernel()
    tile = _tile(found, width, desc, knobs.tile)
    if found.in_place and found.places < tile.columns:
        found = plan(desc, False)
        assert found is not None
    ways = Ways(
        by_rows=ORDERS[knobs.order](found.filters * found.products, found.frame * found.channels),
        packed=not _once(found, floats, tile),
        panelled=_panelled(found, tile),
        masked=width == 64 and processor is not None and processor.has("avx512bw") and processor.has("avx512vl"),
    )
    return Direct(desc, found, tile, tasks, ways).kernel()


def _panelled(found: ConvolutionPlan, tile: ArrangedTile) -> bool:
    """Whether packing places pays: filters have one tap, and there are many of them and many channels, which lie far apart."""
    return found.taps == 1 and not found.backward and found.places > tile.columns and found.channels >= 256 and found.filters >= 128


def _once(found: ConvolutionPlan, floats: bool, tile: ArrangedTile) -> bool:
    """Whether each filter is read once, as it is."""
    return found.rows_contiguous and floats and found.places <= tile.columns


def _tile(found: ConvolutionPlan, width: int, desc: Any, wanted: str) -> ArrangedTile:
    """The tile that is wanted, or computes least for nothing."""
    lanes = width // (8 if desc.computed == "float64" else 4)
    some = [one for one in TILES[width] if wanted == f"{one[0]}x{one[1]}"] or TILES[width]
    tiles = [ArrangedTile(rows, vectors, lanes) for rows, vectors in some]

    def waste(tile: ArrangedTile) -> int:
        vectors = -(-found.places // tile.lanes)
        rest = vectors % tile.vectors
        narrow = 0 < rest <= tile.narrow.vectors
        vectors += -rest % tile.vectors if not narrow else tile.narrow.vectors - rest
        return -(-found.filters // tile.rows) * tile.rows * vectors  # an int, or a size

    whole = [one for one in reversed(tiles) if _once(found, desc.input_tensor.data_type.tvm == desc.computed, one)]
    return (sorted(whole, key=lambda one: one.columns) or sorted(tiles, key=waste))[0]


def _pays(found: ConvolutionPlan) -> bool:
    """Whether the frame is not much larger than the image, and phases are few."""
    image = found.channels * found.groups
    for i in range(DIMENSIONS):
        image *= found.numbers[f"image{i}"] + found.numbers[f"output{i}"]
    frame = found.frame * found.channels * found.groups
    phases = found.backward0 * found.backward1 * found.backward2
    return bool(phases <= _MOST_PHASES and (found.in_place or frame <= min(8 * image + 65536, _MOST_FRAME)))
