"""The command line: options that say what an operation is, and whole commands; exit codes are 0, 1 and 2, and nothing is raised."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import click
from click.testing import CliRunner

from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml import cli, options
from tvmdml.operators import all_operators
from tvmdml.options import OperationOptions
from tvmdml.tensors import TensorDataType

EXAMPLES = 150
_FIELDS = tuple(field.dml_name for cls in all_operators().values() for field in cls.fields())
WORDS = (
    *_FIELDS, "=", ":", ",", "[", "]", "(", ")", "2,3", "4", "0", "-1", "4294967296", "float32", "uint64", "DECREASING",
    "TOWARD_ZERO", "nan", "1e999", "{", "}", '"', "'", "null", "true", "0x10", "//", "K=2", "Axis=1", "value",
    "OutputTensor=uint64:8,2", "9" * 25,
)  # fmt: skip
_COMMANDS = (
    ("source",), ("run",), ("operators",), ("cache", "info"), ("pack", "inspect"), ("pack", "diff"), ("pack", "sign"),
    ("pack", "build"), ("tuning", "show"), ("tuning", "validate"), ("tuning", "merge"), ("tune",), ("pack",), ("tuning",),
    ("cache",), (), ("bench", "--filter"),
)  # fmt: skip
_SWITCHES = (
    "--sizes", "--dtype", "--attr", "--tensor", "--model", "--dispatchable", "--kind", "--device", "--feature_level", "--json",
    "--operator", "--in_place", "--trials", "--target", "--output", "-o", "--size", "--key", "-i", "-r", "-t", "-v",
    "--input_path", "--output_path", "--help", "--adapter", "--", "-", "--x",
)  # fmt: skip


def one(choices: Choices) -> None:
    """Values of options, each read on its own, and together; or the words of a command."""
    if choices.flag(3):
        _whole(choices)
        return
    with refusals(click.UsageError):
        sizes = options._sizes(choices.text(("2,3", "4", "[2,", "3]", ",", "4,5,6"), 3)) if choices.flag() else (3, 4)
        dtype = (
            options._data_type(choices.text(tuple(TensorDataType.__members__), 2)) if choices.flag(3) else TensorDataType.FLOAT32
        )
        attributes = tuple(options._attribute(_attribute(choices)) for _ in range(choices.integer(0, 4)))
        tensors = tuple(options._tensor(_tensor(choices)) for _ in range(choices.integer(0, 2)))
        name = choices.pick(tuple(all_operators()))
        desc = OperationOptions(sizes, dtype, attributes, tensors, None, None).describe(name, extensions=choices.flag())
        repr(desc)


def _attribute(choices: Choices) -> str:
    return choices.text(WORDS) if choices.flag(4) else f"{choices.pick(_FIELDS)}={choices.text(WORDS, 3)}"


def _tensor(choices: Choices) -> str:
    return (
        choices.text(WORDS)
        if choices.flag(4)
        else f"{choices.pick(_FIELDS)}={choices.text(('float32', ':', '2,3', '4', 'int8'), 2)}"
    )


def _whole(choices: Choices) -> None:
    """None of these commands does much: what would is told to do it to nothing."""
    Path("file.json").write_text("{}")
    command = choices.pick(_COMMANDS)
    words = [
        choices.pick((*_SWITCHES, "file.json", "TOP_K1", choices.text(WORDS, 3), choices.text((), 3)))
        for _ in range(choices.integer(0, 6))
    ]
    words = [word if word in _SWITCHES else word.replace("/", "|") for word in words]
    if command[:1] in (("tune",), ("bench",)) or (
        command and "run" in command and any(word.startswith(("-t", "--mil")) for word in words)
    ):
        words = [*words, "--no-such-option"]
    with mock.patch.dict(os.environ, {"TVMDML_CACHE_DIR": "cache", "XDG_DATA_HOME": str(Path("data").absolute())}):
        done = CliRunner().invoke(cli.main, [*command, *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1, 2), (command, words, done.output)
