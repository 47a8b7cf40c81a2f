"""Regions in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.peers._common import Attempt, Peer, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_ADAPTIVE = 2**32 - 1


def _when(work: Work) -> bool:
    """For averages of float32 with the same samples everywhere, or with as many as the region asks for."""
    if work.operator not in ("ROI_ALIGN", "ROI_ALIGN1"):
        return False
    own: dict[str, Any] = dict(work.attributes)
    least, most = (own.get(f"{name}_samples_per_output") for name in ("minimum", "maximum"))
    plain = own.get("reduction_function") == "average" and own.get("out_of_bounds_input_value", 0) == 0
    return plain and own.get("spatial_scale_x") == own.get("spatial_scale_y") and (least == most or (least, most) == (1, _ADAPTIVE))


def _onnx(task: Task, threads: int) -> Attempt:
    x, rois, batch = (one for one in task.given if one is not None)
    output = task.desc.outputs()[0]
    out = inputs.empty(output.sizes, x.dtype)
    own: dict[str, Any] = dict(task.work.attributes)
    given = {"x": x, "rois": rois.reshape(-1, 4), "batch": batch.reshape(-1).astype(np.int64)}
    call = onnx_session(
        *("RoiAlign", given, {"y": out}, threads),
        opset=16,
        output_height=output.sizes[2],
        output_width=output.sizes[3],
        sampling_ratio=0 if own["maximum_samples_per_output"] == _ADAPTIVE else own["maximum_samples_per_output"],
        spatial_scale=own["spatial_scale_x"],
        coordinate_transformation_mode="half_pixel" if own.get("input_pixel_offset") else "output_half_pixel",
    )
    return Attempt(call, writes(call, out))


PEERS = (Peer("onnxruntime", "RoiAlign", _onnx, _when),)
