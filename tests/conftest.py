"""Shared by all tests: one folder of compiled kernels, the targets, and the options that enable expensive tests.

CUDA is emulated (``cuda_emulator``), unless there is a GPU, or ``TVMDML_CUDA_LIBRARY`` names a driver.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import cuda_emulator
import hypothesis
import pytest

from tvmdml import errors, functions, knobs, targets
from tvmdml.library import finding
from tvmdml.onnx import own_operators
from tvmdml.targets import _quick
from tvmdml.targets.cpu import host

# A shell without job control starts background processes with SIGINT ignored, and their child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# From 3.12 on Python warns of a fork beside threads, which is what tests of forks are about: programs that they start do not.
os.environ.setdefault("PYTHONWARNINGS", "ignore:This process:DeprecationWarning")

# A kernel is compiled when an example first needs it, so an example has no deadline.
_common = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow], "print_blob": True}
hypothesis.settings.register_profile("ci", max_examples=15, derandomize=True, **_common)
hypothesis.settings.register_profile("explore", max_examples=3000, **_common)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _emulate_cuda() -> None:
    """Have this process, and all that it starts, find the emulator, where there is no GPU. (Nothing is loaded that stays.)"""
    if "TVMDML_CUDA_LIBRARY" in os.environ or cuda_emulator.missing():
        return
    count = "c.cuInit(0) or c.cuDeviceGetCount(ctypes.byref(n)) or not n.value"
    look = f"import ctypes; c = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); raise SystemExit({count})"
    if subprocess.run([sys.executable, "-c", look], capture_output=True, check=False).returncode:
        cuda_emulator.install()


_emulate_cuda()


def _is_emulated() -> bool:
    return "cuda-emulator" in os.environ.get("TVMDML_CUDA_LIBRARY", "")


# Tests too expensive for every run: their mark is also the name of the option that runs them.
_SWITCHES = {"large": "several GB of memory", "exhaustive": "some minutes"}
_COMMON_LEVELS = ("x86-64-v3", "aarch64")
"""What ``cpu`` means in the first tier, the first that this machine runs: each has the same kernels on all such machines."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run what is marked full, and draw cases")
    parser.addoption("--every-case", action="store_true", help="run all cases on all targets")
    parser.addoption("--case-seed", type=int, help="draw these cases (with --full); by default the source decides")
    parser.addoption("--note-skipped", type=Path, metavar="FILE", help="write down which tests were skipped, and why")
    for name, need in _SWITCHES.items():
        parser.addoption(f"--{name}", action="store_true", help=f"also run the tests that need {need}")


def _content() -> int:
    """A number that changes with the package's source."""
    number = 0
    for folder in ("tvmdml", "schedules"):
        for path in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            number = zlib.crc32(path.read_bytes(), number)
    return number


class _Together(tuple[Any, ...]):
    """Values of an argument that one test goes through."""

    __slots__ = ()

    def __str__(self) -> str:
        return "each"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What grows with the number of operators is one test, or runs for a few of them: with --full for others with every source."""
    option = metafunc.config.option
    for mark in metafunc.definition.iter_markers("each"):
        argument, candidates = mark.args
        metafunc.parametrize(argument, candidates if option.every_case else [_Together(candidates)], ids=str)
    for mark in metafunc.definition.iter_markers("drawn"):
        argument, candidates, count, *always = mark.args
        if option.every_case:
            chosen = [*always, *candidates]
        else:
            rng = random.Random(f"{option.case_seed} {metafunc.function.__name__}")
            several = list(candidates) if option.full else [*always, *candidates]
            count = count if option.full else mark.kwargs.get("first", 1)
            chosen = [*(always if option.full else ()), *rng.sample(several, min(count, len(several)))]
        metafunc.parametrize(argument, chosen, ids=str)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Go through the values that a test has together, and report every failure."""
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    argument = next((name for name in names if isinstance(given[name], _Together)), None)
    if argument is None:
        return None
    failures: list[Exception] = []
    for value in given[argument]:
        try:
            pyfuncitem.obj(**{**given, argument: value})
        except (Exception, pytest.fail.Exception) as error:
            failures.append(AssertionError(f"{argument} = {value}: {type(error).__name__}: {error}"))
            failures[-1].with_traceback(error.__traceback__)
    if len(failures) == 1:
        raise failures[0]
    assert not failures, "\n".join(map(str, failures))
    return True


def pytest_report_header(config: pytest.Config) -> str:
    if not config.option.full:
        return (
            f"first tier: the same cases on every machine, on the processor {os.environ.get('TVMDML_CPU')} (--full runs all tests)"
        )
    return f"all tests; cases drawn with --full --case-seed {config.option.case_seed}"


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    option.full = option.full or option.every_case or option.case_seed is not None
    if not option.full:
        option.case_seed = 0
        _be_a_common_machine()
    elif option.case_seed is None:
        option.case_seed = _content()
    path = config.getoption("--note-skipped")
    if path is not None and not hasattr(config, "workerinput"):  # the controller of pytest-xdist receives the reports of all tests
        config.pluginmanager.register(_Skipped(path))


