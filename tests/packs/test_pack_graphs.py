"""Graphs and ONNX models in packs: the same results without the compiler, in Python and in C; hostile ones are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_programs import ASAN, SANITIZED, compiled, said
from commands import call, succeed
from folders import C as SOURCES
from packs import Change, put, rewritten, run_elsewhere

import tvmdml
from tvmdml import errors, packs, targets
from tvmdml.library import format as container
from tvmdml.library import signing
from tvmdml.library.format import DATA, Contents, Pack
from tvmdml.library.spec import Spec
from tvmdml.onnx import packed
from tvmdml.packs import change, header, look, sources, verify
from tvmdml.packs.graphs import GraphSource
from tvmdml.targets.cpu import host
from tvmdml.tuning import of_graphs

LEVELS = ("aarch64",) if host.host().level == "aarch64" else ("x86-64", "x86-64-v3")
TARGETS = tuple(f"cpu:{level}" for level in LEVELS if host.host().runs(host.parse(level, here=False)))


def net() -> tuple[tvmdml.Graph, list[tvmdml.Expression]]:
    """Packed and raw weights, views, an output twice, a constant output, twins in other shapes, types of several sizes."""
    rng = np.random.default_rng(5)
    graph = tvmdml.Graph("net")
    x, more = graph.input((1, 3, 12, 12), name="x"), graph.input((2, 8), "bool", name="more than that")
    filters, weights = rng.standard_normal((8, 3, 3, 3)), rng.standard_normal((1, 1, 144, 24))
    y = tvmdml.activation_relu(tvmdml.convolution(x, filters.astype("f4"), start_padding=[1, 1], end_padding=[1, 1]) - 0.25)
    z = tvmdml.gemm(y.reshape(1, 1, 8, 144), weights.astype("f4"))
    best = tvmdml.top_k(z.reshape(8, 24), 3)
    fixed = graph.constant(np.arange(5, dtype=np.int16))
    twins = [best.indices.reshape(3, 8), fixed.reshape(1, 5), more.reshape(16), x.reshape(3, 144), x]
    return graph, [z, best.indices, best.indices, y, fixed, more, *twins]


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    rng = np.random.default_rng(6)
    return {"x": rng.standard_normal((1, 3, 12, 12)).astype(np.float32), "more than that": rng.random((2, 8)) > 0.5}


@pytest.fixture(scope="module")
def wanted(given: dict[str, Any]) -> list[Any]:
    graph, outputs = net()
    found = graph.compile(outputs, TARGETS[-1])(given)
    for twin, source in zip(found[6:], (found[1], found[4], *reversed(given.values()), given["x"]), strict=True):
        assert twin.tobytes() == source.tobytes()
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    graph, outputs = net()
    tvmdml.save_graph(graph.compile(outputs, TARGETS[-1]), folder / "net.graph")
    built = packs.build(folder / "net.graph", folder / "net.pack", targets=TARGETS, jobs=1)
    assert built.skipped == ()
    return folder / "net.pack"


# -- Python ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_graph_of_a_pack_needs_no_compiler(path: Path, tmp_path: Path, given: dict[str, Any], wanted: list[Any]) -> None:
    np.savez(tmp_path / "x.npz", *given.values())
    code = (
        "import numpy as np, tvmdml\n"
        f"given = np.load({str(tmp_path / 'x.npz')!r})\n"
        f"graph = tvmdml.load_graph({str(path)!r}, {TARGETS[-1]!r})\n"
        f"np.savez({str(tmp_path / 'y.npz')!r}, *graph([given['arr_0'], given['arr_1']]))\n"
        "print(graph.name)"
    )
    assert run_elsewhere(code, tmp_path) == "net\n"
    found = np.load(tmp_path / "y.npz")
    for i, array in enumerate(wanted):
        assert np.array_equal(found[f"arr_{i}"], array)


def test_weights_are_there_once_and_packed(path: Path) -> None:
    (graph,) = Pack(path).graphs()
    described = json.loads(Pack(path).content(graph.part))
    assert {tuple(map(tuple, sources)) for _, sources, *_ in described["packed"]} == {((0, 0),), ((2, 0),)}
    assert len(described["constants"]) < described["plan"]["constants"], "what every kernel reads packed is stored only packed"
    assert len(set(graph.data)) == len(graph.data)
    assert all(Pack(path).mapped(number).ctypes.data % 64 == 0 for number in graph.data)


def test_a_target_that_the_pack_was_not_built_for_is_refused(path: Path) -> None:
    with pytest.raises(errors.Unsupported, match=r"a kind that .* has graphs for: cpu"):
        tvmdml.load_graph(path, "cuda:sm_80")
    with pytest.raises(errors.InvalidArgument, match="load_graph name: given 'nett'; allowed: 'net'"):
        tvmdml.load_graph(path, name="nett")


def test_packs_with_graphs_merge_and_split(path: Path, tmp_path: Path, given: dict[str, Any], wanted: list[Any]) -> None:
    graph, outputs = net()
    tvmdml.save_graph(graph.compile(outputs[:1], TARGETS[-1]), tmp_path / "net.graph")
    packs.build(tmp_path / "net.graph", tmp_path / "one.pack", targets=TARGETS, jobs=1)
    with pytest.raises(errors.PackError, match="another graph 'net' for cpu"):
        change.merge([path, tmp_path / "one.pack"], tmp_path / "both.pack")
    change.merge([path, path], tmp_path / "both.pack")
    assert Pack(tmp_path / "both.pack").part_count == Pack(path).part_count
    change.split(tmp_path / "both.pack", [TARGETS[-1]], tmp_path / "last.pack")
    for array, expected in zip(tvmdml.load_graph(tmp_path / "last.pack", TARGETS[-1])(given), wanted, strict=True):
        assert np.array_equal(array, expected)
    assert look.diff(Pack(path), Pack(tmp_path / "both.pack")) == []
    assert look.summary(Pack(path))["graphs"] == ["net for cpu"]


def test_two_graphs_of_one_name_are_refused(tmp_path: Path) -> None:
    source = GraphSource("net", lambda target: pytest.fail("not asked"), {})
    with pytest.raises(errors.InvalidArgument, match="two graphs 'net'"):
        packs.build(Spec(targets=TARGETS, graphs=(source, source)), tmp_path / "x.pack")


# -- ONNX -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def onnx_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own: Any = pytest.importorskip("onnx_nodes", reason="ONNX is not installed")
    folder, weights = tmp_path_factory.mktemp("onnx"), {"w": np.arange(24, dtype=np.float32).reshape(3, 8)}
    nodes = [own.N("MatMul", ["x", "w"], ["a"]), own.N("Relu", ["a"], ["y"]), own.N("Shape", ["x"], ["sizes"])]
    outputs = [own.info("y", ["batch", 8]), own.info("sizes", [2], own.INT64)]
    own.onnx.save(own.model(nodes, [own.info("x", ["batch", 3])], outputs, weights), folder / "model.onnx")
    for batch in (1, 2):
        spec = sources.read([folder / "model.onnx"], TARGETS, {"batch": batch})
        packs.build(spec, folder / f"{batch}.pack", jobs=1)
    change.merge([folder / "1.pack", folder / "2.pack"], folder / "model.pack")
    return folder / "model.pack"


@pytest.mark.full
def test_merged_sizes_with_plain_weights_have_them_once(tmp_path: Path) -> None:
    """Though kernels for the sizes read different packed forms. Equal bytes are stored once in any case."""
    onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
    weights = np.random.default_rng(7).standard_normal((512, 96)).astype(np.float32)
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[n, 512] x) => (float[n, 96] y) { y = MatMul(x, w) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    rows, done = (1, 16, 96), {}
    for way, options in (("packed", []), ("plain", ["--plain-weights"])):
        names = [str(tmp_path / f"{way}{n}.pack") for n in rows]
        for n, name in zip(rows, names, strict=True):
            arguments = ["pack", "build", str(tmp_path / "m.onnx"), "--size", f"n={n}", "--target", TARGETS[-1], "-j1", "-o", name]
            succeed(*arguments + options)
        change.merge(names, tmp_path / f"{way}.pack")
        pack = Pack(tmp_path / f"{way}.pack")
        stored = [row.size for row in map(pack.part, range(pack.part_count)) if row.suffix == DATA]
        assert way == "packed" or stored == [weights.nbytes]
        model = tvmdml.onnx.load(tmp_path / f"{way}.pack")
        done[way] = [model(x=np.ones((n, 512), np.float32))[0] for n in rows], sum(stored)
    for one, other in zip(done["packed"][0], done["plain"][0], strict=True):
        assert np.array_equal(one, other)
    assert done["packed"][1] > done["plain"][1]


@pytest.mark.full
def test_an_onnx_model_of_a_pack_needs_no_onnx(onnx_pack: Path, tmp_path: Path) -> None:
    code = (
        "import numpy as np, tvmdml.onnx\n"
        f"model = tvmdml.onnx.load({str(onnx_pack)!r})\n"
        "print([(one.name, one.type, one.shape) for one in (*model.get_inputs(), *model.get_outputs())])\n"
        "for n in (1, 2):\n"
        "    y, sizes = model.run(None, {'x': np.ones((n, 3), np.float32)})\n"
        "    print(y.shape, y[0, 0], sizes)\n"
        "try:\n"
        "    model(x=np.ones((3, 3), np.float32))\n"
        "except tvmdml.InvalidArgument as error:\n"
        "    print(error)"
    )
    ports, one, two, refused = run_elsewhere(code, tmp_path).splitlines()
    x, y, sizes = "('x', 'tensor(float)', ['batch', 3])", "('y', 'tensor(float)', ['batch', 8])", "('sizes', 'tensor(int64)', [2])"
    assert ports == f"[{x}, {y}, {sizes}]"
    assert (one, two) == ("(1, 8) 24.0 [1 3]", "(2, 8) 24.0 [2 3]")
    advice = "Build it for these sizes, too, or for an open one: --size NAME=1..64."
    assert refused == f"model.pack call: given x[3, 3]; allowed: x[1, 3]; or x[2, 3]. {advice}"


@pytest.mark.parametrize(
    ("sizes", "named", "said"),
    [
        ((2, 2), [{"batch": 1}, {"batch": 2}], 2),
        ((1, 2), [{"batch": 1, "length": 7}, {"batch": 2, "length": 7}], "batch"),
        ((4, 2), [{"batch": 1}, {"batch": 2}], "2 or 4"),
        ((1, 2), [{"batch": 1, "length": 1}, {"batch": 2, "length": 2}], "1 or 2"),  # which of them cannot be known
        ((1, 2), [{}, {"batch": 2}], "1 or 2"),  # packs of earlier versions do not name them
    ],
)
def test_open_sizes_of_a_pack_have_names_or_values(sizes: tuple[int, ...], named: list[dict[str, int]], said: int | str) -> None:
    assert packed._open(sizes, named) == said


def test_the_graphs_of_a_pack_are_explained(onnx_pack: Path) -> None:
    lines = [line for line, _ in tvmdml.onnx.load(onnx_pack).explain().lines]
    assert "built for x [2, 3]" in lines
    assert len(lines) > 2


def test_a_session_takes_a_pack(onnx_pack: Path) -> None:
    options = tvmdml.onnx.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    x, gpu = np.ones((2, 3), np.float32), "VulkanExecutionProvider"
    with pytest.warns(UserWarning, match=f"{gpu}.* the pack has graphs for cpu only") as warned:
        session = tvmdml.onnx.InferenceSession(onnx_pack, options, [gpu, "CPUExecutionProvider"])
    assert warned[0].filename == __file__
    assert session.get_providers() == ["CPUExecutionProvider"]
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    for found in (binding.copy_outputs_to_cpu()[0], session.run(["y"], {"x": x})[0]):
        np.testing.assert_array_equal(found, tvmdml.onnx.load(onnx_pack)(x=x)[0])
    with pytest.raises(errors.Unsupported, match="has graphs for: cpu"):  # asked for by its own name
        tvmdml.onnx.InferenceSession(onnx_pack, providers=["cuda:sm_80"])


def test_open_sizes_must_be_given(onnx_pack: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"known sizes of batch. They are given by name: --size batch=N"):
        sources.read([onnx_pack.parent / "model.onnx"])
    with pytest.raises(errors.InvalidArgument, match=r"given 'bach'; allowed: batch. Did you mean batch\?"):
        sources.read([onnx_pack.parent / "model.onnx"], sizes={"batch": 1, "bach": 2})


@pytest.mark.full
def test_recurrent_weights_are_packed_in_a_pack(tmp_path: Path) -> None:
    graph, rng = tvmdml.Graph("recurrent"), np.random.default_rng(8)
    x, given = graph.input((1, 3, 2, 8), name="x"), rng.standard_normal((1, 3, 2, 8)).astype("f4")

    def weights(gates: int, columns: int) -> Any:
        return rng.standard_normal((1, 1, gates * 16, columns)).astype("f4")

    kinds = {tvmdml.rnn: 1, tvmdml.gru: 3, tvmdml.lstm: 4}
    compiled = graph.compile([kind(x, weights(n, 8), weights(n, 16))[0] for kind, n in kinds.items()], TARGETS[-1])
    tvmdml.save_graph(compiled, tmp_path / "recurrent.graph")
    packs.build(tmp_path / "recurrent.graph", tmp_path / "recurrent.pack", targets=TARGETS[-1:], jobs=1)
    code = f"import numpy as np, tvmdml; print(tvmdml.load_graph({str(tmp_path / 'recurrent.pack')!r})([np.load('x.npy')]))"
    np.save(tmp_path / "x.npy", given)
    found = run_elsewhere(code.replace("x.npy", str(tmp_path / "x.npy")), tmp_path)
    assert found.strip() == str(compiled([given]))


def test_sizes_without_names_are_called_by_input_and_axis(tmp_path: Path) -> None:
    own: Any = pytest.importorskip("onnx_nodes", reason="ONNX is not installed")
    x, y = (own.info(name, [None, 3, "??"]) for name in "xy")
    x.type.tensor_type.shape.dim[0].dim_value = -1
    own.onnx.save(own.model([own.N("Relu", ["x"], ["y"])], [x], [y]), file := tmp_path / "model.onnx")
    model = tvmdml.onnx.load(file, {"x.0": 2})
    assert (model.inputs[0].shape, model.symbols) == ((2, 3, None), ("x.2",))
    assert tvmdml.onnx.InferenceSession(file).get_inputs()[0].shape == [None, 3, None]
    with pytest.raises(errors.InvalidArgument, match=r"x: float32\[2, 3, \?\]\); allowed: known sizes of x\.2\..* --size x\.2=N"):
        model.recorded()
    built = sources.read([file], TARGETS, {"x.2": 320, "x.0": 2})
    assert [one.name for one in built.graphs] == ["model_x.0_2_x.2_320"]
    packs.build(built, tmp_path / "model.pack", jobs=1)
    assert tvmdml.onnx.load(tmp_path / "model.pack", {"x.2": 320}).inputs[0].shape == (2, 3, 320)
    long = sources.read([shutil.copy(file, tmp_path / f"{'long_' * 7}name.onnx")], sizes={"x.2": 320, "x.0": 2})
    assert [one.name for one in long.graphs] == [f"{'long_' * 7}name_2x320"]


def test_sizes_choose_in_a_pack(onnx_pack: Path) -> None:
    assert tvmdml.onnx.load(onnx_pack, {"batch": 2}).inputs[0].shape == (2, 3)
    with pytest.raises(errors.InvalidArgument, match=r"given batch=3; allowed: batch=1; or batch=2\. Build"):
        tvmdml.onnx.load(onnx_pack, {"batch": 3})
    found = call("run", onnx_pack, "--size", "batch=2")
    assert "Output 'y': float32[2, 8]" in found.output
    found = call("run", onnx_pack)
    assert "allowed: --input x=FILE.npy, or --size batch=1, or --size batch=2." in found.stderr


@pytest.mark.parametrize("suffix", [".pack", ".graph"])
@pytest.mark.parametrize(("name", "value"), [("fallback", "onnxruntime"), ("accuracy", "file"), ("precision", "bf16")])
def test_what_only_models_take_is_refused(name: str, value: str, suffix: str, path: Path) -> None:
    file, option = path.with_suffix(suffix), {name: value}
    wanted = r"(None|'exact'): a pack or a saved graph computes as it was made"
    said = rf"load {name}: given '{value}'; allowed: {wanted}\. .*{file.name}"
    for made in (tvmdml.onnx.load, tvmdml.onnx.InferenceSession):
        with pytest.raises(errors.InvalidArgument, match=said):
            made(file, **option)


@pytest.mark.parametrize("suffix", [".pack", ".graph"])
def test_a_graph_is_called_as_a_model(suffix: str, path: Path, given: dict[str, Any], wanted: list[Any]) -> None:
    model = tvmdml.onnx.load(path.with_suffix(suffix), target=TARGETS[-1])
    assert [(one.name, one.type, one.shape) for one in model.inputs] == [
        ("x", "tensor(float)", (1, 3, 12, 12)),
        ("more than that", "tensor(bool)", (2, 8)),
    ]
    for found in (model(given), model.run(None, given)):
        for array, expected in zip(found, wanted, strict=True):
            assert np.array_equal(array, expected)
    assert "CONVOLUTION" in str(model.compiled(given).explain())


@pytest.mark.parametrize("suffix", [".pack", ".graph"])
def test_a_graph_is_run_and_measured_by_the_names_of_its_inputs(
    suffix: str, path: Path, tmp_path: Path, given: dict[str, Any], wanted: list[Any]
) -> None:
    for name, array in given.items():
        np.save(tmp_path / f"{name}.npy", array)
    named = [part for name in given for part in ("--input", f"{name}={tmp_path / name}.npy")]
    command = ["run", str(path.with_suffix(suffix)), "--device", TARGETS[-1], *named, "--output_path", str(tmp_path / "out")]
    done = succeed(*command, "--profile", tmp_path / "trace.json")
    assert "Output '1': uint32[8, 3]" in done.output
    assert "CONVOLUTION" in done.output
    for i, expected in enumerate(wanted):
        assert np.array_equal(np.load(tmp_path / "out" / f"{i}.npy"), expected)
    wrong = call(*command[:4], "--input", f"y={tmp_path / 'x.npy'}")
    assert "given 'y'; allowed: x, more than that" in wrong.output + wrong.stderr
    done = succeed("bench", path.with_suffix(suffix), "--device", TARGETS[-1])
    assert "no ONNX Runtime: it reads ONNX models only" in done.output


def test_a_graph_with_owned_inputs_is_no_model(tmp_path: Path) -> None:
    graph = tvmdml.Graph()
    y = graph.input((2, 3)) + graph.input((2, 3), owned=True, name="b")
    tvmdml.save_graph(graph.compile([y]), tmp_path / "net.graph")
    with pytest.raises(errors.Unsupported, match=r"owned inputs \(b\).* Use load_graph, and initialize it"):
        tvmdml.onnx.load(tmp_path / "net.graph")


def test_a_graph_is_tuned_by_shares_of_the_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = sources.read([path.with_suffix(".graph")]).graphs
    found = of_graphs.shares(source, targets.resolve(TARGETS[-1]), 10)
    names = {one.wanted.desc.NAME for one in found}
    assert {"GEMM", "TOP_K1"} <= names
    assert abs(sum(one.share for one in found) - 1) < 1e-9
    assert [one.trials for one in found] == sorted((one.trials for one in found), reverse=True)
    asked: list[tuple[str, int]] = []

    def tune(wanted: Any, *, trials: int, **others: Any) -> list[Any]:
        asked.extend((one.desc.NAME, trials) for one in wanted)
        return []

    monkeypatch.setattr("tvmdml.tuning.tuner.tune", tune)
    done = succeed("tune", path.with_suffix(".graph"), "--target", TARGETS[-1], "--trials", "10")
    assert {name for name, _ in asked} == names
    assert "% of the time" in done.output


# -- C --------------------------------------------------------------------------------------------------------------

CC = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc here")


@pytest.fixture(scope="module")
def folder(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("header")
    written = header.write(Pack(path), found)
    assert [one.name for one in written if one.suffix != ".so"] == ["net.h", "net.data"]
    return found


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return compiled("gcc", SOURCES / "graph.c", folder, "-std=c99", "-pthread", "-ldl")


def run_program(program: Path, folder: Path, given: dict[str, Any], *arguments: str, **environment: str) -> bytes:
    (folder / "inputs").write_bytes(b"".join(array.tobytes() for array in given.values()))
    said(program, folder, "net", folder / "inputs", folder / "outputs", *arguments, **environment)
    return (folder / "outputs").read_bytes()


@CC
def test_the_results_in_c_are_those_in_python(program: Path, folder: Path, given: dict[str, Any], wanted: list[Any]) -> None:
    """In memory between pages that nothing may touch, at their ends and begins, in several threads."""
    expected = b"".join(array.tobytes() for array in wanted)
    assert run_program(program, folder, given) == expected
    assert run_program(program, folder, given, TVMDML_NUM_THREADS="1") == expected


@pytest.mark.full
@CC
@pytest.mark.parametrize("why", ["the builder cannot run the processor's code", "the builder is told so"])
def test_weights_that_are_not_stored_packed_are_packed_for_the_first_context(
    path: Path, tmp_path: Path, given: dict[str, Any], wanted: list[Any], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    from tvmdml.packs import graphs

    if why == "the builder cannot run the processor's code":
        monkeypatch.setattr(graphs, "_here", lambda name, machine: None)
    plain = why == "the builder is told so"
    packs.build(path.with_suffix(".graph"), tmp_path / "net.pack", targets=TARGETS, jobs=1, plain_weights=plain)
    pack = Pack(tmp_path / "net.pack")
    assert json.loads(pack.content(pack.graphs()[0].part))["packed"] == []
    for array, expected in zip(tvmdml.load_graph(tmp_path / "net.pack", TARGETS[-1])(given), wanted, strict=True):
        assert np.array_equal(array, expected)
    header.write(pack, tmp_path)
    program = compiled("gcc", SOURCES / "graph.c", tmp_path, "-std=c99", "-pthread", "-ldl", before=SANITIZED)
    found = run_program(program, tmp_path, given, ASAN_OPTIONS=ASAN)
    assert found == b"".join(array.tobytes() for array in wanted)


@CC
def test_mistakes_in_c_are_errors(program: Path, folder: Path, tmp_path: Path) -> None:
    assert said(program, folder, "net", "errors").splitlines() == [
        "no pack is open: call net_open first",
        "no graph was given, or none has the name: this header has 1, the first is net",
        "the graph is not one of this header's",
        "net_graph_net: no context was given",
        "net_graph_net: no tensors were given",
        "net_graph_net: tensor 1 is NULL",
        "net_graph_net: tensor 0 is not aligned to its elements",
        "net_graph_net: tensors 0 and 12 are in the same memory, and one is written",
    ]
    for file in folder.iterdir():
        shutil.copy(file, tmp_path / file.name)
    content = bytearray((folder / "net.data").read_bytes())
    content[3] ^= 1
    for damaged in (bytes(content), bytes(content[:-1])):
        (tmp_path / "net.data").write_bytes(damaged)
        assert "belong to this header" in said(program, tmp_path, "net", "errors", ok=False)
    (tmp_path / "net.data").unlink()
    assert "net.data: cannot be opened" in said(program, tmp_path, "net", "errors", ok=False)


@CC
def test_the_function_has_the_names_and_types_of_the_graph(onnx_pack: Path, folder: Path, tmp_path: Path) -> None:
    text = (folder / "net.h").read_text()
    parameters = "net_context *context, const float *in_x, const uint8_t *in_more_than_that, float *out_0, uint32_t *out_1"
    assert f"static inline int net_graph_net({parameters}" in text
    header.write(Pack(onnx_pack), tmp_path)
    text = (tmp_path / "model.h").read_text()
    assert "model_graph_model_batch2(model_context *context, const float *in_x, float *out_y, int64_t *out_sizes)" in text
    (tmp_path / "both.c").write_text(
        "#define MODEL_IMPLEMENTATION\n#include <stdio.h>\n"
        '#include "model.h"\nint main(int n, char **a) { (void)n; return model_open(a[1]) == 0 ? 0 : 1; }\n'
    )
    said(compiled("gcc", tmp_path / "both.c", tmp_path, "-std=c99", "-ldl"), tmp_path)


def test_outputs_that_are_sequences(tmp_path: Path) -> None:
    """Lists in Python, as without a pack; in C each tensor is a parameter."""
    own: Any = pytest.importorskip("onnx_nodes", reason="ONNX is not installed")
    helper, kind = own.onnx.helper, own.FLOAT
    nodes = [
        own.N("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
        own.N("Neg", ["x"], ["y"]),
        own.N("SequenceEmpty", [], ["none"]),
        own.N("SequenceConstruct", ["y", "x"], ["pair"]),
        own.N("Optional", [], ["nothing"], type=helper.make_tensor_type_proto(kind, [2])),
    ]
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(kind, [2]))
    several = {name: helper.make_tensor_sequence_value_info(name, kind, None) for name in ("rows", "none", "pair")}
    y, nothing = own.info("y", [3, 2]), helper.make_value_info("nothing", optional)
    outputs = [several["rows"], y, several["none"], several["pair"], nothing]
    own.onnx.save(own.model(nodes, [own.info("x", [3, 2])], outputs), tmp_path / "s.onnx")
    packs.build(tmp_path / "s.onnx", tmp_path / "s.pack", targets=TARGETS[-1:], jobs=1)
    served, right = (tvmdml.onnx.load(tmp_path / name) for name in ("s.pack", "s.onnx"))
    assert [(one.name, one.type) for one in served.get_outputs()] == [(one.name, one.type) for one in right.get_outputs()]
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    for one, other in zip(served(x=given), right(x=given), strict=True):
        assert type(one) is type(other)
        assert one is None or len(one) == len(other)
        assert one is None or all(map(np.array_equal, one, other))
    value = served.run_with_ort_values(["none"], {"x": given})[0]
    assert (value.data_type(), value.array) == ("seq(tensor(float))", [])
    header.write(Pack(tmp_path / "s.pack"), tmp_path)
    names = ["rows_0", "rows_1", "rows_2", "y", "pair_0", "pair_1"]
    assert (
        f"s_graph_s(s_context *context, const float *in_x, {', '.join(f'float *out_{one}' for one in names)})"
        in (tmp_path / "s.h").read_text()
    )


def in_c(pack: Path, declared: str, arguments: str, elements: int, turns: int = 1) -> Any:
    """The numbers in ``y`` after each call of a pack's graph by a program in C, in which ``turn`` counts down to 0."""
    name, folder = pack.stem, pack.parent / "c"
    folder.mkdir()
    header.write(Pack(pack), folder)
    (folder / "main.c").write_text(
        f'#define {name.upper()}_IMPLEMENTATION\n#include <stdio.h>\n#include "{name}.h"\n'
        f"int main(int count, char **a) {{\n    {declared}\n    if (count < 2 || {name}_open(a[1])) return 1;\n"
        f'    {name}_context *context = {name}_new({name}_find_graph("{name}"));\n'
        f"    for (int turn = {turns - 1}; turn >= 0; turn--) {{\n"
        f"        if (context == NULL || {name}_graph_{name}(context, {arguments})) return 1;\n"
        f'        for (int i = 0; i < {elements}; i++) printf("%.9g\\n", y[i]);\n    }}\n'
        f"    {name}_free(context);\n    {name}_close();\n    return 0;\n}}\n"
    )
    return np.array(said(compiled("gcc", folder / "main.c", folder, "-std=c99", "-ldl"), folder).split(), np.float32)


