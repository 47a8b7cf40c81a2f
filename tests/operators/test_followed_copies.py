"""Operators that move elements, and attention, with pointwise operators behind them: the bits of the operators one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from followers import FOLLOWERS, agrees, as_bytes, as_floats, scaled
from support import tensor

import tvmdml
from tvmdml import InvalidArgument, TensorDesc, operators, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.library import lines
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import _attention_fused, _movement_fused
from tvmdml.operators._following import follow
from tvmdml.targets import Target

Draw = Callable[..., list[Any]]


def image(channels: int = 8, dtype: str = "float32", layout: str = "packed") -> TensorDesc:
    return tensor(dtype, (2, channels, 6, 40), layout)


def indices(*sizes: int) -> TensorDesc:
    return TensorDesc("int32", sizes)


def attention(rows: int, keys: int, shared: int = 0, channels: int = 16, dtype: str = "float32") -> Any:
    query, kept = TensorDesc(dtype, (2, rows, 4 * channels)), TensorDesc(dtype, (2, keys, (shared or 4) * channels))
    cls = tvmdml.MultiheadAttention1 if shared else tvmdml.MultiheadAttention
    heads = {"query_head_count": 4, "key_value_head_count": shared} if shared else {"head_count": 4}
    given = {"query_tensor": query, "key_tensor": kept, "value_tensor": kept, "scale": 0.25, "mask_filter_value": -1e4}
    names = [name for name, _ in cls.fused(**heads, scale=1, mask_filter_value=0, mask_type="none").tensors()]
    absent = {name: None for name in names if name not in given}
    return cls(**{**absent, **given, **heads, "mask_type": "none", "output_tensor": query})


WINDOW: dict[str, Any] = {"input_window_offsets": [0, 1, 1, 3], "input_window_sizes": [2, 6, 5, 30]}
PADS: dict[str, Any] = {"start_padding": [0, 0, 1, 2], "end_padding": [0, 0, 1, 3], "padding_value": 1.5}
HEADS: dict[str, Callable[[], Any]] = {
    "slice": lambda: tvmdml.Slice.of(image(), offsets=[0, 1, 1, 3], sizes=[2, 6, 5, 30], strides=[1, 1, 1, 1]),
    "slice backwards": lambda: tvmdml.Slice1.of(image(layout="padded"), **WINDOW, input_window_strides=[1, -1, 2, -3]),
    "padding": lambda: tvmdml.Padding.of(image(), **{**PADS, "padding_mode": "constant"}),
    "reflection": lambda: tvmdml.Padding1.of(image(), **{**PADS, "padding_value": 1}, padding_mode="reflection"),
    "tile": lambda: tvmdml.Tile.of(image(), repeats=[1, 2, 1, 3]),
    "join": lambda: tvmdml.Join.of([image(3), image(5), image(1)], axis=1),
    "join of columns": lambda: tvmdml.Join.of([image(3), image(3)], axis=3),
    "reversed": lambda: tvmdml.ReverseSubsequences.of(image(), TensorDesc("uint32", (2, 8, 6, 1)), axis=3),
    "repeated": lambda: tvmdml.Upsample2d.of(image(), scale_size=(2, 3), interpolation_mode="nearest_neighbor"),
    "columns": lambda: tvmdml.Unfold.of(
        image(), window_sizes=[3, 3], strides=[1, 1], dilations=[1, 1], start_padding=[1, 1], end_padding=[1, 1]
    ),
    "one of many": lambda: tvmdml.OneHot.of(
        indices(4, 6, 1), TensorDesc("float32", (1, 1, 2)), axis=2, output_tensor=TensorDesc("float32", (4, 6, 40))
    ),
    "rows": lambda: tvmdml.Gather.of(tensor("float32", (9, 50)), indices(1, 7), axis=0, index_dimensions=1),
    "picked": lambda: tvmdml.Gather.of(tensor("float32", (9, 50)), indices(1, 70), axis=1, index_dimensions=1),
    "elements": lambda: tvmdml.GatherElements.of(tensor("float32", (9, 50)), indices(9, 70), axis=1),
    "blocks": lambda: tvmdml.DepthToSpace1.of(image(), block_size=2, order="column_row_depth"),
    "blocks of depths": lambda: tvmdml.DepthToSpace.of(image(), block_size=2),
    "depth": lambda: tvmdml.SpaceToDepth1.of(image(), block_size=2, order="depth_column_row"),
    "depths": lambda: tvmdml.SpaceToDepth.of(image(dtype="float16"), block_size=2),
    "attention": lambda: attention(40, 70),
    "attention of few": lambda: attention(3, 90, shared=2),
    "attention, odd": lambda: attention(33, 20, channels=5, dtype="float16"),
}


@pytest.mark.full
@pytest.mark.some(8)
@pytest.mark.parametrize("name", HEADS)
def test_what_follows(name: str, draw: Draw) -> None:
    head = HEADS[name]()
    cpu = targets.resolve("cpu")
    for follower in draw((*FOLLOWERS, as_bytes, as_floats), 2):
        desc = agrees(head, follower(head.output_tensor), cpu, name)
        assert kernel_for(desc, cpu).name == kernel_for(head, cpu).name
        assert lines.read(lines.of(desc), "a line") == desc
        desc.validate(NEWEST_FEATURE_LEVEL)
        assert operators.by_name(desc.NAME) is type(desc)


@pytest.mark.full
def test_each_float16_is_rounded_where_processors_compute_with_them() -> None:
    """A product of scalars, and then a sum: instructions of float16 would fuse them."""
    head = HEADS["attention, odd"]()
    agrees(head, scaled(head.output_tensor), targets.resolve("cpu"))


@pytest.mark.full(first=1)
@pytest.mark.drawn("name", HEADS, 4)
def test_what_follows_on_devices(device: Target, name: str, draw: Draw) -> None:
    head = HEADS[name]()
    for follower in draw((*FOLLOWERS, as_bytes)):
        agrees(head, follower(head.output_tensor), device, name, bits=False)


def test_every_class_is_tried() -> None:
    tried = {type(make()) for make in HEADS.values()}
    every = {one.HEAD for one in (*_movement_fused.CLASSES, *_attention_fused.CLASSES)}
    assert {one.NAME for one in every - tried} == {"GATHER_ND", "GATHER_ND1"}  # their rules are those of GATHER


def test_what_computes_elements_is_not_followed() -> None:
    head = tvmdml.Upsample2d.of(image(), scale_size=(2, 3), interpolation_mode="linear")
    with pytest.raises(InvalidArgument, match="computes elements"):
        follow(head, [tvmdml.ActivationRelu.of(head.output_tensor)], [[0]])
    rows = attention(3, 9, shared=2)
    kept = TensorDesc("float32", (2, 2, 9, 16))
    more = type(rows)(
        **{f.name: getattr(rows, f.name) for f in rows.fields() if "present" not in f.name},
        output_present_key_tensor=kept, output_present_value_tensor=kept,
    )  # fmt: skip
    with pytest.raises(InvalidArgument, match="one result"):
        follow(more, [tvmdml.ActivationRelu.of(more.output_tensor)], [[0]])
