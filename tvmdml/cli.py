"""The command ``tvmdml``. Each command imports what it needs when it runs, so that ``--help`` is fast."""

from __future__ import annotations

import sys
import warnings
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

import tvmdml
from tvmdml.commands.explain import explain
from tvmdml.commands.run import run
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message, safe_repr
from tvmdml.genai.cli import generate
from tvmdml.options import (
    EXACT,
    OperationOptions,
    device_option,
    device_rows,
    feature_level_option,
    named_sizes,
    operation_options,
    operator_name,
    operator_names,
    operators_option,
    precision_option,
    size_option,
)
from tvmdml.packs.cli import pack, verify
from tvmdml.proof.conformance.cli import conformance
from tvmdml.system.console import (
    INTERRUPTED,
    as_json_option,
    colours,
    parsed,
    print_json,
    printable,
    say,
    short_target,
    shown_bytes,
    table,
    width,
)
from tvmdml.tuning.cli import tuning
from tvmdml.tuning.tune_cli import tune

if TYPE_CHECKING:
    from tvmdml.enums import FeatureLevel
    from tvmdml.targets import Target


def _said(error: BaseException) -> str:
    """The text of an error. For a system error: the file and the reason, without the error number."""
    if isinstance(error, OSError) and not isinstance(error, TvmdmlError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error)


_formatted = warnings.formatwarning


def _warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """The text of a warning for users of a command, without the position in the code."""
    return (
        f"{printable(message)}\n" if str(message).startswith("tvmdml: ") else _formatted(message, category, filename, lineno, line)
    )


class _Main(click.Group):
    """The group of all commands: a failure is one line on standard error and exit code 1; wrong usage is code 2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for one in args:  # of a program that calls the command: no system call takes such a text, and no terminal prints it
            if "\0" in one or any(0xD800 <= ord(c) < 0xDC80 or 0xDD00 <= ord(c) < 0xE000 for c in one):
                raise click.UsageError(message("argument", safe_repr(one), "characters that a file's name can have"), ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        warnings.formatwarning = _warning
        colours(ctx)
        try:
            return super().invoke(ctx)
        except (TvmdmlError, MemoryError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise  # the program that read the output has ended
            text = " ".join(_said(error).split()) or "out of memory"
            say(f"tvmdml: {text}", fg="red", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:  # of the commands that do not handle it themselves
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _bytes(text: str) -> int:
    from tvmdml.system.disk import stores

    return stores.parse_size(text, "size")


# DxDispatch spells its long options with underscores; hyphens are accepted too.
@click.group(
    cls=_Main, context_settings={"token_normalize_func": lambda t: t.replace("-", "_"), "help_option_names": ["-h", "--help"]}
)
@click.version_option(tvmdml.__version__, prog_name="tvmdml")
def main() -> None:
    """DirectML's operators on Linux, compiled by Apache TVM."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack characters of a model's names


# -- Operators and devices ----------------------------------------------------------------------------------------


@main.command()
@as_json_option
@click.option("--match", metavar="TEXT", help="List only operators whose name, class or function has this text in it.")
@click.argument("names", metavar="[NAME]…", nargs=-1, shell_complete=operator_names)
def operators(as_json: bool, match: str | None, names: tuple[str, ...]) -> None:
    """List the operators, with the types and ranks of their first tensor at the newest feature level. Extensions follow a plus.

    With a NAME, such as TOP_K1, TopK1 or top_k: its fields, function, types by feature level, schedules and their knobs.
    """
    from tvmdml import targets
    from tvmdml.commands import reference

    if names:
        try:
            known = {key: cls for name in names for key, cls in reference.named(name).items()}
        except Unsupported as error:
            raise click.UsageError(str(error)) from None
    else:
        known = reference.matching(match or "")
    if as_json:
        print_json([reference.facts(name, cls) for name, cls in known.items()])
    elif names:
        click.echo("\n\n".join(reference.text(cls, width=width() or get_terminal_size().columns) for cls in known.values()))
    else:
        where = ", ".join(targets.kinds())
        table(
            ("name", "feature level", "types", "ranks", "targets"),
            [{**reference.summary(name, cls), "targets": where} for name, cls in known.items()],
        )
        if not known:
            raise Unsupported(message("--match", repr(match), "a part of a name", "`tvmdml operators` lists all."))


