"""Training steps of small models, by the functions that GRAPH names: `remat plan tests.bench.torch_models:gpt2 ...`.

Weights and inputs are random, the loss is inside. Those of transformers and diffusers need these libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch_steps import GPT, MLP, ChangingBuffer

Step = tuple[Callable[..., Any], Any]


class OfOutput(nn.Module):
    """A model of a library with the loss: what it returns as such, or the mean square of its largest output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.model(**inputs)
        loss = getattr(outputs, "loss", None)
        first: torch.Tensor = outputs[0] if loss is None else loss
        return first if first.dim() == 0 else first.square().mean()


def gpt(batch: int = 4, length: int = 128, depth: int = 8, width: int = 128) -> Step:
    """Of our own: tied embedding, dropout."""
    model = GPT(depth, width, 512, dropout=0.1)
    return model, (_tokens(512, batch, length), _tokens(512, batch, length))


def gpt_bfloat16(batch: int = 4, length: int = 128) -> Step:
    """The same under autocast."""
    model, inputs = gpt(batch, length)

    def step(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(tokens, targets)

    return step, (model, *inputs)


class LossAndLogits(GPT):
    """Returns its logits beside the loss, as models of transformers do."""

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


def gpt_logits(batch: int = 4, length: int = 128, depth: int = 8, width: int = 128) -> Step:
    """The same with a vocabulary whose logits take as much as its blocks, returned beside the loss."""
    model = LossAndLogits(depth, width, 16_000, dropout=0.1)
    return model, (_tokens(16_000, batch, length), _tokens(16_000, batch, length))


class DoubleConv(nn.Sequential):
    def __init__(self, given: int, made: int, norm: Callable[[int], nn.Module]) -> None:
        parts = [[nn.Conv2d(a, made, 3, padding=1), norm(made), nn.ReLU()] for a in (given, made)]
        super().__init__(*(part for half in parts for part in half))


class UNet(nn.Module):
    """Segmentation with skips and transposed convolutions."""

    def __init__(self, width: int = 8, depth: int = 3, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConv(a, b, norm) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.merge = nn.ModuleList(DoubleConv(2 * size, size, norm) for size in sizes[:-1])
        self.head = nn.Conv2d(width, 5, 1)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        skips = []
        x = images
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for up, merge, skip in zip(self.up[::-1], self.merge[::-1], skips[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return F.cross_entropy(self.head(x), labels)


def unet(batch: int = 4, size: int = 96) -> Step:
    return UNet(), (torch.randn(batch, 3, size, size), torch.randint(5, (batch, size, size)))


class DenseLayer(nn.Module):
    """Adds channels to what it reads, by a bottleneck."""

    def __init__(self, given: int, growth: int) -> None:
        super().__init__()
        self.bottleneck = norm_relu_conv(given, 4 * growth, 1)
        self.grow = norm_relu_conv(4 * growth, growth, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.grow(self.bottleneck(x))], 1)


class DenseNet(nn.Module):
    """DenseNet-121 of Huang et al. (2017), with the growth and the layers of each block as they say."""

    def __init__(self, growth: int = 32, blocks: tuple[int, ...] = (6, 12, 24, 16), classes: int = 10) -> None:
        super().__init__()
        channels = 2 * growth
        parts: list[nn.Module] = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        parts.append(nn.MaxPool2d(3, 2, 1))
        for number, layers in enumerate(blocks):
            if number:
                parts += [norm_relu_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
            for _ in range(layers):
                parts.append(DenseLayer(channels, growth))
                channels += growth
        parts += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.body, self.head = nn.Sequential(*parts), nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(images)), labels)


def norm_relu_conv(given: int, made: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(given, made, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(given), nn.ReLU(), conv)


def densenet121(batch: int = 4, size: int = 64) -> Step:
    return DenseNet(), (torch.randn(batch, 3, size, size), torch.randint(10, (batch,)))


def lstm(batch: int = 64, length: int = 8, width: int = 128) -> Step:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.lstm, self.head = (
                nn.Embedding(100, width),
                nn.LSTM(width, width, 2, batch_first=True, dropout=0.1),
                nn.Linear(width, 10),
            )

        def forward(self, tokens: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.head(self.lstm(self.table(tokens))[0]).flatten(0, 1), tags.flatten())

    return Tagger(), (_tokens(100, batch, length), _tokens(10, batch, length))


def changing_buffer(batch: int = 2048) -> Step:
    """A buffer that is read, changed in place and read again, with batch norm around it."""
    return ChangingBuffer(256), (torch.randn(batch, 256),)


def resnet50(batch: int = 4, size: int = 64) -> Step:
    from transformers import ResNetConfig, ResNetForImageClassification

    return _images(ResNetForImageClassification(ResNetConfig(num_labels=10)), batch, size)


def resnet18(batch: int = 8, size: int = 224) -> Step:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10)
    return _images(ResNetForImageClassification(config), batch, size)


def mlp(batch: int = 1024, width: int = 512, depth: int = 17) -> Step:
    """Equal layers."""
    return MLP(depth, width), (torch.randn(batch, width),)


def efficientnet_b0(batch: int = 4, size: int = 64) -> Step:
    """Depthwise convolutions."""
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, image_size=size, num_labels=10
    )
    return _images(EfficientNetForImageClassification(config), batch, size)


def swin(batch: int = 4, size: int = 64) -> Step:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=size, patch_size=2, embed_dim=32, depths=[2, 2, 2], num_heads=[2, 4, 8], window_size=4, num_labels=10
    )
    return _images(SwinForImageClassification(config), batch, size)


