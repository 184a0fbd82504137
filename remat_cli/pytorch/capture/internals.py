"""The parts of torch without a promise of stability that remat uses: gathered here, and tried at first use.

torch.compile captures forward and backward pass as one joint graph, and asks a *partition function* to divide it. remat
reads the step in that function, and returns the two graphs of its plan. torch's own runtime handles everything outside
the graph: inputs that are views of each other, outputs that are views of inputs, autocast, and guards on shapes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo import pgo
from torch._dynamo.callback import callback_handler
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.torch_version import TorchVersion

from remat_cli.errors import UsageError
from remat_cli.pytorch.capture import inductor, recurrent
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

TESTED_VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")

# What tensors without data raise when they are asked for their values.
NO_DATA = (DataDependentOutputException, DynamicOutputShapeException)

# Options of torch.compile under which a step is read and run, both times the same: one graph, recurrent layers too.
_DYNAMO = {
    "allow_rnn": True,
    "trace_autograd_ops": True,  # gradients within the forward pass, as of a potential by its coordinates
    # Each capture is a plan, and none of them is left out: what keeps them few is that sizes are captured as symbols.
    "recompile_limit": 1_000_000,
    "accumulated_recompile_limit": 1_000_000,
    "skip_nnmodule_hook_guards": False,
    "suppress_errors": False,
    "optimize_ddp": False,
    "run_gc_after_compile": False,  # seconds for large models, after each capture
}
# Older releases know some of them not yet.
_DYNAMO = {name: value for name, value in _DYNAMO.items() if hasattr(torch._dynamo.config, name)}
if TorchVersion(torch.__version__) < "2.12":
    # Else it does not look whether a parameter of a module that has not changed needs a gradient by now.
    _DYNAMO["skip_tensor_guards_with_matching_dict_tags"] = False
# Checkpointing that the model asks for is left to the plan; nothing is computed in the memory of what is saved.
_FUNCTORCH = {"donated_buffer": False, "debug_assert": False, "functionalize_rng_ops": False}


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
    return _configured(function, backend, takes_sizes=takes_sizes, seen=seen, capture_context=capture_context)


def compiled_variants(
    function: Callable[..., Any],
    variants: Callable[[], Mapping[int, Divide]],
    variant: Callable[[], int],
    gradients: OutputGradients,
    *,
    fused: bool = False,
) -> Callable[..., Any]:
    """Return a function that torch captures once, to run in several variants.

    The next call chooses the variant.

    Args:
        function: the function.
        variants: asked at a capture: divides the joint graph, by variant.
        variant: asked at each run: the number of the variant.
        gradients: outputs with a gradient.
        fused: the joint graph has the ops that inductor fuses.
    """

    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        runs = {
            number: divided_by(module, inputs, divide, gradients, fused=fused) for number, divide in variants().items()
        }

        def run(*args: Any) -> Any:
            return runs[variant()](*args)

        return run

    return _configured(function, backend)


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
        self._call = _configured(function, self._backend, takes_sizes=takes_sizes, seen=self.seen)

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


def _configured(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    *,
    takes_sizes: bool = False,
    seen: SeenSizes | None = None,
    capture_context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Callable[..., Any]:
    """Return `function` as torch.compile has it captured, with code of its own."""
    compiled_function = torch.compile(
        with_own_code(function), backend=backend, fullgraph=True, dynamic=None if takes_sizes else False
    )

    options = {**_DYNAMO, "reorderable_logging_functions": {print}, "ignore_logging_functions": _logging_methods()}

    known = seen or SeenSizes()

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(options), known, _entered_in_captures(capture_context):
            return compiled_function(*args, **kwargs)

    return call


@contextlib.contextmanager
def _entered_in_captures(context: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """While this lasts, have torch enter a context before it captures something, and leave it afterwards."""
    entered = contextlib.ExitStack()

    def begins(_: object) -> None:
        entered.enter_context(context())

    def ends(_: object) -> None:
        entered.close()

    callback_handler.register_start_callback(begins)
    callback_handler.register_end_callback(ends)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(begins)
        callback_handler.remove_end_callback(ends)
        entered.close()


class SeenSizes:
    """While it is entered, torch knows of no sizes but those that it has seen while it was entered.

    Otherwise torch takes sizes of one model for those of another with the same code, and captures symbols at once.
    """

    def __init__(self) -> None:
        self._own: Any = defaultdict(pgo.CodeState)
        self._before: list[Any] = []  # a call may be within another one

    def copy(self) -> SeenSizes:
        """Return another that has seen the same."""
        other = SeenSizes()
        other._own = copy.deepcopy(self._own)
        return other

    def __enter__(self) -> None:
        self._before.append(pgo._CODE_STATE)
        pgo._CODE_STATE = self._own

    def __exit__(self, *_: object) -> None:
        pgo._CODE_STATE = self._before.pop()


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same, in code that no other one has."""
    of = getattr(function, "__func__", function)
    if not isinstance(of, FunctionType):
        return function
    code = of.__code__.replace()
    own = FunctionType(code, of.__globals__, of.__name__, of.__defaults__, of.__closure__)
    own.__kwdefaults__ = of.__kwdefaults__
    functools.update_wrapper(own, of)
    del own.__wrapped__  # type: ignore[attr-defined]
    return MethodType(own, function.__self__) if isinstance(function, MethodType) else own


