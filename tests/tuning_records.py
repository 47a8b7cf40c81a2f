"""Tuning records for tests: how to make them, write them to logs of a test, and find them there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import tensor, top_k_desc

from tvmdml.library import lines, log_lines, logs
from tvmdml.library.log_terms import Machine, Record
from tvmdml.library.logs import AppliedRecord, Logs
from tvmdml.operators import Operator, tuned_as

HERE = Machine("cpu:x86-64-v3", "AuthenticAMD 25.17", 2)
THERE = Machine("vulkan", "llvmpipe (LLVM 15.0.6, 256 bits), CPU", 0)
ROWS = top_k_desc(tensor("float32", (32, 1000)), 1, 16, "decreasing")


def record(desc: Operator = ROWS, **changes: Any) -> Record:
    """A record of an operation."""
    in_place = changes.pop("in_place", False)
    made = Record(
        operator=tuned_as(type(desc)),
        machine=HERE,
        types=logs.types_of(desc),
        shape_class=logs.class_of(desc, desc.shareable()[:1] if in_place else ()),
        knobs={"digit_bits": 8} if "TOP_K" in desc.NAME else {},
        seconds=1.25e-05,
        spread=0.02,
        default_seconds=2.5e-05,
        trials=64,
        versions={"tvmdml": "0.1.0", "apache-tvm": "0.27.0"},
        date="2026-11-22T03:14:15+00:00",
        measured={**lines.of(desc), **({"in_place": True} if in_place else {})},
    )
    return made._replace(**changes)


def rows(length: int, k: int = 16, count: int = 32) -> Operator:
    return top_k_desc(tensor("float32", (count, length)), 1, k, "decreasing")


def found(known: Logs, desc: Operator = ROWS, machine: Machine = HERE, in_place: bool = False) -> AppliedRecord | None:
    return known.find("top_k", desc, (("input_tensor", "output_value_tensor"),) if in_place else (), machine)


def write(path: Path, *content: bytes | str | Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    each = (log_lines.encode(one) if isinstance(one, Record) else one for one in content)
    path.write_bytes(b"".join((one.encode() if isinstance(one, str) else one) + b"\n" for one in each))
    return path


def changed(**members: Any) -> str:
    """A line with other members; ``None`` takes one out."""
    line = {**json.loads(log_lines.encode(record())), **members}
    return json.dumps({name: value for name, value in line.items() if value is not None})


def installed_bits() -> object:
    answer = found(logs.installed())
    return None if answer is None else answer.record.knobs["digit_bits"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
