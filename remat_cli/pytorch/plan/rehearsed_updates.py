"""The memory of a rehearsed step in which parameters are updated as soon as their gradients are final.

The rehearsal itself keeps all gradients to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from remat_cli.pytorch.unstable.tensors import storage_key

At = TypeVar("At")  # a time in a step


class RehearsedUpdates(Generic[At]):
    """Follows gradients from when they are final.

    A block as planned makes all gradients of its parameters at once, at the end of its backward pass.

    Attributes:
        levels: peak at each moment without the gradients that updates have freed by then, in bytes.
        parameters: parameters that are updated at a moment, beside which their updates take memory.
    """

    def __init__(self) -> None:
        self.levels: dict[At, int] = {}
        self.parameters: dict[At, list[torch.Tensor]] = {}
        self._gone = 0
        self._final: dict[int, int] = {}  # bytes of gradients that are final and not yet gone, by storage
        self._updated: list[torch.Tensor] = []  # their parameters

    @contextmanager
    def following(self, parameters: Sequence[torch.Tensor], arrived: Callable[[], None]) -> Iterator[None]:
        """Follow the gradients of parameters.

        Args:
            parameters: the parameters.
            arrived: called after each gradient.
        """

        def hook_of(parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
            def hook(gradient: torch.Tensor) -> None:
                if not gradient.is_sparse:  # which has no storage of its own
                    self._final[storage_key(gradient)] = gradient.untyped_storage().nbytes()
                self._updated.append(parameter)
                arrived()

            return hook

        hooks = []
        for parameter in parameters:
            hooks.append(parameter.register_hook(hook_of(parameter)))  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def run(self, moment: At, level: int) -> None:
        """Run the updates of all final gradients.

        Args:
            moment: the moment.
            level: bytes in memory with all gradients so far.
        """
        if self._updated:
            self.note(moment, level)
            self.parameters.setdefault(moment, []).extend(self._updated)
            self._gone += sum(self._final.values())
            self._final, self._updated = {}, []

    def note(self, moment: At, level: int) -> None:
        """Note the bytes in memory with all gradients so far."""
        self.levels[moment] = max(self.levels.get(moment, 0), level - self._gone)

    def levels_with(self, needed_bytes: Callable[[torch.Tensor], int]) -> dict[At, int]:
        """Return the peak at each moment with the memory of updates.

        Args:
            needed_bytes: returns the bytes that a parameter's update takes.
        """
        return {
            moment: level + max(map(needed_bytes, self.parameters.get(moment, ())), default=0)
            for moment, level in self.levels.items()
        }
