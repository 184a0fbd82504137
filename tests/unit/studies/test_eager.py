"""What a step takes without a plan, beside what torch's profiler measures of a training loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from remat_cli.config import GraphOptions
from remat_cli.errors import GraphError
from remat_cli.studies.eager import EagerReplay, eager_run
from tests.loops import peak_of_loop
from tests.torch_steps import Block

WIDTH, WORDS, LENGTH, BATCH = 32, 300, 32, 4
# The generator's states that checkpoints keep are not predicted.
TOLERANCE = 0.03


class Low(nn.Module):
    """A frozen layer, and what LoRA adds."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + 2.0 * self.b(self.a(F.dropout(x, 0.05)))
        return result


class Words(nn.Module):
    """Returns loss, logits and hidden states, as models of transformers do."""

    def __init__(self, *, checkpoints: bool = False, wide_logits: bool = False, depth: int = 3) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block(WIDTH, 2, 0.0) for _ in range(depth))
        self.checkpoints, self.wide_logits = checkpoints, wide_logits

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
        hidden = [self.embedding(tokens)]
        for block in self.blocks:
            last = hidden[-1]
            hidden.append(checkpoint(block, last, use_reentrant=False) if self.checkpoints else block(last))
        logits = self.head(hidden[-1])
        logits = logits.float() if self.wide_logits else logits
        return {"loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits, "hidden": hidden}


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.one, self.other = nn.Linear(WIDTH, 10), nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = self.body(x)
        return self.one(features), self.other(features)


class Images(nn.Module):
    """A step with large kernels' workspace: oneDNN reorders images."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.norm(self.down(x)).relu(), 2)
        result: torch.Tensor = self.up(F.interpolate(x, scale_factor=2, mode="bilinear"))
        return result


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)[0]
        return result


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, WORDS, (BATCH, LENGTH)), torch.randint(0, WORDS, (BATCH, LENGTH))


def logits() -> Any:
    return Words(), tokens()


def low_rank() -> Any:
    model = Words().requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.up = Low(block.qkv), Low(block.up)  # type: ignore[arg-type]
    return model, tokens()


def frozen() -> Any:
    model = Words()
    model.embedding.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    return model, tokens()


def bfloat16() -> Any:
    return Words(wide_logits=True).bfloat16(), tokens()


def autocast() -> Any:
    def step(model: nn.Module, *inputs: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(*inputs)

    return step, (Words(), *tokens())


def checkpoints() -> Any:
    return Words(checkpoints=True, depth=8), tokens()


def heads() -> Any:
    return Heads(), torch.randn(128, WIDTH)


def images() -> Any:
    return Images(), torch.randn(4, 3, 16, 16)


def many_images() -> Any:
    """So many that their kernels are run on fewer."""
    return Images(), torch.randn(50, 3, 96, 96)


def recurrent() -> Any:
    return Recurrent(), torch.randn(BATCH, 50, WIDTH)


def losses() -> Any:
    """Their kernels return one number in the storage of all terms."""
    linear = nn.Linear(WIDTH, WIDTH)

    def step(x: torch.Tensor) -> Any:
        result = linear(x)
        several = (F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss, F.huber_loss, F.l1_loss)
        return sum(loss(result, x) for loss in several) + F.binary_cross_entropy(result.sigmoid(), x.sigmoid())

    return step, torch.randn(128, WIDTH)


def two_models() -> Any:
    """One teaches the other, whose module is in no argument."""
    student = Words(depth=1)

    def step(teacher: nn.Module, *inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            taught = teacher(*inputs)["logits"]
        returned = student(*inputs)
        return {**returned, "loss": returned["loss"] + (returned["logits"] - taught).square().mean()}

    return step, (Words(), *tokens())


def uncapturable() -> Any:
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        torch._dynamo.graph_break()
        return model(x).square().mean()

    return step, (nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH))


def of_data() -> Any:
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        return model(x).mean() if x.sum().item() > 0 else model(x).sum()

    return step, (nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH))


def predicted(build: Callable[[], Any], **options: Any) -> EagerReplay:
    run = eager_run(Path(f"{__name__}:{build.__name__}"), GraphOptions(**options))
    assert run is not None
    return run


@pytest.mark.parametrize(
    "build", [logits, low_rank, frozen, bfloat16, autocast, checkpoints, heads, two_models], ids=lambda f: f.__name__
)
def test_peak_is_that_of_a_loop_which_holds_what_the_model_returns(build: Callable[[], Any]) -> None:
    run = predicted(build)
    peak = run.peak_bytes - run.graph.fixed_bytes
    assert peak == pytest.approx(peak_of_loop(build), rel=TOLERANCE)


@pytest.mark.parametrize("build", [images, losses, heads, logits], ids=lambda f: f.__name__)
def test_peak_is_exact_with_the_workspace_of_kernels(build: Callable[[], Any]) -> None:
    run = predicted(build)
    assert run.peak_bytes - run.graph.fixed_bytes == peak_of_loop(build)


@pytest.mark.parametrize("build", [many_images, recurrent], ids=lambda f: f.__name__)
def test_peak_with_the_workspace_of_fewer_images_or_a_flat_reserve(build: Callable[[], Any]) -> None:
    run = predicted(build)
    assert run.peak_bytes - run.graph.fixed_bytes == pytest.approx(peak_of_loop(build), rel=0.001)


def test_gradients_of_an_earlier_step_are_there_before_also_of_a_model_that_no_argument_names() -> None:
    without, run = predicted(two_models), predicted(two_models, accumulate=True)
    gradients = sum(4 * parameter.numel() for parameter in Words(depth=1).parameters())
    assert run.graph.fixed_bytes == without.graph.fixed_bytes + gradients
    measured = peak_of_loop(two_models, accumulate=True)
    assert run.peak_bytes - run.graph.fixed_bytes == pytest.approx(measured, rel=TOLERANCE)


def test_letting_go_of_outputs_has_its_own_figure() -> None:
    run = predicted(logits)
    assert run.let_go_bytes == run.peak_bytes - 4 * BATCH * LENGTH * WORDS
    assert run.let_go_bytes - run.graph.fixed_bytes == peak_of_loop(logits, held=False)
    assert predicted(heads).let_go_bytes == predicted(heads).peak_bytes


def test_what_is_kept_is_named_by_the_module_that_made_it() -> None:
    run = predicted(heads)
    # What relu returns is kept twice, by itself and by the next layer: one storage.
    assert {part.module: part.bytes for part in run.kept_by_module} == {
        "body.1": 4 * 128 * 4 * WIDTH,
        "body.2": 4 * 128 * WIDTH,
    }
    assert {part.source for part in run.kept_by_module} == {run.kept_by_module[0].source}
    assert str(run.kept_by_module[0].source).rpartition(":")[0].endswith("test_eager.py")


def test_step_that_cannot_be_captured_has_a_peak_and_one_that_looks_at_data_none() -> None:
    assert predicted(uncapturable).peak_bytes > predicted(uncapturable).graph.fixed_bytes
    with pytest.raises(GraphError, match="failed at"):
        predicted(of_data)


def test_a_file_and_a_fused_step_have_no_eager_run() -> None:
    assert eager_run(Path("model.onnx"), GraphOptions()) is None
    assert eager_run(Path(f"{__name__}:heads"), GraphOptions(fused=True)) is None


def test_workspace_that_a_plan_does_not_count_has_its_own_figure() -> None:
    assert predicted(images).uncounted_bytes > predicted(images).peak_bytes / 10
    assert predicted(logits).uncounted_bytes == 0
