"""The package's names for type checkers, which cannot see names that are loaded on first use.

``python -m tvmdml.commands.stub`` writes them to ``__init__.pyi``: imports from the modules that define them, and the functions,
each once for NumPy's arrays and once for those of any other library.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tvmdml
from tvmdml import doors, enums, operators
from tvmdml.doors._made import annotation, signatures
from tvmdml.operators._roles import MISSING

PATH = Path(__file__).parents[1] / "__init__.pyi"
_HEAD = """\
# Written by `python -m tvmdml.commands.stub`.
# mypy: disable-error-code="overload-overlap"
# An array of another library beside one of NumPy's decides the kind of the result.
from collections.abc import Sequence
from typing import Generic, Literal, NamedTuple, TypeVar, overload

"""
_ALSO = {"tvmdml.typing": ["Array", "DType", "Number", "NumpyArray"]}
"""What the functions' types are written with."""
_KINDS = ("NumpyArray", "NumpyArray"), ("Expression", "Expression | NumpyArray"), ("_Array", "_Array | NumpyArray")
"""What results are, and what inputs may be. The second is for several of both, which checkers infer no variable from."""
_RESULTS = re.compile(r"\b[A-Z]\w+(Result|States)\b")
_WIDTH = 132


def text() -> str:
    """The text of the file."""
    homes = {f"tvmdml.{module}": list(names) for module, names in vars(tvmdml)["_MODULES"].items()}
    homes |= {f"tvmdml.{module}": names for module, names in enums.public_names_by_module().items()}
    descriptors = operators.public_names_by_module()
    imports = {(module, name): f"from {module} import {name} as {name}" for module, names in homes.items() for name in names}
    imports |= {(module, name): f"from {module} import {name}" for module, names in _ALSO.items() for name in names}
    imports |= {("tvmdml.operators", module): f"from tvmdml.operators import {module} as _{module}" for module in descriptors}
    made = {name: value for module in operators.modules() for name, value in doors.public_names(module).items()}
    classes = {name: value for name, value in made.items() if not inspect.isfunction(value)}
    lines = [imports[key] for key in sorted(imports, key=lambda key: (key[0], not key[1][0].isupper(), key[1].lower()))]
    lines += ["", '_Array = TypeVar("_Array", bound=Array | Expression)', ""]
    for module, names in descriptors.items():
        for name in names:
            lines += _descriptor(module, name, operators.public_name(name))
    for name, value in classes.items():
        lines += [f"class {name}(NamedTuple, Generic[_Array]):", *map(_field, value._fields), ""]
    for name, value in made.items():
        if name not in classes:
            lines += written(name, value)
    return _HEAD + "\n".join([*lines, "", "__version__: str", ""])


def _descriptor(module: str, name: str, cls: Any) -> list[str]:
    """The lines that declare a descriptor: its fields take what they convert, such as the names of enumerators."""
    own = (f"{one.name}: {annotation(one, 'TensorDesc')}" + " = ..." * (one.default is not MISSING) for one in cls.fields())
    stated = ["self", "*", *own]
    return [f"class {name}(_{module}.{name}):", *("    " + line for line in _wrapped("def __init__(", stated, ") -> None: ..."))]


def _field(name: str) -> str:
    return f"    {name}: _Array" + "  # type: ignore[assignment] # tuples have a method of this name" * hasattr(tuple, name)


def written(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """The lines that declare a function: each of its forms for NumPy's arrays, then for others."""
    forms = signatures(function)
    for form in forms:
        hints = [str(one.annotation) for one in form.parameters.values() if one.name != "out"]
        several = sum("AnyArray" in hint or "Operand" in hint for hint in hints) > 1 or any("[AnyArray]" in hint for hint in hints)
        for array, others in _KINDS if several else _KINDS[::2]:
            kind = _RESULTS.sub(rf"\g<0>[{array}]", str(form.return_annotation)).replace("AnyArray", array)
            stated, keywords, taken = [], False, 0
            for parameter in form.parameters.values():
                hint, default = str(parameter.annotation), "" if parameter.default is parameter.empty else " = ..."
                if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
                    keywords = True
                    stated.append("*")
                if parameter.name == "out":
                    hint = hint.replace("AnyArray", array)
                    if not taken and array == "_Array":  # nothing but the output says which kind it is
                        hint, default = hint.removesuffix(" | None"), ""
                else:
                    taken += "AnyArray" in hint or "Operand" in hint
                    hint = hint.replace("AnyArray", others).replace("Operand", f"{others} | Number")
                stated.append(f"{parameter.name}: {hint}{default}")
            yield "@overload"
            yield from _wrapped(f"def {name}(", stated, f") -> {kind}: ...")


def _wrapped(begin: str, stated: list[str], end: str) -> list[str]:
    """A declaration on one line if it fits, else with its parameters on as few as hold them."""
    line = f"{begin}{', '.join(stated)}{end}"
    if len(line) <= _WIDTH:
        return [line]
    inside = ", ".join(stated).replace(" ", "\0").replace(",\0", ", ")  # breaks between parameters only
    lines = textwrap.wrap(inside, _WIDTH - 4, break_on_hyphens=False, break_long_words=False)
    return [begin, *("    " + line.replace("\0", " ") for line in lines), end]


if __name__ == "__main__":
    PATH.write_text(text())
