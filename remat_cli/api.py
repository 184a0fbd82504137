"""Planning from Python: what scripts and notebooks call.

    from remat_cli import plan, read, verify

    graph = read("model.onnx", dims={"batch": 8})
    planning = plan(graph, "80%")
    planning.save("schedule.json")
    verify(graph, "schedule.json").peak_bytes

Everything else in this package is private: it may change without notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_cli.checks.schedule_file import broken_claims, replay_on
from remat_cli.config import DEFAULT_PLANNER, GraphOptions, PlannerChoice, named_planner
from remat_cli.errors import UsageError
from remat_cli.formats.schedule_json import read_schedule, schedule_bytes
from remat_cli.formats.writing import write_file
from remat_cli.prepare import Prepared, prepare
from remat_cli.problem import Observer, Status
from remat_cli.schedule import Schedule
from remat_cli.simulate import Trace, simulate
from remat_cli.solve import Solution
from remat_cli.studies.budget_search import plan_at
from remat_cli.units import BudgetSpec, parse_budget, parse_share


@dataclass(frozen=True)
class Planning:
    """What was asked, and what came of it.

    Attributes:
        graph: what was planned.
        planner: who was asked.
        solution: verified by the simulator: `trace` of the plan, `closest`, `baseline`, bounds, warnings.
    """

    graph: Prepared
    planner: PlannerChoice
    solution: Solution

    @property
    def status(self) -> Status:
        """Whether there is a plan, and what is proven."""
        return self.solution.status

    @property
    def schedule(self) -> Schedule | None:
        """The steps; None without a plan."""
        return self.solution.result.schedule if self.solution.trace is not None else None

    @property
    def peak_bytes(self) -> int | None:
        """Peak of the plan, resident bytes and inputs included; None without one."""
        return None if self.solution.trace is None else self.solution.trace.peak_bytes

    @property
    def overhead(self) -> float | None:
        """Time beyond the plain run's, as a share of it; None without a plan."""
        return self.solution.overhead

    @property
    def bound(self) -> float | None:
        """No plan in `solution.scope` has less overhead; None where nothing is proven."""
        return self.solution.bound_overhead

    def save(self, path: str | Path) -> None:
        """Write the schedule file, whole or not at all.

        Raises:
            UsageError: there is no plan, or the file cannot be written.
        """
        if self.schedule is None:
            raise UsageError(f"there is no plan to save: {self.solution.result.reason or self.status}")
        options = self.planner.all_options()
        read_with = self.graph.options.recorded
        write_file(Path(path), schedule_bytes(self.solution, self.graph.mode, self.planner.name, options, read_with))


def read(path: str | Path, **options: Any) -> Prepared:
    """Read a graph of any format and make of it the graph that is planned.

    Args:
        path: the file.
        options: fields of `GraphOptions`: mode, dims, device, optimizer and others.

    Raises:
        GraphError: the file or the graph in it is bad.
        UsageError: the options contradict each other or the file.
        TypeError: there is no such option.
    """
    return prepare(Path(path), GraphOptions(**options))


def plan(
    graph: Prepared,
    budget: str | int,
    planner: str = DEFAULT_PLANNER,
    *,
    options: Mapping[str, Any] | None = None,
    max_overhead: str | None = None,
    offload: bool = False,
    observe: Observer | None = None,
) -> Planning:
    """Plan a graph under a budget, and prove the plan by simulation.

    Args:
        graph: from `read`.
        budget: bytes; or, as on the command line, "8GB", "80%" of the plain run's peak, "60% of activations", or "min".
        planner: its name.
        options: of the planner.
        max_overhead: with "min": the smallest budget at this overhead, such as "10%".
        offload: plans may move tensors to the host and back, over the link of the device with which it was read.
        observe: is told what is found on the way.

    Raises:
        UsageError: budget, planner or an option is not known; or plans may offload, but the planner never does, or no
            link is known.
        PlannerRefuses: the planner cannot take this graph.
    """
    choice = named_planner(planner, "planner").with_options(options or {})
    spec = BudgetSpec(device_bytes=budget) if isinstance(budget, int) else parse_budget(budget)
    limit = None if max_overhead is None else parse_share(max_overhead)
    offload = offload or graph.options.offload
    if offload:
        choice.check_can_offload()
    made = choice.planner("options")
    solution = plan_at(graph.graph, spec, made, observe, link=graph.link, offload=offload, max_overhead=limit)
    return Planning(graph, choice, solution)


def replay(graph: Prepared, schedule: Schedule) -> Trace:
    """Replay a schedule step by step; return its peak, its time and its memory over time.

    Raises:
        InvalidSchedule: a step breaks a rule.
    """
    return simulate(graph.graph, schedule, link=graph.link)


def verify(graph: Prepared, path: str | Path) -> Trace:
    """Replay a schedule file, and hold what it says of itself against what comes of it.

    Raises:
        GraphError: the schedule was made for another graph.
        InvalidSchedule: a step breaks a rule, or the file says what is not so.
        ScheduleFileError: it is no schedule file.
    """
    file = read_schedule(Path(path))
    trace = replay_on(graph, file, Path(path))
    broken = broken_claims(file, graph, trace, file.budget_bytes)
    if broken is not None:
        raise broken
    return trace
