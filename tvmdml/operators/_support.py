"""Support tables: the types and ranks that an operator's tensors may have, by feature level.

``support`` reads them in a short notation::

    SUPPORT = support("2.1 F r4 · 3.0 r8 · ext D")

From level 2.1 the tensors may be FLOAT32 or FLOAT16 of rank 4, and from level 3.0 of rank 1 to 8. tvmdml's functions also support
FLOAT64. A tensor that differs from the others has its own argument::

    SUPPORT = support("2.1 FIU r4 · 3.1 r8 · 5.0 +LW", output_index_tensor="2.1 u r4 · 3.1 r8 · 5.0 +W")
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tvmdml.enums import FeatureLevel
from tvmdml.tensors import BYTE_TYPES, TensorDataType, TensorDesc

FLOATS = (TensorDataType.FLOAT32, TensorDataType.FLOAT16)
INTS_TO_32 = (
    TensorDataType.INT32, TensorDataType.INT16, TensorDataType.INT8,
    TensorDataType.UINT32, TensorDataType.UINT16, TensorDataType.UINT8,
)  # fmt: skip
ALL_TYPES = BYTE_TYPES

CODES: dict[str, tuple[TensorDataType, ...]] = {
    "F": FLOATS,
    "D": (TensorDataType.FLOAT64,),
    "I": INTS_TO_32[:3],
    "U": INTS_TO_32[3:],
    "H": (TensorDataType.INT32, TensorDataType.INT16, TensorDataType.UINT32, TensorDataType.UINT16),
    "i": (TensorDataType.INT32,),
    "u": (TensorDataType.UINT32,),
    "L": (TensorDataType.INT64,),
    "W": (TensorDataType.UINT64,),
    "B": (TensorDataType.UINT32, TensorDataType.UINT8),
    "N": (TensorDataType.INT4, TensorDataType.UINT4),
    "u8": (TensorDataType.UINT8,),
    "bytes": (TensorDataType.INT8, TensorDataType.UINT8),
    "f16": (TensorDataType.FLOAT16,),
    "f32": (TensorDataType.FLOAT32,),
    "all": ALL_TYPES,
}
"""The types of each word of letters. ``B`` are the types of a truth value, and ``N`` those of 4 bits, which ``all`` leaves out."""

EXTENSION = "ext"
"""Used instead of a level: types and ranks that tvmdml's functions support in addition to DirectML's."""

_RANKS = re.compile(r"r(\d)(?:-?(\d))?")


class Allows(NamedTuple):
    """The types and ranks of one tensor of an operator."""

    types: tuple[TensorDataType, ...]
    min_rank: int
    max_rank: int

    def takes(self, desc: TensorDesc) -> bool:
        """Whether the tensor has an allowed type and rank."""
        return desc.data_type in self.types and self.min_rank <= desc.rank <= self.max_rank


class Support:
    """One row of an operator's support table: the types and ranks of its tensors from a feature level on.

    ``level=None`` marks an extension by tvmdml, which only functions support. ``others`` applies to every tensor without its own
    ``Allows``.
    """

    def __init__(self, level: str | None, others: Allows | None = None, **tensors: Allows) -> None:
        """Make a row for ``level``, with an ``Allows`` for each tensor field."""
        self.level = None if level is None else FeatureLevel.of(level)
        self.others = others
        self.tensors: Mapping[str, Allows] = tensors
        self.own: frozenset[str] = frozenset(tensors)
        """The tensors whose types are given separately from those of all others."""

    def of(self, names: Iterable[str]) -> Support:
        """The row with an ``Allows`` for each of an operator's tensors, in their order."""
        if self.others is None:
            return self
        row = Support(None, **{name: self.tensors.get(name, self.others) for name in names})
        row.level, row.own = self.level, self.own
        return row


