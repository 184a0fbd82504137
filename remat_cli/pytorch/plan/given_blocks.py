"""Plans of blocks from a file, and the file of a step's plans."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.formats.blocks_json import BlockPlan, BlocksFile, blocks_bytes, read_blocks
from remat_cli.planning.given import file_of_block
from remat_cli.pytorch.plan.block_step import BlockStep, ChosenPlans, CurvePoint
from remat_cli.pytorch.plan.file_source import check_structure
from remat_cli.pytorch.plan.record import notify
from remat_cli.pytorch.plan.region_curve import RegionGraphs
from remat_cli.units import format_bytes

_AGAIN = "plan the blocks for a budget, and write the file again: plan_of(model).save(...)"


@dataclass(eq=False)
class GivenBlocks:
    """The plans in a file for the blocks of a model.

    Attributes:
        file: the file.
    """

    file: BlocksFile
    _places: dict[str, int] = field(default_factory=dict)  # of the plan of each call, in its kind's curve

    @classmethod
    def at(cls, path: Path, *, fused: bool) -> GivenBlocks:
        """Read a file.

        Args:
            path: path of the file.
            fused: inductor's kernels will run the plans.

        Raises:
            ScheduleFileError: the file cannot be read.
            UsageError: the plans are for other kernels.
        """
        file = read_blocks(path)
        if file.fused != fused:
            kernels = "the kernels of torch.compile" if file.fused else "eager's kernels"
            remedy = "planned(..., fused=True)" if file.fused else "leave fused=True out, or plan with it"
            raise UsageError(f"{path} was planned for {kernels}", hint=remedy)
        return cls(file)

    @property
    def has_parts(self) -> bool:
        """Whether blocks may run in parts: they are captured as eager's ops then."""
        return any("parts" in (schedule.read_with or {}) for schedule in self.file.schedules.values())

    def paths_in(self, model: nn.Module) -> list[str]:
        """Return the paths of the file's blocks.

        Raises:
            UsageError: the model has no such block.
        """
        paths = dict.fromkeys(name.partition(", call ")[0] for name in self.file.blocks)
        known = dict(model.named_modules())
        for path in paths:
            if path not in known:
                raise UsageError(f"{self.file.path} has a plan for block {path!r}, which the model lacks", hint=_AGAIN)
        return list(paths)

    def check_calls(self, names: Iterable[str]) -> None:
        """Check that the file has plans for these calls of blocks alone.

        Raises:
            GraphError: a call has no plan, or a plan no call.
        """
        called = dict.fromkeys(names)
        for name in called:
            if name not in self.file.blocks:
                raise GraphError(f"{self.file.path} has no plan for block {name!r}", hint=_AGAIN)
        for name in self.file.blocks:
            if name not in called:
                raise GraphError(
                    f"{self.file.path} has a plan for block {name!r}, which the training step does not run", hint=_AGAIN
                )

    def points_for(self, names: Sequence[str], graphs: RegionGraphs) -> list[CurvePoint]:
        """Return the plans of equal calls, to follow the plain plan.

        Args:
            names: names of the calls.
            graphs: graphs of the block.

        Raises:
            GraphError: a schedule is for another graph, or breaks a rule; the message names the block.
        """
        points: dict[str, CurvePoint] = {}
        for name in names:
            key = self.file.blocks[name].schedule
            if key not in points:
                points[key] = self._point(name, key, graphs)
            self._places[name] = 1 + list(points).index(key)
        return list(points.values())

    def _point(self, name: str, key: str, graphs: RegionGraphs) -> CurvePoint:
        where = f"{self.file.path}, block {name!r},"
        file = self.file.schedules[key]
        try:
            cuts = file.cuts
            check_structure(graphs.prepared(cuts).graph, file.structure or {}, where)
            return graphs.point(file.schedule, cuts)
        except InvalidSchedule as fault:
            raise GraphError(f"{where} does not run: {fault.message}", hint=_AGAIN) from None
        except UsageError as fault:
            raise GraphError(f"{where} is for another graph: {fault.message}", hint=_AGAIN) from None

    def warn_if_above(self, peak_bytes: int) -> None:
        """Warn if the plans peak above the budget that they were made for."""
        budget = self.file.budget_bytes
        if peak_bytes > budget:
            peak = format_bytes(peak_bytes)
            notify(
                logging.WARNING,
                f"the plans in {self.file.path} peak at {peak} here, above the budget of {format_bytes(budget)} that "
                "they were made for",
            )

    def check_copies(self, step: BlockStep) -> None:
        """Check that tensors on the host by the file can leave.

        Raises:
            GraphError: one of them cannot.
        """
        inputs, saved = self._away(step)
        stay = [(at, "input") for at in inputs - set(step.inputs_can_leave)]
        stay += [(at, "saved tensors") for at in saved - set(step.saved_can_leave)]
        for at, what in sorted(stay):
            raise GraphError(
                f"{self.file.path} has {what} of block {step.paths[at]!r} on the host, which cannot leave here: "
                "something else holds them, or no other block runs in between",
                hint=_AGAIN,
            )

    def choice(self, step: BlockStep) -> ChosenPlans:
        """Return the choice that the file makes; `least` is its own time."""
        choice = ChosenPlans(tuple(self._places[name] for name in step.paths), 0, *self._away(step))
        return choice._replace(least=step.replay(choice, 0).time)

    def _away(self, step: BlockStep) -> tuple[frozenset[int], frozenset[int]]:
        plans = [(at, self.file.blocks[name]) for at, name in enumerate(step.paths)]
        inputs = frozenset(at for at, plan in plans if plan.input_on_host)
        return inputs, frozenset(at for at, plan in plans if plan.saved_on_host)


def file_of_blocks(
    points: Mapping[str, CurvePoint],
    away: Iterable[str],
    saved_away: Iterable[str],
    fused: bool,
    splits: bool,
    budget_bytes: int,
    peak_bytes: int,
    other_bytes: int,
) -> bytes:
    """Return the file of a step's plans.

    Args:
        points: plans by the name of the call.
        away: names of the calls whose inputs are on the host between their passes.
        saved_away: names of the calls whose saved tensors are.
        fused: inductor's kernels run the plans.
        splits: blocks may run in parts.
        budget_bytes: budget of the step.
        peak_bytes: predicted peak of the step.
        other_bytes: bytes of the optimizer's state and of free memory within the peak.
    """
    inputs, saved = set(away), set(saved_away)
    blocks: dict[str, BlockPlan] = {}
    keys: dict[Any, str] = {}
    schedules: dict[str, bytes] = {}
    for name, point in points.items():
        graph, schedule = point.planned.graph, point.planned.schedule
        own = id(graph), schedule
        if own not in keys:
            keys[own] = str(len(keys))
            schedules[keys[own]] = file_of_block(
                graph.edited(name=name).checked(), schedule, point.cuts if splits else None
            )
        blocks[name] = BlockPlan(keys[own], name in inputs, name in saved)
    return blocks_bytes(
        blocks,
        schedules,
        fused=fused,
        budget_bytes=budget_bytes,
        peak_bytes=peak_bytes,
        other_bytes=other_bytes,
    )
