"""Runs of JSON models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dispatch_models import Run

from tvmdml import dxdispatch


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a model, given as a path, text or Python objects, and returns the lines it prints but the first."""
    monkeypatch.chdir(tmp_path)

    def run_model(model: Any, **options: Any) -> list[str]:
        if not isinstance(model, Path):
            text = model if isinstance(model, str) else json.dumps(model)
            model = Path("model.json")
            model.write_text(text)
        said: list[str] = []
        dxdispatch.read(model).run(**{"output_path": tmp_path, "overwrite": True, "write": said.append, **options})
        first, *lines = "".join(said).splitlines()
        assert re.fullmatch(r"Running on '.+'", first)
        return lines

    return run_model
