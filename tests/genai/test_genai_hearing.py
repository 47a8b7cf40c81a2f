"""Sounds as Whisper hears them, against the definition, written out."""

from __future__ import annotations

import io
import json
import math
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_decoder as tiny
from onnx import TensorProto, helper, numpy_helper, save

import tvmdml.genai as og
from tvmdml.genai import hearing

RATE = hearing.RATE


def wav(samples: Any, rate: int = RATE, width: int = 2, channels: int = 1) -> bytes:
    content, (kind, middle, scale) = io.BytesIO(), hearing._WIDTHS.get(width, ("u1", 0.0, 1.0))
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes((np.asarray(samples) * (scale - 1) + middle).round().astype(kind).tobytes())
    return content.getvalue()


def mel(frequency: float) -> float:
    return frequency * 3 / 200 if frequency < 1000 else 15 + math.log(frequency / 1000) * 27 / math.log(6.4)


def strength(sound: Any, moment: int, pitch: int, count: int) -> float:
    """The power of a pitch in a moment, by sums over samples."""
    edges = [mel(8000) * i / (count + 1) for i in range(pitch, pitch + 3)]
    total, size = 0.0, len(sound)
    for bin_ in range(201):
        frequency = bin_ * 40.0
        low, middle, high = (e * 200 / 3 if e < 15 else 1000 * math.exp((e - 15) * math.log(6.4) / 27) for e in edges)
        weight = max(0.0, min((frequency - low) / (middle - low), (high - frequency) / (high - middle))) * 2 / (high - low)
        if weight:
            part = 0j
            for n in range(400):
                at = abs(moment * 160 + n - 200)
                at = 2 * (size - 1) - at if at >= size else at
                part += sound[at] * (0.5 - 0.5 * math.cos(2 * math.pi * n / 400)) * np.exp(-2j * math.pi * bin_ * n / 400)
            total += weight * abs(part) ** 2
    return total


def test_features_are_those_of_the_definition() -> None:
    sound = np.random.default_rng(0).standard_normal(RATE) / 4
    result = hearing.features(sound, n_fft=400, hop_length=160, n_mel=80, chunk_size=1)
    assert (result.shape, result.dtype) == ((80, 100), np.float32)
    logs = result.astype(np.float64) * 4 - 4
    for moment, pitch in ((0, 0), (1, 40), (50, 79), (99, 20)):
        assert abs(logs[pitch, moment] - math.log10(strength(sound, moment, pitch, 80))) < 1e-4


def test_silence_and_tones() -> None:
    numbers = {"n_fft": 400, "hop_length": 160, "n_mel": 80, "chunk_size": 2}
    assert np.all(hearing.features(np.zeros(0), **numbers) == (-10 + 4) / 4)
    for frequency in (300.0, 1000.0, 4000.0):
        tone = np.sin(2 * np.pi * frequency * np.arange(RATE) / RATE)
        result = hearing.features(tone, **numbers)
        middles = [mel(8000) * (i + 1) / 81 for i in range(80)]
        assert abs(middles[int(result[:, 50].argmax())] - mel(frequency)) < 1
        assert abs(result[:, 150:].max() - result.max() + 2) < 1e-5  # the second that is silent
    longer = hearing.features(np.ones(RATE * 3), **numbers)
    assert longer.shape == (80, 200)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_files_of_sounds(tmp_path: Path, width: int) -> None:
    samples = np.array([[0.5, -0.25], [1.0, 0.0], [-1.0, 0.5]])
    path = tmp_path / "a.wav"
    path.write_bytes(wav(samples, width=width, channels=2))
    (result,) = og.Audios.open(str(path)).sounds
    np.testing.assert_allclose(result, samples.mean(1), rtol=0, atol=0.02 if width == 1 else 1e-4)


@pytest.mark.parametrize(
    "content",
    [b"", b"RIFF", wav([0.0], rate=44100), wav([0], width=3)[:-1], wav([0.0])[:30], wav([0.0])[:20] + b"\xff" * 30],
    ids=range(6),
)
def test_what_is_no_sound_is_refused(content: bytes) -> None:
    with pytest.raises(RuntimeError, match="WAV"):
        og.Audios.open_bytes(content)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for call in (lambda: og.Audios.open(str(tmp_path / "a.wav")), lambda: og.Audios.open(3), lambda: og.Audios.open()):  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match=r"Audios.*allowed"):
            call()


