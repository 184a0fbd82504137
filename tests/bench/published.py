"""Eager's peak, as `remat inspect` says it, beside what others measured on GPUs.

`PUBLISHED.md` has sources and reasons.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from remat_cli.allocation.cuda import reserved_bytes
from remat_cli.config import GraphOptions
from remat_cli.core.allocator import CudaAllocator
from remat_cli.errors import UsageError
from remat_cli.studies.eager import EagerReplay, eager_run
from tests.bench.published_gpt import Adapters, Shape
from tests.bench.published_gpt import built as gpt
from tests.bench.published_llama import Llama
from tests.bench.published_llama import built as llama

RESULTS = Path(__file__).parent / "results" / "published.csv"
COLUMNS = ("source", "model", "setting", "figure", "published", "predicted", "off by")
LET_GO = "peak, outputs freed"
GB, GIB, MIB = 10**9, 1 << 30, 1 << 20

PHI_1_5 = Shape(
    *(51200, 24, 32, 2048, 8192),
    rotary=0.5,
    gated=False,
    rms=False,
    is_parallel=True,
    shares_norm=True,
    biased=True,
    head_biased=True,
)
PHI_2 = replace(PHI_1_5, layers=32, width=2560, hidden=10240, rotary=0.4)
STABLELM = Shape(50688, 16, 32, 4096, 16384, rotary=0.25, gated=False, rms=False, is_parallel=True, biased=True)
FALCON = Shape(65024, 32, 71, 4544, 18176, groups=1, gated=False, rms=False, is_parallel=True, shares_norm=True)
LLAMA_2_7B, LLAMA_2_13B = Shape(32000, 32, 32, 4096, 11008), Shape(32000, 40, 40, 5120, 13824)
LLAMA_3_8B, MISTRAL = Shape(128256, 32, 32, 4096, 14336, groups=8), Shape(32000, 32, 32, 4096, 14336, groups=8)
GEMMA = Shape(256000, 18, 8, 2048, 16384, groups=1, gelu_gate=True)
TINY_LLAMA, PHI_3 = Shape(32000, 22, 32, 2048, 5632, groups=4), Shape(32064, 32, 32, 3072, 8192)
ALL = ("q", "k", "v", "projection", "mlp", "head")
LLAMA_3_2_3B = Llama(28, 3072, 24, 8, 8192, tied=True)
LLAMA_3_1_8B = Llama(32, 4096, 32, 8, 14336, checkpoints="selective")
BERT_LARGE = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
}
# What nvidia-smi showed with one small tensor, without it: the context.
BERT_CONTEXT = 1341 * MIB


@dataclass(frozen=True)
class Measurement:
    """A published measurement, and how its step is built.

    Attributes:
        source: name of the source, as in PUBLISHED.md.
        model: name of the model.
        setting: batch, length and what else was set.
        step: returns the step; or the config of a model of transformers.
        published: what the source says.
        unit: of that.
        options: of `remat inspect`.
        figure: "peak", `LET_GO` or "reserved".
        beyond: bytes that the source counts and no allocator does.
    """

    source: str
    model: str
    setting: str
    step: Callable[[], Any] | Mapping[str, Any]
    published: float
    unit: int
    options: GraphOptions = field(default_factory=GraphOptions)
    figure: str = "peak"
    beyond: int = 0

    def predicted(self) -> float:
        """Return the predicted figure in the source's unit."""
        run = self._run()
        if self.figure == "reserved":
            size = reserved_bytes(run.graph, run.schedule, CudaAllocator())
        else:
            size = run.peak_bytes if self.figure == "peak" else run.let_go_bytes
        return (size + self.beyond) / self.unit

    def _run(self) -> EagerReplay:
        if callable(self.step):
            STEPS[:] = [self.step]
            run = eager_run(Path(f"{__name__}:step"), self.options)
            assert run is not None, "a function has an eager run"
            if self.figure == LET_GO:
                _ = run.let_go_bytes  # while its function is the one that is meant
            return run
        with TemporaryDirectory() as folder:
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(self.step), encoding="utf-8")
            run = eager_run(config, self.options)
        assert run is not None, "a config has an eager run"
        return run


STEPS: list[Callable[[], Any]] = []


def step() -> Any:
    """Return the step of the measurement that is being predicted."""
    return STEPS[-1]()


def _lora(
    source: str, model: str, shape: Shape, sizes: tuple[int, int], adapters: Adapters | None, published: float
) -> Measurement:
    batch, seq = sizes
    what = "full, gradients accumulated" if adapters is None else f"LoRA {adapters.rank}"
    options = GraphOptions(device="a100" if "A100" in source else A10G, optimizer="adamw", accumulate=adapters is None)
    return Measurement(
        source, model, f"{batch} x {seq}, {what}", partial(gpt, shape, batch, seq, adapters), published, GB, options
    )


A10G = str(Path(__file__).parent / "a10g.yaml")
LITGPT_2023, LITGPT_2024 = "litgpt, October 2023, A100", "litgpt, April to July 2024, A10G"
TORCHTUNE, TORCHTITAN, TRANSFORMERS = (
    "torchtune, November 2024, A100",
    "torchtitan, December 2024, H100",
    "transformers, January 2022, V100",
)


