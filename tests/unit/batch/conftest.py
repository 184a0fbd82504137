"""The command line, for what only shows from there."""

from tests.cli.conftest import remat

__all__ = ["remat"]
