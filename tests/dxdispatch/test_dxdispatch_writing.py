"""Files that JSON models write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dispatch_models import Run, changed, prints, refusal, resource, rounding
from folders import MODELS

from tvmdml.dxdispatch import Timing

# -- Writing files ------------------------------------------------------------------------------------------------


def written(**command: Any) -> dict[str, Any]:
    return {
        "resources": {"x": resource([1, 2, 3, 4, 5, 6], "FLOAT16", sizeInBytes=20)},
        "dispatchables": {},
        "commands": [{"type": "writeFile", "resource": "x", **command}],
    }


@pytest.mark.full
def test_the_sum_of_files_is_written_to_files(run: Run) -> None:
    run(MODELS / "pointwise.json")
    halves = np.load(MODELS / "halves.npy").reshape(2, 3)
    np.testing.assert_array_equal(np.load("sum.npy"), 2 * halves)
    assert Path("sum.dat").read_bytes() == (2 * halves).tobytes()


def test_written_files_read_back(run: Run, tmp_path: Path) -> None:
    assert run(MODELS / "files.json")[-2:] == [
        f"Resource 'dat' written to '{tmp_path}/results/rounded.npy'",
        f"Resource 'dat' written to '{tmp_path}/results/rounded.dat'",
    ]
    array = np.load("results/rounded.npy")
    np.testing.assert_array_equal(array, np.array([[0.5, 1.5, 2.5], [-0.0, -1, -2]], np.float32))
    assert Path("results/rounded.dat").read_bytes() == array.tobytes()
    again = prints(npy=resource({"sourcePath": "results/rounded.npy"}, None), dat=resource({"sourcePath": "results\\rounded.dat"}))
    assert run(again) == ["Resource 'npy': 0.5, 1.5, 2.5, -0, -1, -2", "Resource 'dat': 0.5, 1.5, 2.5, -0, -1, -2"]


def test_a_file_holds_the_whole_buffer_or_what_the_dimensions_say(run: Run) -> None:
    run(written(targetPath="all.npy"))
    np.testing.assert_array_equal(np.load("all.npy"), np.array([1, 2, 3, 4, 5, 6, 0, 0, 0, 0], np.float16))
    run(written(targetPath="some.npy", dimensions=[1, 2, 2]))
    np.testing.assert_array_equal(np.load("some.npy"), np.array([[[1, 2], [3, 4]]], np.float16))
    run(written(targetPath="raw", dimensions=[3]))
    assert np.fromfile("raw", np.float16).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../x.npy", 'commands[0].targetPath: given "../x.npy", which is outside the folder; allowed: a new file in '),
        ("deep/../../x.npy", "which is outside the folder"),
        ("link/x.npy", "whose path contains a symbolic link, or a file in place of a folder"),
        ("inner/x.npy", "whose path contains a symbolic link, or a file in place of a folder"),
        ("taken/x.npy", "whose path contains a symbolic link, or a file in place of a folder"),
        ("dangling.npy", "which already exists and is not a regular file"),
        ("outer.npy", "which already exists and is not a regular file"),
        ("deep", "which already exists and is not a regular file"),
        ("{folder}/x.npy", "which is an absolute path"),
        ("C:x.npy", "which is an absolute path"),
        ("", "which does not name a file"),
        ("pipe", "which already exists and is not a regular file"),
        ("a\0b", "which is not a valid file name"),
        ("x" * 300, "which is not a valid file name"),
        ("x.png", "given []; allowed: [1, channels, height, width], with 1, 3 or 4 channels"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_written_outside_the_folder_that_is_named(
    run: Run, tmp_path: Path, path: str, message: str, overwrite: bool
) -> None:
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)
    (folder / "inner").symlink_to("deep")
    (folder / "outer.npy").symlink_to("../x.npy")
    (folder / "dangling.npy").symlink_to("nothing.npy")
    (folder / "taken").write_text("mine")
    os.mkfifo(folder / "pipe")
    model = written(targetPath=path.format(folder=folder))
    model["commands"].insert(0, {"type": "writeFile", "resource": "x", "targetPath": "first.dat"})
    assert message in refusal(run, model, output_path=folder, overwrite=overwrite).replace("commands[1]", "commands[0]")
    assert not (tmp_path / "x.npy").exists()
    assert sorted(os.listdir(folder)) == ["dangling.npy", "deep", "inner", "link", "outer.npy", "pipe", "taken"]
    assert (os.listdir(folder / "deep"), (folder / "taken").read_text()) == ([], "mine")


def test_a_model_that_writes_needs_a_folder_before_anything_runs(run: Run) -> None:
    model = written(targetPath="x.npy")
    model["commands"].insert(0, {"type": "print", "resource": "x"})
    said: list[str] = []
    text = refusal(run, model, output_path=None, write=said.append)
    assert (
        'commands[1].targetPath: given "x.npy", and no folder to write to; allowed: files inside the folder given by --output_path'
        in text
    )
    assert len(said) == 1
    assert os.listdir() == ["model.json"]


def test_what_was_there_before_is_replaced_only_if_asked_to(run: Run, tmp_path: Path) -> None:
    hooks = tmp_path / "out" / ".git" / "config"
    hooks.parent.mkdir(parents=True)
    hooks.write_text("mine")
    os.link(hooks, tmp_path / "other name")
    model = written(targetPath=".git/config", dimensions=[1])
    options = {"output_path": tmp_path / "out"}
    text = refusal(run, model, overwrite=False, **options)
    assert "which already exists; allowed: a new file in '" in text
    assert "Use --overwrite (in Python: overwrite=True) to replace files" in text
    assert hooks.read_text() == "mine"
    run(model, overwrite=True, **options)
    assert hooks.read_bytes() == np.float16(1).tobytes()
    assert (tmp_path / "other name").read_text() == "mine", "a file is replaced, and not written into"


def test_a_run_may_replace_what_it_wrote_itself(run: Run, tmp_path: Path) -> None:
    model = written(targetPath="new/x.dat", dimensions=[1])
    model["commands"] += [{**model["commands"][0], "dimensions": [2]}]
    run(model, overwrite=False, output_path=tmp_path / "out")
    assert (tmp_path / "out/new/x.dat").stat().st_size == 4
    assert "which already exists" in refusal(run, model, overwrite=False, output_path=tmp_path / "out")


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        (lambda out: [out.mkdir(), (out / "new").symlink_to(out.parent)], "whose path contains a symbolic link"),
        (lambda out: [(out / "new").mkdir(parents=True), (out / "new/x.dat").write_text("mine")], "which already exists"),
        (lambda out: [(out / "new").mkdir(parents=True), (out / "new/x.dat").symlink_to("../../x.dat")], "is not a regular file"),
    ],
)
def test_what_came_to_be_while_it_ran_is_not_replaced(
    run: Run, tmp_path: Path, meanwhile: Callable[[Path], object], reason: str
) -> None:
    """Between the check and the writing somebody makes a file, or a link in place of a folder."""
    model = written(targetPath="new/x.dat")
    model["commands"].insert(0, {"type": "print", "resource": "x"})

    def write(text: str) -> None:
        if text.startswith("Resource"):
            meanwhile(tmp_path / "out")

    assert reason in refusal(run, model, overwrite=False, output_path=tmp_path / "out", write=write)
    assert not (tmp_path / "x.dat").exists()
    found = tmp_path / "out/new/x.dat"
    assert not found.is_file() or found.read_text() == "mine"


def test_names_reach_the_terminal_without_its_commands(run: Run, tmp_path: Path) -> None:
    name, shown = "x\x1b[2J\n\x9b\u202e\x7f", "x\\x1b[2J\\n\\x9b\\u202e\\x7f"
    model = rounding()
    model["resources"][name] = model["resources"]["input"]
    model["dispatchables"] = {name: model["dispatchables"]["round"]}
    model["commands"][0]["dispatchable"] = name
    model["commands"] += [{"type": "print", "resource": name}, {"type": "writeFile", "resource": name, "targetPath": f"{name}.dat"}]
    lines = run(model, timing=Timing(verbosity=1))
    assert lines[0].startswith(f"Initialize '{shown}': ")
    assert lines[1] == f"Dispatch '{shown}': 1 iterations"
    assert lines[-1] == f"Resource '{shown}' written to '{tmp_path}/{shown}.dat'"
    said = [refusal(run, changed(model, f"commands.{number}.resource", f"not {name}")) for number in (1, 2)]
    said.append(refusal(run, prints(**{name: resource([])})))
    said.append(refusal(run, prints(x=resource({name: 1}))))
    said.append(refusal(run, prints(x=resource({"sourcePath": name}))))
    said.append(refusal(run, prints(x=resource([1], name))))
    assert not [char for char in "".join(said) if not char.isprintable()]
    assert shown in said[0]


def test_a_file_that_cannot_be_written_is_named(run: Run) -> None:
    model = written(targetPath="x.dat")
    Path("taken").write_text("")
    for folder, reason in (("taken", "whose path contains a"), ("a\0b", "embedded null")):
        text = refusal(run, model, output_path=folder)
        assert "commands[0].targetPath: given " in text
        assert reason in text


@pytest.mark.parametrize(
    ("dimensions", "message"),
    [
        ([11], "commands[0].dimensions: given 1 dimensions, 11 elements; allowed: at most 32 dimensions, and 10 elements"),
        ([1] * 65, "commands[0].dimensions: given 65 dimensions, 1 elements"),
        ([0], "commands[0].dimensions[0]: given 0"),
        (6, "commands[0].dimensions: given 6; allowed: a list"),
    ],
)
def test_wrong_dimensions_are_refused(run: Run, dimensions: Any, message: str) -> None:
    assert message in refusal(run, written(targetPath="x.npy", dimensions=dimensions))