def test_a_processor_makes_inputs(tmp_path: Path, tables: dict[str, Any]) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    value, sizes = helper.make_tensor_value_info, ["rows", "columns"]
    sound, hidden = (
        value("audio_features", TensorProto.FLOAT, ["rows", 20, 100]),
        value("encoder_hidden_states", TensorProto.FLOAT, ["rows", 1]),
    )
    ids, logits = value("input_ids", TensorProto.INT64, sizes), value("logits", TensorProto.FLOAT, [*sizes, tiny.VOCABULARY])
    table, second = (
        numpy_helper.from_array(tables["head"].repeat(3, 0)[:40], "table"),
        numpy_helper.from_array(np.array([2]), "one"),
    )
    node = helper.make_node
    encoder = [node("ReduceSum", [sound.name, "axes"], [hidden.name], keepdims=0), node("Identity", ["axes"], ["unused"])]
    axes = numpy_helper.from_array(np.array([1]), "axes")
    hidden = value("encoder_hidden_states", TensorProto.FLOAT, ["rows", 100])
    last = numpy_helper.from_array(np.ones((100, 1), np.float32), "ones")
    decoder = [
        node("Gather", ["table", "input_ids"], ["e"]),
        node("MatMul", [hidden.name, "ones"], ["total"]),
        node("Unsqueeze", ["total", "one"], ["u"]),
        node("Mul", ["e", "u"], ["logits"]),
    ]
    for name, graph in (
        ("encoder", helper.make_graph(encoder[:1], "encoder", [sound], [hidden], [axes])),
        ("decoder", helper.make_graph(decoder, "decoder", [ids, hidden], [logits], [table, second, last])),
    ):
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / f"{name}.onnx")
    about = tiny.config(max_length=6)
    about["model"] |= {"type": "whisper", "encoder": {"filename": "encoder.onnx"}}
    about["model"]["decoder"] |= {"filename": "decoder.onnx", "num_hidden_layers": 0}
    (tmp_path / "genai_config.json").write_text(json.dumps(about))
    tiny.write_tokenizer(tmp_path)
    model = og.Model(str(tmp_path))
    with pytest.raises(RuntimeError, match="audio_processor_config"):
        model.create_multimodal_processor()
    attributes = {"n_fft": 400, "hop_length": 160, "n_mel": 20, "chunk_size": 1}
    steps = [{"operation": {"type": "AudioDecoder"}}, {"operation": {"attrs": attributes}}]
    (tmp_path / "audio_processor_config.json").write_text(json.dumps({"feature_extraction": {"sequence": steps}}))
    processor = model.create_multimodal_processor()
    tones = [0.5 * np.sin(np.arange(RATE) * speed) for speed in (0.1, 0.7)]
    audios = og.Audios.open_bytes(*map(wav, tones))
    for given in (
        {"prompt": "w3", "audios": audios},
        {"prompt": ["w3", "w4"]},
        {"prompt": ["w3", "w4"], "audios": audios, "images": 3},
    ):
        with pytest.raises(RuntimeError, match="MultiModalProcessor"):
            processor(**given)
    named = processor(["w3 w4", "w5 w6"], audios=audios)
    assert named["input_ids"].as_numpy().tolist() == [[3, 4], [5, 6]]
    params = og.GeneratorParams(model)
    params.set_search_options(batch_size=2)
    own = og.Generator(model, params)
    own.set_inputs(named)
    rows = tables["head"].repeat(3, 0)[:40]
    for row, (token, sound_) in zip(own.get_logits()[:, 0], ((4, audios.sounds[0]), (6, audios.sounds[1])), strict=True):
        total = hearing.features(sound_, **attributes).astype(np.float64).sum()
        np.testing.assert_allclose(row, rows[token] * total, rtol=1e-3, atol=1e-2)
    assert processor.decode([3, 4]) == "w3 w4"
    for wrong in (
        '{"feature_extraction": 3}',
        "{",
        json.dumps({"feature_extraction": {"sequence": [{"operation": {"attrs": {"n_fft": 0}}}]}}),
    ):
        (tmp_path / "audio_processor_config.json").write_text(wrong)
        with pytest.raises(RuntimeError, match="audio_processor_config"):
            model.create_multimodal_processor()
