"""A pipeline run as planned, within `torch.distributed.pipelining`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import fx, nn

from remat_cli.core.schedule import Compute, Inplace, Schedule
from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.formats.reader import ReadOptions
from remat_cli.pipelines import Chunk, Pipeline, replay_pipeline
from remat_cli.pipelines.file import PipelineFile, read_pipeline
from remat_cli.pipelines.planner import residents_of
from remat_cli.pytorch.capture.reader import TakenStep, take_step
from remat_cli.pytorch.programs.stages import (
    Crossing,
    GradientSums,
    StagePass,
    crossings,
    flat,
    like,
    reads_of,
    stage_passes,
)
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.pytorch.unstable.versions import explained_as_unsupported
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from remat_cli.pytorch.unstable.pipelining import OrderedPipeline, WeightsPass


class PlannedPipeline:
    """This rank's stages of a planned pipeline.

    Every rank makes one, of the whole model and the same file. It runs its own stages, and has their parameters.

    Attributes:
        parameters: the parameters of this rank's stages, for an optimizer.
        peak_bytes: planned peak of this rank.
    """

    def __init__(
        self, model: nn.Module, step: str, plan: str | Path, *, group: dist.ProcessGroup | None = None
    ) -> None:
        """Read a plan, and write a program for each job of this rank.

        Args:
            model: the model, or as much of it as this rank's stages read.
            step: the function that was planned, such as "train.py:step".
            plan: file that `remat plan --stages` has written.
            group: ranks of the pipeline; None: all.

        Raises:
            UsageError: there are more or fewer ranks than the plan has.
            GraphError: the plan is for another step, or torch's pipelining cannot hand on what its stages read.
            ScheduleFileError: the file cannot be read.
        """
        file = read_pipeline(Path(plan))
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        if len(file.orders) != ranks:
            raise UsageError(
                f"{plan} is for {len(file.orders)} ranks, and here are {ranks}",
                hint="plan with --stages as many as there are ranks",
            )
        taken = take_step(step, ReadOptions(mode=file.mode, dims=file.read_with.get("dims", {})))
        pipeline = _pipeline_of(taken, file, str(plan))
        joint, between = taken.joint, crossings(taken.joint, pipeline.chunks)
        if joint.changed:
            raise GraphError(
                f"the model writes into {sorted(storage.name for storage in joint.changed)[0]!r} in its forward pass",
                hint="planned pipelines take models without such buffers: without batch norm, for example",
            )
        parameters = _parameters(taken, model)
        self.peak_bytes = file.peaks[rank]
        self._inputs = _inputs(taken)
        self._stages: list[_PlannedStage] = []
        for chunk in pipeline.chunks:
            if pipeline.rank_of[chunk.index] == rank:
                self._stages.append(_PlannedStage(taken, pipeline, chunk, between, parameters))
        self.parameters = list(dict.fromkeys(each for planned in self._stages for each in planned.parameters()))
        self._group, self._device = group, next(iter(parameters.values())).device
        self._orders = [[job.text for job in order] for order in pipeline.orders]
        self._count, self._microbatches = len(pipeline.chunks), pipeline.microbatches
        self._runner: OrderedPipeline | None = None

    def step(self, *microbatches: Sequence[Any]) -> list[torch.Tensor]:
        """Run forward and backward passes of all microbatches.

        Gradients are added to `grad`, and divided by the number of microbatches; they are made with the first step, and
        the plan counts them: clear them by `zero_grad(set_to_none=False)`.

        Args:
            microbatches: what the model is called with, for each microbatch.

        Returns:
            The losses of the microbatches, on the rank that has the last stage.

        Raises:
            UsageError: the plan has another number of microbatches, or they have another form.
        """
        if len(microbatches) != self._microbatches:
            raise UsageError(
                f"the plan has {self._microbatches} microbatches, and here are {len(microbatches)}",
                hint="split the batch into as many as were planned",
            )
        leaves = [pytree.tree_leaves(tuple(microbatch)) for microbatch in microbatches]
        data = [{node: given[place] for node, place in self._inputs.items() if place < len(given)} for given in leaves]
        for planned in self._stages:
            planned.begin(data)
        if self._runner is None:
            self._runner = self._new_runner()
        return self._runner.run()

    @property
    def received_bytes(self) -> int:
        """Bytes of the buffers in which torch receives from other ranks; 0 before the first step."""
        return 0 if self._runner is None else self._runner.received_bytes

    def _new_runner(self) -> OrderedPipeline:
        with explained_as_unsupported():
            from remat_cli.pytorch.unstable.pipelining import OrderedPipeline, check_jobs_are_read

            check_jobs_are_read()
            stages = [planned.stage(self._count, self._device, self._group) for planned in self._stages]
            return OrderedPipeline(stages, self._orders, self._microbatches)


def _pipeline_of(taken: TakenStep, file: PipelineFile, where: str) -> Pipeline:
    """Return the pipeline of a file on a step.

    Raises:
        GraphError: the file is for another step.
    """
    reading = taken.reading()
    try:
        pipeline = file.on(reading.graph, residents_of(reading.graph, reading))
        peaks = replay_pipeline(pipeline).peaks
    except (InvalidSchedule, UsageError) as fault:
        raise GraphError(f"{where} is for another step: {fault.message}", hint="plan it again") from None
    for rank, (peak, planned) in enumerate(zip(peaks, file.peaks, strict=True)):
        if peak > planned:
            raise GraphError(
                f"{where} is for another step: rank {rank} takes {format_bytes(peak)} here, and "
                f"{format_bytes(planned)} there",
                hint="plan it again, with the sizes, the mode and the torch that it runs with",
            )
    return pipeline


def _parameters(taken: TakenStep, model: nn.Module) -> dict[fx.Node, nn.Parameter]:
    """Return the model's parameters by their primals.

    Raises:
        GraphError: the model that was planned has a tensor that this one lacks.
    """
    fake = taken.step.model
    if not isinstance(fake, nn.Module):
        raise GraphError(
            f"{taken.reference} calls a function, and planned pipelines need a model",
            hint="return the model itself, with the loss inside it",
        )
    names = {storage_key(value): name for name, value in fake.named_parameters()}
    here = dict(model.named_parameters())
    found: dict[fx.Node, nn.Parameter] = {}
    for node, primal in zip(taken.joint.primals, taken.captured.primals, strict=True):
        name = None if primal.value is None else names.get(storage_key(primal.value))
        if name is not None:
            if name not in here or here[name].shape != node.meta["val"].shape:
                raise GraphError(f"the model has no parameter {name!r} of the planned shape", hint="plan it again")
            found[node] = here[name]
    return found


def _inputs(taken: TakenStep) -> dict[fx.Node, int]:
    """Return the primals that are data, each with its place among the leaves of the positional inputs."""
    places = {
        storage_key(value): place
        for place, value in enumerate(pytree.tree_leaves(taken.step.inputs))
        if isinstance(value, torch.Tensor)
    }
    pairs = zip(taken.joint.primals, taken.captured.primals, strict=True)
    return {
        node: places[storage_key(primal.value)]
        for node, primal in pairs
        if primal.value is not None and storage_key(primal.value) in places
    }


class _PlannedStage(nn.Module):
    """A stage: a module for torch's pipelining.

    Attributes:
        own: its parameters.
        sends_away: whether the next stage is on another rank.
    """

    def __init__(
        self,
        taken: TakenStep,
        pipeline: Pipeline,
        chunk: Chunk,
        between: Sequence[Crossing],
        parameters: dict[fx.Node, nn.Parameter],
    ) -> None:
        """Write the programs of a chunk, one set for each of its plans."""
        super().__init__()
        self._index = chunk.index
        nothing = Crossing((), ())
        self._before = between[chunk.index - 1] if chunk.index else nothing
        self._after = between[chunk.index] if chunk.index < len(between) else nothing
        last, rank_of = chunk.index == len(between), pipeline.rank_of
        self.sends_away = not last and rank_of[chunk.index] != rank_of[chunk.index + 1]
        self._losses = _losses(taken) if last else ()
        joint = taken.joint
        read = {node for op in chunk.graph.ops if op.name in joint.op for node in reads_of(joint, joint.op[op.name])}
        self._primals = {node: parameter for node, parameter in parameters.items() if node in read}
        gradients = GradientSums(joint, self._primals)
        self.own = nn.ParameterList(self._primals.values())
        sent_back = tuple(node for node in self._before.gradients if node is not None)
        results = ((*self._after.values, *(node for node, _ in self._losses)), sent_back, ())
        known: dict[int, tuple[StagePass, ...]] = {}
        self._plans = []
        for i in range(pipeline.microbatches):
            schedule = pipeline.schedules[chunk.index, i]
            if id(schedule) not in known:
                passes = _divided(chunk, schedule)
                known[id(schedule)] = stage_passes(joint, passes, results[: len(passes)], gradients)
            self._plans.append(known[id(schedule)])
        jobs = pipeline.orders[pipeline.rank_of[chunk.index]]
        kinds = chunk.kinds
        self._order = [job.microbatch for job in jobs if job.chunk == chunk.index and job.kind is kinds[0]]
        self._data: list[dict[fx.Node, Any]] = []
        self._forward_calls = 0
        self._waiting: list[_Microbatch] = []

    def begin(self, data: list[dict[fx.Node, Any]]) -> None:
        """Begin a step with the data of its microbatches."""
        self._data, self._forward_calls = data, 0
        self._waiting.clear()

    def stage(self, count: int, device: torch.device, group: dist.ProcessGroup | None) -> Any:
        """Return this module as a stage of torch's pipelining."""
        from remat_cli.pytorch.unstable.pipelining import stage

        received = _examples(self._before)
        results = _examples(self._after) or [torch.empty((), device="meta", requires_grad=True)]
        return stage(self, self._index, count, device, received, results, group, self._weights)

    def forward(self, *received: torch.Tensor) -> Any:
        """Run the forward pass of the next microbatch."""
        number = self._order[self._forward_calls]
        self._forward_calls += 1
        values: dict[fx.Node, Any] = {**self._primals, **self._data[number]}
        values.update((node, like(node, memory)) for node, memory in zip(self._before.values, received, strict=True))
        microbatch = _Microbatch(self, self._plans[number], values)
        trigger = torch.empty((), requires_grad=True)
        outputs = _Passes.apply(microbatch, trigger, *received)  # type: ignore[no-untyped-call]
        return outputs[0] if self._losses else outputs

    def ran_back(self, microbatch: _Microbatch) -> None:
        """Note that the gradients of a microbatch's weights are left."""
        self._waiting.append(microbatch)

    def _weights(self) -> WeightsPass:
        """Return what runs the weights' gradients of the microbatch whose backward pass ran last."""
        return self._waiting.pop().weights

    @property
    def before(self) -> Crossing:
        """What comes from the stage before."""
        return self._before

    @property
    def after(self) -> Crossing:
        """What goes to the next stage."""
        return self._after

    @property
    def losses(self) -> Sequence[tuple[fx.Node, fx.Node]]:
        """The loss, and its gradient; empty before the last stage."""
        return self._losses


