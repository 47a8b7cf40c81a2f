"""Folders, text as tokens, chat templates and the command."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import tiny_decoder as tiny

import tvmdml.genai as og
from tvmdml.errors import TvmdmlError
from tvmdml.genai import chat, settings

HELLO = [{"role": "w5", "content": "w6 w7"}]

# -- Configurations -------------------------------------------------------------------------------------------------------


def damaged(change: Callable[[dict[str, Any]], object], about: dict[str, Any] | None = None) -> str:
    about = copy.deepcopy(about or tiny.config())
    change(about)
    return json.dumps(about)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "genai_config.json"),
        ("[]", "an object of JSON"),
        (damaged(lambda c: c.update(model=3)), "model.*an object"),
        (damaged(lambda c: c["model"].pop("vocab_size")), "vocab_size: given nothing"),
        (damaged(lambda c: c["model"].update(context_length="many")), "context_length.*an integer"),
        (damaged(lambda c: c["model"].update(eos_token_id=["a"])), "eos_token_id.*integer of 32 bits"),
        (damaged(lambda c: c["model"].update(eos_token_id=1 << 31)), "eos_token_id.*integer of 32 bits"),
        (damaged(lambda c: c["model"].pop("decoder")), "model.decoder: given nothing"),
        (damaged(lambda c: c["model"]["decoder"].pop("filename")), "decoder.filename: given nothing"),
        (damaged(lambda c: c["model"]["decoder"].update(filename="../model.onnx")), "a file in"),
        (damaged(lambda c: c["model"]["decoder"].update(num_hidden_layers=-1)), "num_hidden_layers"),
        (
            damaged(lambda c: c["model"]["decoder"]["outputs"].update(logits="nothing")),
            "decoder.outputs.logits.*'nothing'.*present",
        ),
        (damaged(lambda c: c["model"]["decoder"]["outputs"].update(present_key_names="other.%d")), "present_key_names.*'other.%d'"),
        (damaged(lambda c: c["model"]["decoder"]["inputs"].update(past_key_names=3)), "past_key_names.*a string"),
        (damaged(lambda c: c["model"]["decoder"].update(pipeline=["a", {"b": 3}])), "pipeline"),
        (
            damaged(lambda c: c["model"]["decoder"].update(pipeline=[{"b": {"output_names_forwarder": 3}}])),
            "output_names_forwarder",
        ),
        (damaged(lambda c: c["model"]["decoder"].update(inputs="x")), "inputs.input_ids.*a string"),
        (damaged(lambda c: c["model"]["decoder"].update(session_options=3)), "provider_options"),
        (damaged(lambda c: c["model"].update(context_length=1 << 40)), "context_length"),
        (damaged(lambda c: c["model"].update(vision={"filename": "v.onnx"})), "model.vision.*models of text"),
        (damaged(lambda c: c["search"].update(top_q=1)), "'top_q'.*top_k"),
        (damaged(lambda c: c["search"].update(num_beams="two")), "num_beams.*'two'"),
    ],
    ids=range(22),
)
def test_a_damaged_folder_is_refused(tmp_path: Path, folder: Path, text: str, said: str) -> None:
    (tmp_path / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    (tmp_path / "genai_config.json").write_text(text)
    with pytest.raises(RuntimeError, match=said) as caught:
        og.Model(str(tmp_path))
    assert isinstance(caught.value, TvmdmlError)


ODD = (None, True, -1, 0, 3, 1.5, (1 << 31) - 1, 10**30, "x", "", [], [1], {}, {"a": 1}, "%d%d%s", "\0")


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all values in objects of JSON."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield (*path, name)
        yield from places(inner, (*path, name))


@pytest.mark.full
def test_whatever_a_folder_says_is_refused_or_runs(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    about = tiny.config()
    about["model"] |= {"encoder": {"filename": ""}}
    about["model"]["decoder"] |= {"sliding_window": {"window_size": 8}, "pipeline": []}
    outcomes = {True: 0, False: 0}
    for path in places(about):
        for odd in ODD:
            (tmp_path / "genai_config.json").write_text(damaged(lambda c: put(c, path, odd), about))  # noqa: B023 - called at once
            try:
                model = og.Model(str(tmp_path))
                params = og.GeneratorParams(model)
                params.set_search_options(max_length=8)
                own = og.Generator(model, params)
                own.append_tokens([5, 6] * int(params.options["batch_size"]))
                own.generate_next_token()
                outcomes[True] += 1
            except TvmdmlError:
                outcomes[False] += 1
    assert min(outcomes.values()) > 100, outcomes


def put(about: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        about = about[name]
    about[path[-1]] = value


@pytest.mark.parametrize("pad", [None, -1, 40, "x"])
def test_padding_is_a_token_of_the_vocabulary(tmp_path: Path, pad: Any) -> None:
    (tmp_path / "genai_config.json").write_text(damaged(lambda c: c["model"].update(pad_token_id=pad)))
    assert og.Config(str(tmp_path)).pad == tiny.EOS


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    for given in (tmp_path, tmp_path / "nowhere", 3, None):
        with pytest.raises(RuntimeError, match="folder"):
            og.Model(given)  # type: ignore[arg-type]


def test_overlays_change_a_configuration(folder: Path) -> None:
    config = og.Config(str(folder))
    config.overlay('{"search": {"max_length": 33, "do_sample": true}, "model": {"decoder": {"head_size": 5}}}')
    assert config.decoder["head_size"] == 5
    assert config.decoder["num_hidden_layers"] == tiny.LAYERS
    params = og.GeneratorParams(og.Model(config))
    assert params.get_search_options()["max_length"] == 33.0
    assert params.get_search_options()["do_sample"] is True
    assert params.get_search_options()["top_k"] == 50.0
    for text in ("no JSON", "[1]", '{"other": {}}', '{"model": 3}', '{"search": {"zz": 1}}'):
        with pytest.raises(RuntimeError, match="overlay"):
            config.overlay(text)


def test_providers_choose_the_target(folder: Path) -> None:
    config = og.Config(str(folder))
    for name in ("cpu", "CPUExecutionProvider", "dml", "DmlExecutionProvider"):
        config.clear_providers()
        config.append_provider(name)
        config.append_provider(name)
        assert og.Model(config).device_type == "CPU"
        assert len(config.providers) == 1
    config.clear_providers()
    config.set_provider_option("zz", "device_id", "1")
    with pytest.raises(RuntimeError, match=r"'zz'.*vulkan.*dml"):
        og.Model(config)
    assert og.Model(config, target="cpu").target.kind == "cpu"
    assert config.providers == [{"zz": {"device_id": "1"}}]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["vulkan", "cuda"])
def test_a_model_runs_on_devices(folder: Path, tables: dict[str, Any], kind: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(kind)
    config = og.Config(str(folder))
    config.append_provider(kind)
    model = og.Model(config)
    assert model.device_type == kind.upper()
    for options in ({"max_length": 8}, {"max_length": 7, "num_beams": 2}):
        params = og.GeneratorParams(model)
        params.set_search_options(**options)
        own = og.Generator(model, params)
        own.append_tokens([5, 17, 3, 29])
        while not own.is_done():
            own.generate_next_token()
        right = tiny.greedy([5, 17, 3, 29], 8, tables) if len(options) == 1 else tiny.beams([5, 17, 3, 29], 7, 2, tables, 1, 1.0)[0]
        assert own.get_sequence(0).tolist() == right


def test_bytes_in_place_of_a_file(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "genai_config.json").write_text(json.dumps(tiny.config()))
    config = og.Config(str(tmp_path))
    config.add_model_data("model.onnx", (folder / "model.onnx").read_bytes())
    assert og.Model(config).type == "llama"
    config.remove_model_data("model.onnx")
    with pytest.raises(RuntimeError, match=r"'model.onnx'.*a file in"):
        og.Model(config)
    with pytest.raises(RuntimeError, match="bytes"):
        config.add_model_data("model.onnx", "text")


def test_named_tensors() -> None:
    named = og.NamedTensors()
    named["a"] = np.arange(3, dtype=np.float32)
    named["b"] = og.Tensor([[1, 2]])
    assert (named.keys(), len(named), "a" in named, named["b"].shape(), named["a"].type()) == (["a", "b"], 2, True, [1, 2], 1)
    del named["a"]
    assert list(named) == ["b"]
    for name in ("a", 3):
        with pytest.raises(RuntimeError, match="NamedTensors"):
            named[name]  # type: ignore[index]
    with pytest.raises(RuntimeError, match="an array of numbers"):
        named["c"] = "text"


def test_logs_are_given_to_a_program(folder: Path) -> None:
    lines: list[str] = []
    og.set_log_options(enabled=True, model_input_shapes=True, generate_next_token=True)
    og.set_log_callback(lines.append)
    try:
        model = og.Model(str(folder))
        own = og.Generator(model, og.GeneratorParams(model))
        own.append_tokens([5])
        own.generate_next_token()
    finally:
        og.set_log_callback(None)
        settings._options.clear()
    assert any(line.startswith("input input_ids: int64[1, 1]") for line in lines)
    assert lines[-1].startswith("generate_next_token:")
    with pytest.raises(RuntimeError, match=r"'foo'.*enabled"):
        og.set_log_options(foo=True)


def test_all_names_of_the_interface_are_there() -> None:
    for name in og.__all__:
        assert getattr(og, name) is not None
    assert set(og.__all__) <= set(dir(og))
    with pytest.raises(AttributeError, match="'nothing'"):
        og.nothing  # noqa: B018


# -- Tokens ---------------------------------------------------------------------------------------------------------------


def test_text_becomes_tokens_and_text_again(spoken: Path) -> None:
    own = og.Tokenizer(og.Config(str(spoken)))
    assert own.encode("w5 w6").tolist() == [5, 6]
    assert own.encode("<s> w6").tolist() == [0, 6]
    assert (own.bos_token_id, own.eos_token_ids.tolist(), own.pad_token_id) == (0, [1], 2)
    assert (own.to_token_id("w9"), own.to_token_id("zz")) == (9, -1)
    batch = own.encode_batch(["w5 w6 w7", "w8"])
    assert batch.as_numpy().tolist() == [[5, 6, 7], [8, 2, 2]]
    assert own.decode_batch(batch) == ["w5 w6 w7", "w8"]
    assert own.decode([0, 5, 6, 1, 99999, -3]) == "w5 w6"
    own.update_options(add_special_tokens="true", skip_special_tokens="false")
    assert own.encode("w5").tolist() == [0, 5]
    assert own.decode([0, 5]) == "<s> w5"
    for call in (
        lambda: own.encode(5), lambda: own.encode("\ud800"), lambda: own.encode_batch("w5"), lambda: own.encode_batch([]),
        lambda: own.update_options(other="true"), lambda: own.update_options(add_special_tokens="maybe"), lambda: own.decode([1.5]),
        lambda: own.decode_batch([1]), lambda: own.bor_token_id, lambda: own.create_stream().decode("x"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="allowed"):
            call()


def test_a_stream_shows_whole_characters(tmp_path: Path, spoken: Path) -> None:
    import tokenizers

    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer, own.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(
        [], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False)
    )
    own.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "genai_config.json").write_bytes((spoken / "genai_config.json").read_bytes())
    tokenizer = og.Tokenizer(str(tmp_path))
    text = "a é☃ 漢 😀!"
    tokens = tokenizer.encode(text)
    stream = tokenizer.create_stream()
    pieces = [stream.decode(token) for token in tokens]
    assert "".join(pieces) == text
    assert len(tokens) == len(text.encode())
    assert [piece for piece in pieces if piece] == list(text)
    broken = [tokenizer.encode("é")[0]] * 40  # bytes that never become a character are shown at last
    assert "\ufffd" in "".join(stream.decode(token) for token in broken)


def test_a_tokenizer_file_that_is_none(tmp_path: Path, spoken: Path) -> None:
    (tmp_path / "genai_config.json").write_bytes((spoken / "genai_config.json").read_bytes())
    with pytest.raises(RuntimeError, match=r"no file tokenizer\.json"):
        og.Tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RuntimeError, match=r"tokenizer.json in .*allowed"):
        og.Tokenizer(str(tmp_path))


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nowhere; allowed: the path of a folder, or of a pack, that exists"):
        og.Model(str(tmp_path / "nowhere"))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in ("tokenizers", "jinja2", "jinja2.sandbox", "jinja2.ext"):
        monkeypatch.setitem(sys.modules, name, None)
    chat._compiled.cache_clear()
    with pytest.raises(TvmdmlError, match=r"package tokenizers.*genai"):
        og.Tokenizer(str(folder))
    with pytest.raises(TvmdmlError, match=r"jinja2.*genai"):
        chat.render("", [], None, {}, prompt=True)


# -- Chat templates -------------------------------------------------------------------------------------------------------


@pytest.fixture
def jinja() -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")


def test_messages_in_the_folder_s_template(spoken: Path, jinja: None) -> None:
    own = og.Tokenizer(str(spoken))
    assert own.apply_chat_template(json.dumps(HELLO)) == "<s> w5 w6 w7 </s>\nw9"
    assert (
        own.apply_chat_template(messages=json.dumps(HELLO), tools="", template_str="", add_generation_prompt=False)
        == "<s> w5 w6 w7 </s>\n"
    )
    tools = '[{"name": "é<"}]'
    assert own.apply_chat_template(json.dumps(HELLO), tools=tools) == f"<s> w5 w6 w7 </s>\n{tools}w9"
    assert own.apply_chat_template("[]", template_str="{{ bos_token }}{{ eos_token }}") == "<s></s>"
    for messages in ("no JSON", '{"role": "user"}', "3", None):
        with pytest.raises(RuntimeError, match="messages"):
            own.apply_chat_template(messages)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "right"),
    [
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% generation %}a{{ 1 + 1 }}{% endgeneration %}", "a2"),
        ("{{ {'a': [1, 'é']} | tojson }}{{ {'b': 1} | tojson(indent=1) }}", '{"a": [1, "é"]}{\n "b": 1\n}'),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}{{ messages[0].role }}", "2w5"),
    ],
    ids=range(6),
)
def test_templates_are_rendered_as_transformers_does(jinja: None, template: str, right: str) -> None:
    assert chat.render(template, HELLO, None, {}, prompt=True) == right


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only user and assistant') }}",
        "{% if %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[7].content + 1 }}",
        "{% include 'file' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "x" * (2 << 20),
    ],
    ids=range(8),
)
def test_templates_that_refuse_or_break_out_are_errors(jinja: None, template: str) -> None:
    with pytest.raises(RuntimeError, match="chat template") as caught:
        chat.render(template, HELLO, None, {}, prompt=True)
    assert isinstance(caught.value, TvmdmlError)


def test_named_templates_and_files_of_their_own(tmp_path: Path, spoken: Path, jinja: None) -> None:
    for name in ("genai_config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((spoken / name).read_bytes())
    own = og.Tokenizer(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"no chat_template\.jinja"):
        own.apply_chat_template("[]")
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert own.apply_chat_template("[]") == "plain"
    assert own.apply_chat_template("[]", tools="[{}]") == "tools"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert own.apply_chat_template("[]") == "file"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(RuntimeError, match=r"tokenizer_config\.json"):
        own.apply_chat_template("[]")


# -- Programs and the command -----------------------------------------------------------------------------------------------

PROGRAM = """
import sys, onnxruntime, onnxruntime_genai as og
model = og.Model(sys.argv[1])
tokenizer = og.Tokenizer(model)
stream = tokenizer.create_stream()
params = og.GeneratorParams(model)
params.set_search_options(max_length=8, batch_size=1)
generator = og.Generator(model, params)
generator.append_tokens(tokenizer.encode("w5 w17 w3 w29"))
while not generator.is_done():
    generator.generate_next_token()
    print(stream.decode(generator.get_next_tokens()[0]), end="")
