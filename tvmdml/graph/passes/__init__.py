"""The passes: each rewrites a program so that it does the same with less. Each is a file with one idea; this is their order."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.graph.passes import (
    activations,
    batch_normalization,
    chains,
    constants,
    epilogues,
    identities,
    layouts,
    owned,
    paddings,
    same,
    unused,
)
from tvmdml.graph.program import Program
from tvmdml.targets import Target

PASSES: tuple[tuple[str, Callable[[Program, Target], None]], ...] = (
    ("nodes without a reader are dropped", unused.run),
    ("what depends on constants only is computed now", constants.run),
    ("copies and casts that change nothing are dropped", identities.run),
    ("equal calls become one", same.run),
    ("zeros around the input of a convolution are its own padding", paddings.run),
    ("batch normalization is folded into convolutions", batch_normalization.run),
    ("activations are fused into the operator before", activations.run),
    ("nodes without a reader are dropped again", unused.run),
    ("pointwise operators on the same elements become one kernel", chains.run),
    ("pointwise operators follow in the kernels of products, convolutions and reductions", epilogues.run),
    ("images between convolutions have their channels last", layouts.run),
    ("weights are taken as kernels pack them", owned.run),
)
"""What each pass does, and the pass: it is called with the program and the target."""


def run_all(program: Program, target: Target) -> None:
    """Run every pass."""
    for _, run in PASSES:
        run(program, target)
