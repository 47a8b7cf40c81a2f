"""Knobs: what a schedule leaves open for the machine to decide, each declared once, beside the schedule that turns it.

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
    """One choice that changes how fast a kernel is, and never what it computes."""

    default: Value
    """What is used where nobody says otherwise."""
    choices: tuple[Value, ...]
    """What it can be."""
    meaning: str
    """What it sets, and in which unit."""
    on: Mapping[str, Value] = MappingProxyType({})
    """Other defaults, by a family of machines (``Target.families``)."""
    derived: Callable[[Caches], int] | None = None
    """The default on a target that describes its caches (``Target.caches``), rounded down to a choice."""


class Constraint(NamedTuple):
    """A rule between knobs: what breaks it is pointless to try, or cannot run on the target."""

    text: str
    """The rule in words."""
    holds: Callable[[Any, Target | None], bool]
    """Whether values, as attributes, keep it on a target; ``None`` is any."""


class Tuned(NamedTuple):
    """What a log says about an operation."""

    values: Mapping[str, Value] = MappingProxyType({})
    """The knobs that it turns; none where no log has a record."""
    hash: str = ""
    """By which a kernel is told from that of other records; empty where no knob is turned."""


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
        """The values in force on a target: its defaults, but where a log, the target itself, or ``using`` says otherwise.

        Args:
            target: where the kernel is to run.
            desc: the operation, by which a log's record is found; without it no log counts.
            in_place: the output is the input's own buffer.

        Raises:
            InvalidArgument: ``using`` names a knob that is not there, or a value that it cannot take.
        """
        defaults = self._for(target)
        given = in_force().get(self.operator)
        if target is not None and (own := target.knobs.get(self.operator)):
            given = {**own, **(given or {})}
        if target is not None and desc is not None and (tuned := self.tuned(target, desc, in_place).values):
            given = {**tuned, **(given or {})}
        return self._overridden(given, vars(defaults)) if given else defaults

    def tuned(self, target: Target, desc: Operator, in_place: bool = False) -> Tuned:
        """What the target's logs say about an operation, as far as this schedule has such knobs and they keep its constraints."""
        if _untuned:
            return _UNTUNED
        logs = target.logs
        if logs is None:
            from tvmdml.tuning import logs as all_logs

            logs = all_logs.installed()
        # A schedule asks for the knobs, and then the target for the hash: the second time it is known.
        about, machine = (logs, desc, in_place, target), target.machine()
        before, of, answer = self._asked
        if machine != of or not all(map(python_operator.is_, about, before)):
            answer = self._read(logs.find(self.operator, desc, in_place, machine), target)
            self._asked = about, machine, answer
        return answer

    def _read(self, found: Found | None, target: Target) -> Tuned:
        """What a record says that this schedule takes on the target."""
        values = {} if found is None else {name: value for name, value in found.record.knobs.items() if self._takes(name, value)}
        if found is None or not values or self.allowed(values, target):
            return _UNTUNED
        return Tuned(values, found.hash)

    def allowed(self, values: Mapping[str, Value], target: Target | None = None) -> str:
        """Whether values, with the target's defaults for the others, keep all constraints.

        Returns:
            The first constraint that they break, in words; empty if none.

        Raises:
            InvalidArgument: a value is one that no schedule of the operator takes.
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
            elif not any(other._takes(name, value) for other in _of(self.operator)):  # else it is for other targets' schedules
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
    """From the caches where it is derived from them, else that of the narrowest family that has its own."""
    if knob.derived is not None and caches is not None:
        numbers = sorted(choice for choice in knob.choices if isinstance(choice, int))
        return max((number for number in numbers if number <= knob.derived(caches)), default=numbers[0])
    return next((knob.on[family] for family in reversed(families) if family in knob.on), knob.default)


def of(operator: str, target: Target) -> Knobs | None:
    """The knobs of the schedule that serves an operator's module on a target; nothing where that is the default schedule."""
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
    """Refuse values that no schedule of an operator's module takes.

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
"""Each ``using`` that is entered, in whichever thread: they need not end in the order in which they began."""


def in_force() -> Mapping[str, Mapping[str, Value]]:
    """What ``using`` says now, by operator."""
    found = _NONE
    for layer in tuple(_layers.values()):
        found = {**found, **{name: {**found.get(name, {}), **values} for name, values in layer.items()}}
    return found


@contextlib.contextmanager
def using(**operators: Mapping[str, Value]) -> Iterator[None]:
    """Operators that are compiled meanwhile use these values: ``with knobs.using(top_k={"algorithm": "sort"}):``.

    It holds for ``tvmdml.compile`` in the whole process, on those targets whose schedule has such a knob that takes the value. A
    function may have its kernel from before.

    Raises:
        InvalidArgument: no operator has such a name, or there is no dict for it. (Names and values of knobs are looked at when a
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
    """Whether logs of tuning count now, or ``untuned`` says that they do not."""
    return not _untuned


@contextlib.contextmanager
def untuned() -> Iterator[None]:
    """Operators that are compiled meanwhile go by no log of tuning, in the whole process; a pack's own logs do not count, either.

    As with ``using``, a function may have its kernel from before.
    """
    layer = object()
    _untuned[layer] = None
    try:
        yield
    finally:
        del _untuned[layer]
