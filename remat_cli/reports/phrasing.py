"""The wording of results: verdicts, proofs, reasons and remedies.

It has no layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from shlex import quote

from remat_cli.core.bounds import WorkingSet
from remat_cli.core.graph import Graph, Kind
from remat_cli.core.problem import Basis, Bound, Scope, Status
from remat_cli.core.schedule import Offload
from remat_cli.core.solve import Activations, Solution, activations_of
from remat_cli.formats.model_config import names_step
from remat_cli.planning import SmallestBudget
from remat_cli.prepare import Prepared
from remat_cli.reports.safe_text import clean, shorten
from remat_cli.settings import Setting, on_command_line, option_of
from remat_cli.units import format_bytes, format_share, format_time, meant_as_share

# To be read after "plans" or "no plan", and the words on their order.
WITHOUT_TRANSFERS = " without transfers"
_WITH_OR_WITHOUT = ", with or without transfers"
# The evidence for a proof, to be read after its name.
BASES = {
    Basis.COUNTED: "in whole numbers, by remat itself",
    Basis.TWO_SOLVERS: "that share no code agree",
    Basis.ONE_SOLVER: "says so, unchecked",
}
_LONGEST_NAME = 40
_LARGEST_SHOWN = 3
# Below this ratio of the plain peak to the largest working set, a plan can save next to nothing.
# Workspace below this part of the peak is not worth a note.
_HARDLY = 50
_LITTLE_ROOM = 1.05
# Shorter calls do not report their time: a plan may take a while, a look at a graph should not.
_LONG_SECONDS = 10
LONG_LOOK_SECONDS = 2


def kind_and_size(prepared: Prepared) -> str:
    """Return the kind of a graph, whether it was chosen, and its number of ops."""
    parts = [prepared.graph.kind.value, f"{len(prepared.graph.ops):,} ops"]
    if prepared.trains_by_default:
        parts[0] += f" by default (or {on_command_line(Setting('mode', 'inference'))})"
    return " · ".join([*parts, "estimated sizes"] if prepared.is_estimated else parts)


def which_plans(solution: Solution) -> str:
    """Return the plans that the widest proof covers, to follow "plans"."""
    if solution.leaves_out_transfers:
        return solution.scope.which_plans + WITHOUT_TRANSFERS
    return _which_plans(solution, solution.scope)


def also_proven(solution: Solution, bound: Bound) -> str:
    """State a further bound."""
    return f"no plan {_which_plans(solution, bound.scope)} has less overhead"


def _which_plans(solution: Solution, scope: Scope) -> str:
    """Return the plans of a scope, with a word on transfers if needed.

    It is needed if some of the plans may move tensors to the host.
    """
    moves = solution.trace is not None and bool(solution.trace.transfers)
    if scope is Scope.PLANNER or not (moves or solution.problem.offload):
        return scope.which_plans
    return scope.which_plans + (WITHOUT_TRANSFERS if scope.leaves_out_transfers else _WITH_OR_WITHOUT)


def status_in_words(solution: Solution) -> str:
    """Explain the status: its meaning and its limits."""
    match solution.status:
        case Status.OPTIMAL if solution.overhead == 0:
            return "every op runs once: nothing can be faster"
        case Status.OPTIMAL:
            return f"proven: the fastest plan {which_plans(solution)}"
        case Status.FEASIBLE if solution.interrupted:
            return "interrupted: the best plan until then"
        case Status.FEASIBLE:
            return "a faster plan may exist"
        case Status.INFEASIBLE:
            return "proven: no such plan fits"
        case Status.UNKNOWN:
            return "the search ended and proved nothing"


def verdict(solution: Solution, *, estimated: bool = False) -> str:
    """State the result in one sentence, with a mark if sizes are estimates."""
    budget = format_bytes(solution.problem.budget.device_bytes)
    if solution.trace is None or solution.overhead is None:
        if solution.status is Status.INFEASIBLE:
            of_sizes = ", of estimated sizes" if estimated else ""
            return f"No plan fits {budget}: proven for all plans {which_plans(solution)}{of_sizes}."
        return f"No plan was found for {budget}; it is not proven that none exists."
    peak = format_bytes(solution.trace.peak_bytes)
    cost = f"for {format_share(solution.overhead)} more time" if solution.overhead else "and takes no extra time"
    fits = "The plan fits, if the estimated sizes hold" if estimated else "The plan fits"
    if solution.reserved is not None:
        reserved = format_bytes(solution.reserved.bytes)
        return f"{fits}: its allocator reserves {reserved} of {budget}, at a peak of {peak}, {cost}."
    return f"{fits}: it peaks at {peak} of {budget} {cost}."


def reasons(solution: Solution) -> list[str]:
    """Return the reasons why there is no plan; empty with a plan."""
    if solution.trace is not None:
        return []
    graph, budget = solution.problem.graph, solution.problem.budget.device_bytes
    moved = solution.problem.offload and bool(graph.residents)
    always = graph.fixed_bytes - (sum(graph.tensors[name].bytes for name in graph.residents) if moved else 0)
    if budget < always:
        stay = " that moves nothing to the host" if graph.residents and not moved else ""
        return [
            f"{format_bytes(always)} are there from start to end whatever the plan{stay} "
            f"({resident_in_words(graph)}, graph inputs): more than the budget before any op runs."
        ]
    if budget < solution.working_set.bytes:
        without = " without transfers" if graph.residents and not moved else ""
        needed = working_set_in_words(graph, solution.working_set)
        return [f"{needed} No plan in any order{without} can have a lower peak."]
    return [_sentence(clean(solution.result.reason))] if solution.result.reason else []


def resident_in_words(graph: Graph) -> str:
    """Return the meaning of resident bytes in a graph of this kind."""
    return "weights" if graph.kind is Kind.INFERENCE else "parameters, gradients, optimizer state"


def share_of_plain_peak(budget_bytes: int, plain_peak_bytes: int, graph: Graph) -> str:
    """Write a budget as a share of the plain peak.

    If activations are the smaller part of that peak, add their share.
    """
    share = f"{format_share(budget_bytes / max(1, plain_peak_bytes))} of the plain peak"
    activations = activations_of(graph)
    if not _says_more(activations) or budget_bytes < activations.other_bytes:
        return share
    return f"{share}, {format_share(activations.share(budget_bytes))} of activations"


def _says_more(activations: Activations) -> bool:
    """Tell whether shares of activations say more than shares of the peak.

    They do if activations are the smaller part.
    """
    return 0 < activations.bytes < activations.other_bytes


def smallest_budget(search: SmallestBudget) -> str:
    """State the result of a search for the smallest budget in one sentence."""
    within = "" if search.max_overhead is None else f" at no more than {format_share(search.max_overhead)} overhead"
    if search.found_bytes is None:
        return f"No budget was found for which there is a plan{within}."
    smallest = format_bytes(search.found_bytes)
    if search.solution.interrupted:
        return f"Interrupted: the smallest budget found until then{within} is {smallest}."
    if search.found_bytes == search.proven_bytes:
        return f"The smallest budget{within} is {smallest}, proven to the byte."
    return f"The smallest budget found{within} is {smallest}."


def verdict_on_schedule(peak_bytes: int, budget_bytes: int | None) -> str:
    """State the verdict on a replayed schedule in one sentence."""
    if budget_bytes is None:
        return "The schedule holds: every step can be carried out."
    if peak_bytes <= budget_bytes:
        return "The schedule holds: every step can be carried out, within the budget."
    return f"The schedule can be carried out, but exceeds the budget by {format_bytes(peak_bytes - budget_bytes)}."


def working_set_in_words(graph: Graph, working_set: WorkingSet) -> str:
    """Name the op and the tensors of the largest working set."""
    shown = ", ".join(
        f"{shorten(name, _LONGEST_NAME)} {format_bytes(graph.tensors[name].bytes)}"
        for name in working_set.tensors[:_LARGEST_SHOWN]
        if graph.tensors[name].bytes > 0
    )
    more = len(working_set.tensors) - _LARGEST_SHOWN
    tensors = f" ({shown}{f' and {more} more' if more > 0 else ''})" if shown else ""
    bytes_of = {name: graph.tensors[name].bytes for name in graph.residents}
    always = graph.fixed_bytes - sum(bytes_of.values())
    fixed = f" next to {format_bytes(always)} that are always there" if always else ""
    if bytes_of:
        fixed += ", and parameters and state that are on the device then"
    if working_set.op is None:
        return f"At the end all outputs are there together{tensors}{fixed}: {format_bytes(working_set.bytes)}."
    op = shorten(working_set.op, _LONGEST_NAME)
    return f"Op {op} alone needs {format_bytes(working_set.bytes)}: all it reads and writes{tensors}{fixed}."


def remedies(solution: Solution, optimizer: str | None) -> list[str]:
    """Return remedies if there is no plan; empty with a plan.

    Args:
        solution: the result.
        optimizer: the optimizer whose state is resident; None if unknown.
    """
    if solution.trace is not None:
        return []
    outside_bytes = solution.uncounted_bytes
    meant = meant_as_share(
        solution.problem.budget.device_bytes - outside_bytes, solution.baseline.peak_bytes - outside_bytes
    )
    advice = [*([meant] if meant else []), _budget_that_fits(solution)]
    if solution.problem.budget.device_bytes < solution.working_set.bytes:
        dims = option_of("dims")
        if solution.problem.graph.residents and not solution.problem.offload:
            advice.append("Let parameters and optimizer state wait on the host (--offload).")
        advice.append(f"Make the tensors smaller: a smaller batch or shorter sequence ({dims}), a narrower data type.")
        if optimizer not in (None, "sgd"):
            stateless = on_command_line(Setting("optimizer", "sgd"))
            advice.append(f"An optimizer without state ({stateless}) leaves more of the budget to the tensors.")
        return advice
    if solution.status is Status.UNKNOWN:
        advice.append("Where a time limit ended the search, give it more time (--time-limit).")
    if solution.leaves_out_transfers and not solution.problem.offload:
        advice.append("Let plans move tensors to the host and back (--offload): the proof does not cover those.")
    if solution.scope not in (Scope.ANY_PLAN, Scope.ANY_ORDER):
        advice.append("Try another planner: each searches other plans (`remat planners` lists them).")
    return advice


def _budget_that_fits(solution: Solution) -> str:
    if solution.closest_arena_bytes is not None:
        size = solution.closest_arena_bytes
        return f"The smallest arena found is {format_bytes(size)}: plan with --budget {size}, or with --budget min."
    if solution.closest_reserved_bytes is not None:
        size = solution.closest_reserved_bytes
        return f"The least reserved is {format_bytes(size)}: plan with --budget {size}, or with --budget min."
    if solution.closest is None:
        least = format_bytes(solution.working_set.bytes - solution.uncounted_bytes)
        return f"A budget below {least} never fits; `remat budget` searches for the smallest that does."
    peak, activations = solution.closest.peak_bytes, activations_of(solution.problem.graph)
    if solution.has_addresses:
        most = peak - solution.uncounted_bytes
        return (
            f"The smallest sum found is {format_bytes(most)}, beside resident bytes; an arena is no smaller: plan with "
            f"--budget {most}, or with --budget min."
        )
    budgets = [f"--budget {peak}"]
    if _says_more(activations) and (share := activations.share(peak)) <= 1:
        budgets.append(f"--budget '{ceil(share * 1000) / 10:g}% of activations'")
    return f"The smallest peak found is {format_bytes(peak)}: plan with {', '.join(budgets)}, or with --budget min."


def next_steps(
    solution: Solution,
    graph_file: Path,
    schedule_file: Path | None,
    *,
    fused: bool = False,
    in_parts: bool = False,
    split_tried: str = "",
) -> list[str]:
    """Return the uses of a plan, or remedies that were not tried.

    Args:
        solution: the result.
        graph_file: file of the planned graph.
        schedule_file: file of the plan; None if it was not written to a file.
        fused: whether the plan is for inductor's kernels.
        in_parts: whether the planned graph has regions in parts.
        split_tried: effect of --split where it was tried for a refusal; otherwise empty.
    """
    is_open = solution.status in (Status.FEASIBLE, Status.UNKNOWN)
    left_out = [solution.result.note] if solution.result.note and is_open else []
    if solution.trace is None or solution.result.schedule is None:
        if split_tried:
            return [_sentence(split_tried), *left_out]
        return [*([] if in_parts or fused else _untried(solution, graph_file)), *left_out]
    return [*_uses(solution, graph_file, schedule_file, fused=fused, in_parts=in_parts), *left_out]


def _untried(solution: Solution, graph_file: Path) -> list[str]:
    needed = solution.working_set
    if not names_step(graph_file) or needed.op is None or solution.problem.budget.device_bytes >= needed.bytes:
        return []
    op = shorten(needed.op, _LONGEST_NAME)
    return [f"Not tried: --split runs the region around {op} in parts, which take less. Last digits differ then."]


def _uses(
    solution: Solution, graph_file: Path, schedule_file: Path | None, *, fused: bool, in_parts: bool
) -> list[str]:
    assert solution.trace is not None
    assert solution.result.schedule is not None
    if solution.arena is not None:
        if schedule_file is None:
            return ["To keep the plan and its addresses, write them: -o schedule.json."]
        return [f"Where everything lies is in {clean(str(schedule_file))}, under `arena`; run the steps in its order."]
    moves = any(isinstance(step, Offload) for step in solution.result.schedule.steps)
    repeats = solution.trace.recomputations > 0
    if not repeats and not moves and solution.trace.peak_bytes == solution.baseline.peak_bytes and not in_parts:
        return ["The plan runs nothing again: run the model as you do."]
    if schedule_file is None:
        return ["To keep the plan, write it: -o schedule.json."]
    files = " ".join(quote(clean(str(path))) for path in (graph_file, schedule_file))
    shown = f"`remat report {files} -o report.html` shows " + (
        "which ops are run again, and when." if repeats else "when each op runs."
    )
    if names_step(graph_file):
        plan = clean(repr(str(schedule_file))) + (", fused=True" if fused else "")
        return [shown, f"To train by it: `from remat_cli.torch import planned`, then `model = planned(model, {plan})`."]
    if solution.problem.graph.kind is Kind.TRAINING:
        return [
            shown,
            "To carry it out, checkpoint these ops in the framework that trains the model. PyTorch carries out a plan "
            "of the training step itself: `remat plan train.py:step` (see remat_cli/pytorch/run/README.md).",
        ]
    if graph_file.suffix == ".onnx" and not moves:
        return [shown, f"`remat apply {files} -o planned.onnx` writes the model that runs it."]
    return [shown]


def room_in_words(plain_peak_bytes: int, working_set: WorkingSet) -> str:
    """State how far the plain peak is above the largest working set.

    No plan can go below that working set.
    """
    saving = plain_peak_bytes - working_set.bytes
    if saving == 0:
        return "There is no room for a plan: the plain run needs no more than that."
    most = f"no plan can save more than {format_share(saving / plain_peak_bytes)} of it"
    if plain_peak_bytes < _LITTLE_ROOM * working_set.bytes:
        return f"There is next to no room for a plan: the plain peak is hardly more than that, and {most}."
    ratio = plain_peak_bytes / max(1, working_set.bytes)
    return f"The plain peak is {f'{ratio:.2f}' if ratio < 10 else f'{ratio:,.0f}'} times that: {most}."


def note_on_room(peak_bytes: int, device: str, memory_bytes: int) -> str:
    """Return the note on whether eager fits a device, and by how much."""
    left, memory = memory_bytes - peak_bytes, format_bytes(memory_bytes)
    if left < 0:
        return f"eager does not fit the {memory} of {device}: {format_bytes(-left)} are missing"
    return f"eager fits the {memory} of {device}: {format_bytes(left)} are left, for the context and gaps, too"


def notes_on_outputs(peak_bytes: int, let_go_bytes: int) -> list[str]:
    """Return the note on outputs that a training loop holds; none where they cost nothing.

    Args:
        peak_bytes: eager's peak with all outputs held in the backward pass.
        let_go_bytes: its peak with the loss alone held.
    """
    if let_go_bytes >= peak_bytes:
        return []
    return [f"eager peaks at {format_bytes(let_go_bytes)} if the loss alone is held in the backward pass, no output"]


def notes_on_workspace(peak_bytes: int, workspace_bytes: int) -> list[str]:
    """Return the note on workspace that eager's peak counts and a plan's does not; none if it hardly matters.

    Args:
        peak_bytes: eager's peak.
        workspace_bytes: workspace of the kernel that runs there; 0 if a plan's peak counts it.
    """
    if workspace_bytes * _HARDLY < peak_bytes:
        return []
    return [
        f"eager's peak counts {format_bytes(workspace_bytes)} of its kernel's workspace; a plan's peak counts "
        "workspace with --measurements FILE of 'remat measure'"
    ]


def notes_on_workspace_of_plan(peak_bytes: int, with_workspace: int, budget_bytes: int, op: str) -> list[str]:
    """Return the note on a plan's peak with the workspace of kernels; none if that hardly matters.

    Args:
        peak_bytes: the plan's peak without workspace.
        with_workspace: its peak with it.
        budget_bytes: the plan's budget.
        op: that runs at that peak.
    """
    if (with_workspace - peak_bytes) * _HARDLY < peak_bytes:
        return []
    above = ", above the budget" if with_workspace > budget_bytes else ""
    return [
        f"with the workspace of kernels on this CPU the plan peaks at {format_bytes(with_workspace)}{above}, at op "
        f"{op}: it is counted with --measurements FILE of 'remat measure'"
    ]


def time_spent(seconds: Mapping[str, float], long_seconds: float = _LONG_SECONDS) -> str:
    """State the time of each stage of a long call.

    The text is empty for a call shorter than `long_seconds`.
    """
    whole = sum(seconds.values())
    if whole < long_seconds:
        return ""
    stages = ", ".join(f"{name} {_rounded(spent)}" for name, spent in seconds.items())
    return f"Took {_rounded(whole)}: {stages}."


def _rounded(seconds: float) -> str:
    return format_time(round(seconds * 10) * 10**8, "ns") if seconds >= 0.05 else "0 s"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
