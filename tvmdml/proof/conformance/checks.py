"""``Check``: one condition to check, and ``CheckOutcome``: its result."""

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


class CheckOutcome(NamedTuple):
    """The result of a check."""

    part: str
    operator: str
    target: str
    what: str
    """The check in one line, with everything needed to run it again."""
    verdict: str
    """One of ``VERDICTS``."""
    said: str = ""
    """The difference, or the reason why it was not run."""
    spoiled: bool = False
    """Whether its process cannot be used for other checks any more."""


@dataclasses.dataclass(frozen=True)
class Check(abc.ABC):
    """A condition that must hold on a target. It can be pickled, because it runs in a separate process."""

    part: ClassVar[str]
    """The column of a report in which it counts."""
    operator: str
    """The operator's name."""

    @property
    @abc.abstractmethod
    def what(self) -> str:
        """The check in one line."""

    @abc.abstractmethod
    def problem(self, target: Target, seed: int) -> str:
        """Run the check; returns what is wrong, empty if nothing is.

        Raises:
            Unsupported: the check cannot run on this target.
        """

    def outcome(self, target: str, verdict: str, said: str = "", spoiled: bool = False) -> CheckOutcome:
        """Make the outcome on a target."""
        return CheckOutcome(self.part, self.operator, target, self.what, verdict, " ".join(said.split()), spoiled)


def is_taken(desc: Operator, level: FeatureLevel) -> bool:
    """Whether a level supports a descriptor; at the newest level, extensions count too."""
    try:
        desc.validate(level, extensions=level is NEWEST_FEATURE_LEVEL)
    except TvmdmlError:
        return False
    return True


def perform(check: Check, target: str, seed: int) -> CheckOutcome:
    """Run a check in this process."""
    try:
        problem = check.problem(targets.resolve(target), seed)
    except Unsupported as error:
        return check.outcome(target, NOT_RUN, str(error))
    except DeviceError as error:  # a lost device stays lost in this process
        return check.outcome(target, FAILED, f"raised DeviceError: {error}", spoiled=True)
    except Exception as error:  # every error belongs in the report
        return check.outcome(target, FAILED, f"raised {type(error).__name__}: {error}")
    return check.outcome(target, FAILED if problem else PASSED, problem)
