"""Recurrent networks with weights of 8 bits: right for all types, sizes and attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fenced import Place, Work, run
from support import Array, assert_outputs_agree, bytes_of, desc_of, reference, seeded

import tvmdml
from tvmdml import knobs, targets
from tvmdml.graph.passes.recurrent_bytes import read_bytes
from tvmdml.operators._recurrent_fused import CLASSES
from tvmdml.operators._recurrent_onnx import activation
from tvmdml.targets import Target
from tvmdml.targets.cpu import host

NETWORKS = {"rnn": CLASSES[0], "lstm": CLASSES[1], "gru": CLASSES[2]}
ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "rnn": [{}, {"activation_descs": [activation("RELU")] * 2}],
    "lstm": [{}, {"couple_input_forget": True}, {"use_clip_threshold": True, "clip_threshold": 0.5}],
    "gru": [{"linear_before_reset": False}, {"linear_before_reset": True}],
}
SIZES = ((1, 1, 1, 1), (5, 1, 37, 16), (3, 3, 64, 33), (2, 7, 18, 70))
"""Steps, sequences, inputs and units."""
TYPES = (("int8", "int8"), ("uint8", "uint8"), ("int8", None), ("uint8", None))
"""Of weights and zero points."""


def described(name: str, sizes: tuple[int, ...], types: tuple[str, str | None], **more: Any) -> tuple[Any, list[Array | None]]:
    """A network with all that it may have, and its inputs. Half of the scales are one for all gates."""
    (t, b, i, h), cls, (kind, zero) = sizes, NETWORKS[name], types
    more = {"direction": "bidirectional", **more}
    d = 2 if more["direction"] == "bidirectional" else 1
    rows, rng = cls.GATES * h, seeded(name, sizes, types)

    def floats(*shape: int) -> Array:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    weights, recurrence = (bytes_of(kind, (1, d, n, rows), i).transpose(0, 1, 3, 2) for n in (i, h))
    scales = floats(1, 1, d, rows) * np.float32(0.02), np.broadcast_to(floats(1, 1, 1, 1) * np.float32(0.02), (1, 1, d, rows))
    zeros = [None if zero is None else bytes_of(zero, (1, 1, d, rows), 9), None]
    arrays = [
        scales[0],
        zeros[0],
        scales[1],
        zeros[1],
        floats(1, t, b, i) * 9,
        weights,
        recurrence,
        floats(1, 1, d, 2 * rows),
        floats(1, d, b, h),
    ]
    arrays += [floats(1, d, b, h)] if name == "lstm" else []
    arrays += [(np.arange(b, dtype=np.uint32) * 3 % (t + 1)).reshape(1, 1, 1, b)]
    arrays += [floats(1, 1, d, 3 * h)] if name == "lstm" else []
    tensors = [None if array is None else desc_of(array) for array in arrays]
    outputs = ("output_sequence_tensor", "output_single_tensor", *(("output_cell_single_tensor",) if name == "lstm" else ()))
    asked = dict.fromkeys(outputs, "float32")
    return cls.of(*tensors, **{**asked, **more}), arrays


def agrees(desc: Any, arrays: list[Array | None], target: Target) -> None:
    """The kernel reads and writes nothing outside of its arrays, and its results are right."""
    expected = reference(desc, *arrays)
    for place in (Place(at_end=True), Place(at_end=False)):
        assert_outputs_agree(desc, run(Work(desc, target), arrays, "kernel", place, place), expected)


FORMS = [(name, sizes, types, more) for name in NETWORKS for sizes in SIZES for types in TYPES for more in ATTRIBUTES[name]]


WITH_BYTES = "cpu:x86-64-v4+avx512vnni"


def multiplies_bytes() -> bool:
    return host.host().has("avx512f") and host.host().has("avx512vnni")


needs_bytes = pytest.mark.skipif(not multiplies_bytes(), reason="this processor does not multiply bytes in vectors of 64")


@needs_bytes
@pytest.mark.parametrize("form", FORMS[::21], ids=str)
def test_any_network_is_right(form: tuple[Any, ...]) -> None:
    name, sizes, types, more = form
    agrees(*described(name, sizes, types, **more), targets.resolve(WITH_BYTES))


@pytest.mark.parametrize("name", NETWORKS)
def test_processors_without_products_of_bytes_are_right(name: str) -> None:
    agrees(*described(name, SIZES[2], TYPES[0], **ATTRIBUTES[name][-1]), targets.resolve("cpu:x86-64-v2"))


@needs_bytes
@pytest.mark.full
@pytest.mark.some(20)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_network_is_right(form: tuple[Any, ...]) -> None:
    name, sizes, types, more = form
    for rounds in (False, True):
        agrees(*described(name, sizes, types, **more, may_round=rounds), targets.resolve(WITH_BYTES))


@pytest.mark.parametrize("name", NETWORKS)
def test_devices_are_right(name: str, device: Target) -> None:
    agrees(*described(name, SIZES[2], TYPES[0], **ATTRIBUTES[name][0]), device)


@needs_bytes
def test_elements_may_be_rounded() -> None:
    agrees(*described("gru", SIZES[2], TYPES[1], linear_before_reset=True, may_round=True), targets.resolve(WITH_BYTES))


@needs_bytes
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("inputs", [1 << 16, (1 << 16) + 1])
def test_the_largest_sums_are_right(inputs: int, sign: int) -> None:
    """Weights are as far from their zero points as they can be, and elements have the largest digits."""
    x = np.full((1, 1, 2, inputs), 127 * 65536, np.float32)
    x[0, 0, 1, 1:] = -0x8080
    weights = [np.full((1, 1, 1, inputs), -128 * sign - (sign < 0), np.int8), np.zeros((1, 1, 1, 1), np.int8)]
    scale, zero = np.full((1, 1, 1, 1), 2.0**-20, np.float32), np.full((1, 1, 1, 1), 127 * sign - (sign < 0), np.int8)
    arrays: list[Any] = [scale, zero, scale, None, x, *weights, None, None, None]
    tensors = [None if array is None else desc_of(array) for array in arrays]
    desc = NETWORKS["rnn"].of(
        *tensors, activation_descs=[activation("IDENTITY")], direction="forward", output_sequence_tensor="float32"
    )
    (found,) = run(Work(desc, targets.resolve(WITH_BYTES)), arrays, "kernel", Place(at_end=True), Place(at_end=True))
    wanted = x[0, 0].astype(float) @ np.full(inputs, -255.0 * sign) * 2.0**-20
    assert np.allclose(found.ravel(), wanted, rtol=1e-4)


@needs_bytes
@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf, 3e38, 1e-45, 0.0])
def test_special_elements_are_those_of_their_own_sequence(what: float) -> None:
    desc, arrays = described("rnn", SIZES[2], TYPES[0])
    x: Any = arrays[4]
    x[0, 1, 1] = what
    (sequence, _), (expected, _) = (
        run(Work(desc, targets.resolve(WITH_BYTES)), arrays, "kernel", Place(at_end=True), Place(at_end=True)),
        reference(desc, *arrays),
    )
    others = np.delete(np.arange(3), 1)
    assert np.allclose(sequence[:, :, others], np.asarray(expected.values)[:, :, others], atol=1e-5)
    assert np.isnan(sequence[:, :, 1]).any() == (not np.isfinite(what))


# -- Graphs --------------------------------------------------------------------------------------------------------------


class Made:
    """A graph with an LSTM behind two dequantizations, and its weights in float64."""

    def __init__(self, axis: int = 2, turned: bool = True, given: bool = False, bytes_are_read: bool = True) -> None:
        self.graph, rng = tvmdml.Graph(), seeded("made", axis, turned)
        self.fed = {"x": rng.standard_normal((1, 6, 2, 20), np.float32)}
        self.weights, found = [], []
        for name, columns in (("w", 20), ("r", 40)):
            q = bytes_of("int8", (1, 1, columns, 160) if turned else (1, 1, 160, columns), name)
            side = (5 - axis) if turned and axis > 1 else axis
            each = [n if i == side else 1 for i, n in enumerate(q.shape)]
            scale, zero = rng.uniform(0, 0.01, each).astype(np.float32), rng.integers(-9, 9, each).astype(np.int8)
            source = self.graph.input(q.shape, q.dtype, name=name) if given else self.graph.constant(q)
            self.fed.update({name: q} if given else {})
            parameters = [self.graph.constant(one).broadcast(q.shape) for one in (scale, zero)]
            floats = tvmdml.dequantize_linear(source, *parameters)
            exact = (q.astype(float) - zero) * scale
            found.append(floats.transpose(0, 1, 3, 2) if turned else floats)
            self.weights.append(exact.transpose(0, 1, 3, 2) if turned else exact)
        results = tvmdml.lstm(self.graph.input(self.fed["x"].shape, "float32", name="x"), *found)
        self.results = [one for one in results if one is not None]
        for call in self.graph.calls if bytes_are_read else ():
            if call.desc.NAME == "LSTM":
                read_bytes(call, may_round=False)

    def run(self, target: Any = WITH_BYTES) -> tuple[list[Array], str]:
        net = self.graph.compile(self.results, target=target)
        return net(self.fed), str(net.explain())

    def description(self, target: Any = WITH_BYTES) -> str:
        """That of the compiled graph, whose results are right."""
        results, text = self.run(target)
        assert all(np.allclose(result, right, atol=2e-6) for result, right in zip(results, self.wanted(), strict=True))
        return text

    def wanted(self) -> list[Array]:
        results = tvmdml.lstm(self.fed["x"].astype(float), *self.weights)
        return [one for one in results if one is not None]


@needs_bytes
@pytest.mark.parametrize("given", [False, True], ids=["constants", "inputs"])
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("axis", [1, 2], ids=["one scale", "a scale for each row"])
def test_bytes_are_read(axis: int, turned: bool, given: bool) -> None:
    assert "steps of FUSED_QUANTIZED_LSTM" in Made(axis, turned, given).description()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_were_added_with_bytes_get_floats_elsewhere(name: str) -> None:
    desc, arrays = described(name, SIZES[2], TYPES[0], **ATTRIBUTES[name][0])
    desc = desc.with_tensors(lambda tensor: tvmdml.TensorDesc(tensor.data_type, tensor.sizes))  # as constants lie
    graph = tvmdml.Graph()
    results = graph.add(desc, [None if one is None else graph.constant(one) for one in arrays])
    net = graph.compile([one for one in results if one is not None], target="cpu:x86-64-v3")
    assert_outputs_agree(desc, net({}), reference(desc, *arrays))
    assert "FUSED_QUANTIZED" not in str(net.explain()).split("kernel", 1)[1]


@needs_bytes
def test_scales_of_columns_are_computed_from_floats() -> None:
    assert "of FUSED_QUANTIZED" not in Made(axis=3).description()


@pytest.mark.parametrize("where", ["cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_other_processors_compute_floats(where: str) -> None:
    assert "of FUSED_QUANTIZED" not in Made().description(where)


def test_devices_compute_floats(device: Target) -> None:
    assert "of FUSED_QUANTIZED" not in Made().description(device)


@needs_bytes
def test_a_network_behind_dequantizations_computes_floats() -> None:
    _, text = Made(bytes_are_read=False).run()
    assert "of FUSED_QUANTIZED" not in text


@needs_bytes
@pytest.mark.parametrize(
    ("name", "sizes", "direction"),
    [("gru", SIZES[2], "bidirectional"), ("lstm", (4, 1, 20, 170), "backward")],
    ids=["sequences", "units"],
)
def test_threads_change_nothing(name: str, sizes: tuple[int, ...], direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are divided among threads, or the units of a single one."""
    target = targets.resolve(WITH_BYTES)
    desc, arrays = described(name, sizes, TYPES[0], **ATTRIBUTES[name][0], direction=direction)
    results = []
    with knobs.using(recurrent={"task_products": 256, "share_products": 256}):
        for tasks in (1, 3):
            monkeypatch.setattr(type(target), "tasks", lambda self, tasks=tasks: tasks)
            results.append(run(Work(desc, target), arrays, "kernel", Place(at_end=True), Place(at_end=True)))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


@needs_bytes
@pytest.mark.parametrize("where", [WITH_BYTES, "cpu:x86-64-v3"])
def test_a_saved_graph_has_the_bytes(where: str, tmp_path: Path) -> None:
    made = Made()
    path = str(tmp_path / "net.graph")
    tvmdml.save_graph(made.graph.compile(made.results, target=WITH_BYTES), path)
    for one, wanted in zip(tvmdml.load_graph(path, where)(made.fed), made.wanted(), strict=True):
        assert np.allclose(one, wanted, atol=2e-6)
    assert Path(path).stat().st_size < 2 * sum(one.size for one in made.weights)
