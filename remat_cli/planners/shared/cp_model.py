"""CP-SAT's models, imported without pandas.

Importing pandas takes longer than all the rest of ortools. ortools uses it for a part of its interface that no code
here uses; the first use of that part imports pandas.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _LatePandas(ModuleType):
    """A stand-in for pandas within ortools that imports pandas at first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("pandas"), name)


def _import_without_pandas() -> None:
    stand_in = _LatePandas("pandas")
    # Annotations use these two names during the import; later uses import pandas.
    names = {"Index": object, "Series": type("Series", (), {})}
    stand_in.__dict__.update(names)
    sys.modules["pandas"] = stand_in
    try:
        import_module("ortools.sat.python.cp_model")
    finally:
        del sys.modules["pandas"]
    for name in names:
        del stand_in.__dict__[name]


if sys.modules.keys().isdisjoint(("pandas", "ortools.sat.python.cp_model")):
    _import_without_pandas()

from ortools.sat.python.cp_model import (  # noqa: E402
    FEASIBLE,
    INFEASIBLE,
    MODEL_INVALID,
    OPTIMAL,
    UNKNOWN,
    BoundedLinearExpression,
    CpModel,
    CpSolver,
    CpSolverSolutionCallback,
    Domain,
    IntervalVar,
    IntVar,
    LinearExpr,
    LiteralT,
)

__all__ = [
    "FEASIBLE",
    "INFEASIBLE",
    "MODEL_INVALID",
    "OPTIMAL",
    "UNKNOWN",
    "BoundedLinearExpression",
    "CpModel",
    "CpSolver",
    "CpSolverSolutionCallback",
    "Domain",
    "IntVar",
    "IntervalVar",
    "LinearExpr",
    "LiteralT",
]
