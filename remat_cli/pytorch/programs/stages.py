"""A stage of a pipeline as programs: one for each of its jobs.

The passes of a microbatch share values: one pass makes or receives a value, and the last pass that reads it drops it.
GradientSums of parameters are added where they are made, so that none waits for the end of a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from remat_cli.core.schedule import Compute, Inplace, Step
from remat_cli.errors import GraphError
from remat_cli.pipelines import Chunk
from remat_cli.pytorch.capture.joint import Joint, JointOp
from remat_cli.pytorch.programs.program import PassWriter, roots_of
from remat_cli.pytorch.unstable.joint_graphs import Boxed, boxed

_HINT = "cut elsewhere: --cuts names the first op or module of each stage but the first"


@dataclass(frozen=True, eq=False)
class Crossing:
    """Tensors that two neighbouring stages hand each other, as flat memory.

    Attributes:
        values: values that go forward.
        gradients: for each, the value that comes back in its place; None where none does.
    """

    values: tuple[fx.Node, ...]
    gradients: tuple[fx.Node | None, ...]


def crossings(joint: Joint, chunks: Sequence[Chunk]) -> list[Crossing]:
    """Return what each stage but the last hands to the next one, and gets back.

    Raises:
        GraphError: stages that are no neighbours read from each other, a tensor is a part of other memory, or gradients
            are not like the values that go forward.
    """
    chunk_of = {op.name: chunk.index for chunk in chunks for op in chunk.graph.ops if op.name in joint.op}
    made_in = {value: chunk_of[op.name] for op in joint.ops for value in op.values if op.node is not None}
    forward: list[dict[fx.Node, None]] = [{} for _ in chunks]
    backward: list[dict[fx.Node, None]] = [{} for _ in chunks]
    for op in joint.ops:
        for root in reads_of(joint, op):
            origin, target = made_in.get(root), chunk_of[op.name]
            if origin is None or origin == target:
                continue
            if abs(origin - target) > 1:
                raise GraphError(
                    f"stage {target} reads {root.name!r} of stage {origin}, and torch's pipelining hands on between "
                    "neighbours alone",
                    hint=_HINT,
                )
            (forward if origin < target else backward)[min(origin, target)][root] = None
    return [
        _paired(tuple(values), tuple(gradients), index)
        for index, (values, gradients) in enumerate(zip(forward[:-1], backward[:-1], strict=True))
    ]


def reads_of(joint: Joint, op: JointOp) -> dict[fx.Node, None]:
    """Return the values that an op reads, or derives views from; none for the boundary."""
    sources = () if op.node is None else op.node.all_input_nodes
    return dict.fromkeys(root for source in sources for root in roots_of(joint, source))


def _paired(values: Sequence[fx.Node], gradients: Sequence[fx.Node], index: int) -> Crossing:
    """Pair gradients with values of the same type and number of elements."""
    left = list(gradients)
    pairs: list[fx.Node | None] = []
    for value in values:
        like = next((each for each in left if _form(each) == _form(value)), None)
        pairs.append(like)
        if like is not None:
            left.remove(like)
    if left:
        raise GraphError(
            f"stage {index} gets gradient {left[0].name!r} of stage {index + 1}, and sends no tensor of its "
            "size and type",
            hint=_HINT,
        )
    return Crossing(tuple(values), tuple(pairs))


def _form(node: fx.Node) -> tuple[torch.dtype, int]:
    value = node.meta["val"]
    if value.untyped_storage().nbytes() != value.numel() * value.itemsize:
        raise GraphError(f"{node.name!r} goes to another stage, and is a part of other memory", hint=_HINT)
    return value.dtype, value.numel()


def flat(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor's memory in one dimension."""
    return value.as_strided((value.numel(),), (1,), 0)


def like(node: fx.Node, memory: torch.Tensor) -> torch.Tensor:
    """Return a value in the memory that came for it."""
    value = node.meta["val"]
    return memory.as_strided(value.shape, value.stride(), 0)


