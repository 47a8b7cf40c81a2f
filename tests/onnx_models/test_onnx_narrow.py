"""Types that DirectML has not: numbers are those of ml_dtypes, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
ml_dtypes: Any = pytest.importorskip("ml_dtypes", reason="the package onnx brings it")

from onnx_nodes import N, info, model  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import reading  # noqa: E402 - as above
from tvmdml.operators._onnx_messages import element_of  # noqa: E402 - as above

FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
SIX_BITS = ("float6_e2m3fn", "float6_e3m2fn")
"""Of opset 28."""
OPSET = onnx.helper.make_opsetid("", 21)
INTEGERS = ("int4", "uint4", "int2", "uint2")


def element(name: str) -> int:
    """ONNX's number of a type."""
    return element_of(getattr(ml_dtypes, name))


def patterns(name: str) -> Any:
    """Numbers of float32 with all exponents and signs; of each type those that lie between two of its numbers, and next to it."""
    rng = np.random.default_rng(3)
    some = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    every = (np.arange(1 << 16, dtype=np.uint32) << 16) + np.array([[0], [0x8000], [0x7FFF], [0x8001]], np.uint32)
    found = np.concatenate([some, every.reshape(-1)]).view(np.float32)
    return found if name.startswith(("float", "bfloat")) else np.arange(-300, 300, dtype=np.float32)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", FLOATS + SIX_BITS + INTEGERS)
def test_casts_round_as_ml_dtypes_does(name: str) -> None:
    if name in SIX_BITS and onnx.defs.onnx_opset_version() < 28:
        pytest.skip("the installed package onnx has no such type")
    x = patterns(name)
    saturate = {"saturate": 0} if name.startswith("float8") else {}
    nodes = [N("Cast", ["x"], ["y"], to=element(name), **saturate), N("Cast", ["y"], ["z"], to=onnx.TensorProto.FLOAT)]
    made = tvmdml.onnx.load(
        model(nodes, [info("x", ["n"])], [info("y", ["n"], element(name)), info("z", ["n"])], opset=28 if name in SIX_BITS else 25)
    )
    y, z = made(x=x)
    with np.errstate(all="ignore"):
        right = x.astype(getattr(ml_dtypes, name))
    assert y.dtype == right.dtype
    assert made.outputs[0].type == f"tensor({onnx.TensorProto.DataType.Name(element(name)).lower()})"
    numbers = right.astype(np.float32)
    if name in INTEGERS:  # beyond their range the low bits, as older ml_dtypes has: 0.7 has 0
        low, most = int(ml_dtypes.iinfo(name).min), int(ml_dtypes.iinfo(name).max)
        assert np.array_equal(z[(x >= low) & (x <= most)], numbers[(x >= low) & (x <= most)])
        numbers = (x - low) % (most - low + 1) + low
    normal = np.isnan(numbers) | (np.abs(x) >= np.finfo(np.float32).tiny) | (x == 0) | (name != "bfloat16")
    assert np.array_equal(z[normal], numbers[normal], equal_nan=True)
    zeros = normal & (z == 0) & ~np.isnan(x)
    assert np.array_equal(np.signbit(z)[zeros], np.signbit(numbers)[zeros])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("kind", ["Cast", "CastLike"])
@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_few_bits_have_the_low_bits_of_what_is_beyond_them(name: str, source: str, kind: str) -> None:
    x, to = np.arange(-300, 300).astype(source), element(name)
    weights = {"like": np.zeros(1, getattr(ml_dtypes, name))} if kind == "CastLike" else {}
    node = N("Cast", ["x"], ["y"], to=to) if kind == "Cast" else N("CastLike", ["x", "like"], ["y"])
    nodes = [node, N("Cast", ["y"], ["z"], to=onnx.TensorProto.FLOAT)]
    given = info("x", ["n"], onnx.helper.np_dtype_to_tensor_dtype(x.dtype))
    made = model(nodes, [given], [info("z", ["n"])], weights, opset=25)
    (z,) = tvmdml.onnx.load(made)(x=x)
    low, most = int(ml_dtypes.iinfo(name).min), int(ml_dtypes.iinfo(name).max)
    assert np.array_equal(z, (x.astype(int) - low) % (most - low + 1) + low)


