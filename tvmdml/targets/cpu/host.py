"""Identify this processor by its level and features, so that a kernel built here runs only where its instructions exist.

The operating system is asked, not LLVM: the answer is needed to find a stored kernel, and no compiler is loaded then.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from pathlib import Path
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, Unsupported, message

# What each x86-64 level adds to the one before, with the names of /proc/cpuinfo. (psABI for x86-64, "Micro-Architecture Levels")
_X86_LEVELS = (
    ("x86-64-v2", ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")),
    ("x86-64-v3", ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")),
    ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
)
# Features beyond the levels that kernels benefit from: LLVM's name, and the name in /proc/cpuinfo.
_X86_EXTRAS = (
    ("amx-bf16", "amx_bf16"),
    ("amx-int8", "amx_int8"),
    ("amx-tile", "amx_tile"),
    ("avx512bf16", "avx512_bf16"),
    ("avx512bitalg", "avx512_bitalg"),
    ("avx512fp16", "avx512_fp16"),
    ("avx512vbmi", "avx512vbmi"),
    ("avx512vbmi2", "avx512_vbmi2"),
    ("avx512vnni", "avx512_vnni"),
    ("avx512vpopcntdq", "avx512_vpopcntdq"),
    ("gfni", "gfni"),
)
_TILES = ("amx-int8", "amx-tile")
"""Matrix tiles (AMX), which multiply bytes: the system lets a process use them only if it asks."""
_OF_TILES = ("amx-bf16", *_TILES)
"""All that only exists with them."""
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
"""Linux's system call for x86-64, its ARCH_REQ_XCOMP_PERM, and the state that is asked for."""
_ARM_EXTRAS = (("dotprod", "asimddp"), ("fullfp16", "asimdhp"), ("i8mm", "i8mm"), ("sve", "sve"), ("sve2", "sve2"))
_ARM = "aarch64"
_ARM_MACHINES = (_ARM, "arm64")
_NAMES = {
    "{} {}.{}": ("vendor_id", "cpu family", "model"),
    "CPU implementer {} part {}": ("CPU implementer", "CPU part"),
}
"""How a processor's name is formed from lines of /proc/cpuinfo: for x86-64, and for Arm."""
_LEVEL_NAMES = tuple(name for name, _ in _X86_LEVELS)
_FAMILIES = {"x86-64": ("x86-64", *_LEVEL_NAMES), _ARM: (_ARM,)}
"""The levels of each family, the lowest first."""
_EXTRAS = {"x86-64": _X86_EXTRAS, _ARM: _ARM_EXTRAS}


