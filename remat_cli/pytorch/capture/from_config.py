"""A training step from the config of a model: transformers builds it from its own code.

The sizes that the config leaves open are the arguments of a function, as in a user's file: `load_step`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from remat_cli.errors import UsageError
from remat_cli.formats.functions import load_function, names_function
from remat_cli.formats.model_config import ModelConfig, read_config, refuse_options_of_configs
from remat_cli.formats.reader import ReadOptions
from remat_cli.pytorch.capture.model_inputs import inputs_of
from remat_cli.pytorch.capture.step import Step
from remat_cli.pytorch.unstable.model_classes import built, class_of, classes_for, config_of, quiet
from remat_cli.settings import Setting

_MOST_HEADS = 8
# Layers that training skips, and sound that it masks, at random: tensors without data have no values to decide by.
_RANDOM = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}
# Tasks of peft by the end of the class's name: with these, a head with new weights is trained, too.
_TASKS = {
    "CausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "SequenceClassification": "SEQ_CLS",
    "TokenClassification": "TOKEN_CLS",
    "QuestionAnswering": "QUESTION_ANS",
}


def load_step(reference: str, options: ReadOptions) -> Callable[..., Any]:
    """Return the function that returns a training step; its arguments are dims.

    Args:
        reference: FILE.py:NAME, package.module:NAME, or a model's config.
        options: settings of a model from its config.

    Raises:
        UsageError: there is no such function, it does not go with the options, or transformers is missing.
        GraphError: the file cannot be imported, or the config is of no model.
    """
    if names_function(Path(reference)):
        refuse_options_of_configs(reference, options)
        return load_function(reference)
    return ConfiguredModel.of(read_config(Path(reference)), options)


def notes_on_step(reference: str, step: Step) -> list[str]:
    """Return notes on what a config left open; none for a user's function."""
    if names_function(Path(reference)):
        return []
    assert isinstance(step.model, nn.Module)
    return _notes(read_config(Path(reference)), step.model, step.keyword_inputs)


@dataclass(frozen=True)
class ConfiguredModel:
    """A function that builds a model of transformers and its inputs.

    Attributes:
        config: the model's config.
        options: element type, adapters, attention and checkpoints.
        model_class: class with the head.
    """

    config: ModelConfig
    options: ReadOptions
    model_class: Any

    @classmethod
    def of(cls, config: ModelConfig, options: ReadOptions) -> ConfiguredModel:
        """Find the classes for a config, before any tensor is made.

        Raises:
            UsageError: transformers or peft cannot be imported, or knows no such model.
        """
        _import("transformers", (f"{config.path} is a config of transformers, which",))
        if options.lora is not None:
            _import("peft", (Setting("lora"), " needs peft, which"))
        with quiet():
            if config_of(config.model_type, {}) is None:
                raise config.unknown_type(import_module("transformers").__version__)
            return cls(config, options, _model_class(config))

    @property
    def __signature__(self) -> inspect.Signature:
        """The dims of the model's inputs, with the sizes that the config has of them."""
        sizes: dict[str, int | None] = {}

        def size(name: str, known: int | None) -> int:
            sizes[name] = known
            return known or 1

        inputs_of(self.model_class, self._transformers_config(), size)
        kind, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        return inspect.Signature(
            [inspect.Parameter(name, kind, default=known or empty) for name, known in sizes.items()]
        )

    def __call__(self, **dims: int) -> Step:
        """Return the model in training mode, its inputs, and the labels.

        Raises:
            UsageError: the model has too few positions, or peft knows no modules for its adapters.
        """
        options = self.options
        config = self._transformers_config()
        choices: dict[str, Any] = {}
        if options.dtype is not None:
            choices["dtype"] = getattr(torch, options.dtype)
        if options.attention is not None:
            choices["attn_implementation"] = options.attention
        with quiet():
            base: Any = built(self.model_class, config, choices).train()
            inputs = inputs_of(self.model_class, config, lambda name, known: dims.get(name, known or 1))
            if "seq" in dims:
                _check_positions(base, config, dims["seq"])
            tensors: dict[str, Any] = {name: item.tensor(base.dtype) for name, item in inputs.items()}
            model = base
            if options.lora is not None:
                model = _with_adapters(base, str(options.lora), self.model_class.__name__)
            if options.checkpointing:
                base.activation_checkpointing_enable({"use_reentrant": False})
                # Only reentrant checkpoints need inputs with gradients, and torch captures none that a hook asks for.
                base.disable_input_require_grads()
        if "return_loss" in inspect.signature(self.model_class.forward).parameters:
            tensors["return_loss"] = True
        return Step(model, (), tensors)

    def _transformers_config(self) -> Any:
        with quiet():
            try:
                config = config_of(self.config.model_type, self.config.document)
            except ValueError as error:
                raise UsageError(
                    f"{self.config.path}: transformers refuses this config: {error}", hint="correct that value"
                ) from error
            assert config is not None
            # A cache of keys and values is for generation: trainers leave it out.
            config.use_cache = config.get_text_config().use_cache = False
            for name in _random_parts(config):
                setattr(config, name, _RANDOM[name])
            if config.problem_type is None:  # some models would look at the labels' values
                config.problem_type = "regression" if config.num_labels == 1 else "single_label_classification"
            return config