@pytest.mark.full
def test_a_network_of_bfloat16_rounds_each_result_and_is_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    kind, to = ml_dtypes.bfloat16, element("bfloat16")
    w, b, x = (rng.standard_normal(shape).astype(kind) for shape in ((32, 8), (8,), (4, 32)))
    nodes = [N("MatMul", ["x", "w"], ["a"]), N("Add", ["a", "b"], ["c"]), N("Relu", ["c"], ["y"]), N("Transpose", ["b"], ["t"])]
    made = model(nodes, [info("x", ["n", 32], to)], [info("y", ["n", 8], to), info("t", [8], to)], {"w": w, "b": b})
    place = tmp_path / "network.onnx"
    onnx.save(made, place)
    product = (x.astype(np.float32) @ w.astype(np.float32)).astype(kind)
    right = np.maximum((product.astype(np.float32) + b.astype(np.float32)).astype(kind), kind(0))
    for _ in range(2):
        loaded = tvmdml.onnx.load(place)
        assert loaded.inputs[0].type == "tensor(bfloat16)"
        assert loaded.inputs[0].dtype == kind
        y, t = loaded(x=x)
        assert y.dtype == kind
        assert np.allclose(y.astype(np.float32), right.astype(np.float32), 2**-7, 2**-7)
        assert np.array_equal(t.view(np.uint16), b.view(np.uint16))
        assert np.array_equal(loaded(x=x.astype(np.float32))[0].view(np.uint16), y.view(np.uint16))
    with pytest.raises(tvmdml.InvalidArgument, match=r"float16\[4, 32\]; allowed: bfloat16"):
        loaded(x=x.astype(np.float16))
    pack = tmp_path / "network.pack"
    command = ["pack", "build", str(place), "--size", "n=4", "--target", "cpu", "-o", str(pack)]
    from tvmdml.cli import main

    with pytest.raises(SystemExit, match=r"^0$"):
        main(command)
    served = tvmdml.onnx.load(pack)
    assert served.inputs[0].type == "tensor(float)"
    assert np.array_equal(served(x=x.astype(np.float32))[0], y.astype(np.float32))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_weights_of_few_bits_are_read(elsewhere: bool, tmp_path: Path) -> None:
    """Their elements have no bytes of their own; 15 elements end within a byte. Others than floats lie in another file, too."""
    names = [*INTEGERS, "float4_e2m1fn", *(SIX_BITS if onnx.defs.onnx_opset_version() >= 28 else ())]
    weights = {name: (np.arange(5000 * 3) % 4 - (name[0] == "i")).astype(getattr(ml_dtypes, name)) for name in names}
    nodes = [N("DequantizeLinear", [name, "scale"], [f"y{name}"]) for name in names]
    opset = min(28, onnx.defs.onnx_opset_version())
    made = model(nodes, [], [info(f"y{name}", None) for name in names], {**weights, "scale": np.float32(2)}, opset=opset)
    path = tmp_path / "few.onnx"
    onnx.save(made, path, save_as_external_data=elsewhere, location="few.data", size_threshold=100)
    found = tvmdml.onnx.load(path)()
    wrong = [name for name, y in zip(names, found, strict=True) if not np.array_equal(y, 2 * weights[name].astype(np.float32))]
    assert not wrong


def width(name: str) -> int:
    """The bits of an element."""
    return int(name[-1]) if name in INTEGERS else {"bfloat16": 16, "float4_e2m1fn": 4, **dict.fromkeys(SIX_BITS, 6)}.get(name, 8)


def written(name: str, codes: Any, raw: bool) -> Any:
    """A tensor with some bits as ONNX's text says it, by no help of the package onnx."""
    bits = width(name)
    packed = np.packbits((codes[:, None] >> np.arange(bits) & 1).astype(np.uint8).reshape(-1), bitorder="little")
    tensor = onnx.TensorProto(name="w", data_type=element(name), dims=codes.shape)
    if raw:
        tensor.raw_data = packed.tobytes()
    else:
        tensor.int32_data.extend(packed.tolist() if bits in (2, 4) else codes.tolist())
    return tensor


