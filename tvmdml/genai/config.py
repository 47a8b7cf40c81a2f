"""``Config``: what ``genai_config.json`` says of a model's folder, and what a program changes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmdml import targets
from tvmdml.errors import Unsupported, message, reason, safe_repr
from tvmdml.genai import settings
from tvmdml.genai.options import check_names
from tvmdml.genai.refusing import FolderError, Refused
from tvmdml.library.opened import OpenedPack
from tvmdml.targets import Target

FILE = "genai_config.json"
_KINDS: Mapping[str, str] = {"cpu": "cpu", "cuda": "cuda", "nvtensorrtrtx": "cuda", "webgpu": "vulkan", "vulkan": "vulkan"}
"""The target of each provider, by its name in small letters without its ending."""
_ENDINGS = ("executionprovider", "provider")
MOST = 1 << 31
_SECTIONS = ("model", "search", "engine", "speculative")


class Config:
    """The configuration of a model's folder, or of a pack that was built from one."""

    def __init__(self, config_path: str | os.PathLike[str]) -> None:
        """Read a folder's ``genai_config.json``.

        Raises:
            FolderError: the file is not there, or is not a configuration.
            PackError: it is a file that is no pack, or one that is damaged or not trusted.
        """
        if not isinstance(config_path, (str, os.PathLike)):
            raise Refused(message("Config", safe_repr(config_path), "the path of a folder"))
        self.folder = Path(config_path)
        """Or the pack's file."""
        self._models: dict[str, bytes] = {}
        self._pack = OpenedPack(self.folder).pack if self.folder.is_file() else None
        if not self.folder.exists():
            raise FolderError(message("Config", self.folder, "the path of a folder, or of a pack, that exists"))
        text = self.text(FILE)
        if text is None:
            advice = "ONNX Runtime GenAI's model builder writes it, and `tvmdml pack build FOLDER` takes it along."
            raise FolderError(message(FILE, self.folder, f"a folder, or a pack, with the file {FILE}", advice))
        self.data: dict[str, Any] = _parsed(text, str(self.folder / FILE), FolderError)
        for name in ("model", "search"):
            if not isinstance(self.data.setdefault(name, {}), dict):
                raise FolderError(message(f"{FILE} {name}", safe_repr(self.data[name]), "an object"))
        check_names(self.data["search"], f"{FILE} search", FolderError)

    @classmethod
    def from_package_ep(cls, config_path: str, ep: str) -> Config:
        """Not here: packages with several variants of a model.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(message("Config.from_package_ep", safe_repr(config_path), "Config(folder), of the variant's folder"))

    # -- Reading

    @property
    def model(self) -> dict[str, Any]:
        """The section about the network."""
        return self.data["model"]

    @property
    def search(self) -> dict[str, Any]:
        """The section about the search."""
        return self.data["search"]

    @property
    def decoder(self) -> dict[str, Any]:
        """The part about the network that gives logits.

        Raises:
            FolderError: there is none.
        """
        return self.part("decoder")

    def part(self, name: str) -> dict[str, Any]:
        """A part of the section about the network.

        Raises:
            FolderError: there is none.
        """
        part = self.model.get(name)
        if not isinstance(part, dict):
            raise FolderError(
                message(f"{FILE} model.{name}", "nothing" if part is None else safe_repr(part), "an object", self._whence)
            )
        return part

    def integer(self, name: str, default: int | None = None, least: int = 0) -> int:
        """A number of the section about the network.

        Raises:
            FolderError: it is none, or is missing without a default.
        """
        value = self.model.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MOST:
            given = "nothing" if value is None else safe_repr(value)
            raise FolderError(message(f"{FILE} model.{name}", given, f"an integer of {least} to {MOST - 1}", self._whence))
        return value

    @property
    def eos(self) -> tuple[int, ...]:
        """The tokens that end a text.

        Raises:
            FolderError: they are no integers.
        """
        given = self.model.get("eos_token_id", ())
        several = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        if not all(isinstance(token, int) and not isinstance(token, bool) and -MOST <= token < MOST for token in several):
            raise FolderError(
                message(f"{FILE} model.eos_token_id", safe_repr(given), "an integer of 32 bits, or a list of them", self._whence)
            )
        return several

    @property
    def pad(self) -> int:
        """The token that fills a short text of a batch: the first one that ends a text, if the file's is none of the vocabulary."""
        several = (self.model.get("pad_token_id"), *self.eos)
        most = self.integer("vocab_size", least=1)
        return next((token for token in several if isinstance(token, int) and 0 <= token < most), 0)

    @property
    def _whence(self) -> str:
        return f"The folder is {self.folder}."

    def text(self, name: str) -> str | None:
        """A file of text; ``None`` if there is none.

        Raises:
            FolderError: it cannot be read.
            PackError: the pack is damaged.
        """
        try:
            if self._pack is not None:
                return self._pack.file(name).decode() if name in self._pack.files else None
            return (self.folder / name).read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise FolderError(message(name, f"{self.folder} ({reason(error)})", "a file of text")) from None

    def network(self, name: str, what: str) -> Path | bytes:
        """The file of a network, or the bytes that a program gave instead. A pack has one, the decoder.

        Raises:
            FolderError: it is not there, or its name leads out of the folder.
        """
        if name in self._models:
            return self._models[name]
        if self._pack is not None and name == self.decoder.get("filename"):
            return self.folder
        path = self.folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_file():
            raise FolderError(message(what, safe_repr(name), f"a file in {self.folder}"))
        return path

    # -- Changing

    def overlay(self, text: str) -> None:
        """Put another JSON text over the configuration: objects are merged, anything else is replaced.

        Raises:
            Refused: it is not JSON, or names a search option that there is not.
        """
        given = _parsed(text, "overlay", Refused)
        for name, value in given.items():
            if name not in _SECTIONS or not isinstance(value, dict):
                raise Refused(message(f"overlay {safe_repr(name)}", safe_repr(value), f"objects named {', '.join(_SECTIONS)}"))
        check_names(given.get("search", {}), "overlay search", Refused)
        self.data = _merged(self.data, given)

    @property
    def providers(self) -> list[dict[str, dict[str, str]]]:
        """The providers with their options, in the order in which they are tried."""
        options = self.decoder.setdefault("session_options", {})
        listed = options.setdefault("provider_options", []) if isinstance(options, dict) else None
        if not isinstance(listed, list) or not all(isinstance(entry, dict) and len(entry) == 1 for entry in listed):
            raise FolderError(message(f"{FILE} provider_options", safe_repr(listed), 'a list such as [{"cuda": {}}]'))
        return listed

    def clear_providers(self) -> None:
        """Have no provider: the CPU."""
        self.providers.clear()

    def append_provider(self, name: str) -> None:
        """Add a provider, if it is not there: "cpu", "cuda", "vulkan", "dml", or the name of a target."""
        if not isinstance(name, str) or not name:
            raise Refused(message("append_provider", safe_repr(name), _allowed()))
        if not any(_plain(name) == _plain(own) for entry in self.providers for own in entry):
            self.providers.append({name: {}})

    def set_provider_option(self, provider: str, name: str, value: str) -> None:
        """Set an option of a provider, which is added if it is not there; ``device_id`` has an effect."""
        self.append_provider(provider)
        for entry in self.providers:
            for own, options in entry.items():
                if _plain(own) == _plain(provider):
                    options[str(name)] = str(value)

    def set_decoder_provider_options_hardware_device_type(self, provider: str, value: str) -> None:
        """Accept a kind of device; it has no effect."""

    def set_decoder_provider_options_hardware_device_id(self, provider: str, value: int) -> None:
        """Accept a device's number; it has no effect."""

    def set_decoder_provider_options_hardware_vendor_id(self, provider: str, value: int) -> None:
        """Accept a vendor's number; it has no effect."""

    def clear_decoder_provider_options_hardware_device_type(self, provider: str) -> None:
        """Accept it."""

    def clear_decoder_provider_options_hardware_device_id(self, provider: str) -> None:
        """Accept it."""

    def clear_decoder_provider_options_hardware_vendor_id(self, provider: str) -> None:
        """Accept it."""

    def add_model_data(self, name: str, content: Any) -> None:
        """Give the bytes of a file, which is not read from the folder then.

        Raises:
            Refused: they are no bytes.
        """
        try:
            self._models[str(name)] = bytes(memoryview(content))
        except TypeError:
            raise Refused(message("add_model_data", safe_repr(content), "bytes")) from None

    def remove_model_data(self, name: str) -> None:
        """Read a file from the folder again."""
        self._models.pop(name, None)

    # -- Where

    def target(self, wanted: str | Target | None = None) -> Target:
        """Where the model runs.

        Args:
            wanted: the target that was asked for, which stands above the providers. Without it, "dml" means the CPU.

        Raises:
            Refused: a provider is none that is here.
            DeviceError: this machine has no such device.
        """
        if wanted is not None:
            return targets.resolve(wanted, "Model target")
        for entry in self.providers[:1]:
            for name, options in entry.items():
                return _target(name, options if isinstance(options, dict) else {})
        return targets.resolve("cpu")


