"""The students that learn from the teachers: small networks with one class token and dense tokens.

    vit-tiny      192 wide, 12 deep, 3 heads: the paper's student, 5.5M parameters (D21)    image and text
    vit-mini      96 wide, 4 deep, 3 heads                                                  image and text
    vit-micro     64 wide, 3 deep, 2 heads: for images of 48 to 64 pixels on two CPU cores  image and text
    resnet50, mobilenetv3-large, resnet-micro, mobilenet-micro (students_conv.py)           image

vit-micro cuts images into patches of 8 pixels. The other ViTs cut small images into 8×8 patches, and large ones into
patches of 16 pixels. Students have the trunk's inputs: images normalised by the trunk, token ids of the trunk's
tokenizer. Initial weights come from seeds of their own.

Shapes: B images or captions, S image side, L dense tokens, C width of a student.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinorankclip.seeds import drawing_from
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.models.students_conv import ConvStudent

    ImageStudent: TypeAlias = "ViTStudent | ConvStudent"

CONVOLUTIONAL = ("resnet50", "mobilenetv3-large", "resnet-micro", "mobilenet-micro")
CLASSES = 1000  # of the classifier that published counts include and a student does not have
SMALL_SIDE = 128  # up to here an image is cut into 8×8 patches
SMALL_GRID = 8
PATCH = 16
_INIT_STD = 0.02


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
    """The output of a student. Image tokens come row by row of `student.grid` and have no mask."""

    summary: Tensor  # [B, C], the class token
    tokens: Tensor  # [B, L, C]
    mask: Tensor | None = None  # bool [B, L], text only: False for padding and for the class token's own place


def image_student(name: str, image_size: int, seed: int = 0) -> ImageStudent:
    """A student with `.width`, `.grid`, `.classifier_parameters` and images [B, 3, S, S] → `StudentFeatures`."""
    with drawing_from(seed, "student image"):
        if name in SHAPES:
            return ViTStudent(SHAPES[name], image_size)
        if name in CONVOLUTIONAL:
            from dinorankclip.models.students_conv import conv_student

            return conv_student(name, image_size)
    raise UserError(f"no image student is called '{name}'; there are {', '.join([*SHAPES, *CONVOLUTIONAL])}")


def text_student(name: str, context_length: int, table_width: int, seed: int = 0) -> TextStudent:
    """A student with `.width` and (ids [B, L], token table) → `StudentFeatures`."""
    if name not in SHAPES:
        raise UserError(f"no text student is called '{name}'; there are {', '.join(SHAPES)}")
    with drawing_from(seed, "student text"):
        return TextStudent(SHAPES[name], context_length, table_width)


def patch_for(image_size: int, fixed: int | None = None) -> int:
    """Patch side: `fixed`, or 8×8 patches up to 128 pixels and 16 pixels above."""
    patch = fixed or (image_size // SMALL_GRID if image_size <= SMALL_SIDE else PATCH)
    if not patch or image_size % patch:
        raise UserError(f"a student cannot cut {image_size} pixels into whole patches; use a multiple of 16")
    return patch


class ViTStudent(nn.Module):
    """timm's ViT without a classifier; all tokens after its final norm."""

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
    """Parameters of a student; it has no classifier."""
    return sum(parameter.numel() for parameter in student.parameters())


def describe(name: str, student: nn.Module) -> str:
    """`resnet50: 23.51M parameters, 25.56M with a classifier of 1000 classes`"""
    own = count(student)
    line = f"{name}: {own / 1e6:.2f}M parameters"
    extra = getattr(student, "classifier_parameters", 0)
    return line + (f", {(own + extra) / 1e6:.2f}M with a classifier of {CLASSES} classes" if extra else "")


def token_table(towers: Any) -> Tensor:
    """The token embeddings [V, W] of an open_clip model's text tower, which the text student borrows."""
    text = getattr(towers, "text", towers)
    table = getattr(text, "token_embedding", None)
    if not isinstance(table, nn.Embedding):
        raise UserError("a text student needs a trunk with CLIP's own text tower; this one's has no token table")
    return table.weight


def up_to(position: Tensor, length: int) -> Tensor:
    """bool [B, length]: True before `position` [B]."""
    return torch.arange(length, device=position.device) < position[:, None]


class _Layer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """`visible` [B, 1, 1, L]: True for the tokens that take part."""
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
        """Token ids [B, L] (start, words, end, padding) and the trunk's table [V, W] → features.

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
