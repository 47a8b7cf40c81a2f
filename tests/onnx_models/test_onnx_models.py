"""Models made by hand: sizes, folding, functions, branches and loops, data in other files, and what is not mapped."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import succeed

import tvmdml
from tvmdml import packs
from tvmdml.packs import sources

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import BOOL, FLOAT, INT64, N, info, model, ramp  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX


@pytest.mark.full
def test_symbolic_sizes_are_compiled_on_first_use_and_kept() -> None:
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Gather", ["s", "zero"], ["n"]),
        N("Unsqueeze", ["n", "axes"], ["n1"]),
        N("Concat", ["n1", "rest"], ["to"], axis=0),
        N("Reshape", ["x", "to"], ["flat"]),
        N("MatMul", ["flat", "w"], ["y"]),
    ]
    weights = {"zero": np.int64(0), "axes": np.array([0]), "rest": np.array([-1]), "w": ramp(6, 4)}
    made = tvmdml.onnx.load(model(nodes, [info("x", ["n", 2, 3])], [info("y", ["n", 4])], weights))
    assert made.symbols == ("n",)
    assert [(one.name, one.shape, one.type) for one in made.get_inputs()] == [("x", ["n", 2, 3], "tensor(float)")]
    for n in (1, 5, 1):
        x = ramp(n, 2, 3)
        (y,) = made(x=x)
        assert np.allclose(y, x.reshape(n, 6) @ weights["w"], atol=1e-5)
    assert made.compiled(x=(5, 2, 3)) is made.compiled({"x": ramp(5, 2, 3)})
    assert made.compiled(x=(5, 2, 3)).kernel_count == 1
    assert made.run(["y"], {"x": ramp(2, 2, 3)})[0].shape == (2, 4)
    fixed = tvmdml.onnx.load(model(nodes, [info("x", ["n", 2, 3])], [info("y", ["n", 4])], weights), {"n": 3})
    assert fixed.symbols == ()
    for given, said in (
        ({"x": ramp(2, 3, 2)}, "n, 2, 3"),
        ({}, "no x"),
        ({"y": ramp(1)}, "'y'"),
        ({"x": np.zeros((1, 2, 3))}, "float64"),
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=said):
            made(given)
    with pytest.raises(tvmdml.InvalidArgument, match=r"n, 2, 3|3, 2, 3"):
        fixed(x=ramp(4, 2, 3))
    with pytest.raises(tvmdml.InvalidArgument, match="'m'"):
        tvmdml.onnx.load(model(nodes, [info("x", ["n", 2, 3])], [info("y", ["n", 4])], weights), {"m": 3})
    with pytest.raises(tvmdml.InvalidArgument, match="run output_names"):
        made.run(["z"], {"x": ramp(2, 2, 3)})


def test_sizes_share_packed_weights() -> None:
    weights = {"w": ramp(64, 96), "v": ramp(96, 64)}
    nodes = [N("MatMul", ["x", "w"], ["a"]), N("MatMul", ["a", "v"], ["y"])]
    made = tvmdml.onnx.load(model(nodes, [info("x", ["n", 64])], [info("y", ["n", 64])], weights))
    graphs = [made.compiled(x=(n, 64)) for n in (16, 24, 33)]
    if not any(one._packed for one in graphs):
        pytest.skip("this processor's kernels pack no weights")
    found = {id(buffer) for one in graphs for buffer in one._packed}
    assert len(found) < sum(len(one._packed) for one in graphs)
    for n in (16, 24, 33):
        assert np.allclose(made(x=ramp(n, 64))[0], ramp(n, 64) @ weights["w"] @ weights["v"], rtol=1e-3)


def test_inputs_whose_values_decide_shapes_are_compiled_by_value() -> None:
    nodes = [N("Slice", ["x", "start", "end"], ["part"]), N("Neg", ["part"], ["y"])]
    made = tvmdml.onnx.load(model(nodes, [info("x", [8]), info("start", [1], INT64), info("end", [1], INT64)], [info("y", ["k"])]))
    for start, end in ((0, 3), (2, 8), (0, 3)):
        (y,) = made(x=ramp(8), start=np.array([start]), end=np.array([end]))
        assert np.array_equal(y, -ramp(8)[start:end])


def test_an_if_with_a_condition_of_an_input_selects() -> None:
    def branch(kind: str, name: str) -> Any:
        return onnx.helper.make_graph([N(kind, ["x"], [name])], name, [], [info(name, None)])

    nodes = [N("If", ["c"], ["y"], then_branch=branch("Neg", "a"), else_branch=branch("Abs", "b"))]
    made = tvmdml.onnx.load(model(nodes, [info("c", [], BOOL), info("x", [4])], [info("y", [4])]))
    x = ramp(4)
    assert np.array_equal(made(c=np.array(True), x=x)[0], -x)
    assert np.array_equal(made(c=np.array(False), x=x)[0], np.abs(x))
    assert made.compiled(c=(), x=(4,)).kernel_count == 1  # fused: both branches, and the choice
    nodes = [N("Constant", [], ["c"], value=onnx.helper.make_tensor("", BOOL, [], [False])), *nodes]
    known = tvmdml.onnx.load(model(nodes, [info("x", [4])], [info("y", [4])]))
    assert np.array_equal(known(x=x)[0], np.abs(x))
    assert known.compiled(x=(4,)).kernel_count == 1


@pytest.mark.full
def test_tensors_in_a_model_may_have_more_than_eight_dimensions() -> None:
    """As windows of an image that are moved: neighbouring dimensions that a node treats alike are one."""
    x, small, order = ramp(2, 24, 6), ramp(3, 1, 2, 1), [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]
    many, wide = (2, 2, 3, 1, 2, 2, 3, 1, 1, 2), (2, 2, 3, 4, 2, 2, 3, 1, 1, 2)
    y = x.reshape(many)
    e = np.exp(y - y.max(6, keepdims=True))
    right: dict[str, tuple[Any, list[Any]]] = {
        "Transpose": (y.transpose(order), [N("Transpose", ["m"], ["r"], perm=order)]),
        "Neg": (-y, [N("Neg", ["m"], ["r"])]),
        "Add": (y + small, [N("Add", ["m", "small"], ["r"])]),
        "Greater": (np.where(y > small, y, small), [N("Greater", ["m", "small"], ["g"]), N("Where", ["g", "m", "small"], ["r"])]),
        "Clip": (y.clip(0), [N("Clip", ["m", "zero"], ["r"])]),
        "Expand": (np.broadcast_to(y, wide), [N("Expand", ["m", "wide"], ["r"])]),
        "ReduceSum": (y.sum((2, 3, 6), keepdims=True), [N("ReduceSum", ["m", "axes"], ["r"])]),
        "ReduceMax": (y.max((2, 3, 6)), [N("ReduceMax", ["m", "axes"], ["r"], keepdims=0)]),
        "ReduceMean": (y.mean(keepdims=True), [N("ReduceMean", ["m"], ["r"])]),
        "ReduceL1": (np.abs(y).squeeze(7), [N("ReduceL1", ["m", "seven"], ["r"], keepdims=0)]),
        "Softmax": (e / e.sum(6, keepdims=True), [N("Softmax", ["m"], ["r"], axis=6)]),
        "Concat": (np.concatenate([y, -y], 4), [N("Neg", ["m"], ["n"]), N("Concat", ["m", "n"], ["r"], axis=4)]),
        "Split": (y[:, :, 1:], [N("Split", ["m", "parts"], ["", "r"], axis=2)]),
        "Unsqueeze": (y[..., None], [N("Unsqueeze", ["m", "ten"], ["r"])]),
        "Squeeze": (y.squeeze((3, 7)), [N("Squeeze", ["m", "ones"], ["r"])]),
        "weights": (y * y, [N("Mul", ["m", "weight"], ["r"])]),
    }
    weights = {"many": np.array(many), "wide": np.array(wide), "axes": np.array([2, 3, -4]), "seven": np.array([7])}
    weights |= {"ten": np.array([10]), "ones": np.array([3, -3]), "parts": np.array([1, 2]), "one": np.array([-1])}
    weights |= {"small": small, "zero": np.float32(0), "weight": y}
    nodes = [N("Reshape", ["x", "many"], ["m"])]
    for i, (_, own) in enumerate(right.values()):
        for node in own:
            for names in (node.input, node.output):
                names[:] = [f"{name}{i}" if name in ("r", "g", "n") else name for name in names]
        nodes += [*own, N("Reshape", [f"r{i}", "one"], [f"y{i}"])]
    outputs = [info(f"y{i}", None) for i in range(len(right))]
    found = tvmdml.onnx.load(model(nodes, [info("x", ["a", "b", "c"])], outputs, weights))(x=x)
    wrong = [
        name
        for (name, (wanted, _)), y in zip(right.items(), found, strict=True)
        if y.shape != (wanted.size,) or not np.allclose(y, wanted.reshape(-1), atol=1e-5)
    ]
    assert not wrong
    for inputs, output, said in (([1] * 9, None, "an input 'x' of 9 dimensions"), ([4], [1] * 8 + [4], "the output 'y'")):
        shape = {"s": np.array(output or [-1])}
        with pytest.raises(tvmdml.Unsupported, match=said):
            tvmdml.onnx.load(model([N("Reshape", ["x", "s"], ["y"])], [info("x", inputs)], [info("y", output)], shape))
    apart = N("Transpose", ["m"], ["t"], perm=list(range(9))[::-1])
    nodes = [N("Reshape", ["x", "s"], ["m"]), apart, N("Reshape", ["t", "one"], ["y"])]
    with pytest.raises(tvmdml.Unsupported, match="more than 8 dimensions, of which 9 are left"):
        tvmdml.onnx.load(model(nodes, [info("x", [512])], [info("y", [512])], {"s": np.array([2] * 9), "one": np.array([-1])}))


def test_nodes_may_stand_before_those_whose_results_they_read() -> None:
    """ONNX Runtime's converter to float16 writes such files. The same in functions, and in the graphs of nodes."""

    def branch(*nodes: Any) -> Any:
        return onnx.helper.make_graph(nodes, "branch", [], [info("t", None)])

    backwards = [N("Neg", ["u"], ["t"]), N("Add", ["v", "b"], ["u"]), N("Abs", ["b"], ["v"])]
    nodes = [
        N("Add", ["f", "t1"], ["y"]),
        N("If", ["c"], ["t1"], then_branch=branch(*backwards), else_branch=branch(N("Neg", ["b"], ["t"]))),
        N("F", ["b"], ["f"], domain="own"),
        N("Cast", ["x"], ["b"], to=FLOAT),
        N("Constant", [], ["c"], value=onnx.helper.make_tensor("", BOOL, [], [True])),
    ]
    body = [N("Neg", ["q"], ["r"]), N("Abs", ["p"], ["q"])]
    function = onnx.helper.make_function("own", "F", ["p"], ["r"], body, [onnx.helper.make_opsetid("", 21)])
    made = tvmdml.onnx.load(model(nodes, [info("x", [2], INT64)], [info("y", [2])], functions=[function]))
    assert made(x=np.array([-3, 2]))[0].tolist() == [-3.0, -6.0]


