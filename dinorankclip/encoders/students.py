"""The students that learn from the teachers: small networks with one class token and dense tokens (D16, D20, D21).

    vit-tiny      192 wide, 12 deep, 3 heads: the paper's student, 5.5M parameters          image and text
    vit-mini      96 wide, 4 deep, 3 heads                                                  image and text
    vit-micro     64 wide, 3 deep, 2 heads: for images of 48 to 64 pixels on two CPU cores  image and text
    resnet50, mobilenetv3-large: the ablation (see students_conv.py)                        image
    resnet-micro, mobilenet-micro: the same at vit-micro's size (students_conv_small.py)    image

vit-micro cuts images into patches of 8 pixels. The other ViTs cut small images into 8×8 patches, and large ones into
patches of 16 pixels. Students see what the trunk sees: images normalised by the trunk, token ids of the trunk's
tokenizer. Initial weights come from seeds of their own.

Shapes: B images or captions, S image side, L dense tokens, C width of a student.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from dinorankclip.seeds import drawing_from
from dinorankclip.torchvision_ops import declare_missing
from dinorankclip.types import UserError

if TYPE_CHECKING:  # they build on what stands here
    from .students_conv import ConvStudent
    from .students_conv_small import SmallConvStudent
    from .students_text import TextStudent

    ImageStudent: TypeAlias = "ViTStudent | ConvStudent | SmallConvStudent"

CONVOLUTIONAL = ("resnet50", "mobilenetv3-large")
SMALL_CONVOLUTIONAL = ("resnet-micro", "mobilenet-micro")
CLASSES = 1000  # of the classifier that published counts include and a student does not have
SMALL_SIDE = 128  # up to here an image is cut into 8×8 patches
SMALL_GRID = 8
PATCH = 16


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
    """What a student says. Image tokens come row by row of `student.grid` and have no mask."""

    summary: Tensor  # [B, C], the class token
    tokens: Tensor  # [B, L, C]
    mask: Tensor | None = None  # bool [B, L], text only: False for padding and for the class token's own place


def image_student(name: str, image_size: int, seed: int = 0) -> ImageStudent:
    """A student with `.width`, `.grid`, `.classifier_parameters` and images [B, 3, S, S] → `StudentFeatures`."""
    with drawing_from(seed, "student image"):
        if name in SHAPES:
            return ViTStudent(SHAPES[name], image_size)
        if name in CONVOLUTIONAL:
            from .students_conv import ConvStudent

            return ConvStudent(name, image_size)
        if name in SMALL_CONVOLUTIONAL:
            from .students_conv_small import SmallConvStudent

            return SmallConvStudent(name, image_size)
    known = [*SHAPES, *CONVOLUTIONAL, *SMALL_CONVOLUTIONAL]
    raise UserError(f"no image student is called '{name}'; there are {', '.join(known)}")


def text_student(name: str, context_length: int, table_width: int, seed: int = 0) -> TextStudent:
    """A student with `.width` and (ids [B, L], token table) → `StudentFeatures`."""
    from .students_text import TextStudent

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
        declare_missing()
        from timm.models.vision_transformer import VisionTransformer

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


def token_table(towers: Any) -> Tensor:
    """The token embeddings [V, W] of an open_clip model's text tower, which the text student borrows."""
    text = getattr(towers, "text", towers)
    table = getattr(text, "token_embedding", None)
    if not isinstance(table, nn.Embedding):
        raise UserError("a text student needs a trunk with CLIP's own text tower; this one's has no token table")
    return table.weight


def count(student: nn.Module) -> int:
    """Parameters of a student; it has no classifier."""
    return sum(parameter.numel() for parameter in student.parameters())


def describe(name: str, student: nn.Module) -> str:
    """`resnet50: 23.51M parameters, 25.56M with a classifier of 1000 classes`"""
    own = count(student)
    line = f"{name}: {own / 1e6:.2f}M parameters"
    extra = getattr(student, "classifier_parameters", 0)
    return line + (f", {(own + extra) / 1e6:.2f}M with a classifier of {CLASSES} classes" if extra else "")


def end_of_text(ids: Tensor) -> Tensor:
    """Position [B] of the end-of-text token, the largest id. Padding is 0, and so is the token "!"."""
    return ids.argmax(-1)


def up_to(position: Tensor, length: int) -> Tensor:
    """bool [B, length]: True before `position` [B]."""
    return torch.arange(length, device=position.device) < position[:, None]
