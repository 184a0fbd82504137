"""Plans with inductor's kernels beside what stock PyTorch offers: peak and time of the whole step.

`python -m tests.bench.torch_fused gpt` runs this model only. One thread; times are CPU time, the least of nine steps.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.checkpoint import checkpoint

from remat_cli.errors import RematError
from remat_cli.runtime.torch.record import PlanRecord
from remat_cli.runtime.torch.regions import repeated_blocks
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes
from tests.bench import torch_models
from tests.bench.whole_steps import peak_of_step, seconds_of_step, seed, step_of, without_cache

MODELS = ("gpt", "llama", "vit", "unet")
ALONE = ("gpt", "unet")  # which need no transformers
STOCK_BUDGETS = (0.8, 0.6, 0.4, 0.2)
BELOW = (0.8, 0.65)  # of the lowest peak of a stock way
STEPS = 9


@dataclass(frozen=True)
class Way:
    """How a step runs.

    Attributes:
        name: for the table.
        call: makes what is called in the place of the model.
        around: is entered while it is compiled.
        budget: in bytes; None where there is none.
    """

    name: str
    call: Callable[[nn.Module], Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    budget: int | None = None


def torch_fused(console: Console, names: tuple[str, ...] = MODELS) -> None:
    """Print a table for each model."""
    torch.set_num_threads(1)
    for name in names:
        if name not in ALONE and find_spec("transformers") is None:
            continue
        seed()
        model, inputs = getattr(torch_models, name)()
        model.train()
        without_cache(model)
        table = Table(
            "way", "budget", "predicted", "measured", "ms a step", "beside inductor", "gradients beside inductor's",
            box=MARKDOWN, title=name,
        )  # fmt: skip
        rows = _Rows(model, inputs)
        for way in _stock():
            table.add_row(*rows.of(way))
        least = min(rows.peaks.values())
        budgets = sorted({*rows.peaks.values(), *(int(share * least) for share in BELOW)}, reverse=True)
        for budget in budgets:
            for kernels in ("eager", "fused"):
                make = partial(planned, budget=budget, fused=kernels == "fused")
                table.add_row(*rows.of(Way(f"plan, {kernels} kernels", make, budget=budget)))
        console.print(table)


def _stock() -> Iterator[Way]:
    yield Way("inductor", torch.compile)
    yield Way("eager", lambda model: model)
    for share in STOCK_BUDGETS:
        patch = partial(torch._functorch.config.patch, activation_memory_budget=share)
        yield Way(f"inductor, activation_memory_budget {share}", torch.compile, patch)
    yield Way("eager, checkpoint of every block", _with_checkpoints)
    yield Way("inductor, checkpoint of every block", lambda model: torch.compile(_with_checkpoints(model)))


def _with_checkpoints(model: nn.Module) -> nn.Module:
    for path in (path for paths in repeated_blocks(model).values() for path in paths):
        block: Any = model.get_submodule(path)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model


class _Rows:
    """Measures ways to run a step; the first one is what the others are beside.

    Attributes:
        peaks: measured, in bytes, of the ways that have no budget, by name.
    """

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self._model, self._inputs = model, inputs
        self.peaks: dict[str, int] = {}
        self._first: tuple[list[torch.Tensor], float] | None = None

    def of(self, way: Way) -> tuple[str, ...]:
        torch._dynamo.reset()
        model = copy.deepcopy(self._model)
        budget = "" if way.budget is None else format_bytes(way.budget)
        call = way.call(model)
        try:
            with way.around():
                step_of(model, self._inputs, call)
        except RematError as error:
            return way.name, budget, "", type(error).__name__, "", "", ""
        found = step_of(model, self._inputs, call)
        peak = peak_of_step(model, self._inputs, call)
        seconds = seconds_of_step(model, self._inputs, call, steps=STEPS)
        if self._first is None:
            self._first = found, seconds
        if way.budget is None:
            self.peaks[way.name] = peak
        record = plan_of(call) if way.budget is not None else None
        last = record.last if isinstance(record, PlanRecord) else None
        expected, least = self._first
        return (
            way.name,
            budget,
            "" if last is None else format_bytes(last.predicted_peak_bytes),
            format_bytes(peak),
            f"{1000 * seconds:.0f}",
            f"{100 * (seconds / least - 1):+.0f} %",
            _difference(found, expected),
        )


def _difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    if all(map(torch.equal, found, expected)):
        return "same bits"
    # Beside the largest of all: of a bias before a batch norm, the gradient is nothing but rounding.
    difference = max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))
    return f"{difference / max(b.abs().max().item() for b in expected):.0e}"


if __name__ == "__main__":
    torch_fused(Console(width=200), tuple(sys.argv[1:]) or MODELS)
