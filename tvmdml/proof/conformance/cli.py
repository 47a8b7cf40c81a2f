"""``tvmdml conformance``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmdml.errors import InvalidArgument, message
from tvmdml.options import feature_level_option, operators_option
from tvmdml.system.console import INTERRUPTED, parsed, print_json, say, table

if TYPE_CHECKING:
    from tvmdml.proof.conformance.checks import CheckOutcome

_STDOUT = "-"


def _device(text: str) -> str:
    from tvmdml import targets

    targets.resolve(text, "device")
    return text


def _file(text: str) -> str:
    path = Path(text)
    if text != _STDOUT and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InvalidArgument(message("--json", repr(text), "a file in a folder that exists"))
    return text


@click.command()
@click.option(
    "--device",
    "--target",
    "devices",
    metavar="TARGET",
    multiple=True,
    callback=parsed(_device),
    help="Only this device; may be repeated.",
)
@operators_option
@click.option("--models/--no-models", default=True, help="Also run DxDispatch models.  [default: yes]")
@click.option("--onnx", is_flag=True, help="Also run ONNX's own test cases; needs the package onnx.")
@click.option("--every-case", is_flag=True, help="Run all cases; else, without --operator, some of each operator are drawn.")
@click.option(
    "--seed", type=click.IntRange(0, (1 << 64) - 1),
    help="Seed of the inputs and of the draw; reports with the default seed can be compared.",
)  # fmt: skip
@feature_level_option
@click.option(
    "--json", "json_path", metavar="[FILE]", is_flag=False, flag_value=_STDOUT, callback=parsed(_file),
    help="Write a full report for sharing, as JSON; without a FILE, print it instead of the table.",
)  # fmt: skip
def conformance(
    devices: tuple[str, ...],
    names: tuple[str, ...],
    models: bool,
    onnx: bool,
    every_case: bool,
    seed: int | None,
    feature_level: Any,
    json_path: str | None,
) -> None:
    """Check that operators follow DirectML's contracts on this machine; --json writes a report for sharing.

    It runs on the processor and every working device: each rule of the contracts broken once, kernels compared with the reference
    bit for bit, DxDispatch models, and with --onnx ONNX's own test cases. Kernels run in separate processes, with default knobs.
    The exit code is 1 if anything failed, or no kernel ran. Ctrl-C keeps the results so far.
    """
    from tvmdml.proof.conformance.plan import plan as planned
    from tvmdml.proof.conformance.report import Report
    from tvmdml.proof.conformance.terms import SEED

    parts = ["rules", "cases", *(["models"] if models else []), *(["onnx"] if onnx else [])]
    wanted = SEED if seed is None else seed
    plan = planned(devices, names, parts=parts, seed=wanted, feature_level=feature_level, every_case=every_case)
    report = Report(plan.targets, plan.seed, plan.level, [], cases=plan.cases)
    code = 0
    with _progress(plan.total) as show:
        try:
            for outcome in plan.outcomes():
                report.outcomes.append(outcome)
                show(outcome)
        except KeyboardInterrupt:
            report.left, code = plan.total - len(report.outcomes), INTERRUPTED
    if json_path == _STDOUT:
        print_json(report.json())
    else:
        table(*report.summary(parts))
        for line in report.lines():
            say(line, fg="red" if line.startswith("FAILED") else None)
        if json_path is not None:
            _write(Path(json_path), report.json())
    sys.exit(code or (0 if report.ok else 1))


def _write(path: Path, content: Any) -> None:
    import json

    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(f"report: {path}")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[CheckOutcome], None]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, emoji=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda outcome: bar.update(task, advance=1, description=f"{outcome.target} {outcome.operator} {outcome.part}")
