"""The searches of `checkmate` and `checkmate_lp`.

The first solves programs of growing size, the second rounds relaxations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from remat_cli.core.problem import Basis, PlanResult, Scope, Status
from remat_cli.planners.published.checkmate.mip import MipOutcome
from remat_cli.planners.published.checkmate.mip_solvers import Floats
from remat_cli.planners.published.checkmate.options import CheckmateOptions, RoundingOptions, RoundingRule
from remat_cli.planners.published.checkmate.staged_choices import StagedChoices
from remat_cli.planners.published.checkmate.staged_holds import least_runs
from remat_cli.planners.published.checkmate.staged_model import StagedModel, StagedRelaxation
from remat_cli.planners.published.checkmate.staged_search import StagedSearch
from remat_cli.planners.shared.numbering import Bools, Ints

# The number of changes to make a plan fit: for the plain run, which is the first plan, and for plans of programs.
_CHANGES, _FEW_CHANGES = 1000, 30
# A program with this many choices or fewer is solved at once.
_FEW_CHOICES = 1000
# Larger programs are preceded by programs with chains of recomputations of up to these lengths, in turn, as long as the
# last program brought a better plan. Each may take this share of the remaining time, and is solved to this gap.
_DEPTHS = (2, 4, 8, 16)
_SHARE, _GAP = 0.15, 0.005


class CheckmateSearch(StagedSearch[CheckmateOptions]):
    """A search for the best staged plan.

    1. The plain run, changed until it fits, gives a plan, and the relaxation of the whole program a bound. Together
       they tell which choices can be part of a better plan.
    2. Small programs, of short chains of recomputations, give better plans, which leave fewer choices.
    3. The whole program without limits on memory within stages gives bounds for every plan with this order of first
       runs, and the best plan if its solution fits all the same.
    4. If it does not, limits that hold for all such plans are added as plans break them.
    5. The program with all limits gives the best staged plan.
    """

    def run(self) -> PlanResult:
        """Search until the time is up, or the result is proven.

        Raises:
            PlannerRefuses: the whole program is too large.
        """
        if self.is_over:
            return self.result()
        self.check_size()
        self.observe.phase("dropping tensors until the rest fits")
        self.repair.improve(self.plans.closest, _CHANGES)
        for stage in (self._without_limits, self._with_limits_in_any_sequence, self._with_limits):
            if not self.is_over:
                stage()
        return self.result()

    def _without_limits(self) -> None:
        self.observe.phase("solving the relaxation")
        relaxation = self._relaxed(self.choices().connected(), Scope.FIXED_ORDER, limited=False)
        if self._worthwhile(self.choices().connected(), relaxation).may_run.sum() > _FEW_CHOICES:
            self._with_short_chains(relaxation)
        if not self.is_over:
            self.observe.phase("solving the program without limits on memory within stages")
            choices = self._worthwhile(self.choices().connected(), relaxation).connected()
            self._prove(choices, Scope.FIXED_ORDER, limited=False)

    def _with_short_chains(self, relaxation: StagedRelaxation) -> None:
        for depth in _DEPTHS:
            if self.is_over:
                return
            self.observe.phase(f"looking for plans with up to {depth} recomputations in a row")
            before = self.plans.least_time
            choices = self._worthwhile(self.choices(depth), relaxation)
            self._solve(self._model(choices), share=_SHARE, gap=max(self.options.gap, _GAP))
            if depth > min(_DEPTHS) and self.plans.least_time is not None and self.plans.least_time == before:
                return

    def _with_limits_in_any_sequence(self) -> None:
        self.observe.phase("solving the program with limits that hold in any sequence within stages")
        self._prove_limited(Scope.FIXED_ORDER)

    def _with_limits(self) -> None:
        self.observe.phase("solving the program with all limits")
        self._prove_limited(Scope.PLANNER)

    def _prove_limited(self, scope: Scope) -> None:
        relaxation = self._relaxed(self.choices(), scope, limited=True)
        if not self.is_over:
            self._prove(self._worthwhile(self.choices(), relaxation), scope, limited=True)

    def _relaxed(self, choices: StagedChoices, scope: Scope, *, limited: bool) -> StagedRelaxation:
        """Prove bounds by solving the relaxation.

        They cover all plans, and plans with each choice.
        """
        relaxation = self._model(choices, scope, limited).relax(self.solver, self.limits)
        if relaxation.bound is not None:
            self.prove(scope, relaxation.bound, Basis.COUNTED)
        elif relaxation.status is Status.INFEASIBLE and self.plans.best is not None:
            self.prove_none_better(scope, Basis.ONE_SOLVER)
        elif relaxation.status is Status.INFEASIBLE and not limited:
            self.prove_that_none_fits()
        return relaxation

    def _worthwhile(self, choices: StagedChoices, relaxation: StagedRelaxation) -> StagedChoices:
        """Drop choices that are proven to make every plan worse than the best."""
        least_time = self.plans.least_time
        if least_time is None or relaxation.bound_if_run is None:
            return choices
        return choices.only((relaxation.bound_if_run < least_time).astype(np.bool_))

    def _prove(self, choices: StagedChoices, scope: Scope, *, limited: bool) -> None:
        """Solve the program for a better plan, and prove its bound."""
        outcome = self._solve(self._model(choices, scope, limited), gap=self.options.gap, limited=limited)
        if outcome.status is Status.INFEASIBLE:
            self.prove_none_better(scope, Basis.ONE_SOLVER)
        elif outcome.bound is not None:
            self.prove(scope, outcome.bound, Basis.ONE_SOLVER)

    def _model(self, choices: StagedChoices, scope: Scope = Scope.PLANNER, limited: bool = True) -> StagedModel:
        """Build a program, limited where plans exceeded the budget within stages."""
        model = self.build(choices, in_any_sequence=scope is Scope.FIXED_ORDER)
        if limited:
            for stage, op in sorted(self.excess):
                if choices.may_run[op, stage]:
                    model.limit_memory(stage, op)
        return model

    def _solve(self, model: StagedModel, *, gap: float, share: float = 1.0, limited: bool = True) -> MipOutcome:
        """Solve a program, and judge its solutions.

        Args:
            model: the program.
            gap: gap to which the program is solved.
            share: share of the remaining time that the solver may take.
            limited: solve again with further limits on memory within stages, until its plan fits.
        """
        limits = self.limits.part(share)

        def consider(values: Ints) -> None:
            self.excess.update(self.plans.judge(model.runs(values)).excess)

        while True:
            best = self.plans.best
            outcome = model.solve(
                self.solver,
                limits,
                gap=gap,
                known=None if best is None else best.runs,
                on_solution=consider,
            )
            if outcome.values is None:
                return outcome
            plan = self.plans.judge(model.runs(outcome.values))
            self.excess.update(plan.excess)
            self.repair.improve(plan, _FEW_CHANGES)
            if outcome.status is not Status.OPTIMAL or not limited:
                return outcome
            were_limited = [model.limit_memory(stage, op, outcome.values) for stage, op in plan.excess]
            if not any(were_limited):
                return outcome


_SWEEP = tuple(tenths / 10 for tenths in range(1, 10))
# Solvers' tolerance on 0 and 1.
_TOLERANCE = 1e-6


class RoundingSearch(StagedSearch[RoundingOptions]):
    """A search for staged plans close to the relaxation.

    Source: Jain et al. 2020, section 5 (two-phase rounding): the relaxation is solved for some budgets; S, the
    retentions, is rounded first; R follows as the least recomputation for S. Repair is not in the paper.
    """

    def run(self) -> PlanResult:
        """Solve and round a relaxation for each allowance.

        Raises:
            PlannerRefuses: the program is too large.
        """
        allowance = self.options.allowance
        if self.is_over:
            return self.result()
        self.check_size()
        # The first relaxation has no allowance, so that it gives the bound.
        for share in dict.fromkeys((0.0, allowance, allowance / 2)):
            if not self.is_over:
                self._relax_and_round(share)
        return self.result("no rounding of the relaxation fits, and none could be repaired")

    def _relax_and_round(self, allowance: float) -> None:
        self.observe.phase(f"rounding the relaxation for {1 - allowance:.0%} of the budget")
        model = self.build(self.choices(allowance=allowance).connected(), in_any_sequence=True)
        relaxation = model.relax(self.solver, self.limits)
        if not allowance:
            if relaxation.status is Status.INFEASIBLE:
                self.prove_that_none_fits()
            elif relaxation.bound is not None:
                self.prove(Scope.FIXED_ORDER, relaxation.bound, Basis.COUNTED)
        if relaxation.held is not None:
            for holds in self._roundings(relaxation.held):
                if self.is_over:
                    return
                self.stats["roundings"] = self.stats.get("roundings", 0) + 1
                plan = self.plans.judge(least_runs(self.stages, holds))
                self.repair.improve(plan, self.options.repairs)

    def _roundings(self, held: Floats) -> Iterator[Bools]:
        """Yield roundings of `held`, each as [T, N + 1] bool."""
        chance = np.random.default_rng(self.options.seed)
        surely = held >= 1 - _TOLERANCE
        for _ in range(self.options.samples):
            match self.options.rounding:
                case RoundingRule.RANDOMISED:
                    yield surely | (chance.random(held.shape) < held)
                case RoundingRule.RANDOM_THRESHOLD:
                    yield surely | (held > max(_TOLERANCE, float(np.clip(chance.normal(0.5, 0.5), 0, 1))))
                case RoundingRule.THRESHOLD:
                    yield surely | (held >= 0.5)
                    return
                case RoundingRule.DETERMINISTIC:
                    yield from (surely | (held >= threshold) for threshold in _SWEEP)
                    return
