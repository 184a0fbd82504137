"""An optimizer's state that waits on the host between updates.

The optimizer holds the host copies in `state`, where `state_dict` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from remat_cli.pytorch.memory.transfers import is_host_copy, offload, prefetch, wait
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.update.costs import can_wait


class HostedState:
    """Moves the state of one optimizer's parameters.

    Each copy has two halves, so that computing may go on in between. In between, the optimizer holds the old tensors.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._arriving: set[torch.Tensor] = set()
        self._moving: dict[torch.Tensor, dict[int, torch.Tensor]] = {}  # new tensors, by the identity of the old

    def prefetch(self, parameter: torch.Tensor) -> None:
        """Start copying a parameter's state to its device, as far as it is on the host."""
        waiting = [tensor for tensor in self._state(parameter) if is_on_host(tensor)]
        self._moving[parameter] = {id(tensor): prefetch(tensor, parameter.device) for tensor in waiting}
        self._arriving.add(parameter)

    def fetch(self, parameter: torch.Tensor) -> None:
        """Bring a parameter's state to its device, unless it is there."""
        if parameter not in self._arriving:
            self.prefetch(parameter)
        self.arrive(parameter)

    def arrive(self, parameter: torch.Tensor) -> None:
        """Let the optimizer hold the state on the device, if it is on its way there."""
        if parameter in self._arriving:
            self._arriving.discard(parameter)
            self._replace(parameter, wait)

    def offload(self, parameter: torch.Tensor) -> None:
        """Start copying a parameter's state to the host."""
        self.arrive(parameter)
        leaving = [tensor for tensor in self._state(parameter) if not is_on_host(tensor)]
        leaving = [tensor for tensor in leaving if can_wait(tensor) and tensor.device == parameter.device]
        self._moving[parameter] = {id(tensor): offload(tensor) for tensor in leaving}

    def release(self, parameter: torch.Tensor) -> None:
        """Let the optimizer hold the state on the host, and free the device's memory."""
        self._replace(parameter, lambda host, device: wait(device, host))

    def _replace(self, parameter: torch.Tensor, complete: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        moving = self._moving.pop(parameter, {})
        if not moving:
            return

        def moved(old: Any) -> Any:
            new = moving.get(id(old))
            if new is None:
                return old
            complete(old, new)
            return new

        self._optimizer.state[parameter] = pytree.tree_map(moved, dict(self._optimizer.state[parameter]))

    def _state(self, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
        if parameter in self._optimizer.state:
            for value in pytree.tree_leaves(dict(self._optimizer.state[parameter])):
                if isinstance(value, torch.Tensor):
                    yield value


def is_on_host(tensor: torch.Tensor) -> bool:
    """Return whether a part of an optimizer's state is a host copy."""
    return type(tensor) is torch.Tensor and tensor.dim() > 0 and is_host_copy(tensor.untyped_storage())