class Processor(NamedTuple):
    """A processor to compile for."""

    level: str
    """``x86-64-v4``, ``aarch64``."""
    features: tuple[str, ...]
    """LLVM's names of the features beyond the level."""

    @property
    def name(self) -> str:
        """``x86-64-v4+avx512vbmi+gfni``."""
        return "+".join((self.level, *self.features))

    def has(self, feature: str) -> bool:
        """Whether it has a feature, by its name in /proc/cpuinfo or in LLVM; ``x86`` stands for the family."""
        if feature == "x86":
            return self.level.startswith("x86")
        below = _LEVEL_NAMES[: _LEVEL_NAMES.index(self.level) + 1] if self.level in _LEVEL_NAMES else ()
        return feature in self.features or any(feature in words for name, words in _X86_LEVELS if name in below)

    @property
    def words(self) -> tuple[str, ...]:
        """All features that it must have, by their names in /proc/cpuinfo."""
        levels = [words for name, words in _X86_LEVELS if name in _levels_of(self.level)[: self.rank[0] + 1]]
        extras = dict(_EXTRAS[_family_of(self.level)])
        return (*(word for words in levels for word in words), *(extras[feature] for feature in self.features))

    def runs(self, other: Processor) -> bool:
        """Whether code compiled for the other processor runs on this one."""
        levels = _levels_of(self.level)
        return (
            other.level in levels
            and levels.index(other.level) <= levels.index(self.level)
            and set(self.features).issuperset(other.features)
        )

    @property
    def rank(self) -> tuple[int, int]:
        """A processor of higher rank is better, within one family."""
        return _levels_of(self.level).index(self.level), len(self.features)

    @property
    def machine(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return _ARM if self.level == _ARM else "x86_64"

    @property
    def cpu(self) -> str:
        """LLVM's name of the processor."""
        return "generic" if self.level == _ARM else self.level

    @property
    def triple(self) -> str:
        """The LLVM target triple, with the host's system."""
        return f"{self.machine}-apple-darwin" if platform.system() == "Darwin" else f"{self.machine}-unknown-linux-gnu"

    @property
    def attributes(self) -> list[str]:
        """LLVM's ``mattr``. It enables 512-bit registers where they exist: LLVM avoids them, because of processors of 2017."""
        wide = ["-prefer-256-bit"] if self.level == "x86-64-v4" else []
        return [*(f"+{feature}" for feature in self.features), *wide]


@functools.cache
def host() -> Processor:
    """The processor this process runs on, without what the system does not let it use."""
    found = read(_cpuinfo(), platform.machine())
    if not set(_OF_TILES).intersection(found.features) or (set(_TILES).issubset(found.features) and tiles_are_permitted()):
        return found
    return found._replace(features=tuple(name for name in found.features if name not in _OF_TILES))


def chosen() -> Processor:
    """The processor that ``cpu`` means: this one, or a lower one that ``TVMDML_CPU`` names.

    Raises:
        InvalidArgument: the variable names no processor.
        Unsupported: this machine lacks a feature of the named one.
    """
    text = os.environ.get("TVMDML_CPU", "").strip()
    return _parsed(text, True, "TVMDML_CPU") if text else host()


ABSENT, REFUSED, USED = "absent", "refused", "in use"
"""States of matrix tiles."""


def state_of_tiles() -> str:
    """Whether this processor has matrix tiles (AMX) that multiply bytes, and kernels use them."""
    if set(_TILES).issubset(host().features):
        return USED
    return REFUSED if set(_TILES).issubset(read(_cpuinfo(), platform.machine()).features) else ABSENT


@functools.cache
def tiles_are_permitted() -> bool:
    """Whether the system lets this process use matrix tiles. It is asked once; all threads, also those of forked children, may
    use them then.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    import ctypes

    call = ctypes.CDLL(None).syscall
    call.argtypes, call.restype = (ctypes.c_long,) * 3, ctypes.c_long
    return bool(call(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


def read(cpuinfo: str, machine: str) -> Processor:
    """The processor that a /proc/cpuinfo describes, on a machine (``x86_64``, ``aarch64``)."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = frozenset(match[1].split()) if match else frozenset()
    if machine in _ARM_MACHINES:
        return Processor(_ARM, tuple(name for name, word in _ARM_EXTRAS if word in flags))
    level = "x86-64"
    for name, words in _X86_LEVELS:
        if not flags.issuperset(words):
            break
        level = name
    extras = _X86_EXTRAS if level == "x86-64-v4" else ()
    return Processor(level, tuple(name for name, word in extras if word in flags))


def parse(text: str, here: bool = True) -> Processor:
    """The processor for a text such as ``"x86-64-v3"`` or ``"x86-64-v4+gfni"``; empty text means the one that is ``chosen``.

    Args:
        text: the level and features.
        here: whether the compiled code must run on this machine.

    Raises:
        InvalidArgument: there is no such processor.
        Unsupported: this machine lacks a needed feature, so the kernels could not run here.
    """
    return _parsed(text, here, "target cpu") if text else chosen()


@functools.cache
def _parsed(text: str, here: bool, what: str) -> Processor:
    level, *features = text.split("+")
    own = host()
    families = [_family_of(own.level)] if here else list(_FAMILIES)
    family = next((family for family in families if level in _FAMILIES[family]), None)
    if family is None or not {name for name, _ in _EXTRAS[family]}.issuperset(features):
        allowed = "; ".join(
            f"{', '.join(_FAMILIES[one])}, each with any of +{', +'.join(name for name, _ in _EXTRAS[one])}" for one in families
        )
        raise InvalidArgument(message(what, repr(text), allowed))
    found = Processor(level, tuple(sorted(set(features))))
    if here and not own.runs(found):
        raise Unsupported(message(what, repr(text), f"what this processor has: {own.name}"))
    return found


def known(text: str) -> Processor | None:
    """Like ``parse``, but the processor need not be present; ``None`` if there is no such processor."""
    try:
        return parse(text, here=False) if text else None
    except InvalidArgument:
        return None


def _family_of(level: str) -> str:
    return next(family for family, levels in _FAMILIES.items() if level in levels)


def _levels_of(level: str) -> tuple[str, ...]:
    return _FAMILIES[_family_of(level)]


def model_name() -> str:
    """The manufacturer's name of the processor, for display."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


@functools.cache
def processor_name(cpuinfo: str | None = None) -> str:
    """Vendor, family and model: ``AuthenticAMD 25.17``, ``CPU implementer 0x41 part 0xd0c``; empty if unknown.

    Args:
        cpuinfo: another machine's /proc/cpuinfo, instead of this one's.
    """
    text = _cpuinfo() if cpuinfo is None else cpuinfo
    said = dict(re.findall(r"^([\w ]+?)\s*:\s*(\S+)$", text, re.MULTILINE))
    return next((form.format(*map(said.get, names)) for form, names in _NAMES.items() if said.keys() >= set(names)), "")


@functools.cache
def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
