"""A decoder's steps: rows of earlier steps in a buffer, whatever lengths, masks, windows and limits they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import FLOAT, INT64, N, info, model  # noqa: E402 - they need ONNX
from test_onnx_open_sizes import Counted, conversions, nothing_kept  # noqa: E402, F401 - fixtures

import tvmdml.onnx  # noqa: E402 - it needs ONNX

H, J, D, ROOM = 4, 2, 16, 24
INT32 = onnx.TensorProto.INT32
PLACES = np.arange(64)[:, None] / 100 ** (np.arange(D // 2) / (D // 2))
COSINE, SINE = np.cos(PLACES).astype(np.float32), np.sin(PLACES).astype(np.float32)


def draw(seed: int, *sizes: int) -> Any:
    return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


def node(inputs: Sequence[str], **more: Any) -> Any:
    names = [*inputs]
    while not names[-1]:
        names.pop()
    return N("GroupQueryAttention", names, ["y", "nk", "nv"], domain="com.microsoft", num_heads=H, kv_num_heads=J, **more)


NAMES = ("q", "k", "v", "pk", "pv", "last", "total", "cos", "sin", "places", "bias", "sinks", "", "", "", "", "rows")


def answers(given: Mapping[str, Any], **more: Any) -> list[Any]:
    """What a node gives."""
    to_type = onnx.helper.np_dtype_to_tensor_dtype
    infos = [info(name, one.shape, to_type(one.dtype)) for name, one in given.items()]
    results = [onnx.ValueInfoProto(name=name) for name in ("y", "nk", "nv")]
    inputs = [name if name in given else "" for name in NAMES]
    return tvmdml.onnx.load(model([node(inputs, **more)], infos, results, {}, 21))(given)


def turned(x: Any, places: Any) -> Any:
    """{heads, rows, D}, by the angles of places."""
    cosine, sine = (one[places].astype(np.float64) for one in (COSINE, SINE))
    first, second = np.split(x, 2, -1)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


def weighed(q: Any, k: Any, v: Any, first: int, window: int = -1, softcap: float = 0.0, sinks: Any = None, bias: Any = 0.0) -> Any:
    """The formula: {heads, rows, D} of queries, the first of which has the place ``first`` among all keys {joint, keys, D}."""
    k, v = (np.repeat(one.astype(np.float64), len(q) // len(k), 0) for one in (k, v))
    scores: Any = q.astype(np.float64) @ k.swapaxes(1, 2) / np.sqrt(D)
    scores = np.tanh(scores / softcap) * softcap if softcap else scores
    at = first + np.arange(q.shape[1])[:, None] - np.arange(k.shape[1])
    scores = np.where((at >= 0) & ((window < 0) | (at < window)), scores + bias, -np.inf)
    powers = np.exp(scores)
    found = powers @ v / (powers.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sinks.astype(np.float64))[:, None, None]))
    return found.swapaxes(0, 1).reshape(q.shape[1], -1)


def heads(x: Any, count: int) -> Any:
    """{heads, rows, D} of {rows, heads * D}."""
    return x.reshape(len(x), count, D).swapaxes(0, 1)


# -- Steps of a text ----------------------------------------------------------------------------------------------


def decoder(**more: Any) -> Any:
    """As GenAI writes it: lengths follow from a mask. Rows are projected to queries, keys and values."""
    nodes = [
        N("ReduceSum", ["mask", "axis"], ["sum"]),
        N("Sub", ["sum", "axis"], ["last64"]),
        N("Cast", ["last64"], ["last"], to=INT32),
        N("Shape", ["mask"], ["shape"]),
        N("Gather", ["shape", "one"], ["total64"], axis=0),
        N("Cast", ["total64"], ["total"], to=INT32),
        N("MatMul", ["x", "w"], ["q"]),
        node(["q", "", "", "pk", "pv", "last", "total", "cos", "sin"], do_rotary=1, **more),
    ]
    weights = {"axis": np.array([1]), "one": np.array(1), "w": draw(9, 8, (H + 2 * J) * D) / 3, "cos": COSINE, "sin": SINE}
    old = [info(name, ["b", J, "r", D], FLOAT) for name in ("pk", "pv")]
    inputs = [info("x", ["b", "s", 8], FLOAT), info("mask", ["b", "t"], INT64), *old]
    outputs = [info("y", ["b", "s", H * D], FLOAT), *(info(name, ["b", J, "u", D], FLOAT) for name in ("nk", "nv"))]
    return model(nodes, inputs, outputs, weights, 21), weights["w"].astype(np.float64)


TURNS = ((7, 4), (5, 4), (6, 3), (3, 2))
"""The words that are given, and the steps after them."""


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("limits", [{}, {"local_window_size": 5, "softcap": 2.0}])
def test_a_turn_of_a_chat_converts_nothing(is_static: bool, limits: Any, conversions: type[Counted]) -> None:  # noqa: F811
    """Of any length, behind any past. What is converted is a word, and several words: at first, if the mask says so, and later."""
    made, w = decoder(**limits)
    loaded = tvmdml.onnx.load(made)
    window, softcap = limits.get("local_window_size", -1), limits.get("softcap", 0.0)
    kept = [np.zeros((1, J, 40, D), np.float32) for _ in range(2)]
    text, counts = np.zeros((0, 8), np.float32), []
    for turn, (words, steps) in enumerate(TURNS):
        for i, rows in enumerate([words] + [1] * steps):
            before = len(text)
            text = np.concatenate([text, draw(100 * turn + i, rows, 8)])
            mask = (np.arange(40) < len(text)).astype(np.int64)[None] if is_static else np.ones((1, len(text)), np.int64)
            y, *kept = loaded(x=text[None, before:], mask=mask, pk=kept[0], pv=kept[1])
            q, k, v = np.split(text.astype(np.float64) @ w, [H * D, (H + J) * D], 1)
            q, k, v = (heads(one, n) for one, n in ((q, H), (k, J), (v, J)))
            q, k = (turned(one, np.arange(len(text))) for one in (q, k))
            right = weighed(q[:, before:], k, v, before, window, softcap)
            np.testing.assert_allclose(y[0], right, atol=2e-4)
            np.testing.assert_allclose(kept[0][0, :, : len(text)], k, atol=1e-4)
        counts.append(conversions.whole)
    assert counts[1:] == [2 if is_static else 3] * 3


def test_texts_of_other_lengths_and_padding_are_values_of_a_run(conversions: type[Counted]) -> None:  # noqa: F811
    """Two texts, the shorter one with padding behind its beginning."""
    made, w = decoder()
    loaded, counts = tvmdml.onnx.load(made), []
    for lengths in ((5, 3), (2, 5), (5, 5)):
        texts = [draw(n + 7, n + 1, 8) for n in lengths]
        x = np.zeros((2, 5, 8), np.float32)
        for b, n in enumerate(lengths):
            x[b, :n] = texts[b][:n]
        kept = [np.zeros((2, J, 12, D), np.float32) for _ in range(2)]
        for rows in (5, 1):
            first = [0, 0] if rows == 5 else lengths
            mask = (np.arange(5 if rows == 5 else 6) < np.array([[n + (rows == 1)] for n in lengths])).astype(np.int64)
            given = x if rows == 5 else np.stack([text[n:] for text, n in zip(texts, lengths, strict=True)])
            y, *kept = loaded(x=given, mask=mask, pk=kept[0], pv=kept[1])
            for b, n in enumerate(lengths):
                whole = texts[b][: n if rows == 5 else n + 1].astype(np.float64) @ w
                q, k, v = np.split(whole, [H * D, (H + J) * D], 1)
                q, k, v = (heads(one, m) for one, m in ((q, H), (k, J), (v, J)))
                q, k = (turned(one, np.arange(len(whole))) for one in (q, k))
                right = weighed(q[:, first[b] :], k, v, first[b])
                np.testing.assert_allclose(y[b, : len(right)], right, atol=2e-4)
        counts.append(conversions.whole)
    assert counts[1:] == counts[:1] * 2


@pytest.mark.parametrize("kind", ["MultiHeadAttention", "DecoderMaskedMultiHeadAttention"])
def test_a_count_of_earlier_rows_is_a_size(kind: str, conversions: type[Counted]) -> None:  # noqa: F811
    """``past_sequence_length``: how many rows of the buffers there are."""
    rest = ["pk", "pv", "count"] if kind[0] == "D" else ["", "pk", "pv", "count"]
    one = N(kind, ["q", "k", "v", "", "", *rest], ["y", "nk", "nv"], domain="com.microsoft", num_heads=J)
    wide = [info(name, ["b", "s", J * D], FLOAT) for name in "qkv"]
    old = [info(name, ["b", J, "r", D], FLOAT) for name in ("pk", "pv")]
    results = [onnx.ValueInfoProto(name=name) for name in ("y", "nk", "nv")]
    loaded = tvmdml.onnx.load(model([one], [*wide, *old, info("count", [1], INT32)], results, {}, 21))
    kept, every, counts = [np.zeros((1, J, 12, D), np.float32) for _ in range(2)], [draw(i, 1, 7, J * D) for i in range(3)], []
    for step in range(7):
        q, k, v = (one[:, step : step + 1] for one in every)
        y, *kept = loaded(q=q, k=k, v=v, pk=kept[0], pv=kept[1], count=np.array([step], np.int32))
        keys, values = (heads(one[0, : step + 1], J) for one in every[1:])
        right = weighed(heads(q[0], J), keys, values, step)
        np.testing.assert_allclose(y[0], right, atol=2e-5)
        np.testing.assert_array_equal(kept[0][0, :, : step + 1], heads(every[1][0, : step + 1], J))
        counts.append(conversions.whole)
    assert counts[2:] == counts[2:3] * 5


# -- Limits -------------------------------------------------------------------------------------------------------

LIMITS: list[dict[str, Any]] = [
    {"local_window_size": 3},
    {"softcap": 1.5},
    {"sinks": True},
    {"smooth_softmax": 1},
    {"bias": True},
    {"local_window_size": 4, "softcap": 3.0, "sinks": True, "bias": True},
    {"local_window_size": 40, "smooth_softmax": 1, "softcap": 20.0},
]


def limited(limits: Mapping[str, Any], rows: int, total: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The inputs and attributes of a node, and what the formula takes."""
    given, own = {}, {name: one for name, one in limits.items() if name in ("local_window_size", "softcap", "smooth_softmax")}
    formula = {"window": own.get("local_window_size", -1), "softcap": own.get("softcap", 0.0)}
    if "bias" in limits:
        given["bias"] = draw(6, 1, H, rows, total)
    if "sinks" in limits:
        given["sinks"] = formula["sinks"] = draw(7, H)
    elif "smooth_softmax" in own:
        formula["sinks"] = np.zeros(H)
    return given, own, formula


