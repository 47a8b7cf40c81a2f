"""The command ``tvmdml bench``: checks the request before anything is measured, and then carries it out."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import DeviceError, InvalidArgument, message
from tvmdml.proof.bench import logs_in_force, measure, peers, report, results, runner, tables, venues
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.results import BenchRun, CaseResult
from tvmdml.system import installing
from tvmdml.system.console import INTERRUPTED
from tvmdml.targets import Target
from tvmdml.targets.cpu.thread_count import thread_count

if TYPE_CHECKING:
    from rich.console import Console


class BenchRequest(NamedTuple):
    """The command's options."""

    full: bool = False
    operators: tuple[str, ...] = ()
    text: str = ""
    threads: int | None = None
    json_path: str | None = None
    plot_path: str | None = None
    page_path: str | None = None
    old: BenchRun | None = None
    resume: bool = False
    target: Target | None = None
    html_path: str | None = None
    prepare: bool = False
    """Of known models: compile, and measure nothing."""

    @property
    def kind(self) -> str:
        """The kind of the target, which decides the table of cases."""
        return "cpu" if self.target is None else self.target.kind


class CheckedRequest(NamedTuple):
    """A request that was checked."""

    cases: list[Case]
    """The cases that are still to be measured."""
    run: BenchRun
    options: runner.Options
    json_path: Path | None
    plot_path: Path | None
    page_path: Path | None
    old: BenchRun | None


def prepare(request: BenchRequest) -> CheckedRequest:
    """Check a request.

    Raises:
        InvalidArgument: the request is not valid.
        DeviceError: the device cannot be used.
    """
    chosen = "full" if request.full else "quick"
    selected = select(request)
    plot_path, page_path = plot_file(request), page_file(request)
    venues.of(request.target).open()
    threads = request.threads or thread_count()
    run = BenchRun(threads, chosen, results.machine(request.target), logs=logs_in_force.folders())
    run, json_path = opened(run, request)
    left = [case for case in selected if case.name not in run.done()]
    pace = measure.FULL if request.full else measure.QUICK
    options = runner.Options(pace, thorough=request.full, threads=request.threads, target=request.target)
    return CheckedRequest(left, run, options, json_path, plot_path, page_path, request.old)


def opened(run: BenchRun, request: BenchRequest) -> tuple[BenchRun, Path | None]:
    """The run that is continued, if the request asks for that, and the file of results, which can be written.

    Raises:
        InvalidArgument: it cannot, or it is no file of this machine's results.
    """
    path = None if request.json_path is None else Path(request.json_path)
    if request.resume:
        run = _resumed(run, path)
    elif path is not None and path.exists():
        results.read(path)  # an earlier run may be overwritten, but no other file
    if path is not None and not path.exists():
        results.write(run, path)  # if this fails, it should fail before the first case
    return run, path


def select(request: BenchRequest) -> list[Case]:
    """The requested cases.

    Raises:
        InvalidArgument: there are none; the message lists the existing ones.
    """
    found = tables.select(request.full, request.operators, request.text, request.kind)
    if found:
        return found
    asked = f"no case of the {'full' if request.full else 'quick'} set"
    asked += f" with {request.text!r} in its name" if request.text else ""
    of = f" of {', '.join(request.operators)}" if request.operators else ""
    if more := tables.select(True, request.operators, request.text, request.kind):
        raise InvalidArgument(message("bench", asked + of, "a case of the set", f"--full has {len(more)} of them: add --full."))
    rows = list(dict.fromkeys(case.row for case in tables.select(True, request.operators, "", request.kind)))
    if not rows:
        advice = "Time it with `tvmdml tune`, or `tvmdml run` of a model with it."
        raise InvalidArgument(message("bench", asked + of, "an operator that rows measure", advice))
    raise InvalidArgument(message("bench", asked + of, f"a part of a row's name ({', '.join(rows)}) or case's"))


def plot_file(request: BenchRequest) -> Path | None:
    """The file of the picture, which can be drawn.

    Raises:
        InvalidArgument: it cannot.
    """
    if request.plot_path is None:
        return None
    path = _file("--plot", request.plot_path, ".png")
    if not _installed("matplotlib"):
        raise InvalidArgument(
            message("--plot", "a Python without Matplotlib", "a Python that has it", f"{installing.command('bench')} installs it.")
        )
    return path


