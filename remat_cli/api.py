"""The Python API, for scripts and notebooks.

    from remat_cli import plan, read, verify

    graph = read("model.onnx", dims={"batch": 8})
    planning = plan(graph, "80%")
    planning.save("schedule.json")
    verify(graph, "schedule.json").peak_bytes

Everything else in this package is private: it may change without notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from remat_cli.checks.schedule_file import broken_claims, replay_on
from remat_cli.config import DEFAULT_PLANNER, Document, GraphOptions, named_planner, said_in, unknown_name
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import Trace, simulate
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.planning import Planning, Request
from remat_cli.planning import plan as make_plan
from remat_cli.prepare import Prepared, prepare
from remat_cli.settings import choices_of, declared
from remat_cli.units import BudgetSpec, parse_budget


def read(path: str | Path, **options: Any) -> Prepared:
    """Read a graph of any format, and prepare it for planning.

    Args:
        path: the file.
        options: fields of `GraphOptions`: mode, dims, device, optimizer and others.

    Raises:
        GraphError: the file or the graph in it is bad.
        UsageError: the options contradict each other or the file.
        TypeError: there is no such option.
    """
    return prepare(Path(path), GraphOptions(**{name: _of_choices(name, value) for name, value in options.items()}))


def _of_choices(name: str, value: Any) -> Any:
    """Convert the text of a graph option with listed choices, as the command line does.

    Raises:
        UsageError: it is none of these.
    """
    item = next((item for item in fields(GraphOptions) if item.name == name), None)
    choices = () if item is None else choices_of(item)
    if item is None or not choices or not isinstance(value, str):
        return value
    if value not in choices:
        raise unknown_name(f"read(): {name}", value, choices)
    return declared(item).parse(value)


def plan(
    graph: Prepared,
    budget: str | int,
    planner: str = DEFAULT_PLANNER,
    *,
    options: Mapping[str, Any] | None = None,
    observe: Observer | None = None,
    **settings: Any,
) -> Planning:
    """Plan a graph under a budget, and prove the plan by simulation.

    Args:
        graph: from `read`.
        budget: bytes; or, as on the command line, "8GB", "80%" of the plain run's peak, "60% of activations", or "min".
        planner: name of the planner.
        options: options of the planner.
        observe: receives plans and bounds on the way.
        settings: the other fields of `Request`, text as on the command line. max_overhead: with "min", the smallest
            budget at this overhead, such as "10%". offload: plans may move tensors to the host and back, over the link
            of the device with which the graph was read. arena: everything in the plan gets an address, see
            `solution.arena`. alignment: alignment of addresses, in bytes. banks: memories with addresses of their own,
            each NAME: "SIZE[:SPEED]" or a `Bank`. allocator: "cuda" or "cuda:CONF"; the budget then covers its reserve.
            split: regions of a PyTorch step, or of an ONNX model for inference, may run in parts.

    Raises:
        UsageError: budget, planner, an option or a setting is unknown; or plans may offload, but the planner never
            does, or the link is unknown.
        PlannerRefuses: the planner cannot take this graph.
    """
    request = Request(
        BudgetSpec(device_bytes=budget) if isinstance(budget, int) else parse_budget(budget),
        named_planner(planner, "planner").with_options(options or {}, "options"),
        **said_in(Document(settings, "plan()"), Request, without=("budget", "planner"))[0],
    )
    request.check()
    return make_plan(graph, request, observe)


def replay(graph: Prepared, schedule: Schedule) -> Trace:
    """Replay a schedule; return its peak, time and memory over time.

    Raises:
        InvalidSchedule: a step breaks a rule.
    """
    return simulate(graph.graph, schedule, link=graph.link)


def verify(graph: Prepared, path: str | Path) -> Trace:
    """Replay a schedule file, and compare its figures with the replay.

    Raises:
        GraphError: the schedule was made for another graph.
        InvalidSchedule: a step breaks a rule, or a figure in the file is wrong.
        ScheduleFileError: the file is not a schedule file.
    """
    file = read_schedule(Path(path))
    trace = replay_on(graph, file, Path(path))
    broken = broken_claims(file, graph, trace, file.budget_bytes)
    if broken is not None:
        raise broken
    return trace
