"""Regions of images: as many as a network proposes, with samples in a grid, or as many as a region asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tvmdml
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.rows.resampling import GROUP
from tvmdml.proof.bench.task import Kind, Task
from tvmdml.proof.bench.work import Operand, Work


def _function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    """The function takes the sizes of the result."""
    *_, height, width = task.desc.outputs()[0].sizes
    given: dict[str, Any] = {name: value for name, value in task.work.attributes if name != "output_tensor"}
    return partial(tvmdml.roi_align, *arrays[:3], output_height=height, output_width=width, **given)


# Some libraries compute coordinates in another order.
KIND = Kind(function=_function, close=True, steps=1 << 14)
_MOST = 2**32 - 1
IMAGES = (((1, 256, 50, 50), 100, 7, 2), ((1, 256, 50, 68), 100, 14, 2), ((2, 64, 100, 136), 200, 7, None))


def aligned(sizes: tuple[int, ...], count: int, side: int, samples: int | None, dtype: str = "float32") -> Work:
    """Averages of samples of regions; without a number of samples as many as the region asks for."""
    return Work.on(
        "ROI_ALIGN1", Operand(sizes, dtype), Operand((count, 4), dtype, "regions"), Operand((count,), "uint32", "zeros"),
        output_tensor=Operand((count, sizes[1], side, side), dtype, data=""), reduction_function="average",
        interpolation_mode="linear", spatial_scale_x=1 / 16, spatial_scale_y=1 / 16, input_pixel_offset=0.5,
        output_pixel_offset=-0.5, out_of_bounds_input_value=0.0, minimum_samples_per_output=samples or 1,
        maximum_samples_per_output=samples or _MOST, align_regions_to_corners=False,
    )  # fmt: skip


def _goals() -> Iterator[Case]:
    for dtype in ("float32", "float16"):
        for sizes, count, side, samples in IMAGES:
            way = f"{samples} x {samples} samples" if samples else "samples by size"
            point = f"{count} of {sizes}, {side} x {side}, {way}"
            goal = 2.0 if dtype == "float32" else None
            work = aligned(sizes, count, side, samples, dtype)
            quick = (dtype, side) == ("float32", 14)
            yield Case(f"regions {dtype}", point, work, goal, quick, group=GROUP if goal else None)


CASES = tuple(_goals())
