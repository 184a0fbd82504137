"""Packages with planners, as an installation leaves them: a module, and beside it what announces its entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# A planner that another package may have: the plain run, or nothing.
PLAIN = '''
from dataclasses import dataclass

from remat_cli.core.problem import PlanResult, Status
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.sequence import RematSequence


@dataclass(frozen=True)
class Plain:
    """Runs everything once.

    Source: a test.
    Takes: any graph.
    Searches: the plain run.
    Proves: nothing.
    Complexity: linear.

    Attributes:
        candidates: how many plans are tried.
    """

    candidates: int = 1

    def plan(self, problem, observe):
        incumbent = Incumbent(problem, observe)
        for _ in range(self.candidates):
            incumbent.offer(RematSequence.of_names(problem.graph, [op.name for op in problem.graph.ops]))
        return incumbent.result()
'''


def install(site: Path, package: str, source: str, planners: Mapping[str, str]) -> None:
    """Install a package of one module with planners, by the names of their classes, into a folder of packages."""
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(source, encoding="utf-8")
    announced = site / f"{module}-1.2.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n", encoding="utf-8")
    entries = "".join(f"{name} = {module}:{value}\n" for name, value in planners.items())
    (announced / "entry_points.txt").write_text(f"[remat.planners]\n{entries}", encoding="utf-8")