def is_passed_over(error: RuntimeError | UserWarning) -> bool:
    """Tell whether torch says that it ran a function without a capture: that of code it was told to pass over.

    torch 2.12 warns of it, torch 2.11 says nothing.

    A module's forward method is the same code for all modules of its class, and it is passed over for all of them once
    somebody else's torch.compile has captured it as often as its limit allows.
    """
    return "no compiled frames" in str(error)


def mode_that_watches() -> str | None:
    """Return the name of a mode that sees each op: within one torch.compile runs nothing that it captured."""
    for number in range(torch._C._len_torch_dispatch_stack()):
        mode = torch._C._get_dispatch_stack_at(number)
        if not mode.is_infra_mode() and not mode.ignore_compile_internals():
            return type(mode).__name__.lstrip("_")
    return None


def captured_apart(module: nn.Module) -> Callable[..., Any]:
    """Return a module's call in a form that is captured as a whole, with no code that other modules share."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    return call


def captured_call(module: nn.Module) -> Callable[..., Any]:
    """Return a module's call, in a form that torch.compile does not pass over.

    It does not look into functions of torch itself, which the forward method of a `Sequential` is, unless somebody
    else's function calls them.
    """

    return captured_apart(module) if torch._dynamo.trace_rules.check(module.forward) else module._call_impl


class _Functions(dict[Callable[..., Any], None]):
    """Functions, as a setting of torch.compile.

    torch 2.11 writes this setting as JSON: it sorts sets, which fails for functions. So it is told of no items.
    """

    def items(self) -> Any:
        """Return nothing."""
        return ()


def _logging_methods() -> _Functions:
    """Return all methods of loggers, for a captured step does not log.

    Libraries' additions are included.
    """
    methods = (method for name, method in vars(logging.Logger).items() if not name.startswith("_"))
    return _Functions((method, None) for method in methods if callable(method))


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
        from torch._dynamo.backends.common import aot_autograd

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

        compiler = aot_autograd(
            fw_compiler=_runner,
            bw_compiler=_backward_runner,
            inference_compiler=_runner,
            partition_fn=partition,
            keep_inference_input_mutations=True,
            **({"decompositions": inductor.decompositions()} if self._fused else {}),
        )
        if known:
            self._data_sizes.fix(module.graph, known)
        detach_outputs(module.graph, {place for place, _, _ in self._form} - expected)
        recurrent.as_ops(module.graph)
        module.recompile()
        with (
            torch._functorch.config.patch(_FUNCTORCH),
            contextlib.nullcontext() if self._fused else _as_eager_computes(),
        ):
            run = compiler(module, inputs)
        primals_given.clear()  # torch 2.11 and 2.12 keep the partition function, and would keep tensors with it
        may_rerun = self._gradients.known is None
        seen = SeenOutputs(self._form, self._gradients, expected, rerun if may_rerun else None)
        self._traced[known] = run, seen


# Ops that torch traces as Python functions whose results differ from those of eager's kernels in the last bits.
_ROUNDED_DIFFERENTLY = (
    torch.ops.aten.upsample_linear1d,
    torch.ops.aten.upsample_bilinear2d,
    torch.ops.aten.upsample_trilinear3d,
    torch.ops.aten.upsample_bicubic2d,
    torch.ops.aten.multi_margin_loss,
    torch.ops.aten.multilabel_margin_loss_forward,
)


# Their backward ops, whose rules for tensors without data know no symbols.
_WITHOUT_SYMBOLS = (
    torch.ops.aten.upsample_linear1d_backward.default,
    torch.ops.aten.upsample_bilinear2d_backward.default,
    torch.ops.aten.upsample_trilinear3d_backward.default,
    torch.ops.aten.upsample_bicubic2d_backward.default,
)


@contextlib.contextmanager
def _as_eager_computes() -> Iterator[None]:
    """While this lasts, torch traces each op to the kernels that eager runs."""
    overloads = [getattr(op, name) for op in _ROUNDED_DIFFERENTLY for name in op.overloads()]  # type: ignore[no-untyped-call]
    held = [(overload, dict(overload.py_kernels)) for overload in overloads]
    for overload, kernels in held:
        for key in kernels.keys() & {torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd}:
            if overload._overloadname == "vec":  # takes factors or sizes; what torch has for it in C++ knows no symbols
                overload.py_kernels[key] = functools.partial(_interpolated, overload.overloadpacket.default)
            else:
                del overload.py_kernels[key]
        overload._dispatch_cache.clear()
    rules = torch._decomp.decomposition_table
    added = [op for op in _WITHOUT_SYMBOLS if op not in rules]
    rules.update(dict.fromkeys(added, _like_the_input))
    try:
        yield
    finally:
        for op in added:
            del rules[op]
        for overload, kernels in held:
            overload.py_kernels.update(kernels)
            overload._dispatch_cache.clear()


def _interpolated(
    op: Any, x: torch.Tensor, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Any:
    size = torch._decomp.decompositions.upsample_compute_output_size(  # type: ignore[no-untyped-call]
        x.size(), size, factors
    )
    return op(x, size, align_corners, *(factors or (None,) * len(size)))


def _like_the_input(gradient: torch.Tensor, _: Any, input_size: Sequence[int], *__: Any) -> torch.Tensor:
    return gradient.new_empty(input_size)


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


def output_descriptions(graph: fx.Graph) -> Sequence[Any]:
    """Return torch's description of each output of a joint graph."""
    return graph.output_node().meta["desc"]  # type: ignore[no-any-return]


