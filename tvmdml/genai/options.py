"""The options of a search: their names, types, defaults and limits, and what is checked of them together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmdml.errors import InvalidArgument, ModelError, message, safe_repr
from tvmdml.genai.refusing import Refused

_MOST_ROWS = 32
_MOST = 3.4e38
"""About the largest float32: logits have this type."""


@dataclass(frozen=True)
class Option:
    """One option."""

    default: float | bool
    least: float = -math.inf
    most: float = math.inf
    integral: bool = True

    @property
    def allowed(self) -> str:
        """The values, in words."""
        if isinstance(self.default, bool):
            return "True or False"
        kind = "an integer" if self.integral else "a number"
        low = "" if self.least == -math.inf else f"of {self.least:g} or more"
        return " ".join(filter(None, (kind, low, f"and at most {self.most:g}" if self.most < math.inf else "")))

    def takes(self, value: Any) -> bool:
        """Whether it may have a value."""
        if isinstance(self.default, bool) or isinstance(value, bool):
            return isinstance(value, bool) and isinstance(self.default, bool)
        try:
            fits = math.isfinite(value) and self.least <= value <= self.most
            return bool(fits and (not self.integral or value == int(value)))
        except (TypeError, ValueError, OverflowError):
            return False


OPTIONS: Mapping[str, Option] = {
    "batch_size": Option(1, 1, _MOST_ROWS),
    "chunk_size": Option(0, 0),
    "diversity_penalty": Option(0.0, integral=False),
    "do_sample": Option(False),
    "early_stopping": Option(True),
    "length_penalty": Option(1.0, -_MOST, _MOST, integral=False),
    "max_length": Option(0, 0),
    "min_length": Option(0, 0),
    "no_repeat_ngram_size": Option(0, 0),
    "num_beams": Option(1, 1, _MOST_ROWS),
    "num_return_sequences": Option(1, 1, _MOST_ROWS),
    "past_present_share_buffer": Option(False),
    "random_seed": Option(-1, -1),
    "repetition_penalty": Option(1.0, 1e-6, 1e6, integral=False),
    "temperature": Option(1.0, 0.0, _MOST, integral=False),
    "top_k": Option(0, 0),
    "top_p": Option(0.0, 0.0, 1.0, integral=False),
}


def check_names(given: Mapping[str, Any], where: str, error: type[InvalidArgument | ModelError]) -> None:
    """Check names and values of options.

    Raises:
        Refused, FolderError: there is no such option, or it may not have this value.
    """
    for name, value in given.items():
        if name not in OPTIONS:
            raise error(message(where, safe_repr(name), ", ".join(OPTIONS)))
        if not OPTIONS[name].takes(value):
            raise error(message(f"{where} {name}", safe_repr(value), OPTIONS[name].allowed))


def completed(given: Mapping[str, Any], context: int) -> dict[str, Any]:
    """All options with their types: those that are given, and defaults. ``max_length`` 0 in a file means the context's length."""
    whole = {name: given.get(name, option.default) for name, option in OPTIONS.items()}
    typed = {
        name: (int if OPTIONS[name].integral and not isinstance(value, bool) else lambda x: x)(value)
        for name, value in whole.items()
    }
    return {**typed, "max_length": typed["max_length"] or context}


def check_together(options: Mapping[str, Any], context: int, vocabulary: int) -> None:
    """Check what options ask for together.

    Raises:
        Refused: it is more than the model has, or options contradict each other.
    """
    rules = (
        ("max_length", options["max_length"] < 1, "1 or more"),
        ("max_length", options["max_length"] > context, f"at most {context}, the model's context_length"),
        (
            "num_return_sequences",
            options["num_return_sequences"] > options["num_beams"],
            f"at most num_beams, {options['num_beams']}",
        ),
        ("do_sample", options["do_sample"] and options["num_beams"] > 1 and options["top_k"] != 1, "False with num_beams above 1"),
        ("top_k", options["do_sample"] and options["top_k"] > vocabulary, f"at most {vocabulary}, the model's vocab_size"),
        ("diversity_penalty", options["diversity_penalty"] != 0, "0: groups of beams are not here"),
    )
    for name, wrong, allowed in rules:
        if wrong:
            raise Refused(message(f"search option {name}", options[name], allowed))
