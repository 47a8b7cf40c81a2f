"""Every operator on every target, with a kernel of each of its schedules: what the first tier knows of values."""

from __future__ import annotations

import zlib

import first_cases
import pytest

from tvmdml import operators, targets
from tvmdml.proof.conformance import SEED
from tvmdml.targets import Target

PARTS = 24
"""Tests for a target: so that processes finish together."""
LARGE = {name for name, cls in operators.all_operators().items() if cls.FAMILY == "pointwise"}
"""Operators that run one kernel of those that they share."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_schedule_agrees_with_the_reference(part: int, target: Target) -> None:
    names = [name for name in operators.all_operators() if zlib.crc32(name.encode()) % PARTS == part]
    problems = [drawn.problem(SEED) for name in names for drawn in first_cases.cases_of(name, target)]
    assert len(problems) >= len(names)
    assert not any(problems), "\n".join(filter(None, problems))


@pytest.mark.full
@pytest.mark.drawn("name", operators.all_operators(), 8)
def test_the_table_has_every_kernel(name: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    if target.kind == "cpu":  # the table is made for this level, and needs no processor that has it
        monkeypatch.setenv("TVMDML_CPU", "x86-64-v3")
        monkeypatch.setenv("TVMDML_NUM_THREADS", "2")
        (target,) = targets.elsewhere("cpu:x86-64-v3")
    chosen = {kernel.name for drawn in first_cases.cases_of(name, target) if (kernel := drawn.kernel()) is not None}
    every = set(first_cases.kernels_of(name, target))
    assert name in LARGE or chosen == every, "run: python tests/first_cases.py"
    assert chosen
    assert chosen <= every