@pytest.mark.some(10)
@pytest.mark.parametrize("limits", LIMITS, ids=[" ".join(one) for one in LIMITS])
@pytest.mark.parametrize(("rows", "before"), [(1, 9), (4, 9), (20, 3), (20, 0)])
def test_windows_soft_limits_sinks_and_biases_are_the_formulas(limits: Mapping[str, Any], rows: int, before: int) -> None:
    total = before + rows
    more, own, formula = limited(limits, rows, total)
    q, k, v = (draw(i, 1, rows, n * D) for i, n in ((1, H), (2, J), (3, J)))
    old = [draw(i, 1, J, ROOM, D) for i in (4, 5)]
    given = {"q": q, "k": k, "v": v, "pk": old[0], "pv": old[1], "last": np.array([total - 1], np.int32)}
    y, *kept = answers({**given, "total": np.array(total, np.int32), **more}, **own)
    whole = [np.concatenate([one[0, :, :before], heads(new[0], J)], 1) for one, new in zip(old, (k, v), strict=True)]
    bias = more["bias"][0].astype(np.float64) if more.get("bias") is not None else 0.0
    np.testing.assert_allclose(y[0], weighed(heads(q[0], H), *whole, before, bias=bias, **formula), atol=2e-5)
    for one, right in zip(kept, whole, strict=True):
        np.testing.assert_array_equal(one[0, :, :total], right)


