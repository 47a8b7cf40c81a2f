"""``Enlarged``: UPSAMPLE_2D with weights, as a resampling."""

from __future__ import annotations

from tvmdml.enums import InterpolationMode
from tvmdml.operators._contract import Floats, Input, Output
from tvmdml.operators._resampling import Resampled


class Enlarged(Resampled):
    """The fields of RESAMPLE, for the kernels of another operator."""

    NAME = "UPSAMPLE_2D"
    SCHEDULE = "upsample_2d"

    input_tensor: Input
    output_tensor: Output
    interpolation_mode: InterpolationMode
    scales: Floats

    def modules(self) -> tuple[str, ...]:
        """Kernels follow from both operators."""
        return ("upsample_2d", "resample")
