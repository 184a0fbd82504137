"""The recipes for frameworks on the page of PyTorch: each trains as planned, to the bits of the same code unplanned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.torch import plan_of, planned
from tests.places import ROOT
from tests.torch_steps import MLP

PAGE = (ROOT / "remat_cli/pytorch/run/README.md").read_text(encoding="utf-8")
STEPS = 4

# What the libraries themselves warn of.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recipe(name: str) -> str:
    """Return the code below a heading of the page, for a budget that suits a small model."""
    (code,) = re.findall(rf"^### {name}\n[^#]*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert '"8GB"' in code
    return str(code).replace('"8GB"', '"95%"')


def trained(code: str, make: Callable[[], dict[str, Any]], plan: Callable[..., Any]) -> nn.Module:
    """Run a recipe on what `make` gives; return the model."""
    names: dict[str, Any] = make()
    model: nn.Module = names["model"]
    exec(compile(code, "recipe.py", "exec", dont_inherit=True), {**names, "planned": plan})
    return model


def holds(name: str, make: Callable[[], dict[str, Any]], of: str | None = None) -> None:
    """Check that a recipe trains as planned, in less memory, to the same weights; `of` names what is planned."""
    code = recipe(name)
    model = trained(code, make, planned)
    expected = trained(code, make, lambda model, **_: model)
    found = plan_of(model if of is None else model.get_submodule(of))
    assert (found.calls, found.unplanned.total(), found.gradients_unplanned) == (STEPS, 0, False)
    assert any(plan.predicted_peak_bytes < plan.plain_peak_bytes for plan in found.graphs)
    assert all(map(torch.equal, model.state_dict().values(), expected.state_dict().values()))
    assert any(
        not torch.equal(one, other) for one, other in zip(model.parameters(), make()["model"].parameters(), strict=True)
    )


def batches() -> torch.utils.data.DataLoader[Any]:
    rows: Any = torch.randn(64 * STEPS, 16, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(rows, batch_size=64)


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def texts(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Return a batch of texts, padded to the longest."""
    ids = torch.randint(1, 64, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(sum(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def test_trainer_with_padding(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def make() -> dict[str, Any]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=STEPS,
            gradient_accumulation_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        )
        lengths = [24 + 2 * (row % 7) for row in range(4 * STEPS)]
        return {"model": llama(), "arguments": arguments, "dataset": lengths, "collate": texts}

    holds("Hugging Face Trainer", make)


def test_mask_of_ones_has_the_bits_of_attention_with_a_mask() -> None:
    """transformers leaves such a mask out where it can look at its values, which it cannot while it is captured."""
    pytest.importorskip("transformers")

    def gradients(lengths: list[int], change: Callable[[Any], Any]) -> list[Any]:
        model = llama()
        change(model)(**texts(lengths)).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    def plan(model: Any) -> Any:
        return planned(model, budget="100%")

    def as_captured(model: Any) -> Any:
        return torch.compile(model, backend="aot_eager", dynamic=False)

    full = [32, 32]
    assert all(map(torch.equal, gradients([32, 20], plan), gradients([32, 20], lambda model: model)))
    assert all(map(torch.equal, gradients(full, plan), gradients(full, as_captured)))
    assert all(
        torch.allclose(one, other, rtol=1e-4, atol=1e-7)
        for one, other in zip(gradients(full, plan), gradients(full, lambda model: model), strict=True)
    )


def test_lightning() -> None:
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = MLP(depth=4)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def make() -> dict[str, Any]:
        torch.manual_seed(0)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        return {"model": Lit(), "trainer": trainer, "batches": batches()}

    holds("Lightning", make, of="net")


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")

    def make() -> dict[str, Any]:
        torch.manual_seed(0)
        model = MLP(depth=4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return {
            "accelerator": accelerate.Accelerator(cpu=True),
            "model": model,
            "optimizer": optimizer,
            "batches": batches(),
        }

    holds("accelerate", make)


def lora(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))


def test_lora() -> None:
    def make() -> dict[str, Any]:
        base = llama()
        base.enable_input_require_grads()
        model = lora(base)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        return {
            "model": model,
            "optimizer": optimizer,
            "batches": [texts([32, 24 + step % 2]) for step in range(STEPS)],
        }

    holds("PEFT", make)
