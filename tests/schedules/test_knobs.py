"""Knobs: defaults, temporary values, invalid values; and the knobs that schedules declare."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
from support import diagonal_desc, round_desc, tensor

import tvmdml
from tvmdml import errors, knobs, schedules, targets
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.library import notices
from tvmdml.library.scheduling import kernel_for

KNOBS = Knobs(
    "some_operator",
    size=Knob(8, (1, 8, 64), "elements at once"),
    way=Knob("long", ("long", "short"), "which way round"),
)


def declared() -> list[Knobs]:
    """What the schedules of every kind of target declare."""
    modules = [m.name for m in pkgutil.walk_packages(schedules.__path__, "tvmdml.schedules.") if not m.ispkg]
    found = [getattr(importlib.import_module(name), "KNOBS", None) for name in modules]
    return [k for k in found if isinstance(k, Knobs)]


def test_defaults_hold_where_nobody_says_otherwise() -> None:
    assert vars(KNOBS.now()) == {"size": 8, "way": "long"}
    with knobs.using(top_k={"rank_k": 1}):
        assert vars(KNOBS.now()) == {"size": 8, "way": "long"}


def test_families_of_machines_have_defaults_of_their_own() -> None:
    knobs_ = Knobs("some_operator", size=Knob(8, (1, 8, 64), "elements", {"cuda": 64, "sm_75": 1}), way=Knob("a", ("a",), "which"))
    found = {name: knobs_.now(targets.resolve(name)).size for name in ("cpu", "cuda:sm_75", "cuda:sm_90", "cuda:sm_75,sm_80")}
    assert found == {"cpu": 8, "cuda:sm_75": 1, "cuda:sm_90": 64, "cuda:sm_75,sm_80": 64}
    with knobs.using(some_operator={"size": 8}):
        assert vars(knobs_.now(targets.resolve("cuda:sm_75"))) == {"size": 8, "way": "a"}


def test_the_innermost_value_counts_and_the_others_stay() -> None:
    with knobs.using(some_operator={"size": 64, "way": "short"}):
        with knobs.using(some_operator={"size": 1}):
            assert vars(KNOBS.now()) == {"size": 1, "way": "short"}
        assert vars(KNOBS.now()) == {"size": 64, "way": "short"}
    assert KNOBS.now().size == 8
    with pytest.raises(KeyError), knobs.using(some_operator={"size": 64}):
        raise KeyError
    assert KNOBS.now().size == 8


def test_an_operator_that_is_not_there_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"knobs\.using: given 'topk'; allowed: an operator's module"):
        knobs.using(topk={"algorithm": "sort"}).__enter__()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"speed": 1}, "some_operator knob: given 'speed'; allowed: size, way."),
        ({"size": 0}, "some_operator knob size: given 0; allowed: 1, 8, 64."),
        ({"size": 13}, "some_operator knob size: given 13; allowed: 1, 8, 64."),
        ({"size": 65}, "some_operator knob size: given 65; allowed: 1, 8, 64."),
        ({"size": "8"}, "some_operator knob size: given '8'; allowed: 1, 8, 64."),
        ({"size": False}, "some_operator knob size: given False; allowed: 1, 8, 64."),
        ({"way": "round"}, "some_operator knob way: given 'round'; allowed: 'long', 'short'."),
        ({"way": 1}, "some_operator knob way: given 1; allowed: 'long', 'short'."),
    ],
)
def test_what_a_knob_cannot_take_is_refused(values: dict[str, int | str], said: str) -> None:
    with knobs.using(some_operator=values), pytest.raises(errors.InvalidArgument) as caught:
        KNOBS.now()
    assert said in str(caught.value)


def test_functions_that_were_called_before_plan_anew() -> None:
    """Inside, and behind: neither the values of before nor those of inside stay."""
    seen: list[int] = []

    def listener(*what: object) -> None:
        seen.append(1)

    def prepared() -> bool:
        """Whether a call is planned."""
        seen.clear()
        tvmdml.cumulative_summation(np.ones(8, np.float32))
        return bool(seen)

    notices.listen(listener)
    try:
        assert [prepared() for _ in range(2)] == [True, False]
        for inside in (knobs.using(scan={"together": 4}), knobs.untuned()):
            with inside:
                assert [prepared() for _ in range(2)] == [True, False]
            assert [prepared() for _ in range(2)] == [True, False]
        with knobs.using(scan={"together": 3}), pytest.raises(errors.InvalidArgument, match="scan knob together: given 3"):
            prepared()
        assert prepared()
    finally:
        notices.stop(listener)


def test_the_schedules_declare_knobs_for_their_own_operator() -> None:
    found = declared()
    assert {k.operator for k in found} >= {"diagonal_matrix", "nonzero_coordinates", "pointwise", "top_k"}
    for one in found:
        rooms = (f"tvmdml.operators.{one.operator}", f"tvmdml.operators._{one.operator}")  # an operator's file, or a family's
        assert any(map(importlib.util.find_spec, rooms)), one.operator


@pytest.mark.parametrize("declared", declared(), ids=lambda k: k.operator)
def test_declared_knobs_are_well_formed(declared: Knobs) -> None:
    assert declared.knobs
    for name, knob in declared.knobs.items():
        assert {knob.default, *knob.on.values()} <= set(knob.choices), name
        assert len(set(knob.choices)) == len(knob.choices) > 1, name
        assert len({type(choice) for choice in knob.choices}) == 1, name
        assert isinstance(knob.default, str) or list(knob.choices) == sorted(knob.choices), name
        assert knob.meaning.strip(), name
        for choice in knob.choices:
            with knobs.using(**{declared.operator: {name: choice}}):
                assert getattr(declared.now(), name) == choice


def test_values_that_shape_code_make_kernels_of_their_own() -> None:
    target = targets.resolve("cpu")
    x = tensor("float32", (64, 64))
    shaping = {
        "pointwise": (round_desc(x), [{}, {"stream_bytes": 1}, {"aligned_elements": 1}]),
        "diagonal_matrix": (diagonal_desc(x, 1, 0, 1, has_input=False), [{}, {"stream_bytes": 1}, {"on_top_bytes": 0}]),
    }
    for operator, (desc, values) in shaping.items():
        identities = set()
        for some in values:
            with knobs.using(**{operator: some}):
                identities.add(kernel_for(desc, target).identity)
        assert len(identities) == len(values), operator


def test_a_knob_is_turned_where_there_is_one(target: targets.Target) -> None:
    desc = diagonal_desc(tensor("float32", (64, 64)), 1, 0, 1, has_input=False)
    before = kernel_for(desc, target)
    with knobs.using(diagonal_matrix={"fill_bytes": 1, "threads": 64}):  # the first is the CPU's, the second the devices'
        after = kernel_for(desc, target)
    assert (before.parameters, before.scalars) != (after.parameters, after.scalars)
    with knobs.using(diagonal_matrix={"speed": 1}), pytest.raises(errors.InvalidArgument, match="knob: given 'speed'"):
        kernel_for(desc, target)


def test_values_that_are_integers_at_launch_share_a_kernel() -> None:
    target = targets.resolve("cpu")
    desc = diagonal_desc(tensor("float32", (64, 64)), 1, 0, 1, has_input=False)
    kernels = []
    for size in (1 << 10, 1 << 12):
        with knobs.using(diagonal_matrix={"block_bytes": size}):
            kernels.append(kernel_for(desc, target))
    assert kernels[0].identity == kernels[1].identity
    assert kernels[0].scalars != kernels[1].scalars
