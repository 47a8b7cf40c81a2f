"""Models with open sizes in C and C++: for all sizes the bytes of Python's answers, and errors where Python has them."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from c_programs import ASAN, SANITIZED, STRICT, compiled, said
from folders import C as SOURCES
from onnx_nodes import BOOL, FLOAT, INT64, N, info, model
from packs import rewritten
from test_pack_graphs import TARGETS

import tvmdml
from tvmdml import errors, packs
from tvmdml.kernels import tiles
from tvmdml.library import format as container
from tvmdml.library.format import DATA, Pack, Part
from tvmdml.packs import _header_c, _header_choices, header, sources, verify

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("g++")), reason="no gcc and g++ here")

THREADS = ("-pthread", "-ldl")


class Net(NamedTuple):
    """A model, and the ranges that a pack has it for."""

    inputs: Sequence[tuple[str, int, list[Any]]]
    outputs: Sequence[tuple[str, int, list[Any]]]
    nodes: Sequence[Any]
    constants: Mapping[str, Any]
    ranges: Mapping[str, range]


def weights(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype("f4")


def tokens() -> Net:
    """Products of one row and of several, a softmax over an open size, and what is joined along another one."""
    nodes = [
        N("MatMul", ["x", "w"], ["a"]),
        N("Relu", ["a"], ["b"]),
        N("Transpose", ["b"], ["c"], perm=[0, 2, 1]),
        N("Softmax", ["c"], ["d"], axis=-1),
        N("Concat", ["c", "d"], ["y"], axis=1),
    ]
    shapes = ["batch", "length", 6], ["batch", 16, "length"]
    ranges = {"batch": range(1, 4), "length": range(1, 21)}
    return Net([("x", FLOAT, shapes[0])], [("y", FLOAT, shapes[1])], nodes, {"w": weights(6, 8)}, ranges)


def image() -> Net:
    """Convolutions whose tiles follow from the image, and a size that halves and doubles again."""
    nodes = [
        N("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        N("Relu", ["a"], ["b"]),
        N("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        N("Conv", ["c", "v"], ["d"]),
        N("Resize", ["d", "", "scale"], ["mask"], mode="nearest"),
        N("GlobalAveragePool", ["d"], ["e"]),
        N("Flatten", ["e"], ["f"]),
        N("Gemm", ["f", "u"], ["scores"]),
    ]
    constants = {"w": weights(16, 3, 3, 3), "v": weights(8, 16, 1, 1), "u": weights(8, 10), "scale": np.float32([1, 1, 2, 2])}
    outputs = [("mask", FLOAT, [1, 8, "h", "w"]), ("scores", FLOAT, [1, 10])]
    ranges = {"height": range(16, 161, 8), "width": range(16, 161, 8)}
    return Net([("x", FLOAT, [1, 3, "height", "width"])], outputs, nodes, constants, ranges)


def sizes_as_numbers() -> Net:
    """Arrays of sizes in two types, an output twice, an input that nothing reads, and bool tensors."""
    nodes = [
        N("Shape", ["x"], ["shape"]),
        N("ArgMax", ["x"], ["best"], axis=0, keepdims=0),
        N("ReduceMax", ["best"], ["last"], keepdims=0),
        N("Add", ["shape", "last"], ["numbers"]),
        N("Where", ["mask", "x", "zero"], ["chosen"]),
        N("ReduceSum", ["chosen"], ["sum"], keepdims=0),
        N("Cast", ["shape"], ["real"], to=FLOAT),
        N("Mul", ["real", "sum"], ["product"]),
        N("Identity", ["chosen"], ["twin"]),
        N("Not", ["mask"], ["unmask"]),
    ]
    inputs = [("x", FLOAT, ["n", "m"]), ("mask", BOOL, ["n", 1]), ("idle", FLOAT, ["m", 3])]
    outputs = [("numbers", INT64, [2]), ("chosen", FLOAT, ["n", "m"]), ("product", FLOAT, [2]), ("twin", FLOAT, ["n", "m"])]
    outputs += [("unmask", BOOL, ["n", 1])]
    return Net(inputs, outputs, nodes, {"zero": np.float32(0.25)}, {"n": range(2, 30), "m": range(2, 300)})


def sides() -> Net:
    """One of two sides, which an element chooses."""
    branches = [
        onnx.helper.make_graph([N(operation, ["x"], ["z"])], operation, [], [info("z", None)]) for operation in ("Sqrt", "Neg")
    ]
    nodes = [
        N("ReduceMax", ["x"], ["most"], keepdims=0),
        N("Greater", ["most", "limit"], ["is_large"]),
        N("If", ["is_large"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    return Net([("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])], nodes, {"limit": np.float32(2)}, {"n": range(1, 600)})


NETS: dict[str, Callable[[], Net]] = {each.__name__: each for each in (tokens, image, sizes_as_numbers, sides)}


def saved(net: Net, folder: Path) -> Path:
    """The model in a file."""
    inputs, outputs = ([info(name, shape, kind) for name, kind, shape in several] for several in (net.inputs, net.outputs))
    onnx.save(model(list(net.nodes), inputs, outputs, dict(net.constants), 17, ir_version=9), folder / "net.onnx")
    return folder / "net.onnx"


def built(net: Net, folder: Path, targets: Sequence[str] = TARGETS[-1:]) -> Path:
    """The pack of a model."""
    spec = sources.read([saved(net, folder)], targets, dict(net.ranges))
    packs.build(spec, folder / "net.pack", targets=targets, jobs=1)
    return folder / "net.pack"


def arrays(net: Net, sizes: Mapping[str, int]) -> list[Any]:
    """Inputs of a model."""
    rng = np.random.default_rng(list(sizes.values()))
    obtained = []
    for _, kind, shape in net.inputs:
        values = rng.standard_normal([sizes.get(n, n) for n in shape])
        obtained.append(values > 0 if kind == BOOL else values.astype("f4"))
    return obtained


def drawn(net: Net, count: int) -> list[dict[str, int]]:
    """The corners of the ranges, and so many sizes from inside."""
    rng = random.Random(7)
    corners = [{name: values[end] for name, values in net.ranges.items()} for end in (0, -1)]
    return [*corners, *({name: rng.choice(values) for name, values in net.ranges.items()} for _ in range(count))]


def results(
    program: Path, folder: Path, net: Net, several: Sequence[Mapping[str, int]], **environment: str
) -> tuple[list[Any], str]:
    """The bytes of the outputs for sizes, which are the same in all threads, and what the program printed.

    ``None`` stands for the outputs of sizes that it refused.
    """
    order = re.findall(r"\bsize_(\w+)=", (folder / "net.h").read_text())
    assert sorted(order) == sorted(net.ranges)
    lines = []
    for i, sizes in enumerate(several):
        inside = all(size in net.ranges[name] for name, size in sizes.items())
        (folder / f"{i}").write_bytes(b"".join(each.tobytes() for each in arrays(net, sizes)) if inside else b"")
        lines.append(" ".join([*(str(sizes[name]) for name in order), str(folder / f"{i}")]))
    (folder / "jobs").write_text("\n".join(lines))
    printed = said(program, folder, folder / "jobs", **environment)
    obtained = []
    for i in range(len(several)):
        outputs = [path.read_bytes() for path in folder.glob(f"{i}.out*")]
        assert len(outputs) in (0, 3)
        assert len(set(outputs)) <= 1, several[i]
        obtained.append(outputs[0] if outputs else None)
        for path in folder.glob(f"{i}.out*"):
            path.unlink()
    return obtained, printed


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the pack, the header and the program of a model, made when a test first asks."""
    obtained: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in obtained:
            obtained[name] = folder = tmp_path_factory.mktemp(name)
            header.write(Pack(built(NETS[name](), folder)), folder)
            compiled("gcc", SOURCES / "open_graph.c", folder, "-std=c99", *THREADS)
        return obtained[name]

    return make


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", NETS)
def test_the_results_in_c_are_those_in_python(name: str, folders: Callable[[str], Path]) -> None:
    """In memory between pages that nothing may touch, for sizes in any order, and in several threads."""
    net, folder = NETS[name](), folders(name)
    served = tvmdml.onnx.load(folder / "net.pack", target=TARGETS[-1])
    several = drawn(net, 24)
    expected = [b"".join(each.tobytes() for each in served(arrays(net, sizes))) for sizes in several]
    for threads in ("1", "3"):
        obtained, printed = results(folder / "open_graph_c", folder, net, several, TVMDML_NUM_THREADS=threads)
        assert printed == ""
        assert obtained == expected
    if name == "sizes_as_numbers":
        best = arrays(net, several[2])[0].argmax(0).max()
        assert np.frombuffer(obtained[2], np.int64, 2).tolist() == [several[2]["n"] + best, several[2]["m"] + best]


