"""Logs of tuning: whatever stands in them, to look an operation up gives an answer, and checking them says what is wrong."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import tvmdml
from fuzz import trees
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml import operators, targets
from tvmdml.kernels.knobs import Knobs
from tvmdml.library import log_files, log_lines, logs, tuned
from tvmdml.library.log_terms import Record
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.tuning import log_checks, log_report

EXAMPLES = 250
WORDS = (
    *Record._fields, "target", "processor", "threads", "top_k", "element_wise_round", "diagonal_matrix", "nonzero_coordinates",
    "float32", "InputTensor", "OutputTensor", "layout", "packed", "strided", "in_place", "yes", "schedules", "tvm", "tvmdml",
    "2026-11-22T03:14:15+00:00", "2026-02-30T03:14:15+00:00", "cpu:x86-64-v3", "cuda:sm_90", "1e308", "1e999", "NaN", "\ufeff",
    "_contract", "operator", "elements", "length", "k", "rows", "inner", "__init__", "TOP_K1", "float32[2, 3]", "\r\n",
)  # fmt: skip


def _descs() -> list[tuple[Operator, Shared]]:
    x = tvmdml.TensorDesc("float32", (4, 1000))
    k, index = tvmdml.TensorDesc("float32", (4, 5)), tvmdml.TensorDesc("uint32", (4, 5))
    return [
        (
            tvmdml.TopK1(
                input_tensor=x, output_value_tensor=k, output_index_tensor=index, axis=1, k=5, axis_direction="decreasing"
            ),
            (),
        ),  # type: ignore[arg-type]
        (tvmdml.ElementWiseRound(input_tensor=x, output_tensor=x, rounding_mode=0), (("input_tensor", "output_tensor"),)),  # type: ignore[arg-type]
    ]


@functools.cache
def _lines() -> list[dict[str, Any]]:
    """Lines that hold for operations on this machine, with knobs that there are."""
    from tvmdml.library import lines

    target, found = targets.resolve("cpu"), []
    for desc, shared in _descs():
        module = operators.module_of(type(desc))
        turned = __import__("tvmdml.kernels.knobs", fromlist=["of"]).of(module, target)
        values = {name: knob.choices[-1] for name, knob in turned.knobs.items()} if isinstance(turned, Knobs) else {}
        record = Record(
            module, target.machine(), logs.types_of(desc), logs.class_of(desc, shared), values, 1e-6, 0.1, 2e-6, 64,
            {"tvmdml": "0.1", "schedules": "0123"}, "2026-11-22T03:14:15+00:00", {**lines.of(desc), "in_place": bool(shared)},
        )  # fmt: skip
        found.append(json.loads(log_lines.encode(record)))
    return found


def seeds() -> list[bytes]:
    """Good lines."""
    return [b"\0" + "\n".join(map(json.dumps, _lines())).encode()]


def one(choices: Choices) -> None:
    """A file of bytes as they come, or of lines that were changed."""
    if choices.flag(3):
        check(choices.rest())
        return
    lines = []
    for _ in range(choices.integer(1, 3)):
        tree = choices.pick(_lines())
        if not choices.flag(5):
            tree = trees.changed(choices, tree, WORDS, 2)
        line = trees.text(tree).encode()
        lines.append(trees.damaged(choices, line, WORDS) if choices.flag(4) else line)
    check((b"\xef\xbb\xbf" if choices.flag(6) else b"") + choices.pick((b"\n", b"\r\n", b"\r", b"\n\n")).join(lines))


def check(content: bytes) -> None:
    """Look operations up in it; check it; merge with it what is good; take from it what is bad."""
    path = Path("logs/machine/top_k.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    target = targets.resolve("cpu")
    known = logs.Logs(logs.read([Path("logs")]))
    for desc, shared in _descs():
        module = operators.module_of(type(desc))
        answer = log_report.LogAnswer.of(known, desc, shared, target.machine())
        json.dumps(answer.json()), answer.text()
        if answer.found is not None:
            turned = __import__("tvmdml.kernels.knobs", fromlist=["of"]).of(module, target)
            turned.accepted(answer.found.record.knobs, target)
    lines = log_files.read(path)
    for line in lines:
        if line.record is not None:
            log_checks.outdated(line.record), log_checks.has_other_schedules(line.record)
            assert log_lines.parse(log_lines.encode(line.record).encode()) == line.record, "what is written is not what is read"
            log_report.row(line.record)
        else:
            assert line.problem
    with refusals():
        tuned.read(path)
    log_files.merge(Path("logs"), [line.record for line in lines if line.record is not None])
    log_files.remove(path, [line.raw for line in lines if line.record is None]) if path.exists() else None
    for place in Path("logs").rglob("*.jsonl"):
        place.unlink()
