"""``ProgramPlan``: the plan of a program whose sizes are open, made in this process: it knows descriptors, and asks schedules."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tvmdml.compiler import Launches as Launchable
from tvmdml.compiler import ReadyOperator
from tvmdml.graph.kernels import Progress, compile_kernels
from tvmdml.graph.laid import Laid, Weights
from tvmdml.graph.launching import Chosen, LaunchArgument, LaunchGroup, Launching, LaunchTensor, MemorySource, ScheduleAnswer
from tvmdml.graph.laying import given, laid_of
from tvmdml.graph.memory import ArenaPlaces, planned, supports
from tvmdml.graph.nodes import Call, Constant, Edge, Input, Node, SizesArray
from tvmdml.graph.open_plan import OpenPlan, Wired, naming
from tvmdml.graph.packers import reading
from tvmdml.graph.packing import SharedWeights, pack
from tvmdml.graph.plan import Launches, Packed, Plan, arranged, launch_of, outputs_of
from tvmdml.graph.plan import PlanStep as Planned
from tvmdml.graph.program import Finished, NodeOutput
from tvmdml.graph.surroundings import are_usual
from tvmdml.graph.templates import ProgramTemplate, Template
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.persistent import Packing
from tvmdml.library import notices
from tvmdml.library.scheduling import kernel_for, remembering
from tvmdml.operators._contract import Operator, Role
from tvmdml.operators._contract import Shared as InPlace
from tvmdml.system import not_collected
from tvmdml.targets import Launch, Target
from tvmdml.tensors.sizes import Record, is_open, texts_for_messages
from tvmdml.tensors.sizes.evaluating import Evaluator, GuardedIntegers, Polynomial, own, terms_of
from tvmdml.tensors.sizes.polynomials import Terms

_MOST_LAUNCHES = 1024


class KernelAnswer(ScheduleAnswer):
    """What a schedule chose in this process."""

    def __init__(
        self,
        kernel: Kernel,
        again: Callable[[], Kernel],
        scalars: Sequence[Any],
        temporaries: Sequence[Any],
        record: Record,
        within: Record,
    ) -> None:
        """
        Args:
            kernel: as the schedule chose it for the case at hand.
            again: asks the schedule for it again.
            scalars: its integers, which may be open.
            temporaries: its temporaries: types, and numbers of elements.
            record: what the schedule asked.
            within: what is known to hold.
        """
        wanted = [*map(terms_of, scalars), *(terms_of(count) for _, count in temporaries)]
        types = [dtype for dtype, _ in temporaries]
        super().__init__(GuardedIntegers.of(record, wanted, within), len(scalars), types, _packed(kernel))
        self.kernel, self._again = kernel, again
        self._launches: Launchable | None = None
        self.packings: tuple[Packing, ...] = ()
        """How inputs are packed, from the first launch on."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    def launch(self, numbers: tuple[int, ...], target: Target) -> Launch:
        """The launch with these integers.

        Raises:
            CompileError: the kernel, or one that packs its inputs, cannot be made.
        """
        launches, scalars, temporaries = self._launches, numbers[: self.count], self.temporaries(numbers)
        if launches is not None:
            return launches.launch(scalars, temporaries)
        own = [one.packer for one in self.kernel.owned]
        packers = [Launchable(packer, target).launch(packer.scalars, packer.temporaries) for packer in own]
        launches = Launchable(self.kernel, target)
        launch = launches.launch(scalars, temporaries)
        self.kernel = self.kernel.built_by(self._again)  # the kernels are found
        self.packings = tuple(map(Packing, self.kernel.owned, packers))
        self._launches = launches
        return launch

    def kernel_with(self, numbers: tuple[int, ...]) -> Kernel:
        """The kernel with these integers."""
        return self.kernel._replace(scalars=numbers[: self.count], temporaries=self.temporaries(numbers))


