"""The operators of ``operators/local_response.py``."""

from __future__ import annotations

import math

from tvmdml.operators import Operator
from tvmdml.operators.local_response import LocalResponseNormalization, LocalResponseNormalizationGrad
from tvmdml.proof.conformance.cases import _window
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.proof.conformance.cases._window import WindowForm
from tvmdml.tensors import TensorDesc


def _made(cls: type[Operator], inputs: int) -> _window.Make:
    """Regions of a window's size, larger than the image, too; the exponent differs."""

    def make(x: TensorDesc, form: WindowForm) -> Operator:
        own = {"alpha": 0.5, "beta": 0.75 if form.option else (1.25, 1.0)[form.more], "bias": 1.5}
        return cls.of(*[x] * inputs, cross_channel=form.stride < 3, local_size=min(form.window, 9), **own)

    return make


MADE: dict[type[Operator], _window.Make] = {
    LocalResponseNormalization: _made(LocalResponseNormalization, 1),
    LocalResponseNormalizationGrad: _made(LocalResponseNormalizationGrad, 2),
}
RULES: dict[str, Broken] = {}
for _cls, _make in MADE.items():
    _good = _make(_window.X, WindowForm(3))
    RULES |= {
        f"{_cls.NAME}: an empty region": Broken(change(_good, local_size=0), f"{_cls.NAME} local_size", "0", "1 or more"),
        f"{_cls.NAME}: an infinite factor": Broken(change(_good, alpha=math.inf), f"{_cls.NAME} alpha", "inf", "a finite number"),
        f"{_cls.NAME}: no bias": Broken(change(_good, bias=math.nan), f"{_cls.NAME} bias", "nan", "a finite number"),
    }

DESCRIBED, BROKEN, reference = _window.of("local_response", MADE, RULES)
