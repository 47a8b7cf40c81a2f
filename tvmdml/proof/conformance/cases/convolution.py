"""The operators of ``operators/convolution.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tvmdml.enums import ConvolutionDirection, ConvolutionMode
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._fused import OF_CONVOLUTION
from tvmdml.operators.activation import ActivationLeakyRelu, ActivationRelu
from tvmdml.operators.activation_smooth import ActivationTanh
from tvmdml.operators.convolution import Convolution, ConvolutionInteger, QuantizedLinearConvolution
from tvmdml.operators.element_wise_binary import ElementWiseAdd
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import FLOATING, PAIRS, Broken, Case, Sizes, change
from tvmdml.proof.conformance.cases._window import beside, laid
from tvmdml.tensors import TensorDataType
from tvmdml.tensors import TensorDesc as T

INT8, UINT8 = TensorDataType.INT8, TensorDataType.UINT8


class ConvolutionForm(NamedTuple):
    """A convolution, with the same numbers in each spatial dimension."""

    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    start: int = 0
    end: int = 0
    groups: int = 1
    filters: int = 4
    """Of each group."""
    backward: bool = False
    turned: bool = False
    more: int = 0
    """Backward: elements of the output beyond the usual ones."""
    zeros: int = 0
    """Elements of output padding."""
    bias: bool = True
    activation: Any = None
    width: int = 0
    """The filter's last size, if it is another one."""
    beside: tuple[int, int] = (0, 0)
    """More padding of the last dimension, before and behind it."""


RELU, LEAKY, TANH = ActivationRelu.fused(), ActivationLeakyRelu.fused(alpha=0.25), ActivationTanh.fused()
FORMS = (
    ConvolutionForm(start=1, end=1),
    ConvolutionForm(1, bias=False, filters=19),
    ConvolutionForm(3, 2, start=1, end=1, groups=3, filters=1, activation=RELU),
    ConvolutionForm(2, 3, 2, end=3, turned=True, filters=2, activation=LEAKY),
    ConvolutionForm(2, 2, backward=True, filters=5),
    ConvolutionForm(3, 2, start=1, end=1, backward=True, more=1, filters=3, turned=True, bias=False),
    ConvolutionForm(3, 1, 2, start=1, end=2, zeros=2, groups=3, filters=2, activation=TANH),
    ConvolutionForm(2, 3, backward=True, groups=3, filters=2, zeros=1, start=1, activation=RELU),
    ConvolutionForm(5, 1, start=4, end=4, filters=1, width=1),
    ConvolutionForm(2, 1, 3, backward=True, start=1, end=1, filters=2, more=2),
    ConvolutionForm(7, 2, start=3, end=3, filters=33, bias=False),
    ConvolutionForm(3, start=1, end=1, groups=3, filters=1),
    ConvolutionForm(4, 4, filters=3, width=3),
    ConvolutionForm(2, end=3, beside=(0, 40), filters=17),
    ConvolutionForm(3, 2, start=4, beside=(40, 19), filters=5, turned=True),
    ConvolutionForm(3, 5, 3, end=9, beside=(30, 7), groups=3, filters=1),
    ConvolutionForm(9, 3, 2, start=8, end=8, beside=(9, 30), filters=20, bias=False),
    ConvolutionForm(3, 2, 4, start=3, end=4, backward=True, filters=3, beside=(9, 0)),
)
SHAPES: dict[int, tuple[Sizes, ...]] = {
    3: ((2, 3, 37), (1, 6, 9)),
    4: ((2, 3, 5, 7), (1, 6, 8, 19), (1, 3, 1, 1)),
    5: ((1, 3, 3, 4, 9), (2, 3, 2, 3, 5)),
}
LARGE: tuple[tuple[Sizes, ConvolutionForm], ...] = (
    ((1, 16, 14, 64), ConvolutionForm(start=1, end=1, filters=16, activation=RELU)),
    ((1, 24, 23, 70), ConvolutionForm(3, 1, start=1, end=1, groups=24, filters=1)),
    ((1, 24, 23, 70), ConvolutionForm(3, 2, start=1, end=1, groups=24, filters=1, bias=False)),
    ((1, 32, 7, 65), ConvolutionForm(1, filters=48)),
    ((1, 64, 9, 11), ConvolutionForm(3, start=1, end=1, filters=10)),
    ((1, 8, 12, 33), ConvolutionForm(4, 2, start=1, end=1, backward=True, filters=6)),
    ((1, 300, 5, 5), ConvolutionForm(1, filters=70, bias=False)),
    ((2, 3, 40, 40), ConvolutionForm(7, 2, start=3, end=3, filters=16)),
)

