"""Specs of packs: TOML, and what is read from it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from fuzz import trees
from fuzz.aims.models import WORDS as _OF_MODELS
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml.library import spec

EXAMPLES = 200
_SPEC = Path(__file__).parents[2] / "models" / "pack.toml"
_MOST = 300
"""Combinations that are made; reading more takes its time, as it is meant to."""
WORDS = (
    "targets", "logs", "kernels", "operators", "knobs", "operator", "types", "sizes", "strides", "in_place", "skip_invalid",
    "from", "to", "step", "times", "float32", "uint64[32, 50]", "float32[2, 3] strides [4, 1]", "cpu:x86-64-v3",
    "cuda:sm_80,sm_90", "top_k", "1979-05-27", "07:32:00", "[[", "]]", "'''", '"""', "inf", "0x", "1_0", "algorithm", "sort",
    "K", "k", "axis", "Axis_", "fill", *_OF_MODELS[-30:],
)  # fmt: skip


def seeds() -> list[bytes]:
    """The spec of the tests, as it is."""
    return [b"\0" + _SPEC.read_bytes()]


def one(choices: Choices) -> None:
    """Text as it comes, with some changes, or a tree."""
    kind = choices.integer(0, 2)
    if kind == 0:
        check(choices.rest())
    elif kind == 1:
        check(trees.damaged(choices, _SPEC.read_bytes(), WORDS))
    else:
        _parse(trees.changed(choices, _tree(), WORDS))


def check(content: bytes) -> None:
    """Read it as a file."""
    path = Path("spec.toml")
    path.write_bytes(content)
    with refusals():
        _again(spec.read(path))


def _parse(tree: Any) -> None:
    with refusals():
        _again(spec.parse(tree, "spec"))


def _again(found: spec.Spec) -> None:
    """What was read is written, and read again."""
    if len(found.wanted) <= _MOST:
        text = spec.text(found.wanted, found.targets, found.knobs, found.logs)
        assert spec.parse(text, "spec") == found, "what is written is not what is read"


@functools.cache
def _tree() -> Any:
    import importlib
    import sys

    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    tree = toml.loads(_SPEC.read_text())
    tree["kernels"] = [{"operator": "ELEMENT_WISE_ROUND", "InputTensor": "float32[2, 3]", "OutputTensor": "float32[2, 3]",
                        "RoundingMode": "TOWARD_ZERO", "in_place": True}]  # fmt: skip
    tree["knobs"] = {"top_k": {"algorithm": "sort"}}
    return tree