def page_file(request: BenchRequest) -> Path | None:
    """The file of the page.

    Raises:
        InvalidArgument: it cannot be written.
    """
    return None if request.page_path is None else _file("--page", request.page_path, ".md")


def html_file(request: BenchRequest) -> Path | None:
    """The file of the page for browsers.

    Raises:
        InvalidArgument: it cannot be written.
    """
    return None if request.html_path is None else _file("--html", request.html_path, ".html")


def _file(option: str, given: str, suffix: str) -> Path:
    path = Path(given)
    if path.suffix.lower() != suffix:
        raise InvalidArgument(message(option, repr(str(path)), f"the path of a {suffix} file"))
    if not path.parent.is_dir():
        raise InvalidArgument(message(option, repr(str(path)), "a file in a folder that exists"))
    return path


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _resumed(run: BenchRun, path: Path | None) -> BenchRun:
    if path is None:
        raise InvalidArgument(message("--resume", "no file", "the file of an interrupted run", "Name it with --json."))
    if not path.exists():
        return run
    earlier = results.read(path)
    for what in ("machine", "threads", "versions"):  # figures of one file must be comparable
        there, here = getattr(earlier, what), getattr(run, what)
        if there != here:
            raise InvalidArgument(
                message(
                    "--resume",
                    f"{path}, with {_difference(what, there, here)}",
                    "a run on the same machine, with the same threads and versions",
                )
            )
    earlier.chosen = run.chosen
    return earlier


def _difference(what: str, there: Any, here: Any) -> str:
    """The entries that differ."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return f"{what} {there}, but here {here}"
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return "; ".join(f"{name} {there.get(name, 'none')}, but here {here.get(name, 'none')}" for name in names)


def run(prepared: CheckedRequest, width: int | None) -> int:
    """Measure, store and show the cases; returns the exit code."""
    from rich.console import Console

    console = Console(width=width, highlight=False, emoji=False)
    stopped, code = "", 0
    try:
        _measure(prepared)
    except KeyboardInterrupt:
        stopped, code = "interrupted", INTERRUPTED
    except DeviceError as error:  # the device is unusable for the rest of this process
        stopped, code = str(error), 1
    _show(prepared, console)
    if stopped:
        left = sum(case.name not in prepared.run.done() for case in prepared.cases)
        kept = "; run the same command with --resume to continue" if prepared.json_path else ""
        console.print(f"{stopped}, with {left} cases left{kept}", markup=False)
        return code
    return 1 if any(result.failures for result in prepared.run.results) else 0


def _measure(prepared: CheckedRequest) -> None:
    target = prepared.options.target
    names = [case.name for case in tables.of("cpu" if target is None else target.kind)]

    def keep(result: CaseResult) -> None:
        prepared.run.in_order(names)
        if prepared.json_path is not None:
            results.write(prepared.run, prepared.json_path)

    with bar(prepared.cases) as cases, runner.fresh_kernels():
        for case in cases:
            runner.run([case], prepared.run, prepared.options, keep)


@contextmanager
def bar(cases: Sequence[Case]) -> Iterator[Iterator[Case]]:
    """Yield the cases one by one, and show the current one on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr, highlight=False, emoji=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    # The bar is only redrawn between cases: a drawing thread would take processor time from the measured code.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        shown = progress.add_task("", total=len(cases))

        def each() -> Iterator[Case]:
            for case in cases:
                progress.update(shown, description=case.name, refresh=True)
                yield case
                progress.advance(shown)

        yield each()


def _show(prepared: CheckedRequest, console: Console) -> None:
    show = console.print
    found = prepared.run
    if found.results:
        show(report.table(found))
        for line in report.summary(found, peers.absent(venues.of(prepared.options.target).peers)):
            show(line, markup=False)
    if prepared.old is not None:
        table, lines = report.comparison(prepared.old, found)
        show(table)
        for line in lines:
            show(line, markup=False)
    if prepared.plot_path is not None and found.results:
        from tvmdml.proof.bench import plot, plot_operators

        draw = plot.draw if len(found.results) <= plot.MOST_CASES else plot_operators.draw
        draw(found, prepared.plot_path)
    if prepared.page_path is not None and found.results:
        from tvmdml.proof.bench import page

        page.write(found, prepared.page_path)
