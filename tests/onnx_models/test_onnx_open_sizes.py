"""Models whose sizes are open are converted once, kept in the cache, and compute for each size what a model of its own does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import FLOAT, N, info, model  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import converting  # noqa: E402

LENGTHS = (20, 21, 22, 23, 30, 35, 37, 38, 40, 41, 50, 51, 64, 77, 90, 129)


class Counted(converting.Conversion):
    """Counts conversions of whole models."""

    whole = 0

    @classmethod
    def of(cls, *arguments: Any) -> Any:
        Counted.whole += 1
        return super().of(*arguments)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new model is converted."""
    monkeypatch.setenv("TVMDML_DISABLE_PLANS", "1")


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    """How often models were converted."""
    monkeypatch.setattr("tvmdml.onnx.origin.Conversion", Counted)
    Counted.whole = 0
    return Counted


def integer(name: str, value: int) -> Any:
    return N("Constant", [], [name], value_ints=[value])


# How a model computes a number `f` of its size `n`, which decides how many rows it takes: its nodes, and the same in Python.
DECIDING: dict[str, tuple[Sequence[Any], Any]] = {
    "n": ([N("Identity", ["n"], ["f"])], lambda n: n),
    "n - 3": ([integer("c", 3), N("Sub", ["n", "c"], ["f"])], lambda n: n - 3),
    "2 n - n": ([integer("c", 2), N("Mul", ["n", "c"], ["m"]), N("Sub", ["m", "n"], ["f"])], lambda n: n),
    "max(n, 4)": ([integer("c", 4), N("Max", ["n", "c"], ["f"])], lambda n: n),
    "n unless n is -1": (
        [integer("c", -1), integer("d", 2), N("Equal", ["n", "c"], ["b"]), N("Where", ["b", "d", "n"], ["f"])],
        lambda n: n,
    ),
    "n // 2": ([integer("c", 2), N("Div", ["n", "c"], ["f"])], lambda n: n // 2),
    "min(n, 40)": ([integer("c", 40), N("Min", ["n", "c"], ["f"])], lambda n: min(n, 40)),
    "n % 7 + 1": (
        [integer("c", 7), integer("d", 1), N("Mod", ["n", "c"], ["m"]), N("Add", ["m", "d"], ["f"])],
        lambda n: n % 7 + 1,
    ),
    "1 at n = 37": (
        [integer("c", 37), integer("d", 1), N("Equal", ["n", "c"], ["b"]), N("Where", ["b", "d", "n"], ["f"])],
        lambda n: 1 if n == 37 else n,
    ),
    "3 above 50": (
        [integer("c", 50), integer("d", 3), N("Greater", ["n", "c"], ["b"]), N("Where", ["b", "d", "n"], ["f"])],
        lambda n: 3 if n > 50 else n,
    ),
}


def rows(nodes: Sequence[Any]) -> bytes:
    """The sum of the first `f` rows, plus `f` in each column."""
    every = [
        N("Shape", ["x"], ["n"], start=0, end=1),
        *nodes,
        integer("zero", 0),
        N("Slice", ["x", "zero", "f", "zero"], ["part"]),
        N("ReduceSum", ["part", "zero"], ["sum"]),
        N("Cast", ["f"], ["g"], to=FLOAT),
        N("Add", ["sum", "g"], ["y"]),
    ]
    return bytes(model(every, [info("x", ["n", 4])], [info("y", [1, 4])], ir_version=10).SerializeToString())


RECORDINGS = {"min(n, 40)": 2, "1 at n = 37": 2, "3 above 50": 2}
"""How often a model is converted for all lengths; once, if it is not here."""


@pytest.mark.full(first=2)
@pytest.mark.parametrize("name", DECIDING)
def test_sizes_that_decide(name: str, conversions: type[Counted]) -> None:
    """Each length has its own result, also where a size decides in a way that no polynomial is."""
    nodes, f = DECIDING[name]
    loaded = tvmdml.onnx.load(rows(nodes))
    for n in LENGTHS:
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)  # its sums are exact
        (found,) = loaded(x=x)
        assert np.array_equal(found, x[: f(n)].sum(0, keepdims=True) + np.float32(f(n))), n
    assert conversions.whole == RECORDINGS.get(name, 1)


