"""Attention: many query rows, and one query row after many keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvmdml.proof.bench.cases import Case, Group
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("attention")
KIND = Kind(close=True, steps=64)
PROMPTS = ((1, 12, 512, 64), (1, 32, 2048, 128))
"""Batches, heads, rows, channels of prompts."""
STEP = (1, 32, 4096, 128)
"""Of a step after many keys."""


def prompt(sizes: tuple[int, int, int, int], masked: bool, dtype: str = "float32") -> Work:
    """Queries, keys and values in one tensor; lengths of keys as a mask."""
    batch, heads, rows, channels = sizes
    stacked = Operand((batch, rows, heads, 3, channels), dtype, "unit")
    mask = Operand((1, batch), "int32") if masked else None
    return Work.on(
        "MULTIHEAD_ATTENTION", *(None,) * 5, stacked, None, mask,
        head_count=heads, scale=channels**-0.5, mask_filter_value=-10000.0,
        mask_type="key_sequence_length" if masked else "none",
    )  # fmt: skip


def step(sizes: tuple[int, int, int, int], operator: str = "MULTIHEAD_ATTENTION", dtype: str = "float32") -> Work:
    """One query row, after keys of earlier steps."""
    batch, heads, rows, channels = sizes
    stacked = Operand((batch, 1, heads, 3, channels), dtype, "unit")
    past = Operand((batch, heads, rows, channels), dtype, "unit")
    counts = ("head_count",) if operator == "MULTIHEAD_ATTENTION" else ("query_head_count", "key_value_head_count")
    more: dict[str, Any] = dict.fromkeys(counts, heads)
    return Work.on(
        operator, *(None,) * 5, stacked, None, None, None, past, past,
        **more, scale=channels**-0.5, mask_filter_value=0.0, mask_type="none",
    )  # fmt: skip


def _goals() -> Iterator[Case]:
    for dtype in ("float32", "float16"):
        for sizes in PROMPTS:
            for masked in (False, True):
                name = f"attention {dtype}{' with a mask' * masked}"
                quick = (dtype, sizes, masked) == ("float32", PROMPTS[0], True)
                yield Case(name, f"{sizes}", prompt(sizes, masked, dtype), 1.1, quick, group=GROUP)
        yield Case(f"attention of one row {dtype}", f"{STEP}", step(STEP, dtype=dtype), 1.2, group=GROUP)
    name = "attention of one row 1 float32"
    yield Case(name, "(1, 8, 1024, 64)", step((1, 8, 1024, 64), "MULTIHEAD_ATTENTION1"), 1.2, quick=True, group=GROUP)


def _on_cuda() -> Iterator[Case]:
    for sizes in PROMPTS:
        yield Case("attention float32", f"{sizes}", prompt(sizes, False), 0.5, sizes == PROMPTS[0])


CASES = tuple(_goals())
CASES_ON = {"cuda": tuple(_on_cuda())}
