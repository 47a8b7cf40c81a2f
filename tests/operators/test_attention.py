"""Attention: the contract's examples, PyTorch's word, rows in place, hostile lengths, and the same bits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Array, assert_same_bits, seeded
from support import run as run_apart

import tvmdml
from tvmdml import MultiheadAttention, MultiheadAttention1, dxdispatch, knobs
from tvmdml.compiler import CompiledOperator
from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.errors import InvalidArgument
from tvmdml.operators._accuracy import difference
from tvmdml.operators._attention_limited_fused import LimitedAttention
from tvmdml.operators._contract import Role
from tvmdml.operators._trial import OperatorTrial
from tvmdml.proof.conformance.cases.multihead_attention import attention
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

f32, i32, inf, nan = np.float32, np.int32, math.inf, math.nan
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


def normal(seed: int, *sizes: int) -> Array:
    return seeded(seed).standard_normal(sizes).astype(f32)


def heads_apart(x: Array, heads: int) -> Array:
    """{batch, heads, rows, channels}."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


# -- The contract's examples --------------------------------------------------------------------------------------

ONE = np.ones((1, 1, 1), f32)
KEYS, VALUES = (np.array(one, f32).reshape(1, 2, 1) for one in ([0, math.log(3)], [10, 20]))
EXAMPLES = [
    ("none", None, -1e4, 17.5, 1e-5),
    ("key_sequence_length", [[1]], -1e4, 10, 0),
    ("key_sequence_end_start", [[2], [1]], -1e4, 20, 0),
    ("key_sequence_length", [[0]], -1e4, 17.5, 1e-2),
    ("key_sequence_length", [[0]], -inf, 0, 0),
]


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("kind", "mask", "limit", "wanted", "error"), EXAMPLES)
def test_the_contracts_examples(kind: str, mask: Any, limit: float, wanted: float, error: float) -> None:
    given = {} if mask is None else {"mask": np.array(mask, i32)}
    found = tvmdml.multihead_attention(ONE, KEYS, VALUES, head_count=1, scale=1, mask_type=kind, mask_filter_value=limit, **given)
    np.testing.assert_allclose(found, np.full((1, 1, 1), wanted), atol=error)


@pytest.mark.full
def test_a_row_of_scores_that_are_all_minus_infinity_is_zero_whatever_the_values_are() -> None:
    values = np.array([nan, inf], f32).reshape(1, 2, 1)
    for rows in (1, 40):  # few rows, and a block of them
        query = np.repeat(ONE, rows, axis=1)
        found = tvmdml.multihead_attention(
            query, KEYS, values, None, None, None, None, np.zeros((1, 1), i32),
            head_count=1, mask_type="key_sequence_length", mask_filter_value=-inf,
        )  # fmt: skip
        assert_same_bits(found, np.zeros((1, rows, 1), f32))


@pytest.mark.full
def test_nan_in_a_row_makes_that_row_nan_and_no_other() -> None:
    for rows in (2, 40):
        query = np.repeat(ONE, rows, axis=1)
        query[0, 1] = nan
        found = tvmdml.multihead_attention(query, KEYS, VALUES, head_count=1)
        assert np.isnan(found[0, 1, 0])
        assert np.isfinite(np.delete(found, 1, axis=1)).all()
    keys = KEYS.copy()
    keys[0, 0] = nan
    assert np.isnan(tvmdml.multihead_attention(np.repeat(ONE, 40, axis=1), keys, VALUES, head_count=1)).all()


# -- PyTorch's word -----------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1, 7, 8, 8), (2, 3, 20, 33, 16, 24), (1, 2, 70, 130, 64, 64), (1, 4, 1, 300, 40, 64), (2, 2, 65, 64, 128, 20)]


