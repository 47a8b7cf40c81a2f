"""Shared by all commands: parsing of option values, and printing of tables and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from tvmdml.errors import InvalidArgument

Row = Mapping[str, Any]

INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""
_PIPE_WIDTH = 1000
"""The width in columns of a table that is written to a file or to another program."""

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def printable(text: object) -> str:
    r"""Untrusted text, such as from a file or a device, for one line of a terminal: the escape character is shown as ``\x1b``.

    Every other unprintable character is shown in the same way, such as those that reverse the direction of text.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def say(text: str, *, err: bool = False, **style: Any) -> None:
    """Print lines that may contain untrusted text."""
    click.secho("\n".join(map(printable, text.split("\n"))), err=err, **style)


def width() -> int | None:
    """The width in columns to print in; ``None`` is the terminal's width."""
    return None if sys.stdout is not None and sys.stdout.isatty() else _PIPE_WIDTH


def parsed(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback for an option: ``parse`` reads its values, and values that it refuses are usage errors."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(one) for one in value)
            return None if value is None else parse(value)
        except InvalidArgument as error:
            raise click.BadParameter(str(error)) from None

    return callback


def table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print rows as a table with these columns."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")  # a truncated name could not be copied
    for row in rows:
        shown.add_row(*(printable(row[column]) for column in columns))
    console = Console(width=width(), highlight=False, markup=False, emoji=False)
    with console.capture() as printed:
        console.print(shown)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def short_target(name: str) -> str:
    """A target's name for a table: the features of a processor beyond its level are counted, those of a device have a checksum."""
    kind, space, features = name.partition(" ")
    if space:
        import zlib

        return f"{kind} #{zlib.crc32(features.encode()):08x}"
    level, *more = name.split("+")
    return f"{level} +{len(more)}" if more else level


def colours(ctx: click.Context) -> None:
    """No colours where ``NO_COLOR`` asks for none, as rich does, too."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def print_json(value: object) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=1))


def shown_bytes(size: float) -> str:
    """A size in readable form: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def shown_seconds(seconds: float) -> str:
    """``87.2 µs``."""
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