@pytest.mark.full
@CC
def test_a_model_that_draws_numbers(tmp_path: Path) -> None:
    """Python counts the runs; a program in C says which one it is, by the state."""
    own: Any = pytest.importorskip("onnx_nodes", reason="ONNX is not installed")
    x, y = (own.info(name, [40]) for name in "xy")
    own.onnx.save(own.model([own.N("RandomNormalLike", ["x"], ["y"])], [x], [y]), tmp_path / "noise.onnx")
    packs.build(tmp_path / "noise.onnx", tmp_path / "noise.pack", targets=TARGETS, jobs=1)
    given = np.zeros(40, np.float32)
    served, right = (tvmdml.onnx.load(tmp_path / name, seed=6) for name in ("noise.pack", "noise.onnx"))
    runs = [served(x=given)[0] for _ in range(3)]
    assert [one.tolist() for one in runs] == [right(x=given)[0].tolist() for _ in range(3)]
    assert [one.name for one in served.inputs] == ["x"]
    apart = [tvmdml.onnx.load(tmp_path / "noise.pack")(x=given)[0].tolist() for _ in range(2)]
    assert apart[0] != apart[1]
    declared = "float x[40] = {0}, y[40]; uint32_t state[6] = {0, 2, 0, 0, 6, 0};"
    assert np.array_equal(in_c(tmp_path / "noise.pack", declared, "x, state, y", 40), runs[2])


