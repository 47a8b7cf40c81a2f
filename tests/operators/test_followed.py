"""Products and convolutions with pointwise operators behind them give the bits of the operators one by one."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from followers import FOLLOWERS, Follower, agrees, as_bytes, as_floats, gate, ordinary, residual, scaled
from hypothesis import given
from support import seeded, tensor

import tvmdml
from tvmdml import InvalidArgument, TensorDesc, operators, packs, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.kernels import launched
from tvmdml.library import lines
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._following import FAMILIES, follow, followed
from tvmdml.operators._pointwise_fused import Result
from tvmdml.targets import Target

Draw = Callable[..., list[Any]]


def convolution(
    dtype: str = "float32", channels: int = 8, filters: int = 12, size: tuple[int, ...] = (9, 9), kernel: int = 3, groups: int = 1,
    stride: int = 1, layout: str = "packed", result: str = "packed", bias: bool = True, **more: Any,
) -> Any:  # fmt: skip
    k = len(size)
    x = tensor(dtype, (2, channels, *size), layout)
    w = TensorDesc(dtype, (filters, channels // groups, *[kernel] * k))
    b = TensorDesc(dtype, (1, filters, *[1] * k)) if bias else None
    pad = [kernel // 2] * k
    given = {
        "mode": "cross_correlation", "direction": "forward", "strides": [stride] * k, "dilations": [1] * k, "start_padding": pad,
        "end_padding": pad, "output_padding": [0] * k, "group_count": groups, "fused_activation": None, **more,
    }  # fmt: skip
    found: Any = tvmdml.Convolution.of(x, w, b, **given)
    sizes = found.output_tensor.sizes
    return tvmdml.Convolution(
        **{field.name: getattr(found, field.name) for field in found.fields() if field.name != "output_tensor"},
        output_tensor=tensor(dtype, sizes, result),
    )


def last(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an image whose channels are last."""
    strides, step = {}, 1
    for i in (1, *range(len(sizes) - 1, 1, -1), 0):
        strides[i] = step
        step *= sizes[i]
    return tuple(strides[i] for i in range(len(sizes)))


def channels_last(dtype: str = "float32") -> Any:
    own: Any = convolution(dtype, 8, 8, groups=8)
    x, y = (TensorDesc(dtype, one.sizes, last(one.sizes)) for one in (own.input_tensor, own.output_tensor))
    return tvmdml.Convolution(
        **{f.name: getattr(own, f.name) for f in own.fields() if f.name not in ("input_tensor", "output_tensor")},
        input_tensor=x, output_tensor=y,
    )  # fmt: skip


def gemm(dtype: str, rows: int, depth: int, columns: int, c: bool = False, **more: Any) -> Any:
    a, b = TensorDesc(dtype, (1, 2, rows, depth)), TensorDesc(dtype, (1, 2, depth, columns))
    addend = TensorDesc(dtype, (1, 2, rows, columns), (0, 0, 0, 1)) if c else None
    return tvmdml.Gemm.of(a, b, addend, **{"trans_a": "none", "trans_b": "none", "alpha": 0.5, "beta": 2.0, **more})


CONVOLUTIONS: dict[str, tuple[str, Callable[[], Any]]] = {
    "direct": ("direct", convolution),
    "direct, whole rows": ("direct", lambda: convolution(size=(4, 40))),
    "direct, stride": ("direct", lambda: convolution(stride=2)),
    "direct, one dimension": ("direct", lambda: convolution(size=(50,), bias=False)),
    "direct, three dimensions": ("direct", lambda: convolution(size=(4, 5, 6), filters=3)),
    "direct, groups": ("direct", lambda: convolution(groups=2)),
    "direct, padded result": ("direct", lambda: convolution(result="padded")),
    "direct, spread result": ("direct", lambda: convolution(result="spread")),
    "direct, long sums": ("direct", lambda: convolution(channels=40)),
    "direct, float16": ("direct", lambda: convolution("float16")),
    "direct, float64": ("direct", lambda: convolution("float64")),
    "product": ("tiles", lambda: convolution(kernel=1, size=(7, 7), channels=20)),
    "depthwise": ("depthwise", lambda: convolution(channels=8, filters=8, groups=8, size=(9, 40))),
    "depthwise, short rows": ("depthwise", lambda: convolution(channels=8, filters=8, groups=8, size=(9, 7))),
    "depthwise, float16": ("depthwise", lambda: convolution("float16", channels=8, filters=8, groups=8)),
    "channels last": ("channels", channels_last),
    "activated": ("direct", lambda: convolution(fused_activation=tvmdml.ActivationLeakyRelu.fused(alpha=0.1))),
}


