"""Packs that many tests take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import packs as small
import pytest

from tvmdml import packs, targets
from tvmdml.library import opened
from tvmdml.targets import Target


@pytest.fixture(scope="session")
def pack_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Target], Path]:
    """The pack for a target, built when a test first asks."""
    built: dict[str, Path] = {}

    def make(target: Target) -> Path:
        name = small.name_for(target)
        if name not in built:
            built[name] = small.build(tmp_path_factory.mktemp("pack"), name)
        return built[name]

    return make


@pytest.fixture(scope="session")
def cpu_pack(pack_for: Callable[[Target], Path]) -> Path:
    return pack_for(targets.resolve("cpu"))


@pytest.fixture(scope="session")
def few_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "few.tvmdml"
    packs.build(small.few_for("cpu:x86-64-v2"), path, jobs=1)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> Path:
    """As on another machine: nothing is on disk, nothing in memory."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(opened, "_libraries", {})
    return tmp_path / "cache"
