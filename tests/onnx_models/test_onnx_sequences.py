"""Sequences and optional tensors, as inputs and outputs too; loops without rounds; small inputs that are different each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import FLOAT, INT64, N, info, model, ramp  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import model as models  # noqa: E402
from tvmdml.onnx.converting import Conversion  # noqa: E402

make_graph = onnx.helper.make_graph


def several(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_sequence_value_info(name, kind, shape)


def optional(name: str, shape: Any) -> Any:
    tensor = onnx.helper.make_tensor_type_proto(FLOAT, shape)
    return onnx.helper.make_value_info(name, onnx.helper.make_optional_type_proto(tensor))


def alike(one: Any, right: Any) -> bool:
    if isinstance(right, list):
        return isinstance(one, list) and len(one) == len(right) and all(map(alike, one, right))
    if right is None:
        return one is None
    return (one.dtype, one.shape) == (right.dtype, right.shape) and bool(np.allclose(one, right, 1e-5, 1e-6))


def against_onnx_runtime(made: Any, *calls: dict[str, Any]) -> tvmdml.onnx.InferenceSession:
    runtime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    file = made.SerializeToString()
    right, found = runtime.InferenceSession(file, providers=["CPUExecutionProvider"]), tvmdml.onnx.InferenceSession(file)
    for theirs, ours in ((right.get_inputs(), found.get_inputs()), (right.get_outputs(), found.get_outputs())):
        assert [(one.name, one.type) for one in theirs] == [(one.name, one.type) for one in ours]
    for call in calls:
        assert alike(found.run(None, call), right.run(None, call)), call
    return found


def rows(*counts: int) -> list[Any]:
    return [ramp(n, 3) + 10 * i for i, n in enumerate(counts)]


def chopped() -> Any:
    """A sequence with a tensor from it put in again, as a whole and in parts; the product of each with a matrix."""
    nodes = [
        N("SequenceAt", ["x", "at"], ["one"]),
        N("SequenceInsert", ["x", "one"], ["more"]),
        N("ConcatFromSequence", ["more"], ["whole"], axis=0),
        N("MatMul", ["whole", "w"], ["product"]),
        N("SplitToSequence", ["product", "two"], ["parts"], axis=0),
        N("SequenceErase", ["parts"], ["fewer"]),
        N("SequenceLength", ["more"], ["length"]),
        N(
            "SequenceMap",
            ["x"],
            ["squares"],
            body=make_graph([N("Mul", ["a", "a"], ["b"])], "b", [info("a", None)], [info("b", None)]),
        ),
    ]
    outputs = [several("fewer"), info("whole", ["n", 3]), info("length", [], INT64), several("squares"), several("parts")]
    weights = {"w": ramp(3, 5), "two": np.array(2, np.int64)}
    return model(nodes, [several("x"), info("at", [], INT64)], outputs, weights, opset=17, ir_version=8)


def test_sequences_are_lists_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [
        {"x": rows(*counts), "at": np.array(at, np.int64)} for counts, at in (((1, 2), 0), ((1, 2), -1), ((4,), 0), ((2, 0, 1), 2))
    ]
    before = against_onnx_runtime(chopped(), *calls)
    shown = "(x: a list of float32, at: int64[]) -> (fewer: a list of float32, "
    assert shown in repr(before._model)
    results = [before(call) for call in calls]
    monkeypatch.setattr(models.Model, "_origin", None)  # what is kept is enough
    again = tvmdml.onnx.load(chopped().SerializeToString())
    for call, right in zip(calls, results, strict=True):
        assert alike(again(call), right)


@pytest.mark.parametrize("new_axis", [0, 1])
def test_empty_tensors_are_joined_as_others(new_axis: int) -> None:
    """Their result is empty too, but has all sizes; what does not fit is refused, not left out."""
    joined = N("ConcatFromSequence", ["x"], ["y"], axis=-1, new_axis=new_axis)
    made = model([joined], [several("x")], [info("y", None)], opset=17, ir_version=8)
    shapes = ([(0, 2)] * 3, [(2, 0)] * 2, [(0, 1)], [(2, 3)] * 2)
    more = [] if new_axis else [[(2, 0), (2, 3)]]
    loaded = against_onnx_runtime(made, *({"x": [ramp(*one) for one in call]} for call in (*shapes, *more)))
    with pytest.raises(tvmdml.Unsupported, match="its tensors do not fit each other: all "):
        loaded._model(x=[ramp(0, 2), ramp(3, 2)])


@pytest.mark.parametrize(
    ("axis", "new_axis", "shape"), [(-2, 0, (6, 2)), (-1, 0, (3, 4)), (2, 1, (3, 2, 2)), (-1, 1, (3, 2, 2)), (-3, 1, (2, 3, 2))]
)
def test_tensors_are_joined_along_every_axis(axis: int, new_axis: int, shape: tuple[int, ...]) -> None:
    nodes = [N("SequenceConstruct", ["x", "x"], ["s"]), N("ConcatFromSequence", ["s"], ["y"], axis=axis, new_axis=new_axis)]
    made = model(nodes, [info("x", [3, 2])], [info("y", None)], opset=11, ir_version=8)
    (found,) = tvmdml.onnx.load(made)(x=ramp(3, 2))
    right = (np.stack if new_axis else np.concatenate)([ramp(3, 2)] * 2, axis)
    assert found.shape == shape
    assert np.array_equal(found, right)


def through_values(ort: Any) -> list[Any]:
    """Sequences as values: results of a run and of a binding, and inputs of the next ones."""
    nodes = [N("SplitToSequence", ["x"], ["y"]), N("Neg", ["x"], ["z"])]
    split = model(nodes, [info("x", [3])], [several("y"), info("z", [3])], opset=17, ir_version=8)
    nodes = [N("ConcatFromSequence", ["y"], ["x"], axis=0), N("SequenceInsert", ["y", "x"], ["more"])]
    joined = model(nodes, [several("y")], [info("x", None), several("more")], opset=17, ir_version=8)
    first, second = (ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"]) for one in (split, joined))
    y, z = first.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(ramp(3))})
    binding = second.io_binding()
    binding.bind_ortvalue_input("y", y)
    binding.bind_output("more")
    binding.bind_output("x")
    second.run_with_iobinding(binding)
    more, x = binding.get_outputs()
    facts = [
        [one.data_type(), one.element_type(), one.has_value(), one.is_tensor(), one.is_tensor_sequence()] for one in (y, z, more, x)
    ]
    return [facts, binding.copy_outputs_to_cpu(), second.run(None, {"y": y}), second.run(["x"], {"y": more}), z.numpy()]


def test_sequences_are_values_as_in_onnx_runtime() -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    (facts, *found), (right, *others) = through_values(tvmdml.onnx), through_values(runtime)
    assert facts == right
    assert alike(found, others)


def test_sequences_of_other_libraries() -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    parts = [torch.from_numpy(one) for one in rows(1, 2)]
    found = tvmdml.onnx.load(chopped())(x=parts, at=torch.tensor(1))
    assert [type(one) for one in found[0]] == [torch.Tensor] * 2
    assert torch.equal(found[1], torch.cat([*parts, parts[1]]))


def test_wrong_sequences_are_refused(tmp_path: Path) -> None:
    loaded = tvmdml.onnx.load(chopped())
    at = np.array(0, np.int64)
    for given, said in (
        ({"x": ramp(2, 3), "at": at}, "Model x: given ndarray; allowed: a list of arrays of float32."),
        ({"x": [ramp(2, 3), np.zeros(2, np.int32)], "at": at}, r"Model x\[1\]: given int32\[2\]; allowed: a list of float32."),
        ({"x": None, "at": at}, "Model x: given NoneType; allowed: a list of arrays"),
        ({"at": at}, "no x; allowed: a list of float32."),
        ({"x": rows(1), "at": at, "x[0]": at}, r"'x\[0\]'; allowed: x, at"),
        ({"x": rows(1, 2), "at": np.array(2, np.int64)}, "SequenceAt of 'one': its position is 2, for 2 tensors"),
    ):
        with pytest.raises((tvmdml.InvalidArgument, tvmdml.Unsupported), match=said):
            loaded(given)
    binding, value = loaded.io_binding(), tvmdml.onnx.OrtValue(rows(1))
    for call, said in (
        (lambda: binding.bind_cpu_input("z", ramp(2)), "bind input: given 'z'; allowed: x, at"),
        (lambda: binding.bind_cpu_input("x", rows(1)), "given a sequence; allowed: tensors. Bind an OrtValue of a list of arrays"),
        (lambda: binding.bind_ortvalue_input("x", ramp(2)), r"given <OrtValue float32\[2\] on cpu>; allowed: a list of arrays"),
        (lambda: binding.bind_ortvalue_input("at", value), "given <OrtValue of 1 tensor of float32>; allowed: an array"),
        (lambda: binding.bind_ortvalue_output("parts", value), "given a sequence; allowed: tensors. Bind it without memory"),
        (value.numpy, r"OrtValue numpy: given <OrtValue of 1 tensor of float32>; allowed: a tensor. Its tensors are in the list"),
        (tvmdml.onnx.OrtValue(None).shape, r"has_value\(\) says what is there"),
        (tvmdml.onnx.OrtValue([]).data_type, "whose type is not known"),
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=said):
            call()
    with pytest.raises(tvmdml.Unsupported, match="outputs that are sequences"):
        loaded.forms({"x": rows(1), "at": at})
    taken = model([N("SequenceLength", ["x"], ["y"])], [several("x"), info("x[0]", [1])], [info("y", [], INT64)], opset=17)
    with pytest.raises(tvmdml.Unsupported, match="whose tensors would be named like another input"):
        tvmdml.onnx.load(taken)
    with pytest.raises(
        tvmdml.Unsupported, match=r"inputs that are sequences \(x: .*\); allowed: tensors, for a pack. Make an input"
    ):
        loaded.recorded()


@pytest.mark.parametrize("second", [1, 2])
def test_sequences_of_different_lengths_have_no_map(second: int) -> None:
    """Nor have tensors that do not fit. The onnx package would end the process when it is asked for the operator's function."""
    body = make_graph([N("Add", ["a", "b"], ["c"])], "b", [info("a", None), info("b", None)], [info("c", None)])
    made = model([N("SequenceMap", ["x", "z"], ["y"], body=body)], [several("x"), several("z")], [several("y")], opset=18)
    with pytest.raises(tvmdml.TvmdmlError, match="different lengths" if second > 1 else "Incompatible dimensions"):
        tvmdml.onnx.load(made)(x=[ramp(2)], z=[ramp(3)] * second)


