"""The worst error of each function over all float32: ``python tests/operators/worst_errors.py LOG [FUNCTION ...]``.

It writes a line to the log for every 2**24 numbers, continues where a log ends, and prints a table. A function takes some minutes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from test_mathematics import FUNCTIONS, desc_of

import tvmdml
from tvmdml.operators._pointwise import Pointwise

BLOCK = 1 << 24
PART = 1 << 20
TINY = float(np.finfo(np.float32).tiny)


def worst(desc: Pointwise, run: Any, start: int) -> dict[str, Any]:
    """The worst of a block: in representable numbers, and in units of the last place, with the argument."""
    found = {"steps": 0, "ulp": 0.0, "x": 0.0, "wrong": 0}
    out = np.empty(PART, np.float32)
    for first in range(start, start + BLOCK, PART):
        x = np.arange(first, first + PART, dtype=np.uint64).astype(np.uint32).view(np.float32)
        run(x, out)
        with np.errstate(all="ignore"):
            value = np.asarray(desc.numpy(x), np.float64)
            near = value.astype(np.float32)
            found["wrong"] += int((np.isnan(out) != np.isnan(near)).sum())
            normal = np.isfinite(near) & np.isfinite(out) & (np.abs(value) >= TINY)
            x, value, near, mine = x[normal], value[normal], near[normal], out[normal]
            if not x.size:
                continue
            steps = np.abs(mine.view(np.int32).astype(np.int64) - near.view(np.int32))
            ulp = np.abs(mine - value) / np.ldexp(1.0, np.frexp(value)[1] - 24)
        at = int(ulp.argmax())
        if ulp[at] > found["ulp"]:
            found.update(ulp=float(ulp[at]), x=float(x[at]))
        found["steps"] = max(found["steps"], int(steps.max()))
    return found


def main(log: Path, names: list[str]) -> None:
    done = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        one = json.loads(line)
        done[one["name"], one["start"]] = one
    for name in names or FUNCTIONS:
        desc: Any = desc_of(name, np.empty(PART, np.float32))
        compiled = tvmdml.compile(desc, "cpu")
        for start in range(0, 1 << 32, BLOCK):
            if (name, start) not in done:
                done[name, start] = {"name": name, "start": start, **worst(desc, compiled, start)}
                with log.open("a") as file:
                    file.write(json.dumps(done[name, start]) + "\n")
        mine = [one for (own, _), one in done.items() if own == name]
        top = max(mine, key=lambda one: one["ulp"])
        steps, wrong = max(one["steps"] for one in mine), sum(one["wrong"] for one in mine)
        sys.stdout.write(f"| {name} | {steps} | {top['ulp']:.2f} | {top['x']!r} |{f' {wrong} wrong' * bool(wrong)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
