"""The package's names for type checkers, which cannot see names that are loaded on first use.

``python -m tvmdml._stub`` writes them to ``__init__.pyi``, as imports from the modules that define them.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import tvmdml
from tvmdml import doors, enums, operators

PATH = Path(__file__).with_name("__init__.pyi")


def text() -> str:
    """The text of the file."""
    homes = {f"tvmdml.{module}": list(names) for module, names in vars(tvmdml)["_MODULES"].items()}
    homes |= {f"tvmdml.{module}": names for module, names in enums.public_names_by_module().items()}
    homes |= {f"tvmdml.operators.{module}": names for module, names in operators.public_names_by_module().items()}
    classes, functions = [], []
    for module in operators.modules():
        for name, value in doors.public_names(module).items():
            if value.__module__ == "tvmdml":  # made from a descriptor: no file defines it
                if inspect.isfunction(value):
                    functions += written(name, value)
                else:
                    classes += [*written(name, value), ""]
            else:
                homes.setdefault(value.__module__, []).append(name)
    made = [*classes, *functions]
    own = "\n".join(made)
    lines = ["# Written by `python -m tvmdml._stub`."]
    if made:
        lines.append("# ruff: noqa: A001, A002 - names of DirectMLX")
        typing = ", ".join(name for name in ("Any", "NamedTuple") if re.search(rf"\b{name}\b", own))
        lines += ["from collections.abc import Sequence"] * ("Sequence[" in own) + [f"from typing import {typing}"] * bool(typing)
    lines.append("")
    imports = {(module, name): f"from {module} import {name} as {name}" for module, names in homes.items() for name in names}
    if made:
        imports["tvmdml.functions", "AnyArray"] = "from tvmdml.functions import AnyArray"
    lines += [imports[key] for key in sorted(imports, key=lambda key: (key[0], not key[1][0].isupper(), key[1].lower()))]
    return "\n".join([*lines, "", *made, "", "__version__: str", ""])


def written(name: str, value: Any) -> list[str]:
    """The lines that declare a function, or the type of a function's results."""
    if not inspect.isfunction(value):
        return [f"class {name}(NamedTuple):", *(f"    {field}: AnyArray" for field in value._fields)]
    signature = inspect.signature(value)
    lines = [f"def {name}("]
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        default = "" if parameter.default is parameter.empty else " = ..."
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    return [*lines, f") -> {signature.return_annotation}: ..."]


if __name__ == "__main__":
    PATH.write_text(text())
