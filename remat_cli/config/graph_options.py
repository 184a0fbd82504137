"""Options of how a file becomes the graph that is planned, each declared once: here, or with those of readers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from remat_cli.config.shipped import beside, shipped_names
from remat_cli.core.link import Duplex
from remat_cli.costs import COST_MODELS
from remat_cli.errors import UsageError
from remat_cli.formats import ReadOptions
from remat_cli.formats.input_values import is_file_name
from remat_cli.settings import Said, declared, in_json, setting
from remat_cli.training import OPTIMIZERS, Kernels

# Cost models by name, and the file's own times, which need no model.
GIVEN_COSTS = "given"


def _ranks(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{text!r} is no number of ranks", hint="write it like 8")
    return int(text)


@dataclass(frozen=True)
class GraphOptions(ReadOptions):
    """How a file becomes the graph that is planned; None leaves the choice to what the file is.

    The fields are at once the options of the command line and the keys of a config file.

    Attributes:
        optimizer: its state is resident, if the file tells parameters apart (ONNX, PyTorch). By default sgd: no state.
        kernels: which groups of nodes training runs in one kernel. By default those that an exporter took apart.
        accumulate: a PyTorch step adds to gradients from before; else it makes them.
        ranks: over so many, parameters, gradients and optimizer state are sharded, as FSDP does.
        cost_model: what gives ops their time. By default roofline for ONNX, else the times in the file.
        device: profile for the roofline model, and for the link to the host.
        measurements: what was measured of ops: times for the measured model, and workspace.
        link_bandwidth: of the link to the host, each way if it is full duplex; by default the device profile's.
        link_duplex: whether transfers to the host and back run at the same time; by default as the device profile says,
            and half duplex without one.
    """

    optimizer: str | None = setting(None, "Whose state stays in memory.", choices=tuple(OPTIMIZERS))
    kernels: Kernels | None = setting(
        None,
        "What training runs in one kernel: nodes as written, what was one op before the export, or all it can.",
        choices=tuple(map(str, Kernels)),
        parse=Kernels,
    )
    accumulate: bool = setting(False, "A PyTorch step adds to gradients that are there before.")
    ranks: int | None = setting(None, "Shard parameters over so many ranks, as FSDP.", metavar="N", parse=_ranks)
    cost_model: str | None = setting(None, "What gives each op its time.", choices=(GIVEN_COSTS, *COST_MODELS))
    device: str | None = setting(None, "Device profile, such as a100, or a YAML file.", metavar="NAME|FILE")
    measurements: str | None = setting(
        None, "What 'remat measure' wrote, or nanoseconds by op or type.", metavar="FILE"
    )
    link_bandwidth: str | float | None = setting(None, "Of the link to the host, such as 12GB/s.", metavar="RATE")
    link_duplex: Duplex | None = setting(
        None,
        "Both ways share the link to the host, or each has that bandwidth. [default: the device's, else half]",
        choices=tuple(map(str, Duplex)),
        parse=Duplex,
    )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are named; a device may also be the name of one that comes with remat."""
        named = [getattr(self, item.name) for item in fields(self) if declared(item).names_file]
        named += [value for value in self.values.values() if is_file_name(value)]
        return tuple(Path(name) for name in named if name is not None)

    @property
    def recorded(self) -> dict[str, object]:
        """The options that a schedule file records of how its graph was read, beside the mode.

        Files of the user are left out, as they lie elsewhere for whoever reads the schedule; so is what changes no
        graph.
        """
        said = self.not_default
        for item in fields(self):
            is_of_user = declared(item).names_file and said.get(item.name) not in shipped_names("configs/devices")
            if item.name == "mode" or is_of_user or not declared(item).changes_graph:
                said.pop(item.name, None)
        if "values" in said:
            said["values"] = {name: value for name, value in self.values.items() if not is_file_name(value)}
        return {name: in_json(value) for name, value in said.items() if value != {}}


def beside_file(said: Said, folder: Path) -> dict[str, Any]:
    """Make the file paths in settings relative to `folder`, where the file with these settings lies."""
    files = {item.name: declared(item) for item in fields(GraphOptions) if declared(item).names_file}
    if "values" in said:
        values = said["values"].items()
        said = {**said, "values": {key: str(folder / one) if is_file_name(one) else one for key, one in values}}
    return {
        name: value
        if name not in files
        else str(folder / value if files[name].metavar == "FILE" else beside(folder, value))
        for name, value in said.items()
    }
