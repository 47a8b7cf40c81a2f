"""The tuner's clocks: what is timed and what is not, and the right clock for each kind of target."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tvmdml import DiagonalMatrix1, Operator, TensorDataType, TensorDesc, compiler, targets
from tvmdml.proof.bench import cuda_limits, measure
from tvmdml.proof.bench.events import Batches, Cold
from tvmdml.proof.bench.measure import Contender, RacePace
from tvmdml.proof.bench.work import Traffic
from tvmdml.targets import Target
from tvmdml.targets.vulkan import driver
from tvmdml.tuning import clocks
from tvmdml.tuning.clocks import QuickClock, VulkanBatches

MICRO = 1e-6


class Made:
    """A host and its device, whose time goes on when they are told to work, and what they were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: float, device: float = 0.0) -> None:
        self.said: list[str] = []
        self.now = self.pending = 0.0
        self.host, self.device = host, device
        monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def call(self) -> None:
        self.said.append("call")
        self.now += self.host
        self.pending += self.device

    def wait(self) -> None:
        self.said.append("wait")
        self.now += self.pending
        self.pending = 0.0

    def contender(self) -> Contender:
        return Contender("ours", "tvmdml", "f", 1, self.call, lambda: self.said.append("prepare"))


def test_the_hosts_clock_counts_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, host=2 * MICRO, device=30 * MICRO)
    sample = QuickClock(made.wait).sample(made.contender(), 16)
    assert made.said == ["prepare", *["call"] * 2, "wait", *["call"] * 16, "wait"], "the first calls are not timed"
    assert sample == pytest.approx((32 * MICRO, 0))


def test_a_sample_of_the_hosts_clock_is_as_long_as_the_contender_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, host=10 * MICRO)
    assert QuickClock().calls(made.contender()) == pytest.approx(measure.SAMPLE / (10 * MICRO), abs=1)
    slow = Made(monkeypatch, host=1.0)
    assert QuickClock().calls(slow.contender()) == 1
    assert len(slow.said) == 4, "prepare, one call to warm up, and two that are timed"


# -- Every target -------------------------------------------------------------------------------------------------


def described() -> Operator:
    return DiagonalMatrix1(
        output_tensor=TensorDesc(data_type=TensorDataType.FLOAT32, sizes=(4, 300)),
        value_data_type=TensorDataType.FLOAT32,
        value=2.0,
        diagonal_fill_begin=0,
        diagonal_fill_end=1,
    )


def contender(target: Target) -> Contender:
    out = target.place(np.zeros((4, 300), np.float32))
    call = compiler.compile(described(), target).bind(None, out)
    return Contender("ours", "tvmdml", "diagonal_matrix", 1, call)


@pytest.fixture(scope="module")
def cpu() -> Target:
    return targets.resolve("cpu")


def raced(target: Target) -> None:
    """Race twins of two roles: of twins of one role, the one that the machine disturbs would be sampled less often."""
    clock = clocks.of(target)
    ours = contender(target)
    for timing in measure.race([ours, replace(ours, role="peer")], RacePace(2, 0.0, 2), clock):
        assert timing.samples == 2
        assert timing.calls >= 1
        assert timing.median > 0


@pytest.mark.full
def test_the_processor_has_the_hosts_clock(cpu: Target) -> None:
    assert isinstance(clocks.of(cpu), QuickClock)
    raced(cpu)


def test_a_device_has_its_own_clock(device: Target) -> None:
    kinds = {"cuda": Batches, "vulkan": VulkanBatches}
    assert isinstance(clocks.of(device), kinds[device.kind])
    raced(device)


def test_a_device_without_a_clock_is_waited_for(vulkan: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan.device, "timestamp_bits", 0)  # type: ignore[attr-defined]
    waits, wait = [], vulkan.wait

    def waiting() -> None:
        waits.append("wait")
        wait()

    monkeypatch.setattr(vulkan, "wait", waiting)
    clock = clocks.of(vulkan)
    assert isinstance(clock, QuickClock)
    assert clock.sample(contender(vulkan), 3).seconds > 0
    assert waits == ["wait"] * 2, "before what is timed, and after it"


def test_a_vulkan_device_is_not_timed_waiting_for_the_host(vulkan: Target) -> None:
    opened: driver.Device = vulkan.device  # type: ignore[attr-defined]
    if not driver.has_timestamps(opened):
        pytest.skip("this device has no timestamps")
    clock = VulkanBatches(opened)
    memory = opened.allocate(4096)
    opened.wait()
    batches = []

    def call() -> None:
        opened.fill(memory, 0, 4096)
        batches.append(opened.queue.serial)

    clock.sample(Contender("ours", "tvmdml", "fill", 1, call), 30)
    assert len(batches) > 30
    assert len(set(batches)) == 1, "one submission, although the device was idle"
    with pytest.raises(ZeroDivisionError):
        clock.calls(Contender("ours", "tvmdml", "nothing", 1, lambda: 1 / 0))
    assert opened.queue._holding == 0


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_much_work_on_a_cuda_device_is_timed_as_the_bench_does(device: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmdml.proof.bench import venues

    monkeypatch.setattr(cuda_limits, "flush_bytes", lambda device: 1 << 16)
    venues._flush.cache_clear()
    assert isinstance(clocks.of(device, Traffic(read=cuda_limits.COLD_BYTES)), Cold)
    assert isinstance(clocks.of(device, Traffic(read=100)), Batches)
    venues._flush.cache_clear()
