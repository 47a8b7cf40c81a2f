"""The picture of the front page is that of the table of models."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from folders import TOP

from tvmdml.proof.bench import plot_families

TABLE = """\
| model | one thread | peer | ratio | batch 8 | two threads | peer | ratio |
| --- | --- | --- | --- | --- | --- | --- | --- |
| ResNet-18 | 1 ms | 2 ms | 2.0 |  | 1 ms | 2 ms | 3.0 |
| nudenet | 1 ms | 8 ms | 8.0 |  |  |  |  |
| GPT-2 int8, a word | 1 ms | 1 ms | 1.0 |  | 1 ms | 1 ms | 0.5 |
"""


def test_a_family_is_the_geometric_mean_of_its_lines() -> None:
    found = plot_families.families(TABLE)
    assert list(found) == ["Image networks", "Decoders, int8"]
    assert math.isclose(found["Image networks"][0], 4.0)
    assert found["Image networks"][1] == pytest.approx(3.0)
    assert found["Decoders, int8"] == pytest.approx((1.0, 0.5))


def test_every_line_of_the_page_has_a_family() -> None:
    lines = plot_families.lines(plot_families.PAGE.read_text())
    assert len({line.model for line in lines}) == len(lines) > 30
    assert {line.family.removesuffix(", int8") for line in lines} == set(plot_families.FAMILIES)


def test_the_picture_is_as_wide_as_the_front_page_shows_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed")
    plot_families.draw(plot_families.PAGE.read_text(), tmp_path / "drawn.png")
    for path in (tmp_path / "drawn.png", TOP / "tests" / "bench" / "families.png"):
        assert struct.unpack(">I", path.read_bytes()[16:20]) == (640,)
    assert 'src="tests/bench/families.png" width="640"' in (TOP / "README.md").read_text()
