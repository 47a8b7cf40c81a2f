"""Checks that the environment variables that begin with ``TVMDML`` exist and have valid values."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tvmdml.errors import TvmdmlError
from tvmdml.proof.doctor.terms import BROKEN, LIMITED, OK, CheckFinding


def _switch(empty: str) -> Callable[[str], CheckFinding]:
    """A setting that 0 turns off and any other value turns on. ``empty`` is the meaning of an empty value."""

    def look(name: str) -> CheckFinding:
        text = os.environ[name].strip()
        state = {"": empty, "0": "off"}.get(text, "on")
        if text in ("", "0", "1"):
            return CheckFinding(OK, state)
        return CheckFinding(LIMITED, f"{state}: every value except 0 means on", "Write 1 or 0.")

    return look


def _parsed(reader: str) -> Callable[[str], CheckFinding]:
    """A setting that a function (``module:name``) reads; the function raises an error if the value is invalid."""

    def look(name: str) -> CheckFinding:
        module, _, function = reader.partition(":")
        getattr(importlib.import_module(module), function)()
        return CheckFinding(OK, "valid")

    return look


def _one_of(*allowed: str) -> Callable[[str], CheckFinding]:
    def look(name: str) -> CheckFinding:
        if os.environ[name] in ("", *allowed):
            return CheckFinding(OK, "valid")
        return CheckFinding(BROKEN, f"allowed: {' or '.join(allowed)}", f"Write one of these, or unset {name}.")

    return look


def _paths(name: str) -> CheckFinding:
    missing = [part for part in os.environ[name].split(os.pathsep) if part.strip() and not Path(part).expanduser().exists()]
    if missing:
        return CheckFinding(LIMITED, f"{', '.join(missing)}: there is no such file or folder", "Correct or remove the path.")
    return CheckFinding(OK, "valid")


def _program(name: str) -> CheckFinding:
    text = os.environ[name]
    if not text or shutil.which(text):
        return CheckFinding(OK, "valid")
    return CheckFinding(
        BROKEN, "there is no such program, so nothing can be compiled with it", f"Correct the path, or unset {name}."
    )


def _library(name: str) -> CheckFinding:
    text = os.environ[name]
    if os.sep in text and not Path(text).is_file():
        return CheckFinding(BROKEN, "there is no such file, so no GPU is found", f"Correct the path, or unset {name}.")
    return CheckFinding(OK, "valid")


def _folder(name: str) -> CheckFinding:
    text = os.environ[name]
    with contextlib.suppress(RuntimeError):  # ~ without such a user is an ordinary name
        text = str(Path(text).expanduser())
    if text and not Path(text).is_absolute():
        return CheckFinding(
            LIMITED,
            "it is relative: programs that are started in different folders use different caches",
            "Write an absolute path.",
        )
    return CheckFinding(OK, "set")


def _as_is(name: str) -> CheckFinding:
    return CheckFinding(OK, "set")


SETTINGS: dict[str, Callable[[str], CheckFinding]] = {
    "TVMDML_CACHE_DIR": _folder,  # another check examines the folder itself
    "TVMDML_CACHE_SIZE": _parsed("tvmdml.system.disk.stores:default_limit"),
    "TVMDML_CPU": _parsed("tvmdml.targets.cpu.host:chosen"),
    "TVMDML_CUDA_COMPILER": _one_of("nvcc", "nvrtc"),
    "TVMDML_CUDA_LIBRARY": _library,
    "TVMDML_DEVICE": _parsed("tvmdml.directml.devices:Device"),
    "TVMDML_DISABLE_JIT": _switch("off"),
    "TVMDML_DISABLE_NATIVE": _switch("off"),
    "TVMDML_DISABLE_PASSES": _parsed("tvmdml.graph.passes:disabled"),
    "TVMDML_DISABLE_PLANS": _switch("off"),
    "TVMDML_LOG": _parsed("tvmdml.system.logger:level"),
    "TVMDML_NUM_THREADS": _parsed("tvmdml.targets.cpu.thread_count:thread_count"),
    "TVMDML_NVCC": _program,
    "TVMDML_PACKS": _as_is,
    "TVMDML_PACK_RECORD": _as_is,  # `tvmdml pack record` sets it for the program that it runs
    "TVMDML_TRUSTED_KEYS": _parsed("tvmdml.library.signing:trusted_keys"),
    "TVMDML_TUNING": _switch("on"),
    "TVMDML_TUNING_LOGS": _paths,
    "TVMDML_TUNING_NEAREST": _switch("on"),
    "TVMDML_VULKAN_STAGING": _switch("off"),  # for tests: use memory that the host cannot access
    "TVMDML_VULKAN_VALIDATION": _switch("off"),
    "TVMDML_VULKAN_WITHOUT": _parsed("tvmdml.targets.vulkan.physical:hidden"),
}
"""Every environment variable that the package reads, and the check of its value."""


def findings() -> Iterator[CheckFinding]:
    """A finding for each variable that is set."""
    given = sorted(name for name in os.environ if name.startswith("TVMDML"))
    if not given:
        yield CheckFinding(OK, "no TVMDML_* variable is set")
    for name in given:
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, 1)
            advice = f"Did you mean {near[0]}?" if near else f"Known variables: {', '.join(SETTINGS)}."
            yield CheckFinding(LIMITED, f"{name} is set, but tvmdml does not read such a variable", advice)
            continue
        shown = f"{name}={os.environ[name]}"
        try:
            finding = SETTINGS[name](name)
        except TvmdmlError as error:
            finding = CheckFinding(BROKEN, str(error), f"Correct it, or unset {name}.")
        yield finding._replace(words=f"{shown}: {finding.words}")