@pytest.mark.some(8)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("masked", ["", "boolean", "lengths", "bias"])
def test_it_agrees_with_pytorch(sizes: tuple[int, ...], masked: str) -> None:
    torch = pytest.importorskip("torch")
    batch, heads, rows, total, channels, of_values = sizes
    q, k, v = (
        normal(1, batch, rows, heads * channels),
        normal(2, batch, total, heads * channels),
        normal(3, batch, total, heads * of_values),
    )
    added, given = np.zeros((batch, heads, rows, total), f32), {}
    if masked == "boolean":
        kept = seeded(4).integers(0, 2, (batch, 1, rows, total)).astype(i32)
        added, given = added + np.where(kept, 0, f32(-1e4)), {"mask": kept, "mask_type": "boolean"}
    elif masked == "lengths":
        lengths = np.array([[max(total - 5 * i - 1, 1) for i in range(batch)]], i32)
        kept = np.arange(total) < lengths.reshape(-1, 1, 1, 1)
        added, given = added + np.where(kept, 0, f32(-1e4)), {"mask": lengths, "mask_type": "key_sequence_length"}
    elif masked == "bias":
        added = normal(5, 1, heads, rows, total)
        given = {"attention_bias": added}
        added = np.broadcast_to(added, (batch, heads, rows, total))
    found = tvmdml.multihead_attention(q, k, v, head_count=heads, **given)
    own = [torch.from_numpy(heads_apart(one, heads).astype(np.float64)) for one in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*own, attn_mask=torch.from_numpy(added.astype(np.float64)))
    np.testing.assert_allclose(found, wanted.transpose(1, 2).reshape(found.shape).numpy(), **TOLERANCE)


@pytest.mark.some(5)
@pytest.mark.parametrize(("rows", "past", "room"), [(1, (9, 0), 12), (5, (3, 7), 12), (40, (0, 60), 100), (1, (300, 129), 301)])
@pytest.mark.parametrize(("heads", "joint"), [(4, 4), (4, 2), (6, 1)])
def test_rows_after_the_past_agree_with_pytorch(rows: int, past: tuple[int, ...], room: int, heads: int, joint: int) -> None:
    torch = pytest.importorskip("torch")
    batch, channels = len(past), 16
    q, k, v = normal(1, batch, rows, heads * channels), *(normal(i, batch, rows, joint * channels) for i in (2, 3))
    kept = [normal(i, batch, joint, room, channels) for i in (4, 5)]
    before = [one.copy() for one in kept]
    out = (np.empty_like(q), *kept)
    found = tvmdml.multihead_attention(
        q, k, v, past_key=kept[0], past_value=kept[1], past_sequence_lengths=np.array(past, i32),
        head_count=heads, key_value_head_count=joint, compute_present=True, out=out,
    )  # fmt: skip
    assert found.present_key is kept[0]
    for b, length in enumerate(past):
        whole = []
        for one, old, new in zip(kept, before, (k, v), strict=True):
            fresh = heads_apart(new, joint)[b]
            assert_same_bits(one[b, :, length : length + rows], fresh)  # only new rows are written
            assert_same_bits(one[b, :, :length], old[b, :, :length])
            assert_same_bits(one[b, :, length + rows :], old[b, :, length + rows :])
            whole.append(torch.from_numpy(np.concatenate([old[b, :, :length], fresh], axis=1).astype(np.float64)))
        mask = torch.from_numpy(np.tril(np.ones((rows, length + rows), bool), length))
        query = torch.from_numpy(heads_apart(q, heads)[b].astype(np.float64))
        wanted = torch.nn.functional.scaled_dot_product_attention(
            query[None], whole[0][None], whole[1][None], attn_mask=mask, enable_gqa=True
        )
        np.testing.assert_allclose(found.output[b], wanted[0].transpose(0, 1).reshape(rows, -1).numpy(), **TOLERANCE)


# -- Any layout, mask, size and length ----------------------------------------------------------------------------


@st.composite
def attentions(draw: Any) -> Any:
    cls = draw(st.sampled_from((MultiheadAttention, MultiheadAttention1)))
    way = draw(st.sampled_from(("apart", "query key", "key value", "all", "past")))
    joint = draw(st.integers(1, 3))
    group = draw(st.integers(1, 3)) if cls is MultiheadAttention1 and way in ("apart", "key value", "past") else 1
    channels = draw(st.sampled_from((1, 3, 8, 16, 20, 64)))
    of_values = channels if way in ("key value", "all") else draw(st.sampled_from((1, 8, 24, 64)))
    batch, rows = draw(st.integers(1, 3)), draw(st.sampled_from((1, 2, 5, 17, 33)))
    lengths = cls is MultiheadAttention1 and way != "past" and draw(st.booleans())
    same = lengths or way in ("query key", "all")
    new = 0 if way == "past" else rows if same else draw(st.sampled_from((1, 4, 50)))
    past = draw(st.sampled_from((1, 7, 60))) if way == "past" or draw(st.booleans()) else 0
    words = [word for word in ("bias", "positions") if draw(st.booleans())]
    words += ["past"] * (past > 0) + ["present"] * (lengths or draw(st.booleans())) + ["lengths"] * lengths
    room = new + draw(st.integers(0, 20)) if lengths else None
    mask = draw(st.sampled_from(MaskType))
    repeated = tuple(i for i in range(4) if draw(st.booleans())) if mask is MaskType.BOOLEAN else ()
    return attention(
        cls, draw(st.sampled_from(("float32", "float16"))), (batch, rows, new, past), (joint * group, joint), (channels, of_values),
        way, draw(st.sampled_from((3, 4, 5))), mask=mask, repeated=repeated, optional=" ".join(words), room=room,
        scale=draw(st.sampled_from((0.0, 0.25, -1.0))), filtered=draw(st.sampled_from((-inf, -1e4, 0.0, 2.0))),
    )  # fmt: skip


