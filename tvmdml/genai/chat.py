"""Chat templates: messages as the text that a model was trained on, rendered as the package transformers does."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping
from typing import Any

from tvmdml.errors import TvmdmlError, Unsupported, message, reason, safe_repr
from tvmdml.genai.refusing import Refused
from tvmdml.system import at_hand, installing

_LONGEST = 1 << 20
"""Characters of a template."""


def render(template: str, messages: Any, tools: Any, tokens: Mapping[str, str], prompt: bool) -> str:
    """The text.

    Args:
        template: a template of Jinja, which runs in a sandbox.
        messages: a list of objects with ``role`` and ``content``.
        tools: a list of functions' descriptions, or ``None``.
        tokens: special tokens by their names in a template, such as ``bos_token``.
        prompt: whether the text ends with what an answer begins with (``add_generation_prompt``).

    Raises:
        Refused: the template refuses the messages, or is none.
        Unsupported: the package jinja2 is not installed.
    """
    try:
        compiled = _compiled(template)
        return str(compiled.render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **tokens))
    except TvmdmlError:
        raise
    except Exception as error:  # of the template: it may do what it wants with the messages
        given = f"{type(error).__name__}: {reason(error)}"
        raise Refused(
            message("chat template", given, "messages that the template takes, such as those of user and assistant in turn")
        ) from None


@functools.lru_cache(16)
def _compiled(template: str) -> Any:
    try:
        at_hand("jinja2", "jinja2.sandbox", "jinja2.ext")
    except ImportError:
        advice = f"{installing.command('genai')} installs it."
        raise Unsupported(message("apply_chat_template", "an installation without jinja2", "one with it", advice)) from None
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    if len(template) > _LONGEST:
        raise Refused(message("chat template", f"{len(template)} characters", f"at most {_LONGEST}"))

    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
        """``{% generation %}`` marks what a model writes: here it is text like any other."""

        tags = {"generation"}  # noqa: RUF012 - Jinja reads it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment.from_string(template)


def _json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(text: object) -> None:
    raise ValueError(text)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def parsed(text: Any, where: str) -> Any:
    """What a JSON text says; a list or object is taken as it is.

    Raises:
        Refused: it is not JSON, or no list.
    """
    try:
        value = json.loads(text) if isinstance(text, (str, bytes)) else text
    except (ValueError, RecursionError) as error:
        raise Refused(message(where, f"{safe_repr(text)} ({reason(error)})", "a list in JSON")) from None
    if not isinstance(value, list):
        raise Refused(message(where, safe_repr(value), 'a list, such as [{"role": "user", "content": "Hello"}]'))
    return value
