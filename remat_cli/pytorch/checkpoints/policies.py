"""Policies for selective checkpoints of blocks: chosen, run with torch, and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Observer
from remat_cli.errors import ExitCode
from remat_cli.planning import Request
from remat_cli.planning.summary import Summary
from remat_cli.pytorch.checkpoints.study import (
    CheckpointPlanning,
    ChosenPolicy,
    Looked,
    check_asked,
    checkpoints_of,
    chosen_policy,
)
from remat_cli.pytorch.checkpoints.words import policy_code, saved_turns


@dataclass(frozen=True)
class PolicyPlanning:
    """A planning with a policy.

    Attributes:
        chosen: the policy; None where none fits, or none was found.
        none_fits: it is proven that none fits.
        least: without a policy, the one of the least peak; None where none was found.
        modules: at the same budget, the choice of whole modules and the free plan.
    """

    chosen: ChosenPolicy | None
    none_fits: bool
    least: ChosenPolicy | None
    modules: CheckpointPlanning

    @property
    def exit_code(self) -> ExitCode:
        """How the process ends."""
        if self.modules.free.solution.interrupted:
            return ExitCode.INTERRUPTED
        if self.chosen is not None:
            return ExitCode.DONE
        return ExitCode.NO_FIT if self.none_fits else ExitCode.NO_PLAN

    @property
    def code(self) -> str:
        """Lines that wrap the chosen blocks; empty where none are chosen."""
        return policy_code(self.chosen.policy) if self.chosen is not None and self.chosen.policy.blocks else ""

    def summary(self) -> Summary:
        """Return the JSON values that `remat plan --as policy --json` prints."""
        whole = self.modules.summary()
        return {
            **whole,
            "fits": self.chosen is not None,
            "none_fits": self.none_fits,
            "policy": None if self.chosen is None else self._summary(self.chosen),
            "least": None if self.least is None else self._summary(self.least),
            "modules": {key: whole[key] for key in ("fits", "none_fits", "checkpoints", "least", "code")},
            "code": self.code,
        }

    def _summary(self, chosen: ChosenPolicy) -> Summary:
        kinds = chosen.policy.blocks.items()
        return {
            "kinds": {
                kind: {"modules": list(paths), "saved": _sorted(saved_turns(chosen.policy.saved[kind]))}
                for kind, paths in kinds
            },
            **self.modules.figures(chosen),
        }


def _sorted(turns: Mapping[str, set[int]]) -> dict[str, list[int]]:
    return {function: sorted(turns[function]) for function in sorted(turns)}


def plan_policy(reference: Path, options: GraphOptions, request: Request, observe: Observer) -> PolicyPlanning:
    """Choose a policy for selective checkpoints; plan whole modules and freely for comparison.

    Args:
        reference: FILE.py:NAME or package.module:NAME.
        options: how it is read.
        request: names a budget; a share is of eager's peak, the smallest is the least peak with a policy. Its planner
            makes the free plan.
        observe: is told what is done.

    Raises:
        UsageError: this is no PyTorch step, or the request asks for what checkpoints cannot do.
        GraphError: the step cannot be captured, or run on tensors without data.
    """
    check_asked(reference, options, request, "policy")
    looked = Looked.at(reference, options, observe)
    observe.phase("choosing what blocks save")
    asked = request.budget_bytes(looked.plain_prepared.graph)
    chosen, none_fits, least = looked.without_failing(lambda: chosen_policy(looked, asked, saves=True))
    budget = asked
    if budget is None:
        budget = looked.plain.peak_bytes if chosen is None else chosen.trace.peak_bytes
    return PolicyPlanning(chosen, none_fits, least, checkpoints_of(looked, request.at(budget), observe))