def test_a_loop_with_a_known_number_of_rounds_is_unrolled() -> None:
    body = onnx.helper.make_graph(
        [N("Add", ["state", "x"], ["next"]), N("Identity", ["going"], ["still"]), N("Mul", ["next", "next"], ["scan"])],
        "body",
        [info("i", [], INT64), info("going", [], BOOL), info("state", [3])],
        [info("still", [], BOOL), info("next", [3]), info("scan", [3])],
    )
    nodes = [N("Loop", ["rounds", "", "x"], ["last", "all"], body=body)]
    made = tvmdml.onnx.load(model(nodes, [info("x", [3])], [info("last", [3]), info("all", [4, 3])], {"rounds": np.int64(4)}))
    x = ramp(3)
    last, several = made(x=x)
    assert np.allclose(last, 5 * x)
    assert np.allclose(several, np.stack([((i + 2) * x) ** 2 for i in range(4)]))


def test_functions_of_the_model_take_attributes() -> None:
    inner = N("LeakyRelu", ["a"], ["t"])
    attribute = inner.attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    function = onnx.helper.make_function(
        "own", "Twice", ["a"], ["b"], [inner, N("Add", ["t", "t"], ["b"])], [onnx.helper.make_opsetid("", 21)], ["slope"]
    )
    nodes = [N("Twice", ["x"], ["y"], domain="own", slope=0.5)]
    made = tvmdml.onnx.load(model(nodes, [info("x", [5])], [info("y", [5])], functions=[function]))
    x = ramp(5)
    assert np.allclose(made(x=x)[0], 2 * np.where(x < 0, x / 2, x))