def _given_as(primal: fx.Node, given: Sequence[Primal]) -> Primal:
    index = input_index(primal)
    return given[index] if index is not None and index < len(given) else Primal()


def is_object(value: object) -> bool:
    """Return whether a value stands for an opaque object of a graph.

    The mesh of a DTensor is such an object.
    """
    return isinstance(value, FakeScriptObject)


def input_index(primal: fx.Node) -> int | None:
    """Return which input of the captured function a primal is; None for one that torch made of several."""
    return getattr(primal.meta.get("desc"), "idx", None)


def mutated_input(description: object) -> int | None:
    """Return the input whose new value a forward output is, from the output's description; None where there is none."""
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    if isinstance(description, InputMutationAOTOutput):
        return getattr(description.mutated_input, "idx", -1)
    return None


def _places_of_outputs(joint: fx.Graph, forward_outputs: int, expected: Collection[int]) -> dict[int, int]:
    """Map outputs of a captured function that get no gradient to their positions among those of its joint graph."""
    from torch._functorch._aot_autograd.descriptors import PlainAOTOutput

    described = output_descriptions(joint)[:forward_outputs]
    places = {what.idx: slot for slot, what in enumerate(described) if isinstance(what, PlainAOTOutput)}
    return {place: slot for place, slot in places.items() if place not in expected}