def _random_parts(config: Any) -> list[str]:
    """Return the settings of a config that skip layers or mask sound at random."""
    return [name for name in _RANDOM if getattr(config, name, None)]


def _import(module: str, needs: tuple[str | Setting, ...]) -> None:
    try:
        import_module(module)
    except ImportError as error:
        raise UsageError((*needs, f" cannot be imported: {error}"), hint="pip install 'remat[transformers]'") from None


def _model_class(config: ModelConfig) -> Any:
    known = ", ".join(classes_for(config.model_type)[:_MOST_HEADS])
    if config.architecture is None:
        raise UsageError(
            f'{config.path} has no "architectures": whether it has a head, and which, is not known',
            hint=f'add "architectures": [NAME], NAME being one of {known}',
        )
    model_class = class_of(config.architecture)
    if model_class is None:
        raise UsageError(
            f"{config.path}: transformers {import_module('transformers').__version__} has no class "
            f"{config.architecture}, and remat runs no remote code",
            hint=f'for model_type {config.model_type!r}, "architectures" may have one of {known}',
        )
    return model_class


def _with_adapters(model: nn.Module, lora: str, architecture: str) -> nn.Module:
    peft = import_module("peft")
    rank, _, named = lora.partition(":")
    modules = named.split(",") if "," in named else named or None
    if modules is not None and named != "all-linear":
        modules = named.split(",")
    task = next((task for end, task in _TASKS.items() if architecture.endswith(end)), None)
    try:
        adapters = peft.LoraConfig(r=int(rank), target_modules=modules, task_type=task)
        adapted: nn.Module = peft.get_peft_model(model, adapters)
    except ValueError as error:
        names = {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
        raise UsageError(
            ("adapters of ", Setting("lora", lora), f": {str(error).splitlines()[0]}"),
            hint=("name modules, such as ", Setting("lora", f"{rank}:{','.join(sorted(names))}")),
        ) from None
    return adapted


def _check_positions(model: nn.Module, config: Any, seq: int) -> None:
    """Check that learned positions suffice for a sequence.

    Raises:
        UsageError: there are fewer.
    """
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    for name, part in model.named_modules():
        if not isinstance(part, nn.Embedding) or ("pos" not in name and not name.endswith("wpe")):
            continue
        if part.num_embeddings - getattr(part, "offset", 0) != most:
            continue
        positions = most - (0 if part.padding_idx is None else part.padding_idx + 1)
        if seq > positions:
            raise UsageError(
                (Setting("dims", {"seq": seq}), f" is beyond the model's {positions} positions ({name})"),
                hint="give a smaller size, or a larger max_position_embeddings in the config",
            )


def _notes(config: ModelConfig, model: nn.Module, inputs: Mapping[str, Any]) -> list[str]:
    sizes = [parameter.numel() for parameter in model.parameters()]
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    given = ", ".join(
        f"{name} {' x '.join(map(str, tensor.shape))}"
        for name, tensor in inputs.items()
        if isinstance(tensor, torch.Tensor)
    )
    dtype = str(getattr(model, "dtype", "")).removeprefix("torch.")
    version = import_module("transformers").__version__
    notes = [
        f"{config.name} of transformers {version}: {sum(sizes):,} parameters in {dtype}, {trained:,} trained; "
        f"inputs: {given}"
    ]
    if "input_ids" in inputs:
        notes.append("sequences have full length: no mask for attention is given")
        if "vision_config" in config.document and "pixel_values" not in inputs:
            notes.append("texts alone: the model takes images, too, and none are given")
    if config.name.endswith("Model") and not {"labels", "return_loss"} & inputs.keys():
        notes.append(f"{config.name} has no head: gradients are those of all that it returns")
    with quiet():
        random_parts = _random_parts(config_of(config.model_type, config.document))
    if random_parts:
        notes.append(f"all layers run on all that is given: {', '.join(random_parts)} is left out")
    if "quantization_config" in config.document:
        notes.append(f"the quantization in {config.path.name} is left out: all weights are in {dtype}")
    return notes
