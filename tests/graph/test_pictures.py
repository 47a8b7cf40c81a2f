"""Pictures of graphs and pages for a browser: what they show, and that a browser shows them without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import call, succeed

import tvmdml
from tvmdml import packs
from tvmdml.graph import pictures
from tvmdml.proof.bench import models_html, suite
from tvmdml.proof.bench.measure import CallTiming
from tvmdml.proof.bench.results import BenchRun, CaseResult, ContenderResult
from tvmdml.system import html

MODELS = Path(tvmdml.__file__).parent / "proof" / "conformance" / "models"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def compiled() -> Any:
    graph = tvmdml.Graph("small & <odd>")
    x = graph.input((64, 64), name="x")
    y = tvmdml.abs(x) @ graph.constant(np.eye(64, dtype=np.float32))
    z = tvmdml.activation_softmax(y, axes=[1]) + x
    return graph.compile([z, tvmdml.top_k(z, 3).values, y])


@pytest.fixture
def saved(compiled: Any, tmp_path: Path) -> Path:
    path = tmp_path / "net.of-mine"  # a file that a program saved has any name
    tvmdml.save_graph(compiled, path)
    return path


def said(*arguments: object) -> str:
    done = succeed(*arguments)
    return str(done.output)


def test_a_picture_has_inputs_kernels_outputs_and_tensors(compiled: Any, saved: Path) -> None:
    for graph in (compiled, tvmdml.load_graph(saved)):
        rows = pictures.rows_of(graph.laid.reports().picture)
        assert [row.key[0] for row in rows] == ["i", "k", "k", "k", "k", "o", "o", "o"]
        assert rows[3].reads == (("k1", "float32[64, 64]"), ("input x", "float32[64, 64]"))
        assert [row.reads for row in rows[5:]] == [
            (("k2", "float32[64, 64]"),),
            (("k3", "float32[64, 3]"),),
            (("k1", "float32[64, 64]"),),
        ]
        drawn = ElementTree.fromstring(graph.explain().svg(["1 ms"] * 4))
        assert len(drawn.findall(f"{SVG}g")) == len(rows)
        assert len(drawn.findall(f"{SVG}path")) == sum(len(row.reads) for row in rows)
        assert "1 ms" in ElementTree.tostring(drawn, "unicode")


def test_names_are_no_markup() -> None:
    graph = tvmdml.Graph('a "b" \\ <c>')
    compiled = graph.compile(tvmdml.abs(graph.input((3,), name='<script> "&" \\n')))
    (source, *_) = pictures.rows_of(compiled.laid.reports().picture)
    assert source.label == 'input <script> "&" \\n'
    drawn = compiled.explain().svg()
    assert "<script" not in drawn
    ElementTree.fromstring(drawn)
    assert "<script" not in html.page("<script>", "<script>", [("<script>", html.table(["<script>"], [{"<script>": "<script>"}]))])


@pytest.mark.parametrize("odd", ["\x1b[31m", "\x0c", "\x1e", "\x85", "\u2028", "\u202e", "\ufffe", "\x7f"])
def test_names_that_xml_cannot_have_are_shown(odd: str) -> None:
    graph = tvmdml.Graph(f"g{odd}")
    compiled = graph.compile(tvmdml.abs(graph.input((3,), name=f"a{odd}b")))
    assert len(pictures.rows_of(compiled.laid.reports().picture)) == 3
    page = html.page(
        odd, odd, [(odd, html.preformatted(odd) + html.table([odd], [{odd: odd}]) + html.bars([(odd, [(odd, 1, odd)])]))]
    )
    for drawn in (compiled.explain().svg([odd]), page.partition("</head>")[2].removesuffix("</html>\n")):
        ElementTree.fromstring(drawn)
        assert odd not in drawn


def test_memory_over_time_is_what_the_plan_needs(compiled: Any, saved: Path) -> None:
    """Sizes are multiples of the alignment here, but for the last kernel's result that nobody reads."""
    for graph in (compiled, tvmdml.load_graph(saved)):
        assert graph.explain().memory() == [16384, 16384, 0, 768]
        assert max(graph.explain().memory()) == graph.temporary_size
        assert len(ElementTree.fromstring(graph.explain().memory_svg()).findall(f"{SVG}rect")) == 4


@pytest.mark.parametrize("seed", range(6))
def test_memory_over_time_of_drawn_graphs_is_their_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = tvmdml.Graph()
    values = [graph.input((32, 64)), graph.input((32, 64))]
    for _ in range(12):
        a, b = (values[i] for i in rng.integers(0, len(values), 2))
        values.append(tvmdml.top_k(a, 64).values if rng.random() < 0.4 else tvmdml.cumulative_summation(a, axis=1) * b)
    compiled = graph.compile([values[-1], values[-2]])
    alive = compiled.explain().memory()
    assert len(alive) == compiled.kernel_count
    assert max(alive) == compiled.laid.bound <= compiled.temporary_size