def _bert(setting: str, published: int, batch: int, optimizer: str, *, checkpointing: bool = False) -> Measurement:
    options = GraphOptions(
        dims={"batch": batch, "seq": 512},
        device="v100",
        optimizer=optimizer,
        attention="eager",
        checkpointing=checkpointing,
        accumulate=True,
    )
    said = f"{batch} x 512, float32, {setting}"
    return Measurement(TRANSFORMERS, "BERT large", said, BERT_LARGE, published, MIB, options, "reserved", BERT_CONTEXT)


def _llama(source: str, model: str, setting: str, of: Llama, seq: int, published: float, figure: str) -> Measurement:
    options = GraphOptions(device="a100" if "A100" in source else "h100", optimizer="adamw")
    return Measurement(
        source, model, f"2 x {seq}, {setting}", partial(llama, of, 2, seq), published, GIB, options, figure
    )


_SMALL, _LARGE = partial(Adapters, 8), partial(Adapters, 32)
QV = ("q", "v")
MEASUREMENTS: tuple[Measurement, ...] = (
    _lora(LITGPT_2023, "phi-1.5", PHI_1_5, (1, 1044), _SMALL(QV), 4.82),
    _lora(LITGPT_2023, "phi-1.5", PHI_1_5, (2, 1044), _SMALL(QV), 6.76),
    _lora(LITGPT_2023, "phi-1.5", PHI_1_5, (4, 1044), _SMALL(QV), 10.68),
    _lora(LITGPT_2023, "StableLM Alpha 3B", STABLELM, (1, 1034), _SMALL(QV), 9.69),
    _lora(LITGPT_2023, "StableLM Alpha 3B", STABLELM, (2, 1034), _SMALL(QV), 12.10),
    _lora(LITGPT_2023, "StableLM Alpha 3B", STABLELM, (4, 1034), _SMALL(QV), 16.92),
    _lora(LITGPT_2023, "Llama 2 7B", LLAMA_2_7B, (1, 1304), _SMALL(QV), 21.30),
    _lora(LITGPT_2023, "Llama 2 7B", LLAMA_2_7B, (2, 1304), _SMALL(QV), 29.07),
    _lora(LITGPT_2023, "Llama 2 13B", LLAMA_2_13B, (1, 1304), _SMALL(QV), 38.12),
    _lora(LITGPT_2024, "Falcon 7B", FALCON, (1, 512), _LARGE(QV), 16.69),
    _lora(LITGPT_2024, "Gemma 2B", GEMMA, (2, 512), _SMALL(ALL, 0.1), 12.62),
    _lora(LITGPT_2024, "Llama 2 7B", LLAMA_2_7B, (2, 512), _LARGE(QV), 19.77),
    _lora(LITGPT_2024, "Llama 3 8B", LLAMA_3_8B, (1, 512), _LARGE(QV), 19.73),
    _lora(LITGPT_2024, "Mistral 7B", MISTRAL, (2, 512), _LARGE(QV), 20.66),
    _lora(LITGPT_2024, "phi-2", PHI_2, (4, 512), _SMALL(ALL), 13.98),
    _lora(LITGPT_2024, "Phi-3 mini", PHI_3, (4, 512), _SMALL(ALL), 19.75),
    _lora(LITGPT_2024, "StableLM Alpha 3B", STABLELM, (1, 512), _LARGE(QV), 8.58),
    _lora(LITGPT_2024, "TinyLlama 1.1B", TINY_LLAMA, (8, 512), _LARGE(ALL), 13.50),
    _lora(LITGPT_2024, "TinyLlama 1.1B", TINY_LLAMA, (4, 512), None, 14.10),
    _llama(TORCHTUNE, "Llama 3.2 3B", "full, packed", LLAMA_3_2_3B, 4096, 60.0, LET_GO),
    _llama(
        TORCHTUNE,
        "Llama 3.2 3B",
        "full, packed, compiled, loss in chunks, checkpoints",
        replace(LLAMA_3_2_3B, checkpoints="full", chunks=8),
        4096,
        24.9,
        LET_GO,
    ),
    _llama(TORCHTITAN, "Llama 3.1 8B", "FSDP2 on 8, selective", replace(LLAMA_3_1_8B, ranks=8), 8192, 82.4, "reserved"),
    _llama(
        TORCHTITAN, "Llama 3.1 8B", "FSDP2 on 128, selective", replace(LLAMA_3_1_8B, ranks=128), 8192, 67.0, "reserved"
    ),
    _bert("AdamW", 14949, 4, "adamw"),
    _bert("AdamW", 8681, 1, "adamw"),
    _bert("AdamW, checkpoints", 6775, 1, "adamw", checkpointing=True),
    _bert("Adafactor", 12295, 4, "adafactor"),
    _bert("8-bit Adam", 13085, 4, "adam8bit"),
)


def published(console: Console) -> None:
    """Print predicted beside published figures, and write them as data; without transformers, BERT is left out."""
    rows: list[tuple[str, ...]] = []
    errors: list[float] = []
    for item in MEASUREMENTS:
        try:
            predicted = item.predicted()
        except UsageError as error:
            console.print(f"{item.model}: {error}")
            continue
        errors.append(predicted / item.published - 1)
        unit = {GB: "GB", GIB: "GiB", MIB: "MiB"}[item.unit]
        figures = (f"{figure:,.{0 if item.unit == MIB else 2}f} {unit}" for figure in (item.published, predicted))
        rows.append((item.source, item.model, item.setting, item.figure, *figures, f"{errors[-1]:+.1%}"))
    table = Table(title="Predicted beside published", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in COLUMNS[4:] else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"Median of the errors' sizes: {median(map(abs, errors)):.1%}")
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows((COLUMNS, *rows))
