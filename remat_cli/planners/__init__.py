"""Planners: one file (or folder) and one line in PLANNERS for each method."""

from __future__ import annotations

from collections.abc import Mapping

from remat_cli.core.problem import Planner
from remat_cli.planners.annealing.planner import Annealing
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.offload.planner import Offloading
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.published.acg.planner import ACG
from remat_cli.planners.published.checkmate.planner import Checkmate, CheckmateLP
from remat_cli.planners.published.lower_sets.chen import Chen
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP, ExactDP
from remat_cli.planners.published.lower_sets.exhaustive import Exhaustive
from remat_cli.planners.published.moccasin.planner import Moccasin
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.planners.shortest_path.planner import ShortestPath

PLANNERS: Mapping[str, type[Planner]] = {
    "auto": Auto,
    "keep_all": KeepAll,
    "approx_dp": ApproxDP,
    "exact_dp": ExactDP,
    "exhaustive": Exhaustive,
    "shortest_path": ShortestPath,
    "chen": Chen,
    "dtr": DTR,
    "checkmate": Checkmate,
    "checkmate_lp": CheckmateLP,
    "moccasin": Moccasin,
    "rotor": Rotor,
    "pofo": Pofo,
    "offload": Offloading,
    "acg": ACG,
    "min_cut": MinCut,
    "retention": Retention,
    "annealing": Annealing,
}

# Planners that move tensors to the host: those made for offloading, and those that can if asked.
OFFLOADERS = ("pofo", "offload")
OFFLOADING = ("auto", *OFFLOADERS)
