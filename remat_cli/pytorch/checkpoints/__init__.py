"""Plans in the words of other trainers: what to wrap in `torch.utils.checkpoint`, and what that saves.

`memory` works out what a choice of modules does to a step, `choice` finds the one at the least extra time, `study` runs
it with torch's own checkpoints on tensors without data and has the judge replay what that run did; `policy_memory`,
`policy_choice` and `policies` do the same for selective checkpoints. `words` writes both as code and as settings of
trainers, `captured` whole modules as a schedule of the captured step.
"""

from remat_cli.pytorch.checkpoints.policies import ChosenPolicy, PolicyPlanning, plan_policy
from remat_cli.pytorch.checkpoints.study import CheckpointPlanning, Wrapped, plan_checkpoints
from remat_cli.pytorch.checkpoints.words import TrainerSetting, saved_turns

__all__ = [
    "CheckpointPlanning",
    "ChosenPolicy",
    "PolicyPlanning",
    "TrainerSetting",
    "Wrapped",
    "plan_checkpoints",
    "plan_policy",
    "saved_turns",
]
