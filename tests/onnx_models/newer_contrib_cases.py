"""Nodes of ONNX Runtime's operators that DirectML's provider leaves to the CPU, and of those that only GPUs have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from contrib_cases import ANGLES, Case, Q, Rng, X, all_of, f, i, is_, u8

IMAGE = f(1, 4, 6, 6)
HEADS = {"num_heads": 4, "kv_num_heads": 2}
KEPT = f(2, 2, 6, 8)


def grouped(
    batch: int,
    rows: int,
    room: int,
    lasts: list[int],
    total: int,
    extra: tuple[Any, ...] = (),
    known: tuple[int, ...] = (5, 6),
    **more: Any,
) -> Case:
    """A GroupQueryAttention after rows of earlier steps, with a bias and sinks in ``extra``."""
    turned = more.get("do_rotary")
    inputs = [
        f(batch, rows, 64), f(batch, rows, 32), f(batch, rows, 32), *([f(batch, 2, room, 16)] * 2 if room else [None] * 2),
        is_(lasts, np.int32), is_(total, np.int32), *([f(32, 8)] * 2 if turned else [None] * 2), None, *extra,
    ]  # fmt: skip
    while inputs[-1] is None:
        inputs.pop()
    written = tuple(n + 1 for n in lasts) if room else ()
    return Case("GroupQueryAttention", all_of(*inputs), 3, {**HEADS, **more}, known, rows=written)


def bits(count: int, stored: tuple[Any, ...], k: int = 32, rows: int = 3, **more: Any) -> Case:
    """A MatMulNBits with 8 columns."""
    known = tuple(n for n, one in enumerate(stored, 1) if one is not None)
    return Case("MatMulNBits", all_of(f(rows, k), *stored), 1, {"K": k, "N": 8, "bits": count, "block_size": 16, **more}, known)


def many_bits(count: int, block: int, rows: int, k: int, zeros: bool) -> Case:
    """One of 67 columns whose last blocks are not whole."""
    blocks = -(-k // block)
    stored = (u8(67, blocks, block * count // 8), f(67, blocks, scale=0.1), *([u8(67, -(-blocks * count // 8))] if zeros else []))
    return bits(count, stored, k, rows, N=67, block_size=block)


def experts(width: int, k: int, activation: str, **more: Any) -> Case:
    inputs = all_of(f(3, 8), f(3, 4), f(4, width * 6, 8), f(4, width * 6), f(4, 8, 6), f(4, 8))
    return Case("MoE", inputs, 1, {"k": k, "activation_type": activation, **more})


def few_bits(width: int, k: int, activation: str, count: int, blocks: int = 0, **more: Any) -> Case:
    """Weights of 32 inputs."""
    scales = [(4, n, blocks) if blocks else (4, n) for n in (width * 32, 32)]
    sizes = {"block_size": 32 // blocks} if blocks else {}
    inputs = all_of(
        f(3, 32), f(3, 4), u8(4, width * 32, 4 * count), f(*scales[0], scale=0.1), f(4, width * 32), u8(4, 32, 4 * count),
        f(*scales[1], scale=0.1), f(4, 32),
    )  # fmt: skip
    attributes = {"k": k, "activation_type": activation, "expert_weight_bits": count, **sizes, **more}
    return Case("QMoE", inputs, 1, attributes, (2, 3, 4, 5, 6, 7))


def rows_of(count: int, data: Any, *zeros: Any) -> Case:
    attributes = {"bits": count, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    return Case("GatherBlockQuantized", all_of(data, i(0, 9, 2, 3, dtype=np.int64), f(9, 2), *zeros), 1, attributes, (0, 2, 3))


SWIGLU = {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.5, "normalize_routing_weights": 1}
NEWER = [
    grouped(2, 3, 0, [2, 2], 3, softcap=5.0),
    grouped(2, 3, 0, [2, 2], 3, smooth_softmax=1),
    grouped(2, 3, 0, [2, 2], 3, (None, f(4))),
    grouped(2, 3, 0, [2, 2], 3, (f(2, 1, 3, 3),), softcap=5.0, local_window_size=2),
    grouped(2, 1, 6, [3, 5], 6, softcap=5.0, do_rotary=1),
    grouped(2, 1, 6, [3, 5], 6, (None, f(4)), (), do_rotary=1),
    grouped(2, 1, 6, [3, 6], 7, (), (6,), local_window_size=3, do_rotary=1),
    grouped(2, 1, 6, [3, 5], 6, local_window_size=3, do_rotary=1),
    grouped(1, 3, 8, [2], 3, do_rotary=1),
    grouped(1, 3, 6, [8], 9, (f(1, 4, 3, 9),), do_rotary=1),
    bits(4, (u8(8, 3, 8), f(8 * 3)), 40),
    bits(8, (u8(8, 2, 16), f(8 * 2), u8(8 * 2))),
    bits(2, (u8(8, 2, 4), f(8 * 2))),
    bits(4, (u8(8, 2, 8), f(8 * 2), f(8 * 2))),
    bits(4, (u8(8, 2, 8), f(8 * 2), None, is_([0, 1] * 16, np.int32))),
    bits(4, (u8(8, 2, 8), f(8 * 2), None, None, f(8))),
    bits(4, (u8(8, 2, 8), f(8 * 2), None, is_([0] * 16 + [1] * 16, np.int32))),
    bits(2, (u8(8, 2, 4), f(8 * 2), u8(8, 1), None, f(8))),
    bits(8, (u8(8, 2, 16), f(8 * 2), f(8 * 2), None, f(8))),
    many_bits(4, 32, 1, 300, zeros=True),
    many_bits(4, 128, 7, 1000, zeros=False),
    many_bits(8, 64, 20, 500, zeros=True),
    many_bits(2, 32, 40, 300, zeros=False),
    *(
        Case("MatMulBnb4", all_of(f(3, 32), u8(32 * 4), f(16)), 1, {"K": 32, "N": 8, "block_size": 16, "quant_type": kind}, (1, 2))
        for kind in (0, 1)
    ),
    rows_of(4, u8(9, 16)),
    rows_of(8, u8(9, 32), u8(9, 2)),
    rows_of(4, u8(9, 16), u8(9, 1)),
    rows_of(2, u8(9, 8)),
    rows_of(2, u8(9, 8), u8(9, 1)),
    experts(1, 1, "relu"),
    experts(1, 2, "gelu"),
    experts(1, 2, "silu", normalize_routing_weights=1),
    experts(2, 2, "swiglu", **SWIGLU),
    few_bits(1, 1, "relu", 4),
    few_bits(1, 2, "gelu", 8),
    few_bits(1, 2, "silu", 4, normalize_routing_weights=1),
    few_bits(2, 2, "swiglu", 4, **SWIGLU),
    few_bits(2, 2, "swiglu", 4, 2, swiglu_fusion=1, normalize_routing_weights=1),
    Case(
        "QLinearWhere",
        all_of(i(0, 2, 3, 4, dtype=np.bool_), u8(3, 4), *Q, u8(3, 4), is_(0.1), is_(99, np.uint8), *Q),
        tolerance=1,
        weights=(2, 3, 5, 6, 7, 8),
    ),
    Case("MatMulInteger16", all_of(*(i(-30000, 30000, *n, dtype=np.int16) for n in ((3, 4), (4, 5)))), tolerance=0),
    *(
        Case(
            "QLinearConv",
            all_of(u8(*shape), *Q, u8(4, 3, 3, 3), *Q, *Q),
            1,
            {"channels_last": last},
            (1, 2, 3, 4, 5, 6, 7),
            tolerance=1,
        )
        for last, shape in enumerate(((1, 3, 5, 5), (1, 5, 5, 3)))
    ),
    Case(
        "DynamicQuantizeLSTM",
        all_of(
            f(4, 2, 8),
            u8(1, 8, 20),
            u8(1, 5, 20),
            f(1, 40),
            *[None] * 4,
            *[is_([0.01]), is_([120], np.uint8)] * 2,
        ),
        3,
        {"hidden_size": 5},
        (1, 2, 8, 9, 10, 11),
        tolerance=0.02,  # ONNX Runtime quantizes rows, too
    ),
    Case("ScaledSiLU", all_of(X), 1, {"alpha": 1.5}),
    Case("GatedAdd", all_of(X, X, f(2, 5, 1))),
    Case("GatedRMSNorm", all_of(X, f(8), X), 1, {"activation": "silu"}),
    Case("BranchwiseRMSNorm", all_of(X, f(16)), 1, {"num_branches": 2}),
    Case("LinearAttentionGate", all_of(X, f(16), f(16), X), 2),
    Case(
        "LinearAttention",
        all_of(f(2, 3, 16), f(2, 3, 8), f(2, 3, 8), None, f(2, 3, 2), f(2, 3, 2)),
        2,
        {"q_num_heads": 4, "kv_num_heads": 2},
    ),
    Case("CausalConvWithState", all_of(f(2, 4, 6), f(4, 1, 3), f(4), f(2, 4, 2)), 2, {"activation": "silu"}),
    Case("GatherND", all_of(X, i(0, 2, 3, 2, dtype=np.int64))),
    *(Case("Trilu", all_of(X, is_(1, np.int64)), 1, {"upper": upper}) for upper in (0, 1)),
    Case("Range", all_of(is_(1.0), is_(9.0), is_(2.0)), weights=(0, 1, 2)),
    Case("Pad", all_of(X, is_([[0, 1, 0, 0, 0, 2]], np.int64), is_([0.5])), 1, {"mode": "constant"}, (1, 2)),
    Case("ExpandDims", all_of(X, is_(1, np.int32)), weights=(1,)),
    Case("TransposeMatMul", all_of(f(2, 5, 16), f(2, 7, 16)), 1, {"transB": 1, "alpha": 0.5}),
    Case("NhwcMaxPool", all_of(u8(1, 6, 6, 3)), 1, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("UnfoldTensor", all_of(f(3, 9)), 1, {"dim": 1, "size": 3, "step": 2}),
    *(Case("CDist", all_of(f(5, 3), f(4, 3)), 1, {"metric": metric}) for metric in ("euclidean", "sqeuclidean")),
    Case("GridSample", all_of(IMAGE, f(1, 3, 3, 2, scale=0.4)), 1, {"mode": "bilinear", "padding_mode": "zeros"}),
    Case("Unique", all_of(is_([2, 1, 1, 3, 4, 3])), 3, {}, (0,)),
    *(Case("Inverse", all_of(f(*shape)), tolerance=1e-3) for shape in ((3, 5, 5), (7, 7))),
    *(Case("Det", all_of(f(*shape)), domain="", tolerance=1e-3) for shape in ((3, 5, 5), (4, 4))),
    Case(
        "QEmbedLayerNormalization",
        all_of(
            i(0, 9, 2, 5),
            i(0, 2, 2, 5),
            u8(9, 16),
            u8(7, 16),
            u8(2, 16),
            u8(16),
            u8(16),
            None,
            *[is_(0.02)] * 5,
            *[is_(120, np.uint8)] * 5,
        ),
        2,
        {},
        tuple(range(8, 18)),
    ),
    *(
        Case(
            "MRotaryEmbedding",
            all_of(f(2, 5, 16), i(0, 8, 3, 2, 5, dtype=np.int64), *ANGLES),
            1,
            {"mrope_section": [2, 1, 1], "num_heads": 2, "rotary_embedding_dim": 8, "mrope_layout": layout},
        )
        for layout in (0, 1)
    ),
    Case(
        "RotaryEmbedding",
        all_of(f(2, 2, 5, 8), i(0, 8, 2, 5, dtype=np.int64), f(8, 2), f(8, 2)),
        1,
        {"rotary_embedding_dim": 4, "num_heads": 2},
    ),
    Case("MultiHeadAttention", all_of(*[f(2, 5, 16)] * 3), 1, {"num_heads": 2, "unidirectional": 1}),
    Case("MultiHeadAttention", all_of(*[f(2, 3, 16)] * 3, None, None, None, KEPT, KEPT), 3, {"num_heads": 2, "unidirectional": 1}),
    *(
        Case(
            f"{prefix}MultiHeadAttention",
            all_of(*[f(2, 1, 16)] * 3, *[None] * nothing, KEPT, KEPT, is_([4], np.int32)),
            3,
            {"num_heads": 2, **more},
            (5 + nothing,),
            rows=(5, 5),
        )
        for prefix, nothing, more in (("", 3, {}), ("DecoderMasked", 2, {"past_present_share_buffer": 1}))
    ),
]


class Defined(NamedTuple):
    """An operator that ONNX Runtime has on GPUs only, and its definition."""

    kind: str
    inputs: tuple[Callable[[Rng], Any], ...]
    result: Callable[..., Any]
    attributes: Mapping[str, Any] = {}
    weights: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """The operator and its attributes."""
        return f"{self.kind} {' '.join(f'{key}={value}' for key, value in self.attributes.items())}".strip()


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def complex_product(a: Any, b: Any, conjugated: bool) -> Any:
    second = b.view(np.complex64)
    return (a.view(np.complex64) * (second.conj() if conjugated else second)).view(np.float32)


def group_norm(x: Any, scale: Any, bias: Any, skip: Any, more: Any) -> Any:
    total = (x + skip[:, None, None] + more).astype(np.float64)
    parts = total.reshape(*x.shape[:3], 2, -1)
    means, spread = parts.mean((1, 2, 4), keepdims=True), parts.var((1, 2, 4), keepdims=True)
    found = ((parts - means) / np.sqrt(spread + 1e-5)).reshape(x.shape) * scale + bias
    return (found * sigmoid(found)).astype(np.float32)


def buckets(table: Any, rows: Any, keys: Any) -> Any:
    """T5's, for 8 buckets up to a distance of 6, to one side."""
    distance = np.maximum(np.arange(rows[0])[:, None] - np.arange(keys[0]), 0)
    far = 4 + (np.log(np.maximum(distance, 1) / 4) / np.log(6 / 4) * 4).astype(int)
    return table[np.where(distance < 4, distance, np.minimum(far, 7))].transpose(2, 0, 1)[None]


