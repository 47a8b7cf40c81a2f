"""The worst error of each function over all float32: ``PYTHONPATH=tests python tests/operators/worst_errors.py LOG [NAME ...]``.

It writes a line to the log for every 2**26 numbers, continues where a log ends, and prints a table. A function takes one to three
minutes. The values that it compares with are NumPy's and PyTorch's, in float64.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support import Array
from test_mathematics import FUNCTIONS, desc_of

import tvmdml
from tvmdml.operators._pointwise import Pointwise

BLOCK = 1 << 26
PART = 1 << 15
"""So few numbers that all arrays stay in the second-level cache."""
TINY = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)
EXPONENT = 0x7FF << 52
FASTER: dict[str, Callable[[Any, Array], Array]] = {
    "ELEMENT_WISE_ERF": lambda desc, x: torch.special.erf(torch.from_numpy(x)).numpy(),
    "ELEMENT_WISE_SIN": lambda desc, x: torch.sin(torch.from_numpy(x)).numpy(),
    "ELEMENT_WISE_COS": lambda desc, x: torch.cos(torch.from_numpy(x)).numpy(),
    "ELEMENT_WISE_CONSTANT_POW": lambda desc, x: np.power(x, desc.exponent),
    "ACTIVATION_GELU": lambda desc, x: x / 2 * torch.special.erfc(torch.from_numpy(x * -math.sqrt(0.5))).numpy(),
}
"""References in float64 that need no call for each element, or are more precise than the operator's."""


ODD = {f"ELEMENT_WISE_{name}" for name in ("SIN", "TAN", "ASIN", "ATAN", "SINH", "TANH", "ASINH", "ATANH", "ERF")}
ODD |= {"ACTIVATION_TANH", "ACTIVATION_SCALED_TANH"}
EVEN = {"ELEMENT_WISE_COS", "ELEMENT_WISE_COSH"}


def worst(desc: Pointwise, run: Any, start: int) -> dict[str, Any]:
    """The worst of a block: in representable numbers, and in units of the last place, with the argument.

    ``wrong`` counts NaN where there should be none, none where there should be, and results below the normal numbers that are off
    by more than the least of these. For odd and even functions, results for negative numbers have to be those for positive ones.
    """
    found = {"steps": 0, "ulp": 0.0, "x": 0.0, "wrong": 0}
    exact, odd = FASTER.get(desc.NAME), desc.NAME in ODD
    out, positive = np.empty((2, PART), np.float32)
    for first in range(start, start + BLOCK, PART):
        x = np.arange(first, first + PART, dtype=np.uint64).astype(np.uint32).view(np.float32)
        run(x, out)
        if start >= 1 << 31 and (odd or desc.NAME in EVEN):
            run(np.negative(x), positive)
            differ = out.view(np.uint32) ^ positive.view(np.uint32) ^ np.uint32(odd << 31)
            found["wrong"] += int((differ[~np.isnan(out) | ~np.isnan(positive)] != 0).sum())
            continue
        with np.errstate(all="ignore"):
            value = np.asarray(exact(desc, x.astype(np.float64)) if exact else desc.numpy(x), np.float64)
            near = value.astype(np.float32)
            # A step is at most two units. Others cannot be worse than what was found.
            least = np.uint32(max(found["ulp"] / 2 - 0.5, 0))
            (at,) = np.nonzero(out.view(np.uint32) - near.view(np.uint32) + least > 2 * least)
            x, mine, value, near = x[at], out[at], value[at], near[at]
            steps = np.abs(mine.view(np.int32).astype(np.int64) - near.view(np.int32))
            is_nan, is_small = np.isnan(value), np.abs(value) < TINY
            beyond = np.fmax(np.abs(mine - value) - desc.error(x), 0)
            found["wrong"] += int((np.isnan(mine) != is_nan).sum()) + int((is_small & (beyond >= TINY)).sum())
            counts = ~is_nan & ~is_small & (beyond > 0)
            unit = (value.view(np.int64) & EXPONENT).view(np.float64) * 2.0**-23
            ulp = np.where(counts & np.isfinite(mine) & (np.abs(value) < LARGEST), beyond / unit, 0)
        if counts.any():
            found["steps"] = max(found["steps"], int(steps[counts].max()))
            if ulp.max() > found["ulp"]:
                found.update(ulp=float(ulp.max()), x=float(x[ulp.argmax()]))
    return found


def main(log: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
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
