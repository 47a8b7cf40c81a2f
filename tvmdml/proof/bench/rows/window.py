"""The window family: averages and maxima of the windows that networks have, and of whole images; norms and responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvmdml.proof.bench.cases import MOVES, Case, Group, strided
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("windows")
# Some libraries add all elements of an image one after the other.
KIND = Kind(close=True, steps=256)
AVERAGE, LARGEST = "AVERAGE_POOLING1", "MAX_POOLING2"
_NAMES = {AVERAGE: "average pooling", LARGEST: "max pooling"}
WINDOWS = (
    ((1, 64, 112, 112), 3, 2, 1),
    ((8, 64, 112, 112), 3, 2, 1),
    ((1, 64, 56, 56), 2, 2, 0),
    ((8, 64, 224, 224), 2, 2, 0),
    ((1, 192, 28, 28), 3, 1, 1),
)
IMAGES = ((1, 2048, 7, 7), (8, 512, 28, 28))


def pooled(operator: str, sizes: tuple[int, ...], window: Any, stride: int = 1, padding: int = 0, **fields: Any) -> Work:
    """A pooling with square windows, or with one over the whole image (no window)."""
    size = tuple(sizes[2:]) if window is None else (window, window)
    own: dict[str, Any] = {"include_padding": False} if operator == AVERAGE else {"p": 2} if operator == "LP_POOLING1" else {}
    pair = (padding, padding)
    numbers: dict[str, Any] = {"strides": (stride, stride), "start_padding": pair, "end_padding": pair, "dilations": (1, 1)}
    return Work.on(operator, Operand(sizes, **fields), window_size=size, **numbers, **own)


def _goals() -> Iterator[Case]:
    for operator, name in _NAMES.items():
        for dtype in ("float32", "float16"):
            for number, (sizes, window, stride, padding) in enumerate(WINDOWS):
                work = pooled(operator, sizes, window, stride, padding, dtype=dtype)
                point = f"{window} x {window} by {stride} of {sizes}"
                yield Case(f"{name} {dtype}", point, work, 1.5, not number, group=GROUP)
            for sizes in IMAGES:
                yield Case(f"{name} {dtype}", f"all of {sizes}", pooled(operator, sizes, None, dtype=dtype), 1.5, group=GROUP)
        work = pooled(operator, *WINDOWS[0])
        yield strided(f"{name} float32 3 x 3 by 2 of {WINDOWS[0][0]}, padded rows", work, "padded")
    norm = pooled("LP_POOLING1", (1, 64, 112, 112), 3, 2)
    yield Case("norms and responses", "norm, 3 x 3 by 2 of (1, 64, 112, 112)", norm, 1.5, group=GROUP)
    numbers: dict[str, Any] = {"cross_channel": True, "local_size": 5, "alpha": 0.0001, "beta": 0.75, "bias": 1.0}
    response = Work.on("LOCAL_RESPONSE_NORMALIZATION", Operand((1, 96, 55, 55)), **numbers)
    yield Case("norms and responses", "responses of 5 channels of (1, 96, 55, 55)", response, 1.5, group=GROUP)


def _on_cuda() -> Iterator[Case]:
    for operator, name in _NAMES.items():
        work = pooled(operator, (64, 64, 224, 224), 2, 2)
        yield Case(f"{name} float32", "2 x 2 by 2 of (64, 64, 224, 224)", work, quick=True, share=MOVES)


CASES = tuple(_goals())
CASES_ON = {"cuda": tuple(_on_cuda())}
