"""Device profiles."""

from __future__ import annotations

from pathlib import Path

from remat_cli.config.document import checked, read_yaml
from remat_cli.config.shipped import shipped
from remat_cli.costs import Device


def load_device(name: str) -> Device:
    """Read a device profile: the name of one that comes with remat ("a100"), or the path of a YAML file.

    Raises:
        UsageError: there is no such profile, or a key or value in it is wrong.
    """
    return checked(Device, read_yaml(shipped(Path(name), "configs/devices")))
