"""The settings of a run: a config file, with the command line on top."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from remat_cli.config.document import checked, read_yaml, said_in
from remat_cli.config.graph_options import GraphOptions
from remat_cli.config.request import Request
from remat_cli.config.shipped import shipped
from remat_cli.settings import Said, over


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
    """The settings of a run, as far as they were given.

    Attributes:
        label: the name by which the user knows it.
        said: the settings that were given: which plan is wanted, and how the file becomes the graph that is planned.
        report: what the terminal report shows.
        sources: the config files that it comes from.
    """

    label: str = ""
    said: Said = field(default_factory=dict)
    report: ReportOptions = field(default_factory=ReportOptions)
    sources: tuple[Path, ...] = ()

    @cached_property
    def request(self) -> Request:
        """Which plan is wanted, defaults included."""
        return Request.of(self.said)

    @cached_property
    def graph(self) -> GraphOptions:
        """How the file becomes the graph that is planned, defaults included."""
        return GraphOptions.of(self.said)

    @property
    def files(self) -> tuple[Path, ...]:
        """The config files, and the files that they name."""
        return (*self.sources, *self.graph.files)

    def under(self, above: Said) -> RunConfig:
        """Return the run with other settings on top, which win."""
        return replace(self, said=over(self.said, above))


def load_config(path: Path) -> RunConfig:
    """Read a config file; a bare name that is no file here names one that comes with remat.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    source = shipped(path, "configs")
    document = read_yaml(source)
    said, more = said_in(document, Request, GraphOptions, more={"report": dict[str, Any]})
    return RunConfig(
        label=path.stem,
        said=said,
        report=checked(ReportOptions, document.section("report", more.get("report", {}))),
        sources=(source,),
    )
