"""Joint graphs that torch hands over, and what runs in their place.

torch.compile captures forward and backward pass as one joint graph, and asks a *partition function* to divide it. remat
reads the step in that function, and returns the two graphs of its plan. torch's own runtime handles everything outside
the graph: inputs that are views of each other, outputs that are views of inputs, autocast, and guards on shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import fx

from remat_cli.pytorch.capture import recurrent
from remat_cli.pytorch.capture.data_sizes import DataSizes, Known
from remat_cli.pytorch.capture.ops import draws
from remat_cli.pytorch.capture.outputs import (
    ALL,
    EagerRun,
    OutputGradients,
    Released,
    SeenOutputs,
    copied,
    detach_outputs,
    form_of,
    missing_gradients,
)
from remat_cli.pytorch.capture.pruning import is_tangent, without_gradients
from remat_cli.pytorch.unstable import inductor, probes
from remat_cli.pytorch.unstable.decompositions import as_eager_computes
from remat_cli.pytorch.unstable.front_end import SeenSizes, configured
from remat_cli.pytorch.unstable.joint_graphs import (
    Boxed,
    allow_backward_twice,
    boxed,
    divided,
    input_index,
    marked_boxed,
    mutated_input,
    output_behind,
    output_descriptions,
    output_index,
    save_any_number,
)
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.pytorch.unstable.versions import unsupported

# Where a graph says what runs it.
_RUN = "remat run"
# Marks an input of a graph that is a size computed of the primals' sizes.
SIZE = "remat size"


@dataclass(frozen=True, eq=False)
class Primal:
    """An input of a joint graph that is there before the step.

    Attributes:
        source: its name in the user's terms, such as "L['self']._parameters['weight']"; empty where not known.
        value: the tensor itself; None where torch made it of several, and for a number.
    """

    source: str = ""
    value: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Captured:
    """A joint graph as torch hands it over.

    Attributes:
        module: forward and backward pass; its first inputs are the primals, then come the tangents.
        forward_outputs: number of the forward pass's outputs, which come first.
        primals: description of each primal, in order.
        old_values: where the graph was rewritten already: for each input whose old value is kept, by name, the name of
            the node that copies it. None where it was not.
        released: tells which of the forward outputs, by position, callers let go of before the backward pass.
        is_sized_by_data: sizes hold for one call's data; other data are traced again.
    """

    module: fx.GraphModule
    forward_outputs: int
    primals: tuple[Primal, ...]
    old_values: Mapping[str, str] | None = None
    released: Released = field(default_factory=Released)
    is_sized_by_data: bool = False

    @property
    def arguments(self) -> frozenset[int]:
        """The places of primals that are neither parameters nor buffers."""
        own = ("_parameters[", "_buffers[")
        sources = enumerate(primal.source for primal in self.primals)
        return frozenset(place for place, source in sources if source and not any(name in source for name in own))


# Gets the joint graph, and returns forward and backward graph.
Divide = Callable[[Captured], tuple[fx.GraphModule, fx.GraphModule]]


# Gets a module as torch's front end makes it, and its inputs; returns their joint graph, None where there is none.
Trace = Callable[[fx.GraphModule, Sequence[Any]], "Captured | None"]
# Sees a module and its inputs before they are traced with their backward pass; it may raise to end the capture.
Foresee = Callable[[fx.GraphModule, Sequence[Any], Trace], None]


def compiled(
    function: Callable[..., Any],
    divide: Divide,
    foresee: Foresee | None = None,
    *,
    gradients: OutputGradients | None = None,
    takes_sizes: bool = False,
    seen: SeenSizes | None = None,
    capture_context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    fused: bool = False,
) -> Callable[..., Any]:
    """Return `function` so that it runs, with autograd, as the two graphs that `divide` makes of its joint graph.

    It is captured at the first call, and again wherever a guard of torch.compile says that another graph is needed
    (another shape, another mode). Where nothing needs a gradient, it runs as it is. It is captured by code of its own:
    torch counts captures by code.

    Args:
        function: the function.
        divide: makes the two graphs.
        foresee: sees the captured forward pass before the backward pass is traced.
        gradients: outputs with a gradient.
        takes_sizes: sizes that differ between calls become symbols in the second call's capture.
        seen: sizes that torch has seen before.
        capture_context: context of each capture.
        fused: the joint graph has the ops that inductor fuses.
    """
    backend = _backend(divide, foresee, gradients, fused=fused)
    return configured(function, backend, takes_sizes=takes_sizes, seen=seen, capture_context=capture_context)


class _Reached(BaseException):
    """Ends a call where its capture would run."""

    def __init__(self, number: int, inputs: tuple[Any, ...]) -> None:
        super().__init__(number)
        self.number, self.inputs = number, inputs


class GuardedCaptures:
    """The captures of a function, told apart by torch's guards.

    Two calls share a capture if both pass its guards. No call runs beyond its capture.

    Attributes:
        captured: the captures; None for one in which nothing needs a gradient.
        seen: sizes of calls.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        gradients: OutputGradients,
        *,
        takes_sizes: bool = False,
        fused: bool = False,
    ) -> None:
        """Begin with no call.

        Args:
            function: the function.
            gradients: outputs with a gradient.
            takes_sizes: sizes that differ between calls become symbols in the second call's capture.
            fused: joint graphs have the ops that inductor fuses.
        """
        self.captured: list[Captured | None] = []
        self.seen = SeenSizes()
        self._gradients, self._fused = gradients, fused
        self._call = configured(function, self._backend, takes_sizes=takes_sizes, seen=self.seen)

    def _backend(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        number = len(self.captured)
        self.captured.append(_traced(module, inputs, self._gradients, fused=self._fused))

        def run(*given: Any) -> Any:
            raise _Reached(number, given)

        return run

    def capture_of(self, *args: Any, **kwargs: Any) -> tuple[int, Sequence[Any]] | None:
        """Return a call's capture, by its place in `captured`, and its inputs.

        None if the call has nothing to capture.
        """
        try:
            self._call(*args, **kwargs)
        except _Reached as reached:
            return reached.number, reached.inputs
        return None


def _backend(
    divide: Divide, foresee: Foresee | None, gradients: OutputGradients | None, *, fused: bool = False
) -> Callable[..., Any]:
    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if foresee is not None:
            foresee(module, inputs, _traced)
        return divided_by(module, inputs, divide, gradients, fused=fused)

    return backend


def _traced(
    module: fx.GraphModule, inputs: Sequence[Any], gradients: OutputGradients | None = None, *, fused: bool = False
) -> Captured | None:
    return seen_by(lambda look: divided_by(module, inputs, look, gradients, fused=fused))


class _Seen(BaseException):
    """Ends a capture once its joint graph was seen."""


def seen_by(run: Callable[[Divide], object]) -> Captured | None:
    """Return the first joint graph that a run has to divide.

    The run ends there.

    Args:
        run: lets torch capture, and calls its argument with the capture.

    Returns:
        The joint graph; None where the run ends without one.
    """
    seen: list[Captured] = []

    def look(captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
        seen.append(captured)
        raise _Seen

    with contextlib.suppress(_Seen):
        run(look)
    return seen[0] if seen else None


def divided_by(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    divide: Divide,
    gradients: OutputGradients | None = None,
    *,
    fused: bool = False,
) -> Callable[..., Any]:
    """Let torch trace a module's two passes; return a runner by `divide`.

    Args:
        module: graph of torch's front end.
        inputs: inputs of the graph.
        divide: makes forward and backward graph of the joint graph.
        gradients: outputs with a gradient; if a backward pass shows others, the module is traced again.
        fused: the joint graph has the ops that inductor fuses.
    """
    return _Divided(module, inputs, divide, gradients or OutputGradients(), fused=fused)


class _Divided:
    """Runs a module by the two graphs that its joint graph was divided into.

    The module is traced again if other outputs get gradients, or if data-dependent sizes differ.
    """

    def __init__(
        self, module: fx.GraphModule, inputs: Sequence[Any], divide: Divide, gradients: OutputGradients, *, fused: bool
    ) -> None:
        self._module, self._divide, self._gradients, self._fused = module, divide, gradients, fused
        self._form = form_of(module.graph)
        self._graph = copied(module.graph)  # what is traced is changed
        nodes = module.graph.find_nodes(op="placeholder")
        self._sources = [_source(node) for node in nodes]
        self._fakes = [node.meta.get("example_value") for node in nodes]
        self._data_sizes = DataSizes(module)
        self._traced: dict[tuple[Known, ...], tuple[Callable[..., Any], SeenOutputs]] = {}
        self._trace(inputs, given_of(module, inputs), gradients.expected(self._form), self._known(inputs))

    def __call__(self, *inputs: Any) -> Any:
        """Run the module."""
        expected, known = self._gradients.expected(self._form), self._known(inputs)
        if known not in self._traced or expected != self._traced[known][1].expected:
            given = [
                Primal(source, value if isinstance(value, torch.Tensor) else None)
                for source, value in zip(self._sources, inputs, strict=True)
            ]
            with inductor.as_captured(self._fakes):
                self._trace(self._fakes, given, expected, known)
        run, seen = self._traced[known]
        return seen.run(run, inputs) if self._form else run(*inputs)

    def _known(self, inputs: Sequence[Any]) -> tuple[Known, ...]:
        """Return the known data-dependent sizes, or nothing."""
        return self._data_sizes.of(inputs) or ()

    def _trace(
        self, inputs: Sequence[Any], given: Sequence[Primal], expected: frozenset[int], known: tuple[Known, ...]
    ) -> None:
        module = fx.GraphModule(self._module, copied(self._graph))
        rerun = EagerRun(fx.GraphModule(self._module, self._graph))
        primals_given = list(given)

        def partition(
            joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **_: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            if known:
                DataSizes.write_down(joint.graph)
            if self._fused:
                joint = inductor.prepared_joint(joint, joint_inputs)
            rerun.draws = any(map(draws, joint.graph.nodes))
            rerun.changed = _changed_inputs(joint.graph, num_fwd_outputs)
            primals = tuple(_given_as(node, primals_given) for node in primals_of(joint.graph))
            released = Released(self._gradients, self._form, _places_of_outputs(joint.graph, num_fwd_outputs, expected))
            return self._divide(
                Captured(joint, num_fwd_outputs, primals, released=released, is_sized_by_data=bool(known))
            )

        if known:
            self._data_sizes.fix(module.graph, known)
        detach_outputs(module.graph, {place for place, _, _ in self._form} - expected)
        recurrent.as_ops(module.graph)
        module.recompile()
        with contextlib.nullcontext() if self._fused else as_eager_computes():
            run = divided(
                module,
                inputs,
                partition,
                forward=_runner,
                backward=_backward_runner,
                decompositions=inductor.decompositions() if self._fused else None,
            )
        primals_given.clear()  # torch 2.11 and 2.12 keep the partition function, and would keep tensors with it
        may_rerun = self._gradients.known is None
        seen = SeenOutputs(self._form, self._gradients, expected, rerun if may_rerun else None)
        self._traced[known] = run, seen


def given_of(module: fx.GraphModule, inputs: Sequence[Any]) -> list[Primal]:
    """Return the primals for a module's inputs.

    The module is the front end's.
    """
    nodes = module.graph.find_nodes(op="placeholder")
    return [
        Primal(_source(node), value if isinstance(value, torch.Tensor) else None)
        for node, value in zip(nodes, inputs, strict=True)
    ]


def _source(node: fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    return "" if source is None else str(source.name)


def primals_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs of a joint graph that are there before the step."""
    return [node for node in graph.find_nodes(op="placeholder") if not is_tangent(node) and SIZE not in node.meta]


def sizes_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs of a graph that are sizes computed of the primals' sizes."""
    return [node for node in graph.find_nodes(op="placeholder") if SIZE in node.meta]


def tangents_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs of a joint graph that are gradients of its forward outputs."""
    return [node for node in graph.find_nodes(op="placeholder") if is_tangent(node)]


def outputs_of(graph: fx.Graph) -> Sequence[Any]:
    """Return the outputs of a joint graph: those of the forward pass, then a gradient or None for each primal."""
    (outputs,) = graph.output_node().args
    return outputs  # type: ignore[return-value]


def _given_as(primal: fx.Node, given: Sequence[Primal]) -> Primal:
    index = input_index(primal)
    return given[index] if index is not None and index < len(given) else Primal()


def _places_of_outputs(joint: fx.Graph, forward_outputs: int, expected: Collection[int]) -> dict[int, int]:
    """Map outputs of a captured function that get no gradient to their positions among those of its joint graph."""
    described = output_descriptions(joint)[:forward_outputs]
    places = {output_index(what): slot for slot, what in enumerate(described)}
    return {place: slot for place, slot in places.items() if place is not None and place not in expected}


def _changed_inputs(joint: fx.Graph, forward_outputs: int) -> list[int]:
    """Return which inputs of a captured function it writes into, from its joint graph."""
    returned = [mutated_input(described) for described in output_descriptions(joint)[:forward_outputs]]
    copies = joint.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    places = {*returned, *(input_index(copy.args[0]) for copy in copies)}
    return sorted(place for place in places if place is not None and place >= 0)


def boxed_backward(module: fx.GraphModule) -> Boxed:
    """Return a runner of a backward pass, in the manner of `boxed`.

    It skips the work of gradients that have not arrived.
    """
    whole, others = boxed(module), dict[frozenset[str], Boxed]()
    absent = _absent_tangents(module)

    def run(args: list[Any]) -> Any:
        if not (names := absent()):
            return whole(args)
        if names not in others:
            others[names] = boxed(without_gradients(module, names))
        return others[names](args)

    return run


def leaving_out(module: fx.GraphModule, run: Boxed) -> Boxed:
    """Return a runner of a compiled backward pass.

    It leaves out gradients that depend on no arrived gradient.

    Args:
        module: the backward pass before it was compiled.
        run: runs it.
    """
    kept: dict[frozenset[str], list[bool]] = {}
    absent = _absent_tangents(module)

    def run_whole(args: list[Any]) -> Any:
        names = absent()
        results = run(args)
        if not names:
            return results
        if names not in kept:
            kept[names] = [value is not None for value in outputs_of(without_gradients(module, names).graph)]
        return [value if is_kept else None for value, is_kept in zip(results, kept[names], strict=True)]

    return run_whole


def _absent_tangents(module: fx.GraphModule) -> Callable[[], frozenset[str]]:
    """Return a function that names a backward pass's inputs that are zeros, as no gradient has arrived."""
    names = {output_behind(node): node.name for node in tangents_of(module.graph)}

    def absent() -> frozenset[str]:
        return frozenset(names[place] for place in missing_gradients() if place in names)

    return absent


def run_by(module: fx.GraphModule, run: Boxed) -> None:
    """Have a graph that is handed back to torch run by a function, which takes its arguments as `boxed` says."""

    def by_function(args: list[Any]) -> Any:  # torch copies graphs: a function is not copied with what it belongs to
        return run(args)

    module.meta[_RUN] = by_function


def _runner(module: fx.GraphModule, example_inputs: Any) -> Boxed:
    """Return the runner of a graph that torch gives to the compiler."""
    del example_inputs
    allow_backward_twice()
    save_any_number()
    given = module.meta.get(_RUN) or boxed(module)

    def run(args: list[Any]) -> Any:
        return given(args)

    return marked_boxed(run)


def _backward_runner(module: fx.GraphModule, example_inputs: Any) -> Boxed:
    """Return the runner of a backward pass, unless another has run instead."""
    given, gradients = _runner(module, example_inputs), len(outputs_of(module.graph))

    def run(args: list[Any]) -> Any:
        if missing_gradients() is ALL:
            args.clear()
            return [None] * gradients
        return given(args)

    return marked_boxed(run)


@cache
def check_supported() -> None:
    """Check the joint graph of a small step against remat's assumptions.

    Raises:
        UsageError: it is not.
    """
    try:
        fault = probes.fault() or _fault_of_capture()
    except Exception as error:
        fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if fault:
        raise unsupported(fault)


def _fault_of_capture() -> str:
    """Capture a small step, and return the fault in its joint graph; "" if there is none."""

    def step(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2.0
        scale.add_(1)
        return (y * y).sum()

    seen = seen_by(lambda look: compiled(step, look)(torch.ones(3, requires_grad=True), torch.ones(1)))
    if seen is None:
        return "torch.compile is switched off, or does not ask for a partition"
    nodes = {node.name: node for node in seen.module.graph.nodes}
    expectations = {
        "its inputs are named otherwise": {"primals_1", "primals_2", "tangents_1"} <= nodes.keys(),
        "its ops are others": {"relu", "copy_", "threshold_backward"} <= nodes.keys(),
        "its sources are not known": [primal.source for primal in seen.primals] == ["L['x']", "L['scale']"],
    }
    return next((fault for fault, holds in expectations.items() if not holds), _fault_of_marks(nodes))


def _fault_of_marks(nodes: dict[str, fx.Node]) -> str:
    relu, backward, copy = nodes["relu"], nodes["threshold_backward"], nodes["copy_"]
    tags = [node.meta.get("partitioner_tag") for node in (relu, backward, copy)]
    values = [node.meta.get("val") for node in (nodes["primals_2"], copy)]
    expectations = {
        "ops are not marked as forward and backward": tags == ["is_forward", "is_backward", "must_be_in_forward"],
        "ops carry no fake tensors": all(isinstance(value, torch.Tensor) for value in values),
        "backward ops do not name the forward op": relu.meta.get("seq_nr") == backward.meta.get("seq_nr"),
        "ops do not say where they come from": bool(relu.meta.get("stack_trace")),
    }
    fault = next((fault for fault, holds in expectations.items() if not holds), "")
    if not fault and len(set(map(storage_key, values))) != 1:  # type: ignore[arg-type]
        fault = "fake tensors do not share storage"
    return fault