def test_data_in_other_files_is_mapped(tmp_path: Path) -> None:
    w = ramp(64, 32)
    made = model([N("MatMul", ["x", "w"], ["y"])], [info("x", [2, 64])], [info("y", [2, 32])], {"w": w})
    onnx.save_model(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    found = tvmdml.onnx.load(tmp_path / "m.onnx")
    assert np.allclose(found(x=ramp(2, 64))[0], ramp(2, 64) @ w, atol=1e-4)
    (_, array), *_ = found._origin().model.arrays.values()
    assert not array.flags.writeable
    ends = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(f"{tmp_path}/m.data")]
    spans = [[int(end, 16) for end in one.split("-")] for one in ends]
    assert any(first <= array.ctypes.data < last for first, last in spans)
    assert np.array_equal(tvmdml.onnx.load((tmp_path / "m.onnx").as_posix())(x=ramp(2, 64))[0], found(x=ramp(2, 64))[0])
    with pytest.raises(tvmdml.ModelError, match="the path of the model"):
        tvmdml.onnx.load((tmp_path / "m.onnx").read_bytes())


def test_all_that_is_not_mapped_is_listed_at_once() -> None:
    nodes = [
        N("TfIdfVectorizer", ["x"], ["a"], name="first"),
        N("Nothing", ["x"], ["b"], domain="own"),
        N("Relu", ["x"], ["c"]),
        N("ImageDecoder", ["x"], ["d"]),
    ]
    with pytest.raises(tvmdml.Unsupported, match=r"(?s)3 nodes.*TfIdfVectorizer 'first'.*own.Nothing of 'b'.*ImageDecoder of 'd'"):
        tvmdml.onnx.load(model(nodes, [info("x", [2, 2])], [info("c", [2, 2])]))
    nodes = [
        N("Inverse", ["x"], ["a"], domain="com.microsoft"),
        N("Relu", ["a"], ["b"]),
        N("Det", ["x"], ["c"]),
    ]
    with pytest.raises(tvmdml.Unsupported, match=r"(?s)2 nodes.*Inverse of 'a'.*Det of 'c'"):
        tvmdml.onnx.load(model(nodes, [info("x", [1, 1, 70, 70])], [info("b", None)]))


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_networks_without_steps(kind: str, gates: int, layout: int) -> None:
    """As for a sequence of length 0 all results are 0, even with a first state. (ONNX Runtime crashes for some of these.)"""
    results = ["y", "yh", "yc"][: 2 + (kind == "LSTM")]
    weights = {"w": np.ones((2, gates * 4, 3), np.float32), "r": np.ones((2, gates * 4, 4), np.float32)}
    node = N(kind, ["x", "w", "r", "", "", "h"], results, hidden_size=4, direction="bidirectional", layout=layout)
    state = (5, 2, 4) if layout else (2, 5, 4)
    given = [info("x", [None, None, 3]), info("h", state)]
    loaded = tvmdml.onnx.load(model([node], given, [info(name, None) for name in results], weights))
    for steps in (0, 2):
        x = np.zeros((5, steps, 3) if layout else (steps, 5, 3), np.float32)
        found = loaded(x=x, h=np.ones(state, np.float32))
        assert [one.shape for one in found] == [(5, steps, 2, 4) if layout else (steps, 2, 5, 4), *[state] * (len(results) - 1)]
        assert all(one.any() == bool(steps) for one in found)


