"""What every test shares: one folder of compiled kernels, the targets, and the switches for tests that need much."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tvmdml import compiler, errors, functions, knobs, targets
from tvmdml.targets import _quick

# A kernel is compiled when an example first needs it, so an example has no deadline.
_common = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow], "print_blob": True}
hypothesis.settings.register_profile("ci", max_examples=150, derandomize=True, **_common)
hypothesis.settings.register_profile("explore", max_examples=3000, **_common)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# What takes too much for every run: the mark of such tests is also the switch to run them.
_SWITCHES = {"large": "several GB of memory", "exhaustive": "some minutes"}


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, need in _SWITCHES.items():
        parser.addoption(f"--{name}", action="store_true", help=f"also run the tests that need {need}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, need in _SWITCHES.items():
        if not config.getoption(f"--{name}"):
            for item in items:
                if name in item.keywords:
                    item.add_marker(pytest.mark.skip(reason=f"needs {need}: run with --{name}"))


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run's own folder of kernels. The processes of pytest-xdist, and those that tests start, share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_CACHE_DIR", str(folder))
        for name in ("TVMDML_DISABLE_JIT", "TVMDML_CACHE_SIZE"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="session", params=targets.kinds())
def target(request: pytest.FixtureRequest) -> targets.Target:
    """Every kind of target that this machine has."""
    try:
        return targets.resolve(request.param)
    except errors.DeviceError as error:
        pytest.skip(f"no {request.param} here: {error}")


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test starts with no plans and no kernels in memory, and leaves those it found."""
    monkeypatch.setattr(functions, "_plans", {})
    monkeypatch.setattr(functions, "_quick_plans", _quick.plans())
    monkeypatch.setattr(compiler, "_memory", {})


@pytest.fixture
def in_parallel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU kernels cut even the smallest work into three tasks."""
    from tvmdml.schedules.cpu import _default

    from tvmdml.targets.cpu import CpuTarget

    monkeypatch.setenv("TVMDML_NUM_THREADS", "3")
    monkeypatch.setattr(functions, "_plans", {})
    monkeypatch.setattr(functions, "_quick_plans", _quick.plans())
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    monkeypatch.setattr(_default, "LEAST_PARALLEL_ITEMS", 1)
    with knobs.using(
        diagonal_matrix={"task_bytes": 1, "tasks_per_thread": 1},
        element_wise_round={"task_elements": 1},
        nonzero_coordinates={"task_elements": 1},
        top_k={"task_elements": 1},
    ):
        yield