@pytest.mark.full
@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c99"), ("g++", "c++11")])
@pytest.mark.parametrize("name", NETS)
def test_sanitizers_find_nothing(name: str, compiler: str, standard: str, folders: Callable[[str], Path]) -> None:
    net, folder = NETS[name](), folders(name)
    options = [f"-std={standard}", *THREADS, *SANITIZED]
    program = compiled(compiler, SOURCES / "open_graph.c", folder, *options, name=f"sanitized_{standard}")
    several = drawn(net, 6)
    obtained, printed = results(program, folder, net, several, ASAN_OPTIONS=ASAN, TVMDML_NUM_THREADS="2")
    right, _ = results(folder / "open_graph_c", folder, net, several, TVMDML_NUM_THREADS="2")
    assert None not in obtained
    assert (obtained, printed) == (right, "")
    said(program, folder, "errors", ASAN_OPTIONS=ASAN)


def test_sizes_outside_are_refused(folders: Callable[[str], Path]) -> None:
    net, folder = tokens(), folders("tokens")
    wrong = {"batch": (4, 0, -1, 1 << 40), "length": (21, -(1 << 62))}
    given = [{"batch": 3, "length": 20, name: size} for name, several in wrong.items() for size in several]
    obtained, printed = results(folder / "open_graph_c", folder, net, [*given, {"batch": 3, "length": 20}])
    said_of = (f"{name}={size}" for name, several in wrong.items() for size in several)
    assert printed.splitlines() == [f"net_graph_net: given {each}; allowed: batch=1..3, length=1..20" for each in said_of]
    assert [each is not None for each in obtained] == [False] * len(given) + [True]


