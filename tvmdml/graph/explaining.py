"""``Explanation``: what became of every call of a graph, as text and as a picture."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from tvmdml.errors import Unsupported, counted
from tvmdml.graph.nodes import Call, Constant
from tvmdml.graph.plan import Plan
from tvmdml.graph.program import Program


class Explanation:
    """What became of every call. ``print`` it, or make a picture with ``dot`` or ``draw``."""

    def __init__(self, name: str, calls: Sequence[Call], program: Program, plan: Plan) -> None:
        """Not public: ``CompiledGraph.explain`` returns it."""
        self._name = name or "graph"
        kernels = {origin: number for number, step in enumerate(plan.steps) for origin in step.call.origins}
        self.lines: list[tuple[str, str]] = []
        """Each call of the graph, and what became of it."""
        for call in calls:
            number = kernels.get(call)
            if number is None:
                fate = program.notes.get(call, "not needed for the outputs")
            else:
                step = plan.steps[number]
                several = f", with {counted(len(step.call.origins) - 1, 'other')}" if len(step.call.origins) > 1 else ""
                fate = f"kernel {number}: {step.kernel} of {step.call.desc.NAME}{several}"
            self.lines.append((str(call), fate))
        self._plan = plan

    def __str__(self) -> str:
        """A line for each call, and the sums."""
        width = max((len(call) for call, _ in self.lines), default=0)
        rows = [f"{call:{width}}  {fate}" for call, fate in self.lines]
        memory = self._plan.memory
        kept = sum(node.array.nbytes for node in self._plan.constants)
        total = (
            f"{counted(len(self.lines), 'call')}, {counted(len(self._plan.steps), 'kernel')}; "
            f"{memory.size} bytes of intermediate results (at least {memory.bound}), {kept} bytes of constants"
        )
        return "\n".join([*rows, total])

    __repr__ = __str__

    def dot(self) -> str:
        """The kernels and what they read from each other, in Graphviz's language."""
        numbers = {id(step.call): i for i, step in enumerate(self._plan.steps)}
        lines = [f"digraph {_quoted(self._name)} {{", "  node [shape=box];"]
        for i, step in enumerate(self._plan.steps):
            label = "\n".join(str(origin) for origin in step.call.origins[:8])
            lines.append(f"  k{i} [label={_quoted(label)}];")
            for name, tensor, edge in step.call.inputs():
                if id(edge.source) in numbers:
                    lines.append(f"  k{numbers[id(edge.source)]} -> k{i} [label={_quoted(str(tensor))}];")
                elif not isinstance(edge.source, Constant):
                    lines.append(f"  {_quoted(str(edge.source))} -> k{i} [label={_quoted(name)}];")
        return "\n".join([*lines, "}"])

    def draw(self, path: str) -> None:
        """Write a picture: the file's suffix is the format, such as ``.svg`` or ``.png``.

        Raises:
            Unsupported: Graphviz is not installed.
        """
        if shutil.which("dot") is None:
            raise Unsupported("explain().draw: Graphviz is not installed. Install it (Debian: graphviz), or use explain().dot().")
        kind = path.rpartition(".")[2]
        subprocess.run(["dot", f"-T{kind}", "-o", path], input=self.dot(), text=True, check=True)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
