"""How tuning is shown: the line on a terminal, the report, and the winners' speed against other libraries."""

from __future__ import annotations

import base64
import importlib.util
import re
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from support import IN_PLACE

from tvmdml import knobs, targets
from tvmdml.errors import InvalidArgument
from tvmdml.library import lines
from tvmdml.library.log_terms import Job, Knobs, Machine, Outcome, Record, Trial, Tuned
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.proof.bench import checks, inputs, measure, peers, runner, tables, work
from tvmdml.proof.bench.measure import CallTiming, Contender
from tvmdml.proof.bench.rows.diagonal_matrix import band, diagonal
from tvmdml.proof.bench.rows.element_wise_round import rounding
from tvmdml.proof.bench.rows.top_k import top_k
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work
from tvmdml.tuning import display, pictures, report, rivals
from tvmdml.tuning.display import ProgressDisplay, Silent
from tvmdml.tuning.rivals import Rival

MACHINE = Machine("cpu:x86-64-v3", "a processor", 2)
FAILED = Outcome(problem="crashed: SIGSEGV")
LINE = lines.of(top_k(32, 1000, k=5).describe())
ROUNDING = lines.of(rounding(64).describe())
TITLE = "TOP_K1 float32[32, 1000], uint32, Axis 1, K 5, DECREASING on cpu:x86-64-v3"


def job(line: dict[str, Any] = LINE, in_place: bool = False, target: str = "cpu:x86-64-v3") -> Job:
    return Job(line, in_place, target)


def trial(ratio: float) -> Trial:
    """One that is so many times as fast as the defaults; none at all for 0."""
    return Trial({}, Outcome(5e-6 / ratio, 5e-6) if ratio else FAILED)


def tuned(*ratios: float, of: Job | None = None, **fields: Any) -> Tuned:
    """A job with a trial for each ratio, of which the best has won."""
    of, best = of or job(), max((*ratios, 1.0))
    module = {"TOP_K1": "top_k", "ELEMENT_WISE_ROUND": "pointwise"}[of.line["operator"]]
    won: Knobs = {"task_elements": 1024} if best > 1 else {}
    times = (5e-6 / best, 0.02, 5e-6)
    about = ({"tvmdml": "0.1"}, "2026-11-22T03:14:15+00:00", of.line)
    record = Record(module, MACHINE, {}, {"length": 1024, "layout": "packed"}, won, *times, len(ratios), *about)
    return Tuned(of, fields.pop("machine", MACHINE), record._replace(**fields), tuple(map(trial, ratios)))


# -- On a terminal ------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(act: Callable[[ProgressDisplay, Clock], None], terminal: bool = True, width: int = 120) -> str:
    """What is written."""
    out, clock = StringIO(), Clock()
    console = Console(file=out, force_terminal=terminal, width=width, color_system=None, highlight=False)
    with ProgressDisplay(console, clock) as display_:
        act(display_, clock)
    return out.getvalue()


def three_trials(show: ProgressDisplay, clock: Clock) -> None:
    show.begin(job(), 3, 51, 6, 1)
    for one in (trial(0.8), trial(0), trial(1.25)):
        clock.now += 2
        show.trial(one, one if one.outcome.ratio > 1 else None)


def test_a_job_is_shown_as_it_goes_on() -> None:
    text = shown(three_trials)
    assert TITLE in text
    assert "1/6  nothing faster yet\n" in text, "before the first trial nobody knows how long it takes"
    assert "2/6  nothing faster yet  0:00:08 left" in text
    assert "4/6  1.25x, 4 µs against 5 µs  1 failed  0:00:04 left" in text
    assert "job 3 of 51, 0:09:40 left" in text, "2 trials, and 6 of each of 48 more jobs, in 2 seconds each"


def test_a_failed_trial_is_the_best_of_none() -> None:
    def act(show: ProgressDisplay, clock: Clock) -> None:
        show.begin(job(), 1, 1, 6, 0)
        clock.now += 2
        show.trial(trial(0), trial(0))

    assert "1/6  nothing faster yet  1 failed" in shown(act)


def test_a_single_job_has_no_line_for_all_jobs() -> None:
    assert "job 1 of" not in shown(lambda show, clock: show.begin(job(), 1, 1, 6, 0))


def test_a_line_never_breaks_in_a_narrow_terminal() -> None:
    text = shown(three_trials, width=40)
    assert max(len(re.sub(r"\x1b\[[?0-9]*[A-Za-z]", "", line)) for line in text.splitlines()) == 40
    assert "TOP_K1 float32[32, 1000], uint32, Axis …" in text