@pytest.mark.full
@pytest.mark.parametrize("level", ["cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_processors_without_masks(level: str, draw: Draw) -> None:
    target = targets.resolve(level)
    for name in draw([one for one in CONVOLUTIONS if CONVOLUTIONS[one][0] != "tiles"], 3):
        head = CONVOLUTIONS[name][1]()
        agrees(head, residual(head.output_tensor), target, name)


PRODUCTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "tiles": ("tiles", lambda: gemm("float32", 40, 30, 50)),
    "tiles, long sums": ("tiles", lambda: gemm("float32", 20, 600, 33, c=True)),
    "tiles, float16": ("tiles", lambda: gemm("float16", 17, 30, 50, c=True)),
    "a row": ("rows", lambda: gemm("float32", 1, 64, 100)),
    "two rows": ("rows", lambda: gemm("float32", 2, 300, 40, c=True)),
    "transposed": ("tiles", lambda: gemm("float32", 40, 40, 40, trans_b="transpose")),
    "activated": ("tiles", lambda: gemm("float32", 20, 30, 40, fused_activation=tvmdml.ActivationTanh.fused())),
}


@pytest.mark.full
@pytest.mark.parametrize("head", [*CONVOLUTIONS.items(), *PRODUCTS.items()], ids=lambda head: head[0])
def test_convolutions_and_products(head: tuple[str, tuple[str, Callable[[], Any]]], draw: Draw) -> None:
    name, (way, make) = head
    first = make()
    cpu = targets.resolve("cpu")
    for follower in draw(FOLLOWERS):
        desc = agrees(first, follower(first.output_tensor), cpu, name)
        assert kernel_for(desc, cpu).name == way
        assert name in PRODUCTS or kernel_for(first, cpu).name == way


def reduction(cls: Any, sizes: tuple[int, ...], layout: str = "packed", dtype: str = "float32", **given: Any) -> Any:
    return cls.of(tensor(dtype, sizes, layout), **given)


NORMAL: dict[str, Any] = {"normalize_variance": True, "epsilon": 1e-5, "fused_activation": None}
REDUCTIONS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: reduction(tvmdml.ActivationSoftmax1, (5, 70), axes=[1]),
    "softmax of columns": lambda: reduction(tvmdml.ActivationSoftmax1, (3, 20, 40), axes=[1]),
    "softmax, without axes": lambda: reduction(tvmdml.ActivationSoftmax, (5, 33), "padded"),
    "logarithm of softmax": lambda: reduction(tvmdml.ActivationLogSoftmax1, (5, 70), dtype="float16", axes=[1]),
    "normalization": lambda: reduction(tvmdml.MeanVarianceNormalization1, (2, 6, 5, 9), axes=[1, 2, 3], **NORMAL),
    "images": lambda: reduction(tvmdml.MeanVarianceNormalization, (2, 6, 5, 9), cross_channel=False, **NORMAL),
    "norm": lambda: reduction(tvmdml.LpNormalization, (4, 50), axis=1, epsilon=1e-5, p=2),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, draw: Draw) -> None:
    head = REDUCTIONS[name]()
    cpu = targets.resolve("cpu")
    for follower in draw(FOLLOWERS):
        # Sums may have another order where what follows lies otherwise.
        desc = agrees(head, follower(head.output_tensor), cpu, name, bits=follower is not scaled)
        assert kernel_for(desc, cpu).name == kernel_for(head, cpu).name
        assert lines.read(lines.of(desc), "a line") == desc
        desc.validate(NEWEST_FEATURE_LEVEL)


@pytest.mark.full(first=1)
@pytest.mark.drawn("name", REDUCTIONS, 3)
def test_reductions_on_devices(device: Target, name: str, draw: Draw) -> None:
    head = REDUCTIONS[name]()
    for follower in draw(FOLLOWERS):
        agrees(head, follower(head.output_tensor), device, name, bits=False)


@pytest.mark.parametrize("function", ["sum", "max", "log_sum_exp"])
def test_results_of_slices(function: str) -> None:
    head = reduction(tvmdml.Reduce, (6, 50), function=function, axes=[1])
    agrees(head, gate(head.output_tensor), targets.resolve("cpu"), function)
    with pytest.raises(InvalidArgument, match="none behind a result of slices"):
        agrees(head, residual(head.output_tensor), targets.resolve("cpu"))


