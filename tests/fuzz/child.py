"""A process that runs examples of one aim, and tells by a file how far it is: whoever watches it knows which one ended it."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import importlib
import mmap
import os
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST = 1 << 16
"""Bytes of an example."""
_STATE = struct.Struct("<QQQ")


class Order(NamedTuple):
    """What a process is to do."""

    aim: str
    seconds: float
    seed: int
    corpus: str
    """The aim's own folder of examples."""
    findings: str
    state: str
    memory: int
    """Bytes that it may take beyond what the imports took."""
    guided: bool


class State:
    """The file: how many examples were begun, how many of them found something, and the last one."""

    SIZE = _STATE.size + LONGEST

    def __init__(self, path: str | Path) -> None:
        with open(path, "r+b") as file:
            file.truncate(self.SIZE)
            self._map = mmap.mmap(file.fileno(), self.SIZE)

    def begin(self, data: bytes) -> None:
        """An example begins."""
        begun, found, _ = self.read()
        self._map[_STATE.size : _STATE.size + len(data)] = data
        _STATE.pack_into(self._map, 0, begun + 1, found, len(data))

    def found(self) -> None:
        """It found something."""
        begun, found, size = self.read()
        _STATE.pack_into(self._map, 0, begun, found + 1, size)

    def read(self) -> tuple[int, int, int]:
        """Examples, findings, and the bytes of the last example."""
        begun, found, size = _STATE.unpack_from(self._map)
        return begun, found, size

    def last(self) -> bytes:
        """The last example."""
        return self._map[_STATE.size : _STATE.size + self.read()[2]]


def main(order: Order) -> None:
    """Run examples until the time is over."""
    started = time.monotonic()
    faulthandler.enable()
    state = State(order.state)
    run = _imported(order)
    limit = memory() + order.memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from fuzz import aims, oracle

    aim = aims.find(order.aim)

    def example(data: bytes) -> None:
        data = data[:LONGEST]
        state.begin(data)
        finding = oracle.examine(aim.one, data)
        if finding is not None:
            state.found()
            keep(Path(order.findings), order.aim, finding.key, data, f"{finding.title}\n\n{finding.text}")

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        left = order.seconds - (time.monotonic() - started)
        run(example, order._replace(seconds=max(left, 1.0)))


def keep(folder: Path, aim: str, key: str, data: bytes, text: str) -> bool:
    """Write a finding down, unless it is there already, with no longer input; whether it is new."""
    place = folder / f"{aim}-{key}.bin"
    new = not place.exists()
    if new or len(data) < place.stat().st_size:
        folder.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.with_suffix(".txt").write_text(text, errors="backslashreplace")
    return new


_Example = Callable[[bytes], None]


def _imported(order: Order) -> Callable[[_Example, Order], None]:
    """Import the aim, with an eye on its code where that guides; gives what makes examples."""
    if order.guided:
        import atheris

        # To the end of the process: some modules are imported when they are needed.
        atheris.instrument_imports(include=["tvmdml"], enable_loader_override=False).__enter__()
        importlib.import_module(f"fuzz.aims.{order.aim}")
        return _guided
    importlib.import_module(f"fuzz.aims.{order.aim}")
    return _random


def memory() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _guided(example: _Example, order: Order) -> None:
    """Atheris, which is libFuzzer: it ends the process when it is done."""
    import atheris

    from fuzz import aims

    aim, folder = aims.find(order.aim), Path(order.corpus)
    for data in aims.seeds(aim):
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    options: dict[str, object] = {
        "max_total_time": max(int(order.seconds), 1), "seed": order.seed or 1, "max_len": 4096, "timeout": 1 << 20,
        "rss_limit_mb": 0, "malloc_limit_mb": 0, "artifact_prefix": f"{os.getcwd()}/", "print_final_stats": 1, "len_control": 20,
    }  # fmt: skip
    if words := aims.words(aim):
        Path("words").write_text("".join(f'"{_escaped(word)}"\n' for word in words if word))
        options["dict"] = "words"
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(folder)], example)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass"))


def _random(example: _Example, order: Order) -> None:
    from fuzz import aims

    known = [*aims.seeds(aims.find(order.aim)), *(path.read_bytes() for path in sorted(Path(order.corpus).glob("*")))]
    end = time.monotonic() + order.seconds
    for data in examples(order.seed, known):
        example(data)
        if time.monotonic() > end:
            return


def examples(seed: int, known: list[bytes]) -> Iterator[bytes]:
    """Examples without end, the same ones for a seed: first what is known, then anew at random or by changing what is known."""
    yield from known
    chance = random.Random(seed)
    while True:
        if not known or chance.random() < 0.6:
            yield chance.randbytes(chance.choice((8, 32, 64, 128, 256, 1024)))
        else:
            data = bytearray(chance.choice(known))
            for _ in range(chance.choice((1, 1, 2, 4, 16))):
                chance.choice(_CHANGES)(chance, data)
            yield bytes(data[:LONGEST])


def _place(chance: random.Random, data: bytearray) -> slice:
    begin = chance.randint(0, len(data))
    return slice(begin, min(begin + chance.choice((1, 1, 2, 4, 8, 64)), len(data)))


def _put(chance: random.Random, data: bytearray) -> None:
    data[_place(chance, data)] = chance.randbytes(chance.choice((1, 1, 2, 4, 8)))


def _cut(chance: random.Random, data: bytearray) -> None:
    del data[_place(chance, data)]


def _copy(chance: random.Random, data: bytearray) -> None:
    data[_place(chance, data)] = data[_place(chance, data)]


def _flip(chance: random.Random, data: bytearray) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


_CHANGES = (_put, _cut, _copy, _flip)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(Order(*eval(sys.argv[1])))
