"""The training graph of a forward graph: its ops, a loss, and the backward ops in reverse order.

It depends only on the native format's fields: a forward graph that is written and read again has the same training
graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, prod

from remat_cli.core.graph import Draft, Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.errors import GraphError, UsageError
from remat_cli.settings import Setting
from remat_cli.training.annotate import is_differentiable
from remat_cli.training.names import Names
from remat_cli.training.shards import GATHER_TYPE, SCATTER_TYPE

LOSS_TYPE = "Loss"
ACCUMULATION_TYPE = "GradientAccumulation"

# The gradient of an operand of the result's size is the incoming gradient itself.
_HANDS_ON_GRADIENT = frozenset({"Add", "Sum", "Identity"})


def training_graph(forward: Draft, *, share_gradients: bool = True) -> Graph:
    """Return the graph of one training step: forward, loss, backward.

    See `training_step`.
    """
    return training_step(forward, share_gradients=share_gradients)[0]


def training_step(forward: Draft, *, share_gradients: bool = True) -> tuple[Graph, dict[str, str]]:
    """Return the graph of one training step, and the gradient of each graph input that has one.

    A loss op reads the outputs and seeds their gradients. It takes no time: it stands for a loss outside the graph. An
    op with a gradient for an output gets a backward op. This reads such gradients and the op's saved tensors, and
    writes the gradients of the op's `grad_inputs`. A backward op runs exactly once, since it also adds to resident
    gradients of parameters; without other results it has an output of 0 bytes. Gradients of a tensor with several
    readers are summed as they arrive. Gradients share storage as in PyTorch (see `_Backward.shared_gradient`). The
    outputs are those of the forward pass, and the gradients of graph inputs that the graph asks for.

    An output seeds a gradient if it is a float (or of unknown type) and its producer has a backward: the producer saves
    something, or has inputs that receive a gradient. If an output is a view, its base does not seed another gradient.

    Args:
        forward: a forward pass.
        share_gradients: whether gradients share storage as in PyTorch; otherwise each has its own.

    Raises:
        UsageError: the graph is no forward pass.
        GraphError: no output has a gradient.
    """
    if forward.kind is not Kind.FORWARD:
        raise UsageError(
            f"graph {forward.name!r} is of kind {forward.kind.value!r}: a training graph comes from a forward one",
            hint="plan it as it is, or set its kind to 'forward' if it is a forward pass",
        )
    seeds = _seeds(forward)
    if not seeds:
        raise GraphError(
            f"no output of graph {forward.name!r} has a gradient, so there is nothing to train",
            hint=("use ", Setting("mode", "inference"), "; or name outputs that depend on trainable floats"),
        )
    backward = _Backward(forward, share_gradients)
    backward.seed(seeds)
    for op in reversed(forward.ops):
        backward.differentiate(op)
    graph = build_graph(
        name=forward.name,
        kind=Kind.TRAINING,
        time_unit=forward.time_unit,
        resident_bytes=forward.resident_bytes,
        tensors=(*forward.tensors.values(), *backward.tensors.values()),
        ops=(*(_without_gradient_fields(op) for op in forward.ops), *backward.ops),
        outputs=(*forward.outputs, *backward.results()),
    )
    return graph, backward.input_gradients


def _without_gradient_fields(op: Op) -> Op:
    return op.edited(saves=None, grad_inputs=None, grad_time=None, grad_flops=None)


def _seeds(forward: Draft) -> list[str]:
    tensors = forward.tensors
    bases = {tensors[name].view_of for name in forward.outputs}
    return [
        name
        for name in forward.outputs
        if name not in bases
        and name in forward.producer
        and is_differentiable(tensors[name].dtype)
        and _takes_part(forward.producer[name])
    ]


def _takes_part(op: Op) -> bool:
    """Return whether an op has a backward.

    Ops without a backward save nothing and pass no gradient on.
    """
    return op.saves != () or op.grad_inputs != ()


def _value_bytes(graph: Draft, name: str) -> int:
    """Return the size of a value.

    A view has its share of its base's elements, or all of them if a shape is unknown.

    A view of a weight has no base in the graph and counts as 0: its gradient is added to the weight's resident
    gradient.
    """
    tensor = graph.tensors[name]
    if tensor.view_of is None:
        return tensor.bytes
    base = graph.tensors[tensor.view_of]
    if tensor.shape is None or not base.shape or prod(base.shape) == 0:
        return base.bytes
    return base.bytes * prod(tensor.shape) // prod(base.shape)


class _Backward:
    """The backward of a forward graph, built op by op.

    Attributes:
        tensors: gradients and tokens, by name.
        ops: in execution order.
    """

    def __init__(self, forward: Draft, share_gradients: bool) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self._forward = forward
        self._share_gradients = share_gradients
        self._tensor_names = Names(forward.tensors)
        self._op_names = Names(forward.op)
        self._tokens: list[str] = []
        # By forward tensor: the sum of the gradients so far, and how many there were.
        self._gradient: dict[str, str] = {}
        self._contributions: dict[str, int] = {}
        self._time = ElementwiseTime(forward)

    def seed(self, outputs: Sequence[str]) -> None:
        """Add the loss, which seeds the gradients of outputs."""
        gradients = [self._new_gradient(name, None) for name in outputs]
        self.ops.append(
            Op(
                name=self._op_names.fresh("loss"),
                type=LOSS_TYPE,
                inputs=tuple(outputs),
                outputs=tuple(gradients),
                time=0,
                phase=Phase.BACKWARD,
                recomputable=False,
                flops=0,
                moved_bytes=0,
            )
        )
        for name, gradient in zip(outputs, gradients, strict=True):
            self._contribute(name, gradient)

    def differentiate(self, op: Op) -> None:
        """Add an op's backward if an output of the op has a gradient."""
        arriving = [name for name in op.outputs if name in self._gradient]
        if not arriving:
            return
        produced = self._forward.producer
        targets = op.grad_inputs
        if targets is None:
            targets = tuple(name for name in op.inputs if name in produced)
        saved = (*op.inputs, *op.outputs) if op.saves is None else op.saves
        incoming = tuple(self._gradient[name] for name in arriving)
        gradients = tuple(self._new_gradient(name, self.shared_gradient(op, name, arriving)) for name in targets)
        self.ops.append(
            Op(
                name=self._op_names.fresh(f"{op.name}.backward"),
                type=SCATTER_TYPE if op.type == GATHER_TYPE else f"{op.type}Grad",
                inputs=(*incoming, *dict.fromkeys(saved)),
                outputs=gradients or (self._new_token(op),),
                time=2 * op.time if op.grad_time is None else op.grad_time,
                workspace_bytes=op.workspace_bytes,
                phase=Phase.BACKWARD,
                grad_of=op.name,
                recomputable=False,
                flops=None if op.flops is None else 2 * op.flops,
                moved_bytes=self._moved_bytes(arriving, saved, gradients),
            )
        )
        for name, gradient in zip(targets, gradients, strict=True):
            self._contribute(name, gradient)

    def shared_gradient(self, op: Op, name: str, arriving: Sequence[str]) -> str | None:
        """Return the incoming gradient that an input's gradient is a view of.

        None means a gradient with storage of its own.

        As in PyTorch's autograd: the parts of a `Concat` are slices of the incoming gradient. `Add`, `Sum` and
        `Identity` pass the gradient on, except to broadcast operands. An op whose result is a view of the input with
        all its elements passes it on, too (`Reshape`, `Transpose`). (The gradient of x + x is doubled, in new storage;
        a graph cannot show this, as it names each input once: it looks like x + constant.)
        """
        if not self._share_gradients or len(arriving) != 1:
            return None
        graph, result = self._forward, arriving[0]
        base_of_result = graph.tensors[result].view_of
        hands_on = op.type in _HANDS_ON_GRADIENT or (
            base_of_result is not None and base_of_result == (graph.tensors[name].view_of or name)
        )
        if op.type == "Concat" or (hands_on and _value_bytes(graph, name) == _value_bytes(graph, result)):
            return self._gradient[result]
        return None

    @property
    def input_gradients(self) -> dict[str, str]:
        """The gradient of each graph input that has one."""
        return {name: self._gradient[name] for name in self._forward.inputs if name in self._gradient}

    def results(self) -> Iterator[str]:
        """Yield the tensors needed at the end.

        These are the gradients of graph inputs, and the tokens.
        """
        yield from self.input_gradients.values()
        yield from self._tokens

    def _new_gradient(self, of: str, view_of: str | None) -> str:
        """Add a gradient of the forward tensor `of`.

        It has storage of its own, or is a view of another gradient.
        """
        like = self._forward.tensors[of]
        number = self._contributions.get(of, 0) + 1
        name = self._tensor_names.fresh(f"{of}.grad" if number == 1 else f"{of}.grad.{number}")
        size = _value_bytes(self._forward, of) if view_of is None else 0
        self.tensors[name] = Tensor(name, size, like.shape, like.dtype, view_of)
        return name

    def _new_token(self, op: Op) -> str:
        name = self._tensor_names.fresh(f"{op.name}.backward.done")
        self.tensors[name] = Tensor(name, 0)
        self._tokens.append(name)
        return name

    def _contribute(self, name: str, gradient: str) -> None:
        """Set a forward tensor's gradient, or add to the existing gradient."""
        self._contributions[name] = self._contributions.get(name, 0) + 1
        if name in self._gradient:
            gradient = self._accumulate(name, self._gradient[name], gradient)
        self._gradient[name] = gradient

    def _accumulate(self, of: str, earlier: str, later: str) -> str:
        """Sum two gradients of the forward tensor `of`.

        The sum is in place if a gradient has storage of its own that only this sum reads.
        """
        like = self._forward.tensors[of]
        size = _value_bytes(self._forward, of)
        number = self._contributions[of]
        total = Tensor(self._tensor_names.fresh(f"{of}.grad.sum{number}"), size, like.shape, like.dtype)
        owned = [name for name in (earlier, later) if self.tensors[name].view_of is None]
        elements = size // 4 if like.shape is None else prod(like.shape)
        self.tensors[total.name] = total
        self.ops.append(
            Op(
                name=self._op_names.fresh(f"{of}.grad.accumulate{number}"),
                type=ACCUMULATION_TYPE,
                inputs=(earlier, later),
                outputs=(total.name,),
                time=self._time.of(elements, 3 * size),
                inplace=owned[0] if owned else None,
                phase=Phase.BACKWARD,
                flops=elements,
                moved_bytes=3 * size,
            )
        )
        return total.name

    def _moved_bytes(self, arriving: Sequence[str], saved: Sequence[str], gradients: Sequence[str]) -> int:
        """Return the bytes that a backward op reads and writes.

        An op that only passes gradients on moves nothing.
        """
        if gradients and all(self.tensors[name].view_of is not None for name in gradients):
            return 0
        # A saved view comes with its base, so that each storage counts once.
        read = sum(self._forward.tensors[name].bytes for name in saved)
        read += sum(_value_bytes(self._forward, name) for name in arriving)
        return read + sum(self.tensors[name].bytes for name in gradients)


