"""The reports as a pipe of 80 columns gets them, and what must hold of them at every width."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from remat_cli.config import PlannerChoice, ReportOptions
from remat_cli.core.graph import Graph, Kind, Op, Tensor, build_graph
from remat_cli.core.link import Duplex
from remat_cli.core.problem import Bound, Budget, ModelFigure, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Schedule, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.planning import Request, SmallestBudget, at_budget
from remat_cli.reports.terminal.plan import budget_report, inspect_report, plan_report, planners_report, verify_report
from remat_cli.training import KeptForBackward
from tests.graphs import chain, graph_of, op, training_chain
from tests.plans import prepared
from tests.unit.reports.rendering import Claims, moving, planning, rendered, solved, two_again

MB = 1_000_000
WIDTHS = (80, 100, 120, 200)


@pytest.fixture
def graph() -> Graph:
    return training_chain(6, size=MB)


@pytest.fixture
def schedule(graph: Graph) -> Schedule:
    """The first two ops run again, which takes the peak from 7 MB to 5 MB."""
    return two_again(graph)


@pytest.fixture
def feasible(graph: Graph, schedule: Schedule) -> Solution:
    return solved(graph, 6_500_000, PlanResult(Status.FEASIBLE, schedule=schedule))


def plan(solution: Solution, *, shown: ReportOptions | None = None, optimizer: str | None = None) -> str:
    ready = prepared(solution.problem.graph, optimizer=optimizer)
    return rendered(plan_report(planning(solution, ready, blocks=2), shown=shown))


def flat(report: str) -> str:
    """A report without its line breaks, so that sentences can be looked for."""
    return " ".join(report.split())


def row(report: str, label: str) -> list[str]:
    """The cells of a table's row, empty ones left out."""
    (line,) = (line for line in report.splitlines() if re.match(rf"  {label}  ", line))
    return re.split(r"\s{2,}", line.strip())[1:]


PLAN = """\
graph    test · training · 13 ops
times    times as given in the file
planner  hand · blocks 2
budget   6.500 MB · 92.86 % of the plain peak

The plan fits: it peaks at 5.000 MB of 6.500 MB for 10.53 % more time.

               plain run       plan
  peak memory   7.000 MB   5.000 MB  28.57 % less
  budget                   6.500 MB  1.500 MB to spare
  time                19         21  10.53 % overhead: 2 more
  op runs             13         15  2 ops recomputed, 2 extra runs
  bound                         0 %  no plan has less overhead
  gap                       10.53 %  the most that a better plan could save
  scope                   any-order  holds for all plans in any order
  proof                     counted  in whole numbers, by remat itself
  status                   feasible  a faster plan may exist

Memory over time   █ plan   ░ plain run   ╌ budget   ━ recomputing
  7.000 MB ┤                   ░░░░░░░░░░░
  6.500 MB ┤╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌
           │                ░░░░░░░░░░░░░░░░░░░░
           │                ░░░░░░░░░░░░░░░░░░░░
  5.000 MB ┤            ░░░░░░░▄▄▄▄▄▄▄▄▄▄▄░░░░░░░░░░░░░
           │            ░░░░░░░███████████░░░░░░░░░░░░░
           │         ░░░░░░░▇▇▇███████████▇▇▇▇▇▇░░░░░░░░░░░░▇▇▇▇▇▇▇▇
           │      ░░░░░░▁▁▁▁████████████████████▁▁▁▁▁▁▁░░▁▁▁████████▁▁▁▁▁▁
           │      ░░░░░░███████████████████████████████░░█████████████████
  2.364 MB ┤   ▄▄▄▄▄▄▄▄▄███████████████████████████████▄▄█████████████████▄▄▄▄▄▄
           │   █████████████████████████████████████████████████████████████████
           │▆▆▆█████████████████████████████████████████████████████████████████
           │████████████████████████████████████████████████████████████████████
       0 B └───────────────────┴────────────────────────────────────────────────
     again                                            ━━━━━━━
            forward            backward                                  time 21

Largest tensors at the plain run's peak (op loss)
  tensor      size  in the plan  made by  in memory
  a1      1.000 MB  recomputed   f1       ━━━━···················━━━━━━━━━━━━···
  a2      1.000 MB  recomputed   f2       ·━━━━━···················━━━━━━·······
  a3      1.000 MB  kept         f3       ···━━━━━━━━━━━━━━━━━━━━━··············
  a4      1.000 MB  kept         f4       ·····━━━━━━━━━━━━━━━··················
  a5      1.000 MB  kept         f5       ·······━━━━━━━━━━·····················
  a6      1.000 MB  kept         f6       ·········━━━━·························
  g6      1.000 MB  kept         loss     ··········━━━━━━━·····················
  Of all 7 tensors: 5 kept, 2 recomputed.
"""