@main.command()
@as_json_option
def devices(as_json: bool) -> None:
    """List the devices of this machine, and whether they can be used. --json has the whole names of processors."""
    rows = device_rows()
    if as_json:
        print_json(rows)
    else:
        table(("target", "device", "state"), [{**row, "target": short_target(row["target"])} for row in rows])


@main.command()
@as_json_option
def doctor(as_json: bool) -> None:
    """Check this installation: what works, what does not work and why, and what to do about it.

    The exit code is 1 if something is broken, or no kernel can run.
    """
    from tvmdml.proof import doctor

    rows = doctor.examine()
    if as_json:
        print_json({"works": doctor.is_well(rows), "verdict": doctor.verdict(rows), "checks": [row._asdict() for row in rows]})
    else:
        _show_findings(rows)
        click.secho(doctor.verdict(rows), bold=True)
    sys.exit(0 if doctor.is_well(rows) else 1)


def _show_findings(rows: list[Any]) -> None:
    """Print findings under the names of their groups, each followed by its advice."""
    group, colors = "", {"ok": "green", "limited": "yellow", "broken": "red"}
    for row in rows:
        if row.group != group:
            group = row.group
            click.secho(group, bold=True)
        state = click.style(f"{row.state:8}", fg=colors.get(row.state))
        click.echo(f"  {state}{row.check}: {printable(' '.join(row.words.split()))}")
        if row.advice:
            click.echo(f"          -> {printable(' '.join(row.advice.split()))}")


# -- cache --------------------------------------------------------------------------------------------------------


main.add_command(conformance)
main.add_command(explain)
main.add_command(generate)
main.add_command(pack)
main.add_command(verify)
main.add_command(run)
main.add_command(tune)
main.add_command(tuning)


@main.group()
def cache() -> None:
    """Show and clean up the compiled kernels on disk."""


@cache.command()
@as_json_option
def info(as_json: bool) -> None:
    """Show the cache's folder and contents."""
    from datetime import datetime

    from tvmdml.library import installed
    from tvmdml.system.disk import stores

    store = stores.DiskStore()
    entries = store.entries()
    total = sum(entry.size for entry in entries)
    rows: list[dict[str, Any]] = [
        {
            "kernel": f"{entry.manifest.get('operator')}/{entry.manifest.get('kernel')}",
            "target": str(entry.manifest.get("target")),  # a device's target lists all its features
            "size": entry.size,
            "last used": datetime.fromtimestamp(entry.used).isoformat(" ", "seconds"),
        }
        for entry in reversed(entries)
    ]
    beside = store.beside()
    libraries = {name: found.pack.count for name, path in installed.files() if (found := installed.opened(path)) is not None}
    if as_json:
        head = {"folder": str(store.root), "limit": store.limit, "size": total, "count": len(entries)}
        print_json({**head, "kernels": rows, "beside": beside, "library": libraries})
        return
    if rows:
        shown = [{**row, "size": shown_bytes(row["size"]), "target": short_target(row["target"])} for row in rows]
        table(("kernel", "target", "size", "last used"), shown)
    click.echo(f"{len(rows)} kernels, {shown_bytes(total)} of at most {shown_bytes(store.limit)}, in {store.root}")
    for name, size in beside.items():
        click.echo(f"{shown_bytes(size)} in {store.cache / name}: {stores.BESIDE[name]}")
    for name, count in libraries.items():
        click.echo(f"{count} kernels for {name} in {installed.folder()}: the library of kernels, which is searched after the cache")


@cache.command()
@click.option(
    "--all", "everything", is_flag=True, help="Also remove sessions of `tvmdml tune`, and kernels compiled by Vulkan drivers."
)
def clear(everything: bool) -> None:
    """Remove every kernel. Files that tvmdml did not write are kept."""
    from tvmdml.system.disk.stores import DiskStore

    store = DiskStore()
    beside = store.beside() if everything else {}
    click.echo(f"Removed {store.clear()} kernels.")
    if everything:
        left = store.clear_beside()
        click.echo(f"Removed {shown_bytes(sum(beside.values()))} of other files.")
        for folder in left:
            click.echo(f"{folder} is kept: it contains files that tvmdml did not write.")


