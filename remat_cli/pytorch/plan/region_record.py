"""The record of a model that is planned by regions: what was planned, measured, and left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from remat_cli.errors import UsageError
from remat_cli.formats.writing import write_file
from remat_cli.pytorch.plan.block_step import CurvePoint
from remat_cli.pytorch.plan.given_blocks import file_of_blocks
from remat_cli.pytorch.plan.planned_step import PlannedStep
from remat_cli.pytorch.plan.record import PlanRecord, beyond
from remat_cli.pytorch.plan.region_kinds import RegionKind
from remat_cli.units import counted, format_bytes, format_share


@dataclass(eq=False)
class RegionsRecord(PlanRecord):
    """The record of a model planned by regions.

    Its `graphs` are those of blocks, one for each plan that was chosen; their figures are the block's alone.

    Attributes:
        predicted_peak_bytes: predicted peak of the whole step: regions, memory between them, and memory from before.
        budget_bytes: budget of the whole step.
        overhead: extra time of the regions, as a share of their unplanned time.
        least_overhead: lower bound on the overhead of choices among the regions' plans.
        points: the chosen plans, by the path of the region.
        kinds: number of regions that were captured and planned; the others equal one of them.
        plans: number of plans of the step, for different sizes of inputs.
        kernels: the compiled kernels, in words; empty if eager's kernels run.
        left: reasons why regions run in eager mode, by path.
        away: calls whose inputs are on the host between their passes, with the inputs' bytes.
        saved_away: calls whose saved tensors are, with these tensors' bytes.
        measured_peak_bytes: peak of each measured step, counted like the predicted peak.
        beyond_bytes: largest excess of such a step over the predicted peak, under the present plans.
        whole_calls: number of the model's calls that ran as planned.
        fused: inductor's kernels run the plans.
        splits: blocks may run in parts.
        other_bytes: bytes of the optimizer's state and of free memory within the predicted peak.
        chosen: kind of each call of the last step, and the number of its plan, by name.
        update: where the optimizer's updates run, in words; empty where they are no part of the plan.
        without_symbols: returns such a plan for its sizes alone.
    """

    predicted_peak_bytes: int = 0
    budget_bytes: int = 0
    overhead: float = 0.0
    least_overhead: float = 0.0
    points: dict[str, CurvePoint] = field(default_factory=dict)
    kinds: int = 0
    plans: int = 0
    kernels: str = ""
    left: dict[str, str] = field(default_factory=dict)
    away: dict[str, int] = field(default_factory=dict)
    saved_away: dict[str, int] = field(default_factory=dict)
    measured_peak_bytes: list[int] = field(default_factory=list)
    beyond_bytes: int = 0
    whole_calls: int = 0
    fused: bool = False
    splits: bool = False
    other_bytes: int = 0
    update: str = ""
    chosen: Mapping[str, tuple[RegionKind, int]] = field(default_factory=dict)
    without_symbols: Callable[[RegionKind, int], CurvePoint] = lambda kind, plan_index: kind.points[plan_index]

    def take(self, plan: PlannedStep) -> None:
        """Take the plan of the step that runs next."""
        self.predicted_peak_bytes, self.budget_bytes = plan.peak, plan.budget
        self.overhead, self.least_overhead = plan.overhead, plan.least_overhead
        self.kinds = len(set(plan.kinds))
        self.points = {name: kind.points[plan_index] for name, (kind, plan_index) in plan.chosen.items()}
        sizes = dict(zip(plan.step.paths, plan.step.inputs, strict=False))
        self.away = {name: sizes[name] for name in plan.step.paths if name in plan.away}
        self.saved_away = {name: point.kept for name, point in self.points.items() if name in plan.saved_away}
        self.other_bytes = plan.other_bytes
        self.chosen, self.update = plan.chosen, plan.update
        known = set(map(id, self.graphs))
        chosen = {id(point.planned): point.planned for point in self.points.values()}
        self.graphs += [chosen[new] for new in chosen if new not in known]

    def note_block(self, name: str) -> None:
        """Note a block's call by its plan."""
        self.last = self.points[name].planned
        self.last.calls += 1

    def save(self, path: str | Path) -> None:
        """Write the plans of the last step's blocks, for `planned(model, path)`.

        They are for the sizes of that plan alone, which may be larger than those of the last step.

        Args:
            path: such as "blocks.json".

        Raises:
            UsageError: nothing is planned yet, torch captures other graphs for these sizes alone, or the file cannot
                be written.
        """
        if not self.points:
            raise UsageError("no blocks are planned yet, which a file could hold", hint="call the model once before")
        saved = {plan: self.without_symbols(*plan) for plan in dict.fromkeys(self.chosen.values())}
        points = {name: saved[plan] for name, plan in self.chosen.items()}
        figures = self.budget_bytes, self.predicted_peak_bytes, self.other_bytes
        modes = self.fused, self.splits
        write_file(Path(path), file_of_blocks(points, self.away, self.saved_away, *modes, *figures))

    def snapshot(self, path: str | Path) -> None:
        """Refuse a snapshot: only blocks of the step are planned.

        Raises:
            UsageError: always.
        """
        hint = "planned(..., regions=None) plans the whole, where that can be captured"
        raise UsageError("a plan by blocks is no plan of the whole step, which a snapshot could show", hint=hint)

    @property
    def calls(self) -> int:
        """The number of calls that ran as planned."""
        return self.whole_calls

    @property
    def plan(self) -> str:
        """One line on the plan, for a report or a log."""
        parts = (self.away, "inputs"), (self.saved_away, "saved tensors")
        hosted = " and ".join(f"{format_bytes(sum(of.values()))} of {what}" for of, what in parts if of)
        hosted = hosted and f", {hosted} on the host between passes"
        rest = f"{self.kernels and f', {self.kernels}'}{self.update and f'; {self.update}'}"
        return (
            f"{len(self.points)} regions ({counted(self.kinds, 'kind')}) within {format_bytes(self.budget_bytes)}: "
            f"predicted peak of the step {format_bytes(self.predicted_peak_bytes)}, {format_share(self.overhead)} more "
            f"time in regions{hosted}{rest}; what lies between them runs as eager"
        )

    def __str__(self) -> str:
        """Return the report."""
        lines = self._lines_on_calls()
        if self.plans > 1:
            lines.append(f"  {self.plans} plans for inputs of different sizes; the one that ran last:")
        if self.points:
            lines.append(f"  {self.plan}")
        if self.overhead > self.least_overhead:
            lines.append(f"  no other choice among their plans takes less than {format_share(self.least_overhead)}")
        if self.measured_peak_bytes:
            measured = ", ".join(map(format_bytes, self.measured_peak_bytes))
            lines.append(f"  measured peak of the first steps{self.without}: {measured}")
        lines += beyond(self.beyond_bytes, self.predicted_peak_bytes)
        for path, point in self.points.items():
            where = " on the host" if path in self.saved_away else ""
            parts = point.planned.parts and f"; {point.planned.parts}"
            hosted = f", {format_bytes(self.away[path])} of inputs on the host" if path in self.away else ""
            lines.append(
                f"    {path}: keeps {format_bytes(point.kept)}{where} between its passes{hosted}, "
                f"{format_share(point.planned.overhead)} more time{parts}"
            )
        lines += [f"    {path} is left to eager: {why}" for path, why in self.left.items()]
        return "\n".join([*lines, *self._lines_on_unplanned()])
