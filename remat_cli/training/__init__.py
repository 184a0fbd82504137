"""Training graphs, derived from forward graphs.

`annotate_saves` marks the tensors that each backward op will read, by the file's operators. `training_graph` derives
the training graph from these marks. A native file has the marks, too.
"""

from remat_cli.training.annotate import annotate_saves, trainable_parameters
from remat_cli.training.derive import ACCUMULATION_TYPE, LOSS_TYPE, training_graph, training_step
from remat_cli.training.kept import KeptForBackward, KeptOfModule, kept_by_module, kept_for_backward
from remat_cli.training.kernels import FusedGraph, Kernels, with_kernels
from remat_cli.training.resident import OPTIMIZERS, training_resident_bytes
from remat_cli.training.shards import ShardedBlock, sharded_blocks, with_gathers, with_parameters, with_step_gathers
from remat_cli.training.update import UPDATE_TYPE, Update, updates_by, with_update

__all__ = [
    "ACCUMULATION_TYPE",
    "LOSS_TYPE",
    "OPTIMIZERS",
    "UPDATE_TYPE",
    "FusedGraph",
    "KeptForBackward",
    "KeptOfModule",
    "Kernels",
    "ShardedBlock",
    "Update",
    "annotate_saves",
    "kept_by_module",
    "kept_for_backward",
    "sharded_blocks",
    "trainable_parameters",
    "training_graph",
    "training_resident_bytes",
    "training_step",
    "updates_by",
    "with_gathers",
    "with_kernels",
    "with_parameters",
    "with_step_gathers",
    "with_update",
]
