"""``tvmdml tuning``: show, check, merge and clean tuning logs."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmdml.errors import counted
from tvmdml.options import OperationOptions, in_place_options, operation_options, operator_name
from tvmdml.system.console import as_json_option, parsed, print_json, say, table

if TYPE_CHECKING:
    from tvmdml.library.log_files import LogLine

_PATH = click.Path(exists=True, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group()
def tuning() -> None:
    """Show, check and clean tuning logs: the fastest knobs for each machine."""


# -- Looking ------------------------------------------------------------------------------------------------------


@tuning.command()
@click.argument("folders", metavar="[FOLDER…]", nargs=-1, type=_PATH)
@click.option("--operator", metavar="NAME", callback=parsed(operator_name), help="Only this operator.")
@click.option("--target", "--device", "target", metavar="TARGET", help="Only this target: cpu, cpu:x86-64-v3, cuda:sm_90, vulkan …")
@operation_options
@in_place_options
@as_json_option
def show(
    folders: tuple[Path, ...],
    operator: str | None,
    target: str | None,
    operation: OperationOptions,
    in_place: bool | str,
    as_json: bool,
) -> None:
    """Show the records in each FOLDER, by default in all folders in use; or the record in force for one operation.

    Without arguments: the number of records of each operator on each machine.

    \b
    tvmdml tuning show --operator TOP_K1
    tvmdml tuning show --operator TOP_K1 --sizes 32,32000 --attr K=50 --attr Axis=1 --target cpu
    """  # noqa: D301 - click's mark for text to leave as it is
    if operation.given:
        _show_one(folders, operator, target, operation, in_place, as_json)
        return
    from tvmdml.library import log_files, log_folders
    from tvmdml.operators import by_name, tuned_as
    from tvmdml.tuning import log_report

    module = None if operator is None else tuned_as(by_name(operator))
    found = []
    for folder in folders or log_folders.folders():
        for line in log_files.read_all(_files(folder)):
            if line.record is None:
                _complain(line)
            elif module in (None, line.record.operator) and _is_for(line.record.machine.target, target):
                found.append((line.record, folder))
    if as_json:
        print_json([{**log_report.as_json(record), "folder": str(folder)} for record, folder in found])
    elif found and not (folders or operator or target):
        for heading, rows in log_report.tables(found):
            click.echo(f"{counted(len(rows), 'record')} of {heading}")
        click.echo("Give a FOLDER, --operator or --target to show the records.")
    elif found:
        for heading, rows in log_report.tables(found):
            click.secho(heading, bold=True)
            table(log_report.COLUMNS, rows)
    else:
        click.echo(f"no records, in {', '.join(map(str, folders or log_folders.folders()))}")


def _is_for(target: str, wanted: str | None) -> bool:
    return wanted is None or target == wanted or target.startswith((f"{wanted}:", f"{wanted}+"))


def _show_one(
    folders: tuple[Path, ...],
    operator: str | None,
    target: str | None,
    operation: OperationOptions,
    in_place: bool | str,
    as_json: bool,
) -> None:
    from tvmdml import targets
    from tvmdml.library import logs
    from tvmdml.operators import _shared
    from tvmdml.tuning.log_report import LogAnswer

    if operator is None and operation.model is None:
        raise click.UsageError("Give the operation's --operator, or a --model.")
    desc = operation.describe(operator, extensions=True).canonical()
    shared = _shared.read(desc, in_place, "tuning show")
    known = logs.Logs(logs.read(folders)) if folders else logs.installed()
    answer = LogAnswer.of(known, desc, shared, targets.resolve(target or "cpu").machine())
    if as_json:
        print_json(answer.json())
    else:
        say(answer.text())


# -- Checking -----------------------------------------------------------------------------------------------------


@tuning.command()
@click.argument("paths", metavar="[PATH…]", nargs=-1, type=_PATH)
def validate(paths: tuple[Path, ...]) -> None:
    """Check logs: each PATH is a log or a folder of logs, by default all in use. The exit code is 1 if a line is invalid."""
    from tvmdml.library import log_folders
    from tvmdml.tuning import log_checks

    good, bad, count = 0, 0, 0
    for path in paths or log_folders.folders():
        files = _files(path)
        count += len(files)
        sound = []
        for line, problem in _judged(files):
            if problem:
                say(f"{line.where}: {problem}")
                bad += 1
            else:
                sound.append(line)
        good += len(sound)
        for line, better in _repeated(sound):
            say(f"{line.where}: note: {better.where} has a newer record of this key, which is used instead")
        changed = Counter(line.path for line in sound if line.record and log_checks.has_other_schedules(line.record))
        for file, number in changed.items():
            say(f"{file}: note: {number} were made with other schedules: they are used, but other knobs may be faster now")
    click.echo(f"{good} good, {bad} bad, in {count} files")
    sys.exit(1 if bad else 0)


def _judged(files: Iterable[Path]) -> Iterator[tuple[LogLine, str]]:
    """Lines, with the problem of each."""
    from tvmdml.library import log_files
    from tvmdml.tuning import log_checks

    for line in log_files.read_all(files):
        yield line, line.problem if line.record is None else log_checks.outdated(line.record)


def _repeated(lines: Iterable[LogLine]) -> Iterator[tuple[LogLine, LogLine]]:
    """Older lines with the same key as a newer one, and that newer one."""
    from tvmdml.library import log_lines

    groups: dict[log_lines.Key, list[LogLine]] = defaultdict(list)
    for line in lines:
        if line.record is not None:
            groups[log_lines.key(line.record)].append(line)
    for group in groups.values():
        *older, newest = sorted(group, key=lambda line: log_lines.age(line.record) if line.record else ("", ""))
        yield from ((line, newest) for line in older)


# -- Changing -----------------------------------------------------------------------------------------------------


@tuning.command()
@click.argument("sources", metavar="SRC…", nargs=-1, required=True, type=_PATH)
@click.option("-o", "--output", metavar="FOLDER", type=_FOLDER, required=True, help="The folder to write to.")
def merge(sources: tuple[Path, ...], output: Path) -> None:
    """Merge the records of each SRC, a log or a folder of logs, into a FOLDER. Keep the newest of each key, and no invalid line."""
    from tvmdml.library import log_files

    records = []
    for line in (line for source in sources for line in _lines(source)):
        if line.record is None:
            _complain(line)
        else:
            records.append(line.record)
    merged = log_files.merge(output, records)
    click.echo(f"{output}: {merged.added} added, {merged.replaced} replaced, {merged.kept} kept, in {len(merged.paths)} files")


@tuning.command()
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--older-than", "older_than", metavar="DAYS", type=click.IntRange(0, 36500), help="Also remove records older than this."
)
@click.option("--dry-run", "dry_run", is_flag=True, help="Show what would be removed, without removing it.")
def prune(folder: Path | None, older_than: int | None, dry_run: bool) -> None:
    """Remove invalid, replaced and outdated lines from a FOLDER, by default the user's own."""
    from tvmdml.library import log_files, log_folders, logs

    folder = folder or log_folders.user_folder()
    files = log_folders.files(folder)
    gone: dict[Path, list[bytes]] = defaultdict(list)
    left: list[LogLine] = []
    oldest = "" if older_than is None else (datetime.now(timezone.utc) - timedelta(days=older_than)).isoformat()

    def drop(line: LogLine, why: str) -> None:
        gone[line.path].append(line.raw)
        say(f"{line.where}: {why}")

    for line, problem in _judged(files):
        if not line.number:
            _complain(line)  # the file could not be read: nothing in it is removed
        elif problem:
            drop(line, problem)
        elif line.record is not None and line.record.date < oldest:
            drop(line, f"of {line.record.date}")
        else:
            left.append(line)
    for line, better in _repeated(left):
        drop(line, f"{better.where} is newer and stays")
        left.remove(line)
    if not dry_run:
        for path, lines in gone.items():
            log_files.remove(path, lines)
        logs.forget()
    count = sum(map(len, gone.values()))
    click.echo(f"{folder}: {count} {'would be removed' if dry_run else 'removed'}, {len(left)} left")


# -- Helpers ------------------------------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    from tvmdml.library import log_folders

    return log_folders.files(path) if path.is_dir() or not path.exists() else [path]


def _lines(path: Path) -> Iterator[LogLine]:
    from tvmdml.library import log_files

    return log_files.read_all(_files(path))


def _complain(line: LogLine) -> None:
    say(f"{line.where}: left out: {line.problem}", fg="yellow", err=True)
