"""The advice on installing an extra, in a clone and with an installed wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from folders import TOP as ROOT

from tvmdml.system import installing


def test_a_clone_stays_an_editable_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert installing.command("sign") == "`pip install -e '.[sign]'`"
    monkeypatch.chdir(tmp_path)
    assert installing.command("sign") == f"`pip install -e '{ROOT}[sign]'`"


def test_an_installed_wheel_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installing, "__file__", str(tmp_path / "site-packages" / "tvmdml" / "installing.py"))
    assert installing.command("compiler", "--force-reinstall") == "`pip install --force-reinstall 'tvmdml[compiler]'`"


def test_no_message_has_advice_of_its_own() -> None:
    for path in (ROOT / "tvmdml").rglob("*.py"):
        if path.name != "installing.py":
            assert not re.search(r"pip install [^`\n]*(tvmdml|\.)\[", path.read_text()), path
