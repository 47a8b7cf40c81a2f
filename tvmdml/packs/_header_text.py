"""A language model in a C header: what each input of its decoder is, for functions that go on with a text token by token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvmdml.library.format import Pack
from tvmdml.packs import folders

_TOKENS, _MASK, _PLACES, _KEPT = range(4)
_ROLES = {"input_ids": _TOKENS, "attention_mask": _MASK, "position_ids": _PLACES}
_KEPT_NAMES = {"past_key_names": "present_key_names", "past_value_names": "present_value_names"}
_PRESENT = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}


def columns(pack: Pack, inputs: Sequence[str], outputs: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Iterable[str]] | None:
    """What fills in the text of ``c/texts.h``; ``None`` if the pack is no language model's, or has other inputs than a text's.

    Args:
        pack: the pack.
        inputs: the decoder's, in the order of its function.
        outputs: the same.
        sizes: the open sizes, with the largest value of each.

    Raises:
        PackError: what the pack says of the model makes no sense.
    """
    if folders.CONFIG not in pack.files or len(sizes) != 1:
        return None
    try:
        model: dict[str, Any] = json.loads(pack.file(folders.CONFIG))["model"]
        decoder, vocabulary = model["decoder"], model["vocab_size"]
        logits = decoder.get("outputs", {}).get("logits", "logits")
        roles = [place for name in inputs if (place := _role(decoder, name, inputs, outputs)) is not None]
        if type(vocabulary) is not int or not 0 < vocabulary < 1 << 31:
            raise ValueError(f"a vocabulary of {vocabulary!r}")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise pack.damaged(f"{folders.CONFIG}: {type(error).__name__}: {error}") from None
    (longest,) = sizes.values()
    if len(roles) < len(inputs) or logits not in outputs or longest >= 1 << 31:
        return None
    return {
        "TEXT_LENGTH": [str(longest)],
        "VOCABULARY": [str(vocabulary)],
        "ROLES": [f"{{{kind}, {place}}}," for kind, place in roles],
        "LOGITS": [str(len(inputs) + outputs.index(logits))],
    }


def _role(decoder: Mapping[str, Any], name: str, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[int, int] | None:
    role, number = folders.role(decoder, name)
    if role in _ROLES:
        return _ROLES[role], 0
    if role not in _KEPT_NAMES:
        return None
    present = _KEPT_NAMES[role]
    pattern = decoder.get("outputs", {}).get(present, _PRESENT[present])
    output = pattern.replace("%d", number, 1)
    return (_KEPT, len(inputs) + outputs.index(output)) if output in outputs else None
