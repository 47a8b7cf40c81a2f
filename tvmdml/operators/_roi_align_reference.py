"""ROI_ALIGN and its gradients in NumPy: coordinates in the region's type, and everything else in higher precision."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.operators._accuracy import Expected, Near, NumpyArray, within_sum

if TYPE_CHECKING:
    from tvmdml.operators._roi_align import RoiOperator


class SamplePart(NamedTuple):
    """The samples of a part of a region, along one side: those inside of the image."""

    count: Any
    """How many there are altogether."""
    first: int
    low: NumpyArray
    high: NumpyArray
    """Elements before and after each."""
    past: NumpyArray
    """How far each is between them."""
    way: NumpyArray
    """How far each is on the way from the region's first end to its last."""


def _parts(desc: Any, ends: Any, scale: float, parts: int, size: int, kind: Any, axis: int) -> list[SamplePart] | None:
    """The parts of a region along one side; ``None`` if it is not finite."""
    before, after = (kind(one) for one in desc.offsets)
    least, most = desc.limits
    with np.errstate(all="ignore"):
        begin, end = (kind(one) * kind(scale) for one in ends)
        length = end - begin
        if not np.isfinite([begin, end, length]).all():
            return None
        limit = kind(most)
        limit = limit if int(limit) <= most else np.nextafter(limit, kind(0))
        count = min(max(np.ceil(abs(length) / kind(parts)), kind(least)), limit)
        total = kind(parts) * count
        alone = desc.corners and total == 1
        if desc.corners:
            begin, total = ((begin + end) / kind(2), kind(1)) if alone else (begin, total - kind(1))
        step = length / total

        def number(part: int, i: Any) -> Any:
            s = kind(part) * count + np.asarray(i).astype(kind)
            return s if desc.corners else s - after

        def at(part: int, i: Any) -> Any:
            return number(part, i) * step + begin - before

        found = []
        for part in range(parts):
            rising = bool(step >= 0)
            every = range(int(count))
            start = bisect_left(every, True, key=lambda i, p=part: bool(at(p, i) >= -1 if rising else at(p, i) <= size))  # type: ignore[misc]
            stop = bisect_left(every, True, key=lambda i, p=part: bool(at(p, i) > size if rising else at(p, i) < -1))  # type: ignore[misc]
            numbers = np.arange(start, max(start, stop))
            x = at(part, numbers)
            way = np.full(x.shape, kind(0.5)) if alone else number(part, numbers) / total
            if desc.is_linear:
                x = np.clip(x, 0, size - 1)
                low = np.floor(x)
            else:
                low = x = np.clip(np.floor(x + kind(0.5)), 0, size - 1)
            past = x - low
            low = low.astype(np.int64)
            found.append(SamplePart(float(count), start, low, low + (past > 0), past, way))
    return found


def _regions(desc: RoiOperator, roi: NumpyArray, batch: NumpyArray, sizes: Any, parts: Any) -> Any:
    """For each region that is in an image: its number, the image, and its parts along y and x; ``None`` for others."""
    kind: Any = np.float64 if roi.dtype == np.float64 else np.float32
    for r, (x1, y1, x2, y2) in enumerate(roi.reshape(-1, 4)):
        image = int(batch.reshape(-1)[r])
        y = _parts(desc, (y1, y2), desc.spatial_scale_y, parts[2], sizes[2], kind, 1)
        x = _parts(desc, (x1, x2), desc.spatial_scale_x, parts[3], sizes[3], kind, 0)
        yield r, image, None if y is None or x is None or not 0 <= image < sizes[0] else (y, x)


