"""The rows of ``tvmdml bench``: they are well formed and right, every operator has some, and their traffic is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn import of

from tvmdml import operators
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.proof.bench import checks, inputs, limits, peers, rows, runner, tables
from tvmdml.proof.bench.peers import _names
from tvmdml.proof.bench.rows.diagonal_matrix import band, diagonal, triangle
from tvmdml.proof.bench.rows.element_wise_round import rounding
from tvmdml.proof.bench.rows.nonzero_coordinates import nonzero
from tvmdml.proof.bench.rows.pointwise import add, binary, unary
from tvmdml.proof.bench.rows.top_k import top_k
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Operand, Traffic, Work
from tvmdml.targets import Target

SMALL = 9
DRAWN = 4
"""The rows of an operator that are run on a target."""
Draw = Callable[..., list[Any]]
EVERY = "all operators"
FIRST = [rows.load(name).CASES[0] for name in rows.modules() if not name.startswith("_")]
OPERATORS = sorted({case.work.operator for case in FIRST if case.row != EVERY})
"""One of each file of rows that have goals."""


# -- The table ----------------------------------------------------------------------------------------------------


kinds = pytest.mark.parametrize("kind", ["cpu", "cuda"])


@kinds
def test_names_are_unique_and_the_quick_set_is_a_part_of_the_full_one(kind: str) -> None:
    names = [case.name for case in tables.of(kind)]
    quick, full = tables.select(kind=kind), tables.select(full=True, kind=kind)
    assert 0 < len(quick) < len(full) == len(names) == len(set(names))
    assert kind != "cpu" or {case.work.operator for case in quick} >= set(OPERATORS)
    assert tables.select(full=True, operators=("TOP_K1",), text="top", kind=kind)
    assert tables.of("vulkan") == tables.of("cpu") != tables.of("cuda")


@pytest.mark.full
@kinds
def test_every_case_is_well_formed(kind: str) -> None:
    for case in tables.of(kind):
        for work in filter(None, (case.work, case.baseline)):
            work.describe().validate(NEWEST_FEATURE_LEVEL)
            assert work.layout in inputs.LAYOUTS
            assert not work.data or work.data in inputs.FILLS
            assert np.prod(work.sizes) <= 256 << 20
        known = {peer.name for peer in peers.every(case.work.operator, kind) if peer.when(case.work.newest())}
        assert set(case.rivals) <= known, case
        assert case.baseline or known or case.row == EVERY, case
        assert case.goal is None or case.goal > 0, case
        assert case.share is None or 0 < case.share <= 1, case


def test_every_operator_has_rows_without_being_named() -> None:
    found = {case.work.operator for case in tables.of("cpu")}
    directml = {name for name in found if not name.startswith("FUSED_")}
    assert directml == set(operators.all_operators()), "give it a file in tvmdml/proof/bench/rows"
    lazy = [case for case in tables.of("cpu") if case.row == EVERY]
    assert not any(case.quick or case.goal for case in lazy)
    sizes = {int(np.prod(case.work.sizes)) for case in lazy}
    assert sizes == {1 << 16, 1 << 24}


def test_rows_that_nobody_wrote_run(pytestconfig: pytest.Config) -> None:
    for case in of(pytestconfig.getoption("--case-seed"), "rows").sample(rows.load("_every").CASES, 6):
        task = Task(case.work.at_most(SMALL - 1))  # even, for SPACE_TO_DEPTH
        assert checks.ours(task, runner.ours(task).results()) == "", case
        asked = task.newest()
        for peer in peers.of(task.work, thorough=False):
            try:
                results = peer.make(asked, 1).results()
            except Exception:  # a library without the type, or an older version without the operator
                continue
            assert checks.peer(asked, results) == "", peer


def test_replaced_operators_are_compared_with_the_peers_of_newer_ones() -> None:
    replaced = {"DIAGONAL_MATRIX", "TOP_K", "AVERAGE_POOLING", "LP_POOLING", "MAX_POOLING", "MAX_POOLING1"}
    found = {case.work.operator: case.work for case in tables.of("cpu") if case.work.operator in replaced}
    assert set(found) == replaced
    for name, work in found.items():
        known = {(peer.library, peer.name) for peer in peers.every(name) if peer.when(work.newest())}
        assert known, name
        assert known >= {(peer.library, peer.name) for peer in peers.of(work, thorough=False)}


@pytest.mark.parametrize(
    ("operator", "numpy", "torch", "onnx"),
    [
        ("ELEMENT_WISE_SUBTRACT", "subtract", "subtract", "Sub"),
        ("ELEMENT_WISE_ADD", "add", "add", "Add"),
        ("ELEMENT_WISE_CLIP", "", "", "Clip"),
        ("ELEMENT_WISE_BIT_NOT", "invert", "bitwise_not", "BitwiseNot"),
        ("FILL_VALUE_SEQUENCE", "", "", "Range"),
    ],
)
def test_what_others_call_an_operator(operator: str, numpy: str, torch: str, onnx: str) -> None:
    assert (_names.in_numpy(operator), _names.in_torch(operator), _names.in_onnx(operator)) == (numpy, torch, onnx)


def test_peers_belong_to_operators_and_to_libraries() -> None:
    for name in OPERATORS:
        assert name in operators.all_operators()
        assert {peer.library for peer in peers.every(name)} <= set(peers.LIBRARIES["cpu"])


@pytest.mark.full(first=3)
@pytest.mark.parametrize("door", ["bound", "operator", "function"])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_door_gives_the_same(name: str, door: str, target: Target) -> None:
    work = next(case.work for case in tables.of("cpu") if case.work.operator == name).at_most(SMALL)
    task = Task(Work(**{**vars(work), "door": door}))
    attempt = runner.ours(task, target)
    assert checks.ours(task, attempt.results()) == ""
    if attempt.repeat is not None:
        attempt.repeat(3)


@pytest.mark.drawn("name", OPERATORS, 12)
def test_cases_run_on_every_target(name: str, target: Target, draw: Draw) -> None:
    cases = (*tables.of("cpu"), *tables.of("cuda"))
    for work in draw(dict.fromkeys(case.work.at_most(SMALL) for case in cases if case.work.operator == name), DRAWN):
        task = Task(work)
        assert checks.ours(task, runner.ours(task, target).results()) == "", work


@pytest.mark.parametrize("door", ["bound", "function"])
def test_several_inputs_run_on_every_target(door: str, target: Target) -> None:
    for work in (
        binary("ELEMENT_WISE_ADD1", 4, 9, other=Operand((1, 9)), door=door),
        binary("ELEMENT_WISE_ADD1", 4, 9, other=Operand((4, 9), layout="transposed"), door=door),
        binary("ELEMENT_WISE_ADD1", 4, 9, in_place=door == "bound", door=door),
        Work.on("ELEMENT_WISE_IF", Operand((4, 1), "uint8", "50 %"), Operand((9,)), Operand((1,)), door=door),
    ):
        task = Task(work)
        assert checks.ours(task, runner.ours(task, target).results()) == "", work


@pytest.mark.drawn("name", [name for name in rows.modules() if not name.startswith("_")], 8)
def test_everyone_agrees_with_the_reference(name: str, draw: Draw) -> None:
    small = {case.work.at_most(SMALL): case for case in rows.load(name).CASES}
    unable = []
    for work, case in draw(small.items(), 2 * DRAWN):
        task = Task(work)
        assert checks.ours(task, runner.ours(task).results()) == "", case.name
        if case.baseline is not None:
            continue
        for peer in peers.of(work, thorough=True):
            try:
                attempt = peer.make(task, 1)
            except Exception as error:
                unable.append(f"{peer.library} {peer.name} {work.dtype}: {error}")
                continue
            attempt.prepare()
            assert checks.peer(task, attempt.results()) == "", f"{case.name}: {peer}"
            attempt.call()
    assert len(unable) <= 2, unable


# -- Traffic and limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "traffic"),
    [
        (rounding(10), Traffic(copied=40)),
        (rounding(10, dtype="float16", in_place=True), Traffic(rewritten=20)),
        (nonzero(4, 4, data="100 %"), Traffic(read=64, written=4 * 33)),
        (diagonal(4, 4), Traffic(written=16, zeroed=48)),
        (triangle(4, 4), Traffic(copied=24, zeroed=40)),
        (band(16, 16, dtype="uint8"), Traffic(copied=256 - 146, written=146)),
        (top_k(2, 8, k=3), Traffic(read=64, written=48)),
        (add(10), Traffic(copied=40, read=40)),
        (add(10, in_place=True), Traffic(rewritten=40, read=40)),
        (add(4, 8, other=Operand((4, 1))), Traffic(copied=128, read=16)),
        (unary("CAST", 10, output_tensor="float16"), Traffic(copied=20, read=20)),
    ],
    ids=str,
)
def test_bytes_that_must_be_moved(work: Work, traffic: Traffic) -> None:
    assert Task(work).traffic == traffic


def test_the_loops_of_the_limits_move_what_they_say() -> None:
    tensors = [np.zeros(512 + 64, np.uint8) for _ in range(2)]
    a, b = (t[-t.ctypes.data % 64 :][:512] for t in tensors)
    for streams, (kind, wanted_a, wanted_b) in itertools.product(
        (False, True) if limits.can_stream() else (False,),
        (("copied", 5, 5), ("written", 5, 1), ("zeroed", 5, 0), ("read", 5, 9)),
    ):
        a[...], b[...] = 5, 9
        limits.mover(kind, streams)(a, b, 2, 3)
        assert (a == wanted_a).all()
        assert (b.view(np.uint32) == (1 if kind == "written" else wanted_b * 0x01010101)).all()
    limits.mover("rewritten", False)(a, a, 2, 3)
    assert (a.view(np.uint32) == 0x05050505 ^ 1).all(), "three times: once more than there and back"


def test_little_traffic_has_no_limit() -> None:
    assert limits.contenders(Traffic(copied=100), 2) == []
    kinds = {c.name for c in limits.contenders(Traffic(copied=1 << 20, written=100), 2)}
    assert kinds == {"copied"}
    assert limits.seconds([]) is None
