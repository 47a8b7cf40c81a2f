"""The operators of ``operators/multihead_attention.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.operators import Operator
from tvmdml.operators._attention_masks import mask_sizes
from tvmdml.operators._attention_steps import AttentionSizes
from tvmdml.operators.multihead_attention import MultiheadAttention, MultiheadAttention1
from tvmdml.proof.conformance.cases._common import LAYOUTS, Broken, Case, change, in_place
from tvmdml.tensors import TensorDesc as T

_APART = ("query", "key", "value")


def attention(
    cls: Any,
    dtype: Any = "float32",
    s: tuple[int, int, int, int] = (2, 5, 7, 0),
    heads: tuple[int, int] = (3, 3),
    channels: tuple[int, int] = (4, 4),
    way: str = "apart",
    rank: int = 3,
    low: int = 0,
    mask: MaskType = MaskType.NONE,
    repeated: tuple[int, ...] = (),
    optional: str = "",
    room: int | None = None,
    layouts: dict[str, str] | None = None,
    scale: float = 0.5,
    filtered: float = -10000.0,
) -> Operator:
    """An attention of batches, query rows, new keys and earlier keys.

    Args:
        cls: the class.
        dtype: the type.
        s: batches, query rows, new keys, earlier keys.
        heads: those of queries, and those of keys.
        channels: those of keys, and those of values.
        way: ``apart``, ``query key``, ``key value``, ``all`` (stacked), or ``past`` for earlier keys alone.
        rank: the rank of tensors that may have others.
        low: that of the bias, of lengths, and of a mask that may have it, if another one.
        mask: the mask's type.
        repeated: the dimensions along which a mask of truth values is repeated.
        optional: which optional tensors there are: ``bias``, ``positions``, ``past``, ``present``, ``lengths``, as words.
        room: the rows of the tensors in which rows are kept, with lengths.
        layouts: of tensors, by name.
        scale: the factor of scores.
        filtered: what is added to scores of keys that a mask does not keep.
    """
    (batch, rows, new, past), (n, joint), (h, v) = s, heads, channels
    words, lengths = optional.split(), "lengths" in optional
    total = room if room is not None else past + new
    plain, kept = (1,) * (rank - 3), (1,) * max(rank - 4, 0)
    values: dict[str, Any] = {field.name: None for field in cls.fields()}
    if way in ("apart", "key value", "past"):
        values["query_tensor"] = (*plain, batch, rows, n * h)
    if way == "apart":
        values["key_tensor"] = (*plain, batch, new, joint * h)
    if way in ("apart", "query key"):
        values["value_tensor"] = (*plain, batch, new, joint * v)
    if way == "query key":
        values["stacked_query_key_tensor"] = (batch, rows, n, 2, h)
    if way == "key value":
        values["stacked_key_value_tensor"] = (batch, new, joint, 2, h)
    if way == "all":
        values["stacked_query_key_value_tensor"] = (batch, rows, n, 3, h)
    if "bias" in words:
        values["bias_tensor"] = (*(1,) * ((low or rank) - 1), (n + joint) * h + joint * v)
    if "positions" in words:
        values[cls.POSITIONS] = (*kept, batch, n, rows, total)
    if "past" in words:
        values |= {"past_key_tensor": (*kept, batch, joint, past, h), "past_value_tensor": (*kept, batch, joint, past, v)}
    if "present" in words:
        values["output_present_key_tensor"] = (*kept, batch, joint, total, h)
        values["output_present_value_tensor"] = (*kept, batch, joint, total, v)
    values["output_tensor"] = (*plain, batch, rows, n * v)
    for name, sizes in values.items():
        if sizes is not None:
            values[name] = T(dtype, sizes, LAYOUTS[(layouts or {}).get(name, "packed")](sizes))
    if mask is not MaskType.NONE:
        sizes = mask_sizes(mask, AttentionSizes(batch, rows, new, past, total, n, joint, h, v))
        steps = LAYOUTS["packed"](sizes)
        if repeated:
            own, step = [], 1
            for i, size in reversed(list(enumerate(sizes))):
                own.append(0 if i in repeated else step)
                step *= 1 if i in repeated else size
            steps = tuple(reversed(own))
        sizes = sizes[-low:] if low and mask is MaskType.KEY_SEQUENCE_LENGTH else sizes
        extra = max((low or rank) - len(sizes), 0) if not repeated else 0
        values["mask_tensor"] = T("int32", (*(1,) * extra, *sizes), steps and (*(0,) * extra, *steps))
    if lengths:
        values["past_sequence_lengths_tensor"] = T("int32", (*(1,) * ((low or rank) - 1), batch))
    counts = {"head_count": n} if cls is MultiheadAttention else {"query_head_count": n, "key_value_head_count": joint}
    return cls(**{**values, **counts, "scale": scale, "mask_filter_value": filtered, "mask_type": mask})


def _described(cls: Any, x: T) -> Operator:
    """Of the rank and type of a tensor of queries. Other ranks and types are refused by the tables."""
    desc = attention(cls, rank=min(max(x.rank, 3), 5))
    size = {name: tensor for name, tensor in desc.tensors() if tensor is not None}
    if not 3 <= x.rank <= 5:
        return change(desc, query_tensor=T(x.data_type, (*(1,) * (x.rank - 3), 2, 5, 12)[-x.rank :]))()
    return change(desc, **{name: T(x.data_type, tensor.sizes) for name, tensor in size.items()})()


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {
    cls: partial(_described, cls) for cls in (MultiheadAttention, MultiheadAttention1)
}


def _broken(cls: Any) -> dict[str, Broken]:
    good, name = attention(cls), cls.NAME
    heads = "head_count" if cls is MultiheadAttention else "query_head_count"
    ways = (
        "query_tensor + key_tensor + value_tensor; value_tensor + stacked_query_key_tensor; "
        "query_tensor + stacked_key_value_tensor; stacked_query_key_value_tensor; or query_tensor with the past"
    )
    masked = attention(cls, mask=MaskType.BOOLEAN)
    kept = attention(cls, s=(2, 5, 7, 3), optional="past present")
    alone = "query_tensor + value_tensor"
    return {
        f"{name} without keys": Broken(change(good, key_tensor=None), f"{name} query_tensor", alone, ways),
        f"{name} with keys twice": Broken(
            change(good, stacked_key_value_tensor=T("float32", (2, 7, 3, 2, 4))),
            *(f"{name} query_tensor", "query_tensor + key_tensor + value_tensor + stacked_key_value_tensor", ways),
        ),
        f"{name} without heads": Broken(change(good, **{heads: 0}), f"{name} {heads}", "0", "1 or more"),
        f"{name} with heads that do not divide": Broken(
            change(good, query_tensor=T("float32", (2, 5, 13))),
            *(f"{name} query_tensor.sizes", "(2, 5, 13)", "a multiple of 3 channels, one part for each head"),
        ),
        f"{name} with other key channels": Broken(
            change(good, key_tensor=T("float32", (2, 7, 15))),
            *(f"{name} key_tensor.sizes", "(2, 7, 15)", "4 channels for each head"),
        ),
        f"{name} with other batches": Broken(
            change(good, key_tensor=T("float32", (3, 7, 12))),
            *(f"{name} key_tensor.sizes", "(3, 7, 12)", "2 batches, as in query_tensor"),
        ),
        f"{name} with fewer values": Broken(
            change(good, value_tensor=T("float32", (2, 6, 12))),
            *(f"{name} value_tensor.sizes", "(2, 6, 12)", "7 rows, as the keys have"),
        ),
        f"{name} with a leading size": Broken(
            change(good, query_tensor=T("float32", (2, 2, 5, 12))),
            *(f"{name} query_tensor.sizes", "(2, 2, 5, 12)", "1 before the last 3"),
        ),
        f"{name} of two types": Broken(
            change(good, key_tensor=T("float16", (2, 7, 12))),
            *(f"{name} key_tensor.data_type", "float16", "float32, as in query_tensor"),
        ),
        f"{name} to other sizes": Broken(
            change(good, output_tensor=T("float32", (2, 5, 13))), f"{name} output_tensor.sizes", "(2, 5, 13)", "(2, 5, 12)"
        ),
        f"{name} with a short bias": Broken(
            change(good, bias_tensor=T("float32", (35,))), f"{name} bias_tensor.sizes", "(35,)", "(36,)"
        ),
        f"{name} with positions of other keys": Broken(
            change(good, **{cls.POSITIONS: T("float32", (2, 3, 5, 6))}),
            *(f"{name} {cls.POSITIONS}.sizes", "(2, 3, 5, 6)", "(2, 3, 5, 7)"),
        ),
        f"{name} with a mask of no type": Broken(
            change(masked, mask_type="none"),
            *(f"{name} mask_type", "'none', with a mask", "'none' without mask_tensor, and another type with it"),
        ),
        f"{name} without a mask of a type": Broken(
            change(masked, mask_tensor=None),
            *(f"{name} mask_type", "'boolean', no mask", "'none' without mask_tensor, and another type with it"),
        ),
        f"{name} with a mask of one head": Broken(
            change(masked, mask_tensor=T("int32", (2, 1, 5, 7))),
            *(f"{name} mask_tensor.sizes", "(2, 1, 5, 7)", "(2, 3, 5, 7)"),
        ),
        f"{name} with keys of the past alone": Broken(
            change(kept, past_value_tensor=None), f"{name} past_value_tensor", "None", "a tensor, as there is past_key_tensor"
        ),
        f"{name} that keeps keys alone": Broken(
            change(kept, output_present_value_tensor=None),
            *(f"{name} output_present_value_tensor", "None", "a tensor, as there is output_present_key_tensor"),
        ),
        f"{name} that keeps fewer rows": Broken(
            change(kept, output_present_key_tensor=T("float32", (2, 3, 9, 4))),
            *(f"{name} output_present_key_tensor.sizes", "(2, 3, 9, 4)", "(2, 3, 10, 4)"),
        ),
        f"{name} of queries alone": Broken(
            change(good, key_tensor=None, value_tensor=None),
            *(f"{name} past_key_tensor", "None", "a tensor, if there are no new keys"),
        ),
    }


def _broken_lengths() -> dict[str, Broken]:
    name = MultiheadAttention1.NAME
    good = attention(MultiheadAttention1, s=(2, 5, 5, 0), optional="present lengths", room=8)
    return {
        "MULTIHEAD_ATTENTION1 with lengths that keeps nothing": Broken(
            change(good, output_present_key_tensor=None, output_present_value_tensor=None),
            *(f"{name} output_present_key_tensor", "None", "a tensor, with past_sequence_lengths_tensor"),
        ),
        "MULTIHEAD_ATTENTION1 with lengths and more keys": Broken(
            change(good, key_tensor=T("float32", (2, 6, 12)), value_tensor=T("float32", (2, 6, 12))),
            *(f"{name} past_sequence_lengths_tensor", "5 query rows, 6 keys", "as many query rows as new keys"),
        ),
        "MULTIHEAD_ATTENTION1 with lengths of other batches": Broken(
            change(good, past_sequence_lengths_tensor=T("int32", (3,))),
            *(f"{name} past_sequence_lengths_tensor.sizes", "(3,)", "(2,)"),
        ),
        "MULTIHEAD_ATTENTION1 with heads of keys that do not divide": Broken(
            change(good, key_value_head_count=2),
            *(f"{name} query_head_count", "3", "a multiple of 2, the key_value_head_count"),
        ),
    }


BROKEN: dict[str, Broken] = {**_broken(MultiheadAttention), **_broken(MultiheadAttention1), **_broken_lengths()}

_TYPES = tuple(kind for kind in MaskType if kind is not MaskType.NONE)
_LONG = ((1, 64, 64, 0), (1, 40, 130, 0), (2, 70, 70, 0), (1, 1, 1, 300), (2, 3, 3, 61))
"""Batches, query rows, new keys, earlier keys."""


def reference(cls: type[Operator]) -> Iterator[Case]:
    """All ways and masks; sizes around those of blocks; everything optional."""
    make = partial(attention, cls)
    grouped = cls is MultiheadAttention1
    everything = "bias positions past present"
    for i, way in enumerate(("apart", "query key", "key value", "all", "past")):
        square = (2, 7, 7, 3)
        own = (2, 5, 0, 9) if way == "past" else square
        for dtype in ("float32", "float16"):
            past = "past present" if way != "past" else "past"
            yield Case(make(dtype, own, way=way, rank=3 + i % 3, optional=past), "factors")
            yield Case(make(dtype, own, way=way, rank=5 - i % 3, optional=f"bias positions {past}"), "factors")
    for mask in _TYPES:
        for rank, dtype in ((5, "float32"), (4, "float16")):
            yield Case(make(dtype, (3, 5, 6, 0), mask=mask, rank=rank), "factors")
        yield Case(make(s=(2, 17, 40, 3), mask=mask, optional=everything, filtered=float("-inf")), "factors")
    for repeated in ((0, 1), (1, 2), (1,), (0, 1, 2, 3)):
        yield Case(make(s=(2, 9, 20, 0), mask=MaskType.BOOLEAN, repeated=repeated), "factors")
    for low in (1, 2):
        yield Case(make(s=(2, 5, 7, 0), low=low, mask=MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END, optional="bias"), "factors")
        yield Case(make("float16", (2, 5, 7, 0), low=low, mask=MaskType.KEY_SEQUENCE_LENGTH, optional="bias"), "factors")
    for s in _LONG:
        for j, channels in enumerate(((64, 64), (20, 36), (128, 128))):
            optional = "past present" * bool(s[3])
            heads = (4, 2) if grouped and j else (2, 2)
            yield Case(make("float16" if j == 1 else "float32", s, heads, channels, optional=optional, scale=0.125), "factors")
    yield Case(make(s=(1, 96, 257, 0), heads=(4, 1 if grouped else 4), channels=(64, 64), scale=0.125), "factors")
    yield Case(make(s=(1, 70, 70, 0), channels=(8, 8), optional="positions"), "factors")
    for fill in ("normal", "constant", "zeros", "mixed", "special"):
        yield Case(make(s=(2, 5, 20, 0)), fill)
        yield Case(make("float16", (2, 3, 4, 2), optional=everything), fill)
    layouts = {"query_tensor": "padded", "key_tensor": "transposed", "value_tensor": "spread", "output_tensor": "transposed"}
    more = {"past_key_tensor": "outer repeated", "past_value_tensor": "inner repeated", "output_present_key_tensor": "padded"}
    yield Case(make(layouts=layouts, rank=4), "factors")
    yield Case(make("float16", (2, 20, 33, 5), optional=everything, layouts={**layouts, **more}), "factors")
    yield Case(make(layouts={"query_tensor": "outer repeated", "key_tensor": "inner repeated", "bias_tensor": "spread"}), "factors")
    yield Case(make(s=(1, 1, 1, 0), heads=(1, 1), channels=(1, 1)), "factors")
    if grouped:
        yield from _lengths()


def _lengths() -> Iterator[Case]:
    make = partial(attention, MultiheadAttention1)
    for i, (heads, s, room) in enumerate(
        (((4, 2), (2, 1, 1, 9), 9), ((3, 1), (3, 4, 4, 12), 12), ((2, 2), (2, 5, 5, 0), 5), ((4, 2), (2, 1, 1, 200), 200))
    ):
        past = "past " * bool(s[3])
        for dtype in ("float32", "float16"):
            desc = make(dtype, s, heads, (8, 12), rank=3 + i % 3, optional=f"{past}present lengths", room=room)
            yield Case(desc, "factors")
            yield from in_place(desc, "factors")
    wide = make(s=(2, 40, 40, 100), heads=(4, 2), channels=(64, 64), optional="bias positions past present lengths", room=120)
    yield Case(wide, "factors")
    for low in (1, 2):
        yield Case(make(s=(3, 2, 2, 0), low=low, optional="present lengths", room=2 + low), "factors")
    yield Case(make(s=(2, 3, 3, 4), way="all", optional="past present lengths", room=9), "factors")
    for mask in _TYPES:
        yield Case(make(s=(2, 6, 6, 20), mask=mask, optional="past present lengths", room=20), "factors")
