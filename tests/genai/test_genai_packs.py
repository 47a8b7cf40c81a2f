"""Packs of language models: without compiler and onnx they go on with texts as the folders do, in Python and in C."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_decoder
from c_programs import ASAN, SANITIZED, compiled, said
from commands import succeed
from folders import C
from onnx import TensorProto
from packs import run_elsewhere

from tvmdml import InvalidArgument, errors, genai, packs, targets
from tvmdml.library import format as container
from tvmdml.library.format import Pack, Part
from tvmdml.packs import change, header
from tvmdml.packs.sources import read
from tvmdml.tensors import arrays

LENGTH = 24
PROMPT = (5, 9, 7)
HERE = targets.resolve("cpu").name


def built(folder: Path, output: Path, length: int = LENGTH) -> Path:
    spec = read([folder], [HERE], {"length": range(1, length + 1)})
    packs.build(spec, output, targets=[HERE], jobs=1)
    return output


@pytest.fixture(scope="module")
def pack(spoken: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's, with its tokenizer."""
    output = tmp_path_factory.mktemp("packed") / "tiny.pack"
    succeed("pack", "build", spoken, "--size", f"length=1..{LENGTH}", "-j", 1, "--target", HERE, "-o", output)
    return output


def answered(path: Path, steps: list[tuple[int, ...]]) -> list[Any]:
    """The logits after each of several steps of one text."""
    model = genai.Model(path)
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=LENGTH)
    generator = genai.Generator(model, params)
    found = []
    for step in steps:
        generator.append_tokens(list(step))
        found.append(np.array(generator.get_logits()).ravel())
    return found


@pytest.mark.full
def test_the_answer_is_the_folders_without_a_compiler(pack: Path, tables: dict[str, Any], tmp_path: Path) -> None:
    code = (
        "from tvmdml import genai\n"
        f"model = genai.Model({str(pack)!r}); tokenizer = genai.Tokenizer(model)\n"
        "generator = genai.Generator(model, genai.GeneratorParams(model))\n"
        "generator.append_tokens(tokenizer.encode('w5 w9 w7'))\n"
        "while not generator.is_done(): generator.generate_next_token()\n"
        "print(*generator.get_sequence(0))\n"
        "assert 'tvmdml.dxdispatch' not in sys.modules, 'what no text needs takes half of the time to the first token'\n"
        'print(tokenizer.apply_chat_template(\'[{"role": "user", "content": "w4"}]\'))\n'
    )
    tokens, *chat = run_elsewhere(code, tmp_path).splitlines()
    assert list(map(int, tokens.split())) == tiny_decoder.greedy(PROMPT, LENGTH, tables)
    assert "\n".join(chat) == "<s> user w4 </s>\nw9"


