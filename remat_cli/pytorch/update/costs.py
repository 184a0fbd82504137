"""The memory of an optimizer's update, measured by parameter on tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.capture.live_storages import LiveStorages
from remat_cli.pytorch.capture.optimizer import AnyValues, dataless_twin
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import as_outside_of_capture
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.pytorch.update.partial_steps import PartialSteps, parameters_in


@dataclass(frozen=True)
class UpdateCost:
    """The memory of one parameter's update, in bytes.

    Attributes:
        state_bytes: state that the optimizer keeps of it on its device.
        movable_bytes: of these, tensors that may wait on the host.
        temporary_bytes: what the update takes beside parameter, gradient and state.
    """

    state_bytes: int
    movable_bytes: int
    temporary_bytes: int


def update_costs(optimizer: torch.optim.Optimizer) -> Mapping[torch.Tensor, UpdateCost]:
    """Return the memory of the update of each trained parameter.

    Raises:
        UsageError: the optimizer's step does not run without data.
    """
    try:
        with as_outside_of_capture():
            return _costs(optimizer)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise UsageError(
            f"the memory of {type(optimizer).__name__}'s update cannot be told: {type(error).__name__}: {lines[0]}",
            hint="leave update out",
        ) from error


def _costs(optimizer: torch.optim.Optimizer) -> Mapping[torch.Tensor, UpdateCost]:
    twin = dataless_twin(optimizer)
    for group, original in zip(twin.param_groups, optimizer.param_groups, strict=True):
        if "foreach" in group:
            group["foreach"] = _takes_all_at_once(original)
    steps, known = PartialSteps(twin), dict[object, UpdateCost]()
    costs: dict[torch.Tensor, UpdateCost] = {}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for (number, parameter), (_, other) in zip(parameters_in(optimizer), parameters_in(twin), strict=True):
            if other.grad is None:
                continue
            kind = number, other.dtype, other.shape, other.stride()
            if kind not in known:
                is_fused = bool(optimizer.param_groups[number].get("fused"))
                known[kind] = _cost(steps, number, other, is_fused=is_fused)
            costs[parameter] = known[kind]
    return costs


def _takes_all_at_once(group: Mapping[str, Any]) -> bool:
    """Return whether torch updates all parameters of a group by the same kernels."""
    if group["foreach"] is not None or group.get("fused"):
        return bool(group["foreach"])
    return all(parameter.device.type == "cuda" for parameter in group["params"])


def _cost(steps: PartialSteps, number: int, parameter: torch.Tensor, *, is_fused: bool) -> UpdateCost:
    taken: list[int] = []
    state = movable = 0
    for _ in range(2):  # the first step allocates the state
        with _Following() as following:
            steps.step(number, [parameter])
        kept = [leaf for leaf in pytree.tree_leaves(dict(steps.optimizer.state[parameter])) if _has_memory(leaf)]
        state = sum(leaf.nbytes for leaf in kept)
        movable = sum(leaf.nbytes for leaf in kept if can_wait(leaf))
        taken.append(following.most - (0 if taken else state))
    return UpdateCost(state, movable, 0 if is_fused else max(0, *taken))


def _has_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def can_wait(value: Any) -> bool:
    """Return whether a part of an optimizer's state may wait on the host: a plain tensor with memory of its own."""
    if type(value) is not torch.Tensor or value.dim() == 0:
        return False
    return 0 < value.nbytes == value.untyped_storage().nbytes()


class _Following(AnyValues):
    """Follows the memory of new tensors.

    Attributes:
        most: the peak in bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._storages = LiveStorages(self._changed)

    def _changed(self) -> None:
        self.most = max(self.most, self._storages.bytes)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {storage_key(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta" and storage_key(leaf) not in given:
                self._storages.follow(leaf.untyped_storage())
        return result
