"""The outputs of a captured function, and their gradients.

torch.compile traces a tangent for every differentiable output, and fills missing tangents with zeros. Zeros cost memory
and work, and give zero gradients to parameters that eager leaves out. So outputs without a gradient are captured
detached. One node of autograd stands around the captured function, and sees the gradients that arrive:

- If some of the expected gradients are missing, the backward pass leaves out their work.
- If an unexpected gradient arrives, this backward pass runs as eager runs it, from the inputs; the next call is
  captured with a tangent for this output.
- If gradients need gradients themselves, eager runs the backward pass, too.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import get_device_states, set_device_states

from remat_cli.errors import UsageError
from remat_cli.pytorch.unstable.autograd import current_node
from remat_cli.pytorch.unstable.tensors import key_of, storage_key, version_of

# What tells captures of one function apart: the number of dimensions and the element type of differentiable outputs.
Form = tuple[tuple[int, int, torch.dtype], ...]

# Where autograd's node of a captured function says which outputs got no gradient: positions, or `ALL`.
_MISSING = "_remat_missing"
# Stands for all outputs: another backward pass has run in the place of this one.
ALL = frozenset({-1})
_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class KnownGradients:
    """Outputs of a function that can get gradients.

    Attributes:
        of: name of the function in refusals.
        outputs: for each differentiable output: dimensions, element type, and whether it can get a gradient.
    """

    of: str
    outputs: tuple[tuple[int, torch.dtype, bool], ...]

    def expected(self, form: Form) -> frozenset[int]:
        """Return the positions of expected gradients.

        If the function returns other outputs, these are all positions.
        """
        is_same = [kind for _, *kind in form] == [kind for *kind, _ in self.outputs]
        reached = [is_reached for *_, is_reached in self.outputs] if is_same else [True] * len(form)
        return frozenset(place for (place, _, _), is_reached in zip(form, reached, strict=True) if is_reached)


@dataclass(eq=False)
class OutputGradients:
    """The outputs of a function that get gradients, as its backward passes show.

    Attributes:
        warn: called with a sentence, once each: for a gradient that was not expected, and for gradients of gradients.
        at_rerun: called where eager runs a backward pass, or it is refused.
        known: gradients known before any call, for all calls; then no backward pass runs as eager.
    """

    warn: Callable[[str], None] = lambda _: None
    at_rerun: Callable[[], None] = lambda: None
    known: KnownGradients | None = None
    _expected: dict[Form, frozenset[int]] = field(default_factory=dict)
    _arrived: dict[Form, set[int]] = field(default_factory=dict)
    _shown: set[Form] = field(default_factory=set)  # forms of which a backward pass was seen
    _said: set[str] = field(default_factory=set)
    _held: dict[tuple[Form, int], bool] = field(default_factory=dict)  # whether outputs were there in backward passes

    def expected(self, form: Form) -> frozenset[int]:
        """Return the positions of the outputs that get a gradient: as seen, else scalars, else all.

        A scalar among other outputs is taken for the loss.
        """
        if self.known is not None:
            return self.known.expected(form)
        if arrived := self._arrived.pop(form, None):
            known = self._expected[form] if form in self._shown else frozenset()
            self._expected[form] = known | arrived
            self._shown.add(form)
        if form not in self._expected:
            scalars = frozenset(place for place, dimensions, _ in form if dimensions == 0)
            self._expected[form] = scalars or frozenset(place for place, _, _ in form)
        return self._expected[form]

    def arrive(self, form: Form, places: Collection[int]) -> None:
        """Note for which outputs gradients have arrived."""
        self._arrived.setdefault(form, set()).update(places)

    def hold(self, form: Form, place: int, held: bool) -> None:
        """Note whether an output without a gradient is still there as a backward pass begins."""
        self._held[form, place] = held or self._held.get((form, place), False)

    def is_released(self, form: Form, place: int) -> bool | None:
        """Return whether callers let go of an output before the backward pass; None where none was seen."""
        held = self._held.get((form, place))
        return None if held is None else not held

    def rerun(self, why: str) -> None:
        """Note that eager runs a backward pass, and warn of each reason once."""
        self.at_rerun()
        if why not in self._said:
            self._said.add(why)
            self.warn(why)

    def refusal(self, *, differentiable: bool) -> UsageError:
        """Return the reason why a backward pass cannot run.

        The function has nothing left to run in eager mode.
        """
        assert self.known is not None
        if differentiable:
            return UsageError(
                f"{self.known.of}: gradients that have gradients of their own (create_graph=True) are asked of it, and "
                "what is planned by parts has none",
                hint="plan the whole, regions=None: then eager runs such a backward pass",
            )
        return UsageError(
            f"{self.known.of}: a gradient arrives for something that it returns, and nothing that the model returned "
            "in the rehearsal comes of it",
            hint="return what comes of it from the model as well, or plan the whole, regions=None",
        )


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


@dataclass(frozen=True, eq=False)
class Released:
    """Which outputs of a captured function callers let go of before the backward pass.

    Attributes:
        gradients: gradients that backward passes have shown.
        form: form of the outputs.
        slots: outputs without a gradient: their positions in the captured function, and in its joint graph.
    """

    gradients: OutputGradients | None = None
    form: Form = ()
    slots: Mapping[int, int] = field(default_factory=dict)

    @property
    def known(self) -> frozenset[int]:
        """Positions in the joint graph of the outputs that were let go of in all backward passes."""
        return self._where(True)

    @property
    def possible(self) -> frozenset[int]:
        """The same, with outputs that no backward pass has tested yet."""
        return self.known | self._where(None)

    def _where(self, released: bool | None) -> frozenset[int]:
        if self.gradients is None:
            return frozenset()
        is_released = self.gradients.is_released
        return frozenset(slot for place, slot in self.slots.items() if is_released(self.form, place) is released)


@dataclass(eq=False)
class EagerRun:
    """Runs a captured function as eager does, for a backward pass that was not planned.

    Attributes:
        function: function captured by torch's front end, from inputs to outputs.
        changed: positions of inputs that it writes into.
        draws: the function draws random numbers.
    """

    function: Callable[..., Any]
    changed: Collection[int] = ()
    draws: bool = False

    def begun(self, inputs: Sequence[Any]) -> Begun:
        """Return the facts for a rerun of a call."""
        # Not as a tensor, which would be in the memory of the step.
        generators = (bytes(torch.get_rng_state().numpy()), *get_device_states(*inputs)) if self.draws else None
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

    rerun: EagerRun
    generators: tuple[Any, ...] | None
    autocast: Sequence[tuple[bool, torch.dtype]]

    def gradients(
        self, inputs: Sequence[Any], wanted: Sequence[int], arrived: dict[int, torch.Tensor], *, differentiable: bool
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of inputs, None where there is none.

        Args:
            inputs: inputs of the call.
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
        gradients = torch.autograd.grad(
            [outputs[place] for place in arrived],
            [given[place] for place in wanted],
            list(arrived.values()),
            create_graph=differentiable,
            allow_unused=True,
        )
        with torch.no_grad():
            for tensor, value in held:
                tensor.copy_(value)
        return gradients

    @contextlib.contextmanager
    def _as_called(self, inputs: Sequence[Any]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for device, (is_on, dtype) in zip(_AUTOCAST_DEVICES, self.autocast, strict=True):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=is_on))
            if self.generators is not None:
                state, *others = self.generators
                now = torch.get_rng_state(), *get_device_states(*inputs)
                _draw_on(torch.frombuffer(bytearray(state), dtype=torch.uint8), *others)
                stack.callback(_draw_on, *now)
            yield


def _draw_on(state: torch.Tensor, *others: Any) -> None:
    torch.set_rng_state(state)
    set_device_states(*others)


@dataclass(eq=False)
class SeenOutputs:
    """Sees the gradients that arrive for the outputs of one captured function.

    Attributes:
        form: form of its outputs.
        gradients: notes the gradients that arrive.
        expected: positions of the outputs that were captured with a tangent.
        rerun: runs the function where that does not do; None where nothing may be held for it.
    """

    form: Form
    gradients: OutputGradients
    expected: frozenset[int]
    rerun: EagerRun | None

    @property
    def places(self) -> tuple[int, ...]:
        """Positions of the differentiable outputs."""
        return tuple(place for place, _, _ in self.form)

    def run(self, captured: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
        """Run the function as captured, and see to its gradients.

        Args:
            captured: runs the capture.
            inputs: inputs of the call.
        """
        begun = None if self.rerun is None else self.rerun.begun(inputs)
        outputs = list(captured(*inputs))
        call = _Call(self, begun, inputs)
        seen = _seen(call, *(outputs[place] for place in self.places), *(inputs[place] for place in call.wanted))
        call.node = next(filter(None, (_node_of(outputs[place].grad_fn) for place in sorted(self.expected))), None)
        for place, output in zip(self.places, seen, strict=True):
            outputs[place] = output
        call.unread = {
            place: (weakref.ref(value), weakref.ref(value.untyped_storage()))
            for place, value in enumerate(outputs)
            if place not in self.expected and isinstance(value, torch.Tensor)
        }
        return outputs


class _Call:
    """One call of a captured function, until its backward pass.

    Attributes:
        outputs: sees to its outputs.
        begun: how it was called; None where it is not run again.
        inputs: inputs of a call that may run again, without those that need a gradient.
        wanted: positions of these.
        node: autograd's node of the capture.
        unread: the outputs that were captured without a tangent, and their memory, by their positions.
        versions: inputs other than parameters, and how often each had been changed in place after the call.
    """

    def __init__(self, outputs: SeenOutputs, begun: Begun | None, inputs: Sequence[Any]) -> None:
        self.outputs, self.begun = outputs, begun
        self.inputs, self.wanted = list[Any](), list[int]()
        if begun is not None:
            needing = (isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
            self.wanted = [place for place, is_needing in enumerate(needing) if is_needing]
            # Autograd holds these, and lets go of them after the backward pass.
            self.inputs = list(inputs)
            for place in self.wanted:
                self.inputs[place] = None
        self.node: Any = None
        self.versions = [
            (weakref.ref(value), version_of(value))
            for value in inputs
            if isinstance(value, torch.Tensor)
            and not isinstance(value, torch.nn.Parameter)
            and not value.is_inference()
        ]
        self.unread: Mapping[int, tuple[weakref.ref[torch.Tensor], weakref.ref[Any]]] = {}

    def check_unchanged(self) -> None:
        """Check that the plan still has the inputs that it reads in the backward pass.

        Raises:
            UsageError: such an input was changed in place.
        """
        has_changed = any(
            (value := reference()) is not None and version_of(value) != before for reference, before in self.versions
        )
        if not has_changed or self.node is None:
            return
        try:
            self.node.saved_tensors  # noqa: B018  # autograd compares versions
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            raise UsageError(
                "an input of a planned call was changed in place before the backward pass, and the plan computes from "
                "it once more there, which eager may not do",
                hint="change a copy of it, as x = x / 2 for x /= 2, or change it after the backward pass",
            ) from error

    def note_held(self) -> None:
        """Note which outputs without a gradient are still there, other than as saved tensors."""
        saved: set[int] | None = None
        for place, (output, memory) in self.unread.items():
            storage = memory()
            held = storage is not None
            if storage is not None and output() is None and self.node is not None:
                if saved is None:
                    saved = {storage_key(tensor) for tensor in self.node.saved_tensors}
                held = key_of(storage) not in saved
            self.outputs.gradients.hold(self.outputs.form, place, held=held)


class _Seen(torch.autograd.Function):
    """Passes outputs on, and sees the gradients that arrive."""

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
        call.check_unchanged()
        call.note_held()
        if not differentiable and not unexpected:
            if call.node is not None:
                setattr(call.node, _MISSING, outputs.expected - arrived.keys())
            passed = [arrived.get(place) for place in outputs.places]
            return (None, *passed, *([None] * len(call.wanted)))
        if call.begun is None:
            outputs.gradients.at_rerun()
            raise outputs.gradients.refusal(differentiable=differentiable)
        outputs.gradients.rerun(_SECOND if differentiable else _UNEXPECTED)
        if call.node is not None:
            setattr(call.node, _MISSING, ALL)
        inputs = list(call.inputs)
        for place, value in zip(call.wanted, ctx.saved_tensors, strict=True):
            inputs[place] = value
        derivatives = call.begun.gradients(inputs, call.wanted, arrived, differentiable=differentiable)
        return (None, *([None] * len(outputs.places)), *derivatives)


def _seen(call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    apply: Callable[..., tuple[torch.Tensor, ...]] = _Seen.apply
    return apply(call, *tensors)


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
    return getattr(current_node(), _MISSING, frozenset())
