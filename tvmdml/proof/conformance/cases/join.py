"""The operators of ``operators/join.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.operators import Operator
from tvmdml.operators.join import Join, Split
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _cut(total: int, parts: int) -> list[int]:
    """Parts of different sizes."""
    sizes = [1] * min(parts, total)
    for i in range(total - len(sizes)):
        sizes[i * i % len(sizes)] += 1
    return sizes


def _parts(x: TensorDesc, axis: int, parts: int) -> list[TensorDesc]:
    axis %= x.rank
    cuts = _cut(x.sizes[axis], parts)
    return [x.with_sizes((*x.sizes[:axis], n, *x.sizes[axis + 1 :])) for n in cuts]


def _joined(axis: int, parts: int) -> Callable[[TensorDesc], Operator]:
    """Parts along an axis; the first has the first tensor's sizes."""
    return lambda x: Join.of([x, *_parts(x, axis, parts - 1)] if parts > 1 else [x], axis=axis)


def _split(axis: int, parts: int) -> Callable[[TensorDesc], Operator]:
    return lambda x: Split.of(x, output_tensors=_parts(x, axis, parts), axis=axis)


X = _movement.X
JOINED, SPLIT = _joined(1, 2)(X), _split(1, 2)(X)
RULES = {
    "JOIN: an axis too many": Broken(change(JOINED, axis=4), "JOIN axis", "4", "0 to 3, the dimensions of the tensor"),
    "JOIN: another size of the output": Broken(
        change(JOINED, output_tensor=X), "JOIN output_tensor.sizes[1]", "4", "8, the sum of the parts'"
    ),
    "JOIN: no part": Broken(change(JOINED, input_tensors=()), "JOIN input_tensors", "none", "1 or more tensors"),
    "JOIN: other sizes of a part": Broken(
        change(JOINED, input_tensors=(X, TensorDesc("float32", (2, 4, 4, 5)))),
        *("JOIN input_tensors[1].sizes", "(2, 4, 4, 5)", "those of output_tensor, (2, 8, 4, 6), but for dimension 1"),
    ),
    "JOIN: another type of a part": Broken(
        change(JOINED, input_tensors=(X, TensorDesc("float16", (2, 4, 4, 6)))),
        *("JOIN input_tensors[1].data_type", "float16", "float32, as in output_tensor"),
    ),
    "SPLIT: parts of another sum": Broken(
        change(SPLIT, output_tensors=(X, X)), "SPLIT input_tensor.sizes[1]", "4", "8, the sum of the parts'"
    ),
    "SPLIT: no part": Broken(change(SPLIT, output_tensors=()), "SPLIT output_tensors", "none", "1 or more tensors"),
    "SPLIT: an axis too many": Broken(change(SPLIT, axis=7), "SPLIT axis", "7", "0 to 3, the dimensions of the tensor"),
}

DESCRIBED, BROKEN, reference = _movement.of(
    "join",
    {
        Join: (_joined(0, 2), _joined(-1, 3), _joined(-2, 1), _joined(0, 20), _joined(-1, 5)),
        Split: (_split(0, 2), _split(-1, 3), _split(-2, 20), _split(-1, 1)),
    },
    RULES,
)