def _sampled(x: NumpyArray, y: SamplePart, across: SamplePart) -> tuple[Any, Any]:
    """The samples of a part, for each channel: values, and the largest magnitudes among the elements around them."""
    total: Any = 0
    most: Any = 0
    for rows, down in ((y.low, 1 - y.past.astype(x.dtype)), (y.high, y.past.astype(x.dtype))):
        for columns, past in ((across.low, 1 - across.past.astype(x.dtype)), (across.high, across.past.astype(x.dtype))):
            weight = down[:, None] * past[None, :]
            taken = x[:, rows][:, :, columns]
            total = total + np.where(weight > 0, weight * taken, 0)
            most = np.maximum(most, np.where(weight > 0, np.abs(taken), 0))
    return total, most


def _computed(x: NumpyArray, y: SamplePart, across: SamplePart) -> NumpyArray:
    """The samples of a part as a kernel computes them, rounded after each operation: which one is the largest depends on it."""

    def between(first: NumpyArray, second: NumpyArray, past: NumpyArray) -> NumpyArray:
        return np.where(past > 0, first * (1 - past) + second * past, first)

    below, above = (between(x[:, rows][:, :, across.low], x[:, rows][:, :, across.high], across.past) for rows in (y.low, y.high))
    return between(below, above, y.past[:, None])


def aligned(desc: Any, x: NumpyArray, roi: NumpyArray, batch: NumpyArray) -> Expected:
    """The result of ROI_ALIGN1."""
    wide: Any = np.longdouble if x.dtype == np.float64 else np.float64
    images = x.astype(wide)
    sizes = desc.output_tensor.sizes
    outside = wide(desc.out_of_bounds_input_value)
    found, most, terms = np.full(sizes, outside), np.zeros(sizes, wide), np.zeros(sizes)
    with np.errstate(all="ignore"):
        for r, image, sides in _regions(desc, roi, batch, x.shape, sizes):
            for oy, ox in np.ndindex(*sizes[2:]) if sides is not None else ():
                y, across = sides[0][oy], sides[1][ox]
                values, magnitudes = _sampled(images[image], y, across)
                seen, count = y.low.size * across.low.size, wide(y.count) * wide(across.count)
                flat = values.reshape(len(values), -1)
                most[r, :, oy, ox] = magnitudes.reshape(len(values), -1).max(1, initial=0)
                if seen < count and np.isfinite(outside):
                    most[r, :, oy, ox] = np.maximum(most[r, :, oy, ox], abs(outside))
                terms[r, :, oy, ox] = seen
                if desc.is_max:
                    best = flat.max(1, initial=-np.inf)
                    found[r, :, oy, ox] = best if seen == count else np.maximum(best, outside)
                else:
                    rest = outside * ((count - seen) / count) if seen < count else 0
                    found[r, :, oy, ox] = flat.sum(1) / count + rest
    if desc.is_max and not desc.is_linear:
        return Near(found, x.dtype, 0, 0.0)
    return within_sum(found, x.dtype, (terms + 13) / 2, most)  # eps is two roundings


