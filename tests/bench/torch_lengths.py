"""A training loop of many lengths, as planned and in eager mode: time, captures, plans, and memory at each length."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes, format_share
from tests.torch_steps import GPT

LAYERS, STEPS, SHORTEST, LONGEST, BATCH, WIDTH, VOCABULARY = 12, 300, 16, 512, 1, 64, 100
BUDGETS = ("98%", "80%", "16MB")


@dataclass(frozen=True)
class Loop:
    """What a loop came to.

    Attributes:
        seconds: of CPU time of each step.
        losses: of each step.
        gradients: after the last step, summed up.
    """

    seconds: list[float]
    losses: list[torch.Tensor]
    gradients: list[torch.Tensor]


def torch_lengths(console: Console, steps: int = STEPS, budgets: tuple[str, ...] = BUDGETS) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    generator = random.Random(0)
    lengths = [generator.randint(SHORTEST, LONGEST) for _ in range(steps)]
    eager = _loop(_model(), lengths)
    table = Table(title=f"GPT of {LAYERS} layers, {steps} lengths from {SHORTEST} to {LONGEST}, batch {BATCH}")
    for column in (
        "budget",
        "plans",
        "eager's loop",
        "the loop",
        "of it, steps that planned",
        "the other steps beside eager",
        "largest predicted peak",
        "same bits",
        "peaks beside the predicted",
    ):
        table.add_column(column, justify="right")
    for budget in budgets:
        model = planned(_model(), budget=budget)
        plans: list[int] = []
        ours = _loop(model, lengths, lambda model=model, plans=plans: plans.append(len(plan_of(model).graphs)))  # type: ignore[misc]
        record = plan_of(model)
        made = [step for step, count in enumerate(plans) if count > (plans[step - 1] if step else 0)]
        rest = [step for step in range(steps) if step not in made]
        beside = sum(ours.seconds[step] for step in rest) / sum(eager.seconds[step] for step in rest) - 1
        same = all(map(torch.equal, ours.losses, eager.losses)) and all(
            map(torch.equal, ours.gradients, eager.gradients)
        )
        ran = [plan for graph in record.graphs for plan in (graph, *graph.carried) if plan.calls]
        table.add_row(
            budget,
            str(len(record.graphs)),
            f"{sum(eager.seconds):.1f} s",
            f"{sum(ours.seconds):.1f} s",
            f"{sum(ours.seconds[step] for step in made):.1f} s",
            format_share(beside),
            format_bytes(max(plan.predicted_peak_bytes for plan in ran)),
            "yes" if same else "no",
            _peaks(model),
        )
    console.print(table)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return GPT(depth=LAYERS, width=WIDTH, vocabulary=VOCABULARY)


def _batch(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(VOCABULARY, (BATCH, length)), torch.randint(VOCABULARY, (BATCH, length))


def _loop(model: nn.Module, lengths: list[int], after: Callable[[], None] = lambda: None) -> Loop:
    seconds, losses = [], []
    for step, length in enumerate(lengths):
        torch.manual_seed(step)
        tokens, targets = _batch(length)
        start = time.process_time()
        loss = model(tokens, targets)
        loss.backward()
        seconds.append(time.process_time() - start)
        losses.append(loss.detach())
        after()
    return Loop(seconds, losses, [parameter.grad for parameter in model.parameters() if parameter.grad is not None])


def _peaks(model: nn.Module) -> str:
    """Return the most by which a measured peak is above the predicted one, at some lengths that have run."""
    apart = []
    for length in (SHORTEST + 1, 100, 200, 300, 400, LONGEST):
        tokens, targets = _batch(length)
        for _ in range(2):  # the first may plan
            model.zero_grad()
            peak = peak_of(lambda tokens=tokens, targets=targets: model(tokens, targets).backward(), "cpu")  # type: ignore[misc]
        ran = plan_of(model).last
        assert ran is not None
        assert ran.budget_bytes is not None
        assert ran.predicted_peak_bytes <= ran.budget_bytes
        apart.append(peak - (ran.predicted_peak_bytes - ran.fixed_bytes))
    return f"up to {max(apart):+,} B"
