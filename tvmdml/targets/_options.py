"""The options --device and --feature_level of commands, and the list of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tvmdml.system.console import Row, parsed

if TYPE_CHECKING:
    from tvmdml.enums import FeatureLevel
    from tvmdml.targets import Target


def target_of(text: str) -> Target:
    """The target that a word of the command line names."""
    from tvmdml import targets

    return targets.resolve(text, "device")


def _level(text: str) -> FeatureLevel:
    from tvmdml.enums import FeatureLevel

    return FeatureLevel.of(text)


device_option = click.option(
    "--device",
    "--target",
    "device",
    metavar="TARGET",
    callback=parsed(target_of),
    help="Where to run: cpu, cpu:x86-64-v3, cuda:0, vulkan:0 …  [default: cpu]",
)
feature_level_option = click.option(
    "--feature_level",
    metavar="LEVEL",
    callback=parsed(_level),
    help="The feature level that operators are checked against.  [default: the newest]",
)


def device_rows() -> list[Row]:
    """The devices of this machine, and their states."""
    from tvmdml import targets

    return [row for kind in targets.kinds() for row in targets.target_class(kind).devices()]
