"""The operations that a spec does not spell out: those of conformance's cases, and of the bench's models. Nothing is compiled."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence

from tvmdml import targets
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message
from tvmdml.library import notices, spec
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators import all_operators
from tvmdml.targets import Target

Note = Callable[[str], object]


def complete(given: Spec, note: Note = lambda text: None) -> Spec:
    """A spec with all of its operations; ``note`` is told which models are left out, and why.

    Raises:
        InvalidArgument: a pattern fits no model.
    """
    if not given.cases and not given.networks:
        return given
    wanted = [*given.wanted, *_of_cases(given.cases), *_of_networks(given.networks, given.targets, note)]
    return given._replace(wanted=spec.once(wanted), cases=(), networks=())


def _of_cases(types: Sequence[str]) -> Iterator[Wanted]:
    """The operations of all cases whose first tensor has one of the types."""
    if not types:
        return
    from tvmdml.proof.conformance import references

    for check in references.checks(all_operators(), FeatureLevel.of(None)):
        desc, _, shared = check.case
        first = next((tensor for _, tensor in desc.tensors() if tensor is not None), None)
        if first is not None and first.data_type.tvm in types:
            yield Wanted(desc, shared)


def _of_networks(patterns: Sequence[str], names: Iterable[str], note: Note) -> Iterator[Wanted]:
    """The operations of models, as they are planned for each of the targets that this machine has."""
    if not patterns:
        return
    from tvmdml.proof.bench.sources import exported, sources

    every = list(sources())
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(one.title, pattern) for one in every):
            titles = ", ".join(dict.fromkeys(one.name for one in every))
            raise InvalidArgument(message("networks", repr(pattern), f"a pattern of these models' titles: {titles}"))
    machines = list(filter(None, map(_here, names))) or [targets.resolve("cpu")]
    for source in every:
        if not any(fnmatch.fnmatchcase(source.title, pattern) for pattern in patterns):
            continue
        if lacking := source.lacks():
            note(f"{source.title}: {lacking} is not installed")
            continue
        path = source.path(exported())
        for machine in machines:
            yield from planned(str(path), source.arrays(), machine)


def _here(name: str) -> Target | None:
    """A target of this machine; ``None`` if it is of others."""
    with contextlib.suppress(InvalidArgument, Unsupported):
        return targets.resolve(name)
    return None


def planned(path: str, feeds: dict[str, object], target: Target) -> Iterator[Wanted]:
    """The operations of a model that is given these inputs."""
    from tvmdml.onnx import load

    with notices.listing() as found, contextlib.suppress(notices.ListedGraph):
        model = load(path, target=target)
        model({one.name: feeds[one.name] for one in model.inputs})
    for desc, shared in found:
        with contextlib.suppress(TvmdmlError):  # of a caller's own rules: it has no line
            yield Wanted(spec.plain(desc), shared)
