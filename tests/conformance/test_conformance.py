"""`tvmdml conformance`: which cases it runs, that it finds errors, and that nothing keeps it from reporting them."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import commands
import numpy as np
import pytest

from tvmdml import ElementWiseRound, TopK1, operators, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import DeviceError, InvalidArgument, Unsupported
from tvmdml.onnx import descriptors
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.proof import conformance
from tvmdml.proof.conformance import cases, drawing, models, onnx_cases, references, running
from tvmdml.proof.conformance.checks import FAILED, NOT_RUN, PASSED, Check, CheckOutcome
from tvmdml.proof.conformance.fills import FILLS
from tvmdml.proof.conformance.plan import CheckPlan, here, plan
from tvmdml.proof.conformance.report import Report
from tvmdml.system import installing
from tvmdml.targets import Target
from tvmdml.targets.vulkan import VulkanTarget

OPERATORS = operators.all_operators()
each_operator = pytest.mark.each("name", OPERATORS)


def call(*arguments: object) -> Any:
    return commands.call("conformance", *arguments)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each operator's cases the first and the last."""
    whole = cases.reference
    monkeypatch.setattr(cases, "reference", lambda name: iter([*(found := list(whole(name)))[:1], found[-1]]))


def failures(name: str, *parts: str) -> list[str]:
    """What a run in this process says of an operator."""
    report = conformance.run(["cpu"], [name], parts=parts, isolated=False)
    return [f"{outcome.what}: {outcome.said}" for outcome in report.failed]


# -- What is asked ------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_every_operator_has_a_file_of_cases_and_every_file_an_operator() -> None:
    """Modules whose operators are all pointwise need none."""
    folder = Path(str(cases.__file__)).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    modules = {operators.module_of(cls) for cls in OPERATORS.values()}
    assert files <= modules
    assert all(issubclass(cls, Pointwise) for cls in OPERATORS.values() if operators.module_of(cls) not in files)
    for name, cls in OPERATORS.items():
        assert type(cases.described(name)(_first(next(cases.reference(name)).desc))) is cls


def _first(desc: Operator) -> Any:
    return next(tensor for _, tensor in desc.tensors() if tensor is not None)


@pytest.mark.full
@each_operator
def test_cases_have_every_type_and_rank_of_the_operator_and_every_kind_of_tensor(name: str) -> None:
    found = list(cases.reference(name))
    cls = OPERATORS[name]
    for case in found:
        case.desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        assert case.fill in FILLS
    assert len(found) == len(set(found)), "a case is there twice"
    for tensor in cls.SUPPORT[0].tensors:
        named = [one for case in found for key, one in case.desc.tensors() if key.partition("[")[0] == tensor]
        met = {(one.data_type, one.rank) for one in named if one is not None}
        rows = [row.tensors[tensor] for row in cls.SUPPORT]
        assert {data_type for data_type, _ in met} == {data_type for row in rows for data_type in row.types}
        assert {rank for _, rank in met} >= {rank for row in rows for rank in range(row.min_rank, row.max_rank + 1)}
    tensors = [tensor for case in found for _, tensor in case.desc.tensors() if tensor is not None]
    assert any(tensor.element_count >= 10_000 for tensor in tensors), "none is worth more than one thread"
    if found[0].desc.canonical() is found[0].desc:  # no newer operator stands for it
        assert any(tensor.strides is not None for tensor in tensors)
        runs = {tensor.sizes[-1] for tensor in tensors if tensor.sizes[-1] >= 64}
        assert {run & (run - 1) == 0 for run in runs} == {True, False}, "what is left over, and what leaves nothing over"
        has_input = any(field.role is Role.INPUT for field in cls.fields())
        assert any(0 in tensor.strides for tensor in tensors if tensor.strides) == has_input
    assert any(case.shared for case in found) == bool(cls.SHARES)


@pytest.mark.full(first=1)
@pytest.mark.drawn("name", OPERATORS, 40)
def test_a_case_is_written_so_that_it_can_be_run_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    monkeypatch.setattr(references.ReferenceCase, "problem", lambda self, target, seed: met.append(self.what) or "")
    found = [references.ReferenceCase(name, case) for case in list(cases.reference(name))[::20]]
    for check in found:
        text, _, fill = check.what.rpartition(", input ")
        assert conformance.again(text, fill.strip("'")) == ""
    assert met == [check.what for check in found]


