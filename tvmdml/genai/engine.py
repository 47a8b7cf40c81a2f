"""``Engine``: several requests in turn, a token of each at a time, with the events that ONNX Runtime GenAI's engine reports."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import TvmdmlError, Unsupported, message, safe_repr
from tvmdml.genai.generator import Generator
from tvmdml.genai.model import Model
from tvmdml.genai.options import OPTIONS
from tvmdml.genai.params import GeneratorParams
from tvmdml.genai.refusing import Refused
from tvmdml.genai.tokenizer import Tokenizer

_MOST_STOPS, _MOST_STOP_BYTES = 16, 16 << 10


class EngineErrorCode(enum.IntEnum):
    """Why a turn failed."""

    NONE = 0
    CAPACITY_DEFERRED = 1
    EXECUTION_CAPACITY_EXCEEDED = 2
    RETRYABLE_EXECUTION = 3
    REQUEST_UNSERVICEABLE = 4
    ENGINE_CONTRACT_FAILURE = 5
    ENGINE_EXECUTION_FAILURE = 6


class EngineEventFlags(enum.IntFlag):
    """What an event says."""

    NONE = 0
    TOKEN = 1
    TURN_FINISHED = 2
    CAPACITY_BLOCKED = 4
    FAILED = 8
    RETRYABLE = 16


class FinishReason(enum.IntEnum):
    """Why a turn ended."""

    NONE = 0
    EOS = 1
    STOP_STRING = 2
    MAX_GENERATED_TOKENS = 3
    MAX_SESSION_TOKENS = 4
    CANCELLED = 5
    FAILED = 6


class EngineCapabilities(NamedTuple):
    """What an engine takes."""

    configured_max_batch_size: int
    max_request_length: int
    max_scheduled_tokens: int


class TurnUsage(NamedTuple):
    """The tokens of a turn."""

    prompt_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int


class EngineEvent(NamedTuple):
    """A token, the end of a turn, or both."""

    flags: EngineEventFlags
    request: Request
    turn_id: int
    token: int | None = None
    finish_reason: FinishReason = FinishReason.NONE
    error_code: EngineErrorCode = EngineErrorCode.NONE
    matched_stop_string_index: int | None = None
    usage: TurnUsage = TurnUsage(0, 0, 0)


class EngineEventBuffer(list[EngineEvent]):
    """The events of one run."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity


class RequestOptions:
    """Options of a request."""

    def __init__(self) -> None:
        self.most = 0

    def set_max_session_tokens(self, count: int) -> None:
        """The most tokens of all turns; 0 for the folder's ``max_length``."""
        self.most = _count(count, "set_max_session_tokens")


@dataclass
class _Turn:
    """What a turn asks for."""

    options: dict[str, Any] = field(default_factory=dict)
    most: int = 0
    least: int = 0
    stops: list[str] = field(default_factory=list)


