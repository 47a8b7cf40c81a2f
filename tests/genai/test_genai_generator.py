"""Generators: tokens of a tiny model, against the same computed in NumPy, float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny_decoder as tiny
from onnx import TensorProto, helper, numpy_helper

import tvmdml.genai as og
from tvmdml.errors import TvmdmlError, Unsupported

PROMPT = [5, 17, 3, 29]
BATCH = np.array([[5, 17, 3, 29], [8, 11, 2, 2], [30, 31, 32, 2]], np.int32)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return og.Model(str(folder))


def generator(model: Any, **options: Any) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(**options)
    return og.Generator(model, params)


def finished(own: Any, tokens: Any) -> Any:
    own.append_tokens(tokens)
    while not own.is_done():
        own.generate_next_token()
    return own


@pytest.mark.parametrize("shares", [True, False])
def test_the_likeliest_tokens(model: Any, tables: dict[str, Any], shares: bool) -> None:
    own = generator(model, past_present_share_buffer=shares)
    own.append_tokens(PROMPT)
    np.testing.assert_allclose(own.get_logits()[0, 0], tiny.logits(PROMPT, tables), rtol=0, atol=1e-4)
    while not own.is_done():
        own.generate_next_token()
    assert own.get_sequence(0).tolist() == tiny.greedy(PROMPT, 24, tables)
    assert own.token_count() == 24
    assert own.get_output("present.0.key").shape == (1, tiny.GROUPS, 24 if shares else 23, tiny.SIZE)


@pytest.mark.parametrize("shares", [True, False])
def test_a_batch_gives_what_each_of_its_texts_gives_alone(model: Any, tables: dict[str, Any], shares: bool) -> None:
    own = finished(generator(model, batch_size=3, max_length=14, past_present_share_buffer=shares), BATCH)
    for index, prompt in enumerate(([5, 17, 3, 29], [8, 11], [30, 31, 32])):
        new = tiny.greedy(prompt, len(prompt) + 10, tables)[len(prompt) :]
        assert own.get_sequence(index).tolist() == [*BATCH[index].tolist(), *new]


@pytest.mark.parametrize(("width", "penalty", "window"), [(2, 1.0, 0), (3, 0.5, 0), (3, 2.0, 8)])
def test_beams(folder: Path, tables: dict[str, Any], width: int, penalty: float, window: int) -> None:
    """With layers that keep a window, buffers of a fixed length are kept for beams too."""
    eos = tiny.beams(PROMPT, 10, width, tables, -1, penalty)[0][7]  # a token that comes up
    config = og.Config(str(folder))
    config.overlay(json.dumps({"model": {"eos_token_id": eos, "decoder": {"sliding_window": {"window_size": window}}}}))
    own = generator(og.Model(config), num_beams=width, num_return_sequences=width, length_penalty=penalty, max_length=10)
    finished(own, PROMPT)
    assert [own.get_sequence(i).tolist() for i in range(width)] == tiny.beams(PROMPT, 10, width, tables, eos, penalty)
    assert own.get_output("present.0.key").shape[2] == (10 if window else 9)


def test_layers_that_keep_a_window_always_have_buffers(folder: Path, tables: dict[str, Any]) -> None:
    config = og.Config(str(folder))
    config.overlay('{"model": {"decoder": {"sliding_window": {"window_size": 8}}}}')
    own = finished(generator(og.Model(config), past_present_share_buffer=False, max_length=10), PROMPT)
    assert own.get_sequence(0).tolist() == tiny.greedy(PROMPT, 10, tables)
    assert own.get_output("present.0.key").shape[2] == 10


@pytest.mark.parametrize("beams", [1, 2])
def test_a_text_that_fills_its_length_does_not_go_on(model: Any, tables: dict[str, Any], beams: int) -> None:
    own = generator(model, max_length=len(PROMPT), num_beams=beams)
    own.append_tokens(PROMPT)
    for _ in range(2):  # as in ONNX Runtime GenAI, it is not done: its logits are there
        np.testing.assert_allclose(own.get_logits()[0, 0], tiny.logits(PROMPT, tables), rtol=0, atol=1e-4)
        with pytest.raises(RuntimeError, match=r"generate_next_token: given a text .* 4 tokens.*at most 4 tokens") as caught:
            own.generate_next_token()
        assert isinstance(caught.value, TvmdmlError)


def test_a_text_that_goes_back_by_its_last_token_ends_with_it(model: Any, tables: dict[str, Any]) -> None:
    own = generator(model, max_length=len(PROMPT))
    own.append_tokens(PROMPT)
    for _ in range(2):
        own.rewind_to(len(PROMPT) - 1)
        assert not own.is_done()
        own.generate_next_token()
        assert own.get_sequence(0).tolist() == PROMPT
        assert own.is_done()
    np.testing.assert_allclose(own.get_logits()[0, 0], tiny.logits(PROMPT, tables), rtol=0, atol=1e-4)


def test_a_token_ends_a_text_and_more_tokens_go_on(folder: Path, tables: dict[str, Any]) -> None:
    right = tiny.greedy(PROMPT, 24, tables)
    end = next(i for i in range(8, 24) if right.index(right[i]) == i)
    config = og.Config(str(folder))
    config.overlay(json.dumps({"model": {"eos_token_id": [right[end], 1]}}))
    own = finished(generator(og.Model(config)), PROMPT)
    assert own.get_sequence(0).tolist() == right[:end]
    assert own.get_next_tokens().tolist() == [right[end]]
    with pytest.raises(RuntimeError, match="ended"):
        own.generate_next_token()
    own.append_tokens([7, 9])
    np.testing.assert_allclose(own.get_logits()[0, 0], tiny.logits([*right[:end], 7, 9], tables), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shares", [True, False])
def test_turns_and_going_back(model: Any, tables: dict[str, Any], shares: bool) -> None:
    own = generator(model, past_present_share_buffer=shares)
    own.append_tokens(PROMPT)
    for _ in range(5):
        own.generate_next_token()
    text = tiny.greedy(PROMPT, 9, tables)
    own.append_tokens([7, 9, 11])
    text += [7, 9, 11]
    own.generate_next_token()
    assert own.get_sequence(0).tolist() == tiny.greedy(text, len(text) + 1, tables)
    own.rewind_to(6)
    assert own.get_sequence(0).tolist() == text[:6]
    own.append_tokens([13])
    np.testing.assert_allclose(own.get_logits()[0, 0], tiny.logits([*text[:6], 13], tables), rtol=0, atol=1e-4)
    own.rewind_to(5)
    own.generate_next_token()  # begins with the token that came after the first five
    assert own.get_sequence(0).tolist() == tiny.greedy(text[:6], 7, tables)
    own.rewind_to(0)
    finished(own, PROMPT)
    assert own.get_sequence(0).tolist() == tiny.greedy(PROMPT, 24, tables)


def test_chunks_of_a_prompt(model: Any, tables: dict[str, Any]) -> None:
    tokens = list(range(3, 16))
    own = finished(generator(model, chunk_size=5), tokens)
    assert own.get_sequence(0).tolist() == tiny.greedy(tokens, 24, tables)


def test_logits_that_a_program_gives(model: Any) -> None:
    own = generator(model)
    own.append_tokens(PROMPT)
    row = np.zeros((1, 1, tiny.VOCABULARY), np.float32)
    row[0, 0, 33] = 1
    own.set_logits(row)
    own.generate_next_token()
    assert own.get_sequence(0).tolist() == [*PROMPT, 33]
    with pytest.raises(RuntimeError, match="set_logits"):
        own.set_logits(row)


def test_inputs_and_outputs_of_the_last_run(model: Any) -> None:
    own = generator(model)
    with pytest.raises(RuntimeError, match="before a run"):
        own.get_input("input_ids")
    own.append_tokens(PROMPT)
    own.generate_next_token()
    own.get_logits()
    assert own.get_input("attention_mask").tolist() == [[1] * 5]
    assert own.get_output("logits").shape == (1, 1, tiny.VOCABULARY)
    with pytest.raises(RuntimeError, match=r"'nothing'.*logits"):
        own.get_output("nothing")


@pytest.mark.full
def test_positions_and_half_precision(tmp_path: Path, tables: dict[str, Any]) -> None:
    network = tiny.model(tables, kind=TensorProto.FLOAT16, positions=True)
    about = tiny.config()
    about["model"]["decoder"]["session_options"]["provider_options"] = [{"dml": {}}]
    own = generator(og.Model(str(tiny.write(tmp_path, network, about))), batch_size=2, max_length=8)
    own.append_tokens(BATCH[:2])
    assert own.get_input("position_ids").tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]]
    result = own.get_logits()
    assert result.dtype == np.float32
    for row, prompt in zip(result[:, 0], (PROMPT, [8, 11]), strict=True):
        np.testing.assert_allclose(row, tiny.logits(prompt, tables), rtol=0, atol=0.2)
    own.generate_next_token()
    own.get_logits()
    assert own.get_input("position_ids").tolist() == [[4], [2]]


@pytest.mark.parametrize("shares", [True, False])
def test_interrupted_calls_are_repeated(model: Any, tables: dict[str, Any], shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever call is interrupted, before or after its run, the same call again goes on with the same text."""
    from tvmdml.genai.search import Greedy
    from tvmdml.genai.state import State

    run, choose, calls = State.run, Greedy.choose, iter(range(1000))

    def interrupts(work: Any) -> Any:
        def call(*given: Any) -> Any:
            if next(calls) % 3 == 1:
                raise KeyboardInterrupt
            return work(*given)

        return call

    own = generator(model, past_present_share_buffer=shares, max_length=14, chunk_size=2)
    monkeypatch.setattr(State, "run", interrupts(run))
    monkeypatch.setattr(Greedy, "choose", interrupts(choose))
    for call in (lambda: own.append_tokens(PROMPT), *[own.generate_next_token] * 4, lambda: own.append_tokens([7, 9])):
        while True:
            before = own.token_count()
            try:
                call()
            except KeyboardInterrupt:
                assert own.token_count() == before
            else:
                break
    monkeypatch.undo()
    while not own.is_done():
        own.generate_next_token()
    assert own.get_sequence(0).tolist() == tiny.greedy([*tiny.greedy(PROMPT, 8, tables), 7, 9], 14, tables)


