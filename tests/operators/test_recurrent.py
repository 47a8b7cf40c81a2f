"""Recurrent networks: the contract's examples, PyTorch's word, accuracy, lengths, and what is left out."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Array, seeded

import tvmdml
from tvmdml import knobs
from tvmdml.graph.passes.owned import marked
from tvmdml.library.scheduling import kernel_for
from tvmdml.onnx import descriptors
from tvmdml.operators._accuracy import Near
from tvmdml.operators._recurrent_onnx import activation
from tvmdml.operators._trial import OperatorTrial
from tvmdml.operators.recurrent import Gru, Lstm, Rnn
from tvmdml.proof.conformance.cases import recurrent as cases
from tvmdml.proof.conformance.references import tried
from tvmdml.targets import resolve
from tvmdml.tensors import TensorDesc

f32 = np.float32
CLASSES = {"rnn": Rnn, "lstm": Lstm, "gru": Gru}
ORDER: dict[str, Sequence[int]] = {"rnn": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
"""Which of PyTorch's gates each of DirectML's is."""


def row(*values: float) -> Array:
    """Numbers in the last dimension."""
    return np.array(values, f32).reshape(1, 1, 1, -1)


def column(*values: float) -> Array:
    return np.array(values, f32).reshape(1, 1, -1, 1)


def functions(name: str, count: int) -> list[Any]:
    return [activation(name)] * count


# -- The contract's examples ------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("direction", "length", "sequence", "single"),
    [
        ("forward", None, [1, 3, 6], 6),
        ("backward", None, [6, 5, 3], 6),
        ("forward", 2, [1, 3, 0], 3),
        ("backward", 2, [3, 2, 0], 3),
        ("forward", 0, [0, 0, 0], 0),
        ("backward", 0, [0, 0, 0], 0),
        ("forward", 2**32 - 1, [1, 3, 6], 6),
        ("backward", 4, [6, 5, 3], 6),
    ],
)
def test_the_examples_of_rnn(direction: str, length: int | None, sequence: list[int], single: int) -> None:
    x, one = column(1, 2, 3).transpose(0, 2, 1, 3), row(1)
    lengths = None if length is None else np.array([[[[length]]]], np.uint32)
    found = tvmdml.rnn(x, one, one, sequence_lengths=lengths, activation_descs=functions("RELU", 1), direction=direction)
    assert found.sequence.reshape(-1).tolist() == sequence
    assert found.single.item() == single


@pytest.mark.full
@pytest.mark.parametrize(
    ("attributes", "state", "cell"),
    [({}, 110.5, 13), ({"couple_input_forget": True}, 38.5, 7), ({"clip_threshold": 2.5}, 18.75, 7.5)],
)
def test_the_examples_of_lstm(attributes: dict[str, Any], state: float, cell: float) -> None:
    weights = column(1, 2, 3, 4), column(0, 0, 0, 0)
    more = {"cell_mem_init": row(1), "peephole": row(1, 0.5, 2), "activation_descs": functions("IDENTITY", 3)}
    found = tvmdml.lstm(row(1), *weights, **more, **attributes)
    assert (found.sequence.item(), found.single.item(), found.cell_single.item()) == (state, state, cell)


@pytest.mark.full
@pytest.mark.parametrize(("linear", "state"), [(False, 8), (True, 8.5)])
def test_the_examples_of_gru(linear: bool, state: float) -> None:
    more = {"hidden_init": row(4), "activation_descs": functions("IDENTITY", 2), "linear_before_reset": linear}
    found = tvmdml.gru(row(1), column(0.5, 2, 3), column(0, 0, 1), row(0, 0, 0, 0, 0, 1), **more)
    assert (found.sequence.item(), found.single.item()) == (state, state)


@pytest.mark.full
def test_directmls_sample() -> None:
    x = np.arange(1, 33, dtype=f32).reshape(1, 1, 8, 4)
    weight = (1 + 0.4 * np.arange(40)).astype(f32).reshape(1, 2, 5, 4)
    elus = [activation("ELU", alpha=alpha) for alpha in (0.5, 0.6)]
    recurrence = np.ones((1, 2, 5, 5), f32)
    single = tvmdml.rnn(x, weight, recurrence, direction="bidirectional", activation_descs=elus, output_options="single")
    assert single.shape == (1, 2, 8, 5)
    np.testing.assert_allclose(single.reshape(-1)[:6], [18, 34, 50, 66, 82, 43.6], rtol=1e-6)
    np.testing.assert_allclose(single.reshape(-1)[-1], 1954, rtol=1e-6)


# -- Outside authorities ----------------------------------------------------------------------------------------------


def networks(name: str, sizes: tuple[int, int, int, int], directions: int = 1, dtype: str = "float64") -> tuple[Any, ...]:
    """A network of PyTorch, its input, and what our function is given for the same."""
    torch = importlib.import_module("torch")
    steps, batch, inputs, hidden = sizes
    torch.manual_seed(sum(sizes))
    layer = getattr(torch.nn, name.upper())(inputs, hidden, bidirectional=directions == 2, dtype=torch.float64)
    x = torch.randn(steps, batch, inputs, dtype=torch.float64)
    kind = np.dtype(dtype)
    gates = len(ORDER[name])

    def own(which: str) -> Array:
        parts = []
        for suffix in ("", "_reverse")[:directions]:
            whole = getattr(layer, f"{which}_l0{suffix}").detach().numpy().astype(kind)
            parts.append(np.concatenate([np.split(whole, gates)[i] for i in ORDER[name]]))
        return np.stack(parts)

    for parameter in layer.parameters():  # both compute with the same numbers
        parameter.data = torch.from_numpy(parameter.detach().numpy().astype(kind).astype(np.float64))
    x = torch.from_numpy(x.numpy().astype(kind).astype(np.float64))
    bias = np.concatenate([own("bias_ih"), own("bias_hh")], axis=1)
    given_ = x.numpy().astype(kind)[None], own("weight_ih")[None], own("weight_hh")[None], bias[None, None]
    with torch.no_grad():
        sequence, last = layer(x)
    states = last if isinstance(last, tuple) else (last,)
    wanted = (
        sequence.numpy().reshape(steps, batch, directions, hidden).transpose(0, 2, 1, 3),
        *(one.numpy()[None] for one in states),
    )
    return given_, wanted


@pytest.mark.some(5)
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_pytorch_agrees(name: str, directions: int, dtype: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    given_, wanted = networks(name, (9, 5, 7, 21), directions, dtype)
    direction = "bidirectional" if directions == 2 else "forward"
    found = getattr(tvmdml, name)(*given_, direction=direction)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-15 * 8 if dtype == "float64" else 2e-6)


def test_numbers_of_onnx_functions_are_taken_in_order() -> None:
    pytest.importorskip("onnx", reason="ONNX is not installed")
    helper = importlib.import_module("onnx").helper
    names = ["HardSigmoid", "Tanh", "LeakyRelu", "Sigmoid", "Elu", "Affine"]
    attributes: dict[str, Any] = {"activations": names, "activation_alpha": [0.3, 0.02, 0.7], "activation_beta": [0.4]}
    node = helper.make_node("LSTM", ["X", "W", "R"], ["", "Y_h"], hidden_size=2, direction="bidirectional", **attributes)
    sizes = {"X": (3, 1, 4), "W": (2, 8, 4), "R": (2, 8, 2)}
    known = {name: descriptors.OnnxTensor(np.dtype(f32), shape) for name, shape in sizes.items()}
    desc: Any = descriptors.OPERATORS["LSTM"](descriptors.OnnxNode(node, known, {}))
    numbers = [[round(getattr(one, name), 4) for name in ("alpha", "beta") if hasattr(one, name)] for one in desc.activation_descs]
    assert numbers == [[0.3, 0.4], [], [0.02], [], [0.7], [1, 0]]
    assert desc.output_sequence_tensor is None
    assert desc.output_single_tensor.sizes == (1, 2, 1, 2)
    layout = helper.make_node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=2, layout=1)
    with pytest.raises(descriptors.NotConvertible, match="layout is 1"):
        descriptors.OPERATORS["LSTM"](descriptors.OnnxNode(layout, known, {}))


# -- Accuracy ---------------------------------------------------------------------------------------------------------


@pytest.mark.some(4)
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("sizes", "dtype"), [((128, 2, 64, 64), "float32"), ((40, 3, 33, 256), "float32"), ((100, 2, 64, 64), "float16")]
)
def test_errors_are_within_the_contracts_bound(name: str, sizes: tuple[int, int, int, int], dtype: str) -> None:
    """Against PyTorch in float64; the weights are uniform between both 1 / sqrt(hidden), as in a new layer."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    given_, wanted = networks(name, sizes, 1, dtype)
    found = getattr(tvmdml, name)(*given_)
    most = max(1.0, *(float(np.abs(one).max()) for one in wanted))
    unit, allowed = (2.0**-24, 16 + (sizes[2] + sizes[3]) / 8) if dtype == "float32" else (2.0**-11, 4)
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one.astype(np.float64) - other).max() <= allowed * unit * most


