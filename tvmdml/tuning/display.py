"""The progress display of a tuner: a progress bar on a terminal, and one line for each finished job everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tvmdml.errors import counted
from tvmdml.library.log_terms import Job, Knobs, Trial, Tuned
from tvmdml.system.console import printable, shown_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

REDRAW = 0.1
"""The minimum seconds between two updates: drawing takes time from measurements."""
SAY = 10.0
"""The seconds between two lines about a job, where there is no terminal."""
_BAR_WIDTH = 24
_LONGEST_REASON = 200


class Display(Protocol):
    """Receives a tuner's progress."""

    def begin(self, job: Job, number: int, of: int, trials: int, done: int) -> None:
        """A job starts, one of so many; ``done`` of its trials were finished in earlier, interrupted runs."""

    def trial(self, trial: Trial, best: Trial | None) -> None:
        """A trial is finished, and this is the best one so far."""

    def note(self, text: str) -> None:
        """Something happened that should be shown, such as the loss of a server."""

    def end(self, tuned: Tuned) -> None:
        """The job is finished."""


class Silent:
    """Shows nothing."""

    def begin(self, job: Job, number: int, of: int, trials: int, done: int) -> None:
        """Nothing."""

    def trial(self, trial: Trial, best: Trial | None) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self, tuned: Tuned) -> None:
        """Nothing."""


class ProgressDisplay:
    """Shows the progress on standard error, inside a ``with`` block.

    On a terminal the current job has a bar. It is redrawn when something happens, and not by its own thread, which would take time
    from measurements. A finished job leaves one line, and one for each reason why trials failed. Without a terminal there is a
    line when a job starts, and one now and then as it goes on.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True, highlight=False, emoji=False)
        self._clock = clock
        self._job: _Progress | None = None
        # Output of others on standard output may go to a file, and is not redirected.
        how: dict[str, Any] = {"auto_refresh": False, "transient": True, "redirect_stdout": False}
        self._live = Live(console=self._console, get_renderable=self._drawn, **how)
        self._drawn_at = self._said_at = float("-inf")
        self._seconds, self._trials = 0.0, 0

    def __enter__(self) -> ProgressDisplay:
        """Start to draw, if there is a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the terminal."""
        self._job = None
        self._live.stop()

    def begin(self, job: Job, number: int, of: int, trials: int, done: int) -> None:
        """Show a new bar."""
        self._job = _Progress(title(job), number, of, trials, done, self._clock())
        self._draw()
        if not self._console.is_terminal:
            self._say(f"{self._job.place()}{self._job.name}: up to {counted(trials, 'trial')}")
            self._said_at = self._clock()

    def trial(self, trial: Trial, best: Trial | None) -> None:
        """Advance the bar, now or with one of the next trials."""
        if self._job is not None:
            now = self._clock()
            self._seconds, self._trials = self._seconds + now - self._job.since, self._trials + 1
            self._job.since = now
            self._job.count(trial, best)
            if now - self._drawn_at >= REDRAW:
                self._draw()
            if not self._console.is_terminal and now - self._said_at >= SAY:
                self._said_at = now
                figures = (text for text, _ in self._job.figures(self._left(self._job)[0]) if text)
                self._say(f"{self._job.place()}{self._job.name}: {', '.join(figures)}")

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._say(text)

    def end(self, tuned: Tuned) -> None:
        """Replace the bar by a line that stays."""
        job, self._job = self._job, None
        self._draw()  # remove the bar, or the old one would appear below the line
        self._say(f"{'' if job is None else job.place()}{summary(tuned)}")
        for problem, count in failures(tuned).items():
            said = " ".join(problem.split())
            self._say(f"  {count} failed: {said[:_LONGEST_REASON]}{'…' if len(said) > _LONGEST_REASON else ''}")

    def _say(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text(printable(line)), soft_wrap=True)  # this redraws the bar below

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        if self._console.is_terminal:
            self._live.refresh()

    def _drawn(self) -> RenderableType:
        from rich.console import Group

        return Group() if self._job is None else self._job.drawn(self._left(self._job))

    def _left(self, job: _Progress) -> tuple[float | None, float | None]:
        """The estimated remaining seconds of the job and of all jobs, from the trials so far; later jobs count as many trials."""
        if not self._trials:
            return None, None
        each, left = self._seconds / self._trials, max(job.trials - job.done, 0)
        return each * left, each * (left + (job.of - job.number) * job.trials)


class _Progress:
    """The progress of a job."""

    def __init__(self, name: str, number: int, of: int, trials: int, done: int, now: float) -> None:
        self.name, self.number, self.of, self.trials, self.done = name, number, of, trials, done
        self.failed = 0
        self.best: Trial | None = None
        self.since = now

    def place(self) -> str:
        """``3/51``, and a space; nothing of a single job."""
        return f"{self.number}/{self.of} " if self.of > 1 else ""

    def count(self, trial: Trial, best: Trial | None) -> None:
        self.done += 1
        self.failed += bool(trial.outcome.problem)
        self.best = best

    def drawn(self, left: tuple[float | None, float | None]) -> RenderableType:
        """The job's bar, and a line for all jobs if there are several."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        row: list[RenderableType] = [ProgressBar(total=self.trials, completed=self.done, width=_BAR_WIDTH)]
        row += [_cut(text, style) for text, style in self.figures(left[0]) if text]
        grid = Table.grid(*(["figure"] * len(row)), padding=(0, 2, 0, 0))
        grid.add_row(*row)
        lines: list[RenderableType] = [_cut(self.name, "bold"), grid]
        if self.of > 1:
            lines.append(_cut(f"job {self.number} of {self.of}{_shown_left(left[1])}", "dim"))
        return Group(*lines)

    def figures(self, left: float | None) -> list[tuple[str, str]]:
        """The texts beside the bar, with their styles."""
        best = self.best if self.best is not None and self.best.outcome.ratio else None  # one that failed has no time
        faster = best is not None and best.outcome.ratio > 1
        return [
            (f"{self.done}/{self.trials}", ""),
            ("nothing faster yet" if best is None else gain(*_times(best)), "green" if faster else ""),
            (f"{self.failed} failed" if self.failed else "", "yellow"),
            (_shown_left(left).removeprefix(", "), "dim"),
        ]


