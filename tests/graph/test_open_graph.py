"""Graphs whose sizes are open: recorded once, and for each size the bits of a graph of its own."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml.graph.open_graph import OpenGraph

Sizes = dict[str, int]
Build = Callable[[Any, Any], Any]
"""Makes a graph's outputs, of the graph and of a function from the name of a size to it."""


def both(build: Build, target: str = "cpu") -> tuple[OpenGraph, Callable[..., tvmdml.CompiledGraph]]:
    """The graph with open sizes, and what makes the graph for certain ones."""

    def made(size: Callable[[tvmdml.Graph, str], Any]) -> tvmdml.CompiledGraph:
        graph = tvmdml.Graph()
        outputs = build(graph, lambda name: size(graph, name))
        return graph.compile(outputs, target)

    compiled = made(lambda graph, name: graph.size(name))
    assert isinstance(compiled, OpenGraph)
    return compiled, lambda **sizes: made(lambda graph, name: sizes[name])


def arrays_for(graph: tvmdml.CompiledGraph) -> list[Any]:
    made = np.random.default_rng(0)
    return [np.round(made.standard_normal(one.desc.sizes) * 4).astype(one.dtype) for one in graph.inputs()]


def assert_same(compiled: OpenGraph, fixed: tvmdml.CompiledGraph) -> None:
    given = arrays_for(fixed)
    for mine, right in zip(compiled(given), fixed(given), strict=True):
        assert (mine.shape, mine.dtype) == (right.shape, right.dtype)
        assert mine.tobytes() == right.tobytes()


def constant(graph: Any, *shape: int) -> Any:
    return graph.constant(np.round(np.random.default_rng(1).standard_normal(shape) * 2).astype(np.float32))


def attention(graph: Any, size: Any) -> Any:
    x = graph.input((size("n"), 8), name="x")
    scores = tvmdml.gemm(x @ constant(graph, 8, 8), x, trans_b="transpose") * 0.5
    return [tvmdml.activation_softmax(scores) @ x, x[1:].reshape(8, -1)]


def images(graph: Any, size: Any) -> Any:
    x = graph.input((1, 4, size("h"), size("w")), name="x")
    y = tvmdml.convolution(x, constant(graph, 8, 4, 3, 3), start_padding=(1, 1), end_padding=(1, 1), strides=(2, 2))
    y = tvmdml.max_pooling(tvmdml.activation_relu(y), window_sizes=(2, 2), strides=(2, 2))
    return tvmdml.reduce(y, function="average", axes=[2, 3])


def joined(graph: Any, size: Any) -> Any:
    x, past = graph.input((size("n"), 4), name="x"), graph.input((size("past"), 4), name="past")
    every = tvmdml.join([past, x], axis=0)
    return [every, tvmdml.cumulative_summation(every, axis=0), every * x[0]]


def quantized(graph: Any, size: Any) -> Any:
    half, four = np.float32([[0.5]]), np.float32([[4.0]])
    a, b = (tvmdml.dequantize_linear(x, half) for x in (graph.input((size("n"), 6), "uint8"), graph.input((6, 8), "uint8")))
    return tvmdml.quantize_linear(a @ b, four, np.uint8([[3]]))


FAMILIES: dict[str, tuple[Build, list[str], int]] = {
    "pointwise": (lambda graph, size: tvmdml.activation_relu(graph.input((size("n"), 8)) * 2.0), ["n"], 255),
    "two sizes": (lambda graph, size: graph.input((size("n"), size("m"))) + graph.input((size("n"), 1)), ["n", "m"], 250),
    "attention": (attention, ["n"], 254),
    "convolution and pooling": (images, ["h", "w"], 240),
    "join and scan": (joined, ["n", "past"], 254),
    "products of a batch": (
        lambda graph, size: graph.input((size("b"), 3, size("n"))) @ graph.input((size("b"), size("n"), 5)),
        ["b", "n"],
        254,
    ),
    "softmax": (lambda graph, size: tvmdml.activation_softmax(graph.input((4, size("n"))), axes=[1]), ["n"], 255),
    "rows from behind": (lambda graph, size: graph.input((size("n"), 8))[-2] * 3.0, ["n"], 254),
    "filled": (
        lambda graph, size: tvmdml.fill_value_sequence([size("n"), 1], 0, 1, device=graph) * graph.input((size("n"), 8)),
        ["n"],
        255,
    ),
    "constants": (
        lambda graph, size: (
            tvmdml.cumulative_summation(constant(graph, 1, 8).broadcast((size("n"), 8)), axis=0)
            + tvmdml.tile(constant(graph, 1, 8), repeats=[size("n"), 1])
            + graph.input((size("n"), 8))
        ),
        ["n"],
        254,
    ),
    "quantized": (quantized, ["n"], 254),
    "resampling": (
        lambda graph, size: tvmdml.resample(
            graph.input((1, 1, 4, size("n"))), [1, 1, 8, 2 * size("n")], interpolation_mode="linear"
        ),
        ["n"],
        1,
    ),
}
"""Networks of each family, their sizes, and at least how many of 256 cases one recording holds for."""


