"""Graphs: many operators, compiled into one thing that runs by one call.

The way of a graph: ``building`` records what functions are given (``Graph``, ``Expression``) as ``nodes``; ``program`` is the part
that the outputs need, which the ``passes`` rewrite; ``memory`` gives each intermediate result its place; ``plan`` chooses the
kernels; ``compiled`` runs them. README.md explains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvmdml._whole import imported

if TYPE_CHECKING:
    from tvmdml.graph.building import Graph
    from tvmdml.graph.compiled import CompiledGraph
    from tvmdml.graph.expression import Expression
    from tvmdml.graph.loading import load_graph
    from tvmdml.graph.saving import save_graph

__all__ = ["CompiledGraph", "Expression", "Graph", "load_graph", "save_graph"]

_HOMES = {
    "CompiledGraph": "compiled",
    "Expression": "expression",
    "Graph": "building",
    "load_graph": "loading",
    "save_graph": "saving",
}


def __getattr__(name: str) -> Any:
    """Each name is imported on first use: a model from the cache runs without the operators."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = imported(lambda: getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name))
    globals()[name] = value
    return value
