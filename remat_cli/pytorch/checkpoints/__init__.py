"""Plans in the words of other trainers: which modules to wrap in `torch.utils.checkpoint`, whole.

`memory` works out what a choice of modules does to a step, `choice` finds the one at the least extra time, `study` runs
it with torch's own checkpoints on tensors without data and has the judge replay what that run did, `words` writes it
as code and as settings of trainers, `captured` as a schedule of the captured step.
"""

from remat_cli.pytorch.checkpoints.study import CheckpointPlanning, Wrapped, plan_checkpoints
from remat_cli.pytorch.checkpoints.words import TrainerSetting

__all__ = ["CheckpointPlanning", "TrainerSetting", "Wrapped", "plan_checkpoints"]
