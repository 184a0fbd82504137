"""What remat uses of torch that torch does not promise to keep: all of it stands here, and is tried at first use.

torch.compile captures forward and backward pass as one joint graph and asks a *partition function* to divide it. There
remat reads a step, and there it hands back what runs. torch's own runtime around it takes care of what the graph leaves
out: inputs that are views of each other, outputs that are views of inputs, autocast, guards on shapes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils import _pytree as pytree

from remat_cli.errors import UsageError

TESTED_VERSIONS = ("2.13",)

# What tensors without data raise when they are asked for their values.
NO_DATA = (DataDependentOutputException, DynamicOutputShapeException)

# Options of torch.compile under which a step is read and run, both times the same: one graph, recurrent layers too.
_DYNAMO = {
    "allow_rnn": True,
    "recompile_limit": 64,
    "suppress_errors": False,
    "optimize_ddp": False,
    "run_gc_after_compile": False,  # seconds for large models, after each capture
}
# Checkpointing that the model asks for is left to the plan; nothing is computed in the memory of what is saved.
_FUNCTORCH = {"donated_buffer": False, "debug_assert": False, "functionalize_rng_ops": False}


@dataclass(frozen=True, eq=False)
class Primal:
    """An input of a joint graph that is there before the step.

    Attributes:
        source: what it is in the user's terms, such as "L['self']._parameters['weight']"; empty where not known.
        value: the tensor itself; None where torch made it of several.
    """

    source: str = ""
    value: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Captured:
    """A joint graph as torch hands it over.

    Attributes:
        module: forward and backward pass; its first inputs are the primals, then come the tangents.
        forward_outputs: how many of its outputs are those of the forward pass; they come first.
        primals: what each primal is, in their order.
    """

    module: fx.GraphModule
    forward_outputs: int
    primals: tuple[Primal, ...]


# Gets the joint graph, and returns forward and backward graph.
Divide = Callable[[Captured], tuple[fx.GraphModule, fx.GraphModule]]


# Gets a module as torch's front end makes it, and its inputs; returns their joint graph, None where there is none.
Trace = Callable[[fx.GraphModule, Sequence[Any]], "Captured | None"]
# Sees a module and its inputs before they are traced with their backward pass; it may raise to end the capture.
Foresee = Callable[[fx.GraphModule, Sequence[Any], Trace], None]


def compiled(function: Callable[..., Any], divide: Divide, foresee: Foresee | None = None) -> Callable[..., Any]:
    """Return `function` so that it runs, with autograd, as the two graphs that `divide` makes of its joint graph.

    It is captured at the first call, and again wherever a guard of torch.compile says that another graph is needed
    (another shape, another mode). Where nothing needs a gradient, it runs as it is.

    Args:
        function: what is called.
        divide: makes the two graphs.
        foresee: sees what is captured before it is traced with its backward pass.
    """
    compiled_function = torch.compile(function, backend=_backend(divide, foresee), fullgraph=True, dynamic=False)

    options = {**_DYNAMO, "reorderable_logging_functions": {print}, "ignore_logging_functions": _logging_methods()}

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(options):
            return compiled_function(*args, **kwargs)

    return call


def captured_call(module: nn.Module) -> Callable[..., Any]:
    """Return a module's call, in a form that torch.compile does not pass over.

    It does not look into functions of torch itself, which the forward method of a `Sequential` is, unless somebody
    else's function calls them.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    return call if torch._dynamo.trace_rules.check(module.forward) else module._call_impl


def _logging_methods() -> set[Callable[..., Any]]:
    """Return all that loggers do, what libraries add among it: a captured step does not log."""
    return {method for name, method in vars(logging.Logger).items() if callable(method) and not name.startswith("_")}


def _backend(divide: Divide, foresee: Foresee | None) -> Callable[..., Any]:
    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if foresee is not None:
            foresee(module, inputs, _traced)
        return _divided(module, inputs, divide)

    return backend


def _traced(module: fx.GraphModule, inputs: Sequence[Any]) -> Captured | None:
    return seen_by(lambda look: _divided(module, inputs, look))


class _Seen(BaseException):
    """Ends a capture once its joint graph was seen."""


def seen_by(run: Callable[[Divide], object]) -> Captured | None:
    """Return the first joint graph that a run has to divide, and end the run there.

    Args:
        run: has torch capture something, and hand what it captured to the function that it is given.

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


def _divided(module: fx.GraphModule, inputs: Sequence[Any], divide: Divide) -> Any:
    """Have torch trace a module together with its backward pass, and return what runs as `divide` says."""
    from torch._dynamo.backends.common import aot_autograd

    given = given_of(module, inputs)

    def partition(
        joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        primals = tuple(_given_as(node, given) for node in primals_of(joint.graph))
        return divide(Captured(joint, num_fwd_outputs, primals))

    compiler = aot_autograd(
        fw_compiler=_boxed,
        bw_compiler=_boxed,
        inference_compiler=_boxed,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    _recurrent_layers_written_out(module.graph)
    with torch._functorch.config.patch(_FUNCTORCH):
        return compiler(module, inputs)


def given_of(module: fx.GraphModule, inputs: Sequence[Any]) -> list[Primal]:
    """Return what the inputs of a module are, as torch's front end makes it."""
    nodes = module.graph.find_nodes(op="placeholder")
    return [Primal(_source(node), value) for node, value in zip(nodes, inputs, strict=True)]