def vit(batch: int = 4, size: int = 64) -> Step:
    """With dropout."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=128, num_hidden_layers=8, num_attention_heads=4, intermediate_size=512, image_size=size,
        patch_size=4, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_labels=10,
    )  # fmt: skip
    return _images(ViTForImageClassification(config), batch, size)


def deeplab(batch: int = 4, size: int = 96) -> Step:
    """MobileNetV2 with the head of DeepLabV3+."""
    from transformers import MobileNetV2Config, MobileNetV2ForSemanticSegmentation

    model = MobileNetV2ForSemanticSegmentation(MobileNetV2Config(image_size=size, depth_multiplier=0.5, num_labels=5))
    labels = torch.randint(5, (batch, size, size))
    return OfOutput(model), {"pixel_values": torch.randn(batch, 3, size, size), "labels": labels}


def gpt2(batch: int = 4, length: int = 96) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=512, n_positions=length, n_embd=128, n_layer=6, n_head=4)
    return _language(GPT2LMHeadModel(config), 512, batch, length)


def bert(batch: int = 4, length: int = 96) -> Step:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=6, num_attention_heads=4, intermediate_size=512
    )
    return _language(BertForMaskedLM(config), 512, batch, length)


def llama(batch: int = 4, length: int = 96, depth: int = 6, width: int = 128, heads: int = 4) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
        intermediate_size=3 * width,
    )  # fmt: skip
    return _language(LlamaForCausalLM(config), 512, batch, length, use_cache=False)


def t5(batch: int = 4, length: int = 64) -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=512, d_model=128, d_ff=512, d_kv=32, num_layers=2, num_heads=4, decoder_start_token_id=0,
        use_cache=False,
    )  # fmt: skip
    return _language(T5ForConditionalGeneration(config), 512, batch, length)


def whisper(batch: int = 4, length: int = 64) -> Step:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=512, num_mel_bins=40, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, d_model=128, max_source_positions=length,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        use_cache=False,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(batch, 40, 2 * length), "labels": _tokens(512, batch, 32)}
    return OfOutput(WhisperForConditionalGeneration(config)), inputs


def mixture_of_experts(batch: int = 4, length: int = 64) -> Step:
    """Mixtral; each expert sees all tokens, as how many it would see else depends on data."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=512, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=192, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=length,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    model.set_experts_implementation("batched_mm")
    return _language(model, 512, batch, length, use_cache=False)


def diffusion_unet(batch: int = 2, size: int = 32) -> Step:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=size, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8,
    )  # fmt: skip
    return OfOutput(model), {"sample": torch.randn(batch, 3, size, size), "timestep": torch.randint(1000, (batch,))}


def _tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length))


def _language(model: nn.Module, vocabulary: int, batch: int, length: int, **more: Any) -> Step:
    tokens = _tokens(vocabulary, batch, length)
    return OfOutput(model), {"input_ids": tokens, "labels": tokens, **more}


def _images(model: nn.Module, batch: int, size: int) -> Step:
    return OfOutput(model), {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(10, (batch,))}