def test_positions_that_turn_otherwise_are_run_anew(model: Any, tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmdml.genai import generator as module

    monkeypatch.setitem(module._LONGER, "llama", 7)  # type: ignore[index]
    own = finished(generator(model, max_length=10), PROMPT)
    assert own.get_sequence(0).tolist() == tiny.greedy(PROMPT, 10, tables)
    assert own.get_output("logits").shape[1] == 1
    own.rewind_to(6)
    own.generate_next_token()  # the seventh token is there again
    own.rewind_to(6)
    own.append_tokens([9])
    own.generate_next_token()
    assert own.get_input("input_ids").shape == (1, 7)


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("lora", ["needed", "optional"])
def test_adapters_are_inputs(tmp_path: Path, tables: dict[str, Any], lora: str, shares: bool) -> None:
    model = og.Model(str(tiny.write(tmp_path, tiny.model(tables, lora=lora), tiny.config(past_present_share_buffer=shares))))
    own, adapters = generator(model), og.Adapters(model)
    if lora == "needed":
        with pytest.raises(RuntimeError, match=r"lora_a, lora_b.*set_model_input"):
            own.append_tokens(PROMPT)
    else:
        own.append_tokens(PROMPT)
        np.testing.assert_allclose(own.get_logits()[0, 0], tiny.logits(PROMPT, tables), rtol=0, atol=1e-4)
        own.rewind_to(0)
    with pytest.raises(RuntimeError, match=r"'mine'.*none"):
        own.set_active_adapter(adapters, "mine")
    rng = np.random.default_rng(1)
    pair = tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((tiny.WIDTH, 2), (2, tiny.VOCABULARY)))
    for name, array in zip(("lora_a", "lora_b"), pair, strict=True):
        own.set_model_input(name, array)
    own.append_tokens(PROMPT)
    np.testing.assert_allclose(own.get_logits()[0, 0], tiny.logits(PROMPT, tables, pair), rtol=0, atol=1e-4)


