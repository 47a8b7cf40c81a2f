"""Products: matrices of any rank, and Einsum by products, views and sums."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Result, Results, rule

_MOST_PRODUCTS = 1 << 24
"""Of integers, the products of elements that are in memory before they are added."""
_LONGEST = 1 << 21
"""The terms of a sum of products of 16 bits that float64 has exactly."""


def product(a: Expression, b: Expression, **given: Any) -> Any:
    """``numpy.matmul``. Rows of several dimensions times one matrix are one product. Integers wrap."""
    if a.dtype.kind in "iu":
        return _of_integers(a, b)
    if a.ndim > 2 and b.ndim == 2 and a.strides is None and not given.get("trans_a"):
        flat = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        found = tvmdml.gemm(flat, b, **given)
        return found.reshape(*a.shape[:-1], found.shape[-1])
    return tvmdml.gemm(a, b, **given)


def _of_integers(a: Expression, b: Expression) -> Any:
    """Sums of products; of many, by products of each 16 bits in float64, where they are exact."""
    if 1 in (a.ndim, b.ndim):
        found = _of_integers(a.reshape(1, -1) if a.ndim == 1 else a, b.reshape(-1, 1) if b.ndim == 1 else b)
        rows, columns = (found.shape[place : place + 1 or None] if x.ndim > 1 else () for x, place in ((a, -2), (b, -1)))
        return found.reshape(*found.shape[:-2], *rows, *columns)
    kind, (rows, depth), columns = a.dtype, a.shape[-2:], b.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count, shape = math.prod(batch), (*batch, rows, columns)
    if not depth or b.shape[-2] != depth or depth > _LONGEST:
        if depth or b.shape[-2]:
            raise NotConvertible(
                f"its factors are {list(a.shape)} and {list(b.shape)}: they do not fit, or are too deep for integers"
            )
        return a.graph.constant(np.zeros(shape, kind))
    wide = np.dtype(np.int32) if kind.itemsize < 4 else kind
    a, b = (x.astype(wide).broadcast(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (a, b))
    if count * rows * depth * columns <= _MOST_PRODUCTS:
        found = tvmdml.reduce(a[..., None] * b[:, None], function="sum", axes=[2])
        return found.reshape(shape).astype(kind)
    bits = 8 * wide.itemsize
    word = np.dtype(f"uint{bits}")

    def like(number: int) -> Expression:
        return a.graph.constant(np.asarray(number, word))

    def parts(x: Expression) -> list[Any]:
        shifted = (tvmdml.bit_shift_right(x.view(word), like(at)) for at in range(0, bits, 16))
        return [tvmdml.bit_and(one, like(0xFFFF)).astype(np.float64) for one in shifted]

    terms = [
        tvmdml.gemm(x, y).astype(np.int64).astype(word) * like(1 << 16 * (i + j))
        for i, x in enumerate(parts(a))
        for j, y in enumerate(parts(b))
        if 16 * (i + j) < bits
    ]
    return functools.reduce(tvmdml.add, terms).view(wide).reshape(shape).astype(kind)


def turned(node: Node) -> dict[str, Any]:
    """Which factors are transposed, as ``tvmdml.gemm`` takes it."""
    return {f"trans_{x}": "transpose" for x in "ab" if node.integer(f"trans{x.upper()}", 0)}


@rule("MatMul")
def _matmul(node: Node) -> Results:
    return product(node.x(), node.x(1))


@rule("Gemm")
def _gemm(node: Node) -> Results:
    a, b = node.x(), node.x(1)
    c = node.maybe(2)
    given = turned(node)
    beta = node.real("beta", 1.0)
    if c is not None and not beta:
        c = None
    if c is not None:
        rows = a.shape[1 if "trans_a" in given else 0]
        columns = b.shape[0 if "trans_b" in given else 1]
        c = c.broadcast(rows, columns)
    alpha = node.real("alpha", 1.0)
    if a.dtype.kind == "f":
        return tvmdml.gemm(a, b, c, alpha=alpha, beta=beta, **given)
    if not (alpha.is_integer() and beta.is_integer()):
        raise NotConvertible(f"its alpha and beta are {alpha} and {beta}, of integers")
    a, b = (x.transpose(1, 0) if name in given else x for name, x in (("trans_a", a), ("trans_b", b)))
    found, *more = (
        x if factor == 1 else x * node.constant(np.array(int(factor)).astype(x.dtype))
        for factor, x in ((alpha, product(a, b)), (beta, c))
        if x is not None
    )
    return found + more[0] if more else found


@rule("com.microsoft.FusedMatMul")
def _fused(node: Node) -> Results:
    """The first dimension of a factor may be behind those of batches."""
    a, b = (
        x.transpose(*range(1, x.ndim - 1), 0, x.ndim - 1) if node.integer(f"transBatch{name}", 0) and x.ndim > 2 else x
        for name, x in (("A", node.x()), ("B", node.x(1)))
    )
    return product(a, b, alpha=node.real("alpha", 1.0), **turned(node))


# -- Einsum -----------------------------------------------------------------------------------------------------------


@rule("Einsum")
def _einsum(node: Node) -> Results:
    equation = "".join(node.text("equation", "").split())
    operands = [node.x(i) for i in range(len(node.inputs))]
    kind = operands[0].dtype
    if kind.kind in "iu" and kind.itemsize < 4:  # sums wrap
        operands = [x.astype(np.int32) for x in operands]
    node.results[0] = Result(kind, None)  # of dimensions of 1, which are repeated, ONNX's inference takes the first one
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise NotConvertible(f"its equation {equation!r} has {len(terms)} terms for {len(operands)} inputs")
    spread = max((x.ndim - len(t.replace("...", "")) for t, x in zip(terms, operands, strict=True) if "..." in t), default=0)
    dots = "".join(chr(ord("0") + i) for i in range(spread))
    expanded = []
    for term, x in zip(terms, operands, strict=True):
        own = x.ndim - len(term.replace("...", ""))
        expanded.append(term.replace("...", dots[len(dots) - own :] if own else ""))
    if arrow:
        result = right.replace("...", dots)
    else:
        letters = "".join(expanded)
        result = dots + "".join(sorted(one for one in set(letters) if letters.count(one) == 1 and one not in dots))
    if any(len(term) != x.ndim for term, x in zip(expanded, operands, strict=True)) or len(set(result)) != len(result):
        raise NotConvertible(f"its equation {equation!r} does not fit its inputs")
    sizes: dict[str, int] = {}
    for term, x in zip(expanded, operands, strict=True):
        for one, n in zip(term, x.shape, strict=True):
            sizes[one] = n if sizes.get(one, 1) == 1 else sizes[one]
    labels, x = _diagonal(expanded[0], operands[0])
    for i in range(1, len(operands)):
        other, y = _diagonal(expanded[i], operands[i])
        needed = set(result).union(*expanded[i + 1 :])
        labels, x = _contracted(labels, x, other, y, needed)
    labels, x = _summed(labels, x, set(result))
    missing = [one for one in result if one not in labels]
    if missing:
        raise NotConvertible(f"its equation {equation!r} names a result dimension that no input has")
    return x.transpose(*(labels.index(one) for one in result)) if labels else x


def _diagonal(labels: str, x: Expression) -> tuple[str, Expression]:
    """A view of the diagonal for each label that is there twice."""
    distinct = "".join(dict.fromkeys(labels))
    if len(distinct) == len(labels):
        return labels, x
    steps = dict.fromkeys(distinct, 0)
    sizes: dict[str, int] = {}
    for one, n, step in zip(labels, x.shape, x.desc.layout, strict=True):
        if sizes.setdefault(one, n) != n:
            raise NotConvertible(f"its dimensions {one!r} have the sizes {sizes[one]} and {n}")
        steps[one] += step
    return distinct, x.reinterpret([sizes[one] for one in distinct], [steps[one] for one in distinct])


def _summed(labels: str, x: Expression, needed: set[str]) -> tuple[str, Any]:
    """Without the dimensions that nobody needs."""
    axes = [i for i, one in enumerate(labels) if one not in needed]
    if not axes:
        return labels, x
    kept = [n for i, n in enumerate(x.shape) if i not in axes]
    return "".join(one for one in labels if one in needed), tvmdml.reduce(x, function="sum", axes=axes).reshape(tuple(kept))


def _contracted(left: str, a: Any, right: str, b: Any, needed: set[str]) -> tuple[str, Any]:
    """The product of two operands: batches, rows, columns, and what is summed, each as one dimension."""
    left, a = _summed(left, a, needed | set(right))
    right, b = _summed(right, b, needed | set(left))
    size = {one: n for labels, x in ((left, a), (right, b)) for one, n in zip(labels, x.shape, strict=True) if n != 1}
    a = a.broadcast([size.get(one, 1) if one in right else n for one, n in zip(left, a.shape, strict=True)])
    b = b.broadcast([size.get(one, 1) if one in left else n for one, n in zip(right, b.shape, strict=True)])
    batch = [one for one in left if one in right and one in needed]
    shared = [one for one in left if one in right and one not in needed]
    rows, columns = [one for one in left if one not in right], [one for one in right if one not in left]
    of = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}

    def total(labels: list[str]) -> int:
        return math.prod(of[one] for one in labels)

    a = a.transpose(*(left.index(one) for one in [*batch, *rows, *shared])) if left else a
    b = b.transpose(*(right.index(one) for one in [*batch, *shared, *columns])) if right else b
    x = a.reshape(total(batch), total(rows), total(shared))
    y = b.reshape(total(batch), total(shared), total(columns))
    found = x.reshape(x.shape[:2]).reshape(*x.shape[:2], 1) * y if total(shared) == 1 else product(x, y)
    labels = [*batch, *rows, *columns]
    return "".join(labels), found.reshape(tuple(of[one] for one in labels))
