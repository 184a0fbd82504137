"""Public kinds of models, to be exported to ONNX: each function returns a model in training mode, and its inputs.

The networks are those of torchvision, transformers and diffusers, with random weights. What has its size in a
configuration is narrow and shallow, but has the layers of the published model. Attention drops nothing: PyTorch's
exporters write it apart where it does, in part wrongly (an Add of floats and booleans, for operator set 23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.bench.torch_models import UNet

VOCABULARY, LENGTH, WIDTH = 512, 128, 128


@dataclass(frozen=True)
class Case:
    """A model that is exported.

    Attributes:
        model: in training mode.
        inputs: by position.
        then: what is done with the exported file, if anything.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    then: Callable[[Path], None] | None = None


class Called(nn.Module):
    """A model that is called in a way of its own, for one result."""

    def __init__(self, model: nn.Module, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.model, *inputs)


def vision() -> Any:
    """Return `torchvision.models`, also where its compiled ops do not load, as they need the same build of torch."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import models

    return models


def images(batch: int = 2, size: int = 160) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, length))


def classifier(name: str, batch: int = 2, size: int = 160, **options: Any) -> Callable[[], Case]:
    """Return what makes the case of a classifier of torchvision."""
    return lambda: Case(getattr(vision(), name)(**options), (images(batch, size),))


def deeplabv3() -> Case:
    model = vision().segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=5)
    return Case(Called(model, lambda model, x: model(x)["out"]), (images(),))


def retinanet() -> Case:
    """The detector without the choice of boxes at the end, for which torchvision's compiled ops are needed."""
    detector = vision().detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5)

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        found = model.head(list(model.backbone(x).values()))
        return torch.cat([found["cls_logits"].flatten(1), found["bbox_regression"].flatten(1)], 1)

    return Case(Called(detector, call), (images(),))


def unet() -> Case:
    """With its loss."""
    return Case(UNet(), (images(2, 96), torch.randint(5, (2, 96, 96))))


def recurrent(layer: Callable[..., nn.Module]) -> Callable[[], Case]:
    """Return what makes the case of a tagger."""

    def case() -> Case:
        parts = [nn.Embedding(VOCABULARY, WIDTH), layer(WIDTH, WIDTH, 2, batch_first=True), nn.Linear(WIDTH, 10)]

        def call(model: Any, x: torch.Tensor) -> torch.Tensor:
            table, cell, head = model
            result: torch.Tensor = head(cell(table(x))[0])
            return result

        return Case(Called(nn.ModuleList(parts), call), (tokens(16, 64),))

    return case


def language(kind: str, head: str, *inputs: torch.Tensor, float16: bool = False, **options: Any) -> Case:
    """Return the case of a language model of transformers, which reads one sequence of tokens or two."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **options)
    model = getattr(transformers, f"{kind}{head}")(config)

    def call(model: Any, *inputs: torch.Tensor) -> torch.Tensor:
        names = ("input_ids", "decoder_input_ids")
        more = {} if kind in ("Bert", "DebertaV2") else {"use_cache": False}
        logits: torch.Tensor = model(**dict(zip(names, inputs, strict=False)), **more).logits
        return logits

    return Case(Called(model.half() if float16 else model, call), inputs or (tokens(),))


def bert() -> Case:
    return language(
        "Bert", "ForMaskedLM", hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def gpt2(float16: bool = False) -> Case:
    return language(
        "GPT2", "LMHeadModel", n_positions=LENGTH, n_embd=WIDTH, n_layer=4, n_head=4, attn_pdrop=0.0, float16=float16
    )


def llama() -> Case:
    return language(
        "Llama", "ForCausalLM", hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384
    )


def t5() -> Case:
    """Attention as T5 spells it out: its bias is trained, which PyTorch's fused kernel for the CPU does not do."""
    return language(
        "T5", "ForConditionalGeneration", tokens(), tokens(2, 64),
        d_model=WIDTH, d_ff=512, d_kv=32, num_layers=2, num_heads=4, attn_implementation="eager",
    )  # fmt: skip


def neox() -> Case:
    return language(
        "GPTNeoX", "ForCausalLM", hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    )


