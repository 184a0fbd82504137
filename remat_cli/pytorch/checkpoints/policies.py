"""Policies for selective checkpoints of blocks: chosen, run with torch, and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Observer
from remat_cli.core.simulate import Trace
from remat_cli.errors import ExitCode
from remat_cli.planning import Request
from remat_cli.planning.summary import Summary
from remat_cli.pytorch.capture.eager import Saved
from remat_cli.pytorch.checkpoints.policy_choice import PolicyChoice, choose_policy
from remat_cli.pytorch.checkpoints.policy_memory import Policy, PolicyMemory
from remat_cli.pytorch.checkpoints.study import (
    CheckpointPlanning,
    Looked,
    check_asked,
    checkpoints_of,
    confirmed_within,
)
from remat_cli.pytorch.checkpoints.words import policy_code, saved_turns


@dataclass(frozen=True)
class ChosenPolicy:
    """A policy, and the judge's replay of the step.

    Attributes:
        policy: what is wrapped and saved.
        trace: of the step.
        proven: no other policy runs less again and fits; or, of the least peak, has a lower one.
        least_time: no policy that fits runs less again, in the graph's time unit.
    """

    policy: Policy
    trace: Trace
    proven: bool
    least_time: int


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
            "peak_bytes": chosen.trace.peak_bytes,
            "time": chosen.trace.time,
            "overhead": self.modules.overhead(chosen.trace.time),
            "proven": chosen.proven,
            "least_overhead": self.modules.overhead(self.modules.plain.time + chosen.least_time),
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
    chosen, none_fits, least = looked.without_failing(lambda: _chosen(looked, asked))
    budget = asked
    if budget is None:
        budget = looked.plain.peak_bytes if chosen is None else chosen.trace.peak_bytes
    return PolicyPlanning(chosen, none_fits, least, checkpoints_of(looked, request.at(budget), observe))


def _chosen(looked: Looked, budget: int | None) -> tuple[ChosenPolicy | None, bool, ChosenPolicy | None]:
    """Return the policy for a budget, whether it is proven that there is none, and without one, the least peak.

    Raises:
        CannotRunAgain: the step fails with a policy.
    """
    memory = PolicyMemory(looked.step, looked.graph, looked.memory)
    limit = choose_policy(memory, None).peak if budget is None else budget
    chosen, none_fits = _within(looked, memory, limit)
    if chosen is not None:
        return chosen, False, None
    least, _ = _within(looked, memory, choose_policy(memory, None).peak)
    return None, none_fits, least


def _within(looked: Looked, memory: PolicyMemory, budget: int) -> tuple[ChosenPolicy | None, bool]:
    return confirmed_within(budget, partial(choose_policy, memory), partial(_confirmed, looked))


def _confirmed(looked: Looked, choice: PolicyChoice) -> ChosenPolicy | None:
    policy = choice.policy
    if policy is None:
        return None
    trace = looked.eager.confirm(policy.paths, saved_in(policy))
    return ChosenPolicy(policy, trace, choice.proven, choice.least_time)


def saved_in(policy: Policy) -> dict[str, Saved]:
    """Return the saved calls of each wrapped module, by path."""
    return {path: saved_turns(policy.saved[kind]) for kind, paths in policy.blocks.items() for path in paths}