def test_a_picture_needs_no_graphviz_as_svg(compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    compiled.explain().draw(tmp_path / "a.svg")
    ElementTree.parse(tmp_path / "a.svg")
    with pytest.raises(tvmdml.Unsupported, match=r"Graphviz is not installed\. .* or write an \.svg"):
        compiled.explain().draw(tmp_path / "a.png")


def test_several_graphs_have_no_picture(tmp_path: Path) -> None:
    graph = tvmdml.Graph()
    net = graph.compile(tvmdml.abs(graph.input(("n", 3))))
    with pytest.raises(tvmdml.Unsupported, match="one compiled graph"):
        net.explain().draw(str(tmp_path / "a.svg"))


# -- Commands take all that the API makes -------------------------------------------------------------------------


@pytest.fixture(params=["graph", "pack", "onnx", "json"])
def model(request: pytest.FixtureRequest, saved: Path, tmp_path: Path) -> Path:
    if request.param == "graph":
        return saved
    if request.param == "pack":
        packs.build(saved, tmp_path / "net.packed", targets=["cpu"])
        return tmp_path / "net.packed"
    if request.param == "json":
        return MODELS / "convolution_3d.json"
    onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 3]) for name in "xy")
    made = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_model_of_each_kind_is_run_explained_verified_and_measured(model: Path) -> None:
    assert "ms median" in said("run", model)
    assert re.search(r"kernel 0: |CompiledOperator CONVOLUTION", said("explain", model))
    assert said("verify", model).endswith("nothing wrong\n")
    assert "ms" in said("bench", model)


# -- Pages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(saved: Path, tmp_path: Path) -> Path:
    path = tmp_path / "net.html"
    said("explain", saved, "--html", path, "--draw", tmp_path / "net.svg")
    assert (tmp_path / "net.svg").is_file()
    return path


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "models.html"
    loads = {name: {"seconds": seconds, "peak": 2.0**27} for name, seconds in (("cold", 2.0), ("warm", 0.1), ("peer", 0.2))}
    work = {"operator": "a", "model": "a", "batch": 1, "words": 0, "loads": loads, "difference": 1e-6, "shares": [["GEMM", 1.0]]}
    times = (("tvmdml", "ours", 0.25), ("ONNX Runtime", "peer", 0.5), ("PyTorch", "peer", 1.0))
    entries = [ContenderResult(role, name, "", 2, CallTiming(t, t, t, 5, 1), "", "") for name, role, t in times]
    one = CaseResult("net, 2 threads", "net", "batch 1", work, 1.0, False, 2, entries, [], {"copied": 0}, group="models")
    run = BenchRun(2, "quick")
    run.add(one)
    models_html.write(path, run, suite.COLUMNS, suite.row, list(suite.summary(run)))
    return path


def test_pages_stand_alone(page: Path, report: Path) -> None:
    for path in (page, report):
        text = path.read_text()
        assert not re.search(r"<script|<link|<iframe|<img|@import|url\(|\ssrc=", text)
        assert set(re.findall(r"https?://[^\"' >]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "schedules/cpu/top_k.py: algorithm" in page.read_text()
    assert "geometric mean 2.00" in report.read_text()
    assert "500 ms" in report.read_text()


def test_a_browser_shows_the_pages(page: Path, report: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed (Debian: chromium)")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={tmp_path}/b",
    ]
    for path, words in ((page, ("Kernels, in order", "Memory", "float32[64, 3]")), (report, ("Speed", "ONNX Runtime", "Memory"))):
        shown = subprocess.run(
            [browser, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        assert all(word in shown.stdout for word in words)
        picture = tmp_path / "shown.png"
        command = [browser, *flags, "--window-size=640,900", f"--screenshot={picture}", path.as_uri()]
        subprocess.run(command, capture_output=True, timeout=120, check=True)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 20_000  # an empty page of this size takes less than a quarter of that


def test_a_page_is_for_known_models_or_one(saved: Path) -> None:
    done = call("explain", saved, "--html", "a.txt")
    assert "allowed: the path of an .html file" in done.output
    assert "kernel" not in done.output
    done = call("bench", "--html", "a.html")
    assert done.exit_code == 2
    assert "--html is for --models" in done.output
    done = call("bench", "--models", "--html", "a.txt")
    assert (done.exit_code, "the path of a .html file" in " ".join(done.output.split())) == (2, True)


@pytest.mark.parametrize("name", ["explain", "run", "verify"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = call(name, tmp_path / "pipe")
    assert done.exit_code in (1, 2)


def test_a_file_that_is_no_pack_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.tvmdml").write_bytes(b"no pack")
    done = call("verify", tmp_path / "a.tvmdml")
    assert done.exit_code == 1
    assert "a.tvmdml" in done.stderr