@pytest.mark.full
def test_infinite_inputs_are_clipped_to_the_limit_and_negative_limits_refused() -> None:
    x = np.array([np.inf, 1, -np.inf], np.float32).reshape(3, 1, 1)
    one = np.ones((1, 1, 1), np.float32)

    def loaded(clip: float) -> Any:
        node = N("RNN", ["x", "w", "r"], ["y"], hidden_size=1, clip=clip, activations=["Relu"])
        return tvmdml.onnx.load(model([node], [info("x", x.shape)], [info("y", None)], {"w": one, "r": one}))

    assert loaded(2.5)(x)[0].reshape(-1).tolist() == [2.5, 2.5, 0]
    with pytest.raises(tvmdml.Unsupported, match="its clip is -1"):
        loaded(-1.0)


def test_what_directml_has_in_another_order_is_computed_as_onnx_has_it() -> None:
    """Elements are both below ``-lambd`` and above ``lambd`` where that is negative: ONNX looks below first."""
    made = model([N("Shrink", ["x"], ["y"], lambd=-1.0, bias=1.5)], [info("x", [4])], [info("y", [4])])
    (found,) = tvmdml.onnx.load(made)(x=np.array([-2, -0.5, 0, 1], np.float32))
    assert found.tolist() == [-0.5, 1, 1.5, -0.5]