def test_it_draws_ten_times_a_second_at_most_and_by_no_thread() -> None:
    started: list[threading.Thread] = []

    def act(show: ProgressDisplay, clock: Clock) -> None:
        show.begin(job(), 1, 1, 1000, 0)
        for _ in range(1000):
            clock.now += 0.001
            show.trial(trial(1.5), trial(1.5))
        started.extend(set(threading.enumerate()) - before)

    before = set(threading.enumerate())
    assert 9 <= shown(act).count("against") <= 11
    assert not started


def test_elsewhere_there_are_lines_for_each_job() -> None:
    def act(show: ProgressDisplay, clock: Clock) -> None:
        three_trials(show, clock)
        clock.now += 10
        show.trial(trial(0), None)
        show.note("the server \x1b[2J[bold]a[/] was lost")
        show.end(tuned(0.8, 0, 1.25))
        show.begin(job(), 4, 51, 6, 0)
        show.end(tuned(0.8))

    began = [f"3/51 {TITLE}: up to 6 trials", f"3/51 {TITLE}: 5/6, nothing faster yet, 2 failed, 0:00:04 left"]
    expected = [
        "the server \\x1b[2J[bold]a[/] was lost",  # neither terminal escapes nor rich's markup are interpreted
        f"3/51 {TITLE}: 1.25x, 4 µs against 5 µs (task_elements=1024), 3 trials, 1 failed",
        "  1 failed: crashed: SIGSEGV",
        f"4/51 {TITLE}: nothing faster than the defaults, 5 µs, 1 trial",
    ]
    found = shown(act, terminal=False, width=20).splitlines()
    assert found == [*began, *expected[:-1], f"4/51 {TITLE}: up to 6 trials", expected[-1]]
    on_terminal = shown(act)
    assert all(line in on_terminal for line in expected)
    assert "against" not in on_terminal.rpartition(expected[-1])[2], "no bar is left"


def test_standard_output_stays_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    def act(show: ProgressDisplay, clock: Clock) -> None:
        show.begin(job(), 1, 1, 6, 0)
        print("a result")  # noqa: T201

    assert "a result" not in shown(act)
    assert capsys.readouterr().out == "a result\n"


def test_whoever_wants_silence_has_it(capfd: pytest.CaptureFixture[str]) -> None:
    three_trials(Silent(), Clock())  # type: ignore[arg-type]
    Silent().note("a")
    Silent().end(tuned(1.5))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wanted", "title"),
    [
        (top_k(32, 1000, k=5), TITLE),
        (
            diagonal(4, 4, dtype="uint8"),
            "DIAGONAL_MATRIX1 uint8[4, 4], Value 1, DiagonalFillBegin 0, DiagonalFillEnd 1 on cpu:x86-64-v3",
        ),
        (
            rounding(8, dtype="float16", in_place=True),
            "ELEMENT_WISE_ROUND float16[8], HALVES_TO_NEAREST_EVEN, in place on cpu:x86-64-v3",
        ),
    ],
    ids=lambda value: getattr(value, "operator", ""),
)
def test_a_job_has_a_name_that_says_what_it_is(wanted: Work, title: str) -> None:
    assert display.title(job(lines.of(wanted.describe()), wanted.in_place)) == title


# -- The report ---------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page says, and what is in it; every tag has its end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"

    def pictures(self) -> list[ElementTree.Element]:
        sources = [str(attributes["src"]) for tag, attributes in self.tags if tag == "img"]
        return [ElementTree.fromstring(base64.b64decode(source.partition("base64,")[2])) for source in sources]


@pytest.fixture
def matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def page(tmp_path: Path, *jobs: Tuned, **peers_: Any) -> Page:
    report.write(tmp_path / "report.html", jobs, **peers_)
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


@pytest.mark.full
@pytest.mark.usefixtures("matplotlib")
def test_a_report_says_what_won_and_how(tmp_path: Path) -> None:
    peer = Rival("torch topk, 2 threads", 12e-6, 4e-6)
    found = page(tmp_path, tuned(0.9, 0, 1.25), tuned(0.5), peers={0: peer})
    rows = found.text.split()
    for word in ("1.250", "3.00", "task_elements=1024", "±2.0", "length=1024,", "2026-11-22T03:14:15+00:00"):
        assert word in rows
    for text in ("a processor, 2 threads, cpu:x86-64-v3", "tvmdml 0.1", "torch topk, 2 threads: 12 µs", "the defaults", TITLE):
        assert text in found.text
    assert "2, with 4 trials, of which 1 failed" in found.text
    assert "1.118 times as fast (geometric mean); 1 of 2 have winning knobs" in found.text
    assert "1 x: crashed: SIGSEGV" in found.text