def _be_a_common_machine() -> None:
    """Whatever this machine is, its kernels are those of a common one with two threads."""
    level = next((name for name in _COMMON_LEVELS if (known := host.known(name)) and host.host().runs(known)), "")
    if level:
        os.environ.setdefault("TVMDML_CPU", level)
    os.environ.setdefault("TVMDML_NUM_THREADS", "2")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says how it is repeated, on this machine or another that can run it."""
    report = yield
    if report.failed:
        option = item.config.option
        drawn = f" --full --case-seed {option.case_seed}{' --every-case' if option.every_case else ''}" if option.full else ""
        report.sections.append(("to repeat it", f"python -m pytest{drawn} '{item.nodeid}'"))
    return report


class _Skipped:
    """Writes down which tests were skipped, or whole files, and why: a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            with open(self.path, "a") as file:
                file.write(f"{report.nodeid}\t{report.longrepr[2].removeprefix('Skipped: ')}\n")

    pytest_collectreport = pytest_runtest_logreport


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, need in _SWITCHES.items():
        if not config.getoption(f"--{name}"):
            for item in items:
                if name in item.keywords:
                    item.add_marker(pytest.mark.skip(reason=f"needs {need}: run with --{name}"))
    if not config.option.every_case:
        left_out = {item for item in items if _is_emulated() and _runs_elsewhere(item)}
        left_out |= _left_out([item for item in items if item not in left_out], config.option)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _left_out(items: Iterable[pytest.Item], option: Any) -> set[pytest.Item]:
    """What the first tier leaves out of tests marked ``full`` and ``some``; with --full, what is not drawn of the latter."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        for name in ("some", "full")[: 1 if option.full else 2]:
            if item.get_closest_marker(name) is not None:
                cases.setdefault((item.nodeid.partition("[")[0], name), []).append(item)
    left_out: set[pytest.Item] = set()
    for (test, name), several in cases.items():
        mark = several[0].get_closest_marker(name)
        assert mark is not None
        if option.full:
            chosen = random.Random(f"{option.case_seed} {test}").sample(several, min(mark.args[0], len(several)))
        else:
            chosen = several[: mark.kwargs.get("first", int(name == "some"))]
        left_out |= {*several} - {*chosen}
    return left_out


def pytest_collection_finish() -> None:
    """What collecting has made stays until the end: a collection of garbage, which many tests ask for, need not look at it."""
    gc.collect()
    gc.freeze()


def _runs_elsewhere(item: pytest.Item) -> bool:
    """Whether a case that is for every kind of device is another device's: their kernels are of the same schedules.

    What is about devices, and not about operators, runs on each.
    """
    given = item.callspec.params if hasattr(item, "callspec") else {}
    of_a_schedule = item.path.name.startswith("test_gpu_")
    kind = given.get("target") or (given.get("device") if of_a_schedule else None)
    if kind in (None, "cpu") or not _has_vulkan():
        return False
    number = zlib.crc32(item.nodeid.replace(kind, "", 1).encode())
    return number % (4 if of_a_schedule else 2) != (kind == "cuda")


@functools.cache
def _has_vulkan() -> bool:
    try:
        targets.resolve("vulkan")
    except errors.DeviceError:
        return False
    return True


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run's own folder of kernels. The processes of pytest-xdist, and those that tests start, share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_CACHE_DIR", str(folder))
        patch.setenv("TVMDML_TUNING", "0")  # the installed logs change with every run of the tuner
        for name in ("TVMDML_DISABLE_JIT", "TVMDML_CACHE_SIZE"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="session", params=targets.kinds())
def target(request: pytest.FixtureRequest) -> targets.Target:
    """Every kind of target that this machine has."""
    return _found(request.param)


@pytest.fixture(scope="session", params=[kind for kind in targets.kinds() if targets.target_class(kind).schedules == "gpu"])
def device(request: pytest.FixtureRequest) -> targets.Target:
    """Every kind of device that this machine has."""
    return _found(request.param)


@pytest.fixture(scope="session")
def vulkan() -> targets.Target:
    """A Vulkan device."""
    return _found("vulkan")


@pytest.fixture(scope="session")
def cuda() -> targets.Target:
    """A CUDA device: a GPU, or the emulator."""
    return _found("cuda")


@pytest.fixture(scope="session", params=["vulkan", "vulkan with words alone", "cuda"])
def machine(request: pytest.FixtureRequest) -> Any:
    """Every kind of device that kernels are generated for; also Vulkan as if it had integers of 32 bits and float32 alone."""
    import generators

    kind, *words = request.param.split(" ", 1)
    if kind == "cuda":
        return generators.CudaMachine(_found(kind))
    lacking = (*(f"int{bits}" for bits in (8, 16, 64)), "float16", "atomic64", "shared_atomic64", "subgroup_extended_types")
    return generators.VulkanMachine(_found(kind), **dict.fromkeys(lacking if words else (), False))


def _found(kind: str) -> targets.Target:
    """The target of a kind; skips the test where there is none, unless ``TVMDML_EXPECT_…=1`` says that there is one."""
    try:
        return targets.resolve(kind)
    except errors.DeviceError as error:
        if os.environ.get(f"TVMDML_EXPECT_{kind.upper()}") == "1":
            raise
        pytest.skip(f"no {kind} here: {error}")


@pytest.fixture(scope="session", autouse=True)
def valid_shaders() -> Iterator[None]:
    """Every shader that is made goes past the Khronos Group's own validator, where that is installed."""
    from tvmdml.targets.vulkan import spirv

    tool = shutil.which("spirv-val")
    if tool is None:
        assert os.environ.get("TVMDML_EXPECT_VULKAN") != "1", "spirv-val is not here"
        yield
        return
    emit = spirv.emit

    def checked(*arguments: Any) -> spirv.Shader:
        shader = emit(*arguments)
        command = [tool, "--target-env", "vulkan1.2", "-"]
        done = subprocess.run(command, input=shader.code, capture_output=True, check=False)
        said = f"{done.stdout.decode()}{done.stderr.decode()}"
        is_older = "Invalid capability operand: 6022" in said  # than VK_KHR_cooperative_matrix
        assert done.returncode == 0 or is_older, f"{shader.entry}: {said}"
        return shader

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spirv, "emit", checked)
        yield