def _cut(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _times(trial: Trial) -> tuple[float, float]:
    return trial.outcome.default, trial.outcome.seconds


# -- Texts --------------------------------------------------------------------------------------------------------


def title(job: Job) -> str:
    """A job's description: ``TOP_K1 float32[32, 32000], uint32, Axis 1, K 50, DECREASING on cpu:x86-64-v4``."""
    line = dict(job.line)
    name = str(line.pop("operator", "?"))
    tensors = [str(value) for key, value in line.items() if _is_tensor(key, value)]
    first = tensors[0] if tensors else ""
    types = dict.fromkeys(tensor.partition("[")[0] for tensor in tensors)
    others = [one for one in types if one != first.partition("[")[0]]
    attributes = {key: value for key, value in line.items() if not _is_tensor(key, value) and str(value).lower() not in types}
    fields = [_attribute(key, value) for key, value in attributes.items()]
    parts = [f"{name} {first}".strip(), *others, *fields, *_in_place(job)]
    return f"{', '.join(parts)} on {job.target}"


def _in_place(job: Job) -> list[str]:
    return [f"in place: {job.in_place}" if isinstance(job.in_place, str) else "in place"] if job.in_place else []


def _is_tensor(key: str, value: Any) -> bool:
    return key.endswith(("Tensor", "Tensors")) and isinstance(value, str)


def _attribute(key: str, value: Any) -> str:
    """The value of an enumeration needs no name: it says what it belongs to."""
    return value if isinstance(value, str) and value.isupper() else f"{key} {value}"


def gain(default: float, seconds: float) -> str:
    """``1.23x, 4.1 µs against 5 µs``."""
    return f"{default / seconds:.2f}x, {shown_seconds(seconds)} against {shown_seconds(default)}"


def knobs_in_words(knobs: Knobs) -> str:
    """``algorithm=sort, rank_k=1``; empty for the defaults."""
    return ", ".join(f"{name}={value}" for name, value in knobs.items())


def failures(tuned: Tuned) -> Mapping[str, int]:
    """The reasons why trials failed, with counts."""
    found: dict[str, int] = {}
    for trial in tuned.trials:
        if problem := trial.outcome.problem:
            found[problem] = found.get(problem, 0) + 1
    return found


def summary(tuned: Tuned) -> str:
    """One line for a finished job."""
    record = tuned.record
    if record.knobs:
        found = f"{gain(record.default_seconds, record.seconds)} ({knobs_in_words(record.knobs)})"
    else:
        found = f"nothing faster than the defaults, {shown_seconds(record.default_seconds)}"
    failed = sum(failures(tuned).values())
    return f"{title(tuned.job)}: {found}, {counted(len(tuned.trials), 'trial')}{f', {failed} failed' if failed else ''}"


def _shown_left(seconds: float | None) -> str:
    """``, 1:02:03 left``."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f", {hours}:{minutes:02}:{rest:02} left"
