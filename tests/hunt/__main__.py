"""`make hunt SECONDS=600`: draws problems and tables of buffers, and stops at the first claim that is false.

With LARGE=1: graphs of 16 to 400 ops, with budgets at the edge.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from random import randrange
from time import monotonic

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from remat_cli.core.problem import Problem
from remat_cli.planners import OFFLOADING
from tests.hunt.claims import QUICK, check_by_each_other, check_by_oracle, planners
from tests.hunt.edges import check_edge, edge
from tests.hunt.problems import LARGER, SMALL, TINY, moved_problems, problems_with_link, varied_problems
from tests.hunt.tables import check_above_load, check_table

# Problems that are drawn from one seed. A claim that is false is made small with these in hand.
_BATCH = 10
# Tables of buffers from one seed.
_TABLES = 2
# Seconds for a planner on a graph that is too large for the oracle.
_SECONDS = 1.0


def hunt(seconds: float, first_seed: int) -> int:
    """Draw and check until the time is up; return the exit code."""
    end = monotonic() + seconds
    tried: Counter[str] = Counter()
    number = first_seed
    while monotonic() < end:
        for kind, drawn, check in (
            ("small", varied_problems(SMALL), check_by_oracle),
            ("offloading", problems_with_link(TINY), check_by_oracle),
            ("moving", moved_problems(), lambda problem: check_by_oracle(problem, OFFLOADING)),
            (
                "larger",
                varied_problems(LARGER) | problems_with_link(LARGER),
                lambda problem: check_by_each_other(problem, QUICK, time_limit=_SECONDS),
            ),
        ):
            _draw(number, kind, drawn, check, tried)
        _place(number, tried)
        number += 1
        if (number - first_seed) % 10 == 0:
            print(_described(tried), flush=True)
    print(f"nothing was found: {_described(tried)}; seeds {first_seed} to {number - 1}")
    return 0


def hunt_at_the_edge(seconds: float, first_seed: int) -> int:
    """Draw large graphs, with budgets at the edge, until the time is up; return the exit code."""
    end = monotonic() + seconds
    verdicts: Counter[str] = Counter()
    number = first_seed
    while monotonic() < end:
        try:
            verdicts += check_edge(edge(number, _SECONDS), _SECONDS)
        except Exception:
            print(f"a false claim, or a fault: seed {number}, LARGE=1", file=sys.stderr)
            raise
        number += 1
        counted = ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.most_common())
        print(f"{number - first_seed:,} problems: {counted}", flush=True)
    print(f"nothing was found; seeds {first_seed} to {number - 1}")
    return 0


def _draw(
    number: int, kind: str, drawn: SearchStrategy[Problem], check: Callable[[Problem], object], tried: Counter[str]
) -> None:
    @seed(number)
    @settings(
        max_examples=_BATCH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(problem=drawn)
    def checked(problem: Problem) -> None:
        tried[kind] += 1
        check(problem)

    try:
        checked()
    except Exception:
        print(f"a false claim, or a fault: seed {number}, {kind} graphs", file=sys.stderr)
        raise


def _place(number: int, tried: Counter[str]) -> None:
    """Place tables of buffers drawn from a seed."""
    try:
        for seed_of_table in range(number * _TABLES, (number + 1) * _TABLES):
            tried["tables"] += 1
            check_table(seed_of_table)
        tried["above load"] += check_above_load(number)
    except Exception:
        print(f"a false claim, or a fault: seed {number}, tables of buffers", file=sys.stderr)
        raise


def _described(tried: Counter[str]) -> str:
    tiny = f"{tried['offloading']:,} with a link to the host"
    moving = f"{tried['moving']:,} that transfers decide"
    problems = f"{tried['small']:,} small problems, {tiny}, {moving}, {tried['larger']:,} larger ones"
    asked = f"{len(planners())}, as many, {len(OFFLOADING)}, and {len(QUICK)} planners each"
    tables = f"{tried['tables']:,} tables of buffers, {tried['above load']:,} that do not fit their load"
    return f"{problems}; {asked}; {tables}"


def main() -> None:
    """Read the call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, help="of the first problems; by default another one in each run")
    parser.add_argument("--large", action="store_true", help="graphs of 16 to 400 ops, with budgets at the edge")
    arguments = parser.parse_args()
    first_seed = randrange(10**9) if arguments.seed is None else arguments.seed
    print(f"seeds from {first_seed} on", flush=True)
    sys.exit((hunt_at_the_edge if arguments.large else hunt)(arguments.seconds, first_seed))


if __name__ == "__main__":
    main()
