"""Schedule files: the residents that start on the host."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.core.graph import Graph, Kind, Phase, Residency
from remat_cli.core.link import Link
from remat_cli.core.problem import Bound, Budget, Observer, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Compute, Free, Prefetch, Schedule, Wait, plain_run
from remat_cli.core.solve import solve
from remat_cli.errors import ScheduleFileError
from remat_cli.formats.schedule_json import FORMAT, read_schedule, schedule_bytes, schedule_in
from tests.graphs import graph_of, op


@dataclass(frozen=True)
class Claiming:
    """A planner that claims one schedule."""

    schedule: Schedule

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        del observe
        return PlanResult(Status.OPTIMAL, self.schedule, (Bound(problem.graph.total_time, Scope.ANY_PLAN),))


def written(graph: Graph, schedule: Schedule, path: Path) -> bytes:
    problem = Problem(graph, Budget(100), Link(Fraction(1)))
    content = schedule_bytes(solve(problem, Claiming(schedule)), "training", {"name": "claiming"})
    path.write_bytes(content)
    return content


def fetching() -> Graph:
    """`a` reads the parameter `w`."""
    return graph_of(op("a", "w", "x", phase=Phase.FORWARD), residents={"w": Residency.PARAMETER}, kind=Kind.TRAINING)


def test_residents_on_the_host_are_written_and_read(tmp_path: Path) -> None:
    schedule = Schedule((Prefetch("w"), Wait("w"), Compute("a"), Free("w")), ("w",))
    written(fetching(), schedule, tmp_path / "s.json")
    assert read_schedule(tmp_path / "s.json").schedule == schedule


def test_file_without_residents_on_the_host_does_not_speak_of_them(tmp_path: Path) -> None:
    assert b"on_host" not in written(fetching(), plain_run(fetching()), tmp_path / "s.json")


@pytest.mark.parametrize("on_host", ["w", [3], {"w": 1}])
def test_residents_on_the_host_are_a_list_of_names(on_host: object) -> None:
    document = {"format": FORMAT, "steps": [["compute", "a"]], "on_host": on_host}
    with pytest.raises(ScheduleFileError, match="on_host"):
        schedule_in(document, Path("s.json"))
