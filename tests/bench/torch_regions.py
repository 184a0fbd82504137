"""Models planned whole and by regions: the peak of the step, predicted and measured, and time beside eager's.

Budgets are shares of eager's peak, and what torch's checkpoints of each block take, the same for both ways.
`python -m tests.bench.torch_regions gpt` runs this model only. Times are CPU time, the least of five steps.
"""

from __future__ import annotations

import copy
import sys
from importlib.util import find_spec
from time import process_time
from typing import Any

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch import nn

from remat_cli.errors import DoesNotFit, GraphError
from remat_cli.pytorch.capture.regions import block_paths
from remat_cli.pytorch.plan.region_record import RegionsRecord
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes, format_share
from tests.bench import torch_models, torch_refused
from tests.bench.whole_steps import (
    peak_of_step,
    seconds_of_step,
    seed,
    step_of,
    with_checkpoints,
    without_cache,
)

CAPTURED = ("gpt", "gpt_logits", "llama", "gpt2", "bert", "vit", "t5", "whisper")
REFUSED = ("masked_loss", "routed", "graph_network", "wav2vec2", "hubert", "yolos")
ALONE = ("gpt", "gpt_logits", "masked_loss", "routed", "graph_network")  # which need no transformers
SHARES = (0.8, 0.6)


def torch_regions(console: Console, names: tuple[str, ...] = (*CAPTURED, *REFUSED)) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table(
        "model", "way", "budget", "predicted", "measured", "bits", "more time, predicted", "step beside eager",
        "first step", box=MARKDOWN,
    )  # fmt: skip
    for name in names:
        if name not in ALONE and find_spec("transformers") is None:
            continue
        seed()
        model, inputs = getattr(torch_models if name in CAPTURED else torch_refused, name)()
        model.train()
        without_cache(model)
        eager = peak_of_step(model, inputs)
        table.add_row(name, "eager", "", "", format_bytes(eager), "", "", "", "")
        marked = with_checkpoints(copy.deepcopy(model))
        least, time = peak_of_step(marked, inputs), seconds_of_step(marked, inputs) / seconds_of_step(model, inputs)
        table.add_row(name, "checkpoints", "", "", format_bytes(least), "", "", format_share(time - 1), "")
        for budget in (*(int(share * eager) for share in SHARES), least):
            for way in ("whole", "regions"):
                table.add_row(name, *_row(model, inputs, way, budget))
    console.print(table)


def _row(model: nn.Module, inputs: Any, way: str, budget: int) -> tuple[str, ...]:
    made, plain = copy.deepcopy(model), copy.deepcopy(model)
    planned(made, budget=budget, regions=None if way == "whole" else block_paths(made))
    began = process_time()
    try:
        step_of(made, inputs)
    except (DoesNotFit, GraphError) as error:
        what = "does not fit" if isinstance(error, DoesNotFit) else "cannot be captured"
        return way, format_bytes(budget), what, "", "", "", "", ""
    first = process_time() - began
    same = all(map(torch.equal, step_of(made, inputs), step_of(plain, inputs)))
    record = plan_of(made)
    if isinstance(record, RegionsRecord):
        way = f"{len(record.points)} regions, {record.kinds} planned"
        predicted, overhead = record.predicted_peak_bytes, record.overhead
    else:
        assert record.last is not None
        predicted, overhead = record.last.predicted_peak_bytes, record.last.overhead
    return (
        way,
        format_bytes(budget),
        format_bytes(predicted),
        format_bytes(peak_of_step(made, inputs)),
        "same" if same else "differ",
        format_share(overhead),
        format_share(seconds_of_step(made, inputs) / seconds_of_step(plain, inputs) - 1),
        f"{first:.1f} s",
    )


if __name__ == "__main__":
    torch_regions(Console(width=200), tuple(sys.argv[1:]) or (*CAPTURED, *REFUSED))
