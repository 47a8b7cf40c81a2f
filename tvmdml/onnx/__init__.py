"""ONNX models: ``load`` reads a model, and calls of it run DirectML's operators, compiled for each size on first use.

The way of a model: ``reading`` makes a file into a message and arrays; ``converting`` walks the nodes of ``onnx_bounds``'s limits,
``folding`` computes what is known before the model runs, and ``rules`` and ``described`` make the rest into calls of a ``Graph``;
``inference`` asks ONNX's schemas for types and shapes; ``model`` runs the compiled graphs. README.md explains.
"""

from __future__ import annotations

from tvmdml.onnx.model import Argument, Model, load

__all__ = ["Argument", "Model", "load"]