@pytest.mark.parametrize("name", FAMILIES)
def test_how_many_sizes_one_recording_holds_for(name: str) -> None:
    build, names, least = FAMILIES[name]
    compiled, _ = both(build)
    hint = [61, 53][: len(names)]
    plan = compiled.plan_for(**dict(zip(names, hint, strict=True)))
    drawn = random.Random(0)
    every = [[n] for n in range(1, 257)] if len(names) == 1 else [[drawn.randrange(1, 257) for _ in names] for _ in range(256)]
    assert sum(plan.holds(values) for values in every) >= least


@pytest.mark.full(first=2)
@pytest.mark.parametrize("name", FAMILIES)
def test_each_size_has_the_bits_of_its_own_graph(name: str) -> None:
    build, names, _ = FAMILIES[name]
    compiled, fixed = both(build)
    drawn = random.Random(name)
    for _ in range(4):
        sizes = {one: drawn.choice((3, 4, 7, 16, 17, 33, 100)) for one in names}
        assert_same(compiled, fixed(**sizes))
    assert "1 recording" in str(compiled.explain()) or name == "resampling"


UNARY: list[Callable[[Any], Any]] = [
    lambda x: tvmdml.activation_relu(x),
    lambda x: x * 0.5,
    lambda x: x.T,
    lambda x: x.reshape(-1) if x.ndim > 2 else x,
    lambda x: x[1:],
    lambda x: x[..., ::2],
    lambda x: x[: x.shape[0] // 2 + 1],
    lambda x: tvmdml.reduce(x, function="sum", axes=[0]),
    lambda x: tvmdml.join([x, tvmdml.negate(x)], axis=0),
    lambda x: tvmdml.gemm(x, x, trans_b="transpose") if x.ndim == 2 else x,
    lambda x: tvmdml.padding(x, start_padding=[1] * x.ndim, end_padding=[2] * x.ndim),
    lambda x: tvmdml.tile(x, repeats=[2] * x.ndim),
    lambda x: tvmdml.top_k(x, 1).values,
    lambda x: tvmdml.cumulative_summation(x, axis=0),
    lambda x: tvmdml.gather(x, np.zeros(3, np.uint32), axis=0),
    lambda x: x.broadcast((2, *x.shape)) if x.ndim < 3 else x,
]


def drawn_graph(seed: int) -> Build:
    def build(graph: Any, size: Any) -> Any:
        choose = random.Random(seed)
        values = [graph.input((size("n"), size("m"))), graph.input((size("m"), 3)), graph.input((size("n"), 1))]
        for _ in range(choose.randrange(2, 7)):
            x = choose.choice(values[-3:])
            values.append(choose.choice(UNARY)(x))
            if choose.random() < 0.3:
                values.append(values[-1] + tvmdml.abs(values[-1]))
        return values[-2:]

    return build


@pytest.mark.full(first=8)
@pytest.mark.parametrize("seed", range(48))
def test_drawn_graphs(seed: int) -> None:
    """Open against fixed sizes, among them equal ones and small ones: the same bits, or a message that names the sizes."""
    choose, refused = random.Random(seed), 0  # by what was asked while it was recorded
    compiled, fixed = both(drawn_graph(seed))
    for sizes in (
        {"n": 5, "m": 5},
        {"n": 4, "m": 9},
        {"n": choose.randrange(2, 40), "m": choose.randrange(2, 40)},
        {"n": 1, "m": 2},
    ):
        right = fixed(**sizes)
        if 1 in sizes.values() and not compiled.allows(**sizes):
            with pytest.raises(tvmdml.InvalidArgument, match=f"n={sizes['n']}"):
                compiled.at(**sizes)
        elif compiled.allows(**sizes):
            assert_same(compiled, right)
        else:
            refused += 1
    assert refused <= 1


@pytest.mark.parametrize("target", ["vulkan", "cuda"])
def test_on_a_device(target: str) -> None:
    compiled, fixed = both(attention, target)
    for n in (5, 9):
        assert_same(compiled, fixed(n=n))


def test_sizes_that_were_seen_are_kept_and_share_memory() -> None:
    compiled, _ = both(attention)
    first = compiled.at(n=9)
    assert compiled.at(n=9) is first
    assert compiled.at(n=10) is not first
    with ThreadPoolExecutor(4) as pool:
        x = np.ones((9, 8), np.float32)
        results = list(pool.map(lambda _: compiled([x])[0].tobytes(), range(16)))
    assert len(set(results)) == 1


def test_threads_may_ask_for_new_sizes_at_once() -> None:
    graph = tvmdml.Graph()
    x = graph.input(("n", 3), name="x")
    y = tvmdml.reduce(x * 2.0, function="SUM", axes=[0])
    net = graph.compile(
        [y, tvmdml.gemm(x.reshape(1, 1, x.shape[0], 3), np.ones((1, 1, 3, 4), np.float32)), x[: x.shape[0] // 2] + y]
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:

            def run(n: int) -> None:
                given = np.arange(3 * n, dtype=np.float32).reshape(n, 3) % 7
                total, product, part = net([given])
                assert np.array_equal(total, 2 * given.sum(0, keepdims=True))
                assert np.array_equal(product[0, 0], np.repeat(given.sum(1, keepdims=True), 4, 1))
                assert np.array_equal(part, given[: n // 2] + total)

            list(pool.map(run, [n for n in random.Random(0).sample(range(4, 3000), 300) for _ in range(3)]))
    finally:
        sys.setswitchinterval(before)


def test_a_graph_may_be_extended_after_it_was_compiled() -> None:
    graph = tvmdml.Graph()
    x = graph.input(("n", 4), name="x")
    doubled = x * 2.0
    compiled = graph.compile(doubled)
    n, k = graph.size("n"), graph.size("k")
    both_inputs = graph.compile(doubled[: n // (n - 5)] + graph.input((k, 1), name="y")[:1])
    assert compiled({"x": np.ones((5, 4), np.float32)})[0].tolist() == [[2.0] * 4] * 5
    assert n > 4
    (found,) = both_inputs({"x": np.ones((55, 4), np.float32), "y": np.ones((3, 1), np.float32)})
    assert found.tolist() == [[3.0] * 4]


def test_weights_are_packed_once() -> None:
    graph = tvmdml.Graph()
    weights = graph.constant(np.ones((64, 64), np.float32))
    compiled = graph.compile(graph.input(("n", 64), name="x") @ weights)
    assert isinstance(compiled, OpenGraph)
    first, second = compiled.at(n=400), compiled.at(n=401)
    assert [one.buffer is other.buffer for one, other in zip(first.weights, second.weights, strict=True)] == [True] * len(
        first.weights
    )


def _convolved(x: Any, w: Any, **options: Any) -> Any:
    return tvmdml.convolution(x, w, start_padding=(1, 1), end_padding=(1, 1), **options)


def _of_bytes(x: Any, w: Any) -> Any:
    return tvmdml.convolution_integer(x, w, start_padding=(1, 1), end_padding=(1, 1))


_IMAGE, _FILTERS = (2, 32, 14, 14), (32, 32, 3, 3)


@pytest.mark.parametrize("n", [32, "n"])
@pytest.mark.parametrize(
    ("shape", "weights", "dtype", "ways"),
    [
        ((32, 64), (64, 64), "float32", (tvmdml.gemm, lambda x, w: tvmdml.gemm(x, w, trans_b="transpose"), lambda x, w: x @ w.T)),
        ((32, 64), (64, 64), "int8", (tvmdml.matrix_multiply_integer, lambda x, w: tvmdml.matrix_multiply_integer(x, w.T))),
        (_IMAGE, _FILTERS, "float32", (_convolved, lambda x, w: _convolved(x, w.transpose(1, 0, 2, 3)))),
        (_IMAGE, _FILTERS, "float32", (_convolved, lambda x, w: _convolved(x, w.transpose(0, 1, 3, 2)))),
        (_IMAGE, _FILTERS, "float32", (_convolved, lambda x, w: _convolved(x, w, direction="backward"))),
        (_IMAGE, _FILTERS, "float32", (_convolved, lambda x, w: _convolved(x, w, mode="convolution"))),
        (_IMAGE, _FILTERS, "int8", (_of_bytes, lambda x, w: _of_bytes(x, w.transpose(1, 0, 2, 3)))),
        (_IMAGE, _FILTERS, "int8", (_of_bytes, lambda x, w: _of_bytes(x, w.transpose(0, 1, 3, 2)))),
    ],
)
def test_a_weight_that_is_read_in_two_ways_is_packed_for_each(shape: Any, weights: Any, dtype: str, ways: Any, n: Any) -> None:
    """As autoencoders and tied embeddings do: what is packed of a matrix is not what is packed of its transpose."""
    made = np.random.default_rng(5)
    x, w = (np.round(made.uniform(-8, 8, size)).astype(dtype) for size in (shape, weights))

    def results(several: Any) -> list[Any]:
        graph = tvmdml.Graph()
        given, constant = graph.input((n if n == "n" else shape[0], *shape[1:]), dtype), graph.constant(w)
        return graph.compile([way(given, constant) for way in several])([x])

    alone = [results([way])[0] for way in ways]
    assert not np.array_equal(alone[0], alone[1])
    for one, own in zip(results(ways), alone, strict=True):
        assert np.array_equal(one, own)


def test_a_column_more_needs_no_other_answer() -> None:
    """As sequences grow while words are chosen: a join of rows whose lengths are open."""
    graph = tvmdml.Graph()
    words, word = graph.input((4, "n"), "int64"), graph.input((4, 1), "int64")
    compiled = graph.compile([tvmdml.join([words, word], axis=1)], target="cpu")
    for n in range(9, 60):
        rows = np.arange(4 * n).reshape(4, n)
        last = -np.ones((4, 1), np.int64)
        assert np.array_equal(compiled([rows, last])[0], np.concatenate([rows, last], 1))
    answers = [one for plan in compiled.plans for group in plan.groups for several in group.answers.values() for one in several]
    assert len(answers) <= 3, "rows that are shorter than vectors, and longer ones"


def test_answers_hold_no_descriptors_and_build_their_kernels_all_the_same() -> None:
    compiled, _ = both(images)
    compiled.at(h=40, w=50)
    fresh = [
        one.kernel.written(compiled.target).script()
        for group in compiled.plans[0].groups
        for one in group.answers[compiled._tasks()]
    ]
    gc.collect()
    descriptors = [one for one in gc.get_objects() if type(one) is tvmdml.TensorDesc]
    for h in range(41, 61):
        compiled.at(h=h, w=2 * h)
    gc.collect()
    more = [one for one in gc.get_objects() if type(one) is tvmdml.TensorDesc]
    assert len(more) <= len(descriptors)
    answers = [one for group in compiled.plans[0].groups for several in group.answers.values() for one in several]
    assert len(answers) > len(fresh)
    assert set(fresh) <= {one.kernel.written(compiled.target).script() for one in answers}


def test_an_answer_serves_any_number_of_tiles() -> None:
    """A product that reads both factors as they lie asks for other lines of the next rows, the more tiles there are."""
    graph = tvmdml.Graph()
    product = graph.compile(tvmdml.gemm(graph.input((1, 1, "n", 16)), graph.input((1, 1, 16, "n"))))
    for n in range(101, 401, 30):
        product.at(n=n)
    ((several,),) = [[*group.answers.values()] for plan in product.plans for group in plan.groups]
    assert len(several) <= 4, [answer.function.texts(["n"]) for answer in several]


def test_messages_have_the_names_of_sizes() -> None:
    graph = tvmdml.Graph("net")
    x = graph.input(("n", 8), name="x")
    other = tvmdml.Graph()
    with pytest.raises(tvmdml.InvalidArgument, match=r"\(n \+ 1, 8\).*\(n, 8\)"):
        tvmdml.add(other.input(("n", 8)), other.input((other.size("n") + 1, 8)))
    compiled = graph.compile(x[1:] * 2.0)
    with pytest.raises(tvmdml.InvalidArgument, match=r"n=0; allowed: .*n.*record another graph"):
        compiled({"x": np.zeros((0, 8), np.float32)})
    with pytest.raises(tvmdml.InvalidArgument, match=r"float32\[n, 8\]"):
        compiled({"x": np.zeros((3,), np.float32)})
    for wrong in (np.zeros((3, 9), np.float32), np.zeros((3, 8), np.float64)):
        with pytest.raises(tvmdml.InvalidArgument, match=r"OpenGraph x: given float.*; allowed: float32\[n, 8\] with n=3"):
            compiled({"x": wrong})
    with pytest.raises(tvmdml.InvalidArgument, match=r"OpenGraph call: given 2 arrays"):
        compiled([1, 2])
    with pytest.raises(tvmdml.InvalidArgument, match=r"Use \.at\(n=…\)"):
        _ = compiled.kernel_count
    for ask in (len, list, lambda x: np.zeros(x.shape), lambda x: range(x.shape[0]), lambda x: {x.shape: 1}):
        with pytest.raises(tvmdml.InvalidArgument, match=r"size n: .*n is not known yet"):
            ask(x)
    with pytest.raises(tvmdml.InvalidArgument, match="an integer for each of n"):
        compiled.at(m=3)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [("1n", {}), ("", {}), ("n", {"least": -1}), ("n", {"least": 4, "most": 3}), ("n", {"most": "3"}), ("n", {"least": 10**400})],
)
def test_sizes_that_are_refused(name: str, bounds: dict[str, Any]) -> None:
    with pytest.raises(tvmdml.InvalidArgument, match=r"Graph\.size"):
        tvmdml.Graph().size(name, **bounds)


def test_a_graph_without_open_sizes_is_its_own() -> None:
    graph = tvmdml.Graph()
    compiled = graph.compile(graph.input((3,)) * 2.0)
    assert compiled.at() is compiled
    with pytest.raises(tvmdml.InvalidArgument, match="no size of this graph is open"):
        compiled.at(n=3)


def test_bounds() -> None:
    graph = tvmdml.Graph()
    n = graph.size("n", least=2, most=64)
    assert n <= 64
    assert graph.size("n") is not None
    with pytest.raises(tvmdml.InvalidArgument, match="given least=1, most=32; allowed: least=2, most=64, as it was made"):
        graph.size("n", most=32)
    compiled = graph.compile(graph.input((n, 4), name="x") * 2.0)
    with pytest.raises(tvmdml.InvalidArgument, match="2 <= n <= 64"):
        compiled({"x": np.zeros((65, 4), np.float32)})
    graph.size("m")
    y = graph.input((4,)) * 2.0
    with pytest.raises(tvmdml.InvalidArgument, match="a dimension of an input"):
        graph.compile(y)


@pytest.mark.parametrize("shape", [(None, 4), (-1, 4), [4, -2]])
def test_what_other_libraries_write_for_an_open_size_is_refused(shape: Any) -> None:
    with pytest.raises(tvmdml.InvalidArgument, match=r"the name of a size that is open, such as \('n', 8\)"):
        tvmdml.Graph().input(shape)


def test_a_failed_guard_says_who_asked_it() -> None:
    graph = tvmdml.Graph("net")
    x = graph.input(("n", 8), name="x")
    rows = x[3:]
    best = tvmdml.top_k(rows, 7, axis=0)
    assert rows.shape[0] < 2000
    compiled = graph.compile(best.values)
    for n, text in (
        (4, r"10 <= n <= 2002 \(asked by top_k at test_open_graph\.py"),
        (3000, r"\(asked by a comparison at test_open_gr"),
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=f"net: given n={n}; allowed: .*{text}"):
            compiled.at(n=n)
    compiled.at(n=10)
    lines = dict(compiled.explain().lines)
    assert lines["holds for"] == lines["recorded for"] == "10 <= n <= 2002"
    assert next(text for call, text in lines.items() if call.startswith("TOP_K")).startswith("input_tensor float32[n - 3, 8]")


def test_a_size_is_bounded_by_others() -> None:
    graph = tvmdml.Graph()
    m = graph.size("m", most=500)
    n = graph.size("n", least=m, most=600)
    k = graph.size("k", least=n + 2, most=2 * n)
    x, y, z = (graph.input((name, 4), name=name) for name in "nmk")
    assert m <= n
    assert k >= m
    assert k >= 3
    assert k <= 1200
    compiled = graph.compile([x[:m] + y, z[: n + 1] * 2.0])
    assert dict(compiled.explain().lines)["recorded for"] == "1 <= m <= 500; 1 <= n <= 600; k >= 3; m <= n; n + 2 <= k; 2*n >= k"
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((size, 4), np.float32) for name, size in (("n", 6), ("m", 6), ("k", 8))}
    first, second = compiled(given)
    assert np.array_equal(first, given["n"] + given["m"])
    assert np.array_equal(second, given["k"][:7] * 2)
    for sizes, text in (
        ({"m": 7, "n": 6, "k": 8}, r"m <= n \(asked by size at test_open_graph\.py:\d+\)\."),
        ({"m": 3, "n": 6, "k": 13}, r"2\*n >= k \(asked by size"),
        ({"m": 3, "n": 6, "k": 7}, r"n \+ 2 <= k \(asked by size"),
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=f"allowed: {text}"):
            compiled.at(**sizes)
    assert graph.size("n", least=m, most=600) is not None
    with pytest.raises(tvmdml.InvalidArgument, match="as it was made with"):
        graph.size("n", least=m + 1)
    with pytest.raises(
        tvmdml.InvalidArgument, match=r"least=n, most=m; .* least is 599, most is 499: give the sizes in it bounds first"
    ):
        graph.size("i", least=n, most=m)
    with pytest.raises(tvmdml.InvalidArgument, match="sizes of another graph"):
        graph.size("i", least=tvmdml.Graph().size("j"))


def test_a_bound_may_itself_be_without_bounds_and_products_of_bounded_sizes_are_sizes_of_tensors() -> None:
    graph = tvmdml.Graph()
    n, m = graph.size("n"), graph.size("m")
    k = graph.size("k", least=m - n, most=n * m)
    compiled = graph.compile(graph.input((n, m, k), name="x") * 2.0)
    lines = dict(compiled.explain().lines)["recorded for"]
    assert lines.startswith("1 <= n <= 4294967295; 1 <= m <= 4294967295; 1 <= k <= 4294967295; n + k >= m; n*m >= k;")
    for (a, b, c), allowed in (((2, 5, 3), True), ((2, 5, 2), False), ((2, 5, 10), True), ((2, 5, 11), False), ((9, 1, 1), True)):
        assert compiled.allows(n=a, m=b, k=c) == allowed


WRONG: list[tuple[Callable[[Any, Any, Any, Any], Any], str]] = [
    (lambda graph, x, n, m: graph.input((n * m * m * m, 3)), r"sizes\[0\]: given n\*m\*m\*m; allowed: 0 to 4294967295"),
    (lambda graph, x, n, m: graph.input((n - 5000, 3)), "given n - 5000; allowed: a non-negative integer"),
    (lambda graph, x, n, m: graph.input((n, m, 4099)), r"given 4099\*n\*m elements"),
    (
        lambda graph, x, n, m: tvmdml.TensorDesc("float32", (n, 3), total_tensor_size_in_bytes=n),
        r"given n; allowed: at least 12\*n",
    ),
    (lambda graph, x, n, m: x.broadcast((m, 3)), r"given \(\(m, 3\),\); allowed: a shape that \[n, 3\] can be repeated to"),
    (lambda graph, x, n, m: x.transpose(0, n), r"given \(0, n\); allowed: each of the 2 dimensions once"),
    (lambda graph, x, n, m: x.reinterpret((n, 4)), r"float32\[n, 4\].*; allowed: a view inside of the 12\*n bytes of input x"),
    (lambda graph, x, n, m: x[n, 0, 0], r"given \(n, 0, 0\); allowed: at most 2 integers and slices"),
    (lambda graph, x, n, m: x[::-n], r"given slice\(None, None, -n\); allowed: slices with a positive step"),
    (
        lambda graph, x, n, m: graph.add(tvmdml.ElementWiseAbs.of(tvmdml.TensorDesc("float32", (n, 5))), [x]),
        r"given input x with 12\*n bytes; allowed: the 20\*n bytes of float32\[n, 5\]",
    ),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_what_is_refused_is_named_by_sizes(wrong: Callable[[Any, Any, Any, Any], Any], text: str) -> None:
    graph = tvmdml.Graph()
    n, m = graph.size("n"), graph.size("m")
    with pytest.raises(tvmdml.InvalidArgument, match=text):
        wrong(graph, graph.input((n, 3), name="x"), n, m)


def test_sizes_that_are_made_after_compile_are_not_of_the_compiled_graph() -> None:
    graph = tvmdml.Graph()
    n = graph.size("n")
    compiled = graph.compile(graph.input((n, 3))[: n // 2] * 1.0)
    graph.size("k", least=3)
    assert dict(compiled.explain().lines)["recorded for"].startswith("2 <= n <= 1431655765")
    with pytest.raises(tvmdml.InvalidArgument, match=r"given n=1; allowed: 2 <= n <= 1431655765"):
        compiled.at(n=1)


def test_what_is_asked_after_compile_is_not_asked_of_the_compiled_graph() -> None:
    graph = tvmdml.Graph()
    x = graph.input(("n", 8), name="x")
    compiled = graph.compile(tvmdml.activation_softmax(x) @ np.ones((8, 8), np.float32))
    later = graph.input(("m",), name="later")
    assert x.shape[0] != 5
    assert compiled([np.ones((5, 8), np.float32)])[0].tolist() == np.ones((5, 8)).tolist()
    again = graph.compile([x * 2.0, later * 3.0])
    with pytest.raises(tvmdml.InvalidArgument, match="n=5, m=3"):
        again.at(n=5, m=3)


@pytest.mark.parametrize(
    "use",
    [
        lambda graph, n: graph.input((n, 8)),
        lambda graph, n: tvmdml.tile(graph.input((1, 4)), repeats=[n, 1]),
        lambda graph, n: tvmdml.diagonal_matrix(graph.input((3, 4)), diagonal_fill_begin=-n, diagonal_fill_end=n),
    ],
)
def test_sizes_of_another_graph_are_refused(use: Callable[[Any, Any], Any]) -> None:
    graph, other = tvmdml.Graph(), tvmdml.Graph()
    own = graph.input(("a", 8))
    with pytest.raises(tvmdml.InvalidArgument, match=r"sizes of another graph.*Graph\.size"):
        graph.compile([own * 2.0, use(graph, other.size("n"))])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
@pytest.mark.parametrize("use", [lambda x, n: x * n, lambda x, n: n - x, lambda x, n: tvmdml.divide(x, 2 * n + 1)])
def test_elements_are_computed_with_a_size(use: Callable[[Any, Any], Any], dtype: str) -> None:
    graph = tvmdml.Graph()
    n = graph.size("n", most=100)
    compiled = graph.compile(use(graph.input((n, 8), dtype), n))
    for k in (1, 3, 100):
        fixed = tvmdml.Graph()
        assert_same(compiled, fixed.compile(use(fixed.input((k, 8), dtype), k)))  # type: ignore[arg-type] # a size is open


def test_a_size_that_the_type_of_elements_cannot_hold_is_refused() -> None:
    graph = tvmdml.Graph()
    x = graph.input(("n", 8), "uint8")
    with pytest.raises(tvmdml.InvalidArgument, match="given n; allowed: a number that uint8, the type of the arrays, can hold"):
        x * graph.size("n")
    graph = tvmdml.Graph()
    y = graph.input(("n", 8), "float16")
    compiled = graph.compile(y * graph.size("n"))
    assert np.isinf(compiled([np.ones((70000, 8), np.float16)])[0]).all()


def test_any_identifier_names_a_size() -> None:
    graph = tvmdml.Graph()
    compiled = graph.compile(graph.input(("self",)) * 2.0)
    assert compiled.at(self=3).inputs()[0].desc.sizes == (3,)


@pytest.mark.parametrize("bounds", [{"most": 64}, {"most": 5}, {"least": 2048}, {"least": 2000, "most": 2003}, {"least": 1 << 40}])
def test_sizes_are_recorded_between_their_bounds(bounds: dict[str, int]) -> None:
    graph = tvmdml.Graph()
    n, m = graph.size("n", **bounds), graph.size("m", **bounds)
    assert n != m
    assert n not in bounds.values()
    assert m not in bounds.values()


def test_a_part_of_a_constant() -> None:
    graph = tvmdml.Graph()
    table = np.arange(3 * 128, dtype=np.float32).reshape(3, 128)
    n = graph.size("n", most=128)
    compiled = graph.compile(graph.input((3, n)) + graph.constant(table)[:, :n])
    for count in (2, 127):
        assert compiled([np.ones((3, count), np.float32)])[0].tolist() == (table[:, :count] + 1).tolist()


def filters(graph: Any, n: Any) -> Any:
    return tvmdml.convolution(graph.input((1, n, 9, 9), name="x"), constant(graph, 16, 40, 3, 3)[:, :n])


PARTS_OF_WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "first rows": lambda graph, n: graph.input((9, n)) @ constant(graph, 40, 24)[:n],
    "last rows": lambda graph, n: graph.input((9, 40 - n)) @ constant(graph, 40, 24)[n:] + graph.input((1, n))[0, 0],
    "from a row on": lambda graph, n: graph.input((n, 8)) @ constant(graph, 48, 24)[n : n + 8],
    "columns": lambda graph, n: graph.input((n, 24)) @ constant(graph, 40, 24)[:n].T,
    "as many rows in each row": lambda graph, n: graph.input((9, n)) @ constant(graph, 40 * 24)[: n * 24].reshape(24, n).T,
    "a batch": lambda graph, n: graph.input((n, 9, 24)) @ constant(graph, 40, 24, 16)[:n],
    "repeated": lambda graph, n: graph.input((n, 9, 24)) @ constant(graph, 1, 24, 16).broadcast(n, 24, 16),
    "filters": filters,
}
"""Products and convolutions with what a size takes of a constant."""


@pytest.mark.parametrize("name", PARTS_OF_WEIGHTS)
def test_a_size_may_decide_what_is_read_of_a_weight(name: str) -> None:
    def made(size: Any) -> Any:
        graph = tvmdml.Graph()
        return graph.compile(PARTS_OF_WEIGHTS[name](graph, graph.size("n", least=2, most=39) if size is None else size))

    compiled = made(None)
    for n in (7, 8, 9, 33, 39, 3):
        assert_same(compiled, made(n))
    assert len(compiled.plans) <= 2
    assert [plan.record.specialized for plan in compiled.plans] == [0] * len(compiled.plans)


def test_to_show_an_expression_asks_nothing() -> None:
    graph = tvmdml.Graph()
    x = graph.input(("n", 8), name="x")
    assert repr(x) == "<Expression float32[n, 8] of input x>"
    assert not graph.record.specialized


def test_errors_say_what_failed() -> None:
    graph = tvmdml.Graph()
    with pytest.raises(tvmdml.InvalidArgument, match=r"sequence of sizes, such as \('nc', 8\)"):
        graph.input("nc")
    n, m = graph.size("n", most=64), graph.size("m", least=3)
    x = graph.input((n, m), name="x")
    net = graph.compile(x[: 5 if n > 7 else 2] * 2.0)
    with pytest.raises(tvmdml.InvalidArgument, match="OpenGraph: given n=5, m=9; allowed: 8 <= n <= 64"):
        net.at(n=5, m=9)
    with pytest.raises(tvmdml.InvalidArgument, match="allowed: 3 <= m <= "):
        net.at(n=9, m=2)


def test_numbers_alone_may_fill_an_open_size() -> None:
    graph = tvmdml.Graph()
    x: Any = graph.input(("n", 3), "float32")
    y: Any = tvmdml.fill_value_constant([x.shape[0], 3], 2.0, dtype="float32", device=graph)
    z = y.reshape((x.shape[0], 1, 3))
    net = graph.compile([tvmdml.activation_relu(y), z - z])
    for n in (4, 9, 1):
        relu, none = net([np.zeros((n, 3), np.float32)])
        assert np.array_equal(relu, np.full((n, 3), 2, np.float32))
        assert np.array_equal(none, np.zeros((n, 1, 3), np.float32))


@pytest.mark.full
def test_more_than_two_to_the_31_elements() -> None:
    graph = tvmdml.Graph()
    n, m = graph.size("n"), graph.size("m")
    x: Any = graph.input((n, m), "uint8")
    y: Any = x + 1
    net = graph.compile([y, tvmdml.reduce(y, function="MAX", axes=[1]), y.reshape((n * m,))[-3:]])
    for sizes in ((3, 7), (46341, 46341)):
        given = np.full(sizes, 3, np.uint8)
        given[-1, -1], given[0, 0] = 250, 9
        added, largest, last = net([given])
        assert (added[0, 0], added[-1, -1], added[-1, -2]) == (10, 251, 4)
        assert (largest[0, 0], largest[1, 0], largest[-1, 0]) == (10, 4, 251)
        assert last.tolist() == [4, 4, 251]
