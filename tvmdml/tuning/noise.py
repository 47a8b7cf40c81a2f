"""How much measurements in turns repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_PARTS = 8
"""Into so many parts a measurement is divided, to see how much it repeats: disturbances come in bursts."""


def noise_of(times: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """The factor, less 1, of two standard deviations of the ratio among the parts of a measurement.

    Args:
        times: for each input the times of the defaults and of the candidate, in turns: pairs by their places.
    """
    parts = min(_PARTS, *(min(len(default), len(own)) for default, own in times)) if times else 0
    if parts < 2:
        return 0.0
    logarithms = np.zeros(parts)
    for default, own in times:
        count = min(len(default), len(own))
        ratios = np.log(np.maximum(default[:count], 1e-9)) - np.log(np.maximum(own[:count], 1e-9))
        logarithms += [float(np.median(part)) / len(times) for part in np.array_split(ratios, parts)]
    return float(np.expm1(2 * np.std(logarithms, ddof=1)))
