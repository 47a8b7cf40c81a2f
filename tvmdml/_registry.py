"""Answer what TVM asks of its registries while it is imported, without what makes the answers slow.

Its modules list the names of all functions fifty times, and ask a hundred times for something that does not exist. An error of C++
that says so carries a trace of the stack, and for the first one the symbols of every library in the process are read: 0.3 s, or 1 s
beside PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def at_hand() -> Iterator[None]:
    """Inside, names are listed once, and what does not exist is known without an error of C++. All answers are as outside.

    A version of TVM that has other functions is left as it is.
    """
    import tvm_ffi
    from tvm_ffi import core, registry

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            function = registry.get_global_func
            types = _Known(function("ffi.GetRegisteredTypeKeys"))
            names = functools.partial(_names, function("ffi.FunctionListGlobalNamesFunctor"), [])
            _replace(stack, registry, "list_global_func_names", lambda ask: names)
            _replace(stack, core, "_object_type_key_to_index", lambda ask: lambda key: ask(key) if key in types else None)
            _replace(stack, tvm_ffi, "init_ffi_api", lambda fill: functools.partial(_fill, stack, fill))
        yield


def _replace(stack: contextlib.ExitStack, place: Any, name: str, by: Callable[[Any], Any]) -> None:
    """Replace a function, until the stack is left, by what ``by`` makes of it."""
    old = getattr(place, name)
    setattr(place, name, by(old))
    stack.callback(setattr, place, name, old)


class _Known:
    """The names of a registry, which are listed again when one is not among them and there are more."""

    def __init__(self, listed: Callable[[], Any]) -> None:
        self._listed = listed
        self._found: set[str] = set()

    def __contains__(self, name: str) -> bool:
        if name not in self._found and len(now := self._listed()) != len(self._found):
            self._found = set(map(str, now))
        return name in self._found


def _names(listed: Callable[[], Any], found: list[str]) -> list[str]:
    """The names of all functions. New ones come last, so only those are added to what was ``found`` before."""
    name = listed()
    count = name(-1)
    if found and (count < len(found) or name(len(found) - 1) != found[-1]):
        found.clear()  # some were removed
    found.extend(name(i) for i in range(len(found), count))
    return list(found)


def _fill(stack: contextlib.ExitStack, fill: Callable[..., None], namespace: str, module: str | None = None) -> None:
    """Fill a module with functions; two of those for operators get quicker answers."""
    fill(namespace, module)
    api = sys.modules[module or namespace]
    if namespace != "ir" or not {"ListOpNames", "GetOp", "OpGetAttr", "RegisterOpAttr"} <= vars(api).keys():
        return
    operators, find, attribute = _Known(api.ListOpNames), api.GetOp, api.OpGetAttr

    def get(name: str) -> Any:
        if name not in operators:
            raise AttributeError(f"Operator {name} is not registered")
        return find(name)

    def register(ask: Callable[..., None], name: str, key: str, value: Any, level: int) -> None:
        # A name for printing that is given again is an error, which TVM expects and forgets.
        if key != "TScriptPrinterName" or attribute(find(name), key) != value:
            ask(name, key, value, level)

    _replace(stack, api, "GetOp", lambda ask: get)
    _replace(stack, api, "RegisterOpAttr", lambda ask: functools.partial(register, ask))
