"""Models planned by regions: the peak of the whole step, predicted and measured, and time beside eager's.

`python -m tests.bench.torch_regions gpt` runs this model only. Times are CPU time, the least of five steps.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from time import process_time
from typing import Any

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch import nn

from remat_cli.runtime.torch.memory import peak_of
from remat_cli.runtime.torch.regions import RegionsRecord
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes, format_share
from tests.bench import torch_models

REGIONS = {"gpt": "blocks.*", "llama": "model.model.layers.*"}
BUDGETS = ("80%", "60%", "min")
STEPS = 5


def torch_regions(console: Console, names: tuple[str, ...] = tuple(REGIONS)) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table(
        "model", "budget", "predicted", "measured", "bits", "more time, predicted", "step beside eager", "first step",
        box=MARKDOWN,
    )  # fmt: skip
    for name in names:
        model, inputs = getattr(torch_models, name)()
        always, plain = _standing(model, inputs), copy.deepcopy(model)
        expected = _step(plain, inputs)
        table.add_row(name, "eager", "", format_bytes(always + _peak(plain, inputs)), "", "", "", "")
        for budget in BUDGETS:
            whole = planned(copy.deepcopy(model), budget=budget, regions=REGIONS[name])
            began = process_time()
            _step(whole, inputs)
            first = process_time() - began
            same = all(map(torch.equal, _step(whole, inputs), expected))
            record = plan_of(whole)
            assert isinstance(record, RegionsRecord)
            table.add_row(
                name,
                format_bytes(record.budget_bytes),
                format_bytes(record.predicted_peak_bytes),
                format_bytes(always + _peak(whole, inputs)),
                "same" if same else "differ",
                format_share(record.overhead),
                format_share(_time(whole, inputs) / _time(plain, inputs) - 1),
                f"{first:.1f} s",
            )
    console.print(table)


def _called(model: nn.Module, inputs: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    return loss


def _step(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = _called(model, inputs)
    torch.autograd.backward([loss])
    return [loss.detach(), *(part.grad.clone() for part in model.parameters() if part.grad is not None)]


def _peak(model: nn.Module, inputs: Any) -> int:
    model.zero_grad(set_to_none=True)
    return peak_of(lambda: torch.autograd.backward([_called(model, inputs)]), "cpu")


def _time(model: nn.Module, inputs: Any) -> float:
    times = []
    for _ in range(STEPS):
        model.zero_grad(set_to_none=True)
        began = process_time()
        torch.autograd.backward([_called(model, inputs)])
        times.append(process_time() - began)
    return min(times)


def _standing(model: nn.Module, inputs: Any) -> int:
    given = inputs.values() if isinstance(inputs, Mapping) else inputs
    tensors = (value for value in (*model.parameters(), *model.buffers(), *given) if isinstance(value, torch.Tensor))
    sizes = {value.untyped_storage()._cdata: value.untyped_storage().nbytes() for value in tensors}
    return sum(sizes.values())


if __name__ == "__main__":
    torch_regions(Console(width=200), tuple(sys.argv[1:]) or tuple(REGIONS))
