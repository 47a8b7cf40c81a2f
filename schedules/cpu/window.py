"""The window family on the CPU: vectors of neighbouring windows, or of neighbouring elements of a window that is the whole image.

- ``lines``: input and output are contiguous in one dimension. A vector has windows that are neighbours there. If windows extend in
  that dimension, too, their taps are selected from contiguous elements. The first and the last vector of a line may have taps
  outside, and which these are is a part of the code; where lines are too short for that, or more windows than a vector has reach
  over an edge, such windows are done one by one. Other dimensions are loops over the taps inside, without a check of bounds.
- ``rolling``: the same for maxima whose windows overlap from row to row of their first dimension: the largest elements of a row are
  computed once for all windows with that row.
- ``shifted``: gradients of averages and maxima along contiguous rows: vectors of elements sum rows of windows.
- ``spread``: other gradients of them: a window gives to its elements.
- ``images``: one window has a whole image, which is contiguous: its elements are combined in vectors.
- Anything else is the computation, one element after the other.

Elements are combined in an order that depends on sizes and the processor's vectors, and not on tasks. A result that is a copy is
that of the first of equal elements: zeros of both signs are equal.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._window import CHAIN, WindowAxis
from tvmdml.operators._window_gradients import Gathered
from tvmdml.operators._window_largest import Largest
from tvmdml.operators._window_sums import Summed
from tvmdml.schedules.cpu import _default, _window_shifted, split
from tvmdml.schedules.cpu._window_images import WholeImages
from tvmdml.schedules.cpu._window_lines import LONGEST, Lines
from tvmdml.schedules.cpu._window_rolling import Rolling
from tvmdml.schedules.cpu._window_spread import SpreadWindows
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(24))

KNOBS = Knobs(
    "window",
    task_elements=Knob(1 << 14, (1, *_POWERS[10:]), "least elements, read or written, for each task"),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    registers=Knob(2, (1, 2, 4), "registers of a vector, at most, if windows extend along it"),
    channel_registers=Knob(4, (1, 2, 4), "registers of a vector, at most, if windows do not"),
)

_MOST_STRIDE = 4
"""From a larger step on, most of a vector that is read would not be used."""
_MOST_TAPS = CHAIN
"""The most taps that are written one after the other in the code."""
_FEWEST = 4
"""The fewest windows of a vector."""


def kernel(desc: Any, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The way that suits the windows."""
    if not shared and isinstance(desc, Gathered):
        work = max(desc.whole().element_count, desc.pooled().element_count * min(desc.taps(), 8))
        tasks = split(work, target, knobs.task_elements, knobs.tasks_per_thread)
        shifted: Kernel | None = _window_shifted.kernel(desc, _register(desc, target), tasks)
        if shifted is not None or SpreadWindows.serves(desc):
            return shifted or SpreadWindows(desc, tasks).kernel()
    if not isinstance(desc, (Summed, Largest)) or desc.wide():
        return _default.kernel(desc, target, shared)
    full = _register(desc, target)
    work = max(desc.whole().element_count, desc.pooled().element_count * min(desc.taps(), 8))
    tasks = split(work, target, knobs.task_elements, knobs.tasks_per_thread)
    if _is_image(desc):
        return WholeImages(desc, full, tasks).kernel()
    for along, dimension in _contiguous(desc):
        most = full * (knobs.channel_registers if along is None else knobs.registers)
        edges = along is not None and _edged(desc, along, most) >= _FEWEST
        lanes = _edged(desc, along, most) if along is not None and edges else _lanes(desc, along, dimension, most)
        if lanes >= _FEWEST:
            way = Rolling if Rolling.serves(desc, dimension) else Lines
            return way(desc, along, dimension, lanes, edges, tasks).kernel()
    return _default.kernel(desc, target, shared)


def _register(desc: Any, target: Target) -> int:
    """The elements that are computed in one register."""
    processor = getattr(target, "processor", None)
    width = 64 if processor is not None and processor.has("avx512f") else 32
    return int(width // max(desc.whole().data_type.itemsize, 4 if desc.computed == "float32" else 1))


def _is_image(desc: Any) -> bool:
    """Whether each window has a whole image, which is contiguous."""
    if isinstance(desc, Largest) and desc.indices() is not None:
        return False
    x, step = desc.whole(), 1
    for one in reversed(desc.windows()):
        size = x.sizes[one.dimension]
        whole = desc.pooled().sizes[one.dimension] == 1 and one.start == 0 and one.size >= size and one.dilation == 1
        if not whole or (x.layout[one.dimension] != step and size > 1):
            return False
        step *= size
    return step >= _FEWEST and [one.dimension for one in desc.windows()] == list(range(2, x.rank))


def _contiguous(desc: Any) -> list[tuple[WindowAxis | None, int]]:
    """The dimensions in which all tensors are contiguous, and the windows along each; the longest first."""
    windows = {one.dimension: one for one in desc.windows()}
    tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
    found = [i for i in range(desc.pooled().rank) if all(one.layout[i] == 1 for one in tensors) and desc.pooled().sizes[i] > 1]
    return [(windows.get(i), i) for i in sorted(found, key=lambda i: -desc.pooled().sizes[i])]


def _interior(desc: Any, along: WindowAxis, size: int, count: int) -> tuple[int, int]:
    """The windows whose taps are inside, and around which enough can be read."""
    low = min(-(-along.start // along.stride), count)
    high = (size + along.start - max(along.span, along.stride)) // along.stride + 1
    return low, max(low, min(high, count))


def _lanes(desc: Any, along: WindowAxis | None, dimension: int, most: int) -> int:
    """The windows of a vector: a power of two."""
    count = desc.pooled().sizes[dimension]
    if along is not None:
        if along.stride > _MOST_STRIDE or along.size > _MOST_TAPS:
            return 0
        low, high = _interior(desc, along, desc.whole().sizes[dimension], count)
        count = high - low
    lanes = most
    while lanes > count:
        lanes //= 2
    return lanes


def _edged(desc: Any, along: WindowAxis, most: int) -> int:
    """The windows of a vector if the first and the last one of a line may have taps outside; 0 if that is not worth it.

    All windows beside these two vectors are inside: where paddings are wide, there is no such vector.
    """
    size, count = desc.whole().sizes[along.dimension], desc.pooled().sizes[along.dimension]
    low, high = _interior(desc, along, size, count)
    if along.stride > _MOST_STRIDE or along.size > _MOST_TAPS or size > LONGEST or (low, high) == (0, count):
        return 0
    lanes = most
    while lanes > min(high - low, count - low, high) or lanes * along.stride > size:
        lanes //= 2
    return lanes if max(low, count - high) <= lanes else 0
