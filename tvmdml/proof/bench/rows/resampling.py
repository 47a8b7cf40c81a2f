"""The resampling family: images enlarged and reduced, linear and to the nearest; regions of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.doors import resample as functions
from tvmdml.proof.bench.cases import Case, Group
from tvmdml.proof.bench.task import Kind, Task
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("resampling")


def _function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    """The function has other words for the mode and the sizes."""
    given: dict[str, Any] = dict(task.work.attributes)
    more: dict[str, Any] = {
        name: given[name] for name in ("rounding_direction", "scales", "input_pixel_offsets", "output_pixel_offsets")
    }
    sizes = task.desc.outputs()[0].sizes
    return partial(functions.resample, arrays[0], sizes, interpolation_mode=given["interpolation_mode"], **more)


# Some libraries compute places in float32, which moves them by a part of an element.
KIND = Kind(function=_function, close=True, steps=1 << 14)
IMAGES = (((1, 3, 256, 256), (512, 512)), ((1, 64, 56, 56), (112, 112)))
REDUCED = {"linear": ((1, 3, 1080, 1920), (224, 224)), "nearest_neighbor": ((1, 3, 1080, 1920), (216, 256))}
"""Places between elements are exact in float32 for the nearest: libraries that round them would take another element at ties."""


def resampled(sizes: tuple[int, ...], to: tuple[int, int], mode: str, dtype: str) -> Work:
    """RESAMPLE3 with centres in the middles; the nearest of two equally near elements is the one after."""
    outputs = (*sizes[:2], *to)
    rank = len(sizes)
    return Work.on(
        "RESAMPLE3", Operand(sizes, dtype),
        output_tensor=Operand(outputs, dtype, data=""), interpolation_mode=mode,
        scales=tuple(m / n for n, m in zip(sizes, outputs, strict=True)),
        input_pixel_offsets=(0.5 if mode == "linear" else 0.0,) * rank, output_pixel_offsets=(-0.5,) * rank,
        rounding_direction="decreasing", antialiased=False,
        door="bound",
    )  # fmt: skip


def _goals() -> Iterator[Case]:
    for mode in ("linear", "nearest_neighbor"):
        for dtype in ("float32", "float16"):
            for sizes, to in (*IMAGES, REDUCED[mode]):
                name = f"resampling {mode.partition('_')[0]} {dtype}"
                quick = (dtype, mode) == ("float32", "linear") and to == (512, 512)
                yield Case(name, f"{sizes[1:]} to {to}", resampled(sizes, to, mode, dtype), 2.0, quick, group=GROUP)


CASES = tuple(_goals())
