"""tvmdml's functions as PyTorch operators, which ``torch.compile`` and ``torch.export`` keep in their graphs.

Importing this registers every function as ``torch.ops.tvmdml.<name>``, with the function's own keywords::

    import torch
    import tvmdml.torch

    @torch.compile(fullgraph=True)
    def best(scores: torch.Tensor) -> torch.Tensor:
        values, indices = torch.ops.tvmdml.top_k(scores, 3)
        return torch.ops.tvmdml.round(values)

Results are new tensors, and equal the functions' results bit for bit. Enumeration members are given by name, data types as PyTorch
types; there is no ``out``. Indices are int64 unless ``index_dtype`` is given. Results are on the inputs' device.
``diagonal_matrix`` without an input accepts a ``device``, by default the CPU. Invalid arguments raise the functions' errors, also
while a graph is traced; ``torch.compile`` wraps them in its own error.

Sizes may be symbolic in a graph, including ``k`` and ``sizes``. The number of rows of ``nonzero_coordinates`` depends on the data;
its overload ``trim=False`` has results with known sizes. Leave ``trim`` out for ``trim=True``.

Operators have the gradients that their classes state (``GRADIENT``): that of ``top_k``'s values goes to the selected elements, that
of ``round`` is zero, as in PyTorch. Integer results have no gradient. A function without a gradient raises an error in the backward
pass.

``UNREGISTERED`` has the functions that are not PyTorch operators, because PyTorch has no type for a parameter, with the reason.

A program that loads an exported model must import this module first. Without PyTorch 2.4 or later, the import raises
``ImportError``.
"""

from __future__ import annotations

from tvmdml.errors import TvmdmlError, message


class MissingPyTorch(TvmdmlError, ImportError):
    """PyTorch is not installed, or is too old."""


try:
    import torch
except ImportError as error:
    raise MissingPyTorch(message("tvmdml.torch", "no PyTorch", "2.4 or later", "`pip install torch`.")) from error
if not hasattr(torch.library, "register_autograd"):
    raise MissingPyTorch(message("tvmdml.torch", f"PyTorch {torch.__version__}", "2.4 or later", "`pip install -U torch`."))

from tvmdml.torch._register import UNREGISTERED, register  # noqa: E402 - it needs PyTorch

__all__ = ["UNREGISTERED", "MissingPyTorch", "register"]

register()
