"""Products: matrices of any rank, and Einsum by products, views and sums."""

from __future__ import annotations

import math
from typing import Any

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, rule
from tvmdml.onnx_nodes import Refused


def product(a: Expression, b: Expression, **given: Any) -> Any:
    """``numpy.matmul``. Rows of several dimensions times one matrix are one product."""
    if a.ndim > 2 and b.ndim == 2 and a.strides is None and not given.get("trans_a"):
        flat = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        found = tvmdml.gemm(flat, b, **given)
        return found.reshape(*a.shape[:-1], found.shape[-1])
    return tvmdml.gemm(a, b, **given)


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
    return tvmdml.gemm(a, b, c, alpha=node.real("alpha", 1.0), beta=beta, **given)


@rule("com.microsoft.FusedMatMul")
def _fused(node: Node) -> Results:
    if any(node.integer(name, 0) for name in ("transBatchA", "transBatchB")):
        return described.convert(node)
    given = turned(node)
    return product(node.x(), node.x(1), alpha=node.real("alpha", 1.0), **given)


# -- Einsum -----------------------------------------------------------------------------------------------------------


@rule("Einsum")
def _einsum(node: Node) -> Results:
    equation = "".join(node.text("equation", "").split())
    operands = [node.x(i) for i in range(len(node.inputs))]
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise Refused(f"its equation {equation!r} has {len(terms)} terms for {len(operands)} inputs")
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
        raise Refused(f"its equation {equation!r} does not fit its inputs")
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
        raise Refused(f"its equation {equation!r} names a result dimension that no input has")
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
            raise Refused(f"its dimensions {one!r} have the sizes {sizes[one]} and {n}")
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
    found = x.reshape(x.shape[:2]).reshape(*x.shape[:2], 1) * y if total(shared) == 1 else tvmdml.gemm(x, y)
    labels = [*batch, *rows, *columns]
    return "".join(labels), found.reshape(tuple(of[one] for one in labels))
