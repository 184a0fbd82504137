"""The state of modules beside their parameters: what a trial run writes there is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

import torch
from torch import nn

from remat_cli.pytorch.unstable.fakes import FakeTensor
from remat_cli.pytorch.unstable.modules import BUFFERS, MODULES, PARAMETERS, own_tensors

# How many containers within each other are looked into, from a module on.
_DEPTH = 4
# The attributes in which a module keeps its parts, which are looked at as these.
_PARTS = (PARAMETERS, BUFFERS, MODULES)
_MISSING = object()


class ModelState:
    """The state of modules at one time.

    It has attributes, buffers, and the content of lists, dicts, sets and plain objects.

    Parameters are noted by identity, everything else by value.
    """

    def __init__(self, modules: Iterable[nn.Module], *, values: bool = True) -> None:
        """Note the state.

        Args:
            modules: with all their parts.
            values: of tensors, too; without, which tensors there are.
        """
        self._has_values = values
        self._parts = list(dict.fromkeys(part for module in modules for part in module.modules()))
        self._restorers: list[Callable[[], None]] = []
        self._seen: set[int] = set()
        for part in self._parts:
            self._note_mapping(vars(part))
            for name, held in vars(part).items():
                if name in _PARTS:
                    self._note_mapping(held)
                else:
                    self._note(held, _DEPTH)
            for buffer in own_tensors(part)[1].values():
                if buffer is not None:
                    self._note_tensor(buffer)

    def restore(self) -> None:
        """Put back the noted state."""
        with torch.no_grad():
            for restore in self._restorers:
                restore()

    def has_fakes(self) -> bool:
        """Tell whether a tensor without data has come into the modules."""
        are_fake: list[bool] = []
        for part in self._parts:
            for name, held in vars(part).items():
                values = held.values() if name in _PARTS else [held]
                are_fake += [isinstance(leaf, FakeTensor) for value in values for leaf in _leaves(value, _DEPTH)]
        return any(are_fake)

    def _note(self, value: Any, depth: int, *, in_object: bool = False) -> None:
        if not depth or id(value) in self._seen or isinstance(value, nn.Module | nn.Parameter | type):
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._note_tensor(value)
        elif isinstance(value, dict):
            self._note_mapping(value)
        elif isinstance(value, list):
            self._restorers.append(partial(_put_into_list, value, list(value)))
        elif isinstance(value, set):
            self._restorers.append(partial(_put_into_set, value, set(value)))
        is_object = (attributes := _attributes(value)) is not None
        if attributes is not None:
            if in_object:
                return
            self._note_mapping(attributes)
        for part in _held_by(value):
            self._note(part, depth - 1, in_object=in_object or is_object)

    def _note_mapping(self, mapping: MutableMapping[Any, Any]) -> None:
        self._restorers.append(partial(_put_into_mapping, mapping, dict(mapping)))

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        if not self._has_values or type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return
        if tensor.requires_grad:
            return
        self._restorers.append(partial(_put_into_tensor, tensor, tensor.detach().clone()))


def _put_into_list(value: list[Any], before: list[Any]) -> None:
    value[:] = before


def _put_into_set(value: set[Any], before: set[Any]) -> None:
    value.clear()
    value.update(before)


def _put_into_mapping(mapping: MutableMapping[Any, Any], before: Mapping[Any, Any]) -> None:
    if len(mapping) != len(before) or any(mapping.get(key, _MISSING) is not value for key, value in before.items()):
        mapping.clear()
        mapping.update(before)


def _put_into_tensor(tensor: torch.Tensor, before: torch.Tensor) -> None:
    if not torch.equal(tensor, before):  # kernels write running statistics without a new version of the tensor
        tensor.copy_(before)


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth and not isinstance(value, nn.Module | torch.Tensor):
        for part in _held_by(value):
            yield from _leaves(part, depth - 1)


def _held_by(value: Any) -> Iterable[Any]:
    """Return the content of a container or a plain object."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set):
        return list(value)
    attributes = _attributes(value)
    return () if attributes is None else list(attributes.values())


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of a user's class, or None.

    None for other objects, such as torch's.
    """
    of = type(value)
    if of.__module__.partition(".")[0] in ("builtins", "torch", "remat_cli", "types", "functools", "weakref"):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None
