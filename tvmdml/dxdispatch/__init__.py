"""Reads and runs DirectML's JSON models, like DirectML's own tool DxDispatch.

A model has ``resources`` (named buffers), ``dispatchables`` (operators, ONNX models, serialized graphs) and ``commands``. The
whole model is read and checked before any part of it runs. It accesses no memory except its buffers, reads no files outside its own
folder (or ``input_path``), and writes none outside ``output_path``.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tvmdml import targets
from tvmdml.dxdispatch import commands, dispatchables, resources
from tvmdml.dxdispatch.bindings import RunBuffers
from tvmdml.dxdispatch.commands import Command, ModelRun
from tvmdml.dxdispatch.dispatchable import Dispatchable
from tvmdml.dxdispatch.resources import Resource
from tvmdml.enums import FeatureLevel
from tvmdml.operators._json import nodes
from tvmdml.system.console import printable
from tvmdml.system.timings import Timing
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
    operators = dispatchables.read(root.need("dispatchables", "an object"), declared, folder)
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
        tell: bool = False,
    ) -> None:
        """Run the commands, with newly initialised resources.

        Args:
            target: where to run.
            feature_level: the feature level that operators are checked against; ``None`` is the newest.
            output_path: the folder for written files; no file outside it is written. Required if the model writes files.
            overwrite: replace files in that folder that existed before this run.
            timing: how often each dispatch runs; once by default.
            write: receives the printed text; by default it is written to standard output.
            tell: write a line before and after each command.

        Raises:
            ModelError: a dispatchable, a binding or a command is invalid, and no command was run; or a file cannot be written.
            CompileError, DeviceError: a kernel or the device is not available.
        """
        machine = targets.resolve(target)
        timing, write = timing or Timing(), write or sys.stdout.write
        write(f"Running on '{printable(targets.shown(machine.home))}'\n")
        memory = RunBuffers(self.resources, resources.allocate(self.resources))
        compiled = {}
        for name, dispatchable in self.dispatchables.items():
            started = time.perf_counter()
            compiled[name] = dispatchable.compiled(machine, feature_level)
            if timing.verbosity > 0:
                write(f"Initialize '{printable(name)}': {1e3 * (time.perf_counter() - started):.4f} ms\n")
        for runner in compiled.values():
            runner.initialize(memory)
        folder = None if output_path is None else Path(output_path)
        session = ModelRun(memory, compiled, folder, overwrite, set(), timing, write)
        for command in self.commands:
            command.check(session)
        for i, command in enumerate(self.commands):
            said = f"command {i}, {type(command).__name__}\n"
            if tell:
                write(f"Begin {said}")
            command.run(session)
            if tell:
                write(f"End {said}")