def is_the_references(desc: Any, target: Target, seed: int, low: int, high: int) -> None:
    """A kernel gives what the reference gives, for integers from ``low`` to below ``high``."""
    from tvmdml.proof.conformance.references import tried

    rng = np.random.default_rng(seed)

    def values(data_type: Any, sizes: tuple[int, ...]) -> Array:
        if data_type.is_float:
            return rng.standard_normal(sizes).astype(data_type.numpy)
        return rng.integers(low, high, sizes, dtype=data_type.numpy)

    assert not tried(desc, target, OperatorTrial(desc, (), values))


@pytest.mark.full
@given(attentions(), st.integers(0, 2**32 - 1))
def test_any_attention_is_as_the_reference_says(desc: Any, seed: int) -> None:
    is_the_references(desc, tvmdml.targets.resolve("cpu"), seed, -(2**31), 2**31 - 1)


@st.composite
def limits(draw: Any) -> Any:
    """Rows after earlier ones, with a window, a soft limit and sinks."""
    joint, group, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows, past = draw(st.sampled_from((1, 2, 5, 17, 40))), draw(st.sampled_from((0, 7, 60, 1100)))
    words = [word for word in ("bias", "positions") if draw(st.booleans())] + ["past"] * (past > 0) + ["present", "lengths"]
    channels, dtype = draw(st.sampled_from((1, 8, 20, 64))), draw(st.sampled_from(("float32", "float16")))
    room = max(past, rows) + draw(st.integers(0, 20))
    desc: Any = attention(
        MultiheadAttention1, dtype, (batch, rows, rows, past), (joint * group, joint),
        (channels, draw(st.sampled_from((channels, 24)))), optional=" ".join(words), room=room,
        scale=draw(st.sampled_from((0.25, -1.0))),
    )  # fmt: skip
    return LimitedAttention(
        **{field.name: getattr(desc, field.name) for field in desc.fields()},
        window=draw(st.sampled_from((0, 1, 3, 16, 200, 2**32 - 1))),
        softcap=draw(st.sampled_from((0.0, 1.5, 30.0))),
        sink_tensor=TensorDesc(dtype, (joint * group,)) if draw(st.booleans()) else None,
    )


@pytest.mark.full
@given(limits(), st.integers(0, 2**32 - 1))
def test_limits_are_as_the_reference_says(desc: Any, seed: int) -> None:
    is_the_references(desc, tvmdml.targets.resolve("cpu"), seed, -1, desc.sizes().total + 2)


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("rows", "past"), [(1, 700), (20, 10), (300, 0)])
def test_limits_are_those_of_the_reference_on_a_device(vulkan: Target, rows: int, past: int) -> None:
    words = "past " * bool(past) + "present lengths"
    desc: Any = attention(MultiheadAttention1, "float32", (2, rows, rows, past), (4, 2), (16, 16), optional=words, room=rows + past)
    fields = {field.name: getattr(desc, field.name) for field in desc.fields()}
    own = LimitedAttention(**fields, window=70, softcap=2.0, sink_tensor=TensorDesc("float32", (4,)))
    is_the_references(own, vulkan, 1, past - 5, past + 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"past_sequence_lengths_tensor": None, "output_present_key_tensor": None, "output_present_value_tensor": None},
            "past_seq",
        ),
        ({"softcap": -1.0}, "softcap"),
        ({"softcap": inf}, "softcap"),
        ({"sink_tensor": TensorDesc("float32", (5,))}, "sink_tensor"),
        ({"sink_tensor": TensorDesc("float16", (4,))}, "sink_tensor"),
    ],
)
def test_what_limits_do_not_allow(changed: Any, said: str) -> None:
    desc: Any = attention(MultiheadAttention1, s=(2, 5, 5, 0), heads=(4, 2), optional="present lengths", room=8)
    fields = {field.name: getattr(desc, field.name) for field in desc.fields()}
    with pytest.raises(InvalidArgument, match=f"FUSED_LIMITED_ATTENTION {said}"):
        LimitedAttention(**{**fields, "window": 3, "softcap": 0.0, **changed}).check()


