"""Inputs and labels follow from a class's name, what it takes, and its config."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.capture.model_inputs import Input, inputs_of

SIZES = {"batch": 2, "seq": 5, "target": 3, "choices": 4, "samples": 100}


def inputs(name: str, takes: str, main: str = "input_ids", **config: Any) -> dict[str, Input]:
    """Return the inputs of a class whose forward pass takes these arguments."""
    forward = eval(f"lambda self, {takes}: None")
    model_class = type(name, (), {"forward": forward, "main_input_name": main})
    known: dict[str, Any] = {"vocab_size": 11, "num_labels": 7, "problem_type": None, "is_encoder_decoder": False}
    settings = SimpleNamespace(**{**known, **config}, sub_configs={"vision_config": None})
    return inputs_of(model_class, settings, lambda dim, size: SIZES.get(dim, size or 1))


WORDS = Input((2, 5), 11)


@pytest.mark.parametrize(
    ("name", "takes", "labels"),
    [
        ("LlamaForCausalLM", "input_ids, labels", {"labels": WORDS}),
        ("GPT2LMHeadModel", "input_ids, labels", {"labels": WORDS}),
        ("BertForPreTraining", "labels, next_sentence_label", {"labels": WORDS, "next_sentence_label": Input((2,), 2)}),
        ("BertForTokenClassification", "input_ids, labels", {"labels": Input((2, 5), 7)}),
        ("BertForSequenceClassification", "input_ids, labels", {"labels": Input((2,), 7)}),
        ("BertForNextSentencePrediction", "input_ids, labels", {"labels": Input((2,), 2)}),
        ("LlavaForConditionalGeneration", "input_ids, pixel_values, labels", {"labels": WORDS}),
        (
            "BertForQuestionAnswering",
            "input_ids, start_positions, end_positions",
            {"start_positions": Input((2,), 5), "end_positions": Input((2,), 5)},
        ),
        ("BertModel", "input_ids", {}),
    ],
)
def test_labels_of_words(name: str, takes: str, labels: dict[str, Input]) -> None:
    assert inputs(name, takes) == {"input_ids": WORDS, **labels}


def test_labels_of_regression_and_of_several_classes_are_real_numbers() -> None:
    takes = "input_ids, labels"
    assert inputs("BertForSequenceClassification", takes, num_labels=1)["labels"] == Input((2,))
    several = {"problem_type": "multi_label_classification"}
    assert inputs("BertForSequenceClassification", takes, **several)["labels"] == Input((2, 7))


def test_a_target_has_its_own_length() -> None:
    made = inputs("T5ForConditionalGeneration", "input_ids, labels", is_encoder_decoder=True)
    assert made == {"input_ids": WORDS, "labels": Input((2, 3), 11)}


def test_a_ctc_loss_is_refused_with_another_head() -> None:
    with pytest.raises(UsageError, match="looks at the labels' values") as error:
        inputs("HubertForCTC", "input_values, labels", "input_values")
    assert '"architectures": ["HubertForSequenceClassification"] (or ["HubertModel"]' in str(error.value.hint)


def test_choices_are_a_dim() -> None:
    made = inputs("BertForMultipleChoice", "input_ids, labels")
    assert made == {"input_ids": Input((2, 4, 5), 11), "labels": Input((2,), 4)}


def test_images_have_the_sides_of_the_config() -> None:
    takes, main = "pixel_values, labels", "pixel_values"
    made = inputs("ViTForImageClassification", takes, main, image_size=32)
    assert made == {"pixel_values": Input((2, 3, 32, 32)), "labels": Input((2,), 7)}
    made = inputs("SwinForImageClassification", takes, main, image_size=[32, 16], num_channels=1)
    assert made["pixel_values"] == Input((2, 1, 32, 16))
    made = inputs("SegformerForSemanticSegmentation", takes, main, image_size=32)
    assert made["labels"] == Input((2, 32, 32), 7)
    made = inputs("ViTForMaskedImageModeling", "pixel_values, bool_masked_pos", main, image_size=32, patch_size=8)
    assert made["bool_masked_pos"] == Input((2, 16), 2)
    part = SimpleNamespace(image_size=8)
    made = inputs("CLIPModel", "input_ids, pixel_values, return_loss", vision_config=part)
    assert made == {"input_ids": WORDS, "pixel_values": Input((2, 3, 8, 8))}


def test_spectrograms_are_those_of_the_config() -> None:
    takes, sizes = "input_features, labels", {"num_mel_bins": 80, "max_source_positions": 30}
    made = inputs("WhisperForConditionalGeneration", takes, "input_features", is_encoder_decoder=True, **sizes)
    assert made == {"input_features": Input((2, 80, 60)), "labels": Input((2, 3), 11)}
    made = inputs("ASTForAudioClassification", "input_values, labels", "input_values", num_mel_bins=16, max_length=9)
    assert made["input_values"] == Input((2, 9, 16))


@pytest.mark.parametrize(
    ("name", "takes", "main"),
    [
        ("DetrForObjectDetection", "pixel_values, labels", "pixel_values"),
        ("SamModel", "points", "points"),
        ("Speech2TextForConditionalGeneration", "input_features, labels", "input_features"),
    ],
)
def test_inputs_that_are_not_known_are_refused(name: str, takes: str, main: str) -> None:
    with pytest.raises(UsageError, match=r"known|knows") as refused:
        inputs(name, takes, main, image_size=8)
    assert "train.py:step" in refused.value.hint


def test_values_are_those_that_a_model_takes() -> None:
    words = Input((3, 50), 4).tensor(torch.float32)
    assert words.dtype == torch.int64
    assert set(words.flatten().tolist()) == {0, 1, 2, 3}
    assert Input((2, 3)).tensor(torch.bfloat16).dtype == torch.bfloat16
