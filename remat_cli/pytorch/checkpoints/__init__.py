"""Plans for other trainers: whole modules in `torch.utils.checkpoint`.

`memory` computes the memory of a step under a choice of modules, `choice` finds the choice of least extra time, `study`
runs it with torch's own checkpoints on tensors without data and has the judge replay this run, `words` writes it as
code and as settings of trainers, `captured` as a schedule of the captured step.
"""

from remat_cli.pytorch.checkpoints.study import CheckpointPlanning, Wrapped, plan_checkpoints
from remat_cli.pytorch.checkpoints.words import TrainerSetting

__all__ = ["CheckpointPlanning", "TrainerSetting", "Wrapped", "plan_checkpoints"]
