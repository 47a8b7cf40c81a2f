"""The libraries to compare with: NumPy, PyTorch and ONNX Runtime, each in its fastest way. TVM's own library is not in the goals.

On a CUDA device the peers are PyTorch and CuPy, with arrays on the device; RAFT is not part of the goals. A peer is prepared in
advance: its input is in its own kind of array, its output is allocated, and a session has its arrays bound. If a peer does less
than the operator (no values beside indices), that counts in its favour, and its note says so. An operator's peers are in the table
of the file here that has the name of the operator's own file, or of its family.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable

from tvmdml import operators
from tvmdml.proof.bench.peers import _arrays
from tvmdml.proof.bench.peers._arrays import release, use
from tvmdml.proof.bench.peers._common import Attempt, Peer, PeerLibrary
from tvmdml.proof.bench.work import Work

__all__ = ["LIBRARIES", "Attempt", "Peer", "PeerLibrary", "absent", "every", "missing", "of", "release", "use"]

LIBRARIES = {
    "cpu": {
        "numpy": PeerLibrary(("numpy",)),
        "torch": PeerLibrary(("torch",), threaded=True),
        "onnxruntime": PeerLibrary(("onnxruntime", "onnx"), threaded=True),
        # Compiled with its default options, single-threaded: its own threads would spin for 100 ms after each call.
        "tvm topi": PeerLibrary(("tvm",), aside=True),
    },
    "cuda": {
        "torch": PeerLibrary(("torch",), lacks=_arrays.torch_lacks),
        "cupy": PeerLibrary(("cupy",), lacks=_arrays.cupy_lacks),
        # It has no arrays of its own, and is given CuPy's.
        "raft": PeerLibrary(("pylibraft", "cupy"), aside=True, lacks=_arrays.cupy_lacks),
    },
}
"""The libraries, by where they run."""


def missing(library: str, where: str = "cpu") -> list[str]:
    """What must be installed for a library to take part: modules, or the feature that an installed library was built without."""
    found = LIBRARIES[where][library]
    absent = [name for name in found.modules if importlib.util.find_spec(name) is None]
    return absent or list(filter(None, [found.lacks()]))


def absent(where: str) -> list[str]:
    """The libraries that cannot take part, with what is missing, unless the whole library is."""
    found = {name: missing(name, where) for name in LIBRARIES[where]}
    return [
        name if set(lacks) <= {*LIBRARIES[where][name].modules, name} else f"{name} ({', '.join(lacks)})"
        for name, lacks in found.items()
        if lacks
    ]


def every(operator: str, where: str = "cpu") -> tuple[Peer, ...]:
    """All peers of an operator at this place."""
    cls = operators.by_name(operator)
    name = next((one for one in (operators.module_of(cls), cls.FAMILY) if one in _files()), "")
    table: tuple[Peer, ...] = importlib.import_module(f"{__name__}.{name}").PEERS if name else ()
    return tuple(peer for peer in table if peer.where == where)


@functools.cache
def _files() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__))


def of(work: Work, thorough: bool, names: Iterable[str] = (), where: str = "cpu") -> list[Peer]:
    """The peers that can do this work and are installed; with ``names``, only these. They are asked as ``Task.newest``."""
    wanted, work = set(names), work.newest()
    return [
        peer
        for peer in every(work.operator, where)
        if peer.when(work)
        and (not wanted or peer.name in wanted)
        and (thorough or not LIBRARIES[where][peer.library].aside)
        and not missing(peer.library, where)
    ]
