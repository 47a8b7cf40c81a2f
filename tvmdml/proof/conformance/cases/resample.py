"""The operators of ``operators/resample.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tvmdml.enums import AxisDirection, InterpolationMode
from tvmdml.operators import Operator
from tvmdml.operators._resampling import Resampling
from tvmdml.operators.resample import Resample, Resample1, Resample2, Resample3, ResampleGrad, ResampleGrad1
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, Case, change
from tvmdml.tensors import TensorDesc

NEAREST, LINEAR = InterpolationMode
UP, DOWN = AxisDirection
FARTHEST = 3.4028234663852886e38
HALF = (0.5, -0.5)

Ratio = tuple[int, int]


def _way(
    cls: type[Operator], mode: InterpolationMode, *ratios: Ratio, offsets: tuple[float, float] = HALF, **more: Any
) -> _movement.Make:
    """Descriptors whose last dimensions have other sizes by these ratios; ``scale`` is that of the last one, if it is another."""
    scale = more.pop("scale", None)

    def make(x: TensorDesc) -> Operator:
        *outer, first, second = [(1, 1)] * x.rank + [(1, 1), *ratios][-2:]
        own = [*outer, first, second][-x.rank :]
        sizes = tuple(max(1, n * a // b) for n, (a, b) in zip(x.sizes, own, strict=True))
        scales = [m / n for n, m in zip(x.sizes, sizes, strict=True)]
        scales[-1] = scale or scales[-1]
        numbers: dict[str, Any] = {"interpolation_mode": mode, "scales": scales, **more}
        if cls is not Resample:
            numbers |= {"input_pixel_offsets": (offsets[0],) * x.rank, "output_pixel_offsets": (offsets[1],) * x.rank}
        output = "output_gradient_tensor" if cls in (ResampleGrad, ResampleGrad1) else "output_tensor"
        if output == "output_gradient_tensor":
            numbers["scales"] = [1 / one for one in scales]
        return cls.of(x, **{output: TensorDesc(x.data_type, sizes), **numbers})

    return make


_PLAIN: tuple[tuple[Any, ...], ...] = ((LINEAR, (2, 1), (2, 1)), (NEAREST, (3, 2), (1, 2)), (LINEAR, (1, 3), (5, 2)))
_MOVED: tuple[tuple[Any, ...], ...] = ((LINEAR, (1, 1), (3, 1)), (NEAREST, (2, 1), (2, 1)))
_WAYS: dict[type[Operator], tuple[_movement.Make, ...]] = {
    Resample: tuple(_way(Resample, *one) for one in _PLAIN),
    Resample1: tuple(_way(Resample1, *one, offsets=(0.0, 0.0)) for one in _MOVED),
    Resample2: (
        _way(Resample2, NEAREST, (2, 1), (2, 1), rounding_direction=UP),
        _way(Resample2, NEAREST, (1, 2), (2, 3), rounding_direction=DOWN, offsets=(0.3, -0.2)),
        _way(Resample2, LINEAR, (2, 1), (1, 2), rounding_direction=UP, scale=0.6),
    ),
    Resample3: (
        _way(Resample3, LINEAR, (1, 3), (1, 5), rounding_direction=UP, antialiased=True),
        _way(Resample3, LINEAR, (2, 1), (2, 1), rounding_direction=UP, antialiased=True),
        _way(Resample3, LINEAR, (1, 1), (1, 4), rounding_direction=UP, antialiased=True, scale=0.03),
        _way(Resample3, LINEAR, (2, 1), (2, 1), rounding_direction=UP, antialiased=False, scale=FARTHEST),
        _way(Resample3, NEAREST, (2, 1), (2, 1), rounding_direction=DOWN, antialiased=True, scale=1e-30, offsets=(1e6, 3e-7)),
    ),
    ResampleGrad: tuple(_way(ResampleGrad, *one) for one in (*_PLAIN, *_MOVED)),
    ResampleGrad1: (
        _way(ResampleGrad1, NEAREST, (2, 1), (2, 1), rounding_direction=UP, offsets=(0.0, 0.0)),
        _way(ResampleGrad1, NEAREST, (1, 2), (2, 3), rounding_direction=DOWN, offsets=(0.3, -0.2)),
        _way(ResampleGrad1, LINEAR, (2, 1), (1, 2), rounding_direction=UP, scale=0.6),
    ),
}


def _rules() -> Iterator[tuple[str, Broken]]:
    for cls, (way, *_) in _WAYS.items():
        good, name = way(_movement.X), cls.NAME
        assert isinstance(good, Resampling)
        last = good.scales[:-1]
        yield f"{name}: few scales", Broken(change(good, scales=last), f"{name} scales", "3 numbers", "4, one for each dimension")
        for shown, value in (("0.0", 0.0), ("-1.0", -1.0), ("inf", float("inf")), ("nan", float("nan"))):
            allowed = "a finite number greater than 0"
            yield f"{name}: a scale of {shown}", Broken(change(good, scales=(*last, value)), f"{name} scales[3]", shown, allowed)
        if cls is not Resample:
            wrong = change(good, output_pixel_offsets=(0, 0, 0, float("inf")))
            yield f"{name}: no offset", Broken(wrong, f"{name} output_pixel_offsets[3]", "inf", "a finite number")
        other = "output_gradient_tensor" if cls in (ResampleGrad, ResampleGrad1) else "output_tensor"
        first = cls.fields()[0].name
        flat = change(good, **{other: TensorDesc("float32", (4, 4, 6))})
        yield f"{name}: another rank", Broken(flat, f"{name} {other}.rank", "3", f"4, as in {first}")
    small: Any = dataclasses.replace(_WAYS[Resample3][0](_movement.X), scales=(1.0, 1.0, 1.0, 1e-7))  # type: ignore[type-var]
    allowed = "1 / 1048576 or more, if the result is antialiased"
    yield "RESAMPLE3: too small", Broken(lambda: small, "RESAMPLE3 scales[3]", str(small.scales[3]), allowed)


_CASES = _movement.of("resample", _WAYS, dict(_rules()))
DESCRIBED, BROKEN = _CASES.described, _CASES.broken


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Those of the movement family, and more dimensions that change."""
    yield from _CASES.reference(cls)
    for sizes, to in (((3, 2, 5, 4), (5, 3, 2, 7)), ((2, 1, 3, 1, 4, 2), (3, 1, 2, 1, 5, 4))):
        for mode in InterpolationMode:
            given = (to, sizes) if cls in (ResampleGrad, ResampleGrad1) else (sizes, to)
            desc = _WAYS[cls][0](TensorDesc("float32", given[0]))
            names = [field.name for field in cls.fields()]
            scales = tuple(m / n for n, m in zip(sizes, to, strict=True))
            yield Case(
                dataclasses.replace(  # type: ignore[type-var]
                    desc, **{names[1]: TensorDesc("float32", given[1]), "interpolation_mode": mode, "scales": scales}
                )
            )
