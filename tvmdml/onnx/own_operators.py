"""``operator``: operators of a program's own in ONNX models, and what decides about plans that they are part of."""

from __future__ import annotations

import hashlib
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.system import at_hand

Function = TypeVar("Function", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z_][\w.-]*\.[A-Za-z_]\w*", re.ASCII)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Own(NamedTuple):
    """An operator of the program's own."""

    function: Callable[..., Any]
    content: str | None
    """Equal for equal functions; ``None`` if that is not known."""


OWN: dict[str, Own] = {}
"""Those that the program has, by domain and name."""


def operator(kind: str, *, version: str = "") -> Callable[[Function], Function]:
    """Let a function compute an operator of ONNX models that tvmdml does not have: ``@tvmdml.onnx.operator("com.example.Scale")``.

    The function is called while a model is converted, with a ``tvmdml.onnx.Node``, and returns an expression or an array for each
    output: one of them, or a sequence. Expressions are what ``tvmdml.Graph`` computes with: functions of tvmdml take them.

    Plans of models are kept on disk by what the function is: the file that it stands in, and the values that it is closed over. A
    changed file gives new plans. What the function reads elsewhere is not seen; another ``version`` says that it changed.

    Args:
        kind: the operator's domain and name, as ``"com.example.Scale"``.
        version: any text.

    Raises:
        InvalidArgument: it has no domain, is an operator that tvmdml has, or another function computes it already.
    """
    if not isinstance(kind, str) or not _NAME.fullmatch(kind) or kind.startswith("ai.onnx."):
        raise InvalidArgument(message("operator", safe_repr(kind), 'a domain of its own and a name, such as "com.example.Scale"'))
    if not isinstance(version, str):
        raise InvalidArgument(message(f"operator {kind} version", safe_repr(version), "a text"))
    if kind.startswith("com.microsoft."):
        at_hand("tvmdml.onnx.rules")
        from tvmdml.onnx.rules import RULES

        if kind in RULES:
            raise InvalidArgument(message("operator", kind, "an operator that tvmdml does not have"))

    def registered(function: Function) -> Function:
        if not callable(function):
            raise InvalidArgument(message(f"operator {kind}", safe_repr(function), "a function of a node"))
        before = OWN[kind].function if kind in OWN else function
        if _name(before) != _name(function):  # the same one again is the next version of a notebook's cell
            given = f"{_name(function)} beside {_name(before)}"
            raise InvalidArgument(message(f"operator {kind}", given, "one function for each operator"))
        OWN[kind] = Own(function, None if (content := _content(function)) is None else f"{content} {version}")
        return function

    return registered


def own_operators_key() -> str | None:
    """What decides about plans of models; ``None`` if it is not known what a function is."""
    if any(own.content is None for own in OWN.values()):
        return None
    return repr(sorted((kind, own.content) for kind, own in OWN.items())) if OWN else ""


def _name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _content(function: Any) -> str | None:
    if not isinstance(function, types.FunctionType):
        return None
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    if not all(map(_is_plain, values)):
        return None
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    try:
        source = repr(_code(function.__code__)).encode() if file is None else Path(file).read_bytes()
    except OSError:
        return None
    return hashlib.sha256(repr((function.__qualname__, values)).encode() + source).hexdigest()


def _code(code: types.CodeType) -> Any:
    """What a function without a file does, with those inside of it."""
    constants = [_code(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in _PLAIN
