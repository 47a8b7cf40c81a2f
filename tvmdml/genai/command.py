"""``tvmdml generate``: a prompt goes on, a token at a time, with figures."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvmdml.errors import InvalidArgument, message
from tvmdml.genai.generator import Generator
from tvmdml.genai.model import Model
from tvmdml.genai.params import GeneratorParams
from tvmdml.genai.tokenizer import Tokenizer
from tvmdml.targets import Target


@dataclass
class PromptOutcome:
    """What came of a prompt."""

    prompt_tokens: int
    target: str
    threads: int
    load_seconds: float
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: str = "interrupted"
    """``eos``, ``length`` or ``interrupted``."""
    first_seconds: float = 0.0
    """From the prompt to the first token."""
    seconds: float = 0.0
    """From the first token to the last one."""
    texts: list[str] = field(default_factory=list)
    """Of a beam search, all results, the best first."""

    @property
    def tokens_per_second(self) -> float:
        """After the first token."""
        return (len(self.tokens) - 1) / self.seconds if self.seconds > 0 and len(self.tokens) > 1 else 0.0

    @property
    def peak_memory(self) -> int:
        """The most memory of the process, in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    def record(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            **{name: value for name, value in vars(self).items() if name != "texts" or value},
            "tokens_per_second": self.tokens_per_second,
            "prompt_tokens_per_second": self.prompt_tokens / self.first_seconds if self.first_seconds else 0.0,
            "peak_memory": self.peak_memory,
        }


def run(
    folder: str,
    prompt: str,
    options: Mapping[str, Any],
    *,
    target: Target | None,
    accuracy: str,
    threads: int,
    new: int | None,
    system: str | None,
    chat: bool,
    show: Callable[[str], object],
) -> PromptOutcome:
    """Go on with a prompt.

    Args:
        folder: the model's folder.
        prompt: the text.
        options: those of the search that the command was given.
        target: where to run; ``None`` for what the folder says.
        accuracy: as for ``tvmdml.onnx.load``.
        threads: how many threads run, for the figures.
        new: the most new tokens; ``None`` if ``max_length`` says how many.
        system: what the model is told before the prompt, with ``chat``.
        chat: whether the prompt is a message of a user, in the folder's chat template.
        show: is given each piece of the text as it comes; of a beam search the text at the end.

    Raises:
        FolderError, Refused: the folder or an option is wrong.
    """
    begin = time.perf_counter()
    model = Model(folder, target=target, accuracy=accuracy)
    tokenizer = Tokenizer(model)
    if chat:
        messages = [{"role": "system", "content": system}] if system is not None else []
        prompt = tokenizer.apply_chat_template(json.dumps([*messages, {"role": "user", "content": prompt}]))
    tokens = tokenizer.encode(prompt)
    if not len(tokens):
        raise InvalidArgument(message("PROMPT", "a text without tokens", "a text; `-` is that of the standard input"))
    params = GeneratorParams(model)
    limit = {} if new is None else {"max_length": min(len(tokens) + new, model.context)}
    params.set_search_options(**{**limit, **options, "batch_size": 1})
    generator, stream = Generator(model, params), tokenizer.create_stream()
    beams = params.options["num_beams"] > 1
    outcome = PromptOutcome(len(tokens), model.target.name, threads, time.perf_counter() - begin)
    begin = last = time.perf_counter()
    try:
        generator.append_tokens(tokens)
        while not generator.is_done():
            generator.generate_next_token()
            last = time.perf_counter()
            token = int(generator.get_next_tokens()[0])
            outcome.tokens.append(token)
            outcome.first_seconds = outcome.first_seconds or last - begin
            if not beams:
                piece = stream.decode(token)
                outcome.text += piece
                show(piece)
        outcome.finish = "eos" if generator.token_count() < params.options["max_length"] else "length"
    except KeyboardInterrupt:
        pass  # what there is so far is the result
    outcome.seconds = last - begin - outcome.first_seconds
    if beams and outcome.tokens:
        sequences = [generator.get_sequence(i)[len(tokens) :] for i in range(params.options["num_return_sequences"])]
        outcome.texts = [tokenizer.decode(sequence) for sequence in sequences]
        outcome.tokens, outcome.text = sequences[0].tolist(), outcome.texts[0]
        show("\n".join(outcome.texts))
    return outcome