HOSTILE = (-(2**31), -1, 0, 1, 5, 6, 2**31 - 1)


@pytest.mark.full
@pytest.mark.parametrize("kind", [kind for kind in MaskType if kind is not MaskType.NONE])
def test_a_mask_may_have_any_integers(kind: MaskType) -> None:
    desc = attention(MultiheadAttention, s=(2, 3, 6, 0), mask=kind)
    compiled = CompiledOperator(desc, tvmdml.targets.resolve("cpu"))
    names = [name for name, tensor in desc.tensors() if tensor is not None]
    arrays = {name: normal(i, *tensor.sizes) for i, (name, tensor) in enumerate(desc.tensors()) if tensor is not None}
    for seed in range(20):
        mask = seeded(seed).choice(np.array(HOSTILE, i32), desc.mask_tensor.sizes)  # type: ignore[attr-defined]
        arrays["mask_tensor"] = mask
        compiled(*(arrays.get(name) for name, _ in desc.tensors()))
        (wanted,) = desc.reference(*(arrays.get(name) for name, _ in desc.tensors(Role.INPUT)))
        assert not difference(arrays["output_tensor"], wanted), mask
    assert "mask_tensor" in names


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 4, 20])
def test_lengths_may_be_any_integers(rows: int) -> None:
    room = rows + 30
    own = [normal(i, 3, rows, 16) for i in range(3)]
    for lengths in ((-(2**31), -1, 31), (2**31 - 1, 30, 0), (29, 1, 2**20)):
        past = [normal(4 + i, 3, 2, room, 8) for i in range(2)]
        before = [one.copy() for one in past]
        out = (np.empty_like(own[0]), *past)
        found = tvmdml.multihead_attention(
            *own, past_key=past[0], past_value=past[1], past_sequence_lengths=np.array(lengths, i32),
            head_count=2, compute_present=True, out=out,
        )  # fmt: skip
        cut = np.clip(lengths, 0, 30)
        again = tvmdml.multihead_attention(
            *own,
            past_key=before[0],
            past_value=before[1],
            past_sequence_lengths=cut.astype(i32),
            head_count=2,
            compute_present=True,
        )
        assert_same_bits(found.output, again.output)
        for one, other in ((past[0], again.present_key), (past[1], again.present_value)):  # also behind the new rows
            assert_same_bits(one, other)
        for one, old, length in zip(past[0], before[0], cut, strict=True):
            assert_same_bits(np.delete(one, range(length, length + rows), 1), np.delete(old, range(length, length + rows), 1))


@pytest.mark.full
def test_rows_of_earlier_steps_may_be_only_where_rows_are_kept() -> None:
    desc = attention(MultiheadAttention1, s=(2, 2, 2, 0), heads=(2, 1), channels=(4, 4), optional="present lengths", room=9)
    arrays = {name: normal(i, *tensor.sizes) for i, (name, tensor) in enumerate(desc.tensors()) if tensor is not None}
    arrays["past_sequence_lengths_tensor"] = np.array([[[5, 2]]], i32)
    before = {name: array.copy() for name, array in arrays.items()}
    CompiledOperator(desc, tvmdml.targets.resolve("cpu"))(*(arrays.get(name) for name, _ in desc.tensors()))
    wanted = tvmdml.multihead_attention(
        *(before[f"{name}_tensor"] for name in ("query", "key", "value")),
        past_key=before["output_present_key_tensor"], past_value=before["output_present_value_tensor"],
        past_sequence_lengths=np.array([5, 2], i32), head_count=2, key_value_head_count=1, scale=0.5, compute_present=True,
    )  # fmt: skip
    assert_same_bits(arrays["output_tensor"], wanted.output)
    for b, length in enumerate((5, 2)):
        assert_same_bits(arrays["output_present_key_tensor"][b, :, : length + 2], wanted.present_key[b, :, : length + 2])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("rows", [1, 5])
