"""Nodes that ONNX Runtime computes on the CPU: windows, convolutions, products and recurrent networks, most of ONNX's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from contrib_cases import Case, Rng, all_of, f, i, is_, u8


def standard(kind: str, *inputs: Any, outputs: int = 1, opset: int = 18, tolerance: float = 1e-5, **attributes: Any) -> Case:
    """A node of an operator of ONNX's own."""
    return Case(kind, all_of(*inputs), outputs, attributes, (), tolerance, "", opset)


def quantized(kind: str, *inputs: Any, domain: str = "", tolerance: float = 1, **attributes: Any) -> Case:
    """A node on bytes: all inputs but the first one are constants. A quotient next to a half may be rounded in either direction."""
    return Case(kind, all_of(*inputs), 1, attributes, tuple(range(1, len(inputs))), tolerance, domain, 18)


def i8(*shape: int) -> Callable[[Rng], Any]:
    return i(-128, 128, *shape, dtype=np.int8)


def number(scale: float, zero_point: int, dtype: Any = np.uint8) -> Sequence[Any]:
    """A scale, and a zero point."""
    return is_(scale), is_(zero_point, dtype)


# -- Windows --------------------------------------------------------------------------------------------------------

IMAGE, ROW = f(2, 3, 9, 11), f(2, 3, 13)
WINDOW: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]}
SAME: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
LINE: dict[str, Any] = {"kernel_shape": [4], "strides": [3], "pads": [1, 2]}


def regions(rng: Rng) -> Any:
    return np.concatenate([rng.integers(0, 2, (9, 1)), rng.integers(0, 24, (9, 4)) / 2], 1).astype(np.float32)


WINDOWS = [
    *(standard("MaxPool", IMAGE, outputs=2, **WINDOW, ceil_mode=ceil, dilations=[1, 2]) for ceil in (0, 1)),
    *(standard("AveragePool", IMAGE, **WINDOW, ceil_mode=ceil, count_include_pad=ceil) for ceil in (0, 1)),
    *(standard(kind, IMAGE, **SAME) for kind in ("MaxPool", "LpPool")),
    *(standard(kind, ROW, **LINE) for kind in ("MaxPool", "AveragePool", "LpPool")),
    *(standard(f"Global{kind}", IMAGE) for kind in ("MaxPool", "AveragePool", "LpPool")),
    standard("LRN", IMAGE, size=3, alpha=0.5, beta=0.6, bias=1.5),
    standard("MaxRoiPool", IMAGE, regions, pooled_shape=[3, 2], spatial_scale=0.5),
    *(
        quantized(kind, u8(2, 3, 9, 11), *number(0.3, 120), *number(0.11, 9), domain="com.microsoft", **attributes)
        for kind, attributes in (
            ("QLinearAveragePool", {**WINDOW, "count_include_pad": 1}),
            ("QLinearGlobalAveragePool", {"channels_last": 0}),
        )
    ),
]

# -- Convolutions ---------------------------------------------------------------------------------------------------

X, BACK = f(2, 4, 9, 11), f(4, 3, 3, 2)
BYTES, FILTERS = u8(1, 4, 9, 11), u8(6, 4, 3, 3)
EACH_FILTER = (i8(6, 4, 3, 3), lambda rng: (rng.random(6) / 100).astype(np.float32), is_(np.zeros(6), np.int8))
CONVOLUTIONS = [
    standard("Conv", X, f(6, 2, 3, 2), f(6), group=2, strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2]),
    *(standard("Conv", X, f(6, 4, 3, 2), auto_pad=mode, strides=[2, 3]) for mode in ("SAME_UPPER", "SAME_LOWER")),
    standard("Conv", X, f(6, 4, 3, 2), auto_pad="VALID"),
    standard("Conv", f(2, 4, 11), f(6, 4, 3), f(6), pads=[2, 1]),
    standard("Conv", f(1, 2, 4, 5, 6), f(3, 2, 2, 3, 1), strides=[1, 2, 2], pads=[0, 1, 0, 1, 1, 0]),
    standard("ConvTranspose", X, BACK, f(3), strides=[2, 3], pads=[1, 0, 1, 1], output_padding=[1, 2]),
    standard("ConvTranspose", X, f(4, 3, 2, 3), group=2, dilations=[2, 1], strides=[1, 2]),
    *(
        standard("ConvTranspose", X, BACK, opset=11, strides=[2, 3], output_shape=[18, 33], **more)
        for more in ({}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"output_padding": [1, 1]})
    ),
    *(standard("ConvTranspose", X, BACK, strides=[2, 2], auto_pad=mode) for mode in ("SAME_UPPER", "SAME_LOWER")),
    standard("ConvInteger", BYTES, FILTERS, pads=[1, 1, 1, 1]),
    standard("ConvInteger", BYTES, FILTERS, is_(7, np.uint8), strides=[2, 1], pads=[1, 0, 0, 2]),
    standard("ConvInteger", BYTES, FILTERS, is_(7, np.uint8), is_(9, np.uint8), dilations=[2, 1], pads=[1, 1, 1, 1]),
    *(
        quantized("QLinearConv", BYTES, *number(0.02, 120), *EACH_FILTER, *number(0.3, 100), *bias, strides=strides, pads=pads)
        for bias, strides, pads in (((), [1, 1], [1, 1, 1, 1]), ([i(-3000, 3000, 6)], [2, 2], [0, 1, 1, 0]))
    ),
]

