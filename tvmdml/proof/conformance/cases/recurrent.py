"""The operators of ``operators/recurrent.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tvmdml.enums import FeatureLevel, RecurrentNetworkDirection, TensorFlags
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._recurrent import Recurrent
from tvmdml.operators._recurrent_onnx import activation
from tvmdml.operators.recurrent import Gru, Lstm, Rnn
from tvmdml.proof.conformance.cases._common import FLOATING, LAYOUTS, Broken, Case, Sizes, change
from tvmdml.tensors import TensorDesc

FORWARD, BACKWARD, BOTH = RecurrentNetworkDirection
OTHERS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("ELU", {"alpha": 0.5}),
    ("HARD_SIGMOID", {"alpha": 0.2, "beta": 0.5}),
    ("IDENTITY", {}),
    ("LEAKY_RELU", {"alpha": 0.01}),
    ("LINEAR", {"alpha": 0.5, "beta": -0.25}),
    ("PARAMETRIC_SOFTPLUS", {"alpha": 0.5, "beta": 2.0}),
    ("RELU", {}),
    ("SCALED_ELU", {"alpha": 1.5, "gamma": 1.0}),
    ("SCALED_TANH", {"alpha": 1.5, "beta": 0.5}),
    ("SIGMOID", {}),
    ("SOFTPLUS", {"steepness": 1.0}),
    ("SOFTSIGN", {}),
    ("TANH", {}),
    ("THRESHOLDED_RELU", {"alpha": 0.25}),
    ("SHRINK", {"bias": 0.1, "threshold": 0.2}),
    ("CELU", {"alpha": 0.5}),
    ("GELU", {}),
)
"""All activations, with numbers."""
NAMES = ("bias_tensor", "hidden_init_tensor", "cell_mem_init_tensor", "sequence_lengths_tensor", "peephole_tensor")
"""The optional inputs."""


def described(
    cls: type[Recurrent],
    x: TensorDesc,
    hidden: int = 4,
    present: Sequence[str] = (),
    outputs: Sequence[str] = ("sequence", "single"),
    layout: str = "packed",
    lengths: str = "uint32",
    **changed: Any,
) -> Any:
    """An operator on sequences, one by default; ``layout`` is that of all tensors but the lengths."""
    direction = changed.pop("direction", FORWARD)
    count = 2 if direction is BOTH else 1
    functions = changed.pop("activation_descs", [activation(name) for name in cls.USUAL] * count)
    sizes = (1, *x.sizes[1:]) if x.rank == 4 else x.sizes
    x = TensorDesc(x.data_type, sizes, x.strides)
    square = TensorDesc(x.data_type, (1, count, cls.GATES * hidden, hidden))
    one = x if x.rank == 4 else TensorDesc(x.data_type, (1, 1, 1, 1))
    more: dict[str, Any] = {"linear_before_reset": False} if cls is Gru else {}
    draft: Any = cls.of(one, square, square, activation_descs=functions, direction=direction, **{**more, **changed})
    found: dict[str, TensorDesc] = {}
    for field in cls.fields():
        if field.role not in (Role.INPUT, Role.OUTPUT) or field.name in ("input_tensor", "sequence_lengths_tensor"):
            continue
        own: Sizes = draft.sizes()[field.name]
        found[field.name] = TensorDesc(x.data_type, own, LAYOUTS[layout](own))
    found["sequence_lengths_tensor"] = TensorDesc(lengths, draft.sizes()["sequence_lengths_tensor"])
    inputs = [field.name for field in cls.fields() if field.role is Role.INPUT][1:]
    given = (found[name] if not field_is_optional(cls, name) or name in present else None for name in inputs)
    wanted = (f"output_{name}_tensor" for name in outputs)
    results = {name: found[name] for name in wanted if name in found}
    return cls.of(x, *given, activation_descs=functions, direction=direction, **results, **{**more, **changed})


def field_is_optional(cls: type[Operator], name: str) -> bool:
    """Whether a field may be absent."""
    return next(field for field in cls.fields() if field.name == name).optional


CLASSES: tuple[type[Recurrent], ...] = (Rnn, Lstm, Gru)
DESCRIBED: dict[type[Operator], Callable[[TensorDesc], Operator]] = {cls: partial(described, cls) for cls in CLASSES}
X = TensorDesc("float32", (1, 3, 2, 5))


def _broken(cls: type[Recurrent]) -> Iterator[tuple[str, Broken]]:
    every = [name for name in NAMES if hasattr(cls, name)]
    name, good = cls.NAME, described(cls, X, present=every, outputs=("sequence", "single", "cell_single"))
    gates, count = cls.GATES, len(cls.USUAL)
    many = f"{gates} x " if gates > 1 else ""
    state = "1, directions, batch, hidden"
    wrong: dict[str, tuple[Sizes, str]] = {
        "input_tensor": ((2, 3, 2, 5), "1, steps, batch, inputs"),
        "weight_tensor": ((1, 1, gates * 4, 6), f"1, directions, {many}hidden, inputs"),
        "recurrence_tensor": ((1, 2, gates * 4, 4), f"1, directions, {many}hidden, hidden"),
        "bias_tensor": ((1, 1, 1, gates * 4), f"1, 1, directions, 2 x {many}hidden"),
        "hidden_init_tensor": ((1, 1, 4, 2), state),
        "sequence_lengths_tensor": ((1, 1, 1, 3), "1, 1, 1, batch"),
        "output_sequence_tensor": ((3, 2, 1, 4), "steps, directions, batch, hidden"),
        "output_single_tensor": ((3, 1, 2, 4), state),
    }
    if cls is Lstm:
        wrong["cell_mem_init_tensor"] = ((1, 2, 1, 4), state)
        wrong["peephole_tensor"] = ((1, 1, 1, 16), "1, 1, directions, 3 x hidden")
        wrong["output_cell_single_tensor"] = ((1, 1, 2, 5), state)
    for field, (sizes, what) in wrong.items():
        tensor = getattr(good, field)
        allowed = f"{tensor.sizes}: {what}"
        other = TensorDesc(tensor.data_type, sizes)
        yield f"{field} of other sizes", Broken(change(good, **{field: other}), f"{name} {field}.sizes", str(sizes), allowed)
        if field in ("input_tensor", "sequence_lengths_tensor"):
            continue
        half, where = TensorDesc("float16", tensor.sizes), f"{name} {field}.data_type"
        yield f"{field} of another type", Broken(change(good, **{field: half}), where, "float16", "float32, as in input_tensor")
    outputs = {field.name: None for field in cls.fields() if field.role is Role.OUTPUT}
    none = "a TensorDesc: at least one of the outputs"
    yield "no output", Broken(change(good, **outputs), f"{name} output_sequence_tensor", "None", none)
    for field in ("weight_tensor", "hidden_init_tensor"):
        tensor = getattr(good, field)
        owned = TensorDesc(tensor.data_type, tensor.sizes, flags=TensorFlags.OWNED_BY_DML)
        yield f"{field} owned", Broken(change(good, **{field: owned}), f"{name} {field}.flags", "OWNED_BY_DML", "NONE")
    few = good.activation_descs[1:]
    allowed = f"{count}, as direction is forward"
    yield "too few", Broken(change(good, activation_descs=few), f"{name} activation_descs", f"{count - 1} operators", allowed)
    more = change(good, direction="bidirectional")
    allowed = f"{2 * count}, as {count} for each direction"
    yield "one direction's", Broken(more, f"{name} activation_descs", f"{count} operators", allowed)
    where, rest = f"{name} activation_descs[{count - 1}]", good.activation_descs[:-1]
    for kind, level in (("GELU", "5.0"), ("SHRINK", "1.0"), ("SOFTMAX", "6.4"), ("HARD_SWISH", "6.4")):
        numbers: dict[str, float] = {"SHRINK": {"bias": 0.0, "threshold": 0.5}}.get(kind, {})
        numbers = {"alpha": 1.0, "beta": 0.5} if kind == "HARD_SWISH" else numbers
        wrong_one = change(good, activation_descs=[*rest, activation(kind, **numbers)])
        known = ", ".join(one for one, since in cls.FUSES.items() if FeatureLevel.of(since) <= FeatureLevel.of(level))
        yield f"{kind} at {level}", Broken(wrong_one, where, f"ACTIVATION_{kind}", f"{known}, at {level}", Unsupported, level)
    if cls is Lstm:
        for limit in (-1.0, float("nan")):
            clipping = change(good, use_clip_threshold=True, clip_threshold=limit)
            yield (
                f"clipped to {limit}",
                Broken(clipping, f"{name} clip_threshold", str(limit), "a number from 0 up, as use_clip_threshold is true"),
            )


BROKEN = {f"{cls.NAME}: {what}": rule for cls in CLASSES for what, rule in _broken(cls)}


def _ways(cls: type[Recurrent]) -> Iterator[dict[str, Any]]:
    """The operator's own attributes."""
    if cls is Gru:
        yield from ({"linear_before_reset": one} for one in (False, True))
    elif cls is Lstm:
        yield from ({}, {"couple_input_forget": True}, {"use_clip_threshold": True, "clip_threshold": 0.25})
        yield {"couple_input_forget": True, "use_clip_threshold": True, "clip_threshold": 0.0}
    else:
        yield {}


