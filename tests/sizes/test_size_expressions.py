"""Open sizes: what is computed with them is right for all values for which the guards hold."""

from __future__ import annotations

import json
import math
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from tvmdml.kernels import tiles
from tvmdml.tensors.sizes import Record
from tvmdml.tensors.sizes.evaluating import GuardedIntegers, own, terms_of

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
COMPARISONS = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]
OWN: list[Callable[[Any], Any]] = [
    operator.index,
    hash,
    str,
    lambda n: n.bit_length(),
    lambda n: n & 7,
    lambda n: n & 6,
    lambda n: n >> 2,
    lambda n: n << 1,
    lambda n: -n,
    abs,
    lambda n: divmod(n, 3)[1],
    lambda n: divmod(100, n + 1)[0] if n >= 0 else 1,
    lambda n: [5, 7, 11][n % 3],
    lambda n: len(range(n % 9)),
    lambda n: {0: 1, 1: 4}.get(n % 2, 9),
    lambda n: math.gcd(n % 12, 6),
    lambda n: math.ceil(n / 3),
    lambda n: round(n * 0.5),
    lambda n: sum((n, 1)),
    lambda n: int(f"{n % 4}"),
    lambda n: n ^ 3,
    lambda n: n**2,
    lambda n: 1000 >> (n & 7),
    lambda n: 1 << (n & 3),
    lambda n: n / 4,
]


def program(choices: random.Random, values: list[Any]) -> list[Any]:
    """Some numbers that follow from others, by operations and branches that are drawn."""
    for _ in range(choices.randrange(2, 14)):
        a, b = choices.choice(values), choices.choice([*values, choices.randrange(-3, 40)])
        kind = choices.randrange(10)
        if kind < 6:
            function = choices.choice(ARITHMETIC)
            if function in (operator.floordiv, operator.mod) and b == 0:
                b = 5
            values.append(function(a, b))
        elif kind < 8:
            values.append(a if choices.choice(COMPARISONS)(a, b) else b)
        elif kind == 8:
            values.append(min(a, b) + max(a, 3))
        elif choices.randrange(3) == 0:
            result = choices.choice(OWN)(a)
            values.append(result if isinstance(result, int) else len(str(result)))
    return values


def function(record: Record, values: Any) -> Any:
    """The function that makes these values, after it was JSON."""
    made = GuardedIntegers.of(record, list(map(terms_of, values)))
    read = GuardedIntegers.read(json.loads(json.dumps(made.written())))
    assert read == made
    code = read.compiled()

    def evaluated(*values: int) -> Any:
        assert read.evaluated(*values) == code(*values)
        return code(*values)

    return evaluated


