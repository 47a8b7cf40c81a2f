"""Entries of the cache on disk: one that is damaged costs a warning and a compilation, never a wrong result or an error."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import tvmdml
from fuzz import trees
from fuzz.choices import Choices
from tvmdml import cli, targets
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import finding, stamps
from tvmdml.library.scheduling import kernel_for
from tvmdml.system.disk import stores

EXAMPLES = 100
WORDS = (
    "artifact", "sha256", "format", "kernel", "operator", "parameters", "source", "target", "tvm", "..", "/", ".so", ".o",
    "/dev/zero", "\0",
)  # fmt: skip
_TARGET = targets.resolve("cpu")
_X = np.array([0.5, 1.5, -2.5, 3.2, 0, 7.9, -0.1, 100], np.float32)


def one(choices: Choices) -> None:
    """An entry whose two files are damaged, or are something else."""
    kernel, manifest, artifact, launcher = _good()
    name = stamps.digest(stamps.manifest(kernel, _TARGET))
    shutil.rmtree("cache", ignore_errors=True)
    folder = Path("cache", "kernels", name[:2])
    folder.mkdir(parents=True)
    code, text = artifact, json.dumps(manifest).encode()
    for _ in range(choices.integer(1, 2)):
        kind = choices.integer(0, 4)
        if kind == 0:
            text = trees.damaged(choices, text, WORDS)
        elif kind <= 2:
            text = trees.text(trees.changed(choices, manifest, WORDS)).encode()
        elif kind == 3:
            code = trees.damaged(choices, artifact, WORDS)
        else:  # as if made so; but no code that would run
            code = choices.pick(
                (b"", b"no library", artifact[: choices.integer(0, len(artifact) - 1)], b"\x7fELF" + bytes(60), artifact[:64] * 3)
            )
            text = json.dumps({**manifest, "sha256": hashlib.sha256(code).hexdigest()}).encode()
    place = folder / str(manifest["artifact"])
    for path, content in ((folder / f"{name}.json", text), (place, code)):
        (_write if not choices.flag(6) else choices.pick(_OTHERS))(path, content)
    changes = {"TVMDML_CACHE_DIR": "cache"}
    with mock.patch.dict(os.environ, changes), mock.patch.object(finding, "_build", return_value=launcher):
        found = finding._find_on_disk_or_build(kernel, _TARGET)
        rounded = np.zeros_like(_X)
        _TARGET.launch(found, kernel.scalars, kernel.temporaries)(_X, rounded)
        assert rounded.tolist() == np.rint(_X).tolist()
        if choices.flag(4):
            _command("cache", "info")
            _command("cache", "info", "--json")
            _command("cache", "prune", "--size", "1")
        stores.DiskStore().clear()


def _command(*arguments: str) -> None:
    from click.testing import CliRunner

    done = CliRunner().invoke(cli.main, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _link(path: Path, content: bytes) -> None:
    path.with_suffix(".linked").write_bytes(content)
    path.symlink_to(path.with_suffix(".linked").name)


def _huge(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.truncate(path, 1 << 40)  # no disk has it: a hole


_OTHERS: tuple[Callable[[Path, bytes], object], ...] = (
    _link, _huge, lambda path, content: path.mkdir(), lambda path, content: path.symlink_to(path.name),
    lambda path, content: os.mkfifo(path), lambda path, content: path.symlink_to("/dev/zero"),
    lambda path, content: path.symlink_to("/nowhere"), lambda path, content: None,
)  # fmt: skip


@functools.cache
def _good() -> tuple[Kernel, dict[str, Any], bytes, Any]:
    """A kernel, and what its entry is made of."""
    x = tvmdml.TensorDesc("float32", (8,))
    desc = tvmdml.ElementWiseRound(input_tensor=x, output_tensor=x, rounding_mode=0)  # type: ignore[arg-type]
    kernel = kernel_for(desc.canonical(), _TARGET)
    launcher = finding._find_on_disk_or_build(kernel, _TARGET)
    path = stores.DiskStore()._manifest(stamps.digest(stamps.manifest(kernel, _TARGET)))
    manifest = json.loads(path.read_bytes())
    return kernel, manifest, (path.parent / manifest["artifact"]).read_bytes(), launcher
