"""What may come of an example: a right result, or a refusal."""

from __future__ import annotations

import hashlib
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.choices import Choices
from tvmdml.errors import TvmdmlError

_LIES = re.compile(r"(__\w+__|iter)(\(\))? (method )?(should|returned|must)|cannot be interpreted as an integer$|__len__\(\)")
_PACKAGE = Path(__file__).parents[2]


class Own:
    """What the exceptions of hostile objects have in common: whoever hands such an object over gets what it raises."""


@contextmanager
def refusals(*more: type[BaseException], of: type[BaseException] = TvmdmlError) -> Iterator[None]:
    """Within it the library may refuse what it is given, in the ways that its errors are for, and in those that are named."""
    try:
        yield
    except (of, *more) as error:
        str(error).encode("utf-8", "surrogatepass")  # there is something to print
    except BaseException as error:
        if not isinstance(error, Own) and not _is_of_a_lie(error):
            raise


def _is_of_a_lie(error: BaseException) -> bool:
    """Whether Python says it of a method, or of a class, that is not what its like are: as good as what that raises itself."""
    if not isinstance(error, (TypeError, ValueError)):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename == "<frozen abc>" or _LIES.search(str(error)) is not None


class Finding:
    """What became of an example that should not have come of it."""

    def __init__(self, error: BaseException) -> None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
        ours = [f"{Path(frame.filename).name}:{frame.name}" for frame in frames if "/tests/" not in frame.filename]
        others = [f"{Path(frame.filename).name}:{frame.name}" for frame in frames[-1:]]
        self.title = f"{type(error).__name__} in {' < '.join([*ours[::-1][:3]] or others)}: {_short(error)}"
        text = "".join(traceback.format_exception(error))
        self.text = text.replace(f"{_PACKAGE}{os.sep}", "")
        self.key = hashlib.sha256(f"{type(error).__name__} {ours[-2:] or others}".encode()).hexdigest()[:10]
        """The same for the same fault, as far as can be told: the error's type, and where it came up."""


def _short(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:200]
    except Exception as wrong:
        return f"<no text: {type(wrong).__name__}>"


def examine(one: Callable[[Choices], None], data: bytes) -> Finding | None:
    """Run an example; what was found, if anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            one(Choices(data))
        except BaseException as error:
            return Finding(error)
    return None
