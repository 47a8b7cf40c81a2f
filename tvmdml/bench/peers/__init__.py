"""Who else does the same work: NumPy, PyTorch and ONNX Runtime, each the quickest way it offers; TVM's own library stands aside.

A peer gets what it needs in advance: input in its own kind of array, output allocated, a session with its arrays bound. What a
peer does not do (values beside indices) counts in its favour, and stands in its note. An operator's peers are the table of the
file here that has the name of the operator's own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable

from tvmdml import operators
from tvmdml.bench.peers._common import Attempt, Library, Peer
from tvmdml.bench.work import Work

__all__ = ["LIBRARIES", "Attempt", "Library", "Peer", "every", "missing", "of"]

LIBRARIES = {
    "numpy": Library(("numpy",), threaded=False),
    "torch": Library(("torch",), threaded=True),
    "onnxruntime": Library(("onnxruntime", "onnx"), threaded=True),
    # As it compiles by default. Its own threads go on spinning for 100 ms after a call, so it has none.
    "tvm topi": Library(("tvm",), threaded=False, aside=True),
}


def missing(library: str) -> list[str]:
    """The modules of a library that are not installed."""
    return [name for name in LIBRARIES[library].modules if importlib.util.find_spec(name) is None]


def every(operator: str) -> tuple[Peer, ...]:
    """All peers of an operator."""
    module = importlib.import_module(f"{__name__}.{operators.module_of(operators.by_name(operator))}")
    table: tuple[Peer, ...] = module.PEERS
    return table


def of(work: Work, thorough: bool, names: Iterable[str] = ()) -> list[Peer]:
    """The peers that do this work and are installed; with ``names``, only these."""
    wanted = set(names)
    return [
        peer
        for peer in every(work.operator)
        if peer.when(work)
        and (not wanted or peer.name in wanted)
        and (thorough or not LIBRARIES[peer.library].aside)
        and not missing(peer.library)
    ]
