"""The package's names for type checkers, which cannot see names that are loaded on first use.

``python -m tvmdml._stub`` writes them to ``__init__.pyi``, as imports from the modules that define them.
"""

from __future__ import annotations

from pathlib import Path

import tvmdml
from tvmdml import operators

PATH = Path(__file__).with_name("__init__.pyi")


def text() -> str:
    """The text of the file."""
    homes = {f"tvmdml.{module}": names for module, names in vars(tvmdml)["_MODULES"].items()}
    homes |= {f"tvmdml.operators.{module}": names for module, names in operators.public_names_by_module().items()}
    lines = ["# Written by `python -m tvmdml._stub`.", ""]
    for module in sorted(homes):
        lines += [f"from {module} import {name} as {name}" for name in sorted(homes[module])]
    return "\n".join([*lines, "", "__version__: str", ""])


if __name__ == "__main__":
    PATH.write_text(text())
