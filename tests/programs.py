"""Programs, each with its own cache, for tests of whole processes: threads, forks, signals, exit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from folders import TESTS, TOP

from tvmdml.system.disk import stores

BARE = """
import faulthandler, os, signal, sys, threading, time
import numpy as np, tvmdml
faulthandler.dump_traceback_later(300, exit=True)
x = np.array([3, 1, 2, 5, 4], "float32") / 2

def fine(*dtypes):
    "Whether calls that compile a kernel each are right."
    for dtype in dtypes or ("float32", "int16"):
        given = (x * 2).astype(dtype)
        if tvmdml.top_k(given, 2).indices.tolist() != [3, 4]:
            return False
    return True

def daemon(work, *arguments):
    threading.Thread(target=work, args=arguments, daemon=True).start()

def code_of(process):
    "How a child ended: 0 is well."
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

def begin(work):
    "A forked child that does some work and ends at once; a child has no watchdog of its parent's."
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        signal.alarm(100)
        try:
            ok = work()
            sys.stdout.flush()
            os._exit(0 if ok else 1)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(2)
    return process

def child(work):
    return code_of(begin(work))
"""
"""For programs that begin with ``import tvmdml`` and nothing else of it, or of Python's library."""

PREFACE = f"""{BARE}
import asyncio, atexit, concurrent.futures, gc, multiprocessing, random
from tvmdml import compiler, knobs
from tvmdml.library import finding
from tvmdml.system import imports
from tvmdml.system.disk import stores
"""


def python(code: str, *arguments: object, may_complain: bool = False, **variables: str) -> str:
    """What a program printed that finds this package and the tests' helpers, and ended well; without complaint, unless it may."""
    places = os.pathsep.join(map(str, filter(None, (TOP, TESTS, os.environ.get("PYTHONPATH")))))
    environment = {**os.environ, "PYTHONPATH": places, **variables}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert may_complain or not done.stderr, done.stderr
    return done.stdout


def start(code: str, folder: Path, *arguments: object, preface: str = PREFACE, **variables: str) -> subprocess.Popen[str]:
    """A program that has the names above."""
    environment = {**os.environ, "TVMDML_CACHE_DIR": str(folder), "TVMDML_NUM_THREADS": "3", **variables}
    command = [sys.executable, "-c", preface + code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def end(process: subprocess.Popen[str]) -> str:
    """What it printed; it must end by itself, without complaint."""
    try:
        printed, said = process.communicate(timeout=550)
    except BaseException:
        process.kill()
        raise
    assert (process.returncode, said) == (0, ""), said
    return printed


def program(code: str, folder: Path, *arguments: object, preface: str = PREFACE, **variables: str) -> str:
    """What a program printed that ended well."""
    return end(start(code, folder, *arguments, preface=preface, **variables))


def assert_consistent(folder: Path) -> int:
    """Every entry of the cache is whole, and nothing of a build is left; returns how many there are."""
    store = stores.DiskStore(folder)
    entries = store.entries()
    for entry in entries:
        assert store.find(entry.path.stem, (Path(str(entry.manifest["artifact"])).suffix,)), entry
    names = {path.name for path in store.root.glob("??/*") if path.suffix != ".lock"}
    wanted = {entry.path.name for entry in entries} | {str(entry.manifest["artifact"]) for entry in entries}
    assert not (names - wanted), "what is left of builds, or of entries"
    return len(entries)


def moments(count: int, last: float) -> list[float]:
    """Seconds from now, evenly spread."""
    return [round(last * (number + 0.5) / count, 4) for number in range(count)]
