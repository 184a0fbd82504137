"""Plans of whole steps: how many residents are on the host, what is proven, and what is asked of the planner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from remat_cli.core.graph import Kind, Phase, Residency
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Bound, Budget, Observer, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import FalseClaim
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planning.asking import in_seconds
from remat_cli.planning.whole_step import WholeStep, bound_with_moves
from tests.graphs import graph_of, op, updating_chain

# Gradients of 6 bytes, so that the peak is where all are there.
_CHAIN = updating_chain(4)
GRAPH = replace(
    _CHAIN,
    tensors={
        name: replace(tensor, bytes=6) if name.startswith("dw") else tensor for name, tensor in _CHAIN.tensors.items()
    },
)
PEAK = baseline_of(GRAPH).peak_bytes


def problem(budget: int, rate: int = 1, duplex: Duplex = Duplex.FULL, *, offload: bool = True) -> Problem:
    return Problem(GRAPH, Budget(budget), Link(Fraction(rate), duplex), offload)


def test_early_updates_alone_fit_less_than_the_plain_run() -> None:
    solution = solve(problem(PEAK - 4, offload=False), WholeStep(KeepAll()))
    assert solution.status is Status.OPTIMAL
    assert solution.trace is not None
    assert (solution.trace.time, solution.trace.transfers) == (GRAPH.total_time, ())


def test_no_more_moves_than_the_budget_needs() -> None:
    moved = []
    for budget in range(PEAK, PEAK - 16, -1):
        trace = solve(problem(budget, rate=4), WholeStep(KeepAll())).trace
        assert trace is not None
        moved.append(sum(transfer.bytes for transfer in trace.transfers))
    assert moved[0] == 0
    assert moved[-1] > 0


def test_without_a_link_nothing_moves() -> None:
    solution = solve(replace(problem(PEAK - 20), offload=False, link=None), WholeStep(DTR()))
    assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.ANY_ORDER)


def test_budget_below_what_an_op_needs_with_all_residents_away_is_proven_for_any_plan() -> None:
    solution = solve(problem(5), WholeStep(DTR()))
    assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.ANY_PLAN)


@pytest.mark.parametrize(("duplex", "time"), [(Duplex.FULL, 30), (Duplex.HALF, 60)])
def test_what_does_not_fit_passes_the_link(duplex: Duplex, time: int) -> None:
    # The residents have 24 bytes; `b4` needs 12 beside those: an activation, two gradients of such, and one of w4.
    working_set = 24 + 12
    slow = replace(problem(working_set - 10, duplex=duplex), link=Link(Fraction(1, 3), duplex))
    bound = bound_with_moves(slow, GRAPH.residents)
    assert (bound.time, bound.scope) == (time, Scope.ANY_PLAN)


@pytest.mark.parametrize(("duplex", "time"), [(Duplex.FULL, 8), (Duplex.HALF, 8 + 2)])
def test_frozen_parameters_are_fetched_and_need_not_be_sent_back(duplex: Duplex, time: int) -> None:
    # f needs 9 bytes beside the state of 4: without 8 of the 13, at least 2 bytes of state are away.
    update = op("u", "s x", "done", phase=Phase.UPDATE, recomputable=False, writes=("s",))
    roles = {"frozen": Residency.PARAMETER, "s": Residency.STATE}
    sizes = {"frozen": 6, "s": 4, "x": 3, "done": 0}
    graph = graph_of(op("f", "frozen", "x"), update, sizes=sizes, residents=roles, kind=Kind.TRAINING)
    slow = Problem(graph, Budget(13 - 8), Link(Fraction(1), duplex), offload=True)
    assert bound_with_moves(slow, graph.residents).time == time


def test_bound_is_the_time_of_all_ops_where_all_fits() -> None:
    assert bound_with_moves(problem(PEAK), GRAPH.residents).time == GRAPH.total_time


@dataclass(frozen=True)
class Claiming:
    """A planner that claims the plain run, or another schedule, with a bound."""

    schedule: Schedule | None = None
    scope: Scope = Scope.FIXED_ORDER
    time_limit: float = 7.0

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        bound = Bound(problem.graph.total_time + 1, self.scope)
        observe.bound(bound)
        return PlanResult(Status.FEASIBLE, self.schedule or plain_run(problem.graph), bounds=(bound,))


class Watching(Observer):
    """Collects the scopes of bounds."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    def bound(self, bound: Bound) -> None:
        self.scopes.append(bound.scope)


@pytest.mark.parametrize(
    ("scope", "told"),
    [(Scope.FIXED_ORDER, Scope.PLANNER), (Scope.ANY_PLAN, Scope.ANY_ORDER), (Scope.ANY_ORDER, Scope.ANY_ORDER)],
)
def test_bounds_on_the_view_cover_what_they_can_of_the_step(scope: Scope, told: Scope) -> None:
    claim = WholeStep(Claiming(scope=scope)).plan(problem(PEAK - 1, offload=False), Observer())
    assert claim.status is Status.OPTIMAL, "the view's plain run takes no longer"
    watching = Watching()
    WholeStep(Claiming(scope=scope)).plan(problem(PEAK - 1, offload=False), watching)
    assert watching.scopes == [told]


def test_schedule_that_does_not_run_is_a_false_claim() -> None:
    with pytest.raises(FalseClaim, match="does not run"):
        solve(problem(PEAK), WholeStep(Claiming(Schedule(plain_run(GRAPH).steps[1:]))))


def test_time_limit_is_that_of_the_planner() -> None:
    assert WholeStep(Claiming()).time_limit == 7.0
    assert getattr(WholeStep(KeepAll()), "time_limit", None) is None
    assert in_seconds(WholeStep(Claiming()), 2.0) == WholeStep(Claiming(time_limit=2.0))
