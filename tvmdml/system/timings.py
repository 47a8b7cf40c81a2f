"""How often a model runs to be timed, and the lines that say how long it took, as DxDispatch prints them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Timing(NamedTuple):
    """How often dispatches run, and which timings are printed: DxDispatch's options."""

    iterations: int = 1
    """``-i``: the minimum number of samples."""
    repeat: int = 1
    """``-r``: dispatches in each sample."""
    milliseconds: int = 0
    """``-t``: the minimum time to take samples for."""
    warmup: int = 1
    """``-w``: the maximum number of first samples that count as cold; at least one sample counts as hot."""
    verbosity: int = 0
    """``-v``: 0 for one line, 1 for statistics, 2 also for every sample."""
    interval: int = 0
    """``-I``: the least milliseconds from the begin of one sample to that of the next."""

    def samples(self) -> Iterator[None]:
        """Take a sample at each turn, until there are enough."""
        started, taken = time.perf_counter(), 0
        while taken < self.iterations or 1e3 * (time.perf_counter() - started) < self.milliseconds:
            begin = time.perf_counter()
            yield
            taken += 1
            if (left := self.interval / 1e3 - (time.perf_counter() - begin)) > 0 and taken < self.iterations:
                time.sleep(left)


def timings(name: str, samples: Sequence[float], timing: Timing) -> Iterator[str]:
    """The printed lines of the timings of a dispatchable or a model, from samples in milliseconds."""
    cold = min(len(samples) - 1, timing.warmup)
    if timing.verbosity == 0:
        yield f"Dispatch '{name}': {len(samples)} iterations, {_median(samples[cold:]):.4f} ms median (CPU)"
        return
    yield f"Dispatch '{name}': {len(samples)} iterations"
    for kind, part in (("(Cold) ", samples[:cold]), ("(Hot)  ", samples[cold:])):
        if part:
            yield (
                f"CPU Timings {kind}: {len(part)} samples, {sum(part) / len(part):.4f} ms average, {min(part):.4f} ms min, "
                f"{_median(part):.4f} ms median, {max(part):.4f} ms max"
            )
    if timing.verbosity > 1:
        yield "The timings of each iteration:"
        yield from (f"iteration {i}: {sample:.4f} ms (CPU)" for i, sample in enumerate(samples))


def _median(samples: Sequence[float]) -> float:
    return sorted(samples)[len(samples) // 2]