@dataclass(frozen=True, eq=False)
class StagePass:
    """The program of a job.

    Attributes:
        run: takes a list of its inputs, and empties it.
        inputs: values that it reads.
        outputs: values that it makes and others read.
        last: inputs that no later job reads.
    """

    run: Boxed
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    last: frozenset[fx.Node]

    def __call__(self, values: dict[fx.Node, Any]) -> None:
        """Run the job on the values of a microbatch."""
        given = [values.pop(node) if node in self.last else values[node] for node in self.inputs]
        values.update(zip(self.outputs, self.run(given), strict=True))


def stage_passes(
    joint: Joint, passes: Sequence[Sequence[Step]], results: Sequence[Sequence[fx.Node]], gradients: GradientSums
) -> tuple[StagePass, ...]:
    """Return the programs of a stage's jobs for one microbatch.

    Args:
        joint: the whole step.
        passes: steps of each job, in the order of the jobs.
        results: values that each job hands to other stages.
        gradients: adds gradients of parameters.
    """
    runs = [[step.op for step in steps if isinstance(step, Compute | Inplace) and _runs(joint, step.op)]
            for steps in passes]  # fmt: skip
    read_later = [frozenset[fx.Node]()]
    for names, handed in zip(reversed(runs), reversed(results), strict=True):
        inputs, made = _reads(joint, names, handed)
        read_later.append(frozenset(inputs) | (read_later[-1] - made))
    read_later.reverse()
    return tuple(
        _written(joint, names, handed, read_later[place + 1], gradients)
        for place, (names, handed) in enumerate(zip(runs, results, strict=True))
    )


def _runs(joint: Joint, name: str) -> bool:
    return name in joint.op and joint.op[name].node is not None


def _reads(joint: Joint, names: Iterable[str], handed: Iterable[fx.Node]) -> tuple[dict[fx.Node, None], set[fx.Node]]:
    """Return the values that a job reads before it makes them, and those that it makes."""
    reads: dict[fx.Node, None] = {}
    made: set[fx.Node] = set()
    for name in names:
        reads.update((node, None) for node in reads_of(joint, joint.op[name]) if node not in made)
        made.update(joint.op[name].values)
    reads.update((node, None) for node in handed if node not in made)
    return reads, made


def _written(
    joint: Joint, names: Sequence[str], handed: Sequence[fx.Node], later: frozenset[fx.Node], gradients: GradientSums
) -> StagePass:
    inputs, made = _reads(joint, names, handed)
    writer = PassWriter(joint, None, frozenset(), fused=False)
    for node in inputs:
        writer.input(node)
    ran: set[str] = set()
    for name in names:
        writer.compute(joint.op[name])
        if name not in ran:
            for slot, value in gradients.made_by(joint.op[name].values):
                writer.graph.call_function(gradients.add, (slot, writer.read(value)))
        ran.add(name)
    outputs = tuple(sorted(made & (later | set(handed)), key=lambda node: node.name))
    run = boxed(writer.module([writer.read(node) for node in outputs]))
    return StagePass(run, tuple(inputs), outputs, frozenset(inputs) - later)


class GradientSums:
    """Adds gradients of parameters to those of earlier microbatches.

    Attributes:
        add: adds a gradient to a parameter's, by the parameter's place.
    """

    def __init__(self, joint: Joint, parameters: Mapping[fx.Node, torch.nn.Parameter]) -> None:
        """Note which value is the gradient of which parameter.

        Args:
            joint: the step.
            parameters: parameters of the stage, by their primal.
        """
        self._places: dict[fx.Node, list[tuple[int, fx.Node]]] = {}
        kept: list[torch.nn.Parameter] = []
        for primal, gradient in zip(joint.primals, joint.backward_outputs, strict=True):
            if primal in parameters and isinstance(gradient, fx.Node):
                for root in roots_of(joint, gradient)[:1]:
                    self._places.setdefault(root, []).append((len(kept), gradient))
                kept.append(parameters[primal])

        def add(place: int, gradient: torch.Tensor) -> None:
            parameter = kept[place]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(gradient)

        self.add = add
        self.parameters = tuple(kept)

    def made_by(self, values: Iterable[fx.Node]) -> Iterator[tuple[int, fx.Node]]:
        """Yield the gradients of parameters among values, each with the parameter's place."""
        for value in values:
            yield from self._places.get(value, ())
