"""The packs that this process takes kernels from: read-only stores, which are asked before the disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tvmdml.errors import CompileError, InvalidArgument, PackError, Unsupported

if TYPE_CHECKING:
    from tvmdml.kernel import Kernel
    from tvmdml.operators import Operator
    from tvmdml.packs.format import Pack
    from tvmdml.targets import Launch, Launcher, Target
    from tvmdml.tuning.logs import Logs

_loaded: tuple[LoadedPack, ...] = ()
"""The one loaded last is asked first."""
_libraries: dict[tuple[str, bytes], Any] = {}
"""Libraries that were loaded, by their checksums, or why one could not be."""
_listeners: tuple[Callable[[Operator, Target, bool], None], ...] = ()
_lock = threading.RLock()
generation = 0
"""Changes whenever kernels may come from elsewhere than before: what was planned under another one is planned anew."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()
    for pack in (*_loaded, *itertools.chain(*_of_environment.values())):
        pack.renew_lock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held it is not in the child


# -- Loading ------------------------------------------------------------------------------------------------------


def load_pack(path: str | os.PathLike[str], *, strict: bool = False) -> LoadedPack:
    """Have this process take kernels from a pack: from now on, or for the length of a ``with`` block.

    Packs are asked before the cache on disk, the one loaded last first. A pack is native code: loading one gives it all the rights
    of this process. ``TVMDML_TRUSTED_KEYS`` names the public keys of those whose packs may be loaded.

    Args:
        path: the pack's file.
        strict: nothing else may be run, now: no kernel from the cache on disk, and none that is compiled.

    Raises:
        PackError: it cannot be read, is damaged, or is not trusted.
    """
    global _loaded
    pack = LoadedPack(path, strict)
    with _lock:
        _loaded = (pack, *_loaded)
    forget_plans()
    return pack