def test_rows_behind_the_new_ones_are_the_pasts_or_0(target: Target, rows: int) -> None:
    """All that is kept is written: before, memory that nobody wrote was seen."""
    desc = attention(
        MultiheadAttention1, s=(2, rows, rows, 4), heads=(2, 1), channels=(4, 4), optional="past present lengths", room=9
    )
    inputs = {name: normal(i, *tensor.sizes) for i, (name, tensor) in enumerate(desc.tensors(Role.INPUT)) if tensor is not None}
    inputs["past_sequence_lengths_tensor"] = np.array([0, 3], i32).reshape(inputs["past_sequence_lengths_tensor"].shape)
    (_, *kept) = run_apart(desc, target, *(inputs.get(name) for name, _ in desc.tensors(Role.INPUT)))
    for part, one in zip(("key", "value"), kept, strict=True):
        new = inputs[f"{part}_tensor"]
        for b, length in enumerate((0, 3)):
            wanted = np.zeros(one.shape[1:], f32)
            wanted[:, :4] = inputs[f"past_{part}_tensor"][b]
            wanted[:, length : length + rows] = new.reshape(-1, rows, new.shape[-1])[b]
            assert_same_bits(one[b], wanted)


# -- The same bits, other results ---------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("sizes", [(1, 3, 90, 200, 64), (1, 2, 1, 3000, 64), (2, 4, 2, 700, 20)])
def test_bits_do_not_depend_on_the_number_of_tasks(sizes: tuple[int, ...]) -> None:
    batch, heads, rows, total, channels = sizes
    desc = attention(MultiheadAttention, s=(batch, rows, total, 0), heads=(heads, heads), channels=(channels, channels))
    arrays = {name: normal(i, *tensor.sizes) for i, (name, tensor) in enumerate(desc.tensors()) if tensor is not None}
    found = []
    for least in (1 << 10, 1 << 23):  # many tasks, and one
        for each in (1, 8):
            with knobs.using(attention={"task_products": least, "tasks_per_thread": each}):
                CompiledOperator(desc, tvmdml.targets.resolve("cpu"))(*(arrays.get(name) for name, _ in desc.tensors()))
            found.append(arrays["output_tensor"].copy())
    for one in found[1:]:
        assert_same_bits(found[0], one)


def test_no_kernel_keeps_the_scores_of_all_rows() -> None:
    from tvmdml.library.scheduling import kernel_for

    target: Target = tvmdml.targets.resolve("cpu")
    for rows in (1, 4096):
        desc = attention(MultiheadAttention, s=(1, rows, 4096, 0), heads=(2, 2), channels=(64, 64))
        held = sum(count * np.dtype(kind).itemsize for kind, count in kernel_for(desc, target).temporaries)
        assert held < (8 << 20) * max(1, target.tasks()), held


@pytest.mark.full
@pytest.mark.parametrize("dtype", [f32, np.float16])
def test_it_has_the_same_result_on_a_device(vulkan: Target, dtype: Any) -> None:
    own = [normal(i, 1, 33, 64).astype(dtype) for i in range(3)]
    found = tvmdml.multihead_attention(*own, head_count=4, device=vulkan.name)
    np.testing.assert_allclose(found, tvmdml.multihead_attention(*own, head_count=4), rtol=1e-3, atol=1e-3)