@cache.command()
@click.option("--size", metavar="BYTES", callback=parsed(_bytes), help="Bytes to keep, such as 512M.  [default: the cache's limit]")
def prune(size: int | None) -> None:
    """Remove the least recently used kernels, and files left by killed processes."""
    from tvmdml.system.disk.stores import DiskStore

    click.echo(f"Removed {DiskStore().prune(size)} kernels.")


# -- source -------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("operator", required=False, callback=parsed(operator_name), shell_complete=operator_names)
@operation_options
@click.option("--kind", default="tir", show_default=True, help="tir; CPU: llvm, asm; CUDA: cuda, ptx, sass; Vulkan: spirv.")
@device_option
@feature_level_option
def source(
    operator: str | None,
    operation: OperationOptions,
    kind: str,
    device: Target | None,
    feature_level: FeatureLevel | None,
) -> None:
    """Show the kernel of an OPERATOR.

    \b
    tvmdml source ELEMENT_WISE_ROUND --sizes 1024,1024
    tvmdml source TOP_K1 --sizes 32,32000 --attr K=50 --attr Axis=1 --kind asm
    tvmdml source TOP_K1 --sizes 8,9 --attr K=2 --attr Axis=1 --tensor OutputIndexTensor=uint64:8,2

    Names are DirectML's. Sizes and types of outputs are inferred where the operator determines them.
    """  # noqa: D301 - \b tells click not to rewrap the text
    from tvmdml.compiler import compile as compile_operator

    desc = operation.describe(operator, feature_level)
    compiled = compile_operator(desc, device or "cpu", feature_level)
    text = compiled.source(kind)
    click.secho(f"{compiled!r}", dim=True, err=True)
    click.echo(text)


# -- bench --------------------------------------------------------------------------------------------------------


def _bench_file(text: str) -> Any:
    from pathlib import Path

    from tvmdml.proof.bench import results

    return results.read(Path(text))


_PAGE_OF_A_MODEL = "`tvmdml explain MODEL --html FILE.html` is for one model"


def _refuse_for_models(options: dict[str, object]) -> None:
    """Raise for options that were given, and would have no effect."""
    given = [name for name, value in options.items() if value]
    if given:
        advice = f"; {_PAGE_OF_A_MODEL}" if "--html" in given else ""
        raise click.UsageError(f"{', '.join(given)}: of no effect where a MODEL is given{advice}")


