"""Commands, timing and files of JSON models."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dispatch_models import Run, changed, prints, refusal, resource, rounding, tensor

from tvmdml import CompiledOperator, dxdispatch
from tvmdml.dxdispatch import Timing
from tvmdml.errors import ModelError, TvmdmlError

# -- Commands and timing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({}, "commands[1].type: given nothing; allowed: dispatch, print, writeFile"),
        ({"type": "dance"}, 'commands[1].type: given "dance"; allowed: dispatch, print, writeFile'),
        ({"type": "print", "resource": "ouput"}, 'commands[1].resource: given "ouput"; allowed: the name of a resource'),
        ({"type": "print", "resource": "mixed"}, "commands[1].resource: given 'mixed', of elements of type UNKNOWN"),
        ({"type": "print", "resource": "output", "verbose": 1}, "commands[1].verbose: given 1; allowed: true or false"),
        ({"type": "dispatch", "dispatchable": "flat", "bindings": {}}, 'commands[1].dispatchable: given "flat"'),
        ({"type": "dispatch", "dispatchable": "round"}, "commands[1].bindings: given nothing"),
        ({"type": "writeFile", "resource": "output"}, "commands[1].targetPath: given nothing"),
    ],
)
def test_a_wrong_command_is_refused(run: Run, command: Any, message: str) -> None:
    model = changed(rounding(), "commands.1", command)
    model["resources"]["mixed"] = resource([{"type": "INT8", "value": 1}], "UNKNOWN")
    assert message in refusal(run, model)


def test_one_line_tells_of_a_dispatch(run: Run) -> None:
    line, _ = run(rounding())
    assert re.fullmatch(r"Dispatch 'round': 1 iterations, \d+\.\d{4} ms median \(CPU\)", line)


def test_more_is_told_when_asked(run: Run) -> None:
    stats = r"\d+\.\d{4} ms average, \d+\.\d{4} ms min, \d+\.\d{4} ms median, \d+\.\d{4} ms max"
    lines = run(rounding(), timing=Timing(iterations=5, repeat=3, warmup=2, verbosity=2))
    patterns = [
        r"Initialize 'round': \d+\.\d{4} ms",
        r"Dispatch 'round': 5 iterations",
        rf"CPU Timings \(Cold\) : 2 samples, {stats}",
        rf"CPU Timings \(Hot\)  : 3 samples, {stats}",
        r"The timings of each iteration:",
        *[rf"iteration {i}: \d+\.\d{{4}} ms \(CPU\)" for i in range(5)],
        r"Resource 'output': 1, 2, -0, nan",
    ]
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line)
    assert run(rounding(), timing=Timing(iterations=5, verbosity=1))[2].startswith("CPU Timings (Cold) : 1 samples, ")


def test_one_sample_is_always_hot(run: Run) -> None:
    lines = run(rounding(), timing=Timing(warmup=10, verbosity=1))
    assert [line.partition(" samples")[0] for line in lines if "CPU" in line] == ["CPU Timings (Hot)  : 1"]


def test_each_sample_binds_once_and_dispatches_as_often_as_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    bind = CompiledOperator.bind

    def counting(self: CompiledOperator, *tensors: Any) -> Callable[[], None]:
        calls.append("bind")
        call = bind(self, *tensors)
        return lambda: (calls.append("dispatch"), call())[1]

    monkeypatch.setattr(CompiledOperator, "bind", counting)
    run(rounding(), timing=Timing(iterations=2, repeat=3))
    assert calls == ["bind"] + 2 * ["bind", "dispatch", "dispatch", "dispatch"]  # the first one is the check


def test_commands_work_on_the_same_resources_one_after_the_other(run: Run) -> None:
    model = rounding()
    model["dispatchables"]["diagonal"] = {
        "type": "DML_OPERATOR_DIAGONAL_MATRIX1",
        "desc": {
            "InputTensor": tensor(2, 2),
            "OutputTensor": tensor(2, 2),
            "ValueDataType": "FLOAT32",
            "Value": {"Float32": 8},
            "DiagonalFillBegin": 1,
            "DiagonalFillEnd": 2,
        },
    }
    bindings = {"InputTensor": "output", "OutputTensor": "input"}
    model["commands"] += [
        {"type": "dispatch", "dispatchable": "diagonal", "bindings": bindings},
        {"type": "print", "resource": "input"},
    ]
    lines = run(model)
    assert lines[1] == "Resource 'output': 1, 2, -0, nan"
    assert lines[3] == "Resource 'input': 1, 8, -0, nan"


def test_time_to_run_takes_more_samples(run: Run) -> None:
    line, _ = run(rounding(), timing=Timing(iterations=2, milliseconds=30))
    assert int(re.findall(r"(\d+) iterations", line)[0]) > 2


# -- The file itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: given text that is not JSON (No JSON data found)"),
        (
            '{\n "resources": {}\n "commands": []}',
            "line 3, column 2: given text that is not JSON (Expected comma or '}', found '\"')",
        ),
        ('{"resources": {}} // yes\n no', "given text that is not JSON (Extra data 'n')"),
        ("[" * 10_000, "given text that is not JSON (Maximum nesting level exceeded)"),
        ('{"resources": {"x": {"initialValues": [1e999]}}}', "given text that is not JSON"),
        ("[]", "given []; allowed: an object"),
        ("{}", "resources: given nothing; allowed: an object"),
        ('{"resources": {}, "dispatchables": {}, "commands": {}}', "commands: given an empty object; allowed: a list"),
        ('{"resources": {}, "dispatchables": {}, "commands": [], "command": 1}', "command: given an unknown field"),
    ],
)
def test_a_wrong_file_is_refused(run: Run, text: str, message: str) -> None:
    assert message in refusal(run, text)


def test_comments_trailing_commas_and_a_schema_are_fine(run: Run) -> None:
    assert run('\ufeff// nothing\n{"$schema": "x", "resources": {}, /* none */ "dispatchables": {}, "commands": [],}') == []


@pytest.mark.parametrize("path", ["missing.json", ".", "/dev/zero", "pipe", "latin.json", "a\0b"])
def test_what_is_no_text_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("latin.json").write_bytes(b'{"\xe9": 1}')
    with pytest.raises(ModelError, match=r"allowed: a JSON file"):
        dxdispatch.read(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="at most 256 MiB"):
        dxdispatch.read(path)


def test_names_may_be_any_text(run: Run) -> None:
    name = "a.b[0] 'é' \U0001f600"
    assert run(prints(**{name: resource([1])})) == [f"Resource '{name}': 1"]
    assert 'resources["a b"].initialValues: given []' in refusal(run, prints(**{"a b": resource([])}))


@pytest.mark.full
def test_every_refusal_is_tvmdmls_own_whatever_stands_where(run: Run) -> None:
    """Put things of every kind in every place of a model: it runs, or is refused with a message.

    So the tables have each rule once, and not for each place where it holds.
    """
    strange = [None, True, -1, 2**70, 1.5, "", "nan", "x", [], [[]], {}, {"Type": {}}, {"name": None}, {"valueCount": 1}]

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [place for key, item in inner for place in [(*path, key), *places(item, (*path, key))]]

    said = []
    for place in places(rounding()):
        for value in strange:
            try:
                run(changed(rounding(), ".".join(map(str, place)), value))
            except TvmdmlError as error:
                said.append(str(error))
    assert len(said) > 300
    assert all(": given " in text for text in said)