def decoding(cls: Any, past: int, mask: MaskType, heads: tuple[int, int] = (4, 4)) -> Any:
    """A row after some, which are kept with it."""
    return attention(
        cls, "float32", (1, 1, 1, past), heads, (16, 16), "apart", 4, mask=mask, optional="past present positions"
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("cls", [MultiheadAttention, MultiheadAttention1])
def test_one_kernel_serves_the_past_however_long_it_becomes(target: Target, cls: Any) -> None:
    from tvmdml.library.scheduling import kernel_for

    for mask in MaskType:
        for own in (range(1, 131), range(5000, 5003)):
            assert len({kernel_for(decoding(cls, past, mask), target).identity for past in own}) == 1


def test_one_kernel_serves_a_few_query_rows_however_many() -> None:
    """One row has a kernel of its own: words are one by one, but what a program is told is of any length."""
    from tvmdml.library.scheduling import kernel_for

    found = {}
    for rows in range(1, 9):
        desc = attention(MultiheadAttention1, s=(1, rows, rows, 40), optional="past present lengths", room=40, heads=(2, 2))
        kernel = kernel_for(desc, tvmdml.targets.resolve("cpu"))
        found.setdefault((kernel.name, kernel.identity), []).append(rows)
    assert list(found.values())[:2] in ([[1], list(range(2, 9))], [[1], [2, 3, 4]])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("past", [130, 700])
def test_a_long_past_is_done_in_parts_on_a_device(device: Target, past: int) -> None:
    from tvmdml.library.scheduling import kernel_for
    from tvmdml.proof.conformance.references import tried

    def values(data_type: Any, sizes: tuple[int, ...]) -> Array:
        if data_type.is_float:
            return normal(6, *sizes).astype(data_type.numpy)
        return seeded(7).integers(0, past, sizes, dtype=data_type.numpy)

    with knobs.using(attention={"part_keys": 64}):
        desc = decoding(MultiheadAttention1, past, MaskType.KEY_SEQUENCE_LENGTH, (4, 2))
        assert kernel_for(desc, device).name == "parts"
        assert not tried(desc, device, OperatorTrial(desc, (), values))


@pytest.mark.full
def test_the_function_chooses_the_operator_and_says_what_is_wrong() -> None:
    q, k = normal(1, 1, 4, 32), normal(2, 1, 4, 16)
    assert tvmdml.multihead_attention(q, k, k, head_count=4, key_value_head_count=2).shape == q.shape
    result = tvmdml.multihead_attention(q, q, q, head_count=4, compute_present=True)
    assert_same_bits(result.present_key, heads_apart(q, 4))
    with pytest.raises(InvalidArgument, match=r"^tvmdml\.multihead_attention: query: given None; allowed: an array"):
        tvmdml.multihead_attention(None, head_count=1)
    with pytest.raises(InvalidArgument, match=r"attention_bias.*can be broadcast"):
        tvmdml.multihead_attention(q, q, q, attention_bias=normal(3, 3, 4), head_count=4)
    with pytest.raises(InvalidArgument, match=r"past_sequence_lengths: given without past_key"):
        tvmdml.multihead_attention(q, q, q, past_sequence_lengths=np.zeros(1, i32), head_count=4)


def test_no_keys_at_all_give_zeros() -> None:
    none = np.zeros((2, 0, 8), f32)
    assert_same_bits(tvmdml.multihead_attention(normal(1, 2, 3, 8), none, none, head_count=2), np.zeros((2, 3, 8), f32))
    assert tvmdml.multihead_attention(none, normal(1, 2, 3, 8), normal(2, 2, 3, 8), head_count=2).shape == (2, 0, 8)


@pytest.mark.parametrize("name", ["RelativePositionBiasTensor", "AttentionBiasTensor"])
def test_a_model_may_name_what_is_added_to_scores_in_both_ways(name: str, tmp_path: Path) -> None:
    def tensor(*sizes: int) -> dict[str, Any]:
        return {"DataType": "FLOAT32", "Sizes": list(sizes)}

    def resource(values: list[float]) -> dict[str, Any]:
        return {"initialValuesDataType": "FLOAT32", "initialValues": values}

    three = {"QueryTensor": 1, "KeyTensor": 2, "ValueTensor": 2}
    desc = {field: tensor(1, count, 1) for field, count in three.items()}
    more = {"Scale": 1.0, "MaskFilterValue": 0.0, "HeadCount": 1, "MaskType": "NONE"}
    model = {
        "resources": {
            "q": resource([1]), "k": resource([0, 0]), "v": resource([10, 20]), "y": resource([0]),
            "b": resource([0, -math.log(3)]),
        },
        "dispatchables": {
            "a": {
                "type": "DML_OPERATOR_MULTIHEAD_ATTENTION",
                "desc": {**desc, name: tensor(1, 1, 1, 2), "OutputTensor": tensor(1, 1, 1), **more},
            }
        },
        "commands": [
            {
                "type": "dispatch", "dispatchable": "a",
                "bindings": {"QueryTensor": "q", "KeyTensor": "k", "ValueTensor": "v", name: "b", "OutputTensor": "y"},
            },
            {"type": "print", "resource": "y"},
        ],
    }  # fmt: skip
    path = tmp_path / "model.json"
    path.write_text(json.dumps(model))
    said: list[str] = []
    dxdispatch.read(path).run(output_path=tmp_path, overwrite=True, write=said.append)
    assert "12.5" in "".join(said)