def test_an_optional_input_may_be_left_out() -> None:
    there = make_graph([N("OptionalGetElement", ["x"], ["a"]), N("Add", ["a", "y"], ["b"])], "there", [], [info("b", None)])
    nothing = make_graph([N("Identity", ["y"], ["b"])], "nothing", [], [info("b", None)])
    nodes = [
        N("OptionalHasElement", ["x"], ["has"]),
        N("If", ["has"], ["z"], then_branch=there, else_branch=nothing),
        N("Identity", ["x"], ["same"]),
    ]
    made = model(nodes, [optional("x", [2, "n"]), info("y", [2, "n"])], [info("z", [2, "n"]), optional("same", [2, "n"])], opset=18)
    loaded, y = tvmdml.onnx.load(made.SerializeToString()), ramp(2, 3)
    for _ in range(2):  # the second time from the disk
        for x in (y + 1, None):
            z, same = loaded(x=x, y=y)
            assert np.array_equal(z, y if x is None else x + y)
            assert alike(same, x)
        assert alike(loaded(y=y), [y, None])
        loaded = tvmdml.onnx.load(made.SerializeToString())
    with pytest.raises(tvmdml.InvalidArgument, match=r"Model x: given float32\[3, 3\]; allowed: float32\[2, n\] or None"):
        loaded(y=y, x=ramp(3, 3))


