"""The operators of ``operators/gather.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.operators import Operator
from tvmdml.operators.gather import Gather, GatherElements, GatherNd, GatherNd1
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _gather(axis: int, indices: str, *own: int) -> Callable[[TensorDesc], Operator]:
    """Indices of these sizes."""

    def made(x: TensorDesc) -> Operator:
        sizes = own[: x.rank]
        tensor = TensorDesc(indices, (1,) * (x.rank - len(sizes)) + sizes)
        return Gather.of(x, tensor, axis=axis % x.rank, index_dimensions=len(sizes))

    return made


def _elements(axis: int, indices: str, length: int) -> Callable[[TensorDesc], Operator]:
    def made(x: TensorDesc) -> Operator:
        sizes = [length if i == axis % x.rank else n for i, n in enumerate(x.sizes)]
        return GatherElements.of(x, TensorDesc(indices, sizes), axis=axis % x.rank)

    return made


def _tuples(cls: type[Operator], indices: str, size: int, count: int, batch: int = 0) -> Callable[[TensorDesc], Operator]:
    """So many tuples of a size, behind the batch; fewer and shorter ones where the input has too few dimensions."""

    def made(x: TensorDesc) -> Operator:
        common = min(batch, x.rank - 1)
        own = min(size, x.rank - common)
        first = x.sizes[:common]
        sizes = (*first, count, own) if x.rank >= common + 2 else (*first, own)
        tensor = TensorDesc(indices, (1,) * (x.rank - len(sizes)) + sizes)
        counts = {"input_dimension_count": x.rank, "indices_dimension_count": len(sizes)}
        more = {"batch_dimension_count": common} if cls is GatherNd1 else {}
        return cls.of(x, tensor, **counts, **more)

    return made


def _small(x: TensorDesc) -> Operator:
    """The input's and the indices' last dimensions only."""
    if x.rank == 1 or x.sizes[0] != 1:
        return _tuples(GatherNd1, "uint32", 1, 3)(x)
    tensor = TensorDesc("int64", (*(1,) * (x.rank - 1), 1))
    return GatherNd1.of(x, tensor, input_dimension_count=x.rank - 1, indices_dimension_count=1, batch_dimension_count=0)


X = _movement.X
GATHER, ELEMENTS, ND = _gather(1, "uint32", 5)(X), _elements(1, "uint32", 4)(X), _tuples(GatherNd1, "uint32", 2, 3)(X)
INDICES = TensorDesc("uint32", (2, 4, 4, 5))
RULES = {
    "GATHER: an axis too many": Broken(change(GATHER, axis=4), "GATHER axis", "4", "0 to 3, the dimensions of the tensor"),
    "GATHER: more index dimensions than dimensions": Broken(
        change(GATHER, index_dimensions=5), "GATHER index_dimensions", "5", "0 to 4, the number of dimensions"
    ),
    "GATHER: indices before their dimensions": Broken(
        change(GATHER, indices_tensor=INDICES), "GATHER indices_tensor.sizes", str(INDICES.sizes), "3 first sizes of 1"
    ),
    "GATHER: another size of the output": Broken(
        change(GATHER, output_tensor=X), "GATHER output_tensor.sizes", str(X.sizes), "(2, 5, 4, 6)"
    ),
    "GATHER: a result of a higher rank": Broken(
        change(GATHER, indices_tensor=TensorDesc("uint32", (1, 1, 2, 5)), index_dimensions=2),
        *("GATHER index_dimensions", "2", "fewer: the result would have the sizes (2, 2, 5, 4, 6)"),
    ),
    "GATHER_ELEMENTS: other sizes": Broken(
        change(ELEMENTS, indices_tensor=INDICES),
        *("GATHER_ELEMENTS indices_tensor.sizes", str(INDICES.sizes), f"those of input_tensor, {X.sizes}, but for dimension 1"),
    ),
    "GATHER_ELEMENTS: an axis too many": Broken(
        change(ELEMENTS, axis=9), "GATHER_ELEMENTS axis", "9", "0 to 3, the dimensions of the tensor"
    ),
    "GATHER_ND1: tuples that are too long": Broken(
        change(ND, indices_tensor=TensorDesc("uint32", (1, 1, 3, 5))),
        *("GATHER_ND1 indices_tensor.sizes", "(3, 5)", "1 to 4 last: one index for each dimension"),
    ),
    "GATHER_ND1: too many dimensions": Broken(
        change(ND, input_dimension_count=5), "GATHER_ND1 input_dimension_count", "5", "1 to 4, the number of dimensions"
    ),
    "GATHER_ND1: a batch of all dimensions": Broken(
        change(ND, batch_dimension_count=2), "GATHER_ND1 batch_dimension_count", "2", "below 2, the indices_dimension_count"
    ),
    "GATHER_ND1: another batch": Broken(
        change(ND, batch_dimension_count=1), "GATHER_ND1 indices_tensor.sizes", "(3, 2)", "(2,) first, as in the input"
    ),
}  # fmt: skip

DESCRIBED, BROKEN, reference = _movement.of(
    "gather",
    {
        Gather: (
            *(_gather(0, "uint32", 5), _gather(-1, "int64", 7), _gather(-2, "int32", 1), _gather(0, "uint64", 1, 3)),
            _gather(-1, "int32"),
        ),
        GatherElements: (
            *(_elements(0, kind, 6) for kind in ("uint32", "int64")),
            *(_elements(-1, kind, length) for kind, length in (("int32", 9), ("uint64", 1))),
        ),
        GatherNd: (
            *(_tuples(GatherNd, "uint32", 2, 5), _tuples(GatherNd, "int64", 1, 3)),
            *(_tuples(GatherNd, "int32", 9, 4), _tuples(GatherNd, "uint64", 1, 1)),
        ),
        GatherNd1: (
            *(_tuples(GatherNd1, "uint32", 2, 5), _tuples(GatherNd1, "int64", 9, 4), _tuples(GatherNd1, "int32", 1, 3, 1)),
            *(_tuples(GatherNd1, "uint64", 1, 2, 2), _small),
        ),
    },
    RULES,
)