class LoadedPack:
    """A pack that kernels are taken from, until ``close`` or the end of its ``with`` block.

    What was made ready meanwhile (compiled operators) goes on working.
    """

    def __init__(self, path: str | os.PathLike[str], strict: bool = False) -> None:
        from tvmdml.packs import signing
        from tvmdml.packs.format import Pack

        self.pack: Pack = Pack(path, signing.check)
        """The file."""
        self.strict = strict
        self._codes = frozenset(self.pack.head["targets"])
        self._opened: dict[tuple[str, bytes], Any] = {}
        self._launchers: dict[tuple[object, ...], Launcher] = {}
        self._deciding: dict[tuple[object, ...], Target] = {}
        self._logs: Logs | None = None
        self.renew_lock()

    def ready(self, desc: Operator, target: Target, in_place: bool) -> tuple[Kernel, Launch] | None:
        """A canonical operator's kernel, and how to launch it: of what the pack has and the target runs, the best.

        Raises:
            PackError: what the pack has is damaged, or was built with knobs that there are none of.
        """
        from tvmdml import operators

        module = operators.module_of(type(desc))
        for relative in target.relatives(self._codes):
            if not self._fits(module, relative):
                continue
            machine = self.deciding(relative)
            try:
                kernel = machine.kernel(desc, in_place)
            except Unsupported:
                continue
            except InvalidArgument as error:
                raise PackError(f"{self.pack.path}: its knobs are none of the schedules that it is of: {error}") from None
            if (launcher := self.find(kernel, machine)) is not None:
                return kernel, machine.launch(launcher, kernel.scalars, kernel.temporaries)
        return None

    def find(self, kernel: Kernel, target: Target) -> Launcher | None:
        """A kernel, loaded; ``None`` where the pack has none, or one of other schedules than are installed.

        Raises:
            PackError: what the pack has is damaged.
        """
        from tvmdml.packs.records import kernel_key, symbol_of

        identity = (target.name, target.code, *kernel.identity)
        if (launcher := self._launchers.get(identity)) is not None:
            return launcher
        key = kernel_key(target.code, kernel.module, kernel.name, kernel.parameters)
        number = self.pack.find(key)
        if number is None or not self.fits(kernel, target):
            return None
        with self._guard:
            try:
                opened = self._part(number, kernel, target)
                launcher = self._launchers[identity] = target.entry(opened, symbol_of(key))
            except CompileError as error:
                raise PackError(f"{self.pack.path}: part {number}: {error}") from None
        return launcher

    def fits(self, kernel: Kernel, target: Target) -> bool:
        """Whether it was built of the schedules that are installed: by others, what those decide is another kernel's."""
        return self._source(kernel.module, target) == kernel.source(target)

    def _fits(self, module: str, target: Target) -> bool:
        """The same, before anything is decided; says so where it was not."""
        from tvmdml.kernel import source_stamp
        from tvmdml.stores import warn_once

        stamp = self._source(module, target)
        fits = stamp == source_stamp(module, target)
        if stamp is not None and not fits:
            about = f"{self.pack.path}: its {target.kind} kernels for {module}"
            warn_once(about, f"tvmdml: {about} are of other schedules than are installed, and are passed over. Build it anew.")
        return fits

    def reason(self, desc: Operator, kernel: Kernel, target: Target, in_place: bool) -> str:
        """Why it does not serve an operation, where that is not for want of it."""
        from tvmdml.packs import lines
        from tvmdml.packs.records import operation_key

        path, made = self.pack.path, self.pack.head["producer"].get("tvmdml")
        if self._source(kernel.module, target) not in (None, kernel.source(target)):
            return f"{path} is of other schedules than are installed (it was built by tvmdml {made}): build it anew."
        line = lines.of(desc)
        having = {
            code: name
            for code, name in self.pack.head["targets"].items()
            if self.pack.operation(operation_key(code, line, in_place))
        }
        if not having or any(relative.code in having for relative in target.relatives(self._codes)):
            return ""
        return (
            f"{path} has it for {', '.join(having.values())}, which is not what runs here: build it for {target.spec_name} as well."
        )

    def _source(self, module: str, target: Target) -> str | None:
        """The stamp of the schedules that its kernels of an operator and kind were built of; ``None`` where it has none."""
        found: str | None = self.pack.head["sources"].get(f"{target.kind} {module}")
        return found

    def close(self) -> None:
        """Take no more kernels from it. Its file is closed when nobody uses it any more."""
        global _loaded
        with _lock:
            _loaded = tuple(pack for pack in _loaded if pack is not self)
        forget_plans()

    def renew_lock(self) -> None:
        """In a forked child, which has none of the threads that may have held it."""
        self._guard = threading.RLock()

    def __enter__(self) -> LoadedPack:
        """The pack is loaded already; one that was closed stays so."""
        if self not in _loaded:
            raise PackError(f"{self.pack.path}: this pack was closed. Load it again.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Its path, and how much is in it."""
        return f"<LoadedPack {self.pack.path}: {self.pack.count} records{', strict' if self.strict else ''}>"

    def deciding(self, target: Target) -> Target:
        """The target, with the knobs and the logs that the pack was built with.

        Raises:
            PackError: its logs are none.
        """
        key = (target.name, target.code, target.tasks())
        if key not in self._deciding:
            from tvmdml.packs import tuned

            if self._logs is None:
                try:
                    self._logs = tuned.logs_of(self.pack.head["logs"])
                except InvalidArgument as error:
                    raise self.pack.damaged(f"a record of its tuning logs makes no sense ({error})") from None
            self._deciding[key] = tuned.deciding(target, self.pack.head["knobs"], self._logs)
        return self._deciding[key]

    def _part(self, number: int, kernel: Kernel, target: Target) -> Any:
        """A part, loaded: a library for good, and once in a process, whichever packs it comes from."""
        part = self.pack.part(number)
        key = ("", part.sha256) if target.joins else (target.name, part.sha256)
        opened = _libraries if target.joins else self._opened
        if key not in opened:
            try:
                opened[key] = self._open(number, kernel, target)
            except CompileError as error:
                opened[key] = error  # it would be no better another time
        if isinstance(opened[key], CompileError):
            raise opened[key]
        return opened[key]

    def _open(self, number: int, kernel: Kernel, target: Target) -> Any:
        from tvmdml.stores import Artifact

        suffix = self.pack.part(number).suffix
        if suffix not in target.suffixes:
            raise self.pack.damaged(f"a kernel for {target.kind} is in a part of type {suffix!r}")
        return target.open(self._unpacked(number, kernel, target) if target.joins else Artifact(suffix, self.pack.content(number)))

    def _unpacked(self, number: int, kernel: Kernel, target: Target) -> Any:
        """A library, unpacked once on a machine: it is kept on disk under its content's hash."""
        from tvmdml.stores import Artifact, DiskStore

        part = self.pack.part(number)
        store, digest = DiskStore(), part.sha256.hex()[:40]
        if (artifact := store.find(digest, (part.suffix,), part.sha256.hex())) is not None:
            return artifact
        content = self.pack.content(number)
        manifest: dict[str, object] = {"operator": kernel.module, "kernel": "part of a pack", "target": target.code}
        with contextlib.suppress(OSError), store.staging(digest) as folder:
            built = folder / f"part{part.suffix}"
            built.write_bytes(content)
            return store.add(digest, manifest, built)
        return Artifact(part.suffix, content)


# -- What the compiler asks ---------------------------------------------------------------------------------------


def ready(desc: Operator, target: Target, in_place: bool) -> tuple[Kernel, Launch] | None:
    """A canonical operator's kernel from the first pack that has it."""
    for pack in _packs():
        if (found := pack.ready(desc, target, in_place)) is not None:
            return found
    return None


def strict() -> bool:
    """Whether only packs may be used."""
    return any(pack.strict for pack in _packs())


def missing(desc: Operator, target: Target, in_place: bool, why: str) -> str:
    """What to say where no pack has a kernel, and, for a reason, no other will do."""
    packs = _packs()
    kernel = target.kernel(desc.canonical(), in_place)
    reasons = [reason for pack in packs if (reason := pack.reason(desc, kernel, target, in_place))]
    if packs:
        found = f"no pack has its kernel (looked in {', '.join(str(pack.pack.path) for pack in packs)})"
    else:
        found = "no pack is loaded"
    return f"{desc.NAME} on {target}: {found}, {why}. {' '.join(reasons) or _advice(desc, in_place)}"


def _advice(desc: Operator, in_place: bool) -> str:
    """What to add to a spec, to have an operator in a pack."""
    from tvmdml.packs import lines

    return f"To have it in a pack, add this line to the kernels of its spec: {lines.toml(lines.of(desc), in_place)}"


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


# -- Recording ----------------------------------------------------------------------------------------------------


def note(desc: Operator, target: Target, in_place: bool) -> None:
    """Tell those who record that an operator is made ready."""
    if folder := os.environ.get("TVMDML_PACK_RECORD", ""):
        from tvmdml.packs import recording

        recording.append(folder, desc, target, in_place)
    for listener in _listeners:
        listener(desc, target, in_place)


def listen(listener: Callable[[Operator, Target, bool], None]) -> None:
    """Have a function called with every operator that is made ready, from now on."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
    forget_plans()


def stop(listener: Callable[[Operator, Target, bool], None]) -> None:
    """Have it called no more."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one != listener)


def forget_plans() -> None:
    """Have functions plan their calls anew."""
    import sys

    global generation
    generation += 1
    # It has no plans yet where it is just being imported.
    if (forget := getattr(sys.modules.get("tvmdml.functions"), "forget_plans", None)) is not None:
        forget()