def _target(name: str, options: Mapping[str, str]) -> Target:
    plain = _plain(name)
    if plain.partition(":")[0] in targets.kinds() and ":" in plain:
        return targets.resolve(name, "provider")
    if plain in ("dml", "directml"):
        return targets.resolve("cpu")
    kind = _KINDS.get(plain)
    if kind is None:
        advice = "Config.clear_providers() means the CPU; append_provider(name) adds one of these."
        raise Refused(message("provider", safe_repr(name), _allowed(), advice))
    if kind == "cpu":
        return targets.resolve(kind)
    number = str(options.get("device_id", settings.get_current_gpu_device_id()))
    return targets.resolve(f"{kind}:{number}", f"provider {name}")


def _allowed() -> str:
    return ", ".join([*_KINDS, "dml"]) + ", or a target such as cuda:1"


def _plain(name: str) -> str:
    """A provider's name in small letters, without its ending."""
    plain = name.lower()
    for ending in _ENDINGS:
        plain = plain.removesuffix(ending)
    return plain


def _parsed(text: str, where: str, error: type[Exception]) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as problem:
        raise error(message(where, reason(problem), "JSON")) from None
    if not isinstance(data, dict):
        raise error(message(where, safe_repr(data), "an object of JSON"))
    return data


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two objects of JSON as one."""
    both = {
        name: _merged(under[name], value)
        for name, value in over.items()
        if isinstance(value, dict) and isinstance(under.get(name), dict)
    }
    return {**under, **over, **both}