def test_files_of_adapters(tmp_path: Path, folder: Path, model: Any) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime, which writes such files, is not installed")
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")
    given = {"lora_a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([[7, 8]], np.float16)}
    own = runtime.AdapterFormat()
    own.set_parameters({name: runtime.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()})
    path = tmp_path / "mine.onnx_adapter"
    own.export_adapter(str(path))
    adapters = og.Adapters(model)
    adapters.load(str(path), "mine")
    result = adapters.weights("mine")
    assert {name: (array.dtype, array.tolist()) for name, array in result.items()} == {
        n: (a.dtype, a.tolist()) for n, a in given.items()
    }
    with pytest.raises(RuntimeError, match=r"'lora_a'.*input_ids, attention_mask"):
        generator(model).set_active_adapter(adapters, "mine")
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        with pytest.raises(RuntimeError, match="adapter"):
            og.Adapters(model).load(str(path), "cut")
    for _ in range(200):
        damaged = bytearray(content)
        damaged[rng.integers(8, len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        try:
            og.Adapters(model).load(str(path), "damaged")
        except RuntimeError as error:
            assert isinstance(error, TvmdmlError)  # noqa: PT017 - or it is read: some bits are of names and weights
    with pytest.raises(RuntimeError, match="adapter"):
        og.Adapters(model).load(str(tmp_path / "nowhere"), "nowhere")


def test_pipelines(tmp_path: Path, tables: dict[str, Any]) -> None:
    network, about = tiny.model(tables), tiny.config()
    tiny.write(tmp_path, network, about)
    *before, last = network.graph.node
    own = {"words": [n for n in before if "x0" in n.output], "middle": [n for n in before if "x0" not in n.output], "head": [last]}
    hidden = {
        n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", "columns", tiny.WIDTH]) for n in ("x0", "x2", "hidden")
    }
    last.input[0] = "hidden"
    known = {argument.name: argument for argument in (*network.graph.input, *network.graph.output)} | hidden
    presents = [name for name in known if name.startswith("present")]
    ends = {"words": ["x0"], "middle": ["x2", *presents], "head": ["logits"]}
    parts = {}
    for name, nodes in own.items():
        read = {argument for node in nodes for argument in node.input}
        inputs, outputs = [n for n in known if n in read and n not in ends[name]], ends[name]
        tables_of = [table for table in network.graph.initializer if table.name in read]
        graph = helper.make_graph(nodes, name, [known[n] for n in inputs], [known[n] for n in outputs], tables_of)
        onnx.save(helper.make_model(graph, opset_imports=network.opset_import, ir_version=10), tmp_path / f"{name}.onnx")
        parts[name] = (inputs, outputs)
    stages = [
        {name: {"filename": f"{name}.onnx", "inputs": inputs, "outputs": outputs}} for name, (inputs, outputs) in parts.items()
    ]
    stages[1]["middle"]["output_names_forwarder"] = {"x2": "hidden"}
    about["model"]["decoder"]["pipeline"] = stages
    (tmp_path / "genai_config.json").write_text(json.dumps(about))
    text = finished(generator(og.Model(str(tmp_path)), max_length=12), PROMPT)
    assert text.get_sequence(0).tolist() == tiny.greedy(PROMPT, 12, tables)


@pytest.mark.parametrize(
    ("out", "into", "layers"),
    [("encoder_hidden_states", "encoder_hidden_states", 0), ("present_key_cross_0", "past_key_cross_0", 1)],
)
def test_an_encoder_and_a_decoder(tmp_path: Path, tables: dict[str, Any], out: str, into: str, layers: int) -> None:
    """The decoder's logits are of its last token and of the mean of what the encoder makes of the prompt."""
    value, sizes = helper.make_tensor_value_info, ["rows", "columns"]
    table, head = (numpy_helper.from_array(tables[name], name) for name in ("embedding", "head"))

    def saved(name: str, nodes: Any, inputs: Any, outputs: Any, initializers: Any) -> None:
        graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / f"{name}.onnx")

    node, (hidden, theirs) = helper.make_node, [value(n, TensorProto.FLOAT, ["rows", "words", tiny.WIDTH]) for n in (out, into)]
    masked = [
        node("Cast", ["attention_mask"], ["m"], to=1),
        node("Unsqueeze", ["m", "axis"], ["n"]),
        node("Mul", ["e", "n"], [hidden.name]),
    ]
    words = [value(name, TensorProto.INT64, ["rows", "words"]) for name in ("input_ids", "attention_mask")]
    axis = numpy_helper.from_array(np.array([2]), "axis")
    saved("encoder", [node("Gather", ["embedding", "input_ids"], ["e"]), *masked], words, [hidden], [table, axis])
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["e"]),
        node("ReduceMean", [theirs.name], ["mean"], axes=[1], keepdims=1),
        node("Add", ["e", "mean"], ["sum"]),
        node("MatMul", ["sum", "head"], ["logits"]),
    ]
    ids, logits = value("input_ids", TensorProto.INT64, sizes), value("logits", TensorProto.FLOAT, [*sizes, tiny.VOCABULARY])
    saved("decoder", nodes, [ids, theirs], [logits], [table, head])
    about = tiny.config(max_length=8)
    about["model"] |= {"type": "marian", "decoder_start_token_id": 4, "encoder": {"filename": "encoder.onnx"}}
    about["model"]["decoder"] |= {"filename": "decoder.onnx", "num_hidden_layers": layers}
    (tmp_path / "genai_config.json").write_text(json.dumps(about))
    own = finished(generator(og.Model(str(tmp_path)), batch_size=2), BATCH[:2])
    for index, prompt in enumerate((PROMPT, [8, 11])):
        mean, text = tables["embedding"][prompt].astype(np.float64).sum(0) / 4, [4]
        while len(text) < 8:
            text.append(int(np.argmax((tables["embedding"][text[-1]] + mean) @ tables["head"].astype(np.float64))))
        assert own.get_sequence(index).tolist() == text


