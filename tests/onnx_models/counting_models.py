"""Random models in which elements that a run computes decide sizes, as many as ONNX has ways to do it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.helper import make_tensor_value_info as info

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
Step = Callable[["Maker"], None]


class Maker:
    """Nodes, and the tensors that they have made so far."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.rows, self.tables, self.counts = ["y"], ["x"], list[str]()
        """The names of tensors of one and of two dimensions, and of small counts, {1}, which depend on elements."""

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def every(self, kind: str, *inputs: str, results: int = 1, **attributes: Any) -> list[str]:
        names = [f"t{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.every(kind, *inputs, **attributes)[0]

    def row(self) -> str:
        """Any tensor, as one of one dimension."""
        name = self.random.choice([*self.rows, *self.tables])
        return name if name in self.rows else self.add("Reshape", name, self.constant([-1]))

    def table(self) -> str:
        return self.random.choice(self.tables)

    def floats(self, name: str) -> str:
        return self.add("Cast", name, to=FLOAT)

    def count(self) -> str:
        if self.counts and self.random.random() < 0.5:
            return self.random.choice(self.counts)
        large = self.add("Greater", self.row(), self.number(self.random.choice([0.0, 0.3, 0.6])))
        total = self.add("ReduceSum", self.add("Cast", large, to=INT64), self.constant([0]), keepdims=1)
        rest = self.add("Mod", total, self.constant([self.random.choice([3, 5, 9])]))
        self.counts.append(self.add("Add", rest, self.constant([1])))
        return self.counts[-1]

    def scalar(self) -> str:
        return self.add("Squeeze", self.count(), self.constant([0]))

    def at_most(self, row: str) -> str:
        """A count that is not more than the elements."""
        return self.add("Min", self.count(), self.add("Shape", row))


def _nonzero(maker: Maker) -> None:
    row = maker.row()
    places = maker.add("NonZero", maker.add("Greater", row, maker.number(maker.random.choice([-0.5, 0.0, 0.5]))))
    flat = maker.add("Reshape", places, maker.constant([-1]))
    maker.rows += [maker.add("Gather", row, flat, axis=0), maker.floats(flat)]


def _compress(maker: Maker) -> None:
    row, table = maker.row(), maker.table()
    maker.rows.append(maker.add("Compress", row, maker.add("Less", row, maker.number(0.4))))
    highest = maker.add("ReduceMax", table, axes=[1], keepdims=0)
    maker.tables.append(maker.add("Compress", table, maker.add("Greater", highest, maker.number(0.2)), axis=0))


def _unique(maker: Maker) -> None:
    whole = maker.add("Floor", maker.add("Mul", maker.row(), maker.number(2)))
    y, _, back, counts = maker.every("Unique", whole, results=4, sorted=maker.random.choice([0, 1]))
    maker.rows += [y, maker.floats(back), maker.floats(counts)]


def _made(maker: Maker) -> None:
    """Range, Expand, Tile and ConstantOfShape."""
    row = maker.row()
    numbers = maker.add("Range", maker.constant(np.int64(0)), maker.scalar(), maker.constant(np.int64(1)))
    maker.rows += [maker.floats(numbers), maker.add("Tile", row, maker.count())]
    maker.tables.append(maker.add("Expand", row, maker.add("Concat", maker.count(), maker.add("Shape", row), axis=0)))
    shape = maker.add("Concat", maker.count(), maker.constant([3]), axis=0)
    maker.tables.append(maker.add("ConstantOfShape", shape, value=helper.make_tensor("v", FLOAT, [1], [0.25])))


def _taken(maker: Maker) -> None:
    """Slice, TopK, Split and Pad."""
    row, zero = maker.row(), maker.constant([0])
    maker.tables.append(maker.add("Slice", maker.table(), zero, maker.count(), zero))
    maker.rows.append(maker.add("TopK", row, maker.at_most(row), results=2, axis=0))
    first = maker.at_most(row)
    parts = maker.add("Concat", first, maker.add("Sub", maker.add("Shape", row), first), axis=0)
    maker.rows += maker.every("Split", row, parts, results=2, axis=0)
    maker.rows.append(maker.add("Pad", row, maker.add("Concat", maker.count(), maker.count(), axis=0), maker.number(0.1)))


def _counted_loop(maker: Maker) -> None:
    nodes = [
        helper.make_node("Mul", ["v", "half"], ["w"]),
        helper.make_node("Identity", ["on"], ["goes_on"]),
        helper.make_node("ReduceSum", ["w"], ["sum"], keepdims=0),
    ]
    taken = [info("i", INT64, []), info("on", BOOL, []), info("v", FLOAT, None)]
    body = helper.make_graph(nodes, "b", taken, [info("goes_on", BOOL, []), info("w", FLOAT, None), info("sum", FLOAT, [])])
    body.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    maker.rows += maker.every("Loop", maker.scalar(), "", maker.row(), results=2, body=body)


def _deciding_loop(maker: Maker) -> None:
    """Until a mean is large enough, with a state that grows."""
    nodes = [
        helper.make_node("Add", ["v", "step"], ["w"]),
        helper.make_node("ReduceMean", ["w"], ["mean"], keepdims=0),
        helper.make_node("Less", ["mean", "far"], ["goes_on"]),
        helper.make_node("Reshape", ["mean", "flat"], ["more"]),
        helper.make_node("Concat", ["all", "more"], ["longer"], axis=0),
    ]
    taken = [info("i", INT64, []), info("on", BOOL, []), info("v", FLOAT, None), info("all", FLOAT, None)]
    body = helper.make_graph(nodes, "b", taken, [info("goes_on", BOOL, []), info("w", FLOAT, None), info("longer", FLOAT, None)])
    for name, value in (("step", np.float32(1.5)), ("far", np.float32(6)), ("flat", np.array([-1]))):
        body.initializer.append(numpy_helper.from_array(value, name))
    empty = maker.constant(np.zeros(1, np.float32))
    maker.rows += maker.every("Loop", maker.constant(np.int64(9)), "", maker.row(), empty, results=2, body=body)


def _branch(maker: Maker) -> None:
    row = maker.row()
    condition = maker.add("Greater", maker.add("ReduceSum", row, keepdims=0), maker.number(1))
    twice = helper.make_graph([helper.make_node("Concat", [row, row], ["a"], axis=0)], "yes", [], [info("a", FLOAT, None)])
    negative = helper.make_graph([helper.make_node("Neg", [row], ["b"])], "no", [], [info("b", FLOAT, None)])
    maker.rows.append(maker.add("If", condition, then_branch=twice, else_branch=negative))


def _boxes(maker: Maker) -> None:
    row = maker.row()
    boxes = maker.add("Reshape", maker.add("Tile", row, maker.constant([4])), maker.constant([1, -1, 4]))
    scores = maker.add("Reshape", row, maker.constant([1, 1, -1]))
    limits = maker.constant(np.int64(5)), maker.number(0.4), maker.number(0.1)
    maker.tables.append(maker.floats(maker.add("NonMaxSuppression", boxes, scores, *limits)))


def _shaped(maker: Maker) -> None:
    """Reshape, OneHot and Gather."""
    row, count, one = maker.row(), maker.count(), maker.constant([1])
    shape = maker.add("Concat", count, maker.constant([-1]), axis=0)
    maker.tables.append(maker.add("Reshape", maker.add("Tile", row, count), shape))
    whole = maker.add("Cast", maker.add("Abs", row), to=INT64)
    maker.tables.append(maker.add("OneHot", whole, maker.count(), maker.constant(np.array([0, 1], np.float32))))
    maker.rows.append(maker.add("Gather", row, maker.add("Sub", maker.at_most(row), one), axis=0))


def _sequence(maker: Maker) -> None:
    table, one = maker.table(), maker.constant([1])
    rows = maker.add("SplitToSequence", table, axis=0, keepdims=0)
    least = maker.add("Min", maker.count(), maker.add("Shape", table, start=0, end=1))
    place = maker.add("Squeeze", maker.add("Sub", least, one), maker.constant([0]))
    maker.rows += [maker.add("SequenceAt", rows, place), maker.add("ConcatFromSequence", rows, axis=0)]


def _scattered(maker: Maker) -> None:
    row = maker.row()
    places = maker.add("NonZero", maker.add("Greater", row, maker.number(0.3)))
    turned = maker.add("Transpose", places, perm=[1, 0])
    maker.rows.append(maker.add("ScatterND", row, turned, maker.add("Neg", maker.add("GatherND", row, turned))))


def _computed(maker: Maker) -> None:
    """What needs no elements."""
    table = maker.table()
    maker.tables.append(maker.add("MatMul", table, maker.add("Transpose", table, perm=[1, 0])))
    maker.rows.append(maker.add("Concat", maker.row(), maker.add(maker.random.choice(["Relu", "Neg"]), maker.row()), axis=0))
    maker.rows.append(maker.add("ReduceSum", table, maker.constant([maker.random.choice([0, 1])]), keepdims=0))


STEPS: tuple[Step, ...] = (
    *(_nonzero, _compress, _unique, _made, _taken, _counted_loop, _deciding_loop),
    *(_branch, _boxes, _shaped, _sequence, _scattered, _computed),
)


def counting_model(seed: int) -> Any:
    """A model of ``x`` {a, b} and ``y`` {c}, float32."""
    maker = Maker(seed)
    for _ in range(maker.random.randint(2, 6)):
        maker.random.choice(STEPS)(maker)
    results = dict.fromkeys([*maker.rows[1:], *maker.tables[1:]][-5:] or maker.rows)
    outputs = [info(name, FLOAT, None) for name in results] + [info(name, INT64, [1]) for name in maker.counts[-1:]]
    inputs = [info("x", FLOAT, ["a", "b"]), info("y", FLOAT, ["c"])]
    weights = [numpy_helper.from_array(array, name) for name, array in maker.weights.items()]
    graph = helper.make_graph(maker.nodes, "counting", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