INSPECTION = """\
graph    test · training · 13 ops
ops      6 forward, 7 backward
types    Test 13
tensors  13
times    times as given in the file

Bytes
  resident           0 B  parameters, gradients, optimizer state
  graph inputs       0 B  in memory from start to end
  activations   6.000 MB  all that forward ops make
  gradients     7.000 MB  all that backward ops make

The plain run
  peak        7.000 MB  at op loss
  time              19  every op once in the input order
  hard limit  3.000 MB  no plan in any order needs less

Memory over time   █ plain run
  7.000 MB ┤                     ████████████
           │                 ▃▃▃▃████████████▃▃▃▃▃▃▃
           │                 ███████████████████████
           │              ▅▅▅███████████████████████▅▅▅▅▅▅▅
  4.667 MB ┤              █████████████████████████████████
           │          ▇▇▇▇█████████████████████████████████▇▇▇▇▇▇▇
           │       ▂▂▂████████████████████████████████████████████▂▂▂▂▂▂▂
           │       ██████████████████████████████████████████████████████
  2.333 MB ┤   ▄▄▄▄██████████████████████████████████████████████████████▄▄▄▄▄▄▄
           │   █████████████████████████████████████████████████████████████████
           │▆▆▆█████████████████████████████████████████████████████████████████
           │████████████████████████████████████████████████████████████████████
       0 B └─────────────────────┴──────────────────────────────────────────────
            forward              backward                                time 19

Largest tensors at the plain run's peak (op loss)
  tensor      size  of the peak  made by  in memory
  a1      1.000 MB  14.29 %      f1       ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━····
  a2      1.000 MB  14.29 %      f2       ··━━━━━━━━━━━━━━━━━━━━━━━━━━━━········
  a3      1.000 MB  14.29 %      f3       ····━━━━━━━━━━━━━━━━━━━━━━············
  a4      1.000 MB  14.29 %      f4       ······━━━━━━━━━━━━━━━━················
  a5      1.000 MB  14.29 %      f5       ········━━━━━━━━━━····················
  a6      1.000 MB  14.29 %      f6       ··········━━━━························
  g6      1.000 MB  14.29 %      loss     ············━━━━━━━···················

Room for a plan
  · Op b6 alone needs 3.000 MB: all it reads and writes (a5 1.000 MB, g5 1.000
    MB, g6 1.000 MB).
  · The plain peak is 2.33 times that: no plan can save more than 57.14 % of it.
"""


def test_the_report_on_a_plan(feasible: Solution) -> None:
    assert plan(feasible) == PLAN


def test_the_report_on_a_graph(graph: Graph) -> None:
    assert rendered(inspect_report(prepared(graph))) == INSPECTION


def test_a_long_call_says_where_the_time_went(feasible: Solution) -> None:
    seconds = {"reading": 33.44, "planning": 30.0, "judging": 0.3, "writing": 0.0}

    def report(seconds: dict[str, float]) -> str:
        return flat(rendered(plan_report(planning(feasible, prepared(feasible.problem.graph)), seconds=seconds)))

    assert "Took 63.7 s: reading 33.4 s, planning 30 s, judging 300 ms, writing 0 s." in report(seconds)
    assert "Took" not in report(dict.fromkeys(seconds, 2.4))


def test_a_long_look_says_where_the_time_went(feasible: Solution) -> None:
    def report(reading: float) -> str:
        seconds = {"reading": reading, "judging": 0.8}
        return flat(rendered(inspect_report(prepared(feasible.problem.graph), seconds=seconds)))

    assert "Took 2 s: reading 1.2 s, judging 800 ms." in report(1.2)
    assert "Took" not in report(1.1)


def test_parts_can_be_left_out(feasible: Solution) -> None:
    short = plan(feasible, shown=ReportOptions(timeline=False, largest=0))
    assert short == PLAN[: PLAN.index("\nMemory over time")]
    assert "a1" not in rendered(inspect_report(prepared(feasible.problem.graph), shown=ReportOptions(largest=0)))


