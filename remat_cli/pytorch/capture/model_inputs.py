"""Inputs and labels of a model of transformers, by its class and config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from remat_cli.errors import UsageError

# Labels by the end of the class's name: one for each token, one for each sample, or one for each token of the target.
_OF_TOKENS = ("CausalLM", "LMHeadModel", "MaskedLM", "TokenClassification", "ForPreTraining", "LMHead")
_OF_SAMPLES = (
    *("SequenceClassification", "ImageClassification", "AudioClassification", "VideoClassification"),
    *("MultipleChoice", "NextSentencePrediction"),
)
_OF_TARGETS = ("ForConditionalGeneration", "ForSpeechSeq2Seq")
_CTC = "ForCTC"
_COLOURS = 3
_TWO_FRAMES = 2  # of a spectrogram become one position of Whisper's encoder
_OWN_FUNCTION = "write a function that returns the model and its inputs, and name it: train.py:step"

# Returns the size of a dim by its name, and the size that the config has of it.
SizeOf = Callable[[str, int | None], int]


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that a model is called with.

    Attributes:
        shape: its shape.
        below: its values are whole numbers below it; None: real numbers.
    """

    shape: tuple[int, ...]
    below: int | None = None

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a random tensor; `dtype` is that of real numbers."""
        return torch.randn(self.shape, dtype=dtype) if self.below is None else torch.randint(self.below, self.shape)


def inputs_of(model_class: Any, config: Any, size: SizeOf) -> dict[str, Input]:
    """Return the inputs of a model, and the labels of its loss, by name.

    A model without a head has no labels.

    Args:
        model_class: its class, from transformers.
        config: its config.
        size: gives each dim its size.

    Raises:
        UsageError: an input or the labels are of a kind that is not known.
    """
    takes = inspect.signature(model_class.forward).parameters
    main = model_class.main_input_name
    make = _MAIN.get(main)
    if make is None:
        raise UsageError(f"{model_class.__name__} takes {main}, and remat knows no sizes for that", hint=_OWN_FUNCTION)
    inputs = {main: make(model_class.__name__, config, size)}
    if "return_loss" in takes and "pixel_values" in takes:  # texts beside their images
        return {**inputs, "pixel_values": _images("", config, size)}
    if "bool_masked_pos" in takes and "MaskedImage" in model_class.__name__:
        *_, height, width = inputs[main].shape
        patch = _of(config, "patch_size") or 1
        return {**inputs, "bool_masked_pos": Input((inputs[main].shape[0], (height // patch) * (width // patch)), 2)}
    return {**inputs, **_labels(model_class.__name__, takes, config, inputs[main], size)}


def _labels(name: str, takes: Mapping[str, Any], config: Any, main: Input, size: SizeOf) -> dict[str, Input]:
    batch = main.shape[0]
    if "start_positions" in takes:
        ends = Input((batch,), main.shape[-1])
        return {"start_positions": ends, "end_positions": ends}
    if "labels" not in takes:
        return {}
    _check_loss(name)
    if "next_sentence_label" in takes:
        return {"labels": main, "next_sentence_label": Input((batch,), 2)}
    if name.endswith(_OF_TARGETS) and config.is_encoder_decoder:
        return {"labels": Input((batch, size("target", None)), _of(config, "vocab_size"))}
    if name.endswith((*_OF_TOKENS, *_OF_TARGETS)) and main.below is not None:
        is_of_words = not name.endswith("TokenClassification")
        return {"labels": main if is_of_words else Input(main.shape, config.num_labels)}
    if name.endswith(_OF_SAMPLES):
        return {"labels": _of_sample(name, config, batch, main)}
    if name.endswith("SemanticSegmentation"):
        return {"labels": Input((batch, *main.shape[-2:]), config.num_labels)}
    raise UsageError(f"what labels {name} takes is not known", hint=_OWN_FUNCTION)


def _check_loss(name: str) -> None:
    """Check that a model's loss does not read the values of its labels.

    Raises:
        UsageError: it does.
    """
    if name.endswith(_CTC):
        base = name.removesuffix(_CTC)
        raise UsageError(
            f"the loss of {name} looks at the labels' values, which tensors without data do not have",
            hint=f'take another head: "architectures": ["{base}ForSequenceClassification"] (or ["{base}Model"]) '
            "in the config has the same layers; its figures then lack the logits of all frames",
        )


def _of_sample(name: str, config: Any, batch: int, main: Input) -> Input:
    if name.endswith("MultipleChoice"):
        return Input((batch,), main.shape[1])
    if name.endswith("NextSentencePrediction"):
        return Input((batch,), 2)
    if config.problem_type == "multi_label_classification":
        return Input((batch, config.num_labels))
    return Input((batch,)) if config.num_labels == 1 else Input((batch,), config.num_labels)


def _words(name: str, config: Any, size: SizeOf) -> Input:
    choices = (size("choices", None),) if name.endswith("MultipleChoice") else ()
    return Input((size("batch", None), *choices, size("seq", None)), _of(config, "vocab_size"))


def _images(name: str, config: Any, size: SizeOf) -> Input:
    side = _of(config, "image_size")
    height, width = side if isinstance(side, list | tuple) else (side, side)
    frames = (size("frames", _of(config, "num_frames")),) if "Video" in name else ()
    sides = (size("image", height),) * 2 if height == width else (size("height", height), size("width", width))
    return Input((size("batch", None), *frames, _of(config, "num_channels") or _COLOURS, *sides))


def _sound(name: str, config: Any, size: SizeOf) -> Input:
    del name
    bins = _of(config, "num_mel_bins")
    if bins is None or not hasattr(config, "max_length"):
        return Input((size("batch", None), size("samples", None)))
    return Input((size("batch", None), size("frames", config.max_length), bins))


def _spectrogram(name: str, config: Any, size: SizeOf) -> Input:
    bins, positions = _of(config, "num_mel_bins"), _of(config, "max_source_positions")
    if bins is None or positions is None or not name.startswith("Whisper"):
        raise UsageError(f"what input_features {name} takes is not known", hint=_OWN_FUNCTION)
    return Input((size("batch", None), bins, _TWO_FRAMES * positions))


_MAIN: Mapping[str, Callable[[str, Any, SizeOf], Input]] = {
    "input_ids": _words,
    "pixel_values": _images,
    "input_values": _sound,
    "input_features": _spectrogram,
}


def _of(config: Any, name: str) -> Any:
    """Return a value of a config, or of the config of its part that has one; None if none has."""
    parts = [config, *(getattr(config, part, None) for part in config.sub_configs)]
    return next((value for part in parts if (value := getattr(part, name, None)) is not None), None)
