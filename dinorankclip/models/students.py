"""Builds the students that learn from the teachers: small networks with one class token and dense tokens.

    vit-tiny      192 wide, 12 deep, 3 heads: the paper's student, 5.5M parameters (D21)    image and text
    vit-mini      96 wide, 4 deep, 3 heads                                                  image and text
    vit-micro     64 wide, 3 deep, 2 heads: for images of 48 to 64 pixels on two CPU cores  image and text
    resnet50, mobilenetv3-large   from timm, for the ablation                               image
    resnet-micro      ResNet's residual pairs of 3×3 convolutions; for bottlenecks it has too few channels
    mobilenet-micro   MobileNetV3's inverted residuals: depthwise, squeeze and excitation, hard swish

vit-micro cuts images into patches of 8 pixels. The other ViTs cut small images into 8×8 patches, and large ones into
patches of 16 pixels. Students have the trunk's inputs: images normalised by the trunk, token ids of the trunk's
tokenizer. Initial weights come from seeds of their own.

Shapes: B images or captions, S image side, s = ⌈S/8⌉, L dense tokens, C width of a student.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinorankclip.seeds import drawing_from
from dinorankclip.types import UserError

CLASSES = 1000  # classes of the classifier, which published counts include and a student does not have
SMALL_SIDE = 128  # up to here an image is cut into 8×8 patches
SMALL_GRID = 8
PATCH = 16
_INIT_STD = 0.02
_IN_TIMM = {"resnet50": "resnet50", "mobilenetv3-large": "mobilenetv3_large_100"}
CONVOLUTIONAL = (*_IN_TIMM, "resnet-micro", "mobilenet-micro")
_MOBILENET_HEAD = 1280  # MobileNetV3 widens its pooled features before classifying; the student leaves that out
_LEAST_GRID = 7
_GROUPS, _GROUP_SIZE = 32, 8
_STRIDE, _WIDTH = 8, 64  # pixels of a cell and channels in the micro networks


@dataclass(frozen=True)
class Shape:
    width: int
    depth: int
    heads: int
    patch: int | None = None  # pixels; by default `patch_for` the image size


# Model folders store the name alone: a name never changes its shape, a new shape takes a new name.
SHAPES = {"vit-tiny": Shape(192, 12, 3), "vit-mini": Shape(96, 4, 3), "vit-micro": Shape(64, 3, 2, patch=8)}


@dataclass
class StudentFeatures:
    """Holds the output of a student. Image tokens come row by row of `student.grid` and have no mask."""

    summary: Tensor  # [B, C], the class token
    tokens: Tensor  # [B, L, C]
    mask: Tensor | None = None  # bool [B, L], text only: False for padding and for the class token's own place


def image_student(name: str, image_size: int, seed: int = 0) -> ImageStudent:
    """Build a student with `.width`, `.grid`, `.classifier_parameters`: images [B, 3, S, S] → `StudentFeatures`."""
    with drawing_from(seed, "student image"):
        if name in SHAPES:
            return ViTStudent(SHAPES[name], image_size)
        if name in CONVOLUTIONAL:
            return _conv_student(name, image_size)
    raise UserError(f"no image student is called '{name}'; there are {', '.join([*SHAPES, *CONVOLUTIONAL])}")


def text_student(name: str, context_length: int, table_width: int, seed: int = 0) -> TextStudent:
    """Build a student with `.width`: (ids [B, L], token table) → `StudentFeatures`."""
    if name not in SHAPES:
        raise UserError(f"no text student is called '{name}'; there are {', '.join(SHAPES)}")
    with drawing_from(seed, "student text"):
        return TextStudent(SHAPES[name], context_length, table_width)


def patch_for(image_size: int, fixed: int | None = None) -> int:
    """Return the side of a patch: `fixed`, else an eighth of an image up to 128 pixels, and 16 above."""
    patch = fixed or (image_size // SMALL_GRID if image_size <= SMALL_SIDE else PATCH)
    if not patch or image_size % patch:
        raise UserError(f"a student cannot cut {image_size} pixels into whole patches; use a multiple of 16")
    return patch


class ViTStudent(nn.Module):
    """Runs timm's ViT without a classifier; returns all tokens after its final norm."""

    def __init__(self, shape: Shape, image_size: int) -> None:
        super().__init__()
        patch = patch_for(image_size, shape.patch)
        self.vit = VisionTransformer(
            img_size=image_size,
            patch_size=patch,
            embed_dim=shape.width,
            depth=shape.depth,
            num_heads=shape.heads,
            num_classes=0,
        )
        self.width = shape.width
        self.grid = (image_size // patch, image_size // patch)
        self.classifier_parameters = (shape.width + 1) * CLASSES

    def forward(self, images: Tensor) -> StudentFeatures:
        tokens = self.vit.forward_features(images)
        return StudentFeatures(tokens[:, 0], tokens[:, 1:])


def count(student: nn.Module) -> int:
    """Count the parameters of a student, which has no classifier."""
    return sum(parameter.numel() for parameter in student.parameters())


def describe(name: str, student: nn.Module) -> str:
    """Return text such as `resnet50: 23.51M parameters, 25.56M with a classifier of 1000 classes`."""
    own = count(student)
    line = f"{name}: {own / 1e6:.2f}M parameters"
    extra = getattr(student, "classifier_parameters", 0)
    return line + (f", {(own + extra) / 1e6:.2f}M with a classifier of {CLASSES} classes" if extra else "")


def token_table(towers: Any) -> Tensor:
    """Return the token embeddings [V, W] of an open_clip model's text tower, which the text student borrows."""
    text = getattr(towers, "text", towers)
    table = getattr(text, "token_embedding", None)
    if not isinstance(table, nn.Embedding):
        raise UserError("a text student needs a trunk with CLIP's own text tower; this one's has no token table")
    return table.weight


def up_to(position: Tensor, length: int) -> Tensor:
    """Return bool [B, length], True before `position` [B]."""
    return torch.arange(length, device=position.device) < position[:, None]


class _Layer(nn.Module):
    """Applies attention and MLP, each after a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Run the layer; `visible` [B, 1, 1, L] is True for the tokens that take part."""
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class TextStudent(nn.Module):
    """A bidirectional transformer over the trunk's token ids; padding is masked, end-of-text is the class token.

    Its embedding is the trunk's token table, detached and projected (D20): the vocabulary's 25 million numbers are
    not learnt twice, and distillation sends no gradient into the trunk.
    """

    def __init__(self, shape: Shape, context_length: int, table_width: int) -> None:
        super().__init__()
        self.width = shape.width
        # The table starts at a scale of 0.01 to 0.02 and moves during training: normalise before projecting.
        self.norm_table = nn.LayerNorm(table_width)
        self.project = nn.Linear(table_width, shape.width)
        self.positions = nn.Parameter(torch.empty(context_length, shape.width))
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        nn.init.normal_(self.positions, std=_INIT_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=_INIT_STD)
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor, table: Tensor) -> StudentFeatures:
        """Map token ids [B, L] (start, words, end, padding) and the trunk's table [V, W] to features.

        Tokens stay at the places of their ids. The mask covers the start token and the words, so that even an empty
        caption has one token; the end-of-text token is the summary.
        """
        length = ids.shape[1]
        x = self.project(self.norm_table(F.embedding(ids, table.detach()))) + self.positions[:length]
        end = ids.argmax(-1)  # the end-of-text token has the largest id; padding and the token "!" are 0
        visible = up_to(end + 1, length)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, visible)
        x = self.norm(x)
        # ids.shape[0], not len(ids): an exported graph would freeze the batch size.
        rows = torch.arange(ids.shape[0], device=ids.device)
        return StudentFeatures(x[rows, end], x, up_to(end, length))


