"""``Generator``: tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.errors import message, safe_repr
from tvmdml.genai import settings
from tvmdml.genai.adapters import Adapters
from tvmdml.genai.beams import Beams
from tvmdml.genai.model import Model
from tvmdml.genai.options import check_together
from tvmdml.genai.params import GeneratorParams
from tvmdml.genai.refusing import Refused
from tvmdml.genai.search import Greedy
from tvmdml.genai.state import State, padding
from tvmdml.genai.tensors import NamedTensors, held
from tvmdml.tensors.arrays import NumpyArray

_LONGER = {"phi3": 4097, "phimoe": 4097, "phi3small": 8197}
"""The length at which a model turns positions by other factors, so that all tokens are run anew."""


class Generator:
    """A text that goes on."""

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        """Begin a text.

        Raises:
            Refused: the options ask for what the model has not.
        """
        if not isinstance(model, Model) or not isinstance(params, GeneratorParams):
            raise Refused(message("Generator", f"{safe_repr(model)}, {safe_repr(params)}", "a Model and GeneratorParams"))
        options = dict(params.options)
        check_together(options, model.context, model.vocabulary)
        self._model, self._options = model, options
        beams = options["num_beams"]
        self._search: Greedy | Beams = (Beams if beams > 1 else Greedy)(options, model.eos, model.pad)
        shares = model.window > 0 or (options["past_present_share_buffer"] and beams == 1)
        self._state = State(model, options["batch_size"] * beams, options["max_length"], shares)
        self._logits: NumpyArray | None = None
        self._rewound = False
        """Whether the text went back, and nothing came after that."""
        self._stopped = False

    # -- In

    def append_tokens(self, tokens: Any) -> None:
        """Add tokens: of a batch, all rows after each other or as a matrix, filled at their ends with the padding token.

        Raises:
            Refused: they are none of the vocabulary, too many, or not as many for each row; or a batch was already begun.
        """
        self._go()
        flat, batch = self._model.checked(tokens, "append_tokens"), self._options["batch_size"]
        if not flat.size or flat.size % batch or (flat.ndim == 2 and batch > 1 and len(flat) != batch):
            given, allowed = (
                f"{flat.size} tokens of shape {list(flat.shape)}",
                f"as many for each of {batch} rows (batch_size), and 1 or more",
            )
            raise Refused(message("append_tokens", given, allowed))
        rows = flat.reshape(batch, -1)
        before, most = self._search.length, self._options["max_length"]
        if before + rows.shape[1] > most:
            given = f"{rows.shape[1]} tokens after {before}"
            raise Refused(
                message("append_tokens", given, f"{most - before} more, by max_length {most}", "set_search_options(max_length=…)")
            )
        if before and len(self._state.mask) > 1:
            raise Refused(message("append_tokens", "more tokens for several rows", "one call with batch_size or num_beams above 1"))
        if before > self._state.columns:
            self._run_all(self._search.texts[:, self._state.columns :])
        if self._model.encoder is not None and not before:
            self._encode({"input_ids": rows})
            return
        several = np.repeat(rows, self._options["num_beams"], 0)
        self._run_all(several, np.repeat(padding(rows, self._model.pad), self._options["num_beams"], 0))
        self._search.append(several)

    def set_inputs(self, named: NamedTensors) -> None:
        """Give inputs by name: ``input_ids`` are appended, those of an encoder are run; the others are the network's in each run.

        Raises:
            Refused: they are no ``NamedTensors``, or there is no such input.
        """
        if not isinstance(named, NamedTensors):
            raise Refused(message("set_inputs", safe_repr(named), "NamedTensors"))
        arrays = {name: named[name].as_numpy() for name in named}
        tokens = arrays.pop("input_ids", None)
        if self._model.encoder is not None:
            own = {name: array for name, array in arrays.items() if name in self._model.encoder_inputs}
            if own or not self._search.length:
                self._encode(
                    {**own, **({"input_ids": tokens} if tokens is not None and not own else {})}, None if not own else tokens
                )
            return
        for name, array in arrays.items():
            self.set_model_input(name, array)
        if tokens is not None:
            self.append_tokens(tokens)

    def _encode(self, given: dict[str, Any], tokens: Any = None) -> None:
        """Run the encoder, and begin the decoder's text: with tokens, or with the token that its configuration says."""
        model, rows = self._model, self._options["batch_size"]
        self._state.encode(given)
        start = model.config.integer("decoder_start_token_id", model.config.integer("bos_token_id", 0))
        first = model.checked(np.full((rows, 1), start) if tokens is None else tokens, "decoder tokens").reshape(rows, -1)
        several = np.repeat(first, self._options["num_beams"], 0)
        self._run_all(several)
        self._search.append(several)

    def set_model_input(self, name: str, array: Any) -> None:
        """Give an input of the network, by its name in the file, for each run from now on.

        Raises:
            Refused: there is no such input, or it is not an array.
        """
        past = {slot.past for slot in self._model.slots}
        allowed = [own for own in (*self._model.inputs, *self._model.defaults) if own not in past]
        if name not in allowed:
            raise Refused(message("set_model_input", safe_repr(name), ", ".join(allowed)))
        self._state.extra[name] = held(array, f"set_model_input {name}")

    def set_active_adapter(self, adapters: Adapters, name: str) -> None:
        """Use an adapter's weights from now on.

        Raises:
            Refused: it is not loaded, or has weights that the network has no inputs for.
        """
        if not isinstance(adapters, Adapters):
            raise Refused(message("set_active_adapter", safe_repr(adapters), "Adapters"))
        weights = adapters.weights(name)
        for own, array in weights.items():
            self.set_model_input(own, array)

    # -- Out

    def generate_next_token(self) -> None:
        """Choose a token for each row, and add it.

        Raises:
            Refused: the text ended, is as long as ``max_length``, or has not begun.
        """
        self._go()
        search = self._search
        if self.is_done() or search.length >= self._options["max_length"]:
            given = f"a text of {search.length} tokens, at its end"
            advice = "append_tokens(…) goes on, rewind_to(…) goes back, and is_done() says when a text ended."
            raise Refused(
                message("generate_next_token", given, f"texts that go on, of at most {self._options['max_length']} tokens", advice)
            )
        if not search.length and self._logits is None:
            raise Refused(message("generate_next_token", "no tokens yet", "a text that began", "Call append_tokens(…) first."))
        if len(self._state.mask) == 1 and search.length == _LONGER.get(self._model.type):
            self._state.rewind(0)
            self._run_all(search.texts)
        if self._rewound and search.length + 1 == self._options["max_length"]:  # the token that comes back is the last one
            search.append(search.next[:, None])
            self._rewound = False
            return
        logits, self._logits = self._next(), None
        search.choose(logits)
        if search.picked is not None:
            self._state.pick(search.picked)
        if settings.logs("generate_next_token"):
            settings.log(f"generate_next_token: {search.next} at length {search.length}")

    def is_done(self) -> bool:
        """Whether the text ended: each row by a token that ends it, or all by their length."""
        self._go()
        return self._logits is None and self._search.done

    def get_next_tokens(self) -> NumpyArray:
        """The last token of each row: int32 [rows]."""
        return np.array(self._search.next)

    def get_sequence(self, index: int) -> NumpyArray:
        """All tokens of a row: int32; of a beam search those of one of ``num_return_sequences`` results.

        Raises:
            Refused: there is no such row.
        """
        count = self._options["batch_size"] * self._options["num_return_sequences"]
        if not isinstance(index, (int, np.integer)) or not 0 <= index < count:
            raise Refused(message("get_sequence", safe_repr(index), f"0 to {count - 1}"))
        return self._search.text(int(index))

    def token_count(self) -> int:
        """How many tokens each row has."""
        return self._search.length

    def get_logits(self) -> NumpyArray:
        """The logits that the next token is chosen from: float32 [rows, 1, vocabulary].

        Raises:
            Refused: the text has not begun.
        """
        self._go()
        ended = self._search.done and self._state.columns >= self._search.length
        if self._logits is None and not self._rewound and (ended or not self._search.length):
            given = "a text that a token ended" if ended else "no tokens yet"
            raise Refused(message("get_logits", given, "a text that goes on", "Call append_tokens(…) first."))
        self._logits = self._next()
        return np.array(self._logits[:, None])

    def set_logits(self, logits: Any) -> None:
        """Replace the logits that the next token is chosen from.

        Raises:
            Refused: there are none yet, or they have another size.
        """
        array, shape = held(logits, "set_logits"), (len(self._state.mask), self._model.vocabulary)
        if self._logits is None:
            raise Refused(
                message("set_logits", "logits before others are computed", "a call after append_tokens(…) or get_logits()")
            )
        if array.size != shape[0] * shape[1] or array.dtype.kind not in "iuf":
            raise Refused(message("set_logits", f"{array.dtype}{list(array.shape)}", f"float32[{shape[0]}, 1, {shape[1]}]"))
        self._logits = array.astype(np.float32).reshape(shape)

    def get_input(self, name: str) -> NumpyArray:
        """An input of the last run.

        Raises:
            Refused: there is none of this name.
        """
        return self._state.value(name, "input")

    def get_output(self, name: str) -> NumpyArray:
        """An output of the last run.

        Raises:
            Refused: there is none of this name.
        """
        return self._state.value(name, "output")

    # -- Back

    def rewind_to(self, length: int) -> None:
        """Go back to the first tokens. As in ONNX Runtime GenAI, what is generated then begins with the token that came after them.

        Raises:
            Refused: there are not as many, or several rows do not go back to the beginning, or there are beams.
        """
        search = self._search
        if not isinstance(length, (int, np.integer)) or not 0 <= length <= search.length:
            raise Refused(message("rewind_to", safe_repr(length), f"0 to {search.length}, the number of tokens"))
        if isinstance(search, Beams) or (self._options["batch_size"] > 1 and length):
            raise Refused(message("rewind_to", length, "0 for several rows, and nothing for beams", "Make a new Generator."))
        if length < search.length:
            search.rewind(int(length))
            self._state.rewind(int(length))
            self._logits, self._rewound = None, True

    def set_runtime_option(self, name: str, value: str) -> None:
        """``terminate_session``: "1" refuses all calls that run the network, until "0".

        Raises:
            Refused: there is no such option or value.
        """
        if name != "terminate_session" or value not in ("0", "1"):
            raise Refused(
                message("set_runtime_option", f"{safe_repr(name)}, {safe_repr(value)}", "'terminate_session', '0' or '1'")
            )
        self._stopped = value == "1"

    def snapshot_state(self) -> None:
        """Accept it: ``rewind_to`` needs no snapshot."""

    def get_speculative_stats(self) -> dict[str, float]:
        """Nothing: nothing is drafted."""
        return {}

    def search_again(self, options: Mapping[str, Any]) -> None:
        """Go on with other options of drawing and of what is ruled out; ``max_length`` stays.

        Raises:
            Refused: the model has not what they ask for.
        """
        check_together(
            self._options | {**options, "max_length": self._options["max_length"]}, self._model.context, self._model.vocabulary
        )
        search = Greedy(self._options | {**options, "max_length": self._options["max_length"]}, self._model.eos, self._model.pad)
        if self._search.length:
            search.append(self._search.texts)
        self._search = search

    # -- How

    def _go(self) -> None:
        if self._stopped:
            raise Refused(
                message("Generator", "a call after terminate_session", 'set_runtime_option("terminate_session", "0") first')
            )

    def _next(self) -> NumpyArray:
        """The logits that the next token is chosen from; of a text that went back, the token after it is run first."""
        search, state = self._search, self._state
        if self._logits is None and self._rewound:
            tokens = search.next[:, None]
            self._run(tokens)
            search.append(tokens)
        elif self._logits is None:
            if state.columns >= search.length:  # its last run was interrupted before a token was chosen
                state.rewind(search.length - 1)
            self._run_all(search.texts[:, state.columns :])
        assert self._logits is not None
        return self._logits

    def _run_all(self, tokens: NumpyArray, mask: NumpyArray | None = None) -> None:
        """Run many tokens, ``chunk_size`` at a time: all of them, or none if a run fails."""
        chunk, before = self._options["chunk_size"] if len(tokens) == 1 else 0, self._state.columns
        try:
            for begin in range(0, tokens.shape[1], chunk or tokens.shape[1]):
                part = slice(begin, begin + chunk if chunk else None)
                self._run(tokens[:, part], None if mask is None else mask[:, part])
        except BaseException:
            self._state.rewind(before)
            self._logits = None
            raise

    def _run(self, tokens: NumpyArray, mask: NumpyArray | None = None) -> None:
        self._logits, self._rewound = self._state.run(tokens, mask), False