@dataclass(eq=False)
class _Microbatch:
    """A microbatch in a stage.

    Attributes:
        stage: the stage.
        passes: programs of its jobs.
        values: what it holds at present.
        handed: memory that went to the next stage, by value; torch holds on to it until all jobs are done.
    """

    stage: _PlannedStage
    passes: tuple[StagePass, ...]
    values: dict[fx.Node, Any]
    handed: dict[fx.Node, torch.UntypedStorage] = field(default_factory=dict)

    def forward(self) -> tuple[torch.Tensor, ...]:
        """Run the forward pass; return what goes on."""
        self.passes[0](self.values)
        outputs = self._taken([node for node, _ in self.stage.losses] or self.stage.after.values, 1)
        if self.stage.losses:
            return tuple(outputs.values())
        if self.stage.sends_away:
            self.handed = {node: value.untyped_storage() for node, value in outputs.items()}
        return tuple(map(flat, outputs.values()))

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Run the pass that makes gradients of inputs; return them."""
        nodes = [node for _, node in self.stage.losses] or self.stage.after.gradients
        for node, gradient in zip(nodes, gradients, strict=True):
            if node is not None and gradient is not None:
                self.values[node] = gradient if self.stage.losses else like(node, gradient)
        del gradients
        self._let_go(1)
        self.passes[1](self.values)
        self._let_go(2)
        sent = self._taken([node for node in self.stage.before.gradients if node is not None], 2)
        self.stage.ran_back(self)
        return [None if node is None else flat(sent[node]) for node in self.stage.before.gradients]

    def weights(self) -> None:
        """Run what is left of the backward pass."""
        with torch.no_grad():
            for each in self.passes[2:]:
                each(self.values)
        self._let_go(len(self.passes))

    def _taken(self, nodes: Sequence[fx.Node], place: int) -> dict[fx.Node, torch.Tensor]:
        """Return values; those that no pass from `place` on reads are no longer held."""
        later = self._read_from(place)
        return {node: self.values[node] if node in later else self.values.pop(node) for node in nodes}

    def _let_go(self, place: int) -> None:
        """Free what went to the next stage, which has read it, if no pass from `place` on does."""
        later = self._read_from(place)
        for node in [node for node in self.handed if node not in later]:
            self.handed.pop(node).resize_(0)

    def _read_from(self, place: int) -> set[fx.Node]:
        return {node for each in self.passes[place:] for node in each.inputs}


class _Passes(torch.autograd.Function):
    """Forward and backward pass of a microbatch in a stage, for autograd."""

    @staticmethod
    def forward(ctx: Any, microbatch: _Microbatch, trigger: torch.Tensor, *received: torch.Tensor) -> Any:
        """Run the forward pass."""
        del trigger, received
        ctx.microbatch = microbatch
        outputs = microbatch.forward()
        pairs = zip(outputs, microbatch.stage.after.gradients, strict=False)
        ctx.mark_non_differentiable(*(output for output, gradient in pairs if gradient is None))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run the backward pass, as far as gradients are sent."""
        microbatch, ctx.microbatch = ctx.microbatch, None
        return (None, None, *microbatch.backward(gradients))


