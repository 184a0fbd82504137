"""Small trials of everything that this room relies on: they say what a new release of torch does otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from remat_cli.pytorch.unstable import autograd, decompositions, dispatch, fakes, modules, ops, pytree, tensors
from remat_cli.pytorch.unstable.overrides import overridden
from remat_cli.pytorch.unstable.resizes import tell_no_more, tell_of_resizes


def _trees_are_flattened() -> bool:
    tree = {"a": [1, (2, 3)], "b": 4}
    leaves, form = pytree.tree_flatten(tree)
    return leaves == [1, 2, 3, 4] == pytree.tree_leaves(tree) and pytree.tree_unflatten(leaves, form) == tree


def _nodes_have_numbers() -> bool:
    x = torch.ones(1, requires_grad=True)
    first = autograd.next_number()
    y = x * 2
    return autograd.number_of(y.grad_fn) == first and autograd.next_number() == first + 1


def _backward_passes_are_seen() -> bool:
    seen: list[Any] = []

    def looked(gradient: torch.Tensor) -> None:
        seen.append(autograd.current_node())
        autograd.after_backward(lambda: seen.append("end"))

    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(looked)  # type: ignore[no-untyped-call]
    node = y.grad_fn
    y.sum().backward()  # type: ignore[no-untyped-call]
    return seen == [node, "end"] and autograd.current_node() is None


def _memory_is_known() -> bool:
    x = torch.ones(2, 3)
    version = tensors.version_of(x)
    x.add_(1)
    same = tensors.storage_key(x) == tensors.storage_key(x[1:]) != tensors.storage_key(x.clone())
    return same and tensors.version_of(x) == version + 1 and tensors.contiguous_strides((2, 3)) == (3, 1)


def _moves_are_read() -> bool:
    to_half = tensors.moved_to((torch.float16,), {})
    return to_half == (None, torch.float16) and tensors.moved_to((), {"device": "meta"})[0] == torch.device("meta")


def _resizes_are_told() -> bool:
    resized: list[torch.UntypedStorage] = []
    tell_of_resizes(resized.append)
    try:
        storage = torch.ones(2).untyped_storage()
        storage.resize_(0)
    finally:
        tell_no_more(resized.append)
    return [other.nbytes() for other in resized] == [0]


def _ops_are_declared() -> bool:
    op = torch.ops.aten.add_.Tensor
    declared = ops.schema_of(op)
    names = [argument.name for argument in declared.arguments]
    return isinstance(op, ops.OpOverload) and ops.name_of(op) == "add_" and declared.is_mutable and names[0] == "self"


def _calls_are_replaced() -> bool:
    module = nn.Linear(1, 1)
    modules.set_call_instead(module, lambda _: "instead")
    replaced = module(torch.ones(1)) == "instead" and modules.call_instead(module) is not None
    modules.set_call_instead(module, None)
    return replaced and isinstance(module(torch.ones(1)), torch.Tensor) and modules.call_instead(module) is None


def _modules_show_their_tensors() -> bool:
    module = nn.BatchNorm1d(1)
    parameters, buffers = modules.own_tensors(module)
    shown = set(parameters) == {"weight", "bias"} and "running_mean" in buffers
    return shown and {modules.PARAMETERS, modules.BUFFERS, modules.MODULES} <= vars(module).keys()


def _hooks_of_all_modules_are_known() -> bool:
    before = sum(map(len, modules.GLOBAL_HOOKS))
    handles = [
        nn.modules.module.register_module_forward_pre_hook(lambda *_: None),
        nn.modules.module.register_module_forward_hook(lambda *_: None),
    ]
    during = sum(map(len, modules.GLOBAL_HOOKS))
    for handle in handles:
        handle.remove()
    return (during - before, sum(map(len, modules.GLOBAL_HOOKS))) == (2, before)


def _makers_of_tensors_are_known() -> bool:
    return modules.makes_tensors(torch.empty) and not modules.makes_tensors(torch.add)


def _tensors_without_data_are_known() -> bool:
    mode = fakes.FakeTensorMode()
    with mode:
        fake = torch.empty(2)
    try:
        fake.sum().item()
    except fakes.NO_DATA:
        return not fakes.has_data(fake) and fakes.has_data(torch.ones(1)) and fakes.mode_of([fake]) is mode
    return False


def _modes_are_known() -> bool:
    class Seen(dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    x = torch.ones(1)
    with Seen() as mode:  # type: ignore[no-untyped-call]
        known = dispatch.is_watched() and dispatch.modes_in_force()[-1] is mode
        known = known and dispatch.mode_that_watches() == "Seen"
        with dispatch.without_modes():
            x.add(1)
        x.add(1)
    return known and seen == [torch.ops.aten.add.Tensor]


def _rules_can_be_put_aside() -> bool:
    op = torch.ops.aten.upsample_bilinear2d.default
    rules = dict(op.py_kernels)
    with decompositions.as_eager_computes():
        aside = op.py_kernels.keys() < rules.keys()
    return aside and op.py_kernels == rules


def _ops_can_be_overridden() -> bool:
    x = torch.ones(1, 1, 1)
    with overridden({"feature_dropout": lambda x, p, train: x * p}, "AutogradCPU"):
        instead = torch.feature_dropout(x, 0.5, False)
    return instead.item() == 0.5 and torch.feature_dropout(x, 0.5, False).item() == 1


def _shards_are_known() -> bool:
    return "_local_tensor" in DTensor.__slots__ and hasattr(FSDPModule, "_get_fsdp_state")


# For each fault, the trial that finds it: it returns whether torch does as expected.
PROBES: Mapping[str, Callable[[], bool]] = {
    "nested containers are flattened in another order": _trees_are_flattened,
    "nodes of autograd are numbered otherwise": _nodes_have_numbers,
    "a backward pass does not tell its nodes or its end": _backward_passes_are_seen,
    "tensors do not say whether they share memory or have changed": _memory_is_known,
    "arguments of Tensor.to are read otherwise": _moves_are_read,
    "storages change their size unseen": _resizes_are_told,
    "ops declare their arguments otherwise": _ops_are_declared,
    "calls of modules cannot be replaced": _calls_are_replaced,
    "modules keep their parameters and buffers elsewhere": _modules_show_their_tensors,
    "hooks of all modules are kept elsewhere": _hooks_of_all_modules_are_known,
    "functions that make tensors are not listed": _makers_of_tensors_are_known,
    "tensors without data behave otherwise": _tensors_without_data_are_known,
    "dispatch modes are not listed, or cannot be left out": _modes_are_known,
    "rules by which ops are traced cannot be put aside": _rules_can_be_put_aside,
    "ops cannot be overridden for a while": _ops_can_be_overridden,
    "shards of a model are kept elsewhere": _shards_are_known,
}


def fault() -> str:
    """Return what torch does otherwise than this room expects; "" if nothing."""
    for name, holds in PROBES.items():
        try:
            if not holds():
                return name
        except Exception as error:
            return f"{name} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    return ""