def support(others: str = "", **tensors: str) -> tuple[Support, ...]:
    """Read the notation into rows, one for each level in any of the texts.

    Args:
        others: the text for every tensor that is not in ``tensors``.
        tensors: the text for each of these tensors.

    Each part is ``level types ranks``; ``·`` separates parts. Types are letters of ``CODES``; after a ``+`` they are added to the
    previous types. Ranks are ``r4`` (4), ``r45`` (4 to 5), ``r2-8``; ``r8`` is 1 to 8. If a part leaves out types or ranks, they
    are those of the previous part.

    Raises:
        ValueError: the notation is wrong.
    """
    tables = {name: _table(text) for name, text in {**({"": others} if others else {}), **tensors}.items()}
    levels = sorted({level for table in tables.values() for level in table}, key=lambda level: (level == EXTENSION, level))
    rows = []
    for level in levels:
        allows = {name: _at(table, level, levels) for name, table in tables.items()}
        rest = allows.pop("", None)
        rows.append(Support(None if level == EXTENSION else level, rest, **allows))
    return tuple(rows)


def _table(text: str) -> dict[str, Allows]:
    found: dict[str, Allows] = {}
    types: tuple[TensorDataType, ...] = ()
    ranks = (0, 0)
    for part in text.split("·"):
        level, *words = part.split()
        for word in words:
            if match := _RANKS.fullmatch(word):
                low, high = match[1], match[2]
                ranks = (int(low), int(high or low)) if word != "r8" else (1, 8)
            else:
                named = _types(word.removeprefix("+"))
                types = tuple(t for t in TensorDataType if t in named or (word[0] == "+" and t in types))
        if not types or not ranks[0] or level in found:
            raise ValueError(f"support {text!r}: {part.strip()!r} has no types or ranks, or is a duplicate")
        found[level] = Allows(types, *ranks)
    return found


def _types(word: str) -> tuple[TensorDataType, ...]:
    codes = [word] if word in CODES else list(word)
    if not codes or any(code not in CODES for code in codes):
        raise ValueError(f"support: unknown types {word!r}; allowed: one or several of {', '.join(CODES)}")
    return tuple(t for code in codes for t in CODES[code])


def _at(table: dict[str, Allows], level: str, levels: list[str]) -> Allows:
    known = [one for one in levels[: levels.index(level) + 1] if one in table]
    if not known:
        raise ValueError(f"support: a tensor has no types at {level}, but another tensor has")
    return table[known[-1]]


class UnsupportedTensor(NamedTuple):
    """A tensor that no row of a support table takes."""

    name: str
    desc: TensorDesc
    allows: tuple[Allows, ...]
    """What the rows allow for it."""

    def types(self, nibbles: bool) -> list[str]:
        """The names of the types that are allowed; those of 4 bits with ``nibbles`` alone."""
        return [t.tvm for t in TensorDataType if any(t in a.types for a in self.allows) and (nibbles or not t.is_nibble)]

    def ranks(self) -> str:
        """The ranks that are allowed, as text."""
        low, high = min(a.min_rank for a in self.allows), max(a.max_rank for a in self.allows)
        return f"rank {low}" if low == high else f"rank {low} to {high}"


Tensors = Sequence[tuple[str, TensorDesc | None]]
"""The tensors of a descriptor, by name; one of several has its number in brackets."""


def refusal(rows: Sequence[Support], tensors: Tensors) -> UnsupportedTensor | None:
    """The first tensor that does not fit the closest row, the one that most tensors fit; ``None`` if a row takes all."""
    misfits = []
    for row in rows:
        if not (own := _misfits(row, tensors)):
            return None
        misfits.append(own)
    closest = min(range(len(rows)), key=lambda i: len(misfits[i]))
    name, desc = misfits[closest][0]
    allows = tuple(row.tensors[_field(name)] for row in rows)
    if any(one.takes(desc) for one in allows):  # but not together with the other tensors
        allows = (rows[closest].tensors[_field(name)],)
    return UnsupportedTensor(name, desc, allows)


def where_supported(rows: Iterable[Support], tensors: Tensors) -> str:
    """What helps: a level that takes these tensors, if one does."""
    row = next((row for row in rows if not _misfits(row, tensors)), None)
    if row is None:
        return "Convert or reshape the tensor."
    return "tvmdml's functions support it as an extension." if row.level is None else f"Feature level {row.level} supports it."


def _misfits(row: Support, tensors: Tensors) -> list[tuple[str, TensorDesc]]:
    return [(name, desc) for name, desc in tensors if desc is not None and not row.tensors[_field(name)].takes(desc)]


def _field(tensor: str) -> str:
    """The field of a tensor, which may be one of several."""
    return tensor.partition("[")[0]


def in_words(types: Collection[TensorDataType]) -> str:
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
