"""ONNX Runtime's providers and devices, as targets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tvmdml import targets
from tvmdml.errors import InvalidArgument, NoDevice, TvmdmlError, Unsupported, counted, message, safe_repr
from tvmdml.system import logger
from tvmdml.targets import Target

CPU = "CPUExecutionProvider"
_TARGETS: Mapping[str, tuple[str, ...]] = {
    "DmlExecutionProvider": ("cuda", "vulkan"),
    "CUDAExecutionProvider": ("cuda",),
    "VulkanExecutionProvider": ("vulkan",),
    CPU: ("cpu",),
}
"""The kinds of target of each provider: the first one that this machine has is used. ONNX Runtime has no provider for Vulkan.

Where there is a choice, a Vulkan driver that computes on the processor is not taken."""
DEVICES: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "cuda": ("cuda",),
    "dml": ("cuda", "vulkan"),
    "gpu": ("cuda", "vulkan"),
    "vulkan": ("vulkan",),
}
"""The same of ONNX Runtime's names of devices."""


def get_all_providers() -> list[str]:
    """The providers that have a target."""
    return list(_TARGETS)


def get_available_providers() -> list[str]:
    """The providers whose targets this machine has, the best first. A Vulkan driver that computes on the processor has none."""
    usable = [name for name, kinds in _TARGETS.items() if any(_usable(kind) for kind in kinds)]
    return ["DmlExecutionProvider"] * (has_gpu() and "DmlExecutionProvider" not in usable) + usable


def get_device() -> str:
    """``GPU`` if a provider for one is available, and ``CPU`` otherwise."""
    return "GPU" if len(get_available_providers()) > 1 else "CPU"


def has_gpu() -> bool:
    """Whether DirectML's provider has a target."""
    return _chosen_by_variable() is not None or any(map(_usable, _TARGETS["DmlExecutionProvider"]))


def _chosen_by_variable() -> Target | None:
    """The target of ``TVMDML_DEVICE``, which DirectML's provider and device are if the program names no number.

    Raises:
        InvalidArgument, DeviceError: there is no such target.
    """
    name = os.environ.get("TVMDML_DEVICE", "").strip()
    return targets.resolve(name, "TVMDML_DEVICE") if name else None


def device(name: str, number: int = 0, where: str = "device_type") -> Target:
    """The target of a device, by ONNX Runtime's name.

    Raises:
        InvalidArgument: there is no such device.
        DeviceError: this machine has none.
    """
    kinds = DEVICES.get(name.lower()) if isinstance(name, str) else None
    if kinds is None:
        raise InvalidArgument(message(where, safe_repr(name), ", ".join(DEVICES)))
    if name.lower() == "dml" and number == 0 and (own := _chosen_by_variable()) is not None:
        return own
    return _first(kinds, number, where, len(kinds) > 1)


def provider_of(target: Target) -> str:
    """The provider that stands for a target."""
    return next(name for name in ("CUDAExecutionProvider", "VulkanExecutionProvider", CPU) if _TARGETS[name] == (target.kind,))


def chosen(
    providers: Sequence[Any] | str | None,
    options: Sequence[Mapping[str, Any]] | None = None,
    kinds: Collection[str] | None = None,
) -> tuple[str, Target, Mapping[str, Any]]:
    """The first provider that can be used, its target and its options. As in ONNX Runtime, others are passed over with a warning.

    Args:
        providers: a name, names, or pairs of a name and options; names of targets, too.
        options: options for each provider, unless they are in pairs: ``device_id`` has an effect.
        kinds: the kinds of target that the model is compiled for, if it is one of a pack.

    Raises:
        InvalidArgument: an entry is not a provider, or a target of tvmdml's own name cannot be used.
    """
    providers = () if providers is None else [providers] if isinstance(providers, str) else providers
    if not isinstance(providers, Iterable):
        raise InvalidArgument(message("providers", safe_repr(providers), "names, or pairs of a name and a mapping"))
    if options is not None and not isinstance(options, Sequence):
        raise InvalidArgument(message("provider_options", safe_repr(options), "a list of mappings, one for each provider"))
    providers = list(providers)
    if options and len(options) != len(providers):
        given, allowed = f"{len(options)} for {counted(len(providers), 'provider')}", "one for each provider"
        raise InvalidArgument(message("provider_options", given, allowed))
    several: list[tuple[str, Mapping[str, Any]]] = []
    one: Any
    own: Any
    for one, own in itertools.zip_longest(providers, options or (), fillvalue={}):
        name, given = one if isinstance(one, tuple) and len(one) == 2 else (one, own)
        if not isinstance(name, str) or not isinstance(given, Mapping):
            raise InvalidArgument(message("providers", safe_repr(one), "names, or pairs of a name and a mapping"))
        several.append((name, given))
    for name, own in several:
        if name.partition(":")[0] in targets.kinds():
            target = targets.resolve(name, "providers")
            return provider_of(target), target, own
        try:
            wanted = [kind for kind in _TARGETS[name] if kinds is None or kind in kinds]
            if not wanted:
                raise Unsupported(f"the pack has graphs for {', '.join(sorted(kinds or ())) or 'no target'} only")
            own_target = _chosen_by_variable() if name == "DmlExecutionProvider" and "device_id" not in own else None
            if own_target is not None and own_target.kind in (kinds or (own_target.kind,)):
                return name, own_target, own
            return name, _first(wanted, own.get("device_id", 0), f"providers {name}", len(_TARGETS[name]) > 1), own
        except KeyError:
            reason = f"there is no such provider here; there are {', '.join(_TARGETS)}"
        except TvmdmlError as error:
            reason = str(error)
        logger.warn(f"provider {safe_repr(name)} is passed over: {reason}", stacklevel=4)
    return CPU, targets.resolve("cpu"), {}


def without_effect(own: Mapping[str, Any]) -> list[str]:
    """The options of a provider that have no effect."""
    return [str(name) for name in own if name != "device_id"]


def _first(kinds: Sequence[str], number: Any, where: str, only_gpus: bool) -> Target:
    """The first kind of target that this machine has.

    Raises:
        InvalidArgument: the number is none.
        DeviceError: it has none.
    """
    kind = next(filter(_usable, kinds), kinds[-1])
    if only_gpus and _resolves(kind) and not _usable(kind):
        advice = "This machine's Vulkan driver computes on the processor: to use it, name vulkan, or VulkanExecutionProvider."
        raise NoDevice(message(where, "no GPU", "a GPU", advice))
    if kind == "cpu":
        return targets.resolve(kind, where)
    try:
        target = targets.resolve(f"{kind}:{int(number)}", where)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(message(f"{where} device_id", safe_repr(number), "an integer")) from None
    if only_gpus and kind == "vulkan" and target.name not in {row["target"] for row in targets.gpus(kind)}:
        advice = f"This driver computes on the processor: it is chosen as {target.name}."
        raise NoDevice(message(f"{where} device_id", number, "the number of a GPU", advice))
    return target


def _usable(kind: str) -> bool:
    """Whether this machine has the processor or a GPU for it."""
    return _resolves(kind) and (kind != "vulkan" or bool(targets.gpus(kind)))


def _resolves(kind: str) -> bool:
    try:
        targets.resolve(kind)
    except TvmdmlError:
        return False
    return True
