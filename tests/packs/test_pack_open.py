"""Models in packs for ranges of sizes: the results of the model itself for each size, without the compiler and the package onnx."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import call, succeed
from onnx_nodes import N, info
from onnx_nodes import model as model_of
from packs import Change, put, rewritten, run_elsewhere
from test_pack_graphs import ASKED, TARGETS
from test_pack_header_open import saved, tokens

import tvmdml
from tvmdml import errors, packs
from tvmdml.library import format as container
from tvmdml.library import signing
from tvmdml.library.format import Contents, Pack
from tvmdml.packs import change, header, look, sources, verify

SIZES = [(1, 1), (1, 7), (3, 1), (2, 2), (3, 20), (2, 13), (1, 20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tokens(), tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module")
def path(model: Path) -> Path:
    output = model.with_suffix(".pack")
    ranges = ["--size", "batch=1..3", "--size", "length=1..20"]
    targets = [part for name in TARGETS[-1:] for part in ("--target", name)]
    done = succeed("pack", "build", model, *ranges, *targets, "-j", "1", "-o", output)
    assert re.search(r"net\.pack: [1-9]\d* recordings, [1-9]\d* kernels", done.output)
    return output


def x(batch: int, length: int) -> Any:
    return np.random.default_rng([batch, length]).standard_normal((batch, length, 6)).astype(np.float32)


def test_results_are_those_of_the_model(model: Path, path: Path, tmp_path: Path) -> None:
    right = tvmdml.onnx.load(model, target=TARGETS[-1])
    np.savez(tmp_path / "x.npz", *(x(*sizes) for sizes in SIZES))
    code = (
        "import numpy as np\n"
        "from tvmdml import onnx\n"
        f"given = np.load({str(tmp_path / 'x.npz')!r})\n"
        f"model = onnx.load({str(path)!r}, target={TARGETS[-1]!r})\n"
        f"np.savez({str(tmp_path / 'y.npz')!r}, *(model(given[f'arr_{{i}}'])[0] for i in range({len(SIZES)})))\n"
        "print([one.shape for one in model.inputs], sorted(model.symbols))"
    )
    assert run_elsewhere(code, tmp_path) == "[('batch', 'length', 6)] ['batch', 'length']\n"
    found = np.load(tmp_path / "y.npz")
    for i, sizes in enumerate(SIZES):
        (expected,) = right(x(*sizes))
        assert found[f"arr_{i}"].shape == expected.shape == (sizes[0], 16, sizes[1])
        assert np.allclose(found[f"arr_{i}"], expected, rtol=1e-5, atol=1e-6), sizes


def served(path: Path, folder: Path, **environment: str) -> str:
    """Whether a process of its own that runs all sizes imports schedules and operators; its results are checked."""
    np.savez(folder / "x.npz", *(x(*sizes) for sizes in SIZES))
    code = (
        "import sys, numpy as np\n"
        "from tvmdml import onnx\n"
        f"given = np.load({str(folder / 'x.npz')!r})\n"
        f"model = onnx.load({str(path)!r}, target={TARGETS[-1]!r})\n"
        f"np.savez({str(folder / 'y.npz')!r}, *(model(given[f'arr_{{i}}'])[0] for i in range({len(SIZES)})))\n{ASKED}"
    )
    said = run_elsewhere(code, folder, **environment)
    model, found = tvmdml.onnx.load(path, target=TARGETS[-1]), np.load(folder / "y.npz")
    for i, sizes in enumerate(SIZES):
        assert np.array_equal(found[f"arr_{i}"], model(x(*sizes))[0]), sizes
    return said


def test_schedules_are_asked_about_a_size_once(path: Path, tmp_path: Path) -> None:
    assert [served(path, tmp_path) for _ in range(2)] == ["True True\n", "False False\n"]
    assert served(path, tmp_path, TVMDML_DISABLE_PLANS="1") == "True True\n"


def test_schedules_are_not_asked_about_a_pack_of_a_trusted_key(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    shutil.copy(path, tmp_path / "net.pack")
    signing.generate(tmp_path / "private", tmp_path / "public")
    signing.sign(tmp_path / "net.pack", tmp_path / "private")
    trusted = {"TVMDML_TRUSTED_KEYS": str(tmp_path / "public")}
    assert served(tmp_path / "net.pack", tmp_path, **trusted) == "False False\n"
    without = rewritten(path, tmp_path / "without.pack", lambda described: described.pop("answers"))
    signing.sign(without, tmp_path / "private")
    assert served(without, tmp_path, **trusted) == "True True\n", "what the pack does not say is asked"


@pytest.mark.parametrize("content", [b"[]", b"{", b"[[0, {}]]", b'[["cpu:other", {"threads": 0}]]'])
def test_what_the_cache_says_of_launches_is_checked(content: bytes, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tvmdml.onnx.load(path, target=TARGETS[-1])(x(2, 3))[0]
    read = []
    monkeypatch.setattr("tvmdml.system.disk.plans.PlanStore.find", lambda *_: read.append(1) or np.frombuffer(content, np.uint8))
    assert np.array_equal(tvmdml.onnx.load(path, target=TARGETS[-1])(x(2, 3))[0], right)
    assert read


def test_other_sizes_are_refused(path: Path) -> None:
    model = tvmdml.onnx.load(path, target=TARGETS[-1])
    for sizes in ((4, 2), (2, 21)):
        given = rf"given x\[{sizes[0]}, {sizes[1]}, 6\]; allowed: x\[batch, length, 6\] with .*batch=1\.\.3.*Build it"
        with pytest.raises(errors.InvalidArgument, match=given):
            model(x(*sizes))
    for wrong in (x(2, 2)[:, :, :5], x(2, 2)[0]):  # no other pack would take these
        with pytest.raises(errors.InvalidArgument, match=r"allowed: x\[batch, length, 6\] with [^.]*\.\.[^.]*\.\.\d+\.$"):
            model(wrong)
    with pytest.raises(errors.InvalidArgument, match=r"given batch=9; allowed: .*batch=1\.\.3"):
        tvmdml.onnx.load(path, {"batch": 9}, target=TARGETS[-1])
    assert tvmdml.onnx.load(path, {"batch": 2}, target=TARGETS[-1]).inputs[0].shape == (2, "length", 6)


def test_what_only_models_take_is_refused(path: Path) -> None:
    done = call("run", path, "--device", TARGETS[-1], "--fallback", "onnxruntime")
    assert "load fallback: given 'onnxruntime'; allowed: None: a pack or a saved graph computes as it was made" in done.stderr


def test_it_is_run_inspected_and_split(path: Path, tmp_path: Path) -> None:
    command = ["run", str(path), "--device", TARGETS[-1], "--size", "batch=2"]
    done = call(*command, "--size", "length=5")
    assert "Output 'y': float32[2, 16, 5]" in done.output, done.output
    done = call(*command)
    assert "--input x=FILE.npy, or --size length=N" in done.output + done.stderr
    assert all(name.startswith("net") for name in look.summary(Pack(path))["graphs"])
    change.split(path, [TARGETS[-1]], tmp_path / "split.pack")
    assert tvmdml.onnx.load(tmp_path / "split.pack", target=TARGETS[-1])(x(2, 3))[0].shape == (2, 16, 3)


def test_graphs_of_certain_sizes_are_another_thing(path: Path) -> None:
    with pytest.raises(errors.Unsupported, match=r"open sizes; allowed: one of certain sizes. Use tvmdml\.onnx\.load"):
        tvmdml.load_graph(path, TARGETS[-1])


def test_ranges_are_checked(model: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"open sizes length; allowed: .* --size length=1\.\.N"):
        packs.build(sources.read([model], TARGETS[-1:], {"batch": range(1, 3)}), model.with_suffix(".other"))
    for wrong in (range(3), range(3, 3), range(9, 1, -1)):
        with pytest.raises(errors.InvalidArgument, match="size batch"):
            sources.read([model], TARGETS[-1:], {"batch": wrong, "length": 2})
    done = call("pack", "build", model, "--size", "batch=4..1", "-o", "x.pack")
    assert "given 4..1;" in done.output + done.stderr
    done = call("pack", "build", model, "--size", "batch=1..x", "-o", "x.pack")
    assert "batch=1..64" in done.output + done.stderr


def test_a_range_may_have_a_step(model: Path, tmp_path: Path) -> None:
    ranges = ["--size", "batch=1..5:2", "--size", "length=4..16:4"]
    command = ["pack", "build", str(model), *ranges, "--target", TARGETS[-1], "-j", "1", "-o", str(tmp_path / "net.pack")]
    succeed(*command)
    served = tvmdml.onnx.load(tmp_path / "net.pack", target=TARGETS[-1])
    for sizes in ((1, 4), (3, 8), (5, 16)):
        assert served(x(*sizes))[0].shape == (sizes[0], 16, sizes[1])
    for sizes in ((2, 4), (3, 5), (7, 4), (3, 20)):
        with pytest.raises(errors.InvalidArgument, match=r"allowed: .* with length=4\.\.16:4, batch=1\.\.5:2"):
            served(x(*sizes))


def special(size: int) -> Any:
    """A model that takes three rows where the length has one value, and all rows elsewhere."""
    numbers = {"c": [size], "three": [3], "zero": [0]}
    nodes = [
        N("Shape", ["x"], ["n"], start=0, end=1),
        N("Equal", ["n", "c"], ["is"]),
        N("Where", ["is", "three", "n"], ["rows"]),
        N("Slice", ["x", "zero", "rows", "zero"], ["y"]),
    ]
    constants = {name: np.array(value) for name, value in numbers.items()}
    return model_of(nodes, [info("x", ["length", 4])], [info("y", [None, 4])], constants, 17, ir_version=9)


@pytest.mark.parametrize(("size", "most"), [(1777, 2000), (177_771, 1_000_000)])
def test_every_size_of_a_range_is_tried_and_of_a_large_one_some(size: int, most: int, tmp_path: Path) -> None:
    onnx.save(special(size), tmp_path / "net.onnx")
    packs.build(sources.read([tmp_path / "net.onnx"], TARGETS[-1:], {"length": range(2, most + 1)}), tmp_path / "net.pack", jobs=1)
    model = tvmdml.onnx.load(tmp_path / "net.pack", target=TARGETS[-1])
    given = np.arange(4 * size, dtype=np.float32).reshape(size, 4)
    assert np.array_equal(model(given[:-1])[0], given[:-1])
    if most < 4096:
        assert np.array_equal(model(given)[0], given[:3])
        return
    with pytest.raises(errors.InvalidArgument, match=r"length=2\.\.1000000, as far as it was recorded: of large ranges not"):
        model(given)


def test_verify_runs_drawn_sizes(path: Path, tmp_path: Path) -> None:
    report = verify.verify(path, device=TARGETS[-1], seed=5)
    assert report.ok, report.text()
    assert report.ran > 5
    contents = Pack(path).contents()
    left = [one for one in contents.kernels if "softmax" not in one.operator]
    assert len(left) < len(contents.kernels)
    container.write(tmp_path / "net.pack", Contents(contents.head, contents.parts, left, contents.operations))
    found = verify.verify(tmp_path / "net.pack", device=TARGETS[-1]).failed
    assert any("it lacks a kernel of" in one.said for one in found)
    with pytest.raises(errors.CompileError, match=r"for which the pack lacks a kernel of .*SOFTMAX.* Build it again"):
        tvmdml.onnx.load(tmp_path / "net.pack", target=TARGETS[-1])(x(2, 3))


def numbers(described: Any, value: int) -> None:
    """Another value in the places of all numbers."""
    function = described["plan"]["function"]
    function[4] = [0, *[value for _ in function[4][1:]]]


HOSTILE: dict[str, Change] = {
    "no limits": put("open", []),
    "limits without values": lambda one: [each.__setitem__(1, 99) for each in one["open"]],
    "limits without a step": lambda one: [each.__setitem__(3, 0) for each in one["open"]],
    "limits of another size": lambda one: one["open"].append(["other", 1, 2, 1]),
    "other numbers": lambda one: numbers(one, 7),
    "numbers from before": lambda one: numbers(one, -64),
    "fewer integers of a descriptor": lambda one: one["plan"]["calls"][0][2].pop(),
    "another integer of a descriptor": lambda one: one["plan"]["calls"][0][2].__setitem__(0, 0),
    "an integer that is not there": lambda one: one["plan"]["calls"][0][2].__setitem__(0, 999),
    "a constant that is written": lambda one: one["plan"]["launchings"][0][2][-1].__setitem__(slice(0, 2), ["constant", 0]),
    "an input that is not there": put("model", "inputs", [["z", "<f4", ["batch", "length", 6]]]),
    "an input without strides": lambda one: one["plan"]["inputs"][0][4].clear(),
    "an output more": lambda one: one["model"]["outputs"].append("more"),
    "a choice that has no end": lambda one: one["plan"]["function"][3].append(
        ["tvmdml.kernels.tiles:parts_of_product", [["is", number] for number in (1, 10**7, 10**7, [1, 1], 10**7)], [1, 1]]
    ),
    "another function": lambda one: one["plan"]["function"][3].append(["os:system", [["is", "true"]], 0]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_plans_are_refused(name: str, path: Path, tmp_path: Path) -> None:
    rewritten(path, tmp_path / "net.pack", HOSTILE[name])
    with pytest.raises((errors.ModelError, errors.PackError, errors.InvalidArgument)):
        tvmdml.onnx.load(tmp_path / "net.pack", target=TARGETS[-1])(x(2, 3))
    with pytest.raises((errors.ModelError, errors.PackError, errors.InvalidArgument)):
        header.write(Pack(tmp_path / "net.pack"), tmp_path / "to")
