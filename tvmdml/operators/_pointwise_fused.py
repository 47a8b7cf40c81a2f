"""``FusedPointwise``: several pointwise operators as one, and ``fuse``, which makes it: elements are read and written once.

It is no operator of DirectML, and has no function. Everything that takes descriptors takes it: the compiler, packs, tuning,
conformance. Each result is rounded to its own type, so that the bits are those of the operators one by one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, counted, message
from tvmdml.kernels.formula import Formula, composed
from tvmdml.operators._chain_reference import ChainStep, expected
from tvmdml.operators._contract import Inputs, NumpyArray, Operator, Operators, Outputs, Role, Shared, Uints
from tvmdml.operators._frozen import derived
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc
from tvmdml.tensors.sizes import cached

MOST_OPERATORS = 16
"""The most operators of a group: with more, a kernel takes long to compile, and saves little."""
MOST_TENSORS = 12
"""The most inputs and outputs of a group: a device has few buffers and launch integers."""
MOST_WORDS = 16
"""The most attributes of a group that are passed at launch: a device has 128 bytes for them and for sizes and strides."""
MOST_FUNCTIONS = 6
"""The most functions of a group that are not exact, such as EXP: each is dozens of instructions."""
MOST_ALIVE = 8
"""The most values that a group keeps at a time: registers are few."""


class Result(NamedTuple):
    """A result of one of the operators that are fused: which operator, and which of its outputs that are present."""

    operator: int
    output: int = 0


GroupOperand = int | Result | tuple[int, int]
"""What an operator takes: the number of an input of the group, or a ``Result`` of an operator before it."""


class FusedPointwise(Pointwise):
    """Several pointwise operators on elements at the same places. ``fuse`` makes it.

    Values have numbers: the inputs first, then the results of each operator in turn. All tensors have the sizes of the outputs;
    strides are those of the group's inputs and outputs, and the operators' own tensors are packed.
    """

    NAME = "FUSED_POINTWISE"
    SUPPORT = support("1.0 all r8")
    SHARES = (("input_tensors", "output_tensors"),)
    BROADCAST = False
    CONSTANT_SHAPES = "its operators have sizes of their own"

    input_tensors: Inputs
    operators: Operators
    wiring: Uints
    """The number of the value that each input tensor of each operator has."""
    results: Uints
    """The number of the value in each output."""
    output_tensors: Outputs

    # -- Rules

    def check_part(self, name: str, fused: Operator, level: FeatureLevel, extensions: bool) -> None:
        """A part obeys its own contract, and is pointwise."""
        fused.validate(level, extensions)
        self.require(
            fusible(fused), name, fused.NAME, "a pointwise operator whose elements are whole bytes, without partial blocks"
        )

    def check(self) -> None:
        """Operators take values of their tensors' types, which come before them; the group is not too large."""
        for name in ("operators", "output_tensors"):
            self.require(len(getattr(self, name)) > 0, name, "none", "at least one")
        sizes = self.output_tensors[0].sizes
        for name, tensor in self.tensors():
            assert tensor is not None
            self.require(tensor.sizes == sizes, f"{name}.sizes", tensor.sizes, f"{sizes}, as in output_tensors[0]")
        wanted = sum(len(part.inputs()) for part in self._parts())
        self.require(len(self.wiring) == wanted, "wiring", counted(len(self.wiring), "number"), f"{wanted}: one for each input")
        known = list(self.input_tensors)
        for i, (part, numbers) in enumerate(zip(self._parts(), self._wires(), strict=True)):
            for (name, tensor), number in zip(part.tensors(Role.INPUT), numbers, strict=False):
                self._check_value(f"operators[{i}].{name}", tensor, number, known, sizes)
            for one in part.outputs():
                self.require(one.sizes == sizes, f"operators[{i}]", f"an output of sizes {one.sizes}", f"sizes {sizes}")
            known += part.outputs()
        self.require(len(set(self.results)) == len(self.results), "results", self.results, "distinct numbers")
        given = counted(len(self.results), "number")
        self.require(len(self.results) == len(self.output_tensors), "results", given, f"{len(self.output_tensors)}, as the outputs")
        for i, (number, tensor) in enumerate(zip(self.results, self.output_tensors, strict=True)):
            allowed = f"{len(self.input_tensors)} to {len(known) - 1}: results of operators"
            self.require(len(self.input_tensors) <= number < len(known), f"results[{i}]", number, allowed)
            own = known[number].data_type
            self.require(
                own is tensor.data_type, f"output_tensors[{i}].data_type", tensor.data_type.tvm, f"{own.tvm}, as the result's"
            )
        if problem := too_large(self):
            self.require(False, "operators", *problem)

    def _check_value(
        self, where: str, tensor: TensorDesc | None, number: int, known: Sequence[TensorDesc], sizes: tuple[int, ...]
    ) -> None:
        assert tensor is not None
        self.require(number < len(known), "wiring", f"{number} for {where}", f"0 to {len(known) - 1}: values that are known there")
        own = known[number].data_type
        self.require(own is tensor.data_type, where, tensor.data_type.tvm, f"{own.tvm}, as the value's")
        single = number < len(self.input_tensors)  # what is computed here has all elements
        fits = len(tensor.sizes) == len(sizes) and all(
            one == size or (single and one == 1) for one, size in zip(tensor.sizes, sizes, strict=True)
        )
        self.require(fits, where, f"sizes {tensor.sizes}", f"sizes {sizes}")

    # -- What the family asks

    def modules(self) -> tuple[str, ...]:
        """The files of the operators."""
        return tuple(dict.fromkeys(module for part in self.operators for module in part.modules()))

    def steps(self) -> int:
        """0 if all operators are exact."""
        return max(part.steps() for part in self._parts())

    def formula(self, shared: Shared = ()) -> Formula:
        """What its kernel computes. FLOAT attributes of floats are passed at launch: groups that differ in them share it."""
        return self._composed([part.formula() for part in self._parts()], self.operands(), shared)

    @derived
    def key_behind(self) -> tuple[tuple[str, str], ...]:
        """What a kernel that these operators follow depends on: their sizes are no part of it."""
        return tuple((f"after {name}", repr(value)) for name, value in self._formula(self.operands(), ()).key)

    def _formula(self, operands: tuple[TensorDesc, ...], shared: Shared) -> Formula:
        return self._composed([part._formula(part.operands(), ()) for part in self._parts()], operands, shared)

    def _composed(self, formulas: list[Formula], operands: tuple[TensorDesc, ...], shared: Shared) -> Formula:
        count = len(self.input_tensors)
        wires = [tuple(some) for some in self._wires()]
        return composed(formulas, operands[:count], wires, operands[count:], self.results, self.positions(shared))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Any, ...]:
        """The operators' references one after the other; what is not exact has a bound that follows from theirs."""
        return expected(self.steps_of(), [x for x in inputs if x is not None], self.results)

    def steps_of(self) -> list[ChainStep]:
        """The operators, and the numbers of the values that each takes."""
        return [ChainStep(part, some) for part, some in zip(self._parts(), self._wires(), strict=True)]

    def with_first(self, number: int) -> FusedPointwise:
        """The same group, with one of its inputs before the others."""
        count = len(self.input_tensors)
        order = [number, *(i for i in range(count) if i != number)]
        place = {old: new for new, old in enumerate(order)}
        return dataclasses.replace(
            self, input_tensors=tuple(self.input_tensors[i] for i in order), wiring=tuple(place.get(i, i) for i in self.wiring)
        )

    def _parts(self) -> Iterator[Pointwise]:
        for part in self.operators:
            assert isinstance(part, Pointwise)
            yield part

    def _wires(self) -> Iterator[tuple[int, ...]]:
        """The numbers of each operator's values."""
        numbers = iter(self.wiring)
        for part in self._parts():
            yield tuple(itertools.islice(numbers, len(part.inputs())))


