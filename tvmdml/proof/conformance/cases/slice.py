"""The operators of ``operators/slice.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.operators import Operator
from tvmdml.operators.slice import Slice, Slice1, SliceGrad
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _slice(*steps: int, offset: int = 0) -> Callable[[TensorDesc], Operator]:
    """Windows from an offset on, with the steps in turn for the last dimensions."""

    def made(x: TensorDesc) -> Operator:
        offsets = [min(offset, n - 1) for n in x.sizes]
        strides = [steps[i % len(steps)] for i in range(x.rank)][::-1]
        sizes = [-(-(n - first) // step) for n, first, step in zip(x.sizes, offsets, strides, strict=True)]
        return Slice.of(x, offsets=offsets, sizes=sizes, strides=strides)

    return made


def _window(*steps: int, offset: int = 0, rest: int = 0) -> Callable[[TensorDesc], Operator]:
    """The same for SLICE1, without a rest at the end."""

    def made(x: TensorDesc) -> Operator:
        offsets = [min(offset, n - 1) for n in x.sizes]
        sizes = [max(1, n - first - rest) for n, first in zip(x.sizes, offsets, strict=True)]
        strides = [steps[i % len(steps)] for i in range(x.rank)][::-1]
        return Slice1.of(x, input_window_offsets=offsets, input_window_sizes=sizes, input_window_strides=strides)

    return made


def _gradient(*steps: int, offset: int = 0, rest: int = 0) -> Callable[[TensorDesc], Operator]:
    """The gradient of a window: the first tensor is the window's."""

    def made(x: TensorDesc) -> Operator:
        strides = [steps[i % len(steps)] for i in range(x.rank)][::-1]
        sizes = [(n - 1) * abs(step) + 1 for n, step in zip(x.sizes, strides, strict=True)]
        whole = x.with_sizes([offset + n + rest for n in sizes])
        return SliceGrad.of(
            x,
            output_gradient_tensor=whole,
            input_window_offsets=[offset] * x.rank,
            input_window_sizes=sizes,
            input_window_strides=strides,
        )

    return made


X = _movement.X
GOOD, GOOD1 = _slice(1)(X), _window(1)(X)
RULES = {
    "SLICE: too few offsets": Broken(
        change(GOOD, offsets=(0, 0)), "SLICE offsets", "2 numbers", "4, one for each dimension"
    ),
    "SLICE: a stride of 0": Broken(
        change(GOOD, strides=(1, 1, 1, 0)), "SLICE strides[3]", "0", "1 or more",
        advice="A repeated dimension has the stride 0 in its TensorDesc.",
    ),
    "SLICE: past the end": Broken(
        change(GOOD, offsets=(0, 0, 0, 1)), "SLICE sizes[3]", "6, with the last element at 6", "elements up to 5"
    ),
    "SLICE: another size of the output": Broken(
        change(GOOD, output_tensor=TensorDesc("float32", (2, 4, 4, 5))), "SLICE output_tensor.sizes", "(2, 4, 4, 5)", "(2, 4, 4, 6)"
    ),
    "SLICE1: a stride of 0": Broken(
        change(GOOD1, input_window_strides=(1, 1, 1, 0)), "SLICE1 input_window_strides[3]", "0", "other than 0",
        advice="A repeated dimension has the stride 0 in its TensorDesc.",
    ),
    "SLICE1: past the end": Broken(
        change(GOOD1, input_window_offsets=(0, 0, 0, 1)), "SLICE1 input_window_sizes[3]", "6, from 1", "a window within 6 elements"
    ),
    "SLICE1: more than the window has": Broken(
        change(GOOD1, input_window_strides=(1, 1, 1, -(2**31))),
        *("SLICE1 output_tensor.sizes[3]", "6", "up to 1: all that the window has"),
    ),
}  # fmt: skip

DESCRIBED, BROKEN, reference = _movement.of(
    "slice",
    {
        Slice: (_slice(1), _slice(2, 1, offset=1), _slice(3, 2)),
        Slice1: (_window(1), _window(1, offset=1), _window(-1, 1, rest=1), _window(2, -3, offset=1)),
        SliceGrad: (_gradient(1), _gradient(1, offset=1, rest=2), _gradient(2, 1), _gradient(1, -3, offset=2)),
    },
    RULES,
)
