"""Plans as planners tell of them, what is told of them, and what the judge measures."""

from __future__ import annotations

from hypothesis import strategies as st

from remat_cli.graph import Graph
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.problem import Bound, Budget, Observer, Plan, Problem
from remat_cli.schedule import Schedule
from remat_cli.simulate import Trace, simulate
from remat_cli.solve import baseline_of
from tests.graphs import compute_sequences


def told(schedule: Schedule) -> Plan:
    """A plan that says of itself that it costs nothing: nobody is to believe it."""
    return Plan(0, 0, lambda: schedule)


class Told(Observer):
    """Writes down what is told, each kind in its order."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.plans: list[Plan] = []
        self.bounds: list[Bound] = []
        self.asked: list[str] = []
        self.standings: list[tuple[float, float, str | None]] = []

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