def test_as_many_tensors_are_listed_as_asked_for(feasible: Solution) -> None:
    report = plan(feasible, shown=ReportOptions(largest=2))
    assert "and 5 more  5.000 MB" in report


def test_a_wide_terminal_has_room_for_the_step_at_which_a_tensor_is_dropped(feasible: Solution) -> None:
    report = plan_report(planning(feasible))
    assert "dropped at step 2, recomputed" in rendered(report, 100)
    assert "dropped" not in rendered(report, 99)


def test_producers_are_named_only_where_they_differ_from_their_tensors() -> None:
    alike = graph_of(op("a", "", "a"), op("b", "a", "b"))
    assert "made by" not in rendered(inspect_report(prepared(alike)))
    assert "made by" in rendered(inspect_report(prepared(chain(1, 1))))


def test_a_proven_plan_names_what_it_is_the_fastest_of(feasible: Solution) -> None:
    assert feasible.trace is not None
    bounds = (Bound(feasible.trace.time, Scope.FIXED_ORDER),)
    result = replace(feasible.result, status=Status.OPTIMAL, bounds=bounds)
    report = plan(replace(feasible, result=result))
    assert row(report, "bound") == ["10.53 %", "no plan has less overhead"]
    assert row(report, "gap") == ["0 %", "the most that a better plan could save"]
    assert row(report, "scope") == ["fixed-order", "holds for all plans in input order"]
    assert row(report, "status") == ["optimal", "proven: the fastest plan in input order"]


def test_a_plan_without_overhead_is_said_to_have_none(graph: Graph) -> None:
    report = plan(solved(graph, 7 * MB, PlanResult(Status.FEASIBLE, schedule=plain_run(graph))))
    assert "The plan fits: it peaks at 7.000 MB of 7.000 MB and takes no extra time." in report
    assert row(report, "budget") == ["7.000 MB", "0 B to spare"]
    assert "every op runs once: nothing can be faster" in report
    assert "nothing recomputed" in report


def test_an_interrupted_plan_says_so(feasible: Solution) -> None:
    assert "interrupted: the best plan until then" in plan(replace(feasible, interrupted=True))


def test_a_plan_of_one_recomputation_speaks_in_the_singular() -> None:
    graph = chain(1, 1, 1)
    again = with_frees(graph, ["f1", "f2", "f1", "f2", "f3"])
    once = with_frees(graph, ["f1", "f1", "f2", "f3"])
    assert "1 op recomputed, 1 extra run\n" in plan(solved(graph, 9, PlanResult(Status.FEASIBLE, schedule=once)))
    assert "2 ops recomputed, 2 extra runs" in plan(solved(graph, 9, PlanResult(Status.FEASIBLE, schedule=again)))


def test_transfers_are_counted_with_the_time_spent_waiting() -> None:
    run = moving(Duplex.HALF, "ns")
    report = rendered(verify_report(prepared(run.graph), run.schedule, run.trace))
    assert row(report, "transfers") == ["2", "4.000 MB to the host, 4.000 MB back"]
    assert [line.strip() for line in report.splitlines() if "duplex" in line] == [
        "link      1000.0 TB/s, half duplex",
        "link                     80.00 %  busy 8 ns; 1000.0 TB/s, half duplex",
    ]
    assert row(report, "waiting") == ["7 ns", "70.00 % of the time for a transfer"]
    assert report.endswith("time 10 ns, 7 ns of it waiting\n")
    plain = rendered(verify_report(prepared(run.graph), plain_run(run.graph), baseline_of(run.graph)))
    assert not any(word in plain for word in ("transfers", "link", "waiting"))


def test_a_link_that_the_schedule_names_is_said_to_be_from_there() -> None:
    run = moving(Duplex.FULL, "ns")
    report = rendered(verify_report(prepared(run.graph), run.schedule, run.trace, link_taken=True))
    assert "link      1000.0 TB/s, full duplex (from the schedule)\n" in report
    assert row(report, "link to host") == ["40.00 %", "busy 4 ns; 1000.0 TB/s, full duplex"]
    assert row(report, "link back") == ["40.00 %", "busy 4 ns"]


def use(report: str, way: str) -> str:
    """The row below the chart that shows how busy a queue of the link is."""
    (shown,) = re.findall(rf"^ *{way}  ([ ▁▂▃▄▅▆▇█]+)$", report, flags=re.MULTILINE)
    return str(shown)


