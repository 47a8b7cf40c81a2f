"""The other public functions: any arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tvmdml
from fuzz import hostile
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml import compiler, dxdispatch, enums, knobs, packs, targets, tuning
from tvmdml.library import lines, logs, spec
from tvmdml.library.tensor_text import parse_tensor
from tvmdml.operators import by_name
from tvmdml.packs import sources
from tvmdml.system.disk import stores

EXAMPLES = 250
_TARGETS = (
    "cpu", "cpu:", "cpu:0", "cpu:x86-64-v2", "cpu:x86-64-v4+gfni", "x86-64-v3", "+gfni", "+", "cuda", "cuda:", "cuda:0",
    "cuda:sm_90", "sm_80,", "sm_90", "compute_90", "vulkan", "vulkan:", "vulkan:0", "vulkan:desktop", "aarch64", "+sve2", ":",
    ",", "0", "٣", "_",
)  # fmt: skip
_KNOBS = (
    "top_k", "element_wise_round", "diagonal_matrix", "nonzero_coordinates", "_contract", "a.b", "..top_k", "", "__init__",
    "algorithm",
)  # fmt: skip


def one(choices: Choices) -> None:
    """Any one of them."""
    with refusals(MemoryError):
        choices.pick(_CALLS)(choices)


def _value(choices: Choices) -> Any:
    return hostile.value(choices, 3)


def _text_or_value(choices: Choices, words: tuple[str, ...]) -> Any:
    return choices.text(words) if choices.flag() else _value(choices)


def _resolve(choices: Choices) -> None:
    name = _text_or_value(choices, _TARGETS)
    found = targets.resolve(name)
    assert isinstance(found, targets.Target)
    if type(name) is str:
        assert targets.resolve(found.name) == found
        assert targets.elsewhere(found.spec_name)


def _elsewhere(choices: Choices) -> None:
    targets.elsewhere(choices.text(_TARGETS))


def _level(choices: Choices) -> None:
    found = enums.FeatureLevel.of(_text_or_value(choices, ("5.1", "6", ".4", "LEVEL_", "5_1", "DML_FEATURE_")))
    assert isinstance(found, enums.FeatureLevel)


def _member(choices: Choices) -> None:
    cls = choices.pick((enums.FeatureLevel, enums.AxisDirection, enums.RoundingMode, enums.TensorFlags, tvmdml.TensorDataType))
    assert isinstance(cls.parse(_text_or_value(choices, tuple(cls.__members__)), "where"), cls)


def _data_type(choices: Choices) -> None:
    assert isinstance(tvmdml.TensorDataType.of(_text_or_value(choices, hostile.WORDS), "where"), tvmdml.TensorDataType)


def _asarray(choices: Choices) -> None:
    given = _value(choices) if choices.flag() else hostile.array(choices)
    found = tvmdml.asarray(given, _text_or_value(choices, ("cpu",)) if choices.flag(6) else "cpu")
    if type(given) is np.ndarray:
        assert found.shape == given.shape
        assert found.dtype == given.dtype


def _empty(choices: Choices) -> None:
    shape = choices.pick(
        (lambda: _value(choices), lambda: hostile.integer(choices), lambda: choices.several(lambda: hostile.integer(choices), 9))
    )()
    found = tvmdml.empty(shape, dtype="float32" if choices.flag() else _text_or_value(choices, hostile.WORDS))
    if type(shape) is list and all(type(size) is int for size in shape):
        assert found.shape == tuple(shape)


def _using(choices: Choices) -> None:
    name = choices.pick(_KNOBS) if not choices.flag(4) else choices.text(_KNOBS)
    values = (
        _value(choices) if choices.flag() else {choices.text(("algorithm", "lanes", "task_elements", "rank_k")): _value(choices)}
    )
    before = knobs.in_force()
    try:
        with knobs.using(**{name: values}):
            compiler.compile(_ROUND, "cpu")
            tvmdml.compile(_TOP_K, "cpu")
    finally:
        assert knobs.in_force() is before


def _load_pack(choices: Choices) -> None:
    before = os.listdir()
    given = _path(choices)
    with tvmdml.load_pack(given, strict=_value(choices) if choices.flag(4) else False) as pack:
        repr(pack)
    assert os.listdir() == before


def _path(choices: Choices) -> Any:
    """A path where nothing is written that matters, or something else."""
    if choices.flag():
        found = _value(choices)
        return found.replace("/", "|") if type(found) is str else None if type(found) in (bytes, Path) else found
    return choices.pick(
        ("", ".", "..", "x.tvmdml", "/dev/null", "/proc/self/mem", "/proc/x", "a\0b", "x" * 300, "no/such/folder", "\ud800")
    )


def _read_model(choices: Choices) -> None:
    given = _path(choices)
    if isinstance(given, (str, Path)):
        dxdispatch.read(given, input_path=choices.pick((None, "", "/", "\0")))


def _tune(choices: Choices) -> None:
    """Everything that is refused before anything is measured: of the arguments at least one is wrong."""
    given: dict[str, Any] = {"operations": _ROUND, "trials": 0}
    name = choices.pick(("operations", "target", "trials", "folder", "tracker", "key", "display", "seed"))
    given[name] = choices.pick((None, 0, 5, "a", Path("x"), object(), len)) if name == "folder" else _value(choices)
    if name == "trials":
        given["seed"] = -1
    if name == "display":
        given.update(trials=1, folder="/dev/null")
    if name == "operations" and choices.flag():
        given[name] = spec.Wanted(_value(choices), _value(choices))
    tuning.tune(**given)
    raise AssertionError("nothing was wrong with it")


def _by_name(choices: Choices) -> None:
    by_name(choices.text(("TOP_K", "DML_OPERATOR_", "1")))


def _line(choices: Choices) -> None:
    lines.read(
        {choices.text(("operator", "Axis", "K", "InputTensor")): _plain(choices) for _ in range(3)} | {"operator": "TOP_K1"}, "line"
    )


def _plain(choices: Choices) -> Any:
    from fuzz import trees

    return trees.scalar(choices, ("float32[2, 3]", "float32[2", "strides [1]", "nan", "DECREASING"))


def _tensor(choices: Choices) -> None:
    found = parse_tensor(choices.text(("float32", "[2, 3]", "[", "]", "strides", "[4, 1]", ",", "²", "1" * 30)), "tensor")
    assert parse_tensor(str(found), "tensor") == found


def _size(choices: Choices) -> None:
    assert stores.parse_size(choices.text(("1", "9" * 30, "G", "iB", ".5", "e9", "٣", "M", " ")), "size") >= 0


def _specs(choices: Choices) -> None:
    if choices.flag():
        spec.parse(_value(choices), "spec")
    else:
        given = _path(choices)
        sources.read([given if isinstance(given, str) else "x.toml"], sizes={choices.text(): _value(choices)})


def _build(choices: Choices) -> None:
    given: dict[str, Any] = {"jobs": 0}
    given[choices.pick(("jobs", "x"))] = _value(choices)
    packs.build(spec.Spec(("cpu",), ()), _path(choices), **{k: v for k, v in given.items() if k == "jobs"})


def _logs_add(choices: Choices) -> None:
    logs.add(Path("added"), [_value(choices)])


def _public(choices: Choices) -> None:
    name = choices.text(("top_k", "TopK", "1", "packs", "round", "_"))
    try:
        getattr(tvmdml, name)
    except AttributeError:
        return


_X = tvmdml.TensorDesc("float32", (3, 4))
_ROUND = tvmdml.ElementWiseRound(input_tensor=_X, output_tensor=_X, rounding_mode=0)  # type: ignore[arg-type]
_TOP_K = tvmdml.TopK1(
    input_tensor=_X, output_value_tensor=_X, output_index_tensor=tvmdml.TensorDesc("uint32", (3, 4)), axis=1, k=4, axis_direction=0  # type: ignore[arg-type]
)  # fmt: skip
_CALLS: tuple[Callable[[Choices], None], ...] = (
    _resolve, _elsewhere, _level, _member, _data_type, _asarray, _asarray, _empty, _using, _load_pack, _read_model, _tune, _by_name,
    _line, _tensor, _size, _specs, _build, _logs_add, _public,
)  # fmt: skip
