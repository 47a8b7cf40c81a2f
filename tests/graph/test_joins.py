"""Joins in place: what writes their inputs writes them where the result is, and every result stays what it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml.graph import passes
from tvmdml.targets import Target

RNG = np.random.default_rng(9)
Expression = Any


def summed(x: Any) -> Any:
    """A kernel of its own, which is exact here."""
    return tvmdml.cumulative_summation(x, axis=1)


def joined(*several: Any) -> Any:
    return tvmdml.join(several, axis=0)


def nested(x: Any) -> list[Any]:
    one, other = summed(x), summed(x[1:])
    inner = joined(one, other)
    return [summed(joined(inner, summed(inner), summed(one)))]


def twice(x: Any) -> list[Any]:
    one, other, third = summed(x), summed(x[1:]), summed(x[:2])
    first, second = joined(one, other), joined(other, third)
    return [summed(first), summed(second)]


def within(x: Any) -> list[Any]:
    """A result in the place of an input, where that is a part of what is read beside it."""
    one, other = summed(x), summed(x[1:])
    whole = joined(one, other)
    later = summed(whole) * 0.5
    return [joined(summed(later) + later, summed(one), summed(other[1:]))]


def halves(x: Any) -> list[Any]:
    """Below each other, and beside each other: then the parts that others read have other strides, and begin elsewhere."""
    one, other = summed(x), summed(x + x)
    below = joined(one[:1], one[1:3], one[3:], summed(one[1:3]))
    beside = tvmdml.join([summed(one), other[:, :32], other[:, 32:], summed(other[:, 16:48])], axis=1)
    return [summed(below), summed(beside), summed(other[1:3, 8:40])]


CASES: dict[str, tuple[Callable[[Any], Sequence[Any]], int]] = {
    "nested": (nested, 2),
    "its result is the graph's": (lambda x: [joined(summed(x), summed(x[1:]))], 1),
    "read before and after": (lambda x: [joined(one := summed(x), summed(one)), summed(one[1:])], 1),
    "of two joins": (twice, 1),
    "within": (within, 2),
    "the same twice": (lambda x: [summed(joined(one := summed(x), one))], 0),
    "of a result of the graph": (lambda x: [one := summed(x), summed(joined(one, summed(one)))], 0),
    "of inputs and views": (lambda x: [summed(joined(x, summed(x))), summed(joined(summed(x)[::2], summed(summed(x))))], 0),
    "of halves that others read, too": (halves, 2),
    "of parts in another order": (lambda x: [summed(joined((one := summed(x))[2:], one[:2], summed(one)))], 0),
    "of parts that are not all": (lambda x: [summed(joined((one := summed(x))[:1], one[2:], summed(one)))], 0),
    "of places where no array begins": (lambda x: [summed(joined(summed(x[:, :3]), summed(x[:, 3:6])))], 0),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", CASES)
def test_joins_are_no_work_where_their_inputs_are_written_by_kernels(name: str, target: Target) -> None:
    make, most = CASES[name]
    given = RNG.integers(-9, 9, (4, 64)).astype(np.float32)
    graph = tvmdml.Graph()
    compiled = graph.compile(make(graph.input((4, 64), name="x")), target=target)
    assert str(compiled.explain()).count("its inputs are written where it is") == most
    for one, right in zip(compiled({"x": given}), make(given), strict=True):
        assert np.array_equal(one, right)


def conv(image: Expression, filters: int, size: int) -> Expression:
    weights = RNG.standard_normal((filters, image.shape[1], size, size)).astype(np.float32)
    pad = [size // 2] * 2
    return tvmdml.activation_relu(tvmdml.convolution(image, weights, start_padding=pad, end_padding=pad))


def half(x: Expression) -> Expression:
    """As in YOLOv8: a join has both halves of an image, and what is computed of one of them."""
    both = conv(x, 64, 3)
    inner = conv(conv(both[:, 32:], 32, 3), 32, 3) + both[:, 32:]
    return conv(conv(tvmdml.join([both[:, :32], both[:, 32:], inner], axis=1), 96, 3), 8, 1)


def nested(x: Expression) -> Expression:
    skip = conv(x, 32, 3)
    pooled = tvmdml.max_pooling(conv(skip, 64, 3), window_sizes=[3, 3], strides=[1, 1], start_padding=[1, 1], end_padding=[1, 1])
    deep = tvmdml.join([conv(skip, 32, 1), tvmdml.join([skip, pooled], axis=1), conv(skip, 16, 3)], axis=1)
    return conv(conv(deep, 96, 3), 8, 1)


@pytest.mark.full
@pytest.mark.parametrize(("network", "batch", "joins"), [(half, 1, 1), (half, 2, 1), (nested, 1, 2)])
def test_branches_of_images_write_into_what_joins_them(
    network: Any, batch: int, joins: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    graph = tvmdml.Graph()
    outputs = [network(graph.input((batch, 16, 20, 18), name="x"))]
    compiled = graph.compile(outputs)
    with monkeypatch.context() as patch:
        patch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one[1] is not passes.joins.run))
        plain = graph.compile(outputs)
    assert compiled.kernel_count == plain.kernel_count - joins
    given = {"x": RNG.standard_normal((batch, 16, 20, 18)).astype(np.float32)}
    (found,), (right,) = compiled(given), plain(given)
    assert np.array_equal(found, right)
    tvmdml.save_graph(compiled, tmp_path / "joined.graph")
    again = tvmdml.load_graph(tmp_path / "joined.graph")
    assert again.kernel_count == compiled.kernel_count
    assert np.array_equal(again(given)[0], right)
