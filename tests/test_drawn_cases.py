"""Every operator's kernels run on every target: a few of its conformance cases, drawn anew whenever the source changes.

`--every-case` runs all of them, `--case-seed N` draws those of an earlier run again, and `tvmdml.conformance.again` repeats one.
"""

from __future__ import annotations

import random
import zlib

import pytest

from tvmdml import operators
from tvmdml.conformance import SEED, cases, references
from tvmdml.operators import Operator
from tvmdml.targets import Target

DRAWN = {"cpu": 12, "gpu": 8}
"""Cases of an operator on a target, by the folder of its schedules: what a second or two allow."""


def drawn(name: str, target: Target, seed: int, every: bool) -> list[references.ReferenceCase]:
    """The cases of an operator that a run tries on a target."""
    found = [references.ReferenceCase(name, case) for case in cases.reference(name)]
    if every:
        return found
    number = zlib.crc32(f"{name} {target.kind}".encode())
    return random.Random(f"{seed} {number}").sample(found, min(DRAWN[target.schedules], len(found)))


@pytest.mark.parametrize("name", operators.all_operators())
def test_kernels_agree_with_the_reference(name: str, target: Target, pytestconfig: pytest.Config) -> None:
    every = pytestconfig.getoption("--every-case")
    tried = drawn(name, target, pytestconfig.getoption("--case-seed"), every)
    assert tried, "an operator without a case"
    wrong = [f"{case.what} on {target.name}: {said}" for case in tried if (said := case.problem(target, SEED))]
    assert not wrong, "\n".join(wrong)


def test_a_seed_draws_the_same_cases_again_and_another_draws_others(vulkan: Target) -> None:
    draws = [[case.what for case in drawn("TOP_K1", vulkan, seed, False)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0]) == DRAWN["gpu"]


def test_a_kernel_that_is_wrong_is_found(vulkan: Target, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """The operator's reference is another than its kernels compute."""
    cls = operators.all_operators()["ELEMENT_WISE_ROUND"]
    right = cls.reference

    def other(self: Operator, *inputs: object) -> tuple[object, ...]:
        return tuple(x + x.dtype.type(1) for x in right(self, *inputs))

    monkeypatch.setattr(cls, "reference", other)
    with pytest.raises(AssertionError, match=r'operator = "ELEMENT_WISE_ROUND".* elements differ'):
        test_kernels_agree_with_the_reference("ELEMENT_WISE_ROUND", vulkan, pytestconfig)
