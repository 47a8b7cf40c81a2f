"""Matrix tiles (AMX): the processor's own, or emulated (``emulator.c``), so that kernels which use them run on every machine."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tvmdml import targets
from tvmdml.targets.cpu import host, threads

FEATURES = ("amx-bf16", "amx-int8", "amx-tile")
_SIGILL = 4
_OLD = "the C extension is older than its source, and its threads block all signals: pip install -e ."


def missing() -> str:
    """Why kernels with AMX cannot run here; empty if they can."""
    if not host.host().has("avx512vnni"):
        return "kernels with AMX use AVX-512 and its VNNI, too, and this processor has none"
    return "" if has_own() or shutil.which("cc") else "the emulator of AMX needs a C compiler (cc)"


def has_own() -> bool:
    """Whether this processor has AMX itself."""
    return host.state_of_tiles() == host.USED


@functools.cache
def _library() -> Any:
    with tempfile.TemporaryDirectory(prefix="tvmdml-amx-") as folder:
        path = Path(folder) / "amx.so"
        source = Path(__file__).with_name("emulator.c")
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-pthread", "-o", path, source, "-lm"], check=True)
        return ctypes.CDLL(str(path))


class Tiles:
    """The target with AMX, and what was emulated."""

    def __init__(self, name: str, library: Any) -> None:
        self.name, self._library = name, library

    def products(self) -> tuple[int, ...]:
        """How many products of tiles were emulated: of unsigned bytes by unsigned ones, unsigned by signed, signed by unsigned,
        of signed ones, and of bfloat16. Without an emulator there are none."""
        return tuple(self._library.amx_products(kind) for kind in range(5)) if self._library else ()


@contextmanager
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiles]:
    """A target with AMX that runs here."""
    own = host.host()
    if has_own():
        yield Tiles(f"cpu:{own.name}", None)
        return
    found = own._replace(features=tuple(sorted({*own.features, *FEATURES})))
    built = threads.native()
    assert built is None or b"sigdelset" in Path(str(built.__file__)).read_bytes(), _OLD
    library = _library()
    targets.resolve("cpu")  # it stays what it is
    with monkeypatch.context() as patch:
        patch.setattr(host, "host", lambda: found)
        library.amx_install()
        try:
            yield Tiles(f"cpu:{found.name}", library)
            assert library.amx_configured() == 0, "a thread did not release its tiles"
        finally:
            library.amx_remove()


def assert_faults_are_delivered() -> None:
    """Threads of the pool do not block the signal that the emulator answers: the C extension is as new as its source."""
    for status in Path("/proc/self/task").glob("*/status"):
        try:
            said = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        lines = dict(line.split(":\t", 1) for line in said if ":\t" in line)
        blocked = lines["Name"] == "tvmdml" and int(lines["SigBlk"], 16) >> (_SIGILL - 1) & 1
        assert not blocked, _OLD
