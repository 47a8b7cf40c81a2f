"""RANDOM_GENERATOR: the known answers of Random123, the state from call to call, and the function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits

import tvmdml
from tvmdml import InvalidArgument
from tvmdml.targets import Target

# A state, words in hexadecimal, and the new state. The first three are Random123's, for the generator philox4x32 with 10 rounds.
KNOWN: list[tuple[str, str, str]] = [
    ("0 0 0 0 0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8", "1 0 0 0 0 0"),
    (
        "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
        "0 0 0 0 ffffffff ffffffff",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
        "243f6a89 85a308d3 13198a2e 03707344 a4093822 299f31d0",
    ),
    ("0 0 0 0 0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8 f8e4cca4 5cb200db", "2 0 0 0 0 0"),
    (
        "ffffffff ffffffff 0 0 1 2",
        "917bce08 bfd2df9c 2cd1335e 0ff71127 f0c38cd9 8ac52c3d 3bd0ec7f b27305dc a96c9e5c",
        "2 0 1 0 1 2",
    ),
    ("ffffffff ffffffff ffffffff ffffffff 5 7", "051958f5 600d6248 5ee65e93 80a6bf86 ecd01aaa", "1 0 0 0 5 7"),
]


def words(text: str) -> Array:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("state", "values", "after"), KNOWN)
def test_known_answers(state: str, values: str, after: str, target: Target) -> None:
    found = tvmdml.random_generator(words(state), (len(values.split()),), device=target.name)
    assert_same_bits(found.values, words(values))
    assert_same_bits(found.state, words(after))


def test_calls_that_end_with_whole_blocks_continue_one_another(target: Target) -> None:
    state = words("fffffffe ffffffff ffffffff 3 1 2").reshape(1, 6)
    whole, last = tvmdml.random_generator(state, (10, 8), device=target.name)
    parts = []
    for sizes in ((4,), (2, 2, 3), (2, 32)):
        values, state = tvmdml.random_generator(state, sizes, device=target.name)
        parts.append(values.reshape(-1))
    assert_same_bits(np.concatenate(parts), whole.reshape(-1))
    assert_same_bits(state, last)


def test_the_new_state_may_be_written_over_the_old_one() -> None:
    state, values = words("ffffffff 0 0 0 9 9"), np.empty((3, 5), np.uint32)
    wanted = tvmdml.random_generator(state, (3, 5))
    found = tvmdml.random_generator(state, (3, 5), out=(values, state))
    assert found.values is values
    assert found.state is state
    assert_same_bits(values, wanted.values)
    assert_same_bits(state, wanted.state)


def test_words_alone_and_sizes_without_elements() -> None:
    state = words("7 0 0 0 0 0")
    alone = tvmdml.random_generator(state, (5,), output_state=False)
    assert_same_bits(alone, tvmdml.random_generator(state, [5]).values)
    assert tvmdml.random_generator(state, (), output_state=False).shape == ()
    values, after = tvmdml.random_generator(state, (3, 0))
    assert values.shape == (3, 0)
    assert_same_bits(after, state)


@pytest.mark.parametrize(
    ("state", "keywords", "said"),
    [
        (np.zeros(5, np.uint32), {}, r"input_state\.sizes: given \(5,\); allowed: \(6,\)"),
        (np.zeros(6, np.int32), {}, "input_state: given int32 of rank 1; allowed: uint32"),
        (np.zeros(6, np.uint32), {"output_sizes": (-1,)}, "sizes"),
        (np.zeros(6, np.uint32), {"output_sizes": 4}, r"output_sizes: given 4; allowed: a sequence of integers"),
        (np.zeros(6, np.uint32), {"type": "mersenne"}, "type: given 'mersenne'; allowed: 'philox_4x32_10'"),
        (np.zeros(6, np.uint32), {"output_state": None}, "output_state: given None; allowed: True or False"),
    ],
)
def test_wrong_arguments(state: Array, keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(tvmdml.TvmdmlError, match=said):
        tvmdml.random_generator(state, **{"output_sizes": (4,), **keywords})


def test_values_may_not_overlap_the_state() -> None:
    memory = np.zeros(12, np.uint32)
    with pytest.raises(InvalidArgument, match="overlaps"):
        tvmdml.random_generator(memory[:6].copy(), (6,), out=(memory[3:9], memory[6:12]))
    state = memory[:6]
    state[:] = 1
    wanted = tvmdml.random_generator(state.copy(), (6,))
    tvmdml.random_generator(state, (6,), out=(memory[3:9], np.empty(6, np.uint32)))
    assert_same_bits(memory[3:9], wanted.values)


def test_it_is_a_pytorch_operator() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch  # noqa: F401

    state = torch.zeros(6, dtype=torch.uint32)
    values, after = torch.ops.tvmdml.random_generator(state, [2, 3])
    assert values.shape == (2, 3)
    assert values.numpy()[0, 0] == 0x6627E8D5
    assert after.numpy().tolist() == [2, 0, 0, 0, 0, 0]
    alone = torch.ops.tvmdml.random_generator.output_state_false(state, [2, 3], output_state=False)
    assert torch.equal(alone.view(torch.int32), values.view(torch.int32))
    exported = torch.export.export(_Model(torch), (state,)).module()(state)
    assert torch.equal(exported[0].view(torch.int32), values.view(torch.int32))


def _Model(torch: Any) -> Any:  # noqa: N802 - a class, made when PyTorch is there
    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, state: Any) -> Any:
            return torch.ops.tvmdml.random_generator(state, [2, 3])

    return Model()
