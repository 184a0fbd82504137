"""The parts of inductor, torch's compiler, without a promise of stability that remat uses.

Inductor decomposes ops into small ones, and fuses these into kernels. A plan for its kernels is made on the joint graph
as inductor decomposes it; the two graphs of the plan are compiled as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from remat_cli.errors import GraphError, RematError, UsageError
from remat_cli.pytorch.unstable.dispatch import is_watched
from remat_cli.pytorch.unstable.fakes import mode_of
from remat_cli.pytorch.unstable.joint_graphs import Boxed, as_captured_with, mode_of_capture, strides_reported
from remat_cli.pytorch.unstable.versions import explained_as_unsupported

# How functions are named that make memory, and kernels, in the code that calls the kernels of a graph.
_MAKES_MEMORY, _KERNELS = "empty_strided_", ("cpp_", "triton_")
_CHECKS = ("assert_size_stride", "assert_alignment", "run_intermediate_hooks")


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return inductor's decompositions of ops."""
    with _quietly():
        import torch._inductor.compile_fx  # noqa: F401  # some decompositions look up what that imports
        from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def prepared_joint(joint: fx.GraphModule, inputs: Any) -> fx.GraphModule:
    """Return a joint graph after inductor's passes, before its division.

    For example, random numbers come from seeds.

    Replaced values have memory of their own. So shapes and memory are computed again: views of such a value are then in
    its memory.
    """
    from torch._dynamo.utils import get_inputs_devices

    with _quietly():
        from torch._inductor.compile_fx import _recursive_joint_graph_passes
        from torch._inductor.virtualized import V

    device = next(iter(get_inputs_devices(inputs, joint)))
    mode = mode_of_capture()
    with _quietly(), V.set_fake_mode(mode):
        prepared = _recursive_joint_graph_passes(joint, skip_invoke_subgraph=True, input_device=device)
    given = [node.meta["val"] for node in prepared.graph.find_nodes(op="placeholder")]
    FakeTensorProp(prepared, mode).propagate_dont_convert_inputs(*given)
    _check_attention(prepared.graph)
    return prepared


