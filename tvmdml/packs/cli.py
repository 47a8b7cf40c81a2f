"""``tvmdml pack``: build, inspect, change, verify and sign packs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmdml.errors import InvalidArgument, message
from tvmdml.options import EXACT, precision_option, size_option
from tvmdml.system.console import INTERRUPTED, as_json_option, print_json, say, shown_bytes, table, width

if TYPE_CHECKING:
    from tvmdml.library.format import Pack

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_MODELS = (".json", ".onnx", ".toml")
"""What `verify` builds a pack of."""
_LONGEST = 60
"""How much of an operation's attributes a terminal shows."""


@click.group()
def pack() -> None:
    """Build packs: files with kernels compiled ahead of time, for machines without a compiler."""


def _size(text: str) -> tuple[str, int | range]:
    name, equals, value = text.partition("=")
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+)(?::([1-9]\d*))?)?", value, re.ASCII)
    if not equals or match is None:
        allowed = "NAME=NUMBER, NAME=LEAST..MOST or NAME=LEAST..MOST:STEP, such as batch=8, batch=1..64 or height=320..960:32"
        raise InvalidArgument(message("size", repr(text), allowed))
    least, most, step = match.groups()
    return name, int(least) if most is None else range(int(least), int(most) + 1, int(step or 1))


_sizes = size_option(
    metavar="NAME=N|NAME=N..M[:STEP]",
    read=_size,
    words="The value of a size that an ONNX model leaves open, or all values that it may have; may be repeated.",
)


def _once(sizes: tuple[tuple[str, int | range], ...]) -> dict[str, int | range]:
    found = dict(sizes)
    if len(found) < len(sizes):
        raise click.UsageError(
            "--size: a name is given twice. Build a pack for each size, and merge them with `tvmdml pack merge`."
        )
    return found


_output = click.option("-o", "--output", "output", metavar="FILE", type=_FILE, required=True, help="The file to write.")
_targets = click.option(
    "--target",
    "--device",
    "targets",
    metavar="TARGET",
    multiple=True,
    help="A target to compile for, instead of those of SPEC: cpu:x86-64-v3, cuda:sm_80,sm_90, vulkan:desktop … May be repeated.",
)
_jobs = click.option(
    "-j", "--jobs", type=click.IntRange(1), help="The number of processes that compile.  [default: one per processor]"
)
_key = click.option("--key", metavar="FILE", type=_FILE, help="A public key that must have signed the pack.")


# -- Making -------------------------------------------------------------------------------------------------------


@pack.command()
@click.argument("specs", metavar="SPEC…", nargs=-1, required=True, type=click.Path(path_type=Path))
@_output
@_targets
@_sizes
@precision_option
@_jobs
@click.option(
    "--plain-weights",
    is_flag=True,
    help="Store weights of graphs only as they are: packs for several sizes, merged, are smaller; loading them takes longer.",
)
def build(
    specs: tuple[Path, ...],
    output: Path,
    targets: tuple[str, ...],
    sizes: tuple[tuple[str, int | range], ...],
    precision: str,
    jobs: int | None,
    plain_weights: bool,
) -> None:
    """Compile the operations of each SPEC into a pack. A SPEC is a .toml, a DxDispatch model (.json), an ONNX model (.onnx), a
    saved graph (.graph), or the folder of a language model, with --size length=1..N for the most tokens of a text.

    After Ctrl-C, the compiled kernels are kept: run the same command again to continue.
    """
    from tvmdml.library import files
    from tvmdml.packs import sources
    from tvmdml.packs.building import build as build_pack

    place = files.require_place(output)
    if place in [path.resolve() for path in specs]:
        raise InvalidArgument(message("output", str(output), "another file than the spec"))
    found = sources.read(specs, targets, _once(sizes), precision)
    kept = 0

    def note_kept(done: int, total: int) -> None:
        nonlocal kept
        kept = done
        show(done, total)

    try:
        with _progress("compiling") as show:
            built = build_pack(
                found, output, targets=targets, jobs=jobs, progress=note_kept, plain_weights=plain_weights,
                asking=lambda done, total: show(done, total, "asking for sizes"),
            )  # fmt: skip
    except KeyboardInterrupt:
        click.echo(f"interrupted: {kept} kernels are kept; run the same command to continue", err=True)
        sys.exit(INTERRUPTED)
    for reason in built.skipped:
        say(f"left out: {reason}", fg="yellow", err=True)
    launched = f"{built.recordings} recordings" if built.recordings else f"{built.operations} operations"
    click.echo(f"{output}: {launched}, {built.kernels} kernels ({built.compiled} compiled), {shown_bytes(built.size)}")


