"""The command ``tvmdml``, run in this process."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from tvmdml.cli import main


def call(*arguments: object, **options: Any) -> Result:
    """What the command printed, and its exit code. What it raised is raised again."""
    result = CliRunner().invoke(main, list(map(str, arguments)), prog_name="tvmdml", **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def succeed(*arguments: object, **options: Any) -> Result:
    """The same of a command whose exit code is 0."""
    result = call(*arguments, **options)
    assert result.exit_code == 0, result.output
    return result
