"""The table of operators in README.md: ``python -m tvmdml.operators._table`` prints it.

Types and ranks are those of an operator's first tensor, at the newest feature level. Those that only functions support are in
italics.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Sequence

from tvmdml import operators
from tvmdml.operators import Operator
from tvmdml.tensors import TensorDataType

_COLUMNS = ("operator", "descriptor", "function", "since level", "types", "ranks")


def text() -> str:
    """The table in Markdown."""
    rows = [_COLUMNS, ["---"] * len(_COLUMNS), *map(_row, operators.all_operators().values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(cls: type[Operator]) -> Sequence[str]:
    first = {row: next(iter(row.tensors.values())) for row in cls.SUPPORT}
    own = [allows for row, allows in first.items() if row.level is not None]
    types = {one for allows in own for one in allows.types}
    more = {one for allows in first.values() for one in allows.types} - types
    low, high = min(allows.min_rank for allows in own), max(allows.max_rank for allows in own)
    most = max(allows.max_rank for allows in first.values())
    return (
        cls.NAME,
        f"`{cls.__name__}`",
        _functions(cls),
        str(cls.feature_level()),
        _shown(types) + (f"; *{_shown(more)}*" if more else ""),
        (str(low) if low == high else f"{low} to {high}") + (f"; *to {most}*" if most > high else ""),
    )


def _functions(cls: type[Operator]) -> str:
    """The functions in the operator's module that mention it; those of TOP_K1 also count for TOP_K."""
    names = vars(inspect.getmodule(cls))
    named = f"DML_OPERATOR_{cls.NAME.rstrip('0123456789')}"
    found = [name for name in names["__all__"] if inspect.isfunction(names[name]) and named in str(names[name].__doc__)]
    return ", ".join(f"`{name}`" for name in found)


def _shown(types: Collection[TensorDataType]) -> str:
    """The types as text, each kind from narrowest to widest: ``float16, float32, int8 to int64``."""
    kinds: dict[str, list[int]] = {}
    for one in types:
        kind, width = re.findall(r"[a-z]+|\d+", one.tvm)
        kinds.setdefault(kind, []).append(int(width))
    parts = []
    for kind, widths in sorted(kinds.items()):
        widths.sort()
        gapless = widths[-1] == widths[0] << (len(widths) - 1)
        some = (f"{widths[0]} to {kind}{widths[-1]}",) if len(widths) > 2 and gapless else widths
        parts += [f"{kind}{width}" for width in some]
    return ", ".join(parts)


if __name__ == "__main__":
    print(text(), end="")  # noqa: T201 - the output is for README.md
