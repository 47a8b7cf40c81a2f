"""A language model gives the same tokens on every kind of device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_decoder

from tvmdml import genai
from tvmdml.targets import Target

PROMPT, LENGTH = (5, 9, 7), 14


@pytest.mark.full
@pytest.mark.parametrize("shares", [True, False])
def test_devices_give_the_same_tokens(device: Target, folder: Path, tables: dict[str, Any], shares: bool) -> None:
    model = genai.Model(folder, target=device)
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=LENGTH, past_present_share_buffer=shares)
    generator = genai.Generator(model, params)
    generator.append_tokens(list(PROMPT))
    while not generator.is_done():
        generator.generate_next_token()
    right = tiny_decoder.greedy(PROMPT, LENGTH, tables)
    assert generator.get_sequence(0).tolist() == right
    generator.rewind_to(len(PROMPT))
    generator.append_tokens(right[len(PROMPT) : -2])  # several tokens behind a past
    generator.generate_next_token()
    assert generator.get_sequence(0).tolist() == right[:-1]
