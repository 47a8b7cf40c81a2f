"""A model in the middle of a text: what it was given so far, and the logits of what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.errors import Unsupported, counted, message, safe_repr
from tvmdml.genai import settings
from tvmdml.genai.caches import Growing, SharedCaches
from tvmdml.genai.model import Model
from tvmdml.genai.names import Feed, Step
from tvmdml.genai.refusing import Refused
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray


class State:
    """Rows of tokens that were run, and what the network keeps of them."""

    def __init__(self, model: Model, rows: int, length: int, shares: bool) -> None:
        """Begin.

        Args:
            model: the model.
            rows: how many texts it goes on with at the same time.
            length: the most tokens of each.
            shares: whether past and present are the same memory, as long as ``length``.
        """
        if model.room is not None and (rows != 1 or length > model.room):
            given = f"{rows} texts of up to {length} tokens"
            raise Unsupported(message("Generator", given, f"one text of up to {model.room} tokens", "So the network was built."))
        self.model, self.rows = model, rows
        self._length, self._shares = max(length, model.window), (shares or model.room is not None) and len(model.stages) == 1
        self.extra: dict[str, NumpyArray] = {}
        """Inputs that a program or an adapter gives, in each run."""
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        self.mask = np.zeros((self.rows, 0), bool)
        shared = self._shares and self.model.slots
        self._cache: Any = SharedCaches(self.model, self.rows, self._length) if shared else Growing(self.model, self.rows)

    @property
    def columns(self) -> int:
        """How many tokens of each row were run."""
        return int(self.mask.shape[1])

    def run(self, tokens: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """Run what is new.

        Args:
            tokens: int32 [rows, columns].
            mask: bool of the same shape: which are tokens, and which are padding; without it all are tokens.

        Returns:
            The logits after the last token of each row: float32 [rows, vocabulary].

        Raises:
            Refused: the network has an input that nobody gave.
        """
        new = np.ones(tokens.shape, bool) if mask is None else mask
        step = Step(tokens, np.concatenate((self.mask, new), 1), self.columns)
        given = {feed.name: feed.of(step) for feed in self.model.feeds} | self.extra
        self._require(given)
        _logged("input", given)
        self._outputs = self._cache.run(given, *tokens.shape)
        self._inputs, self.mask = given, step.mask
        logits = _on_cpu(self._outputs[self.model.logits])
        _logged("output", {self.model.logits: logits})
        if logits.ndim == 3:
            places = np.arange(tokens.shape[1] if logits.shape[1] > 1 else 1)
            logits = logits[np.arange(self.rows), np.max(np.where(new[:, : len(places)], places, 0), 1)]
        return np.array(logits[:, : self.model.vocabulary], np.float32)

    def _require(self, given: Mapping[str, Any]) -> None:
        """Check that each input is there."""
        past = {slot.past for slot in self.model.slots}
        missing = [name for name in self.model.inputs if name not in given and name not in past]
        if missing:
            advice = "Generator.set_model_input(name, array) gives one; set_active_adapter those of an adapter."
            raise Refused(
                message("inputs of the network", f"nothing for {', '.join(missing[:8])}", ", ".join(self.model.inputs), advice)
            )

    def encode(self, given: Mapping[str, Any]) -> None:
        """Run the encoder: what it computes is an input of each run.

        Raises:
            Refused: an input is missing.
        """
        model = self.model
        values = {name: array for name, array in given.items() if name in model.encoder_inputs}
        tokens = given.get("input_ids")
        if tokens is not None:
            rows = np.atleast_2d(np.asarray(tokens, np.int32))
            step = Step(rows, padding(rows, model.pad), 0)
            values = {feed.name: feed.of(step) for feed in model.encoder_feeds} | {
                n: a for n, a in values.items() if n != "input_ids"
            }
        missing = [name for name in model.encoder_inputs if name not in values]
        if missing:
            raise Refused(message("inputs of the encoder", f"nothing for {', '.join(missing)}", ", ".join(model.encoder_inputs)))
        outputs = dict(zip((a.name for a in model.encoder.outputs), model.encoder(values), strict=True))
        times = self.rows // max(1, len(next(iter(values.values()))))
        self.extra |= {into: np.repeat(_on_cpu(outputs[out]), times, 0) for into, out in model.crossing.items()}
        masks: list[Feed] = [feed for feed in model.encoder_feeds if feed.name in model.inputs and feed.name not in self.extra]
        self.extra |= {
            f.name: np.repeat(values[f.name], times, 0) for f in masks if f.name not in {own.name for own in model.feeds}
        }
        theirs = model.inputs.get("encoder_attention_mask")
        if theirs is not None and tokens is not None:
            self.extra["encoder_attention_mask"] = np.repeat(step.mask, times, 0).astype(theirs.dtype)

    def rewind(self, length: int) -> None:
        """Forget all tokens after the first ones."""
        if length == 0:
            self._begin()
        elif length < self.columns:
            self.mask = self.mask[:, :length]
            self._cache.rewind(length)

    def pick(self, rows: Sequence[int]) -> None:
        """Go on with other rows, each of which was one."""
        self.mask = self.mask[list(rows)]
        self._cache.pick(rows)

    def value(self, name: str, side: str) -> NumpyArray:
        """An input or output of the last run, by its name.

        Raises:
            Refused: there is none.
        """
        values = {"input": self._inputs, "output": self._outputs}[side]
        if name not in values:
            given = f"{safe_repr(name)} before a run" if not values else safe_repr(name)
            raise Refused(
                message(f"get_{side}", given, ", ".join([*values][:16]) or "names of inputs and outputs, after append_tokens")
            )
        return np.array(_on_cpu(values[name]))


def padding(tokens: NumpyArray, pad: int) -> NumpyArray:
    """Which of several rows' elements are tokens: bool; those that pad a row's end are not. One row is not padded."""
    if len(tokens) == 1:
        return np.ones(tokens.shape, bool)
    after = np.logical_or.accumulate((tokens != pad)[:, ::-1], 1)[:, ::-1]
    return np.where(after.any(1, keepdims=True), after, np.arange(tokens.shape[1]) == 0)


def _on_cpu(array: Any) -> NumpyArray:
    return array.numpy() if type(array) is DeviceArray else array


def _logged(side: str, values: Mapping[str, NumpyArray]) -> None:
    for name, array in values.items():
        if settings.logs(f"model_{side}_values"):
            settings.log(f"{side} {name}: {array.dtype}{list(array.shape)} {array}")
        elif settings.logs(f"model_{side}_shapes"):
            settings.log(f"{side} {name}: {array.dtype}{list(array.shape)}, {counted(array.size, 'element')}")
