"""The library of kernels as a wheel: the package ``tvmdml_kernels``, which has a pack for each target."""

from __future__ import annotations

import base64
import functools
import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tvmdml
from tvmdml import targets
from tvmdml.errors import InvalidArgument, message
from tvmdml.library import files, installed
from tvmdml.library import format as container
from tvmdml.packs import building, listed, sources
from tvmdml.packs.building import BuildPlan, Built, KernelIdentity

SPEC = Path(__file__).parent / "library.toml"
"""What the library has, if nothing else is said."""
_NAME = "tvmdml-kernels"
_INIT = '"""Kernels of tvmdml, compiled ahead of time. tvmdml finds them by this package\'s name."""\n'
_DATE = (1980, 1, 1, 0, 0, 0)
_MACHINES = {"x86-64": "manylinux_2_17_x86_64", "aarch64": "manylinux_2_17_aarch64"}
_ANY = "any"


class Wheel(NamedTuple):
    """What was built."""

    path: Path
    packs: Mapping[str, Built]
    """By the names of the targets."""


def build(
    specs: Sequence[Path],
    folder: Path,
    names: Sequence[str] = (),
    jobs: int | None = None,
    progress: Callable[[str, int, int], None] = lambda target, done, total: None,
    note: Callable[[str], object] = lambda text: None,
) -> Wheel:
    """Build the wheel of a library.

    A target has no kernels that one with fewer features of the same level has: it runs that one's.

    Args:
        specs: what it has.
        folder: where the wheel is written. It is made if it is not there.
        names: the targets, instead of those of the specs.
        jobs: how many processes compile.
        progress: called with a target, the number of its finished kernels, and that of all.
        note: called with what is left out.

    Raises:
        InvalidArgument: a spec is invalid, or names no targets, or targets of different machines.
        CompileError: as ``packs.build``.
        OSError: the wheel cannot be written.
    """
    spec = sources.read(specs, names)
    if spec.graphs:
        raise InvalidArgument(message("pack wheel", "a model", "specs of operations", "`pack build` makes packs of models."))
    if not spec.targets:
        raise InvalidArgument(message("pack wheel targets", "none", "one or more, in the spec or with --target"))
    platform = _platform(spec.targets)
    building.require_joins(spec.targets)
    spec = listed.complete(spec, note)
    if not spec.wanted:
        raise InvalidArgument(message("pack wheel", "a spec without operations", "cases, networks, kernels or [[operators]]"))
    folder.mkdir(parents=True, exist_ok=True)
    built: dict[str, Built] = {}
    known: dict[str, set[KernelIdentity]] = {}
    with tempfile.TemporaryDirectory(prefix="tvmdml-") as name:
        for target in sorted(spec.targets, key=len):
            plan = BuildPlan(spec, (target,))
            for machine in targets.elsewhere(target):
                for other, kernels in known.items():
                    if machine.takes(other):
                        plan.leave_out(kernels)
            known[target] = {building.identity(one.kernel) for one in plan.wanted.values()}
            path = Path(name) / installed.file_name(target)
            built[target] = building.build_library(plan, path, jobs, functools.partial(progress, target))
        packs = sorted(Path(name).glob(f"*{installed.SUFFIX}"))
        return Wheel(_written(folder, packs, platform), built)


def _platform(names: Sequence[str]) -> str:
    """The tag of the machines that the targets are for."""
    found = {_tag(name) for name in names}
    tags = found - {_ANY}
    if "" in tags or len(tags) > 1:
        allowed = "levels of one family of processors, such as cpu:x86-64-v3, and devices"
        raise InvalidArgument(message("pack wheel targets", ", ".join(names), allowed, "Build a wheel for each family."))
    return next(iter(tags), _ANY)


def _tag(target: str) -> str:
    kind, _, level = target.partition(":")
    return next((tag for family, tag in _MACHINES.items() if level.startswith(family)), "") if kind == "cpu" else _ANY


def _written(folder: Path, packs: Sequence[Path], platform: str) -> Path:
    version = f"{tvmdml.__version__}+{_stamp(packs)}"
    plain = _NAME.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    about = f"Name: {_NAME}\nVersion: {version}\nSummary: Kernels of tvmdml, compiled ahead of time\n"
    pure = str(platform == _ANY).lower()
    texts = {
        f"{installed.PACKAGE}/__init__.py": _INIT,
        f"{info}/METADATA": f"Metadata-Version: 2.1\n{about}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tvmdml\nRoot-Is-Purelib: {pure}\nTag: py3-none-{platform}\n",
    }
    path = folder / f"{plain}-{version}-py3-none-{platform}.whl"
    rows = []
    with files.replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in [*((name, text.encode()) for name, text in texts.items()), *_contents(packs)]:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(content)}\n")
            archive.writestr(_entry(name), content, compresslevel=9)
        archive.writestr(_entry(f"{info}/RECORD"), "".join([*rows, f"{info}/RECORD,,\n"]))
    return path


def _entry(name: str) -> zipfile.ZipInfo:
    """A member of an archive whose bytes depend on nothing but its content."""
    found = zipfile.ZipInfo(name, _DATE)
    found.compress_type, found.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return found


def _contents(packs: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """The packs, one at a time."""
    for path in packs:
        yield f"{installed.PACKAGE}/{path.name}", path.read_bytes()


def _stamp(packs: Sequence[Path]) -> str:
    """Of the sources of all kernels, for the version: 12 digits, after a letter, as a version has numbers without leading zeros."""
    found: dict[str, Any] = {path.name: container.Pack(path).head["sources"] for path in packs}
    return f"s{hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:12]}"
