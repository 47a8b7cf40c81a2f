"""Knobs: tunable parameters of a schedule. Each is declared once, beside the schedule that uses it.

A knob has its default, unless a tuning log has a record for the operation (``tvmdml.library.scheduling``), the target has its own
value (``Target.knobs``: a pack's), or ``library.knobs.using`` sets one: each of these overrides those before it. A default may be a
formula of the processor's cache sizes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.kernels import plans
from tvmdml.targets._terms import Value as Value

if TYPE_CHECKING:
    from tvmdml.targets import Target
    from tvmdml.targets.cpu.caches import Caches


class Knob(NamedTuple):
    """One parameter that changes the speed of a kernel, but never its results."""

    default: Value
    """The value that is used if no other is set."""
    choices: tuple[Value, ...]
    """The allowed values."""
    meaning: str
    """What it sets, and its unit."""
    on: Mapping[str, Value] = MappingProxyType({})
    """Defaults that differ for a family of machines (``Target.families``)."""
    derived: Callable[[Caches], int] | None = None
    """The default on a target that describes its caches (``Target.caches``), rounded down to a choice."""


class Constraint(NamedTuple):
    """A rule between knobs. Values that break it are not worth trying, or cannot run on the target."""

    text: str
    """The rule in words."""
    holds: Callable[[Any, Target | None], bool]
    """Whether values, given as attributes, satisfy it on a target; ``None`` is any target."""


_declared: set[str] = set()


class Knobs:
    """An operator's knobs. ``KNOBS.now(target)`` gives their values as attributes."""

    def __init__(self, operator: str, *constraints: Constraint, **knobs: Knob) -> None:
        self.operator = operator
        _declared.add(operator)
        self.knobs: Mapping[str, Knob] = MappingProxyType(knobs)
        self.constraints = constraints
        self._defaults: dict[tuple[tuple[str, ...], Caches | None], SimpleNamespace] = {}

    def now(self, target: Target | None = None, tuned: Mapping[str, Value] = MappingProxyType({})) -> Any:
        """The values in force on a target: its defaults, overridden by a log, by the target's own values, and by ``using``.

        Args:
            target: where the kernel will run.
            tuned: the log's values for the operation.

        Raises:
            InvalidArgument: ``using`` names an unknown knob, or a value that is not allowed.
        """
        defaults = self._for(target)
        own = {} if target is None else target.knobs.get(self.operator, {})
        given = {**tuned, **own, **in_force().get(self.operator, {})}
        return self._overridden(given, vars(defaults)) if given else defaults

    def accepted(self, values: Mapping[str, Value], target: Target) -> Mapping[str, Value]:
        """The values that this schedule has; none if they do not satisfy its constraints on the target."""
        found = {name: value for name, value in values.items() if self._takes(name, value)}
        return {} if self.allowed(found, target) else found

    def allowed(self, values: Mapping[str, Value], target: Target | None = None) -> str:
        """Whether values, with the target's defaults for the other knobs, satisfy all constraints.

        Returns:
            The first constraint that they break, in words; empty if none.

        Raises:
            InvalidArgument: no schedule of the operator accepts one of the values.
        """
        filled = self._overridden(values, vars(self._for(target)))
        return next((one.text for one in self.constraints if not one.holds(filled, target)), "")

    def _for(self, target: Target | None) -> SimpleNamespace:
        """The defaults for a target."""
        kind = ((), None) if target is None else (target.families, target.caches)
        if (defaults := self._defaults.get(kind)) is None:
            defaults = self._defaults[kind] = SimpleNamespace(**{n: _default(k, *kind) for n, k in self.knobs.items()})
        return defaults

    def _overridden(self, given: Mapping[str, Value], defaults: Mapping[str, Value]) -> SimpleNamespace:
        values = dict(defaults)
        for name, value in given.items():
            if self._takes(name, value):
                values[name] = value
            elif not any(other._takes(name, value) for other in _of(self.operator)):  # else it is for other targets
                self._refuse(name, value)
        return SimpleNamespace(**values)

    def _takes(self, name: str, value: Value) -> bool:
        return name in self.knobs and type(value) in (int, str) and value in self.knobs[name].choices

    def _refuse(self, name: str, value: Value) -> None:
        everywhere = {known: knob for other in (*reversed(_of(self.operator)), self) for known, knob in other.knobs.items()}
        if name not in everywhere:
            raise InvalidArgument(message(f"{self.operator} knob", safe_repr(name), ", ".join(everywhere)))
        choices = ", ".join(map(repr, everywhere[name].choices))
        raise InvalidArgument(message(f"{self.operator} knob {name}", safe_repr(value), choices))