def test_an_encoder_is_given_its_inputs_by_name(tmp_path: Path, tables: dict[str, Any]) -> None:
    """Features are given by ``set_inputs``, and so are the tokens that the decoder begins with."""
    value, sizes = helper.make_tensor_value_info, ["rows", "columns"]
    sound = value("audio_features", TensorProto.FLOAT, ["rows", tiny.WIDTH])
    hidden = value("encoder_hidden_states", TensorProto.FLOAT, ["rows", tiny.WIDTH])
    ids, logits = value("input_ids", TensorProto.INT64, sizes), value("logits", TensorProto.FLOAT, [*sizes, tiny.VOCABULARY])
    table, head = (numpy_helper.from_array(tables[name], name) for name in ("embedding", "head"))
    second, node = numpy_helper.from_array(np.array([1]), "one"), helper.make_node
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["e"]),
        node("Unsqueeze", [hidden.name, "one"], ["u"]),
        node("Add", ["e", "u"], ["sum"]),
        node("MatMul", ["sum", "head"], ["logits"]),
    ]
    graphs = {
        "encoder": helper.make_graph([node("Neg", [sound.name], [hidden.name])], "encoder", [sound], [hidden]),
        "decoder": helper.make_graph(nodes, "decoder", [ids, hidden], [logits], [table, head, second]),
    }
    for name, graph in graphs.items():
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / f"{name}.onnx")
    about = tiny.config(max_length=8)
    about["model"] |= {"type": "whisper", "encoder": {"filename": "encoder.onnx"}}
    about["model"]["decoder"] |= {"filename": "decoder.onnx", "num_hidden_layers": 0}
    (tmp_path / "genai_config.json").write_text(json.dumps(about))
    named, features = og.NamedTensors(), np.random.default_rng(6).standard_normal((2, tiny.WIDTH)).astype(np.float32)
    own = generator(og.Model(str(tmp_path)), batch_size=2, num_beams=2)
    with pytest.raises(RuntimeError, match="encoder: given nothing for audio_features"):
        own.set_inputs(named)
    named["audio_features"], named["input_ids"] = features, np.array([[4, 7], [9, 8]], np.int32)
    own.set_inputs(named)
    own.get_logits()
    rows = tables["embedding"][[7, 7, 8, 8]].astype(np.float64) - features.astype(np.float64).repeat(2, 0)
    np.testing.assert_allclose(own.get_logits()[:, 0], rows @ tables["head"].astype(np.float64), rtol=0, atol=1e-4)
    assert own.get_sequence(0).tolist() == [4, 7]