class ConvStudent(nn.Module):
    """A timm network, which maps images [B, 3, S, S] to a list of maps: tokens are the cells of the last map, the class
    token is their mean. All norms are GroupNorm (D16): BatchNorm would make a step depend on how the batch is spread
    over processes."""

    def __init__(self, net: nn.Module, width: int, image_size: int, stride: int) -> None:
        super().__init__()
        self.net = net
        self.width = width
        side = -(-image_size // stride)
        self.grid = (side, side)
        self.classifier_parameters = (width + 1) * CLASSES

    def forward(self, images: Tensor) -> StudentFeatures:
        tokens = self.net(images)[-1].flatten(2).transpose(1, 2)
        return StudentFeatures(tokens.mean(1), tokens)


class _MicroStudent(ConvStudent):
    """Maps images to one map by a network. It has vit-micro's number of parameters within a tenth, its 64 channels
    and its cells of 8 pixels: the same fusion follows it, and a comparison is one of architectures."""

    def forward(self, images: Tensor) -> StudentFeatures:
        # Channels last: on a CPU depthwise convolutions go backward twice as fast.
        tokens = self.net(images.contiguous(memory_format=torch.channels_last)).flatten(2).transpose(1, 2)
        return StudentFeatures(tokens.mean(1), tokens)


def _conv_student(name: str, image_size: int) -> ConvStudent:
    """Build the student called `name`, with weights drawn from torch's current generator."""
    if name not in _IN_TIMM:
        net = _resnet() if name == "resnet-micro" else _mobilenet()
        return _MicroStudent(net, _WIDTH, image_size, _STRIDE)
    stride = stride_for(image_size)
    network: Any = timm.create_model(_IN_TIMM[name], features_only=True, out_indices=(4,), output_stride=stride)
    width = network.feature_info.channels()[-1]
    student = ConvStudent(_with_group_norm(network), width, image_size, stride)
    if name == "mobilenetv3-large":
        student.classifier_parameters = (width + 1) * _MOBILENET_HEAD + (_MOBILENET_HEAD + 1) * CLASSES
    return student


def stride_for(image_size: int) -> int:
    """Return the usual 32 if that leaves 7×7 cells; else 16 or 8, by dilation of the last stages."""
    return next((stride for stride in (32, 16) if image_size // stride >= _LEAST_GRID), 8)


def _with_group_norm(module: nn.Module) -> nn.Module:
    """Replace every batch norm in place, keeping its scale, shift and activation."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, _GroupNorm(child))
        else:
            _with_group_norm(child)
    return module


class _GroupNorm(nn.GroupNorm):
    """Uses 32 groups where they divide the channels, else groups of 8 channels (MobileNet has 24, 40, 72, …)."""

    def __init__(self, batch_norm: nn.BatchNorm2d) -> None:
        channels = batch_norm.num_features
        super().__init__(_GROUPS if channels % _GROUPS == 0 else channels // _GROUP_SIZE, channels)
        # timm starts a residual branch with scale 0; the copy keeps that.
        self.weight, self.bias = batch_norm.weight, batch_norm.bias
        self.act = getattr(batch_norm, "act", nn.Identity())  # timm's batch norms may include their activation

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


def _resnet() -> nn.Sequential:
    """Build a small ResNet: [B, 3, S, S] → [B, 64, s, s]."""
    return nn.Sequential(
        *_convolution(3, 32, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        _Residual(32, 32),
        _Residual(32, _WIDTH, stride=2),
        _Residual(_WIDTH, _WIDTH),
    )


def _mobilenet() -> nn.Sequential:
    """Build a small MobileNet: [B, 3, S, S] → [B, 64, s, s]."""
    return nn.Sequential(
        *_convolution(3, 16, 3, stride=2),
        nn.Hardswish(inplace=True),
        _Inverted(16, 24, 16, 3, stride=2),
        _Inverted(24, 56, 72, 5, stride=2, squeezed=24),
        _Inverted(56, 56, 256, 5, squeezed=64),
        _Inverted(56, 56, 256, 5, squeezed=64),
        *_convolution(56, _WIDTH, 1),
        nn.Hardswish(inplace=True),
    )


def _convolution(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, nn.Module]:
    """Build a convolution that keeps the sides (or halves them, rounding up), and its norm."""
    conv = nn.Conv2d(inside, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, nn.GroupNorm(out // _GROUP_SIZE, out)


class _Residual(nn.Module):
    """Computes relu(x + two 3×3 convolutions of x); x goes through a 1×1 convolution where shapes differ."""

    def __init__(self, inside: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_convolution(inside, out, 3, stride), nn.ReLU(inplace=True), *_convolution(out, out, 3)
        )
        same = inside == out and stride == 1
        self.straight = nn.Identity() if same else nn.Sequential(*_convolution(inside, out, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return (self.straight(x) + self.branch(x)).relu_()


class _Inverted(nn.Module):
    """Widen, filter each channel, weigh channels by their means over the map (`squeezed` wide), narrow; added to x
    where shapes agree."""

    def __init__(self, inside: int, out: int, wide: int, kernel: int, stride: int = 1, squeezed: int = 0) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_convolution(inside, wide, 1),
            nn.Hardswish(inplace=True),
            *_convolution(wide, wide, kernel, stride, groups=wide),
            nn.Hardswish(inplace=True),
            _Excitation(wide, squeezed) if squeezed else nn.Identity(),
            *_convolution(wide, out, 1),
        )
        self.adds = inside == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x) if self.adds else self.branch(x)


class _Excitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Linear(channels, squeezed), nn.ReLU(inplace=True), nn.Linear(squeezed, channels), nn.Hardsigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x.mean((2, 3)))[:, :, None, None]


ImageStudent = ViTStudent | ConvStudent
