"""The packs that this process has loaded: read-only stores of kernels, searched before the cache on disk."""

from __future__ import annotations

import itertools
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from tvmdml.errors import InvalidArgument, PackError, Unsupported, bounded
from tvmdml.kernels import plans
from tvmdml.library.opened import OpenedPack

if TYPE_CHECKING:
    from tvmdml.kernels.kernel import Kernel
    from tvmdml.library.logs import Logs
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared
    from tvmdml.targets import Launch, Target

Found: TypeAlias = "tuple[Kernel, Launch, tuple[Launch, ...]]"
"""A kernel, its launch, and the launches of the kernels that pack its inputs."""

_loaded: tuple[LoadedPack, ...] = ()
"""The pack loaded last is searched first."""
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()
    for pack in (*_loaded, *itertools.chain(*_of_environment.values())):
        pack.renew_lock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


# -- Loading ------------------------------------------------------------------------------------------------------


def load_pack(path: str | os.PathLike[str], *, strict: bool = False) -> LoadedPack:
    """Use the kernels of a pack in this process: from now on, or for the duration of a ``with`` block.

    Packs are searched before the cache on disk, the pack loaded last first. A pack is native code, and runs with all rights of this
    process. If ``TVMDML_TRUSTED_KEYS`` is set, only packs signed by one of its keys are loaded; if it is not set, every pack is.
    Packs are checked when they are loaded: keys set later do not unload them.

    Args:
        path: the pack's file.
        strict: run kernels from packs only: none from the cache on disk, and none that would have to be compiled.

    Raises:
        InvalidArgument: ``TVMDML_TRUSTED_KEYS`` is set and names no key, or a key that cannot be read.
        PackError: the pack cannot be read, is damaged, or is not trusted.
    """
    global _loaded
    pack = LoadedPack(path, strict)
    with _lock:
        _loaded = (pack, *_loaded)
    plans.forget()
    return pack


