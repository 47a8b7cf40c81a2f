"""What a direct convolution on the CPU is, in numbers of a launch: the frame that it reads, its steps, and its phases.

An image is copied once, with its padding around it, into a frame; there, what the next places of the output need are neighbours,
also across rows, so that a vector of places reads a vector of elements, wherever it lies. Places are counted in the frame's width:
those at the end of its rows, where filters meet the next row, are computed for nothing.

With a stride, every element of the image has a phase in each dimension, what is left of its place divided by the stride, and each
phase has a frame of its own. Backward, the output's elements have phases, each with the taps that meet it; frames have none.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

DIMENSIONS = 3
"""Those of all plans: of a row, planes and rows have size 1."""
_LINE = 16
"""Elements of a cache line."""
_SETS = 128  # of four bytes each: channels of a frame are never a multiple of 512 bytes apart
_OF_DIMENSION = (
    "kernel", "dilation", "forward", "backward", "phases", "start", "room", "image", "image_step", "padding", "first", "output",
    "output_step", "tap_step",
)  # fmt: skip
_OF_ALL = (
    "batch", "groups", "channels", "filters", "taps", "image_batch", "image_channel", "output_batch", "output_channel",
    "filter_group", "filter_row", "filter_channel", "filter_base", "frame", "area", "row_step", "plane_step", "filter_zero_step",
)  # fmt: skip
NAMES = (*_OF_ALL, *(f"{name}{i}" for name in _OF_DIMENSION for i in range(DIMENSIONS)))
"""The numbers, in the order of a kernel's parameters."""


