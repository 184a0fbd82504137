"""The settings of a run: a config file, then the command line."""

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
    """Options of the terminal report.

    Attributes:
        timeline: draw memory over time.
        largest: number of tensors listed at the peak.
    """

    timeline: bool = True
    largest: int = 8


@dataclass(frozen=True)
class RunConfig:
    """The given settings of a run.

    Attributes:
        label: the user's name for the run.
        said: given settings of the request, and of reading the graph.
        report: options of the terminal report.
        sources: config files of the settings.
    """

    label: str = ""
    said: Said = field(default_factory=dict)
    report: ReportOptions = field(default_factory=ReportOptions)
    sources: tuple[Path, ...] = ()

    @cached_property
    def request(self) -> Request:
        """The request for a plan, with defaults."""
        return Request.of(self.said)

    @cached_property
    def graph(self) -> GraphOptions:
        """The options of reading the graph, with defaults."""
        return GraphOptions.of(self.said)

    @property
    def files(self) -> tuple[Path, ...]:
        """The config files, and the files that the settings name."""
        return (*self.sources, *self.graph.files)

    def under(self, above: Said) -> RunConfig:
        """Return the run with other settings on top; these win."""
        return replace(self, said=over(self.said, above))


def load_config(path: Path) -> RunConfig:
    """Read a config file, or a shipped config by its bare name.

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
