"""The outputs of a captured function, and the gradients that arrive for them.

torch.compile traces a tangent for every differentiable output, and fills those that do not arrive with zeros. Zeros
cost memory and work, and parameters that eager leaves out get zeros for a gradient. So outputs without a gradient are
captured detached. Around what runs stands one node of autograd, which sees the gradients that arrive:

- Where these are some of those that were expected, the backward pass leaves out the work of the others.
- Where one was not expected, this backward pass runs as eager runs it, from the inputs; the next call is captured with
  a tangent for it.
- Where gradients are to have gradients, eager runs it, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import get_device_states, set_device_states

# What tells captures of one function apart: the number of dimensions and the element type of differentiable outputs.
Form = tuple[tuple[int, int, torch.dtype], ...]

# Where autograd's node of a captured function says which outputs got no gradient: positions, or `ALL`.
_MISSING = "_remat_missing"
# Stands for all outputs: another backward pass has run in the place of this one.
ALL = frozenset({-1})
_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(eq=False)
class OutputGradients:
    """The outputs of a function that get gradients, as its backward passes show.

    Attributes:
        warn: called with a sentence, once each: for a gradient that was not expected, and for gradients of gradients.
        at_rerun: called where eager runs a backward pass.
    """

    warn: Callable[[str], None] = lambda _: None
    at_rerun: Callable[[], None] = lambda: None
    _expected: dict[Form, frozenset[int]] = field(default_factory=dict)
    _arrived: dict[Form, set[int]] = field(default_factory=dict)
    _shown: set[Form] = field(default_factory=set)  # forms of which a backward pass was seen
    _said: set[str] = field(default_factory=set)

    def expected(self, form: Form) -> frozenset[int]:
        """Return the positions of the outputs that get a gradient: as seen, else scalars, else all.

        A scalar among other outputs is taken for the loss.
        """
        if arrived := self._arrived.pop(form, None):
            known = self._expected[form] if form in self._shown else frozenset()
            self._expected[form] = known | arrived
            self._shown.add(form)
        if form not in self._expected:
            scalars = frozenset(place for place, dimensions, _ in form if dimensions == 0)
            self._expected[form] = scalars or frozenset(place for place, _, _ in form)
        return self._expected[form]

    def expect(self, form: Form, places: Collection[int]) -> None:
        """Expect gradients for these outputs, as long as no backward pass shows others."""
        if form not in self._shown:
            self._expected[form] = frozenset(places)

    def arrive(self, form: Form, places: Collection[int]) -> None:
        """Note for which outputs gradients have arrived."""
        self._arrived.setdefault(form, set()).update(places)

    def rerun(self, why: str) -> None:
        """Note that eager runs a backward pass, and warn of each reason once."""
        self.at_rerun()
        if why not in self._said:
            self._said.add(why)
            self.warn(why)


def form_of(graph: fx.Graph) -> Form:
    """Return the form of the differentiable outputs of a graph that torch's front end has made."""
    values = [getattr(node, "meta", {}).get("example_value") for node in _outputs(graph)]
    return tuple(
        (place, value.dim(), value.dtype)
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.requires_grad
    )


def copied(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a graph."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def detach_outputs(graph: fx.Graph, places: Collection[int]) -> None:
    """Detach outputs of a graph that torch's front end has made, at these positions."""
    outputs = _outputs(graph)
    end = graph.output_node()
    with graph.inserting_before(end):
        detached = {place: graph.call_method("detach", (outputs[place],)) for place in sorted(places)}
    for place, node in detached.items():
        node.meta = {key: value for key, value in outputs[place].meta.items() if key != "example_value"}
    end.args = (tuple(detached.get(place, value) for place, value in enumerate(outputs)),)


def _outputs(graph: fx.Graph) -> Sequence[Any]:
    (outputs,) = graph.output_node().args
    return outputs if isinstance(outputs, tuple | list) else (outputs,)


@dataclass(eq=False)
class Rerun:
    """Runs a captured function as eager does, for a backward pass that was not planned.

    Attributes:
        function: what torch's front end has captured; takes its inputs, and returns its outputs.
        changed: positions of inputs that it writes into.
        draws: whether it draws random numbers.
    """

    function: Callable[..., Any]
    changed: Collection[int] = ()
    draws: bool = False

    def begun(self, inputs: Sequence[Any]) -> Begun:
        """Return what has to be known of a call to run it again."""
        generators = (torch.get_rng_state(), *get_device_states(*inputs)) if self.draws else None
        cast = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCAST_DEVICES]
        return Begun(self, generators, cast)


