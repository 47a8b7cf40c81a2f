"""The recurrent family: networks that take the elements of a sequence one by one, and keep a state.

A unit of such a network has gates. Each is a sum of products of the input and of the hidden state with rows of weights. An operator
says in which stages a step is computed, and what a unit makes of its sums in each; scalars and vectors of units are computed alike.
The family adds the rules, the order of steps, the lengths of sequences, and the schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from tvmdml.enums import FeatureLevel, RecurrentNetworkDirection
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import NumpyArray, Operator, Role, Shared
from tvmdml.operators._fused import ACTIVATIONS
from tvmdml.operators._recurrent_default import Item
from tvmdml.operators._recurrent_onnx import activation
from tvmdml.operators._recurrent_reference import run
from tvmdml.operators._recurrent_step import StepPart, UnitFunction
from tvmdml.operators._reduction_activated import activated
from tvmdml.tensors import TensorDataType, TensorDesc


class Recurrent(Operator):
    """Base class of recurrent networks.

    Args:
        input: the sequences: float16, float32 or float64; sizes 1, steps, batch, inputs.
        hidden_init: the hidden state before the first step: 1, directions, batch, hidden; by default 0.
        sequence_lengths: the length of each sequence: uint32, int32 or int64; 1, 1, 1, batch. By default all have as many
            elements as the input has steps, which is also the most; a negative one is 0. What is behind a sequence's end is 0 in
            the results, and all results of a sequence without elements are.
        direction: ``"forward"``, ``"backward"`` from the last element to the first, or ``"bidirectional"`` for both, with
            weights of each.
        output_options: ``"both"``, ``"sequence"`` for the states after each step only, or ``"single"`` for the last ones only.
        out: arrays for the results; one array for a single result.
    """

    SUMS = True
    FAMILY: ClassVar[str] = "recurrent"
    ANY_NAN = True
    FUSES = MappingProxyType(ACTIVATIONS)
    GATES: ClassVar[int] = 1
    """The number of gates of a unit."""
    USUAL: ClassVar[tuple[str, ...]] = ()
    """The activations of a direction where none are given, without ``ACTIVATION_``."""
    QUANTIZED: ClassVar[bool] = False
    """Whether weights are bytes with scales (``_recurrent_fused.py``)."""
    CONSTANT_SHAPES = "whether a gate has a bias follows from sizes, and so does the memory of states"

    if TYPE_CHECKING:
        input_tensor: TensorDesc
        weight_tensor: TensorDesc
        recurrence_tensor: TensorDesc
        sequence_lengths_tensor: TensorDesc | None
        activation_descs: tuple[Operator, ...]
        direction: RecurrentNetworkDirection

    @classmethod
    def of(cls, *inputs: Any, **given: Any) -> Any:
        """The descriptor for inputs and attributes; without activations it has the usual ones."""
        if given.get("activation_descs") is None:
            direction = RecurrentNetworkDirection.parse(given.get("direction"), cls.where("direction"))
            count = 2 if direction is RecurrentNetworkDirection.BIDIRECTIONAL else 1
            given = {**given, "activation_descs": [activation(name) for name in cls.USUAL] * count}
        return super().of(*inputs, **given)

    # -- What an operator defines

    def stages(self) -> tuple[StepPart, ...]:
        """The stages of a step."""
        raise NotImplementedError(self.NAME)

    def apart(self) -> tuple[int, ...]:
        """The gates to which input and hidden state contribute apart from each other."""
        return ()

    def step(self, *values: Any) -> tuple[Any, ...]:
        """A step in numbers that know their errors, written independently: see ``_recurrent_reference.run``."""
        raise NotImplementedError(self.NAME)

    # -- Sizes

    @property
    def steps(self) -> int:
        """The length of the longest sequence."""
        return self.input_tensor.sizes[1]

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.input_tensor.sizes[2]

    @property
    def inputs(self) -> int:
        """The number of an element's values."""
        return self.input_tensor.sizes[3]

    @property
    def hidden(self) -> int:
        """The number of units."""
        return self.recurrence_tensor.sizes[3]

    @property
    def directions(self) -> int:
        """The number of directions."""
        return 2 if self.direction is RecurrentNetworkDirection.BIDIRECTIONAL else 1

    def is_backward(self, direction: int) -> bool:
        """Whether the steps of a direction begin at the end."""
        return direction == 1 or self.direction is RecurrentNetworkDirection.BACKWARD

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes that each tensor must have."""
        return self._sizes(self.steps, self.batch, self.inputs, self.hidden, self.directions)

    @classmethod
    def agreeing(cls, sizes: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        """Those that the input and the recurrence say."""
        _, steps, batch, inputs = sizes["input_tensor"]
        own = cls._sizes(steps, batch, inputs, sizes["recurrence_tensor"][3], sizes["recurrence_tensor"][1])
        return {name: own[name] for name in sizes}

    @classmethod
    def _sizes(cls, t: int, b: int, i: int, h: int, d: int) -> dict[str, tuple[int, ...]]:
        g, state = cls.GATES, (1, d, b, h)
        return {
            "input_tensor": (1, t, b, i),
            "weight_tensor": (1, d, g * h, i),
            "recurrence_tensor": (1, d, g * h, h),
            "bias_tensor": (1, 1, d, 2 * g * h),
            "hidden_init_tensor": state,
            "cell_mem_init_tensor": state,
            "sequence_lengths_tensor": (1, 1, 1, b),
            "peephole_tensor": (1, 1, d, 3 * h),
            "output_sequence_tensor": (t, d, b, h),
            "output_single_tensor": state,
            "output_cell_single_tensor": state,
        }

    def has(self, name: str) -> bool:
        """Whether the operator has a tensor, and it is present."""
        return getattr(self, name, None) is not None

    @property
    def has_cell(self) -> bool:
        """Whether units have a cell."""
        return hasattr(self, "cell_mem_init_tensor")

    @property
    def computed(self) -> str:
        """The type of sums and functions; float16 is computed in float32, and the hidden state is rounded after each step."""
        return "float64" if self.input_tensor.data_type is TensorDataType.FLOAT64 else "float32"

    # -- The contract

    def infer(self) -> Mapping[str, TensorDesc]:
        """The outputs' sizes follow from those of the inputs."""
        names = [field.name for field in self.fields() if field.role is Role.OUTPUT]
        if any(tensor.rank != 4 for tensor in (self.input_tensor, self.recurrence_tensor)):  # the support table refuses it
            return dict.fromkeys(names, self.input_tensor)
        sizes = self.sizes()
        return {name: self.input_tensor.with_sizes(sizes[name]) for name in names}

    def check_attributes(self, level: FeatureLevel) -> None:
        wanted = self.directions * len(self.USUAL)
        given = len(self.activation_descs)
        each = f"{len(self.USUAL)} for each direction" if self.directions > 1 else f"direction is {self.direction.name.lower()}"
        self.require(given == wanted, "activation_descs", f"{given} operators", f"{wanted}, as {each}")

    def check_unextended(self) -> None:
        """Graphs give weights packed: DirectML takes no tensor so."""
        for name in self.owned():
            self.require(False, f"{name}.flags", "OWNED_BY_DML", "NONE", "Bind the tensor when the operator is dispatched.")

    def check(self) -> None:
        """At least one output; one type, and sizes that follow from those of the input and the recurrence."""
        outputs = [field.name for field in self.fields() if field.role is Role.OUTPUT]
        some = any(self.has(name) for name in outputs)
        self.require(some, outputs[0], "None", "a TensorDesc: at least one of the outputs")
        sizes = self.sizes()
        for name, tensor in self.tensors():
            if tensor is None:
                continue
            if name != "sequence_lengths_tensor":
                self.require_same("data_type", name, self.type_like(name))
            letters = _LETTERS[name].replace("g x ", f"{self.GATES} x " if self.GATES > 1 else "")
            self.require(tensor.sizes == sizes[name], f"{name}.sizes", tensor.sizes, f"{sizes[name]}: {letters}", _WHERE)

    def type_like(self, name: str) -> str:
        """The tensor whose type another one must have."""
        return "input_tensor"

    @property
    def rounding(self) -> float:
        """How far off elements of vectors may be that are multiplied by weights, as a part of the vector's largest magnitude."""
        return 0.0

    def shape_class(self) -> dict[str, int | str]:
        """The sizes, and the layout."""
        own = {"steps": self.steps, "batch": self.batch, "inputs": self.inputs, "hidden": self.hidden}
        return {**own, "directions": self.directions, "layout": self.layout()}

    def bounds(self, name: str) -> tuple[int, int] | None:
        """A sequence has up to as many elements as the input has steps."""
        return (0, self.steps) if name == "sequence_lengths_tensor" else None

    # -- What schedules share

    def functions(self, direction: int) -> tuple[UnitFunction, ...]:
        """The activations of a direction."""
        own = self.activation_descs[direction * len(self.USUAL) :][: len(self.USUAL)]
        return tuple(partial(activated, one) for one in own)

    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The directions in groups with the same activations, which share code."""
        own = self.activation_descs
        if self.directions == 2 and own[: len(self.USUAL)] != own[len(self.USUAL) :]:
            return ((0,), (1,))
        return (tuple(range(self.directions)),)

    def rounded_state(self, value: Any) -> Any:
        """The hidden state as the next step sees it."""
        return T.wide(T.to(value, self.input_tensor.data_type.tvm))

    def formula_key(self) -> tuple[tuple[str, Any], ...]:
        """What a kernel computes: the operator, its types and its attributes."""
        present = "".join(str(int(tensor is not None)) for _, tensor in self.tensors())
        types = " ".join(tensor.data_type.tvm for _, tensor in self.tensors() if tensor is not None)
        return (("operator", self.NAME), *self.attributes_exactly(), ("present", present), ("types", types))

    # -- The computation

    def scratch(self) -> tuple[tuple[str, int], ...]:
        """The states of every sequence."""
        return ((self.computed, Item.rows(self) * self.directions * self.batch * self.hidden),)

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each sequence and direction."""
        with T.function() as f:
            tensors = f.tensors(self)
            scratch = f.buffer("scratch", self.computed)
            sizes = {name: T.index(getattr(self, name)) for name in ("steps", "inputs", "hidden")}
            layouts = {name: list(map(T.index, tensor.layout)) for name, tensor in self.tensors() if tensor is not None}
            with each(self.directions * self.batch) as item:
                at = tuple(T.unravel(item, [self.directions, self.batch]))
                base = T.hold(item * T.index(Item.rows(self) * self.hidden))
                for group in self.alike():
                    one = Item(self, tensors, layouts, sizes, scratch, base, at, group)
                    if len(group) == self.directions:
                        one.run()
                    else:
                        with T.when(at[0] == T.index(group[0])):
                            one.run()
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formulas in NumPy, in higher precision, with bounds of the error that follow from those of each step."""
        return run(self, *inputs)


_LETTERS = {
    "input_tensor": "1, steps, batch, inputs",
    "weight_tensor": "1, directions, g x hidden, inputs",
    "recurrence_tensor": "1, directions, g x hidden, hidden",
    "bias_tensor": "1, 1, directions, 2 x g x hidden",
    **{
        f"{name}_{one}_tensor": "1, 1, directions, g x hidden"
        for name in ("weight", "recurrence")
        for one in ("scale", "zero_point")
    },
    "sequence_lengths_tensor": "1, 1, 1, batch",
    "peephole_tensor": "1, 1, directions, 3 x hidden",
    "output_sequence_tensor": "steps, directions, batch, hidden",
    **dict.fromkeys(
        ("hidden_init_tensor", "cell_mem_init_tensor", "output_single_tensor", "output_cell_single_tensor"),
        "1, directions, batch, hidden",
    ),
}
"""What the sizes of each tensor are."""
_WHERE = "The input says steps, batch and inputs; the recurrence says hidden; direction says directions."
