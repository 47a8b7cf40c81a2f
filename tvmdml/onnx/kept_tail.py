"""What follows a recording's graph, as the cache keeps it: JSON, and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml.graph.stored.array_forms import natural
from tvmdml.onnx.counting import COUNTING
from tvmdml.onnx.following import Following, Next, Rest
from tvmdml.onnx.looping import Looped, Stacked
from tvmdml.onnx.running import AfterGraph, Argument
from tvmdml.onnx.tail import Counting, HostNode, Tail
from tvmdml.onnx.types import named
from tvmdml.tensors.arrays import NumpyArray


def written(tail: AfterGraph, arrays: list[NumpyArray]) -> dict[str, Any] | None:
    """A tail as JSON, and arrays that are added to others; ``None`` if it has a node that is converted in each run."""
    assert isinstance(tail, Tail)
    host = [_written_node(node) for node in tail.host]
    if None in host or not all(isinstance(array, np.ndarray) for array in tail.known.values()):
        return None
    known = [[name, len(arrays) + i] for i, name in enumerate(tail.known)]
    arrays += tail.known.values()
    stage = None if tail.stage is None else _written_stage(tail.stage)
    makes = list(tail.makes.items())
    return {"reads": tail.reads, "known": known, "host": host, "makes": makes, "kinds": tail.kinds, "stage": stage}


def read(about: Any, arrays: Sequence[NumpyArray], following: Following) -> Tail:
    """What ``written`` wrote."""

    def stage(about: Any) -> Next:
        name, given, wanted, draws = about
        return following(Rest(str(name), [Argument.read(*one) for one in given], list(map(str, wanted)), natural(draws)))

    def node(kind: str, *parts: Any) -> HostNode:
        if kind in COUNTING:
            attributes, inputs, outputs = parts
            if not all(type(value) is int for value in attributes.values()):
                raise ValueError(f"the attributes {attributes!r}")
            return Counting(kind, attributes, tuple(map(str, inputs)), tuple(map(str, outputs)))
        if kind != "Loop":
            raise ValueError(f"a node {kind!r} between stages")
        *names, stacked, body = parts
        inputs, outputs, takes, captured = (tuple(map(str, each)) for each in names)
        forms = tuple(_stacked(*form) for form in stacked)
        looped = Looped(inputs, outputs, takes, captured, forms, stage(body))
        if not looped.is_whole():
            raise ValueError("a loop that does not fit its body")
        return looped

    reads = tuple((str(name), None if count is None else natural(count)) for name, count in about["reads"])
    known = {str(name): arrays[natural(number)] for name, number in about["known"]}
    host = tuple(node(*parts) for parts in about["host"])
    rest = None if about["stage"] is None else stage(about["stage"])
    tail = Tail(reads, known, host, rest, {natural(i): str(name) for i, name in about["makes"]}, tuple(about["kinds"]))
    if missing := tail.missing():
        raise ValueError(f"nothing makes {missing}")
    return tail


def _stacked(dtype: str | None, shape: list[Any] | None) -> Stacked:
    if dtype is not None:
        named(dtype)
    return Stacked(dtype, None if shape is None else tuple(None if n is None else natural(n) for n in shape))


def _written_stage(stage: Next) -> list[Any]:
    assert stage.part is not None
    name, given, wanted, draws, *_ = stage.part
    return [name, [one.written() for one in given], wanted, draws]


def _written_node(node: HostNode) -> list[Any] | None:
    if isinstance(node, Looped):
        return ["Loop", *node[:-1], _written_stage(node.stage)]
    return list(node) if isinstance(node, Counting) else None
