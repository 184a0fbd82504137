"""A plan of a PyTorch step in parts, compiled: what inductor makes of it must fit the budget, too.

Parts are found among eager's ops. Inductor fuses what lies between the writes of parts, so the compiled peak is another
one than the plan's. Where it is above the budget, a plan for less is compiled.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

from remat_cli.core.problem import Budget, Observer
from remat_cli.core.schedule import Schedule
from remat_cli.errors import DoesNotFit
from remat_cli.planning import Planning, Request, plan, plan_again
from remat_cli.pytorch.plan.fused import MOST_COMPILED, CompiledPasses, compiled_plan, corrected_budget
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.programs.pieces import KnownPieces
from remat_cli.pytorch.unstable.inductor import as_captured
from remat_cli.settings import Setting
from remat_cli.units import exact_bytes, format_bytes, format_time

if TYPE_CHECKING:
    from remat_cli.pytorch.capture.reader import TakenStep

_USUALLY = " (a minute or more: a GPT of 4 layers took 77 s)"


def within_budget_once_compiled(planning: Planning, request: Request, observe: Observer) -> Planning:
    """Compile a plan in parts, and return the first plan whose compiled peak fits the budget.

    Of the smallest budget, it is the plan that was found, and its budget is raised to the compiled peak.

    Args:
        planning: the plan, of a step that was read to be split.
        request: the user's request.
        observe: is told what is compiled, and what the planner finds.

    Raises:
        DoesNotFit: each plan's compiled peak is above the budget.
        GraphError: inductor does not compile the step.
        UsageError: there is no compiler.
    """
    origin, known = planning.prepared.origin, KnownPieces()
    assert origin is not None
    found, asked, budget, spent_ns, compiled = planning, planning.budget_bytes, planning.budget_bytes, 0, 0
    while True:
        compiled += 1
        observe.phase(_compiling(compiled, spent_ns))
        began = perf_counter_ns()
        passes = _compiled(origin.taken, found, known)
        spent_ns += perf_counter_ns() - began
        peak = passes.planned.predicted_peak_bytes
        if peak <= budget or planning.search is not None:
            kept = planning if found is planning else plan_again(planning, found.prepared, _schedule(found))
            return _noted(kept, passes, compiled, spent_ns)
        asked = corrected_budget(asked, found.peak_bytes or asked, peak, budget)
        if compiled == MOST_COMPILED or asked <= 0:
            break
        cuts = planning.prepared.options.cuts
        found = plan(origin.in_parts({}), replace(request, split=True).at(asked), observe, former=(cuts,))
        if found.schedule is None or not found.prepared.options.parts:
            break
    raise DoesNotFit(
        f"compiled {_times(compiled)} in {format_time(spent_ns, 'ns')}, the step in parts peaks at {exact_bytes(peak)} "
        f"or more, above the budget of {format_bytes(budget)}: at kernel {passes.memory.peak_at!r}",
        hint=("give ", Setting("budget", peak), ", or leave ", Setting("fused"), " out"),
    )


def _compiled(taken: TakenStep, planning: Planning, known: KnownPieces) -> CompiledPasses:
    step = taken.in_parts(planning.prepared.options.cuts)
    planned = GraphRecord.of(planning.prepared.graph, _schedule(planning), planning.trace, planning.budget_bytes)
    inputs = [node.meta["val"] for node in step.captured.module.graph.find_nodes(op="placeholder")]
    with as_captured(inputs):
        return compiled_plan(step.joint, planned, step.captured.forward_outputs, known=known)


def _schedule(planning: Planning) -> Schedule:
    assert planning.schedule is not None
    return planning.schedule


def _noted(planning: Planning, passes: CompiledPasses, compiled: int, spent_ns: int) -> Planning:
    """Return a planning with a note on its kernels, and at least their peak as its budget."""
    peak = passes.planned.predicted_peak_bytes
    note = (
        f"compiled {_times(compiled)} in {format_time(spent_ns, 'ns')}: {passes.kernels} fused kernels, a peak of "
        f"{format_bytes(peak)}"
    )
    problem = planning.solution.problem
    if peak > planning.budget_bytes:
        note += f", which is the budget that the schedule names, not {format_bytes(planning.budget_bytes)}"
        problem = replace(problem, budget=Budget(peak))
    prepared = replace(planning.prepared, notes=(*planning.prepared.notes, note))
    return replace(planning, prepared=prepared, solution=replace(planning.solution, problem=problem))


def _compiling(number: int, spent_ns: int) -> str:
    """Return the name of a compilation's phase, with the time of the last one."""
    took = f"; the last took {format_time(spent_ns // (number - 1), 'ns')}" if number > 1 else _USUALLY
    return f"compiling the step in parts, {number} of at most {MOST_COMPILED}{took}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