def test_sequences_have_tensors_only() -> None:
    """A sequence, or an optional tensor that is not there, is none; ONNX's own checks let them pass."""
    first = N("SequenceConstruct", ["x", "x"], ["pair"])
    nothing = N("Optional", [], ["none"], type=onnx.helper.make_tensor_type_proto(FLOAT, ["n"]))
    for nodes in (
        (first, N("SequenceConstruct", ["pair"], ["y"])),
        (first, N("SequenceInsert", ["pair", "pair"], ["y"])),
        (nothing, N("SequenceConstruct", ["x", "none"], ["y"])),
    ):
        made = model(nodes, [info("x", ["n"])], [several("y")], opset=18, ir_version=8)
        with pytest.raises(tvmdml.Unsupported, match="a sequence has tensors"):
            tvmdml.onnx.load(made.SerializeToString())(x=ramp(3))


def test_sequences_after_the_graph() -> None:
    """Of what is known, of what the graph computes, and of what depends on elements."""
    nodes = [
        N("Abs", ["x"], ["a"]),
        N("SequenceConstruct", ["a", "w"], ["pair"]),
        N("Greater", ["x", "limit"], ["far"]),
        N("NonZero", ["far"], ["places"]),
        N("Shape", ["places"], ["count"], start=1),
        N("Mod", ["count", "two"], ["odd"]),
        N("Squeeze", ["odd"], ["which"]),
        N("SequenceAt", ["pair", "which"], ["chosen"]),
        N("SequenceInsert", ["pair", "chosen", "which"], ["three"]),
        N("SplitToSequence", ["places"], ["two_rows"], axis=0, keepdims=0),
    ]
    outputs = [several("three"), info("chosen", None), several("two_rows", None, INT64)]
    weights = {"w": ramp(4, 2), "limit": np.array(2.5, np.float32), "two": np.array([2], np.int64)}
    rng = np.random.default_rng(2)
    calls = [{"x": rng.standard_normal((50, 100), np.float32)} for _ in range(8)]
    assert len({(one["x"] > 2.5).sum() % 2 for one in calls}) == 2, "both are chosen"
    against_onnx_runtime(model(nodes, [info("x", ["n", 100])], outputs, weights, opset=17, ir_version=8), *calls)