def _recurrent_layers_written_out(graph: fx.Graph) -> None:
    """Have recurrent layers traced step by step, with the dropout between them.

    torch captures oneDNN's fused LSTM without what its backward needs, and forgets dropout where it writes layers out.
    """
    for node in graph.nodes:
        if getattr(node.target, "__name__", "") in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            node.target = _without_onednn(_layer_by_layer(node.target))


def _without_onednn(function: Callable[..., Any]) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(before)

    return traced


def _layer_by_layer(recurrent: Callable[..., Any]) -> Callable[..., Any]:
    def traced(
        x: Any, states: Any, weights: Any, biases: Any, layers: Any, dropout: Any, train: Any, *form: Any
    ) -> Any:
        if len(form) != 2 or not (dropout and train):  # a packed sequence has another form, which torch itself refuses
            return recurrent(x, states, weights, biases, layers, dropout, train, *form)
        bidirectional, batch_first = form
        directions, each = 1 + bidirectional, len(weights) // layers
        x = x.transpose(0, 1) if batch_first else x  # dropout draws in this order
        last = []
        for layer in range(layers):
            own = pytree.tree_map(lambda state, of=layer * directions: state[of : of + directions], states)
            of_layer = weights[layer * each : (layer + 1) * each]
            x, *final = recurrent(x, own, of_layer, biases, 1, 0.0, train, bidirectional, False)
            last.append(final)
            x = nn.functional.dropout(x, dropout) if layer < layers - 1 else x
        return x.transpose(0, 1) if batch_first else x, *(torch.cat(parts) for parts in zip(*last, strict=True))

    return traced


def _source(node: fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    return "" if source is None else str(source.name)


def primals_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs of a joint graph that are there before the step."""
    return [node for node in graph.find_nodes(op="placeholder") if not _is_tangent(node)]


def tangents_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs of a joint graph that are gradients of its forward outputs."""
    return [node for node in graph.find_nodes(op="placeholder") if _is_tangent(node)]


def outputs_of(graph: fx.Graph) -> Sequence[Any]:
    """Return the outputs of a joint graph: those of the forward pass, then a gradient or None for each primal."""
    (outputs,) = graph.output_node().args
    return outputs  # type: ignore[return-value]


def output_descriptions(graph: fx.Graph) -> Sequence[Any]:
    """Return what torch says of each output of a joint graph."""
    return graph.output_node().meta["desc"]  # type: ignore[no-any-return]


def _is_tangent(node: fx.Node) -> bool:
    return "tangents" in str(node.target)


def _given_as(primal: fx.Node, given: Sequence[Primal]) -> Primal:
    index = input_index(primal)
    return given[index] if index is not None and index < len(given) else Primal()


def input_index(primal: fx.Node) -> int | None:
    """Return which input of the captured function a primal is; None for one that torch made of several."""
    return getattr(primal.meta.get("desc"), "idx", None)


def mutated_input(description: object) -> int | None:
    """Return which input a forward output is the new value of, from the output's description; None where of none."""
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    if isinstance(description, InputMutationAOTOutput):
        return getattr(description.mutated_input, "idx", -1)
    return None


def save_without_version_check(node: fx.Node) -> None:
    """Let a value be kept for the backward pass although what it is a view of changes before that."""
    node.meta["saved_tensor_with_no_vc_check"] = True


def _allow_backward_twice() -> None:
    """Say that the backward pass overwrites nothing that is saved, so that it can run again (`retain_graph=True`)."""
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _boxed(module: fx.GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
    """Return what runs a graph; it takes its arguments as a list and empties it, so that it alone holds them."""
    from torch.fx.graph import _BoxedCodeGen

    del example_inputs
    _allow_backward_twice()
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Leave nothing behind of what is captured meanwhile."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


@cache
def check_supported() -> None:
    """Capture a small step and check that its joint graph is what the rest of remat takes it to be.

    Raises:
        UsageError: it is not.
    """
    try:
        fault = _fault_of_capture()
    except Exception as error:
        fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if fault:
        raise unsupported(fault)


def unsupported(fault: str) -> UsageError:
    """Return the error that says that this torch does not work as expected."""
    tested = ", ".join(TESTED_VERSIONS)
    return UsageError(
        f"torch {torch.__version__} does not work with this version of remat: {fault}",
        hint=f"remat was tested with torch {tested}; install one of these, or a newer remat",
    )


def _fault_of_capture() -> str:
    """Return what is wrong with the joint graph of a small step; empty where nothing is."""

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
    if not fault and len({value.untyped_storage()._cdata for value in values}) != 1:  # type: ignore[union-attr]
        fault = "fake tensors do not share storage"
    return fault
