"""``tvmdml bench FOLDER``: tokens and prompts of a language model beside ONNX Runtime, as GenAI runs them.

Past and present are one buffer, and the mask is as long as the text. A token is run at one length again and again: what a run
writes there is the same. Both libraries run in turns, in one process.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml.genai.config import Config
from tvmdml.genai.model import Model
from tvmdml.genai.names import Step
from tvmdml.proof.bench import measure, runner
from tvmdml.proof.bench.measure import CallTiming, Contender
from tvmdml.proof.bench.models import peer_session
from tvmdml.system.console import printable
from tvmdml.targets import Target

LENGTHS = (64, 1024)
"""How many tokens texts have that one more is run of."""
PROMPTS = (128, 512)
COLUMNS = ("model", "threads", "what", "tvmdml", "ONNX Runtime", "ratio", "difference")


class _Decoder(NamedTuple):
    """A library's session of the decoder, with the buffers of one text."""

    model: Model
    session: Any
    values: Any
    """The library's ``OrtValue``."""
    past: Mapping[str, Any]

    def prepared(self, tokens: int, before: int) -> tuple[Callable[[], object], Callable[[], Any]]:
        """A run of so many tokens after others, and its logits."""
        drawn = np.random.default_rng([tokens, before]).integers(0, self.model.vocabulary, (1, tokens), dtype=np.int32)
        step = Step(drawn, np.ones((1, before + tokens), bool), before)
        binding = self.session.io_binding()
        for feed in self.model.feeds:
            binding.bind_cpu_input(feed.name, feed.of(step))
        logits = self.values.ortvalue_from_numpy(np.zeros((1, tokens, self.model.vocabulary), self._type()))
        binding.bind_ortvalue_output(self.model.logits, logits)
        for slot in self.model.slots:
            binding.bind_ortvalue_input(slot.past, self.past[slot.past])
            binding.bind_ortvalue_output(slot.present, self.past[slot.past])
        return partial(self.session.run_with_iobinding, binding), logits.numpy

    def _type(self) -> Any:
        return self.model.outputs[self.model.logits].dtype


def _decoder(model: Model, session: Any, values: Any, room: int) -> _Decoder:
    rng = np.random.default_rng(0)
    past = {
        slot.past: values.ortvalue_from_numpy(rng.standard_normal(slot.sized(1, room)).astype(slot.dtype)) for slot in model.slots
    }
    return _Decoder(model, session, values, past)


def figures(
    folder: str, target: Target | None, threads: int | None, pace: measure.RacePace = measure.QUICK
) -> list[dict[str, Any]]:
    """Measure a folder's decoder: a row for each length that the model has room for.

    Args:
        folder: with ``genai_config.json``.
        target: where to run; ONNX Runtime always runs on the CPU.
        threads: the most threads of both; ``None`` for all.
        pace: how long to measure.

    Raises:
        FolderError, Unsupported: it is no folder of a language model, or one with several networks.
    """
    with runner.limited(threads) as count:
        model = Model(folder, target=target)
        room = min(model.context, max(*LENGTHS, *PROMPTS) + 1)
        path = Path(folder) / str(Config(folder).decoder["filename"])
        ours = importlib.import_module("tvmdml.onnx")
        own = _decoder(model, model.stages[0].network, ours.OrtValue, room)
        session, note = peer_session(str(path), count)
        peer = _decoder(model, session, importlib.import_module("onnxruntime").OrtValue, room) if session is not None else None
        rows = [
            *((f"a token after {n}", 1, n) for n in [n for n in LENGTHS if n < room] or [room - 1]),
            *((f"a prompt of {n}", n, 0) for n in [n for n in PROMPTS if n <= room] or [room]),
        ]
        return [_row(printable(Path(folder).name), count, what, own, peer, (n, before), note, pace) for what, n, before in rows]


def _row(
    name: str,
    count: int,
    what: str,
    own: _Decoder,
    peer: _Decoder | None,
    tokens: tuple[int, int],
    note: str,
    pace: measure.RacePace,
) -> dict[str, Any]:
    contenders, read = [], []
    for role, library, decoder in (("ours", "tvmdml", own), ("peer", "ONNX Runtime", peer)):
        if decoder is not None:
            run, logits = decoder.prepared(*tokens)
            run()
            read.append(np.array(logits(), np.float32))
            contenders.append(Contender(role, library, what, count, run))
    timings: list[CallTiming] = measure.race(contenders, pace)
    ours, *other = (timing.median for timing in timings)
    row = dict.fromkeys(COLUMNS, "") | {"model": name, "threads": count, "what": what, "tvmdml": f"{1e3 * ours:.3g} ms"}
    if not other:
        return {**row, "ONNX Runtime": note}
    difference = np.abs(read[0] - read[1]).max() / (np.abs(read[1]).max() or 1)
    return {
        **row,
        "ONNX Runtime": f"{1e3 * other[0]:.3g} ms",
        "ratio": f"{other[0] / ours:.2f}",
        "difference": f"{difference:.1e}",
    }


def run(
    folders: Sequence[str],
    target: Target | None,
    threads: int | None,
    full: bool,
    write: Callable[[str], object],
    table: Callable[[Sequence[str], Sequence[Mapping[str, Any]]], object],
) -> None:
    """Measure folders, and print a table."""
    rows = []
    for folder in folders:
        write(f"measuring {printable(folder)}")
        rows += figures(folder, target, threads, measure.FULL if full else measure.QUICK)
    table(COLUMNS, rows)