def test_outputs_that_are_known_and_inputs_that_are_returned() -> None:
    nodes = [N("Shape", ["x"], ["s"]), N("Identity", ["x"], ["same"])]
    made = tvmdml.onnx.load(
        model(nodes, [info("x", [2, 3])], [info("s", [2], INT64), info("same", [2, 3]), info("w", [2])], {"w": ramp(2)})
    )
    shape, same, w = made(x=ramp(2, 3))
    assert shape.tolist() == [2, 3]
    assert np.array_equal(same, ramp(2, 3))
    w[...] = 0
    assert np.array_equal(made(x=ramp(2, 3))[2], ramp(2))


TWINS = """<ir_version: 8, opset_import: ["": 17]> m (float[1, 2, 3] x) =>
    (float[1, 2, 3] a, float[2, 3] b, float[1, 6] c, float[6] d, float[1, 2, 3] e, bool[2, 3] f, bool[1, 2, 3] g, int64[1, 2] h,
     int64[1, 2, 1] i, float[2, 3] j, float[1, 2, 3] k, int64[3] l, int64[3, 1] m)
    <int64[1] first = {0}, int64[1] one = {1}, int64[1] all = {-1}> {
    a = Neg(x) equal = Neg(x) b = Squeeze(equal, first) c = Flatten(a) d = Reshape(a, all) e = Identity(equal)
    g = Greater(x, a) f = Squeeze(g, first) h = ArgMax<axis = 2, keepdims = 0>(x) i = ArgMax<axis = 2>(x)
    j = Squeeze(x, first) k = Identity(x) l = Shape(x) m = Unsqueeze(l, one) }"""


