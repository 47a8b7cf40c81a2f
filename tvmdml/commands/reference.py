"""What there is to know of an operator before it is called: for ``tvmdml operators NAME`` and ``help(tvmdml.TopK1)``."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tvmdml.errors import Unsupported, message, safe_repr
from tvmdml.system import whole

if TYPE_CHECKING:
    from tvmdml.kernels.knobs import Knob
    from tvmdml.operators import Operator
    from tvmdml.operators._roles import Field

T = TypeVar("T")
_WIDTH = 100


def functions_of(cls: type[Operator]) -> dict[str, Any]:
    """The functions that compute an operator, by name: its own, or else those of another version of it; empty if there are none."""
    from tvmdml import doors, operators

    module = cls.__module__.rpartition(".")[2]
    if module not in operators.modules():
        return {}  # a caller's own
    known = doors.functions(module)

    def own(name: str) -> dict[str, Any]:
        return {key: value for key, value in known.items() if re.search(rf"DML_OPERATOR_{name}\b", str(value.__doc__))}

    if found := own(cls.NAME):
        return found
    versions = [one.NAME for one in operators.classes_in(module) if _stem(one.NAME) == _stem(cls.NAME)]
    return next(filter(None, map(own, reversed(versions))), {})


def _stem(name: str) -> str:
    """An operator's name without the number of its version."""
    return re.sub(r"(?<!\dD)\d$", "", name)


def matching(text: str) -> dict[str, type[Operator]]:
    """The operators whose name, class or functions have a text in them, by DirectML's name; in upper or lower case."""
    from tvmdml.operators import all_operators

    wanted = text.lower().replace("_", "")
    return {
        name: cls
        for name, cls in all_operators().items()
        if any(wanted in one.lower().replace("_", "") for one in (name, cls.__name__, *functions_of(cls)))
    }


def named(name: str) -> dict[str, type[Operator]]:
    """The operators of a name, by DirectML's: the one of that name (``TOP_K1``) or class (``TopK1``), or those of a function.

    Raises:
        Unsupported: there is none; the message says which is meant.
    """
    from tvmdml import operators
    from tvmdml.system.names import meant

    known = operators.all_operators()
    if name.islower():
        computed = {key: (cls, functions_of(cls)[name].__doc__) for key, cls in known.items() if name in functions_of(cls)}
        exact = [key for key, (_, said) in computed.items() if re.search(rf"DML_OPERATOR_{key}\b", str(said))]
        if computed:
            return {key: computed[key][0] for key in exact or computed}
    for cls in known.values():
        if name == cls.__name__:
            return {cls.NAME: cls}
    plain = re.sub(r"^DML_(?!OPERATOR_)|_OPERATOR_DESC$", "", name)
    if name.islower() and plain.upper() not in known:
        every = dict.fromkeys(function for cls in known.values() for function in functions_of(cls))
        if near := meant(name, every):
            raise Unsupported(message("operator", safe_repr(name), "a name that `tvmdml operators` lists", f"Did you mean {near}?"))
    cls = operators.by_name(plain)
    return {cls.NAME: cls}


# -- The text -----------------------------------------------------------------------------------------------------


class _Schedule(NamedTuple):
    """What serves an operator on the targets of a folder of schedules."""

    targets: str
    file: str
    knobs: Mapping[str, Knob]


def text(cls: type[Operator], short: bool = False, width: int = _WIDTH) -> str:
    """An operator's names, fields, types and ranks by feature level, schedules and their knobs, which a short text leaves out."""
    columns = functools.partial(_columns, most=min(width, _WIDTH))
    names = list(functions_of(cls))
    lines = [f"DML_OPERATOR_{cls.NAME}, from feature level {cls.feature_level()}"]
    rows = {"descriptor": f"tvmdml.{cls.__name__}", "function": "none: compile the descriptor"}
    if names:
        from tvmdml.system.names import takes

        shown = min(names, key=lambda one: one not in (cls.FUNCTION, cls.NAME.lower()))
        rows["function"] = f"tvmdml.{takes(functions_of(cls)[shown])}"
        if others := [f"tvmdml.{one}" for one in names if one != shown]:
            rows["also"] = ", ".join(others)
    fields = {field.name: field.dml_name for field in cls.fields()}
    if cls.SHARES:
        rows["in place"] = ", ".join(f"{fields[source]} and {fields[result]}" for source, result in cls.SHARES)
    lines += columns(rows.items())
    lines += ["", "Fields of the structure and the descriptor:"]
    lines += columns([(f"{field.dml_name}, {field.name}", _takes(field)) for field in cls.fields()])
    lines += ["", "Types and ranks by feature level:", *columns(_support(cls))]
    if short:
        return "\n".join([*lines, "", f"`tvmdml operators {cls.NAME}` shows the schedules and their knobs, too."])
    lines += ["", "Schedules and their knobs:"]
    for schedule in _schedules(cls):
        lines.append(f"  {schedule.targets}: {schedule.file}")
        lines += columns(((name, _meaning(knob)) for name, knob in schedule.knobs.items()), indent=4)
    return "\n".join(lines)


def _meaning(knob: Knob) -> str:
    choices = list(map(str, knob.choices))
    if len(choices) > 4 and all(
        isinstance(b, int) and b == 2 * int(a) for a, b in zip(knob.choices, knob.choices[1:], strict=False)
    ):
        choices[2:-1] = ["…"]
    return f"{knob.default!r}: {knob.meaning} ({', '.join(choices)})"


