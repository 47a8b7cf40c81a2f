"""The kernel of an operator without its own schedule, on a device: for long loops."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tvmdml
from tvmdml import functions
from tvmdml.library import scheduling
from tvmdml.schedules.gpu import _default
from tvmdml.targets import Target


@pytest.fixture(autouse=True)
def defaults_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    schedule = scheduling._schedule

    def default(folder: str, module: str, family: str) -> object:
        return _default if folder == "gpu" else schedule(folder, module, family)

    monkeypatch.setattr(scheduling, "_schedule", default)
    functions.forget_plans()
    yield
    functions.forget_plans()


def test_more_rounds_than_the_driver_makes_are_refused_and_as_many_are_made(vulkan: Target) -> None:
    """Mesa's software device leaves a thread's loops after 65,535 rounds. Here one thread goes through all elements."""
    if vulkan.max_rounds is None:
        pytest.skip(f"{vulkan.name} makes all rounds")
    x = np.zeros(65_500, np.uint8)
    x[[0, 32767, 32768, 65_499]] = 1
    assert tvmdml.nonzero_coordinates(x, device=vulkan.name).ravel().tolist() == np.flatnonzero(x).tolist()
    said = "tvmdml.nonzero_coordinates: loops: given 140003 rounds of loops in a thread on vulkan:.*; allowed: up to 65535"
    with pytest.raises(tvmdml.Unsupported, match=said):
        tvmdml.nonzero_coordinates(np.zeros(140_001, np.uint8), device=vulkan.name)