class LoadedPack(OpenedPack):
    """A pack whose kernels are used, until ``close`` or the end of its ``with`` block.

    Operators that were compiled meanwhile keep working.
    """

    def __init__(self, path: str | os.PathLike[str], strict: bool = False, *, own: bool = False) -> None:
        """Not public: ``load_pack`` makes it. A pack that this process has just built (``own``) needs no signature."""
        from tvmdml.library import signing

        super().__init__(path, own=own)
        self.strict = strict
        self.is_trusted = not own and signing.trusted_keys() is not None
        """Whether a key of ``TVMDML_TRUSTED_KEYS`` has signed it."""
        self._deciding: dict[tuple[object, ...], Target] = {}
        self._logs: Logs | None = None

    def ready(self, desc: Operator, target: Target, shared: Shared) -> Found | None:
        """The kernel of a canonical operator, and how to launch it: the best one in the pack that the target can run.

        Raises:
            PackError: the kernel is damaged, or the pack was built with knobs that do not exist.
        """
        for relative in target.relatives(self.codes):
            if (kernel := self.kernel_for(desc, shared, relative)) is None:
                continue
            machine = self.deciding(relative)
            launchers = [self.find(one, machine) for one in kernel.every]
            if None not in launchers:
                found = zip(kernel.every, launchers, strict=True)
                own, *packers = (machine.launch(launcher, one.scalars, one.temporaries) for one, launcher in found)
                return kernel, own, tuple(packers)
        return None

    def kernel_for(self, desc: Operator, shared: Shared, relative: Target) -> Kernel | None:
        """What the schedules choose for a canonical operator, as when the pack was built: for one of the pack's targets.

        ``None`` if they do not support it, or are others than those that the pack was built from.

        Raises:
            PackError: the pack was built with knobs that do not exist.
        """
        from tvmdml.library.scheduling import kernel_for

        if not all(self._fits(module, relative) for module in desc.modules()):
            return None
        try:
            return kernel_for(desc, self.deciding(relative), shared)
        except Unsupported:
            return None
        except InvalidArgument as error:
            raise PackError(f"{self.pack.shown}: its schedules do not have its knobs: {error}") from None

    def _fits(self, module: str, target: Target) -> bool:
        """The same before a kernel is chosen; warns if the schedules differ."""
        from tvmdml.library.stamps import source_stamp
        from tvmdml.system.disk.stores import warn_once

        stamp = self.source(module, target)
        fits = stamp == source_stamp(module, target)
        if stamp is not None and not fits:
            about = f"{self.pack.shown}: its {target.kind} kernels for {module}"
            warn_once(
                about, f"tvmdml: {about} were built from other schedules than those installed, and are not used. Build it again."
            )
        return fits

    def reason(self, desc: Operator, kernel: Kernel, target: Target, shared: Shared) -> str:
        """Why this pack cannot run an operation, if not simply because it does not contain it."""
        from tvmdml.library import lines
        from tvmdml.library.records import operation_key
        from tvmdml.operators import _shared

        path, made = self.pack.shown, self.pack.head["producer"].get("tvmdml")
        if self.differs(kernel, target):
            return f"{path} was built from other schedules than those installed (by tvmdml {made}): build it again."
        line, in_place = lines.of(desc), _shared.write(desc, shared)
        having = {
            code: name
            for code, name in self.pack.head["targets"].items()
            if self.pack.operation(operation_key(code, line, in_place))
        }
        if not having or any(relative.code in having for relative in target.relatives(self.codes)):
            return ""
        return f"{path} has it for {', '.join(having.values())}, which does not run here: build it for {target.spec_name} as well."

    def close(self) -> None:
        """Stop using the pack for new operators. Its file is closed when nothing uses it any more."""
        global _loaded
        with _lock:
            _loaded = tuple(pack for pack in _loaded if pack is not self)
        plans.forget()

    def __enter__(self) -> LoadedPack:
        """The pack is already loaded. A closed pack cannot be entered again."""
        if self not in _loaded:
            raise PackError(f"{self.pack.shown}: this pack was closed. Load it again.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """The path and the number of records."""
        return bounded(f"<LoadedPack {self.pack.shown}: {self.pack.count} records{', strict' if self.strict else ''}>")

    def deciding(self, target: Target) -> Target:
        """The target, with the knobs and tuning records that the pack was built with.

        Raises:
            PackError: its tuning records are not valid.
        """
        key = (target.name, target.code, target.tasks())
        if key not in self._deciding:
            from tvmdml.library import tuned

            if self._logs is None:
                try:
                    self._logs = tuned.logs_of(self.pack.head["logs"])
                except InvalidArgument as error:
                    raise self.pack.damaged(f"one of its tuning records is invalid ({error})") from None
            self._deciding[key] = tuned.deciding(target, self.pack.head["knobs"], self._logs)
        return self._deciding[key]


# -- The interface of the compiler --------------------------------------------------------------------------------


def ready(desc: Operator, target: Target, shared: Shared) -> Found | None:
    """The kernel of a canonical operator, from the first pack that has it."""
    for pack in _packs():
        if (found := pack.ready(desc, target, shared)) is not None:
            return found
    return None


def strict() -> bool:
    """Whether a loaded pack forbids all other kernels."""
    return any(pack.strict for pack in _packs())


def missing(desc: Operator, target: Target, shared: Shared, why: str) -> str:
    """The error message when no pack has a kernel and, for the reason ``why``, no other kernel may be used."""
    from tvmdml.library.scheduling import kernel_for

    packs = _packs()
    kernel = kernel_for(desc.canonical(), target, shared)
    reasons = [reason for pack in packs if (reason := pack.reason(desc, kernel, target, shared))]
    if packs:
        found = f"no pack has its kernel (looked in {', '.join(pack.pack.shown for pack in packs)})"
    else:
        found = "no pack is loaded"
    return f"{desc.NAME} on {target}: {found}, {why}. {' '.join(reasons) or _advice(desc, shared)}"


def _advice(desc: Operator, shared: Shared) -> str:
    """The line that adds an operator to the spec of a pack."""
    from tvmdml.library import lines
    from tvmdml.operators import _shared

    line = lines.toml(lines.of(desc), _shared.write(desc, shared))
    return f"To have it in a pack, add this line to the kernels of its spec: {line}"


def _packs() -> tuple[LoadedPack, ...]:
    text = os.environ.get("TVMDML_PACKS", "")
    return _loaded if not text else (*_loaded, *_named(text, os.environ.get("TVMDML_TRUSTED_KEYS")))


_of_environment: dict[tuple[str, str | None], tuple[LoadedPack, ...]] = {}


def _named(text: str, keys: str | None) -> tuple[LoadedPack, ...]:
    """The packs of ``TVMDML_PACKS``. They are loaded again, and so checked again, when ``TVMDML_TRUSTED_KEYS`` changes."""
    with _lock:
        if (text, keys) not in _of_environment:
            try:
                _of_environment[text, keys] = tuple(LoadedPack(path) for path in text.split(os.pathsep) if path)
            except PackError as error:
                raise PackError(f"TVMDML_PACKS: {error}") from None
        return _of_environment[text, keys]
