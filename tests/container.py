"""The folder of a container that serves a model from a pack, without a compiler: what it takes, and that it is enough.

``python tests/container.py FOLDER SITE_PACKAGES MODEL.pack`` copies an interpreter, its standard library, the packages of an
environment, and all shared libraries that these need, measures them, and runs the model there; as the superuser, with nothing else
in reach (``chroot``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

MOST = 200
"""Megabytes."""
_LEFT_OUT = ("__pycache__", "*.pyc", "*.a", "tests", "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*")
_NOT_NEEDED = ("pip", "pip-*", "setuptools", "setuptools-*", "pkg_resources", "_distutils_hack", "site-packages")
_PROGRAM = """
import sys
import numpy as np
import tvmdml.onnx
model = tvmdml.onnx.load(sys.argv[1])
given = {one.name: np.ones(one.shape, one.dtype) for one in model.inputs}
for array in model(given):
    assert array.size and np.isfinite(array).all()
    print(array.dtype, array.shape)
assert "tvm" not in sys.modules and "onnx" not in sys.modules
"""


def main() -> None:
    folder, packages, pack = (Path(one).absolute() for one in sys.argv[1:4])
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    ignore = shutil.ignore_patterns(*_LEFT_OUT, *_NOT_NEEDED)
    shutil.copytree(library, _inside(folder, library), symlinks=True, ignore=ignore)
    shutil.copytree(packages, folder / "packages", symlinks=True, ignore=ignore)
    for path in (python, *_libraries(folder, python)):
        target = _inside(folder, path)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    shutil.copy2(pack, folder / pack.name)
    (folder / "tmp").mkdir()
    (folder / "proc").mkdir()
    shutil.copyfile("/proc/cpuinfo", folder / "proc" / "cpuinfo")  # which instructions the processor has
    megabytes = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    print(f"{folder}: {megabytes:.0f} MB")  # noqa: T201
    alone = os.geteuid() == 0
    place = Path("/") if alone else folder
    variables = {
        "PYTHONPATH": str(place / "packages"),
        "PYTHONHOME": str(place / Path(sys.base_prefix).relative_to("/")),
        "TVMDML_DISABLE_JIT": "1",
        "TVMDML_CACHE_DIR": str(place / "tmp" / "cache"),
    }

    def enter() -> None:
        os.chroot(folder)
        os.chdir("/")

    command = [str(place / python.relative_to("/")), "-c", _PROGRAM, str(place / pack.name)]
    subprocess.run(command, env=variables, check=True, preexec_fn=enter if alone else None)
    assert megabytes < MOST, f"given {megabytes:.0f} MB; allowed: {MOST}"


def _inside(folder: Path, path: Path) -> Path:
    return folder / path.relative_to("/")


def _libraries(folder: Path, python: Path) -> Iterator[Path]:
    """The shared libraries that the interpreter, and those in the folder, need of the system; the loader, too."""
    needed: set[str] = set()
    for path in (python, *folder.rglob("*.so*")):
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        needed.update(re.findall(r"(?:=> |^\s*)(/\S+)", said, re.MULTILINE))
    return (Path(one) for one in sorted(needed) if not Path(one).is_relative_to(folder))


if __name__ == "__main__":
    main()