@pytest.mark.full
@CC
def test_conditions_that_no_kernel_reads_are_in_the_pack(tmp_path: Path) -> None:
    """One is a constant, the other one is given when the graph is initialized. Each is only looked at."""
    graph = tvmdml.Graph("looked")
    x, owned = graph.input((2, 4), name="x"), graph.input((1, 1), "uint8", name="c", owned=True)
    one, other = tvmdml.cumulative_summation(x, axis=1), tvmdml.cumulative_product(x, axis=1)
    known = graph.constant(np.array([[3]], np.uint8))
    first = tvmdml.where(known, one, other)
    second = tvmdml.where(owned, tvmdml.cumulative_product(x, axis=0), tvmdml.cumulative_summation(x, axis=0))
    tvmdml.save_graph(graph.compile([first, second], TARGETS[-1]), tmp_path / "looked.graph")
    packs.build(tmp_path / "looked.graph", tmp_path / "looked.pack", targets=TARGETS, jobs=1)
    served = tvmdml.load_graph(tmp_path / "looked.pack", TARGETS[-1])
    given = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    right = [given.cumsum(1), given.cumsum(0)]
    served.initialize({"c": np.zeros((1, 1), np.uint8)})
    assert all(map(np.array_equal, served({"x": given}), right))
    declared = "float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[16]; uint8_t given = 0;"
    assert np.array_equal(in_c(tmp_path / "looked.pack", declared, "x, &given, y, y + 8", 16), np.concatenate(right).reshape(-1))


