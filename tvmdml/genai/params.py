"""``GeneratorParams``: the options of one search, and what else a generator is given before it begins."""

from __future__ import annotations

from typing import Any, NoReturn

from tvmdml.errors import Unsupported, message, safe_repr
from tvmdml.genai.model import Model
from tvmdml.genai.options import OPTIONS, check_names, completed
from tvmdml.genai.refusing import Refused

_DRAFTS = {"max_draft_tokens": 4.0, "ngram_size": 0.0, "ngram_chained_lookup": False, "min_adaptive_k": 0.0, "cooldown": False}


class GeneratorParams:
    """Options, from the model's ``genai_config.json`` and from calls."""

    def __init__(self, model: Model) -> None:
        """The options of a model's folder.

        Raises:
            Refused: it is not a model.
        """
        if not isinstance(model, Model):
            raise Refused(message("GeneratorParams", safe_repr(model), "a Model"))
        self.model = model
        self.options = completed(model.config.search, model.context)

    def set_search_options(self, **options: Any) -> None:
        """Set options: all are checked before any is set.

        Raises:
            Refused: there is no such option, or it may not have this value.
        """
        check_names(options, "set_search_options", Refused)
        self.options |= {
            name: value if isinstance(value, bool) or not OPTIONS[name].integral else int(value) for name, value in options.items()
        }

    def get_search_options(self) -> dict[str, float | bool]:
        """All options; numbers are floats."""
        return {name: value if isinstance(value, bool) else float(value) for name, value in self.options.items()}

    def try_graph_capture_with_max_batch_size(self, max_batch_size: int) -> None:
        """Accept it, as older versions of ONNX Runtime GenAI do: what is run is one graph anyway."""

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> NoReturn:  # noqa: A002 - ONNX Runtime GenAI's name
        """Not here: a grammar that tokens must follow.

        Raises:
            Unsupported: always.
        """
        advice = "Between get_logits() and generate_next_token(), Generator.set_logits(...) can rule tokens out."
        raise Unsupported(message("set_guidance", safe_repr(type), "text without a grammar", advice))

    def get_speculative_options(self) -> dict[str, float | bool]:
        """The options of drafts, of which none has an effect."""
        return dict(_DRAFTS)

    def set_speculative_options(self, **options: Any) -> None:
        """Accept options of drafts: tokens are the same without them.

        Raises:
            Refused: there is no such option.
        """
        for name in options:
            if name not in _DRAFTS:
                raise Refused(message("set_speculative_options", safe_repr(name), ", ".join(_DRAFTS)))