@dataclasses.dataclass(frozen=True)
class ConvolutionPlan:
    """A direct convolution."""

    numbers: dict[str, int]
    backward: bool
    in_place: bool
    """Whether the image itself is the frame."""
    rows_contiguous: bool
    """Whether each filter is contiguous, in the order of its products."""

    def __getattr__(self, name: str) -> int:
        """One of the numbers."""
        try:
            return self.numbers[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def places(self) -> int:
        """The places of the output, counted in the frame's width; backward, of the largest phase."""
        counts = [self.count(i) for i in range(DIMENSIONS)]
        return (counts[0] - 1) * self.plane_step + (counts[1] - 1) * self.row_step + counts[2]

    def count(self, i: int) -> int:
        """The most places of a phase along a dimension."""
        return -(-self.numbers[f"output{i}"] // self.numbers[f"backward{i}"])

    @property
    def products(self) -> int:
        """Those of one element of the output, of all phases together."""
        return self.channels * self.taps

    def filters_from(self) -> str:
        """How filters lie, and in which order they are read: part of what identifies packed ones."""
        names = ("group", "row", "channel", "base", "zero_step")
        steps = [self.numbers[f"filter_{name}"] for name in names] + [self.numbers[f"tap_step{i}"] for i in range(DIMENSIONS)]
        return " ".join(map(str, steps))

    def scalars(self) -> tuple[int, ...]:
        """The numbers of a launch."""
        return tuple(self.numbers[name] for name in NAMES)


def plan(desc: Any, floats: bool) -> ConvolutionPlan | None:
    """The plan of a convolution; ``None`` if it has output padding. ``floats``: whether the image is of the type of sums."""
    along, (filters, channels) = desc.along(), desc.filters()
    if any(one.padding for one in along):
        return None
    x, w, y, back = desc.input_tensor, desc.filter_tensor, desc.output_tensor, desc.backward
    own: dict[str, list[int]] = {name: [] for name in _OF_DIMENSION}
    base = 0
    for i, one in enumerate(along, 2):
        tap, reach = w.layout[i], (one.kernel - 1) * one.dilation
        if desc.turned:
            base, tap = base + (one.kernel - 1) * tap, -tap
        first = one.start // one.stride - reach // one.stride if back else 0
        forward = 1 if back else one.stride
        few = one.kernel == 1 or one.dilation % forward == 0
        if back:
            room = (one.output - 1 + one.start) // one.stride - first + 1
        else:
            room = one.output - 1 + reach // forward + 1
        numbers = (
            *(one.kernel, one.dilation, forward, one.stride if back else 1, 1 if few else forward),
            *(-first if back else one.start, room, one.image, x.layout[i], one.start if back else 0, first),
            *(one.output, y.layout[i], tap),
        )
        for name, number in zip(_OF_DIMENSION, numbers, strict=True):
            own[name].append(number)
    plain = dict(zip(_OF_DIMENSION, (1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 0, 0), strict=True))
    for name, some in own.items():
        own[name] = [plain[name]] * (DIMENSIONS - len(some)) + some
    in_place = floats and not back and _merge(own)
    row, plane = own["room"][2], own["room"][2] * own["room"][1]
    if in_place:
        row = own["image_step"][1] if own["image"][1] > 1 else own["room"][2]
        plane = own["image_step"][0] if own["image"][0] > 1 else row * own["room"][1]
        in_place = row >= own["room"][2] and plane % row == 0 and plane >= row * own["room"][1]
        if not in_place:
            row, plane = own["room"][2], own["room"][2] * own["room"][1]
    taps, area = math.prod(own["kernel"]), _apart(math.prod(own["room"]))
    first_step, second_step = (w.layout[1], w.layout[0]) if back else (w.layout[0], w.layout[1])
    zeros = desc.zero_points()
    numbers_of_all = {
        "batch": y.sizes[0],
        "groups": desc.group_count,
        "channels": channels,
        "filters": filters,
        "taps": taps,
        "image_batch": x.layout[0],
        "image_channel": x.layout[1],
        "output_batch": y.layout[0],
        "output_channel": y.layout[1],
        "filter_group": w.layout[0] * (channels if back else filters),
        "filter_row": first_step,
        "filter_channel": second_step,
        "filter_base": base,
        "frame": x.layout[1] if in_place else area * math.prod(own["phases"]),
        "area": area,
        "row_step": row,
        "plane_step": plane,
        "filter_zero_step": 0 if zeros[0] is None else _step(zeros[0][1]),
    }
    steps, contiguous = 1, not back and not desc.turned
    for i in reversed(range(DIMENSIONS)):
        contiguous &= own["kernel"][i] == 1 or own["tap_step"][i] == steps
        steps *= own["kernel"][i]
    contiguous &= channels == 1 or second_step == steps
    each = {f"{name}{i}": number for name, some in own.items() for i, number in enumerate(some)}
    return ConvolutionPlan(numbers_of_all | each, back, in_place, contiguous)


def _apart(area: int) -> int:
    """The elements from a channel of a frame to the next: those of many channels must not share few sets of a cache.

    A line more if the area is a multiple of the sets, by arithmetic: a size that is open is asked nothing.
    """
    return area + _LINE * (1 - (area % _SETS + _SETS - 1) // _SETS)


def _merge(own: dict[str, list[int]]) -> bool:
    """Whether the image can be read as it is; dimensions without taps are merged with those behind them."""
    if own["image_step"][2] != 1 and own["image"][2] > 1:
        return False
    if any(own["start"]) or any(one != 1 for one in own["forward"]):
        return False
    if any(room > image for room, image in zip(own["room"], own["image"], strict=True)):
        return False  # padding behind the image

    def alone(i: int) -> bool:
        return own["kernel"][i] == 1

    for i in (1, 0):
        j = i + 1 if i == 1 or own["image"][1] > 1 or own["output"][1] > 1 else 2
        small = own["output"][i] == 1 and own["image"][i] == 1
        whole = own["image"][j] == own["output"][j] and own["image_step"][i] == own["image"][j] * own["image_step"][j]
        merged = own["output_step"][i] == own["output"][j] * own["output_step"][j]
        if small or not (alone(i) and alone(j) and whole and merged):
            continue
        for name in ("image", "output", "room"):
            own[name][j] *= own[name][i]
            own[name][i] = 1
        own["image_step"][i] = own["output_step"][i] = 0
    return True


def _step(tensor: Any) -> int:
    if tensor.element_count == 1:
        return 0
    return tensor.layout[0 if tensor.rank == 1 else 1]