@pytest.mark.full
@pytest.mark.usefixtures("matplotlib")
def test_it_has_a_picture_for_each_job_and_one_of_them_all_and_needs_nothing_else(tmp_path: Path) -> None:
    found = page(tmp_path, tuned(0.9, 0, 1.25), tuned(0.5), tuned())
    assert [picture.tag for picture in found.pictures()] == ["{http://www.w3.org/2000/svg}svg"] * 4
    assert "script" not in {tag for tag, _ in found.tags}
    links = [value for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(str(link).startswith("data:") for link in links)


@pytest.mark.full
@pytest.mark.usefixtures("matplotlib")
def test_a_convergence_has_a_dot_for_each_trial_and_a_mark_for_each_failure() -> None:
    text = pictures.convergence(tuned(0.9, 0, 1.25, 1.1, 0)).decode()
    marks = [group.partition("</g>\n   </g>")[0].count("<use ") for group in text.split('<g id="PathCollection_')[1:]]
    assert sorted(marks) == [1, 1, 2, 3], "two are the legend's"
    assert "failed" not in pictures.convergence(tuned(0.9)).decode(), "what there is none of needs no explanation"


@pytest.mark.full
@pytest.mark.usefixtures("matplotlib")
def test_hostile_names_stay_text(tmp_path: Path) -> None:
    bad = '<script>alert("1")</script>$\\frac{$ \x1b[2J\x00'
    of = job({"operator": "TOP_K1", "InputTensor": bad, "K": bad}, target=bad)
    hostile = tuned(0, of=of, machine=Machine(bad, bad, 1), versions={bad: bad}, shape_class={bad: bad}, knobs={bad: bad}, date=bad)
    hostile = hostile._replace(trials=(Trial({}, Outcome(problem=bad)),))
    found = page(tmp_path, hostile, peers={0: Rival(bad, 1.0, 1.0)})
    tags = {tag for tag, _ in found.tags}
    assert "script" not in tags
    assert found.text.count("<script>") >= 8
    assert len(found.pictures()) == 2
    assert "\x1b" not in found.text
    assert "\x00" not in found.text
    report.write(tmp_path / "report.png", [hostile])


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("name", ["a.png", "a.html", "A.HTML"])
def test_there_may_be_no_job(name: str, tmp_path: Path) -> None:
    report.write(tmp_path / name, [])
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<!DOCTYPE html>")


@pytest.mark.full
@pytest.mark.usefixtures("matplotlib")
def test_pictures_alone(tmp_path: Path) -> None:
    report.write(tmp_path / "a.png", [tuned(0.9, 1.2), tuned(0), tuned(1.1), tuned()], {1: Rival("numpy f", 2e-6, 1e-6)})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize(
    ("name", "says"),
    [("a.svg", r"allowed: the path of a \.html or \.png file"), ("a", r"\.html or \.png"), ("no/a.html", "a folder that exists")],
)
def test_a_path_that_cannot_be_is_refused_before_anything_runs(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"--report: given .*{says}"):
        report.check(tmp_path / name)


@pytest.mark.usefixtures("matplotlib")
def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.html").mkdir()
    with pytest.raises(InvalidArgument, match=r"a\.html.*a file that can be written"):
        report.write(tmp_path / "a.html", [tuned(1.5)])


def test_without_matplotlib_a_report_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=r"Matplotlib is not installed.*pip install .*\[tune\]'"):
        report.check(tmp_path / "a.html")


# -- Peers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int | str]]:
    """NumPy is the only library there is, and takes twice as long as ours. Gives the knobs of rounding in each race."""
    seen: list[dict[str, int | str]] = []

    def race(contenders: list[Contender], pace: measure.RacePace, clock: measure.Clock) -> list[CallTiming]:
        seen.append(dict(knobs.in_force().get("pointwise", {})))
        return [CallTiming(1e-6 * n, 1e-6 * n, 1e-6 * n, 3, 2) for n in range(1, len(contenders) + 1)]

    monkeypatch.setattr(measure, "race", race)
    monkeypatch.setattr(peers, "missing", lambda library, where: [] if library == "numpy" else [library])
    return seen


def rounded(**fields: Any) -> Tuned:
    """A job that is of this machine."""
    here = targets.resolve("cpu").machine()
    return tuned(1.5, of=job(ROUNDING, target="cpu"), **{"machine": here, "knobs": {"task_elements": 1 << 20}, **fields})


