"""Random words. No library makes those of Philox 4x32-10 on a processor."""

from __future__ import annotations

from functools import partial

import numpy as np

from tvmdml.proof.bench.peers._arrays import CUDA_TORCH, TORCH, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer
from tvmdml.proof.bench.task import Task


def _sizes(task: Task) -> tuple[int, ...]:
    return task.expected[0].shape


def _raw_numpy(task: Task, threads: int) -> Attempt:
    size = task.expected[0].size
    call = partial(np.random.Philox(1).random_raw, -(-size // 2))
    return Attempt(call, lambda: (np.asarray(call()).view(np.uint32)[:size].reshape(_sizes(task)),))


def _integers_numpy(task: Task, threads: int) -> Attempt:
    generator = np.random.Generator(np.random.Philox(1))
    call = partial(generator.integers, 0, 1 << 32, _sizes(task), np.uint32)
    return Attempt(call, lambda: (np.asarray(call()),))


def _random_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out = arrays.empty(task, _sizes(task), np.int32)
    return arrays.writes(threads, out.random_, out)


PEERS = (
    Peer("numpy", "Philox", _raw_numpy, note="Philox 4x64-10"),
    Peer("numpy", "integers of Philox", _integers_numpy, note="Philox 4x64-10"),
    TORCH.peer("random_", _random_torch, note="Mersenne Twister, 31 bits"),
    CUDA_TORCH.peer("random_", _random_torch, note="Philox 4x32-10 in another order, 31 bits"),
)
