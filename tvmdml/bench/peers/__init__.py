"""Who else does the same work: NumPy, PyTorch and ONNX Runtime, each the quickest way it offers; TVM's own library stands aside.

On a CUDA device they are PyTorch and CuPy, with arrays that lie there; RAFT stands aside. A peer gets what it needs in advance:
input in its own kind of array, output allocated, a session with its arrays bound. What a peer does not do (values beside indices)
counts in its favour, and stands in its note. An operator's peers are the table of the file here that has the name of the operator's
own, and those on a device of the one that begins with ``cuda_``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable

from tvmdml import operators
from tvmdml.bench.peers import _cuda
from tvmdml.bench.peers._common import Attempt, Library, Peer
from tvmdml.bench.peers._cuda import release, use
from tvmdml.bench.work import Work

__all__ = ["LIBRARIES", "Attempt", "Library", "Peer", "absent", "every", "missing", "of", "release", "use"]

LIBRARIES = {
    "cpu": {
        "numpy": Library(("numpy",)),
        "torch": Library(("torch",), threaded=True),
        "onnxruntime": Library(("onnxruntime", "onnx"), threaded=True),
        # As it compiles by default. Its own threads go on spinning for 100 ms after a call, so it has none.
        "tvm topi": Library(("tvm",), aside=True),
    },
    "cuda": {
        "torch": Library(("torch",), lacks=_cuda.torch_lacks),
        "cupy": Library(("cupy",), lacks=_cuda.cupy_lacks),
        # Its arrays are CuPy's: it has none that others make.
        "raft": Library(("pylibraft", "cupy"), aside=True, lacks=_cuda.cupy_lacks),
    },
}
"""Where peers come from, by where they run."""

_PREFIXES = ("", "cuda_")
"""Of the files that have the tables of an operator's peers."""


def missing(library: str, where: str = "cpu") -> list[str]:
    """What has to be installed for a library to take part: modules, or what an installed one was built without."""
    found = LIBRARIES[where][library]
    absent = [name for name in found.modules if importlib.util.find_spec(name) is None]
    return absent or list(filter(None, [found.lacks()]))


def absent(where: str) -> list[str]:
    """The libraries that cannot take part, with what they lack where that is not the whole of them."""
    found = {name: missing(name, where) for name in LIBRARIES[where]}
    return [
        name if set(lacks) <= {*LIBRARIES[where][name].modules, name} else f"{name} ({', '.join(lacks)})"
        for name, lacks in found.items()
        if lacks
    ]


def every(operator: str, where: str = "cpu") -> tuple[Peer, ...]:
    """All peers of an operator that run there."""
    name = operators.module_of(operators.by_name(operator))
    tables = (importlib.import_module(f"{__name__}.{prefix}{name}").PEERS for prefix in _PREFIXES)
    return tuple(peer for table in tables for peer in table if peer.where == where)


def of(work: Work, thorough: bool, names: Iterable[str] = (), where: str = "cpu") -> list[Peer]:
    """The peers that do this work there and are installed; with ``names``, only these."""
    wanted = set(names)
    return [
        peer
        for peer in every(work.operator, where)
        if peer.when(work)
        and (not wanted or peer.name in wanted)
        and (thorough or not LIBRARIES[where][peer.library].aside)
        and not missing(peer.library, where)
    ]
