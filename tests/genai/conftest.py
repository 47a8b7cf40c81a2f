"""What tests of language models share: folders of a tiny one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")

import tiny_decoder


@pytest.fixture(scope="session")
def tables() -> dict[str, Any]:
    """The weights of the tiny model."""
    return tiny_decoder.weights()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, Any]) -> Path:
    """The folder of the tiny model, without a tokenizer."""
    return tiny_decoder.write(tmp_path_factory.mktemp("tiny"), tiny_decoder.model(tables), tiny_decoder.config())


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, Any]) -> Path:
    """The same with a tokenizer."""
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    path = tiny_decoder.write(tmp_path_factory.mktemp("spoken"), tiny_decoder.model(tables), tiny_decoder.config())
    tiny_decoder.write_tokenizer(path)
    return path