@pytest.mark.some(3)
@pytest.mark.parametrize("limits", [{}, {"softcap": 2.0, "sinks": True, "bias": True}], ids=["plain", "limited"])
@pytest.mark.parametrize(("room", "window"), [(6, 6), (9, 4), (12, 1)])
def test_a_window_that_is_kept_gives_what_all_rows_give(room: int, window: int, limits: Mapping[str, Any]) -> None:
    """As many rows as a step has, also more than there is room for. The last ones are kept, in order, from the first row on."""
    text = [draw(i, 40, n * D) for i, n in ((1, H), (2, J), (3, J))]
    kept, before = [np.full((1, J, room, D), 7, np.float32) for _ in range(2)], 0
    for rows in (2, 1, 1, 3, 1, 1, 1, 8, 1, 1, 14, 1):
        total = before + rows
        more, own, formula = limited({**limits, "local_window_size": window}, rows, total)
        q, k, v = (one[None, before:total] for one in text)
        given = {"q": q, "k": k, "v": v, "pk": kept[0], "pv": kept[1], "last": np.array([total - 1], np.int32), **more}
        y, *kept = answers({**given, "total": np.array(total, np.int32)}, sliding_window_cache=1, **own)
        whole = [heads(one[:total], J) for one in text[1:]]
        bias = more["bias"][0].astype(np.float64) if more.get("bias") is not None else 0.0
        np.testing.assert_allclose(y[0], weighed(heads(q[0], H), *whole, before, bias=bias, **formula), atol=2e-5)
        step = room - window + 1
        there = total - step * max(-(-(total - room) // step), 0)
        for one, right in zip(kept, whole, strict=True):
            assert one.shape == (1, J, room, D)
            np.testing.assert_array_equal(one[0, :, :there], right[:, total - there :])
        before = total


def test_rows_that_are_padding_are_not_counted() -> None:
    """``query_seqlens``: of two texts one has two new rows, and the other three."""
    rows, before, new = 3, (4, 0), (2, 3)
    q, k, v = (draw(i, 2, rows, n * D) for i, n in ((1, H), (2, J), (3, J)))
    old = [draw(i, 2, J, 9, D) for i in (4, 5)]
    last = np.array([b + n - 1 for b, n in zip(before, new, strict=True)], np.int32)
    given = {"q": q, "k": k, "v": v, "pk": old[0], "pv": old[1], "last": last, "total": np.array(9, np.int32)}
    y, *kept = answers({**given, "rows": np.array(new, np.int32)})
    for b, (first, count) in enumerate(zip(before, new, strict=True)):
        whole = [np.concatenate([one[b, :, :first], heads(n[b], J)[:, :count]], 1) for one, n in zip(old, (k, v), strict=True)]
        np.testing.assert_allclose(y[b, :count], weighed(heads(q[b, :count], H), *whole, first), atol=2e-5)
        for one, right in zip(kept, whole, strict=True):
            np.testing.assert_array_equal(one[b, :, : first + count], right)


def test_a_query_may_see_later_keys() -> None:
    rows, before = 4, 3
    q, k, v = (draw(i, 1, rows, n * D) for i, n in ((1, H), (2, J), (3, J)))
    old = [draw(i, 1, J, 9, D) for i in (4, 5)]
    given = {"q": q, "k": k, "v": v, "pk": old[0], "pv": old[1], "last": np.array([6], np.int32), "total": np.array(7, np.int32)}
    y, *kept = answers(given, causal=0)
    whole = [np.concatenate([one[0, :, :before], heads(new[0], J)], 1) for one, new in zip(old, (k, v), strict=True)]
    np.testing.assert_allclose(y[0], weighed(heads(q[0], H), *whole, 100), atol=2e-5)
    np.testing.assert_array_equal(kept[0][0, :, :7], whole[0])


def test_of_first_rows_the_first_place_is_read_alone() -> None:
    """As ONNX Runtime does, for all texts. Behind others each row has its own place."""
    rows = 3
    q, k, v = (draw(i, 2, rows, n * D) for i, n in ((1, H), (2, J), (3, J)))
    given = {"q": q, "k": k, "v": v, "last": np.array([2, 2], np.int32), "total": np.array(3, np.int32), "cos": COSINE, "sin": SINE}
    places = np.array([[5, 30, 31], [9, 1, 40]])
    y, kept, _ = answers({**given, "places": places}, do_rotary=1)
    other, _, _ = answers({**given, "places": np.array([[5, 6, 7]] * 2)}, do_rotary=1)
    np.testing.assert_array_equal(y, other)
    for b in range(2):
        np.testing.assert_allclose(kept[b], turned(heads(k[b].astype(np.float64), J), np.arange(5, 8)), atol=1e-5)
    old = {name: draw(i, 2, J, 8, D) for i, name in ((4, "pk"), (5, "pv"))}
    later = {**given, **old, "last": np.array([2, 2], np.int32), "total": np.array(8, np.int32), "places": places}
    _, kept, _ = answers(later, do_rotary=1)
    for b in range(2):
        np.testing.assert_allclose(kept[b, :, :3], turned(heads(k[b].astype(np.float64), J), places[b]), atol=1e-5)


def test_a_window_of_no_keys_gives_zeros() -> None:
    given = {name: draw(1, 1, 3, n * D) for name, n in (("q", H), ("k", J), ("v", J))}
    y, kept, _ = answers({**given, "last": np.array([2], np.int32), "total": np.array(3, np.int32)}, local_window_size=0)
    assert not y.any()
    np.testing.assert_array_equal(kept[0], heads(given["k"][0], J))


# -- One memory ---------------------------------------------------------------------------------------------------


ROOM_FOR_ALL = {"local_window_size": 5, "sliding_window_cache": 1}


@pytest.mark.parametrize(
    "limits", [{}, {"local_window_size": 5, "softcap": 2.0}, ROOM_FOR_ALL], ids=["plain", "limited", "room for all"]
)
def test_past_and_present_may_be_one_array(limits: Any) -> None:
    """Only new rows are written; results are those of arrays that are apart. Outputs without memory get new arrays in each run."""
    made, _ = decoder(**limits)
    session = tvmdml.onnx.InferenceSession(made)
    kept = [np.zeros((1, J, 40, D), np.float32) for _ in range(2)]
    mine = [tvmdml.onnx.OrtValue.ortvalue_from_numpy(one.copy()) for one in kept]
    before, results = 0, []
    for i, rows in enumerate((7, 1, 1, 4, 1)):
        x, mask = draw(i, 1, rows, 8), np.ones((1, before + rows), np.int64)
        right, *kept = session.run(None, {"x": x, "mask": mask, "pk": kept[0], "pv": kept[1]})
        rest = [one.numpy()[:, :, before + rows :].copy() for one in mine]
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("mask", mask)
        binding.bind_output("y", "cpu")
        for name, value in zip(("pk", "pv"), mine, strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"n{name[1]}", value)
        session.run_with_iobinding(binding)
        results.append(binding.get_outputs()[0].numpy())
        np.testing.assert_array_equal(results[-1], right)
        for one, value, other in zip(kept, mine, rest, strict=True):
            np.testing.assert_array_equal(value.numpy()[:, :, : before + rows], one[:, :, : before + rows])
            np.testing.assert_array_equal(value.numpy()[:, :, before + rows :], other)
        before += rows
    assert not any(np.may_share_memory(one, other) for i, one in enumerate(results) for other in results[:i])


@pytest.mark.parametrize("limits", [{}, ROOM_FOR_ALL], ids=["plain", "room for all"])
def test_a_graph_is_bound_to_one_array_where_rows_are_kept_and_nowhere_else(limits: Any) -> None:
    made, _ = decoder(**limits)
    loaded = tvmdml.onnx.load(made)
    whole = np.zeros(2 * J * 40 * D + 8, np.float32)
    key, value = (whole[i * J * 40 * D :][: J * 40 * D].reshape(1, J, 40, D) for i in range(2))
    x, mask, y = draw(1, 1, 1, 8), np.ones((1, 6), np.int64), np.zeros((1, 1, H * D), np.float32)
    graph = loaded.compiled(x=x, mask=mask, pk=key, pv=value)
    given = {"x": x, "mask": mask, "pk": key, "pv": value}
    graph.bind(given, [y, key, value])()
    assert key[0, :, 5].all()
    assert not np.delete(key, 5, 2).any()
    given["pk"] = key.view()
    given["pk"].flags.writeable = False  # the caller's word about his view of it, not about the memory
    graph.bind(given, [y, key, value])()
    moved = whole[4:][: J * 40 * D].reshape(1, J, 40, D)
    apart = np.zeros_like(key)
    for other in ([y, value, key], [y, moved, apart], [y, key, key]):
        with pytest.raises(tvmdml.errors.InvalidArgument, match="memory that overlaps another array's"):
            graph.bind(given, other)
