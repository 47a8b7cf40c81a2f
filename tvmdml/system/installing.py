"""The command that installs an extra of this package, depending on how the package itself is installed."""

from __future__ import annotations

from pathlib import Path


def command(extra: str, *options: str) -> str:
    """The command that installs an extra, in backticks: an editable install in a clone, else by the package's name.

    In a clone, ``pip install 'tvmdml[…]'`` would look for the package in an index, and ``pip install '.[…]'`` would replace the
    editable install with a copy.
    """
    clone = Path(__file__).absolute().parents[2]
    if not (clone / "pyproject.toml").is_file():
        wanted = f"'tvmdml[{extra}]'"
    else:
        wanted = f"-e '{'.' if _is_here(clone) else clone}[{extra}]'"
    return " ".join(("`pip install", *options, wanted)) + "`"


def _is_here(clone: Path) -> bool:
    try:
        return clone.samefile(Path.cwd())
    except OSError:  # the current folder was removed
        return False
