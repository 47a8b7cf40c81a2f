"""Real models with real weights, from packages that carry them: the results are ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmdml.proof.bench.sources import ModelSource, sources

pytest.importorskip("onnx", reason="ONNX is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.targets import Target  # noqa: E402

REAL = [one for one in sources() if one.package and one.batch == 1]


QUICK = [one for one in REAL if one.name.startswith("silero") or one.name in ("magika", "PP-OCR direction")]
"""Those that a driver for processors runs within seconds."""


def agrees(source: ModelSource, target: str | Target) -> None:
    """The model's results are ONNX Runtime's, and so is the place of the largest number in each row."""
    if lacking := source.lacks():
        pytest.skip(f"the package {lacking} is not installed")
    path = source.path(Path())
    given = source.arrays()
    model = tvmdml.onnx.load(path, target=target)
    found = model({one.name: given[one.name] for one in model.inputs})
    right = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, given)
    for one, other in zip(found, right, strict=True):
        scale = max(float(np.abs(other).max()), 1e-2)  # of noise, a detector's probabilities are about nothing
        assert np.abs(one - other).max() <= 1e-4 * scale
        assert np.array_equal(one.argmax(-1), other.argmax(-1)) or source.name == "PP-OCR detection"


@pytest.mark.parametrize("source", REAL, ids=lambda one: one.name)
def test_a_real_model_gives_what_onnx_runtime_computes(source: ModelSource) -> None:
    agrees(source, "cpu")


@pytest.mark.drawn("source", QUICK, 2)
def test_a_real_model_on_vulkan(source: ModelSource, vulkan: Target) -> None:
    agrees(source, vulkan)


@pytest.mark.parametrize("source", [one for one in REAL if one not in QUICK], ids=lambda one: one.name)
def test_a_large_real_model_on_vulkan(source: ModelSource, vulkan: Target, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--every-case"):
        pytest.skip("a driver for processors takes minutes: run with --every-case")
    agrees(source, vulkan)
