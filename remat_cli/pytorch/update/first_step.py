"""The first step of a training loop, watched for what needs gradients after the backward pass."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.autograd import makers_of_gradients
from remat_cli.pytorch.unstable.modules import hooks_on_gradients
from remat_cli.pytorch.unstable.tensors import version_of
from remat_cli.pytorch.update.gradients import WatchedGradient
from remat_cli.pytorch.update.updates import Updates

# The ops of `zero_grad(set_to_none=False)`.
_OF_ZERO_GRAD = ("zero_", "_foreach_zero_", "requires_grad_", "detach_")


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
        self._watched: list[weakref.ref[torch.Tensor]] = []
        # Gradients that the planned model has made, and their versions, as others may be added in place.
        self._made: dict[torch.Tensor, list[tuple[weakref.ref[torch.Tensor], int]]] = {}

    def begin(self) -> None:
        """Watch the gradients of all parameters until the call after the optimizer's step."""
        if self.is_over or self._hooks:
            return
        self._parameters = [parameter for parameter in self._updates.costs if parameter.requires_grad]
        if any(map(hooks_on_gradients, self._parameters)):
            self.note("hooks are registered on gradients")
        for parameter in self._parameters:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._arrived))  # type: ignore[no-untyped-call]
        self._updates.around_next_step = self._pause, self._watch

    def follow(self, results: Any) -> None:
        """Follow the gradients that a model planned as a whole makes, to see who adds to them.

        Args:
            results: what the model returned.
        """
        if self.is_over or not self._hooks:
            return
        known = set(self._parameters)
        for node, leaves in makers_of_gradients(pytree.tree_leaves(results)):
            if own := {place: leaf for place, leaf in leaves.items() if leaf in known}:
                self._hooks.append(node.register_hook(partial(self._were_made, own)))
        for parameter in self._parameters:
            self._hooks.append(parameter.register_hook(partial(self._arrives, parameter)))  # type: ignore[no-untyped-call]

    def _were_made(self, leaves: Mapping[int, torch.Tensor], gradients: Sequence[torch.Tensor | None], _: Any) -> None:
        for place, leaf in leaves.items():
            if (gradient := gradients[place]) is not None:
                self._made.setdefault(leaf, []).append((weakref.ref(gradient), version_of(gradient)))

    def _arrives(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        match self._made.pop(parameter, ()):
            case ():  # of a parameter that the model does not use
                return
            case [(made, version)] if made() is gradient and version_of(gradient) == version:
                return
        self.note("parameters are used outside of the planned model, too")

    def _arrived(self, parameter: torch.Tensor) -> None:
        if not self._passes:
            self._options = self._updates.options()
        self._passes[parameter] += 1
        if self._passes[parameter] > 1:
            self.note("several backward passes come before a step")
        self._watch_one(parameter)

    def _watch_one(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            WatchedGradient.watch(parameter.grad, self._was_read)
            self._watched.append(weakref.ref(parameter.grad))

    def _was_read(self, op: str) -> None:
        if not self.is_over:
            self.note(f"gradients are read, or changed, before the step ({op})")
        elif op not in _OF_ZERO_GRAD:
            self.note(f"gradients are read after the step ({op})")

    def note(self, obstacle: str) -> None:
        """Note what stands in the way."""
        if obstacle not in self.obstacles:
            self.obstacles.append(obstacle)

    def _pause(self) -> None:
        if self._passes and self._updates.changed_option(self._options):
            self.note("options of the optimizer change between backward pass and step")
        self.is_over = bool(self._passes)
        self.end()

    def _watch(self) -> None:
        if self.is_over:
            for parameter in self._updates.costs:
                self._watch_one(parameter)

    def end(self) -> None:
        """Leave gradients as they are."""
        for hook in self._hooks:
            hook.remove()
        for watched in self._watched:
            WatchedGradient.leave(watched())
        self._hooks.clear()
        self._watched.clear()
        self._made.clear()
        self._parameters = ()
