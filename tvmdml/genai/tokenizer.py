"""``Tokenizer``: text as tokens and back, by the package tokenizers, with the rules of the folder's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml.errors import Unsupported, message, reason, safe_repr
from tvmdml.genai import chat
from tvmdml.genai.config import Config
from tvmdml.genai.refusing import FolderError, Refused
from tvmdml.genai.tensors import Tensor, held
from tvmdml.system import at_hand, installing
from tvmdml.tensors.arrays import NumpyArray

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PATIENCE = 16
"""Tokens after which a stream shows what is no whole character."""


class Tokenizer:
    """Text as tokens and back."""

    def __init__(self, source: Any) -> None:
        """Read ``tokenizer.json`` of a folder: that of a model or a configuration, or the path of one.

        Raises:
            FolderError: the file is not there, or is none.
            Unsupported: the package tokenizers is not installed.
        """
        own = getattr(source, "config", source)
        config = own if isinstance(own, Config) else Config(source)
        self._config, self._options = config, {"add_special_tokens": False, "skip_special_tokens": True}
        self._own = _read(config)

    # -- Facts

    @property
    def bos_token_id(self) -> int:
        """The token that begins a text."""
        return self._config.integer("bos_token_id", 0)

    @property
    def eos_token_ids(self) -> NumpyArray:
        """The tokens that end a text: int32."""
        return np.array(self._config.eos, np.int32)

    @property
    def pad_token_id(self) -> int:
        """The token that fills a short text of a batch."""
        return self._config.pad

    @property
    def bot_token_id(self) -> int:
        """The token that begins a call of a tool.

        Raises:
            FolderError: the model has none.
        """
        return self._config.integer("bot_token_id")

    @property
    def eot_token_id(self) -> int:
        """The token that ends a call of a tool.

        Raises:
            FolderError: the model has none.
        """
        return self._config.integer("eot_token_id")

    @property
    def bor_token_id(self) -> int:
        """The token that begins reasoning.

        Raises:
            FolderError: the model has none.
        """
        return self._config.integer("bor_token_id")

    @property
    def eor_token_id(self) -> int:
        """The token that ends reasoning.

        Raises:
            FolderError: the model has none.
        """
        return self._config.integer("eor_token_id")

    def to_token_id(self, text: str) -> int:
        """The number of a token; -1 if there is none of this text."""
        number = self._own.token_to_id(_text(text, "to_token_id"))
        return -1 if number is None else int(number)

    def update_options(self, **options: Any) -> None:
        """Set ``add_special_tokens`` (False at first) and ``skip_special_tokens`` (True at first): "true" or "false".

        Raises:
            Refused: there is no such option, or it may not have this value.
        """
        for name, value in options.items():
            word = str(value).lower()
            if name not in self._options or word not in ("true", "false", "1", "0"):
                given, allowed = f"{safe_repr(name)}: {safe_repr(value)}", " and ".join(self._options) + ', each "true" or "false"'
                raise Refused(message("update_options", given, allowed))
            self._options[name] = word in ("true", "1")

    # -- Text as tokens

    def encode(self, text: str) -> NumpyArray:
        """The tokens of a text: int32.

        Raises:
            Refused: it is no text.
        """
        own = self._own.encode(_text(text, "encode"), add_special_tokens=self._options["add_special_tokens"])
        return np.array(own.ids, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """The tokens of several texts: int32 [texts, longest], each filled at its end with the padding token.

        Raises:
            Refused: they are no texts, or there are none.
        """
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence) or not texts:
            raise Refused(message("encode_batch", safe_repr(texts), "a list of texts"))
        rows = [self.encode(text) for text in texts]
        matrix = np.full((len(rows), max(map(len, rows))), self.pad_token_id, np.int32)
        for line, row in zip(matrix, rows, strict=True):
            line[: len(row)] = row
        return Tensor(matrix)

    def apply_chat_template(
        self, messages: str, *, template_str: str | None = None, tools: str | None = None, add_generation_prompt: bool = True
    ) -> str:
        """Messages as the text that the model was trained on.

        Args:
            messages: a list of objects with ``role`` and ``content``, in JSON.
            template_str: a template; without it that of the folder.
            tools: a list of functions' descriptions, in JSON.
            add_generation_prompt: whether the text ends with what an answer begins with.

        Raises:
            Refused: the messages are no list, or the template refuses them.
            FolderError: the folder has no template.
            Unsupported: the package jinja2 is not installed.
        """
        listed, functions = chat.parsed(messages, "messages"), chat.parsed(tools, "tools") if tools else None
        about = _object(self._config, "tokenizer_config.json")
        template = template_str or self._template(about, bool(functions))
        given = {name: about.get(name) for name in _SPECIAL}
        special = {name: token.get("content", "") if isinstance(token, dict) else token for name, token in given.items() if token}
        return chat.render(template, listed, functions, special, add_generation_prompt)

    def _template(self, about: dict[str, Any], with_tools: bool) -> str:
        """The folder's template: a file of its own, or one of ``tokenizer_config.json``, which may have several with names."""
        given = about.get("chat_template")
        if (own := self._config.text("chat_template.jinja")) is not None:
            return own
        if isinstance(given, list):
            named = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
            given = (named.get("tool_use") if with_tools else None) or named.get("default")
        if not isinstance(given, str):
            where = f"chat_template.jinja, and no chat_template in tokenizer_config.json, in {self._config.folder}"
            raise FolderError(
                message("apply_chat_template", f"no {where}", "a template", "Give template_str=…, or write the prompt itself.")
            )
        return given

    # -- Tokens as text

    def decode(self, tokens: Any) -> str:
        """The text of tokens; those that are none of the vocabulary are left out.

        Raises:
            Refused: they are no integers.
        """
        array = held(tokens, "decode")
        if array.size and array.dtype.kind not in "iu":
            raise Refused(message("decode", f"elements of {array.dtype}", "integers"))
        numbers = [int(token) for token in array.reshape(-1) if 0 <= token < 1 << 32]
        return str(self._own.decode(numbers, skip_special_tokens=self._options["skip_special_tokens"]))

    def decode_batch(self, tokens: Any) -> list[str]:
        """The texts of rows of tokens.

        Raises:
            Refused: they are no rows of integers.
        """
        array = held(tokens, "decode_batch")
        if array.ndim != 2:
            raise Refused(message("decode_batch", f"the shape {list(array.shape)}", "rows of tokens: two dimensions"))
        return [self.decode(row) for row in array]

    def create_stream(self) -> TokenizerStream:
        """A text that grows token by token."""
        return TokenizerStream(self)


