"""The operator of ``operators/roi_pooling.py``."""

from __future__ import annotations

import math

from tvmdml.operators import Operator
from tvmdml.operators.roi_pooling import RoiPooling
from tvmdml.proof.conformance.cases import _window
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.proof.conformance.cases._window import WindowForm
from tvmdml.tensors import TensorDesc


def _made(x: TensorDesc, form: WindowForm) -> Operator:
    """As many regions as a window has taps, with different bins."""
    roi = TensorDesc(x.data_type, (*[1] * (x.rank - 2), min(form.window, 20), 5)[-x.rank :])
    bins = (form.stride, form.window % 7 + 1)
    return RoiPooling.of(x, roi, spatial_scale=0.5 if form.option else 1.0, pooled_size=bins)


GOOD = _made(_window.X, WindowForm(3))
RULES = {
    "ROI_POOLING: regions of four numbers": Broken(
        change(GOOD, roi_tensor=TensorDesc("float32", (1, 1, 3, 4))),
        *("ROI_POOLING roi_tensor.sizes", "(1, 1, 3, 4)", "(1, 1, 3, 5): a batch and two corners for each region"),
    ),
    "ROI_POOLING: no bins": Broken(change(GOOD, pooled_size=(0, 1)), "ROI_POOLING pooled_size.width", "0", "1 or more"),
    "ROI_POOLING: an infinite scale": Broken(
        change(GOOD, spatial_scale=math.inf), "ROI_POOLING spatial_scale", "inf", "a finite number"
    ),
    "ROI_POOLING: other bins": Broken(
        change(GOOD, pooled_size=(2, 2)), "ROI_POOLING output_tensor.sizes", "(3, 3, 4, 1)", "(3, 3, 2, 2)"
    ),
}

DESCRIBED, BROKEN, reference = _window.of("roi_pooling", {RoiPooling: _made}, RULES)