def test_the_reference_leaves_little_room() -> None:
    """Its bounds follow from those of each step: a few rounding errors after some steps, and never nothing at all."""
    for name, cls in CLASSES.items():
        desc = cases.described(cls, TensorDesc("float32", (1, 4, 3, 8)), 16, ("bias_tensor",))
        rng = seeded(name)
        inputs = [None if one is None else rng.uniform(-0.25, 0.25, one.sizes).astype(f32) for one in _inputs(desc)]
        for one in desc.reference(*inputs):
            assert isinstance(one, Near)
            assert 2.0**-26 < float(np.max(one.error)) < 160 * 2.0**-24


def _inputs(desc: Any) -> list[TensorDesc | None]:
    return [tensor for name, tensor in desc.tensors() if not name.startswith("output_")]


@pytest.mark.full
def test_integers_are_exact() -> None:
    """Sums below 2^24: any wrong index shows."""
    rng = seeded("integers")
    for steps, batch, inputs, hidden in ((3, 7, 5, 37), (2, 1, 70, 19), (4, 20, 3, 64)):
        x, w, r = (
            rng.integers(-1, 2, s).astype(f32) for s in ((1, steps, batch, inputs), (1, 2, hidden, inputs), (1, 2, hidden, hidden))
        )
        found = tvmdml.rnn(x, w, r, direction="bidirectional", activation_descs=functions("IDENTITY", 1))
        for d, order in ((0, range(steps)), (1, reversed(range(steps)))):
            y = np.zeros((batch, hidden))
            for t in order:
                y = x[0, t].astype(float) @ w[0, d].T + y @ r[0, d].T
                assert np.array_equal(found.sequence[t, d], y)
            assert np.array_equal(found.single[0, d], y)