class TokenizerStream:
    """A text that grows token by token; ``Tokenizer.create_stream`` makes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._before, self._shown = "", 0

    def decode(self, token: int) -> str:
        """What a token adds to the text: nothing, while it is a part of a character only.

        Raises:
            Refused: it is no integer.
        """
        if not isinstance(token, (int, np.integer)) or isinstance(token, bool):
            raise Refused(message("TokenizerStream.decode", safe_repr(token), "an integer"))
        self._tokens.append(int(token))
        text = self._tokenizer.decode(self._tokens)
        if text.endswith("\ufffd") and len(self._tokens) - self._shown < _PATIENCE:
            return ""
        new = text[len(self._before) :]
        # Later tokens are decoded after the last ones, since a token's text depends on whether it begins the text.
        self._tokens = self._tokens[self._shown :]
        self._shown, self._before = len(self._tokens), self._tokenizer.decode(self._tokens)
        return new


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise Refused(message(where, safe_repr(given), "a text (str)"))
    try:
        given.encode()
    except UnicodeEncodeError:
        raise Refused(message(where, safe_repr(given), "a text without halves of surrogate pairs")) from None
    return given


def _read(config: Config) -> Any:
    try:
        at_hand("tokenizers")
    except ImportError:
        advice = f"{installing.command('genai')} installs it; GeneratorParams and Generator work without it, on tokens."
        raise Unsupported(message("Tokenizer", "an installation without the package tokenizers", "one with it", advice)) from None
    import tokenizers

    text = config.text("tokenizer.json")
    if text is None:
        raise FolderError(message("Tokenizer", f"no file tokenizer.json in {config.folder}", "a folder with one"))
    try:
        own = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing more exact
        raise FolderError(
            message(f"tokenizer.json in {config.folder}", reason(error), "a file of the package tokenizers")
        ) from None
    own.no_padding()
    own.no_truncation()
    return own


def _object(config: Config, name: str) -> dict[str, Any]:
    """An object of JSON; empty if there is no file.

    Raises:
        FolderError: it is none.
    """
    try:
        value = json.loads(config.text(name) or "{}")
    except (ValueError, RecursionError) as error:
        raise FolderError(message(f"{name} in {config.folder}", reason(error), "an object of JSON")) from None
    return value if isinstance(value, dict) else {}
