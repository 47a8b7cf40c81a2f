"""ONNX's models that are not single nodes: small forms of real networks, simple ones, and those that PyTorch exported once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmdml.errors import Unsupported

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

import tvmdml.onnx  # noqa: E402 - it needs ONNX

NOT_APPLICABLE = ("test_strnorm_", "test_gradient_of_")
"""Strings, and gradients."""
NO_OLDER = 7
NOT_CONVERTED = ("test_PReLU_1d_multiparam", "test_PReLU_2d_multiparam", "test_PReLU_3d_multiparam")
"""ONNX's converter leaves the shape of the slopes as it was, which does not fit version 7."""


@functools.cache
def suite(kind: str) -> dict[str, Path]:
    from onnx.backend.test.loader import load_model_tests

    top = Path(onnx.__file__).parents[1]
    found = {one.name: Path(one.model_dir, "model.onnx") if one.model_dir else top / one.url for one in load_model_tests(kind=kind)}
    return {name: path for name, path in sorted(found.items()) if path.exists()}


def tensors(folder: Path, pattern: str) -> list[Any]:
    paths = sorted(folder.glob(pattern), key=lambda path: int(path.stem.rpartition("_")[2]))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def check(model: Any, inputs: list[Any], expected: list[Any]) -> None:
    found = model({one.name: array for one, array in zip(model.inputs, inputs, strict=False)})
    for one, right in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (right.dtype, right.shape)
        assert np.allclose(one.astype(np.float64), right.astype(np.float64), 1e-3, 1e-5 + 1e-4 * np.nanmax(np.abs(right)), True)


@pytest.mark.full
@pytest.mark.drawn("name", sorted(suite("real")), 1)
def test_small_real_networks(name: str) -> None:
    path = suite("real")[name]
    model = tvmdml.onnx.load(path)
    inputs = [(np.arange(np.prod(one.shape)) / np.prod(one.shape)).reshape(one.shape).astype(one.dtype) for one in model.inputs]
    check(model, inputs, [onnx.numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb")))])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", sorted(suite("simple")))
def test_simple_models(name: str) -> None:
    path = suite("simple")[name]
    if name.startswith(NOT_APPLICABLE):
        with pytest.raises(Unsupported):
            tvmdml.onnx.load(path)
        return
    model = tvmdml.onnx.load(path)
    for folder in path.parent.glob("test_data_set_*"):
        check(model, tensors(folder, "input_*.pb"), tensors(folder, "output_*.pb"))


EXPORTED = {
    name: path
    for kind in ("pytorch-operator", "pytorch-converted")
    for name, path in suite(kind).items()
    if name not in NOT_CONVERTED
}


@pytest.mark.full(first=1)
@pytest.mark.drawn("name", sorted(EXPORTED), 4)
def test_models_that_pytorch_exported(name: str) -> None:
    """Most are of an older version, from which ONNX's own converter makes version 7."""
    path = EXPORTED[name]
    read = onnx.load(path)
    if read.opset_import[0].version < NO_OLDER:
        with pytest.raises(Unsupported, match="version"):
            tvmdml.onnx.load(read)
        read = onnx.version_converter.convert_version(read, NO_OLDER)
    model = tvmdml.onnx.load(read)
    for folder in path.parent.glob("test_data_set_*"):
        check(model, tensors(folder, "input_*.pb"), tensors(folder, "output_*.pb"))