# -- Making one ---------------------------------------------------------------------------------------------------


def fusible(desc: Operator) -> bool:
    """Whether an operator may be a part of a ``FusedPointwise``."""
    if not isinstance(desc, Pointwise) or isinstance(desc, FusedPointwise) or not desc.is_strided():
        return False
    sizes = desc.outputs()[0].sizes
    return desc.outputs()[0].element_count > 0 and all(one.sizes == sizes for one in desc.operands())


def fuse(
    nodes: Sequence[Operator], wiring: Sequence[Sequence[GroupOperand]], results: Sequence[Result | tuple[int, int]]
) -> FusedPointwise:
    """Several pointwise operators as one descriptor, which reads each input once and writes each of the results once.

    Args:
        nodes: their descriptors, each after those whose results it takes.
        wiring: for each node, where its input tensors (those that are present, in field order) come from: the number of an input of
            the group, or a ``Result`` of a node before it. Inputs are numbered from 0, without gaps; an input has the layout that
            the nodes give it, which must be the same for all of them.
        results: the results that are stored, in the layouts that their nodes give them: the group's outputs, in this order.

    Raises:
        InvalidArgument: a node cannot be fused (``fusible``), the wiring does not fit, or the group is too large (``too_large``).
    """
    for i, desc in enumerate(nodes):
        if not fusible(desc):
            raise InvalidArgument(message(f"fuse: nodes[{i}]", desc.NAME, "pointwise operators with whole elements"))
    parts = [desc for desc in nodes if isinstance(desc, Pointwise)]
    if len(wiring) != len(parts):
        raise InvalidArgument(message("fuse: wiring", counted(len(wiring), "sequence"), f"{len(parts)}, one for each node"))
    inputs: dict[int, TensorDesc] = {}
    for i, (part, some) in enumerate(zip(parts, wiring, strict=True)):
        if len(some) != len(part.inputs()):
            raise InvalidArgument(
                message(f"fuse: wiring[{i}]", counted(len(some), "value"), f"{len(part.inputs())}, as its inputs")
            )
        for value, tensor in zip(some, part.operands(), strict=False):
            if isinstance(value, int) and not inputs.setdefault(value, _plain(tensor)).is_like(tensor):
                allowed = f"{inputs[value]}, as another node reads it"
                raise InvalidArgument(message(f"fuse: wiring[{i}]: input {value}", tensor, allowed, "Give each layout its number."))
    if sorted(inputs) != list(range(len(inputs))):
        raise InvalidArgument(message("fuse: wiring", f"inputs {sorted(inputs)}", "numbers from 0 on, without gaps"))
    starts = list(itertools.accumulate((len(part.outputs()) for part in parts), initial=len(inputs)))

    def number(value: GroupOperand, before: int) -> int:
        if isinstance(value, int):
            return value
        operator, output = value
        if not (0 <= operator < before and 0 <= output < len(parts[operator].outputs())):
            raise InvalidArgument(message("fuse: wiring or results", tuple(value), "an output of an earlier node"))
        return starts[operator] + output

    numbers = tuple(number(value, len(parts)) for value in results)
    known = (*(inputs[i] for i in range(len(inputs))), *(_plain(one) for part in parts for one in part.outputs()))
    found = FusedPointwise(
        input_tensors=known[: len(inputs)],
        operators=tuple(part.with_tensors(_packed) for part in parts),
        wiring=tuple(number(value, i) for i, some in enumerate(wiring) for value in some),
        results=numbers,
        output_tensors=tuple(known[at] for at in numbers),
    )
    found.check()
    return found