@pack.command()
@click.argument("specs", metavar="[SPEC…]", nargs=-1, type=_FILE)
@click.option("-o", "--output", "folder", metavar="FOLDER", type=_FOLDER, default=".", help="Where to write it.  [default: .]")
@_targets
@_jobs
def wheel(specs: tuple[Path, ...], folder: Path, targets: tuple[str, ...], jobs: int | None) -> None:
    """Compile the library of kernels, and write it as a wheel, which `pip install` installs: tvmdml-kernels. Without a SPEC it has
    what networks and the functions need.

    After Ctrl-C, the compiled kernels are kept: run the same command again to continue.
    """
    from tvmdml.packs import wheel as wheels

    with _progress("compiling") as show:
        built = wheels.build(
            specs or (wheels.SPEC,),
            folder,
            targets,
            jobs,
            lambda target, done, total: show(done, total),
            lambda text: say(f"left out: {text}", fg="yellow", err=True),
        )
    for target, one in built.packs.items():
        click.echo(f"{target}: {one.kernels} kernels ({one.compiled} compiled), {shown_bytes(one.size)}")
    click.echo(f"{built.path}: {shown_bytes(built.path.stat().st_size)}")


@pack.command(context_settings={"ignore_unknown_options": True})
@_output
@click.argument("program", metavar="-- PROGRAM [ARGUMENT…]", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: Path, program: tuple[str, ...]) -> None:
    """Run a PROGRAM, and record every kernel that it and its children use: tvmdml pack record -o spec.toml -- python app.py"""
    from tvmdml.library import files, recording, spec

    files.require_place(output)
    with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
        try:
            done = subprocess.run(program, env={**os.environ, "TVMDML_PACK_RECORD": folder}, check=False)
        except OSError as error:
            raise InvalidArgument(f"{program[0]}: cannot be run: {error.strerror}.") from None
        found = recording.gather(Path(folder))
    if found.wanted:
        spec.write(output, found.wanted, found.targets)
        click.echo(f"{output}: {len(found.wanted)} operations on {', '.join(found.targets)}", err=True)
    else:
        click.secho("tvmdml: the program used no kernel: no spec was written.", fg="red", err=True)
    if done.returncode:
        click.secho(f"tvmdml: the program ended with exit code {done.returncode}.", fg="yellow", err=True)
    sys.exit(128 - done.returncode if done.returncode < 0 else done.returncode or (0 if found.wanted else 1))


@pack.command()
@click.argument("packs", metavar="PACK…", nargs=-1, required=True, type=_FILE)
@_output
def merge(packs: tuple[Path, ...], output: Path) -> None:
    """Merge several packs into one. The result is unsigned."""
    from tvmdml.packs import change

    change.merge(packs, output)
    _say(output)


@pack.command()
@click.argument("path", metavar="PACK", type=_FILE)
@click.option(
    "--target",
    "--device",
    "targets",
    metavar="TARGET",
    multiple=True,
    required=True,
    help="A target to keep, or a kind of targets.",
)
@_output
def split(path: Path, targets: tuple[str, ...], output: Path) -> None:
    """Write a pack with only the kernels for some targets. The result is unsigned."""
    from tvmdml.packs import change

    change.split(path, targets, output)
    _say(output)


@pack.command()
@click.argument("path", metavar="PACK", type=_FILE)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=_FOLDER,
    required=True,
    help="The folder to write to.",
)
@click.option("--name", default="", help="The prefix of names in C.  [default: the pack's name]")
def header(path: Path, output: Path, name: str) -> None:
    """Write a C header for the CPU kernels of a PACK, and the libraries that it loads."""
    from tvmdml.library import signing
    from tvmdml.packs import header as headers

    with _opened(path, signing.check) as found:  # what is written is code that will run
        written = headers.write(found, output, name)
    for path in written:
        click.echo(str(path))
    for function in headers.functions(written[0]):
        click.echo(f"  {function}")


# -- Looking ------------------------------------------------------------------------------------------------------


