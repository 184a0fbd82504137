"""Plans as planners tell of them, what is told of them, and what the judge measures."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from remat_cli.config import PlannerChoice
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Bound, Budget, Observer, Plan, Planner, Problem
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import baseline_of
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planning import Request
from remat_cli.prepare import Prepared
from tests.graphs import compute_sequences


def told(schedule: Schedule) -> Plan:
    """A plan that says of itself that it costs nothing: nobody is to believe it."""
    return Plan(0, 0, lambda: schedule)


class RecordingObserver(Observer):
    """Writes down what is told, each kind in its order."""

    def __init__(self) -> None:
        self.begun = 0
        self.phases: list[str] = []
        self.plans: list[Plan] = []
        self.bounds: list[Bound] = []
        self.asked: list[str] = []
        self.standings: list[tuple[float, float, str | None]] = []

    def begins(self) -> None:
        self.begun += 1

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def found(self, plan: Plan) -> None:
        self.plans.append(plan)

    def bound(self, bound: Bound) -> None:
        self.bounds.append(bound)

    def asks(self, planner: str) -> None:
        self.asked.append(planner)

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        self.standings.append((overhead, bound, found_by))


class Impatient(Observer):
    """Presses Ctrl-C when the first plan has come."""

    def found(self, plan: Plan) -> None:
        raise KeyboardInterrupt


def prepared(graph: Graph, **fields: Any) -> Prepared:
    """Return `graph` as if it had been read from a file."""
    defaults: dict[str, Any] = {
        "mode": "training",
        "link": None,
        "kept": None,
        "parameter_bytes": 0,
        "optimizer": None,
        "costs": "times as given in the file",
        "notes": (),
    }
    return Prepared(graph=graph, **(defaults | fields))


def choosing(planner: Planner, **options: object) -> PlannerChoice:
    """The choice of this very planner, which need not be in the table of planners."""
    choice = PlannerChoice(type(planner).__name__.lower(), options)
    vars(choice)["built"] = planner
    return choice


def asking(planner: Planner, **said: Any) -> Request:
    """A request that this planner is asked."""
    return Request(planner=choosing(planner), **said)


def at_share(graph: Graph, share: float) -> Problem:
    """The problem of a share of what the plain run needs."""
    return Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes)))


def sequences(graphs: st.SearchStrategy[Graph]) -> st.SearchStrategy[RematSequence]:
    """Valid sequences of runs of random graphs, with some recomputations."""

    def of(graph: Graph) -> st.SearchStrategy[RematSequence]:
        return compute_sequences(graph).map(lambda names: RematSequence.of_names(graph, names))

    return graphs.flatmap(of)


def judged(sequence: RematSequence) -> Trace:
    """What the judge measures of a sequence."""
    return simulate(sequence.graph, sequence.schedule())
