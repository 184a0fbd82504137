"""The command line, called in this process."""

from tests.cli.conftest import remat

__all__ = ["remat"]