class ElementwiseTime:
    """The time of ops that treat each element alone, on a graph's device.

    It is one unit, their FLOPs, or the time to move their bytes.
    """

    def __init__(self, graph: Draft) -> None:
        self._time_unit = graph.time_unit
        self._move_time = _fastest_move(graph)

    def of(self, flops: int, moved_bytes: int) -> int:
        """Return the time of an op in the graph's time unit."""
        match self._time_unit:
            case "unit":
                return 1
            case "flop":
                return flops
            case _:
                return ceil(moved_bytes * self._move_time)

    def of_bytes(self, moved_bytes: int) -> int:
        """Return the time of an op with one FLOP for 4 bytes that it moves."""
        return self.of(moved_bytes // 4, moved_bytes)


def _fastest_move(graph: Draft) -> Fraction:
    """Return the shortest time in which an op of the graph moves a byte.

    It is 0 if no op takes time.

    The ops' times show the device's speed; ops that mostly move bytes move them fastest.
    """

    times = ((op.time, _forward_moved_bytes(graph, op)) for op in graph.ops if op.phase is Phase.FORWARD)
    return min((Fraction(time, moved) for time, moved in times if time > 0 and moved > 0), default=Fraction(0))


def _forward_moved_bytes(graph: Draft, op: Op) -> int:
    if op.moved_bytes is not None:
        return op.moved_bytes
    return sum(graph.tensors[name].bytes for name in (*op.inputs, *op.outputs))