# -- Lengths, absent tensors, sizes of 0 ------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.some(2)
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_hostile_lengths_read_and_write_nothing_else(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    lengths = np.array([limits.min, limits.max, 0, 1, 2, 3, 4, 5], dtype).reshape(1, 1, 1, 8)
    x = seeded(name).uniform(-1, 1, (1, 4, 8, 3)).astype(f32)
    gates = CLASSES[name].GATES
    w, r = (seeded(name, n).uniform(-1, 1, (1, 1, gates * 5, n)).astype(f32) for n in (3, 5))
    state = np.ones((1, 1, 8, 5), f32)
    for direction in ("forward", "backward"):
        found = getattr(tvmdml, name)(x, w, r, hidden_init=state, sequence_lengths=lengths, direction=direction)
        known = np.clip(lengths.reshape(-1).astype(object), 0, 4)
        for b, length in enumerate(known):
            assert not found.sequence[length:, 0, b].any()
            alone = getattr(tvmdml, name)(x[:, :length, b : b + 1], w, r, hidden_init=state[:, :, :1], direction=direction)
            np.testing.assert_allclose(found.sequence[:length, 0, b], alone.sequence[:, 0, 0], atol=1e-6)
            np.testing.assert_allclose(found.single[0, 0, b], alone.single[0, 0, 0], atol=1e-6)


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_to_do(name: str) -> None:
    gates, run = CLASSES[name].GATES, getattr(tvmdml, name)
    w, r = np.ones((1, 1, gates * 3, 2), f32), np.ones((1, 1, gates * 3, 3), f32)
    state = np.ones((1, 1, 4, 3), f32)
    none = run(np.ones((1, 0, 4, 2), f32), w, r, hidden_init=state)
    assert none.sequence.shape == (0, 1, 4, 3)
    assert none.single.shape == (1, 1, 4, 3)
    assert not none.single.any()
    assert run(np.ones((1, 5, 0, 2), f32), w, r).sequence.shape == (5, 1, 0, 3)
    empty = run(np.ones((1, 2, 4, 0), f32), np.ones((1, 1, gates * 3, 0), f32), r * 0)
    assert empty.sequence.shape == (2, 1, 4, 3)


@pytest.mark.full
def test_results_are_those_that_were_asked_for() -> None:
    x, w, r = np.ones((1, 2, 3, 4), f32), np.ones((1, 1, 20, 4), f32), np.ones((1, 1, 20, 5), f32)
    both = tvmdml.lstm(x, w, r)
    assert tvmdml.lstm(x, w, r, output_options="sequence").tolist() == both.sequence.tolist()
    single, cell = tvmdml.lstm(x, w, r, output_options="single")
    assert (single.tolist(), cell.tolist()) == (both.single.tolist(), both.cell_single.tolist())
    out = np.empty_like(both.sequence)
    assert tvmdml.lstm(x, w, r, output_options="sequence", out=out) is out
    with pytest.raises(tvmdml.InvalidArgument, match="output_options: given 'all'; allowed: 'both', 'sequence', 'single'"):
        tvmdml.lstm(x, w, r, output_options="all")
    with pytest.raises(tvmdml.InvalidArgument, match=r"tvmdml.lstm: weight.sizes: given \(1, 1, 19, 4\); allowed: \(1, 1, 20, 4\)"):
        tvmdml.lstm(x, w[:, :, 1:], r)
    with pytest.raises(tvmdml.InvalidArgument, match="activation_descs: given 2 operators; allowed: 3, as direction is forward"):
        tvmdml.lstm(x, w, r, activation_descs=functions("TANH", 2))


# -- Schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.full
@settings(max_examples=12)
@given(
    name=st.sampled_from(sorted(CLASSES)),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.integers(1, 70)),
    direction=st.sampled_from(["forward", "backward", "bidirectional"]),
    present=st.sets(st.sampled_from(cases.NAMES)),
    chunk=st.sampled_from([1, 4, 192]),
    data_type=st.sampled_from(["float32", "float16", "float64"]),
    seed=st.integers(0, 99),
)
def test_any_network_agrees_with_the_reference(
    name: str, sizes: tuple[int, ...], direction: str, present: set[str], chunk: int, data_type: str, seed: int
) -> None:
    steps, batch, inputs, hidden = sizes
    cls = CLASSES[name]
    own = [one for one in present if hasattr(cls, one)]
    desc = cases.described(
        cls,
        TensorDesc(data_type, (1, steps, batch, inputs)),
        hidden,
        own,
        direction=tvmdml.RecurrentNetworkDirection.parse(direction, ""),
    )
    rng = np.random.default_rng(seed)

    def values(kind: Any, shape: tuple[int, ...]) -> Array:
        if not kind.is_float:
            return rng.integers(0, steps + 2, shape).astype(kind.numpy)
        return (rng.uniform(-1, 1, shape) / shape[-1] ** 0.5).astype(kind.numpy)

    with knobs.using(recurrent={"chunk_rows": chunk}):
        assert tried(desc, resolve("cpu"), OperatorTrial(desc, (), values)) == ""


