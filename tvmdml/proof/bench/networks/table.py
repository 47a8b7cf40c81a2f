"""The table of networks: their inputs, their sizes in full and for tests, and the forms in which they are exported."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

NONE: Mapping[str, Any] = MappingProxyType({})


class ExportForm(enum.Enum):
    """What is done with an exported file."""

    RAW = ""
    """Nothing."""
    FUSED = "fused"
    """ONNX Runtime's optimizer for transformers makes nodes of ``com.microsoft``."""
    QDQ = "int8 QDQ"
    """Convolutions and products of bytes, between QuantizeLinear and DequantizeLinear."""
    DYNAMIC = "int8 dynamic"
    """Products of bytes, whose scales follow from each input."""


class NetworkSize(NamedTuple):
    """How large a network is made."""

    arguments: Mapping[str, Any] = NONE
    """Of the function that makes it."""
    sizes: Mapping[str, int] = NONE
    """Of its inputs: values of names in their shapes."""


class NetworkInput(NamedTuple):
    """An input of a network."""

    shape: tuple[int | str, ...]
    """A string is a size's name."""
    below: int = 0
    """Of integers from ``least``: the limit. 0 for floats."""
    least: int = 0
    dtype: str = "int64"
    """Of integers."""


def arrays(inputs: Mapping[str, NetworkInput], sizes: Mapping[str, int], seed: int = 5) -> dict[str, Any]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, one in inputs.items():
        shape = tuple(n if isinstance(n, int) else sizes[n] for n in one.shape)
        if one.below:
            found[name] = rng.integers(one.least, one.below, shape).astype(one.dtype)
        else:
            found[name] = rng.standard_normal(shape, np.float32)
    return found


class Network(NamedTuple):
    """A network."""

    maker: str
    """The module and function that make it: ``images.resnet``."""
    inputs: Mapping[str, NetworkInput]
    full: NetworkSize
    small: NetworkSize
    open: tuple[str, ...] = ("batch",)
    """The sizes that the file leaves open."""
    forms: tuple[ExportForm, ...] = (ExportForm.RAW,)
    continues: bool = False
    """Whether it is a decoder: after its other inputs it takes the keys and values of earlier words, a pair for each layer, and
    gives those of all words."""

    def taken(self, size: NetworkSize) -> dict[str, NetworkInput]:
        """All inputs."""
        layers = size.arguments["layers"] if self.continues else 0
        past = NetworkInput(("batch", "heads", "past", "head"))
        return {**self.inputs, **{f"past_{i}_{kind}": past for i in range(layers) for kind in ("key", "value")}}


_IMAGE = {"x": NetworkInput(("batch", 3, "image", "image"))}
_LARGE, _SMALL = {"batch": 1, "image": 224}, {"batch": 1, "image": 32}
_WORDS = 200  # below the number of words of any size
_IDS = {"ids": NetworkInput(("batch", "rows"), _WORDS)}


