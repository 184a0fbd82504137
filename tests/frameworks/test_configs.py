"""Models of transformers from their configs: read, planned, and run as planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remat_cli.config import GraphOptions
from remat_cli.errors import UsageError
from remat_cli.studies.eager import eager_run
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


ENCODER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SPEECH: dict[str, Any] = {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2]}
SPEECH |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "GPT2LMHeadModel": ("gpt2", {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}, {"seq": 16}),
    "DebertaV2ForSequenceClassification": ("deberta-v2", ENCODER, {"seq": 16}),
    "BertForMultipleChoice": ("bert", ENCODER, {"seq": 8, "choices": 3}),
    "T5ForConditionalGeneration": (
        "t5",
        {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
        {"seq": 16, "target": 8},
    ),
    "ViTForImageClassification": ("vit", {**ENCODER, "image_size": 16, "patch_size": 8}, {}),
    "CLIPModel": (
        "clip",
        {"text_config": ENCODER, "vision_config": {**ENCODER, "image_size": 16, "patch_size": 8}},
        {"seq": 8},
    ),
    "ASTForAudioClassification": ("audio-spectrogram-transformer", {**ENCODER, "max_length": 32}, {}),
    "HubertForSequenceClassification": ("hubert", {**ENCODER, **SPEECH}, {"samples": 800}),
    "MixtralForCausalLM": (
        "mixtral",
        {**ENCODER, "num_key_value_heads": 1, "num_local_experts": 4, "dtype": "bfloat16"},
        {"seq": 8},
    ),
}


@pytest.mark.parametrize("architecture", OTHERS)
def test_models_of_words_images_and_sound_run_without_data(tmp_path: Path, architecture: str) -> None:
    model_type, sizes, dims = OTHERS[architecture]
    config = written(tmp_path, {"model_type": model_type, "architectures": [architecture], "vocab_size": 96, **sizes})
    run = eager_run(Path(config), GraphOptions(dims={"batch": 2, **dims}))
    assert run is not None
    assert run.peak_bytes > run.graph.fixed_bytes
    assert run.step.bytes[run.step.outputs[0]] <= 4  # the loss, one number


def test_fit_has_settings_of_trainers(remat: Remat, tmp_path: Path) -> None:
    config = written(tmp_path, LLAMA)
    options = ("--dim", "batch", "--dim", "seq=16", "--budget", "200MB", "--at-most", "2", "--planner", "dtr")
    ended = remat("fit", config, *options, "--optimizer", "adamw", "--json")
    assert ended.code == 0, ended.err
    settings = {" ".join(found["settings"]): found for found in ended.json["settings"]}
    assert settings.keys() == {
        *("checkpointing", "optimizer", "checkpointing optimizer", "lora", "checkpointing lora"),
    }
    assert all(found["value"] == 2 for found in settings.values())
    assert settings["lora"]["eager_peak_bytes"] < ended.json["eager"]["eager_peak_bytes"]
