"""What tests of ONNX models share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stages that are converted."""
    from tvmdml.onnx.origin import Origin  # it needs ONNX

    converted: list[Any] = []
    record = Origin.recording

    def counted(self: Any, shapes: Any, pattern: Any, decided: Any, part: Any = None) -> Any:
        recording = record(self, shapes, pattern, decided, part)
        converted.append(part)
        return recording

    monkeypatch.setattr(Origin, "recording", counted)
    return converted