@pytest.mark.parametrize("count", [5, 8, 9001])
def test_constants_are_read_whatever_the_package_onnx_has_for_them(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 1.19 it has types of its own: float32 for bfloat16, and bytes for integers of 4 bits."""
    monkeypatch.setattr(onnx.helper, "tensor_dtype_to_np_dtype", lambda element: np.dtype(np.float32))
    monkeypatch.setattr(onnx.numpy_helper, "to_array", lambda tensor, base_dir="": pytest.fail("not asked"))
    for name in (*FLOATS, "float8_e8m0fnu", *INTEGERS, *SIX_BITS):
        kind = np.dtype(getattr(ml_dtypes, name))
        bits = width(name)
        codes = np.arange(count) * 7 % (1 << bits)
        if name.startswith("int"):
            right = ((codes ^ 1 << bits - 1) - (1 << bits - 1)).astype(kind)
        elif name.startswith("uint"):
            right = codes.astype(kind)
        else:
            right = codes.astype(f"u{kind.itemsize}").view(kind)
        for raw in (True, False):
            tensor = written(name, codes, raw)
            source = reading.ReadModel(onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor]), opset_import=[OPSET]))
            found = source.array(source.model.graph.initializer[0])
            assert found.dtype == kind
            assert found.tobytes() == right.tobytes(), (name, raw)
            tensor.dims[0] += 4
            with pytest.raises(tvmdml.ModelError, match=rf"bytes for 'w', {name}\[{count + 4}\]"):
                source.array(tensor)


def test_large_tensors_of_one_number_have_every_type() -> None:
    """Those of more than 65,536 elements are not folded."""
    kinds = [np.dtype(getattr(ml_dtypes, name)) for name in (*FLOATS, "float8_e8m0fnu", *INTEGERS)]
    kinds += [np.dtype(name) for name in ("bool", "float16", "float64", "int8", "uint16", "int32", "uint64", "int64")]
    for sizes, fixed in (((300, 256), True), ((300, 256), False), ((3,), False)):
        nodes, outputs, shape = [], [], {"s": np.array(sizes)} if fixed else {}
        if not fixed:
            nodes.append(N("Shape", ["x"], ["s"]))
        for i, kind in enumerate(kinds):
            number = onnx.numpy_helper.from_array(np.ones(1, kind), "v")
            nodes.append(N("ConstantOfShape", ["s"], [f"y{i}"], value=number))
            outputs.append(info(f"y{i}", None, onnx.helper.np_dtype_to_tensor_dtype(kind)))
        made = tvmdml.onnx.load(model(nodes, [info("x", None if fixed else ["n", "m"][: len(sizes)])], outputs, shape, opset=25))
        found = made(x=np.zeros(sizes, np.float32))
        wrong = [kind.name for kind, y in zip(kinds, found, strict=True) if (y.dtype, y.shape) != (kind, sizes) or (y != 1).any()]
        assert not wrong, (sizes, fixed)


def test_a_large_mask_is_computed_with_as_a_small_one() -> None:
    """As torch's older exporter writes a causal mask."""
    one = onnx.numpy_helper.from_array(np.array([True]), "v")
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("ConstantOfShape", ["s"], ["ones"], value=one),
        N("Trilu", ["ones"], ["mask"], upper=0),
        N("Not", ["mask"], ["not"]),
        N("Where", ["not", "zero", "x"], ["y"]),
    ]
    made = tvmdml.onnx.load(model(nodes, [info("x", ["n", "n"])], [info("y", ["n", "n"])], {"zero": np.float32(0)}))
    for n in (3, 257):
        x = np.arange(1, n * n + 1, dtype=np.float32).reshape(n, n)
        assert np.array_equal(made(x=x)[0], np.tril(x))
