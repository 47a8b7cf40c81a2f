"""``Explanation``: what became of every call of a graph, as text and as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvmdml.errors import Unsupported, counted, message
from tvmdml.graph.laid import Laid, Picture, Reports
from tvmdml.system import at_hand

if TYPE_CHECKING:
    from tvmdml.graph.nodes import Call
    from tvmdml.graph.plan import Plan
    from tvmdml.graph.program import Program


_WIDTH = 80
"""Longer descriptions of calls move what follows them, and not that of the others."""


class Explanation:
    """What became of every call. ``print`` it, or make a picture with ``dot`` or ``draw``."""

    def __init__(self, reports: Reports, laid: Laid | None = None) -> None:
        """Not public: ``CompiledGraph.explain`` returns it."""
        self._laid = laid
        self.lines = reports.lines
        """Each call of the graph, and what became of it; then calls that passes added."""
        self._total, self._picture = reports.total, reports.picture

    def __str__(self) -> str:
        """A line for each call, and the sums."""
        width = min(max((len(call) for call, _ in self.lines), default=0), _WIDTH)
        return "\n".join([*(f"{call:{width}}  {fate}" for call, fate in self.lines), self._total])

    __repr__ = __str__

    def dot(self) -> str:
        """The inputs, kernels and outputs, with the tensors that are read, in Graphviz's language; empty of several graphs."""
        return "" if self._picture is None else _graphviz(self._picture)

    def memory(self) -> list[int]:
        """The bytes of intermediate results that are alive while each kernel runs; empty of several graphs."""
        at_hand("tvmdml.graph.pictures")
        from tvmdml.graph.pictures import over_time

        return [] if self._laid is None else over_time(self._laid)

    def svg(self, beside: Sequence[str] = ()) -> str:
        """A picture: the kernels in order, and what each reads. ``beside`` is written behind each kernel.

        Raises:
            Unsupported: it is of several graphs.
        """
        at_hand("tvmdml.graph.pictures")
        from tvmdml.graph.pictures import kernels_svg

        return kernels_svg(self._required_picture(), beside)

    def memory_svg(self) -> str:
        """A picture of ``memory``.

        Raises:
            Unsupported: it is of several graphs.
        """
        at_hand("tvmdml.graph.pictures")
        from tvmdml.graph.pictures import memory_svg

        self._required_picture()
        return memory_svg(self.memory(), 0 if self._laid is None else self._laid.temporary)

    def _required_picture(self) -> Picture:
        if self._picture is None:
            advice = "Explain one of them: model.compiled(x=(8, 3)).explain(), or net.at(n=8).explain()."
            raise Unsupported(message("explain() picture", "several graphs, or those of open sizes", "one compiled graph", advice))
        return self._picture

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture: the file's suffix is the format, such as ``.svg`` or ``.png``. ``.svg`` needs no Graphviz.

        Raises:
            Unsupported: Graphviz is not installed, or it is of several graphs.
            OSError: the file cannot be written.
        """
        import shutil  # slow imports, as the next one
        import subprocess

        self._required_picture()
        path = os.fspath(path)
        if shutil.which("dot") is None and path.endswith(".svg"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.svg())
            return
        if shutil.which("dot") is None:
            raise Unsupported("explain().draw: Graphviz is not installed. Install it (Debian: graphviz), or write an .svg.")
        kind = path.rpartition(".")[2]
        subprocess.run(["dot", f"-T{kind}", "-o", path], input=self.dot(), text=True, check=True)


def explanation(lines: list[tuple[str, str]], total: str) -> Explanation:
    """What is said of several graphs, of which there is no picture."""
    return Explanation(Reports([], [], lines, total, None, []))


def reports(name: str, calls: Sequence[Call], program: Program, plan: Plan) -> Reports:
    """What is said of a plan, and of the calls that it was made from."""
    kernels = {origin: number for number, step in enumerate(plan.steps) for origin in step.call.origins}

    def kernel(number: int) -> str:
        step = plan.steps[number]
        several = f", with {counted(len(step.call.origins) - 1, 'other')}" if len(step.call.origins) > 1 else ""
        ifs = "".join(f"; if {guard.condition[0]} is {'not ' if guard.wanted else ''}0" for guard in step.guards)
        return f"kernel {number}: {step.kernel.name} of {step.call.desc.NAME}{several}{ifs}"

    lines: list[tuple[str, str]] = []
    for call in (copied.origins[0] for copied in calls):  # of a graph with open sizes, calls are copies
        number = kernels.pop(call, None)
        note = program.notes.get(call, "" if number is not None else "not needed for the outputs")
        fate = "; ".join(filter(None, (None if number is None else kernel(number), note)))
        lines.append((str(call), fate))
    lines += [(f"added: {call}", kernel(number)) for call, number in kernels.items() if calls]
    plain = sum(node.array.nbytes for node in plan.constants)
    packed = sum(weight.packing.owned.nbytes for weight in plan.packed)
    total = (
        f"{counted(len(calls), 'call')}, {counted(len(plan.steps), 'kernel')}; "
        f"{plan.memory.size} bytes of intermediate results (at least {plan.memory.bound}), "
        f"{plain} bytes of constants, {packed} of packed weights"
    )
    tensors = [{key: str(tensor) for key, tensor in step.call.desc.tensors() if tensor is not None} for step in plan.steps]
    written = []
    for step in plan.steps:
        results, shared = set(step.call.output_names()), {source for source, _ in step.in_place}
        own = [name in results for name, tensor in step.call.desc.tensors() if tensor is not None and name not in shared]
        written.append([*own, *(False for _ in step.guards)])
    return Reports([str(step.call) for step in plan.steps], tensors, lines, total, _picture(name, plan, program), written)


def _picture(name: str, plan: Plan, program: Program) -> Picture:
    at_hand("tvmdml.graph.nodes")
    from tvmdml.graph.nodes import Constant

    numbers = {id(step.call): i for i, step in enumerate(plan.steps)}
    edges: list[tuple[int | str, int, str]] = []
    for i, step in enumerate(plan.steps):
        for _, tensor, edge in step.call.inputs():
            if id(edge.source) in numbers:
                edges.append((numbers[id(edge.source)], i, str(tensor)))
            elif not isinstance(edge.source, Constant):
                edges.append((str(edge.source), i, str(tensor)))
    labels = ["\n".join(map(str, step.call.origins[:8])) for step in plan.steps]
    results = [(numbers.get(id(result.edge.source), -1), str(result.desc)) for result in program.results]
    return Picture(name, labels, edges, results)


def _graphviz(picture: Picture) -> str:
    """A picture in Graphviz's language."""
    lines = [f"digraph {_quoted(picture.name or 'graph')} {{", "  node [shape=box];"]
    lines += [f"  k{i} [label={_quoted(label)}];" for i, label in enumerate(picture.kernels)]
    for source, reader, shown in picture.edges:
        lines.append(f"  {f'k{source}' if isinstance(source, int) else _quoted(source)} -> k{reader} [label={_quoted(shown)}];")
    for i, (source, shown) in enumerate(picture.results):
        lines.append(f"  o{i} [label={_quoted(f'output {i}')} shape=ellipse];")
        if source >= 0:
            lines.append(f"  k{source} -> o{i} [label={_quoted(shown)}];")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