def _default(knob: Knob, families: tuple[str, ...], caches: Caches | None) -> Value:
    """The default for a machine: derived from its caches if possible, else that of the most specific family that has one."""
    if knob.derived is not None and caches is not None:
        numbers = sorted(choice for choice in knob.choices if isinstance(choice, int))
        return max((number for number in numbers if number <= knob.derived(caches)), default=numbers[0])
    return next((knob.on[family] for family in reversed(families) if family in knob.on), knob.default)


def of(operator: str, target: Target) -> Knobs | None:
    """The knobs of the schedule for an operator's module on a target; ``None`` for the default schedule."""
    return declared(target.schedules, operator)


@functools.cache
def declared(folder: str, operator: str) -> Knobs | None:
    """The knobs of a file of a folder of schedules."""
    name = f"tvmdml.schedules.{folder}.{operator}"
    if importlib.util.find_spec(name) is None:
        return None
    return getattr(importlib.import_module(name), "KNOBS", None)


@functools.cache
def _of(operator: str) -> tuple[Knobs, ...]:
    """The knobs of an operator's schedules, in every folder that has one."""
    package = importlib.import_module("tvmdml.schedules")
    found = (declared(folder.name, operator) for folder in pkgutil.iter_modules(package.__path__) if folder.ispkg)
    return tuple(knobs for knobs in found if knobs is not None)


def check(operator: str, values: Mapping[str, Value]) -> None:
    """Refuse values that no schedule of an operator's module accepts.

    Raises:
        InvalidArgument: one of the names or values is wrong.
    """
    known = _of(operator)
    if values and not known:
        raise InvalidArgument(message(f"{operator} knobs", ", ".join(values), "none: its schedules have no knobs"))
    for knobs in known:
        knobs._overridden(values, {})


_Values = Mapping[str, Mapping[str, Value]]
_NONE: _Values = MappingProxyType({})
_layers: dict[object, _Values] = {}
"""Every active ``setting``, of all threads: they need not end in the order in which they began."""


def in_force() -> Mapping[str, Mapping[str, Value]]:
    """The values that ``using`` sets now, by operator."""
    found = _NONE
    for layer in tuple(_layers.values()):
        found = {**found, **{name: {**found.get(name, {}), **values} for name, values in layer.items()}}
    return found


def is_declared(operator: str) -> bool:
    """Whether a schedule that is loaded declared knobs for an operator's module or family."""
    return operator in _declared


def setting(values: _Values) -> contextlib.AbstractContextManager[None]:
    """Set knobs inside, by operator. What they may be called is checked by ``tvmdml.knobs.using``."""
    return _changed(_layers, values)


@contextlib.contextmanager
def _changed(layers: dict[object, Any], given: Any) -> Iterator[None]:
    """A layer of values, inside; functions plan anew in it, and after it."""
    layer = object()
    layers[layer] = given
    plans.forget()
    try:
        yield
    finally:
        del layers[layer]
        plans.forget()


_untuned: dict[object, None] = {}


def logs_count() -> bool:
    """Whether tuning logs are used now: not inside ``untuned``."""
    return not _untuned


@contextlib.contextmanager
def untuned() -> Iterator[None]:
    """Ignore all tuning logs, including those of packs, for operators that are compiled inside, in the whole process.

    As with ``using``, what was compiled before keeps its kernels.
    """
    with _changed(_untuned, None):
        yield
