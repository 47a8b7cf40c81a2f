"""Graphs: many operators, compiled into one thing that runs by one call.

The way of a graph: ``building`` records what functions are given (``Graph``, ``Expression``) as ``nodes``; ``program`` is the part
that the outputs need, which the ``passes`` rewrite; ``memory`` gives each intermediate result its place; ``plan`` chooses the
kernels; ``compiled`` runs them. README.md explains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.system import on_first_use

if TYPE_CHECKING:
    from tvmdml.graph.building import Graph as Graph
    from tvmdml.graph.compiled import CompiledGraph as CompiledGraph
    from tvmdml.graph.expression import Expression as Expression
    from tvmdml.graph.stored.loading import load_graph as load_graph
    from tvmdml.graph.stored.saving import save_graph as save_graph


# A model from the cache runs without the operators.
__getattr__, __dir__, __all__ = on_first_use(
    __name__,
    {
        "building": ("Graph",),
        "compiled": ("CompiledGraph",),
        "expression": ("Expression",),
        "stored.loading": ("load_graph",),
        "stored.saving": ("save_graph",),
    },
)