@pack.command()
@click.argument("path", metavar="PACK", type=_FILE)
@as_json_option
def inspect(path: Path, as_json: bool) -> None:
    """Show the contents of a PACK. A terminal shows the begin of long attributes; --json has all."""
    from tvmdml.packs import look

    with _opened(path) as found:
        rows, summary = look.rows(found), look.summary(found)
    if as_json:
        print_json({**summary, "operations": rows})
        return
    for target in dict.fromkeys(row["target"] for row in rows):  # whose names are too long for a column
        say(target, bold=True)
        own = [
            {**row, "attributes": _cut(row["attributes"]), "bytes": shown_bytes(row["bytes"])}
            for row in rows
            if row["target"] == target
        ]
        table(tuple(name for name in own[0] if name not in ("launches", "target")), own)
    for name, value in summary.items():
        items = [f"{key} {one}" for key, one in value.items()] if isinstance(value, dict) else value
        say(f"{name}: {(', '.join(map(str, items)) or 'none') if isinstance(items, (list, tuple)) else items}")


@pack.command()
@click.argument("one", metavar="PACK", type=_FILE)
@click.argument("other", metavar="PACK", type=_FILE)
def diff(one: Path, other: Path) -> None:
    """Show the differences of two packs. The exit code is 1 if there are any."""
    from tvmdml.packs import look

    with _opened(one) as first, _opened(other) as second:
        differences = look.diff(first, second)
    for line in differences:
        say(str(line))
    sys.exit(1 if differences else 0)


@pack.command()
@click.argument("path", metavar="PACK|MODEL", type=_FILE)
@_key
@click.option("--device", "--target", "device", metavar="TARGET", help="Run only the kernels of this target.")
@click.option("--seed", type=int, help="The seed of the random input, to repeat an earlier run.")
@_sizes
@precision_option
def verify(
    path: Path,
    key: Path | None,
    device: str | None,
    seed: int | None,
    sizes: tuple[tuple[str, int | range], ...],
    precision: str,
) -> None:
    """Check a PACK or MODEL: every kernel that runs on this machine, against the reference, on random input.

    Of a pack, checksums and signatures are checked, too.
    Of an ONNX model, a saved graph or a DxDispatch model, a pack for this machine is built first, and removed after the check.
    """
    from tvmdml.library import files
    from tvmdml.packs import verify as verifying

    given = path
    with contextlib.ExitStack() as stack:
        if path.is_file() and not files.is_pack(path) and (files.is_graph(path) or path.suffix.lower() in _MODELS):
            from tvmdml.packs import sources
            from tvmdml.packs.building import build as build_pack

            if key is not None:
                raise click.UsageError("--key is for packs")
            found = sources.read([path], [device or "cpu"], _once(sizes), precision)
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tvmdml-verify-"))) / f"{path.stem}.pack"
            with _progress("compiling") as progress:
                build_pack(found, path, targets=[device or "cpu"], progress=progress)
            device = None
        elif sizes or precision != EXACT:
            raise click.UsageError("--size and --precision are for models: a pack has its own")
        with _progress("running") as progress:
            report = verifying.verify(path, key=key, device=device, seed=seed, progress=progress)
    say(report._replace(path=given).text())
    sys.exit(0 if report.ok else 1)


# -- Signing ------------------------------------------------------------------------------------------------------


@pack.command()
@click.argument("private", metavar="PRIVATE", type=_FILE)
@click.argument("public", metavar="PUBLIC", type=_FILE)
def keygen(private: Path, public: Path) -> None:
    """Make a key pair for signing packs: PRIVATE signs, and PUBLIC goes to TVMDML_TRUSTED_KEYS."""
    from tvmdml.library import signing

    signing.generate(private, public)
    click.echo(f"{private} signs packs: keep it secret. Give {public} to those who load your packs.")


@pack.command()
@click.argument("path", metavar="PACK", type=_FILE)
@click.option("--key", metavar="FILE", type=_FILE, required=True, help="The private key.")
def sign(path: Path, key: Path) -> None:
    """Sign a PACK."""
    from tvmdml.library import signing

    signing.sign(path, key)
    with _opened(path) as found:
        say(f"{path}: signed by {', '.join(signing.signers(found))}")


# -- Helpers ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: Path, check: Callable[[Pack], object] | None = None) -> Iterator[Pack]:
    from tvmdml.library.format import Pack

    found = Pack(path, check)
    try:
        yield found
    finally:
        found.close()


def _cut(text: str) -> str:
    """The begin of a text, on a terminal."""
    return text if len(text) <= _LONGEST or width() is not None else f"{text[: _LONGEST - 1]}…"


def _say(path: Path) -> None:
    with _opened(path) as found:
        click.echo(f"{path}: {found.count} records, {found.part_count} parts, {shown_bytes(path.stat().st_size)}")


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[..., Any]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, now=what: bar.update(task, completed=done, total=total, description=now)
