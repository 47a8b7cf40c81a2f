"""Graphs: many operators, compiled into one thing that runs by one call.

The way of a graph: ``building`` records what functions are given (``Graph``, ``Expression``) as ``nodes``; ``program`` is the part
that the outputs need, which the ``passes`` rewrite; ``memory`` gives each intermediate result its place; ``plan`` chooses the
kernels; ``compiled`` runs them. README.md explains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.system import on_first_use

if TYPE_CHECKING:
    from tvmdml.graph.building import Graph
    from tvmdml.graph.compiled import CompiledGraph
    from tvmdml.graph.expression import Expression
    from tvmdml.graph.loading import load_graph
    from tvmdml.graph.saving import save_graph

__all__ = ["CompiledGraph", "Expression", "Graph", "load_graph", "save_graph"]

# A model from the cache runs without the operators.
__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "building": ("Graph",),
        "compiled": ("CompiledGraph",),
        "expression": ("Expression",),
        "loading": ("load_graph",),
        "saving": ("save_graph",),
    },
)
