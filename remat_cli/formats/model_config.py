"""GRAPH as a model's config: the `config.json` of Hugging Face's transformers, or a folder with it."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import getsize, isdir, isfile  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from typing import Any

from remat_cli.errors import GraphError, RematError, UsageError
from remat_cli.formats.functions import names_function
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import LARGEST_CONFIG, Source
from remat_cli.settings import Setting

_FILE = "config.json"
# A JSON object with one of these keys is a config of transformers, or of a library beside it.
_KEYS = ("model_type", "architectures", "auto_map", "transformers_version", "peft_type", "_class_name")
_OF_GRAPHS = ("format", "nodes")
# Settings of the run that a config leaves open, and that a function of the user's decides itself.
_OF_CONFIGS = ("dtype", "lora", "attention", "checkpointing")
_OWN_FUNCTION = "write a function that returns the model and its inputs, and name it: train.py:step"


@dataclass(frozen=True)
class ModelConfig:
    """The config of a model of transformers.

    Attributes:
        path: the file.
        document: the JSON object in it, with a model type.
    """

    path: Path
    document: dict[str, Any]

    @property
    def model_type(self) -> str:
        """The name by which transformers knows the family of models."""
        return str(self.document["model_type"])

    @property
    def architecture(self) -> str | None:
        """The class with the model's head; None if the config names none."""
        names = self.document.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    @property
    def name(self) -> str:
        """The name of the model's graph."""
        return self.architecture or self.model_type

    def unknown_type(self, version: str) -> RematError:
        """Return the error for a model type that transformers of this version does not know."""
        where = f"{self.path}: model_type {self.model_type!r}"
        if "auto_map" in self.document:
            return UsageError(f"{where} is of remote code, which remat does not run", hint=_OWN_FUNCTION)
        return UsageError(
            f"{where} is unknown to transformers {version}",
            hint=f"check its spelling, or upgrade transformers; or {_OWN_FUNCTION}",
        )


def config_file(path: Path) -> Path:
    """Return the config in a folder; any other path as it is."""
    return path / _FILE if isdir(path) and isfile(path / _FILE) else path


def is_model_config(path: Path) -> bool:
    """Tell whether `path` is a model's config, or a folder with one."""
    file = config_file(path)
    if not isfile(file) or not 0 < getsize(file) <= LARGEST_CONFIG:
        return False
    try:
        source = Source(file)
        if not source.is_json or not any(f'"{key}"'.encode() in source.content for key in _KEYS):
            return False
        document = source.document
    except GraphError:  # the readers of graphs say what is wrong with the file
        return False
    return any(key in document for key in _KEYS) and not any(key in document for key in _OF_GRAPHS)


def names_step(path: Path) -> bool:
    """Tell whether `path` names a PyTorch step: a function, or a model's config."""
    return names_function(path) or is_model_config(path)


def read_config(path: Path) -> ModelConfig:
    """Read a model's config.

    Args:
        path: a path that `is_model_config` accepts.

    Raises:
        GraphError: it has no model type, or is that of an adapter or a pipeline.
    """
    file = config_file(path)
    document = Source(file).document
    if "peft_type" in document:
        raise GraphError(
            f"{file}: a config of an adapter, not of a model",
            hint=("name the config of its base model, and add ", Setting("lora", document.get("r") or 16)),
        )
    if not isinstance(document.get("model_type"), str):
        what = "a config of diffusers" if "_class_name" in document else "a config without model_type"
        raise GraphError(
            f"{file}: {what}, of which transformers builds no model",
            hint=f'add "model_type", such as "llama", if it is one of transformers; or {_OWN_FUNCTION}',
        )
    return ModelConfig(file, document)


def refuse_options_of_configs(where: object, options: ReadOptions) -> None:
    """Refuse options that only a model's config leaves open.

    Args:
        where: the function or file, for messages.
        options: its options.

    Raises:
        UsageError: one of them is set.
    """
    for name in _OF_CONFIGS:
        if getattr(options, name):
            raise UsageError(
                (Setting(name), f" has no meaning for {where}: it goes with the config.json of a model"),
                hint="leave it out; what a function returns, it sets itself",
            )
