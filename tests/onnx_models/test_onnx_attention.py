"""Attention of ONNX Runtime and of ONNX with each input that may be left out: the results are the formula's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import results  # noqa: E402 - they need ONNX

from tvmdml import errors  # noqa: E402 - as above

B, S, L, H, D = 2, 3, 5, 2, 4
HIDDEN = -10000.0


def answers(kind: str, names: list[str], given: Mapping[str, Any], outputs: int, domain: str, opset: int = 21, **more: Any) -> Any:
    while names and not names[-1]:
        names.pop()
    return results(kind, [given.get(name) for name in names], opset=opset, outputs=outputs, domain=domain, **more)


def apart(x: Any, heads: int) -> Any:
    """{batch, heads, rows, channels} of {batch, rows, heads * channels}."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def weighed(q: Any, k: Any, v: Any, added: Any) -> Any:
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    found = weights / weights.sum(-1, keepdims=True) @ v
    return found.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)


def limits(kind: str, total: int) -> tuple[Any, Any]:
    """A mask, and what is added to scores for it."""
    keep = np.arange(total) < np.array([[total - 1], [total]])
    added = np.where(keep, 0, HIDDEN)[:, None, None, :]
    if kind == "lengths":
        return np.array([total - 1, total], np.int32), added
    if kind == "starts":
        keep &= np.arange(total) >= np.array([[0], [1]])
        return np.array([total - 1, total, 0, 1], np.int32), np.where(keep, 0, HIDDEN)[:, None, None, :]
    if kind == "keys":
        return keep.astype(np.int32), added
    rows = np.repeat(keep[:, None], S, 1)
    rows[:, 0, 1] = False
    return rows.astype(np.int32), np.where(rows, 0, HIDDEN)[:, None]


def several_heads(wide: bool, mask: str, bias: bool, added: str, past: int, causal: bool, kept: bool) -> str:
    """What is wrong with a MultiHeadAttention; keys of four dimensions are those of another tensor, without a bias."""
    rng = np.random.default_rng(3)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    total = L + past
    given = {"q": draw(B, S, H * D)}
    for name in "kv":
        given[name] = draw(B, H, L, D) if wide else draw(B, L, H * D)
    names = ["q", "k", "v", *[""] * 5]
    q, k, v = (given[name].astype(np.float64) for name in "qkv")
    scores: Any = 0.0
    if bias:
        names[3], given["b"] = "b", draw(3 * H * D)
        own = np.split(given["b"], 3)
        q = q + own[0]
        k, v = (k, v) if wide else (k + own[1], v + own[2])
    if mask:
        names[4] = "m"
        given["m"], scores = limits(mask, total)
    if added:
        names[5], given["a"] = "a", draw(B if added == "each" else 1, H, S, total)
        scores = scores + given["a"]
    if causal:
        scores = scores + np.triu(np.full((S, total), -np.inf), total - S + 1)
    q, k, v = (apart(one, H) for one in (q, k, v))
    if past:
        names[6:8] = ["pk", "pv"]
        given["pk"], given["pv"] = draw(B, H, past, D), draw(B, H, past, D)
        k, v = (np.concatenate([given[name], one], 2) for name, one in (("pk", k), ("pv", v)))
    right = [weighed(q, k, v, scores), k, v][: 3 if kept else 1]
    found = answers("MultiHeadAttention", names, given, len(right), "com.microsoft", num_heads=H, unidirectional=int(causal))
    case = f"{wide=} {mask=} {bias=} {added=} {past=} {causal=} {kept=}"
    bad = [f"{one.shape}" for one, other in zip(found, right, strict=True) if not np.allclose(one, other, atol=1e-5)]
    return f"{case}: {bad}" if bad else ""


@pytest.mark.full
def test_keys_of_another_tensor_leave_the_bias_and_the_mask_where_they_are() -> None:
    """Keys and values of four dimensions are DirectML's of earlier steps, which come after the bias and the mask."""
    cases = [
        (True, "keys", True, "all", 0, False, True),
        (True, "lengths", False, "", 0, True, False),
    ]
    wrong = [said for case in cases if (said := several_heads(*case))]
    assert not wrong, "\n".join(wrong)


