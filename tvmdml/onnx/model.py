"""``load`` and ``Model``: an ONNX model that runs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakValueDictionary

from tvmdml import targets
from tvmdml.errors import InvalidArgument, ModelError, Unsupported, clean, counted, message, safe_repr
from tvmdml.graph.explaining import Explanation, explanation
from tvmdml.library.files import is_graph, is_pack
from tvmdml.onnx.arguments import ModelMetadata
from tvmdml.onnx.kept import CachedModel
from tvmdml.onnx.profiling import Profile, in_folder
from tvmdml.onnx.providers import chosen, without_effect
from tvmdml.onnx.random_state import RandomStates
from tvmdml.onnx.running import Argument, Ready, Runnable, listed, unnamed
from tvmdml.onnx.severity import WARNING, checked, set_default_logger_severity
from tvmdml.onnx.stage import Stage, renew_at_fork
from tvmdml.onnx.types import ACCURACIES, Exactness, Undecided
from tvmdml.system import at_hand
from tvmdml.system.console import printable
from tvmdml.system.disk.stores import warn_once
from tvmdml.system.logger import timed
from tvmdml.tensors import PRECISIONS

if TYPE_CHECKING:
    from tvmdml.graph.compiled import CompiledGraph
    from tvmdml.onnx.following import Rest
    from tvmdml.onnx.foreign import ForeignRuntime
    from tvmdml.onnx.options import SessionOptions
    from tvmdml.onnx.origin import Origin, Recorded

Progress = Callable[[int, int], object]


def load(
    model: str | os.PathLike[str] | bytes | object,
    sizes: Mapping[str, int] | None = None,
    *,
    target: str | targets.Target = "cpu",
    progress: Progress | None = None,
    seed: int | None = None,
    fallback: str | None = None,
    accuracy: str = ACCURACIES[0],
    precision: str = PRECISIONS[0],
) -> Runnable:
    """Read an ONNX model, or one of a pack, which needs neither the compiler nor the package onnx; or a saved graph.

    Args:
        model: the path of a file, its bytes, or an ``onnx.ModelProto``; or the path of a pack, built from ONNX models or
            graphs, or of a graph that ``save_graph`` wrote.
        sizes: values of open sizes, by name; one that the model does not name is the input's name and its axis, such as ``x.0``.
            Of a pack, they choose among the sizes that it was built for. If no size is left open, the model is compiled now;
            otherwise for each combination of sizes on first use.
        target: where to run, as for ``tvmdml.compile``.
        progress: called with (kernels ready, kernels in all) while kernels compile.
        seed: an integer from which all random numbers follow that have no seed in the model; without one, that of ``set_seed``, or
            the system's entropy.
        fallback: the name of a module that runs nodes which cannot be converted: "onnxruntime", or a package with a backend of
            ONNX's own kind. Without it, such a model is refused.
        accuracy: "file" lets DynamicQuantizeLSTM, and MatMulNBits where its accuracy_level is 4, round what they multiply to bytes,
            as ONNX Runtime does; with "exact" products and sums are as exact as those of float32.
        precision: "bf16" lets products and convolutions of float32 by weights round both factors to bfloat16, with sums in float32,
            on processors; ``explain`` names those that do. With "exact" none does.

    Packs and saved graphs compute as they were made: for them fallback, accuracy and precision must be left out.

    Raises:
        ModelError: it is not a valid model.
        PackError: the pack has no model, is damaged, or not trusted.
        Unsupported: operators have no counterpart, all of which are listed; or ONNX is not installed.
        InvalidArgument: a size, the target, the seed, the accuracy or the precision is wrong; or a pack or a saved graph is given
            what only a model takes.
    """
    place = targets.resolve(target, "load target")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise InvalidArgument(message("load sizes", safe_repr(sizes), 'a mapping of names to numbers, such as {"batch": 1}'))
    exactness = Exactness(accuracy, precision)
    exactness.check()
    if _is_compiled(model):
        for name, given, default in (("fallback", fallback, None), *zip(exactness._fields, exactness, Exactness(), strict=True)):
            if given != default:
                allowed = f"{default!r}: a pack or a saved graph computes as it was made"
                advice = f"Give it where the model is read: when {printable(model)} is built."
                raise InvalidArgument(message(f"load {name}", safe_repr(given), allowed, advice))
        at_hand("tvmdml.onnx.packed", "tvmdml.onnx.packed_open")
        from tvmdml.library.shelf import load_pack
        from tvmdml.onnx.packed import PackedModel, open_models
        from tvmdml.onnx.packed_open import OpenPackedModel

        if is_pack(model):
            with load_pack(model) as loaded:
                if records := open_models(loaded, place):
                    return OpenPackedModel(model, loaded, records, sizes or {}, place, seed)
        return PackedModel(model, sizes or {}, place, progress, seed)
    library = None
    if fallback is not None:
        at_hand("tvmdml.onnx.foreign")
        from tvmdml.onnx.foreign import ForeignRuntime

        library = ForeignRuntime(fallback)
    begun = time.perf_counter()
    found = Model(model, sizes or {}, place, progress, seed, library, exactness)
    found.compile_if_known()
    timed(time.perf_counter() - begun, "%s: loaded%s", clean(found.name), " from the cache" * (found._read is None))
    return found


def _is_compiled(model: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is the path of a pack or of a saved graph."""
    return isinstance(model, (str, os.PathLike)) and (is_pack(model) or is_graph(model))


