"""Derives the numbers in ``coefficients.py``: ``python -m tvmdml.kernels.mathematics.derive`` prints that file. It needs mpmath.

Polynomials have the least largest error on their interval (Remez's exchange). Their first coefficients are rounded to the type one
after the other, and the rest is derived again, which makes up for most of the rounding.

Those of float16 are numbers of float32, in which they are used, but fewer.
"""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels.mathematics._fitting import Points, mp, to_float

HALF_LN2 = mp.log(2) / 2
QUARTER_PI = mp.pi / 4
_WIDTH = 132


class Fit(NamedTuple):
    """A polynomial: of ``of`` on an interval, of a degree for each type; errors count as often as ``weight`` says."""

    name: str
    says: str
    of: Callable[[Any], Any]
    low: Any
    high: Any
    weight: Callable[[Any], Any]
    degrees: dict[str, int]


def _series(first: int, term: Callable[[int], Any], x: Any) -> Any:
    """The sum of ``term(i) * x**(i - first)``, for a small ``x``, where the closed form cancels."""
    return mp.fsum(term(i) * x ** (i - first) for i in range(first, first + 40))


def _exp(r: Any) -> Any:
    return _series(2, lambda i: 1 / mp.factorial(i), r) if abs(r) < 0.01 else (mp.expm1(r) - r) / r**2


def _log(f: Any) -> Any:
    return _series(3, lambda i: (-1) ** (i + 1) / mp.mpf(i), f) if abs(f) < 0.01 else (mp.log1p(f) - f + f**2 / 2) / f**3


def _log_whole(f: Any) -> Any:
    return _series(1, lambda i: (-1) ** (i + 1) / mp.mpf(i), f) if abs(f) < 0.01 else mp.log1p(f) / f


def _log1p(u: Any) -> Any:
    x = u + mp.mpf(1) / 2
    return mp.log1p(x) / x if x > mp.mpf(10) ** -25 else mp.mpf(1)


def _log_ratio(w: Any) -> Any:
    """``atanh(s) * 2 = 2 * s + s * w * R(w)`` with ``w = s**2``."""
    s = mp.sqrt(w)
    return _series(0, lambda i: mp.mpf(2) / (2 * i + 3), w) if w < 1e-3 else (2 * mp.atanh(s) - 2 * s) / s**3


def _log2_ratio(w: Any) -> Any:
    """``atanh(s) * 3 = s * (3 + w + w**2 * R(w))`` with ``w = s**2``."""
    s = mp.sqrt(w)
    return _series(2, lambda i: mp.mpf(3) / (2 * i + 1), w) if w < 1e-3 else (3 * mp.atanh(s) / s - 3 - w) / w**2


def _exp2(r: Any) -> Any:
    return _series(1, lambda i: mp.log(2) ** i / mp.factorial(i), r) if abs(r) < 0.01 else (2**r - 1) / r


def _odd(function: Callable[[Any], Any], term: Callable[[int], Any]) -> Callable[[Any], Any]:
    """``(function(x) - x) / x**3`` as a function of the square."""

    def of(z: Any) -> Any:
        x = mp.sqrt(z)
        return _series(0, term, z) if z < 1e-3 else (function(x) - x) / x**3

    return of


