"""Tables of operators: ``python -m tvmdml.doors._table`` prints the one of all, ``... families`` that of families,
``... keywords`` that of keywords.

Types and ranks are those of an operator's first tensor, at the newest feature level. Those that only functions support are in
italics.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence

from tvmdml import doors, operators
from tvmdml.operators import Operator
from tvmdml.operators._support import in_words

_COLUMNS = ("operator", "descriptor", "function", "since level", "types", "ranks")


def text() -> str:
    """The table in Markdown."""
    rows = [_COLUMNS, ["---"] * len(_COLUMNS), *map(_row, operators.all_operators().values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def families() -> str:
    """The functions of each family in Markdown, and of each operator that belongs to none."""
    found: dict[str, list[type[Operator]]] = {}
    for cls in operators.all_operators().values():
        found.setdefault(operators.tuned_as(cls), []).append(cls)
    rows = [("family", "operators", "functions"), ("---", "---", "---")]
    for family, classes in sorted(found.items()):
        names = sorted({name for cls in classes for name in _functions(cls).split(", ") if name}, key=lambda name: name.strip("`"))
        rows.append((family.replace("_", " "), str(len(classes)), ", ".join(names)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def keywords() -> str:
    """The keywords that several functions have, in Markdown: what each takes, and in how many functions."""
    found: dict[str, list[tuple[str, str]]] = {}
    for module in operators.modules():
        for name, function in doors.functions(module).items():
            for one in inspect.signature(function).parameters.values():
                if one.kind is one.KEYWORD_ONLY:
                    found.setdefault(one.name, []).append(
                        (name, str(one.annotation).removesuffix(" | None").replace(" | ", " or "))
                    )
    rows = [("keyword", "takes", "functions"), ("---", "---", "---")]
    for keyword, uses in sorted(found.items()):
        names, kinds = ([use[i] for use in uses] for i in range(2))
        if len(uses) > 1 and keyword not in ("out", "device"):
            count = f"{len(names)}" if len(names) > 3 else ", ".join(f"`{name}`" for name in names)
            rows.append((f"`{keyword}`", "; ".join(dict.fromkeys(kinds)), count))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(cls: type[Operator]) -> Sequence[str]:
    first = {row: next(iter(row.tensors.values())) for row in cls.SUPPORT}
    own = [allows for row, allows in first.items() if row.level is not None]
    types = {one for allows in own for one in allows.types}
    more = {one for allows in first.values() for one in allows.types} - types
    low, high = min(allows.min_rank for allows in own), max(allows.max_rank for allows in own)
    most = max(allows.max_rank for allows in first.values())
    beyond = ", ".join(["bool"] * cls.TAKES_BOOL + [in_words(more)] * bool(more))
    return (
        cls.NAME,
        f"`{cls.__name__}`",
        _functions(cls),
        str(cls.feature_level()),
        in_words(types) + (f"; *{beyond}*" if beyond else ""),
        (str(low) if low == high else f"{low} to {high}") + (f"; *to {most}*" if most > high else ""),
    )


def _functions(cls: type[Operator]) -> str:
    """The functions of the operator; those of TOP_K1 also count for TOP_K."""
    functions = doors.functions(operators.module_of(cls))
    found = [name for name, function in functions.items() if _bare(function.operator) == _bare(cls)]
    return ", ".join(f"`{name}`" for name in found)


def _bare(cls: type[Operator]) -> str:
    return cls.NAME.rstrip("0123456789")


if __name__ == "__main__":
    tables = {"families": families, "keywords": keywords}
    print(tables.get("".join(sys.argv[1:]), text)(), end="")  # noqa: T201 - the output is for the pages
