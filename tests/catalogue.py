"""DirectML's operators as `catalogue.json` lists them: a second source for fields, feature levels, types and ranks.

The file has all operators of DirectML, also those that the package does not have. A field is a name and a kind: ``input``,
``output``, or a type of C; ``[]`` is an array of tensors, ``?`` may be absent. Counts of arrays are left out. A row of ``support``
holds from its level on, in addition to the rows before; with a ``case``, for those values of an attribute.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tvmdml import FeatureLevel, TensorDataType
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field, Role

Taken = set[tuple[TensorDataType, int]]
"""Types with ranks."""


class Row(NamedTuple):
    """Types and ranks that some tensors of an operator may have from a level on."""

    level: FeatureLevel
    tensors: tuple[str, ...]
    takes: frozenset[tuple[TensorDataType, int]]
    case: tuple[str, ...] = ()
    """The values of an attribute that it holds for; empty for all."""


class Entry(NamedTuple):
    """An operator of DirectML."""

    level: FeatureLevel
    in_place: bool
    fields: tuple[str, ...]
    rows: tuple[Row, ...]

    def takes(self, level: FeatureLevel, tensor: str, case: str = "") -> Taken:
        """The types and ranks that a tensor may have at a level: for a value of an attribute, or for any."""
        rows = [row for row in self.rows if not (case and row.case) or case in row.case]
        return {pair for row in rows if row.level <= level and tensor in row.tensors for pair in row.takes}


def _row(level: str, tensors: list[str], types: str, ranks: str, case: str = "") -> Row:
    low, _, high = ranks.partition(" to ")
    known = [TensorDataType[name.upper()] for name in types.split() if name.upper() in TensorDataType.__members__]
    taken = frozenset((data_type, rank) for data_type in known for rank in range(int(low), int(high or low) + 1))
    return Row(FeatureLevel.of(level), tuple(tensors), taken, tuple(case.split(", ")) if case else ())


def _entry(level: str, in_place: bool, fields: list[str], support: list[dict[str, str]]) -> Entry:
    return Entry(FeatureLevel.of(level), in_place, tuple(fields), tuple(_row(**row) for row in support))


class _Catalogue(dict[str, Entry]):
    def __missing__(self, name: str) -> Entry:
        raise AssertionError(
            f"{name} is not in tests/catalogue.json: write its level, fields, types and ranks there, as the others have them, "
            "even if DirectML does not have it"
        )


_FILE = json.loads(Path(__file__).with_suffix(".json").read_text())
CATALOGUE = _Catalogue((name, _entry(**entry)) for name, entry in _FILE.items())

# DirectML's page does not say that the states may be one, but ONNX Runtime has it so.
CATALOGUE["RANDOM_GENERATOR"] = CATALOGUE["RANDOM_GENERATOR"]._replace(in_place=True)
# Nor does it say so of the rows of earlier steps, which ONNX Runtime keeps where they are.
CATALOGUE["MULTIHEAD_ATTENTION1"] = CATALOGUE["MULTIHEAD_ATTENTION1"]._replace(in_place=True)

_KINDS = {
    Role.INPUT: "input", Role.OUTPUT: "output", Role.UINTS: "UINT_ARRAY", Role.INTS: "INT_ARRAY", Role.FLOATS: "FLOAT_ARRAY",
    Role.SCALAR: "SCALAR_UNION", Role.OPERATOR: "OPERATOR_DESC",
}  # fmt: skip


def written(field: Field) -> str:
    """A field of the package as the catalogue has it."""
    kind = field.enum._prefix().rstrip("_") if field.enum else _KINDS.get(field.role, field.role.name)
    array = ("_ARRAY" if field.role is Role.OPERATOR else "[]") if field.many else ""
    return f"{field.dml_name}: {kind}{array}{'?' if field.optional else ''}"


def taken(operator: type[Operator], level: FeatureLevel, tensor: str) -> Taken:
    """The types and ranks that a tensor may have at a level, by the operator's own table."""
    rows = [row.tensors[tensor] for row in operator.SUPPORT if row.level is not None and row.level <= level]
    return {(data_type, rank) for row in rows for data_type in row.types for rank in range(row.min_rank, row.max_rank + 1)}
