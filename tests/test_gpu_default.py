"""The kernel of an operator without its own schedule, on a device: correct for every size, and for long loops."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support import assert_same_bits, seeded

import tvmdml
from tvmdml import functions, targets
from tvmdml.schedules import gpu
from tvmdml.schedules.gpu import _default
from tvmdml.targets import Target


@pytest.fixture(autouse=True)
def defaults_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    schedule = targets._schedule

    def default(folder: str, module: str) -> object:
        return _default if folder == "gpu" else schedule(folder, module)

    monkeypatch.setattr(targets, "_schedule", default)
    functions.forget_plans()
    yield
    functions.forget_plans()


@pytest.fixture(params=["int32", "int64"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The type that kernels count in."""
    if request.param == "int64":
        monkeypatch.setattr(gpu, "_NARROW", 1)
    return str(request.param)


@pytest.mark.usefixtures("counted")
def test_every_operator_gives_what_it_gives_on_the_cpu(device: Target) -> None:
    x = seeded("default").standard_normal((3, 5, 7)).astype(np.float32)
    x[x < -0.5] = 0
    for function in (
        lambda x, **more: tvmdml.round(x * 4, **more),
        lambda x, **more: tvmdml.top_k(x, 3, axis=1, **more),
        lambda x, **more: tvmdml.nonzero_coordinates(x, **more),
        lambda x, **more: tvmdml.diagonal_matrix(x, value=3, diagonal_fill_begin=-1, **more),
        lambda x, **more: tvmdml.round(np.asfortranarray(x * 4), **more),
    ):
        found, expected = (
            result if isinstance(result, tuple) else (result,) for result in (function(x, device=device.name), function(x))
        )
        for one, other in zip(found, expected, strict=True):
            assert_same_bits(one, other)


def test_more_rounds_than_the_driver_makes_are_refused_and_as_many_are_made(vulkan: Target) -> None:
    """Mesa's software device leaves a thread's loops after 65,535 rounds. Here one thread goes through all elements."""
    if vulkan.max_rounds is None:
        pytest.skip(f"{vulkan.name} makes all rounds")
    x = np.zeros(65_500, np.uint8)
    x[[0, 32767, 32768, 65_499]] = 1
    assert tvmdml.nonzero_coordinates(x, device=vulkan.name).ravel().tolist() == np.flatnonzero(x).tolist()
    said = "tvmdml.nonzero_coordinates: loops: given 140002 rounds of loops in a thread on vulkan:.*; allowed: up to 65535"
    with pytest.raises(tvmdml.Unsupported, match=said):
        tvmdml.nonzero_coordinates(np.zeros(140_001, np.uint8), device=vulkan.name)