TWO = (False, True)
MASKS = ("", "lengths", "starts", "keys", "rows")
PRESENT = [case for case in itertools.product(TWO, MASKS, TWO, ("", "each", "all"), (0, 2), TWO, TWO) if not (case[0] and case[4])]


@pytest.mark.drawn("case", PRESENT, 60)
def test_every_input_of_multihead_attention_may_be_there_or_not(case: tuple[Any, ...]) -> None:
    assert not several_heads(*case)


@pytest.mark.parametrize("count", [3, 2])
def test_heads_may_have_keys_beside_values(count: int) -> None:
    """And queries beside both: ONNX Runtime's kernels for processors take neither."""
    whole = np.random.default_rng(4).standard_normal((B, L, H, count, D)).astype(np.float32)
    parts = [np.ascontiguousarray(whole[:, :, :, i]).reshape(B, L, -1) for i in range(count)]
    apart_ = dict(zip("qkv", parts if count == 3 else [parts[0] * 2, *parts], strict=True))
    together = {"q": whole} if count == 3 else {"q": apart_["q"], "k": whole}
    (found,), (right,) = (
        answers("MultiHeadAttention", list(given), given, 1, "com.microsoft", num_heads=H) for given in (together, apart_)
    )
    assert np.allclose(found, right, atol=1e-5)


def test_a_mask_of_ends_and_starts() -> None:
    """ONNX Runtime's Attention has it as one vector, of which the ends come first."""
    rng = np.random.default_rng(4)
    given = {"x": rng.standard_normal((B, S, 7)).astype(np.float32), "w": rng.standard_normal((7, 3 * H * D)).astype(np.float32)}
    given["m"], scores = limits("starts", S)
    q, k, v = (apart(one, H) for one in np.split(given["x"].astype(np.float64) @ given["w"], 3, 2))
    (found,) = answers("Attention", ["x", "w", "", "m"], given, 1, "com.microsoft", num_heads=H)
    np.testing.assert_allclose(found, weighed(q, k, v, scores), atol=1e-4)


@pytest.mark.parametrize("wide", [1, 6])
def test_values_may_have_other_channels_than_keys(wide: int) -> None:
    """But not where one tensor holds both: ONNX Runtime writes values over keys there."""
    rng = np.random.default_rng(6)
    sizes = [H * D, H * D, H * wide]
    given = {"x": rng.standard_normal((B, S, 7)).astype(np.float32), "w": rng.standard_normal((7, sum(sizes))).astype(np.float32)}
    parts = np.split(given["x"].astype(np.float64) @ given["w"], np.cumsum(sizes)[:2], 2)
    named: dict[str, Any] = {"num_heads": H, "qkv_hidden_sizes": sizes}
    (found,) = answers("Attention", ["x", "w"], given, 1, "com.microsoft", **named)
    np.testing.assert_allclose(found, weighed(*(apart(one, H) for one in parts), 0.0), atol=1e-4)
    past = {**given, "p": np.zeros((2, B, H, 1, D), np.float32)}
    for names, arrays, outputs in ((["x", "w"], given, 2), (["x", "w", "", "", "p"], past, 1)):
        with pytest.raises(errors.Unsupported, match=f"its keys have 8 channels and its values {H * wide}: .* one tensor"):
            answers("Attention", names, arrays, outputs, "com.microsoft", **named)


@pytest.mark.parametrize("kind", ["PackedAttention", "PackedMultiHeadAttention"])
def test_attention_without_padding_is_refused_by_its_name(kind: str) -> None:
    """Only ONNX Runtime's kernels for CUDA have it."""
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(errors.Unsupported, match=f"com.microsoft.{kind} of 'y0': no operator of this name is known"):
        answers(kind, ["x"], {"x": x}, 1, "com.microsoft", num_heads=2)


