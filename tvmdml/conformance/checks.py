"""``Check``: one thing that has to hold, and what comes of it."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, NamedTuple

from tvmdml import targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL, FeatureLevel
from tvmdml.errors import DeviceError, TvmdmlError, Unsupported
from tvmdml.operators import Operator
from tvmdml.targets import Target

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
VERDICTS = (PASSED, FAILED, NOT_RUN)


class Outcome(NamedTuple):
    """What came of a check."""

    part: str
    operator: str
    target: str
    what: str
    """The check in one line: what it takes to run it again."""
    verdict: str
    """One of ``VERDICTS``."""
    said: str = ""
    """What differs, or why it was not run."""
    spoiled: bool = False
    """Whether the process that it ran in is not to be trusted with another check."""


@dataclasses.dataclass(frozen=True)
class Check(abc.ABC):
    """Something that has to hold on a target. It can be pickled: it runs in a process of the target's own."""

    part: ClassVar[str]
    """Which of the columns of a report it counts in."""
    operator: str
    """The operator's name."""

    @property
    @abc.abstractmethod
    def what(self) -> str:
        """It in one line."""

    @abc.abstractmethod
    def problem(self, target: Target, seed: int) -> str:
        """What is wrong; empty where it holds.

        Raises:
            Unsupported: this target cannot be asked.
        """

    def outcome(self, target: str, verdict: str, said: str = "", spoiled: bool = False) -> Outcome:
        """What came of it on a target."""
        return Outcome(self.part, self.operator, target, self.what, verdict, " ".join(said.split()), spoiled)


def is_taken(desc: Operator, level: FeatureLevel) -> bool:
    """Whether a level takes a descriptor; the newest takes extensions, too."""
    try:
        desc.validate(level, extensions=level is NEWEST_FEATURE_LEVEL)
    except TvmdmlError:
        return False
    return True


def perform(check: Check, target: str, seed: int) -> Outcome:
    """Run a check in this process."""
    try:
        problem = check.problem(targets.resolve(target), seed)
    except Unsupported as error:
        return check.outcome(target, NOT_RUN, str(error))
    except DeviceError as error:  # what is lost stays so in this process
        return check.outcome(target, FAILED, f"raised DeviceError: {error}", spoiled=True)
    except Exception as error:  # whatever it is, it belongs in the report
        return check.outcome(target, FAILED, f"raised {type(error).__name__}: {error}")
    return check.outcome(target, FAILED if problem else PASSED, problem)