@pytest.mark.full
def test_outputs_that_are_twins_of_others(tmp_path: Path) -> None:
    """One memory in several shapes: from a file, from what was kept of it, by ``tvmdml run``, and in a pack."""
    onnx.save(onnx.parser.parse_model(TWINS), tmp_path / "m.onnx")
    x = np.array([[[1, -2, 3], [-4, 5, 6]]], np.float32)
    y, sizes = -x, np.array([1, 2, 3])
    above, places = x > 0, np.array([[2, 2]])
    right = [y, y[0], y.reshape(1, 6), y.reshape(6), y, above[0], above, places, places[..., None], x[0], x, sizes, sizes[:, None]]
    packs.build(sources.read([tmp_path / "m.onnx"], ("cpu",), {}), tmp_path / "m.pack", jobs=1)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", tmp_path / "m.onnx", "--input", f"x={tmp_path / 'x.npy'}", "--output_path", tmp_path]
    succeed(*arguments)
    for results in (
        *(tvmdml.onnx.load(tmp_path / name)(x=x) for name in ("m.onnx", "m.onnx", "m.pack")),
        [np.load(tmp_path / f"{name}.npy") for name in "abcdefghijklm"],
    ):
        for one, other in zip(results, right, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert np.array_equal(one, other)


EINSUMS = (
    "bij,bjk->bik",
    "bhid,bhjd->bhij",
    "ij->ji",
    "ii->i",
    "ij,ij->",
    "...ij,...jk->...ik",
    "i,j->ij",
    "bid,bjd,bij->b",
    "ij,jk",
    "abc->ac",
)


@pytest.mark.full
@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum(equation: str) -> None:
    size = dict(zip("abdhijk", (2, 2, 4, 3, 5, 5, 6), strict=True)) | {"c": 3}
    terms = equation.partition("->")[0].split(",")
    shapes = [tuple(size[one] for one in term.replace("...", "ab")) for term in terms]
    names = [f"x{i}" for i in range(len(terms))]
    inputs = [info(name, shape) for name, shape in zip(names, shapes, strict=True)]
    made = tvmdml.onnx.load(model([N("Einsum", names, ["y"], equation=equation)], inputs, [info("y", None)]))
    rng = np.random.default_rng(3)
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    assert np.allclose(made(arrays)[0], np.einsum(equation, *arrays.values()), atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("target", ["cuda", "vulkan"])
def test_on_a_device(target: str) -> None:
    nodes = [
        N("MatMul", ["x", "w"], ["a"]),
        N("Relu", ["a"], ["b"]),
        N("Transpose", ["b"], ["c"]),
        N("Softmax", ["c"], ["d"], axis=0),
        N("Greater", ["d", "half"], ["y"]),
    ]
    made = model(
        nodes, [info("x", ["n", 3])], [info("d", [4, "n"]), info("y", [4, "n"], BOOL)], {"w": ramp(3, 4), "half": np.float32(0.5)}
    )
    there, here = (tvmdml.onnx.load(made, target=one) for one in (target, "cpu"))
    for one, other in zip(there(x=ramp(5, 3)), here(x=ramp(5, 3)), strict=True):
        assert one.dtype == other.dtype
        assert np.allclose(one, other, atol=1e-6)
    found = there(x=tvmdml.asarray(ramp(5, 3), device=target))
    assert all(isinstance(one, tvmdml.DeviceArray) for one in found)


def test_the_average_of_a_large_image_is_a_reduction() -> None:
    """A window of many elements would be the work of one thread."""
    x = ramp(2, 3, 40, 30)
    made = tvmdml.onnx.load(model([N("GlobalAveragePool", ["x"], ["y"])], [info("x", [2, 3, 40, 30])], [info("y", [2, 3, 1, 1])]))
    assert np.allclose(made(x=x)[0], x.mean((2, 3), keepdims=True), rtol=1e-6, atol=1e-6)
    assert "REDUCE" in str(made.compiled(x=x).explain())


@pytest.mark.full
def test_a_deformed_convolution_with_all_that_it_may_have() -> None:
    """Several images, groups and groups of offsets, steps, weights of taps, a bias; offsets that lead outside of the images."""
    rng = np.random.default_rng(8)
    shapes = {"x": (2, 4, 9, 8), "w": (6, 2, 3, 2), "o": (2, 2 * 2 * 6, 5, 7), "b": (6,), "m": (2, 2 * 6, 5, 7)}
    given = {name: rng.standard_normal(shape, np.float32) * (3 if name == "o" else 1) for name, shape in shapes.items()}
    attributes = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 1, 1], "group": 2, "offset_group": 2}
    node = N("DeformConv", list(shapes), ["y"], **attributes)
    made = model([node], [info(name, shape) for name, shape in shapes.items()], [info("y", None)])
    (right,) = importlib.import_module("onnx.reference").ReferenceEvaluator(made).run(None, given)
    (found,) = tvmdml.onnx.load(made)(given)
    assert found.shape == right.shape == (2, 6, 5, 7)
    assert np.allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN"])
def test_weights_of_a_type_that_only_files_have_become_floats(kind: str) -> None:
    weights = onnx.helper.make_tensor("w", getattr(onnx.TensorProto, kind), [3, 2], [1, -2, 0.5, 3, 0, -1])
    nodes = [N("Cast", ["w"], ["v"], to=FLOAT), N("MatMul", ["x", "v"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", ["n", 3])], [info("y", ["n", 2])], [weights])
    loaded = tvmdml.onnx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]))
    x = ramp(4, 3)
    assert np.allclose(loaded(x=x)[0], x @ np.array([[1, -2], [0.5, 3], [0, -1]], np.float32), atol=1e-5)