def test_models_use_what_the_reader_reads() -> None:
    text = "".join(path.read_text() for path in models.FOLDER.glob("*.json"))
    assert len(list(models.FOLDER.glob("*.json"))) >= 24
    for feature in (
        *(
            "valueStart",
            '"value"',
            "sourcePath",
            "UNKNOWN",
            "initialValuesOffsetInBytes",
            "sizeInBytes",
            "elementOffset",
            "Strides",
        ),
        *("elementCount", "elementSizeInBytes", "OWNED_BY_DML", "writeFile", "dimensions", '"verbose": true', "//", "/*", '"nan"'),
        *("TotalTensorSizeInBytes", "GuaranteedBaseOffsetAlignment", "DimensionCount", "Desc:", "executionFlags", "dmlCompileType"),
        *("DML_ROUNDING_MODE_", "DML_TENSOR_DATA_TYPE_", '"UInt16"', '"Type"', "null", "0x"),
    ):
        assert feature in text, feature


def test_a_level_leaves_out_what_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("DIAGONAL_MATRIX", "DIAGONAL_MATRIX1", "NONZERO_COORDINATES")
    monkeypatch.setattr("tvmdml.proof.conformance.plan.operators", SimpleNamespace(all_operators=lambda: few))
    found = plan(["cpu"], feature_level="2.1").checks
    asked = {(check.part, check.operator) for check in found}
    assert ("cases", "DIAGONAL_MATRIX") in asked
    assert ("models", "DIAGONAL_MATRIX") in asked
    assert not {("cases", "NONZERO_COORDINATES"), ("models", "NONZERO_COORDINATES"), ("cases", "DIAGONAL_MATRIX1")} & asked
    assert ("rules", "NONZERO_COORDINATES") in asked, "rules are of all levels"


@pytest.mark.full
def test_a_plan_draws_cases_that_have_every_fact_of_the_operators_and_its_seed_repeats_them() -> None:
    for name in ("CAST", "TOP_K1", "MULTIHEAD_ATTENTION1"):
        every = list(references.checks([name], NEWEST_FEATURE_LEVEL))
        one, again, other = (drawing.drawn(every, seed) for seed in (1, 1, 2))
        assert one == again != other
        assert len(every) / 2 > len(one) >= drawing.LEAST
        assert set().union(*map(drawing.facts_of, one)) == set().union(*map(drawing.facts_of, every))


@pytest.mark.full
def test_operators_that_are_named_have_all_their_cases_and_so_has_a_plan_of_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmdml.proof.conformance.plan.operators.all_operators", lambda: ("TOP_K1",))
    some, every, named = (
        plan(["cpu"], names, parts=["cases"], every_case=all_of) for names, all_of in (((), False), ((), True), (["TOP_K1"], False))
    )
    assert len(some.checks) < some.cases == len(every.checks) == len(named.checks)
    outcomes = [check.outcome("cpu", PASSED) for check in some.checks]
    said = list(Report(("cpu",), 1, NEWEST_FEATURE_LEVEL, outcomes, cases=some.cases).lines())
    assert f"drawn: {len(some.checks)} of {some.cases} cases, of every operator, with seed 1; --every-case runs all" in said
    outcomes = [check.outcome("cpu", PASSED) for check in every.checks]
    assert "drawn" not in "".join(Report(("cpu",), 1, NEWEST_FEATURE_LEVEL, outcomes, cases=every.cases).lines())


def test_the_machine_is_what_answers() -> None:
    assert here()[0] == "cpu"
    for name in here():
        targets.resolve(name).home.wait()


# -- What is found ------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.usefixtures("few")
def test_a_kernel_that_differs_in_a_bit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not failures("ELEMENT_WISE_ROUND", "cases")
    right = ElementWiseRound.reference

    def wrong(self: ElementWiseRound, *inputs: Any) -> tuple[Any, ...]:
        (found,) = right(self, *inputs)
        found = np.array(found)
        found.view(f"u{found.itemsize}").flat[0] ^= 1
        return (np.where(np.isnan(found), 0, found),)

    monkeypatch.setattr(ElementWiseRound, "reference", wrong)
    said = failures("ELEMENT_WISE_ROUND", "cases")
    assert len(said) == 2
    assert said[0].startswith('{ operator = "ELEMENT_WISE_ROUND", InputTensor = "float32[131]", OutputTensor = "float32[131]", ')
    assert "input 'mixed': output_tensor: " in said[0]
    assert "elements differ, first at (0,): " in said[0]


