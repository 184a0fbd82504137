"""What every planner keeps. A planner is enrolled by its line in PLANNERS.

That their proofs agree with the oracle, and no plan is better, is in tests/agreement/test_scopes.py: there one search
of the oracle does for all of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.config import PlannerChoice
from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Observer, Planner, PlanResult, Problem, Status
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners import OFFLOADERS, OFFLOADING, PLANNERS
from remat_cli.reports.terminal.planner_cards import planner_cards
from tests.graphs import diamond, in_place, problems, small_graphs, training_chain, training_graphs, training_unet
from tests.hunt.claims import starved, starved_options

GRAPHS = training_graphs(max_forward_ops=3) | small_graphs(max_ops=6)
# Some planners cannot do without a link; to the others it must make no difference.
LINKS = st.none() | st.builds(Link, st.sampled_from([Fraction(1, 3), Fraction(2)]), st.sampled_from(Duplex))


def linked(problems: st.SearchStrategy[Problem]) -> st.SearchStrategy[Problem]:
    """Return the same problems on devices with links to the host of several kinds, which plans may use, and without."""

    def with_link(problem: Problem, link: Link | None, offload: bool) -> Problem:
        return dataclasses.replace(problem, link=link, offload=offload and link is not None)

    return st.builds(with_link, problems, LINKS, st.booleans())


def planners(name: str) -> Iterator[Planner]:
    """Yield the planner with its defaults, and starved."""
    yield PLANNERS[name]()
    if starved_options(name):
        yield starved(name)


def solved(problem: Problem, planner: Planner) -> Solution | None:
    """Solve, and see that the judge refutes nothing; None where the planner refuses the graph."""
    try:
        solution = solve(problem, planner)
    except PlannerRefuses:
        return None
    assert solution.warnings == ()
    return solution


def tight(graph: Graph, missing_bytes: int = 1) -> Problem:
    """Return the problem of a little less than the plain run needs, with a link."""
    return Problem(graph, Budget(baseline_of(graph).peak_bytes - missing_bytes), Link(Fraction(1)))


EXAMPLES = [tight(graph, missing) for graph in (training_chain(6), training_unet(3)) for missing in (1, 3)]


@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=25)
@given(problem=linked(problems(training_graphs(max_forward_ops=8) | small_graphs())))
def test_claims_are_true(name: str, problem: Problem) -> None:
    for planner in planners(name):
        solution = solved(problem, planner)
        if solution is not None and solution.trace is not None and solution.trace.transfers:
            assert name in (OFFLOADING if problem.offload else OFFLOADERS)


def plan(problem: Problem, planner: Planner) -> PlanResult | str:
    try:
        return planner.plan(problem, Observer())
    except PlannerRefuses as refusal:
        return refusal.message


@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=20)
@given(problem=linked(problems(GRAPHS)))
def test_same_problem_twice_gives_the_same_result(name: str, problem: Problem) -> None:
    for planner in planners(name):
        again = dataclasses.replace(problem, graph=dataclasses.replace(problem.graph))
        assert plan(problem, planner) == plan(again, planner)


PRINT_PLANS = """
import json
from remat_cli.planners import PLANNERS
from tests.contract.test_planners import EXAMPLES, plan
print(json.dumps({name: [str(plan(problem, PLANNERS[name]())) for problem in EXAMPLES] for name in PLANNERS}))
"""


def test_results_do_not_depend_on_how_python_hashes_names() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PRINT_PLANS], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=-1, text=True
        )
        for seed in "12"
    ]
    first, second = (json.loads(run.communicate()[0]) for run in runs)
    assert list(first) == list(PLANNERS)
    assert [name for name in PLANNERS if first[name] != second[name]] == []


@pytest.mark.parametrize("name", PLANNERS)
def test_writes_nothing_to_stdout_or_stderr(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    for problem in EXAMPLES:
        plan(problem, PLANNERS[name]())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in PLANNERS if starved_options(name)])
@pytest.mark.parametrize("problem", EXAMPLES)
def test_starved_of_its_limits_it_says_unknown(name: str, problem: Problem) -> None:
    assert solve(problem, starved(name)).status is Status.UNKNOWN


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("graph", [diamond(), in_place()], ids=["diamond", "in-place"])
def test_refusal_of_a_graph_names_a_planner_that_takes_it(name: str, graph: Graph) -> None:
    problem = tight(graph)
    try:
        PLANNERS[name]().plan(problem, Observer())
    except PlannerRefuses as refusal:
        named = [other for other in PLANNERS if other in refusal.hint]
        assert named
        for other in named:
            PLANNERS[other]().plan(problem, Observer())


@pytest.mark.parametrize("name", PLANNERS)
def test_options_are_the_fields_of_a_frozen_dataclass_with_defaults(name: str) -> None:
    planner = PLANNERS[name]()
    with pytest.raises(dataclasses.FrozenInstanceError):
        planner.anything = 1  # type: ignore[attr-defined]
    assert dataclasses.replace(planner) == planner
    if starved_options(name):
        assert starved(name) != planner
        assert starved(name) == PLANNERS[name](**starved_options(name))


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("heading", ["Source:", "Takes:", "Searches:", "Proves:", "Complexity:"])
def test_docstring_gives(name: str, heading: str) -> None:
    assert heading in (PLANNERS[name].__doc__ or "")


@pytest.mark.parametrize("name", PLANNERS)
def test_docstring_describes_every_option(name: str) -> None:
    (card,) = planner_cards({name: PLANNERS[name]})
    assert [option.name for option in card.options if not option.meaning] == []


@pytest.mark.parametrize("name", [name for name in PLANNERS if PlannerChoice(name).has("work_limit")])
def test_less_than_no_work_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="work_limit is -1"):
        _ = PlannerChoice(name, {"work_limit": -1.0}).built
