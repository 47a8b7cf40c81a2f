"""The passes: each rewrites a program so that it does the same with less. Each is a file with one idea; this is their order."""

from __future__ import annotations

import os
from collections.abc import Callable

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.graph.nodes import require_room
from tvmdml.graph.passes import (
    activations,
    attention,
    batch_normalization,
    blockwise,
    chains,
    constants,
    empties,
    epilogues,
    identities,
    joins,
    layouts,
    owned,
    paddings,
    precision,
    quantized,
    quantized_moves,
    recurrent_bytes,
    repeats,
    same,
    unused,
)
from tvmdml.graph.program import Program
from tvmdml.targets import Target
from tvmdml.tensors.sizes import texts_for_messages

PASSES: tuple[tuple[str, Callable[[Program, Target], None]], ...] = (
    ("nodes without a reader are dropped", unused.run),
    ("quantized elements that are only moved are not dequantized", quantized_moves.run),
    ("operators between dequantized inputs and a quantized result compute with integers", quantized.run),
    ("products read matrices of few bits as they are stored", blockwise.run),
    ("recurrent networks of bytes have floats where no kernel reads bytes", recurrent_bytes.run),
    ("what depends on constants only is computed now", constants.run),
    ("inputs without elements are not read", empties.run),
    ("copies and casts that change nothing are dropped", identities.run),
    ("equal calls become one", same.run),
    ("products read what is repeated for several of a batch where it is", repeats.run),
    ("zeros around the input of a convolution are its own padding", paddings.run),
    ("batch normalization is folded into convolutions", batch_normalization.run),
    ("products and the softmax between them become attention", attention.run),
    ("activations are fused into the operator before", activations.run),
    ("nodes without a reader are dropped again", unused.run),
    ("pointwise operators on the same elements become one kernel", chains.run),
    ("pointwise operators follow in the kernels of products, convolutions, reductions, movement and attention", epilogues.run),
    ("images between convolutions have their channels last", layouts.run),
    ("factors of products and convolutions are rounded, where the graph says so", precision.run),
    ("weights are taken as kernels pack them", owned.run),
    ("inputs of joins have the strides of parts of the result", joins.run),
)
"""What each pass does, and the pass: it is called with the program and the target."""


DISABLED = "TVMDML_DISABLE_PASSES"


def disabled() -> frozenset[str]:
    """The names of the passes that the environment switches off: those of their files, with commas between them.

    Raises:
        InvalidArgument: there is no such pass.
    """
    known = sorted({_name(run) for _, run in PASSES})
    found = frozenset(name.strip() for name in os.environ.get(DISABLED, "").split(",")) - {""}
    for name in sorted(found - set(known)):
        raise InvalidArgument(message(DISABLED, safe_repr(name), f"names of passes, with commas between them: {', '.join(known)}"))
    return found


def run_all(program: Program, target: Target) -> None:
    """Run every pass that the environment does not switch off.

    Raises:
        InvalidArgument: a pass made a call read outside of the memory that it is given, which is a defect of the pass.
    """
    left_out = disabled()
    with texts_for_messages():
        for _, run in PASSES:
            if _name(run) not in left_out:
                run(program, target)
    for call in program.calls:
        for name, tensor, edge in call.inputs():
            require_room(edge, tensor, f"{call.desc.NAME} {name}, after all passes")
    for result in program.results:
        require_room(result.edge, result.desc, "an output, after all passes")


def _name(run: Callable[[Program, Target], None]) -> str:
    return run.__module__.rpartition(".")[2]