@pytest.mark.full
def test_tensors_begin_at_any_element(monkeypatch: pytest.MonkeyPatch) -> None:
    met = set()

    def note(desc: Operator, target: Target, trial: Any) -> str:
        places = trial.places().values()
        met.update(place.array.ctypes.data % 64 // place.array.itemsize for place in places)
        return "" if all(place.is_guarded() for place in places) else "it is not guarded"

    monkeypatch.setattr(references, "tried", note)
    assert not failures("ELEMENT_WISE_ROUND", "cases")
    assert met == {0, 1, 2, 3}


@pytest.mark.usefixtures("few")
def test_a_target_that_ran_no_kernel_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(self: Check, target: Target, seed: int) -> str:
        raise Unsupported("the device lacks all there is")

    monkeypatch.setattr(references.ReferenceCase, "problem", lack)
    report = conformance.run(["cpu"], ["TOP_K1"], parts=["rules", "cases"], isolated=False)
    assert not report.failed
    assert report.idle == ["cpu"]
    assert not report.ok
    assert "FAILED: cpu ran no kernels" in report.lines()
    assert conformance.run(["cpu"], ["TOP_K1"], parts=["rules"], isolated=False).ok


@pytest.mark.full
@pytest.mark.usefixtures("few")
def test_what_is_written_outside_of_a_tensor_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmdml.tensors.arrays.guarded.GuardedTensor.is_guarded", lambda place: False)
    assert [said.rpartition(": ")[2] for said in failures("TOP_K", "cases")] == [
        "the kernel wrote to memory outside input_tensor"
    ] * 2


def without_check(monkeypatch: pytest.MonkeyPatch, cls: type[Operator], name: str) -> None:
    """Leave out a check of an operator. No descriptor remembers that it was found right: other tests have the same objects."""
    monkeypatch.setattr(cls, name, lambda *_: None)
    monkeypatch.setattr(cls, "_levels", lambda self: set())


@pytest.mark.full
def test_a_rule_that_is_not_refused_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not failures("ELEMENT_WISE_ROUND", "rules")
    without_check(monkeypatch, ElementWiseRound, "check")
    said = failures("ELEMENT_WISE_ROUND", "rules")
    assert [one.partition(": ")[0] for one in said] == ["round to another type", "round to other sizes", "round to another rank"]
    assert "should be refused with InvalidArgument: ELEMENT_WISE_ROUND output_tensor.data_type: given float16; allowed: " in said[0]
    assert all(one.endswith("was accepted") for one in said)


def test_a_rule_that_is_refused_in_other_words_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: TopK1) -> None:
        raise InvalidArgument("no")

    monkeypatch.setattr(TopK1, "check", check)
    said = [one for one in failures("TOP_K1", "rules") if one.startswith("k of 0: ")]
    assert said
    assert said[0].endswith("; was refused with InvalidArgument: no")


