"""JSON and what is like it, changed here and there."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from fuzz.choices import Choices

_SCALARS = (None, True, False, "", [], {}, "nan", "inf", "-inf", [[]], [{}], {"": None}, -0.0, 1e400, "\0", "\ud800")


def scalar(choices: Choices, words: Sequence[str]) -> Any:
    """A value without much in it."""
    kind = choices.integer(0, 5)
    if kind == 0:
        return choices.number()
    if kind == 1:
        return choices.real()
    if kind == 2:
        return copy.deepcopy(choices.pick(_SCALARS))
    return choices.text(words) if kind == 3 or not words else choices.pick(words)


def changed(choices: Choices, tree: Any, words: Sequence[str], most: int = 4) -> Any:
    """The tree with a few changes: members replaced, removed, renamed, doubled, added, moved from elsewhere in it."""
    root = [copy.deepcopy(tree)]
    for _ in range(choices.integer(1, most)):
        place, key = choices.pick(list(_places(root)))
        kind = choices.integer(0, 6)
        if kind <= 1:
            place[key] = scalar(choices, words)
        elif kind == 2 and place is not root:
            del place[key]
        elif kind == 3 and isinstance(place, dict):
            place[choices.text(words) if choices.flag() else choices.pick(words or ("",))] = place.pop(key)
        elif kind == 4:
            other, at = choices.pick(list(_places(root)))
            place[key] = copy.deepcopy(other[at])
        elif kind == 5 and isinstance(place[key], list):
            place[key] = place[key] * choices.pick((2, 3, 40))
        elif kind == 6 and isinstance(place[key], dict):
            place[key][choices.text(words)] = scalar(choices, words)
        else:
            for _ in range(choices.pick((1, 3, 20, 2000))):
                place[key] = {choices.pick(words or ("a",)): place[key]} if choices.flag() else [place[key]]
    return root[0]


def _places(tree: Any) -> Any:
    """Every value that is there, as what holds it and where; of deep trees the upper part."""
    waiting = [(tree, 0)]
    while waiting:
        place, depth = waiting.pop()
        for key in range(len(place)) if isinstance(place, list) else list(place):
            yield place, key
            if isinstance(place[key], (list, dict)) and depth < 12:
                waiting.append((place[key], depth + 1))


def text(tree: Any) -> str:
    """As JSON; deep trees, too. What has more digits than Python prints is hexadecimal, as JSON5 may have it."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return re.sub(r"-?\d{4301,}", lambda match: hex(int(match[0])), json.dumps(tree))
    except RecursionError:
        return "[" * 3000
    finally:
        sys.set_int_max_str_digits(before)


def damaged(choices: Choices, content: bytes, words: Sequence[str]) -> bytes:
    """Bytes with a few changes."""
    found = bytearray(content)
    for _ in range(choices.integer(1, 4)):
        begin = choices.integer(0, len(found))
        end = min(begin + choices.pick((0, 0, 1, 1, 4, 30)), len(found))
        piece = found[begin:end]
        makers = (
            lambda: choices.bytes(choices.integer(1, 4)), lambda: choices.text(words).encode("utf-8", "surrogatepass"),
            lambda: b"", lambda piece=piece: piece * choices.pick((2, 3, 50)), lambda: str(choices.number() % 10**30).encode(),
            lambda: hex(choices.number()).encode(),
        )  # fmt: skip
        found[begin:end] = choices.pick(makers)()
    return bytes(found)
