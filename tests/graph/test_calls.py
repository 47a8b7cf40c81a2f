"""Calls of compiled graphs: arrays that kernels can read where they are take a short way, and all others the long one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import seeded

import tvmdml
from tvmdml.errors import InvalidArgument
from tvmdml.graph.compiled import CompiledGraph

SHAPE = (3, 4)


class Subclass(np.ndarray):  # type: ignore[type-arg]
    pass


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def misaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    found = memory[1:].view(np.float32).reshape(SHAPE)
    found[...] = array
    return found


FORMS: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "as it is": (True, lambda x: x),
    "read-only": (True, read_only),
    "within another": (True, lambda x: np.concatenate([x, x])[3:]),
    "transposed": (False, lambda x: np.asfortranarray(x)),
    "backwards": (False, lambda x: x[::-1].copy()[::-1]),
    "misaligned": (False, misaligned),
    "byte order": (False, lambda x: x.astype(">f4")),
    "subclass": (False, lambda x: x.view(Subclass)),
}
WRONG: dict[str, Callable[[Any], Any]] = {
    "type": lambda x: x.astype(np.float64),
    "shape": lambda x: x.reshape(4, 3),
    "none": lambda x: None,
}


@pytest.fixture(scope="module")
def compiled() -> CompiledGraph:
    """x - 2 y, with an input that nothing needs."""
    graph = tvmdml.Graph()
    x, _, y = (graph.input(SHAPE, "float32", name=name) for name in ("x", "unused", "y"))
    return graph.compile([x - y - y], target="cpu")


@pytest.fixture
def arrays() -> tuple[Any, Any, Any]:
    x, unused, y = (seeded("calls", i).standard_normal(SHAPE).astype(np.float32) for i in range(3))
    return x, unused, y


def ways(x: Any, unused: Any, y: Any) -> list[Any]:
    return [[x, unused, y], (x, unused, y), {"x": x, "unused": unused, "y": y}]


@pytest.mark.parametrize("name", FORMS)
def test_both_ways_compute_the_same(
    compiled: CompiledGraph, arrays: tuple[Any, Any, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, unused, y = arrays
    short, form = FORMS[name]
    for inputs in ways(form(x.copy()), unused, y):
        assert (compiled._at_once(inputs) is not None) == short
        (found,) = compiled(inputs)
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "_calls", compiled._calls._replace(plain=None))
            (same,) = compiled(inputs)
        assert np.array_equal(found, x - y - y)
        assert np.array_equal(same, found)


def test_what_is_not_needed_need_not_be_given(compiled: CompiledGraph, arrays: tuple[Any, Any, Any]) -> None:
    x, _, y = arrays
    for inputs in ({"y": y, "x": x}, [x, None, y], {"x": x, "y": y, "unused": "anything"}):
        assert np.array_equal(compiled(inputs)[0], x - y - y)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_are_refused(compiled: CompiledGraph, arrays: tuple[Any, Any, Any], name: str) -> None:
    x, unused, y = arrays
    for inputs in ways(WRONG[name](x), unused, y):
        with pytest.raises(InvalidArgument, match="CompiledGraph x"):
            compiled(inputs)


def test_wrong_names_and_numbers_of_arrays_are_refused(compiled: CompiledGraph, arrays: tuple[Any, Any, Any]) -> None:
    x, unused, y = arrays
    for inputs in ([x, y], [x, unused, y, y], {"x": x}, {"x": x, "y": y, "other": y}, {"x": x, "": unused, "y": y}, {}, None):
        with pytest.raises(InvalidArgument, match="CompiledGraph call"):
            compiled(inputs)


def test_inputs_without_names_and_with_strides() -> None:
    graph = tvmdml.Graph()
    x, y = graph.input(SHAPE, "float32", strides=(1, 3)), graph.input((), "float32")
    compiled = graph.compile([x * y], target="cpu")
    values, scale = seeded("strides").standard_normal(SHAPE).astype(np.float32), np.array(3, np.float32)
    for array, short in ((np.asfortranarray(values), True), (values, False)):
        assert (compiled._at_once([array, scale]) is not None) == short
        assert np.array_equal(compiled([array, scale])[0], values * 3)
    with pytest.raises(InvalidArgument, match="CompiledGraph call"):
        compiled({"": values})
