"""Joint graphs as torch traces them, and the descriptions of their inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    InputMutationAOTOutput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._guards import TracingContext, tracing
from torch.fx.graph import _BoxedCodeGen
from torch.torch_version import TorchVersion

# Runs a graph; it takes its arguments as a list and empties it, so that it alone holds them.
Boxed = Callable[[list[Any]], Any]

# Checkpointing that the model asks for is left to the plan; nothing is computed in the memory of what is saved.
_FUNCTORCH = {"donated_buffer": False, "debug_assert": False, "functionalize_rng_ops": False}


def divided(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    partition: Callable[..., tuple[fx.GraphModule, fx.GraphModule]],
    *,
    forward: Callable[[fx.GraphModule, Any], Boxed],
    backward: Callable[[fx.GraphModule, Any], Boxed],
    decompositions: Any = None,
) -> Callable[..., Any]:
    """Have torch trace the two passes of a module as one joint graph; return what runs the module.

    Args:
        module: as torch's front end makes it.
        inputs: of the module.
        partition: makes forward and backward graph of the joint graph.
        forward: returns what runs a forward graph.
        backward: returns what runs a backward graph.
        decompositions: rules by which ops are traced as others; None: eager's.
    """
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=forward,
        partition_fn=partition,
        keep_inference_input_mutations=True,
        **({} if decompositions is None else {"decompositions": decompositions}),
    )
    with config.patch(_FUNCTORCH):
        return compiler(module, inputs)


def as_captured_with(mode: Any) -> AbstractContextManager[Any]:
    """Return a context in which torch traces as in a capture with fake tensors of a mode."""
    return tracing(TracingContext(mode))


def mode_of_capture() -> Any:
    """Return the mode of the fake tensors of the capture under way, if any."""
    context = TracingContext.try_get()
    return None if context is None else context.fake_mode


@contextmanager
def strides_reported() -> Iterator[Any]:
    """Have torch write the strides of outputs into a list, as it compiles.

    Strides of symbols stay symbols, as where torch runs a compiled graph first on tensors without data.
    """
    context = TracingContext.try_get()
    before = context is not None and context.fakify_first_call
    with TracingContext.report_output_strides() as strides:
        if context is not None:
            context.fakify_first_call = True
        try:
            yield strides
        finally:
            if context is not None:
                context.fakify_first_call = before


def allow_backward_twice() -> None:
    """Declare that the backward pass overwrites nothing saved, so that it can run twice (`retain_graph=True`)."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


class _NoneIsInput(list[bool]):
    """Says of any number of saved tensors that they are no inputs of the forward graph."""

    def __getitem__(self, place: Any) -> Any:
        return False


def save_any_number() -> None:
    """Let the forward pass save more tensors than its graph has: each plan saves others.

    From 2.15 on torch looks up for each saved tensor whether it is an input.
    """
    context = TracingContext.try_get()
    metadata: Any = None if context is None else context.fw_metadata
    if hasattr(metadata, "saved_tensor_is_graph_input"):
        metadata.saved_tensor_is_graph_input = _NoneIsInput()


def shards_take_sizes() -> bool:
    """Return whether a graph of DTensors may save any number of tensors.

    torch 2.13 runs such a graph, 2.15 counts what it returns; other releases are untried.
    """
    return bool(TorchVersion("2.13") <= TorchVersion(torch.__version__) < TorchVersion("2.14"))


def boxed(module: fx.GraphModule) -> Boxed:
    """Return a runner of a graph that empties its list of arguments.

    So only the runner holds the arguments.
    """
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    return run


def marked_boxed(run: Boxed) -> Boxed:
    """Return a runner, marked for torch as one that empties its list of arguments."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def save_without_version_check(node: fx.Node) -> None:
    """Let a value be kept for the backward pass although its base changes before that."""
    node.meta["saved_tensor_with_no_vc_check"] = True


def output_descriptions(graph: fx.Graph) -> Sequence[Any]:
    """Return torch's description of each output of a joint graph."""
    return graph.output_node().meta["desc"]  # type: ignore[no-any-return]


def input_index(primal: fx.Node) -> int | None:
    """Return which input of the captured function a primal is; None for one that torch made of several."""
    return getattr(primal.meta.get("desc"), "idx", None)


def has_checkpoints(graph: fx.Graph) -> bool:
    """Return whether ops of a captured graph stood in a checkpoint of the model's own."""
    return any("recompute" in node.meta for node in graph.nodes)


def output_index(description: object) -> int | None:
    """Return which output of the captured function a forward output is; None for one that torch adds."""
    return description.idx if isinstance(description, PlainAOTOutput) else None


def output_behind(tangent: fx.Node) -> int | None:
    """Return the output of the captured function of which a tangent is the gradient; None for other inputs."""
    described = tangent.meta.get("desc")
    return output_index(described.output) if isinstance(described, TangentAOTInput) else None


def mutated_input(description: object) -> int | None:
    """Return the input whose new value a forward output is, from the output's description; None where there is none."""
    if isinstance(description, InputMutationAOTOutput):
        return getattr(description.mutated_input, "idx", -1)
    return None


def gradient_of(description: object) -> object:
    """Return torch's description of the input behind a gradient output.

    None for other outputs. The argument is the output's description.

    An input that torch takes apart has one description for each part; none of them equals this one.
    """
    return description.grad_of if isinstance(description, GradAOTOutput) else None
