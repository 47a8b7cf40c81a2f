"""Parts of small JSON models, and what a refused one is told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tvmdml.errors import ModelError

Run = Callable[..., list[str]]


def resource(values: Any, data_type: str | None = "FLOAT32", **more: Any) -> dict[str, Any]:
    return {**({"initialValuesDataType": data_type} if data_type else {}), "initialValues": values, **more}


def tensor(*sizes: int, data_type: str = "FLOAT32", **more: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes), **more}


def prints(**declared: Any) -> dict[str, Any]:
    """A model that prints its resources."""
    return {
        "resources": declared,
        "dispatchables": {},
        "commands": [{"type": "print", "resource": name} for name in declared],
    }


def rounding() -> dict[str, Any]:
    """A small model that is right."""
    return {
        "resources": {"input": resource([1.5, 2.5, -0.4, "nan"]), "output": resource({"valueCount": 4, "value": 9})},
        "dispatchables": {
            "round": {
                "type": "DML_OPERATOR_ELEMENT_WISE_ROUND",
                "desc": {"InputTensor": tensor(4), "OutputTensor": tensor(4), "RoundingMode": "TOWARD_ZERO"},
            }
        },
        "commands": [
            {"type": "dispatch", "dispatchable": "round", "bindings": {"InputTensor": "input", "OutputTensor": "output"}},
            {"type": "print", "resource": "output"},
        ],
    }


ABSENT = object()


def changed(model: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a model with one place changed or taken away; a path is such as ``commands.0.bindings``."""
    result = copy.deepcopy(model)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = result
    for step in way:
        place = place[step]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return result


def refusal(run: Run, model: Any, **options: Any) -> str:
    """What a refused model is told, without the file's name, which is always there."""
    with pytest.raises(ModelError) as caught:
        run(model, **options)
    text = str(caught.value)
    assert text.startswith("model.json: ")
    assert ": given " in text
    assert "; allowed: " in text
    return text.removeprefix("model.json: ")
