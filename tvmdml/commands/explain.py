"""``tvmdml explain``: what becomes of a model, as text, as a picture, and as a page with the time of each kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tvmdml.errors import Unsupported
from tvmdml.options import EXACT, device_option, precision_option, size_option
from tvmdml.system.console import say, shown_seconds

if TYPE_CHECKING:
    from tvmdml.graph.compiled import CompiledGraph, Timed
    from tvmdml.operators import Operator
    from tvmdml.targets import Target

_FILE = click.Path(dir_okay=False)
_RUNS = 5
"""The least time of each kernel in so many runs is shown."""


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@size_option()
@click.option("--draw", metavar="FILE.svg", type=_FILE, help="Draw the kernels and what they read. Other suffixes need Graphviz.")
@click.option("--html", metavar="FILE.html", type=_FILE, help="Write a page: the kernels, the time of each, memory, and knobs.")
@device_option
@precision_option
def explain(
    model: str, sizes: tuple[tuple[str, int], ...], draw: str | None, html: str | None, device: Target | None, precision: str
) -> None:
    """Show what becomes of a MODEL: an ONNX file, a saved graph, a pack of one, or a JSON file of dispatchables.

    Each call is shown with the kernel that computes it. --html also runs the model, on random input, and needs no network to read.
    """
    from tvmdml import targets
    from tvmdml.onnx import command

    target = device or targets.resolve("cpu")
    if html and not html.endswith((".html", ".htm")):
        raise click.BadParameter(f"given {html!r}; allowed: the path of an .html file", param_hint="--html")
    if not command.is_model(model):
        if draw or html or sizes or precision != EXACT:
            raise click.UsageError("--draw, --html, --precision and --size are for ONNX models, graphs and packs of them.")
        for line in _dispatchables(model, target):
            say(line)
        return
    graphs = list(_graphs(model, dict(sizes), target, precision))
    for i, (graph, given) in enumerate(graphs):
        explanation = graph.explain()
        say(str(explanation))
        if draw:
            explanation.draw(_numbered(draw, i))
        if html:
            write_page(_numbered(html, i), model, graph, given)
    if not graphs:
        say("all outputs are known without running")


def _numbered(path: str, i: int) -> str:
    """The file of a graph of several, which run one after the other."""
    stem, dot, suffix = path.rpartition(".")
    return path if i == 0 else f"{stem}-{i}{dot}{suffix}"


def _graphs(
    path: str, sizes: Mapping[str, int], target: Target, precision: str
) -> Iterator[tuple[CompiledGraph, Mapping[str, Any]]]:
    from tvmdml import onnx
    from tvmdml.onnx import command

    model = onnx.load(path, sizes, target=target, precision=precision)
    return iter(model.graphs(command.made_up(model)))


def _dispatchables(path: str, target: Target) -> Iterator[str]:
    """A line for each dispatchable, and the lines of those that are graphs."""
    from tvmdml import dxdispatch

    for name, one in dxdispatch.read(path).dispatchables.items():
        yield f"{name}:"
        for line in one.compiled(target, None).explained():
            yield f"  {line}"


# -- The page -----------------------------------------------------------------------------------------------------


def write_page(path: str, name: str, graph: CompiledGraph, given: Mapping[str, Any]) -> None:
    """Write the page of a graph, which runs on some inputs.

    Raises:
        OSError: the file cannot be written.
    """
    from tvmdml.system import html
    from tvmdml.system.console import shown_bytes

    runs = [graph.profile(given) for _ in range(_RUNS)]
    times = [min(several, key=lambda one: one.nanoseconds) for several in zip(*runs, strict=True)]
    whole = sum(one.nanoseconds for one in times) or 1
    explanation = graph.explain()
    beside = [f"{shown_seconds(one.nanoseconds / 1e9)}, {one.nanoseconds / whole:.0%}" for one in times]
    slowest = sorted(range(len(times)), key=lambda i: -times[i].nanoseconds)
    knobs = _knobs(graph)
    tensors = graph.laid.reports().tensors
    rows = [
        {
            "time": shown_seconds(times[i].nanoseconds / 1e9),
            "part": f"{times[i].nanoseconds / whole:.1%}",
            "call": times[i].name,
            "kernel": f"{i}: {times[i].kernel}",
            "tensors": ", ".join(f"{key} {tensor}" for key, tensor in tensors[i].items()),
            "schedule and knobs": knobs(times[i]),
        }
        for i in slowest
    ]
    fused = "\n".join(f"{call}  {fate}" for call, fate in explanation.lines)
    lead = (
        f"{graph.kernel_count} kernels on {graph.target.name}, {shown_seconds(whole / 1e9)} together: the least of {_RUNS} runs on "
        f"random input. {shown_bytes(graph.temporary_size)} of results in between, {shown_bytes(graph.persistent_size)} of weights."
    )
    picture = html.figure(explanation.svg(beside), "Arcs lead from what a kernel reads. Point at one for its tensor.")
    memory = html.figure(explanation.memory_svg(), "Results that are alive at each kernel; the line is their memory.")
    sections = [
        ("Kernels, in order", picture),
        ("Time of each kernel, the slowest first", html.table(tuple(rows[0]) if rows else (), rows)),
        ("Memory", memory),
        ("What became of each call", html.preformatted(fused)),
    ]
    html.write(path, html.page(name, lead, sections))


def _knobs(graph: CompiledGraph) -> Callable[[Timed], str]:
    """What says of a kernel which schedule wrote it, and which knobs that has."""
    from tvmdml import operators
    from tvmdml.commands import reference

    def said(one: Timed) -> str:
        cls: type[Operator] | None
        name = one.name.partition(" ")[0]
        try:
            cls = operators.by_name(name)
        except Unsupported:
            return ""
        return reference.schedule_of(cls, graph.target.kind)

    return said