@pytest.mark.parametrize("causal", [0, 1])
def test_the_first_step_has_no_rows_before(causal: int) -> None:
    rng = np.random.default_rng(6)
    own = {"num_heads": H, "unidirectional": causal}
    given = {name: rng.standard_normal((B, S, H * D)).astype(np.float32) for name in "qkv"}
    nothing = {"pk": np.zeros((B, H, 0, D), np.float32), "pv": np.zeros((B, H, 0, D), np.float32)}
    wanted = answers("MultiHeadAttention", ["q", "k", "v"], given, 3, "com.microsoft", **own)
    found = answers("MultiHeadAttention", ["q", "k", "v", "", "", "", *nothing], {**given, **nothing}, 3, "com.microsoft", **own)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]
    given = {"x": given["q"], "w": rng.standard_normal((H * D, 3 * H * D)).astype(np.float32)}
    nothing = {"p": np.zeros((2, B, H, 0, D), np.float32)}
    wanted = answers("Attention", ["x", "w"], given, 2, "com.microsoft", **own)
    found = answers("Attention", ["x", "w", "", "", "p"], {**given, **nothing}, 2, "com.microsoft", **own)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]
    assert found[1].shape == (2, B, H, S, D)


@pytest.mark.parametrize("kind", ["Attention", "GroupQueryAttention"])
def test_a_past_may_have_no_rows(kind: str) -> None:
    """Results and what is kept are those without a past; of ONNX's operator also with a mask, and heads of four dimensions."""
    rng = np.random.default_rng(7)
    nothing = {name: np.zeros((B, H, 0, D), np.float32) for name in ("pk", "pv")}
    shape = (B, H, S, D) if kind == "Attention" else (B, S, H * D)
    given: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name in "qkv"}
    if kind == "Attention":
        given["m"] = rng.standard_normal((B, 1, S, S)).astype(np.float32)
        names, domain, opset, own = ["q", "k", "v", "m", *nothing], "", 23, {}
    else:
        given |= {"last": np.full(B, S - 1, np.int32), "total": np.array(S, np.int32)}
        names, domain, opset = ["q", "k", "v", *nothing, "last", "total"], "com.microsoft", 21
        own = {"num_heads": H, "kv_num_heads": H}
    without = ["" if name in nothing else name for name in names]
    wanted = answers(kind, without, given, 3, domain, opset, **own)
    found = answers(kind, names, {**given, **nothing}, 3, domain, opset, **own)
    assert [(one.shape, one.tobytes()) for one in found] == [(one.shape, one.tobytes()) for one in wanted]
    assert found[1].shape == (B, H, S, D)


def test_a_mask_hides_no_less_than_what_comes_later() -> None:
    """ONNX Runtime's Attention: where a mask hides all earlier keys, later ones are seen no more than before."""
    rng = np.random.default_rng(8)
    given: dict[str, Any] = {"x": rng.standard_normal((1, 3, 7)).astype(np.float32)}
    given |= {"w": rng.standard_normal((7, 3 * H * D)).astype(np.float32), "m": np.array([[0, 0, 1]], np.int32)}
    q, k, v = (apart(one, H) for one in np.split(given["x"].astype(np.float64) @ given["w"], 3, 2))
    (found,) = answers("Attention", ["x", "w", "", "m"], given, 1, "com.microsoft", num_heads=H, unidirectional=1)
    added = np.where(np.arange(3) <= np.arange(3)[:, None], HIDDEN * (given["m"] == 0), -1e30)
    np.testing.assert_allclose(found, weighed(q, k, v, added), atol=1e-3)


def test_what_onnxs_attention_keeps_has_its_own_sizes() -> None:
    """Version 23 does not say the sizes of keys that are kept without earlier ones; DirectML's are those of batches of heads."""
    rng = np.random.default_rng(5)
    given = {name: rng.standard_normal((B, H, n, D)).astype(np.float32) for name, n in (("q", S), ("k", L), ("v", L))}
    found = answers("Attention", ["q", "k", "v"], given, 3, "", opset=23)
    for one, name in zip(found[1:], "kv", strict=True):
        assert np.array_equal(one, given[name])
    right = weighed(*(given[name].astype(np.float64) for name in "qkv"), 0.0)
    np.testing.assert_allclose(found[0], right.reshape(B, S, H, D).transpose(0, 2, 1, 3), atol=1e-5)
