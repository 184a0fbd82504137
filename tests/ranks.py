"""Two processes that train together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def train_on_two_ranks(train: Callable[[int, Path], None], folder: Path) -> None:
    """Run a function on two ranks of gloo.

    Args:
        train: takes the rank and the folder; importable by its name, as each rank is a new process.
        folder: an empty folder, in which the ranks meet and leave what the test reads.
    """
    torch.multiprocessing.spawn(_on_a_rank, (train, folder), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]


def _on_a_rank(rank: int, train: Callable[[int, Path], None], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    train(rank, folder)
    dist.barrier()
    # DistributedDataParallel holds Python's lock as it is freed, and waits for a thread of gloo that may wait for it.
    os._exit(0)
