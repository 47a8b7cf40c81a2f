"""What is aimed at: a module each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from fuzz.choices import Choices


class Aim(Protocol):
    """What a module of this folder is."""

    one: Callable[[Choices], None]


def names() -> list[str]:
    """All of them, by their files."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> Aim:
    """One of them."""
    return cast(Aim, importlib.import_module(f"{__name__}.{name}"))


def seeds(aim: Aim) -> Iterable[bytes]:
    """Examples to begin with."""
    return list(getattr(aim, "seeds", list)())


def words(aim: Aim) -> Sequence[str]:
    """What its inputs are likely to have."""
    return tuple(getattr(aim, "WORDS", ()))
