"""The window family on a GPU: a thread for each element of the result. Sizes and strides are passed at launch.

So are the windows' numbers, but for small windows: their loops are unrolled, and a thread has several neighbours, which have
coordinates, rows and elements in common.

Neighbouring threads have neighbours in memory, with channels first and last alike. Regions that a tensor says, and their bins, are
computed once for several channels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._window import CHAIN, FEW, Window, levels_of
from tvmdml.operators._window_gradients import Gathered
from tvmdml.operators.max_unpooling import MaxUnpooling
from tvmdml.schedules.gpu import _default, _gather, enough_groups
from tvmdml.schedules.gpu._gather import CHANNELS, GatherWriter, channels_for
from tvmdml.schedules.gpu._window_sliding import Sliding, run_of
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvmdml.tensors import TensorDesc

KNOBS = Knobs(
    "window",
    enough_groups(1024),
    threads=Knob(128, (32, 64, 128, 256, 512), "threads per group"),
    neighbours=Knob(4, (1, 2, 4), "neighbours of a thread where windows have few taps"),
    **CHANNELS,
    most_groups=Knob(65535, (*(1 << n for n in range(16)), 65535), "maximum groups; each strides over the rest"),
)

_READS, _READS_EACH = 81, 4
"""The most elements that gradients of small windows read for one, where numbers are constants, and where a thread has several:
loops are unrolled, and code becomes long.
"""
_FIELDS = ("strides", "window_size", "start_padding", "end_padding", "dilations")


def kernel(desc: Any, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """One launch; of MAX_UNPOOLING two."""
    if not isinstance(desc, Window):
        known = {"channels": channels_for(desc.outputs()[0], knobs)} if hasattr(desc, "channels") else {}
        found: Kernel = _gather.kernel(desc.flat() if isinstance(desc, MaxUnpooling) else desc, target, knobs, known)
    elif run := run_of(desc, knobs):
        found = _gather.finished(Sliding(desc, target, knobs, run), "slides")
    elif desc.wide():
        found = _default.kernel(desc, target, shared)
    else:
        found = _gather.finished(_of_windows(desc, target, knobs), "threads")
    return found


def _of_windows(desc: Window, target: DeviceTarget, knobs: Any) -> GatherWriter:
    """What writes a kernel for any numbers of windows."""
    taps, windows = desc.taps(), desc.windows_at() if isinstance(desc, Gathered) else desc.taps()
    reads = desc.reads() if isinstance(desc, Gathered) else 0
    known = math.prod(along.size for along in desc.windows()) <= FEW and reads <= _READS
    several = _several(desc.whole() if reads else desc.pooled(), knobs) if known and reads <= _READS_EACH else 1
    fields = [] if known else [name for name in _FIELDS if hasattr(desc, name)]
    if "dilations" in fields and set(desc.dilations) == {1}:  # type: ignore[attr-defined]
        fields.remove("dilations")  # these need no division
    tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
    longest = max(max(tensor.sizes) for tensor in tensors)
    reach = max(along.span + along.start + along.end for along in desc.windows())
    steps = max(along.stride for along in desc.windows()) * (longest + 1)
    most = CHAIN ** levels_of(windows)  # sums of so many terms have the same levels
    pooled, whole = desc.pooled(), desc.whole()
    inside = tuple(
        one.dimension
        for one in desc.windows()
        if one.start == 0 and (pooled.sizes[one.dimension] - 1) * one.stride + one.span <= whole.sizes[one.dimension]
    )
    told = {"known_several": several, "known_inside": inside} if known else {}
    return GatherWriter(
        desc, target, knobs, max(*(one for name in fields for one in getattr(desc, name)), 0, reach + longest, steps), fields,
        desc.OF_CHANNELS, {"known_taps": most, "known_windows": most, "known_wide": False, **told},
        4 * (windows + 1) * (taps + 1) * several,
    )  # fmt: skip


def _several(result: TensorDesc, knobs: Any) -> int:
    """How many neighbours of the result a thread has."""
    count: int = knobs.neighbours
    alone = result.sizes[GatherWriter.order(result)[-1]] % count or result.element_count < count * knobs.channel_items
    return 1 if alone else count
