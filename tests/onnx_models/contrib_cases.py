"""Nodes of ONNX Runtime's own operators that it computes on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Rng = Any


class Case(NamedTuple):
    """An operator with made-up inputs."""

    kind: str
    inputs: Callable[[Rng], list[Any]]
    outputs: int = 1
    attributes: Mapping[str, Any] = {}
    weights: tuple[int, ...] = ()
    """The inputs that are constants of the model."""
    tolerance: float = 1e-4
    domain: str = "com.microsoft"
    opset: int = 17
    rows: tuple[int, ...] = ()
    """How many rows of each batch of kept keys and values are written; ONNX Runtime leaves others as they were in memory."""

    @property
    def id(self) -> str:
        """The operator and its attributes."""
        return f"{self.kind} {' '.join(f'{key}={value}' for key, value in self.attributes.items())}".strip()

    def written(self, output: int, array: Any) -> Any:
        """The part of an output that is compared."""
        return np.concatenate([array[n, :, :m] for n, m in enumerate(self.rows)], 1) if self.rows and output else array


def f(*shape: int, scale: float = 1.0) -> Callable[[Rng], Any]:
    return lambda rng: (rng.standard_normal(shape) * scale).astype(np.float32)


def i(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Callable[[Rng], Any]:
    return lambda rng: rng.integers(low, high, shape).astype(dtype)


def u8(*shape: int) -> Callable[[Rng], Any]:
    return i(0, 256, *shape, dtype=np.uint8)


def is_(value: Any, dtype: Any = np.float32) -> Callable[[Rng], Any]:
    return lambda rng: np.asarray(value, dtype)


def all_of(*makers: Callable[[Rng], Any] | None) -> Callable[[Rng], list[Any]]:
    return lambda rng: [None if one is None else one(rng) for one in makers]


X = f(2, 5, 16)
EMBED = (i(0, 9, 2, 5), i(0, 2, 2, 5), f(9, 16), f(7, 16), f(2, 16), f(16), f(16))
ANGLES = (f(8, 4), f(8, 4))
Q = (is_(0.05), is_(120, np.uint8))
QKV = tuple(f(2, 5, 16) for _ in range(3))
CASES = [
    Case("Gelu", all_of(X)),
    Case("FastGelu", all_of(X)),
    Case("FastGelu", all_of(X, f(16))),
    Case("BiasGelu", all_of(X, f(16))),
    Case("QuickGelu", all_of(X), 1, {"alpha": 1.5}),
    Case("FusedMatMul", all_of(X, f(2, 7, 16)), 1, {"transB": 1, "alpha": 0.5}),
    Case("FusedMatMul", all_of(f(2, 16, 5), f(16, 7)), 1, {"transA": 1}),
    Case("FusedConv", all_of(f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)), 1, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    Case("FusedConv", all_of(f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)), 1, {"activation": "LeakyRelu", "activation_params": [0.3]}),
    Case("FusedGemm", all_of(f(3, 4), f(5, 4), f(5)), 1, {"activation": "LeakyRelu", "activation_alpha": 0.2, "transB": 1}),
    Case("BiasSoftmax", all_of(f(2, 3, 4, 4), f(2, 1, 1, 4)), 1, {"axis": 3, "is_inner_broadcast": 0}),
    Case("SkipLayerNormalization", all_of(X, X, f(16), f(16), f(16))),
    Case("SkipLayerNormalization", all_of(X, X, f(16))),
    Case("SkipSimplifiedLayerNormalization", all_of(X, X, f(16)), 1, {"epsilon": 1e-5}),
    Case("EmbedLayerNormalization", all_of(*EMBED), 2, {"epsilon": 1e-5}),
    Case("EmbedLayerNormalization", all_of(*EMBED, i(0, 2, 2, 5)), 2),
    Case("EmbedLayerNormalization", all_of(EMBED[0], None, *EMBED[2:4], None, *EMBED[5:]), 2),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48)), 1, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48)), 1, {"num_heads": 4, "unidirectional": 1}),
    Case("Attention", all_of(X, f(16, 40, scale=0.3), f(40)), 1, {"num_heads": 2, "qkv_hidden_sizes": [12, 12, 16]}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), is_([5, 3], np.int32)), 1, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), i(0, 2, 2, 5)), 1, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), None, f(2, 2, 2, 3, 8)), 2, {"num_heads": 2}),
    Case("Attention", all_of(X, f(16, 48, scale=0.3), f(48), None, None, f(2, 2, 5, 5)), 1, {"num_heads": 2, "scale": 0.5}),
    Case("MultiHeadAttention", all_of(*QKV), 1, {"num_heads": 2}),
    Case("MultiHeadAttention", all_of(QKV[0], f(2, 7, 16), f(2, 7, 16), f(48)), 1, {"num_heads": 2}),
    Case("MultiHeadAttention", all_of(*QKV, None, is_([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]], np.int32)), 1, {"num_heads": 2}),
    Case("RotaryEmbedding", all_of(f(2, 5, 16), is_([0], np.int64), *ANGLES)),
    Case("RotaryEmbedding", all_of(f(2, 2, 5, 8), i(0, 8, 2, 5, dtype=np.int64), *ANGLES), 1, {"interleaved": 1}),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 4, 32), f(1, 4, 16), f(1, 4, 16), None, None, is_([3], np.int32), is_(4, np.int32)),
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 4, 64), f(1, 4, 32), f(1, 4, 32), None, None, is_([3], np.int32), is_(4, np.int32), f(8, 8), f(8, 8)),
        3,
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
    ),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 4, 64), None, None, None, None, is_([3], np.int32), is_(4, np.int32)),
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    Case(
        "GroupQueryAttention",
        all_of(f(1, 1, 32), f(1, 1, 16), f(1, 1, 16), f(1, 2, 6, 8), f(1, 2, 6, 8), is_([6], np.int32), is_(7, np.int32)),
        3,
        {"num_heads": 4, "kv_num_heads": 2},
        (6,),
    ),
    *(
        Case(
            "GroupQueryAttention",
            all_of(
                *(f(batch, rows, n) for n in (64, 32, 32)),
                *(f(batch, 2, room, 16) for _ in range(2)),
                is_([before + rows - 1] * batch, np.int32),
                is_(before + rows, np.int32),
                f(16, 8),
                f(16, 8),
            ),
            3,
            {"num_heads": 4, "kv_num_heads": 2, **more},
            (5, 6),
        )
        for batch, rows, room, before, more in (
            (2, 1, 6, 6, {"do_rotary": 1}),
            (1, 3, 6, 6, {"do_rotary": 1, "rotary_interleaved": 1}),
            (1, 3, 6, 6, {"local_window_size": 4}),
            (1, 3, 8, 5, {"do_rotary": 1}),
            (2, 1, 6, 6, {"local_window_size": 3}),
        )
    ),
    Case("MatMulNBits", all_of(f(3, 32), u8(8, 2, 8), f(8 * 2)), 1, {"K": 32, "N": 8, "bits": 4, "block_size": 16}, (1, 2)),
    Case(
        "MatMulNBits",
        all_of(f(2, 3, 48), u8(8, 3, 8), f(8 * 3), u8(8 * 2)),
        1,
        {"K": 48, "N": 8, "bits": 4, "block_size": 16},
        (1, 2, 3),
    ),
    Case("QLinearAdd", all_of(u8(2, 9), *Q, u8(2, 9), *Q, *Q), tolerance=1),
    Case("QLinearMul", all_of(u8(2, 9), *Q, u8(9), *Q, *Q), tolerance=1),
    Case("QLinearSigmoid", all_of(u8(2, 9), *Q, is_(1 / 256), is_(0, np.uint8)), tolerance=1, weights=(1, 2, 3, 4)),
    Case("QLinearLeakyRelu", all_of(u8(2, 9), *Q, *Q), 1, {"alpha": 0.1}, tolerance=1, weights=(1, 2, 3, 4)),
    *(
        Case(
            "QLinearSoftmax",
            all_of(u8(2, 3, 9), *Q, is_(1 / 256), is_(0, np.uint8)),
            1,
            {"opset": version, "axis": 1},  # before 13, all dimensions from the axis on
            tolerance=1,
            weights=(1, 2, 3, 4),
        )
        for version in (12, 13)
    ),
    Case(
        "QLinearConcat",
        all_of(*Q, u8(2, 3), *Q, u8(2, 4), is_(0.1), is_(100, np.uint8)),
        1,
        {"axis": 1},
        tolerance=1,
        weights=(0, 1, 3, 4, 6, 7),
    ),
    Case(
        "QLinearAveragePool",
        all_of(u8(1, 2, 6, 6), *Q, *Q),
        1,
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        tolerance=1,
        weights=(1, 2, 3, 4),
    ),
    Case("QLinearGlobalAveragePool", all_of(u8(1, 2, 6, 6), *Q, *Q), tolerance=1, weights=(1, 2, 3, 4)),
    Case("DynamicQuantizeMatMul", all_of(f(3, 16), u8(16, 8), is_(0.02), is_(120, np.uint8)), weights=(1, 2, 3), tolerance=2e-3),
    Case(
        "DynamicQuantizeMatMul", all_of(f(3, 16), u8(16, 8), is_(0.02), is_(120, np.uint8), f(8)), weights=(1, 2, 3), tolerance=2e-3
    ),
    Case(
        "MatMulIntegerToFloat",
        all_of(u8(3, 16), u8(16, 8), is_(0.1), is_(0.2), is_(3, np.uint8), is_(9, np.uint8)),
        weights=(1, 2, 3),
    ),
    Case(
        "QGemm",
        all_of(u8(3, 16), *Q, u8(16, 8), *Q, i(-50, 50, 8), is_(0.3), is_(100, np.uint8)),
        weights=(1, 2, 3, 4, 5, 6, 7, 8),
        tolerance=1,
    ),
    Case("QGemm", all_of(u8(3, 16), *Q, u8(8, 16), *Q), 1, {"transB": 1}, weights=(1, 2, 3, 4, 5)),
    Case(
        "QAttention",
        all_of(u8(2, 5, 16), u8(16, 48), f(48), is_(0.02), is_(0.01), None, is_(128, np.uint8), is_(120, np.uint8)),
        1,
        {"num_heads": 2},
        (1, 3, 4, 6, 7),
    ),
    Case(
        "QAttention",
        all_of(
            u8(2, 5, 16), u8(16, 48), f(48), is_(0.02), is_(0.01), is_([5, 3], np.int32), is_(128, np.uint8), is_(120, np.uint8)
        ),
        1,
        {"num_heads": 2, "unidirectional": 1},
        (1, 3, 4, 6, 7),
    ),
    Case("ConvTransposeWithDynamicPads", all_of(f(1, 3, 5, 5), f(3, 2, 3, 3), is_([1, 1, 1, 1], np.int64), f(2)), weights=(2,)),
    Case("ScaledTanh", all_of(X), 1, {"alpha": 1.2, "beta": 0.7}, domain="", opset=9),
    Case("ParametricSoftplus", all_of(X), 1, {"alpha": 1.2, "beta": 0.7}, domain="", opset=9),
    Case("ImageScaler", all_of(f(1, 3, 4, 4)), 1, {"scale": 2.0, "bias": [0.1, -0.2, 3.0]}, domain="", opset=9),
    Case("Crop", all_of(f(1, 3, 8, 8)), 1, {"border": [1, 2, 3, 1]}, domain="", opset=9),
    Case("Crop", all_of(f(1, 3, 8, 8)), 1, {"border": [1, 2, 3, 1], "scale": [4, 3]}, domain="", opset=9),
    Case("Affine", all_of(X), 1, {"alpha": 1.2, "beta": 0.7}, domain="", opset=9),
    Case("QuantizeLinear", all_of(X, *Q), weights=(1, 2), tolerance=1),
    Case("DequantizeLinear", all_of(u8(3, 4), *Q), weights=(1, 2)),
]
