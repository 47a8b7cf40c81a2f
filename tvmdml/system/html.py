"""Pages that a browser shows without a network: one file of HTML, with tables and pictures as SVG inside, and no scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tvmdml.errors import clean

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 1280px; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px; width: 100% } th { text-align: left }
td:first-child { white-space: nowrap } td, th { padding: .25em .7em .25em 0; border-bottom: 1px solid #8884; vertical-align: top }
figure { margin: 1em 0; overflow-x: auto; background: #fff; color: #111; padding: .5em } pre { overflow-x: auto }
"""
_BAR, _LABELS, _WIDTH = 20, 300, 560
_COLOURS = ("#1b4f72", "#b9770e", "#7d8a94", "#5b8c5a")


def escaped(text: str) -> str:
    """Text that others wrote, in lines. What controls a terminal or turns text is shown: XML cannot have it."""
    return escape("\n".join(clean(line, sys.maxsize) for line in text.split("\n")))


def page(title: str, lead: str, sections: Iterable[tuple[str, str]]) -> str:
    """A page.

    Args:
        title: its heading.
        lead: the paragraph below.
        sections: headings, and the HTML below each.
    """
    body = "".join(f"<section><h2>{escaped(name)}</h2>{content}</section>\n" for name, content in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escaped(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escaped(title)}</h1><p>{escaped(lead)}</p>\n{body}</body></html>\n"
    )


def write(path: str | Path, content: str) -> None:
    """Write a page.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(content, encoding="utf-8")


def figure(svg: str, caption: str) -> str:
    """A picture, and what it shows."""
    return f"<figure>{svg}<figcaption>{escaped(caption)}</figcaption></figure>"


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with these columns."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{escaped(str(row[name]))}</td>" for name in columns) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def preformatted(text: str) -> str:
    """Text as it is."""
    return f"<pre>{escaped(text)}</pre>"


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], mark: float | None = None) -> str:
    """Bars as SVG: for each row a label, and some series of name, value and what is written; ``mark`` is a line at a value."""
    names = list(dict.fromkeys(name for _, several in rows for name, _, _ in several))
    most = max([value for _, several in rows for _, value, _ in several] + [mark or 0.0, 1e-30])
    shapes = [
        f'<rect x="{_LABELS + 130 * i}" y="2" width="10" height="10" fill="{_COLOURS[i % len(_COLOURS)]}"/>'
        f'<text x="{_LABELS + 14 + 130 * i}" y="12">{escaped(name)}</text>'
        for i, name in enumerate(names)
    ]
    y = 22.0
    for label, several in rows:
        each = _BAR / max(len(several), 1)
        shapes.append(f'<text x="{_LABELS - 8}" y="{y + 14}" text-anchor="end">{escaped(label)}</text>')
        for i, (name, value, shown) in enumerate(several):
            width, at = _WIDTH * value / most, y + each * i
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            title = f"<title>{escaped(f'{label}, {name}: {shown}')}</title>"
            size = f'width="{width:.1f}" height="{each - 1:.1f}" fill="{colour}"'
            shapes.append(f'<rect x="{_LABELS}" y="{at:.1f}" {size}>{title}</rect>')
        told = ", ".join(shown for _, _, shown in several)
        end = _LABELS + _WIDTH * max((value for _, value, _ in several), default=0) / most
        shapes.append(f'<text x="{end + 6:.1f}" y="{y + 14}">{escaped(told)}</text>')
        y += _BAR + 6
    if mark is not None:
        x = _LABELS + _WIDTH * mark / most
        shapes.append(f'<path d="M{x:.1f} 18 V{y:.1f}" stroke="#a33"/>')
    right, below, style = _LABELS + _WIDTH + 320, round(y + 4), "text{font:12px sans-serif}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {below}" width="{right}" height="{below}" role="img">'
        f"<style>{style}</style>{''.join(shapes)}</svg>"
    )