def gradients(desc: Any, x: NumpyArray | None, gradient: NumpyArray, roi: NumpyArray, batch: NumpyArray) -> tuple[Expected, ...]:
    """The results of ROI_ALIGN_GRAD that are asked for."""
    wide: Any = np.longdouble if gradient.dtype == np.float64 else np.float64
    image_sizes = desc.ends()[0].sizes
    images = None if x is None else x.astype(wide)
    # Sums, sums of magnitudes, and numbers of terms.
    of_images = [np.zeros(image_sizes, wide) for _ in range(3)]
    of_regions = [np.zeros((len(roi.reshape(-1, 4)), 4), wide) for _ in range(3)]
    with np.errstate(all="ignore"):
        for r, image, sides in _regions(desc, roi, batch, image_sizes, gradient.shape):
            for oy, ox in np.ndindex(*gradient.shape[2:]) if sides is not None else ():
                y, across = sides[0][oy], sides[1][ox]
                shape = (y.low.size, across.low.size)
                if not min(shape):
                    continue
                g = gradient[r, :, oy, ox].astype(wide)
                if desc.is_max:
                    assert x is not None
                    values = _computed(x[image].astype(desc.computed), y, across).reshape(len(g), -1)
                    share = np.zeros(values.shape, wide)
                    share[np.arange(len(g)), values.argmax(1)] = 1  # the first, and the first NaN before any number
                    share = share.reshape(-1, *shape)
                else:
                    share = np.full((len(g), *shape), wide(1) / (wide(y.count) * wide(across.count)))
                each = np.where(share > 0, share * g[:, None, None], 0)
                _to_image([one[image] for one in of_images], each, share > 0, y, across)
                if desc.output_roi_gradient_tensor is not None and desc.is_linear:
                    assert images is not None
                    _to_region(desc, [one[r] for one in of_regions], each, share > 0, images[image], y, across)
    found: list[Expected] = []
    for tensor, (values, magnitudes, terms) in zip(
        (desc.output_gradient_tensor, desc.output_roi_gradient_tensor), (of_images, of_regions), strict=True
    ):
        if tensor is not None:
            error = np.where(magnitudes > _most(wide), np.nan, magnitudes.astype(np.float64)).reshape(tensor.sizes)
            factor = (terms.astype(np.float64).reshape(tensor.sizes) + 17) / 2
            found.append(within_sum(values.reshape(tensor.sizes), gradient.dtype, factor, error))
    return tuple(found)


def _most(wide: Any) -> Any:
    """About the largest number of the type that a kernel computes in, where this is the reference's."""
    return np.dtype(wide).type(np.finfo(np.float64 if wide == np.longdouble else np.float32).max) * 0.999


def _magnitude(x: Any) -> Any:
    return np.where(np.isfinite(x), np.abs(x), 0)


def _to_image(sums: Any, each: Any, counts: Any, y: SamplePart, across: SamplePart) -> None:
    kind = each.dtype
    for rows, down in ((y.low, 1 - y.past.astype(kind)), (y.high, y.past.astype(kind))):
        for columns, past in ((across.low, 1 - across.past.astype(kind)), (across.high, across.past.astype(kind))):
            weight = down[:, None] * past[None, :]
            used = (weight > 0) & counts
            part = np.where(used, weight * each, 0)
            place: Any = (slice(None), rows[:, None], columns[None, :])
            for total, value in zip(sums, (part, _magnitude(part), used), strict=True):
                np.add.at(total, place, value)


def _to_region(desc: Any, sums: Any, each: Any, counts: Any, x: Any, y: SamplePart, across: SamplePart) -> None:
    kind = each.dtype
    for axis, scale, own, other in ((0, desc.spatial_scale_x, across, y), (1, desc.spatial_scale_y, y, across)):
        image = x if axis == 0 else x.swapaxes(1, 2)
        given, used = (one if axis == 0 else one.swapaxes(1, 2) for one in (each, counts))
        slope: Any = 0
        steep: Any = 0
        lost: Any = False  # something on the way overflows, though its product with a small factor would not
        for rows, weight in ((other.low, 1 - other.past.astype(kind)), (other.high, other.past.astype(kind))):
            taken = image[:, rows]
            differ = np.where((own.past > 0)[None, None, :], taken[:, :, own.high] - taken[:, :, own.low], 0)
            some = np.where((weight > 0)[None, :, None], weight[None, :, None] * differ, 0)
            slope, steep, lost = slope + some, steep + _magnitude(some), lost | (_magnitude(differ) > _most(kind))
        lost = lost | (_magnitude(given * steep) > _most(kind))
        moving = used & (own.past > 0)[None, None, :]
        for end, way in ((0, 1 - own.way), (1, own.way)):
            factor = kind.type(scale) * way.astype(kind)[None, None, :]
            part = np.where(moving, given * slope * factor, 0)
            magnitude = np.where(lost, 2 * _most(kind), _magnitude(given * steep * factor)) * moving
            for total, value in zip(sums, (part, magnitude, moving), strict=True):
                total[axis + 2 * end] += value.sum()
