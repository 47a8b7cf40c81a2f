"""``Text``: the lines of a function's body while they are written, and the names used in them."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tvmdml.targets.cuda import prelude, terms

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await co_return
    co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename typeof union
    unsigned using virtual void volatile wchar_t while xor xor_eq
"""
# Lower-case macros of headers, and names that generated code calls.
_TAKEN = """
    assert blockDim blockIdx errno gridDim half i386 isfinite isinf isnan lane linux main math_errhandling memcpy rsqrt stderr
    stdin stdout threadIdx unix warpSize
"""
RESERVED = frozenset(
    {
        *re.findall(r"\w+", _KEYWORDS + _TAKEN),
        *terms.TYPES.values(),
        *terms.MATH,
        *(f"{name}f" for name in terms.MATH),
        *prelude.NAMES,
    }
)
"""Names that a kernel must not use for its own purposes."""
_MACRO = re.compile(r"[A-Z](?![a-z])|cuda")
_WORD = re.compile(r"\b[A-Za-z_]\w*", re.ASCII)


@functools.lru_cache(1 << 12)
def identifier(name: str) -> str:
    """A valid C++ name without another meaning: macros begin with two capitals, or are CUDA's own."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "value"
    if base[0].isdigit():
        return f"value_{base}"
    return f"{base}_" if base in RESERVED or _MACRO.match(base) else base


class SourceLine:
    """A line, and the name that it defines, if it has no other effect."""

    __slots__ = ("defines", "depth", "text")

    def __init__(self, depth: int, text: str, defines: str = "") -> None:
        self.depth, self.text, self.defines = depth, text, defines


class Text:
    """Statements in sequence, in blocks."""

    def __init__(self, *taken: str) -> None:
        self._names = dict.fromkeys(("lane", *taken), 0)
        """The names in use, each with the last number that was appended to it."""
        self._lines: list[SourceLine] = []
        self._depth = 1
        self._block = self._blocks = 0
        self._declared: dict[str, tuple[SourceLine, int, str]] = {}
        """Declared variables that are not used yet: their lines, blocks and types."""

    def line(self, text: str, defines: str = "") -> SourceLine:
        """Write a line. If it defines a name (``defines``), it may be dropped when nothing uses the name."""
        line = SourceLine(self._depth, text, defines)
        self._lines.append(line)
        return line

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """A block."""
        self.line(f"{head} {{")
        with self._inside():
            yield
        self.line("}")

    @contextmanager
    def aside(self) -> Iterator[list[SourceLine]]:
        """Collect the lines that are written meanwhile, for ``add``."""
        lines, self._lines = self._lines, []
        with self._inside():
            yield self._lines
        self._lines = lines

    def add(self, lines: list[SourceLine]) -> None:
        """Write lines that were collected before."""
        moved = self._depth - lines[0].depth if lines else 0
        for line in lines:
            line.depth += moved
        self._lines += lines

    @contextmanager
    def _inside(self) -> Iterator[None]:
        outer = self._block
        self._blocks += 1
        self._block = self._blocks
        self._depth += 1
        yield
        self._depth -= 1
        self._block = outer

    # -- Names

    def fresh(self, name: str) -> str:
        """A name that is not in use."""
        found = base = identifier(name)
        number = self._names.get(base, 0)
        while found in self._names:
            number += 1
            found = f"{base}_{number}"
        self._names[base] = number
        self._names.setdefault(found, 0)
        return found

    def named(self, kind: str, name: str, code: str, is_pure: bool = True) -> str:
        """Define a constant, and return its name."""
        found = self.fresh(name)
        self.line(f"{kind} {found} = {code};", defines=found if is_pure else "")
        return found

    def declare(self, kind: str, name: str) -> None:
        """Declare a variable without a value."""
        self._declared[name] = (self.line(f"{kind} {name};", defines=name), self._block, kind)

    def used(self, name: str) -> None:
        """Record that a variable is read, or that its address is taken."""
        self._declared.pop(name, None)

    def assign(self, name: str, code: str) -> None:
        """Write to a variable. The first write to it becomes its declaration."""
        line, block, kind = self._declared.pop(name, (None, 0, ""))
        if line is not None and block == self._block:
            line.text = ""
            self.line(f"{kind} {name} = {code};")
        else:
            self.line(f"{name} = {code};")

    # -- The end

    def finish(self) -> tuple[list[str], Counter[str]]:
        """The lines without unused definitions, and how often each word occurs."""
        lines = [line for line in self._lines if line.text]
        words = [_WORD.findall(line.text) for line in lines]
        count: Counter[str] = Counter()
        for one in words:
            count.update(one)
        for line, own in zip(reversed(lines), reversed(words), strict=True):
            if line.defines and count[line.defines] == own.count(line.defines):
                line.text = ""
                count.subtract(own)
        return ["  " * line.depth + line.text for line in lines if line.text], count
