"""The report of tuning as a file: a self-contained HTML page, or only the pictures as PNG."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, message
from tvmdml.library.log_terms import Machine, Tuned
from tvmdml.proof.bench.means import geometric_mean
from tvmdml.system import installing
from tvmdml.system.console import printable, shown_seconds
from tvmdml.tuning.display import failures, knobs_in_words, title
from tvmdml.tuning.rivals import Rival

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; }
body { max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
div.wide { overflow-x: auto; }
dl { display: grid; grid-template-columns: max-content auto; gap: .2rem 1rem; }
dt { color: #555; } dd { margin: 0; }
figure { margin: 1.5rem 0; } figcaption { font-weight: bold; } img { max-width: 100%; height: auto; }
"""


def check(path: Path) -> None:
    """Reject a path that no report can be written to, before anything runs.

    Raises:
        InvalidArgument: it is neither .html nor .png, its folder does not exist, or Matplotlib is not installed.
    """
    if path.suffix.lower() not in _WRITERS:
        raise InvalidArgument(message("--report", repr(str(path)), "the path of a .html or .png file"))
    if not path.parent.is_dir():
        raise InvalidArgument(message("--report", repr(str(path)), "a file in a folder that exists"))
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgument(f"--report: Matplotlib is not installed: {installing.command('tune')} installs it.")


def write(path: Path, tuned: Sequence[Tuned], peers: Mapping[int, Rival] | None = None) -> None:
    """Write a report.

    Args:
        path: a .html or .png file.
        tuned: finished jobs.
        peers: the best libraries for comparison with the winners, by the jobs' indices (see ``rivals.peers_of``).

    Raises:
        InvalidArgument: as ``check``; or the file cannot be written.
    """
    check(path)
    try:
        _WRITERS[path.suffix.lower()](path, tuned, peers or {})
    except OSError as error:
        raise InvalidArgument(message("--report", repr(str(path)), f"a file that can be written ({error.strerror})")) from None


def _write_png(path: Path, tuned: Sequence[Tuned], peers: Mapping[int, Rival]) -> None:
    from tvmdml.tuning import pictures

    pictures.all_in_one(tuned, peers, path)


def _write_html(path: Path, tuned: Sequence[Tuned], peers: Mapping[int, Rival]) -> None:
    path.write_text("\n".join(_page(tuned, peers)) + "\n", encoding="utf-8")


_WRITERS: Mapping[str, Callable[[Path, Sequence[Tuned], Mapping[int, Rival]], None]] = {".html": _write_html, ".png": _write_png}


# -- The page -----------------------------------------------------------------------------------------------------


def _page(tuned: Sequence[Tuned], peers: Mapping[int, Rival]) -> Iterator[str]:
    from tvmdml.tuning import pictures

    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>tvmdml tune</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>tvmdml tune</h1>"
    yield "<dl>"
    for name, value in _about(tuned, peers):
        yield f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>"
    yield "</dl>"
    if tuned:
        yield "<h2>Winners</h2>"
        yield from _table(tuned, peers)
        yield _figure(pictures.winners(tuned, peers), "Winners against the defaults, and against the best peer")
        yield "<h2>Convergence</h2>"
    for one in tuned:
        yield _figure(pictures.convergence(one), title(one.job), _reasons(one))
    yield "</body>\n</html>"


def _about(tuned: Sequence[Tuned], peers: Mapping[int, Rival]) -> Iterator[tuple[str, str]]:
    """Properties that are the same for all jobs, by name."""
    yield "machine", "; ".join(_once(_machine(one.machine) for one in tuned))
    yield "versions", "; ".join(_once(", ".join(f"{k} {v}" for k, v in one.record.versions.items()) for one in tuned))
    dates = sorted(one.record.date for one in tuned)
    yield "date", " to ".join(_once([*dates[:1], *dates[-1:]]))
    trials, failed = sum(len(one.trials) for one in tuned), sum(map(_failed, tuned))
    yield "jobs", f"{len(tuned)}, with {trials} trials, of which {failed} failed"
    if (mean := geometric_mean(one.record.ratio for one in tuned)) is not None:
        faster = sum(bool(one.record.knobs) for one in tuned)
        yield "against the defaults", f"{mean:.3f} times as fast (geometric mean); {faster} of {len(tuned)} have winning knobs"
    if (mean := geometric_mean(peer.ratio for peer in peers.values())) is not None:
        yield "against the best peer", f"{mean:.2f} times as fast (geometric mean of {len(peers)})"


class _Column(NamedTuple):
    """A column of the table of winners."""

    name: str
    cell: Callable[[Tuned, Rival | None], str]
    number: bool = True


_COLUMNS = (
    _Column("operation", lambda one, peer: title(one.job), number=False),
    _Column("class", lambda one, peer: knobs_in_words(one.record.shape_class), number=False),
    _Column("knobs that won", lambda one, peer: knobs_in_words(one.record.knobs) or "the defaults", number=False),
    _Column("default", lambda one, peer: shown_seconds(one.record.default_seconds)),
    _Column("winner", lambda one, peer: shown_seconds(one.record.seconds)),
    _Column("ratio", lambda one, peer: f"{one.record.ratio:.3f}"),
    _Column("spread", lambda one, peer: f"±{one.record.spread * 100:.1f} %"),
    _Column("best peer", lambda one, peer: "" if peer is None else f"{peer.name}: {shown_seconds(peer.seconds)}", number=False),
    _Column("ratio to it", lambda one, peer: "" if peer is None else f"{peer.ratio:.2f}"),
    _Column("trials", lambda one, peer: str(len(one.trials))),
    _Column("failed", lambda one, peer: str(_failed(one))),
)


def _table(tuned: Sequence[Tuned], peers: Mapping[int, Rival]) -> Iterator[str]:
    yield '<div class="wide"><table>\n<thead><tr>'
    for column in _COLUMNS:
        yield f'<th scope="col"{_numeric(column)}>{_text(column.name)}</th>'
    yield "</tr></thead>\n<tbody>"
    for place, one in enumerate(tuned):
        cells = (f"<td{_numeric(column)}>{_text(column.cell(one, peers.get(place)))}</td>" for column in _COLUMNS)
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody>\n</table></div>"


def _numeric(column: _Column) -> str:
    return ' class="number"' if column.number else ""


def _figure(svg: bytes, caption: str, more: str = "") -> str:
    # As a separate image: names in one drawing cannot clash with those of another, and no script in it can run.
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return f'<figure>\n<figcaption>{_text(caption)}</figcaption>\n<img alt="{_text(caption)}" src="{source}">\n{more}</figure>'


def _reasons(tuned: Tuned) -> str:
    """Why trials failed, in a collapsible section."""
    found = failures(tuned)
    if not found:
        return ""
    items = "".join(f"<li>{count} x: {_text(problem)}</li>" for problem, count in found.items())
    return f"<details><summary>{sum(found.values())} failed</summary><ul>{items}</ul></details>\n"


def _failed(tuned: Tuned) -> int:
    return sum(failures(tuned).values())


def _machine(machine: Machine) -> str:
    threads = f"{machine.threads} threads" if machine.threads else ""
    return ", ".join(filter(None, (machine.processor, threads, machine.target)))


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _text(text: str) -> str:
    """Escaped text for a page."""
    return escape(printable(text), quote=True)
