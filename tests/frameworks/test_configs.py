"""Models of transformers from their configs: read, planned, and run as planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remat_cli.errors import UsageError
from tests.cli.calls import Remat

pytest.importorskip("transformers")

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96, **TINY}
LLAMA |= {"max_position_embeddings": 64, "torch_dtype": "bfloat16", "num_key_value_heads": 1}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 96, "max_position_embeddings": 16}
BERT |= TINY
SIZED = ("--dim", "batch=2", "--dim", "seq=16")


def written(folder: Path, document: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(document))
    return str(folder)


def peak(remat: Remat, config: str, *options: str) -> int:
    ended = remat("inspect", config, *SIZED, "--json", *options)
    assert ended.code == 0, ended.err
    return int(ended.json["eager"]["peak_bytes"])


def test_a_step_from_a_config_is_the_step_of_a_function(remat: Remat, tmp_path: Path) -> None:
    config = written(tmp_path, LLAMA)
    (tmp_path / "train.py").write_text(
        "import torch, transformers\n"
        f"def step(batch, seq):\n    config = transformers.AutoConfig.for_model(**{LLAMA!r})\n"
        "    config.use_cache = False\n"
        "    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()\n"
        "    ids = torch.randint(96, (batch, seq))\n"
        "    return model, (), {'input_ids': ids, 'labels': ids.clone()}\n"
    )
    assert peak(remat, config) == peak(remat, f"{tmp_path}/train.py:step")


def test_a_plan_from_a_config_runs_as_planned(remat: Remat, tmp_path: Path) -> None:
    config, schedule = written(tmp_path, BERT), str(tmp_path / "schedule.json")
    ended = remat("plan", config, *SIZED, "--budget", "90%", "--planner", "dtr", "-o", schedule, "-q")
    assert ended.code == 0, ended.err
    assert remat("verify", config, schedule, "--execute", "-q").code == 0


def test_settings_of_the_run_change_the_step(remat: Remat, tmp_path: Path) -> None:
    config = written(tmp_path, LLAMA)
    plain = peak(remat, config)
    assert peak(remat, config, "--dtype", "float32") > plain
    assert peak(remat, config, "--checkpointing") < plain
    adapted = remat("inspect", config, *SIZED, "--lora", "4:q_proj", "--checkpointing", "--json").json
    # 2 layers, and two factors of width 32 and rank 4 each.
    assert any("512 trained" in note for note in adapted["notes"])


def test_faults_of_a_call_are_said(remat: Remat, tmp_path: Path) -> None:
    config = written(tmp_path, BERT)
    ended = remat("inspect", config, "--dim", "batch=2")
    assert (ended.code, "needs 'seq'" in ended.err) == (UsageError.exit_code, True)
    ended = remat("inspect", config, "--dim", "batch=2", "--dim", "seq=17")
    assert (ended.code, "beyond the model's 16 positions" in ended.err) == (UsageError.exit_code, True)
    ended = remat("inspect", config, *SIZED, "--lora", "4:nothing")
    assert (ended.code, "--lora 4:" in ended.err) == (UsageError.exit_code, True)
    for change, fault in (
        ({"model_type": "lama"}, "is unknown to transformers"),
        ({"architectures": None}, "BertForMaskedLM"),
        ({"architectures": ["BertForMe"]}, "no class BertForMe"),
    ):
        ended = remat("inspect", written(tmp_path, {**BERT, **change}), *SIZED)
        assert (ended.code, fault in ended.err) == (UsageError.exit_code, True)
