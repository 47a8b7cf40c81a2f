"""``Formula``: what a pointwise kernel computes, as a value; ``Sink`` and ``Source``: where its results go, and operands come from.

A schedule does not know an operator's expression. It reads operands through sources and puts results into a sink, by their
coordinates in the output. So a kernel of any family can pass its results through a formula before it stores them: the schedule puts
each output once, when it is complete, and hands over the wide value; the sink rounds it to the operator's own type first, so that a
fused kernel gives the same bits as separate kernels.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import launched
from tvmdml.kernels import tensorir_values as T
from tvmdml.tensors import TensorDataType, TensorDesc

Values = tuple[Any, ...]
Parameter = int | str | bool | tuple[int, ...] | tuple[tuple[str, str], ...]
"""One of the choices that a kernel's code is generated from."""


class Formula(NamedTuple):
    """What a pointwise kernel computes: of one operator, or of several in turn."""

    inputs: tuple[TensorDesc, ...]
    outputs: tuple[TensorDesc, ...]
    value: Callable[..., Values]
    """The outputs' elements from those of the inputs, in the tensors' own types: scalars from scalars, vectors from vectors."""
    key: tuple[tuple[str, Parameter], ...]
    """Everything that the expression depends on, the types included."""
    modules: tuple[str, ...]
    """The operators' modules: their source is part of the kernel's stamp."""
    shared: tuple[tuple[int, int], ...] = ()
    """Inputs and outputs that are in the same memory, by their positions."""
    counted: tuple[int, ...] = ()
    """Inputs that are not in memory: their element is its own offset."""
    words: tuple[float, ...] = ()
    """Numbers in single precision that are passed at launch; ``value`` is called inside of ``launched.given``, which has them."""
    between: tuple[TensorDataType, ...] = ()
    """The types of values that are computed on the way, and rounded to these types."""
    copied: bool = False
    """Whether the result is the only input, unchanged: rows can be moved without arithmetic."""


def composed(
    formulas: Sequence[Formula],
    inputs: Sequence[TensorDesc],
    wiring: Sequence[Sequence[int]],
    outputs: Sequence[TensorDesc],
    results: Sequence[int],
    shared: tuple[tuple[int, int], ...] = (),
) -> Formula:
    """Several formulas as one. Each result is rounded to its own type, so that the bits are those of separate kernels.

    Values have numbers: the inputs first, then the results of each formula in turn.

    Args:
        formulas: each after those whose results it takes; all tensors have the same sizes.
        inputs: what is read from memory.
        wiring: the numbers of the values that each formula takes, without its counted inputs.
        outputs: what is stored.
        results: the number of the value in each output.
        shared: inputs and outputs that are in the same memory, by their positions.
    """
    read, made = [number for some in wiring for number in some], [one for formula in formulas for one in formula.outputs]
    own = {number: one.data_type for number, one in enumerate(made, len(inputs))}
    for formula, some in zip(formulas, wiring, strict=True):
        for number, one in zip(some, formula.inputs, strict=False):
            own.setdefault(number, one.data_type)  # a formula may take an element's bits as an integer

    def value(*x: Any) -> Values:
        known, rest, words = list(x[: len(inputs)]), iter(x[len(inputs) :]), 0
        # Read once, and before anything is stored.
        known = [T.hold(one) if shared or read.count(number) > 1 else one for number, one in enumerate(known)]
        for formula, some in zip(formulas, wiring, strict=True):
            given = []
            for i, number in enumerate(some):
                one = T.reinterpret(known[number], formula.inputs[i].data_type.tvm)
                # TVM's simplifier would cancel a difference of a value and itself, which is wrong for NaN and infinities.
                given.append(T.hold(one) if number in some[:i] else one)
            with launched.after(words):
                found = formula.value(*given, *itertools.islice(rest, len(formula.counted)))
            words += len(formula.words)
            known += [T.hold(T.settled(one)) if len(known) + i in read else one for i, one in enumerate(found)]
        return tuple(known[number] for number in results)

    key: list[tuple[str, Parameter]] = [(f"{i} {name}", one) for i, formula in enumerate(formulas) for name, one in formula.key]
    key += [("wiring", tuple(read)), ("results", tuple(results)), ("shared", sum(shared, ()))]
    key += [("types", " ".join(own[number].tvm if number in own else one.data_type.tvm for number, one in enumerate(inputs)))]
    counted = [formula.inputs[i] for formula in formulas for i in formula.counted]
    return Formula(
        (*(_of_type(one, own.get(number, one.data_type)) for number, one in enumerate(inputs)), *counted),
        tuple(_of_type(one, own[number]) for number, one in zip(results, outputs, strict=True)),
        value,
        tuple(key),
        tuple(dict.fromkeys(module for formula in formulas for module in formula.modules)),
        shared,
        tuple(range(len(inputs), len(inputs) + len(counted))),
        sum((formula.words for formula in formulas), ()),
        tuple(dict.fromkeys(one.data_type for one in made)),
    )


