"""Attention whose factors are rounded to bfloat16, with sums, powers and results in float32.

Queries are scaled before they are rounded. Sums of products have the order of ``_matrix_bfloat16_fused.py``: places are channels,
and then the keys of a block of ``KEYS``, before which what was summed is multiplied by the weight of the largest score until then.
Weights are powers of differences from the largest score. They are rounded where they meet values, but not in their own sum: of each
block that of the first 16 keys of each 32 in order, and that of the others. A power's last bits differ between targets.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._attention_reference import weighed
from tvmdml.operators._attention_softmax_fused import SoftmaxAttention
from tvmdml.operators._contract import NumpyArray
from tvmdml.operators._matrix_bfloat16_fused import rounded

KEYS = 128
"""Keys of a block."""
_UNIT = 2.0**-8
"""How far off a rounded weight may be, as a part of it."""


class Bfloat16Attention(SoftmaxAttention):
    """The same of factors that are rounded."""

    NAME = "FUSED_BFLOAT16_ATTENTION"
    BFLOAT16 = True

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """In float64, of rounded factors."""
        q, k, v, *more = inputs
        assert q is not None
        assert k is not None
        assert v is not None
        bias = more[0] if more else None
        factors = (rounded(q * np.float32(self.scale)), rounded(k), rounded(v))
        with np.errstate(all="ignore"):
            found, error, sums = weighed(dataclasses.replace(self, scale=1.0), *factors, bias)
        return (Near(found, np.dtype(np.float32), 0, error + _UNIT * sums),)
