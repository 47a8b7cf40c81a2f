"""The family of ROI_ALIGN on a GPU. Sizes and strides are passed at launch.

- ``threads``: a thread for each element of the result, or for several channels of it. Where its samples are, and how they weigh the
  elements around them, is computed once for these. Gradients of images gather from the parts of regions that have the element.
- ``groups``: gradients of regions, too: a group of threads for each region, which share its parts. Sums are combined in shared
  memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._roi_align import RoiOperator
from tvmdml.operators._roi_align_gradient import of_images, slopes, store
from tvmdml.schedules.gpu import _gather, enough_groups, strided
from tvmdml.schedules.gpu._gather import CHANNELS, GatherWriter, channels_for
from tvmdml.schedules.gpu._joined import JoinedThreads
from tvmdml.targets._device import DeviceTarget

KNOBS = Knobs(
    "roi_align",
    enough_groups(1024),
    threads=Knob(128, (32, 64, 128, 256), "threads per group"),
    **CHANNELS,
    most_groups=Knob(65535, (*(1 << n for n in range(16)), 65535), "maximum groups; each strides over the rest"),
)


def kernel(desc: Any, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """One launch, or one for each of two gradients."""
    results = [one for one in desc.outputs() if one is not None]
    of_regions = getattr(desc, "output_roi_gradient_tensor", None) is not None
    writer_of = _Regions if of_regions else GatherWriter
    # Channels have their own largest samples, and so have the gradients of these.
    apart = (of_regions and len(results) == 1) or (desc.is_max and hasattr(desc, "output_gradient_tensor"))
    known = {"channels": 1 if apart else channels_for(results[0], knobs)}
    writer = writer_of(desc, target, knobs, 0, known=known)
    return _gather.finished(writer, "groups" if of_regions else "threads", desc.computed)


def _added(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    return [a + b for a, b in zip(one, other, strict=True)]


class _Regions(GatherWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Gradients of regions, after those of images, if these are asked for."""

    def write(self, own: RoiOperator, buffers: dict[str, Any]) -> None:
        desc: Any = own
        if desc.output_gradient_tensor is not None:
            of_images(desc, buffers, self.each)
        dtype, regions = self.numbers.dtype, T.index(desc.regions)
        groups = T.max(T.min(regions, self.n.most), self.numbers.const(1))
        with T.launch(groups, self.threads) as (group, thread):
            joined = JoinedThreads(self.threads, T.let(T.cast(thread, dtype)))

            @contextmanager
            def some(sizes: Sequence[Any]) -> Iterator[list[Any]]:
                channels, *parts = [T.index(size) for size in sizes]
                total = T.let(channels * parts[0] * parts[1])
                with strided(joined.thread, total, self.numbers.const(self.threads)) as item:
                    yield T.unravel(item, [channels, *parts])

            with strided(T.let(T.cast(group, dtype)), regions, T.let(T.cast(groups, dtype))) as r:
                found = joined.across(slopes(desc, buffers, r, some), _added)
                with T.when(joined.is_first):
                    store(desc, buffers, r, found)

    def counted(self, desc: Any, each: T.Each, buffers: dict[str, Any]) -> None:
        if desc.output_gradient_tensor is not None:
            of_images(desc, buffers, each)

        @contextmanager
        def some(sizes: Sequence[Any]) -> Iterator[list[Any]]:
            channels, *parts = sizes
            with T.loop(T.index(-(-channels * parts[0] * parts[1] // self.threads))):
                yield [T.index(0)] * 3

        with T.loop(T.index(-(-desc.regions // self.most))):
            slopes(desc, buffers, T.index(0), some)
