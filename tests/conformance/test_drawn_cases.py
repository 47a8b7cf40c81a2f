"""Every operator's kernels run on every target: kernels of its conformance cases, drawn anew whenever the source changes.

`--every-case` runs all of them, `--case-seed N` draws those of an earlier run again, and `tvmdml.conformance.again` repeats one.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from drawn import DEFAULT, Drawn, budget, dealt, forced, more, of, plain, relaid, some_operators, spread
from plain import PLAIN
from support import assert_outputs_agree, reference

from tvmdml import knobs, operators, targets
from tvmdml.kernels.knobs import Knob
from tvmdml.operators import Operator
from tvmdml.proof.conformance import SEED
from tvmdml.targets import Target

KERNELS = {"cpu": 12, "gpu": 16}
"""Kernels of an operator on a target, by the folder of its schedules: what a second or two allow."""
FORCED = {"cpu": 4, "gpu": 6}
"""Kernels with other knobs, layouts and integers than their own. (On the CPU, test_guard_pages.py has more of them.)"""
DEFAULTS = 4
"""Kernels of the schedule for operators that have none of their own."""
ELEMENTS = 300_000
"""The elements of the cases that are run with a kernel; at least one is run."""
PLAIN_CASES, PLAIN_ELEMENTS = 80, 5000
"""Cases of an operator, and their most elements, that plain Python computes."""
NONE = Knob("auto", (), "")
SCHEDULED = tuple({cls.FAMILY or name: name for name, cls in operators.all_operators().items()}.values())
"""An operator of each schedule."""
each_operator = pytest.mark.parametrize("name", operators.all_operators())
of_some = some_operators(10)


def assert_agree(kernels: list[list[Drawn]], every: bool = False) -> None:
    """The kernels give what the reference gives, for their cases."""
    assert kernels, "an operator without a case"
    wrong = []
    for served in kernels:
        left = ELEMENTS
        for drawn in served:
            if left > 0 or every:
                left -= drawn.elements
                wrong.append(drawn.problem(SEED))
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.fixture
def every(pytestconfig: pytest.Config) -> bool:
    """Whether all cases are run, and many more forced ones."""
    return bool(pytestconfig.getoption("--every-case"))


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """What is drawn."""
    return int(pytestconfig.getoption("--case-seed"))


def assert_kernels_agree(name: str, target: Target, seed: int, every: bool) -> None:
    """An operator's kernels, as they are."""
    count = 10**6 if every else budget(name, KERNELS[target.schedules])
    rng = of(seed, name, target.kind)
    assert_agree(spread(dealt(name, target, rng), count, rng), every)


@pytest.mark.full
@each_operator
def test_kernels_agree_with_the_reference(name: str, seed: int, every: bool) -> None:
    assert_kernels_agree(name, targets.resolve("cpu"), seed, every)


@pytest.mark.full
@some_operators(12)
def test_devices_kernels_agree_with_the_reference(name: str, device: Target, seed: int, every: bool) -> None:
    assert_kernels_agree(name, device, seed, every)


@pytest.mark.full
@of_some
def test_knobs_layouts_and_tasks_change_no_result(name: str, target: Target, seed: int, every: bool) -> None:
    rng, count = of(seed, "forced", name, target.kind), budget(name, FORCED[target.schedules], 2) * (20 if every else 1)
    assert_agree(more(spread(forced(name, target, rng, 20 * count), count, rng), rng))


@pytest.mark.full
@of_some
def test_the_default_schedule_agrees_with_the_reference(name: str, target: Target, seed: int, every: bool) -> None:
    rng, count = of(seed, "default", name, target.kind), budget(name, DEFAULTS) * (20 if every else 1)
    assert_agree(spread(forced(name, target, rng, 5 * count, DEFAULT), count, rng))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", PLAIN)
def test_the_reference_is_the_contract_in_plain_python(name: str, seed: int, every: bool) -> None:
    small = [drawn for drawn in plain(name, targets.resolve("cpu")) if drawn.elements <= PLAIN_ELEMENTS]
    rng = of(seed, "plain", name)
    for drawn in rng.sample(small, len(small) if every else min(PLAIN_CASES, len(small))):
        drawn = drawn._replace(case=relaid(drawn.case, rng))
        desc, inputs = drawn.case.desc, drawn.inputs(SEED)
        assert_outputs_agree(desc, PLAIN[name](desc, *inputs), reference(desc, *inputs))


@pytest.mark.full
def test_a_seed_draws_the_same_kernels_again_and_another_draws_others(vulkan: Target) -> None:
    draws = [[str(one[0]) for one in spread(plain("TOP_K1", vulkan), 8, of(seed, "TOP_K1"))] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0]) == 8
    some = [[str(one) for one in forced("TOP_K1", vulkan, of(seed), 8)] for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]


@pytest.mark.full
@pytest.mark.drawn("name", SCHEDULED, 4)
def test_every_way_of_a_schedule_is_drawn(name: str, target: Target) -> None:
    """Those that its own knobs lead to, in tasks and not, and those that a knob names; however few kernels are drawn."""
    every = plain(name, target)
    some = spread(every, KERNELS[target.schedules], of(1, name))
    assert named(served[0] for served in some) == named(every)
    candidates = [drawn._replace(target=target) for drawn in forced(name, target, of(1, name), 400)]
    reached = named(every) | named(candidates)
    declared = knobs.of(every[0].tuned_as, target)
    algorithms = {} if declared is None else declared.knobs.get("algorithm", NONE).choices
    explicit = [drawn._replace(knobs={"algorithm": word}) for drawn in every[::5] for word in algorithms]
    assert reached >= named(explicit)
    assert named(served[0] for served in spread(candidates, 16, of(1, name))) >= named(candidates)


def named(drawn: Iterable[Drawn]) -> set[str]:
    """The names of kernels."""
    return {kernel.name for one in drawn if (kernel := one.kernel())}


def test_a_kernel_that_is_wrong_is_found(vulkan: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's reference is another than its kernels compute."""
    cls = operators.all_operators()["ELEMENT_WISE_ROUND"]
    right = cls.reference

    def other(self: Operator, *inputs: object) -> tuple[object, ...]:
        return tuple(x + x.dtype.type(1) for x in right(self, *inputs))

    monkeypatch.setattr(cls, "reference", other)
    with pytest.raises(AssertionError, match=r'operator = "ELEMENT_WISE_ROUND".* elements differ'):
        assert_kernels_agree("ELEMENT_WISE_ROUND", vulkan, 1, False)
