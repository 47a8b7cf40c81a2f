"""Which kernel serves which sizes: what schedules answered for ranges of sizes when a pack was built.

Each holds for all sizes that pass its guards. Programs in C take them as they are, and Python where the pack is trusted.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.graph.open_plan import OpenPlan
from tvmdml.graph.stored.saving import MOST_JSON
from tvmdml.graph.stored.written import MOST, place, text
from tvmdml.library import records
from tvmdml.library.records import LaunchRecord
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes.evaluating import GuardedIntegers

TARGETS = 1 << 16
"""More numbers of threads than there are: the answers of a plan are known by the number of a target times this, and the threads."""
_LEVEL = 9


class PackAnswer(NamedTuple):
    """The launch of one group of a plan, for some sizes."""

    group: int
    target: str
    """Its code."""
    threads: int
    """The number that the schedule was asked for."""
    launch: LaunchRecord
    """Without integers, and with temporaries of no elements."""
    function: GuardedIntegers
    """For sizes the integers, and then the numbers of elements of the temporaries."""

    @classmethod
    def fixed(cls, group: int, target: str, launch: LaunchRecord) -> PackAnswer:
        """A launch for certain sizes."""
        counts = [count for _, count in launch.temporaries]
        return cls(group, target, launch.threads, launch, GuardedIntegers((), (), (), (), (*launch.scalars, *counts)))

    def at(self, values: Sequence[int]) -> LaunchRecord | None:
        """The launch for sizes; ``None`` if the answer is another one."""
        numbers = self.function.evaluated(*values)
        if numbers is None:
            return None
        count = len(numbers) - len(self.launch.temporaries)
        types = [dtype for dtype, _ in self.launch.temporaries]
        return self.launch._replace(scalars=numbers[:count], temporaries=tuple(zip(types, numbers[count:], strict=True)))


def written(plan: OpenPlan, machines: Sequence[Target]) -> NumpyArray:
    """The answers of a plan, as bytes. Those that cannot be written are left out."""
    functions: dict[str, int] = {}
    launches: dict[str, int] = {}
    rows: dict[tuple[int, str, int, int, int], None] = {}
    for number, group in enumerate(plan.groups):
        for key, answer in group.new:
            i, threads = divmod(key, TARGETS)
            code = machines[i].code
            kernel: Any = getattr(answer, "kernel")  # noqa: B009 - a schedule gave it in this process
            try:
                function = json.dumps(answer.function.written())
            except ValueError:
                continue
            of_case = records.launch_of(code, 0, kernel)
            launch = of_case._replace(scalars=(), temporaries=tuple((dtype, 0) for dtype in answer.types))
            members = json.dumps(records.launch_members(launch))
            launched = launches.setdefault(members, len(launches))
            rows[number, code, threads, launched, functions.setdefault(function, len(functions))] = None
    lists = ([json.loads(part) for part in several] for several in (launches, functions))
    content = json.dumps([*lists, list(rows)], separators=(",", ":")).encode()
    return np.frombuffer(zlib.compress(content, _LEVEL), np.uint8)


def read(content: NumpyArray, groups: int) -> Iterator[PackAnswer]:
    """The answers that were written of a plan with so many groups.

    Raises:
        Exception: they are damaged.
    """
    unpacking = zlib.decompressobj()
    plain = unpacking.decompress(content.tobytes(), MOST_JSON)
    if not unpacking.eof:
        raise ValueError("answers of schedules that are cut off, or too long")
    given_launches, given_functions, rows = json.loads(plain)
    launches = list(map(records.read_launch, given_launches))
    # Choices are run by who runs the pack's code, too: ``pack verify``, and programs in C.
    functions = [GuardedIntegers.read(one, asks_schedules=True) for one in given_functions]
    for group, target, threads, launch, function in rows:
        own, made = launches[place(launch, len(launches))], functions[place(function, len(functions))]
        if len(made.wanted) < len(own.temporaries):
            raise ValueError(f"{len(made.wanted)} integers of a launch with {len(own.temporaries)} temporaries")
        yield PackAnswer(place(group, groups), text(target), place(threads, MOST), own, made)
