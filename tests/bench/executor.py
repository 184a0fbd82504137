"""How a training step of the paper is executed here: the model of memory behind the reproduced tables.

Each choice is an option. What the paper leaves open of the plain run (copied gradients, sums into a new buffer within
the step that makes them, temporaries) was settled by its Vanilla column; what a backward op of a planned run reads, by
equation 2, which also comes closer to the planned columns than what Chainer retains. No number was fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from remat_cli.core.graph import Graph, Op, Phase, Tensor
from remat_cli.core.schedule import Free, Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.training import ACCUMULATION_TYPE, training_graph

_MIB = 2**20
# Buffers that an op keeps for itself: all are as large as its input, in float32.
_HAS_PRIVATE_BUFFER = frozenset({"LRN", "Dropout", "SoftmaxCrossEntropyLoss"})
_HAS_WORKSPACE = frozenset({"Conv", "ConvTranspose"})
# Temporaries of Chainer's functions, in sizes of their input: while they run, and while their backward runs.
_FORWARD_TEMPORARY = {"Dropout": 1, "SoftmaxCrossEntropyLoss": 1}
_BACKWARD_TEMPORARY = {"LRNGrad": 1}


@dataclass(frozen=True)
class Executor:
    """What is counted.

    Attributes:
        needs: what a backward op reads. "inputs": every input of its op, as equation 2 has it; "by-op": what Chainer 5
            retains (the graph's `saves`).
        private_buffers: the scale of an LRN, the mask of a dropout and the softmax of a loss are kept for the backward.
        workspace_bytes: scratch memory of a convolution; Chainer's default limit is 8 MiB.
        temporaries: the draws of a dropout, the logits that a loss copies and the summand of an LRN's backward count
            while they run.
        accumulate_in_place: a gradient is added to the one that is there; Chainer 5 makes a new one.
        share_gradients: those of additions, concatenations and reshapes share storage, as in PyTorch.
    """

    needs: str = "inputs"
    private_buffers: bool = True
    workspace_bytes: int = 8 * _MIB
    temporaries: bool = True
    accumulate_in_place: bool = False
    share_gradients: bool = False

    def __str__(self) -> str:
        reads = "what Chainer 5 retains" if self.needs == "by-op" else "all inputs of its op, as in equation 2"
        return (
            f"in planned runs, a backward op reads {reads}; "
            f"op-private buffers are {'' if self.private_buffers else 'not '}counted; "
            f"convolutions have {self.workspace_bytes / _MIB:g} MiB of workspace; "
            f"temporaries of dropout, loss and LRN are {'' if self.temporaries else 'not '}counted; "
            f"gradients are summed {'in place' if self.accumulate_in_place else 'into a new buffer'}; "
            f"those of additions, concatenations and reshapes {'share' if self.share_gradients else 'do not share'} "
            "storage; parameters, their gradients and the input are always there"
        )

    def training_graph(self, forward: Graph) -> Graph:
        """Return the training graph whose steps are executed; its forward ops are those of `forward`, in that order."""
        tensors = dict(forward.tensors)
        ops = []
        for op in forward.ops:
            saves = tuple(op.inputs) if self.needs == "inputs" else op.saves
            changed = replace(op, saves=saves, workspace_bytes=self._workspace(forward, op))
            if self.private_buffers and op.type in _HAS_PRIVATE_BUFFER:
                private = Tensor(f"{op.name}.private", tensors[op.inputs[0]].bytes, dtype="float32")
                tensors[private.name] = private
                changed = replace(changed, outputs=(*op.outputs, private.name), saves=(*(saves or ()), private.name))
            ops.append(changed)
        derived = training_graph(
            replace(forward, tensors=tensors, ops=tuple(ops)), share_gradients=self.share_gradients
        )
        steps = derived.ops if self.accumulate_in_place else _summed_into_new(derived)
        return replace(derived, ops=tuple(self._with_backward_temporary(forward, op) for op in steps))

    def _workspace(self, forward: Graph, op: Op) -> int:
        if op.type in _HAS_WORKSPACE:
            return self.workspace_bytes
        return self._temporary(forward, op, _FORWARD_TEMPORARY.get(op.type, 0))

    def _with_backward_temporary(self, forward: Graph, op: Op) -> Op:
        if op.grad_of is None or op.type.removesuffix("Grad") in _HAS_WORKSPACE:
            return op
        times = _BACKWARD_TEMPORARY.get(op.type, 0)
        return replace(op, workspace_bytes=self._temporary(forward, forward.op[op.grad_of], times))

    def _temporary(self, forward: Graph, op: Op, times: int) -> int:
        return times * forward.tensors[op.inputs[0]].bytes if self.temporaries and times else 0


def _summed_into_new(training: Graph) -> Iterator[Op]:
    """Yield the ops, sums of gradients not in place and part of the step that made the gradient.

    Chainer adds a gradient up before it lets go of what the backward function has read.
    """
    step: Op | None = None
    for op in training.ops:
        if op.type == ACCUMULATION_TYPE and step is not None:
            op = replace(op, inplace=None, inputs=tuple(dict.fromkeys((*op.inputs, *step.inputs))))
        else:
            step = op
        yield op


def vanilla_peak(training: Graph) -> int:
    """Return the peak of Chainer's plain run in bytes.

    What no backward op retains is freed after its last use; what one retains stays to the end, since the framework's
    graph holds it; gradients are freed after their last use.
    """
    forward = {name for op in training.ops if op.phase is Phase.FORWARD for name in op.outputs}
    retained = {name for op in training.ops if op.grad_of is not None for name in op.inputs if name in forward}
    steps = plain_run(training).steps
    kept = Schedule(tuple(step for step in steps if not (isinstance(step, Free) and step.tensor in retained)))
    return simulate(training, kept).peak_bytes