DEPTHWISE: tuple[tuple[Sizes, ConvolutionForm], ...] = (
    ((2, 21, 7, 9), ConvolutionForm(3, 1, start=1, end=1, groups=21, filters=1, activation=RELU)),
    ((1, 6, 5, 12), ConvolutionForm(3, 2, 2, start=3, end=2, groups=6, filters=1, turned=True)),
    ((1, 40, 31), ConvolutionForm(5, 2, start=2, end=1, groups=40, filters=1)),
    ((1, 12, 4, 18), ConvolutionForm(3, 1, start=4, end=1, groups=12, filters=1, beside=(30, 40))),
)


def numbers(x: T, form: ConvolutionForm) -> dict[str, Any]:
    """The numbers of a form, with filters that fit, and the sizes of filter and output."""
    k, groups = max(x.rank - 2, 1), form.groups if len(x.sizes) > 1 and x.sizes[1] % form.groups == 0 else 1
    channels = x.sizes[1] if x.rank > 1 else 1
    kernels, outputs, (starts, ends) = [], [], beside(form, k)
    for i, (size, start, end) in enumerate(zip(x.sizes[2:] or (1,), starts, ends, strict=True)):
        kernel = form.width if form.width and i == k - 1 else form.kernel
        if not form.backward:
            kernel = min(kernel, (size + start + end - 1) // form.dilation + 1)
        span = (kernel - 1) * form.dilation + 1
        if form.backward:
            while (size - 1) * form.stride + span <= start + end:
                kernel += 1
                span += form.dilation
            outputs.append((size - 1) * form.stride + span - start - end + form.zeros + form.more)
        else:
            outputs.append((size + start + end - span) // form.stride + 1 + form.zeros)
        kernels.append(kernel)
    filters = groups * form.filters
    first = (channels, form.filters) if form.backward else (filters, channels // groups)
    return {
        "filter": (*first, *kernels),
        "output": (x.sizes[0], filters, *outputs),
        "numbers": {
            "strides": [form.stride] * k,
            "dilations": [form.dilation] * k,
            "start_padding": starts,
            "end_padding": ends,
            "group_count": groups,
        },
    }


def convolution(x: T, form: ConvolutionForm) -> Operator:
    """A convolution of a form."""
    found = numbers(x, form)
    return Convolution(
        input_tensor=x,
        filter_tensor=T(x.data_type, found["filter"]),
        bias_tensor=T(x.data_type, (1, found["output"][1], *[1] * (len(found["output"]) - 2))) if form.bias else None,
        output_tensor=T(x.data_type, found["output"]),
        mode=ConvolutionMode.CONVOLUTION if form.turned else ConvolutionMode.CROSS_CORRELATION,
        direction=ConvolutionDirection.BACKWARD if form.backward else ConvolutionDirection.FORWARD,
        output_padding=(form.zeros,) * max(x.rank - 2, 1),
        fused_activation=form.activation,
        **found["numbers"],
    )


def integer(x: T, form: ConvolutionForm, way: int = 0) -> Operator:
    """A convolution of integers: with and without zero points, of the filter one or one for each channel, of both types."""
    found = numbers(x, form)
    other = INT8 if way % 3 == 1 else x.data_type
    rank = 1 + way % 4
    small = (1,) * rank
    each = _each(found["output"][1], rank) if way % 2 else small
    return ConvolutionInteger(
        input_tensor=x,
        input_zero_point_tensor=T(x.data_type, small) if way % 5 != 4 else None,
        filter_tensor=T(other, found["filter"]),
        filter_zero_point_tensor=T(other, each) if way % 5 != 3 else None,
        output_tensor=T("int32", found["output"]),
        **found["numbers"],
    )


def quantized(x: T, form: ConvolutionForm, way: int = 0) -> Operator:
    """The same of quantized numbers; with and without a bias, of three types."""
    found, desc = numbers(x, form), integer(x, form, way)
    rank, result = 1 + way % 4, UINT8 if way % 4 == 2 else x.data_type
    small, each = (1,) * rank, _each(found["output"][1], 1 + (way + 1) % 4)
    own: Any = desc
    channels = (1, found["output"][1], *[1] * (len(found["output"]) - 2))
    return QuantizedLinearConvolution(
        input_tensor=x,
        input_scale_tensor=T("float32", small),
        input_zero_point_tensor=own.input_zero_point_tensor,
        filter_tensor=own.filter_tensor,
        filter_scale_tensor=T("float32", each if way % 3 != 1 else small),
        filter_zero_point_tensor=own.filter_zero_point_tensor,
        bias_tensor=T("int32", channels) if way % 2 == 0 else None,
        output_scale_tensor=T("float32", (1,) * (1 + (way + 2) % 4)),
        output_zero_point_tensor=T(result, small) if way % 3 != 2 else None,
        output_tensor=T(result, found["output"]),
        **found["numbers"],
    )


def _each(channels: int, rank: int) -> Sizes:
    return (channels,) if rank == 1 else (1, channels, *[1] * (rank - 2))


_MADE: dict[type[Operator], Callable[..., Operator]] = {
    Convolution: convolution,
    ConvolutionInteger: integer,
    QuantizedLinearConvolution: quantized,
}
DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {
    Convolution: lambda x: convolution(x, ConvolutionForm(2)),
    ConvolutionInteger: lambda x: integer(x, ConvolutionForm(2), 3),
    QuantizedLinearConvolution: lambda x: quantized(x, ConvolutionForm(2), 3),
}

# -- Rules --------------------------------------------------------------------------------------------------------

X, BYTES = T("float32", (2, 4, 5, 6)), T("uint8", (2, 4, 5, 6))
_GOOD: Any = convolution(X, ConvolutionForm(start=1, end=1, groups=2))
_BACK: Any = convolution(X, ConvolutionForm(3, 2, backward=True, filters=2))


def _shared(cls: type[Operator], good: Any) -> dict[str, Broken]:
    """The rules of all three."""
    name, kind = cls.NAME, good.filter_tensor.data_type
    y = good.output_tensor
    return {
        **{f"{name}: {rule}": broken for rule, broken in _movement.broken_tensors(cls, good).items()},
        f"{name}: too few strides": Broken(
            change(good, strides=(1,)), f"{name} strides", "1 number", "2, one for each spatial dimension"
        ),
        f"{name}: no dilation": Broken(change(good, dilations=(1, 0)), f"{name} dilations[1]", "0", "1 or more"),
        f"{name}: no group": Broken(change(good, group_count=0), f"{name} group_count", "0", "1 or more"),
        f"{name}: groups that do not divide the channels": Broken(
            change(good, group_count=3), f"{name} group_count", "3", "a divisor of the input's 4 channels"
        ),
        f"{name}: a filter of other channels": Broken(
            change(good, filter_tensor=T(kind, (8, 3, 3, 3))),
            *(f"{name} filter_tensor.sizes[1]", "3", "2, the input's channels of a group"),
        ),
        f"{name}: a filter that is too large": Broken(
            change(good, filter_tensor=T(kind, (8, 2, 3, 9))),
            *(f"{name} filter_tensor.sizes[3]", "9, over 9", "within 8 elements"),
        ),
        f"{name}: other channels of the output": Broken(
            change(good, output_tensor=T(y.data_type, (2, 7, 5, 6))),
            *(f"{name} output_tensor.sizes", "(2, 7, 5, 6)", "(2, 8) first: the input's batch and a channel for each filter"),
        ),
        f"{name}: another output": Broken(
            change(good, output_tensor=T(y.data_type, (2, 8, 5, 7))),
            *(f"{name} output_tensor.sizes[3]", "7", "6, as the other sizes and numbers say"),
        ),
    }


def _scales(name: str, good: Any) -> dict[str, Broken]:
    return {
        f"{name}: zero points of the input for each channel": Broken(
            change(good, input_zero_point_tensor=T("uint8", (1, 8, 1, 1)), filter_zero_point_tensor=None),
            *(f"{name} input_zero_point_tensor.sizes", "(1, 8, 1, 1)", "one element"),
        ),
        f"{name}: zero points of the filter for other channels": Broken(
            change(good, input_zero_point_tensor=None, filter_zero_point_tensor=T("uint8", (1, 2, 1, 1))),
            f"{name} filter_zero_point_tensor.sizes",
            "(1, 2, 1, 1)",
            "one element, or (1, 8, 1, 1): one for each of the output's channels",
        ),
        f"{name}: a zero point of another type": Broken(
            change(good, filter_zero_point_tensor=T("int8", (1,))),
            *(f"{name} filter_zero_point_tensor.data_type", "int8", "uint8, as in filter_tensor"),
        ),
    }


_FORM = ConvolutionForm(start=1, end=1, groups=2)
_INTEGER: Any = integer(BYTES, _FORM)
_QUANTIZED: Any = quantized(BYTES, _FORM)
_N, _I, _Q = (cls.NAME for cls in _MADE)
BROKEN: dict[str, Broken] = {
    **_shared(Convolution, _GOOD),
    **_shared(ConvolutionInteger, _INTEGER),
    **_shared(QuantizedLinearConvolution, _QUANTIZED),
    **_scales(_I, _INTEGER),
    **_scales(_Q, _QUANTIZED),
    f"{_N}: a bias for other channels": Broken(
        change(_GOOD, bias_tensor=T("float32", (1, 2, 1, 1))),
        *(f"{_N} bias_tensor.sizes", "(1, 2, 1, 1)", "(1, 8, 1, 1): one for each of the output's channels"),
    ),
    f"{_N}: filters that groups do not divide": Broken(
        change(_GOOD, filter_tensor=T("float32", (7, 2, 3, 3))), f"{_N} group_count", "2", "a divisor of the 7 filters"
    ),
    f"{_N}: backward, a filter of other channels": Broken(
        change(_BACK, filter_tensor=T("float32", (3, 2, 3, 3))), f"{_N} filter_tensor.sizes[0]", "3", "4, the input's channels"
    ),
    f"{_N}: backward, too much padding": Broken(
        change(_BACK, start_padding=(8, 0), end_padding=(3, 0)),
        f"{_N} start_padding[0] and end_padding[0]",
        "8 and 3",
        "less than 11 together, the elements that the filter reaches",
    ),
    f"{_N}: backward, an output that is too large": Broken(
        change(_BACK, output_tensor=T("float32", (2, 2, 11, 15))), f"{_N} output_tensor.sizes[3]", "15", "13 to 14"
    ),
    f"{_N}: backward, an output that is too small": Broken(
        change(_BACK, output_tensor=T("float32", (2, 2, 10, 13))), f"{_N} output_tensor.sizes[2]", "10", "11 to 12"
    ),
    f"{_N}: too little output padding": Broken(
        change(_GOOD, output_padding=(1,)), f"{_N} output_padding", "1 number", "2, one for each spatial dimension"
    ),
    f"{_N} fused with something that is no activation": Broken(
        change(_GOOD, fused_activation=ElementWiseAdd.fused()),
        *(f"{_N} fused_activation", "ELEMENT_WISE_ADD", f"{', '.join(OF_CONVOLUTION)}, at 6.4", Unsupported),
        advice="Run it as a separate operator.",
    ),
    f"{_I}: zero points of other dimension counts": Broken(
        change(_INTEGER, input_zero_point_tensor=T("uint8", (1, 1)), filter_zero_point_tensor=T("uint8", (1,))),
        *(f"{_I} filter_zero_point_tensor.rank", "1", "2, as in input_zero_point_tensor"),
    ),
    f"{_Q}: a bias for other channels": Broken(
        change(_QUANTIZED, bias_tensor=T("int32", (1, 2, 1, 1))),
        *(f"{_Q} bias_tensor.sizes", "(1, 2, 1, 1)", "(1, 8, 1, 1): one for each of the output's channels"),
    ),
    f"{_Q}: another scale of the output": Broken(
        change(_QUANTIZED, output_scale_tensor=T("float32", (1, 8, 1, 1))),
        *(f"{_Q} output_scale_tensor.sizes", "(1, 8, 1, 1)", "one element"),
    ),
}


# -- Reference cases ----------------------------------------------------------------------------------------------


def reference(cls: type[Operator]) -> Iterator[Case]:
    """All forms, of every rank; layouts, and larger ones."""
    yield from dict.fromkeys(_floats() if cls is Convolution else _integers(_MADE[cls]))


def _floats() -> Iterator[Case]:
    fills = ("normal", "mixed", "zeros", "special", "normal")
    for number, form in enumerate(FORMS):
        for rank, shapes in SHAPES.items():
            for place, shape in enumerate(shapes):
                data_type = FLOATING[(number + place) % 3 if rank == 4 else (number + place + rank) % 3]
                yield Case(convolution(T(data_type, shape), form), fills[(number + place + rank) % len(fills)])
        for data_type in FLOATING:
            yield Case(convolution(T(data_type, SHAPES[4][0]), form), "normal")
    for number, (shape, form) in enumerate(LARGE):
        for data_type in FLOATING[: 2 if number % 3 else 3]:
            yield Case(convolution(T(data_type, shape), form), "normal")
    for number, (one, other) in enumerate(PAIRS):
        for form in (FORMS[number % len(FORMS)], FORMS[0], FORMS[4]):
            yield Case(laid(convolution(T(FLOATING[number % 2], SHAPES[4][number % 2]), form), one, other), "normal")
    for number, (shape, form) in enumerate((*LARGE[:4], *DEPTHWISE)):
        yield Case(channels_last(convolution(T(FLOATING[number % 3 % 2], shape), form)), "normal")


def _integers(make: Callable[..., Operator]) -> Iterator[Case]:
    way = 0
    for form in FORMS:
        if form.backward or form.zeros:
            continue
        for rank in (3, 4):
            for shape in SHAPES[rank]:
                for data_type in (UINT8, INT8):
                    way += 1
                    yield Case(make(T(data_type, shape), form, way), "mixed" if way % 3 else "bits")
    for number, (shape, form) in enumerate(LARGE):
        if not form.backward:
            yield Case(make(T((UINT8, INT8)[number % 2], shape), form, number), "mixed")
    for number, (one, other) in enumerate(PAIRS):
        desc = make(T((INT8, UINT8)[number % 2], SHAPES[4][number % 2]), FORMS[(0, 2, 3)[number % 3]], number)
        yield Case(laid(desc, one, other), "mixed")
    for number, (shape, form) in enumerate((LARGE[0], *DEPTHWISE)):
        yield Case(channels_last(make(T((UINT8, INT8)[number % 2], shape), form, number + 1)), "mixed")


def channels_last(desc: Any) -> Operator:
    """The same with the channels of image and output last in memory."""
    found = {}
    for name in ("input_tensor", "output_tensor"):
        tensor = getattr(desc, name)
        _, c, *sizes = tensor.sizes
        steps = [c]
        for size in reversed(sizes):
            steps.insert(0, steps[0] * size)
        found[name] = T(tensor.data_type, tensor.sizes, (steps[0], 1, *steps[1:]))
    return dataclasses.replace(desc, **found)
