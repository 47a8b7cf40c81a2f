"""Each public error class, by an example, and the words that it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from programs import python

import tvmdml
import tvmdml.onnx
from tvmdml import dxdispatch, errors, options

X = np.zeros((3, 4), np.float32)


def built(*shape: int | str) -> tvmdml.CompiledGraph:
    graph = tvmdml.Graph()
    return graph.compile([graph.input(shape, name="x") * 2.0])


@pytest.mark.parametrize(
    ("shape", "given", "words"),
    [
        ((1, 4), X, "given float32[3, 4]; allowed: float32[1, 4]. This graph was built for [1, 4]; build it with an open size"),
        ((1, 4), X, "with an open size: graph.input(('n', 4))."),
        ((1, 2), X, "build it with an open size: graph.input(('n0', 'n1'))."),
        ((1, 4), X[0], "given float32[4]; allowed: float32[1, 4]. Reshape the array first."),
        ((4, 3), X, "given float32[3, 4]; allowed: float32[4, 3]. Reshape the array first."),
        ((3, 4), X.astype(np.float64), "given float64[3, 4]; allowed: float32[3, 4]. Convert it first: array.astype('float32')."),
        (("n", 2), X, "This graph was built for [3, 2]; build it with an open size: graph.input((3, 'n'))."),
    ],
)  # fmt: skip
def test_a_graph_says_what_it_was_built_for(shape: tuple[int | str, ...], given: np.ndarray, words: str) -> None:
    with pytest.raises(tvmdml.InvalidArgument) as caught:
        built(*shape)({"x": given})
    assert words in str(caught.value)


def pack(folder: Path) -> object:
    path = folder / "no.pack"
    path.write_bytes(b"nothing")
    return tvmdml.load_pack(path)


def model(folder: Path) -> object:
    path = folder / "model.json"
    path.write_text("{}")
    return dxdispatch.read(path)


EXAMPLES: dict[type[errors.TvmdmlError], tuple[Callable[[Path], object], str]] = {
    errors.InvalidArgument: (
        lambda _: tvmdml.top_k(X, 9),
        "tvmdml.top_k: k: given 9; allowed: 0 to 4, the input's size along axis 1.",
    ),
    errors.IndexOutOfRange: (lambda _: tvmdml.gather(X, np.array([7], np.uint32), axis=0, check_indices=True), "given 7"),
    errors.Unsupported: (lambda _: tvmdml.activation_relu(X.astype(np.uint16)), "given uint16 of rank 2; allowed: "),
    errors.PackError: (pack, "no.pack"),
    errors.ModelError: (model, "model.json"),
}
"""Those of settings are in ``SETTINGS``; the base class is raised by nothing."""


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_an_error_says_what_was_given(kind: type[errors.TvmdmlError], tmp_path: Path) -> None:
    call, words = EXAMPLES[kind]
    with pytest.raises(kind) as caught:
        call(tmp_path)
    assert words in str(caught.value), str(caught.value)


SETTINGS = {
    errors.CompileError: ("TVMDML_DISABLE_JIT=1", "tvmdml.round(x)", "TVMDML_DISABLE_JIT"),
    errors.DeviceError: ("TVMDML_CUDA_LIBRARY=/nonexistent", "tvmdml.round(x, device='cuda')", "no NVIDIA driver was found"),
}
"""Errors that follow from settings, as on a machine without a compiler or a driver."""


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_an_error_of_a_setting_says_what_is_missing(kind: type[errors.TvmdmlError], tmp_path: Path) -> None:
    setting, call, words = SETTINGS[kind]
    begin = "import numpy as np, tvmdml\nx = np.zeros(3, 'float32')\n"
    program = f"{begin}try:\n    {call}\nexcept tvmdml.{kind.__name__} as error:\n    print(error)"
    assert words in python(program, may_complain=True, TVMDML_CACHE_DIR=str(tmp_path), **dict([setting.split("=")]))


def test_every_public_error_has_an_example() -> None:
    public = {getattr(tvmdml, name) for name in dir(tvmdml) if inspect.isclass(getattr(tvmdml, name))}
    kinds = {one for one in public if issubclass(one, errors.TvmdmlError)}
    assert kinds == {*EXAMPLES, *SETTINGS, errors.TvmdmlError}


def test_a_model_says_that_its_sizes_are_fixed() -> None:
    loaded = tvmdml.onnx.load(Path(__file__).parents[1] / "models" / "products.onnx")
    feeds = {one.name: np.ones((2 * int(one.shape[0]), *map(int, one.shape[1:])), np.float32) for one in loaded.inputs}
    with pytest.raises(tvmdml.InvalidArgument, match="exported for these sizes: export it with an open size"):
        loaded(feeds)


def test_the_last_sign_ends_the_name_of_a_size() -> None:
    assert options.named_size("a=b=3") == ("a=b", 3)
    assert options.named_sizes("a=b=3:5") == ("a=b", range(3, 6))
    assert options.named_value("a=b=3") == ("a", "b=3")
