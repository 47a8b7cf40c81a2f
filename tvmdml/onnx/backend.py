"""tvmdml as a backend of ONNX: ``onnx.backend.test.BackendTest(tvmdml.onnx.backend, "tvmdml")`` runs ONNX's own tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx.backend.base import Backend, BackendRep

from tvmdml import targets
from tvmdml.errors import TvmdmlError
from tvmdml.onnx.model import load
from tvmdml.onnx.running import Runnable

__all__ = ["TvmdmlBackend", "prepare", "run_model", "supports_device"]


class _Prepared(BackendRep):  # type: ignore[misc] # onnx has no types
    """A model that runs."""

    def __init__(self, model: Runnable) -> None:
        self._model = model

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """Run on inputs in order."""
        return self._model(dict(zip((one.name for one in self._model.inputs), inputs, strict=True)))


class TvmdmlBackend(Backend):  # type: ignore[misc] # onnx has no types
    """ONNX's interface of backends."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> _Prepared:
        """Load a model; CPU is the target cpu, and CUDA the target cuda."""
        return _Prepared(load(model, target=device.lower()))

    @classmethod
    def run_model(cls, model: Any, inputs: Sequence[Any], device: str = "CPU", **kwargs: Any) -> list[Any]:
        """Load and run a model."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a target can be used."""
        try:
            targets.resolve(device.lower(), "device")
        except TvmdmlError:
            return False
        return True


prepare = TvmdmlBackend.prepare
run_model = TvmdmlBackend.run_model
supports_device = TvmdmlBackend.supports_device
