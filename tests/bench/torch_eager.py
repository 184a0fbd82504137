"""Eager's peak, as `remat inspect` says it, beside that of a training loop on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.studies.eager import eager_run
from remat_cli.units import format_bytes
from tests.bench import eager_models, torch_models
from tests.bench.torch_models import Step
from tests.loops import peak_of_loop

STEPS: tuple[Callable[..., Step], ...] = (
    torch_models.mlp,
    torch_models.lstm,
    torch_models.changing_buffer,
    torch_models.gpt,
    torch_models.gpt_bfloat16,
    torch_models.gpt_logits,
    torch_models.unet,
    torch_models.densenet121,
    torch_models.resnet18,
    torch_models.resnet50,
    torch_models.efficientnet_b0,
    torch_models.swin,
    torch_models.vit,
    torch_models.deeplab,
    torch_models.gpt2,
    torch_models.bert,
    torch_models.llama,
    torch_models.t5,
    torch_models.whisper,
    torch_models.mixture_of_experts,
    torch_models.diffusion_unet,
    eager_models.gru,
    eager_models.class_token,
    eager_models.class_token_bfloat16,
    eager_models.class_token_frozen,
    eager_models.class_token_checkpoints,
    eager_models.several_heads,
)


def torch_eager(console: Console) -> None:
    """Print predicted and measured peaks; steps of libraries that are not installed are left out."""
    table = Table(title="Eager's peak", title_justify="left")
    for header in ("step", "predicted", "measured", "off by", "seconds"):
        table.add_column(header, justify="left" if header == "step" else "right")
    missing: dict[str, None] = {}
    for build in STEPS:
        try:
            table.add_row(build.__name__, *_figures(build))
        except ImportError as error:
            missing[str(error.name)] = None
    console.print(table)
    if missing:
        console.print(f"Left out, as these are not installed: {', '.join(missing)}.")


def _figures(build: Callable[[], Any]) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = peak_of_loop(build)
        start = perf_counter()
        run = eager_run(Path(f"{build.__module__}:{build.__name__}"), GraphOptions())
        seconds = perf_counter() - start
    assert run is not None, "a function has an eager run"
    predicted = run.peak_bytes - run.graph.fixed_bytes
    off = f"{predicted / measured - 1:+.2%}"
    return format_bytes(predicted), format_bytes(measured), off, f"{seconds:.1f}"