def test_a_range_may_have_a_step(folders: Callable[[str], Path]) -> None:
    net, folder = image(), folders("image")
    _, printed = results(folder / "open_graph_c", folder, net, [{"height": 24, "width": 24}, {"height": 28, "width": 24}])
    assert printed == "net_graph_net: given height=28; allowed: height=16..160:8, width=16..160:8\n"


def test_guards_are_those_of_python(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """A plan that does not hold for one size, for some together, and where something is divided by 0.

    What Python does with larger integers is refused.
    """
    net = tokens()

    def change(described: Any) -> None:
        symbols, quotients, conditions, _, _ = described["plan"]["function"]
        if len(symbols) == 2:
            names = [name for name, *_ in described["open"]]
            length, batch = ([[symbols[names.index(name)]], 1] for name in ("length", "batch"))
            conditions += [[[length], None, None, [13]], [[length, batch], None, 21, []]]
            conditions.append([[[length[0] * 3, 1 << 51]], 0, None, []])
            quotients.append([9999, 1, [[[], -5], length]])

    path = rewritten(folders("tokens") / "net.pack", tmp_path / "net.pack", change)
    header.write(Pack(path), tmp_path)
    program = compiled("gcc", SOURCES / "open_graph.c", tmp_path, "-std=c99", *THREADS)
    served = tvmdml.onnx.load(path, target=TARGETS[-1])
    several = [
        {"batch": batch, "length": length} for batch, length in ((2, 13), (2, 5), (3, 20), (1, 13), (2, 15), (3, 12), (3, 16))
    ]
    obtained, printed = results(program, tmp_path, net, several)
    for sizes, output in zip(several, obtained, strict=True):
        if sizes["length"] == 16:
            assert served(arrays(net, sizes))[0].shape == (3, 16, 16)
            assert output is None
        elif output is None:
            with pytest.raises(errors.InvalidArgument, match="batch=1"):
                served(arrays(net, sizes))
        else:
            assert output == served(arrays(net, sizes))[0].tobytes()
    start = "net_graph_net: given batch={}, length={}; allowed: batch=1..3, length=1..20, with {}"
    assert printed.splitlines() == [
        start.format(2, 13, "length != 13"),
        start.format(2, 5, "divisors that are not 0"),
        start.format(3, 20, "batch + length <= 21"),
        start.format(3, 16, "numbers of 64 bits"),
    ]


class Answers(NamedTuple):
    """What a pack has of the answers of schedules."""

    launches: list[Any]
    functions: list[Any]
    rows: list[Any]


def with_answers(path: Path, folder: Path, change: Callable[[Answers, list[str]], object]) -> Pack:
    """A pack with other answers of schedules: ``change`` is given them for each recording, and the names of the open sizes."""
    pack, parts = Pack(path), list(Pack(path).contents().parts)
    for graph in pack.graphs():
        described = json.loads(bytes(pack.content(graph.part)))
        number = graph.data[described["answers"][0]]
        answers = Answers(*json.loads(zlib.decompress(pack.mapped(number).tobytes())))
        change(answers, [name for name, *_ in described["open"]])
        content = zlib.compress(json.dumps(answers).encode())
        parts[number] = Part(DATA, content)
        described["answers"][1] = len(content)
        parts[graph.part] = Part(".graph", json.dumps(described).encode())
    container.write(folder / "net.pack", pack.contents()._replace(parts=parts))
    return Pack(folder / "net.pack")


def test_a_kernel_that_is_not_in_the_pack_is_an_error(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """The pack has answers of schedules for up to eight words only."""

    def change(answers: Answers, names: list[str]) -> None:
        for symbols, _, conditions, *_ in answers.functions if len(names) == 2 else ():
            conditions.append([[[[symbols[names.index("length")]], 1]], None, 8, []])

    net = tokens()
    header.write(with_answers(folders("tokens") / "net.pack", tmp_path, change), tmp_path)
    program = compiled("gcc", SOURCES / "open_graph.c", tmp_path, "-std=c99", *THREADS, before=SANITIZED)
    several = [{"batch": 2, "length": length} for length in (8, 9, 20, 1)]
    obtained, printed = results(program, tmp_path, net, several, ASAN_OPTIONS=ASAN)
    assert [each is not None for each in obtained] == [True, False, False, True]
    for length, line in zip((9, 20), printed.splitlines(), strict=True):
        given = f"net_graph_net: given batch=2, length={length}, for which the pack lacks a kernel of GEMM"
        assert re.match(rf"{re.escape(given)}.* on {TARGETS[-1][4:]}; .*Build it again", line)


@pytest.mark.full
def test_kernels_for_fewer_threads_serve_more(folders: Callable[[str], Path], tmp_path: Path) -> None:
    net, path = image(), folders("image") / "net.pack"

    def change(answers: Answers, names: list[str]) -> None:
        answers.rows[:] = [row for row in answers.rows if row[2] == 1]

    header.write(with_answers(path, tmp_path, change), tmp_path)
    program = compiled("gcc", SOURCES / "open_graph.c", tmp_path, "-std=c99", *THREADS)
    several = drawn(net, 4)
    right = results(folders("image") / "open_graph_c", folders("image"), net, several, TVMDML_NUM_THREADS="3")
    assert results(program, tmp_path, net, several, TVMDML_NUM_THREADS="3") == right
    assert None not in right[0]


@pytest.mark.full
def test_levels_and_numbers_of_threads_have_kernels_of_their_own(tmp_path: Path) -> None:
    net = image()._replace(ranges={"height": range(16, 49, 16), "width": range(200, 520, 80)})
    header.write(Pack(built(net, tmp_path, TARGETS)), tmp_path)
    program = compiled("gcc", SOURCES / "open_graph.c", tmp_path, "-std=c99", *THREADS)
    several = drawn(net, 6)
    served = tvmdml.onnx.load(tmp_path / "net.pack", target=TARGETS[-1])
    expected = [b"".join(each.tobytes() for each in served(arrays(net, sizes))) for sizes in several]
    for threads in ("1", "2", "7"):
        obtained, printed = results(program, tmp_path, net, several, TVMDML_NUM_THREADS=threads)
        assert (obtained, printed) == (expected, "")


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", NETS)
def test_verify_knows_the_answers(name: str, folders: Callable[[str], Path]) -> None:
    report = verify.verify(folders(name) / "net.pack", device=TARGETS[-1], seed=3)
    assert report.ok, report.text()


@pytest.mark.parametrize("change", ["integers", "kernels"])
def test_verify_finds_other_answers(change: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    """What a program in C would launch must be what the schedules choose, as for operations."""

    def changed_by(answers: Answers, names: list[str]) -> None:
        if change == "integers":
            for function in answers.functions:
                function[4][0] = 77
        else:
            kernels = {each["kernel"] for each in answers.launches}
            for each in answers.launches:
                each["kernel"] = next(other for other in sorted(kernels) if other != each["kernel"])

    with_answers(folders("tokens") / "net.pack", tmp_path, changed_by)
    report = verify.verify(tmp_path / "net.pack", device=TARGETS[-1], seed=3)
    assert any("is another one than the schedules choose" in each.said for each in report.failed), report.text()


WASTES = f"{tiles.__name__}:wastes_columns"
HOSTILE: dict[str, Callable[[Answers], object]] = {
    "a group that is not there": lambda answers: answers.rows[0].__setitem__(0, 999),
    "a launch that is not there": lambda answers: answers.rows[0].__setitem__(3, len(answers.launches)),
    "a function that is not there": lambda answers: answers.rows[0].__setitem__(4, -1),
    "a number of threads that is none": lambda answers: answers.rows[0].__setitem__(2, -1),
    "a kernel that is not there": lambda answers: answers.launches[0].__setitem__("kernel", "00" * 16),
    "a type that is none": lambda answers: [each["temporaries"].append(["S9", 0]) for each in answers.launches],
    "fewer integers than temporaries": lambda answers: [
        each["temporaries"].extend([["int8", 0]] * 99) for each in answers.launches
    ],
    "an input that is not there": lambda answers: [each.update(owned=[PACKED]) for each in answers.launches],
    "an atom that is not there": lambda answers: answers.functions[0][4].append([[[777], 1]]),
    "a number that is too large": lambda answers: answers.functions[0][4].append(1 << 64),
    "another function": lambda answers: answers.functions[0][3].append(["os:system", [["is", "true"]], 0]),
    "an answer that is none": lambda answers: answers.functions[0][3].append([WASTES, [["is", 3], ["is", 4]], -1]),
    "a choice of other things": lambda answers: answers.functions[0][3].append([WASTES, [["is", "x"]], 1]),
    "nothing": lambda answers: answers.functions.clear(),
}
PACKED = {"name": "z", "dtype": "float32", "elements": 4, "layout": "x", "inputs": ["z"], "kernel": "00" * 16}
PACKED |= {"scalars": [], "temporaries": []}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_refused(name: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    hostile = with_answers(folders("tokens") / "net.pack", tmp_path, lambda answers, names: HOSTILE[name](answers))
    with pytest.raises((errors.ModelError, errors.PackError)):
        header.write(hostile, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_answers_that_are_cut_off_or_missing_are_refused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    pack = Pack(folders("tokens") / "net.pack")
    for wrong in (b"", b"x", zlib.compress(b"[]"), zlib.compress(b"[[], [], []]")[:-3]):
        parts = list(pack.contents().parts)
        for graph in pack.graphs():
            described = json.loads(bytes(pack.content(graph.part)))
            number, _ = described["answers"]
            described["answers"][1] = len(wrong)
            if not wrong:
                del described["answers"]
            parts[graph.data[number]] = Part(DATA, wrong)
            parts[graph.part] = Part(".graph", json.dumps(described).encode())
        container.write(tmp_path / "net.pack", pack.contents()._replace(parts=parts))
        reason = "damaged or cut off|answers of schedules that|graph" if wrong else "without answers of schedules.*Build it again"
        with pytest.raises((errors.ModelError, errors.PackError), match=reason):
            header.write(Pack(tmp_path / "net.pack"), tmp_path / "to")


def test_mistakes_are_errors(folders: Callable[[str], Path]) -> None:
    folder = folders("tokens")
    allowed = "allowed: batch=1..3, length=1..20"
    assert said(folder / "open_graph_c", folder, "errors").splitlines() == [
        "no pack is open: call net_open first",
        "the graph is not one of this header's",
        "net_graph_net: no context was given",
        "net_graph_net: the context has no sizes: call net_resize first",
        f"net_graph_net: given batch={(1 << 63) - 1}; {allowed}",
        f"net_graph_net: given batch=0; {allowed}",
        "net_graph_net: no sizes were given",
        "net_graph_net: no tensors were given",
        "no pack is open: call net_open first",
        "net_graph_net: tensor 0 is not aligned to its elements",
        "net_graph_net: tensors 0 and 1 are in the same memory, and one is written",
    ]


def test_functions_take_sizes_by_their_names(folders: Callable[[str], Path], tmp_path: Path) -> None:
    text = (folders("image") / "net.h").read_text()
    sizes = "net_context *context, int64_t size_height, int64_t size_width"
    assert f"static inline int net_graph_net({sizes}, const float *in_x, float *out_mask, float *out_scores) {{" in text
    assert f"static inline int net_resize_net({sizes}) {{" in text
    assert "in_x float32[1, 3, height, width], out_mask float32[1, 8, 2*((height + 1)//4), 2*((width + 1)//4)]" in text
    assert header.functions(folders("image") / "net.h") == ["net_graph_net", "net_resize_net"]


# -- Choices of schedules -------------------------------------------------------------------------------------------


def arguments_of(name: str, rng: random.Random) -> tuple[Any, ...]:
    """Arguments of a choice."""

    def size() -> int:
        return rng.choice((rng.randint(1, 20), rng.randint(1, 300), int(2 ** rng.uniform(0, 20))))

    def numbers(count: int, *values: Any) -> tuple[Any, ...]:
        return tuple(rng.choice(values) for _ in range(count))

    def pairs() -> tuple[Any, ...]:
        return (*((rng.randint(1, 14), rng.randint(1, 6)) for _ in range(rng.randint(1, 5))), (3, 1), (1, 1))

    lanes, flag = rng.choice((1, 2, 4, 8, 16)), rng.random() < 0.5
    cycles = numbers(3, 0.0, 0.5, 1.25, 0.3, 0.7, 3.1)
    counts = (*rng.sample(range(1, 9), rng.randint(1, 5)), 1)
    return {
        "of_product": (
            size(),
            size(),
            lanes,
            *numbers(1, "auto", "auto", "6x4", "12x1"),
            *numbers(2, False, True),
            (flag, not flag),
        ),
        "parts_of_product": (
            rng.randint(1, 40),
            size(),
            size(),
            numbers(2, 6, 8, 32),
            rng.choice((1, 2, 3, 16)),
            numbers(2, 24, 4),
        ),
        "of_places": (size(), size(), size(), rng.randint(1, 6), pairs(), lanes, cycles, numbers(3, 0, 0, 2, 4)),
        "of_following_places": (size(), size(), pairs(), lanes, flag, cycles[:2], numbers(2, 0, 0, 2, 4)),
        "wastes_columns": (size(), lanes),
        "places_together": (size(), counts),
        "rows_together": (size(), counts, rng.randint(1, 9)),
    }[name]


def test_all_choices_are_there_in_c() -> None:
    assert {name for name, each in vars(tiles).items() if getattr(each, "is_choice", False)} == set(_header_choices.NAMES)


def test_choices_in_c_are_those_of_the_schedules(tmp_path: Path) -> None:
    reading = """
    int main(void) {
        long long number, answer[64];
        int which, count, i;
        while (scanf("%d %d", &which, &count) == 2) {
            int64_t given[64], found = 0;
            for (i = 0; i < count && scanf("%lld", &number) == 1; i++) given[i] = number;
            answer[0] = pack_choose_(which, given, &found);
            printf("%lld %lld\\n", answer[0], (long long)found);
        }
        return 0;
    }
    """
    includes = "#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n"
    (tmp_path / "choose.c").write_text(includes + _header_c.text("choices") + reading)
    subprocess.run(["gcc", "-std=c99", "-O2", *STRICT, *SANITIZED, "choose.c", "-o", "choose"], cwd=tmp_path, check=True)
    rng, lines, expected = random.Random(3), [], []
    for which, name in enumerate(_header_choices.NAMES):
        function = getattr(tiles, name)
        for _ in range(300):
            arguments = arguments_of(name, rng)
            given = [int(each) for each in _header_choices.flattened(function, arguments)]
            lines.append(" ".join(map(str, (which, len(given), *given))))
            expected.append(f"1 {_header_choices.encoded(function(*arguments))}")
    done = subprocess.run([tmp_path / "choose"], input="\n".join(lines), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected
