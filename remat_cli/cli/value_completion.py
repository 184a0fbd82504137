"""What a shell can complete of an option's value: names that remat knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import click
from click.shell_completion import CompletionItem

from remat_cli.config import shipped_names
from remat_cli.planners import PLANNERS


def planner_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the planners that begin like this."""
    return _beginning(PLANNERS, incomplete)


def planner_lists(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the lists of planners, separated by commas, that go on like this."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{item.value}") for item in _beginning(PLANNERS, last)]


def option_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the options, with the equals sign, of the planner that was named before."""
    planner = PLANNERS.get(ctx.params.get("planner") or "")
    return [] if planner is None else _beginning((f"{option.name}=" for option in fields(planner)), incomplete)


def config_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the configs that come with remat, and files."""
    return [*_beginning(shipped_names("configs"), incomplete), CompletionItem(incomplete, type="file")]


def device_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the device profiles that come with remat, and files."""
    return [*_beginning(shipped_names("configs/devices"), incomplete), CompletionItem(incomplete, type="file")]


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
