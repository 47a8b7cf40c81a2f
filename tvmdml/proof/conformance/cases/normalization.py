"""The operators of ``operators/normalization.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.operators import Operator
from tvmdml.operators.activation import ActivationLeakyRelu
from tvmdml.operators.activation_smooth import ActivationTanh
from tvmdml.operators.normalization import (
    LpNormalization,
    MeanVarianceNormalization,
    MeanVarianceNormalization1,
    MeanVarianceNormalization2,
)
from tvmdml.proof.conformance.cases._common import FLOATING, Broken, Case, change, tensor
from tvmdml.proof.conformance.cases._reduction import axes_rules, cases, output_rules
from tvmdml.tensors import TensorDesc as T

_ACTIVATIONS = (None, ActivationLeakyRelu.fused(alpha=0.1), None, ActivationTanh.fused())


def normalized(cls: Any, x: T, axes: tuple[int, ...] = (0,), way: int = 0, layout: str = "packed") -> Operator:
    """With and without mean, variance, scale, bias and activation."""
    parts = [tuple(size if (i in axes) == (way // 4 % 2 == 0) or way % 3 == 2 else 1 for i, size in enumerate(x.sizes)), x.sizes]
    present = way % 4 if cls is MeanVarianceNormalization2 else 3 * (way % 2)
    own: dict[str, Any] = {
        "input_tensor": x,
        "scale_tensor": tensor(x.data_type, parts[0]) if present & 1 else None,
        "bias_tensor": tensor(x.data_type, parts[way // 8 % 2]) if present & 2 else None,
        "output_tensor": tensor(x.data_type, x.sizes, layout),
        "epsilon": (1e-5, 0.5)[way // 2 % 2],
        "fused_activation": _ACTIVATIONS[way // 3 % 4],
    }
    if cls is MeanVarianceNormalization:
        return MeanVarianceNormalization(**own, cross_channel=1 in axes, normalize_variance=way % 5 != 4)
    if cls is MeanVarianceNormalization1:
        return MeanVarianceNormalization1(**own, axes=axes, normalize_variance=way % 5 != 4)
    return MeanVarianceNormalization2(**own, axes=axes, use_mean=way % 3 != 1, use_variance=way % 5 != 4)


def lp(x: T, axes: tuple[int, ...] = (0,), way: int = 0, layout: str = "packed") -> LpNormalization:
    """One axis, and one of the two norms."""
    output = tensor(x.data_type, x.sizes, layout)
    return LpNormalization(input_tensor=x, output_tensor=output, axis=axes[0], epsilon=(1e-5, 0.0)[way // 2 % 2], p=2 - way % 2)


_MEANS: tuple[Any, ...] = (MeanVarianceNormalization, MeanVarianceNormalization1, MeanVarianceNormalization2)

DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {
    **{cls: partial(normalized, cls) for cls in _MEANS},
    LpNormalization: lp,
}

X = T("float32", (2, 3, 4, 5))


def _broken(cls: Any) -> dict[str, Broken]:
    good, name = normalized(cls, X, (0,), 3), cls.NAME
    scale, bias = T("float32", (2, 1, 4, 1)), T("float32", (2, 3, 4, 5))
    with_both = change(good, scale_tensor=scale, bias_tensor=bias)()
    rules = output_rules(name, good) | {
        f"{name} with a scale of other sizes": Broken(
            change(with_both, scale_tensor=T("float32", (2, 1, 1, 4))),
            *(f"{name} scale_tensor.sizes", "(2, 1, 1, 4)", "(2, 3, 4, 5), with 1 in place of any of them"),
        ),
        f"{name} with a bias of another rank": Broken(
            change(with_both, bias_tensor=T("float32", (4, 5))),
            *(f"{name} bias_tensor.rank", "2", "4, as the input"),
        )
        if cls is MeanVarianceNormalization2
        else Broken(
            change(with_both, bias_tensor=None, fused_activation=None),
            *(f"{name} bias_tensor", "None", "present if the scale is, below feature level 5.2"),
            level="5.1",
        ),
        f"{name} with an infinite epsilon": Broken(change(good, epsilon=float("inf")), f"{name} epsilon", "inf", "a finite number"),
    }
    return rules if cls is MeanVarianceNormalization else rules | axes_rules(name, good)


BROKEN: dict[str, Broken] = {
    rule: broken for cls in _MEANS for rule, broken in _broken(cls).items()
} | output_rules("LP_NORMALIZATION", lp(X)) | {
    "LP_NORMALIZATION along no axis": Broken(
        change(lp(X), axis=4), "LP_NORMALIZATION axis", "4", "0 to 3", advice="The input has no such dimension."
    ),
    "LP_NORMALIZATION with p 3": Broken(change(lp(X), p=3), "LP_NORMALIZATION p", "3", "1, 2"),
    "LP_NORMALIZATION with epsilon NaN": Broken(
        change(lp(X), epsilon=float("nan")), "LP_NORMALIZATION epsilon", "nan", "a finite number"
    ),
    "MEAN_VARIANCE_NORMALIZATION1 of other channels": Broken(
        change(normalized(MeanVarianceNormalization1, X, (0,), 1), scale_tensor=T("float32", (2, 1, 4, 5))),
        *("MEAN_VARIANCE_NORMALIZATION1 scale_tensor.sizes[1]", "1", "3, as in the input, below feature level 4.0"),
        level="3.1",
    ),
}  # fmt: skip


def reference(cls: type[Operator]) -> Iterator[Case]:
    """All ways; a constant slice, and numbers that are large and close."""
    fills = ("normal", "constant", "mixed", "special", "zeros")
    if cls is LpNormalization:
        yield from cases(lp, FLOATING, fills)
    elif cls is MeanVarianceNormalization:
        for large, layout in (((2, 3, 160, 161), "packed"), ((2, 3, 8, 64), "outer repeated")):
            yield Case(normalized(cls, tensor("float32", large, layout), (2, 3), 0), fills[0])
        for number, data_type in enumerate(FLOATING):
            for way in range(12):
                sizes = ((2, 3, 5, 7), (3, 2, 17, 33), (1, 4, 1, 9))[way % 3]
                axes = ((2, 3), (1, 2, 3))[way // 3 % 2]
                layout = ("packed", "padded", "transposed")[way % 3]
                yield Case(normalized(cls, tensor(data_type, sizes, layout), axes, way + number), fills[way % 5])
    else:
        yield from cases(partial(normalized, cls), FLOATING, fills)
