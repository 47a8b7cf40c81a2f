"""tvmdml's functions as PyTorch operators, which ``torch.compile`` and ``torch.export`` keep in their graphs.

Importing this registers every function as ``torch.ops.tvmdml.<name>``, with the function's own keywords::

    import torch
    import tvmdml.torch

    @torch.compile(fullgraph=True)
    def best(scores: torch.Tensor) -> torch.Tensor:
        values, indices = torch.ops.tvmdml.top_k(scores, 3)
        return torch.ops.tvmdml.round(values)

Results are new tensors, and equal the functions' bit for bit. Members of enumerations are written as their names, data types as
PyTorch's; there is no ``out``. Indices are int64 unless ``index_dtype`` names another type. Results lie where the inputs do.
``diagonal_matrix`` without an input takes a ``device`` instead, and is on the CPU unless one is named. Bad arguments are the
functions' errors, also while a graph is made; ``torch.compile`` wraps those in an error of its own.

Sizes may stay open in a graph, those that ``k`` and ``sizes`` are made of too. ``nonzero_coordinates`` has as many rows as the data
say; ``trim=False`` is an overload of it, whose results have sizes that are known without data. ``trim=True`` is not written.

Gradients flow back through the values of ``top_k`` to where they came from, and through ``diagonal_matrix`` outside the band; that
of ``round`` is zero, as PyTorch has it. Integer results have none. A function without a gradient says so when one is asked for.

A program that loads an exported model imports this first. Without PyTorch 2.4 or later, importing it is an ``ImportError``.
"""

from __future__ import annotations

from tvmdml.errors import TvmdmlError, message


class MissingPyTorch(TvmdmlError, ImportError):
    """There is no PyTorch here to register anything with."""


try:
    import torch
except ImportError as error:
    raise MissingPyTorch(message("tvmdml.torch", "no PyTorch", "2.4 or later", "`pip install torch`.")) from error
if not hasattr(torch.library, "register_autograd"):
    raise MissingPyTorch(message("tvmdml.torch", f"PyTorch {torch.__version__}", "2.4 or later", "`pip install -U torch`."))

from tvmdml.torch._register import register  # noqa: E402 - it takes PyTorch

__all__ = ["MissingPyTorch", "register"]

register()