def _own(cls: type[Recurrent]) -> list[str]:
    return [name for name in NAMES if any(field.name == name for field in cls.fields())]


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every way with every direction; every type, layout, activation, and part of the optional tensors; many and few units."""
    yield from dict.fromkeys(_reference(next(one for one in CLASSES if one is cls)))


def _reference(cls: type[Recurrent]) -> Iterator[Case]:
    every, all_outputs = _own(cls), ("sequence", "single", "cell_single")
    full: dict[str, Any] = {"present": every, "outputs": all_outputs}
    kinds = itertools.cycle(FLOATING)
    for way, direction in itertools.product(_ways(cls), RecurrentNetworkDirection):
        x = TensorDesc(next(kinds), X.sizes)
        yield Case(described(cls, x, direction=direction, **way, **full), "weights")
        yield Case(described(cls, X, direction=direction, outputs=all_outputs, **way), "weights")
    for data_type, layout in itertools.product(FLOATING, ("packed", "padded", "transposed", "spread")):
        x = TensorDesc(data_type, X.sizes, LAYOUTS[layout](X.sizes))
        for way, fill in ((list(_ways(cls))[-1], "mixed"), (next(_ways(cls)), "weights")):
            yield Case(described(cls, x, layout=layout, direction=BOTH, **way, **full), fill)
    repeated = TensorDesc("float32", X.sizes, (0, 0, 5, 1))
    yield Case(described(cls, repeated, **full), "weights")
    yield Case(described(cls, TensorDesc("float32", X.sizes, LAYOUTS["inner repeated"](X.sizes)), **full), "weights")
    for lengths, direction in itertools.product(("uint32", "int32", "int64"), RecurrentNetworkDirection):
        x = TensorDesc("float32", (1, 4, 19, 3))
        yield Case(described(cls, x, lengths=lengths, direction=direction, **full), "weights")
    for name, output in itertools.product(every, ("sequence", "single", *["cell_single"] * (cls is Lstm))):
        yield Case(described(cls, X, present=[name], outputs=[output], direction=BACKWARD), "weights")
    for fill in ("special", "all NaN", "zeros", "mixed", "normal"):
        yield Case(described(cls, X, direction=BOTH, **full), fill)
    for (name, numbers), direction in zip(OTHERS, itertools.cycle((FORWARD, BOTH)), strict=False):
        other = [activation(one) for one in cls.USUAL]
        functions = [activation(name, **numbers)] * len(cls.USUAL)
        chosen = functions if direction is FORWARD else [*functions, *other]
        yield Case(described(cls, X, direction=direction, activation_descs=chosen, present=["hidden_init_tensor"]), "weights")
    for sizes, hidden in (
        ((1, 1, 1, 1), 1),
        ((1, 2, 1, 1), 33),
        ((1, 2, 7, 64), 16),
        ((1, 3, 5, 70), 65),
        ((1, 2, 33, 17), 31),
        ((1, 2, 1, 64), 128),
        ((1, 1, 2, 32), 32),
        ((1, 1, 3, 100), 260),
        ((1, 40, 2, 3), 2),
    ):
        for way, data_type in zip(itertools.cycle(_ways(cls)), FLOATING, strict=False):
            direction = BOTH if hidden % 2 else FORWARD
            yield Case(described(cls, TensorDesc(data_type, sizes), hidden, direction=direction, **way, **full), "weights")