def quantized_convolution(integer: bool = False, **more: Any) -> Any:
    x, w = TensorDesc("uint8", (2, 8, 9, 9)), TensorDesc("int8", (12, 8, 3, 3))
    one, zero = TensorDesc("float32", (1, 1, 1, 1)), TensorDesc("uint8", (1, 1, 1, 1))
    pad: dict[str, Any] = {name: [1, 1] for name in ("strides", "dilations", "start_padding", "end_padding")} | {"group_count": 1}
    if integer:
        return tvmdml.ConvolutionInteger.of(x, zero, w, None, **pad)
    return tvmdml.QuantizedLinearConvolution.of(x, one, zero, w, one, None, None, one, zero, **pad)


def quantized_product(kind: str) -> Any:
    a, b = TensorDesc("uint8", (20, 30)), TensorDesc("int8", (30, 40))
    one, zero = TensorDesc("float32", (1, 1)), TensorDesc("uint8", (1, 1))
    if kind == "integer":
        return tvmdml.MatrixMultiplyInteger.of(a, zero, b, None)
    if kind == "float":
        return tvmdml.MatrixMultiplyIntegerToFloat.of(a, one, zero, b, one, None, None)
    return tvmdml.QuantizedLinearMatrixMultiply.of(a, one, zero, b, one, None, one, zero)


OTHER_TYPES: dict[str, tuple[Callable[[], Any], Callable[[TensorDesc], Follower]]] = {
    "a convolution of integers": (lambda: quantized_convolution(integer=True), as_floats),
    "a quantized convolution": (quantized_convolution, as_floats),
    "a convolution of floats": (lambda: convolution(channels=12), as_bytes),
    "whole rows": (lambda: convolution(size=(4, 40)), as_bytes),
    "depthwise": (lambda: convolution(channels=8, filters=8, groups=8, size=(9, 7)), as_bytes),
    "channels last": (channels_last, as_bytes),
    "a product of integers": (lambda: quantized_product("integer"), as_floats),
    "integers as floats": (lambda: quantized_product("float"), as_bytes),
    "a quantized product": (lambda: quantized_product("quantized"), as_floats),
    "a product of float16": (lambda: gemm("float16", 17, 30, 40), as_bytes),
    "a row": (lambda: gemm("float32", 1, 64, 100), as_bytes),
}


@pytest.mark.full
@pytest.mark.some(4)
@pytest.mark.parametrize("name", OTHER_TYPES)
def test_other_types(name: str) -> None:
    """What follows may have an output of another type than the head's result."""
    make, follower = OTHER_TYPES[name]
    head = make()
    cpu = targets.resolve("cpu")
    desc = agrees(head, follower(head.output_tensor), cpu, name)
    assert desc.output_tensor.data_type is not head.output_tensor.data_type
    assert kernel_for(desc, cpu).name == kernel_for(head, cpu).name
    assert lines.read(lines.of(desc), "a line") == desc


@pytest.mark.full
@pytest.mark.drawn("name", OTHER_TYPES, 3)
def test_other_types_on_devices(device: Target, name: str) -> None:
    make, follower = OTHER_TYPES[name]
    head = make()
    agrees(head, follower(head.output_tensor), device, bits=False)


@pytest.mark.full
def test_devices(device: Target, draw: Draw) -> None:
    heads = [make for _, make in (*CONVOLUTIONS.values(), *PRODUCTS.values())]
    for make in draw(heads, 3):
        head = make()
        if "float64" in str(head.output_tensor):
            continue
        for follower in draw(FOLLOWERS):
            agrees(head, follower(head.output_tensor), device, bits=False)


@pytest.mark.full
def test_several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmdml.targets.cpu import CpuTarget

    monkeypatch.setenv("TVMDML_NUM_THREADS", "3")
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    cpu = targets.resolve("cpu")
    for head in (convolution(channels=32, filters=40, size=(20, 20)), gemm("float32", 60, 90, 80)):
        agrees(head, residual(head.output_tensor), cpu)


def test_an_operand_that_lies_otherwise_is_right_too() -> None:
    head = convolution()
    y = head.output_tensor
    turned = tensor("float32", y.sizes, "transposed")
    nodes, wiring, _ = residual(y)
    nodes[0] = tvmdml.ElementWiseAdd(a_tensor=turned, b_tensor=y, output_tensor=y)
    desc = follow(head, nodes, wiring)
    assert kernel_for(desc, targets.resolve("cpu")).name == "default"
    agrees(head, (nodes, wiring, [turned]), targets.resolve("cpu"), bits=False)


def test_sizes_are_no_part_of_the_kernel() -> None:
    cpu = targets.resolve("cpu")
    some = []
    for rows in (36, 48):
        head = gemm("float32", rows, 30, 50)
        nodes, wiring, _ = residual(head.output_tensor)
        some.append(kernel_for(follow(head, nodes, wiring), cpu))
    assert some[0].parameters == some[1].parameters


