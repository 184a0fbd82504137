"""The import for PyTorch users: `from remat_cli.torch import planned`."""

from __future__ import annotations

try:
    from remat_cli.pytorch.run.pipeline import PlannedPipeline
    from remat_cli.pytorch.run.planned import plan_of, planned
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("remat_cli.torch needs torch: pip install 'remat[torch]'", name="torch") from None

from remat_cli.pytorch.capture.step import Step

__all__ = ["PlannedPipeline", "Step", "plan_of", "planned"]
