"""Planning: the main path, from a graph and a request to a verified plan, for every way in."""

from remat_cli.config import Request
from remat_cli.planning.first_plan import AnyPlan, FirstPlan
from remat_cli.planning.main_path import plan
from remat_cli.planning.one_graph import Planning, plan_again
from remat_cli.planning.overhead import exact_overhead, within_overhead
from remat_cli.planning.smallest_budget import SmallestBudget, at_budget
from remat_cli.planning.split_choice import LEAST_TRIAL, MOST_PARTS, SHARE_OF_TIME, SplitPlanning, plan_split, try_split

__all__ = [
    "LEAST_TRIAL",
    "MOST_PARTS",
    "SHARE_OF_TIME",
    "AnyPlan",
    "FirstPlan",
    "Planning",
    "Request",
    "SmallestBudget",
    "SplitPlanning",
    "at_budget",
    "exact_overhead",
    "plan",
    "plan_again",
    "plan_split",
    "try_split",
    "within_overhead",
]