class TurnOptions:
    """Options of a turn of a request. Those that are not set are the folder's."""

    def __init__(self, request: Request) -> None:
        """None yet."""
        self.turn = _Turn()

    def reset(self) -> None:
        """Set none."""
        self.turn = _Turn()

    def _set(self, name: str, value: Any) -> None:
        option = OPTIONS[name]
        if not option.takes(value):
            raise Refused(message(f"TurnOptions {name}", safe_repr(value), option.allowed))
        self.turn.options[name] = value

    def set_do_sample(self, value: bool) -> None:
        """Whether tokens are drawn."""
        self._set("do_sample", value)

    def set_top_k(self, value: int) -> None:
        """Among how many tokens; 0 for all."""
        self._set("top_k", value)

    def set_top_p(self, value: float) -> None:
        """Among tokens whose probabilities sum up to this."""
        self._set("top_p", value)

    def set_temperature(self, value: float) -> None:
        """How evenly tokens are drawn; 0 for the likeliest one."""
        self._set("temperature", value)

    def set_repetition_penalty(self, value: float) -> None:
        """How much tokens that were there are ruled out; 1 for not at all."""
        self._set("repetition_penalty", value)

    def set_no_repeat_ngram_size(self, value: int) -> None:
        """How many tokens in a row may not come again; 0 for any."""
        self._set("no_repeat_ngram_size", value)

    def set_seed(self, value: int) -> None:
        """What random numbers follow from."""
        self._set("random_seed", value)

    def clear_seed(self) -> None:
        """Take random numbers from the system's entropy."""
        self.turn.options.pop("random_seed", None)

    def set_max_generated_tokens(self, count: int) -> None:
        """The most tokens of the answer; 0 for any."""
        self.turn.most = _count(count, "set_max_generated_tokens")

    def set_min_generated_tokens(self, count: int) -> None:
        """The least tokens of the answer."""
        self.turn.least = _count(count, "set_min_generated_tokens")

    def set_stop_strings(self, texts: Sequence[str]) -> None:
        """Texts that end the answer.

        Raises:
            Refused: they are no texts, or too many.
        """
        fits = not isinstance(texts, str) and all(isinstance(text, str) and text and "\0" not in text for text in texts)
        if not fits or len(texts) > _MOST_STOPS or sum(len(text.encode()) for text in texts) > _MOST_STOP_BYTES:
            raise Refused(
                message("set_stop_strings", safe_repr(texts), f"at most {_MOST_STOPS} texts of {_MOST_STOP_BYTES} bytes in all")
            )
        self.turn.stops = list(texts)

    def set_guidance(self, kind: str, data: str) -> None:
        """Not here: a grammar that tokens must follow.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(message("TurnOptions.set_guidance", safe_repr(kind), "text without a grammar"))

    def clear_guidance(self) -> None:
        """Nothing: there is no grammar."""


class Request:
    """A text of several turns; ``Engine.create_request`` makes it."""

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine = engine
        params = GeneratorParams(engine.model)
        self._folder = dict(params.options)
        params.set_search_options(
            batch_size=1, num_beams=1, num_return_sequences=1, max_length=most or params.options["max_length"]
        )
        self._generator, self._most = Generator(engine.model, params), params.options["max_length"]
        self._starts: dict[int, int] = {}
        """How many tokens came before each turn that is still there."""
        self._last = 0
        self._turn: _Turn | None = None
        self._prompt = self._generated = 0
        self._text = ""
        self._closed = False

    @property
    def pending(self) -> bool:
        """Whether its turn goes on."""
        return self._turn is not None

    def begin_turn(self, tokens: Any, turn_options: TurnOptions | None = None) -> int:
        """Add tokens, and answer; the number of the turn.

        Raises:
            Refused: a turn goes on, the request is closed, or the tokens are none of the vocabulary or too many.
        """
        if self._closed or self._turn is not None:
            given = "a closed request" if self._closed else "a request whose turn goes on"
            raise Refused(
                message("begin_turn", given, "an open request between turns", "Engine.run goes on; cancel_turn(id) ends a turn.")
            )
        turn = turn_options.turn if turn_options is not None else _Turn()
        flat = self._engine.model.checked(tokens, "begin_turn").reshape(-1)
        start = self._generator.token_count()
        if start + flat.size >= self._most:
            given, allowed = f"{flat.size} tokens after {start}", f"fewer than {self._most - start}, by {self._most} in all"
            raise Refused(message("begin_turn", given, allowed, "RequestOptions.set_max_session_tokens(…)"))
        self._generator.append_tokens(flat)
        self._generator.search_again({**self._folder, **turn.options, "min_length": start + flat.size + turn.least})
        self._last += 1
        self._starts[self._last] = start
        self._turn, self._prompt, self._generated, self._text = turn, int(flat.size), 0, ""
        self._stream = self._engine.tokenizer().create_stream() if turn.stops else None
        return self._last

    def cancel_turn(self, turn_id: int) -> bool:
        """End a turn; whether it went on."""
        goes_on = self._turn is not None and turn_id == self._last
        if goes_on:
            self._engine.cancelled.append(self._event(EngineEventFlags.TURN_FINISHED, reason=FinishReason.CANCELLED))
        return goes_on

    def rewind_to_start_of_turn(self, turn_id: int) -> None:
        """Forget a turn, and those after it.

        Raises:
            Refused: there is no such turn, or one goes on.
        """
        if self._turn is not None or turn_id not in self._starts:
            raise Refused(
                message(
                    "rewind_to_start_of_turn", safe_repr(turn_id), ", ".join(map(str, self._starts)) + ", and no turn that goes on"
                )
            )
        self._generator.rewind_to(self._starts[turn_id])
        self._starts = {turn: start for turn, start in self._starts.items() if turn < turn_id}

    def set_draft_tokens(self, tokens: Any) -> None:
        """Accept tokens that may come next: the answer is the same without them."""

    def close(self) -> None:
        """End the request."""
        self._closed, self._turn = True, None
        self._engine.forget(self)

    def step(self) -> EngineEvent:
        """Generate a token."""
        assert self._turn is not None
        turn, generator = self._turn, self._generator
        if generator.is_done():
            return self._event(EngineEventFlags.TURN_FINISHED, reason=FinishReason.MAX_SESSION_TOKENS)
        try:
            generator.generate_next_token()
        except TvmdmlError:
            return self._event(EngineEventFlags.FAILED, reason=FinishReason.FAILED, error=EngineErrorCode.ENGINE_EXECUTION_FAILURE)
        token = int(generator.get_next_tokens()[0])
        if token in self._engine.model.eos:
            return self._event(EngineEventFlags.TURN_FINISHED, reason=FinishReason.EOS)
        self._generated += 1
        self._text += self._stream.decode(token) if self._stream else ""
        stop = next((i for i, text in enumerate(turn.stops) if text in self._text), None)
        reasons = (
            (stop is not None, FinishReason.STOP_STRING),
            (0 < turn.most <= self._generated, FinishReason.MAX_GENERATED_TOKENS),
            (generator.is_done(), FinishReason.MAX_SESSION_TOKENS),
        )
        why = next((reason for holds, reason in reasons if holds), FinishReason.NONE)
        flags = EngineEventFlags.TOKEN | (EngineEventFlags.TURN_FINISHED if why else EngineEventFlags.NONE)
        return self._event(flags, token, why, stop=stop)

    def _event(
        self,
        flags: EngineEventFlags,
        token: int | None = None,
        reason: FinishReason = FinishReason.NONE,
        error: EngineErrorCode = EngineErrorCode.NONE,
        stop: int | None = None,
    ) -> EngineEvent:
        usage = TurnUsage(self._prompt, 0, self._generated) if reason else TurnUsage(0, 0, 0)
        if reason:
            self._turn = None
        return EngineEvent(flags, self, self._last, token, reason, error, stop, usage)


class Engine:
    """Requests of a model, a token of each in turn."""

    def __init__(self, model: Model) -> None:
        """No requests yet.

        Raises:
            Refused: it is not a model.
        """
        if not isinstance(model, Model):
            raise Refused(message("Engine", safe_repr(model), "a Model"))
        self.model = model
        self.cancelled: list[EngineEvent] = []
        self._requests: list[Request] = []
        self._tokenizer: Tokenizer | None = None

    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer, for texts that end an answer."""
        self._tokenizer = self._tokenizer or Tokenizer(self.model)
        return self._tokenizer

    def create_request(self, *, options: RequestOptions | None = None) -> Request:
        """A new request.

        Raises:
            Refused: it may not be as long.
        """
        request = Request(self, options.most if options is not None else 0)
        self._requests.append(request)
        return request

    def forget(self, request: Request) -> None:
        """Run a request no more."""
        if request in self._requests:
            self._requests.remove(request)

    def create_event_buffer(self, capacity: int) -> EngineEventBuffer:
        """A list for so many events.

        Raises:
            Refused: it has no room.
        """
        if _count(capacity, "create_event_buffer") < 1:
            raise Refused(message("create_event_buffer", capacity, "1 or more"))
        return EngineEventBuffer(capacity)

    def has_pending_requests(self) -> bool:
        """Whether a turn goes on."""
        return bool(self.cancelled) or any(request.pending for request in self._requests)

    def run(self, buffer: EngineEventBuffer) -> EngineEventBuffer:
        """Generate a token of each request whose turn goes on, as many as the buffer has room for."""
        if not isinstance(buffer, EngineEventBuffer):
            raise Refused(message("Engine.run", safe_repr(buffer), "what create_event_buffer(capacity) returns"))
        buffer.clear()
        for event in self._events(buffer.capacity):
            buffer.append(event)
        return buffer

    def _events(self, most: int) -> Iterator[EngineEvent]:
        early, self.cancelled = self.cancelled[:most], self.cancelled[most:]
        yield from early
        turn = [request for request in self._requests if request.pending][: most - len(early)]
        for request in turn:
            yield request.step()
        if turn:  # those after the last one come first the next time
            place = self._requests.index(turn[-1]) + 1
            self._requests = self._requests[place:] + self._requests[:place]

    def get_capabilities(self) -> EngineCapabilities:
        """What it takes."""
        return EngineCapabilities(1, self.model.context, self.model.context)

    def get_speculative_stats(self) -> dict[str, float]:
        """Nothing: nothing is drafted."""
        return {}

    def max_draft_tokens_per_proposal(self) -> int:
        """0: drafts have no effect."""
        return 0


def _count(given: Any, where: str) -> int:
    if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or given < 0:
        raise Refused(message(where, safe_repr(given), "an integer of 0 or more"))
    return int(given)
