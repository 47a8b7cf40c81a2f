"""Search: what is likely, drawn and ruled out, against what the rules say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvmdml.genai.beams import BestTexts
from tvmdml.genai.options import OPTIONS, check_names, check_together, completed
from tvmdml.genai.refusing import Refused
from tvmdml.genai.search import Greedy, drawn, largest, penalized
from tvmdml.genai.state import padding

LOWEST = np.finfo(np.float32).min


def options(**given: Any) -> dict[str, Any]:
    return completed({"max_length": 12, **given}, 64)


def shares(count: int = 4000, **given: Any) -> dict[int, float]:
    """How often each of five tokens is drawn; their probabilities are 0.4, 0.3, 0.15, 0.1, 0.05."""
    rng, row = np.random.default_rng(5), np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))
    tokens, counts = np.unique([drawn(row, options(**given), rng) for _ in range(count)], return_counts=True)
    return {int(token): n / count for token, n in zip(tokens, counts, strict=True)}


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({}, {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.3, 4: 0.15}),
        ({"top_p": 1.0}, {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.3, 4: 0.15}),
        ({"top_k": 2, "top_p": 1.0}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.65}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.75}, {1: 0.4 / 0.85, 3: 0.3 / 0.85, 4: 0.15 / 0.85}),
        ({"top_k": 3, "top_p": 0.5}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_k": 2, "temperature": 0.5}, {1: 0.16 / 0.25, 3: 0.09 / 0.25}),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_are_likely(given: dict[str, Any], right: dict[int, float]) -> None:
    given = {"top_p": 1.0, **given}
    result = shares(**given)
    assert result.keys() == right.keys()
    assert max(abs(result[token] - right[token]) for token in right) < 0.03


@pytest.mark.parametrize("size", [100, 20000, 40000])
def test_the_largest_of_many(size: int) -> None:
    row = np.random.default_rng(2).integers(0, 1000, size).astype(np.float32)
    row[row > 990] = 500
    right = sorted(range(size), key=lambda place: (-row[place], place))
    for count in (1, 50, min(1024, size), size):
        result = largest(row, count)
        np.testing.assert_array_equal(row[result], row[right[:count]])
        assert len(set(result.tolist())) == count
    assert largest(row, size).tolist() == right


@pytest.mark.parametrize("p", [0.05, 0.6, 0.999])
def test_few_tokens_of_many_are_likely(p: float) -> None:
    """Of many tokens, those are drawn that the definition says; some are result among the first ones, others among all."""
    row = np.random.default_rng(3).standard_normal(30000).astype(np.float32)
    probabilities = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    order = np.argsort(-row, kind="stable")
    allowed = order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 2]
    rng, many = np.random.default_rng(4), options(top_p=p)
    result = np.array([drawn(row, many, rng) for _ in range(300)])
    assert np.isin(result, allowed).all()
    assert len(set(result.tolist())) > 100
    right = (probabilities[allowed] * row[allowed]).sum() / probabilities[allowed].sum()
    assert abs(row[result].mean() - right) < 0.25


def test_the_same_seed_draws_the_same_tokens() -> None:
    def text(seed: int) -> list[int]:
        search = Greedy(options(do_sample=True, top_k=30, random_seed=seed), [], 0)
        search.append(np.zeros((1, 1), np.int32))
        while not search.done:
            search.choose(np.zeros((1, 40), np.float32))
        return search.text(0).tolist()

    assert text(3) == text(3)
    assert text(3) != text(4)


def test_what_was_there_is_less_likely() -> None:
    row = np.array([[2.0, -2.0, 1.0, -1.0]], np.float32)
    result = penalized(row.copy(), np.array([[0, 1, 1]], np.int32), options(repetition_penalty=2.0), [])
    assert result.tolist() == [[1.0, -4.0, 1.0, -1.0]]


def test_runs_of_tokens_do_not_come_again() -> None:
    row = np.zeros((1, 6), np.float32)
    for size, ruled_out in ((1, {1, 2, 3}), (2, {3, 2}), (3, {3, 2}), (4, {2}), (9, set())):
        result = penalized(row.copy(), np.array([[1, 2, 3, 1, 2, 2, 3, 1, 2]], np.int32), options(no_repeat_ngram_size=size), [])
        assert set(np.flatnonzero(result[0] == LOWEST).tolist()) == ruled_out, size


def test_a_short_text_does_not_end() -> None:
    row = np.zeros((1, 4), np.float32)
    for length, ruled_out in ((4, [1, 3]), (5, [])):
        result = penalized(row.copy(), np.zeros((1, length), np.int32), options(min_length=5), [1, 3, 99])
        assert np.flatnonzero(result[0] == LOWEST).tolist() == ruled_out


def test_rows_that_ended_are_padded() -> None:
    search = Greedy(options(batch_size=2), [1], 2)
    search.append(np.array([[5], [6]], np.int32))
    for tokens in ((1, 7), (8, 9), (3, 1)):
        search.choose(np.eye(10, dtype=np.float32)[list(tokens)])
    assert search.done
    assert search.texts.tolist() == [[5, 1, 2], [6, 7, 9]]  # the token that ends the last text is no part of it


def test_padding_is_what_stands_at_the_end() -> None:
    rows = np.array([[5, 2, 7, 2], [2, 2, 4, 5], [2, 2, 2, 2]])
    assert padding(rows, 2).tolist() == [[True, True, True, False], [True] * 4, [True, False, False, False]]
    assert padding(rows[:1], 2).all()


def test_the_best_texts_by_their_mean_of_logarithms() -> None:
    best = BestTexts(2, 1.0)
    for length, total in ((2, -4.0), (4, -4.0), (3, -9.0)):
        best.add(np.zeros(length, np.int32), total)
    assert [(h.score, len(h.text)) for h in best.all] == [(-1.0, 4), (-2.0, 2)]
    assert best.better(-7.0, 4)
    assert not best.better(-9.0, 4)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_refuses_what_it_may_not_be(name: str) -> None:
    option = OPTIONS[name]
    wrong: list[Any] = ["1", None, float("nan"), float("inf"), [1], 10**400]
    below = [] if option.least == -np.inf else [min(option.least - 1, option.least * 2)]
    wrong += [1] if isinstance(option.default, bool) else [True, *below]
    wrong += [1.5] if option.integral and not isinstance(option.default, bool) else []
    for value in wrong:
        with pytest.raises(Refused, match=name):
            check_names({name: value}, "set_search_options", Refused)
    check_names(
        {name: option.default or (option.default if isinstance(option.default, bool) else max(option.least, 0))}, "x", Refused
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("temperature", 1e-300, {2}),
        ("temperature", 1e-45, {2}),
        ("temperature", 1e-30, {2}),
        ("temperature", OPTIONS["temperature"].most, {0, 2, 3}),
        ("repetition_penalty", OPTIONS["repetition_penalty"].least, {3}),
        ("repetition_penalty", OPTIONS["repetition_penalty"].most, {0, 2}),
    ],
)
def test_the_limits_of_an_option_choose_a_token(name: str, value: float, right: set[int]) -> None:
    given = options(do_sample=True, random_seed=3, min_length=3, **{name: value})
    check_names({name: value}, "set_search_options", Refused)
    row = np.array([[3, -2, 5, 1]], np.float32)
    search = Greedy(given, [], 0)
    search.append(np.array([[1]], np.int32))
    search.choose(penalized(row, np.array([[1, 3]], np.int32), given, [1]))  # which is ruled out, and was there
    assert int(search.next[0]) in right


@pytest.mark.filterwarnings("error")
def test_a_penalty_that_no_length_stands_makes_scores_infinite() -> None:
    for penalty, score in ((OPTIONS["length_penalty"].least, -np.inf), (OPTIONS["length_penalty"].most, 0)):
        best = BestTexts(1, penalty)
        best.add(np.zeros(4, np.int32), -2.0)
        assert best.all[0].score == score


def test_options_that_contradict_each_other_are_refused() -> None:
    for given in (
        {"max_length": 65},
        {"num_return_sequences": 2},
        {"top_k": 41, "do_sample": True},
        {"do_sample": True, "num_beams": 2},
        {"diversity_penalty": 1.0},
    ):
        with pytest.raises(Refused, match=next(iter(given))):
            check_together(options(**given), 64, 40)
    with pytest.raises(Refused, match=r"'top_q'.*top_k"):
        check_names({"top_q": 1}, "set_search_options", Refused)
