"""Objects that say that they are something else, sequences without an end, and texts that no file is named by: refused, at once."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tvmdml
import tvmdml.directml
import tvmdml.onnx
from tvmdml import cli
from tvmdml.errors import PackError, TvmdmlError

X = np.zeros((2, 3), np.float32)


def posing(kind: type) -> Any:
    """An object whose class is said to be another one, and which cannot be an array."""

    def fail(self: Any, *arguments: Any, **keywords: Any) -> Any:
        raise ValueError("not an array")

    return type("Posing", (), {"__class__": property(lambda self: kind), "__array__": fail})()


class Endless:
    """A sequence of the old kind, without an end; its length is a lie."""

    def __len__(self) -> int:
        return -1

    def __getitem__(self, i: int) -> int:
        return 1


@pytest.mark.parametrize(
    "call",
    [
        lambda one: tvmdml.round(X, rounding_mode=one),
        lambda one: tvmdml.TensorDesc(one, (2,)),
        lambda one: tvmdml.TensorDesc("float32", (2,), flags=one),
        lambda one: tvmdml.asarray(X, device=one),
        lambda one: tvmdml.top_k(X, one),
        lambda one: tvmdml.gemm(X, X.T, alpha=one),
        tvmdml.abs,
        tvmdml.asarray,
    ],
)
@pytest.mark.parametrize("kind", [str, np.float32, float, np.ndarray])
def test_what_says_that_it_is_of_another_class_is_refused(kind: type, call: Callable[[Any], Any]) -> None:
    with pytest.raises((TvmdmlError, TypeError), match="allowed"):
        call(posing(kind))


@pytest.mark.parametrize(
    "call",
    [
        tvmdml.round,
        tvmdml.compile,
        tvmdml.ElementWiseAbs.of,
        lambda one: tvmdml.ElementWiseAbs(input_tensor=one, output_tensor=tvmdml.TensorDesc("float32", (2,))),
        lambda one: tvmdml.join((X, one), axis=0),
        lambda one: tvmdml.add(tvmdml.Graph().input((2, 3)), one),
        lambda one: tvmdml.gemm(X, X.T, fused_activation=one),
        lambda one: tvmdml.Graph().add(one, ()),
        lambda one: tvmdml.Graph().compile(one),
        lambda one: tvmdml.Graph().compile([one]),
        lambda one: _compiled(known=one),
        lambda one: _compiled(known={one: X}),
    ],
)
@pytest.mark.parametrize("kind", [tvmdml.TensorDesc, tvmdml.Operator, tvmdml.Expression, tuple])
def test_what_says_that_it_is_a_descriptor_or_an_expression_is_refused(kind: type, call: Callable[[Any], Any]) -> None:
    with pytest.raises(TvmdmlError, match=r"allowed|not an array"):
        call(posing(kind))


def _compiled(**more: Any) -> Any:
    x = tvmdml.Graph().input((2, 3), owned=True)
    return x.graph.compile(x, **more)


@pytest.mark.parametrize("outputs", [itertools.repeat, lambda x: (x for _ in itertools.count())], ids=["repeat", "generator"])
def test_outputs_without_an_end_are_refused(outputs: Callable[[Any], Any]) -> None:
    x = tvmdml.Graph().input((2, 3))
    with pytest.raises(TvmdmlError, match="more than 65536 expressions"):
        x.graph.compile(outputs(x))


@pytest.mark.parametrize("sizes", [Endless(), itertools.repeat(2)], ids=["sequence", "iterator"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, sizes: x.reshape(sizes),
        lambda x, sizes: x.transpose(sizes),
        lambda x, sizes: x.broadcast(sizes),
        lambda x, sizes: x.reinterpret(sizes),
        lambda x, sizes: tvmdml.Graph().input(sizes),
        lambda x, sizes: tvmdml.directml.Graph(tvmdml.directml.Device(use_gpu=False)).input(sizes),
    ],
)
def test_sizes_without_an_end_are_refused(call: Callable[[Any, Any], Any], sizes: Any) -> None:
    with pytest.raises(TvmdmlError, match="given"):
        call(tvmdml.Graph().input((2, 3), name="x"), sizes)


class Boundless(Sequence[int]):
    """A sequence that says that it has more numbers than memory can hold."""

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, i: Any) -> Any:
        return 1


@pytest.mark.parametrize("numbers", [Boundless(), range(1 << 50), itertools.repeat(1)], ids=["sequence", "range", "iterator"])
@pytest.mark.parametrize(
    "call",
    [
        lambda numbers: tvmdml.argmax(X, axes=numbers),
        lambda numbers: tvmdml.max_unpooling(X[None, None], np.zeros((1, 1, 2, 3), np.uint32), output_sizes=numbers),
        lambda numbers: tvmdml.fold(X[None], output_sizes=numbers, window_sizes=(1, 1)),
        lambda numbers: tvmdml.average_pooling(X[None, None], window_sizes=numbers),
        lambda numbers: tvmdml.broadcast(X, numbers),
        lambda numbers: tvmdml.reinterpret(X, numbers),
        lambda numbers: tvmdml.broadcast(tvmdml.Graph().input((2, 3)), numbers),
        lambda numbers: tvmdml.TensorDesc("float32", (2,)).with_sizes(numbers),
        lambda numbers: tvmdml.gather_nd(X, np.zeros((1, 1), np.uint32), input_dimension_count=numbers),
    ],
)
def test_numbers_without_an_end_are_refused(call: Callable[[Any], Any], numbers: Any) -> None:
    with pytest.raises(TvmdmlError, match="given"):
        call(numbers)


def test_axes_may_be_an_array() -> None:
    x = tvmdml.Graph().input((2, 3), name="x")
    assert x.transpose(np.array([1, 0])).shape == (3, 2)


def test_sizes_of_a_model_are_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(TvmdmlError, match=r"load sizes: given \[1\]; allowed: a mapping"):
        tvmdml.onnx.load(tmp_path / "model.onnx", [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["\ud800.toml", "a\0b"])
def test_texts_that_name_no_file_are_wrong_usage(text: str) -> None:
    for words in (["tune", "--spec", text], ["pack", "inspect", text], [text]):
        found = CliRunner().invoke(cli.main, words)
        assert found.exit_code == 2, found.exception
        assert "characters that a file's name can have" in found.output


def test_control_characters_of_a_packs_name_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2Jb.pack"
    for make in (None, b"no pack"):
        if make is not None:
            path.write_bytes(make)
        with pytest.raises(PackError) as caught:
            tvmdml.load_pack(path)
        assert str(caught.value).isprintable()
        assert r"a\x1b[2Jb.pack" in str(caught.value)