@pytest.mark.full
@CC
def test_a_program_in_c_computes_the_chosen_side_only(tmp_path: Path) -> None:
    """What is not chosen would overwrite the result, as both sides are written there."""
    graph = tvmdml.Graph("chosen")
    x, c = graph.input((2, 4), name="x"), graph.input((1, 1), "uint8", name="c")
    one, other = tvmdml.cumulative_summation(x, axis=1), tvmdml.cumulative_product(x, axis=1)
    inner = tvmdml.where(tvmdml.logical_not(c), tvmdml.cumulative_summation(other, axis=0), other)
    compiled_graph = graph.compile([tvmdml.where(c, one, inner)], TARGETS[-1])
    tvmdml.save_graph(compiled_graph, tmp_path / "chosen.graph")
    packs.build(tmp_path / "chosen.graph", tmp_path / "chosen.pack", targets=TARGETS, jobs=1)
    served = tvmdml.load_graph(tmp_path / "chosen.pack", TARGETS[-1])
    given = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    sides = {1: given.cumsum(1), 0: given.cumprod(1).cumsum(0)}
    for condition, right in sides.items():
        feeds = {"x": given, "c": np.array([[condition]], np.uint8)}
        assert np.array_equal(served(feeds)[0], right)
        assert [one.skipped for one in served.profile(feeds)].count(True) == (4 if condition else 1)
    declared = "float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];"
    found = in_c(tmp_path / "chosen.pack", declared, "x, &(uint8_t){(uint8_t)turn}, y", 8, turns=2)
    assert np.array_equal(found, np.concatenate([sides[1], sides[0]]).reshape(-1))


