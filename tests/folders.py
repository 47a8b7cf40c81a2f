"""Where things are in the repository, for tests in whatever folder."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
TOP = TESTS.parent
MODELS = TESTS / "models"
C = TESTS / "c"
