"""Device profiles and tables of measured times."""

from __future__ import annotations

from pathlib import Path

from remat_cli.config.document import checked, read_yaml
from remat_cli.config.shipped import shipped
from remat_cli.costs import Device
from remat_cli.errors import UsageError


def load_device(name: str) -> Device:
    """Read a device profile: the name of one that comes with remat ("a100"), or the path of a YAML file.

    Raises:
        UsageError: there is no such profile, or a key or value in it is wrong.
    """
    return checked(Device, read_yaml(shipped(Path(name), "configs/devices")))


def load_measurements(path: Path) -> dict[str, int]:
    """Read a table of measured times: a YAML or JSON file that maps names of ops, or types of ops, to nanoseconds.

    Raises:
        UsageError: the file is missing or malformed, or a time is no whole number, 0 or more.
    """
    document = read_yaml(path)
    for name, time in document.values.items():
        if type(time) is not int or time < 0:
            raise UsageError(
                f"{document.place((name,))}: {time!r} is not a whole number of nanoseconds", hint="write it like 812500"
            )
    return dict(document.values)