def test_sizes_of_0_and_1() -> None:
    loaded = tvmdml.onnx.load(rows(DECIDING["n"][0]))
    for n in (20, 0, 21, 22, 1, 23, 0, 30):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        assert np.array_equal(loaded(x=x)[0], x.sum(0, keepdims=True) + np.float32(n)), n


def flag(divisor: int) -> Sequence[Any]:
    """``f`` is 1 if a number of the size `n` can be divided."""
    return [
        *(integer("divisor", divisor), integer("none", 0)),
        N("Mod", ["n", "divisor"], ["rest"]),
        N("Equal", ["rest", "none"], ["is"]),
        N("Cast", ["is"], ["f"], to=FLOAT),
    ]


SHAPE = N("Shape", ["a"], ["n"], start=0, end=1)
YES = N("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True)))
BRANCH = onnx.helper.make_graph([N("Identity", ["f"], ["own"])], "branch", [], [info("own", [1])])
ROOTS = (20, 21, 22, 35, 44)
"""The sizes that are tried if the first three are these."""


def flagged(*nodes: Any) -> Any:
    """A function that gives `f`."""
    return onnx.helper.make_function("local", "flagged", ["a"], ["f"], [SHAPE, *nodes], [onnx.helper.make_opsetid("", 17)])


# Numbers of the size that have no influence on what is computed, and agree for the sizes that are tried: how a model computes `f`.
AGREEING: dict[str, tuple[Sequence[Any], Sequence[Any], Any]] = {
    "n % 15 == 0": ([SHAPE, *flag(15)], (), lambda n: n % 15 == 0),
    "n == 37": (
        [SHAPE, integer("c", 37), N("Equal", ["n", "c"], ["is"]), N("Cast", ["is"], ["f"], to=FLOAT)],
        (),
        lambda n: n == 37,
    ),
    "(n - 37) ** 2 < 2": (
        [
            *(SHAPE, integer("c", 37), integer("two", 2)),
            N("Sub", ["n", "c"], ["d"]),
            N("Mul", ["d", "d"], ["square"]),
            N("Less", ["square", "two"], ["is"]),
            N("Cast", ["is"], ["f"], to=FLOAT),
        ],
        (),
        lambda n: abs(n - 37) < 2,
    ),
    "a product that is 0": (
        [
            SHAPE,
            N("Constant", [], ["c"], value_ints=ROOTS),
            N("Sub", ["n", "c"], ["d"]),
            N("ReduceProd", ["d"], ["product"]),
            N("Cast", ["product"], ["f"], to=FLOAT),
        ],
        (),
        lambda n: np.prod(n - np.array(ROOTS)),
    ),
    "a branch": (
        [SHAPE, YES, *flag(15), N("If", ["yes"], ["f1"], then_branch=BRANCH, else_branch=BRANCH)],
        (),
        lambda n: n % 15 == 0,
    ),
    "a function": ([N("flagged", ["a"], ["f"], domain="local")], [flagged(*flag(15))], lambda n: n % 15 == 0),
    "a function of its own": (
        [N("flagged", ["a"], ["f"], domain="local")],
        [flagged(N("Cast", ["n"], ["f"], to=FLOAT))],
        lambda n: n,
    ),
    "a computed number": (
        [
            *(SHAPE, *flag(15), integer("zero", 0), integer("far", 1000)),
            N("Cos", ["f"], ["cosine"]),  # the graph computes it, and the slice needs it now
            N("Cast", ["cosine"], ["begin"], to=7),
            N("Slice", ["a", "begin", "far", "zero"], ["part"]),
            N("Shape", ["part"], ["count"], start=0, end=1),
            N("Sub", ["n", "count"], ["left"]),
            N("Cast", ["left"], ["f1"], to=FLOAT),
        ],
        (),
        lambda n: n % 15 != 0,
    ),
    "a pooled size": (
        [
            *(SHAPE, integer("c", 3), integer("d", 1)),
            N("Unsqueeze", ["a", "d"], ["image"]),
            N("Transpose", ["image"], ["turned"], perm=[2, 1, 0]),
            N("MaxPool", ["turned"], ["pooled"], kernel_shape=[1], strides=[3], auto_pad="SAME_UPPER"),
            N("Shape", ["pooled"], ["thirds"], start=2, end=3),
            N("Mul", ["thirds", "c"], ["whole"]),
            N("Equal", ["whole", "n"], ["is"]),
            N("Cast", ["is"], ["f"], to=FLOAT),
        ],
        (),
        lambda n: n % 3 == 0,
    ),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", AGREEING)
def test_numbers_that_agree_by_chance(name: str) -> None:
    """They are computed for each size, also where they are equal for all sizes that were tried."""
    nodes, functions, f = AGREEING[name]
    last = "f1" if any("f1" in one.output for one in nodes) else "f"
    every = [N("Relu", ["x"], ["a"]), *nodes, N("Add", ["a", last], ["y"])]
    made = model(every, [info("x", ["n", 4])], [info("y", ["n", 4])], ir_version=10)
    made.functions.extend(functions)
    made.opset_import.append(onnx.helper.make_opsetid("local", 1))
    loaded = tvmdml.onnx.load(bytes(made.SerializeToString()))
    steps = ((3, 6, 9), range(10, 19)) if name == "a pooled size" else ((20, 21, 22), range(23, 45))
    for n in (*steps[0], *steps[1]):
        (found,) = loaded(x=np.zeros((n, 4), np.float32))
        assert np.array_equal(found, np.full((n, 4), f(n), np.float32)), n


@pytest.mark.parametrize("fixed", [44, 45])
def test_a_size_that_is_equal_once(fixed: int, conversions: type[Counted]) -> None:
    """A tensor of one size stays as it is, where the size that grows is the same for one program of many."""
    nodes = [N("Softmax", ["x"], ["y"]), N("Softmax", ["z"], ["w"]), N("Neg", ["x"], ["v"]), N("Neg", ["z"], ["u"])]
    every = [info("x", ["n", 4]), info("z", [fixed, 4])]
    results = [info(name, ["n" if name in "yv" else fixed, 4]) for name in "ywvu"]
    loaded = tvmdml.onnx.load(bytes(model(nodes, every, results, ir_version=10).SerializeToString()))
    rng = np.random.default_rng(fixed)
    z = rng.standard_normal((fixed, 4), np.float32)
    for n in LENGTHS:
        x = rng.standard_normal((n, 4), np.float32)
        y, w, v, u = loaded(x=x, z=z)
        assert np.array_equal(v, -x), n
        assert np.array_equal(u, -z), n
        for found, one in ((y, x), (w, z)):
            powers = np.exp(one - one.max(1, keepdims=True))
            assert np.allclose(found, powers / powers.sum(1, keepdims=True), 1e-5), n
    assert conversions.whole == 1


def decoder(width: int = 8) -> bytes:
    """One step of attention with a past: positions, a mask and the number of words follow from sizes."""
    weights = {f"w{one}": np.random.default_rng(i).standard_normal((width, width), np.float32) for i, one in enumerate("qkv")}
    nodes = [
        *(N("MatMul", ["x", f"w{one}"], [one]) for one in "qkv"),
        N("Shape", ["past_k"], ["p"], start=1, end=2),
        N("Shape", ["x"], ["r"], start=1, end=2),
        N("Add", ["p", "r"], ["n"]),
        N("Squeeze", ["n"], ["limit"]),
        N("Squeeze", ["p"], ["start"]),
        *(N("Constant", [], [name], value_int=value) for name, value in (("first", 0), ("one", 1))),
        N("Range", ["start", "limit", "one"], ["own"]),
        N("Range", ["first", "limit", "one"], ["all"]),
        N("Cast", ["own"], ["angle"], to=FLOAT),
        N("Constant", [], ["column"], value_ints=[1]),
        N("Unsqueeze", ["angle", "column"], ["angles"]),
        N("Cos", ["angles"], ["turn"]),
        N("Mul", ["q", "turn"], ["turned"]),
        N("Concat", ["past_k", "k"], ["keys"], axis=1),
        N("Concat", ["past_v", "v"], ["values"], axis=1),
        N("Transpose", ["keys"], ["across"], perm=[0, 2, 1]),
        N("MatMul", ["turned", "across"], ["scores"]),
        N("Unsqueeze", ["own", "column"], ["mine"]),
        N("Greater", ["all", "mine"], ["later"]),
        N("Constant", [], ["low"], value_float=-1e4),
        N("Where", ["later", "low", "scores"], ["masked"]),
        N("Softmax", ["masked"], ["shares"], axis=-1),
        N("MatMul", ["shares", "values"], ["y"]),
    ]
    past = ["batch", "past", width]
    every = [info("x", ["batch", "rows", width]), info("past_k", past), info("past_v", past)]
    results = [info("y", ["batch", "rows", width]), info("keys", ["batch", "all", width]), info("values", ["batch", "all", width])]
    return bytes(model(nodes, every, results, weights, ir_version=10).SerializeToString())


@pytest.mark.full
@pytest.mark.parametrize("target", ["cpu", "vulkan"])
def test_a_decoder(target: str, conversions: type[Counted]) -> None:
    """Its past grows by what it gave; results have the bits of a model that is new."""
    made = decoder()
    try:
        loaded = tvmdml.onnx.load(made, target=target)
    except tvmdml.TvmdmlError as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(5)

    def fresh(feeds: Any) -> list[bytes]:
        before = conversions.whole
        found = tvmdml.onnx.load(made, target=target)(feeds)
        conversions.whole = before
        return [one.tobytes() for one in found]

    keys, values = (rng.standard_normal((1, 7, 8), np.float32) for _ in range(2))
    for step in range(24):
        x = rng.standard_normal((1, 1, 8), np.float32)
        feeds = {"x": x, "past_k": keys, "past_v": values}
        found = loaded(feeds)
        if step % 5 == 4:
            assert [one.tobytes() for one in found] == fresh(feeds), step
        keys, values = found[1:]
    assert conversions.whole == 1
    for length in (25, 12, 19):
        x, keys, values = (rng.standard_normal((1, n, 8), np.float32) for n in (1, length, length))
        feeds = {"x": x, "past_k": keys, "past_v": values}
        assert [one.tobytes() for one in loaded(feeds)] == fresh(feeds), length
    graph = loaded.compiled(feeds)
    assert "MatMul of 'q'" in str(graph.explain())
    assert len(graph.profile([x, keys, values])) == graph.kernel_count
    x = rng.standard_normal((2, 3, 8), np.float32)  # other sizes of 1, or not, are another recording
    assert loaded(x=x, past_k=np.repeat(keys, 2, 0), past_v=np.repeat(values, 2, 0))[0].shape == (2, 3, 8)
    with pytest.raises(tvmdml.InvalidArgument, match="past"):
        loaded(x=x[:1, :1], past_k=keys, past_v=values[:, 1:])


@pytest.mark.full
def test_weights_that_kernels_read_in_another_form() -> None:
    """The best tile of a product may be another one for each number of rows, and its weights are packed for it."""
    weights = {"w": np.random.default_rng(6).standard_normal((120, 700), np.float32), "v": np.ones((700, 120), np.float32)}
    nodes = [N("MatMul", ["x", "w"], ["h"]), N("Relu", ["h"], ["r"]), N("MatMul", ["r", "v"], ["s"]), N("Add", ["s", "x"], ["y"])]
    sizes = [info(name, ["n", 120]) for name in "xy"]
    made = bytes(model(nodes, sizes[:1], sizes[1:], weights, ir_version=10).SerializeToString())
    loaded = tvmdml.onnx.load(made)
    for n in (40, 41, 42, *range(43, 84, 3)):
        x = np.random.default_rng(n).standard_normal((n, 120), np.float32)
        (found,), graph = loaded(x=x), loaded.compiled(x=x)
        fresh = tvmdml.onnx.load(made)
        assert np.array_equal(found.view(np.uint32), fresh(x=x)[0].view(np.uint32)), n
        assert [one.buffer.nbytes for one in graph.weights] == list(graph.laid.packed) == list(fresh.compiled(x=x).laid.packed)
        assert graph.laid.kernels == fresh.compiled(x=x).laid.kernels


def halving() -> bytes:
    """A network that halves its image's width three times, with quotients that are rounded up and down, and attends to the rest."""
    rng = np.random.default_rng(8)
    shapes = {"w1": (8, 2, 3, 3), "w2": (16, 8, 1, 2), "w3": (16, 8, 1, 3), "w4": (32, 32, 1, 1), "w5": (32, 32)}
    weights = {name: rng.standard_normal(shape, np.float32) / 8 for name, shape in shapes.items()}
    nodes = [
        N("Conv", ["x", "w1"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        N("Relu", ["a"], ["b"]),
        N("Conv", ["b", "w2"], ["c"], strides=[1, 2]),
        N("Conv", ["b", "w3"], ["d"], strides=[1, 2], pads=[0, 1, 0, 0]),
        N("Concat", ["c", "d"], ["e"], axis=1),
        N("Conv", ["e", "w4"], ["f0"]),
        N("GlobalAveragePool", ["f0"], ["mean"]),
        N("Sub", ["f0", "mean"], ["f"]),
        N("MaxPool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        N("Constant", [], ["form"], value_ints=[0, 32, -1]),
        N("Reshape", ["g", "form"], ["h"]),
        N("Transpose", ["h"], ["rows"], perm=[0, 2, 1]),
        N("MatMul", ["rows", "w5"], ["q"]),
        N("MatMul", ["q", "h"], ["scores"]),
        N("Softmax", ["scores"], ["shares"], axis=-1),
        N("MatMul", ["shares", "rows"], ["y"]),
    ]
    made = model(nodes, [info("x", [1, 2, 8, "width"])], [info("y", [1, "length", 32])], weights, ir_version=10)
    return bytes(made.SerializeToString())


@pytest.mark.full
def test_a_size_that_is_halved(conversions: type[Counted]) -> None:
    """Programs and results are those of a model that is new."""
    made = halving()
    loaded = tvmdml.onnx.load(made)
    rng, seen = np.random.default_rng(3), 0
    for n in (80, 96, 104, 81, 113, 202, *map(int, rng.integers(88, 200, 12))):
        before = conversions.whole
        x = rng.standard_normal((1, 2, 8, n), np.float32)
        (found,) = loaded(x=x)
        conversions.whole, converted = before, conversions.whole - before
        seen += converted
        (other,) = tvmdml.onnx.load(made)(x=x)
        assert found.tobytes() == other.tobytes(), n
        conversions.whole = before
    assert seen <= 2, "one for each way in which the parts of a join are equally wide"


@pytest.mark.full
def test_texts_that_grow_at_the_same_time() -> None:
    """Threads share what makes programs; each text has the bits that it has alone, also where the number of threads changes."""
    made = decoder()

    def text(loaded: Any, start: int) -> list[bytes]:
        rng = np.random.default_rng(start)
        keys, values = (rng.standard_normal((1, start, 8), np.float32) for _ in range(2))
        found = []
        for _ in range(30):
            y, keys, values = loaded(x=rng.standard_normal((1, 1, 8), np.float32), past_k=keys, past_v=values)
            found.append(y.tobytes())
        return found

    starts = (5, 6, 20, 33)
    alone = [text(tvmdml.onnx.load(made), start) for start in starts]
    loaded = tvmdml.onnx.load(made)
    with ThreadPoolExecutor(len(starts)) as pool:
        assert list(pool.map(lambda start: text(loaded, start), starts)) == alone
    for threads in ("1", "3"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TVMDML_NUM_THREADS", threads)
            assert text(loaded, 21) == text(tvmdml.onnx.load(made), 21)


def opened(made: Any, feeds: Sequence[Any]) -> tuple[Any, Any]:
    """A model whose inputs' sizes are all open, and one that has the sizes of some arrays."""
    several = []
    for is_open in (True, False):
        other = onnx.ModelProto()
        other.CopyFrom(made)
        for i, (one, array) in enumerate(zip(other.graph.input, feeds, strict=True)):
            for axis, (dimension, n) in enumerate(zip(one.type.tensor_type.shape.dim, array.shape, strict=True)):
                dimension.Clear()
                if is_open:
                    dimension.dim_param = f"n{i}_{axis}"
                else:
                    dimension.dim_value = n
        for one in other.graph.output:
            if one.type.HasField("tensor_type"):
                one.type.tensor_type.ClearField("shape")
        several.append(other)
    return several[0], several[1]


def outcome(made: Any, feeds: Mapping[str, Any]) -> list[Any] | None:
    """The results; ``None`` for a refusal."""
    with contextlib.suppress(tvmdml.TvmdmlError):
        return tvmdml.onnx.load(made)(feeds) if isinstance(made, onnx.ModelProto) else made(feeds)
    return None


@pytest.mark.full
def test_nodes_of_all_operators(draw: Any) -> None:
    """ONNX's own cases: recorded at their sizes, run at others, as a model of those sizes does."""
    from onnx.backend.test.case.node import collect_testcases

    skipped = ("bernoulli", "dropout", "random", "multinomial")  # drawn anew
    cases = [one for one in collect_testcases(None) if one.model is not None and one.data_sets]
    cases = [one for one in cases if not any(word in one.name for word in skipped)]
    compared = 0
    for case in draw(cases, 60):
        made, given = case.model, case.data_sets[0][0]
        if len(given) != len(made.graph.input) or not all(one.type.HasField("tensor_type") for one in made.graph.input):
            continue
        arrays = [np.asarray(one) for one in given]
        if any(one.dtype.kind not in "biuf" for one in arrays):
            continue
        names = [one.name for one in made.graph.input]
        whole, _ = opened(made, arrays)
        with contextlib.suppress(tvmdml.TvmdmlError):
            loaded = tvmdml.onnx.load(whole)
            for more in (lambda n: 0, lambda n: 1, lambda n: n):
                grown = [np.resize(one, [n + more(n) if n > 1 else n for n in one.shape]) for one in arrays]
                feeds = dict(zip(names, grown, strict=True))
                right = outcome(opened(made, grown)[1], feeds)
                if right is None:
                    break
                got = outcome(loaded, feeds)
                assert got is not None, case.name
                for mine, other in zip(got, right, strict=True):
                    if isinstance(mine, np.ndarray):
                        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), case.name
                        if mine.tobytes() != other.tobytes():
                            assert np.allclose(mine.astype(float), other.astype(float), 1e-5, 1e-6, equal_nan=True), case.name
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_table_of_positions_is_resized_to_any_image(mode: str, conversions: type[Counted]) -> None:
    nodes = [
        N("Shape", ["x"], ["s"], start=2, end=4),
        N("Constant", [], ["head"], value_ints=[1, 2]),
        N("Concat", ["head", "s"], ["sizes"], axis=0),
        N("Resize", ["table", "", "", "sizes"], ["r"], mode=mode),
        N("Add", ["x", "r"], ["y"]),
    ]
    table = np.random.default_rng(0).standard_normal((1, 2, 7, 5)).astype(np.float32)
    sizes = [1, 2, "h", "w"]
    made = bytes(model(nodes, [info("x", sizes)], [info("y", sizes)], {"table": table}, ir_version=10).SerializeToString())
    loaded = tvmdml.onnx.load(made)
    for h, w in ((9, 12), (7, 5), (14, 3), (2, 20)):
        x = np.zeros((1, 2, h, w), np.float32)
        (found,), before = loaded(x=x), conversions.whole
        (right,) = tvmdml.onnx.load(made, {"h": h, "w": w})(x=x)
        conversions.whole = before
        assert np.allclose(found, right, 1e-5, 1e-5), (h, w)
    assert conversions.whole == 1


def test_a_part_without_elements_whose_end_is_computed() -> None:
    """The end follows from a size by what is no arithmetic of sizes; at some sizes nothing is before it."""
    nodes = [
        *(N("Shape", ["a"], ["n"], start=0, end=1), N("Cast", ["n"], ["f"], to=FLOAT), N("Sqrt", ["f"], ["r"])),
        *(N("Cast", ["r"], ["end"], to=onnx.TensorProto.INT64), integer("begin", 2), integer("none", 0), integer("step", -2)),
        N("Slice", ["x", "begin", "end", "none", "step"], ["part"]),
        N("Concat", ["part", "x"], ["y"], axis=0),
    ]
    given = [info("a", ["n"]), info("x", [8])]
    loaded = tvmdml.onnx.load(bytes(model(nodes, given, [info("y", ["m"])], ir_version=10).SerializeToString()))
    x = np.arange(8, dtype=np.float32)
    for n in (8, 9, 30, 3, 10, 2):
        assert np.array_equal(loaded(a=np.zeros(n, np.float32), x=x)[0], np.concatenate([x[2 : int(n**0.5) : -2], x])), n


def number_of_a_size(nodes: Sequence[Any], dtype: int) -> Any:
    """The model with one number `y` that follows from its size `n`."""
    every = [N("Shape", ["x"], ["n"], start=0, end=1), *nodes]
    made = model(every, [info("x", ["n"])], [info("y", [1], dtype)], ir_version=10)
    return tvmdml.onnx.load(bytes(made.SerializeToString()))


def test_numbers_of_sizes_wrap_as_integers_do() -> None:
    int32 = onnx.TensorProto.INT32
    power = [N("Cast", ["n"], ["i"], to=int32), N("Mul", ["i", "i"], ["j"]), N("Mul", ["j", "i"], ["k"])]
    divided = number_of_a_size([*power, integer("c", 7), N("Cast", ["c"], ["d"], to=int32), N("Div", ["k", "d"], ["y"])], int32)
    eighth = [N("Mul", [a, a], [b]) for a, b in ("na", "ab", "bc", "cy")]
    large = number_of_a_size(eighth, onnx.TensorProto.INT64)
    for n in (5, 100, 1300, 1700, 30, 300):
        x = np.zeros(n, np.float32)
        assert divided(x=x)[0] == int(int(np.array(n**3).astype(np.int32)) / 7), n
        assert large(x=x)[0] == (n**16 + (1 << 63)) % (1 << 64) - (1 << 63), n


@pytest.mark.parametrize("nodes", [[N("Neg", ["d"], ["e"])], [N("Mul", ["d", "minus"], ["e"])]], ids=["Neg", "Mul"])
def test_a_number_of_sizes_may_be_minus_0(nodes: Sequence[Any]) -> None:
    floats = {"two": 2.0, "one": 1.0, "minus": -1.0}
    given = [N("Constant", [], [name], value_floats=[value]) for name, value in floats.items()]
    before = [*given, N("Cast", ["n"], ["f"], to=FLOAT), N("Sub", ["f", "two"], ["d"])]
    loaded = number_of_a_size([*before, *nodes, N("Div", ["one", "e"], ["y"])], FLOAT)
    for n in (6, 2, 4):
        assert loaded(x=np.zeros(n, np.float32))[0] == (-1 / (n - 2) if n > 2 else -np.inf), n


def test_sizes_that_onnx_infers_as_0() -> None:
    """Of heads' channels, where they are open, it says that there are none."""
    nodes = [N("Attention", ["q", "k", "v"], ["y"], q_num_heads=3, kv_num_heads=3)]
    given = [info("q", ["b", "n", "c"]), info("k", ["b", "m", "c"]), info("v", ["b", "m", "d"])]
    made = bytes(model(nodes, given, [info("y", None)], ir_version=11, opset=23).SerializeToString())
    loaded = tvmdml.onnx.load(made)
    rng = np.random.default_rng(0)
    for b, n, m, c, d in ((2, 4, 6, 24, 30), (3, 5, 2, 12, 15), (2, 4, 6, 24, 30)):
        q, k, v = (rng.standard_normal(sizes).astype(np.float32) for sizes in ((b, n, c), (b, m, c), (b, m, d)))
        (found,) = loaded(q=q, k=k, v=v)
        (right,) = tvmdml.onnx.load(made, {"b": b, "n": n, "m": m, "c": c, "d": d})(q=q, k=k, v=v)
        assert found.shape == right.shape == (b, n, d)
        assert np.array_equal(found, right)


def test_a_node_that_does_not_fit_is_shown_with_the_names_of_sizes() -> None:
    """A table of positions, and a text that is longer."""
    nodes = [N("Shape", ["x"], ["s"]), N("Expand", ["table", "s"], ["e"]), N("Add", ["x", "e"], ["y"])]
    made = model(nodes, [info("x", [1, "n"])], [info("y", [1, "n"])], {"table": np.arange(16, dtype=np.float32).reshape(1, 16)})
    loaded = tvmdml.onnx.load(bytes(made.SerializeToString()))
    assert loaded(x=np.ones((1, 16), np.float32))[0][0, 15] == 16
    with pytest.raises(tvmdml.ModelError, match=r"Expand of 'e'.*It is given float32\[1, 16\]; int64\[2\] of 1, n; with n=20"):
        loaded(x=np.ones((1, 20), np.float32))


NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
SOUNDS: dict[str, tuple[Sequence[Any], Mapping[str, Any], Any]] = {
    "repeated 300 times": (
        [N("Resize", ["x", "", "scales"], ["y"], **NEAREST)],
        {"scales": np.array([1, 1, 300], np.float32)},
        lambda x: np.repeat(x, 300, 2),
    ),
    "to a 300th, and back": (
        [
            N("Resize", ["x", "", "more"], ["long"], **NEAREST),
            N("Resize", ["long", "", "scales"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel"),
        ],
        {"scales": np.array([1, 1, 1 / 300], np.float32), "more": np.array([1, 1, 300], np.float32)},
        lambda x: x,
    ),
    "frames": (
        [
            N("Reshape", ["x", "rows"], ["line"]),
            N("STFT", ["line", "step", "", "length"], ["spectrum"], onesided=1),
            N("Gather", ["spectrum", "real"], ["y"], axis=3),
        ],
        {"rows": np.array([1, -1, 1]), "step": np.array(3), "length": np.array(8), "real": np.array(0)},
        lambda x: np.fft.rfft(np.lib.stride_tricks.sliding_window_view(x.reshape(-1), 8)[::3]).real[None],
    ),
}
"""Nodes, weights, and the same in NumPy."""


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds_of_all_lengths(name: str, conversions: type[Counted]) -> None:
    nodes, weights, right = SOUNDS[name]
    loaded = tvmdml.onnx.load(model(nodes, [info("x", [1, 1, "n"])], [info("y", None)], weights, ir_version=10))
    for n in (40, 37, 100, 23):
        x = np.random.default_rng(n).standard_normal((1, 1, n), np.float32)
        assert np.allclose(loaded(x=x)[0], right(x), atol=1e-5)
    assert conversions.whole == 1


def test_a_matrix_of_few_bits_stays_as_it_is_stored_on_every_target(target: Any) -> None:
    rng = np.random.default_rng(5)
    k, n, block = 96, 40, 32
    weights = {
        "b": rng.integers(0, 256, (n, k // block, block // 2), np.uint8),
        "s": (rng.random(n * k // block) / 8).astype(np.float32),
        "z": rng.integers(0, 256, n * 2, np.uint8),
    }
    more = {"domain": "com.microsoft", "K": k, "N": n, "bits": 4, "block_size": block}
    nodes = [N("MatMulNBits", ["x", *weights], ["y"], **more), N("Relu", ["y"], ["r"])]
    loaded = tvmdml.onnx.load(model(nodes, [info("x", ["m", k])], [info("r", ["m", n])], weights), target=target)
    low, high = weights["b"] & 15, weights["b"] >> 4
    zero = np.stack([weights["z"] & 15, weights["z"] >> 4], -1).reshape(n, 4)[:, : k // block, None]
    matrix = ((np.stack([low, high], -1).reshape(n, -1, block) - zero.astype(float)) * weights["s"].reshape(n, -1, 1)).reshape(n, k)
    for rows in (1, 40):
        x = rng.standard_normal((rows, k)).astype(np.float32)
        assert np.allclose(loaded({"x": x})[0], np.maximum(x @ matrix.T, 0), atol=1e-3)
        text = str(loaded.compiled(x=x).explain())
        assert "BLOCKWISE_GEMM" in text
        assert "of DEQUANTIZE" not in text