def _changed_inputs(joint: fx.Graph, forward_outputs: int) -> list[int]:
    """Return which inputs of a captured function it writes into, from its joint graph."""
    returned = [mutated_input(described) for described in output_descriptions(joint)[:forward_outputs]]
    copies = joint.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    places = {*returned, *(input_index(copy.args[0]) for copy in copies)}
    return sorted(place for place in places if place is not None and place >= 0)


def gradient_of(description: object) -> object:
    """Return torch's description of the input behind a gradient output.

    None for other outputs. The argument is the output's description.

    An input that torch takes apart has one description for each part; none of them equals this one.
    """
    from torch._functorch._aot_autograd.descriptors import GradAOTOutput

    return description.grad_of if isinstance(description, GradAOTOutput) else None


def save_without_version_check(node: fx.Node) -> None:
    """Let a value be kept for the backward pass although its base changes before that."""
    node.meta["saved_tensor_with_no_vc_check"] = True


def _allow_backward_twice() -> None:
    """Declare that the backward pass overwrites nothing saved, so that it can run twice (`retain_graph=True`)."""
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def boxed(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return a runner of a graph that empties its list of arguments.

    So only the runner holds the arguments.
    """
    from torch.fx.graph import _BoxedCodeGen

    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    return run


def boxed_backward(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return a runner of a backward pass, in the manner of `boxed`.

    It skips the work of gradients that have not arrived.
    """
    whole, others = boxed(module), dict[frozenset[str], Callable[[list[Any]], Any]]()
    absent = _absent_tangents(module)

    def run(args: list[Any]) -> Any:
        if not (names := absent()):
            return whole(args)
        if names not in others:
            others[names] = boxed(without_gradients(module, names))
        return others[names](args)

    return run


def leaving_out(module: fx.GraphModule, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
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
    from torch._functorch._aot_autograd.descriptors import PlainAOTOutput, TangentAOTInput

    names: dict[int, str] = {}
    for node in tangents_of(module.graph):
        described = node.meta.get("desc")
        if isinstance(described, TangentAOTInput) and isinstance(described.output, PlainAOTOutput):
            names[described.output.idx] = node.name

    def absent() -> frozenset[str]:
        return frozenset(names[place] for place in missing_gradients() if place in names)

    return absent


def run_by(module: fx.GraphModule, run: Callable[[list[Any]], Any]) -> None:
    """Have a graph that is handed back to torch run by a function, which takes its arguments as `boxed` says."""

    def by_function(args: list[Any]) -> Any:  # torch copies graphs: a function is not copied with what it belongs to
        return run(args)

    module.meta[_RUN] = by_function


def _runner(module: fx.GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
    """Return the runner of a graph that torch gives to the compiler."""
    del example_inputs
    _allow_backward_twice()
    given = module.meta.get(_RUN) or boxed(module)

    def run(args: list[Any]) -> Any:
        return given(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _backward_runner(module: fx.GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
    """Return the runner of a backward pass, unless another has run instead."""
    given, gradients = _runner(module, example_inputs), len(outputs_of(module.graph))

    def run(args: list[Any]) -> Any:
        if missing_gradients() is ALL:
            args.clear()
            return [None] * gradients
        return given(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Drop everything that torch.compile captures meanwhile."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


@cache
def check_supported() -> None:
    """Check the joint graph of a small step against remat's assumptions.

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
    """Return the fault in a small step's joint graph, or ""."""

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
