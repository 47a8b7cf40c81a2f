"""The conventions of the code base hold."""

from __future__ import annotations

import ast
import inspect
import subprocess
from collections import defaultdict

import pytest
from folders import TOP

import tvmdml
from tvmdml import doors, operators
from tvmdml.commands import stub
from tvmdml.enums import FeatureLevel
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators.batch_normalization import BatchNormalization


@pytest.mark.each("name", operators.all_operators())
def test_every_operator_is_whole(name: str) -> None:
    cls = operators.by_name(name)
    assert cls.__name__ in operators.public_names_by_module()[operators.module_of(cls)]
    assert inspect.getdoc(cls)
    assert f"DML_{cls.NAME}_OPERATOR_DESC" in str(inspect.getdoc(cls))
    assert cls.computation is not Operator.computation
    assert cls.reference is not Operator.reference
    named = {field.name for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT)}
    assert all(set(row.tensors) == named for row in cls.SUPPORT)
    assert cls.infer is not Operator.infer
    functions = doors.functions(operators.module_of(cls)).values()
    assert functions
    assert all("Returns:" in str(f.__doc__) and "DML_OPERATOR" in str(f.__doc__) for f in functions)


def test_a_pointwise_operator_is_a_class_of_a_few_lines() -> None:
    """Lines that are not blank, docstring included. BATCH_NORMALIZATION is a sum over each channel when it trains."""
    found = [cls for cls in operators.all_operators().values() if issubclass(cls, Pointwise) and cls is not BatchNormalization]
    lines = [sum(bool(line.strip()) for line in inspect.getsource(cls).splitlines()) for cls in found]
    assert len(found) > 90
    assert sum(lines) / len(lines) <= 14


def test_a_schedule_belongs_to_an_operator() -> None:
    files = {path.stem for path in (TOP / "schedules").glob("*/*.py") if not path.stem.startswith("_")}
    found = operators.all_operators().values()
    assert files <= {operators.module_of(cls) for cls in found} | {cls.FAMILY for cls in found}


def test_every_enumeration_is_a_name_of_the_package() -> None:
    used = {field.enum for cls in operators.all_operators().values() for field in cls.fields() if field.enum is not None}
    for enum in {*used, FeatureLevel}:
        assert getattr(tvmdml, enum.__name__) is enum
        assert enum.__name__ in dir(tvmdml)
    assert "DmlEnum" not in dir(tvmdml)
    with pytest.raises(AttributeError, match="Did you mean 'RoundingMode'"):
        tvmdml.RoundingMod  # noqa: B018


def test_type_checkers_see_every_name() -> None:
    assert stub.PATH.read_text() == stub.text(), "run `python -m tvmdml.commands.stub`"


def test_the_top_level_holds_what_it_should() -> None:
    known = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, capture_output=True, text=True, check=False)
    if known.returncode:
        pytest.skip("not a git checkout")
    names = {line.split("/")[0] for line in known.stdout.splitlines()}
    allowed = {"pyproject.toml", "README.md", "LICENSE", "tvmdml", "schedules", "tests", "tuning_logs", "findings"}
    assert {name for name in names if not name.startswith(".")} == allowed


_TWICE = {
    "CallTranslator Calls Clocked DeviceInfo Event Loaded Memory MemoryUse Module OutOfMemory Owner Pool Prepared": "two targets",
    "CompiledOperator Device Expression Graph Model Refused Session Size2D TensorDesc": "names in packages that programs move from",
    "Kind Node Recording Result Value": "of ONNX models, beside those of graphs, packs and kernels",
    "Channels FewBits FewRows": "words of kernels, and of schedules; the same for processors and for GPUs",
    "Case Cases Operand": "what conformance checks, and what is measured; families' files, which are read alone",
    "Emitted Logs Record": "what one layer promises, and what another makes of it; a log's line, and what sizes are recorded in",
}
"""The public classes that stand in several files, and why."""


def test_a_public_class_stands_in_one_file() -> None:
    files: dict[str, int] = defaultdict(int)
    for folder in ("tvmdml", "schedules"):
        for path in (TOP / folder).rglob("*.py"):
            if path.relative_to(TOP).parts[:2] != ("tvmdml", "schedules"):  # a link to the other folder
                for node in ast.parse(path.read_text()).body:
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        files[node.name] += 1
    assert sorted(name for name, count in files.items() if count > 1) == sorted(" ".join(_TWICE).split())
