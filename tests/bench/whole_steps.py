"""Whole steps of PyTorch models: what they return, what they take, and how long they last, on one thread."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from remat_cli.pytorch.capture.regions import block_paths
from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.memory import peak_of


def seed() -> None:
    """Have numbers drawn from here on be the same ones each time."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def without_cache(model: nn.Module) -> None:
    """Have models of transformers make no cache of keys and values, which training does not read."""
    for part in model.modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False


def with_checkpoints(model: nn.Module) -> nn.Module:
    """Have a model keep of each block its inputs alone, by torch's checkpoints."""
    for path in block_paths(model):
        block: Any = model.get_submodule(path)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model


def loss_of(model: Any, inputs: Any) -> torch.Tensor:
    """Call a model; return its loss."""
    seed()
    returned = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    loss: torch.Tensor = returned if isinstance(returned, torch.Tensor) else returned["loss"]
    return loss


def step_of(model: nn.Module, inputs: Any, call: Any = None) -> list[torch.Tensor]:
    """Run a step; return loss and gradients.

    Args:
        model: whose gradients these are.
        inputs: of the model.
        call: is called in its place.
    """
    model.zero_grad(set_to_none=True)
    loss = loss_of(model if call is None else call, inputs)
    torch.autograd.backward([loss])
    return [loss.detach(), *(part.grad.clone() for part in model.parameters() if part.grad is not None)]


def peak_of_step(model: nn.Module, inputs: Any, call: Any = None) -> int:
    """Run a step; return the most bytes in memory at one time, parameters, buffers and inputs among them."""
    model.zero_grad(set_to_none=True)
    values = (*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs))
    there = bytes_in(value for value in values if isinstance(value, torch.Tensor))
    return there + peak_of(lambda: torch.autograd.backward([loss_of(model if call is None else call, inputs)]), "cpu")


def seconds_of_step(model: nn.Module, inputs: Any, call: Any = None, *, steps: int = 5) -> float:
    """Return the least CPU time of some steps."""
    times = []
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        began = process_time()
        torch.autograd.backward([loss_of(model if call is None else call, inputs)])
        times.append(process_time() - began)
    return min(times)
