"""The settings of a run: a config file, on top of which the command line puts more."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from remat_cli.config.document import checked, placed, read_yaml
from remat_cli.config.graph_options import GraphOptions
from remat_cli.config.planner_choice import PlannerChoice, planner_section
from remat_cli.config.shipped import shipped
from remat_cli.units import BudgetSpec, parse_budget, parse_share


@dataclass(frozen=True)
class ReportOptions:
    """What the terminal report shows.

    Attributes:
        timeline: draw memory over time.
        largest: how many tensors at the peak are listed.
    """

    timeline: bool = True
    largest: int = 8


@dataclass(frozen=True)
class RunConfig:
    """What a run is asked for; None where nothing was said.

    Attributes:
        label: the name by which the user knows it.
        planner: with its options.
        budget: the budget.
        max_overhead: plans of more overhead are not taken.
        graph: how the file becomes the graph that is planned.
        report: what the terminal report shows.
        sources: the config files that said it.
    """

    label: str = ""
    planner: PlannerChoice | None = None
    budget: BudgetSpec | None = None
    max_overhead: Fraction | None = None
    graph: GraphOptions = field(default_factory=GraphOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    sources: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that said it, and those that it names."""
        return (*self.sources, *self.graph.files)


@dataclass(frozen=True)
class _ConfigFile(GraphOptions):
    """The keys of a config file, as YAML gives them."""

    planner: str | dict[str, Any] | None = None
    budget: str | int | None = None
    max_overhead: str | float | None = None
    report: dict[str, Any] = field(default_factory=dict)


def load_config(path: Path) -> RunConfig:
    """Read a config file; a name without a folder that is no file here means one of those that come with remat.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    source = shipped(path, "configs")
    document = read_yaml(source)
    raw = checked(_ConfigFile, document)
    budget, overhead = raw.budget, raw.max_overhead
    return RunConfig(
        label=path.stem,
        planner=planner_section(raw.planner, document),
        budget=None if budget is None else placed(document, ("budget",), lambda: parse_budget(str(budget))),
        max_overhead=None
        if overhead is None
        else placed(document, ("max_overhead",), lambda: parse_share(str(overhead))),
        graph=GraphOptions.of(raw),
        report=checked(ReportOptions, document.section("report", raw.report)),
        sources=(source,),
    )
