"""Specs from files: what each kind of file contributes, that functions and models compile the same, and the notes on the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import folders
import pytest
from support import round_desc

import tvmdml
import tvmdml.dxdispatch
from tvmdml import TensorDesc, compiler, errors
from tvmdml.library import spec
from tvmdml.library.spec import Wanted
from tvmdml.packs import sources

MODELS = sorted(folders.MODELS.glob("*.json"))


# -- Files --------------------------------------------------------------------------------------------------------


def test_several_files_are_one_spec(tmp_path: Path) -> None:
    one = Wanted(round_desc(TensorDesc("float32", (8,))))
    other = Wanted(round_desc(TensorDesc("float32", (9,))))
    spec.write(tmp_path / "a.toml", [one], ["cpu"], {"top_k": {"algorithm": "sort"}})
    spec.write(tmp_path / "b.TOML", [other, one], ["vulkan", "cpu"], {"top_k": {"room_per_k": 8}})
    found = sources.read([tmp_path / "a.toml", str(tmp_path / "b.TOML")])
    assert found == spec.Spec(("cpu", "vulkan"), (one, other), {"top_k": {"algorithm": "sort", "room_per_k": 8}})
    assert sources.read([tmp_path / "a.toml"], ["vulkan"]).targets == ("vulkan",)
    spec.write(tmp_path / "b.TOML", [], (), {"top_k": {"algorithm": "rank"}})
    with pytest.raises(errors.InvalidArgument, match=r"knobs.top_k.algorithm: given 'sort' and 'rank'"):
        sources.read([tmp_path / "a.toml", tmp_path / "b.TOML"])


def test_other_files_and_sizes_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"allowed: .toml, .json, .onnx"):
        sources.read([tmp_path / "a.yaml"])
    with pytest.raises(errors.InvalidArgument, match="size batch: given 0"):
        sources.read([], sizes={"batch": 0})
    with pytest.raises(errors.InvalidArgument, match="size: given 'batch'; allowed: none: no model leaves one open"):
        sources.read([], sizes={"batch": 1})
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("missing.onnx", "missing.json", "missing.toml", "pipe.onnx"):
        with pytest.raises(errors.TvmdmlError, match=name):
            sources.read([tmp_path / name])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_dxdispatch_model_gives_what_it_compiles(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    find = compiler.CompiledOperator._launch_sharing

    class Seen(compiler.CompiledOperator):
        def __init__(self, desc: Any, target: Any) -> None:
            compiled.append(Wanted(spec.plain(desc)).line)
            super().__init__(desc, target)

        def _launch_sharing(self, shared: Any) -> Any:
            compiled.append(Wanted(spec.plain(self.desc), shared).line)
            return find(self, shared)

    try:
        found = sources.read([path]).wanted
    except errors.ModelError as error:
        assert "not a single operator" in str(error)  # noqa: PT017 - other models are read
        return
    monkeypatch.setattr(compiler, "CompiledOperator", Seen)
    tvmdml.dxdispatch.read(path).run(output_path=tmp_path, write=lambda text: None)
    assert compiled
    assert set(compiled) <= {one.line for one in found}
    assert [one for one in found if not one.shared] == [*dict.fromkeys(one for one in found if not one.shared)]


def test_a_dxdispatch_model_with_other_operators_is_refused(tmp_path: Path) -> None:
    model = {"resources": {}, "dispatchables": {"a": {"type": "NO_SUCH_OPERATOR"}}, "commands": []}
    (tmp_path / "a.json").write_text(json.dumps(model))
    with pytest.raises(errors.ModelError, match=r"given NO_SUCH_OPERATOR"):
        sources.read([tmp_path / "a.json"])
