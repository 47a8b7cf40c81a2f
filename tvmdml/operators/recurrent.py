"""RNN, LSTM and GRU: networks that take a sequence element by element."""

from __future__ import annotations

from typing import Any

from tvmdml.enums import FeatureLevel, RecurrentNetworkDirection
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Bool, Float, Input, Operator, Operators, OptionalInput, OptionalOutput, defaults
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._recurrent import Recurrent
from tvmdml.operators._recurrent_onnx import from_node
from tvmdml.operators._recurrent_step import StepPart, Unit
from tvmdml.operators._support import support

_SUPPORT = support("1.0 F r4 · ext +D", sequence_lengths_tensor="1.0 u r4 · ext +iL")


class Rnn(Recurrent):
    """A simple recurrent network (``DML_RNN_OPERATOR_DESC``): the state is a function of a sum of the input and the state before.

    An element's state is ``f(x W^T + y R^T + bias)``.
    """

    SUPPORT = _SUPPORT
    ONNX = ("RNN",)
    USUAL = ("TANH",)
    ONNX_INPUTS = (0, 1, 2, 3, 5, 4)

    input_tensor: Input
    weight_tensor: Input
    recurrence_tensor: Input
    bias_tensor: OptionalInput = None
    hidden_init_tensor: OptionalInput = None
    sequence_lengths_tensor: OptionalInput = None
    output_sequence_tensor: OptionalOutput = None
    output_single_tensor: OptionalOutput = None
    activation_descs: Operators
    direction: RecurrentNetworkDirection

    def stages(self) -> tuple[StepPart, ...]:
        return (StepPart((0,), lambda unit: (unit.functions[0](unit.sums[0]),)),)

    def step(self, functions: Any, of_input: Any, of_state: Any, y: Any, c: Any, peepholes: Any) -> tuple[Any, ...]:
        return (functions[0](of_input(0) + of_state(0, y)),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        return from_node(cls, node)


class Lstm(Recurrent):
    """Long short-term memory (``DML_LSTM_OPERATOR_DESC``): units with a cell, and gates in the order i, o, f, c.

    ``i``, ``f`` and ``o`` are the first function of their sums, in which the cell has a part by the peephole weights (i, o, f). The
    cell becomes ``f * cell + i * g(sum)``, and the state ``o * h(cell)``. The output gate sees the new cell.
    """

    SUPPORT = _SUPPORT
    ONNX = ("LSTM",)
    ONNX_INPUTS = (0, 1, 2, 3, 5, 6, 4, 7)
    DEFAULTS = defaults(clip_threshold=0.0, use_clip_threshold=False, couple_input_forget=False)
    GATES = 4
    USUAL = ("SIGMOID", "TANH", "TANH")

    input_tensor: Input
    weight_tensor: Input
    recurrence_tensor: Input
    bias_tensor: OptionalInput = None
    hidden_init_tensor: OptionalInput = None
    cell_mem_init_tensor: OptionalInput = None
    sequence_lengths_tensor: OptionalInput = None
    peephole_tensor: OptionalInput = None
    output_sequence_tensor: OptionalOutput = None
    output_single_tensor: OptionalOutput = None
    output_cell_single_tensor: OptionalOutput = None
    activation_descs: Operators
    direction: RecurrentNetworkDirection
    clip_threshold: Float
    use_clip_threshold: Bool
    couple_input_forget: Bool

    def check_attributes(self, level: FeatureLevel) -> None:
        super().check_attributes(level)
        allowed = "a number from 0 up, as use_clip_threshold is true"
        self.require(not self.use_clip_threshold or self.clip_threshold >= 0, "clip_threshold", self.clip_threshold, allowed)

    def stages(self) -> tuple[StepPart, ...]:
        gates = (0, 1, 3) if self.couple_input_forget else (0, 1, 2, 3)
        return (StepPart(gates, self._after),)

    def _after(self, unit: Unit) -> tuple[Any, ...]:
        f, g, h = unit.functions

        def gate(number: int, cell: Any) -> Any:
            total = unit.sums[number]
            return self._clipped(total + unit.peepholes[number] * cell if unit.peepholes else total)

        i = T.hold(f(gate(0, unit.cell)))
        forget = T.like(i, 1.0) - i if self.couple_input_forget else f(gate(2, unit.cell))
        cell = T.hold(T.hold(forget) * unit.cell + i * T.hold(g(self._clipped(unit.sums[3]))))
        return T.hold(f(gate(1, cell))) * T.hold(h(cell)), cell

    def _clipped(self, value: Any) -> Any:
        if not self.use_clip_threshold:
            return value
        value = T.hold(value)
        limit, least = (T.like(value, sign * self.clip_threshold) for sign in (1, -1))
        return T.hold(T.minimum(T.hold(T.maximum(value, least)), limit))

    def step(self, functions: Any, of_input: Any, of_state: Any, y: Any, c: Any, peepholes: Any) -> tuple[Any, ...]:
        f, g, h = functions

        def gate(number: int, cell: Any = None) -> Any:
            total = of_input(number) + of_state(number, y)
            if peepholes and cell is not None:
                total = total + peepholes[number] * cell
            return total.clipped(self.clip_threshold) if self.use_clip_threshold else total

        i = f(gate(0, c))
        forget = 1 - i if self.couple_input_forget else f(gate(2, c))
        cell = forget * c + i * g(gate(3))
        return f(gate(1, cell)) * h(cell), cell

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        more: dict[str, Any] = {}
        if "clip" in node.attributes:
            more = {"use_clip_threshold": True, "clip_threshold": node.attributes["clip"]}
        couple = bool(node.integer("input_forget", 0))
        return from_node(cls, node, couple_input_forget=couple, **more)


class Gru(Recurrent):
    """Gated recurrent units (``DML_GRU_OPERATOR_DESC``), with gates in the order z, r, h.

    ``z`` and ``r`` are the first function of their sums. The state becomes
    ``(1 - z) * n + z * y``, where ``n`` is the second function of a sum in which
    ``r`` multiplies the state, or with ``linear_before_reset`` what the state
    contributes.
    """

    SUPPORT = _SUPPORT
    ONNX = ("GRU",)
    ONNX_INPUTS = (0, 1, 2, 3, 5, 4)
    GATES = 3
    USUAL = ("SIGMOID", "TANH")

    input_tensor: Input
    weight_tensor: Input
    recurrence_tensor: Input
    bias_tensor: OptionalInput = None
    hidden_init_tensor: OptionalInput = None
    sequence_lengths_tensor: OptionalInput = None
    output_sequence_tensor: OptionalOutput = None
    output_single_tensor: OptionalOutput = None
    activation_descs: Operators
    direction: RecurrentNetworkDirection
    linear_before_reset: Bool

    def apart(self) -> tuple[int, ...]:
        return (2,) if self.linear_before_reset else ()

    def stages(self) -> tuple[StepPart, ...]:
        if self.linear_before_reset:
            return (StepPart((0, 1, 2), self._at_once),)
        return (StepPart((0, 1), self._reset, kept=1), StepPart((2,), self._after_reset))

    @staticmethod
    def _mixed(z: Any, n: Any, y: Any) -> tuple[Any, ...]:
        return ((T.like(z, 1.0) - z) * n + z * y,)

    def _at_once(self, unit: Unit) -> tuple[Any, ...]:
        f, g = unit.functions
        r = T.hold(f(unit.sums[1]))
        n = T.hold(g(unit.apart[2] + r * unit.sums[2]))
        return self._mixed(T.hold(f(unit.sums[0])), n, unit.state)

    def _reset(self, unit: Unit) -> tuple[Any, ...]:
        (f, _), (z, r) = unit.functions, (unit.sums[0], unit.sums[1])
        return T.hold(f(r)) * unit.state, T.hold(f(z))

    def _after_reset(self, unit: Unit) -> tuple[Any, ...]:
        return self._mixed(unit.kept[0], T.hold(unit.functions[1](unit.sums[2])), unit.state)

    def step(self, functions: Any, of_input: Any, of_state: Any, y: Any, c: Any, peepholes: Any) -> tuple[Any, ...]:
        f, g = functions
        z, r = (f(of_input(gate) + of_state(gate, y)) for gate in (0, 1))
        n = g(of_input(2) + (r * of_state(2, y) if self.linear_before_reset else of_state(2, r * y)))
        return ((1 - z) * n + z * y,)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        linear = bool(node.integer("linear_before_reset", 0))
        return from_node(cls, node, linear_before_reset=linear)
