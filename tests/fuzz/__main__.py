"""``python -m fuzz``, from the folder of tests."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

if not __package__:  # python tests/fuzz
    sys.path[0] = str(Path(__file__).parents[1])

_FOLDER = Path(tempfile.gettempdir()) / f"tvmdml-fuzz-{os.getuid()}"


@click.command()
@click.option("--minutes", type=click.FloatRange(0.01), default=5.0, show_default=True, help="How long, all aims together.")
@click.option("--only", metavar="AIM,AIM…", default="", help="Which aims; all by default.")
@click.option("--seed", type=int, default=0, help="Where random numbers begin.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Aims at once.")
@click.option("--corpus", type=click.Path(path_type=Path), default=_FOLDER / "corpus", show_default=True, help="What was learnt.")
@click.option(
    "--findings", type=click.Path(path_type=Path), default=_FOLDER / "findings", show_default=True, help="What was found."
)
@click.option("--memory", type=int, default=3072, show_default=True, help="MiB that an example may take.")
@click.option("--hang", type=float, default=60.0, show_default=True, help="Seconds that an example may take.")
@click.option("--unguided", is_flag=True, help="Do without atheris.")
@click.option("--replay", metavar="FOLDER", type=click.Path(exists=True, path_type=Path), help="Run its findings again instead.")
@click.option("--example", nargs=2, metavar="AIM FILE", help="Run one example, here.")
def main(
    minutes: float,
    only: str,
    seed: int,
    jobs: int,
    corpus: Path,
    findings: Path,
    memory: int,
    hang: float,
    unguided: bool,
    replay: Path | None,
    example: tuple[str, str] | None,
) -> None:
    """Hand the library inputs that nobody thought of. Exit code 1 if something was found."""
    from fuzz import engine

    if example is not None:
        sys.exit(_example(*example))
    if replay is not None:
        sys.exit(bool(engine.replay(replay, click.echo)))
    from fuzz import aims

    known = aims.names()
    names = [name.strip() for name in only.split(",")] if only else known
    if wrong := sorted(set(names) - set(known)):
        raise click.UsageError(f"There is no aim {', '.join(wrong)}; there are {', '.join(known)}.")
    guided = not unguided and _has_atheris()
    how = "guided by coverage (atheris)" if guided else "at random; `pip install atheris` has it guided by coverage"
    click.echo(f"{len(names)} aims, {minutes:g} minutes, seed {seed}, {how}; findings go to {findings}")
    running = engine.Engine(corpus.resolve(), findings.resolve(), seed, guided, memory << 20, hang, click.echo)
    running.run(names, 60 * minutes, jobs)
    click.echo("")
    for name, tally in running.tallies.items():
        click.echo(f"{name:14} {tally.line}")
    click.echo(f"{'together':14} {sum(tally.examples for tally in running.tallies.values())} examples")
    sys.exit(any(tally.found for tally in running.tallies.values()))


def _has_atheris() -> bool:
    import importlib.util

    return importlib.util.find_spec("atheris") is not None


def _example(name: str, path: str) -> int:
    import resource

    from fuzz import aims, child, oracle

    os.environ.setdefault("TVMDML_TUNING", "0")
    data, one = Path(path).read_bytes(), aims.find(name).one
    limit = child.memory() + (3 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        finding = oracle.examine(one, data)
    if finding is None:
        click.echo("nothing")
        return 0
    click.echo(f"{finding.title}\n\n{finding.text}")
    return 1


if __name__ == "__main__":
    main()