def _cos(z: Any) -> Any:
    term = lambda i: (-1) ** i / mp.factorial(2 * i + 4)  # noqa: E731
    return _series(0, term, z) if z < 1e-3 else (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def _asin_term(i: int) -> Any:
    return mp.binomial(2 * i + 2, i + 1) / mp.mpf(4) ** (i + 1) / (2 * i + 3)


def _acosh(t: Any) -> Any:
    with mp.workdps(120):
        return (mp.acosh(1 + t) / mp.sqrt(2 * t) - 1) / t if t > mp.mpf(10) ** -25 else mp.mpf(-1) / 12


def _asinh_term(i: int) -> Any:
    return (-1) ** (i + 1) * _asin_term(i)


def _tan(z: Any) -> Any:
    x = mp.sqrt(z)
    with mp.workdps(80):
        return (mp.tan(x) - x) / x**3 if z > mp.mpf(10) ** -18 else mp.mpf(1) / 3 + 2 * z / 15


def _relative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Errors of ``x**3 * p(x**2)``, relative to the function."""

    def weight(z: Any) -> Any:
        x = mp.sqrt(z)
        return x**3 / function(x) if x else mp.mpf(0)

    return weight


def _erf(s: Any) -> Any:
    x = mp.sqrt(s)
    return mp.erf(x) / x - 1 if s > mp.mpf(10) ** -25 else 2 / mp.sqrt(mp.pi) - 1


ERF_CENTRE, ERF_STEP = 1.75, 131 / 256
ERF_LIMIT = {"float32": 3.837848424911499, "float64": 5.93}
"""For float32, a number for which the last piece gives 1."""
_CENTRE, _END = mp.mpf(ERF_CENTRE), mp.mpf(ERF_LIMIT["float64"])


def _erf_pieces() -> Iterator[Fit]:
    """``erf(x) = x * p(x - centre)``, on each of eight pieces."""
    step = mp.mpf(ERF_STEP)
    half = step * mp.mpf("0.50005")
    for i in range(8):
        of = functools.partial(lambda centre, x: 1 + _erf((centre + x) ** 2), i * step)
        weight = functools.partial(lambda of, x: 1 / of(x), of)
        yield Fit(f"ERF_{i}", "", of, -half if i else mp.mpf(0), half, weight, {"float32": 6})


_SQUARE = (QUARTER_PI * mp.mpf("1.0001")) ** 2
FITS = (
    Fit("EXP", "e**r = 1 + r + r**2 * p(r), abs(r) <= ln(2) / 2", _exp, -HALF_LN2 * 1.0001, HALF_LN2 * 1.0001,
        lambda r: abs(r), {"float32": 4, "float64": 10}),
    Fit("EXP2", "2**r = 1 + r * p(r), abs(r) <= 1/2", _exp2, mp.mpf(-0.5), mp.mpf(0.5), lambda r: abs(r),
        {"float32": 5, "float64": 11}),
    Fit("EXP2_SHORT", "2**r = 1 + r * p(r), abs(r) <= 1/2, in fewer steps", _exp2, mp.mpf(-0.5), mp.mpf(0.5), lambda r: abs(r),
        {"float32": 4, "float64": 9}),
    Fit("LOG", "ln(1 + f) = f - f**2 / 2 + f**3 * p(f), 1 + f from 3/4 to 3/2", _log, mp.mpf(-0.25), mp.mpf(0.5),
        lambda f: abs(f**3 / mp.log1p(f)) if f else mp.mpf(0), {"float32": 7}),
    Fit("LOG_WHOLE", "ln(1 + f) = f * p(f), 1 + f from 3/4 to 3/2", _log_whole, mp.mpf(-0.25), mp.mpf(0.5),
        lambda f: 1 / _log_whole(f), {"float16": 5}),
    Fit("LOG1P", "ln(1 + x) = x * p(x - 1/2), x from 0 to 1", _log1p, mp.mpf(-0.5), mp.mpf(0.5), lambda u: 1 / _log1p(u),
        {"float32": 9}),
    Fit("LOG_RATIO", "ln((1 + s) / (1 - s)) = 2 * s + s * w * p(w), w = s**2, s from 0 to 0.2", _log_ratio, mp.mpf(0),
        mp.mpf("0.04"), lambda w: w, {"float64": 7}),
    Fit("ASINH", "asinh(a) = a + a**3 * p(a**2), a from 0 to 0.53125", _odd(mp.asinh, _asinh_term), mp.mpf(0), mp.mpf("0.2823"),
        _relative(mp.asinh), {"float16": 1, "float32": 4, "float64": 11}),
    Fit("ACOSH", "acosh(1 + t) = s + s * t * p(t), s = sqrt(2 * t), t from 0 to 1/2", _acosh, mp.mpf(0), mp.mpf(1) / 2,
        lambda t: t, {"float16": 1, "float32": 4, "float64": 11}),
    Fit("ATANH", "atanh(a) = a + a**3 * p(a**2), a from 0 to 1/2", _odd(mp.atanh, lambda i: 1 / mp.mpf(2 * i + 3)),
        mp.mpf(0), mp.mpf(1) / 4, _relative(mp.atanh), {"float16": 3, "float32": 5, "float64": 13}),
    Fit("LOG2_RATIO", "3 * atanh(s) = s * (3 + w + w**2 * p(w)), w = s**2, s from 0 to 0.2", _log2_ratio, mp.mpf(0),
        mp.mpf("0.04"), lambda w: w**2, {"float32": 2, "float64": 8}),
    Fit("SIN", "sin(r) = r + r**3 * p(r**2), abs(r) <= pi / 4", _odd(mp.sin, lambda i: (-1) ** (i + 1) / mp.factorial(2 * i + 3)),
        mp.mpf(0), _SQUARE, _relative(mp.sin), {"float16": 1, "float32": 2, "float64": 5}),
    Fit("COS", "cos(r) = 1 - z / 2 + z**2 * p(z), z = r**2, abs(r) <= pi / 4", _cos, mp.mpf(0), _SQUARE, lambda z: z**2,
        {"float16": 1, "float32": 2, "float64": 5}),
    Fit("TAN", "tan(r) = r + r**3 * p(r**2), abs(r) <= pi / 4", _tan, mp.mpf(0), _SQUARE, _relative(mp.tan),
        {"float16": 3, "float32": 5}),
    Fit("ATAN", "atan(t) = t + t**3 * p(t**2), t from 0 to 1", _odd(mp.atan, lambda i: (-1) ** (i + 1) / mp.mpf(2 * i + 3)),
        mp.mpf(0), mp.mpf(1), _relative(mp.atan), {"float32": 7, "float64": 18}),
    Fit("ASIN", "asin(s) = s + s**3 * p(s**2), s from 0 to 0.5", _odd(mp.asin, _asin_term), mp.mpf(0), mp.mpf(1) / 4,
        _relative(mp.asin), {"float32": 4, "float64": 11}),
    Fit("ERF_NEAR", "erf(x) = x + x * p(x**2), x from 0 to 1", _erf, mp.mpf(0), mp.mpf(1), lambda _: mp.mpf(1), {"float64": 12}),
    Fit("ERF_FAR_LOG", "ln(1 - erf(x)) = p(x - centre), x from 1 to where erf is 1", lambda u: mp.log(mp.erfc(u + _CENTRE)),
        1 - _CENTRE, _END - _CENTRE, lambda u: mp.erfc(u + _CENTRE), {"float64": 19}),
)  # fmt: skip


def polynomial(fit: Fit, dtype: str) -> tuple[list[float], float]:
    """The coefficients in a type, from the constant one on, and the largest error with them, as a power of two."""
    points = Points(fit.of, fit.low, fit.high, fit.weight)
    fixed: list[Any] = []
    for i in range(min(2, fit.degrees[dtype])):
        fixed.append(mp.mpf(to_float(points.polynomial(fit.degrees[dtype], fixed)[i], dtype)))
    found = [to_float(c, dtype) for c in points.polynomial(fit.degrees[dtype], fixed)]
    return found, float(mp.log(points.error(found), 2))


def _split(number: Any, bits: int, parts: int, dtype: str, down: bool = False) -> list[float]:
    """A number as a sum: all parts but the last have so many bits after the point more than the one before.

    With ``down``, no part is negative.
    """
    found, scale = [], mp.mpf(1)
    for _ in range(parts - 1):
        scale *= mp.mpf(2) ** bits
        found.append(float(mp.floor(number * scale) / scale if down else mp.nint(number * scale) / scale))
        number -= mp.mpf(found[-1])
    return [*found, to_float(number, dtype)]


SUMS = (
    ("LN2", "ln(2), as a sum of positive parts; a product of the first one and an exponent is exact",
     {"float32": (mp.log(2), 15, 2), "float64": (mp.log(2), 41, 2)}),
    ("LOG2_SCALE", "2 / (3 * ln(2)), as a sum; the first part has half of the bits",
     {"float32": (2 / (3 * mp.log(2)), 12, 2), "float64": (2 / (3 * mp.log(2)), 26, 2)}),
    ("HALF_PI", "pi / 2, as a sum", {"float32": (mp.pi / 2, 23, 2), "float64": (mp.pi / 2, 52, 2)}),
    ("QUADRANT", "pi / 2, as a sum; a product of any part but the last and a number of quadrants is exact",
     {"float32": (mp.pi / 2, 11, 4), "float64": (mp.pi / 2, 30, 4)}),
)  # fmt: skip
LIMBS = {"float32": (16, 14), "float64": (32, 38)}
"""Half of a type's bits, and how many of such a number of bits of 2 / pi the largest floats need."""


def main() -> None:
    """Print the file."""
    with mp.workdps(420):  # as many digits of 2 / pi as the largest floats need
        _write()


def _write() -> None:
    _say('"""The numbers that the functions are made of: written by ``derive.py``, where each is explained."""\n')
    _say("# fmt: off")
    for name, says, own in SUMS:
        _numbers(
            name,
            says,
            {dtype: (_split(number, bits, parts, dtype, name == "LN2"), None) for dtype, (number, bits, parts) in own.items()},
        )
    _numbers(
        "TWO_OVER_PI",
        "the bits of 2 / pi after the point, half of a word each",
        {
            dtype: ([int(mp.floor(2 / mp.pi * mp.mpf(2) ** (bits * i))) % 2**bits for i in range(1, count + 1)], None)
            for dtype, (bits, count) in LIMBS.items()
        },
    )
    for fit in FITS:
        _numbers(fit.name, fit.says, {dtype: polynomial(fit, dtype) for dtype in fit.degrees})
    pieces = [polynomial(fit, "float32") for fit in _erf_pieces()]
    _say("ERF_PIECES = {")
    _say(f'    "float32": (  # 2**{max(error for _, error in pieces):.1f}')
    for tables in zip(*(numbers for numbers, _ in pieces), strict=True):
        _say(f"        (\n{_filled(tables, 12)}\n        ),")
    _say("    ),\n}")
    _say('"""erf(x) = x * p(x - centre), x around multiples of ERF_STEP: for each coefficient, those of all pieces."""')
    for name, says, each in (
        ("CENTRE", "The centre of ERF_FAR_LOG", {"float64": ERF_CENTRE}),
        ("STEP", "The distance of the centres of ERF_PIECES: its product with a piece's number is exact", {"float32": ERF_STEP}),
        ("LIMIT", "erf is 1 from here on", ERF_LIMIT),
    ):
        _say(f"ERF_{name} = {each}".replace("'", '"'))
        _say(f'"""{says}."""')
    _say("# fmt: on")


def _numbers(name: str, says: str, found: dict[str, tuple[list[float], float | None]]) -> None:
    _say(f"{name} = {{")
    for dtype, (numbers, error) in found.items():
        _say(f'    "{dtype}": (' + (f"  # 2**{error:.1f}" if error is not None else ""))
        _say(f"{_filled(numbers, 8)}\n    ),")
    _say(f'}}\n"""{says}."""')


def _filled(numbers: Sequence[float], indent: int) -> str:
    """The numbers on as few lines as hold them."""
    return textwrap.indent(textwrap.fill(", ".join(map(repr, numbers)) + ",", _WIDTH - indent), " " * indent)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