def gated_bias(x: Any, more: Any, places: Any, matrix: Any, bias: Any, eco: Any) -> Any:
    each = (x + more).reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    gates = sigmoid((each @ matrix + bias).reshape(2, 2, 3, 2, 3).sum(-1))
    return (gates[..., :1] * (gates[..., 1:] * eco - 1) + 2) * places


def gelu(x: Any) -> Any:
    return (x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).astype(np.float32)


FACTORS = (i(-9, 9, 3, 4, dtype=np.int8), is_(2, np.int8), i(0, 9, 3, 4, dtype=np.uint8), is_(5, np.uint8))
DEFINED = [
    Defined(
        "SwiGLU",
        (X, X),
        lambda a, b: np.minimum(a, 0.7) * sigmoid(np.minimum(a, 0.7)) * (np.clip(b, -0.7, 0.7) + 1),
        {"limit": 0.7, "activation_beta": 1.0},
    ),
    Defined("SwiGLU", (X,), lambda a: a[..., :8] * sigmoid(a[..., :8]) * a[..., 8:]),
    Defined("ComplexMul", (f(3, 4, 2), f(3, 4, 2)), lambda a, b: complex_product(a, b, False)),
    Defined("ComplexMulConj", (f(3, 4, 2), f(3, 4, 2)), lambda a, b: complex_product(a, b, True)),
    Defined(
        "Rfft",
        (f(3, 10),),
        lambda x: np.fft.rfft(x).astype(np.complex64).view(np.float32).reshape(3, 6, 2),
        {"signal_ndim": 1, "onesided": 1},
    ),
    Defined(
        "Irfft",
        (f(3, 6, 2),),
        lambda x: np.fft.irfft(x.view(np.complex64)[..., 0]).astype(np.float32),
        {"signal_ndim": 1, "onesided": 1},
    ),
    Defined("GemmFastGelu", (X, f(16, 8), f(8)), lambda x, w, b: gelu(x @ w + b)),
    Defined("TorchEmbedding", (f(9, 4), i(0, 9, 2, 3, dtype=np.int64)), lambda w, at: w[at]),
    Defined("MulInteger", FACTORS, lambda a, p, b, q: (a.astype(np.int32) - p) * (b.astype(np.int32) - q)),
    Defined("ReduceSumInteger", (i(-9, 9, 3, 4, dtype=np.int8),), lambda a: a.sum(1, dtype=np.int32), {"axes": [1], "keepdims": 0}),
    Defined(
        "QLinearReduceMean",
        (u8(3, 4, 5), is_(0.5), is_(100, np.uint8), is_(0.25), is_(90, np.uint8)),
        lambda x, *rest: np.clip(np.round(((x.astype(float) - 100) * 0.5).mean((0, 2)) / 0.25) + 90, 0, 255).astype(np.uint8),
        {"axes": [0, 2], "keepdims": 0},
    ),
    Defined(
        "SkipGroupNorm", (f(2, 3, 3, 4), f(4), f(4), f(2, 4), f(4)), group_norm, {"groups": 2, "activation": 1, "epsilon": 1e-5}
    ),
    Defined("RelativePositionBias", (f(8, 2), is_([9], np.int64), is_([9], np.int64)), buckets, {"max_distance": 6}, (1, 2)),
    Defined(
        "GatedRelativePositionBias", (f(2, 3, 8), f(8), f(1, 2, 3, 3), f(4, 6), f(6), f(1, 2, 1, 1)), gated_bias, {"num_heads": 2}
    ),
    Defined("BiasDropout", (X, f(16), X), lambda x, b, more: x + b + more),
    *(
        Defined("IsAllFinite", (is_([1.0, number]), X), lambda a, b: np.isfinite(a).all() & np.isfinite(b).all())
        for number in (2.0, np.inf, np.nan)
    ),
]