def decomposed(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph of eager's ops as inductor decomposes them; placeholders have the values of their inputs.

    Raises:
        GraphError: inductor's rules do not hold for an op of it.
    """
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    try:
        with _quietly(), mode_of(inputs) or nullcontext(), torch.no_grad():
            traced = make_fx(fx.Interpreter(module).run, decomposition_table=dict(decompositions()))(*inputs)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise _explained(error, "planned") from error
    traced.graph.eliminate_dead_code()
    return traced


def _check_attention(graph: fx.Graph) -> None:
    """Check that attention in float64 on the CPU has the results that its rule for tensors without data tells.

    Raises:
        GraphError: its results differ, as in torch 2.11 and 2.12, whose inductor then generates code that fails.
    """
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    for node in graph.find_nodes(op="call_function", target=attention):
        result, logsumexp = node.meta["val"][:2]
        if result.dtype == torch.float64 and logsumexp.dtype != torch.float64:
            raise GraphError(
                f"the compiler of torch {torch.__version__} cannot compile attention in float64 on the CPU",
                hint="leave out fused=True, compute in float32, or install torch 2.13 or newer",
            )


@contextmanager
def as_captured(inputs: Sequence[Any]) -> Iterator[None]:
    """Let torch trace and compile an earlier capture again.

    Args:
        inputs: fake tensors that it was captured with.
    """
    with as_captured_with(mode_of(inputs)):
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide torch's own deprecation warnings, which users may turn into errors.

    Raises:
        UsageError: torch has moved or dropped a part.
    """
    with warnings.catch_warnings(), explained_as_unsupported():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class CompiledGraph:
    """A graph whose kernels inductor has compiled.

    Attributes:
        inputs: fake tensors and numbers that it was compiled for.
        output_strides: strides of each output as the kernels make it, in elements; None where an output has none.
        run: runs it.
    """

    def __init__(
        self, module: fx.GraphModule, *, user_outputs: Sequence[int], is_backward: bool, keeps_order: bool = False
    ) -> None:
        """Compile a graph, which is changed.

        Args:
            module: the graph; placeholders have the values of their inputs.
            user_outputs: positions of the outputs whose strides must stay as they are.
            is_backward: the graph is the backward pass.
            keeps_order: fuse no ops of which neither reads the other, as one of them would run earlier or later then.

        Raises:
            UsageError: there is no compiler for this device.
            GraphError: inductor does not compile it.
        """
        self.inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        outputs = module.graph.output_node()
        outputs.meta["user_visible_output_idxs"] = [
            index
            for index in user_outputs
            if isinstance(outputs.args[0][index], fx.Node)  # type: ignore[index]
        ]
        fusions = _keeping_order() if keeps_order else nullcontext()
        with strides_reported() as strides, fusions:
            self.run: Boxed = _compiled(module, self.inputs, is_backward=is_backward)
        self.output_strides: Sequence[Sequence[int] | None] = list(strides or ())
        self._names = next(_names_of(self.run), {})
        if not self._names and hasattr(self.run, "current_callable"):
            raise GraphError(
                f"what inductor of torch {torch.__version__} has written cannot be read", hint="plan without fused=True"
            )
        for name, make in self._names.items():
            if name.startswith(_MAKES_MEMORY) and name != _MAKES_MEMORY + "meta":
                self._names[name] = _seen(make, name.removeprefix(_MAKES_MEMORY))

    @property
    def kernels(self) -> list[str]:
        """Names of its compiled kernels."""
        return [name for name in self._names if name.startswith(_KERNELS)]

    def replay(self, arguments: list[Any], make: Callable[..., torch.Tensor], ran: Callable[[str], None]) -> Any:
        """Run the code around the kernels on tensors without data, and none of the kernels that were compiled.

        Args:
            arguments: arguments on the device "meta"; the list is emptied.
            make: makes memory, of size, strides and element type.
            ran: called with the name of each compiled kernel.
        """

        def kernel(name: str) -> Any:
            def run(*_: Any, **__: Any) -> None:
                ran(name)

            run.run = run  # type: ignore[attr-defined]  # as kernels of Triton are called
            return run

        before = dict(self._names)
        for name, value in before.items():
            if name.startswith(_KERNELS):
                self._names[name] = kernel(name)
            elif name.startswith(_MAKES_MEMORY):
                self._names[name] = make
            elif name in _CHECKS:
                self._names[name] = _nothing
            elif isinstance(value, torch.Tensor):
                self._names[name] = value.to("meta")
        try:
            return self.run(arguments)
        finally:
            self._names.update(before)


def _nothing(*_: Any, **__: Any) -> None:
    """Check nothing: strides on the device "meta" are not always those of kernels."""


def _seen(make: Callable[..., torch.Tensor], device: str) -> Callable[..., torch.Tensor]:
    """Return `make` so that a dispatch mode sees its results.

    inductor's own function passes modes by.
    """

    def laid_out(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        if is_watched():
            return torch.empty_strided(size, stride, dtype=dtype, device=device)
        return make(size, stride, dtype)

    return laid_out


@cache
def _order_kept() -> Callable[[], Any]:
    from torch._inductor.choices import InductorChoices

    class OrderKept(InductorChoices):
        """Fuses an op with one that reads it, and with no other."""

        def uuid(self) -> str:
            """Return the key of such kernels in torch's cache."""
            return "remat.OrderKept"

        @staticmethod
        def can_fuse_horizontal(*_: Any) -> bool:
            """Refuse to fuse ops if neither reads the other."""
            return False

    return OrderKept


@contextmanager
def _keeping_order() -> Iterator[None]:
    with _quietly():
        from torch._inductor import config
        from torch._inductor.virtualized import V

        choices = _order_kept()
    with config.patch(inductor_choices_class=choices), V.set_choices_handler(choices()):
        yield


def _compiled(module: fx.GraphModule, inputs: list[Any], *, is_backward: bool) -> Boxed:
    try:
        with _quietly():
            from torch._inductor.compile_fx import compile_fx_inner
            from torch._inductor.utils import BoxedBool

            run: Boxed = compile_fx_inner(module, inputs, cudagraphs=BoxedBool(False), is_backward=is_backward)
    except Exception as error:
        raise _explained(error, "backward" if is_backward else "forward") from error
    return run


@contextmanager
def needing_compiler() -> Iterator[None]:
    """Explain a missing compiler to the user.

    Raises:
        UsageError: there is none for this device.
    """
    try:
        yield
    except Exception as error:
        if (missing := _missing(error)) is not None:
            raise missing from error
        raise


def _explained(error: BaseException, which: str) -> RematError:
    return _missing(error) or GraphError(
        f"inductor does not compile the {which} pass: {_reason(error)}",
        hint="does torch.compile(model) train by itself? plan without fused=True",
    )


def _missing(error: BaseException) -> UsageError | None:
    kinds = {type(cause).__name__ for cause in _causes(error)}
    if not kinds & {"InvalidCxxCompiler", "TritonMissing"}:
        return None
    missing = "Triton" if "TritonMissing" in kinds else "a C++ compiler"
    return UsageError(
        f"fused kernels need {missing}, and none is found here: {_reason(error)}",
        hint="install it (g++, or what the environment variable CXX names), or plan without fused=True",
    )


def _reason(error: BaseException) -> str:
    last = list(_causes(error))[-1]
    return (str(last).strip().splitlines() or [type(error).__name__])[0]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__


def _names_of(run: Any) -> Iterator[dict[str, Any]]:
    """Yield the names of the module that inductor wrote for a graph.

    Wrappers around the module are looked through.
    """
    seen, rest = set[int](), [getattr(run, "current_callable", run)]
    while rest:
        call = rest.pop(0)
        if id(call) in seen:
            continue
        seen.add(id(call))
        if isinstance(call, MethodType):
            rest.append(call.__func__)
        elif isinstance(call, FunctionType):
            if "AsyncCompile" in call.__globals__:
                yield call.__globals__
            rest += [cell.cell_contents for cell in call.__closure__ or ()]
