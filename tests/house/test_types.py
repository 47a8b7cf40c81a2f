"""What type checkers see: every public function has types, and the pages' examples pass, from outside of the clone."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import readmes
from folders import TOP

import tvmdml
from tvmdml.doors._made import signatures
from tvmdml.operators import Operator
from tvmdml.tensors.arrays.device_array import DeviceArray

# -- No public function takes or returns Any ----------------------------------------------------------------------------

_ANY = {
    "DeviceArray.tolist": "numbers, in lists as deep as the array has dimensions",
    "DeviceArray.item": "a number of the array's type",
    "Runnable.__call__": "an output of an ONNX model may be an array, a list, a dictionary or None",
    "Operator.of": "inputs and attributes of every operator",
    "Operator.fused": "attributes of every activation",
    **dict.fromkeys(
        [f"CompiledGraph.{name}" for name in ("of_parts", "timed", "events")]
        + ["DeviceArray.library", "Expression.tracer", "Graph.trace_call"],
        "for other parts of the package: arrays, libraries and recorders of every kind",
    ),
}
"""Public functions with Any, and why there is no better type."""
_CLASSES = ("CompiledGraph", "CompiledOperator", "DeviceArray", "Expression", "Graph", "TensorDesc")
_OPERATOR = (Operator.of, Operator.fused)  # other methods of descriptors are for who writes operators


def _public() -> Iterator[tuple[str, Callable[..., object]]]:
    """The functions that programs call, by their names."""
    for name in dir(tvmdml):
        if inspect.isfunction(value := getattr(tvmdml, name)):
            yield name, value
    for name in ("build", "load_pack", "record"):
        yield f"packs.{name}", getattr(importlib.import_module("tvmdml.packs"), name)
    onnx = importlib.import_module("tvmdml.onnx")
    yield "onnx.load", onnx.load
    yield "Runnable.__call__", importlib.import_module("tvmdml.onnx.running").Runnable.__call__
    for function in _OPERATOR:
        yield f"Operator.{function.__name__}", function.__func__  # type: ignore[attr-defined]
    for name in _CLASSES:
        for member, value in vars(getattr(tvmdml, name)).items():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            public = not member.startswith("_") or member in ("__call__", "__getitem__")
            if inspect.isfunction(function) and public and "Not public" not in str(function.__doc__):
                yield f"{name}.{member}", function


def _said(function: Callable[..., object]) -> Iterator[str]:
    """What a function's annotations are, those of its overloads if it has some."""
    for signature in signatures(function):
        yield from (str(one.annotation) for one in signature.parameters.values() if one.name not in ("self", "cls"))
        yield str(signature.return_annotation)


def test_no_public_function_has_any() -> None:
    public = dict(_public())
    assert len(public) > 200
    unknown = re.compile(r"(?<!dtype\[)\bAny\b|_empty")
    assert {name for name, function in public.items() if any(map(unknown.search, _said(function)))} == set(_ANY)
    assert not re.search(r"\bAny\b", (TOP / "tvmdml" / "__init__.pyi").read_text())


# -- Examples ---------------------------------------------------------------------------------------------------------

Check = Callable[[Path, str], tuple[list[str], list[str]]]
"""Checks a file in a folder: the types that it asks for, and the errors."""

_PAGES = ("README.md", "tvmdml/README.md")
_ASKED = """
import numpy as np
import tvmdml

x = np.ones((2, 3), np.float32)
graph = tvmdml.Graph()
traced = graph.input((2, 3))
reveal_type(tvmdml.top_k(x, 2).indices)
reveal_type(tvmdml.add(x, 0.5))
reveal_type(tvmdml.add(x, traced))
reveal_type(tvmdml.join([traced, x], axis=0))
reveal_type(tvmdml.top_k(tvmdml.asarray(x, device="vulkan"), 2).values)
reveal_type(graph.compile(traced)({"a": x})[0])
"""
_ANSWERS = ["ndarray", "ndarray", "Expression", "Expression", "DeviceArray", "ndarray"]
_WRONG = "import tvmdml\ntvmdml.top_k('abc', 2)\n"


def _example(page: str) -> str:
    """The sessions of a page as one program; those that show an error are left out."""
    parser = doctest.DocTestParser()
    sessions = [block.text for block in readmes.blocks((TOP / page).read_text()) if ">>>" in block.text]
    examples = [one for session in sessions for one in parser.get_examples(session)]
    return "".join(one.source for one in examples if one.exc_msg is None)


def _mypy(folder: Path, name: str) -> tuple[list[str], list[str]]:
    options = ("--ignore-missing-imports", "--check-untyped-defs", "--cache-dir", str(folder / "mypy"))
    command = [sys.executable, "-m", "mypy", *options, name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return re.findall(r'Revealed type is "(.*)"', done.stdout), [line for line in done.stdout.splitlines() if ": error:" in line]


def _pyright(folder: Path, name: str) -> tuple[list[str], list[str]]:
    """The same of pyright, as basedpyright packages it, with pyright's own rules."""
    rules = {"typeCheckingMode": "standard", "reportMissingImports": "none", "reportUnusedExpression": "none"}
    (folder / "pyrightconfig.json").write_text(json.dumps(rules))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    told = [one["message"] for one in found if one["severity"] == "information"]
    return [re.sub(r'.* is "(.*)"', r"\1", said) for said in told], [one["message"] for one in found if one["severity"] == "error"]


@pytest.mark.full
@pytest.mark.parametrize("check", [_mypy, _pyright], ids=["mypy", "pyright"])
def test_checkers_find_an_editable_install_and_its_types(check: Check, tmp_path: Path) -> None:
    (tmp_path / "asked.py").write_text(_ASKED)
    answers, errors = check(tmp_path, "asked.py")
    assert errors == []
    for wanted, said in zip(_ANSWERS, answers, strict=True):
        assert re.search(rf"(^|\.){wanted}\b", said), f"{wanted} wanted: {said}"
    (tmp_path / "wrong.py").write_text(_WRONG)
    assert check(tmp_path, "wrong.py")[1], "an array that is none was not refused"
    for page in _PAGES:
        name = f"{page.replace('/', '_').removesuffix('.md')}.py"
        (tmp_path / name).write_text(_example(page))
        assert check(tmp_path, name)[1] == [], page


def test_a_device_array_is_an_array_of_dlpack() -> None:
    assert hasattr(DeviceArray, "__dlpack_device__"), "``typing.Array`` asks for it"