@pytest.mark.full
def test_constants_are_checked_once_for_all_recordings(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, own = [], Pack._mapped
    monkeypatch.setattr(Pack, "_mapped", lambda self, number: (checked.append(number), own(self, number))[1])
    model = genai.Model(pack)
    assert model.context == LENGTH
    assert sorted(checked) == sorted({*checked}) != []


@pytest.mark.full
def test_what_layers_keep_is_written_where_it_is(pack: Path, tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "assign", lambda *_: pytest.fail("rows of earlier steps are copied"))
    (_, found) = answered(pack, [PROMPT, (11,)])
    assert np.allclose(found, tiny_decoder.logits((*PROMPT, 11), tables), rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_the_command_takes_a_pack(pack: Path, tables: dict[str, Any]) -> None:
    done = succeed("generate", pack, "w5 w9 w7", "--max-new-tokens", "4", "--json")
    assert json.loads(done.stdout)["tokens"] == tiny_decoder.greedy(PROMPT, 7, tables)[3:]


@pytest.mark.full
def test_steps_of_any_size_agree_with_the_right_values(pack: Path, tables: dict[str, Any]) -> None:
    steps = [PROMPT, (11,), (4, 30, 8, 8), (39,), (3,) * 10]
    for i, found in enumerate(answered(pack, steps)):
        text = [token for step in steps[: i + 1] for token in step]
        assert np.allclose(found, tiny_decoder.logits(text, tables), rtol=1e-4, atol=1e-4), i


@pytest.mark.full
def test_positions_and_float16(tables: dict[str, Any], tmp_path: Path) -> None:
    network = tiny_decoder.model(tables, kind=TensorProto.FLOAT16, positions=True)
    path = built(tiny_decoder.write(tmp_path / "half", network, tiny_decoder.config()), tmp_path / "half.pack", 8)
    model = genai.Model(path)
    generator = genai.Generator(model, genai.GeneratorParams(model))
    for step in (PROMPT, (20,)):
        generator.append_tokens(list(step))
    right = tiny_decoder.logits((*PROMPT, 20), tables)
    assert np.allclose(np.array(generator.get_logits()).ravel(), right, rtol=0.03, atol=0.03)


@pytest.mark.full
def test_a_text_may_not_be_longer_than_the_pack_is_for(pack: Path) -> None:
    model = genai.Model(pack)
    assert model.context == LENGTH
    params = genai.GeneratorParams(model)
    assert params.get_search_options()["max_length"] == LENGTH
    params.set_search_options(batch_size=2)
    with pytest.raises(
        errors.Unsupported, match=rf"given 2 texts of up to {LENGTH} tokens; allowed: one text of up to {LENGTH} tokens"
    ):
        genai.Generator(model, params)


CONFIG = "genai_config.json"
LACKING: dict[str, tuple[Any, str]] = {
    "no configuration": (lambda folder: (folder / CONFIG).unlink(), "a folder with genai_config.json"),
    "a list": (lambda folder: (folder / CONFIG).write_text("[1]"), r"given .*; allowed: an object of JSON"),
    "no decoder": (lambda folder: (folder / CONFIG).write_text("{}"), "decoder.filename: given nothing"),
    "no model": (lambda folder: (folder / "model.onnx").unlink(), "decoder.filename: given 'model.onnx'; allowed: a file in"),
}


@pytest.mark.parametrize("case", LACKING)
def test_a_folder_that_lacks_something_is_refused(case: str, tables: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_decoder.write(tmp_path / "tiny", tiny_decoder.model(tables), tiny_decoder.config())
    spoil, words = LACKING[case]
    spoil(folder)
    with pytest.raises(InvalidArgument, match=words):
        read([folder], [HERE], {"length": range(1, 9)})


def test_the_range_begins_with_one_token(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"size length: given 2..8:1; allowed: 1 to the most tokens of a text"):
        read([folder], [HERE], {"length": range(2, 9)})
    with pytest.raises(InvalidArgument, match=r"given 1..65; allowed: at most 64, the model's context_length"):
        read([folder], [HERE], {"length": range(1, tiny_decoder.CONTEXT + 2)})
    assert read([folder], [HERE]).graphs[0].ranges == {"columns": range(1, tiny_decoder.CONTEXT + 1)}


def test_a_text_is_as_long_as_the_window_of_layers(tables: dict[str, Any], tmp_path: Path) -> None:
    about = tiny_decoder.config()
    about["model"]["decoder"]["sliding_window"] = {"window_size": 8}
    folder = tiny_decoder.write(tmp_path / "tiny", tiny_decoder.model(tables), about)
    with pytest.raises(InvalidArgument, match=r"size length: given 1..7; allowed: 1 to 8 or more. Layers keep a window of 8"):
        read([folder], [HERE], {"length": range(1, 8)})
    assert read([folder], [HERE], {"length": range(1, 9)}).graphs


@pytest.mark.full
def test_merged_and_split_packs_keep_the_files(pack: Path, tmp_path: Path) -> None:
    change.merge([pack, pack], tmp_path / "both.pack")
    change.split(tmp_path / "both.pack", ["cpu"], tmp_path / "cpu.pack")
    whole, part = Pack(pack), Pack(tmp_path / "cpu.pack")
    assert whole.files == part.files
    assert "tokenizer.json" in whole.files
    assert all(whole.file(name) == part.file(name) for name in whole.files)
    with pytest.raises(errors.PackError, match=r"given no file 'other'; allowed: .*tokenizer.json"):
        whole.file("other")


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc here")
def test_c_goes_on_with_a_text(pack: Path, tables: dict[str, Any], tmp_path: Path) -> None:
    written = header.write(Pack(pack), tmp_path)
    assert {"tiny_text_new", "tiny_step", "tiny_text_rewind", "tiny_text_free"} < set(header.functions(written[0]))
    program = compiled("gcc", C / "steps.c", tmp_path, "-std=c99", "-pthread", "-ldl", before=SANITIZED)
    right = tiny_decoder.greedy(PROMPT, 9, tables)

    def after(*tokens: int) -> str:
        return f"{len(tokens)} {int(np.argmax(tiny_decoder.logits(tokens, tables)))}"

    steps = [*(str(token) for token in right[3:6]), "<4", "8,30,8", "40", "<9", ",".join(["3"] * 18), ",".join(["3"] * 17)]
    lines = said(program, tmp_path, ",".join(map(str, PROMPT)), *steps, ASAN_OPTIONS=ASAN).splitlines()
    first = right[:4]
    assert lines == [
        "no pack is open: call tiny_open first",
        after(*PROMPT),
        *(after(*right[: n + 1]) for n in range(3, 6)),
        after(*first, 8, 30, 8),
        "tiny_step: given token 40; allowed: 0 to 39",
        "tiny_text_rewind: given 9 tokens; allowed: 0 to 7, the text's",
        f"tiny_step: given 18 tokens after 7; allowed: 1 or more, up to {LENGTH} in all",
        after(*first, 8, 30, 8, *[3] * 17),
    ]


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc here")
@pytest.mark.parametrize("said_of_it", [{"vocab_size": 41}, {"vocab_size": 1 << 40}, {"decoder": None}, {"vocab_size": "40"}])
def test_what_a_pack_says_of_its_model_is_not_believed(pack: Path, tmp_path: Path, said_of_it: dict[str, Any]) -> None:
    whole = Pack(pack)
    about = json.loads(whole.file(CONFIG))
    about["model"] |= said_of_it
    contents = whole.contents()
    parts = list(contents.parts)
    parts[contents.head["files"][CONFIG]] = Part(container.FILE, json.dumps(about).encode())
    container.write(tmp_path / "tiny.pack", contents._replace(parts=parts))
    if said_of_it == {"vocab_size": 41}:  # which only the sizes of the logits tell
        header.write(Pack(tmp_path / "tiny.pack"), tmp_path)
        program = compiled("gcc", C / "steps.c", tmp_path, "-std=c99", "-pthread", "-ldl", before=SANITIZED)
        assert "its model does not take a text" in said(program, tmp_path, "5", ok=False, ASAN_OPTIONS=ASAN)
    else:
        with pytest.raises(errors.PackError, match=CONFIG):
            header.write(Pack(tmp_path / "tiny.pack"), tmp_path)