# -- Products and sums ----------------------------------------------------------------------------------------------


def pair(axis: int, dtype: Any) -> Any:
    """Bytes, so that all pairs of them meet."""
    return is_(np.meshgrid(*[np.arange(256).astype(np.uint8).view(dtype)] * 2)[axis], dtype)


def sum_of(scales: tuple[float, ...], zeros: tuple[int, ...], dtype: Any, tolerance: float) -> Case:
    a, b, out = (number(scale, zero, dtype) for scale, zero in zip(scales, zeros, strict=True))
    return quantized("QLinearAdd", pair(0, dtype), *a, pair(1, dtype), *b, *out, domain="com.microsoft", tolerance=tolerance)


PRODUCTS = [
    standard("MatMulInteger", u8(2, 7, 30), i8(2, 30, 5), is_(120, np.uint8), is_(-7, np.int8), tolerance=0),
    quantized("QLinearMatMul", u8(2, 7, 30), *number(0.02, 120), i8(2, 30, 5), *number(0.03, -7, np.int8), *number(0.5, 100)),
    Case("FusedMatMul", all_of(f(3, 8, 5), f(3, 6, 8)), 1, {"transA": 1, "transB": 1, "alpha": 0.5}),
    Case(
        "MatMulIntegerToFloat",
        all_of(u8(7, 30), i8(30, 5), is_(0.02), is_(0.03), is_(120, np.uint8), is_(-7, np.int8), f(5)),
        weights=(1, 2, 3, 4, 5, 6),
    ),
    # ONNX Runtime adds the zero point before it rounds: results are the same where scales are powers of 2 and the point is even.
    *(sum_of((0.5, 0.25, 1.0), (3, 28, 100), dtype, 0) for dtype in (np.uint8, np.int8)),
    *(sum_of(scales, zeros, np.uint8, 1) for scales, zeros in (((0.5, 0.25, 0.75), (3, 28, 101)), ((0.1, 0.37, 0.9), (0, 1, 7)))),
]

# -- Recurrent networks ---------------------------------------------------------------------------------------------

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(kind: str, alone: bool = False, direction: str = "forward", **own: Any) -> Case:
    """A network with lengths and first states, or without any input that may be left out."""
    steps, batch, width, hidden, count, gates = 6, 5, 3, 18, 1 + (direction == "bidirectional"), GATES[kind]
    inputs = [f(steps, batch, width), f(count, gates * hidden, width, scale=0.4), f(count, gates * hidden, hidden, scale=0.4)]
    if not alone:
        state = f(count, batch, hidden, scale=0.4)
        inputs += [f(count, 2 * gates * hidden, scale=0.4), is_([6, 1, 0, 4, 6], np.int32), state]
        inputs += [state, f(count, 3 * hidden, scale=0.4)] if kind == "LSTM" else []
    return standard(kind, *inputs, outputs=2 + (kind == "LSTM"), opset=14, hidden_size=hidden, direction=direction, **own)


CELLS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {}),
    ("GRU", {"linear_before_reset": 0}),
    ("GRU", {"linear_before_reset": 1}),
    ("LSTM", {}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"clip": 0.3}),
]
SEVERAL = {"activations": ["LeakyRelu", "Affine"], "activation_alpha": [0.3, 0.6], "activation_beta": [0.1]}
CLIPPED: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {"direction": "bidirectional", **SEVERAL}),
    ("RNN", {}),
    ("GRU", {"direction": "reverse"}),
    ("GRU", {"direction": "bidirectional", "linear_before_reset": 1}),
    ("GRU", {"activations": ["HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.2], "activation_beta": [0.4]}),
    ("LSTM", {"direction": "bidirectional"}),
]
RECURRENT = [
    *(recurrent(kind, alone, clip=0.4, **own) for kind, own in CLIPPED for alone in (False, True)),
    *(recurrent(kind, direction=way, **own) for kind, own in CELLS for way in ("forward", "reverse", "bidirectional")),
]

STANDARD = [*WINDOWS, *PRODUCTS, *CONVOLUTIONS, *RECURRENT]
