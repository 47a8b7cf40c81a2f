"""Programs of packages that were written for ONNX Runtime give the same answers, with their import changed and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import tvmdml.onnx  # noqa: E402 - it needs ONNX


def text_in_a_picture(ort: Any, patch: pytest.MonkeyPatch) -> Any:
    """Lines of text: where they are, what they say, and how sure that is."""
    engine = pytest.importorskip(
        "rapidocr_onnxruntime.utils.infer_engine", reason="the package rapidocr_onnxruntime is not installed"
    )
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    for name in ("InferenceSession", "SessionOptions", "GraphOptimizationLevel", "get_available_providers", "get_device"):
        patch.setattr(engine, name, getattr(ort, name))
    picture = Image.new("RGB", (420, 150), "white")
    font = ImageFont.truetype(str(Path(get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), 26)
    for i, line in enumerate(("Convolution 3x3", "1024 rows", "DirectML on Linux")):
        ImageDraw.Draw(picture).text((15, 12 + 44 * i), line, "black", font)
    from rapidocr_onnxruntime import RapidOCR

    lines, _ = RapidOCR()(np.asarray(picture))
    assert [text.replace(" ", "") for _, text, _ in lines] == ["Convolution3x3", "1024rows", "DirectMLonLinux"]
    return [(np.round(box), text, round(float(sure), 3)) for box, text, sure in lines]


def kinds_of_files(ort: Any, patch: pytest.MonkeyPatch) -> Any:
    """The kinds of files, by their content."""
    module = pytest.importorskip("magika.magika", reason="the package magika is not installed")
    patch.setattr(module, "rt", ort)
    page, script = b"<html><body><p>one</p></body></html>" * 9, b"#!/bin/sh\nfor one in *; do\n  ls $one\ndone\n" * 4
    files = (Path(__file__).read_bytes(), page, script, bytes(range(256)))
    magika = module.Magika()
    found = [magika.identify_bytes(one) for one in files]
    assert [str(one.output.label) for one in found[:2]] == ["python", "html"]
    return [(str(one.output.label), round(float(one.score), 4)) for one in found]


def objects_in_a_picture(ort: Any, patch: pytest.MonkeyPatch) -> Any:
    """What a detector sees in a photograph, and where."""
    module = pytest.importorskip("nudenet.nudenet", reason="the package nudenet is not installed")
    from matplotlib.cbook import get_sample_data

    patch.setattr(module, "onnxruntime", ort)
    photograph = str(get_sample_data("grace_hopper.jpg", asfileobj=False))
    found = module.NudeDetector().detect(photograph)
    assert [one["class"] for one in found] == ["FACE_FEMALE"]
    return [(one["class"], one["box"], round(one["score"], 3)) for one in found]


def speech(ort: Any, patch: pytest.MonkeyPatch) -> Any:
    """How probable speech is in each 32 ms of a sound; the recurrent state goes from block to block."""
    pytest.importorskip("silero_vad", reason="the package silero_vad is not installed")
    from silero_vad.sequence_vad import SileroVADSequence

    patch.setitem(sys.modules, "onnxruntime", ort)
    import silero_vad

    path = next(Path(str(silero_vad.__file__)).parent.rglob("*16k_sequence.onnx"))
    model = SileroVADSequence(str(path), max_frames=32)
    t = np.arange(3 * 16000) / 16000
    sound = (
        sum(np.sin(2 * np.pi * 140 * k * t + k) / k for k in range(1, 20)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t)) * (t > 1) / 4
    )
    return np.round(model.audio_forward(sound.astype(np.float32)), 3).tolist()


PROGRAMS: tuple[Callable[[Any, pytest.MonkeyPatch], Any], ...] = (text_in_a_picture, kinds_of_files, objects_in_a_picture, speech)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_program_of_a_package(program: Callable[[Any, pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        right = program(onnxruntime, patch)
    with monkeypatch.context() as patch:
        found = program(tvmdml.onnx, patch)
    assert str(found) == str(right)
