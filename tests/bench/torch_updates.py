"""A GPT with AdamW whose parameters take four times its activations: steps planned with `update=True`, as measured.

Each row trains ten steps beside eager's.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import AdamW

from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes, format_share
from tests.torch_steps import GPT

WIDTH, LAYERS, WORDS, STEPS = 256, 6, 512, 10
ROWS, LENGTH = 2, 20
BUDGETS = ("80%", "60%", "40%", "min")
RESULTS = Path(__file__).parent / "results" / "updates.csv"
COLUMNS = ("planned", "budget", "predicted", "measured", "overhead predicted", "updates and state", "bits")


def _inputs() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        yield torch.randint(WORDS, (2, ROWS, LENGTH), generator=generator)


def _step(model: nn.Module, tokens: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
    model(*tokens).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _train(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    for tokens in _inputs():
        _step(model, tokens, *optimizers)


def _state(optimizers: list[AdamW]) -> list[torch.Tensor]:
    """Return moments and counters of optimizers, by their parameters' order."""
    parameters = ((each, parameter) for each in optimizers for parameter in each.param_groups[0]["params"])
    return [value for each, parameter in parameters for value in each.state[parameter].values()]


def _peak_of_last(model: nn.Module, step: Callable[[torch.Tensor], None], optimizers: list[AdamW]) -> int:
    """Return the measured peak of one more step, with all that is there before it."""
    tokens = next(_inputs())
    there = bytes_in([*model.parameters(), *_state(optimizers), tokens])
    return there + peak_of(lambda: step(tokens), "cpu")


def in_backward(model: nn.Module) -> dict[Any, AdamW]:
    """Update parameters in the backward pass as torch's tutorial does, by an optimizer for each."""
    optimizers: dict[Any, AdamW] = {parameter: AdamW([parameter], foreach=False) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    return optimizers


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table."""
    torch.manual_seed(0)
    model = GPT(LAYERS, WIDTH, WORDS, dropout=0.0)
    eager, recipe = deepcopy(model), deepcopy(model)
    optimizer, optimizers = AdamW(eager.parameters()), in_backward(recipe)
    _train(eager, optimizer)
    _train(recipe)
    results = [*map(torch.clone, eager.state_dict().values()), *map(torch.clone, _state([optimizer]))]
    same = _same(results, recipe, list(optimizers.values()))
    peak = _peak_of_last(eager, lambda tokens: _step(eager, tokens, optimizer), [optimizer])
    yield "eager", "", "", format_bytes(peak), "", "", ""
    peak = _peak_of_last(recipe, lambda tokens: _step(recipe, tokens), list(optimizers.values()))
    yield "torch's optimizer in backward", "", "", format_bytes(peak), "", "", same
    for words, regions in (("whole", None), ("by blocks", "blocks.*")):
        for budget in BUDGETS:
            yield words, budget, *_planned_row(deepcopy(model), regions, budget, results)


def _planned_row(model: nn.Module, regions: str | None, budget: str, results: list[torch.Tensor]) -> tuple[str, ...]:
    optimizer = AdamW(model.parameters())
    moves: dict[str, Any] = {"offload": True, "link_bandwidth": "20GB/s", "device": "a10"}
    planned(model, budget=budget, optimizer=optimizer, update=True, regions=regions, **moves)
    _train(model, optimizer)
    whole: Any = plan_of(model)
    record = whole.last if regions is None else whole
    return (
        format_bytes(record.predicted_peak_bytes),
        format_bytes(record.measured_peak_bytes[-1]),
        format_share(record.overhead),
        record.update.removeprefix("updates "),
        _same(results, model, [optimizer]),
    )


def _same(results: list[torch.Tensor], model: nn.Module, optimizers: list[AdamW]) -> str:
    again = [*model.state_dict().values(), *_state(optimizers)]
    return "eager's" if len(results) == len(again) and all(map(torch.equal, results, again)) else "others"


def torch_updates(console: Console) -> None:
    """Print the table, and write it to results/updates.csv."""
    torch.set_num_threads(1)
    table = Table(*COLUMNS, title="A GPT with AdamW", title_justify="left")
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows():
            writer.writerow(row)
            table.add_row(*row)
    console.print(table)
