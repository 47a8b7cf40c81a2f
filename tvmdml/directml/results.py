"""The results of functions that have several."""

from __future__ import annotations

from typing import NamedTuple

from tvmdml.directml.expressions import Expression


class MaxPoolingOutputs(NamedTuple):
    """The results of ``max_pooling``."""

    values: Expression
    indices: Expression | None


class GRUOutputs(NamedTuple):
    """The results of ``gru``: each may be left out."""

    sequence: Expression | None
    single: Expression | None


class TopKOutputs(NamedTuple):
    """The results of ``top_k``."""

    values: Expression
    indices: Expression


class NonZeroCoordinatesOutputs(NamedTuple):
    """The results of ``non_zero_coordinates``: only so many rows of the coordinates are used."""

    count: Expression  # type: ignore[assignment] # the package hides the tuple's method
    coordinates: Expression


class RandomGeneratorOutputs(NamedTuple):
    """The results of ``random_generator``."""

    values: Expression
    state: Expression | None


class BatchNormalizationTrainingOutputs(NamedTuple):
    """The results of ``batch_normalization_training``."""

    output: Expression
    mean: Expression
    variance: Expression


class BatchNormalizationGradOutputs(NamedTuple):
    """The results of ``batch_normalization_grad`` and ``batch_normalization_training_grad``."""

    gradient: Expression
    scale_gradient: Expression
    bias_gradient: Expression


class RoiAlignGradOutputs(NamedTuple):
    """The results of ``roi_align_grad``: each may be left out."""

    gradient: Expression | None
    roi_gradient: Expression | None