@pytest.mark.full
@pytest.mark.some(4)
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("batch", [33, 2, 1])
def test_threads_change_nothing(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are divided among threads, or the units of a single one; each has the same sums."""
    gates = CLASSES[name].GATES
    rng = seeded(name)
    x, w, r = (rng.uniform(-0.2, 0.2, s).astype(f32) for s in ((1, 8, batch, 40), (1, 1, gates * 83, 40), (1, 1, gates * 83, 83)))
    one = getattr(tvmdml, name)(x, w, r).sequence
    for tasks in (2, 3, 7):
        target = resolve("cpu")
        monkeypatch.setattr(type(target), "tasks", lambda self, tasks=tasks: tasks)
        desc = CLASSES[name].of(
            *(TensorDesc("float32", a.shape) for a in (x, w, r)), direction="forward", output_sequence_tensor="float32",
            **({"linear_before_reset": True} if name == "gru" else {}),
        )  # fmt: skip
        out = np.empty_like(one)
        tensors = {"input_tensor": x, "weight_tensor": w, "recurrence_tensor": r, "output_sequence_tensor": out}
        with knobs.using(recurrent={"task_products": 256, "share_products": 256}):
            tvmdml.compile(desc)(*(tensors.get(field) for field, _ in desc.tensors()))
        assert np.array_equal(out, one)


@pytest.mark.full
@pytest.mark.parametrize(("name", "dtype"), [("rnn", "float16"), ("lstm", "float32"), ("gru", "float32")])
def test_weights_that_never_change_are_packed_once(name: str, dtype: str) -> None:
    """The results are those of weights that are packed in each call."""
    run, gates, rng = getattr(tvmdml, name), CLASSES[name].GATES, seeded(name)
    x, w, r = (rng.uniform(-0.2, 0.2, s).astype(dtype) for s in ((1, 5, 3, 40), (1, 2, gates * 83, 40), (1, 2, gates * 83, 83)))
    for given_, fixed in (({"x": x}, ("weight_tensor", "recurrence_tensor")), ({"x": x, "w": w}, ("recurrence_tensor",))):
        graph = tvmdml.Graph()
        inputs = {key: graph.input(one.shape, dtype, name=key) for key, one in given_.items()}
        y = run(inputs["x"], inputs.get("w", w), r, direction="bidirectional").sequence
        compiled = graph.compile([y])
        assert np.array_equal(compiled(given_)[0], run(x, w, r, direction="bidirectional").sequence)
        (desc,) = (call.desc for call in graph.calls)
        assert tuple(one.name for one in kernel_for(marked(desc, fixed), resolve("cpu")).owned) == fixed
        assert compiled.persistent_size >= sum(one.nbytes for one in (w, r)[-len(fixed) :])
