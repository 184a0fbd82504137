"""The search of `checkmate_lp`: relaxations for some budgets, rounded in several ways, and repaired.

Source: Jain et al. 2020, section 5 (two-phase rounding): S, what is held, is rounded first, then R follows as the least
that must be recomputed for it. Repair is not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from remat_cli.planners.checkmate.mip_solvers import Floats
from remat_cli.planners.checkmate.planner import CheckmateLP, Rounding
from remat_cli.planners.checkmate.staged_holds import least_runs
from remat_cli.planners.checkmate.staged_search import StagedSearch
from remat_cli.planners.shared.stages import Bools
from remat_cli.problem import Basis, PlanResult, Scope, Status

_SWEEP = tuple(tenths / 10 for tenths in range(1, 10))
# What a solver means by 0 and 1.
_TOLERANCE = 1e-6


class RoundingSearch(StagedSearch[CheckmateLP]):
    """A search for staged plans close to the relaxation."""

    def run(self) -> PlanResult:
        """Solve a relaxation for each allowance, and round it, as long as there is time.

        Raises:
            PlannerRefuses: the program is too large.
        """
        allowance = self.options.allowance
        if self.is_over:
            return self.result()
        self.check_size()
        # Without an allowance first: that gives the bound.
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
        """Yield what is held, [T, N + 1], rounded in one way after the other."""
        chance = np.random.default_rng(self.options.seed)
        surely = held >= 1 - _TOLERANCE
        for _ in range(self.options.samples):
            match self.options.rounding:
                case Rounding.RANDOMISED:
                    yield surely | (chance.random(held.shape) < held)
                case Rounding.RANDOM_THRESHOLD:
                    yield surely | (held > max(_TOLERANCE, float(np.clip(chance.normal(0.5, 0.5), 0, 1))))
                case Rounding.THRESHOLD:
                    yield surely | (held >= 0.5)
                    return
                case Rounding.DETERMINISTIC:
                    yield from (surely | (held >= threshold) for threshold in _SWEEP)
                    return
