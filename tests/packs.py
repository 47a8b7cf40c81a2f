"""Shared by the tests of packs: a small spec, and a pack of it for each target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support import IN_PLACE, diagonal_desc, nonzero_desc, round_desc, tensor, top_k_desc

from tvmdml import packs
from tvmdml.library import format as container
from tvmdml.library.format import Pack, Part
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators import Operator
from tvmdml.targets import Target

ROWS = (24, 3000)
"""Large enough for threads, where those pay early."""


def descs() -> Iterator[Operator]:
    """An operation of each operator, on float32 of ``ROWS``; and one on float16."""
    x = tensor("float32", ROWS)
    yield round_desc(x, "halves_to_nearest_even")
    yield top_k_desc(x, 1, 5, "decreasing")
    yield nonzero_desc(x)
    yield diagonal_desc(x, 0, -1, 2)
    yield round_desc(tensor("float16", (7,)), "toward_zero")


def spec_for(*targets: str) -> Spec:
    """The operations, and a rounding in place."""
    found = [Wanted(desc) for desc in descs()]
    return Spec(targets, (*found, found[0]._replace(shared=IN_PLACE)), {})


def few_for(*targets: str) -> Spec:
    """Six roundings, which compile quickly: for tests of how a pack is built, and not of what is in it."""
    modes = ("halves_to_nearest_even", "toward_zero", "toward_infinity")
    found = [Wanted(round_desc(tensor(data_type, (7,)), mode)) for data_type in ("float32", "float16") for mode in modes]
    return Spec(targets, tuple(found), {})


def build(folder: Path, *targets: str) -> Path:
    """A pack of them."""
    path = folder / "small.tvmdml"
    packs.build(spec_for(*targets), path, jobs=1)
    return path


def name_for(target: Target) -> str:
    """What a pack is built for that is to run on a target: of the CPU, less than what this one can do."""
    return {"cpu": "cpu:x86-64-v2", "vulkan": "vulkan:desktop"}.get(target.kind, target.spec_name)


def inputs() -> np.ndarray:
    """Values of both signs, ties and zeros among them."""
    rng = np.random.default_rng(7)
    x = rng.integers(-40, 40, ROWS).astype(np.float32) / 4
    x[rng.random(ROWS) < 0.5] = 0
    return x


def run_alone(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with these variables in its environment."""
    variables = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False, timeout=120)


def run_elsewhere(code: str, folder: Path, **environment: str) -> str:
    """What a program prints that has neither the compiler, nor the package onnx, nor a cache."""
    own = {"TVMDML_DISABLE_JIT": "1", "TVMDML_CACHE_DIR": str(folder / "cache"), **environment}
    done = run_alone("import sys; sys.modules.update(tvm=None, onnx=None)\n" + code, **own)
    assert done.returncode == 0, done.stderr
    return done.stdout


Change = Callable[[dict[str, Any]], Any]


def rewritten(path: Path, to: Path, change: Change, head: Change = lambda graph: None) -> Path:
    """The pack with changed descriptions of its graphs, and changed rows of them in its head; its checksums are right."""
    contents = Pack(path).contents()
    own, parts = json.loads(json.dumps(contents.head)), list(contents.parts)
    for graph in own["graphs"]:
        described = json.loads(bytes(Pack(path).content(graph["part"])))
        change(described)
        parts[graph["part"]] = Part(".graph", json.dumps(described).encode())
        head(graph)
    container.write(to, contents._replace(head=own, parts=parts))
    return to


def put(*steps: Any) -> Change:
    """Sets what is at the end of a way of keys; the last step is the value."""
    *way, last, value = steps

    def change(described: Any) -> None:
        for step in way:
            described = described[step]
        described[last] = value

    return change