N0 = [[[0], 1]]
DAMAGED = {
    "a quotient below the first atom": [[0], [[-1, N0, 2]], [], [], [0]],
    "a quotient that is a symbol": [[0], [[0, N0, 2]], [], [], [0]],
    "a quotient of itself": [[0], [[1, [[[1], 1]], 2]], [], [], [0]],
    "a symbol twice": [[0, 0], [], [], [], [0]],
    "an atom that is not there": [[0], [], [], [], [[[[7], 1]]]],
    "a sum of nothing": [[0], [], [], [], [[]]],
    "a sum of too much": [[0], [], [], [], [[[[0], 1]] * 5000]],
    "a product of too much": [[0], [], [], [], [[[[0] * 100, 1]]]],
    "a huge integer": [[0], [], [], [], [1 << 600]],
    "a huge limit": [[0], [], [[N0, None, 1 << 600, []]], [], [0]],
    "a fraction": [[0], [], [], [], [0.5]],
    "another function": [[0], [], [], [["os:system", [["is", "true"]], 0]], [0]],
    "a function that is no choice": [[0], [], [], [["tvmdml.kernels.tiles:functools", [], 0]], [0]],
    "powers of powers": [[0], [[1, [[[0] * 64, 1]], 1], [2, [[[1] * 64, 1]], 1], [3, [[[2] * 64, 1]], 1]], [], [], [0]],
    "code": [["0, b=print()"], [], [], [], [0]],
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_function_that_was_not_written_is_refused(how: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        GuardedIntegers.read(DAMAGED[how], asks_schedules=True)


def test_a_file_of_others_has_no_choices() -> None:
    record = Record()
    tiles.wastes_columns(record.symbol("n", 3), 8)
    written = json.loads(json.dumps(GuardedIntegers.of(record, [1]).written()))
    assert GuardedIntegers.read(written, asks_schedules=True).evaluated(3) == (1,)
    with pytest.raises(ValueError, match="choices"):
        GuardedIntegers.read(written)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_result_is_right_wherever_the_guards_hold(count: int) -> None:
    shared = 0
    for seed in range(400):
        values = random.Random(-seed).choices([0, 1, 2, 3, 7, 8, 17, 40, 64, 1000, 1 << 31], k=count)
        record = Record()
        symbols: list[Any] = [record.symbol(f"n{i}", value) for i, value in enumerate(values)]
        template = function(record, program(random.Random(seed), symbols))
        assert template(*values) == tuple(program(random.Random(seed), [*values])), seed
        for turn in range(40):
            others = [max(0, n + random.Random(f"{seed} {turn} {i}").randrange(-9, 30)) for i, n in enumerate(values)]
            if (got := template(*others)) is not None:
                shared += 1
                assert got == tuple(program(random.Random(seed), [*others])), (seed, others)
    assert shared > 1000


def test_arithmetic_alone_leaves_no_guard() -> None:
    record = Record()
    n, m = record.symbol("n", 40, least=1), record.symbol("m", 7, least=1)
    assert (n * 8) // 8 is not n
    assert (n * 8) // 8 == n
    assert (n * m + n) // n == m + 1
    assert (8 * n + 3) % 8 == 3
    assert 0 <= n % 8 < 8
    assert n + m >= 2
    assert (2 * n + 2) / (n + 1) == 2.0
    assert n / (4 * n) == 0.25
    assert n * m > 0
    assert not record.guards
    assert not record.specialized


def test_comparisons_with_one_polynomial_are_one_guard() -> None:
    record = Record()
    n = record.symbol("n", 40)
    assert 3 * n > 30
    assert n * 2 - 1 < 200
    assert n != 50
    assert -n < -12
    assert [(guard.least, guard.most, guard.without) for guard in record.guards.values()] == [(13, 100, {50})]
    template = function(record, (n,))
    assert [template(i) for i in (12, 13, 50, 100, 101)] == [None, (13,), None, (100,), None]


def test_two_symbols_that_are_equal_in_the_case_at_hand_stay_two() -> None:
    record = Record()
    n, m = record.symbol("n", 8), record.symbol("m", 8)
    template = function(record, (n * 2, m + 1))
    assert template(3, 5) == (6, 6)
    assert n == m
    assert function(record, (n,))(3, 5) is None
    assert function(record, (n,))(5, 5) == (5,)


def test_what_is_pythons_own_holds_for_one_value_and_is_counted() -> None:
    record = Record()
    n = record.symbol("n", 8)
    assert own((n + 1, ("a", n))) == (9, ("a", 8))
    assert record.specialized == 1
    assert {n: 1}[8] == 1
    assert record.specialized == 1
    assert function(record, ())(9) is None


def test_a_divisor_that_becomes_zero_is_a_failed_guard() -> None:
    record = Record()
    n = record.symbol("n", 8)
    template = function(record, (100 // n, 100 % (n - 3)))
    assert template(5) == (20, 0)
    assert template(0) is None
    assert template(3) is None
    with pytest.raises(ZeroDivisionError):
        100 // (n - n)


def test_a_chain_of_quotients_may_be_long() -> None:
    record = Record()
    n, m = record.symbol("n", 1000, least=2), record.symbol("m", 7, least=1)
    size: Any = n
    for _ in range(400):
        size = (size + m) // 2
        assert size >= 0
        assert size != 3
    template = function(record, (size,))
    assert template(1000, 7) == (size.value,)


def test_a_product_of_many_factors_is_pythons_own() -> None:
    record = Record()
    size: Any = record.symbol("n", 2, least=1, most=(1 << 31) - 1)
    for _ in range(6):
        assert size > 1
        size = size * size
    assert size == 1 << 64
    assert record.specialized == 1
    assert record.bounds(((tuple([0] * 40), 1),)) == (1 << 40, 1 << 40)


def test_bounds_of_a_symbol_are_asked_first() -> None:
    record = Record()
    n = record.symbol("n", 8, least=1, most=16)
    template = function(record, (n,))
    assert [template(i) for i in (0, 1, 16, 17)] == [None, (1,), (16,), None]
    assert n <= 16
    assert not record.guards
