"""Networks that PyTorch exports, with made-up weights: the results are PyTorch's, and ONNX Runtime's where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmdml.proof.bench.networks.table import TABLE, ExportForm

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.proof.bench.networks import exporting  # noqa: E402 - it needs PyTorch

NEEDED = {ExportForm.FUSED, ExportForm.QDQ, ExportForm.DYNAMIC}
"""The forms that ONNX Runtime makes."""
BYTES = {ExportForm.QDQ, ExportForm.DYNAMIC}
"""The forms in which a last bit of a float may become another byte."""
FILES = [(name, form) for name, network in TABLE.items() for form in network.forms]


def exported(name: str, form: ExportForm, folder: Path) -> Path:
    if form in NEEDED and importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("ONNX Runtime is not installed")
    path = folder / "network.onnx"
    exporting.export(name, TABLE[name].small, form, path)
    return path


def apart(found: Any, right: Any) -> float:
    """The largest difference of an output's element, as a part of the output's largest."""
    assert [one.shape for one in found] == [one.shape for one in right]
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in zip(found, right, strict=True))


def peer(path: Path, given: Any, level: Any) -> Any:
    """What ONNX Runtime computes."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {one.name: given[one.name] for one in session.get_inputs()})


@pytest.mark.drawn("file", FILES, 6)
def test_a_network_gives_what_pytorch_computes(file: tuple[str, ExportForm], tmp_path: Path) -> None:
    name, form = file
    network = TABLE[name]
    path = exported(name, form, tmp_path)
    model = tvmdml.onnx.load(path)
    assert set(model.symbols) >= set(network.open)
    module = exporting.made(network, network.small)
    for more in ({}, {one: network.small.sizes[one] + 1 for one in network.open}):
        given = exporting.inputs(network, network.small, **more)
        found = model({one.name: given[one.name] for one in model.inputs})
        if form not in BYTES:
            with torch.no_grad():
                right = module(*map(torch.from_numpy, given.values()))
            assert apart(found, [one.numpy() for one in (right if isinstance(right, tuple) else (right,))]) <= 1e-4
        if importlib.util.find_spec("onnxruntime") is not None:
            import onnxruntime

            levels = onnxruntime.GraphOptimizationLevel
            if form not in BYTES:
                assert apart(found, peer(path, given, levels.ORT_ENABLE_ALL)) <= 1e-4
            else:
                # What its optimizer makes of bytes differs from what the nodes say. Where a float lies between two bytes, its last
                # bit decides: in a small network with made-up weights that moves results by up to 0.04, so one of both is near.
                assert (
                    min(apart(found, peer(path, given, level)) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL)) <= 2e-2
                )


@pytest.mark.drawn("name", list(TABLE), 1)
@pytest.mark.parametrize("target", ["vulkan"])
def test_a_network_on_a_device(name: str, target: str, tmp_path: Path) -> None:
    network = TABLE[name]
    path = exported(name, ExportForm.RAW, tmp_path)
    given = exporting.inputs(network, network.small)
    there, here = (tvmdml.onnx.load(path, target=one) for one in (target, "cpu"))
    feeds = {one.name: given[one.name] for one in here.inputs}
    assert apart(there(feeds), here(feeds)) <= 1e-4