def too_large(desc: FusedPointwise) -> tuple[str, str] | None:
    """What a group has too many of, and how many are allowed; ``None`` if it is small enough."""
    parts = list(desc._parts())
    counts = (
        (len(parts), MOST_OPERATORS, "operators"),
        (len(desc.input_tensors) + len(desc.output_tensors), MOST_TENSORS, "inputs and outputs together"),
        (sum(part.words() for part in parts), MOST_WORDS, "numbers that are passed at launch"),
        (sum(part.steps() > 0 for part in parts), MOST_FUNCTIONS, "functions that are not exact"),
        (_alive(desc), MOST_ALIVE, "values at a time"),
    )
    return next(((f"{count} {what}", f"up to {most}") for count, most, what in counts if count > most), None)


def _alive(desc: FusedPointwise) -> int:
    """The most results that are known at a time and still needed; inputs can be read again."""
    last = {number: at for at, some in enumerate(desc._wires()) for number in some}
    last |= dict.fromkeys(desc.results, len(desc.operators))
    alive, most, number = set[int](), 0, len(desc.input_tensors)
    for at, part in enumerate(desc._parts()):
        alive |= {number + i for i in range(len(part.outputs()))}
        number += len(part.outputs())
        most = max(most, len(alive))
        alive = {one for one in alive if last.get(one, -1) > at}
    return most


def _plain(tensor: TensorDesc) -> TensorDesc:
    """Without what is about buffers."""
    return _packed(tensor) if tensor.is_packed else TensorDesc(tensor.data_type, tensor.sizes, tensor.layout)


def _packed(tensor: TensorDesc) -> TensorDesc:
    return _of(tensor.data_type, tuple(tensor.sizes))


@cached(1 << 10)
def _of(data_type: TensorDataType, sizes: tuple[int, ...]) -> TensorDesc:
    return TensorDesc(data_type, sizes)
