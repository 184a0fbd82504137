"""A second opinion on CP-SAT's proofs: SCIP on the same model.

SCIP shares no code with CP-SAT.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import inf
from typing import Any

import numpy as np
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.limits import Limits

# The limit on nodes of SCIP's search, so that its opinion does not depend on the clock.
_MOST_NODES = 20_000


def agrees(model: CpModel, bound: int | None, limits: Limits) -> bool:
    """Tell whether the second solver confirms a bound on a model's cost.

    False proves nothing: the solver may have reached its limits.

    Args:
        model: a model of 0-1 variables, rows and clauses; scaled (see `cp_sat.scale_model`).
        bound: bound on the scaled model's objective; None to confirm that there is no solution.
        limits: limits of the search.
    """
    if limits.is_over:
        return False
    parameters = mathopt.SolveParameters(
        time_limit=timedelta(seconds=min(limits.seconds, 1e6)), node_limit=_MOST_NODES, threads=1, random_seed=0
    )
    program = mathopt.Model.from_model_proto(_program(model))
    ended = mathopt.solve(program, mathopt.SolverType.GSCIP, params=parameters).termination
    # The solver minimises: searching for a solution below the bound took up to 16 times as long on cut models.
    has_bound = bound is not None and ended.objective_bounds.dual_bound > bound - 0.5
    return has_bound or ended.reason is mathopt.TerminationReason.INFEASIBLE


def _program(model: CpModel) -> Any:
    """Return the model as an integer program."""
    proto = model.proto
    program = model_pb2.ModelProto()
    count = len(proto.variables)
    domains = np.array([tuple(variable.domain) for variable in proto.variables], dtype=np.float64).reshape(count, 2)
    variables = program.variables
    variables.ids.extend(range(count))
    variables.lower_bounds.extend(domains[:, 0].tolist())
    variables.upper_bounds.extend(domains[:, 1].tolist())
    variables.integers.extend([True] * count)
    costs = sorted(zip(proto.objective.vars, proto.objective.coeffs, strict=True))
    program.objective.linear_coefficients.ids.extend(variable for variable, _ in costs)
    program.objective.linear_coefficients.values.extend(float(cost) for _, cost in costs)
    rows = program.linear_constraints
    matrix = program.linear_constraint_matrix
    for number, (columns, coefficients, low, high) in enumerate(_rows(proto)):
        rows.ids.append(number)
        rows.lower_bounds.append(low)
        rows.upper_bounds.append(high)
        by_column = np.argsort(columns)
        matrix.row_ids.extend([number] * len(columns))
        matrix.column_ids.extend(np.asarray(columns)[by_column].tolist())
        matrix.coefficients.extend(np.asarray(coefficients, dtype=np.float64)[by_column].tolist())
    return program


def _rows(proto: Any) -> Iterator[tuple[list[int], list[int], float, float]]:
    """Yield variables, coefficients and limits of each row."""
    for constraint in proto.constraints:
        if constraint.has_linear():
            if len(constraint.enforcement_literal):
                raise ValueError("a row under a condition has no counterpart in an integer program")
            linear = constraint.linear
            yield list(linear.vars), list(linear.coeffs), -inf, float(linear.domain[1])
        elif constraint.has_bool_or():
            literals = [*constraint.bool_or.literals, *(-literal - 1 for literal in constraint.enforcement_literal)]
            yield _clause(literals)
        else:
            raise ValueError("only rows and clauses have counterparts in an integer program")


def _clause(literals: list[int]) -> tuple[list[int], list[int], float, float]:
    """Return the row that demands one of the literals."""
    distinct = sorted(set(literals))
    weights = dict.fromkeys((max(literal, -literal - 1) for literal in distinct), 0)
    for literal in distinct:
        # A variable and its negation make the clause true: they cancel out, and the row demands nothing.
        weights[max(literal, -literal - 1)] += 1 if literal >= 0 else -1
    negated = sum(literal < 0 for literal in distinct)
    return list(weights), list(weights.values()), 1.0 - negated, inf