class Model(Runnable):
    """An ONNX model, compiled for each combination of sizes on first use.

    What the cache has of it is used as it is (``kept``). The file is read only if something is missing there.
    """

    def __init__(
        self,
        model: Any,
        sizes: Mapping[str, int],
        target: targets.Target,
        progress: Progress | None = None,
        seed: int | None = None,
        fallback: ForeignRuntime | None = None,
        exactness: Exactness = Exactness(),  # noqa: B008 - it does not change
    ) -> None:
        """Not public: ``load`` makes models."""
        self._fallback, self._exactness = fallback, exactness
        self.numbers = RandomStates(seed)
        self.target = target
        self.name = str(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else "model"
        self._given, self._progress = model, progress
        self._lock = threading.RLock()
        renew_at_fork(self)
        self._read: Origin | None = None
        self._stages: WeakValueDictionary[str, Stage] = WeakValueDictionary()
        """Those of recordings that are there."""
        self._is_known = False
        self._kept = CachedModel.of(model, sizes, target, "" if fallback is None else fallback.name, exactness)
        header = None if self._kept is None else self._kept.header()
        if header is None:
            self._about, self._deciding = self._origin().about(sizes), frozenset[str]()
        else:
            self._about, self._deciding = header
        if header is None and self._kept is not None:
            self._kept.keep_header(self._about, self._deciding)
        self._is_known = True
        self.inputs, self.outputs, self.defaults = self._about.inputs, self._about.outputs, self._about.defaults
        results = [n for one in self.outputs for n in one.shape or () if isinstance(n, str)]
        self.symbols = tuple(dict.fromkeys([*self._open_sizes(), *results]))
        """The names of the sizes that are open. One that the model does not name is the input's and its axis, such as ``x.0``."""
        self._stage = self._new_stage(self.feeds)
        self._stage.deciding = self._deciding

    def metadata(self) -> ModelMetadata:
        """What the file says of itself."""
        return self._about.metadata

    def compile_if_known(self) -> None:
        """Compile now, if no size of an input is open."""
        if (shapes := self._known_shapes()) is not None:
            try:
                self._stage.made(shapes, {})
            except Undecided as error:  # compiled when these inputs are given
                self._stage.deciding |= error.inputs
                self._decide(self._stage.deciding)

    def recorded(self) -> Recorded:
        """The model for the sizes that it has, for a pack.

        Raises:
            InvalidArgument: a size is open, or an input's elements decide how the model is computed.
            ModelError, Unsupported: as ``load``.
        """
        if several := [one for one in self.inputs if one.kind.is_sequence]:
            advice = "Make an input of each tensor, and a sequence of them by SequenceConstruct."
            raise Unsupported(message(self.name, f"inputs that are sequences ({listed(several)})", "tensors, for a pack", advice))
        shapes = self._known_shapes()
        if shapes is None:
            at_hand("tvmdml.system.console")
            from tvmdml.system.console import printable  # it imports click, which loading a model does not need

            given, wanted = f"a model with open sizes ({listed(self.inputs)})", self._open_sizes()
            advice = f"They are given by name: {' '.join(f'--size {printable(name)}=N' for name in wanted)}" if wanted else ""
            raise InvalidArgument(message(self.name, given, f"known sizes of {', '.join(wanted) or 'all inputs'}", advice))
        try:
            return self._origin().recorded(shapes, self._about)
        except Undecided as error:
            given = f"a model that the elements of {', '.join(sorted(error.inputs))} decide about"
            advice = "Cut it before the nodes that need them, or add initializers with these inputs' names."
            raise InvalidArgument(message(self.name, given, "one that shapes and constants decide about", advice)) from None

    def explain(self) -> Explanation:
        """The recordings that ran so far: the sizes that each holds for, and the launches with expressions of sizes."""
        with self._lock:
            stages = [self._stage, *self._stages.values()]
        several = [recordings for stage in stages for recordings in stage.recordings()]
        lines = [line for recordings in several for line in recordings.explained()]
        count, plans = sum(len(recordings.every) for recordings in several), sum(stage.plans for stage in stages)
        total = f"{counted(count, 'recording')}, {counted(plans, 'combination')} of sizes with a plan"
        return explanation(lines, total)

    # -- How

    def _origin(self) -> Origin:
        """The model as its file describes it, which is read now at the latest.

        Raises:
            ModelError: the file is not the one that was loaded.
        """
        with self._lock:
            if self._read is None:
                at_hand("tvmdml.onnx.origin")
                from tvmdml.onnx.origin import Origin

                content = None if self._kept is None else self._kept.content
                file = None if content is None else content.opened()
                with nullcontext() if file is None else file:
                    read = Origin(self._given, file, self.target, self._following, self._fallback, self._exactness)
                if content is not None and not content.is_unchanged():
                    if self._is_known:
                        given = "a file that changed after it was loaded"
                        raise ModelError(message(self.name, given, "the same file", "Load it again."))
                    self._kept = None  # it is changing now
                elif content is not None and self._kept is not None:
                    self._kept.is_read(read.source.place_of)
                    if content.folder is not None:
                        read.source.folder, read.source.home = content.folder, content.home
                self.name, self._read, self._given = read.name, read, None
            return self._read

    def _decide(self, inputs: AbstractSet[str]) -> None:
        """More inputs decide how the model is computed."""
        self._deciding = inputs
        if self._kept is not None:
            self._kept.keep_header(self._about, frozenset(inputs))

    def _open_sizes(self) -> list[str]:
        """The names of the inputs' sizes that are open, each once."""
        return list(dict.fromkeys(n for one in self.inputs for n in one.open_sizes()))

    def _known_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the inputs, if no size is open."""
        found = {}
        for one in self.inputs:
            if one.shape is None or not all(isinstance(n, int) for n in one.shape):
                return None
            found[one.name] = tuple(n for n in one.shape if isinstance(n, int))
        return found

    def _ready(self, shapes: Mapping[str, tuple[int, ...]], views: Mapping[str, Any]) -> Ready:
        return self._stage.ready(shapes, views, self._check, self._decide)

    def _following(self, part: Rest) -> Stage:
        """The stage of nodes that follow another one."""
        with self._lock:
            if (stage := self._stages.get(part.name)) is None:
                stage = self._stages[part.name] = self._new_stage(part.given, part)
            stage.complete(part)
            return stage

    def _new_stage(self, feeds: Sequence[Argument], part: Rest | None = None) -> Stage:
        return Stage(self.name, feeds, self._origin, lambda: self._kept, self._following, part, self._progress)


class InferenceSession(Runnable):
    """``onnxruntime.InferenceSession``: a model, or one of a pack, on the target of the first provider that this machine has."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        fallback: str | None = None,
        accuracy: str = ACCURACIES[0],
        precision: str = PRECISIONS[0],
        **others: Any,
    ) -> None:
        """Read a model, or one of a pack.

        Args:
            path_or_bytes: as for ``load``.
            sess_options: ``add_free_dimension_override_by_name`` gives symbolic sizes, and those that the model does not have are
                passed over; ``SessionOptions`` says what else has an effect.
            providers: names of ONNX Runtime's providers, pairs of a name and options, or targets' names; without them, those of the
                options, or the CPU. One that a pack has no graph for is passed over.
            provider_options: ``device_id`` has an effect.
            fallback: as for ``load``.
            accuracy: as for ``load``.
            precision: as for ``load``.
            others: what else ONNX Runtime takes; it has no effect.

        Raises:
            ModelError, PackError, Unsupported, InvalidArgument: as ``load``; or an option has a value that it cannot have.
            OSError: the file of ``optimized_model_filepath`` cannot be written.
        """
        if sess_options is not None:
            from tvmdml.onnx.options import SessionOptions, given

            self.options = given(SessionOptions, "sess_options", sess_options)
        self._given, self._fallback, self._exactness = path_or_bytes, fallback, Exactness(accuracy, precision)
        self.threads = self.options.threads()
        level = self.options.log_severity_level
        severity = WARNING if level == -1 else checked(level, "log_severity_level")
        if severity < WARNING:
            set_default_logger_severity(severity)
        in_folder(self.options.optimized_model_filepath, "optimized_model_filepath")
        if self.options.enable_profiling:
            self.profile = Profile(self.options.profile_file_prefix)
        self._open(providers, provider_options)
        if severity <= WARNING:
            ignored = [*self.options.without_effect(), *others, *without_effect(self.provider_options)]
            if self.threads and self._is_pack():
                ignored.append("intra_op_num_threads, of packs")
            if ignored:
                names = ", ".join(map(clean, ignored))
                warn_once(f"InferenceSession {names}", f"tvmdml: these options of sessions have no effect: {names}.")
        if self.options.optimized_model_filepath:
            self._write(self.options.optimized_model_filepath)
        if self.profile is not None:
            weakref.finalize(self, self.profile.end)

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Run on the first of these providers that this machine has, from now on.

        Raises:
            ModelError, PackError, Unsupported, InvalidArgument: as for a new session.
        """
        self._open(providers, provider_options)

    def _is_pack(self) -> bool:
        return _is_compiled(self._given) and is_pack(self._given)

    def _open(self, providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None) -> None:
        is_compiled, kinds = _is_compiled(self._given), None
        sizes = {} if is_compiled else self.options.sizes
        if self._is_pack():
            at_hand("tvmdml.onnx.packed")
            from tvmdml.onnx.packed import kinds_of

            kinds = kinds_of(str(os.fspath(self._given)))
        providers = self.options.providers if providers is None else providers
        self.provider, self.target, self.provider_options = chosen(providers, provider_options, kinds)
        if self.options.denotations and not is_compiled:
            sizes = {**self._denoted(), **sizes}
        with self.limited():
            self._model = model = self._loaded(sizes)
        self.name, self.inputs, self.outputs, self.symbols = model.name, model.inputs, model.outputs, model.symbols
        self.defaults, self.numbers = model.defaults, model.numbers

    def _loaded(self, sizes: Mapping[str, int]) -> Runnable:
        """The model. Sizes that it does not have are passed over, as in ONNX Runtime."""
        try:
            return load(self._given, sizes, target=self.target, fallback=self._fallback, **self._exactness._asdict())
        except InvalidArgument:
            if not sizes:
                raise
            symbols = Model(self._given, {}, self.target).symbols
            known = {name: n for name, n in sizes.items() if name in symbols}
            if len(known) == len(sizes):
                raise
            return load(self._given, known, target=self.target, fallback=self._fallback, **self._exactness._asdict())

    def _denoted(self) -> dict[str, int]:
        """The sizes that ``add_free_dimension_override_by_denotation`` closes, by name."""
        inputs = Model(self._given, {}, self.target)._origin().source.model.graph.input
        found = {}
        for one in inputs:
            for axis, size in enumerate(one.type.tensor_type.shape.dim):
                if size.denotation in self.options.denotations and not size.HasField("dim_value"):
                    found[size.dim_param or unnamed(one.name, axis)] = self.options.denotations[size.denotation]
        return found

    def _write(self, path: str) -> None:
        """Write the model with its weights, and its sizes as they are here: what is made of it is kept in the cache instead."""
        if _is_compiled(self._given):
            warn_once(f"optimized {path}", "tvmdml: optimized_model_filepath has no effect of packs and saved graphs.")
            return
        at_hand("onnx", "tvmdml.onnx.reading")
        import onnx

        from tvmdml.onnx.reading import MOST_BYTES

        if isinstance(self._given, (str, os.PathLike)):
            made = onnx.load_model(os.fspath(self._given))
        else:
            made = self._given if isinstance(self._given, onnx.ModelProto) else onnx.load_model_from_string(bytes(self._given))
            made = onnx.ModelProto.FromString(made.SerializeToString())
        closed = {one.name: one.shape or () for one in self.inputs}
        pairs = ((one.type.tensor_type.shape.dim, closed.get(one.name, ())) for one in made.graph.input)
        dims = [pair for own, known in pairs for pair in zip(own, known, strict=False)]
        sizes = {d.dim_param: n for d, n in dims if d.dim_param and isinstance(n, int)}
        for one in (*made.graph.input, *made.graph.output):
            for d in one.type.tensor_type.shape.dim:
                if d.dim_param in sizes:
                    d.dim_value = sizes[d.dim_param]
        large = made.ByteSize() >= MOST_BYTES
        onnx.save_model(made, path, save_as_external_data=large, location=f"{os.path.basename(path)}.data" if large else None)

    def explain(self) -> Explanation:
        """As every model does."""
        return self._model.explain()

    def __call__(self, inputs: Any = None, /, **named: Any) -> list[Any]:
        """As every model does, with ``intra_op_num_threads``."""
        if not self.threads:
            return super().__call__(inputs, **named)
        with self.limited():
            return super().__call__(inputs, **named)

    def _run(self, graph: CompiledGraph, inputs: Mapping[str, Any]) -> list[Any]:
        return graph(inputs) if self.profile is None else self.profile.run(graph, inputs, self.get_providers()[0])

    def metadata(self) -> ModelMetadata:
        """What the file says of itself."""
        return self._model.metadata()

    def plain(self, inputs: Mapping[str, Any]) -> CompiledGraph | None:
        """As every model does."""
        return self._model.plain(inputs)

    def _ready(self, shapes: Mapping[str, tuple[int, ...]], views: Mapping[str, Any]) -> Ready:
        return self._model._ready(shapes, views)
