"""Knobs: what a schedule leaves open for the machine to decide, each declared once, beside the schedule that turns it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import InvalidArgument, message

if TYPE_CHECKING:
    from tvmdml.targets import Target

Value = int | str


class Knob(NamedTuple):
    """One choice that changes how fast a kernel is, and never what it computes."""

    default: Value
    """What is used where nobody says otherwise."""
    choices: tuple[Value, ...]
    """What it can be."""
    meaning: str
    """What it sets, and in which unit."""
    on: Mapping[str, Value] = MappingProxyType({})
    """Other defaults, by a family of machines (``Target.families``)."""


_declared: set[str] = set()


class Knobs:
    """An operator's knobs. ``KNOBS.now(target)`` gives their values as attributes."""

    def __init__(self, operator: str, **knobs: Knob) -> None:
        self.operator = operator
        _declared.add(operator)
        self.knobs: Mapping[str, Knob] = MappingProxyType(knobs)
        self._defaults: dict[tuple[str, ...], SimpleNamespace] = {}

    def now(self, target: Target | None = None) -> Any:
        """The values in force: the defaults for a target, but where it has its own, or ``using`` says otherwise.

        Raises:
            InvalidArgument: ``using`` names a knob that is not there, or a value that it cannot take.
        """
        families = () if target is None else target.families
        if (defaults := self._defaults.get(families)) is None:
            defaults = self._defaults[families] = SimpleNamespace(**{n: _default(k, families) for n, k in self.knobs.items()})
        given = _in_force.get(self.operator)
        if target is not None and (own := target.knobs.get(self.operator)):
            given = {**own, **(given or {})}
        return self._overridden(given, vars(defaults)) if given else defaults

    def _overridden(self, given: Mapping[str, Value], defaults: Mapping[str, Value]) -> SimpleNamespace:
        values = dict(defaults)
        for name, value in given.items():
            if self._takes(name, value):
                values[name] = value
            elif not any(other._takes(name, value) for other in _of(self.operator)):  # else it is for other targets' schedules
                self._refuse(name, value)
        return SimpleNamespace(**values)

    def _takes(self, name: str, value: Value) -> bool:
        return name in self.knobs and not isinstance(value, bool) and value in self.knobs[name].choices

    def _refuse(self, name: str, value: Value) -> None:
        everywhere = {known: knob for other in (*reversed(_of(self.operator)), self) for known, knob in other.knobs.items()}
        if name not in everywhere:
            raise InvalidArgument(message(f"{self.operator} knob", repr(name), ", ".join(everywhere)))
        choices = ", ".join(map(repr, everywhere[name].choices))
        raise InvalidArgument(message(f"{self.operator} knob {name}", repr(value), choices))


def _default(knob: Knob, families: tuple[str, ...]) -> Value:
    """For the narrowest family that has one of its own."""
    return next((knob.on[family] for family in reversed(families) if family in knob.on), knob.default)


@functools.cache
def _of(operator: str) -> tuple[Knobs, ...]:
    """The knobs of an operator's schedules, in every folder that has one."""
    package = importlib.import_module("tvmdml.schedules")
    found = []
    for folder in pkgutil.iter_modules(package.__path__):
        with contextlib.suppress(ModuleNotFoundError):
            found.append(importlib.import_module(f"{package.__name__}.{folder.name}.{operator}").KNOBS)
    return tuple(found)


def check(operator: str, values: Mapping[str, Value]) -> None:
    """Refuse values that no schedule of an operator's module takes.

    Raises:
        InvalidArgument: one of the names or values is wrong.
    """
    declared = _of(operator)
    if values and not declared:
        raise InvalidArgument(message(f"{operator} knobs", ", ".join(values), "none: its schedules have no knobs"))
    for knobs in declared:
        knobs._overridden(values, {})


_in_force: Mapping[str, Mapping[str, Value]] = {}


def in_force() -> Mapping[str, Mapping[str, Value]]:
    """What ``using`` says now, by operator."""
    return _in_force


@contextlib.contextmanager
def using(**operators: Mapping[str, Value]) -> Iterator[None]:
    """Operators that are compiled meanwhile use these values: ``with knobs.using(top_k={"algorithm": "sort"}):``.

    It holds for ``tvmdml.compile`` in the whole process, on those targets whose schedule has such a knob that takes the value. A
    function may have its kernel from before.

    Raises:
        InvalidArgument: no operator has such a name. (Names and values of knobs are looked at when a kernel is made.)
    """
    global _in_force
    for name in operators:
        if name not in _declared and importlib.util.find_spec(f"tvmdml.operators.{name}") is None:
            raise InvalidArgument(message("knobs.using", repr(name), "an operator's module, such as top_k"))
    before = _in_force
    _in_force = {**before, **{name: {**before.get(name, {}), **values} for name, values in operators.items()}}
    try:
        yield
    finally:
        _in_force = before