@pytest.mark.parametrize("late", [False, True], ids=["known", "late"])
def test_loops_may_have_no_rounds(late: bool) -> None:
    """The number of rounds is an input's, or that of its positive elements; the first result has sizes that only a round tells."""
    body = make_graph(
        [
            N("Identity", ["going"], ["still"]),
            N("Add", ["state", "state"], ["next"]),
            N("Concat", ["next", "next"], ["wide"], axis=1),
            N("Cast", ["i"], ["number"], to=FLOAT),
        ],
        "body",
        [info("i", [], INT64), info("going", [], onnx.TensorProto.BOOL), info("state", None)],
        [info("still", [], onnx.TensorProto.BOOL), info("next", None), info("wide", None), info("number", [])],
    )
    zero = N("Constant", [], ["zero"], value_float=0.0)
    count = [N("Greater", ["x", "zero"], ["p"]), N("NonZero", ["p"], ["q"]), N("Shape", ["q"], ["rounds"], start=1)]
    nodes = [
        zero,
        *(count if late else [N("Identity", ["n"], ["rounds"])]),
        N("Loop", ["rounds", "", "w"], ["y", "z", "m"], body=body),
    ]
    inputs = [info("x", [5000])] if late else [info("n", [1], INT64)]
    outputs = [info("y", None), info("z", None), info("m", None)]
    made = model(nodes, inputs, outputs, {"w": ramp(2, 3)}, opset=17, ir_version=8)
    loaded = tvmdml.onnx.load(made.SerializeToString())
    for rounds in (2, 0, 1):
        given = np.where(np.arange(5000) < rounds, 1, -1).astype(np.float32) if late else np.array([rounds], np.int64)
        y, z, m = loaded({"x" if late else "n": given})
        assert np.array_equal(y, ramp(2, 3) * 2**rounds)
        assert z.shape == (rounds, 2, 6), "ONNX Runtime has [0, 0, 0] for no rounds: sizes that the file does not say"
        assert (m.dtype, m.tolist()) == (np.float32, list(range(rounds)))


def test_scans_may_have_no_rounds() -> None:
    body = make_graph([N("Add", ["s", "x"], ["t"]), N("Concat", ["x", "s"], ["y"], axis=0)], "body",
                      [info("s", [3]), info("x", [3])], [info("t", [3]), info("y", None)])  # fmt: skip
    nodes = [N("Scan", ["start", "rows"], ["end", "all"], body=body, num_scan_inputs=1, scan_output_axes=[1])]
    made = model(nodes, [info("start", [3]), info("rows", ["n", 3])], [info("end", [3]), info("all", [6, "n"])], opset=17)
    loaded, start = tvmdml.onnx.load(made), ramp(3)
    for n in (2, 0):
        end, found = loaded(start=start, rows=ramp(n, 3))
        assert np.allclose(end, start + ramp(n, 3).sum(0))
        assert found.shape == (6, n)


def test_small_images_are_not_converted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few integers decide how a model is computed. What is measured does not, however small it is."""
    nodes = [
        N("MatMul", ["image", "w"], ["y"]),
        N("Greater", ["y", "zero"], ["far"]),
        N("NonZero", ["far"], ["places"]),
    ]
    made = model(nodes, [info("image", ["n", 32])], [info("places", [2, "k"], INT64)], {"w": ramp(32, 4), "zero": np.float32(0)})
    loaded, rng, count = tvmdml.onnx.load(made), np.random.default_rng(5), []
    of = Conversion.of
    monkeypatch.setattr(Conversion, "of", lambda *given: count.append(1) or of(*given))
    for n in (3, 3, 3, 5, 5):
        image = rng.standard_normal((n, 32), np.float32)
        assert np.array_equal(loaded(image=image)[0], np.stack(np.nonzero(image @ ramp(32, 4) > 0)))
    assert len(count) == 1, "one for all sizes"
