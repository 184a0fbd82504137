"""Eager's step on tensors without data: what the judge makes of it is what torch allocates."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Phase
from remat_cli.core.simulate import simulate
from remat_cli.errors import GraphError
from remat_cli.formats.functions import load_function
from remat_cli.formats.reader import ReadOptions
from remat_cli.prepare import prepare_reading
from remat_cli.pytorch.capture.eager import run_eagerly
from remat_cli.pytorch.capture.reader import callable_of, modules_of, take_step
from remat_cli.pytorch.capture.step import as_step
from remat_cli.pytorch.run.execution import StepRuns
from tests import torch_steps

# Of the generator, which a checkpoint keeps.
STATE_BYTES = torch.get_rng_state().numel()


def predicted(reference: str, *checkpoints: str, accumulate: bool = False) -> int:
    step = run_eagerly(reference, ReadOptions(), checkpoints=checkpoints, accumulate=accumulate)
    graph = prepare_reading(step.reading("step"), reference, GraphOptions()).graph
    return simulate(graph, step.schedule).peak_bytes - graph.fixed_bytes


def measured(reference: str, *checkpoints: str, accumulate: bool = False) -> int:
    torch.manual_seed(0)
    step = as_step(load_function(reference)(), reference)
    for path in checkpoints:
        part = modules_of(step)[0].get_submodule(path)
        part.forward = partial(checkpoint, part.forward, use_reentrant=False)
    graph = take_step(reference, ReadOptions()).reading().graph
    runs = StepRuns(step, reference, graph, 0, accumulate)
    runs.run(callable_of(step.model))
    return runs.peak(callable_of(step.model))


@pytest.mark.parametrize("name", ["deep_gpt", "stages", "changing_buffer"])
def test_peak_is_the_measured_one(name: str) -> None:
    reference = f"tests.torch_steps:{name}"
    assert predicted(reference) == measured(reference)


def test_peak_with_checkpoints_is_the_measured_one_but_for_states_of_the_generator() -> None:
    reference, paths = "tests.torch_steps:deep_gpt", ("blocks.0", "blocks.1", "blocks.3")
    beyond = measured(reference, *paths) - predicted(reference, *paths)
    assert 0 <= beyond <= len(paths) * STATE_BYTES
    assert predicted(reference, *paths) < 0.9 * predicted(reference)


def test_gradients_that_are_there_before_count_before() -> None:
    reference = "tests.torch_steps:stages"
    assert predicted(reference, accumulate=True) == measured(reference, accumulate=True)


def test_tells_what_ran_again_and_what_was_there_before() -> None:
    step = run_eagerly("tests.torch_steps:stages", ReadOptions(), checkpoints=("stages.1",))
    again = [op for op in step.ops if op.again is not None]
    assert {op.again for op in again} == {"stages.1"}
    assert {op.phase for op in again} == {Phase.BACKWARD}
    assert len(step.inputs) == len(list(torch_steps.Stages(2).parameters())) + 1


def test_what_autograd_keeps_has_the_modules_in_which_it_is_kept() -> None:
    step = run_eagerly("tests.torch_steps:stages", ReadOptions(), looked_at=True)
    assert any(kept.modules == ("", "stages.0", "stages.0.1") for kept in step.kept)
    assert [call.path for call in step.calls if call.kind == "Sequential"] == ["stages.0", "stages.1"]


def test_checkpoints_in_a_step_of_two_modules_are_refused() -> None:
    with pytest.raises(GraphError, match="one module, and the step has 2"):
        run_eagerly(f"{__name__}:two", ReadOptions(), checkpoints=("0",))


def two() -> object:
    def loss(one: torch.nn.Module, other: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = other(one(x)).sum()
        return result

    return loss, (torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.randn(2, 4))


class Masked(nn.Module):
    """Looks for packed sequences as models of transformers do, and returns more than its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if position_ids is None:
            position_ids = torch.arange(x.shape[1])[None]
        masking = sys.modules["transformers.masking_utils"]
        logits = self.layer(x)
        if masking.find_packed_sequence_indices(position_ids.expand(len(x), -1)) is not None:
            logits = logits.cos()
        return {"loss": logits.square().mean(), "logits": logits}


def masked() -> Any:
    return Masked(), torch.randn(2, 3, 4)


def packed() -> Any:
    return Masked(), (torch.randn(2, 3, 4), torch.arange(3)[None])


@pytest.mark.parametrize(("reference", "masks"), [("masked", False), ("packed", True)])
def test_transformers_masks_are_those_of_eager_where_no_positions_are_given(
    monkeypatch: pytest.MonkeyPatch, reference: str, masks: bool
) -> None:
    def looks(position_ids: torch.Tensor) -> torch.Tensor:  # what it says of tensors without data
        return position_ids

    masking = SimpleNamespace(find_packed_sequence_indices=looks)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masking)
    step = run_eagerly(f"{__name__}:{reference}", ReadOptions())
    assert any(op.operator.type == "aten.cos" for op in step.ops) == masks
    assert masking.find_packed_sequence_indices is looks


def test_backward_pass_is_that_of_the_loss_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", SimpleNamespace())
    monkeypatch.setattr(Masked, "forward", lambda self, x: {"loss": self.layer(x).mean(), "logits": self.layer(x)})
    step = run_eagerly(f"{__name__}:masked", ReadOptions())
    assert [step.bytes[op.makes[0]] for op in step.ops if op.operator.type == "aten.ones_like"] == [4]
    assert sum(op.operator.type == "aten.addmm" for op in step.ops) == 2
