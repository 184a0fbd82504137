"""The settings of a run: a config file, with the command line on top."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remat_cli.config.document import checked, read_yaml
from remat_cli.config.graph_options import GraphOptions
from remat_cli.config.request import Request, RequestKeys
from remat_cli.config.shipped import shipped


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
    """The settings of a run; None stands for what is left open.

    Attributes:
        label: the name by which the user knows it.
        request: which plan is wanted.
        graph: how the file becomes the graph that is planned.
        report: what the terminal report shows.
        sources: the config files that it comes from.
    """

    label: str = ""
    request: Request = field(default_factory=Request)
    graph: GraphOptions = field(default_factory=GraphOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    sources: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The config files, and the files that they name."""
        return (*self.sources, *self.graph.files)


@dataclass(frozen=True)
class _ConfigFile(RequestKeys, GraphOptions):
    """The keys of a config file, as YAML gives them."""

    report: dict[str, Any] = field(default_factory=dict)


def load_config(path: Path) -> RunConfig:
    """Read a config file; a bare name that is no file here names one that comes with remat.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    source = shipped(path, "configs")
    document = read_yaml(source)
    raw = checked(_ConfigFile, document)
    return RunConfig(
        label=path.stem,
        request=raw.request(document),
        graph=GraphOptions.of(raw),
        report=checked(ReportOptions, document.section("report", raw.report)),
        sources=(source,),
    )
