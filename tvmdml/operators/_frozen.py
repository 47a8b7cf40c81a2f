"""``Frozen``: dataclasses whose instances do not change, with the methods of one class for all.

``dataclasses.dataclass`` writes and compiles the source text of six methods for each class. There are hundreds of descriptor
classes, most of which a process never uses.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

_MISSING = dataclasses.MISSING
_F = TypeVar("_F", bound=Callable[..., Any])


def derived(method: _F) -> _F:
    """Decorates a method without arguments of a ``Frozen`` class: its result is kept beside the fields, and copies have none."""
    key = f"_{method.__qualname__}"

    @functools.wraps(method)
    def known(self: Any) -> Any:
        own = self.__dict__
        if key not in own:
            own[key] = method(self)
        return own[key]

    return known  # type: ignore[return-value] # it has the same arguments


class _Signature:
    """The signature of a class, for ``inspect.signature``: that of a dataclass."""

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if "FIELDS" not in vars(owner):
            raise AttributeError("__signature__")  # `help` asks the base classes too
        kind, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        hints = {field.name: field.type for field in dataclasses.fields(owner)}
        own = [(name, empty if default is _MISSING else default) for name, default in owner.FIELDS.items()]
        parameters = [inspect.Parameter(name, kind, default=default, annotation=hints[name]) for name, default in own]
        return inspect.Signature(parameters, return_annotation=None)


class Shown(type):
    """The class of descriptor classes, for ``help`` and completion: it lists what programs use, and describes the operator."""

    @property
    def __doc__(cls) -> str | None:
        """What the class's text says, and what there is to know of the operator."""
        own: str | None = vars(cls).get("__doc__")
        if not own or "FIELDS" not in vars(cls) or not vars(cls).get("NAME"):
            return own
        # The package's name for it: it looks at everything above descriptors, and only people who ask for help need it.
        return sys.modules["tvmdml"].reference.documented(cls, own)

    @__doc__.setter  # noqa: A003 - Python's own name for it
    def __doc__(cls, text: str | None) -> None:
        type.__dict__["__doc__"].__set__(cls, text)

    def __dir__(cls) -> list[str]:
        """Without the methods that only schedules, passes and packs call."""
        return [name for name in super().__dir__() if name in _SHOWN or name in vars(cls).get("FIELDS", ())]


_SHOWN = {"NAME", "feature_level", "of", "outputs", "reference", "tensors", "validate", "with_tensors"}


class Frozen:
    """Base class of keyword-only dataclasses whose instances do not change. Two are equal if their class and fields are."""

    FIELDS: ClassVar[Mapping[str, Any]] = {}
    """The default of each field, in their order; ``dataclasses.MISSING`` of one that has none."""

    __signature__ = _Signature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the subclass's fields."""
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
        cls.FIELDS = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    def __init__(self, /, *args: Any, **given: Any) -> None:
        """Take the fields by name.

        Raises:
            TypeError: one is missing or unknown.
        """
        values = {**self.FIELDS, **given}  # in the order of the fields
        if args or len(values) != len(self.FIELDS) or any(value is _MISSING for value in values.values()):
            own = [(name, Any, *(() if default is _MISSING else (default,))) for name, default in self.FIELDS.items()]
            dataclasses.make_dataclass(type(self).__qualname__, own, kw_only=True)(*args, **given)  # raises the usual error
        self.__dict__.update(values)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Called with all fields there."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.FIELDS}

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _values(self) -> list[Any]:
        own = self.__dict__
        return [own[name] for name in self.FIELDS]

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._values()))

    def __repr__(self) -> str:
        texts = [f"{name}={value!r}" for name, value in zip(self.FIELDS, self._values(), strict=True)]
        return f"{type(self).__qualname__}({', '.join(texts)})"


def hints_of(cls: type[Frozen]) -> dict[str, Any]:
    """The annotation of each field, which is evaluated where it is written."""
    own: dict[str, tuple[str, Any]] = {}
    for base in reversed(cls.__mro__):
        own |= {name: (base.__module__, hint) for name, hint in vars(base).get("__annotations__", {}).items()}
    hints = {name: own[name] for name in cls.FIELDS}
    return {name: _evaluated(module, hint) if type(hint) is str else hint for name, (module, hint) in hints.items()}


@functools.cache
def _evaluated(module: str, hint: str) -> Any:
    return eval(hint, vars(sys.modules[module]))  # noqa: S307 - the text of a class's source