@pytest.mark.full
def test_lines_and_references() -> None:
    for head in (convolution(), gemm("float32", 20, 30, 40)):
        for follower in FOLLOWERS:
            desc = agrees(head, follower(head.output_tensor), targets.resolve("cpu"), bits=False)
            assert lines.read(lines.of(desc), "a line") == desc
            desc.validate(NEWEST_FEATURE_LEVEL)
            assert desc.NAME not in operators.all_operators()
            assert operators.by_name(desc.NAME) is type(desc)


@pytest.mark.full
def test_a_pack_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    head = convolution()
    nodes, wiring, _ = residual(head.output_tensor)
    desc = follow(head, nodes, wiring)
    arrays = [ordinary(seeded(i), one) for i, (_, one) in enumerate(desc.tensors()) if one is not None]
    with packs.record() as recording:
        tvmdml.compile(desc)(*arrays)
    right = arrays[3].copy()
    arrays[3][:] = 0
    recording.write(tmp_path / "spec.toml")
    packs.build(tmp_path / "spec.toml", tmp_path / "some.pack")
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "empty"))
    with tvmdml.load_pack(tmp_path / "some.pack", strict=True):
        tvmdml.compile(desc)(*arrays)
    assert np.array_equal(arrays[3], right)


@given(st.integers(0, 2**32))
def test_damaged_lines_are_refused(seed: int) -> None:
    """Whatever a line says, it is a descriptor that obeys its rules, or an error that says what is wrong."""
    rng = random.Random(seed)
    head = rng.choice((convolution, lambda: gemm("float32", 4, 5, 6)))()
    line: Any = lines.of(follow(head, *scaled(head.output_tensor)[:2]))
    for _ in range(rng.randint(1, 3)):
        place = line
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = rng.choice(list(keys))
            if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.2:
                break
            place = place[key]
        if rng.random() < 0.3:
            del place[key]
        else:
            others = ([], {}, 0, 1, 7, -1, 2**40, "", "float32[4]", "float16[2, 12, 9, 9]", None, "RELU", head.NAME)
            place[key] = rng.choice(others)
    with contextlib.suppress(tvmdml.TvmdmlError):
        lines.read(line, "a line").validate(NEWEST_FEATURE_LEVEL, extensions=True)


def test_what_cannot_follow() -> None:
    head = convolution()
    y = head.output_tensor
    relu, compare = tvmdml.ActivationRelu.of(y), tvmdml.ElementWiseLogicalLessThan.of(y, y)
    other = tvmdml.ActivationRelu.of(TensorDesc("float32", (2, 12, 9, 8)))
    fill = tvmdml.FillValueSequence(output_tensor=y, value_data_type="float32", value_start=1, value_delta=1)
    soft = gemm("float32", 4, 5, 6, fused_activation=tvmdml.ActivationSoftmax1.fused(axes=[3]))
    cases: list[tuple[Any, str]] = [
        (lambda: follow(relu, [relu], [[0]]), "ACTIVATION_RELU; allowed: CONVOLUTION, "),
        (lambda: follow(head, [other], [[0]]), "the head's result"),
        (lambda: follow(head, [compare], [[0, 1], [0, 1]]), "2 sequences"),
        (lambda: follow(head, [fill, tvmdml.ElementWiseAdd.of(y, y)], [[], [0, Result(0)]]), "count elements"),
        (lambda: follow(soft, [tvmdml.ActivationRelu.of(soft.output_tensor)], [[0]]), "whole rows"),
    ]
    for call, said in cases:
        with pytest.raises(InvalidArgument, match=said):
            call()


def test_every_class_of_a_family_is_found_by_its_head() -> None:
    classes = [one for family in FAMILIES for one in importlib.import_module(f"tvmdml.operators.{family}_fused").CLASSES]
    assert len(classes) > 30
    assert all(followed(one.HEAD) is one and followed(one) is None for one in classes)
    assert followed(tvmdml.ElementWiseAdd) is None


def test_the_head_is_made_once_and_again_for_a_changed_copy() -> None:
    desc: Any = follow(convolution(), *residual(convolution().output_tensor)[:2])
    assert desc.head() is desc.head()
    assert desc.head() == dataclasses.replace(desc).head()
    other = dataclasses.replace(desc, filter_tensor=dataclasses.replace(desc.filter_tensor, flags="OWNED_BY_DML"))
    assert copy.copy(desc).head().owned() == ()
    assert other.head().owned() == ("filter_tensor",)
    assert launched.with_fields(desc, group_count=2).head().group_count == 2