# -- What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([40], "token 40; allowed: 0 to 39"),
        ([-1], "token -1"),
        ([], "1 or more"),
        ([1.5], "integers"),
        (list(range(25)), "24 more, by max_length 24"),
        ("text", "numbers"),
        (None, "numbers"),
        ([[1], [2, 3]], "numbers"),
    ],
    ids=str,
)
def test_tokens_that_are_refused(model: Any, tables: dict[str, Any], tokens: Any, said: str) -> None:
    own = generator(model)
    with pytest.raises(RuntimeError, match=said):
        own.append_tokens(tokens)
    assert finished(own, PROMPT).get_sequence(0).tolist() == tiny.greedy(PROMPT, 24, tables)


def test_calls_at_the_wrong_time(model: Any) -> None:
    own = generator(model)
    for call in (own.generate_next_token, own.get_logits):
        with pytest.raises(RuntimeError, match="append_tokens"):
            call()
    own.append_tokens(PROMPT)
    for length in (5, -1, "2"):
        with pytest.raises(RuntimeError, match="0 to 4"):
            own.rewind_to(length)
    for index in (1, -1, None):
        with pytest.raises(RuntimeError, match="0 to 0"):
            own.get_sequence(index)
    own.set_runtime_option("terminate_session", "1")
    with pytest.raises(RuntimeError, match="terminate_session"):
        own.generate_next_token()
    own.set_runtime_option("terminate_session", "0")
    own.generate_next_token()
    for name, value in (("other", "1"), ("terminate_session", "2")):
        with pytest.raises(RuntimeError, match="terminate_session"):
            own.set_runtime_option(name, value)
    several = generator(model, batch_size=3)
    with pytest.raises(RuntimeError, match="3 rows"):
        several.append_tokens(PROMPT)
    several.append_tokens(BATCH)
    with pytest.raises(RuntimeError, match="one call"):
        several.append_tokens(BATCH)
    with pytest.raises(RuntimeError, match="0 for several rows"):
        several.rewind_to(2)