def test_below_the_chart_is_how_busy_the_link_is() -> None:
    half, full = (rendered(verify_report(prepared(r.graph), r.schedule, r.trace)) for r in map(moving, Duplex))
    assert "▄ link busy" in half
    # Busy from 1 to 9 of 10 units of time, to which the first and the last column belong in part.
    both = use(half, "link")
    assert both.strip().strip("▁▂▃▄▅▆▇") == "█" * 54
    out, back = use(full, "to host"), use(full, "back")
    assert len(out.rstrip()) - len(back) + len(back.lstrip()) <= 1
    assert "link busy" not in rendered(verify_report(prepared(chain(1)), plain_run(chain(1)), baseline_of(chain(1))))


def test_the_tensors_that_a_plan_moves_are_listed() -> None:
    run = moving(Duplex.HALF)
    claim = PlanResult(Status.FEASIBLE, schedule=run.schedule)
    problem = Problem(run.graph, Budget(9 * MB), run.trace.link, offload=True)
    report = plan(solve(problem, Claims(claim)))
    assert "Largest tensors moved to the host\n" in report
    moved = report.split("Largest tensors moved to the host\n")[1]
    assert moved.splitlines()[1].split()[:4] == ["t1", "4.000", "MB", "2"]
    assert row(report, "scope") == ["any-order", "holds for all plans in any order, with or"]


def test_what_the_methods_own_model_says_stands_apart_from_what_was_measured() -> None:
    graph = chain(MB, MB, MB)
    figures = (ModelFigure("paper cost", 2 * MB, "bytes"), ModelFigure("fluid time", 12, "time"))
    claim = PlanResult(Status.FEASIBLE, schedule=plain_run(graph), model_figures=figures)
    report = plan(solved(graph, 9 * MB, claim))
    assert row(report, "paper cost") == ["2.000 MB", "by the method's own model"]
    assert row(report, "fluid time") == ["12", "by the method's own model"]


def test_a_budget_below_one_op_names_the_op_its_tensors_and_what_to_do(graph: Graph) -> None:
    solution = solved(graph, 2 * MB, PlanResult(Status.UNKNOWN))
    report = flat(plan(solution, optimizer="adam"))
    assert "No plan fits 2.000 MB: proven for all plans in any order." in report
    assert (
        "Op b6 alone needs 3.000 MB: all it reads and writes (a5 1.000 MB, g5 1.000 MB, g6 1.000 MB). "
        "No plan in any order can have a lower peak." in report
    )
    assert "A budget below 3.000 MB never fits; `remat budget` searches for the smallest that does." in report
    assert "a smaller batch" in report
    assert "--optimizer sgd" in report
    assert "--optimizer" not in plan(solution, optimizer="sgd")


def test_a_budget_below_what_is_always_there_says_that(graph: Graph) -> None:
    heavy = replace(graph, resident_bytes=50 * MB)
    report = flat(plan(solved(heavy, 20 * MB, PlanResult(Status.UNKNOWN))))
    assert "50.00 MB are there from start to end whatever the plan" in report
    assert "more than the budget before any op runs" in report


def test_outputs_that_do_not_fit_together_are_named() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), sizes={"x": 3, "y": 4})
    report = flat(plan(solved(graph, 5, PlanResult(Status.UNKNOWN))))
    assert "At the end all outputs are there together (y 4 B, x 3 B): 7 B." in report


def test_a_planner_that_finds_nothing_shows_what_came_closest(graph: Graph, schedule: Schedule) -> None:
    result = PlanResult(Status.INFEASIBLE, closest=schedule, reason="no chain of [lower] sets fits")
    report = plan(solved(graph, 4 * MB, result))
    assert "No plan fits 4.000 MB: proven for all plans of this planner." in report
    assert "No chain of [lower] sets fits." in report
    assert "plan with --budget 5000000, or with --budget min" in flat(report)
    assert "Try another planner" in report
    assert row(report, "budget") == ["4.000 MB", "exceeded by 1.000 MB"]
    assert row(report, "hard limit") == ["3.000 MB", "no plan in any order needs less"]
    assert "█ closest   ░ plain run   ╌ budget" in report
    assert row(report, "status") == ["infeasible", "proven: no such plan fits"]
    assert "bound" not in report


def test_an_unfinished_search_is_not_called_infeasible(graph: Graph) -> None:
    report = plan(solved(graph, 4 * MB, PlanResult(Status.UNKNOWN)))
    assert "No plan was found for 4.000 MB; it is not proven that none exists." in report
    assert "--time-limit" in report
    assert "infeasible" not in report
    assert "\nWhy" not in report


