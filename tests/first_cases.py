"""The conformance cases of the first tier: for each operator and kind of target one for each of its kernels.

``first_cases.json`` has their places among the operator's cases. ``python tests/first_cases.py`` writes it anew; a test with --full
compares it with the kernels that all cases lead to. Operators of a large family have one of the kernels that they all share.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from drawn import Drawn, plain

from tvmdml import operators
from tvmdml.targets import Target

TABLE = Path(__file__).with_suffix(".json")
MANY = 50
"""A kernel that so many operators of a family have is one of those that each of them runs one of."""
_SIZES = range(32, 5000)
"""How many elements a case has if possible: enough for a vector and its rest, and soon compared."""


def cases_of(name: str, target: Target) -> list[Drawn]:
    """The operator's cases of the first tier; the first one of an operator that the table has not yet."""
    every = plain(name, target)
    return [every[place] for place in json.loads(TABLE.read_text()).get(name, {}).get(target.kind, [0])]


def kernels_of(name: str, target: Target) -> dict[str, int]:
    """Every kernel that the operator's cases lead to, by its name, and the case of the first tier for it."""
    chosen: dict[str, tuple[bool, int, int]] = {}
    for place, drawn in enumerate(plain(name, target)):
        if (kernel := drawn.kernel()) is not None:
            rank = (drawn.elements not in _SIZES, zlib.crc32(str(drawn).encode()), place)
            chosen[kernel.name] = min(chosen.get(kernel.name, rank), rank)
    return {kernel: place for kernel, (*_, place) in sorted(chosen.items())}


def write(targets_by_kind: Mapping[str, Target]) -> None:
    """Write the table."""
    rows: dict[str, dict[str, list[int]]] = {name: {} for name in operators.all_operators()}
    for kind, target in targets_by_kind.items():
        kernels = {name: kernels_of(name, target) for name in rows}
        count = Counter((_family(name), kernel) for name, own in kernels.items() for kernel in own)
        for name, own in kernels.items():
            shared = [kernel for kernel in own if count[_family(name), kernel] >= MANY]
            left_out = {*shared} - {*shared[zlib.crc32(name.encode()) % max(1, len(shared)) :][:1]}
            rows[name][kind] = sorted(place for kernel, place in own.items() if kernel not in left_out)
    TABLE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()) + "\n}\n")


def _family(name: str) -> str:
    return operators.all_operators()[name].FAMILY or name


if __name__ == "__main__":
    os.environ.update(TVMDML_CPU="x86-64-v3", TVMDML_NUM_THREADS="2")
    import conftest  # noqa: F401 # the emulator

    from tvmdml import targets

    write({kind: targets.resolve(kind) for kind in targets.kinds()})
