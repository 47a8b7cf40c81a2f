"""``tvmdml tune``: search for faster knobs, and log the winners."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmdml.errors import DeviceError, InvalidArgument, counted, message
from tvmdml.options import OperationOptions, in_place_options, operation_options, operator_name, size_option
from tvmdml.system.console import INTERRUPTED, parsed, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tvmdml.library.log_terms import Tuned
    from tvmdml.library.spec import Wanted
    from tvmdml.packs.graphs import GraphSource

_FILE = click.Path(dir_okay=False, path_type=Path)


def _operator_or_model(text: str) -> str | Path:
    path = Path(text)
    return path if path.suffix.lower() in (".onnx", ".graph") else operator_name(text)


@click.command()
@click.argument("operator", required=False, callback=parsed(_operator_or_model))
@operation_options
@in_place_options
@click.option("--spec", metavar="FILE", type=_FILE, help="Tune every operation of a pack's spec or a model, instead of OPERATOR.")
@size_option("open_sizes")
@click.option("--bench", is_flag=True, help="Tune every operation of the benchmark's quick set.")
@click.option(
    "--target",
    "--device",
    "targets",
    metavar="TARGET",
    multiple=True,
    help="The target: cpu, cpu:x86-64-v3, cuda:0, vulkan:0 …  [default: the spec's, or cpu]",
)
@click.option("--trials", type=click.IntRange(1), default=64, show_default=True, help="Maximum candidates for each operation.")
@click.option(
    "--logs",
    "folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for logs.  [default: the user's own logs]",
)
@click.option("--fresh", is_flag=True, help="Discard earlier trials and try all candidates again.")
@click.option("--seed", type=click.IntRange(0, (1 << 30) - 1), default=0, help="Random seed of the search.")
@click.option("--report", metavar="OUT.html", type=_FILE, help="Write a report with pictures; .html or .png.")
@click.option("--tracker", metavar="HOST:PORT", help="Try candidates on the machines of a TVM RPC tracker.")
@click.option("--key", metavar="NAME", help="The name of those machines at the tracker.")
def tune(
    operator: str | Path | None,
    operation: OperationOptions,
    in_place: bool | str,
    spec: Path | None,
    open_sizes: tuple[tuple[str, int], ...],
    bench: bool,
    targets: tuple[str, ...],
    trials: int,
    folder: Path | None,
    fresh: bool,
    seed: int,
    report: Path | None,
    tracker: str | None,
    key: str | None,
) -> None:
    """Search for the knobs that make an OPERATOR fastest on this machine, and log them. From then on they are used here.

    \b
    tvmdml tune TOP_K1 --shape 32,32000 --attr K=50 --attr Axis=1 --trials 128
    tvmdml tune --spec pack.toml --target cuda:0 --report out.html
    tvmdml tune model.onnx --size batch=1

    Of an ONNX model or a saved graph, kernels get trials by their shares of the time of a run; --trials is the average.
    Every candidate is checked against the reference before it is timed. Ctrl-C keeps the results so far, and the same command
    continues from there.
    """  # noqa: D301 - click's mark for text that is not rewrapped
    if isinstance(operator, Path):
        if spec is not None:
            raise click.UsageError("Give exactly one of OPERATOR, --spec and --bench.")
        operator, spec = None, operator
    if (operator is not None or operation.given) + (spec is not None) + bench != 1:
        raise click.UsageError("Give exactly one of OPERATOR, --spec and --bench.")
    if in_place and operator is None:
        raise click.UsageError("--in-place and --shared need an OPERATOR; in a spec, each operation states it.")
    if (tracker is None) != (key is None):
        raise click.UsageError("--tracker and --key must be given together: a tracker lists machines by key.")
    try:
        from tvmdml.tuning import report as reports
        from tvmdml.tuning import rivals
        from tvmdml.tuning.display import ProgressDisplay
        from tvmdml.tuning.tuner import tune as run

        if report is not None:
            reports.check(report)
        wanted, named, graphs = _wanted(operator, operation, in_place, spec, dict(open_sizes), bench)
        found: list[Tuned] = []
        with ProgressDisplay() as display:
            for target in targets or _here(named) or ("cpu",):
                for several, count in _by_trials(wanted, graphs, target, trials):
                    found += run(
                        several,
                        target=target,
                        trials=count,
                        folder=folder,
                        tracker=tracker,
                        key=key,
                        display=display,
                        fresh=fresh,
                        seed=seed,
                    )
        if found:
            _note(_where(folder))
        if report is not None:
            reports.write(report, found, rivals.peers_of(found, _note))
            click.echo(str(report))
    except KeyboardInterrupt:
        click.echo("interrupted: every finished trial is kept; the same command continues from there", err=True)
        sys.exit(INTERRUPTED)


def _where(folder: Path | None) -> str:
    from tvmdml.library import log_folders

    if folder is None:
        return f"logged in {log_folders.user_folder()}, which is used from now on"
    used = any(folder.resolve() == other.resolve() for other in log_folders.folders())
    return f"logged in {folder}" + ("" if used else f", which is used with TVMDML_TUNING_LOGS={folder.resolve()}")


def _note(text: str) -> None:
    say(text, dim=True, err=True)


def _here(named: Sequence[str]) -> list[str]:
    """The targets of a spec that this machine can run; a pack is often built for more."""
    from tvmdml.tuning import tuner

    found = []
    for target in named:
        try:
            found.append(tuner.here(target).name)
        except (InvalidArgument, DeviceError) as error:
            _note(f"{target}: left out: {error}")
    if named and not found:
        raise InvalidArgument(
            message(
                "tune",
                f"a spec for {', '.join(named)}",
                "a target of this machine",
                "this machine has none of the spec's targets: name one with --target.",
            )
        )
    return found


def _wanted(
    operator: str | None,
    operation: OperationOptions,
    in_place: bool | str,
    spec: Path | None,
    sizes: Mapping[str, int],
    bench: bool,
) -> tuple[Sequence[Wanted], Sequence[str], Sequence[GraphSource]]:
    """The operations to tune, the targets that a spec names, and graphs."""
    from tvmdml.library.spec import Wanted
    from tvmdml.operators import _shared
    from tvmdml.packs import sources

    if spec is not None:
        read = sources.read([spec], sizes=sizes)
        return read.wanted, read.targets, read.graphs
    if bench:
        return quick_set(), (), ()
    desc = operation.describe(operator, extensions=True)
    return [Wanted(desc, _shared.read(desc, in_place, "tune"))], (), ()


def _by_trials(
    wanted: Sequence[Wanted], graphs: Sequence[GraphSource], target: str, trials: int
) -> Iterator[tuple[Sequence[Wanted], int]]:
    """What to tune with how many trials: the kernels of graphs by their shares of the time."""
    if wanted:
        yield wanted, trials
    for graph in graphs:
        from tvmdml.tuning import of_graphs, tuner

        for one in of_graphs.shares(graph, tuner.here(target), trials):
            _note(f"{graph.name}: {one.share:.1%} of the time, {counted(one.trials, 'trial')}: {one.wanted.desc.NAME}")
            yield [one.wanted], one.trials


def quick_set() -> list[Wanted]:
    """The operations of the benchmark's quick set, each once."""
    from tvmdml.library.spec import Wanted
    from tvmdml.proof.bench import tables

    cases = tables.select(False, (), "", "cpu")
    return list(dict.fromkeys(Wanted(case.work.describe(), case.work.shared()) for case in cases))
