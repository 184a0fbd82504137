"""Planners: one file (or folder) and one line in PLANNERS for each method."""

from __future__ import annotations

from collections.abc import Mapping

from remat_cli.planners.acg import ACG
from remat_cli.planners.approx_dp import ApproxDP
from remat_cli.planners.chen import Chen
from remat_cli.planners.dtr import DTR
from remat_cli.planners.exact_dp import ExactDP
from remat_cli.planners.exhaustive import Exhaustive
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planners.pofo import Pofo
from remat_cli.planners.retention import Retention
from remat_cli.planners.rotor import Rotor
from remat_cli.problem import Planner

PLANNERS: Mapping[str, type[Planner]] = {
    "keep_all": KeepAll,
    "approx_dp": ApproxDP,
    "exact_dp": ExactDP,
    "exhaustive": Exhaustive,
    "chen": Chen,
    "dtr": DTR,
    "rotor": Rotor,
    "pofo": Pofo,
    "acg": ACG,
    "retention": Retention,
}
