"""The operators' definitions: one file for each operator, found by listing this folder."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

from tvmdml.errors import Unsupported, message, safe_repr
from tvmdml.operators._contract import Operator
from tvmdml.system import whole

__all__ = [
    "Operator",
    "all_operators",
    "by_name",
    "classes_in",
    "families_of",
    "module_of",
    "modules",
    "modules_like",
    "modules_quoting",
    "of_onnx",
    "public_name",
    "public_names_by_module",
    "tuned_as",
]


@functools.cache
def modules() -> tuple[str, ...]:
    """The names of the operators' files."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def _load(module: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{module}")


def classes_in(module: str) -> list[type[Operator]]:
    """The descriptor classes that an operator's file defines, in the order of the file; base classes have no name."""
    loaded = _load(module)
    return [
        value
        for value in vars(loaded).values()
        if isinstance(value, type) and issubclass(value, Operator) and value.__module__ == loaded.__name__ and value.NAME
    ]


@functools.cache
def all_operators() -> dict[str, type[Operator]]:
    """Every operator, by DirectML's name without ``DML_OPERATOR_``, in the order of the names."""
    found = {cls.NAME: cls for module in modules() for cls in classes_in(module)}
    return dict(sorted(found.items()))


def by_name(name: str) -> type[Operator]:
    """The descriptor class of an operator, by DirectML's name, with or without ``DML_OPERATOR_``, in upper or lower case.

    Groups of operators, which are not DirectML's, have names that begin with ``FUSED_``.

    Raises:
        Unsupported: tvmdml has no such operator.
    """
    wanted = name.upper().removeprefix("DML_OPERATOR_")
    if (found := _named(wanted)) is not None:
        return found
    if wanted in all_operators():  # a caller's own
        return all_operators()[wanted]
    with whole():
        import difflib
    near = [one for one in all_operators() if one.endswith(f"_{wanted}")] or difflib.get_close_matches(wanted, all_operators())
    advice = f"Did you mean {' or '.join(near)}? " * bool(near) + "`tvmdml operators` lists them."
    raise Unsupported(message("operator", safe_repr(name), f"the names of DirectML's {len(all_operators())} operators", advice))


@functools.lru_cache(1 << 10)
def _named(name: str) -> type[Operator] | None:
    for module in itertools.chain(_groups(name), modules_like(name.title().replace("_", ""))):
        for cls in classes_in(module):
            if name == cls.NAME:
                return cls
    return None


@functools.cache
def of_onnx(kind: str) -> type[Operator] | None:
    """The descriptor class that converts nodes of an ONNX operator, of several the last by its name; ``None`` if none does."""
    found = [cls for module in modules_quoting(kind) for cls in classes_in(module) if kind in cls.ONNX]
    return max(found, key=lambda cls: cls.NAME, default=None)


def module_of(cls: type[Operator]) -> str:
    """The short name of the module that defines an operator; its schedules have the same name."""
    return cls.SCHEDULE or cls.__module__.rpartition(".")[2]


@functools.cache
def families_of(module: str) -> tuple[str, ...]:
    """The families of the operators in a module, or the name itself if it is a family's."""
    if module in modules():
        return tuple(sorted({cls.FAMILY for cls in classes_in(module)} - {""}))
    return (module,) if importlib.util.find_spec(f"{__name__}._{module}") else ()


def tuned_as(cls: type[Operator]) -> str:
    """The name under which an operator's knobs and tuning records stand: its family's, or its module's if it has no family."""
    return cls.FAMILY or module_of(cls)


def public_name(name: str) -> object:
    """A descriptor class, by its Python name.

    Raises:
        AttributeError: there is no such class.
    """
    for module in modules_like(name):
        for cls in classes_in(module):
            if name == cls.__name__:
                return cls
    raise AttributeError(name)


def public_names_by_module() -> dict[str, list[str]]:
    """Every name that ``public_name`` finds, by the operator's file."""
    return {module: [cls.__name__ for cls in classes_in(module)] for module in modules()}


def modules_like(name: str) -> Iterator[str]:
    """The operators' files, those first that are likely to define a name: one name then needs few imports."""
    camel = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    texts = f"ElementWise{camel}", camel, name  # as classes and FUNCTION are written
    quoted = (module for text in texts for module in modules_quoting(text))
    first = dict.fromkeys((*_candidates(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()), *quoted))
    yield from first
    yield from sorted((module for module in modules() if module not in first), key=lambda module: name not in _text(module))


def modules_quoting(word: str) -> tuple[str, ...]:
    """The operators' files that have a word in quotation marks, or a class of that name; all if their text is not there."""
    quoting = _quoting()
    return quoting.get(word, ()) if quoting else modules()


@functools.cache
def _quoting() -> dict[str, tuple[str, ...]]:
    """The files of each word that is quoted or a class's name; empty if there is only their bytecode."""
    words = {module: {quoted or name for quoted, name in _WORD.findall(_text(module))} for module in modules()}
    if not all(words.values()):
        return {}
    found: dict[str, list[str]] = {}
    for module, own in words.items():
        for word in own:
            found.setdefault(word, []).append(module)
    return {word: tuple(several) for word, several in found.items()}


_WORD = re.compile(r'"([\w.]+)"|^class (\w+)', re.MULTILINE)


@functools.cache
def _text(module: str) -> str:
    """The source text of an operator's file; empty if there is only its bytecode."""
    spec = importlib.util.find_spec(f"{__name__}.{module}")
    read = None if spec is None else getattr(spec.loader, "get_source", None)
    return read(f"{__name__}.{module}") or "" if read is not None else ""


def _groups(name: str) -> list[str]:
    """The files of groups of operators, ``_<family>_fused``, for a name that may be one's: those that have it are first."""
    found = [m.name for m in pkgutil.iter_modules(__path__) if m.name.endswith("_fused")] if name.startswith("FUSED_") else []
    return sorted(found, key=lambda module: name not in _text(module))


def _candidates(snake: str) -> list[str]:
    return [name for name in (snake, snake.rstrip("0123456789")) if name in modules()]