def _columns(rows: Iterable[tuple[str, str]], indent: int = 2, most: int = _WIDTH) -> list[str]:
    """Rows of two columns; the second one is wrapped."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    found: list[str] = []
    for name, value in rows:
        first = f"{' ' * indent}{name:{width}}  "
        room = max(most - len(first), 16)
        parts = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) or [""]
        found += [part.replace("\xa0", " ") for part in (first + parts[0], *(" " * len(first) + part for part in parts[1:]))]
    return found


def _takes(field: Field) -> str:
    """What a field may be, and what it is if it is left out."""
    from tvmdml.operators._roles import MISSING, Role

    said = field.role.value
    if field.enum is not None:
        said = f"{field.enum.__name__}: {', '.join(member.name.lower() for member in field.enum)}"
    if field.many:
        said = f"a sequence; each an {said}"
    if field.optional:
        return f"{said}; may be absent"
    if field.default is MISSING or field.role in (Role.INPUT, Role.OUTPUT):
        return said
    default = field.default.name.lower() if field.enum is not None and hasattr(field.default, "name") else field.default
    return f"{said}; functions: {default} by default"


def _support(cls: type[Operator]) -> list[tuple[str, str]]:
    """A row for each level: what all tensors may be, and those that differ."""
    from tvmdml.operators._support import in_words

    fields = {field.name: field.dml_name for field in cls.fields()}
    rows = []
    for row in cls.SUPPORT:
        groups: dict[str, list[str]] = {}
        for name, allows in row.tensors.items():
            ranks = f"rank\xa0{allows.min_rank}" + f"\xa0to\xa0{allows.max_rank}" * (allows.max_rank > allows.min_rank)
            groups.setdefault(f"{in_words(allows.types)}; {ranks}", []).append(fields[name])
        own = [said if len(groups) == 1 else f"{', '.join(names)}: {said}" for said, names in groups.items()]
        label = "extension" if row.level is None else str(row.level)
        rows += [(label if i == 0 else "", said) for i, said in enumerate(own)]
    return rows


def _schedules(cls: type[Operator]) -> list[_Schedule]:
    """The file that serves the operator in each folder of schedules, and its knobs."""
    from tvmdml import operators, targets
    from tvmdml.kernels import knobs

    folders: dict[str, list[str]] = {}
    for kind in targets.kinds():
        folders.setdefault(targets.target_class(kind).schedules, []).append(kind)
    found = []
    for folder, kinds in folders.items():
        names = (operators.module_of(cls), cls.FAMILY, "_default")
        name = next(one for one in names if one and importlib.util.find_spec(f"tvmdml.schedules.{folder}.{one}"))
        declared = knobs.declared(folder, name)
        found.append(_Schedule(", ".join(kinds), f"schedules/{folder}/{name}.py", {} if declared is None else declared.knobs))
    return found


def schedule_of(cls: type[Operator], kind: str) -> str:
    """The file of the schedule of an operator on a kind of target, and the names of its knobs."""
    found = next((one for one in _schedules(cls) if kind in one.targets.split(", ")), None)
    return "" if found is None else f"{found.file}{': ' * bool(found.knobs)}{', '.join(found.knobs)}"


def documented(cls: type[Operator], own: str) -> str:
    """A descriptor class's docstring for ``help``: its own, and the short text."""
    with whole():
        return f"{inspect.cleandoc(own)}\n\n{text(cls, short=True)}"


# -- The list -----------------------------------------------------------------------------------------------------


def facts(name: str, cls: type[Operator]) -> dict[str, Any]:
    """All of it but the schedules, for programs."""
    from tvmdml import targets

    fields = {field.name: field.dml_name for field in cls.fields()}
    return {
        "name": name,
        "feature_level": str(cls.feature_level()),
        "functions": list(functions_of(cls)),
        "in_place": bool(cls.SHARES),
        "shares": [[fields[source], fields[result]] for source, result in cls.SHARES],
        "targets": targets.kinds(),
        "fields": list(fields.values()),
        "support": [
            {
                "feature_level": None if row.level is None else str(row.level),
                "extension": row.level is None,
                "tensors": {
                    fields[tensor]: {"types": [t.tvm for t in allows.types], "ranks": [allows.min_rank, allows.max_rank]}
                    for tensor, allows in row.tensors.items()
                },
            }
            for row in cls.SUPPORT
        ],
    }


def summary(name: str, cls: type[Operator]) -> dict[str, str]:
    """A row of the list: types and ranks of the first tensor."""
    parts: dict[bool, list[Any]] = {False: [], True: []}
    for row in cls.SUPPORT:
        parts[row.level is None].append(next(iter(row.tensors.values())))
    own = _union(allows.types for allows in parts[False])
    more = [t for t in _union(allows.types for allows in parts[True]) if t not in own]
    ranks = [min(a.min_rank for a in parts[False]), max(a.max_rank for a in parts[False])]
    return {
        "name": name,
        "feature level": str(cls.feature_level()),
        "types": ", ".join(t.tvm for t in own) + (f" + {', '.join(t.tvm for t in more)}" if more else ""),
        "ranks": " to ".join(map(str, sorted(set(ranks)))),
    }


def _union(groups: Iterable[Iterable[T]]) -> list[T]:
    """The distinct items, in the order of their first occurrence."""
    return list(dict.fromkeys(item for group in groups for item in group))
