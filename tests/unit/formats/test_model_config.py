"""Configs of models are told from graphs, and those of which no model is built are refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remat_cli.errors import GraphError
from remat_cli.formats import has_fixed_sizes
from remat_cli.formats.files_read import files_read
from remat_cli.formats.model_config import is_model_config, names_step, read_config
from tests.places import GRAPHS

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def written(folder: Path, document: Any, name: str = "config.json") -> Path:
    (folder / name).write_text(json.dumps(document))
    return folder / name


def test_a_config_is_a_step_and_so_is_its_folder(tmp_path: Path) -> None:
    file = written(tmp_path, LLAMA)
    for path in (file, tmp_path):
        assert is_model_config(path)
        assert names_step(path)
        assert not has_fixed_sizes(path)
        assert files_read(path) == (file,)
        assert read_config(path).name == "LlamaForCausalLM"


@pytest.mark.parametrize(
    "document",
    [
        {"format": "remat.graph/1", "model_type": "llama"},
        {"nodes": [], "model_type": "llama"},
        {"graph": {"model_type": "llama"}},
        {"hidden_size": 64},
        ["model_type"],
    ],
)
def test_graphs_and_other_json_are_no_configs(tmp_path: Path, document: Any) -> None:
    assert not is_model_config(written(tmp_path, document))


def test_no_file_no_folder_and_no_json_is_a_config(tmp_path: Path) -> None:
    broken = tmp_path / "config.json"
    broken.write_text('{"model_type": ')
    assert not any(map(is_model_config, (broken, tmp_path, tmp_path / "absent", GRAPHS / "unet.onnx")))
    assert names_step(Path("train.py:step"))


@pytest.mark.parametrize(
    ("document", "message", "hint"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "without model_type", 'add "model_type"'),
        ({"_class_name": "UNet2DConditionModel"}, "config of diffusers", r"train\.py:step"),
        ({"peft_type": "LORA", "r": 8}, "config of an adapter", "base model, and add --lora 8"),
        ({"model_type": 3}, "without model_type", 'add "model_type"'),
    ],
)
def test_a_config_of_no_model_is_refused(tmp_path: Path, document: Any, message: str, hint: str) -> None:
    with pytest.raises(GraphError, match=message) as refused:
        read_config(written(tmp_path, document))
    assert refused.match(message)
    assert hint.replace("\\", "") in refused.value.hint


def test_an_unknown_type_and_remote_code_are_told_apart(tmp_path: Path) -> None:
    unknown = read_config(written(tmp_path, {"model_type": "lama"})).unknown_type("5.24.0")
    assert "'lama' is unknown to transformers 5.24.0" in unknown.message
    remote = {"model_type": "lama", "auto_map": {"AutoConfig": "configuration.Lama"}}
    assert "remote code, which remat does not run" in read_config(written(tmp_path, remote)).unknown_type("5").message
