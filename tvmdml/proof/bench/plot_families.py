"""The picture of the front page: how fast families of networks are beside their peers, from the table in this folder's README.md.

``python -m tvmdml.proof.bench.plot_families FILE.png`` draws it.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tvmdml.proof.bench import plot

PAGE = Path(__file__).with_name("README.md")
_INT8 = re.compile(r"\bint8\b")
FAMILIES = {
    "Image networks": re.compile(r"ResNet|MobileNet|EfficientNet|UNet|nudenet"),
    "Enlarging images": re.compile(r"enlarging"),
    "Text in images": re.compile(r"PP-OCR"),
    "Encoders": re.compile(r"ViT|BERT|Whisper|magika"),
    "Decoders": re.compile(r"GPT|Llama"),
    "Recurrent, speech": re.compile(r"LSTM|silero"),
}
"""The networks of each family, by words in their names. Those in int8 are a family of their own."""
_INCHES, _DPI = (6.4, 3.2), 100


class FamilyLine(NamedTuple):
    """A line of the table: a model, and how many times as fast as its fastest peer."""

    model: str
    one: float
    """With one thread."""
    two: float | None
    """With two."""

    @property
    def family(self) -> str:
        """The family."""
        (name,) = (name for name, words in FAMILIES.items() if words.search(self.model))
        return f"{name}, int8" if _INT8.search(self.model) else name


def lines(page: str) -> list[FamilyLine]:
    """The lines of the page's table of models."""
    (table,) = re.findall(r"^\| model \|.*\n\| ---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    return [FamilyLine(row[0], float(row[3]), float(row[7]) if row[7] else None) for row in cells]


def families(page: str) -> dict[str, tuple[float, float]]:
    """The geometric mean of each family's ratios, with one thread and with two."""
    found: dict[str, list[FamilyLine]] = {}
    for line in lines(page):
        found.setdefault(line.family, []).append(line)
    return {
        name: (_mean([line.one for line in mine]), _mean([line.two for line in mine if line.two is not None]))
        for name, mine in sorted(found.items(), key=lambda pair: -_mean([line.one for line in pair[1]]))
    }


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def draw(page: str, path: Path) -> None:
    """Write the picture, as PNG: a bar for one thread, a mark for two.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    figure = figure_class(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    found = families(page)
    places = range(len(found))
    axes.barh(places, [one for one, _ in found.values()], color="tab:green", height=0.6, label="one thread")
    axes.scatter([two for _, two in found.values()], places, marker="D", s=28, color="black", label="two threads", zorder=3)
    for place, (one, _) in zip(places, found.values(), strict=True):
        axes.text(0.04, place, f"{one:.2f}", va="center", color="white", fontsize=10)
    axes.axvline(1, color="black", linewidth=1)
    axes.text(1, -0.75, "ONNX Runtime, PyTorch", ha="center", fontsize=9, backgroundcolor="white")
    axes.set_yticks(places, list(found), fontsize=10)
    axes.set_ylim(len(found) - 0.5, -1.1)
    axes.set_xlim(0)
    axes.set_xlabel("times as fast as the faster of both, geometric mean", fontsize=10)
    axes.legend(loc="lower right", fontsize=9)
    plot.save(figure, path, _DPI)


if __name__ == "__main__":
    draw(PAGE.read_text(), Path(sys.argv[1]))
