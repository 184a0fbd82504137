"""Steps from configs, as far as they go without transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from remat_cli.errors import UsageError
from remat_cli.formats.reader import ReadOptions
from remat_cli.pytorch.capture.from_config import load_step


def config_in(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return str(folder)


@pytest.mark.parametrize("missing", ["transformers", "peft"])
def test_a_missing_library_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing == "peft":
        pytest.importorskip("transformers")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=f"{missing}, which cannot be imported") as refused:
        load_step(config_in(tmp_path), ReadOptions(lora="8"))
    assert refused.value.hint == "pip install 'remat[transformers]'"


@pytest.mark.parametrize(
    "options",
    [
        ReadOptions(dtype="bfloat16"),
        ReadOptions(lora="8"),
        ReadOptions(attention="eager"),
        ReadOptions(checkpointing=True),
    ],
    ids=["dtype", "lora", "attention", "checkpointing"],
)
def test_a_function_makes_its_model_itself(options: ReadOptions) -> None:
    with pytest.raises(UsageError, match=r"has no meaning for tests\.torch_steps:mlp"):
        load_step("tests.torch_steps:mlp", options)


def test_a_config_that_transformers_refuses_is_the_users_to_mend(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = Path(config_in(tmp_path)) / "config.json"
    path.write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": "wide"}')
    with pytest.raises(
        UsageError, match="transformers refuses this config: Field 'hidden_size' expected int"
    ) as refused:
        load_step(str(path), ReadOptions())(batch=1)
    assert refused.value.hint == "correct that value"