@pytest.mark.full
def test_a_type_that_a_level_takes_and_should_not_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    without_check(monkeypatch, TopK1, "_check_support")
    said = [one for one in failures("TOP_K1", "rules") if one.startswith("types and ranks at 4.1: ")]
    assert said == ["types and ranks at 4.1: float64 of rank 1 should be refused; was accepted"]


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("model", "stated", "instead", "said"),
    [
        (
            "top_k_ties",
            "[3, 1, 2, 2, 3, 1, 0, 1, 2]",
            "[3, 1, 2, 2, 3, 1, 0, 2, 1]",
            "largest at: 2 of 9 elements differ, first element 7: 1, should be 2",
        ),
        (
            "round_even",
            "0, -0.0, 0, -0.0",
            "0, 0, 0, -0.0",
            "output: 1 of 16 elements differ, first element 9: -0.0, should be 0.0",
        ),
        ("nonzero_example", "count': 4", "count': 5", "prints ["),
        ("round_files", '"sizes": [2, 2]', '"sizes": [1, 4]', "found/part.npy: is of shape (2, 2), should be (1, 4)"),
        ("round_files", 'found/raw.dat": {', 'found/row.dat": {', "found/row.dat: was not written"),
    ],
    ids=["elements", "zeros", "printed", "sizes", "file"],
)
def test_a_model_that_leaves_something_else_is_reported(
    model: str, stated: str, instead: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (models.FOLDER / "halves.npy", models.FOLDER / "halves.dat", models.FOLDER / f"{model}.json"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    (check,) = models.checks(OPERATORS, NEWEST_FEATURE_LEVEL)
    target = targets.resolve("cpu")
    assert check.problem(target, 0) == ""
    text = (tmp_path / f"{model}.json").read_text()
    assert stated in text
    (tmp_path / f"{model}.json").write_text(text.replace(stated, instead, 1))
    assert check.problem(target, 0).startswith(said)


def test_the_seed_is_what_the_inputs_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[bytes] = []

    def keep(desc: Operator, target: Target, trial: Any) -> str:
        met.append(trial.places()["input_tensor"].array.tobytes())
        return ""

    monkeypatch.setattr(references, "tried", keep)
    check = references.ReferenceCase("TOP_K1", next(cases.reference("TOP_K1")))
    for seed in (1, 1, 2):
        check.problem(targets.resolve("cpu"), seed)
    assert met[0] == met[1] != met[2]


# -- ONNX ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # ONNX's computation of the expected outputs issues warnings
def test_onnx_cases_of_all_operators_run_and_those_that_cannot_have_a_reason(
    monkeypatch: pytest.MonkeyPatch, draw: Callable[..., list[Any]]
) -> None:
    """Of an operator of a family one that is drawn."""
    pytest.importorskip("onnx", reason="ONNX is not installed")
    without = {kind for kind, found in onnx_cases.collected().items() if not found}
    assert without == {
        "Affine",
        "GlobalLpPool",
        "MaxRoiPool",
        "SimplifiedLayerNormalization",
        "com.microsoft.FusedMatMul",
        "com.microsoft.Gelu",
        "com.microsoft.MatMulIntegerToFloat",
        "com.microsoft.MultiHeadAttention",
        "com.microsoft.QLinearAdd",
        "com.microsoft.QLinearAveragePool",
        "com.microsoft.QLinearGlobalAveragePool",
    }  # one of the first versions; ONNX Runtime's
    assert set(onnx_cases.collected()) == set(descriptors.OPERATORS)
    can = collections.Counter(
        check.operator for check in onnx_cases.checks(OPERATORS, NEWEST_FEATURE_LEVEL) if getattr(check, "desc", None)
    )
    least = {"TOP_K1": 7, "DIAGONAL_MATRIX1": 19, "CAST": 18, "ELEMENT_WISE_IDENTITY": 40, "ELEMENT_WISE_CLIP1": 11}
    assert all(can[name] >= count for name, count in least.items())
    assert set(can) >= {"ELEMENT_WISE_ROUND", "NONZERO_COORDINATES", "QUANTIZE", "DEQUANTIZE", "FILL_VALUE_SEQUENCE"}
    alone = ("TopK", "NonZero", "Trilu", "EyeLike")
    few = {kind: found if kind in alone else draw(found) for kind, found in onnx_cases.collected().items()}
    monkeypatch.setattr(onnx_cases, "collected", lambda: few)
    report = conformance.run(["cpu"], parts=["onnx"], isolated=False)
    assert not report.failed
    assert all(outcome.said for outcome in report.outcomes if outcome.verdict == NOT_RUN)
    right = next(check for check in onnx_cases.checks(["TOP_K1"], NEWEST_FEATURE_LEVEL) if isinstance(check, onnx_cases.NodeCheck))
    wrong = dataclasses.replace(right, outputs=(right.outputs[0], right.outputs[1] ^ np.uint64(1)))
    assert "output_index_tensor: " in wrong.problem(targets.resolve("cpu"), 0)


def test_without_onnx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_cases, "collected", onnx_cases.collected.__wrapped__)
    monkeypatch.setitem(sys.modules, "onnx.backend.test.case", None)
    result = call("--onnx", "--device", "cpu", "--operator", "TOP_K1")
    assert result.exit_code == 1
    assert result.stderr == ("tvmdml: conformance --onnx needs the package onnx, which is not installed: `pip install onnx`.\n")


def test_without_the_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmdml.system.imports.version", lambda distribution: "")
    result = call("--device", "cpu")
    assert result.exit_code == 1
    assert result.stderr == (
        f"tvmdml: conformance compiles every kernel, and the compiler is not installed: {installing.command('compiler')}.\n"
    )


def test_what_cannot_be_asked_is_refused_at_once() -> None:
    result = call("--operator", "TOP_K1", "--feature_level", "2.0")
    assert (result.exit_code, "TOP_K1: given 2.0; allowed: 2.1 and above" in result.stderr) == (1, True)
    if not targets.target_class("cuda").devices()[0]["target"].startswith("cuda:"):
        assert call("--device", "cuda:sm_90").exit_code == 1  # for which one can compile, and run nothing


# -- The command --------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.usefixtures("few")
def test_the_command_shows_what_passed_and_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = call("--device", "cpu", "--operator", "diagonal_matrix", "--json", path)
    assert result.exit_code == 0, result.output
    head, row, *rest = result.stdout.splitlines()
    assert head.split() == ["operator", "target", "rules", "cases", "models"]
    assert row.split("  ")[0] == "DIAGONAL_MATRIX"
    assert "2 passed" in row
    assert rest[0].startswith("tvmdml ")
    assert any(line.startswith("cpu:") for line in rest)
    assert rest[-2].endswith(" passed, 0 failed, 0 not run")
    report = json.loads(path.read_text())
    assert report["seed"] == conformance.SEED
    assert report["machine"]["cpu"]
    assert {row["target"] for row in report["machine"]["devices"]} >= {report["machine"]["target"]}
    assert [(row["part"], row["failed"], row["not run"]) for row in report["counts"]] == [
        *(("cases", 0, 0), ("models", 0, 0), ("rules", 0, 0))
    ]


def test_many_operators_are_summed_up_family_by_family() -> None:
    found = [CheckOutcome("rules", name, "cpu", "one", PASSED) for name in operators.all_operators()]
    found += [
        CheckOutcome("cases", "TOP_K", "cpu", "one", FAILED, "all wrong"),
        CheckOutcome("cases", "TOP_K1", "vulkan:0", "one", PASSED),
    ]
    columns, rows = Report(("cpu", "vulkan:0"), 0, NEWEST_FEATURE_LEVEL, found, machine={}).summary(("rules", "cases"))
    assert columns == ("family", "operators", "target", "rules", "cases")
    table = {(row["family"], row["target"]): row for row in rows}
    assert sum(int(str(row["operators"])) for place, row in table.items() if place[1] == "cpu") == len(operators.all_operators())
    assert {place for place in table if place[1] != "cpu"} == {("top_k", "vulkan:0")}
    assert (table["top_k", "cpu"]["rules"], table["top_k", "cpu"]["cases"]) == ("2 passed", "1 failed")
    few, _ = Report(("cpu",), 0, NEWEST_FEATURE_LEVEL, found[:2], machine={}).summary(("rules",))
    assert few == ("operator", "target", "rules")


@pytest.mark.usefixtures("few")
def test_a_failure_is_told_in_one_line_and_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "outcomes", lambda checks, target, seed, isolated: _broken(checks, target))
    result = call("--device", "cpu", "--operator", "TOP_K", "--no-models")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert line.startswith('FAILED: TOP_K on cpu, cases: { operator = "TOP_K", InputTensor = "float32[2, 3, 40, 5]", ')
    assert line.endswith("input 'mixed', seed 2024: all wrong")
    result = call("--device", "cpu", "--operator", "TOP_K", "--no-models", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    (failed,) = report["failed"]
    assert (failed["operator"], failed["target"], failed["part"], failed["said"]) == ("TOP_K", "cpu", "cases", "all wrong")


def _broken(checks: Any, target: str) -> Iterator[Any]:
    for number, check in enumerate([check for check in checks if check.part == "cases"]):
        yield check.outcome(target, PASSED if number else FAILED, "" if number else "all\nwrong")


@pytest.mark.usefixtures("few")
def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CheckPlan.outcomes

    def interrupted(self: CheckPlan) -> Iterator[Any]:
        for number, outcome in enumerate(whole(self._replace(isolated=False))):
            if number == 3:
                raise KeyboardInterrupt
            yield outcome

    monkeypatch.setattr(CheckPlan, "outcomes", interrupted)
    result = call("--device", "cpu", "--operator", "TOP_K")
    assert result.exit_code == 130
    left = plan(["cpu"], ["TOP_K"]).total - 3
    assert result.stdout.splitlines()[-1] == f"3 passed, 0 failed, 0 not run; interrupted: {left} checks were not run"
    assert json.loads(call("--device", "cpu", "--operator", "TOP_K", "--json").stdout)["left"] == left


@pytest.mark.parametrize(
    "arguments",
    [
        ("--device", "abacus"),
        ("--operator", "NO_SUCH_OPERATOR"),
        ("--json", "/nonexistent/x.json"),
        ("--feature_level", "9"),
        ("--seed", "-1"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert call(*arguments).exit_code == 2


@pytest.mark.parametrize(("fields", "said"), [({"parts": ["luck"]}, "conformance part"), ({"seed": 1 << 64}, "conformance seed")])
def test_a_plan_of_what_there_is_not_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        conformance.run(["cpu"], **fields)
    with pytest.raises(InvalidArgument, match="case input: given 'luck'; allowed: mixed, "):
        conformance.again("{}", "luck")


# -- What kernels may do ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Misdeed(Check):
    """Does what it is told to the process that it runs in."""

    part: ClassVar[str] = "cases"
    deed: str

    @property
    def what(self) -> str:
        return self.deed

    def problem(self, target: Target, seed: int) -> str:
        if self.deed == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.deed == "lose":
            raise DeviceError("the device was lost")
        if self.deed == "lack":
            raise Unsupported("it has no float64")
        if self.deed == "raise":
            raise ValueError("two\nlines")
        return ""


def _verdicts(*deeds: str) -> dict[str, tuple[str, str]]:
    found = running.outcomes([Misdeed("TOP_K1", deed) for deed in deeds], "cpu", 0, True)
    return {outcome.what: (outcome.verdict, outcome.said) for outcome in found}


@pytest.mark.full
def test_a_crash_and_a_lost_device_cost_one_outcome_each() -> None:
    assert _verdicts("nothing", "crash", "lose", "lack", "raise", "nothing more") == {
        "nothing": (PASSED, ""),
        "crash": (FAILED, "crashed: signal 11 (SIGSEGV)"),
        "lose": (FAILED, "raised DeviceError: the device was lost"),
        "lack": (NOT_RUN, "it has no float64"),
        "raise": (FAILED, "raised ValueError: two lines"),
        "nothing more": (PASSED, ""),
    }


@pytest.mark.full
def test_nobody_waits_for_process_after_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_LOST", 1)
    monkeypatch.setattr(running, "_MOST_WORKERS", 1)
    assert _verdicts("crash", "nothing") == {
        "crash": (FAILED, "crashed: signal 11 (SIGSEGV)"),
        "nothing": (NOT_RUN, "stopped after 1 processes that crashed, hung or lost their device"),
    }


# -- Devices ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_devices_are_asked_the_same(device: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cases.reference
    monkeypatch.setattr(cases, "reference", lambda name: iter([next(whole(name))]))
    monkeypatch.setattr(models, "checks", lambda names, level: iter([models.ModelCheck("TOP_K1", _ties(), level)]))
    report = conformance.run([device.kind], ["ELEMENT_WISE_ROUND", "TOP_K1"], parts=["cases", "models"])
    assert [(outcome.target, outcome.verdict, outcome.said) for outcome in report.outcomes] == [(device.name, PASSED, "")] * 3


def _ties() -> Path:
    return models.FOLDER / "top_k_ties.json"


@pytest.mark.exhaustive
@each_operator
def test_everything_passes(name: str, target: Target) -> None:
    report = conformance.run([target.kind], [name])
    assert not report.failed, "\n".join(report.lines())


def test_a_model_with_a_type_that_the_device_lacks_is_not_run(vulkan: targets.Target) -> None:
    assert isinstance(vulkan, VulkanTarget)
    lacking = VulkanTarget("0", vulkan.capabilities._replace(storage8=False), vulkan.info)
    check = models.ModelCheck("DIAGONAL_MATRIX", models.FOLDER / "diagonal_limits.json", NEWEST_FEATURE_LEVEL)
    with pytest.raises(Unsupported, match="lacks storageBuffer8BitAccess"):
        check.problem(lacking, 1)
