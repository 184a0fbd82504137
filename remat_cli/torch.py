"""The way in for PyTorch users: `from remat_cli.torch import planned`."""

from __future__ import annotations

from remat_cli.formats.torch.step import Step
from remat_cli.runtime.torch.planned import planned

__all__ = ["Step", "planned"]
