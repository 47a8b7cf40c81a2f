"""Reads and runs DirectML's JSON models, like DirectML's own tool DxDispatch.

A model has ``resources`` (named buffers), ``dispatchables`` (named operators) and ``commands``. The whole model is read and checked
before any part of it runs. It accesses no memory except its buffers, reads no files outside its own folder (or ``input_path``), and
writes none outside ``output_path``.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tvmdml import targets
from tvmdml.compiler import CompiledOperator
from tvmdml.compiler import compile as compile_operator
from tvmdml.console import printable
from tvmdml.dxdispatch import bindings, commands, dispatchables, nodes, resources
from tvmdml.dxdispatch.bindings import AnyArray
from tvmdml.dxdispatch.commands import Command, Owned, Session, Timing
from tvmdml.dxdispatch.dispatchables import Dispatchable
from tvmdml.dxdispatch.resources import Resource
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.targets import Target

__all__ = ["Model", "Timing", "read"]


def read(path: str | Path, *, input_path: str | Path | None = None) -> Model:
    """Read a model file.

    Args:
        path: the file: JSON; comments and trailing commas are allowed.
        input_path: the folder with the data files; no file outside it is read. By default the model's folder.

    Raises:
        ModelError: it cannot be read, or is invalid; the message names the file, the position and the allowed values.
    """
    root = nodes.read(Path(path))
    root.only(("resources", "dispatchables", "commands"), ignored=[name for name in root.members() if name.startswith("$")])
    folder = Path(path).parent if input_path is None else Path(input_path)
    declared = {name: resources.read(node, folder) for name, node in root.need("resources", "an object").members().items()}
    operators = dispatchables.read(root.need("dispatchables", "an object"), declared)
    steps = [commands.read(node, declared, operators) for node in root.need("commands", "a list").items()]
    return Model(declared, operators, steps)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that was read and is ready to run."""

    resources: dict[str, Resource]
    dispatchables: dict[str, Dispatchable]
    commands: list[Command]

    def run(
        self,
        target: str | Target = "cpu",
        *,
        feature_level: str | FeatureLevel | None = None,
        output_path: str | Path | None = None,
        overwrite: bool = False,
        timing: Timing | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        """Run the commands, with newly initialised resources.

        Args:
            target: where to run.
            feature_level: the feature level that operators are checked against; ``None`` is the newest.
            output_path: the folder for written files; no file outside it is written. Required if the model writes files.
            overwrite: replace files in that folder that existed before this run.
            timing: how often each dispatch runs; once by default.
            write: receives the printed text; by default it is written to standard output.

        Raises:
            ModelError: a dispatchable, a binding or a command is invalid, and no command was run; or a file cannot be written.
            CompileError, DeviceError: a kernel or the device is not available.
        """
        machine = targets.resolve(target)
        timing, write = timing or Timing(), write or sys.stdout.write
        write(f"Running on '{printable(targets.shown(machine.home))}'\n")
        buffers = resources.allocate(self.resources)
        compiled = {}
        for name, dispatchable in self.dispatchables.items():
            started = time.perf_counter()
            compiled[name] = _compile(dispatchable, machine, feature_level)
            if timing.verbosity > 0:
                write(f"Initialize '{printable(name)}': {1e3 * (time.perf_counter() - started):.4f} ms\n")
        owned = {
            name: _initialized(compiled[name], d, bindings.arrays(d.desc, d.owned, self.resources, buffers, frozen=True))
            for name, d in self.dispatchables.items()
        }
        folder = None if output_path is None else Path(output_path)
        session = Session(self.resources, buffers, compiled, owned, folder, overwrite, set(), timing, write)
        for command in self.commands:
            command.check(session)
        for command in self.commands:
            command.run(session)


def _initialized(operator: CompiledOperator, dispatchable: Dispatchable, bound: dict[str, list[AnyArray]]) -> Owned:
    """The bound arrays of fields with tensors that are OWNED_BY_DML: ``None`` for those tensors, which the operator keeps."""
    desc = dispatchable.desc
    names = [[name for name, _ in desc.tensors() if name.partition("[")[0] == field.name] for field in desc.fields()]
    own = {field.dml_name: some for field, some in zip(desc.fields(), names, strict=True)}
    every = {name: array for field, arrays in bound.items() for name, array in zip(own[field], arrays, strict=True)}
    owned = set(desc.owned())
    try:
        operator.initialize(**{name: array for name, array in every.items() if name in owned})
    except InvalidArgument as error:
        raise dispatchable.node.blame(error, desc.NAME, bound) from None
    return {field: [None if name in owned else every[name] for name in own[field]] for field in bound}


def _compile(dispatchable: Dispatchable, target: Target, level: str | FeatureLevel | None) -> CompiledOperator:
    desc = dispatchable.desc
    level = FeatureLevel.of(level)
    try:
        desc.validate(level)
    except (InvalidArgument, Unsupported) as error:
        raise dispatchable.node.blame(error, desc.NAME, [field.dml_name for field in desc.fields()]) from None
    try:
        return compile_operator(desc, target, level)
    except Unsupported as error:  # other errors are not the model's fault
        raise dispatchable.node.blame(error, desc.NAME, [field.dml_name for field in desc.fields()]) from None
