"""`torch.distributed.pipelining` with a given order of jobs: what reads it, and what runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from remat_cli.pytorch.unstable.versions import unsupported

# Runs the gradients of a microbatch's weights.
WeightsPass = Callable[[], None]


class OrderedPipeline(_PipelineScheduleRuntime):
    """Runs the jobs of this rank in a given order."""

    def __init__(self, stages: Sequence[PipelineStage], orders: Sequence[Sequence[str]], microbatches: int) -> None:
        """Lower an order of jobs to one with communication.

        Args:
            stages: stages of this rank.
            orders: [ranks] jobs of each rank, such as "1F0".
            microbatches: number of microbatches.
        """
        super().__init__(list(stages), microbatches, loss_fn=lambda loss, _: loss)  # type: ignore[no-untyped-call]
        self.pipeline_order = {rank: [_Action.from_str(job) for job in jobs] for rank, jobs in enumerate(orders)}
        self._prepare_schedule_with_comms(self.pipeline_order)

    @property
    def received_bytes(self) -> int:
        """Bytes of the buffers in which stages receive from others."""
        tables = [table for stage in self._stages for table in (stage.args_recv_info, stage.grad_recv_info)]
        infos = [info for table in tables for microbatch in table.values() for info in microbatch]
        return sum(info.buffer.nbytes for info in infos if info is not None and info.buffer is not None)

    def run(self) -> list[torch.Tensor]:
        """Run all microbatches; return their losses, on the rank that has the last stage.

        Stages know their data; only tensors that go from stage to stage are handed on.
        """
        count = self._n_microbatches
        for stage in self._stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        losses: list[torch.Tensor] = []
        self._step_microbatches([()] * count, [{}] * count, [None] * count, losses, return_outputs=False)
        return losses


def stage(
    module: nn.Module,
    index: int,
    count: int,
    device: torch.device,
    received: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None,
    weights: Callable[[], WeightsPass],
) -> PipelineStage:
    """Return a module as a stage.

    Args:
        module: the module.
        index: place in the order of the forward pass.
        count: number of stages.
        device: device of the stage.
        received: tensors like those that the forward pass receives.
        results: tensors like those that it returns.
        group: ranks of the pipeline; None: all.
        weights: called after a backward pass; returns what makes the gradients of weights that are left.
    """
    given: dict[str, Any] = {"input_args": tuple(received), "output_args": tuple(results)}
    return PipelineStage(module, index, count, device, group=group, dw_builder=weights, **given)


def check_jobs_are_read() -> None:
    """Check that torch reads jobs as they are written here.

    Raises:
        UsageError: it reads them otherwise.
    """
    action = _Action.from_str("2I1")
    if action is None or (action.stage_index, action.microbatch_index, str(action)) != (2, 1, "2I1"):
        raise unsupported("its pipelining reads jobs otherwise")