class ReadyAnswer(ScheduleAnswer):
    """A kernel that comes from a pack, or that a caller chose, for certain sizes."""

    def __init__(self, ready: ReadyOperator) -> None:
        super().__init__(GuardedIntegers((), (), (), (), ()), 0, (), _packed(ready.kernel))
        self.kernel, self.packings, self.ready = ready.kernel, ready.packings, ready

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    def launch(self, numbers: tuple[int, ...], target: Target) -> Launch:
        """The launch itself."""
        return self.ready.launch

    def kernel_with(self, numbers: tuple[int, ...]) -> Kernel:
        """The kernel itself."""
        return self.kernel


def chosen_for(title: str, desc: Operator, in_place: InPlace, target: Target) -> Chosen:
    """The launch of a descriptor; errors name its call.

    Raises:
        Unsupported, CompileError: it cannot be made.
    """
    ready = naming(title, lambda: launch_of(desc, target, in_place, {}))
    return Chosen(ready.launch, ReadyAnswer(ready), ())


def _packed(kernel: Kernel) -> list[tuple[Any, ...]]:
    return [(one.name, one.layout, one.nbytes, one.inputs) for one in kernel.owned]


class CallGroup(LaunchGroup):
    """Calls with the same descriptor."""

    def __init__(self, desc: Template, in_place: InPlace, first: Call) -> None:
        super().__init__()
        self.desc, self.in_place, self.title = desc, in_place, str(first)

    def ask(self, values: Sequence[int], tasks: int, within: Record, target: Target) -> KernelAnswer:
        """Ask the schedule for sizes.

        Raises:
            Unsupported: the target does not support the call.
        """
        record = within.at(dict(zip(within.symbols, values, strict=True)))
        desc: Operator = self.desc.filled(lambda size: record.size(size.terms))
        symbolic = kernel_for(desc.canonical(), target, self.in_place)
        identity, _ = own((symbolic.identity, tuple((*one[:-1], one.packer.identity) for one in symbolic.owned)))
        again = functools.partial(self._kernel, tuple(values), within, target)
        kernel = again() if within.symbols else symbolic
        answer = KernelAnswer(kernel, again, symbolic.scalars, symbolic.temporaries, record, within)
        numbers = answer.numbers(*values)
        assert numbers is not None, "a guard fails in the case that it was recorded for"
        mine = identity, numbers[: answer.count], answer.temporaries(numbers)
        if mine != (kernel.identity, kernel.scalars, kernel.temporaries):
            raise AssertionError(f"{self.title}: {symbolic.name} with {numbers}, and {kernel.name} with {kernel.scalars}")
        self.add(tasks, answer)
        return answer

    def _kernel(self, values: Sequence[int], record: Record, target: Target) -> Kernel:
        """The kernel for sizes."""
        return kernel_for(self.at(values, record).canonical(), target, self.in_place)

    def at(self, values: Sequence[int], record: Record) -> Operator:
        """The descriptor for sizes."""
        case = record.at(dict(zip(record.symbols, values, strict=True)))
        return self.desc.filled(lambda size: case.value(size.terms))


class _Numbers:
    """Collects polynomials, each once."""

    def __init__(self) -> None:
        self.terms: dict[Polynomial, int] = {0: 0}

    def place(self, value: Any) -> int:
        """Where an integer will be among the values."""
        return self.terms.setdefault(terms_of(value), len(self.terms))

    def places(self, values: Iterable[Any]) -> tuple[int, ...]:
        """Where several will be."""
        return tuple(map(self.place, values))


