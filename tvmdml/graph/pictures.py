"""Pictures of a compiled graph as SVG: its kernels in order with what they read, and the memory that is alive at each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tvmdml.graph.laid import Laid, Picture
from tvmdml.system.html import escaped

_ROW, _ARC, _TEXT = 26, 14, 640
_MOST_ARCS = 12
"""So many columns of arcs; longer ones share the last."""
_INK = "#1b4f72"


class PictureRow(NamedTuple):
    """An input, kernel or output, and the rows that it reads, each with its tensor."""

    key: str
    label: str
    reads: tuple[tuple[str, str], ...]


def rows_of(picture: Picture) -> list[PictureRow]:
    """The inputs, kernels and outputs, in the order in which they are there."""
    inputs: dict[str, None] = {}
    reads: list[list[tuple[str, str]]] = [[] for _ in picture.kernels]
    for source, reader, shown in picture.edges:
        if isinstance(source, int):
            reads[reader].append((f"k{source}", shown))
        else:
            name = source if source.startswith("input ") else f"input {source}"  # one without a name is "input 2"
            inputs[name] = None
            reads[reader].append((name, shown))
    rows = [PictureRow(name, name, ()) for name in inputs]
    rows += [PictureRow(f"k{i}", label, tuple(own)) for i, (label, own) in enumerate(zip(picture.kernels, reads, strict=True))]
    for i, (writer, shown) in enumerate(picture.results):
        rows.append(PictureRow(f"o{i}", f"output {i}", ((f"k{writer}", shown),) if writer >= 0 else ()))
    return rows


def kernels_svg(picture: Picture, beside: Sequence[str] = ()) -> str:
    """The kernels from top to bottom, with arcs from what each reads; ``beside`` is written behind each kernel, in its order."""
    rows = rows_of(picture)
    place = {row.key: i for i, row in enumerate(rows)}
    reach = min(max((i - place[source] for i, row in enumerate(rows) for source, _ in row.reads), default=1), _MOST_ARCS)
    left = _ARC * reach + 30
    shapes, kernel = [], 0
    for i, row in enumerate(rows):
        y = _ROW * i + 4
        for source, tensor in row.reads:
            begin = _ROW * place[source] + 4 + (_ROW - 6) / 2
            end, out = y + (_ROW - 6) / 2, left - _ARC * min(i - place[source], _MOST_ARCS)
            path = f"M{left} {begin} C{out} {begin} {out} {end} {left} {end}"
            shapes.append(f'<path d="{path}" class="edge"><title>{escaped(tensor)}</title></path>')
        kind = "kernel" if row.key.startswith("k") else "end"
        text = " + ".join(dict.fromkeys(row.label.split("\n")))
        what = "; ".join(tensor for _, tensor in row.reads if tensor)
        more = ""
        if kind == "kernel":
            more, kernel = (beside[kernel] if kernel < len(beside) else ""), kernel + 1
        shapes.append(
            f"<g><title>{escaped(text)}\nreads {escaped(what)}</title>"
            f'<rect x="{left}" y="{y}" width="{_TEXT}" height="{_ROW - 6}" rx="3" class="{kind}"/>'
            f'<text x="{left + 6}" y="{y + 14}">{escaped(_short(text, 88))}</text>'
            f'<text x="{left + _TEXT + 8}" y="{y + 14}" class="note">{escaped(_short(f"{more}  {what}".strip(), 70))}</text></g>'
        )
    return _svg(left + _TEXT + 440, _ROW * len(rows) + 8, "The kernels of the graph in order, and what each reads", shapes)


def memory_svg(alive: Sequence[int], room: int) -> str:
    """The bytes of intermediate results that are alive at each kernel, and those of their memory."""
    width, height, most = 900, 160, max(room, *alive, 1)
    step = width / max(len(alive), 1)
    shapes = [
        f'<rect x="{60 + i * step:.2f}" y="{height - height * n / most:.2f}" width="{max(step - 0.5, 0.5):.2f}" '
        f'height="{height * n / most:.2f}" class="bar"><title>kernel {i}: {n} bytes</title></rect>'
        for i, n in enumerate(alive)
    ]
    top = height - height * room / most
    shapes.append(f'<path d="M60 {top:.2f} H{60 + width}" class="limit"><title>{room} bytes in all</title></path>')
    last = f"kernel 0 to {max(len(alive) - 1, 0)}, in the order in which they run"
    for x, y, text in ((0, top + 12, _bytes(room)), (40, height, "0"), (60, height + 18, last)):
        shapes.append(f'<text x="{x}" y="{y:.0f}" class="note">{text}</text>')
    return _svg(width + 80, height + 26, "Bytes of intermediate results that are alive at each kernel", shapes)


def over_time(laid: Laid) -> list[int]:
    """The bytes of intermediate results that are alive while each kernel runs."""
    lives: list[list[int]] = []  # begin, end, the kernel that writes it, the last one that reads it
    current: list[list[int]] = []
    for i, (step, written) in enumerate(zip(laid.steps, laid.reports().written, strict=True)):
        for (slot, begin), size, writes in zip(step.places, step.sizes, written, strict=True):
            if slot:
                continue
            if writes:
                current = [life for life in current if life[1] <= begin or begin + size <= life[0]]
                current.append([begin, begin + size, i, i])
                lives.append(current[-1])
            else:
                for life in current:
                    if life[0] < begin + size and begin < life[1]:
                        life[3] = i
    return [sum(end - begin for begin, end, first, last in lives if first <= i <= last) for i in range(len(laid.steps))]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size / 1024:.1f} KiB"


def _svg(width: float, height: float, title: str, shapes: Sequence[str]) -> str:
    style = (
        f"text{{font:12px sans-serif}}.note{{fill:#555}}.kernel{{fill:#d6e6f2;stroke:{_INK}}}.end{{fill:#f2ecd6;stroke:#8a7a3a}}"
        f".edge{{fill:none;stroke:{_INK};stroke-opacity:.55}}.bar{{fill:{_INK};fill-opacity:.7}}.limit{{stroke:#a33;fill:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img"><title>{escaped(title)}</title><style>{style}</style>{"".join(shapes)}</svg>'
    )
