"""Recurrent networks: sequences one at a time and many together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tvmdml
from tvmdml.proof.bench.cases import Case, Group
from tvmdml.proof.bench.task import Kind, Task
from tvmdml.proof.bench.work import Operand, Traffic, Work

GROUP = Group("recurrent networks")
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def network(operator: str, steps: int, batch: int, inputs: int, hidden: int, dtype: str = "float32") -> Work:
    """A network in one direction with biases, and all its results."""
    gates = GATES[operator]
    outputs = ["output_sequence_tensor", "output_single_tensor", *["output_cell_single_tensor"] * (operator == "LSTM")]
    more: dict[str, Any] = dict.fromkeys(outputs, dtype)
    if operator == "GRU":
        more["linear_before_reset"] = True
    return Work.on(
        operator,
        Operand((1, steps, batch, inputs), dtype, "unit"),
        Operand((1, 1, gates * hidden, inputs), dtype, "weights"),
        Operand((1, 1, gates * hidden, hidden), dtype, "weights"),
        Operand((1, 1, 1, 2 * gates * hidden), dtype, "weights"),
        direction="forward",
        **more,
    )


def _function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    """The function gives all results without being asked."""
    own: dict[str, Any] = {name: value for name, value in task.work.attributes if not name.startswith("output_")}
    return partial(getattr(tvmdml, task.work.operator.lower()), *arrays, **own)


def _traffic(task: Task) -> Traffic:
    """What is computed takes longer than to read it: the weights once, whatever a step needs."""
    read = sum(0 if array is None else array.nbytes for array in task.given)
    return Traffic(read=read, written=sum(one.element_count * one.data_type.itemsize for one in task.desc.outputs()))


KIND = Kind(traffic=_traffic, function=_function, close=True, steps=64)


def _goals() -> Iterator[Case]:
    for operator, dtype in (("LSTM", "float32"), ("GRU", "float32"), ("RNN", "float32"), ("LSTM", "float16")):
        for steps, batch, side in ((128, 1, 256), (128, 32, 256), (32, 4, 64)):
            quick = (operator, dtype, batch) == ("LSTM", "float32", 4)
            work = network(operator, steps, batch, side, side, dtype)
            point = f"{steps} steps of {batch}, {side} units"
            yield Case(f"{operator.lower()} {dtype}", point, work, 1.2 if dtype == "float32" else None, quick, group=GROUP)


CASES = tuple(_goals())
