"""Environment variables: whatever they say, an error names the variable, or there is a warning, or it is done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml import targets
from tvmdml.errors import TvmdmlError
from tvmdml.graph import passes
from tvmdml.library import logs, recording, shelf, signing
from tvmdml.system.disk import stores
from tvmdml.targets.cpu import threads
from tvmdml.targets.cpu.thread_count import thread_count
from tvmdml.targets.cuda import compilers
from tvmdml.targets.vulkan import physical
from tvmdml.tuning import session

EXAMPLES = 100
_WORDS = (
    "0", "1", "-1", "2", "1024", "1025", "512M", "1e9", "GiB", " ", "~nobody", "relative", ":", "²", "٣", "9" * 30, "nan",
    "true", "nvcc", "nvrtc", "x.tvmdml", "$HOME", "%s", "{}", "\udcff", "A" * 43 + "=", "..",
)  # fmt: skip
_PLACES = ("/dev/null", "/proc/self/mem", "/proc/none", "/dev/null/x", "/sys", "")
"""Where nothing can be written, or is lost."""
_X = "import numpy as np, tvmdml; x = np.array([0.5, 1.5], 'f4'); assert tvmdml.round(x).tolist() == [0, 2]"


def _packs() -> None:
    shelf._of_environment.clear()
    shelf._packs()


def _logs() -> None:
    logs.forget()
    logs.installed()


def _record() -> None:
    import tvmdml

    x = tvmdml.TensorDesc("float32", (8,))
    desc = tvmdml.ElementWiseRound(input_tensor=x, output_tensor=x, rounding_mode=0)  # type: ignore[arg-type]
    recording.append(os.environ["TVMDML_PACK_RECORD"] or "x", desc, targets.resolve("cpu"), False)


def _compilers() -> None:
    compilers.nvcc()
    compilers._compiler()  # which one it would be; none is run


# What asks for each, now.
_READERS: Mapping[str, Callable[[], object]] = {
    "TVMDML_NUM_THREADS": thread_count,
    "TVMDML_CACHE_SIZE": stores.DiskStore,
    "TVMDML_CACHE_DIR": lambda: (stores.DiskStore().entries(), session.folder()),
    "TVMDML_TUNING": _logs,
    "TVMDML_TUNING_NEAREST": _logs,
    "TVMDML_TUNING_LOGS": _logs,
    "XDG_DATA_HOME": _logs,
    "XDG_CACHE_HOME": lambda: stores.DiskStore().entries(),
    "HOME": lambda: (_logs(), stores.DiskStore().entries()),
    "TVMDML_PACKS": _packs,
    "TVMDML_PACK_RECORD": _record,
    "TVMDML_TRUSTED_KEYS": signing.trusted_keys,
    "TVMDML_DISABLE_NATIVE": lambda: threads._extension.__wrapped__(),
    "TVMDML_DISABLE_PASSES": passes.disabled,
    "TVMDML_VULKAN_WITHOUT": physical.hidden,
    "TVMDML_CUDA_COMPILER": _compilers,
    "TVMDML_NVCC": _compilers,
}
# What only a process of its own sees.
_OTHERS = ("TVMDML_CUDA_LIBRARY", "TVMDML_VULKAN_VALIDATION", "TVMDML_VULKAN_STAGING", "TVMDML_DISABLE_JIT", "CUDA_VISIBLE_DEVICES")


def one(choices: Choices) -> None:
    """A variable, read by what asks for it; now and then some of them, and a process that starts with them."""
    name = choices.pick(tuple(_READERS))
    value = _value(choices)
    changes = {name: value}
    if name.startswith("XDG") or name == "HOME":
        changes["TVMDML_CACHE_DIR"] = ""
    inside = {path.name for path in Path().iterdir()}
    with mock.patch.dict(os.environ, changes):
        said = ""
        try:
            _READERS[name]()
        except TvmdmlError as error:
            said = str(error)
    assert not said or name in said or not value, f"{name}={value!r} is not named: {said}"
    for path in Path().iterdir():  # a folder for records
        if path.name not in inside and path.is_file():
            path.unlink()
    if choices.flag(150):
        with refusals():
            _process({choices.pick((*_READERS, *_OTHERS)): _value(choices) for _ in range(choices.integer(1, 3))})


def _value(choices: Choices) -> str:
    if choices.flag(6):
        return choices.pick(_PLACES)
    text = choices.text(_WORDS, 4).replace("\0", "").replace("\ud800", "\udc80")
    return text.replace("/", "|")[:2000]  # what is written goes nowhere but here


def _process(changes: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", _X], env={**os.environ, **changes}, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    ours = last.startswith("tvmdml.errors.") or "Compile" in last
    assert not done.returncode or (ours and any(name in done.stderr for name in changes)), f"{changes}: {done.stderr[-3000:]}"
