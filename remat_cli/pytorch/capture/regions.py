"""Regions: the parts of a model that are captured and planned alone, such as its repeated blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from torch import nn

from remat_cli.errors import UsageError

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)  # containers, which are not called


def regions_of(model: nn.Module, regions: str | Sequence[Any]) -> dict[str, nn.Module]:
    """Return the regions of a model by path.

    Args:
        model: the model.
        regions: a pattern of paths such as "layers.*", or paths, patterns and modules.

    Raises:
        UsageError: a region is no part of the model, none is named, or one is inside another.
    """
    known = {path: part for path, part in model.named_modules() if path}
    asked = [regions] if isinstance(regions, str) or not isinstance(regions, Iterable) else list(regions)
    if not asked:
        raise UsageError("regions: none is named", hint="leave it out, or name parts of the model, such as 'layers.*'")
    chosen: dict[str, nn.Module] = {}
    for item in asked:
        if isinstance(item, str):
            depth = item.count(".")
            named = {path: part for path, part in known.items() if path.count(".") == depth and fnmatchcase(path, item)}
        else:
            named = {path: part for path, part in known.items() if part is item}
        if not named:
            some = ", ".join([path for path in known if path.rpartition(".")[2].isdecimal()][:3]) or ", ".join(known)
            hint = f"its parts are called {some} and so on" if known else "it has no parts at all: leave regions out"
            raise UsageError(f"regions: the model has no part {item!r}", hint=hint)
        chosen |= named
    for path in chosen:
        inner = next((other for other in chosen if other.startswith(f"{path}.")), None)
        if inner is not None:
            raise UsageError(f"regions: {inner!r} is inside {path!r}", hint="name one of them")
    return chosen


def repeated_blocks(model: nn.Module) -> dict[str, list[str]]:
    """Return the paths of modules in each `nn.ModuleList` of a model.

    Lists within these modules are left out.
    """
    lists: dict[str, list[str]] = {}
    inside: tuple[str, ...] = ()
    for path, part in model.named_modules():
        is_list = (
            isinstance(part, nn.ModuleList) and type(part).forward is nn.ModuleList.forward
        )  # has no call of its own
        if path and is_list and not path.startswith(inside or "\0"):
            blocks = [name for name, block in part.named_children() if not isinstance(block, _CONTAINERS)]
            if blocks:
                lists[path] = [f"{path}.{name}" for name in blocks]
                inside += tuple(f"{block}." for block in lists[path])
    return lists


def block_paths(model: nn.Module) -> list[str]:
    """Return the paths of all repeated blocks of a model."""
    return [*chain.from_iterable(repeated_blocks(model).values())]