def _of_type(tensor: TensorDesc, data_type: TensorDataType) -> TensorDesc:
    return tensor if tensor.data_type is data_type else dataclasses.replace(tensor, data_type=data_type)


class Source(NamedTuple):
    """An operand in a kernel, read by coordinates; also where an output is."""

    buffer: Any
    """``None`` for an operand that is not in memory: its element is its offset."""
    steps: tuple[Any, ...]
    """The stride of each coordinate: a Python integer if the code may depend on it, otherwise an integer of the launch."""
    base: Any = None
    """The offset of the first element."""
    aligned: bool = False
    """Whether a vector's offset is always a multiple of its lanes."""
    dtype: str = ""
    """What its bits are read as; empty for the buffer's own type. In place, the buffer is the output's, which may have another type
    of the same width."""

    def within(self, outer: Sequence[Any]) -> Source:
        """The part at these first coordinates, which has the remaining coordinates."""
        return self._replace(steps=self.steps[len(outer) :], base=T.let(self._offset(outer)))

    def get(self, at: Sequence[Any], lanes: int = 1) -> Any:
        """An element, or a vector of elements along the last coordinate."""
        if lanes > 1 and _is(self.steps[-1], 0):
            return T.repeated(self._read(self._offset(at)), lanes)
        return self._read(self.place(at, lanes))

    def _read(self, place: Any) -> Any:
        if self.buffer is None:
            return T.cast(place, "uint32")
        return T.reinterpret(self.buffer[place], self.dtype) if self.dtype else self.buffer[place]

    def place(self, at: Sequence[Any], lanes: int = 1) -> Any:
        """The index of an element, or of a vector along the last coordinate."""
        offset = self._offset(at)
        if lanes == 1:
            return offset
        if self.aligned:
            offset = T.let(T.multiple(offset, lanes))
        step = self.steps[-1]
        return T.run(offset, lanes) if _is(step, 1) else T.ramp(offset, _integer(step, offset), lanes)

    def _offset(self, at: Sequence[Any]) -> Any:
        total = self.base
        for coordinate, step in zip(at, self.steps, strict=False):
            if _is(step, 0):
                continue
            own = coordinate if _is(step, 1) else coordinate * _integer(step, coordinate)
            total = own if total is None else total + own
        if total is None:
            total = T.const(0, T.type_of(at[0])) if at else T.i64(0)
        return total


def _is(step: Any, number: int) -> bool:
    return isinstance(step, int) and step == number


def _integer(step: Any, like: Any) -> Any:
    return T.const(step, T.type_of(like)) if isinstance(step, int) else step


class Sink(NamedTuple):
    """Where a kernel's results go: through a formula, to memory."""

    formula: Formula
    sources: tuple[Source, ...]
    """The formula's last inputs; the values that are put are the first."""
    outputs: tuple[Source, ...]

    def within(self, outer: Sequence[Any]) -> Sink:
        """The part at these first coordinates of the output."""
        sources, outputs = (tuple(one.within(outer) for one in some) for some in (self.sources, self.outputs))
        return self._replace(sources=sources, outputs=outputs)

    def put(self, at: Sequence[Any], *values: Any, lanes: int = 1) -> None:
        """Pass finished values through the formula, and store its results: at these coordinates, or a vector from there on."""
        self.store(at, self.values(at, *values, lanes=T.lanes(values[0]) if values else lanes))

    def values(self, at: Sequence[Any], *values: Any, lanes: int = 1) -> Values:
        """The formula's results at these coordinates."""
        given = [T.to(value, tensor.data_type.tvm) for value, tensor in zip(values, self.formula.inputs, strict=False)]
        return self.formula.value(*given, *(source.get(at, lanes) for source in self.sources))

    def store(self, at: Sequence[Any], values: Values) -> None:
        """Store results at these coordinates. All are computed first, as the first one may overwrite an operand of the others."""
        values = tuple(map(T.let, values)) if len(values) > 1 else values
        for output, value in zip(self.outputs, values, strict=True):
            T.store(output.buffer, output.place(at, T.lanes(value)), value)
