"""Refusals of budgets, with the least memory, the reasons and a remedy."""

from __future__ import annotations

from math import ceil

from remat_cli.core.solve import Solution, activations_of, baseline_of
from remat_cli.errors import DoesNotFit
from remat_cli.units import exact_bytes, format_bytes


def no_plan(solution: Solution, free_bytes: int = 0) -> DoesNotFit:
    """Return the error for no plan, with the least memory and reasons.

    Args:
        solution: a solution without a plan.
        free_bytes: reserved bytes that count as always in memory.
    """
    graph, working_set = solution.problem.graph, solution.working_set
    gradients = sum(graph.tensors[name].bytes for name in graph.outputs if name in graph.producer)
    budget = format_bytes(solution.problem.budget.device_bytes)
    if working_set.op is None:
        why = "that is what is in memory at the end"
    else:
        op = graph.op[working_set.op]
        own = f", of which {format_bytes(op.workspace_bytes)} are workspace of its kernel" if op.workspace_bytes else ""
        why = f"op {op.name!r}{f' ({op.source})' if op.source else ''} alone needs that{own}"
    proven = solution.status.value == "infeasible"
    left = f", and {format_bytes(free_bytes)} are left free for what the model does not see" if free_bytes else ""
    plain_peak = baseline_of(graph).peak_bytes
    nearest = share = ""
    if solution.closest is not None and solution.closest.peak_bytes < plain_peak:  # the plain run is no plan to ask for
        closest, activations = solution.closest.peak_bytes, activations_of(graph)
        nearest = f"; the closest that was found needs {exact_bytes(closest)}"
        share = larger_share(closest, activations.other_bytes, activations.bytes)
    fixed = format_bytes(graph.fixed_bytes - free_bytes)
    return DoesNotFit(
        f"no plan {'fits' if proven else 'was found for'} a budget of {budget}. No plan that runs every op whole needs "
        f"less than {exact_bytes(working_set.bytes)}: {why}{nearest}. Always in memory are {fixed} of parameters, "
        f"inputs and optimizer state{left}; at the end, {format_bytes(gradients)} of gradients and outputs; the plain "
        f"run needs {format_bytes(plain_peak)}",
        hint=f'give a larger budget ({share}budget="min" takes the smallest that is found), or smaller inputs',
    )


def with_trial(refusal: DoesNotFit, effect: str, *, fits: bool) -> DoesNotFit:
    """Return a refusal with the effect of a trial in its hint, first if it fits."""
    hint = f"{effect}; or {refusal.hint}" if fits else f"{refusal.hint}; {effect}"
    return DoesNotFit(refusal.message, hint=hint)


def larger_share(peak_bytes: int, other_bytes: int, activation_bytes: int) -> str:
    """Return a peak as a budget in shares of activations, with a comma.

    The text is empty unless activations are the smaller part.

    Args:
        peak_bytes: peak of the step.
        other_bytes: memory besides activations.
        activation_bytes: peak of activations in the plain run.
    """
    if not 0 < activation_bytes < other_bytes or not other_bytes <= peak_bytes <= other_bytes + activation_bytes:
        return ""
    return f'budget="{ceil((peak_bytes - other_bytes) / activation_bytes * 1000) / 10:g}% of activations", '