def deberta() -> Case:
    """Attention that gathers a score for each distance of two tokens."""
    return language(
        "DebertaV2", "ForMaskedLM", tokens(2, 64), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=64,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def mamba() -> Case:
    return language("Mamba", "ForCausalLM", tokens(2, 32), hidden_size=64, num_hidden_layers=2, state_size=8)


def mixture_of_experts() -> Case:
    """Mixtral; each expert sees all tokens, as how many it would see else depends on data."""
    case = language(
        "Mixtral", "ForCausalLM", tokens(2, 64), hidden_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=192, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model: Any = case.model
    model.model.set_experts_implementation("batched_mm")
    return case


def whisper() -> Case:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=40, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, d_model=WIDTH,
        max_source_positions=LENGTH, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, dropout=0.1,
    )  # fmt: skip

    def call(model: Any, sound: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(sound, decoder_input_ids=text, use_cache=False).logits
        return logits

    model = WhisperForConditionalGeneration(config)
    return Case(Called(model, call), (torch.randn(2, 40, 2 * LENGTH), tokens(2, 32)))


def clip() -> Case:
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": WIDTH, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**tower, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1}
    config = CLIPConfig(text_config=text, vision_config={**tower, "image_size": 96, "patch_size": 16})

    def call(model: Any, text: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=text, pixel_values=x).logits_per_image
        return logits

    return Case(Called(CLIPModel(config), call), (tokens(2, 32), images(2, 96)))


def segment_anything() -> Case:
    from transformers import SamConfig, SamModel

    config = SamConfig(
        vision_config={
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 256, "patch_size": 16,
            "mlp_dim": 256, "output_channels": 64, "global_attn_indexes": [1], "window_size": 7,
            "num_pos_feats": 32,
        },
        prompt_encoder_config={"hidden_size": 64, "image_size": 256, "patch_size": 16, "image_embedding_size": 16},
        mask_decoder_config={"hidden_size": 64, "mlp_dim": 256, "iou_head_hidden_dim": 64},
    )  # fmt: skip

    def call(model: Any, x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        masks: torch.Tensor = model(pixel_values=x, input_points=points).pred_masks
        return masks

    return Case(Called(SamModel(config), call), (images(1, 256), torch.rand(1, 1, 2, 2) * 255))


def diffusion_unet() -> Case:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=32, layers_per_block=1, block_out_channels=(32, 64), cross_attention_dim=64, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    inputs = (torch.randn(2, 4, 32, 32), torch.tensor([1, 2]), torch.randn(2, 16, 64))
    return Case(Called(model, lambda model, *inputs: model(*inputs)[0]), inputs)


def autoencoder() -> Case:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    model = AutoencoderKL(block_out_channels=(32, 64), norm_num_groups=8, **blocks)
    return Case(Called(model, lambda model, x: model(x)[0]), (images(2, 64),))


def quantised() -> Case:
    """ResNet-18 with each weight and activation quantised and brought back."""
    return Case(vision().resnet18(), (images(1),), _quantise)


def _quantise(path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class OneImage(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{"input0": images(1).numpy()}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    quantize_static(str(path), str(path), OneImage(), quant_format=QuantFormat.QDQ)


MODELS: Mapping[str, Callable[[], Case]] = {
    "resnet50": classifier("resnet50"),
    "vit_b_16": classifier("vit_b_16", 1, 224),
    "efficientnet_b0": classifier("efficientnet_b0"),
    "convnext_tiny": classifier("convnext_tiny"),
    "densenet121": classifier("densenet121"),
    "deeplabv3": deeplabv3,
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "swin_t": classifier("swin_t"),
    "t5": t5,
    "diffusion_unet": diffusion_unet,
    "mobilenet_v3_large": classifier("mobilenet_v3_large"),
    "vgg11": classifier("vgg11", 1, 224),
    "squeezenet1_1": classifier("squeezenet1_1"),
    "shufflenet_v2": classifier("shufflenet_v2_x1_0"),
    "regnet_y_400mf": classifier("regnet_y_400mf"),
    "maxvit_t": classifier("maxvit_t", 2, 224),
    "retinanet": retinanet,
    "unet": unet,
    "lstm": recurrent(nn.LSTM),
    "gru": recurrent(nn.GRU),
    "neox": neox,
    "deberta": deberta,
    "mamba": mamba,
    "mixture_of_experts": mixture_of_experts,
    "whisper": whisper,
    "clip": clip,
    "segment_anything": segment_anything,
    "autoencoder": autoencoder,
    "gpt2_float16": lambda: gpt2(float16=True),
    "resnet18_quantised": quantised,
}
# The recommended recipe is held against PyTorch for these.
HELD = tuple(MODELS)[:12]
vision()  # transformers imports torchvision, too