def test_what_the_reader_noted_is_passed_on(feasible: Solution, graph: Graph) -> None:
    ready = prepared(graph, notes=("sizes of 2 ops are estimates",))
    assert rendered(plan_report(planning(feasible, ready))).endswith("\nNotes\n  · sizes of 2 ops are estimates\n")


def test_an_inspection_tells_apart_what_is_kept_and_what_is_resident(graph: Graph) -> None:
    ready = prepared(
        replace(graph, resident_bytes=8 * MB),
        kept=KeptForBackward(5 * MB, 2 * MB, ("a1",)),
        parameter_bytes=2 * MB,
        optimizer="adam",
    )
    report = rendered(inspect_report(ready))
    assert "resident           8.000 MB  parameters 2.000 MB, as much for gradients;" in report
    assert "optimizer adam" in report
    assert "kept for backward  7.000 MB  floats 5.000 MB, indices and masks 2.000 MB" in report


def test_the_most_frequent_types_are_counted() -> None:
    types = ["Conv"] * 3 + ["Relu"] * 2 + [f"T{i}" for i in range(8)] + [""]
    ops = [Op(f"op{i}", type_, (), (f"t{i}",), time=1) for i, type_ in enumerate(types)]
    report = rendered(inspect_report(prepared(graph_of(*ops))))
    assert "types    Conv 3, Relu 2, T0 1, T1 1, T2 1, T3 1, T4 1, T5 1, 3 more types\n" in report
    untyped = graph_of(Op("a", "", (), ("x",), time=1))
    assert "types    without a type 1\n" in rendered(inspect_report(prepared(untyped)))


def test_an_inspection_says_where_there_is_no_room() -> None:
    assert "There is no room for a plan: the plain run needs no more than that." in rendered(
        inspect_report(prepared(chain(100, 100, 1)))
    )
    # A byte that waits for `late` is all that could be recomputed beside the 99 bytes of `use`.
    waiting = graph_of(
        op("early", "", "s"), op("big", "", "b"), op("use", "b", "c"), op("late", "s", "d"), sizes={"b": 90, "c": 9}
    )
    report = flat(rendered(inspect_report(prepared(waiting))))
    assert "hardly more than that, and no plan can save more than 1.00 % of it." in report


def test_a_search_that_meets_its_proof_is_exact(feasible: Solution, graph: Graph) -> None:
    at_peak = replace(feasible, problem=Problem(graph, Budget(5 * MB)))
    search = SmallestBudget(5 * MB, Scope.PLANNER, at_peak)
    report = rendered(budget_report(planning(search.solution, search=search)))
    assert "The smallest budget is 5.000 MB, proven to the byte." in report
    assert row(report, "proven") == ["5.000 MB", "5,000,000", "71.43 %", "none of this planner fits less"]


def test_a_search_that_leaves_a_gap_shows_both_ends(feasible: Solution, graph: Graph) -> None:
    search = SmallestBudget(3 * MB, Scope.ANY_ORDER, at_budget(feasible, 5 * MB), max_overhead=Fraction(1, 5))
    report = rendered(budget_report(planning(search.solution, search=search)))
    assert "The smallest budget found at no more than 20.00 % overhead is 5.000 MB." in report
    assert row(report, "plain run") == ["7.000 MB", "7,000,000", "100.0 %", "recomputes nothing"]
    assert row(report, "proven") == ["3.000 MB", "3,000,000", "42.86 %", "none in any order fits less"]
    assert row(report, "found") == ["5.000 MB", "5,000,000", "71.43 %", "10.53 % time overhead"]


def test_a_search_without_a_plan_says_why(graph: Graph) -> None:
    refusal = solved(graph, 4 * MB, PlanResult(Status.UNKNOWN, reason="nothing was tried"))
    search = SmallestBudget(3 * MB, Scope.ANY_ORDER, refusal)
    report = rendered(budget_report(planning(search.solution, search=search)))
    assert "No budget was found for which there is a plan." in report
    assert "Nothing was tried." in report
    assert "found  " not in report


