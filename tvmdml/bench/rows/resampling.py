"""The resampling family: images enlarged and reduced, linear and to the nearest."""

from __future__ import annotations

from collections.abc import Iterator

from tvmdml.bench.cases import Case, Group
from tvmdml.bench.task import Kind
from tvmdml.bench.work import Operand, Work

GROUP = Group("resampling")
KIND = Kind(close=True)
IMAGES = (((1, 3, 256, 256), (512, 512)), ((1, 64, 56, 56), (112, 112)), ((1, 3, 1080, 1920), (224, 224)))


def resampled(sizes: tuple[int, ...], to: tuple[int, int], mode: str, dtype: str) -> Work:
    """RESAMPLE1 with centres in the middles."""
    outputs = (*sizes[:2], *to)
    rank = len(sizes)
    return Work.on(
        "RESAMPLE1", Operand(sizes, dtype),
        output_tensor=Operand(outputs, dtype, data=""), interpolation_mode=mode,
        scales=tuple(m / n for n, m in zip(sizes, outputs, strict=True)),
        input_pixel_offsets=(0.5,) * rank, output_pixel_offsets=(-0.5,) * rank,
        door="bound",
    )  # fmt: skip


def _goals() -> Iterator[Case]:
    for mode in ("linear", "nearest_neighbor"):
        for dtype in ("float32", "float16"):
            for sizes, to in IMAGES:
                name = f"resampling {mode.partition('_')[0]} {dtype}"
                quick = (dtype, mode) == ("float32", "linear") and to == (512, 512)
                yield Case(name, f"{sizes[1:]} to {to}", resampled(sizes, to, mode, dtype), 2.0, quick, group=GROUP)


CASES = tuple(_goals())