@pytest.fixture(autouse=True)
def no_word_of_the_validation_layer() -> Iterator[None]:
    """With ``TVMDML_VULKAN_VALIDATION=1``, what the layer says about how Vulkan is used fails the test that it comes up in."""
    yield
    if os.environ.get("TVMDML_VULKAN_VALIDATION") == "1":
        from tvmdml.targets.vulkan import driver

        said, driver.validation_messages[:] = list(driver.validation_messages), []
        assert not said, "\n".join(said)


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """``draw(candidates, count)``: so many of them, with --full others when the source changes; all with --every-case."""
    rng = random.Random(f"{request.config.getoption('--case-seed')} {request.node.name}")

    def drawn(candidates: Iterable[Any], count: int = 1) -> list[Any]:
        found = list(candidates)
        return found if request.config.getoption("--every-case") else rng.sample(found, min(count, len(found)))

    return drawn


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test starts with no plans and no kernels in memory, and leaves those it found, and no operators of its own."""
    monkeypatch.setattr(functions, "_plans", {})
    monkeypatch.setattr(functions, "_quick_plans", _quick.plans())
    monkeypatch.setattr(finding, "_memory", {})
    yield
    own_operators.OWN.clear()  # plans of models are kept by them


# The integers of a launch: of the width that small arrays never need, and as constants if they fit in no parameter.
_NUMBERS = {"64 bits": {"_NARROW": 1}, "constants": {"_PUSH_BYTES": 0}, "constants of 64 bits": {"_NARROW": 1, "_PUSH_BYTES": 0}}


@pytest.fixture(params=_NUMBERS.values(), ids=tuple(_NUMBERS))
def numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """GPU kernels have their integers in each of the ways that only large or strange arrays make them have."""
    from tvmdml.schedules import gpu

    forced: dict[str, int] = request.param
    for name, value in forced.items():
        monkeypatch.setattr(gpu, name, value)
    return forced


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
    with knobs.using(**_smallest_tasks()):
        yield


def _smallest_tasks() -> dict[str, dict[str, Any]]:
    """The least values of the knobs of all CPU schedules that say how much work a task has."""
    from tvmdml.schedules import cpu

    found: dict[str, dict[str, Any]] = {}
    for module in pkgutil.iter_modules(cpu.__path__, f"{cpu.__name__}."):
        declared = getattr(importlib.import_module(module.name), "KNOBS", None)
        for name, knob in declared.knobs.items() if declared is not None else ():
            if name.startswith(("task_", "share_", "fill_")):
                found.setdefault(declared.operator, {})[name] = min(knob.choices)
    return found


@pytest.fixture
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The test has a user's folder of tuning logs of its own, no other logs, and has not been warned of anything."""
    from tvmdml.library import log_folders, logs
    from tvmdml.system.disk import stores

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("TVMDML_TUNING", "TVMDML_TUNING_NEAREST", "TVMDML_TUNING_LOGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(log_folders, "_shipped", lambda: ())
    monkeypatch.setattr(stores, "_warned", set())
    logs.forget()
    yield tmp_path / "data" / "tvmdml" / "tuning_logs"
    logs.forget()
