"""Guards: as weak as what was asked, not asked twice, and written as a reader would write them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tvmdml.tensors.sizes import Record
from tvmdml.tensors.sizes.evaluating import GuardedIntegers, terms_of

NAMES = "bhwn"
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
}
Tree = Any
"""The number of a symbol, a pair with a constant, or an operation and two trees."""

leaves = st.integers(0, 2) | st.tuples(st.sampled_from([0, 1, 2, 3, 4, 8, 12, -1, -3]))
trees = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from([*OPERATIONS]), inner, inner), max_leaves=6)
questions = st.lists(st.tuples(st.sampled_from([*COMPARISONS]), trees, trees), min_size=1, max_size=5)
cases = st.tuples(*[st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 48])] * 3)


def number(tree: Tree, values: Any) -> Any:
    """The value of an expression."""
    if isinstance(tree, int):
        return values[tree]
    if len(tree) == 1:
        return tree[0]
    return OPERATIONS[tree[0]](number(tree[1], values), number(tree[2], values))


def answers(asked: list[tuple[str, Tree, Tree]], values: Any) -> list[Any] | None:
    """What each comparison says, and both of its sides; nothing where a divisor is 0."""
    try:
        sides = [(name, number(a, values), number(b, values)) for name, a, b in asked]
        return [(a, b, COMPARISONS[name](a, b)) for name, a, b in sides]
    except ZeroDivisionError:
        return None


def recorded(values: Any, least: int = 1) -> tuple[Record, list[Any]]:
    record = Record()
    return record, [record.symbol(NAMES[i], value, least=least) for i, value in enumerate(values)]


@given(questions, cases, st.lists(cases, min_size=1, max_size=12))
def test_what_guards_leave_out_follows_from_them(asked: Any, first: Any, others: Any) -> None:
    """Where they hold, each expression has its value, and each comparison its answer, though most leave no guard."""
    record, symbols = recorded(first)
    mine, right = answers(asked, symbols), answers(asked, first)
    assume(mine is not None and right is not None)
    assert mine is not None
    assert [one[2] for one in mine] == [one[2] for one in right or []]
    function = GuardedIntegers.of(record, [terms_of(side) for *sides, _ in mine for side in sides]).compiled()
    for values in (first, *others):
        if (got := function(*values)) is not None:
            plain = answers(asked, values)
            assert plain is not None
            assert list(got) == [side for *sides, _ in plain for side in sides]
            assert [one[2] for one in plain] == [one[2] for one in mine]


SUMS = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner), max_leaves=6)


@given(st.lists(st.tuples(st.sampled_from([*COMPARISONS]), SUMS, SUMS), min_size=1, max_size=5), cases, st.lists(cases))
def test_guards_ask_no_more_than_was_asked(asked: Any, first: Any, others: Any) -> None:
    """Without quotients, whose guards say that a divisor is not 0, they hold wherever all answers are the same."""
    record, symbols = recorded(first)
    before = [one[2] for one in answers(asked, symbols) or []]
    function = GuardedIntegers.of(record, []).compiled()
    for values in (first, *others):
        same = [one[2] for one in answers(asked, values) or []] == before
        assert (function(*values) is not None) == same


READABLE: list[tuple[Any, tuple[int, ...], list[str]]] = [
    (lambda b, h, w: b % (b * h * w) == 0, (10, 3, 5), ["h*w >= 2"]),
    (lambda b, h, w: b % (b * h * w) == 0, (10, 1, 1), ["h*w == 1"]),
    (lambda b, h, w: (b * h) % (h * w), (10, 3, 4), []),
    (lambda b: b % 4 == 0, (12,), ["b % 4 == 0"]),
    (lambda b: (b + 3) % 4 == 0, (12,), ["(b + 3) % 4 != 0"]),
    (lambda b, h: b % h == 0, (12, 4), ["b % h == 0"]),
    (lambda b: [b // 8 == 3, b // 4 >= 1], (27,), ["24 <= b <= 31"]),
    (lambda b: [b >= 2, b < 90, b // 2 < 60], (27,), ["2 <= b <= 89"]),
    (lambda b, h: [b * h - b != 0, h * b - h > 0], (12, 3), ["b >= 2", "h >= 2"]),
    (lambda b, h: [b < h, h - b > 5], (12, 39), ["b + 6 <= h"]),
    (lambda b, h: [b == h, b * 3 == h * 3, b // h == 1, h % b == 0], (4, 4), ["b == h"]),
    (lambda b, h: [b * h <= 100, b <= 100], (12, 3), ["b*h <= 100"]),
    (lambda b: [b != 5, b != 4, b < 100, b <= 5, b < 4], (7,), ["6 <= b <= 99"]),
    (
        lambda b: [(b + 7) // 8 == 2 * ((b + 15) // 16), (b + 3) // 4 == 4 * ((b + 15) // 16), (b + 3) // 4 == 2 * ((b + 7) // 8)],
        (32,),
        ["(b + 7)//8 == 2*((b + 15)//16)", "(b + 3)//4 == 4*((b + 15)//16)"],
    ),
    (lambda b: ((b + 1) // 2) % 8 == 0, (20,), ["((b + 1)//2) % 8 != 0"]),
    (lambda b: (b // 6) // b == 0, (12,), []),
    (lambda b: b % (b - 8) > 0, (11,), ["b != 8", "b % (b - 8) >= 1"]),
]


@pytest.mark.parametrize(("ask", "values", "expected"), READABLE)
def test_guards_are_readable(ask: Any, values: tuple[int, ...], expected: list[str]) -> None:
    record, symbols = recorded(values)
    ask(*symbols)
    assert [text for text in record.conditions() if text not in [f"{name} >= 1" for name in NAMES]] == expected
    assert not record.specialized


@given(questions, cases, st.lists(cases, min_size=1, max_size=12))
def test_what_is_shown_is_what_is_asked(asked: Any, first: Any, others: Any) -> None:
    """As Python reads it."""
    record, symbols = recorded(first)
    assume(answers(asked, symbols) is not None)
    function = GuardedIntegers.of(record, [])
    names, compiled = NAMES[: len(symbols)], function.compiled()
    for texts in (record.conditions(), function.texts(names)):
        shown = compile(" and ".join(f"({text})" for text in texts), "shown", "eval")
        for values in (first, *others):
            try:
                holds = eval(shown, dict(zip(names, values, strict=True)))
            except ZeroDivisionError:
                holds = False
            assert holds == (compiled(*values) is not None)


@pytest.mark.parametrize(
    "ask",
    [
        lambda n, m: n * 10**400 > m,
        lambda n, m: n + 10**400 > m,
        lambda n, m: 10**400 - n > m,
        lambda n, m: n < 10**400,
        lambda n, m: n != 10**400,
        lambda n, m: 10**400 // n > m % 10**400,
        lambda n, m: n * m * 10**150 * 10**150 > m,
    ],
)
def test_huge_numbers(ask: Any) -> None:
    record, symbols = recorded((9, 5))
    assert ask(*symbols)
    function = GuardedIntegers.of(record, []).compiled()
    assert function(9, 5) is not None
    assert all(ask(n, m) for n in range(1, 30) for m in range(1, 9) if function(n, m) is not None)


def test_an_expression_is_readable() -> None:
    record, (b, h, w) = recorded((12, 4, 4))
    shown = [
        b * 2 - h // 3 + 1,
        (b + 1) // 2 * w,
        3 * (b % 7) + 1,
        b % (h + 1),
        (b * h) // (w + 1),
        -b,
        5 - b * b,
        7 * (b // 7) - b,
        -(b // h),
        b - -h // w,
        -(-b // h),
    ]
    assert [record.text(size.terms) for size in shown] == [
        "2*b - h//3 + 1",
        "w*((b + 1)//2)",
        "3*(b % 7) + 1",
        "b % (h + 1)",
        "(b*h)//(w + 1)",
        "-b",
        "-b*b + 5",
        "-b + 7*(b//7)",
        "-(b//h)",
        "b - -h//w",
        "-(-b//h)",
    ]
