"""``Audios`` and ``MultiModalProcessor``: sounds as Whisper hears them, logarithms of how strong each pitch is in each moment."""

from __future__ import annotations

import functools
import io
import json
import os
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmdml.errors import Unsupported, message, reason, safe_repr
from tvmdml.genai.lacking import FEATURES
from tvmdml.genai.refusing import FolderError, Refused
from tvmdml.genai.tensors import NamedTensors
from tvmdml.genai.tokenizer import Tokenizer, TokenizerStream
from tvmdml.tensors.arrays import NumpyArray

RATE = 16000
"""Samples a second."""
_FILE = "audio_processor_config.json"
_DEFAULTS = {"n_fft": 400, "hop_length": 160, "n_mel": 80, "chunk_size": 30}
_MOST = 1 << 12
"""Of each of these numbers."""
_WIDTHS: dict[int, tuple[str, float, float]] = {1: ("u1", 128.0, 128.0), 2: ("<i2", 0.0, 2.0**15), 4: ("<i4", 0.0, 2.0**31)}
"""The type of samples of so many bytes, what is subtracted of them, and what they are divided by then."""


class Audios:
    """Sounds that were read."""

    def __init__(self, sounds: Sequence[NumpyArray]) -> None:
        """Not public: ``open`` reads sounds."""
        self.sounds = list(sounds)

    @classmethod
    def open(cls, *paths: str | os.PathLike[str]) -> Audios:
        """Read files: WAV, uncompressed, with 16000 samples a second. Several channels are averaged.

        Raises:
            Refused: one is no such file.
        """
        try:
            contents = [Path(path).read_bytes() for path in paths]
        except (OSError, TypeError) as error:
            raise Refused(message("Audios.open", f"{safe_repr(paths)} ({reason(error)})", "paths of WAV files")) from None
        return cls.open_bytes(*contents)

    @classmethod
    def open_bytes(cls, *contents: bytes) -> Audios:
        """The same of files' bytes.

        Raises:
            Refused: they are of no such file.
        """
        if not contents:
            raise Refused(message("Audios", "no sounds", "one or more"))
        return cls([_samples(content) for content in contents])


def _samples(content: bytes) -> NumpyArray:
    """The samples of a WAV file: float64, from -1 to 1."""
    allowed = f"WAV, uncompressed, of {RATE} samples a second, with 1, 2 or 4 bytes each"
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError, TypeError, ValueError, OverflowError) as error:
        raise Refused(message("Audios", f"{type(error).__name__}: {reason(error)}", allowed)) from None
    if rate != RATE or width not in _WIDTHS:
        advice = f"ffmpeg -i sound -ar {RATE} -ac 1 sound.wav makes one."
        raise Refused(message("Audios", f"{rate} samples a second of {width} bytes", allowed, advice))
    kind, middle, scale = _WIDTHS[width]
    whole = len(frames) // (width * channels) * channels
    samples = np.frombuffer(frames, kind, whole).reshape(-1, channels).mean(1, dtype=np.float64)
    return np.asarray((samples - middle) / scale)


class MultiModalProcessor:
    """Sounds and texts as the inputs of Whisper; ``Model.create_multimodal_processor`` makes it."""

    def __init__(self, model: Any) -> None:
        """Read the folder's ``audio_processor_config.json`` and tokenizer.

        Raises:
            Unsupported: the model does not take what this makes.
            FolderError: a file is missing or wrong.
        """
        encoder = getattr(model, "encoder", None)
        if encoder is None or [argument.name for argument in encoder.inputs] != ["audio_features"]:
            given = f"a model of type {safe_repr(getattr(model, 'type', model))}"
            raise Unsupported(message("MultiModalProcessor", given, "an encoder of audio_features, as Whisper's", FEATURES))
        self._tokenizer, self._numbers = Tokenizer(model), _numbers(model.config.folder / _FILE)
        self._dtype = encoder.inputs[0].dtype

    def __call__(self, prompt: Any = None, *, audios: Audios | None = None, **others: Any) -> NamedTensors:
        """The inputs: ``input_ids``, of one text or of several, and ``audio_features``.

        Raises:
            Refused: there are no sounds, or other things; or not as many texts as sounds.
        """
        if not isinstance(audios, Audios) or any(value is not None for value in others.values()):
            raise Refused(message("MultiModalProcessor", safe_repr(others or audios), "texts, and audios=Audios.open(…)"))
        texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
        if len(texts) != len(audios.sounds):
            raise Refused(
                message("MultiModalProcessor", f"{len(texts)} texts for {len(audios.sounds)} sounds", "a text for each sound")
            )
        named = NamedTensors()
        named["input_ids"] = self._tokenizer.encode_batch(texts)
        named["audio_features"] = np.stack([features(sound, **self._numbers) for sound in audios.sounds]).astype(self._dtype)
        return named

    def decode(self, tokens: Any) -> str:
        """The text of tokens."""
        return self._tokenizer.decode(tokens)

    def create_stream(self) -> TokenizerStream:
        """A text that grows token by token."""
        return self._tokenizer.create_stream()


def _numbers(path: Path) -> dict[str, int]:
    """What a folder says of sounds."""
    try:
        steps = json.loads(path.read_text("utf-8"))["feature_extraction"]["sequence"]
        given = {name: value for step in steps for name, value in step["operation"].get("attrs", {}).items() if name in _DEFAULTS}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise FolderError(
            message(str(path), f"{type(error).__name__}: {reason(error)}", "a file with feature_extraction.sequence")
        ) from None
    for name, value in given.items():
        if not isinstance(value, int) or not 1 <= value <= _MOST:
            raise FolderError(message(f"{path} {name}", safe_repr(value), f"1 to {_MOST}"))
    return {**_DEFAULTS, **given}


def features(sound: NumpyArray, n_fft: int, hop_length: int, n_mel: int, chunk_size: int) -> NumpyArray:
    """How strong each pitch is in each moment: float32 [n_mel, moments], from about -1 to 1.

    Args:
        sound: samples, of which ``chunk_size`` seconds count; a shorter sound ends with silence.
        n_fft: samples of a moment.
        hop_length: samples from one moment to the next.
        n_mel: pitches.
        chunk_size: seconds.
    """
    length = chunk_size * RATE
    padded = np.pad(np.pad(sound[:length], (0, max(0, length - len(sound)))), n_fft // 2, mode="reflect")
    moments = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop_length][: length // hop_length]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    power = np.abs(np.fft.rfft(moments * window)) ** 2
    logs = np.log10(np.maximum(power @ pitches(n_fft, n_mel).T, 1e-10)).T
    return np.asarray((np.maximum(logs, logs.max() - 8) + 4) / 4, np.float32)


@functools.lru_cache(8)
def pitches(n_fft: int, n_mel: int) -> NumpyArray:
    """How much each frequency counts for each pitch: triangles of the same area, evenly apart on Slaney's scale of mels."""
    steps = np.linspace(0, 15 + np.log(RATE / 2 / 1000) * 27 / np.log(6.4), n_mel + 2)
    edges = np.where(steps < 15, steps * 200 / 3, 1000 * np.exp((steps - 15) * np.log(6.4) / 27))[:, None]
    at = np.arange(n_fft // 2 + 1) * RATE / n_fft
    up, down = (at - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(0, np.minimum(up, down)) * 2 / (edges[2:] - edges[:-2]))