def _divided(chunk: Chunk, schedule: Schedule) -> list[list[Any]]:
    """Return the steps of each job."""
    passes: list[list[Any]] = [[]]
    for step in schedule.steps:
        if not isinstance(step, Compute | Inplace):
            continue  # values are dropped with their last reader
        if step.op in (chunk.turn, chunk.sent):
            passes.append([])
        else:
            passes[-1].append(step)
    return passes


def _losses(taken: TakenStep) -> tuple[tuple[fx.Node, fx.Node], ...]:
    """Return the loss and its gradient.

    Raises:
        GraphError: the step has more than one loss.
    """
    joint = taken.joint
    scalars = [value for value in joint.forward_outputs if isinstance(value, fx.Node) and not value.meta["val"].dim()]
    if len(joint.tangents) != 1 or not scalars:
        raise GraphError(
            f"{taken.reference} has {len(joint.tangents)} outputs with gradients", hint="return the loss alone"
        )
    return ((scalars[0], joint.tangents[0]),)


def _examples(crossing: Crossing) -> list[torch.Tensor]:
    """Return tensors like those that cross, without memory of their own."""
    examples = []
    for value, gradient in zip(crossing.values, crossing.gradients, strict=True):
        fake = value.meta["val"]
        example = torch.empty(fake.numel(), dtype=fake.dtype, device="meta")
        examples.append(example.requires_grad_(gradient is not None))
    return examples