@main.command()
@click.option("--full", is_flag=True, help="Measure every case against every library; without it, a subset in about three minutes.")
@operators_option
@click.option("--filter", "text", metavar="TEXT", default="", help="Only cases whose names contain this text.")
@device_option
@click.option("--threads", type=click.IntRange(1, 1024), help="Maximum number of threads, for all libraries.  [default: all]")
@click.option(
    "--json", "json_path", metavar="FILE", type=click.Path(dir_okay=False), help="Save results to this file after each case."
)
@click.option("--plot", "plot_path", metavar="FILE.png", type=click.Path(dir_okay=False), help="Draw the results.")
@click.option(
    "--page", "page_path", metavar="FILE.md", type=click.Path(dir_okay=False), help="Write the means of each operator and family."
)
@click.option(
    "--html", "html_path", metavar="FILE.html", type=click.Path(dir_okay=False), help="With --models: write a page for a browser."
)
@click.option("--compare", "old", metavar="OLD.json", callback=parsed(_bench_file), help="Show what changed since this file.")
@click.option("--resume", is_flag=True, help="Continue the file of --json: measure only the cases that it lacks.")
@click.option("--packs", is_flag=True, help="Measure packs instead: building, loading, and the time to the first result.")
@click.option("--tuned", is_flag=True, help="Measure tuned knobs instead: this machine's records in the logs against the defaults.")
@size_option()
@click.option(
    "--vary",
    metavar="NAME=LEAST:MOST:STEP",
    multiple=True,
    callback=parsed(named_sizes),
    help="Run an ONNX model at sizes that change, and measure what each new one costs; may be repeated.",
)
@click.option("--models", "suite", is_flag=True, help="Measure well-known models instead, beside ONNX Runtime and PyTorch.")
@click.option("--prepare", is_flag=True, help="With --models: export and compile them, and measure nothing.")
@precision_option
@click.argument("models", metavar="[MODEL.onnx|NET.graph|NET.pack|MODEL.json|FOLDER]…", nargs=-1, type=click.Path(exists=True))
def bench(
    models: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...],
    vary: tuple[tuple[str, range], ...],
    full: bool,
    names: tuple[str, ...],
    text: str,
    device: Target | None,
    threads: int | None,
    json_path: str | None,
    plot_path: str | None,
    page_path: str | None,
    html_path: str | None,
    old: Any,
    resume: bool,
    packs: bool,
    tuned: bool,
    suite: bool,
    prepare: bool,
    precision: str,
) -> None:
    """Measure the operators against NumPy, PyTorch, ONNX Runtime and TVM's own operators, and against their goals.

    A ratio is the best peer's time divided by tvmdml's. Outputs are checked first: the exit code is 1 if any is wrong. Ctrl-C keeps
    the results so far. With --device cuda, the peers run on the device too (PyTorch, CuPy; RAFT with --full), times come from the
    device's events, and CUDA has its own goals. On other devices the peers run on the CPU, there are no goals, and the limit is
    the device's copy speed.

    Of ONNX models, the latency is measured beside ONNX Runtime's, and where the time goes; with --vary, what new sizes cost. Of
    saved graphs and packs, latency and where the time goes; of JSON models, the time of each dispatch. Of folders of language
    models, tokens at two lengths, and prompts.
    """
    if vary and not models:
        raise click.UsageError("--vary needs the file of an ONNX model")
    if precision != EXACT and (vary or not models or not all(path.endswith(".onnx") for path in models)):
        raise click.UsageError("--precision needs the files of ONNX models, without --vary")
    if models:
        from pathlib import Path

        _refuse_for_models(
            {
                "--operator": names,
                "--filter": text,
                "--plot": plot_path,
                "--page": page_path,
                "--html": html_path,
                "--compare": old,
                "--resume": resume,
                "--packs": packs,
                "--tuned": tuned,
                "--models": suite,
                "--prepare": prepare,
            }
        )
        from tvmdml.proof.bench import changing
        from tvmdml.proof.bench import models as of_models

        def note(text: str) -> None:
            click.secho(text, dim=True, err=True)

        folders = [path for path in models if Path(path).is_dir()]
        if dispatched := [path for path in models if path.endswith(".json")]:
            if len(dispatched) < len(models) or vary or sizes or json_path:
                raise click.UsageError("JSON models are measured alone, without --vary, --size and --json")
            of_models.run_dispatches(models, device, threads, full, click.echo)
            return
        if folders and (len(folders) < len(models) or vary or sizes or json_path):
            raise click.UsageError("folders of language models are measured alone, without --vary, --size and --json")
        if folders:
            from tvmdml.proof.bench import language

            language.run(folders, device, threads, full, note, table)
            return
        if vary:
            if json_path or full:
                raise click.UsageError("--vary prints a table, and has no --json or --full")
            changing.run(models, dict(vary), dict(sizes), device, threads, note, table)
            return
        of_models.run(models, dict(sizes), device, threads, json_path, full, note, table, precision)
        return
    if packs:
        from tvmdml.packs import cost as pack_figures

        rows = list(pack_figures.figures(lambda what: click.secho(what, dim=True, err=True)))
        table(("what", "found", "goal", "verdict"), [{**row._asdict(), "verdict": row.verdict} for row in rows])
        return
    from tvmdml.proof.bench import command

    if sizes:
        raise click.UsageError("--size needs the file of an ONNX model")
    if html_path and not suite:
        raise click.UsageError(f"--html is for --models; {_PAGE_OF_A_MODEL}")
    request = command.BenchRequest(
        full, names, text, threads, json_path, plot_path, page_path, old, resume, device, html_path, prepare
    )
    try:
        if suite:
            from tvmdml.proof.bench import suite as of_known_models

            sys.exit(of_known_models.report(request, lambda text: click.secho(text, dim=True, err=True), table))
        if tuned:
            from tvmdml.proof.bench import tuned as comparison

            sys.exit(comparison.run(request))
        prepared = command.prepare(request)
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    sys.exit(command.run(prepared, width()))
