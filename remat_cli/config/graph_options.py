"""Options of reading a graph from a file.

Each option is declared once: here, or with the options of readers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from remat_cli.config.measurements import load_measurements
from remat_cli.config.shipped import file_or_shipped, load_device, shipped_names
from remat_cli.core.link import Duplex
from remat_cli.costs import COST_MODELS
from remat_cli.errors import UsageError
from remat_cli.formats import ReadOptions
from remat_cli.formats.input_values import is_file_name
from remat_cli.settings import Said, Setting, declared, in_json, setting
from remat_cli.training import OPTIMIZERS, Kernels
from remat_cli.units import parse_rate

# Cost models by name; "given" stands for the file's own times, which need no model.
GIVEN_COSTS = "given"
_FEWEST_RANKS = 2


def _ranks(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{text!r} is no number of ranks", hint="write it like 8")
    return int(text)


@dataclass(frozen=True)
class GraphOptions(ReadOptions):
    """Options of reading a graph from a file.

    None leaves the choice to the kind of file.

    The fields are options of the command line and keys of a config file.

    Attributes:
        optimizer: optimizer whose state is resident, if the file marks parameters (ONNX, PyTorch). By default sgd: no
            state.
        kernels: groups of nodes that training runs in one kernel. By default those that an exporter split.
        update: the optimizer's update of each parameter is an op of the plan; parameters and state are residents.
        update_after_backward: no update runs before all gradients are there.
        accumulate: a PyTorch step adds to earlier gradients; otherwise it allocates them.
        ranks: number of ranks; parameters, gradients and optimizer state are sharded over them, as FSDP does.
        cost_model: source of the ops' times. By default roofline for ONNX, otherwise the times in the file.
        device: profile for the roofline model, and for the link to the host.
        measurements: file of measured times and workspace of ops.
        link_bandwidth: bandwidth of the link to the host, in each direction if the link is full duplex; by default the
            device profile's.
        link_duplex: whether transfers in both directions run at the same time; by default the device profile's, or half
            duplex.
    """

    optimizer: str | None = setting(None, "Whose state stays in memory.", choices=tuple(OPTIMIZERS))
    kernels: Kernels | None = setting(
        None,
        "What training runs in one kernel: nodes as written, what was one op before the export, or all it can.",
        choices=tuple(map(str, Kernels)),
        parse=Kernels,
    )
    update: bool = setting(False, "Plan the optimizer's update, too: gradients are freed by it.")
    update_after_backward: bool = setting(
        False, "Update only when all gradients are there, as clipping by their norm needs it."
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

    def check(self) -> None:
        """Check files and values without a graph, before it is read.

        Raises:
            UsageError: the device profile or the measurements cannot be read, or the link's bandwidth or the number of
                ranks is wrong.
        """
        if self.device is not None:
            load_device(self.device)
        if self.measurements is not None:
            load_measurements(Path(self.measurements))
        if self.link_bandwidth is not None and parse_rate(said := str(self.link_bandwidth)) <= 0:
            raise UsageError(f"a link bandwidth of {said!r}: it must be above 0", hint="write it like 12GB/s")
        if self.update_after_backward and not self.update:
            raise UsageError(
                (Setting("update_after_backward"), " has no meaning without ", Setting("update")), hint="give both"
            )
        if self.ranks is not None and self.ranks < _FEWEST_RANKS:
            raise UsageError(
                (Setting("ranks", self.ranks), ": there is nothing to shard"),
                hint="give 2 ranks or more, or leave it out",
            )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the options name.

        Among them may be the bare name of a shipped device profile.
        """
        named = [getattr(self, item.name) for item in fields(self) if declared(item).names_file]
        named += [value for value in self.values.values() if is_file_name(value)]
        return tuple(Path(name) for name in named if name is not None)

    @property
    def recorded(self) -> dict[str, object]:
        """The options that a schedule file records, without the mode.

        The user's files are left out: they lie elsewhere for readers of the schedule. Options that change no graph are
        left out, too.
        """
        said = self.not_default
        for item in fields(self):
            is_of_user = declared(item).names_file and said.get(item.name) not in shipped_names("configs/devices")
            if item.name == "mode" or is_of_user or not declared(item).changes_graph:
                said.pop(item.name, None)
        if "values" in said:
            said["values"] = {name: value for name, value in self.values.items() if not is_file_name(value)}
        return {name: in_json(value) for name, value in said.items() if value != {}}


def with_paths_from(said: Said, folder: Path) -> dict[str, Any]:
    """Make file paths in settings relative to `folder`.

    The file with these settings lies there.
    """
    files = {item.name: declared(item) for item in fields(GraphOptions) if declared(item).names_file}
    if "values" in said:
        values = said["values"].items()
        said = {**said, "values": {key: str(folder / one) if is_file_name(one) else one for key, one in values}}
    return {
        name: value
        if name not in files
        else str(folder / value if files[name].metavar == "FILE" else file_or_shipped(folder, value))
        for name, value in said.items()
    }
