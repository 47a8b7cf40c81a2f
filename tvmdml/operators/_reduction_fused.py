"""Normalizations, softmax and reductions with pointwise operators behind them, as one operator each."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels.reduction import Walk
from tvmdml.operators._contract import Role
from tvmdml.operators._followed import Followed, followed_classes
from tvmdml.operators._reduction import Reduction
from tvmdml.operators.activation_softmax import ActivationLogSoftmax, ActivationLogSoftmax1, ActivationSoftmax, ActivationSoftmax1
from tvmdml.operators.normalization import (
    LpNormalization,
    MeanVarianceNormalization,
    MeanVarianceNormalization1,
    MeanVarianceNormalization2,
)
from tvmdml.operators.reduce import Reduce


class FollowedReduction(Followed, Reduction):
    """Base class of those of the reduction family. Behind a result of slices there are no other inputs."""

    def check(self) -> None:
        """What follows a slice's result takes nothing else."""
        super().check()
        if not self.EACH:
            given = len(self.epilogue_tensors)
            self.require(not given, "epilogue_tensors", given, "none behind a result of slices")

    def walks(self) -> tuple[Walk, ...]:
        """Those of the head, which see its own inputs only."""
        return tuple(one._replace(before=self._own(one)) for one in self.head().walks())

    def _own(self, walk: Walk) -> Any:
        first, count = walk.counted + self._count, len(self.epilogue_tensors)
        return lambda *given: walk.before(*given[:first], *given[first + count :])

    @property
    def _count(self) -> int:
        """How many inputs the head has."""
        return sum(tensor is not None for _, tensor in self.tensors(Role.INPUT)) - len(self.epilogue_tensors)

    def slice_results(self, *found: Any) -> Any:
        """The head's, passed on."""
        return self.passed_on(self.head().slice_results(*found))

    def element(self, *values: Any) -> Any:
        """The head's, passed on."""
        first, count = self.COUNTED + self._count, len(self.epilogue_tensors)
        own = self.head().element(*values[:first], *values[first + count :])
        return self.passed_on(own, *values[first : first + count])

    def formula_key(self) -> tuple[tuple[str, Any], ...]:
        """What the head depends on, and what follows, without its sizes."""
        return (*super().formula_key(), *self.key_behind())


CLASSES = followed_classes(
    FollowedReduction,
    *(ActivationSoftmax, ActivationSoftmax1, ActivationLogSoftmax, ActivationLogSoftmax1, LpNormalization, Reduce),
    *(MeanVarianceNormalization, MeanVarianceNormalization1, MeanVarianceNormalization2),
)