def test_a_winner_is_raced_with_its_own_knobs(numpy_alone: list[dict[str, int | str]]) -> None:
    notes: list[str] = []
    found = rivals.peers_of([rounded(), rounded(knobs={})], notes.append)
    assert numpy_alone == [{"task_elements": 1 << 20}, {}]
    assert {place: (peer.name, peer.ratio) for place, peer in found.items()} == {
        0: ("numpy ufunc out=", 2.0),
        1: ("numpy ufunc out=", 2.0),
    }
    assert notes == ["not installed, so not compared with: torch, onnxruntime, tvm topi"]


def test_who_has_no_peer_is_told_why(numpy_alone: list[dict[str, int | str]], monkeypatch: pytest.MonkeyPatch) -> None:
    strange = {**ROUNDING, "InputTensor": "float32[4, 4] strides [7, 1]", "OutputTensor": "float32[4, 4]"}
    jobs = [
        rounded(machine=MACHINE._replace(processor="another")),
        rounded()._replace(job=job(LINE, target="vulkan")),
        rounded()._replace(job=job(strange, target="cpu")),
    ]
    notes: list[str] = []
    assert rivals.peers_of(jobs, notes.append) == {}
    reasons = [note.rpartition("no peer: ")[2] for note in notes[1:]]
    assert reasons == [
        "it was tuned for another machine than this one",
        "libraries are compared only on the CPU",
        "the bench does not support this operation",
    ]
    monkeypatch.setattr(peers, "missing", lambda library, where: [library])
    assert rivals.peers_of([rounded()], notes.append) == {}
    assert notes[-1].endswith("no peer: no installed library does this")


EVERY_WORK = sorted({case.work for case in (*tables.of("cpu"), *tables.of("cuda")) if case.work.door == "bound"}, key=repr)


@pytest.mark.full
def test_a_descriptor_finds_its_work() -> None:
    for wanted in EVERY_WORK:
        if any(field.many for field in wanted.describe().fields() if field.role is Role.OUTPUT):
            continue  # the bench has no words for the lists of outputs of a descriptor
        if wanted.behind or "fused_activation" in dict(wanted.attributes):
            continue  # nor for what follows in the same kernel
        alike = {one.data for one in wanted.operands()} <= {wanted.data}
        found = work.of(wanted.describe(), wanted.shared(), wanted.data)
        assert found is not None, wanted
        if alike:
            newest = wanted.describe().canonical()  # of replaced operators, the newest one that does the same
            assert (work._written_out(found.describe()), found.in_place) == (work._written_out(newest), wanted.in_place)
            assert [one.data for one in found.operands() if one.data] == [one.data for one in wanted.operands() if one.data]
        usual = work.of(wanted.describe(), wanted.shared())
        assert usual is not None
        assert (usual.data in inputs.FILLS) == bool(wanted.data)


@pytest.mark.parametrize(
    ("line", "in_place"),
    [
        ({**ROUNDING, "InputTensor": "float32[4, 4] strides [9, 1]", "OutputTensor": "float32[4, 4] strides [9, 1]"}, True),
        ({**ROUNDING, "InputTensor": "float32[4]", "OutputTensor": "float32[4] strides [3]"}, False),
    ],
    ids=["in place with gaps", "an output with gaps"],
)
def test_what_the_bench_has_no_words_for_is_no_work(line: dict[str, Any], in_place: bool) -> None:
    assert work.of(lines.read(line, "test"), IN_PLACE if in_place else ()) is None


ADDED = {
    "operator": "ELEMENT_WISE_ADD",
    "ATensor": "float32[4, 4] strides [0, 1]",
    "BTensor": "float32[4, 4] strides [1, 4]",
    "OutputTensor": "float32[4, 4] strides [20, 1]",
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    "desc",
    [
        band(9, 9, layout="padded").describe(),
        lines.read({**LINE, "OutputIndexTensor": "uint64[32, 5]"}, "test"),
        lines.read({**ROUNDING, "InputTensor": "float32[4]", "OutputTensor": "float32[4] strides [2]"}, "test"),
        lines.read(ADDED, "test"),
    ],
    ids=["padded", "long indices", "an output with gaps", "all in other layouts"],
)
def test_work_that_is_found_runs(desc: Operator) -> None:
    wanted = work.of(desc)
    assert wanted is not None
    task = Task(wanted)
    assert checks.ours(task, runner.ours(task).results()) == ""
