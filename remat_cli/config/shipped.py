"""Configs and device profiles that come with remat, by name."""

from __future__ import annotations

from difflib import get_close_matches
from os.path import exists, isfile  # unlike those of Path, false for a name that no file can have
from pathlib import Path

from remat_cli.config.document import checked, read_yaml
from remat_cli.core.link import Duplex
from remat_cli.costs import Device
from remat_cli.errors import UsageError


def file_or_shipped(folder: Path, name: str) -> Path:
    """Return the file of a name in `folder`, or else the bare name.

    A bare name stands for a shipped file.
    """
    path = folder / name
    return path if isfile(path) else Path(name)


def shipped_names(folder: str) -> list[str]:
    """Return the names of shipped files in a folder.

    The folder is "configs" or "configs/devices".
    """
    return sorted(path.stem for path in _shipped_folder(folder).glob("*.yaml"))


def _shipped_folder(folder: str) -> Path:
    # In an installed copy, configs/ lies inside the package; in a checkout it stands at the top of the tree.
    package = Path(__file__).parents[1]
    installed = package / folder
    return installed if installed.is_dir() else package.parent / folder


def shipped(path: Path, folder: str) -> Path:
    """Return a file by its path, or a shipped file by its bare name."""
    if exists(path) or len(path.parts) != 1:
        return path
    name = path.name.removesuffix(".yaml")
    file = _shipped_folder(folder) / f"{name}.yaml"
    if isfile(file):
        return file
    names = shipped_names(folder)
    close = get_close_matches(path.stem, names, n=1)
    raise UsageError(
        f"{path}: no such file, and no file of that name comes with remat",
        hint=f"did you mean {close[0]!r}?" if close else f"name a file, or one of {', '.join(names)}",
    )


def load_device(name: str) -> Device:
    """Read a device profile by its shipped name or its path.

    "a100" is a shipped name.

    Raises:
        UsageError: there is no such profile, or a key or value in it is wrong.
    """
    source = shipped(Path(name), "configs/devices")
    document = read_yaml(source)
    if source == Path(name):
        return checked(Device, document)
    # A test holds the shipped profiles valid. Importing the checker takes longer than reading a graph.
    return Device(**{**document.values, "link_duplex": Duplex(document.values["link_duplex"])})
