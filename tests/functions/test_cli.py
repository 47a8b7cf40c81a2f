"""The command ``tvmdml``: its output and its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from commands import call, succeed
from folders import MODELS
from programs import python

import tvmdml
from tvmdml import dxdispatch, operators, targets
from tvmdml.cli import main
from tvmdml.dxdispatch import commands
from tvmdml.operators._json import nodes
from tvmdml.options import OperationOptions
from tvmdml.proof import doctor
from tvmdml.system import console


def lines(*arguments: object) -> list[str]:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def failure(*arguments: object) -> str:
    """The one line that a failure is told in."""
    result = call(*arguments)
    assert result.exit_code == 1
    text, *rest = result.stderr.splitlines()
    assert not rest
    assert text.startswith("tvmdml: ")
    return text.removeprefix("tvmdml: ")


def misuse(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: tvmdml ")
    return result.stderr


# -- All commands --------------------------------------------------------------------------------------------------


def _leaves(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, *names, name)
        else:
            yield (*names, name), command


def test_every_command_takes_device_and_target_alike() -> None:
    found = [
        (names, {*option.opts})
        for names, command in _leaves(main)
        for option in command.params
        if {"--device", "--target"} & {*option.opts}
    ]
    assert len(found) >= 8
    for names, spellings in found:
        assert {"--device", "--target"} <= spellings, names
    for option in ("--device", "--target"):
        assert lines("run", option, "cpu", MODELS / "round.json")
        assert lines("source", "ELEMENT_WISE_ROUND", "--sizes", "3", option, "cpu")


@pytest.mark.parametrize("command", [("run", MODELS / "round.json"), ("doctor",), ("source", "TOP_K1")], ids=lambda c: c[0])
def test_ctrl_c_is_code_130(command: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(dxdispatch, "read", interrupt)
    monkeypatch.setattr(doctor, "_made", interrupt)
    monkeypatch.setattr(doctor, "_asked", lambda name: [])
    monkeypatch.setattr(OperationOptions, "describe", interrupt)
    result = call(*command)
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


# -- run ----------------------------------------------------------------------------------------------------------

# The output of each model, according to the tables of the operators' contracts.
PRINTED = {
    "round.json": [
        "even': -2, -2, -2, -1, 1, 2, 2, 2",
        "zero': -2, -1, -1, -1, 1, 1, 1, 2",
        "away': -3, -2, -2, -1, 1, 2, 2, 3",
        "special': inf, -inf, nan, -0, 0, 8.38861e+06",
    ],
    "top_k1.json": [
        "row values': 11, 10, 9, 8, 7, 6",
        "row indices': 3, 2, 2, 3, 3, 2",
        "column values': 4, 5, 10, 11, 3, 2, 9, 8",
        "column indices': 2, 2, 0, 0, 1, 1, 1, 1",
        "largest': 3, 2, 2, 5, 5, 4, 6, 6, 6",
        "largest indices': 3, 1, 2, 2, 3, 1, 0, 1, 2",
        "smallest': 1, 2, 2, 3, 4, 5, 6, 6, 6",
        "smallest indices': 0, 1, 2, 0, 1, 2, 0, 1, 2",
    ],
    "top_k.json": [
        "values': nan, 11, 10, nan, 11, 10, nan, 11, 10",
        "indices': 4, 3, 2, 4, 3, 2, 4, 3, 2",
    ],
    "fill_value.json": [
        "sequence': 3.25, 4.75, 6.25, 7.75, 9.25",
        "wrapped': 4, 2, 0, 254",
        "constant': 1.5, 1.5",
        "clipped': 2, 2, 3, 4, 4",
    ],
    "nonzero_coordinates.json": [
        "count': 4",
        "coordinates': 0, 0, 0, 0, 0, 3, 0, 1, 1, 0, 1, 3",
    ],
    "diagonal_matrix1.json": [
        "band': 7, 7, 7, 0, 0, 0, 7, 7, 7, 0, 0, 0, 7, 7, 7, 0, 0, 0, 7, 7",
        "upper': 0, 7, 3, 7, 9, 0, 0, 8, 6, 9, 0, 0, 0, 8, 7, 0, 0, 0, 0, 4",
        "diagonal': 4, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0",
    ],
    "diagonal_matrix.json": [
        "floats': 0, -2.5, 0, 0, 0, -2.5",
        "integers': 0, 0, 0, -2, 0, 0",
    ],
    "pointwise.json": [
        "activated': 6, 10, -1, nan",
        "scaled': 1.5, 3.5, 5.5, -8.5",
        "raw': 1, 3, 5, -1, -3, -5",
        "powers': -2147483648, 1870418611, -1, 1",
    ],
    "matrix.json": [
        "plane': 8, 10, 12, 16, 18, 20",
        "volume': 44, 60",
        "product': 22, 28, 49, 64",
        "owned': 5, 5, 13, 13, 21, 21",
        "last': 13, 13, 17, 17",
    ],
    "movement.json": [
        "joined': 1, 2, 3, 3, 4, 4, 5, 6, 5, 6",
        "left': 1, 4",
        "right': 2, 3, 5, 6",
        "sliced': 4, 6",
        "larger': 1, 1.25, 1.75, 2, 3, 3.25, 3.75, 4",
        "sums': 6, 15",
        "products': 1, 2, 6, 4, 20, 120",
        "clipped': 3, 4, 6, 8, 9.5, 9.5",
        "halves': 0, 0.25, 0.5, nan",
    ],
    "products.json": ["sum': 12, 4, 18, 10"],
    "joined.json": ["some': 1, 2, 9, 10, 0, 0, 0, 0", f"all': {', '.join(map(str, range(1, 13)))}"],
    "matmul_add.json": ["result': 34, -15.5, -15.5, -9"],
    "image.json": [f"gray': {', '.join(', '.join([gray] * 6) for gray in ('0.5', '0.666667', '0.833333', '1'))}"],
    "files.json": [
        "npy': 0.5, 1.5, 2.5, -0.5, -1.5, -2.5",
        "dat': 0.5, 1.5, 2.5, -0, -1, -2",
    ],
}


def test_every_model_is_looked_at() -> None:
    assert set(PRINTED) == {path.name for path in MODELS.glob("*.json")}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", PRINTED)
def test_a_model_prints_what_the_contract_says(name: str, tmp_path: Path, target: targets.Target) -> None:
    running, *rest = lines("run", MODELS / name, "--output_path", tmp_path, "--device", target.name)
    assert re.fullmatch("Running on '.+'", running)
    dispatches = [line for line in rest if line.startswith("Dispatch ")]
    assert dispatches
    assert all(re.fullmatch(r"Dispatch '[\w ]+': 1 iterations, \d+\.\d{4} ms median \(CPU\)", line) for line in dispatches)
    written = [line for line in rest if " written to " in line]
    printed = [line for line in rest if line not in dispatches + written]
    assert printed == [f"Resource '{line}" for line in PRINTED[name]]


def test_models_run_on_the_device_that_is_asked_for(target: targets.Target) -> None:
    for option in ("--device", "--adapter"):
        assert lines("run", MODELS / "round.json", option, target.name)[-4] == f"Resource '{PRINTED['round.json'][0]}"
    name = target.devices()[0]["device"]
    assert lines("run", MODELS / "round.json", "-a", name[1:-1].upper())[0] == f"Running on '{name}'"


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["-i", "4"], r"Dispatch 'nonzero': 4 iterations, .* ms median \(CPU\)"),
        (["--dispatch_iterations", "4", "--dispatch-repeat", "2"], r"Dispatch 'nonzero': 4 iterations, "),
        (["-r", "3"], r"Dispatch 'nonzero': 1 iterations, "),
        (["-t", "10", "-i", "2"], r"Dispatch 'nonzero': (?!1 )\d+ iterations, "),
        (["-i", "4", "-v", "1"], r"Initialize 'nonzero': \d"),
        (["-i", "4", "-v", "1"], r"CPU Timings \(Cold\) : 1 samples, "),
        (["-i", "4", "-v", "1", "-w", "3"], r"CPU Timings \(Cold\) : 3 samples, "),
        (["-i", "4", "-v", "1", "-w", "0"], r"CPU Timings \(Hot\)  : 4 samples, "),
        (["-i", "4", "-v", "2"], r"iteration 3: \d+\.\d{4} ms \(CPU\)"),
        (["--print_commands"], r"Begin command 0, Dispatch$"),
        (["--print_commands"], r"End command 1, Print$"),
    ],
)
def test_the_switches_are_dxdispatchs(options: list[str], pattern: str) -> None:
    found = lines("run", MODELS / "nonzero_coordinates.json", *options)
    assert any(re.match(pattern, line) for line in found), found


def test_what_only_direct3d_understands_is_left_out_and_said() -> None:
    given = [
        "-d",
        "-q",
        "compute",
        "--clear_shader_caches",
        "--post_dispatch_barriers",
        "none",
        "-c",
        "gpu",
        "-o",
        "name",
        "-l",
        "99",
    ]
    done = succeed("run", "-m", MODELS / "round.json", *given)
    said = done.stderr.splitlines()
    assert len(said) == 7
    assert all(" is left out: " in line for line in said)
    assert "--queue_type is left out: there is no Direct3D here." in said
    assert done.stdout.splitlines()[-1] == f"Resource '{PRINTED['round.json'][-1]}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-F", "DATA_BATCH:3"], "sizes are given by name: -f NAME:N"),
        (["--enable_onnx_profiling"], "--profile FILE.json"),
        (["-f", "batch"], "NAME:N"),
        (["-f", "batch:two"], "an integer of 0 or more"),
        (["-b", "x:2,,3"], "integers of 0 or more"),
        (["-f", "batch:2"], "are for ONNX models"),
        (["-m", "other.json"], "give one of them"),
    ],
)
def test_options_that_a_model_would_need_are_errors(options: list[str], said: str) -> None:
    done = call("run", MODELS / "round.json", *options)
    assert done.exit_code == 2
    assert said in done.stderr


def test_samples_are_taken_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(commands.time, "sleep", waited.append)
    lines("run", MODELS / "nonzero_coordinates.json", "-i", "3", "-I", "60000")
    assert len(waited) == 2
    assert all(50 < seconds <= 60 for seconds in waited)


def test_versions_are_shown() -> None:
    assert any(line.split() == ["tvmdml", tvmdml.__version__] for line in lines("run", "-S"))


def test_show_adapters_lists_the_devices_and_then_runs() -> None:
    name = targets.target_class("cpu").devices()[0]["device"]
    assert any(name in line for line in lines("run", "-s"))
    found = lines("run", "-s", MODELS / "round.json")
    assert found[-1] == f"Resource '{PRINTED['round.json'][-1]}"


def test_a_model_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    content = (MODELS / "round.json").read_bytes()
    monkeypatch.chdir(MODELS)
    done = succeed("run", "-", input=content)
    printed = [line for line in done.stdout.splitlines() if line.startswith("Resource ")]
    assert printed == [line for line in lines("run", MODELS / "round.json") if line.startswith("Resource ")] != []
    done = call("run", "-", input=b"{")
    assert done.exit_code == 1
    assert done.stderr.startswith("tvmdml: -: line 1, column ")
    monkeypatch.setattr(nodes, "MAX_MODEL_BYTES", 10)
    done = call("run", "-", input=content)
    assert done.stderr.startswith("tvmdml: -: given more than that on standard input; allowed: ")


def test_paths_are_the_callers(tmp_path: Path) -> None:
    for name in ("halves.npy", "halves.dat"):
        (tmp_path / name).write_bytes((MODELS / name).read_bytes())
    np.save(tmp_path / "halves.npy", np.full(6, 7.5, np.float32))
    found = lines("run", MODELS / "files.json", "--input_path", tmp_path, "--output-path", tmp_path / "out")
    assert found[1] == "Resource 'npy': 7.5, 7.5, 7.5, 7.5, 7.5, 7.5"
    assert np.load(tmp_path / "out/results/rounded.npy").shape == (2, 3)


def test_a_wrong_model_is_one_line_and_code_1(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text(
        '{"resources": {}, "dispatchables": {"a": {"type": "DML_OPERATOR_NO_SUCH_OPERATOR", "desc": {}}}, "commands": []}'
    )
    assert failure("run", model) == (
        f"{model}: dispatchables: given DML_OPERATOR_NO_SUCH_OPERATOR (dispatchables.a.type); "
        "allowed: operators that tvmdml supports. `tvmdml operators` lists them. Nothing was run."
    )
    assert f"{tmp_path}/none.json: given a file that cannot be read" in failure("run", tmp_path / "none.json")
    assert "allowed: a part of one of" in failure("run", MODELS / "round.json", "-a", "no such device")
    assert "feature level 2.1" in failure("run", MODELS / "round.json", "--feature-level", "2.1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'MODEL'"),
        (["run", "x.json", "-i", "0"], "'--dispatch_iterations'"),
        (["run", "x.json", "-v", "3"], "'--timing_verbosity'"),
        (["run", "x.json", "-w", "-1"], "'--warmup_samples'"),
        (["run", "x.json", "--device", "abacus"], "device: given 'abacus'; allowed: cpu"),
        (["run", "x.json", "--device", "cpu", "-a", "x"], "give one of them"),
        (["run", "x.json", "--feature_level", "9.9"], "feature_level: given '9.9'; allowed: 1.0, 2.0"),
        (["run", "x.json", "y.json"], "unexpected extra argument"),
        (["dance"], "No such command"),
        (["cache", "prune", "--size", "big"], "size: given 'big'; allowed: a size"),
        (["source"], "Give an OPERATOR or a --model"),
        (["source", "TOP_K1"], "Give the input's --sizes"),
        (["source", "NO_SUCH", "--sizes", "2"], "operator: given 'NO_SUCH'; allowed: "),
        (["source", "TOP_K1", "--sizes", "2", "--dtype", "bfloat16"], "DirectML has no bfloat16: convert to float32"),
        (["tune", "NO_SUCH", "--sizes", "2"], "operator: given 'NO_SUCH'; allowed: "),
        (["run", "--device", "bad", "model.json"], "device: given 'bad'; allowed: cpu, cuda, vulkan"),
        (["tuning", "prune", "/nonexistent"], "Directory '/nonexistent' does not exist"),
        (["source", "TOP_K1", "--sizes", "2,x"], "sizes: given '2,x'; allowed: numbers separated by commas"),
        (["source", "TOP_K1", "--sizes", "2", "--dtype", "float8"], "dtype: given 'float8'; allowed: 'float32'"),
        (["source", "TOP_K1", "--sizes", "2", "--attr", "K"], "attr: given 'K'; allowed: NAME=VALUE"),
        (["source", "TOP_K1", "--sizes", "2", "--tensor", "float32:2"], "tensor: given 'float32:2'; allowed: NAME=TYPE:SIZES"),
    ],
)
def test_wrong_usage_is_code_2(arguments: list[str], message: str) -> None:
    assert message in " ".join(misuse(*arguments).split())


# -- What there is ------------------------------------------------------------------------------------------------


def test_version_and_help() -> None:
    assert lines("--version") == [f"tvmdml, version {tvmdml.__version__}"]
    text = "\n".join(lines("--help"))
    for name in ("run", "operators", "devices", "cache", "source"):
        assert re.search(rf"^  {name} ", text, re.MULTILINE)
        assert lines(name, "-h")


def test_operators_are_listed_with_what_they_take() -> None:
    table = lines("operators")
    assert [line.split()[0] for line in table[1:]] == list(operators.all_operators())
    assert re.search(r"ELEMENT_WISE_ROUND +2\.1 +float32, float16 \+ float64 +1 to 8 +", "\n".join(table))
    found = {row["name"]: row for row in json.loads(call("operators", "--json").stdout)}
    assert list(found) == list(operators.all_operators())
    row = found["TOP_K1"]
    assert row["feature_level"] == "2.1"
    assert row["fields"] == ["InputTensor", "OutputValueTensor", "OutputIndexTensor", "Axis", "K", "AxisDirection"]
    assert row["support"][0]["tensors"]["OutputIndexTensor"] == {"types": ["uint32"], "ranks": [4, 4]}
    assert row["support"][-1]["extension"]
    assert row["targets"] == targets.kinds()


def test_devices_are_listed() -> None:
    rows = json.loads(call("devices", "--json").stdout)
    assert {row["target"].partition(":")[0] for row in rows} <= set(targets.kinds())
    assert all(set(row) == {"target", "device", "state"} for row in rows)
    table = lines("devices")
    assert table[0].split() == ["target", "device", "state"]
    assert len(table) == len(rows) + 1


def test_the_cache_is_shown_pruned_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    assert lines("cache", "info") == [f"0 kernels, 0 B of at most 4 GiB, in {tmp_path}/kernels"]
    call("run", MODELS / "round.json")
    found = json.loads(call("cache", "info", "--json").stdout)
    assert found["count"] == len(found["kernels"]) > 0
    assert found["size"] == sum(kernel["size"] for kernel in found["kernels"])
    assert found["folder"] == f"{tmp_path}/kernels"
    table = lines("cache", "info")
    assert table[0].split("  ")[0] == "kernel"
    assert len(table) == found["count"] + 2
    assert table[1].startswith("element_wise_round/")
    assert lines("cache", "prune", "--size", "1GiB") == ["Removed 0 kernels."]
    assert lines("cache", "prune", "--size", found["size"] - 1) == ["Removed 1 kernels."]
    assert lines("cache", "clear") == [f"Removed {found['count'] - 1} kernels."]
    assert json.loads(call("cache", "info", "--json").stdout)["count"] == 0


def test_what_lies_beside_the_kernels_is_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    session = f"tuning/sessions/{'5' * 24}"
    for name, size in ((f"{session}/trials.jsonl", 900), (f"{session}/about.json", 100), (f"vulkan/{'7' * 40}.bin", 24)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert json.loads("".join(lines("cache", "info", "--json")))["beside"] == {"tuning": 1000, "vulkan": 24}
    assert lines("cache", "info")[1].startswith(f"1000 B in {tmp_path}/tuning: sessions of `tvmdml tune`")
    assert lines("cache", "clear") == ["Removed 0 kernels."]
    assert (tmp_path / "tuning").exists()
    assert lines("cache", "clear", "--all") == ["Removed 0 kernels.", "Removed 1 KiB of other files."]
    assert list(tmp_path.iterdir()) == []


def test_a_variable_that_is_wrong_is_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    monkeypatch.setenv("TVMDML_CACHE_SIZE", "huge")
    assert failure("run", MODELS / "round.json").startswith("TVMDML_CACHE_SIZE: given 'huge'; allowed: a size such as")


def test_a_failure_of_the_system_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(store: object) -> object:
        raise OSError(28, "No space left on device", "/some/file")

    monkeypatch.setattr("tvmdml.system.disk.stores.DiskStore.clear", fails)
    assert failure("cache", "clear") == "/some/file: No space left on device"


@pytest.mark.full
def test_a_warning_is_told_without_the_place_in_the_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-c", "from tvmdml.cli import main; main()", "run", str(MODELS / "round.json")]
    environment = {**os.environ, "TVMDML_CACHE_DIR": str(tmp_path / "file")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tvmdml: kernels cannot be stored in {tmp_path}/file/kernels")


# -- source -------------------------------------------------------------------------------------------------------


def described(*arguments: object) -> str:
    """What the command took the operator for."""
    result = call("source", *arguments)
    assert result.exit_code == 0, result.output
    assert "T.prim_func" in result.stdout
    return result.stderr


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("arguments", "tensors"),
    [
        (
            ["TOP_K1", "--sizes", "4,32000", "--attr", "K=50", "--attr", "Axis=1"],
            "input_tensor=float32[4, 32000], output_value_tensor=float32[4, 50], output_index_tensor=uint32[4, 50]",
        ),
        (
            ["top_k1", "--sizes", "4,9", "--dtype", "int8", "--attr", "k=2", "--attr", "axis_direction=decreasing"],
            "input_tensor=int8[4, 9], output_value_tensor=int8[2, 9], output_index_tensor=uint32[2, 9]",
        ),
        (
            ["TOP_K", "--sizes", "8,9", "--attr", "K=2", "--attr", "Axis=1", "--tensor", "OutputIndexTensor=uint64:8,2"],
            "input_tensor=float32[8, 9], output_value_tensor=float32[8, 2], output_index_tensor=uint64[8, 2]",
        ),
        (
            ["DML_OPERATOR_NONZERO_COORDINATES", "--sizes", "[2,3,4]", "--dtype", "UINT8"],
            "input_tensor=uint8[2, 3, 4], output_count_tensor=uint32[1, 1, 1], output_coordinates_tensor=uint32[1, 24, 3]",
        ),
        (["ELEMENT_WISE_ROUND", "--sizes", "5", "--dtype", "float16"], "input_tensor=float16[5], output_tensor=float16[5]"),
        (["DIAGONAL_MATRIX1", "--sizes", "3,4", "--dtype", "int64", "--attr", "Value=7"], "(output_tensor=int64[3, 4])"),
        (["DIAGONAL_MATRIX1", "--sizes", "3,4", "--tensor", "input_tensor=3,4"], "input_tensor=float32[3, 4], output_tensor="),
        (["--model", MODELS / "top_k.json"], "input_tensor=float16[1, 1, 3, 5] strides [5, 5, 0, 1]"),
        (["--model", MODELS / "top_k1.json", "--dispatchable", "columns"], "output_value_tensor=float32[2, 4]"),
    ],
)
def test_the_source_of_a_kernel_is_shown_for_few_words(arguments: list[Any], tensors: str) -> None:
    assert tensors in described(*arguments)


def test_a_field_that_is_not_given_is_named_as_such() -> None:
    assert failure("source", "TOP_K1", "--sizes", "3,4") == (
        "TOP_K1 k: given 0; allowed: 1 to 3, the input's size along axis 0. K was not specified, and 0 was assumed: specify it."
    )
    assert failure("source", "TOP_K1", "--sizes", "3,4", "--attr", "K=5").endswith("the input's size along axis 0.")


@pytest.mark.parametrize(("kind", "sign"), [("tir", "T.prim_func"), ("llvm", "target triple"), ("asm", ".text")])
def test_the_source_comes_in_every_form(kind: str, sign: str) -> None:
    assert sign in call("source", "ELEMENT_WISE_ROUND", "--sizes", "16", "--kind", kind).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["TOP_K1", "--sizes", "2,3"], "TOP_K1 k: given 0; allowed: 1 to 2"),
        (["TOP_K1", "--sizes", "2,3", "--attr", "Kay=1"], "TOP_K1 field: given 'Kay'; allowed: InputTensor, "),
        (["TOP_K1", "--sizes", "2,3", "--attr", "K=x"], "TOP_K1: K: given 'x'; allowed: an integer"),
        (["ELEMENT_WISE_ROUND", "--sizes", "2", "--dtype", "int8"], "given int8 of rank 1; allowed: float32, float16"),
        (["ELEMENT_WISE_ROUND", "--sizes", "2", "--kind", "poem"], "source kind: given 'poem'; allowed: tir, llvm, asm"),
        (["--model", MODELS / "top_k1.json"], "dispatchable: given none; allowed: rows, columns, largest, smallest"),
        (["--model", MODELS / "top_k1.json", "--dispatchable", "x"], "dispatchable: given 'x'; allowed: rows, "),
    ],
)
def test_an_operator_that_is_not_to_be_had_is_a_failure(arguments: list[Any], message: str) -> None:
    assert message in failure("source", *arguments)


# -- As a program -------------------------------------------------------------------------------------------------


def modules_after(*arguments: object) -> set[str]:
    """The modules that a process of its own has imported when the command is done."""
    words = [str(argument) for argument in arguments]
    code = f"import sys; from tvmdml.cli import main; main({words!r}, standalone_mode=False); print(*sys.modules, sep='\\n')"
    return set(python(code, may_complain=True).split())


def test_the_command_starts_without_the_compiler() -> None:
    assert not {"tvm", "tvm_ffi", "rich", "pyjson5", "numpy"} & modules_after("--version")


@pytest.mark.full
def test_a_cached_model_runs_without_the_compiler() -> None:
    lines("run", MODELS / "diagonal_matrix.json")
    loaded = modules_after("run", MODELS / "diagonal_matrix.json")
    assert "tvmdml.targets.cpu" in loaded
    assert "tvm" not in loaded


@pytest.mark.full
def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    declared = '{"é": {"initialValuesDataType": "INT8", "initialValues": [1]}}'
    model.write_text(f'{{"resources": {declared}, "dispatchables": {{}}, "commands": [{{"type": "print", "resource": "é"}}]}}')
    run = [sys.executable, "-c", "from tvmdml.cli import main; main()", "run", str(model)]
    ended = subprocess.run(run, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii", "PATH": ""})
    assert ended.stdout.splitlines()[-1] == b"Resource '\\xe9': 1"


# -- Text from files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a é 图 \U0001f600 \\x1b", "a é 图 \U0001f600 \\x1b"),
        ("\x1b[2J\x07\r\n\t\0\x7f", "\\x1b[2J\\x07\\r\\n\\t\\x00\\x7f"),
        ("\x9b31m\u202egnp.exe\u2066\u200b\ud800", "\\x9b31m\\u202egnp.exe\\u2066\\u200b\\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert console.printable(text) == shown
    console.table(["a"], [{"a": text}])
    console.say(text.replace("\n", "") + "\nand\x1b")
    assert capsys.readouterr().out.splitlines()[1:] == [shown, shown.replace("\\n", ""), "and\\x1b"]


def test_names_of_a_model_and_its_file_are_shown_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2J.json"
    path.write_text('{"resources": {"\\u009b[31m": {"initialValues": []}}, "dispatchables": {}, "commands": []}')
    assert failure("run", path).startswith(f'{tmp_path}/a\\x1b[2J.json: resources["\\x9b[31m"]')


def test_names_of_an_onnx_model_are_shown_by_the_command(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    nodes = [onnx.helper.make_node("Round", ["x"], ["y"]), onnx.helper.make_node("Round", ["z"], ["w"], name="\x1b[2J\n")]
    model = onnx.helper.make_model(onnx.helper.make_graph([*nodes, onnx.helper.make_node("\x9b", ["x"], ["v"])], "g", [x], []))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    done = call("pack", "build", tmp_path / "model.onnx", "-o", tmp_path / "a.tvmdml")
    assert "\\x9b of 'v': no operator of this name is known" in done.stderr
    assert "\x1b[2J" not in done.output


def test_a_model_writes_where_the_command_says_and_replaces_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no folder to write to; allowed: files inside the folder given by --output_path" in failure("run", MODELS / "files.json")
    assert os.listdir() == []
    lines("run", MODELS / "files.json", "--output_path", "out")
    assert "results/rounded.npy" in failure("run", MODELS / "files.json", "--output_path", "out")
    assert "--overwrite" in failure("run", MODELS / "files.json", "--output_path", "out")
    lines("run", MODELS / "files.json", "--output_path", "out", "--overwrite")