@pytest.mark.parametrize(
    ("budget_bytes", "verdict"),
    [
        (None, "The schedule holds: every step can be carried out."),
        (5 * MB, "The schedule holds: every step can be carried out, within the budget."),
        (5 * MB - 1, "The schedule can be carried out, but exceeds the budget by 1 B."),
    ],
)
def test_a_replayed_schedule_is_held_against_the_budget(
    graph: Graph, schedule: Schedule, budget_bytes: int | None, verdict: str
) -> None:
    trace = simulate(graph, schedule)
    report = rendered(verify_report(prepared(graph), schedule, trace, budget_bytes=budget_bytes))
    assert verdict in report
    assert "10.53 % overhead: 2 more" in report


def test_the_planners_are_listed_with_options_and_defaults() -> None:
    report = rendered(planners_report())
    assert "\nkeep_all\n" in f"\n{report}"
    assert "no options" in report
    assert "time_slots" in report


HOSTILE = (
    "[red]markup[/red]",
    "[/]",
    "\x1b[31mred\x1b[0m\x07",
    "new\nline\ttab",
    "名前" * 40,
    "x" * 1_000_000,
    "\u202ethgir ot tfel",
    "e\u0301" * 90,
)


@pytest.fixture
def hostile() -> Graph:
    """A chain whose names, types and graph are all hostile."""
    ops = [Op(f"op {name}", name, (HOSTILE[i - 1],) if i else (), (name,), time=1) for i, name in enumerate(HOSTILE)]
    ops.append(Op("last", "L", HOSTILE, ("end",), time=1))
    return build_graph(
        name=HOSTILE[2] + HOSTILE[5],
        kind=Kind.INFERENCE,
        time_unit="unit",
        resident_bytes=0,
        tensors=[*(Tensor(name, 1000 + i) for i, name in enumerate(HOSTILE)), Tensor("end", 5)],
        ops=ops,
    )


def reports_on(graph: Graph) -> list[RenderableType]:
    ready = prepared(graph, notes=HOSTILE, costs=HOSTILE[2])
    plain = plain_run(graph)
    fits = solved(graph, 10**9, PlanResult(Status.FEASIBLE, schedule=plain))
    too_large = solved(graph, 1, PlanResult(Status.UNKNOWN))
    closest = solved(graph, 9_000, PlanResult(Status.UNKNOWN, closest=plain, reason=HOSTILE[2]))
    request = Request(planner=PlannerChoice(HOSTILE[2], {HOSTILE[0]: HOSTILE[5]}))
    search = SmallestBudget(1, Scope.PLANNER, fits)
    return [
        inspect_report(ready),
        *(plan_report(planning(each, ready, request=request)) for each in (fits, too_large, closest)),
        budget_report(planning(fits, ready, request=request, search=search)),
        verify_report(ready, plain, baseline_of(graph), budget_bytes=9_000),
        planners_report(),
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_whatever_the_names(hostile: Graph, width: int) -> None:
    for report in reports_on(hostile):
        assert max(cell_len(line) for line in rendered(report, width).splitlines()) <= width


def test_nothing_in_a_name_reaches_the_terminal_as_a_command(hostile: Graph) -> None:
    for report in reports_on(hostile):
        text = rendered(report)
        assert all(character.isprintable() or character == "\n" for character in text)
    assert "[red]markup[/red]" in rendered(inspect_report(prepared(hostile)))


def test_an_output_that_cannot_do_unicode_gets_ascii(hostile: Graph, feasible: Solution) -> None:
    for report in (*reports_on(hostile), plan_report(planning(feasible, prepared(hostile)))):
        raw = io.BytesIO()
        output = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
        Console(width=80, file=output).print(report)
        lines = raw.getvalue().decode("ascii").splitlines()
        assert max(map(len, lines)) <= 80
    assert "# plan   : plain run   - budget   = recomputing" in "\n".join(lines)


def test_a_terminal_gets_colour_unless_it_asks_for_none(feasible: Solution, monkeypatch: pytest.MonkeyPatch) -> None:
    report = plan_report(planning(feasible))

    def on_terminal() -> str:
        output = io.StringIO()
        Console(width=80, file=output, force_terminal=True, color_system="standard").print(report)
        return output.getvalue()

    assert "\x1b[36m█" in on_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in on_terminal()


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(graph_of(op("only", "", "x")), id="one op"),
        pytest.param(graph_of(op("only", "", "x"), sizes={"x": 0}), id="no bytes"),
        pytest.param(graph_of(op("a", "", "x", time=0)), id="no time"),
        pytest.param(graph_of(op("a", "x", "")), id="no output"),
    ],
)
def test_degenerate_graphs_have_reports(graph: Graph) -> None:
    for report in reports_on(graph):
        assert rendered(report)
