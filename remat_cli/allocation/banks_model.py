"""CP-SAT models of banks: bounds by loads, or offsets as rectangles.

Both choose a bank for each buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from remat_cli.allocation.instance import Instance
from remat_cli.core.problem import Status
from remat_cli.planners.shared.cp_model import CpModel, IntVar
from remat_cli.planners.shared.cp_sat import solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import Rounding

Ints = NDArray[np.int64]


def bank_times_bound(
    instance: Instance, capacities: Sequence[int], costs: Sequence[Sequence[int]], limits: Limits
) -> tuple[Status, int | None]:
    """Bound the time of any choice of banks.

    At each moment the buffers in a bank sum up to at most its size.

    Args:
        instance: the buffers.
        capacities: [banks] size in units.
        costs: [buffers][banks] time of a buffer in a bank.
        limits: limits of the search; work is the solver's deterministic time.

    Returns:
        The status, infeasible without any choice, and the bound; None without a bound.
    """
    model, chosen = _choices(instance, capacities, costs)
    for section in range(instance.sections):
        members = np.flatnonzero((instance.lower <= section) & (section < instance.upper)).tolist()
        for bank, capacity in enumerate(capacities):
            if sum(instance.sizes[members].tolist()) > capacity:
                model.add(sum(int(instance.sizes[each]) * chosen[each][bank] for each in members) <= capacity)
    outcome = solve_model(model, limits, rounding=Rounding.RELAX)
    return outcome.status, outcome.bound


def solved_in_banks(
    instance: Instance,
    capacities: Sequence[int],
    costs: Sequence[Sequence[int]],
    limits: Limits,
    known: tuple[Ints, Ints] | None,
) -> tuple[Status, tuple[Ints, Ints] | None, int | None]:
    """Choose banks and offsets together.

    Args:
        instance: the buffers.
        capacities: [banks] size in units.
        costs: [buffers][banks] time of a buffer in a bank.
        limits: limits of the search.
        known: [buffers] banks and offsets of a placement to begin with, or None.

    Returns:
        The status, [buffers] banks and offsets, and the bound; None for a missing result.
    """
    model, chosen = _choices(instance, capacities, costs)
    offsets = [model.new_int_var(0, max(capacities) - size, "") for size in instance.sizes.tolist()]
    spans = list(zip(instance.lower.tolist(), instance.upper.tolist(), instance.sizes.tolist(), strict=True))
    for bank, capacity in enumerate(capacities):
        across, upwards = [], []
        for (lower, upper, size), offset, choice in zip(spans, offsets, chosen, strict=True):
            model.add(offset + size <= capacity).only_enforce_if(choice[bank])
            across.append(model.new_optional_fixed_size_interval_var(lower, upper - lower, choice[bank], ""))
            upwards.append(model.new_optional_fixed_size_interval_var(offset, size, choice[bank], ""))
        model.add_no_overlap_2d(across, upwards)
    if known is not None:
        for buffer, (bank, offset) in enumerate(zip(known[0].tolist(), known[1].tolist(), strict=True)):
            model.add_hint(offsets[buffer], offset)
            for number, literal in enumerate(chosen[buffer]):
                model.add_hint(literal, bool(number == bank))
    outcome = solve_model(model, limits, rounding=Rounding.RELAX)
    if outcome.values is None:
        return outcome.status, None, outcome.bound
    banks = [[outcome.values[choice.index] for choice in choices].index(1) for choices in chosen]
    placement = np.array(banks, np.int64), np.array([outcome.values[each.index] for each in offsets], np.int64)
    return outcome.status, placement, outcome.bound


def _choices(
    instance: Instance, capacities: Sequence[int], costs: Sequence[Sequence[int]]
) -> tuple[CpModel, list[list[IntVar]]]:
    """Return a model that chooses banks in the least time, and its choices."""
    model = CpModel()
    chosen = [[model.new_bool_var("") for _ in capacities] for _ in costs]
    for choices, size in zip(chosen, instance.sizes.tolist(), strict=True):
        model.add_exactly_one(choices)
        for choice, capacity in zip(choices, capacities, strict=True):
            if size > capacity:
                model.add(choice == 0)
    pairs = [
        (cost, choice)
        for row, choices in zip(costs, chosen, strict=True)
        for cost, choice in zip(row, choices, strict=True)
    ]
    model.minimize(sum(cost * choice for cost, choice in pairs))
    return model, chosen
