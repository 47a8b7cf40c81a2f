"""ONNX files of the networks, in each form."""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tvmdml.proof.bench.networks.table import TABLE, ExportForm, Network, NetworkSize, arrays

_SEED = 7
_OPSET = 17


def made(network: Network, size: NetworkSize) -> Any:
    """The network, with random weights that keep the size of values; the same ones each time."""
    module, function = network.maker.split(".")
    torch.manual_seed(_SEED)
    found = getattr(importlib.import_module(f"tvmdml.proof.bench.networks.{module}"), function)(**size.arguments).eval()
    for one in found.modules():
        if isinstance(one, torch.nn.BatchNorm2d):
            one.running_mean.normal_(0, 0.1)
            one.running_var.uniform_(0.5, 1.5)
        if isinstance(one, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(one.weight)
    return found.requires_grad_(False)


def inputs(network: Network, size: NetworkSize, seed: int = 5, **sizes: int) -> dict[str, Any]:
    """Random inputs; ``sizes`` are others than the usual ones."""
    return arrays(network.taken(size), {**size.sizes, **sizes}, seed)


def export(name: str, size: NetworkSize, form: ExportForm, path: Path) -> None:
    """Write the network as an ONNX file, which appears whole or not at all."""
    network = TABLE[name]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, _quiet():
        raw, done = Path(folder) / "raw.onnx", Path(folder) / "done.onnx"
        given = inputs(network, size)
        module = made(network, size)
        taken = network.taken(size)
        axes = {
            key: {i: n for i, n in enumerate(one.shape) if isinstance(n, str) and n in network.open} for key, one in taken.items()
        }
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(one) for one in given.values()),
            str(raw),
            dynamo=False,
            opset_version=_OPSET,
            input_names=list(given),
            dynamic_axes={key: one for key, one in axes.items() if one},
        )
        _FORMS[form](raw, done, network, size)
        os.replace(done, path)


def _same(raw: Path, done: Path, network: Network, size: NetworkSize) -> None:
    os.replace(raw, done)


def _fused(raw: Path, done: Path, network: Network, size: NetworkSize) -> None:
    optimizer = importlib.import_module("onnxruntime.transformers.optimizer")
    heads, width = (size.arguments.get(key, usual) for key, usual in (("heads", 12), ("width", 768)))
    found = optimizer.optimize_model(str(raw), model_type="bert", num_heads=heads, hidden_size=width)
    found.save_model_to_file(str(done))


class _Calibration:
    """Some inputs, from which the quantizer takes the ranges of values."""

    def __init__(self, given: Iterator[Mapping[str, Any]]) -> None:
        self._given = given

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._given, None)

    def set_range(self, start_index: int, end_index: int) -> None:
        """The quantizer's protocol has it."""


_NARROW = True
"""Factors of 7 bits. With 8, ONNX Runtime's sums of two products saturate at 16 bits on processors that have AVX2 and no VNNI."""


def _qdq(raw: Path, done: Path, network: Network, size: NetworkSize) -> None:
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    prepared = raw.with_name("prepared.onnx")
    importlib.import_module("onnxruntime.quantization.shape_inference").quant_pre_process(
        str(raw), str(prepared), skip_symbolic_shape=True
    )
    reader = type("Reader", (_Calibration, quantization.CalibrationDataReader), {})
    given = reader(inputs(network, size, seed) for seed in range(2))
    quantization.quantize_static(
        str(prepared), str(done), given, quant_format=quantization.QuantFormat.QDQ, per_channel=True, reduce_range=_NARROW
    )


def _dynamic(raw: Path, done: Path, network: Network, size: NetworkSize) -> None:
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    quantization.quantize_dynamic(str(raw), str(done), op_types_to_quantize=["MatMul", "Gemm"], reduce_range=_NARROW)


_FORMS: Mapping[ExportForm, Callable[[Path, Path, Network, NetworkSize], None]] = {
    ExportForm.RAW: _same,
    ExportForm.FUSED: _fused,
    ExportForm.QDQ: _qdq,
    ExportForm.DYNAMIC: _dynamic,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters warn of themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
