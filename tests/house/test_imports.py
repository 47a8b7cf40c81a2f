"""Imports follow the drawing of the house in tvmdml/README.md: no circle, and none that goes up.

All imports count: at the top of a module, for type checkers only, and inside of functions.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import pytest
from folders import TOP

import tvmdml
from tvmdml import doors, operators


class Import(NamedTuple):
    """An import of one module by another."""

    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        """For messages."""
        return f"{self.importer}:{self.line} imports {self.imported}"


def package() -> dict[str, str]:
    """The sources of the package, with the schedules."""
    found = {}
    for folder, name in (("tvmdml", "tvmdml"), ("schedules", "tvmdml.schedules")):
        for path in (TOP / folder).rglob("*.py"):
            parts = path.relative_to(TOP / folder).with_suffix("").parts
            if (folder, parts[0]) not in (("tvmdml", "schedules"), ("tvmdml", "tuning_logs")):  # links to the top level
                found[".".join((name, *parts)).removesuffix(".__init__")] = path.read_text()
    return found


def drawn() -> dict[str, int]:
    """The layer of each module or package that the drawing names; layer 0 is the lowest."""
    text = (TOP / "tvmdml" / "README.md").read_text()
    (table,) = re.findall(r"^\| layer \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [line.split("|")[2] for line in reversed(table.splitlines())]
    return {name: layer for layer, row in enumerate(rows) for name in re.findall(r"`([\w.]+)`", row)}


def imports(importer: str, source: str, modules: Collection[str]) -> Iterator[Import]:
    """All imports of one module, of those among the others."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}:{node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            imported = _module(HOMES.get(name, name), modules)
            if imported and imported != importer:
                yield Import(importer, node.lineno, imported)


HOMES = {f"tvmdml.{name}": f"tvmdml.{module}" for name, module in vars(tvmdml)["_HOMES"].items()}
HOMES |= {f"tvmdml.{name}": f"tvmdml.{room}.{name}" for name, room in vars(tvmdml)["_ROOMS"].items()}
HOMES |= {
    f"tvmdml.{name}": f"{room.__name__}.{module}"
    for room in (operators, doors)
    for module, names in room.public_names_by_module().items()
    for name in names
}
"""The modules that define the package's public names, which are loaded on first use."""


def _module(name: str, modules: Collection[str]) -> str:
    """The module that a dotted name is, or is defined in; empty if it is none of these."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def circles(found: list[Import]) -> list[list[Import]]:
    """The imports among modules that import each other, directly or through others."""
    targets: dict[str, set[str]] = {}
    for one in found:
        targets.setdefault(one.importer, set()).add(one.imported)
    reached: dict[str, set[str]] = {}
    for start in targets:
        ahead, seen = [start], set()
        while ahead:
            for there in targets.get(ahead.pop(), set()) - seen:
                seen.add(there)
                ahead.append(there)
        reached[start] = seen
    groups: dict[frozenset[str], list[Import]] = {}
    for one in found:
        if one.importer in reached.get(one.imported, ()):
            together = frozenset(n for n in reached[one.importer] if one.importer in reached.get(n, ()))
            groups.setdefault(together, []).append(one)
    return list(groups.values())


def upward(found: list[Import], layers: Mapping[str, int]) -> list[Import]:
    """The imports from a layer above the importer's."""

    def layer(module: str) -> int:
        name = module.removeprefix("tvmdml.")
        while name not in layers and "." in name:  # a module belongs to the layer of its package, unless it has its own
            name = name.rpartition(".")[0]
        assert name in layers, f"{module} has no layer: add it to the table in tvmdml/README.md"
        return layers[name]

    return [one for one in found if layer(one.imported) > layer(one.importer)]


def told(found: list[Import]) -> str:
    """One import a line."""
    return "\n".join(map(str, found))


MODULES = package()


@pytest.fixture(scope="module")
def found() -> list[Import]:
    """All imports of the package."""
    return [one for name, source in MODULES.items() for one in imports(name, source, MODULES)]


@pytest.mark.full
def test_no_modules_import_each_other(found: list[Import]) -> None:
    assert not (own := circles(found)), "\n\n".join(map(told, own))


def test_no_import_goes_up(found: list[Import]) -> None:
    assert not (own := upward(found, drawn())), told(own)


def test_every_module_of_the_drawing_exists() -> None:
    assert [name for name in drawn() if name != "tvmdml" and f"tvmdml.{name}" not in MODULES] == []


def test_the_map_names_every_room_and_file() -> None:
    """Those of the package's folder; what begins with an underscore is the package itself."""
    text = (TOP / "tvmdml" / "README.md").read_text()
    named = set(re.findall(r"`tvmdml/(\w+(?:/|\.py))`", text[text.index("## Folders") : text.index("## Words")]))
    links = {"schedules/", "tuning_logs/"}
    folder = TOP / "tvmdml"
    there = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")} | {path.name for path in folder.glob("[!_]*.py")}
    assert named - links == there - links


PLANTED = {
    "at the top": "from tvmdml.compiler import CompiledOperator\n",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tvmdml.compiler import CompiledOperator\n",
    "in a function": "def late():\n    from tvmdml import compiler\n",
    "as a module": "import tvmdml.compiler\n",
    "by its public name": "from tvmdml import compile\n",
}


@pytest.mark.parametrize("source", PLANTED.values(), ids=PLANTED)
def test_a_planted_circle_and_a_planted_import_upward_are_found(source: str, found: list[Import]) -> None:
    planted = list(imports("tvmdml.targets", source, MODULES))
    new = Import("tvmdml.targets", source.count("\n"), "tvmdml.compiler")
    assert upward(planted, drawn()) == planted == [new]
    (circle,) = circles([*found, *planted])
    assert new in circle
    assert ("tvmdml.compiler", "tvmdml.targets") in [(one.importer, one.imported) for one in circle]


@pytest.mark.parametrize("name", ["genai", "graph", "onnx", "packs", "tuning"])
def test_packages_have_the_names_that_they_list(name: str) -> None:
    room = importlib.import_module(f"tvmdml.{name}")
    assert set(room.__all__) <= set(dir(room))
    assert all(getattr(room, one) is not None for one in room.__all__)
    with pytest.raises(AttributeError, match=f"module 'tvmdml.{name}' has no attribute 'nothing'"):
        _ = room.nothing
