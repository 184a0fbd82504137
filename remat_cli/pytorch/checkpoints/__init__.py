"""Plans in the words of other trainers: what to wrap in `torch.utils.checkpoint`, and what that saves.

A checkpoint of a module is a policy that saves nothing. `candidates` finds the modules that may be wrapped,
`policy_memory` works out what a policy does to a step, `policy_choice` finds the one at the least extra time, `study`
runs it with torch's own checkpoints on tensors without data and has the judge replay what that run did; `policies` does
so for selective checkpoints. `words` writes both as code and as settings of trainers, `captured` whole modules as a
schedule of the captured step.
"""

from remat_cli.pytorch.checkpoints.policies import PolicyPlanning, plan_policy
from remat_cli.pytorch.checkpoints.study import CheckpointPlanning, ChosenPolicy, plan_checkpoints
from remat_cli.pytorch.checkpoints.words import TrainerSetting, saved_turns

__all__ = [
    "CheckpointPlanning",
    "ChosenPolicy",
    "PolicyPlanning",
    "TrainerSetting",
    "plan_checkpoints",
    "plan_policy",
    "saved_turns",
]
