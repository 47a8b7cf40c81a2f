"""Watches the processes that run examples: starts them, ends those that hang, and counts."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.child import Order, State, keep

ROUND = 90.0
"""Seconds that an aim has before the next one's turn comes: a new process each time, with the code as it is then."""
_START = 180.0
"""Seconds that a process has to begin with its first example."""


@dataclass
class Tally:
    """What came of an aim so far."""

    examples: int = 0
    seconds: float = 0.0
    found: int = 0
    new: set[str] = field(default_factory=set)
    coverage: str = ""

    @property
    def line(self) -> str:
        """For people."""
        rate = self.examples / self.seconds if self.seconds else 0.0
        covered = f", {self.coverage}" if self.coverage else ""
        return f"{self.examples} examples, {rate:.0f}/s{covered}; {len(self.new)} new findings, {self.found} times"


@dataclass
class Engine:
    """How to run."""

    corpus: Path
    findings: Path
    seed: int
    guided: bool
    memory: int
    hang: float
    """Seconds that an example may take."""
    say: Callable[[str], None]
    tallies: dict[str, Tally] = field(default_factory=dict)
    _turn: int = 0

    def run(self, names: list[str], seconds: float, jobs: int) -> None:
        """Run the aims in turn until the time is over."""
        for name in names:
            self.tallies[name] = Tally()
        end = time.monotonic() + seconds
        share = min(max(seconds * jobs / len(names), 1.0), ROUND)
        with ThreadPoolExecutor(jobs) as pool:
            while (left := end - time.monotonic()) > 1:
                turns = [(name, min(share, left)) for name in names]
                list(pool.map(lambda turn: self._one(*turn, end), turns))

    def _one(self, name: str, seconds: float, end: float) -> None:
        """An aim's turn."""
        seconds = min(seconds, end - time.monotonic())
        stop = time.monotonic() + seconds
        while (left := stop - time.monotonic()) > 0.5:
            self._turn += 1
            self._process(name, left, self.seed * 1000 + self._turn)
        if seconds > 0.5:
            self.say(f"{name}: {self.tallies[name].line}")

    def _process(self, name: str, seconds: float, seed: int) -> None:
        tally, corpus = self.tallies[name], self.corpus / name
        corpus.mkdir(parents=True, exist_ok=True)
        before = set(self.findings.glob(f"{name}-*.bin"))
        with tempfile.TemporaryDirectory(prefix="fuzz-watch-") as folder:
            place = Path(folder) / "state"
            place.touch()
            state = State(place)
            order = Order(name, seconds, seed, str(corpus), str(self.findings), str(place), self.memory, self.guided)
            with open(Path(folder) / "log", "w+b") as log:
                started = time.monotonic()
                process = subprocess.Popen(
                    [sys.executable, "-m", "fuzz.child", repr(tuple(order))],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(), cwd=Path(__file__).parents[1],
                    start_new_session=True,
                )  # fmt: skip
                hung = self._watch(process, state, seconds)
                log.seek(0)
                said = log.read()[-20_000:].decode(errors="replace")
            begun, found, _ = state.read()
            tally.examples += begun
            tally.found += found
            tally.seconds += time.monotonic() - started
            if covered := re.findall(r"cov: (\d+)", said):
                tally.coverage = f"coverage {covered[-1]}"
            if process.returncode and not begun:
                self.say(f"{name}: cannot begin\n{said[-2000:]}")
                tally.found += 1
                time.sleep(seconds)  # its turn is over
            elif hung or process.returncode:
                what = f"hangs for more than {self.hang:.0f} s" if hung else f"ends the process ({process.returncode})"
                trace = re.findall(r'File ".*?([\w.]+)", line \d+ in (\w+)', said)
                key = hashlib.sha256(repr((what if hung or not trace else trace[0], trace[:2])).encode()).hexdigest()[:10]
                tally.found += 1
                keep(self.findings, name, key, state.last(), f"{name} {what}\n\n{said}")
        for path in sorted(set(self.findings.glob(f"{name}-*.bin")) - before):
            tally.new.add(path.name)
            self.say(f"{name}: NEW {path.with_suffix('.txt').read_text().splitlines()[0]}\n    {path}")

    def _watch(self, process: subprocess.Popen[bytes], state: State, seconds: float) -> bool:
        """Wait for the end; whether it had to be ended."""
        last, since, spent, end = 0, time.monotonic(), 0.0, time.monotonic() + seconds + 60
        while process.poll() is None:
            time.sleep(0.1)
            begun, now = state.read()[0], time.monotonic()
            if begun != last:
                last, since, spent = begun, now, _processor_time(process.pid)
            # Where others are busy, too, time alone says little.
            if last and (now - since > 3 * self.hang or (now - since > self.hang < _processor_time(process.pid) - spent)):
                os.kill(process.pid, signal.SIGABRT)  # it says where it is
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return True
            if now > end + _START:
                process.kill()
                process.wait()
        return False

    def _environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("TVMDML_")}
        cache = str(self.corpus / "kernels")
        return {
            **mine, "TVMDML_CACHE_DIR": cache, "TVMDML_TUNING": "0", "TVMDML_NUM_THREADS": "2", "PYTHONHASHSEED": "0",
            "HOME": str(self.corpus), "PYTHONPATH": os.pathsep.join(map(str, _paths())),
        }  # fmt: skip


def _processor_time(pid: int) -> float:
    """Seconds that a process has had of processors; 0 where it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _paths() -> Iterator[Path]:
    tests = Path(__file__).parents[1]
    yield from (
        (tests, tests.parent) if os.environ.get("PYTHONPATH") is None else (tests, tests.parent, Path(os.environ["PYTHONPATH"]))
    )


def replay(folder: Path, say: Callable[[str], None]) -> int:
    """Run the findings of a folder again, each in a process of its own; how many are still there."""
    left = 0
    for path in sorted(folder.glob("*.bin")):
        aim = path.name.rpartition("-")[0]
        command = [sys.executable, "-m", "fuzz", "--example", aim, str(path.resolve())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[1])
        except subprocess.TimeoutExpired:
            say(f"{path.name}: still hangs")
            left += 1
            continue
        left += bool(done.returncode)
        say(
            f"{path.name}: {'gone' if not done.returncode else (done.stdout.strip().splitlines() or ['still ends the process'])[0]}"
        )
    return left
