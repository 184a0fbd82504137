"""Plans for each kind of region: those that keep less and less, or those of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_cli.core.link import Link
from remat_cli.core.schedule import renamed
from remat_cli.errors import UsageError
from remat_cli.pytorch.capture.joint_capture import Captured
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.sizes import Values
from remat_cli.pytorch.plan.block_step import CurvePoint
from remat_cli.pytorch.plan.budget_source import OwnState
from remat_cli.pytorch.plan.region_curve import RegionGraphs
from remat_cli.pytorch.plan.region_kinds import CallGroup, Captures, RegionKind, called, shared_forward
from remat_cli.pytorch.plan.region_request import RegionRequest
from remat_cli.pytorch.plan.region_runner import RegionHooks, RegionKernels, RegionRunner
from remat_cli.pytorch.plan.rehearsal import RegionCall
from remat_cli.pytorch.plan.rehearsing import RehearsedStep
from remat_cli.pytorch.programs.pieces import KnownPieces

_NEAR = 0.5  # plans are reused if the peak of a region differs by no more than this factor


class RegionPlanner:
    """Measures and plans each kind of region once.

    Attributes:
        link: link to the host, as in the last kind's request.
    """

    def __init__(self, request: RegionRequest, hooks: RegionHooks) -> None:
        self._request, self._hooks = request, hooks
        self.link: Link | None = None
        self._in_parts: list[Sequence[CurvePoint]] = []  # plans in parts of kinds, the last first
        self._pieces: KnownPieces = {}
        self._regions: dict[Captured, RegionRunner] = {}
        self._planned: dict[RegionRunner, list[RegionKind]] = {}  # kinds whose plans were made for their sizes

    def kinds(self, step: RehearsedStep) -> list[RegionKind]:
        """Return the kind of each call of a step.

        Raises:
            RematError: a kind cannot be measured, or a file's plans are for another.
        """
        calls = step.rehearsal.calls
        kinds: dict[int, RegionKind] = {}
        for group in step.groups:
            kind = self._kind(calls[group.calls[0]], group, [calls[place].name for place in group.calls])
            kinds.update(dict.fromkeys(group.calls, kind))
        return [kinds[place] for place in range(len(calls))]

    def curves_in_parts(
        self, kinds: Sequence[RegionKind], *, is_trial: bool = False
    ) -> dict[RegionKind, tuple[CurvePoint, ...]]:
        """Return the plans of each kind, with those in parts where parts need less memory.

        Args:
            kinds: kinds of regions.
            is_trial: the search is short, for a refusal.
        """
        curves: dict[RegionKind, tuple[CurvePoint, ...]] = {}
        for kind in dict.fromkeys(kinds):
            assert kind.graphs is not None, "regions in parts are planned at their own sizes"
            points = kind.graphs.curve_in_parts(self._in_parts, is_trial=is_trial)
            curves[kind] = (*kind.points, *points)
            if points:
                self._in_parts = [points, *self._in_parts]
        return curves

    def _kind(self, call: RegionCall, group: CallGroup, names: Sequence[str]) -> RegionKind:
        """Return the kind for a call's region, with its plans.

        The plans keep less and less, the plain one first; or they are those of a file.
        """
        region = self._region(call, group)
        if (former := self._former_kind(region, group.values, call)) is not None:
            return former
        sized = group.sizes.at(group.values)
        graphs = self._graphs(Piece(sized.joint, sized.captured))
        given, self.link = self._request.given, graphs.prepared().link
        kind = RegionKind(region, group.sizes, sized, group.values, call, graphs=graphs)
        kind.take(graphs.curve() if given is None else [graphs.plain(), *given.points_for(names, graphs)])
        self._planned.setdefault(region, []).append(kind)
        return kind

    def without_symbols(self, kind: RegionKind, plan_index: int) -> CurvePoint:
        """Return a plan of a kind for its sizes alone.

        A file holds it so: names of ops are others in a capture with symbols.

        Raises:
            UsageError: torch captures another graph without symbols.
        """
        point = kind.points[plan_index]
        if not kind.sizes.symbols:
            return point
        groups, _ = Captures(takes_sizes=False, fused=self._request.is_decomposed).groups([kind.call])
        schedule = None
        if groups:
            graphs = self._graphs(Piece.of(groups[0].captured))
            schedule = renamed(point.planned.schedule, point.planned.graph, graphs.prepared().graph)
        if schedule is None:
            raise UsageError(
                f"block {kind.region.name!r} is captured as another graph than the planned one, for these sizes alone",
                hint="save in the mode of the planned step; or save the plans of a model that is called with inputs of "
                "this size alone",
            )
        return graphs.point(schedule)

    def _graphs(self, piece: Piece) -> RegionGraphs:
        """Return the graphs of a region alone."""
        alone = replace(self._request.source, optimizer=None, reserve_bytes=0, own=OwnState(), plans={})
        return RegionGraphs(alone, piece)

    def _region(self, call: RegionCall, group: CallGroup) -> RegionRunner:
        """Return the runner of regions of one capture."""
        if group.captured not in self._regions:
            pieces = None if self._request.is_decomposed else self._pieces
            kernels = RegionKernels(group.sizes, pieces) if self._request.source.fused else None
            self._regions[group.captured] = RegionRunner(
                call.path,
                called(shared_forward(self._request.forwards[call.path], call.module)),
                OutputGradients(at_rerun=self._hooks.at_backward, known=call.gradients),
                group.seen,
                self._hooks,
                kernels,
                takes_sizes=bool(group.sizes.symbols),
            )
        return self._regions[group.captured]

    def _former_kind(self, region: RegionRunner, values: Values, call: RegionCall) -> RegionKind | None:
        """Return an earlier kind with plans for similar sizes, at these sizes."""
        for kind in self._planned.get(region, ()):
            here, there = (kind.points_at(other)[0].forward for other in (values, kind.values))
            if _NEAR * max(here, there) <= min(here, there):
                return kind.at(values, call)
        return None