@dataclass(eq=False)
class Begun:
    """The state in which a captured function was called.

    Attributes:
        rerun: runs it again.
        generators: states of the generators of random numbers; None where it draws none.
        autocast: whether autocast was on, and its element type, by device.
    """

    rerun: Rerun
    generators: tuple[Any, ...] | None
    autocast: Sequence[tuple[bool, torch.dtype]]

    def gradients(
        self, inputs: Sequence[Any], wanted: Sequence[int], arrived: dict[int, torch.Tensor], *, differentiable: bool
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of inputs, None where there is none.

        Args:
            inputs: of the call.
            wanted: positions of the inputs that need a gradient.
            arrived: gradients of outputs, by position.
            differentiable: whether the gradients are to have gradients.
        """
        given = list(inputs)
        if not differentiable:
            for place in wanted:
                given[place] = given[place].detach().requires_grad_()
        held = [(given[place], given[place].detach().clone()) for place in self.rerun.changed]
        with torch.enable_grad(), self._as_called(inputs):
            outputs = self.rerun.function(*given)
        found = torch.autograd.grad(
            [outputs[place] for place in arrived],
            [given[place] for place in wanted],
            list(arrived.values()),
            create_graph=differentiable,
            allow_unused=True,
        )
        with torch.no_grad():
            for tensor, value in held:
                tensor.copy_(value)
        return found

    @contextlib.contextmanager
    def _as_called(self, inputs: Sequence[Any]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for device, (is_on, dtype) in zip(_AUTOCAST_DEVICES, self.autocast, strict=True):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=is_on))
            if self.generators is not None:
                state, *others = self.generators
                now = torch.get_rng_state(), *get_device_states(*inputs)
                torch.set_rng_state(state)
                set_device_states(*others)
                stack.callback(_draw_on, *now)
            yield


def _draw_on(state: torch.Tensor, *others: Any) -> None:
    torch.set_rng_state(state)
    set_device_states(*others)


@dataclass(eq=False)
class SeenOutputs:
    """Sees the gradients that arrive for the outputs of one captured function.

    Attributes:
        form: of its outputs.
        gradients: takes note of what arrives.
        expected: positions of the outputs that were captured with a tangent.
        rerun: runs the function where that does not do.
    """

    form: Form
    gradients: OutputGradients
    expected: frozenset[int]
    rerun: Rerun

    @property
    def places(self) -> tuple[int, ...]:
        """Positions of the differentiable outputs."""
        return tuple(place for place, _, _ in self.form)

    def around(self, run: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
        """Run the function as captured, and see to its gradients.

        Args:
            run: runs what was captured.
            inputs: of the call.
        """
        begun = self.rerun.begun(inputs)
        outputs = list(run(*inputs))
        wanted = [
            place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.requires_grad
        ]
        call = _Call(self, begun, inputs, wanted)
        seen = _Seen.apply(call, *(outputs[place] for place in self.places), *(inputs[place] for place in wanted))
        call.node = next(filter(None, (_node_of(outputs[place].grad_fn) for place in sorted(self.expected))), None)
        for place, output in zip(self.places, seen, strict=True):
            outputs[place] = output
        return outputs


@dataclass(eq=False)
class _Call:
    """One call of a captured function, until its backward pass.

    Attributes:
        outputs: sees to its outputs.
        begun: how it was called.
        inputs: of the call, those that need a gradient left out.
        wanted: positions of these.
        node: autograd's node of what was captured.
    """

    outputs: SeenOutputs
    begun: Begun
    inputs: list[Any]
    wanted: Sequence[int]
    node: Any = None

    def __init__(self, outputs: SeenOutputs, begun: Begun, inputs: Sequence[Any], wanted: Sequence[int]) -> None:
        self.outputs, self.begun, self.wanted = outputs, begun, wanted
        # autograd holds those that need a gradient, and lets go of them after the backward pass.
        self.inputs = [None if place in set(wanted) else value for place, value in enumerate(inputs)]


class _Seen(torch.autograd.Function):
    """Hands outputs on, and sees the gradients that arrive for them."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(call.outputs.form)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[count:])
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        call: _Call = ctx.call
        outputs = call.outputs
        arrived = {
            place: gradient for place, gradient in zip(outputs.places, gradients, strict=True) if gradient is not None
        }
        differentiable = torch.is_grad_enabled()
        unexpected = arrived.keys() - outputs.expected
        outputs.gradients.arrive(outputs.form, arrived)
        if not differentiable and not unexpected:
            if call.node is not None:
                setattr(call.node, _MISSING, outputs.expected - arrived.keys())
            passed = [arrived.get(place) for place in outputs.places]
            return (None, *passed, *([None] * len(call.wanted)))
        outputs.gradients.rerun(_SECOND if differentiable else _UNEXPECTED)
        if call.node is not None:
            setattr(call.node, _MISSING, ALL)
        inputs = list(call.inputs)
        for place, value in zip(call.wanted, ctx.saved_tensors, strict=True):
            inputs[place] = value
        found = call.begun.gradients(inputs, call.wanted, arrived, differentiable=differentiable)
        return (None, *([None] * len(outputs.places)), *found)


_SECOND = (
    "gradients of a planned call are computed with create_graph=True, so that they have gradients of their own: eager "
    "runs this backward pass, from the call's inputs, and the budget does not hold for it"
)
_UNEXPECTED = (
    "a gradient arrives for an output that had none before: eager runs this backward pass, from the call's inputs, and "
    "the budget does not hold for it; the next call has a plan for this output, too"
)


def _node_of(node: Any) -> Any:
    """Return the node of a captured function from that of one of its outputs, which may be views of others."""
    while node is not None and not isinstance(node, BackwardCFunction):
        node = next((following for following, _ in node.next_functions if following is not None), None)
    return node


def missing_gradients() -> frozenset[int]:
    """Return the outputs that got no gradient, of the captured function whose backward pass runs; or `ALL`."""
    return getattr(torch._C._current_autograd_node(), _MISSING, frozenset())


def without_gradients(module: fx.GraphModule, missing: Collection[str]) -> fx.GraphModule:
    """Return a backward pass that leaves out what comes of gradients that are missing.

    A gradient that comes of these alone is missing, too; added to another one, it leaves that as it is. Where an op
    makes one gradient of several, the missing ones among them are zeros.

    Args:
        module: the backward pass.
        missing: names of the inputs that are zeros, as no gradient has arrived.
    """
    derived: set[fx.Node] = set()  # of tangents
    absent: set[fx.Node] = set()
    same: dict[fx.Node, fx.Node] = {}  # a sum of a gradient and a missing one is the first
    for node in module.graph.nodes:
        if node.op == "placeholder":
            if is_tangent(node):
                derived.add(node)
            if node.name in missing:
                absent.add(node)
            continue
        sources = [source for source in node.all_input_nodes if source in derived]
        if node.op == "output" or not sources:
            continue
        derived.add(node)
        left = [source for source in sources if source not in absent]
        if not left:
            absent.add(node)
        elif len(left) < len(sources) and _adds(node):
            same[node] = same.get(left[0], left[0])
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    results = tuple(
        None if isinstance(value, fx.Node) and value in absent else value for value in _outputs(module.graph)
    )
    needed = {same.get(value, value) for value in results if isinstance(value, fx.Node)}
    for node in reversed(module.graph.nodes):
        if node.op == "output":
            continue
        sources = {same.get(source, source) for source in node.all_input_nodes}
        # A wait for a copy has no users: it runs where something else reads what it waits for.
        waits = not node.users and node.op == "call_function" and not sources.isdisjoint(needed)
        if node in needed or node.is_impure() or waits:
            needed |= {node, *sources}
    for node in module.graph.nodes:
        if node.op == "placeholder" or (node in needed and node.op != "output"):
            copies[node] = graph.node_copy(node, lambda source: copies[same.get(source, source)])
    graph.output(tuple(copies[same.get(v, v)] if isinstance(v, fx.Node) else v for v in results))
    return fx.GraphModule(module, graph)


def is_tangent(node: fx.Node) -> bool:
    """Tell whether an input of a joint graph, or of its backward pass, is the gradient of a forward output."""
    return "tangents" in str(node.target)


def _adds(node: fx.Node) -> bool:
    """Tell whether a node is the plain sum of two gradients of one shape."""
    if node.target is not torch.ops.aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return False
    values = [part.meta.get("val") if isinstance(part, fx.Node) else None for part in (*node.args, node)]
    return all(isinstance(value, torch.Tensor) for value in values) and all(
        value.shape == values[-1].shape and value.dtype == values[-1].dtype for value in values
    )
