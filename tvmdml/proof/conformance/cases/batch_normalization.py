"""The operators of ``operators/batch_normalization.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators.activation import ActivationRelu
from tvmdml.operators.activation_smooth import ActivationSigmoid
from tvmdml.operators.batch_normalization import (
    BatchNormalization,
    BatchNormalizationGrad,
    BatchNormalizationTraining,
    BatchNormalizationTrainingGrad,
)
from tvmdml.proof.conformance.cases._common import FLOATING, Broken, Case, change, tensor
from tvmdml.proof.conformance.cases._reduction import cases
from tvmdml.tensors import TensorDesc as T

_ACTIVATIONS = (None, ActivationRelu.fused(), None, ActivationSigmoid.fused())
_FULL = {"input_tensor", "output_tensor", "fused_add_tensor", "input_gradient_tensor", "output_gradient_tensor"}
_ALL: tuple[Any, ...] = (BatchNormalization, BatchNormalizationGrad, BatchNormalizationTraining, BatchNormalizationTrainingGrad)


def normalized(cls: Any, x: T, axes: tuple[int, ...] = (0,), way: int = 0, layout: str = "packed") -> Operator:
    """Parameters with size 1 along the axes; with and without an activation and something added."""
    own = tuple(1 if i in axes else size for i, size in enumerate(x.sizes))
    values: dict[str, Any] = {"epsilon": (1e-5, 0.25)[way % 2]}
    for field in cls.fields():
        if field.role is Role.INPUT:
            sizes = x.sizes if field.name in _FULL else own
            values[field.name] = x if field.name == "input_tensor" else T(x.data_type, sizes)
        elif field.role is Role.OUTPUT:
            full = field.name in _FULL
            values[field.name] = tensor(x.data_type, x.sizes if full else own, layout if full else "packed")
        elif field.name == "fused_activation":
            values[field.name] = _ACTIVATIONS[way // 2 % 4]
        elif field.name == "spatial":
            values[field.name] = way % 3 != 0
    if cls is BatchNormalization and way % 4 == 3:
        values["bias_tensor"] = T(x.data_type, x.sizes)
    if cls is BatchNormalizationTraining and way % 3 == 0:
        values["fused_add_tensor"] = None
    return cls(**values)


def _given(cls: Any, x: T) -> Operator:
    """With sizes of 1 along the first dimension; with all optional tensors."""
    return normalized(cls, x, (0,), 1)


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {cls: partial(_given, cls) for cls in _ALL}

X = T("float32", (2, 3, 4, 5))


def _broken(cls: Any) -> dict[str, Broken]:
    good, name = normalized(cls, X, (0, 2, 3)), cls.NAME
    some = "mean_tensor" if cls is not BatchNormalizationTraining else "scale_tensor"
    output = "output_tensor" if "output_tensor" in good.__dict__ else "output_gradient_tensor"
    return {
        f"{name} with an infinite epsilon": Broken(change(good, epsilon=float("inf")), f"{name} epsilon", "inf", "a finite number"),
        f"{name} with other channels": Broken(
            change(good, **{some: T("float32", (1, 4, 1, 1))}),
            *(f"{name} {some}.sizes", "(1, 4, 1, 1)", "(2, 3, 4, 5), with 1 in place of any of them"),
        ),
        f"{name} of another rank": Broken(
            change(good, **{some: T("float32", (3, 1, 1))}), f"{name} {some}.rank", "3", "4, as in input_tensor"
        ),
        f"{name} of another type": Broken(
            change(good, **{some: T("float16", (1, 3, 1, 1))}),
            *(f"{name} {some}.data_type", "float16", "float32, as in input_tensor"),
        ),
        f"{name} to other sizes": Broken(
            change(good, **{output: T("float32", (2, 3, 5, 4))}),
            *(f"{name} {output}.sizes", "(2, 3, 5, 4)", "(2, 3, 4, 5), as in input_tensor"),
        ),
    }


BROKEN: dict[str, Broken] = {rule: broken for cls in _ALL for rule, broken in _broken(cls).items()} | {
    "BATCH_NORMALIZATION not spatial": Broken(
        change(normalized(BatchNormalization, X, (0, 2, 3)), spatial=False),
        *("BATCH_NORMALIZATION mean_tensor.sizes[2:4]", "(1, 1)", "(4, 5), as spatial is false, below feature level 4.0"),
        level="3.1",
    ),
}


def reference(cls: type[Operator]) -> Iterator[Case]:
    """All ways; parameters along several axes."""
    yield from cases(partial(normalized, cls), FLOATING, ("normal", "constant", "mixed", "special", "zeros"))
