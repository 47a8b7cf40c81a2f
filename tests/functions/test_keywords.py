"""One name for one thing: keywords mean the same in every function, and other names are refused with the one that is meant."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from folders import TOP

import tvmdml
from tvmdml import doors, operators
from tvmdml.doors import _renamed, _table

SEVERAL_NAMES = {
    "AxisDirection": {"axis_direction", "rounding_direction"},  # a direction along an axis, and of rounding
    "InterpolationMode": {"interpolation_mode"},
    "ReduceFunction": {"function", "reduction_function"},  # DirectML's fields of REDUCE and ROI_ALIGN
    "MatrixTransform": {"trans_a", "trans_b"},
}
"""The keywords of enumerations that have another name than one."""
SEVERAL_TYPES = {"bias", "direction"}
"""Words that DirectML has for different things: a number, and one for each channel; of convolutions, and of recurrent networks."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in operators.modules():
        yield from doors.functions(module).items()


def keywords() -> dict[str, dict[str, set[str]]]:
    """For each keyword, its types, and the functions that have it with that type."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, function in functions():
        for one in inspect.signature(function).parameters.values():
            if one.kind is one.KEYWORD_ONLY and one.name != "out":
                kind = str(one.annotation).removesuffix(" | None")
                found.setdefault(one.name, {}).setdefault(kind, set()).add(name)
    return found


def test_a_keyword_has_one_type() -> None:
    assert {name for name, kinds in keywords().items() if len(kinds) > 1} == SEVERAL_TYPES


def test_an_enumeration_has_one_keyword() -> None:
    found: dict[str, set[str]] = {}
    for name, kinds in keywords().items():
        for kind in kinds:
            if kind.endswith(" | str"):
                found.setdefault(kind.removesuffix(" | str"), set()).add(name)
    several = {enum: names for enum, names in found.items() if len(names) > 1}
    assert several == {enum: names for enum, names in SEVERAL_NAMES.items() if len(names) > 1}
    assert found["InterpolationMode"] == {"interpolation_mode"}


def test_an_axis_is_one_dimension_and_axes_are_several() -> None:
    assert set(keywords()["axis"]) == {"int"}
    assert set(keywords()["axes"]) == {"Sequence[int]"}
    assert "window_size" not in keywords()


def test_another_name_is_refused_with_the_one_that_is_meant() -> None:
    refused = 0
    for _, function in functions():
        own = inspect.signature(function).parameters
        for keyword, other in _renamed.MEANT.items():
            if keyword in own and own[keyword].kind is inspect.Parameter.KEYWORD_ONLY and other not in own:
                given = {one: None for one, at in own.items() if at.default is at.empty and one != keyword}
                said = re.escape(f"{function.__name__}() has no keyword {other!r}: it is called {keyword!r} here")
                with pytest.raises(TypeError, match=said):
                    function(**given, **{other: None})
                refused += 1
    assert refused > 30


def test_a_required_keyword_that_is_missing_is_named() -> None:
    x = np.ones((1, 1, 4, 4), np.float32)
    calls: tuple[Callable[[], object], ...] = (
        lambda: tvmdml.max_pooling(x),  # type: ignore[call-overload]
        lambda: tvmdml.average_pooling(x),  # type: ignore[call-overload]
    )
    for call in calls:
        with pytest.raises(TypeError, match=re.escape("missing 1 required keyword-only argument: 'window_sizes'")):
            call()
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'interpolation_mode'"):
        tvmdml.resample(x, (1, 1, 8, 8))  # type: ignore[call-overload]


def test_the_page_has_the_keywords_that_there_are() -> None:
    page = (TOP / "tvmdml" / "doors" / "README.md").read_text()
    assert _table.keywords() in page, "put in what `python -m tvmdml.doors._table keywords` prints"