"""


def test_a_program_runs_unchanged(tmp_path: Path, spoken: Path, tables: dict[str, Any]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "tvmdml.onnx", str(tmp_path / "program.py"), str(spoken)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"w{token}" for token in tiny.greedy([5, 17, 3, 29], 8, tables)[4:]]


def run(*words: object, given: str | None = None, code: int = 0) -> Any:
    done = commands.call("generate", *words, input=given)
    assert done.exit_code == code, done.output
    return done


def test_the_command_prints_a_text_and_figures(spoken: Path, tables: dict[str, Any], jinja: None) -> None:
    right = tiny.greedy([5, 17, 3, 29], 9, tables)[4:]
    done = run(spoken, "w5 w17 w3 w29", "--max-new-tokens", 5)
    assert done.stdout.split() == [f"w{token}" for token in right]
    assert "4 prompt tokens" in done.stderr
    assert "5 new tokens" in done.stderr
    result = json.loads(run(spoken, "-", "--max-length", 9, "--json", given="w5 w17 w3 w29").stdout)
    assert (result["tokens"], result["prompt_tokens"], result["finish"]) == (right, 4, "length")
    assert result["text"].split() == [f"w{token}" for token in right]
    assert result["peak_memory"] > 1 << 20
    several = json.loads(run(spoken, "w5 w17 w3 w29", "--beams", 2, "--results", 2, "--max-length", 9, "--json").stdout)
    best = tiny.beams([5, 17, 3, 29], 9, 2, tables, 1, 1.0)
    assert several["texts"] == [" ".join(f"w{token}" for token in text[4:]) for text in best]
    chosen = ["--temperature", "1.5", "--top-k", 10, "--max-length", 20, "--json", "--seed"]
    texts = [json.loads(run(spoken, "w5", *chosen, seed).stdout)["tokens"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert "PROMPT: given a text without tokens" in run(spoken, "", code=1).output
    asked = json.loads(run(spoken, "w6 w7", "--chat", "--system", "w4", "--max-new-tokens", 1, "--json").stdout)
    assert asked["prompt_tokens"] == 10


def test_the_command_ends_cleanly_when_interrupted(spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, steps = og.Generator.generate_next_token, []

    def interrupted(self: Any) -> None:
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(og.Generator, "generate_next_token", interrupted)
    done = run(spoken, "w5", code=130)
    assert len(done.stdout.split()) == 3
    assert "interrupted" in done.stderr


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--max-length", 9, "--max-new-tokens", 3], "the same thing", 2),
        (["--system", "w3"], "--chat", 2),
        (["--top-p", 1.5], "top_p.*1.5", 1),
        (["--beams", 2, "--seed", 1], "num_beams", 1),
        (["--max-length", 65], "context_length", 1),
    ],
    ids=str,
)
def test_the_command_refuses(spoken: Path, words: list[Any], said: str, code: int) -> None:
    done = run(spoken, "w5", *words, code=code)
    assert re.search(said, done.stderr)
