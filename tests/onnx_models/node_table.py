"""The table of ONNX's node tests by operator, ``tvmdml/onnx/NODES.md``: ``python tests/onnx_models/node_table.py`` writes it anew.

A case is counted as passed if it is converted; ``test_onnx_nodes.py`` runs the cases and compares this table.
"""

from __future__ import annotations

import collections
import functools
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmdml.errors import Unsupported
from tvmdml.onnx import converting, scopes
from tvmdml.onnx.model import load
from tvmdml.onnx.stage import Stage

PLACE = Path(__file__).resolve().parents[2] / "tvmdml" / "onnx" / "NODES.md"
NO_TYPE = "types that DirectML has not"
_CORNERS = "corners aligned with the exact length of a result, and not with its number of elements as by ONNX Runtime and PyTorch"
OTHERWISE = {f"test_resize_downsample_scales_{mode}_align_corners": _CORNERS for mode in ("linear", "cubic")}
"""Cases whose results are others here, and why."""
_TYPE = re.compile(r"given the type (\w+); allowed|(?:data type|of type) (\w+)|the type of its output is not one of DirectML's")
_OTHERS = {"string": "strings", "sequence": "sequences", "optional": "optional tensors", "map": "maps"}


@functools.cache
def cases() -> list[Any]:
    """ONNX's cases of nodes."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return sorted(node.collect_testcases(None), key=lambda case: str(case.name))


def array(value: Any) -> Any:
    """An input or output of a case as an array."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def reason(text: str) -> str:
    """Why a case has no result, in few words: the same for cases of the same kind."""
    if (found := _TYPE.search(text)) is not None:
        return _OTHERS.get((found[1] or found[2] or "").lower(), NO_TYPE)
    if re.search(r"version \d+ of ONNX's operators", text):
        return "older than version 7"
    return re.sub(r"tvmdml\.\w+: |'.*?' ?", "", text.strip().splitlines()[-1].partition(": ")[2]).strip()


def refusals() -> Iterator[tuple[Any, str, bool]]:
    """Each case with the reason why it is refused, which is empty if it is converted, and whether its results are random."""
    draws = []

    def convert(self: Stage, shapes: Any, decided: Any) -> None:
        found = converting.Conversion.of(self._origin().model, shapes, decided)
        draws.append(found.draws > 0)
        scopes.raise_all("model", found.problems)

    before, Stage.made = Stage.made, convert  # type: ignore[method-assign, assignment]
    try:
        for case in cases():
            if case.name in OTHERWISE:
                yield case, OTHERWISE[case.name], False
                continue
            try:
                model = load(case.model)
                for inputs, _ in case.data_sets:
                    model._for(dict(zip((one.name for one in model.inputs), map(array, inputs), strict=True)))
            except Unsupported as error:
                yield case, reason(str(error)), False
            else:
                yield case, "", any(draws)
            draws.clear()
    finally:
        Stage.made = before  # type: ignore[method-assign]


@functools.cache
def _operators() -> dict[str, str]:
    return {one.name.lower(): one.name for one in onnx.defs.get_all_schemas_with_history()}


def operator(case: Any) -> str:
    """The operator that a case is about: of its only node, or the one that its name begins with."""
    nodes = case.model.graph.node
    if len(nodes) == 1:
        return str(nodes[0].op_type)
    words = case.name.removeprefix("test_").removeprefix("training_").split("_")
    for n in range(len(words), 0, -1):
        if (found := _operators().get("".join(words[:n]))) is not None:
            return found
    return next((str(one.op_type) for one in nodes if one.op_type.lower() in case.name), str(nodes[-1].op_type))


def table() -> str:
    """The whole page."""
    passed: collections.Counter[str] = collections.Counter()
    left: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    random = 0
    for case, why, draws in refusals():
        name = operator(case)
        random += draws
        if why:
            left[name][why] += 1
        else:
            passed[name] += 1
    names = sorted({*passed, *left})
    mapped = [name for name in names if passed[name]]
    others = [name for name in names if not passed[name]]
    refused = sum(sum(one.values()) for one in left.values())

    def reasons(name: str) -> str:
        return ", ".join(f"{count} {why}" for why, count in sorted(left[name].items()))

    lines = [
        "# ONNX's node tests",
        "",
        f"The cases of onnx {onnx.__version__} by operator: {sum(passed.values())} passed, {refused} not applicable, 0 failed.",
        f"Of {random} of them the results are random: their types and shapes are compared.",
        "`python tests/onnx_models/node_table.py` writes this page.",
        "`tests/onnx_models/test_onnx_nodes.py` runs the cases and checks it.",
        "",
        "| operator | passed | not applicable |",
        "| --- | --- | --- |",
        *(f"| {name} | {passed[name]} | {reasons(name)} |" for name in mapped),
        "",
        "Operators without a case that passes:",
        "",
        "| operator | not applicable |",
        "| --- | --- |",
        *(f"| {name} | {reasons(name)} |" for name in others),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PLACE.write_text(table())
    sys.stdout.write(f"{PLACE}\n")
