"""The operators of ``operators/scatter.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.operators import Operator
from tvmdml.operators.scatter import Scatter, ScatterNd
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _elements(axis: int, indices: str, length: int) -> Callable[[TensorDesc], Operator]:
    def made(x: TensorDesc) -> Operator:
        sizes = [length if i == axis % x.rank else n for i, n in enumerate(x.sizes)]
        return Scatter.of(x, TensorDesc(indices, sizes), x.with_sizes(sizes), axis=axis % x.rank)

    return made


def _tuples(indices: str, size: int, count: int) -> Callable[[TensorDesc], Operator]:
    """So many tuples of a size; one where the input has too few dimensions."""

    def made(x: TensorDesc) -> Operator:
        own = min(size, x.rank)
        sizes = (count, own) if x.rank > 1 else (own,)
        updates = (*sizes[:-1], *x.sizes[own:])
        tensors = [TensorDesc(kind, (1,) * (x.rank - len(one)) + one) for kind, one in ((indices, sizes), (x.data_type, updates))]
        return ScatterNd.of(x, *tensors, input_dimension_count=x.rank, indices_dimension_count=len(sizes))

    return made


X = _movement.X
ELEMENTS, ND = _elements(1, "uint32", 5)(X), _tuples("uint32", 2, 3)(X)
OTHER = TensorDesc("float32", (2, 4, 4, 5))
RULES = {
    "SCATTER: an axis too many": Broken(change(ELEMENTS, axis=4), "SCATTER axis", "4", "0 to 3, the dimensions of the tensor"),
    "SCATTER: another size of the output": Broken(
        change(ELEMENTS, output_tensor=OTHER), "SCATTER output_tensor.sizes", str(OTHER.sizes), str(X.sizes)
    ),
    "SCATTER: other updates": Broken(
        change(ELEMENTS, updates_tensor=OTHER), "SCATTER updates_tensor.sizes", str(OTHER.sizes), "(2, 5, 4, 6)"
    ),
    "SCATTER: other indices": Broken(
        change(ELEMENTS, indices_tensor=TensorDesc("uint32", (2, 5, 4, 5))),
        *("SCATTER indices_tensor.sizes", "(2, 5, 4, 5)", f"those of input_tensor, {X.sizes}, but for dimension 1"),
    ),
    "SCATTER_ND: tuples that are too long": Broken(
        change(ND, indices_tensor=TensorDesc("uint32", (1, 1, 3, 5))),
        *("SCATTER_ND indices_tensor.sizes", "(3, 5)", "1 to 4 last: one index for each dimension"),
    ),
    "SCATTER_ND: other updates": Broken(
        change(ND, updates_tensor=OTHER), "SCATTER_ND updates_tensor.sizes", str(OTHER.sizes), "(1, 3, 4, 6)"
    ),
    "SCATTER_ND: no dimension": Broken(
        change(ND, indices_dimension_count=0), "SCATTER_ND indices_dimension_count", "0", "1 to 4, the number of dimensions"
    ),
}

DESCRIBED, BROKEN, reference = _movement.of(
    "scatter",
    {
        Scatter: (_elements(0, "uint32", 6), _elements(-1, "int64", 9), _elements(-2, "int32", 1), _elements(-1, "uint64", 40)),
        ScatterNd: (_tuples("uint32", 2, 5), _tuples("int64", 9, 40), _tuples("int32", 1, 3), _tuples("uint64", 1, 2)),
    },
    RULES,
)
