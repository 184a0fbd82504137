"""Plans with inductor's kernels beside what stock PyTorch offers: peak and time of the whole step.

`python -m tests.bench.torch_fused gpt` runs this model only. One thread. Times are CPU time: the least of nine steps,
with all ways by turns, as the speed of a machine changes while others compile.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Self

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch import nn

from remat_cli.errors import RematError
from remat_cli.pytorch.capture.regions import block_paths
from remat_cli.pytorch.plan.region_record import RegionsRecord
from remat_cli.pytorch.unstable.front_end import with_own_code
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes
from tests.bench import torch_models
from tests.bench.whole_steps import (
    peak_of_step,
    seconds_of_step,
    seed,
    step_of,
    with_checkpoints,
    without_cache,
)

MODELS = ("gpt", "llama", "vit", "unet")
ALONE = ("gpt", "unet")  # which need no transformers
STOCK_BUDGETS = (0.8, 0.6, 0.4, 0.2)
BELOW = (0.8, 0.65)  # of the lowest peak of a stock way
ROUNDS, STEPS = 3, 3


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
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000  # ways share code
    for name in names:
        if name not in ALONE and find_spec("transformers") is None:
            continue
        seed()
        model, inputs = getattr(torch_models, name)()
        model.train()
        without_cache(model)
        table = Table(
            "way", "budget", "predicted", "measured", "ms a step", "beside inductor", "gradients beside inductor's",
            "first step",
            box=MARKDOWN, title=name,
        )  # fmt: skip
        rows = [_Row.of(way, model, inputs) for way in _stock()]
        blocks = block_paths(model)
        plans: dict[str, dict[str, Any]] = {"plan, eager kernels": {}, "plan, fused kernels": {"fused": True}}
        if blocks:
            plans["plan by blocks, fused kernels"] = {"fused": True, "regions": blocks}
        peaks = {row.peak for row in rows}
        budgets = sorted({*peaks, *(int(share * min(peaks)) for share in BELOW)}, reverse=True)
        rows += [
            _Row.of(Way(name, partial(planned, budget=budget, **options), budget=budget), model, inputs)
            for budget in budgets
            for name, options in plans.items()
        ]
        for _ in range(ROUNDS):
            for row in rows:
                row.time(inputs)
        for row in rows:
            table.add_row(*row.cells(rows[0]))
        console.print(table)


def _stock() -> Iterator[Way]:
    yield Way("inductor", _compiled)
    yield Way("eager", lambda model: model)
    for share in STOCK_BUDGETS:
        patch = partial(torch._functorch.config.patch, activation_memory_budget=share)
        yield Way(f"inductor, activation_memory_budget {share}", _compiled, patch)
    yield Way("eager, checkpoint of every block", with_checkpoints)
    yield Way("inductor, checkpoint of every block", lambda model: _compiled(with_checkpoints(model)))
    yield Way("inductor, block by block", _compiled_by_blocks)


def _compiled(model: nn.Module) -> Any:
    model.forward = with_own_code(model.forward)  # else it would run what another way has compiled
    return torch.compile(model)


def _compiled_by_blocks(model: nn.Module) -> nn.Module:
    for path in block_paths(model):
        block: Any = model.get_submodule(path)
        block.compile()
    return model


@dataclass
class _Row:
    """A way that was compiled and measured.

    Attributes:
        way: which.
        model: a copy, whose gradients these are.
        call: is called in its place; None where the budget is refused.
        refusal: the name of its error.
        first: how long the first step took, in seconds.
        values: the loss and the gradients.
        peak: of a whole step, in bytes.
        seconds: of a step, the least so far.
    """

    way: Way
    model: nn.Module
    call: Any = None
    refusal: str = ""
    first: float = 0.0
    values: Sequence[torch.Tensor] = ()
    peak: int = 0
    seconds: float = math.inf

    @classmethod
    def of(cls, way: Way, model: nn.Module, inputs: Any) -> Self:
        """Compile a way in a first step; run another, and measure one."""
        model = copy.deepcopy(model)
        call = way.call(model)
        began = perf_counter()
        try:
            with way.around():
                step_of(model, inputs, call)
        except RematError as error:
            return cls(way, model, refusal=type(error).__name__)
        first = perf_counter() - began
        values = step_of(model, inputs, call)
        return cls(way, model, call, "", first, values, peak_of_step(model, inputs, call))

    def time(self, inputs: Any) -> None:
        """Run some steps; keep the time of the fastest."""
        if self.call is not None:
            self.seconds = min(self.seconds, seconds_of_step(self.model, inputs, self.call, steps=STEPS))

    def cells(self, beside: _Row) -> tuple[str, ...]:
        """Return the columns of the table."""
        budget = "" if self.way.budget is None else format_bytes(self.way.budget)
        if self.call is None:
            return self.way.name, budget, "", self.refusal, "", "", "", ""
        record: Any = plan_of(self.call) if self.way.budget is not None else None
        last = record if isinstance(record, RegionsRecord) else record and record.last
        return (
            self.way.name,
            budget,
            "" if last is None else format_bytes(last.predicted_peak_bytes),
            format_bytes(self.peak),
            f"{1000 * self.seconds:.0f}",
            f"{100 * (self.seconds / beside.seconds - 1):+.0f} %",
            _difference(self.values, beside.values),
            f"{self.first:.1f} s",
        )


def _difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    if all(map(torch.equal, found, expected)):
        return "same bits"
    # Beside the largest of all: of a bias before a batch norm, the gradient is nothing but rounding.
    difference = max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))
    return f"{difference / max(b.abs().max().item() for b in expected):.0e}"


if __name__ == "__main__":
    torch_fused(Console(width=200), tuple(sys.argv[1:]) or MODELS)
