"""The operator of ``operators/upsample_2d.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.enums import InterpolationMode
from tvmdml.operators import Operator
from tvmdml.operators.upsample_2d import Upsample2d
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _scaled(width: int, height: int, mode: InterpolationMode) -> Callable[[TensorDesc], Operator]:
    return lambda x: Upsample2d.of(x, scale_size=(width, height), interpolation_mode=mode)


NEAREST, LINEAR = InterpolationMode
GOOD = _scaled(2, 1, NEAREST)(_movement.X)
RULES = {
    "UPSAMPLE_2D: no factor": Broken(change(GOOD, scale_size=(2, 0)), "UPSAMPLE_2D scale_size.height", "0", "1 or more"),
    "UPSAMPLE_2D: another size of the output": Broken(
        change(GOOD, scale_size=(2, 2)), "UPSAMPLE_2D output_tensor.sizes", "(2, 4, 4, 12)", "(2, 4, 8, 12)"
    ),
}

DESCRIBED, BROKEN, reference = _movement.of(
    "upsample_2d",
    {
        Upsample2d: (
            _scaled(2, 2, NEAREST),
            _scaled(3, 1, NEAREST),
            _scaled(1, 4, NEAREST),
            _scaled(2, 3, LINEAR),
            _scaled(4, 1, LINEAR),
        )
    },
    RULES,
)
