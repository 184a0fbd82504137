"""Compiled kernels of one captured graph for calls of many sizes.

A plan for some sizes is compiled with symbols, so its kernels run at others, too. The code around the kernels tells
their memory at each size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import nn

from remat_cli.pytorch.capture.joint_capture import Captured, primals_of
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.sizes import SizedJoint, Sizes, Values
from remat_cli.pytorch.plan.fused import CompiledPasses, compiled_plan, fused_plan
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.programs.pieces import KnownPieces
from remat_cli.pytorch.unstable.inductor import as_captured
from remat_cli.splitting import Split

_WHOLE: Mapping[str, Split] = {}


@dataclass(frozen=True, eq=False)
class SizedKernels:
    """Compiles plans of a captured graph, for many sizes if it has symbols.

    If torch finds while it compiles that kernels for all sizes do not hold at the plan's, they are compiled for these
    sizes alone.

    Attributes:
        sizes: the symbols of the graph.
        modules: modules with their parameters in memory.
    """

    sizes: Sizes
    modules: Sequence[nn.Module]

    def planned(self, source: ScheduleSource, sized: SizedJoint) -> CompiledPasses:
        """Plan and compile a step until it fits the budget at some sizes.

        Args:
            source: source of plans.
            sized: the graph at these sizes.

        Raises:
            RematError: see `fused_plan`.
        """
        piece = Piece(sized.joint, sized.captured, self.modules)
        if self._may_hold_at_all(sized.values):
            with _captured_as(self.sizes.captured):
                compiled = fused_plan(source, piece, sized)
            if self._may_hold_at_all(sized.values):
                return compiled
        with _captured_as(sized.captured):
            return fused_plan(source, piece)

    def compiled(
        self,
        planned: GraphRecord,
        sized: SizedJoint,
        cuts: Mapping[str, Split] = _WHOLE,
        *,
        known: KnownPieces | None = None,
    ) -> CompiledPasses:
        """Compile a plan.

        Args:
            planned: the plan.
            sized: the graph at the plan's sizes.
            cuts: cuts of the planned graph, for fixed sizes alone.
            known: see `compiled_plan`.

        Raises:
            RematError: see `compiled_plan`.
        """
        outputs = sized.captured.forward_outputs
        if self._may_hold_at_all(sized.values):
            with _captured_as(self.sizes.captured):
                compiled = compiled_plan(sized.joint, planned, outputs, sized=sized, known=known)
            if self._may_hold_at_all(sized.values):
                return compiled
        with _captured_as(sized.captured):
            joint = Piece(sized.joint, sized.captured).in_parts(cuts).joint
            return compiled_plan(joint, planned, outputs, known=known)

    def hold_at(self, compiled: CompiledPasses, own: Values, values: Values) -> bool:
        """Return whether compiled kernels run at some sizes.

        Args:
            compiled: the kernels.
            own: sizes of their plan.
            values: the sizes.
        """
        return values == own if compiled.replay is None else self.sizes.allows(values)

    def _may_hold_at_all(self, values: Values) -> bool:
        """Return whether kernels for all sizes run at these."""
        return bool(self.sizes.symbols) and self.sizes.allows(values)


def _captured_as(captured: Captured) -> AbstractContextManager[None]:
    """Return a context in which torch compiles a graph as in its capture."""
    return as_captured([node.meta.get("val") for node in primals_of(captured.module.graph)])
