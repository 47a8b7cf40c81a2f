"""The results of a run, as tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tvmdml.errors import counted
from tvmdml.proof.bench.means import each_operator, families, geometric_mean
from tvmdml.proof.bench.results import BenchRun, CaseResult, ContenderResult
from tvmdml.system.console import shown_seconds

if TYPE_CHECKING:
    from rich.table import Table

SLOWEST = 10
"""How many operators are named as the slowest beside their peers."""
SLOWER = 0.10
"""A kernel that is slower than before by more than this share is flagged."""

_USELESS = 1.0
"""A time whose spread is a larger share of it says nothing."""

_STYLES = {"reached": "green", "missed": "yellow", "failed": "bold red", "slower": "bold red", "faster": "green"}


def _shown_ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}"


def shown_entry(entry: ContenderResult | None, spread: bool = False) -> str:
    """``1.2 µs``, with the spread ``1.2 µs ±3 %``; empty without a timing."""
    if entry is None or entry.timing is None:
        return ""
    text = shown_seconds(entry.seconds)
    return f"{text} ±{entry.timing.spread * 100:.0f} %" if spread else text


def _shown_host(entry: ContenderResult | None) -> str:
    return shown_seconds(entry.timing.host) if entry and entry.timing and entry.timing.host else ""


def who(entry: ContenderResult | None) -> str:
    """``torch topk, 2 threads``."""
    if entry is None:
        return ""
    if entry.role == "base":
        return "tvmdml, baseline"
    threads = f", {entry.threads} threads" if entry.threads > 1 else ""
    return f"{entry.library} {entry.name}{threads}"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < 2 or column in ("best peer", "verdict", "note") else "right")
    return table


def _shown_goal(result: CaseResult) -> str:
    """``1.5``, ``90 %``, ``1.2 x launch``, ``mean 3`` (of the case's group); with two goals, ``2, 70 %``."""
    mean = "" if result.group_goal is None else f"mean {_shown_ratio(result.group_goal)}"
    return ", ".join(filter(None, (_shown_ratio(result.goal), mean, _shown_share(result.share, result.limit_of))))


def _shown_share(share: float | None, of: str) -> str:
    if share is None:
        return ""
    return f"{share * 100:.0f} %" if of == "memory" else f"{1 / share:.3g} x {of}"


def _shown_log(result: CaseResult) -> str:
    """``exact: few_bits=8``."""
    if result.log is None or result.log.kind == "none":
        return ""
    return ": ".join(filter(None, (result.log.kind, ", ".join(f"{name}={value}" for name, value in result.log.knobs.items()))))


class _Column(NamedTuple):
    """A column of the table of results."""

    name: str
    cell: Callable[[CaseResult], str]
    always: bool = True
    """Whether the column is shown if all its cells are empty."""


def _columns(results: Sequence[CaseResult]) -> list[_Column]:
    columns = [
        _Column("tvmdml", lambda result: shown_entry(result.ours, spread=True)),
        _Column("host", lambda result: _shown_host(result.ours), always=False),
        _Column("best peer", lambda result: who(result.best)),
        _Column("its time", lambda result: shown_entry(result.best)),
        _Column("ratio", lambda result: _shown_ratio(result.ratio)),
        _Column("goal", _shown_goal),
        _Column("of limit", lambda result: _shown_share(result.fraction, result.limit_of)),
        _Column("verdict", lambda result: _styled(result.verdict)),
        _Column(f"to {_asides(results)}", lambda result: _shown_ratio(result.aside_ratio), always=False),
        _Column("tuning log", _shown_log, always=False),
        _Column("note", lambda result: result.best.note if result.best else ""),
    ]
    return [column for column in columns if column.always or any(map(column.cell, results))]


def table(run: BenchRun) -> Table:
    """A row for each case."""
    columns = _columns(run.results)
    result_table = _table("row", "case", *(column.name for column in columns))
    row = ""
    for result in run.results:
        cells = (column.cell(result) for column in columns)
        result_table.add_row("" if result.row == row else result.row, result.point, *cells)
        row = result.row
    return result_table


def _asides(results: Sequence[CaseResult]) -> str:
    """The libraries that are compared outside the goals: ``topi``."""
    names = (result.aside.library.split()[-1] for result in results if result.aside)
    return ", ".join(dict.fromkeys(names))


def _styled(word: str) -> str:
    style = _STYLES.get(word)
    return f"[{style}]{word}[/]" if style else word


def summary(run: BenchRun, missing: Sequence[str] = ()) -> Iterator[str]:
    """The lines after the table."""
    ratios = _ratios(result for result in run.results if result.goal is not None or result.group_goal is not None)
    if device := run.machine.get("device"):
        yield f"on {device}"
    if (mean := geometric_mean(ratios)) is not None:
        yield f"geometric mean: {mean:.2f} x the best peer, over {len(ratios)} cases with a goal"
    yield from (_group_line(*group) for group in _groups(run.results))
    yield _reached(run.results)
    yield from _families(run.results)
    yield from _slowest(run.results)
    asides = [ratio for result in run.results if (ratio := result.aside_ratio) is not None]
    if (mean := geometric_mean(asides)) is not None:
        ahead = sum(ratio >= 1 for ratio in asides)
        yield f"to {_asides(run.results)}: {mean:.2f} x as fast, not part of the goals; faster in {ahead} of {len(asides)} cases"
    if line := compile_line(run.results):
        yield line
    yield logs_line(run)
    if missing:
        yield f"not installed, so not compared with: {', '.join(missing)}"
    yield "ratio: the peer's time divided by tvmdml's. note: how the peer's output differs; tvmdml's is uint32 indices, and values."
    if any(_shown_host(result.ours) for result in run.results):
        yield "times are the device's own, between two events; host: until the call returned"
        yield from _limits_of_device(run.results)
    for result in run.results:
        if result.ours is not None and result.ours.timing is not None and result.ours.timing.spread > _USELESS:
            spread = f"±{result.ours.timing.spread * 100:.0f} %"
            yield f"useless: {result.name}: its samples differ by {spread}: other programs keep the machine busy"
        for failure in result.failures:
            yield f"failed: {result.name}: {failure}"


def _ratios(results: Iterable[CaseResult]) -> list[float]:
    """The ratios to the best peers."""
    return [r.ratio for r in results if r.ratio is not None and not r.against_base and not r.failures]


def _families(results: Iterable[CaseResult]) -> Iterator[str]:
    """The mean of each family; nothing if only one was measured."""
    found = families(results)
    if len(found) <= 1:
        return
    yield "by family, beside the best peer:"
    for one in found:
        lowest = one.lowest
        yield f"  {one.name}: {one.mean:.2f} x, over {counted(len(one.results), 'case')}; lowest {lowest.ratio:.2f}: {lowest.name}"


def _slowest(results: Iterable[CaseResult]) -> Iterator[str]:
    """The operators that are slowest beside their peers, by the lowest ratio of each; nothing if only a few were measured."""
    lowest = {one.name: one.lowest for one in each_operator(results)}
    if len(lowest) <= SLOWEST:
        return
    yield f"the {SLOWEST} slowest of {len(lowest)} operators beside their peers, by the lowest ratio of each:"
    for name, result in sorted(lowest.items(), key=lambda pair: pair[1].ratio or 0.0)[:SLOWEST]:
        times = f"{shown_entry(result.ours)}, {who(result.best)} {shown_entry(result.best)}"
        yield f"  {_shown_ratio(result.ratio)} x  {name}: {result.name}: {times}"


def _groups(results: Iterable[CaseResult]) -> Iterator[tuple[str, list[float], float | None]]:
    """The name of each group that was compared with peers, its ratios, and the goal for their mean."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.group:
            groups.setdefault(result.group, []).append(result)
    for name, found in groups.items():
        if ratios := _ratios(found):
            yield name, ratios, found[0].group_goal


def _group_line(name: str, ratios: list[float], goal: float | None) -> str:
    mean = geometric_mean(ratios) or 0.0
    verdict = "" if goal is None else f"; goal {_shown_ratio(goal)}: {'reached' if mean >= goal else 'missed'}"
    return f"  {name}: {mean:.2f} x, over {counted(len(ratios), 'case')}{verdict}"


def logs_line(run: BenchRun) -> str:
    """The tuning logs in force: their contents, their folders, and how many cases used a record of theirs."""
    line = f"tuning logs in force: {run.versions.get('tuning logs', 'unknown')}"
    if not run.logs:
        return line
    places = ", ".join(f"{folder.records} of {folder.folder}" for folder in run.logs)
    kinds = [result.log.kind for result in run.results if result.log is not None]
    exact, nearest = kinds.count("exact"), kinds.count("nearest")
    return f"{line}: {places}; used by {exact + nearest} of {len(kinds)} cases ({exact} exact, {nearest} nearest)"


def _limits_of_device(results: Sequence[CaseResult]) -> Iterator[str]:
    """The best memory rate of each kind, and the time of an empty launch. Copied bytes count twice: they are read and written."""
    rates: dict[str, float] = {}
    launches = []
    for result in results:
        for entry in result.entries:
            if entry.role != "limit" or entry.timing is None:
                continue
            kind = entry.name.split(",")[0]
            if result.limit_of == "launch":
                launches.append(entry.seconds)
            elif kind in result.traffic:
                size = result.traffic[kind] * (2 if kind in ("copied", "rewritten") else 1)
                rates[kind] = max(rates.get(kind, 0.0), size / entry.timing.low)
    shown = [f"{kind} at up to {rate / 1e9:.0f} GB/s" for kind, rate in rates.items()]
    if launches:
        shown.append(f"an empty launch in {shown_seconds(statistics.median(launches))}")
    if shown:
        yield f"limits: {', '.join(shown)}"


def _reached(results: Sequence[CaseResult]) -> str:
    """How many goals of each kind were reached."""
    goals = [(geometric_mean(ratios) or 0.0, goal) for _, ratios, goal in _groups(results) if goal is not None]
    kinds = {
        "peers": [r.reaches(r.goal, r.ratio) for r in results if not r.against_base],
        "peers in the mean of a group": ["reached" if mean >= goal else "missed" for mean, goal in goals],
        "limits": [r.reaches(r.share, r.fraction) for r in results],
        "tvmdml's own baselines": [r.reaches(r.goal, r.ratio) for r in results if r.against_base],
    }
    found = {kind: list(filter(None, verdicts)) for kind, verdicts in kinds.items()}
    parts = [f"{verdicts.count('reached')} of {len(verdicts)} against {kind}" for kind, verdicts in found.items() if verdicts]
    return f"goals reached: {', '.join(parts)}" if parts else "no goals: none of these cases has one on this target"


def compile_line(results: Iterable[CaseResult]) -> str:
    """How long the compilation of kernels took."""
    seconds = [result.compile_seconds / result.compiled for result in results if result.compiled]
    if not seconds:
        return ""
    count = sum(result.compiled for result in results)
    return f"compile: median {shown_seconds(statistics.median(seconds))}, max {shown_seconds(max(seconds))}, of {count} kernels"


# -- Two runs -----------------------------------------------------------------------------------------------------


def change(old: CaseResult, new: CaseResult) -> tuple[float, str] | None:
    """How many times as fast as before, and a word if that is a notable change."""
    if not (old.ours and new.ours):
        return None
    ratio = old.ours.seconds / new.ours.seconds
    limit = 1 + SLOWER
    return ratio, "slower" if ratio < 1 / limit else "faster" if ratio > limit else ""


def comparison(old: BenchRun, new: BenchRun) -> tuple[Table, list[str]]:
    """A row for each case that both runs have; and the lines after the table."""
    before = {result.name: result for result in old.results}
    compared = _table("row", "case", "old", "new", "old/new", "", "old ratio", "new ratio")
    ratios, slower = [], []
    for result in new.results:
        earlier = before.get(result.name)
        changed = earlier and change(earlier, result)
        if earlier is None or not changed:
            continue
        ratio, word = changed
        ratios.append(ratio)
        if word == "slower":
            slower.append(result.name)
        times = (shown_entry(earlier.ours), shown_entry(result.ours), f"{ratio:.2f}", _styled(word))
        compared.add_row(result.row, result.point, *times, _shown_ratio(earlier.ratio), _shown_ratio(result.ratio))
    lines = [] if ratios else ["the two runs have no case in common: run the same cases"]
    if (mean := geometric_mean(ratios)) is not None:
        lines.append(f"geometric mean of old/new: {mean:.2f}, over {len(ratios)} cases")
    lines.append(f"more than {SLOWER * 100:.0f} % slower: {', '.join(slower) or 'none'}")
    if (old.machine, old.threads) != (new.machine, new.threads):
        lines.append("the two runs are of different machines, devices or threads: only the ratios to peers can be compared")
    there, here = (run.versions.get("tuning logs", "unknown") for run in (old, new))
    if there != here:
        both = [(before[result.name].log, result.log) for result in new.results if result.name in before]
        count = sum(None not in pair and pair[0] != pair[1] for pair in both)
        lines.append(f"tuning logs differ: {there} in the old run, {here} in the new one; {count} cases used other records")
    return compared, lines
