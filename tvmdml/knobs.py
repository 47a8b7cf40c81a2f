"""Knobs: tunable parameters of a schedule. Each is declared once, beside the schedule that uses it.

A knob has its default, unless a tuning log has a record for the operation (``tvmdml.tuning.logs``), the target has its own value
(``Target.knobs``: a pack's), or ``using`` sets one: each of these overrides those before it. A default may be a formula of the
processor's cache sizes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import operator as python_operator
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import InvalidArgument, message, safe_repr

if TYPE_CHECKING:
    from tvmdml.operators import Operator
    from tvmdml.targets import Target
    from tvmdml.targets.cpu.caches import Caches
    from tvmdml.tuning.logs import Found
    from tvmdml.tuning.terms import Machine

Value = int | str


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


class Tuned(NamedTuple):
    """The tuning log's values for an operation."""

    values: Mapping[str, Value] = MappingProxyType({})
    """The knobs that the log sets; empty if no log has a record."""
    hash: str = ""
    """Distinguishes a kernel from those of other records; empty if no knob is set."""


_UNTUNED = Tuned()
_declared: set[str] = set()


class Knobs:
    """An operator's knobs. ``KNOBS.now(target, desc, in_place)`` gives their values as attributes."""

    def __init__(self, operator: str, *constraints: Constraint, **knobs: Knob) -> None:
        self.operator = operator
        _declared.add(operator)
        self.knobs: Mapping[str, Knob] = MappingProxyType(knobs)
        self.constraints = constraints
        self._defaults: dict[tuple[tuple[str, ...], Caches | None], SimpleNamespace] = {}
        self._asked: tuple[tuple[object, ...], Machine | None, Tuned] = (), None, _UNTUNED

    def now(self, target: Target | None = None, desc: Operator | None = None, in_place: bool = False) -> Any:
        """The values in force on a target: its defaults, overridden by a log, by the target's own values, and by ``using``.

        Args:
            target: where the kernel will run.
            desc: the operation, for finding a log's record; without it no log is used.
            in_place: the output uses the input's buffer.

        Raises:
            InvalidArgument: ``using`` names an unknown knob, or a value that is not allowed.
        """
        defaults = self._for(target)
        given = in_force().get(self.operator)
        if target is not None and (own := target.knobs.get(self.operator)):
            given = {**own, **(given or {})}
        if target is not None and desc is not None and (tuned := self.tuned(target, desc, in_place).values):
            given = {**tuned, **(given or {})}
        return self._overridden(given, vars(defaults)) if given else defaults

    def tuned(self, target: Target, desc: Operator, in_place: bool = False) -> Tuned:
        """The values for an operation in the target's logs, if this schedule has these knobs and they satisfy its constraints."""
        if _untuned:
            return _UNTUNED
        logs = target.logs
        if logs is None:
            from tvmdml.tuning import logs as all_logs

            logs = all_logs.installed()
        # The schedule asks for the knobs, and then the target for the hash: the last answer is kept for the second request.
        about, machine = (logs, desc, in_place, target), target.machine()
        before, of, answer = self._asked
        if machine != of or not all(map(python_operator.is_, about, before)):
            answer = self._read(logs.find(self.operator, desc, in_place, machine), target)
            self._asked = about, machine, answer
        return answer

    def _read(self, found: Found | None, target: Target) -> Tuned:
        """The values of a record that this schedule accepts on the target."""
        values = {} if found is None else {name: value for name, value in found.record.knobs.items() if self._takes(name, value)}
        if found is None or not values or self.allowed(values, target):
            return _UNTUNED
        return Tuned(values, found.hash)

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
    return _in(target.schedules, operator)


@functools.cache
def _in(folder: str, operator: str) -> Knobs | None:
    name = f"tvmdml.schedules.{folder}.{operator}"
    if importlib.util.find_spec(name) is None:
        return None
    found: Knobs | None = getattr(importlib.import_module(name), "KNOBS", None)
    return found


@functools.cache
def _of(operator: str) -> tuple[Knobs, ...]:
    """The knobs of an operator's schedules, in every folder that has one."""
    package = importlib.import_module("tvmdml.schedules")
    found = (_in(folder.name, operator) for folder in pkgutil.iter_modules(package.__path__) if folder.ispkg)
    return tuple(knobs for knobs in found if knobs is not None)


def check(operator: str, values: Mapping[str, Value]) -> None:
    """Refuse values that no schedule of an operator's module accepts.

    Raises:
        InvalidArgument: one of the names or values is wrong.
    """
    declared = _of(operator)
    if values and not declared:
        raise InvalidArgument(message(f"{operator} knobs", ", ".join(values), "none: its schedules have no knobs"))
    for knobs in declared:
        knobs._overridden(values, {})


_Values = Mapping[str, Mapping[str, Value]]
_NONE: _Values = MappingProxyType({})
_layers: dict[object, _Values] = {}
"""Every active ``using``, of all threads: they need not end in the order in which they began."""


def in_force() -> Mapping[str, Mapping[str, Value]]:
    """The values that ``using`` sets now, by operator."""
    found = _NONE
    for layer in tuple(_layers.values()):
        found = {**found, **{name: {**found.get(name, {}), **values} for name, values in layer.items()}}
    return found


@contextlib.contextmanager
def using(**operators: Mapping[str, Value]) -> Iterator[None]:
    """Set knobs for operators that are compiled inside: ``with knobs.using(top_k={"algorithm": "sort"}):``.

    It applies to ``tvmdml.compile`` in the whole process, on targets with a schedule that has the knob and accepts the value. A
    function may still use a kernel from an earlier call.

    Raises:
        InvalidArgument: no operator has that name, or its value is not a dict. (The names and values of knobs are checked when a
            kernel is made.)
    """
    for name, values in operators.items():
        if not isinstance(values, Mapping):
            raise InvalidArgument(message(f"knobs.using {name}", safe_repr(values), "values by the names of knobs: a dict"))
        if name not in _declared and not (name.isidentifier() and importlib.util.find_spec(f"tvmdml.operators.{name}")):
            raise InvalidArgument(message("knobs.using", safe_repr(name), "an operator's module, such as top_k"))
    layer = object()
    _layers[layer] = operators
    try:
        yield
    finally:
        del _layers[layer]


_untuned: dict[object, None] = {}


def logs_count() -> bool:
    """Whether tuning logs are used now: not inside ``untuned``."""
    return not _untuned


@contextlib.contextmanager
def untuned() -> Iterator[None]:
    """Ignore all tuning logs, including those of packs, for operators that are compiled inside, in the whole process.

    As with ``using``, a function may still use a kernel from an earlier call.
    """
    layer = object()
    _untuned[layer] = None
    try:
        yield
    finally:
        del _untuned[layer]
