"""Folders of language models, as ONNX Runtime GenAI makes them: the decoder for texts up to a length, and what is about it.

Past and mask have the longest length. Only the number of new tokens is open: texts have any length, and steps any size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmdml.errors import InvalidArgument, message, reason, safe_repr
from tvmdml.library.spec import Spec
from tvmdml.onnx.origin import Origin
from tvmdml.onnx.reading import ReadModel as Opened
from tvmdml.packs.open_graphs import OpenSource
from tvmdml.targets import Target

CONFIG = "genai_config.json"
_TEXTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
"""What a program that answers needs besides, as far as the folder has it."""
LENGTH = "length"
_ROLES = {
    "input_ids": ("batch", "new"), "position_ids": ("batch", "new"), "attention_mask": ("batch", "all"),
    "past_key_names": ("batch", "", "all", "width"), "past_value_names": ("batch", "", "all", "width"),
}  # fmt: skip
"""What the sizes of inputs mean, by the names that ``genai_config.json`` has for them."""
_PATTERNS = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}


def read(folder: Path, sizes: Mapping[str, int | range], known: set[str], target: Target) -> Spec:
    """A folder as the contents of a pack.

    Args:
        folder: the folder, with ``genai_config.json`` and the decoder that it names.
        sizes: ``length``: 1 to the most tokens of a text, its prompt included. Without it, the model's own limit.
        known: receives the names of sizes that may be given.
        target: for what the model is converted, to learn of its inputs.

    Raises:
        InvalidArgument, ModelError: a file is missing or wrong, or the decoder has other inputs than those of a text.
    """
    known.add(LENGTH)
    config = _config(folder)
    model: dict[str, Any] = config["model"] if isinstance(config.get("model"), dict) else {}
    decoder = model.get("decoder")
    if not isinstance(decoder, dict) or not isinstance(decoder.get("filename"), str):
        raise InvalidArgument(message(f"{folder / CONFIG} model.decoder.filename", "nothing", "the name of the decoder's file"))
    path = _inside(folder, decoder["filename"])
    longest = _longest(sizes.get(LENGTH), model.get("context_length"), folder)
    window = decoder["sliding_window"].get("window_size", 0) if isinstance(decoder.get("sliding_window"), dict) else 0
    if isinstance(window, int) and longest < window:
        advice = f"Layers keep a window of {window}, for which past and present have room."
        raise InvalidArgument(message(f"size {LENGTH}", f"1..{longest}", f"1 to {window} or more", advice))
    source = Opened(path)
    values: dict[str, int | range] = {}
    meanings = {"batch": 1, "new": range(1, longest + 1), "all": longest, "width": decoder.get("head_size")}
    for argument in Origin(source, None, target).about({}).inputs:
        for size, word in zip(argument.shape or (), _ROLES.get(role(decoder, argument.name)[0], ()), strict=False):
            if isinstance(size, str) and isinstance(meaning := meanings.get(word), (int, range)):
                values.setdefault(size, meaning)
    fixed = {name: n for name, n in values.items() if isinstance(n, int)}
    ranges = {name: n for name, n in values.items() if isinstance(n, range)}
    if not ranges:
        given = f"inputs {', '.join(argument.name for argument in Origin(source, None, target).about({}).inputs)}"
        raise InvalidArgument(message(str(path), given, "an open number of new tokens in input_ids", "Give model.onnx itself."))
    files = {name: (folder / name).read_bytes() for name in _TEXTS if (folder / name).is_file()}
    search = config.get("search")
    if isinstance(search, dict) and isinstance(search.get("max_length"), int):
        search["max_length"] = min(search["max_length"], longest)
    model["context_length"] = longest
    files[CONFIG] = json.dumps(config).encode()
    return Spec(graphs=(OpenSource(path.stem, source, fixed, ranges),), files=files)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        given = f"{folder} ({reason(error)})"
        raise InvalidArgument(message("pack build", given, f"a folder with {CONFIG}, or a file of operations")) from None
    if not isinstance(config, dict):
        raise InvalidArgument(message(str(path), safe_repr(config), "an object of JSON"))
    return config


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_file():
        raise InvalidArgument(message(f"{folder / CONFIG} model.decoder.filename", safe_repr(name), f"a file in {folder}"))
    return path


def _longest(given: int | range | None, context: Any, folder: Path) -> int:
    """The most tokens of a text."""
    longest = context if given is None else given[-1] if isinstance(given, range) else given
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:
        advice = f"Give it: --size {LENGTH}=1..4096"
        raise InvalidArgument(message(f"{folder / CONFIG} model.context_length", safe_repr(context), "a number of tokens", advice))
    if isinstance(given, range) and (given.start, given.step) != (1, 1):
        shown = f"{given.start}..{given[-1]}:{given.step}"
        raise InvalidArgument(message(f"size {LENGTH}", shown, "1 to the most tokens of a text"))
    if isinstance(context, int) and 0 < context < longest:  # its positions go no further
        raise InvalidArgument(message(f"size {LENGTH}", f"1..{longest}", f"at most {context}, the model's context_length"))
    return longest


def role(decoder: Mapping[str, Any], name: str) -> tuple[str, str]:
    """What an input of a decoder is, by the names of ``genai_config.json``, and the number of its layer; empty if it is none of a
    text's.
    """
    names = decoder.get("inputs")
    for role_of in _ROLES:
        pattern = names.get(role_of, _PATTERNS.get(role_of, role_of)) if isinstance(names, Mapping) else role_of
        before, is_numbered, after = str(pattern).partition("%d")
        number = name[len(before) : len(name) - len(after)] if is_numbered else ""
        if name == (f"{before}{number}{after}" if number.isdecimal() else pattern):
            return role_of, number
    return "", ""