def test_inputs_that_are_known_are_no_parameters(tmp_path: Path) -> None:
    graph = tvmdml.Graph("known")
    x, weights = graph.input((2, 3), name="x"), graph.input((3, 5), owned=True, name="weights")
    compiled = graph.compile([tvmdml.gemm(x, weights)], TARGETS[-1], known={weights: np.ones((3, 5), np.float32)})
    tvmdml.save_graph(compiled, tmp_path / "known.graph")
    packs.build(tmp_path / "known.graph", tmp_path / "known.pack", targets=TARGETS[-1:], jobs=1)
    header.write(Pack(tmp_path / "known.pack"), tmp_path)
    assert "known_graph_known(known_context *context, const float *in_x, float *out_0)" in (tmp_path / "known.h").read_text()


def test_a_graph_without_kernels_is_packed_and_has_no_header(tmp_path: Path) -> None:
    graph = tvmdml.Graph("fixed")
    tvmdml.save_graph(graph.compile([graph.constant(np.arange(4.0))], TARGETS[-1]), tmp_path / "fixed.graph")
    packs.build(tmp_path / "fixed.graph", tmp_path / "fixed.pack", targets=TARGETS[-1:], jobs=1)
    assert tvmdml.load_graph(tmp_path / "fixed.pack", TARGETS[-1])()[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(errors.PackError, match="a graph 'fixed' without kernels: all its outputs are constants"):
        header.write(Pack(tmp_path / "fixed.pack"), tmp_path / "to")


# -- Damage ---------------------------------------------------------------------------------------------------------


FIRST = "plan", "launchings", 0, 2, 0
HOSTILE: dict[str, Change] = {
    "another name": put("name", "other"),
    "another kind": put("kind", "cuda"),
    "another format": put("format", 1),
    "a constant that is not there": put("arrays", 0, 2, 99),
    "a constant before the first": put("arrays", 1, 2, -1),
    "a larger constant": put("arrays", 1, 1, [1 << 20, 1 << 10]),
    "a weight that was not stored": put("arrays", 1, 2, None),
    "packed elsewhere": put("packed", 0, 2, 99),
    "packed with more elements": put("arrays", -1, 1, [1 << 40]),
    "packed as another array": put("packed", 0, 2, 0),
    "packed of what is not there": put("packed", 0, 1, [[9, 0]]),
    "no packed weights": put("packed", []),
    "packed as nothing": put("packed", None),
    "packed for another layout": put("packed", 0, 0, "none"),
    "a larger call": put("plan", "calls", 0, 0, "InputTensor", "float32[1, 3, 4000, 12]"),
    "another call": put("plan", "launchings", 3, 0, 4),
    "another offset": lambda described: (described["plan"]["function"][4].append(1 << 40), put(*FIRST, 3, 19)(described)),
    "an array from nowhere": put(*FIRST, 1, 9),
    "a constant that is written": put("plan", "launchings", 0, 2, 2, ["constant", 0, "output_tensor", 0, 3]),
    "an output of another size": put("plan", "results", 0, 1, [14]),
    "no outputs": put("plan", "results", None),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_graphs_are_refused(name: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_DISABLE_JIT", "1")
    hostile = rewritten(path, tmp_path / "net.pack", HOSTILE[name])
    problems = []
    for use in (
        lambda: [tvmdml.load_graph(hostile, target) for target in TARGETS],
        lambda: header.write(Pack(hostile), tmp_path / "to"),
    ):
        try:
            use()
        except (errors.ModelError, errors.PackError, errors.InvalidArgument, errors.CompileError) as error:
            problems.append(str(error))
    assert problems, "none refused it"


@pytest.mark.parametrize("name", ["a larger call", "another offset", "a constant that is written", "no outputs"])
def test_verify_reads_graphs(name: str, path: Path, tmp_path: Path) -> None:
    assert verify.verify(path).ok
    hostile = rewritten(path, tmp_path / "net.pack", HOSTILE[name])
    report = verify.verify(hostile)
    assert [one.about for one in report.failed] == ["graph net for cpu"]
    assert report.ran == 0, "nothing is run of a pack that is wrong"


def test_verify_finds_a_graph_without_its_operations(path: Path, tmp_path: Path) -> None:
    contents = Pack(path).contents()
    left = [one for one in contents.operations if one.line["operator"] != "GEMM"]
    container.write(tmp_path / "net.pack", Contents(contents.head, contents.parts, contents.kernels, left))
    (found,) = verify.verify(tmp_path / "net.pack").failed
    assert "it lacks an operation of its graph 'net': GEMM" in found.said


def test_other_integers_than_the_schedules_choose_are_refused(path: Path, tmp_path: Path) -> None:
    contents = Pack(path).contents()
    for change_it in (
        lambda one: one._replace(scalars=tuple(n + 1 for n in one.scalars)),
        lambda one: one._replace(temporaries=(*one.temporaries, ("float32", 1))),
    ):
        operations = [one._replace(launches=tuple(map(change_it, one.launches))) for one in contents.operations]
        container.write(tmp_path / "net.pack", Contents(contents.head, contents.parts, contents.kernels, operations))
        with pytest.raises(errors.PackError, match="is another one than the schedules choose"):
            tvmdml.load_graph(tmp_path / "net.pack", TARGETS[-1])


ASKED = "print('tvmdml.library.scheduling' in sys.modules, 'tvmdml.operators' in sys.modules)"


def test_schedules_are_asked_about_a_pack_once(path: Path, tmp_path: Path) -> None:
    code = f"import sys, tvmdml\ntvmdml.load_graph({str(path)!r}, {TARGETS[-1]!r})\n{ASKED}"
    assert [run_elsewhere(code, tmp_path) for _ in range(2)] == ["True True\n", "False False\n"]
    other = tmp_path / "other.pack"
    other.write_bytes(path.read_bytes())
    assert run_elsewhere(code.replace(str(path), str(other)), tmp_path) == "False False\n", "it has the same checksum"
    assert run_elsewhere(code, tmp_path, TVMDML_DISABLE_PLANS="1") == "True True\n"


def test_schedules_are_not_asked_about_a_pack_of_a_trusted_key(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    shutil.copy(path, tmp_path / "net.pack")
    signing.generate(tmp_path / "private", tmp_path / "public")
    signing.sign(tmp_path / "net.pack", tmp_path / "private")
    code = f"import sys, tvmdml\ntvmdml.load_graph({str(tmp_path / 'net.pack')!r}, {TARGETS[-1]!r})\n{ASKED}"
    assert run_elsewhere(code, tmp_path, TVMDML_TRUSTED_KEYS=str(tmp_path / "public")) == "False False\n"


def test_a_graph_of_an_earlier_format_is_refused(path: Path, tmp_path: Path) -> None:
    earlier = rewritten(path, tmp_path / "net.pack", lambda described: described.pop("format"))
    with pytest.raises(errors.ModelError, match=r"has format 1; this version .* reads format 4\. .* build the pack, again"):
        tvmdml.load_graph(earlier, TARGETS[-1])


@pytest.mark.parametrize(
    "head", [put("part", 99), put("data", [99]), put("data", [0]), put("part", 0), put("name", "x" * 300), put("kind", "../cpu")]
)
def test_heads_that_point_elsewhere_are_refused(head: Any, path: Path, tmp_path: Path) -> None:
    with pytest.raises((errors.ModelError, errors.PackError)):
        tvmdml.load_graph(rewritten(path, tmp_path / "net.pack", lambda described: None, head), TARGETS[-1])


def test_a_changed_byte_of_a_weight_is_found(path: Path, tmp_path: Path) -> None:
    pack = Pack(path)
    content = bytearray(path.read_bytes())
    row = next(pack.part(number) for number in pack.graphs()[0].data if pack.part(number).size > 64)
    assert row.suffix == DATA
    for at in (row.offset, row.offset + row.stored - 1):
        changed = content.copy()
        changed[len(content) - pack._parts_bytes + at] ^= 1
        (tmp_path / "net.pack").write_bytes(changed)
        with pytest.raises(errors.PackError, match="the checksum of part"):
            tvmdml.load_graph(tmp_path / "net.pack", TARGETS[-1])
