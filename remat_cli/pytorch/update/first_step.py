"""The first step of a training loop, watched for what needs gradients between backward pass and optimizer's step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from remat_cli.pytorch.unstable.modules import hooks_on_gradients
from remat_cli.pytorch.update.gradients import WatchedGradient
from remat_cli.pytorch.update.updates import Updates


class FirstStep:
    """Sees whether updates may run in the backward pass.

    Attributes:
        obstacles: what stands in the way, in words.
        is_over: the optimizer's step has come.
    """

    def __init__(self, updates: Updates) -> None:
        self.obstacles: list[str] = []
        self.is_over = False
        self._updates = updates
        self._parameters: Sequence[torch.Tensor] = ()
        self._passes: Counter[torch.Tensor] = Counter()
        self._options: list[dict[str, Any]] = []
        self._hooks: list[Any] = []

    def begin(self) -> None:
        """Watch the gradients of all parameters until the optimizer's step."""
        if self.is_over or self._hooks:
            return
        self._parameters = [parameter for parameter in self._updates.costs if parameter.requires_grad]
        if any(map(hooks_on_gradients, self._parameters)):
            self.note("hooks are registered on gradients")
        for parameter in self._parameters:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._arrived))  # type: ignore[no-untyped-call]
        self._updates.before_next_step = self._end

    def _arrived(self, parameter: torch.Tensor) -> None:
        if not self._passes:
            self._options = self._updates.options()
        self._passes[parameter] += 1
        if self._passes[parameter] > 1:
            self.note("several backward passes come before a step")
        if parameter.grad is not None:
            WatchedGradient.watch(parameter.grad, self._was_read)

    def _was_read(self, op: str) -> None:
        self.note(f"gradients are read, or changed, before the step ({op})")

    def note(self, obstacle: str) -> None:
        """Note what stands in the way."""
        if obstacle not in self.obstacles:
            self.obstacles.append(obstacle)

    def _end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for parameter in self._parameters:
            WatchedGradient.leave(parameter.grad)
        if self._passes and self._updates.changed_option(self._options):
            self.note("options of the optimizer change between backward pass and step")
        self._hooks.clear()
        self._parameters = ()
        self.is_over = bool(self._passes)