TABLE: Mapping[str, Network] = {
    "ResNet-18": Network("images.resnet", _IMAGE, NetworkSize(sizes=_LARGE), NetworkSize({"width": 16, "classes": 50}, _SMALL)),
    "ResNet-50": Network(
        "images.resnet",
        _IMAGE,
        NetworkSize({"layers": (3, 4, 6, 3), "widen": 4}, _LARGE),
        NetworkSize({"layers": (1, 2, 1), "width": 8, "widen": 4, "classes": 50}, _SMALL),
        forms=(ExportForm.RAW, ExportForm.QDQ),
    ),
    "MobileNetV3": Network(
        "images.mobilenet",
        _IMAGE,
        NetworkSize(sizes=_LARGE),
        NetworkSize({"rows": 7, "classes": 50}, _SMALL),
        forms=(ExportForm.RAW, ExportForm.QDQ),
    ),
    "EfficientNet-B0": Network(
        "images.efficientnet", _IMAGE, NetworkSize(sizes=_LARGE), NetworkSize({"rows": 3, "classes": 50}, _SMALL)
    ),
    "UNet block": Network(
        "images.unet_block",
        {"x": NetworkInput(("batch", "width", "image", "image")), "time": NetworkInput(("batch", "wide"))},
        NetworkSize(sizes={"batch": 1, "width": 320, "wide": 1280, "image": 32}),
        NetworkSize({"width": 32, "heads": 2, "groups": 4}, {"batch": 1, "width": 32, "wide": 128, "image": 8}),
    ),
    "ViT-B/16": Network(
        "images.vit",
        _IMAGE,
        NetworkSize(sizes=_LARGE),
        NetworkSize({"image": 32, "patch": 8, "width": 48, "heads": 3, "layers": 2, "classes": 10}, _SMALL),
    ),
    "BERT-base": Network(
        "sequences.bert",
        {
            "ids": NetworkInput(("batch", "rows"), _WORDS),
            "mask": NetworkInput(("batch", "rows"), 2, 1),
            "kinds": NetworkInput(("batch", "rows"), 2),
        },
        NetworkSize(sizes={"batch": 1, "rows": 128}),
        NetworkSize({"width": 64, "heads": 4, "layers": 2, "words": _WORDS, "places": 64}, {"batch": 1, "rows": 17}),
        ("batch", "rows"),
        (ExportForm.RAW, ExportForm.FUSED, ExportForm.DYNAMIC),
    ),
    "GPT-2": Network(
        "sequences.decoder",
        _IDS,
        NetworkSize(
            {"width": 768, "heads": 12, "shared": 12, "layers": 12, "hidden": 3072, "words": 50257, "places": 1024},
            {"batch": 1, "rows": 1, "past": 128, "heads": 12, "head": 64},
        ),
        NetworkSize(
            {"width": 64, "heads": 4, "shared": 4, "layers": 2, "hidden": 128, "words": _WORDS, "places": 64},
            {"batch": 1, "rows": 3, "past": 7, "heads": 4, "head": 16},
        ),
        ("batch", "rows", "past"),
        (ExportForm.RAW, ExportForm.DYNAMIC),
        continues=True,
    ),
    "Llama": Network(
        "sequences.decoder",
        _IDS,
        NetworkSize(
            {"width": 768, "heads": 12, "shared": 4, "layers": 12, "hidden": 2048, "words": 32000, "places": 0},
            {"batch": 1, "rows": 1, "past": 128, "heads": 4, "head": 64},
        ),
        NetworkSize(
            {"width": 64, "heads": 4, "shared": 2, "layers": 2, "hidden": 96, "words": _WORDS, "places": 0},
            {"batch": 1, "rows": 3, "past": 7, "heads": 2, "head": 16},
        ),
        ("batch", "rows", "past"),
        continues=True,
    ),
    "Whisper encoder": Network(
        "sequences.whisper",
        {"x": NetworkInput(("batch", "bands", "frames"))},
        NetworkSize(sizes={"batch": 1, "bands": 80, "frames": 3000}),
        NetworkSize({"width": 48, "heads": 3, "layers": 2, "bands": 8, "frames": 24}, {"batch": 1, "bands": 8, "frames": 24}),
    ),
    "LSTM": Network(
        "sequences.recurrent",
        {"x": NetworkInput(("rows", "batch", "features"))},
        NetworkSize(sizes={"rows": 64, "batch": 1, "features": 128}),
        NetworkSize({"features": 12, "width": 16}, {"rows": 7, "batch": 2, "features": 12}),
        (),
    ),
    "enlarging": Network(
        "images.enlarging",
        {"x": NetworkInput(("batch", 8, "height", "width"))},
        NetworkSize(sizes={"batch": 1, "height": 64, "width": 64}),
        NetworkSize(sizes={"batch": 1, "height": 6, "width": 5}),
    ),
}
"""The networks by their names."""