class ProgramPlan(OpenPlan):
    """The plan of a program."""

    def __init__(
        self,
        finished: Finished,
        record: Record,
        target: Target,
        shared: SharedWeights,
        arenas: list[Any],
        explained: Sequence[Call] = (),
    ) -> None:
        """Arrange the launches: what that asks of sizes is added to the record.

        Args:
            finished: the program after all passes.
            record: what its sizes were asked.
            target: where it runs.
            shared: packed weights of other programs.
            arenas: intermediate memory of other programs.
            explained: the calls before all passes.
        """
        self._explained = explained
        self.program, self.record, self._shared = finished, record, shared
        numbers = _Numbers()
        with texts_for_messages():
            self.calls, self._pieces = arranged(finished.program, target.kind)
            lifetimes = self._pieces.lifetimes()
            nodes = list(finished.program.nodes())
            constants = [node for node in nodes if isinstance(node, Constant)]
            arrays = [node for node in nodes if isinstance(node, SizesArray)]
            self._outputs = outputs_of(finished.program)
            sources: dict[NodeOutput, MemorySource] = {(node, 0): MemorySource("constant", i) for i, node in enumerate(constants)}
            sources |= {(node, 0): MemorySource("array", i) for i, node in enumerate(arrays)}
            sources |= {(node, 0): MemorySource("input", i) for i, node in enumerate(finished.inputs)}
            sources |= {value: MemorySource("output", i) for i, value in enumerate(self._outputs)}
            pieces = self._pieces.places({value: i for i, value in enumerate(lifetimes)})
            sources |= {value: MemorySource("piece", i) for value, i in pieces.items() if value not in sources}
            groups: list[CallGroup] = []
            launchings = self._launchings(groups, sources, numbers)
            inputs = [
                self._input(node, i, sources[node, 0] if any(node is one for one in nodes) else None, numbers)
                for i, node in enumerate(finished.inputs)
            ]
            results = self._results(finished, sources, numbers)
            own_arrays = [
                LaunchTensor("", "", node.dtype, numbers.places(_shape(node)), numbers.places(node.elements), 0, None)
                for node in arrays
            ]
            places = [numbers.place(one.size) for one in lifetimes.values()]
        offsets = planned(list(lifetimes.values())).offsets
        self._calls_of_groups = groups
        super().__init__(
            finished.name,
            target,
            GuardedIntegers.of(record, list(numbers.terms)),
            groups,
            launchings,
            places,
            supports(list(lifetimes.values()), offsets),
            [node.array for node in constants],
            (inputs, results, own_arrays),
            arenas,
        )
        record.close()
        self._constants = constants
        self._template = ProgramTemplate.of(finished)
        self._launches: Launches = {}
        """Kernels that come from elsewhere."""

    def _launchings(
        self, groups: list[CallGroup], sources: Mapping[NodeOutput, MemorySource], numbers: _Numbers
    ) -> list[Launching]:
        known: dict[object, int] = {}
        found = []
        for call in self.calls:
            in_place = self._pieces.shared.get(call, ())
            desc = Template(call.desc)
            group = known.setdefault((desc.key, in_place, call.desc.owned()), len(known))
            if group == len(groups):
                groups.append(CallGroup(desc, in_place, call))
            results = {name: i for i, name in enumerate(call.output_names())}
            without = {source for source, _ in in_place}
            arguments = []
            for name, tensor in call.desc.tensors():
                if tensor is not None and name not in without:
                    edge = self._pieces.outermost(Edge(call, results[name]) if name in results else call.edges[name])
                    place = numbers.place(edge.offset), numbers.place(tensor.span_in_bytes)
                    arguments.append(LaunchArgument(sources[edge.value], name, *place))
            guards = tuple(self._pieces.guards.get(call, ()))
            for guard in guards:
                edge = self._pieces.outermost(Edge(*guard.condition))
                arguments.append(LaunchArgument(sources[edge.value], "", numbers.place(edge.offset), numbers.place(1)))
            found.append(Launching(group, str(call), tuple(arguments), tuple(guard.wanted for guard in guards)))
        return found

    @staticmethod
    def _input(node: Input, i: int, source: MemorySource | None, numbers: _Numbers) -> LaunchTensor:
        one = given(node, i, 0)
        shape, strides = numbers.places(one.shape), numbers.places(one.strides)
        return LaunchTensor(one.name, one.shown, one.dtype, shape, strides, numbers.place(one.nbytes), source, owned=one.owned)

    @staticmethod
    def _results(finished: Finished, sources: Mapping[NodeOutput, MemorySource], numbers: _Numbers) -> list[LaunchTensor]:
        seen: dict[NodeOutput, int] = {}
        found = []
        for i, ((dtype, shape), result) in enumerate(zip(finished.forms, finished.program.results, strict=True)):
            edge, places = result.edge, numbers.places(shape)
            source, copies = None, seen.get(edge.value)
            if isinstance(edge.source, Constant):
                array: Any = reading(edge.source.array, edge.offset, own_desc(result.desc))
                copies = array.view(dtype)
            elif copies is None:
                seen[edge.value], source = i, sources[edge.value]
            found.append(LaunchTensor("", "", dtype, places, (), 0, source, copies))
        return found

    def templates(self) -> list[tuple[Template, InPlace]]:
        """The descriptor of each group, and which of its tensors share memory."""
        return [(group.desc, group.in_place) for group in self._calls_of_groups]

    def asked(self, values: Sequence[int], key: int, target: Target) -> Iterator[tuple[Operator, InPlace, Kernel]]:
        """What schedules choose for sizes of which they were not asked the same before: no answer is forgotten.

        Args:
            values: the sizes, for which the guards hold.
            key: by which they are known to have been asked: of the target.
            target: the one that schedules choose for.

        Raises:
            Unsupported: the target does not support a call.
        """
        for group in self._calls_of_groups:
            group.most = sys.maxsize
            if group.known(values, key) is None:
                answer = naming(group.title, functools.partial(group.ask, values, key, self.record, target))
                yield group.at(values, self.record), group.in_place, answer.kernel

    # -- For sizes

    def chosen(self, values: Sequence[int], progress: Progress | None) -> list[Chosen]:
        """The launch of each group.

        Raises:
            Unsupported, CompileError: a kernel cannot be made.
        """
        groups = self._calls_of_groups
        notices.list_all(lambda: [(group.at(values, self.record), group.in_place) for group in groups])
        if not are_usual(self.target):
            return [self._from_elsewhere(group, values) for group in groups]
        tasks = self.target.tasks()
        known = [group.known(values, tasks) for group in groups]
        unknown = [group for group, answer in zip(groups, known, strict=True) if answer is None]
        if unknown:
            with remembering(), not_collected():
                asked = [naming(one.title, functools.partial(one.ask, values, tasks, self.record, self.target)) for one in unknown]
            compile_kernels([answer.kernel.every for answer in asked], self.target, progress)
            new = iter([(answer, answer.numbers(*values)) for answer in asked])
            known = [next(new) if pair is None else pair for pair in known]  # type: ignore[misc] # it holds where it was asked
        found = []
        for group, pair in zip(groups, known, strict=True):
            assert pair is not None
            answer, numbers = pair
            launch = naming(group.title, functools.partial(answer.launch, numbers, self.target))
            found.append(Chosen(launch, answer, numbers))
        return found

    def _from_elsewhere(self, group: CallGroup, values: Sequence[int]) -> Chosen:
        """The launch of a group whose kernel may come from a pack, or be chosen by a caller."""
        if len(self._launches) > _MOST_LAUNCHES:
            self._launches.clear()
        desc = group.at(values, self.record)
        ready = naming(group.title, lambda: launch_of(desc, self.target, group.in_place, self._launches))
        return Chosen(ready.launch, ReadyAnswer(ready), ())

    def check(self, wired: Wired, layout: Any, numbers: Sequence[int]) -> None:
        """What was planned here is inside."""

    def packed(self, wired: Wired, chosen: Sequence[Chosen]) -> list[Weights]:
        """The packed weights."""
        return pack(self._to_pack(wired, chosen), {}, self.target, self._shared)

    def _to_pack(self, wired: Wired, chosen: Sequence[Chosen]) -> list[Packed]:
        found = []
        for i, weight in wired.weights.values():
            answer: Any = chosen[self.launchings[i].group].answer
            packing = next(one for one in answer.packings if one.owned.name == weight.name)
            found.append(Packed(self.calls[i], packing))
        return found

    # -- What is not needed to run

    def tensors(self) -> list[dict[str, str]]:
        """The tensors of each group, with the names of sizes."""
        with texts_for_messages():
            described = [group.desc.filled(lambda size: size) for group in self._calls_of_groups]
            return [{name: str(tensor) for name, tensor in desc.tensors() if tensor is not None} for desc in described]

    def writes(self) -> list[list[str]]:
        """The tensors of each group that are written."""
        with texts_for_messages():  # where to ask for a size is no guard
            descs = [group.desc.filled(lambda size: size) for group in self._calls_of_groups]
            return [[name for name, tensor in desc.tensors(Role.OUTPUT) if tensor is not None] for desc in descs]

    @functools.cached_property
    def _filling(self) -> tuple[Mapping[Terms, int], Evaluator]:
        """What makes the program for sizes: the place of each integer, and the function."""
        sizes = {size.terms: size for template in self._template.templates() for size in template.numbers if is_open(size)}
        return {terms: i for i, terms in enumerate(sizes)}, GuardedIntegers.of(self.record, list(sizes)).compiled()

    def finished(self, values: Sequence[int]) -> Finished:
        """The program for sizes."""
        places, evaluate = self._filling
        numbers = evaluate(*values)
        assert numbers is not None, "a guard fails"
        filled = self._template.filled(lambda size: numbers[places[size.terms]])
        filled.program.notes = self.program.program.notes
        for call, symbolic in zip(filled.program.calls, self.program.program.calls, strict=True):
            call.origins = symbolic.origins
        return filled

    def _laid(
        self,
        values: tuple[int, ...],
        wired: Wired,
        layout: Any,
        chosen: Sequence[Chosen],
        constants: Sequence[Any],
    ) -> Laid:
        """The graph for sizes as one that was compiled for them."""
        own, finished = super()._laid(values, wired, layout, chosen, constants), self.finished(values)
        before: list[Node] = [*self.program.program.calls, *self.program.inputs]
        after: list[Node] = [*finished.program.calls, *finished.inputs]
        same: dict[int, Any] = dict(zip(map(id, before), after, strict=True))
        steps = []
        for call, launching, step in zip(self.calls, self.launchings, own.steps, strict=True):
            one = chosen[launching.group]
            answer: Any = one.answer
            guards = tuple(
                guard._replace(condition=(same.get(id(guard.condition[0]), guard.condition[0]), guard.condition[1]))
                for guard in self._pieces.guards.get(call, ())
            )
            in_place = self._calls_of_groups[launching.group].in_place
            kernel = answer.kernel_with(one.numbers)
            steps.append(Planned(same[id(call)], kernel, step.launch, step.places, step.sizes, in_place, guards))
        arrays = zip(wired.constants, constants, strict=True)
        nodes = tuple(
            self._constants[source.number] if source.kind == "constant" else Constant(array, "", "") for source, array in arrays
        )
        packed = tuple(one._replace(call=same[id(one.call)]) for one in self._to_pack(wired, chosen))
        inputs = tuple(same[id(self.program.inputs[source.number])] for source in wired.slot if source.kind == "input")
        outputs = tuple((same[id(node)], output) for node, output in self._outputs)
        plan = Plan(tuple(steps), nodes, packed, inputs, outputs, ArenaPlaces((), layout.size, layout.size))
        return laid_of(finished, plan, own.weights, self._explained)


def _shape(node: SizesArray) -> tuple[int, ...]:
    return () if getattr(node.desc, "zero_dimensional", False) else node.desc.sizes


def own_desc(desc: Any) -> Any:
    """A descriptor whose sizes are Python's own integers."""
    return Template(desc).filled(lambda size: size.own())