def test_what_is_not_here_says_so(model: Any) -> None:
    params = og.GeneratorParams(model)
    calls = [
        lambda: params.set_guidance("regex", "a+"), model.create_multimodal_processor, model.create_streaming_processor,
        lambda: og.Images.open("a.png"), lambda: og.MultiModalProcessor(model), lambda: og.MtpGenerator(model),
        lambda: og.Config.from_package_ep("a", "cpu"), og.StreamingProcessor,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Unsupported, match="allowed: "):
            call()


# -- Engines --------------------------------------------------------------------------------------------------------------


def test_an_engine_runs_requests_in_turn(model: Any, tables: dict[str, Any]) -> None:
    engine = og.Engine(model)
    prompts = (PROMPT, [8, 11])
    requests = [engine.create_request() for _ in prompts]
    options = og.TurnOptions(requests[0])
    options.set_max_generated_tokens(6)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.begin_turn(prompt, options) == 1
    with pytest.raises(RuntimeError, match="between turns"):
        requests[0].begin_turn(PROMPT)
    buffer, texts, ends = engine.create_event_buffer(1), {id(r): list(p) for r, p in zip(requests, prompts, strict=True)}, []
    while engine.has_pending_requests():
        for event in engine.run(buffer):
            texts[id(event.request)].append(event.token)
            ends += [event] if event.flags & og.EngineEventFlags.TURN_FINISHED else []
    assert [texts[id(r)] for r in requests] == [tiny.greedy(p, len(p) + 6, tables) for p in prompts]
    assert {event.finish_reason for event in ends} == {og.FinishReason.MAX_GENERATED_TOKENS}
    assert {(event.usage.prompt_tokens, event.usage.generated_tokens) for event in ends} == {(4, 6), (2, 6)}
    text = [*texts[id(requests[1])], 9]
    requests[1].begin_turn([9])  # a second turn, as long as the folder says
    while engine.has_pending_requests():
        for event in engine.run(engine.create_event_buffer(4)):
            text.append(event.token)
    assert text == tiny.greedy([*texts[id(requests[1])], 9], 24, tables)
    assert event.finish_reason == og.FinishReason.MAX_SESSION_TOKENS
    requests[1].rewind_to_start_of_turn(2)
    assert requests[1].begin_turn([9]) == 3
    assert requests[1].cancel_turn(3)
    assert [e.finish_reason for e in engine.run(engine.create_event_buffer(4))] == [og.FinishReason.CANCELLED]
    assert not requests[1].cancel_turn(3)
    with pytest.raises(RuntimeError, match="fewer than"):
        requests[1].begin_turn([9] * 20)
    requests[1].close()
    with pytest.raises(RuntimeError, match="closed"):
        requests[1].begin_turn([9])


def test_tokens_and_texts_end_an_answer(spoken: Path, tables: dict[str, Any]) -> None:
    right = tiny.greedy(PROMPT, 24, tables)[4:]
    for eos, stops, reason, count in (
        (right[3], [], 1, 3),
        (1, [f"w{right[2]}", "zz"], 2, 3),
        (1, ["zz", f"{right[1]} w{right[2]}"], 2, 3),
    ):
        config = og.Config(str(spoken))
        config.overlay(json.dumps({"model": {"eos_token_id": eos}}))
        engine = og.Engine(og.Model(config))
        request = engine.create_request()
        options = og.TurnOptions(request)
        options.set_stop_strings(stops)
        request.begin_turn(PROMPT, options)
        events = []
        while engine.has_pending_requests():
            events += engine.run(engine.create_event_buffer(2))
        assert [event.token for event in events if event.token is not None] == right[:count]
        assert events[-1].finish_reason == reason
        assert events[-1].matched_stop_string_index == (None if not stops else stops.index(next(s for s in stops if s != "zz")))
        for wrong in ("w3", [""], ["a"] * 17, [3]):
            with pytest.raises(RuntimeError, match="set_stop_strings"):
                options.set_stop_strings(wrong)
