"""A spec string → a teacher. Heavy libraries are imported by the source that needs them, when it is asked for.

Images   timm:NAME[:FILE]          any ViT of timm with a class token; DINOv1, v2, v3 above all
         hf:FOLDER or hf:NAME      transformers' DINOv3
         efficientnet-lite0[:FILE]
         random-vit[:SEED]
Text     dinotxt:FILE              text tower of a dino.txt checkpoint
         minilm[:FOLDER]
         random-text[:SEED]
"""

from __future__ import annotations

from dinorankclip.types import UserError

from .teacher import Teacher, TextTeacher

IMAGE_SOURCES = ("timm:NAME[:FILE]", "hf:FOLDER_OR_NAME", "efficientnet-lite0", "random-vit[:SEED]")
TEXT_SOURCES = ("dinotxt:FILE", "minilm", "random-text[:SEED]")


def open_teacher(spec: str, input_size: int | None = None) -> Teacher:
    """The image teacher behind `spec`. `input_size` is the side it sees images at; by default 224."""
    source, _, rest = spec.partition(":")
    if source == "timm" and rest:
        from .timm_source import timm_teacher

        name, _, file = rest.partition(":")
        return timm_teacher(name, file or None, input_size)
    if source == "hf" and rest:
        from .transformers_source import transformers_teacher

        return transformers_teacher(rest, input_size)
    if source == "efficientnet-lite0":
        from .lite0 import lite0_teacher

        return lite0_teacher(rest or None, input_size)
    if source == "random-vit":
        from .random_source import random_teacher

        return random_teacher(_seed(spec, rest), input_size)
    if source in ("dinotxt", "minilm", "random-text"):
        raise UserError(f"{spec} reads captions, not images; image teachers are {', '.join(IMAGE_SOURCES)}")
    raise UserError(f"'{spec}' is no image teacher; there are {', '.join(IMAGE_SOURCES)}")


def open_text_teacher(spec: str) -> TextTeacher:
    """The text teacher behind `spec`."""
    source, _, rest = spec.partition(":")
    if source == "dinotxt" and rest:
        from .dinotxt import dinotxt_teacher

        return dinotxt_teacher(rest)
    if source == "minilm":
        from .minilm import minilm_teacher

        return minilm_teacher(rest or None)
    if source == "random-text":
        from .random_source import random_text_teacher

        return random_text_teacher(_seed(spec, rest))
    if source in ("timm", "hf", "efficientnet-lite0", "random-vit"):
        raise UserError(f"{spec} looks at images, not captions; text teachers are {', '.join(TEXT_SOURCES)}")
    raise UserError(f"'{spec}' is no text teacher; there are {', '.join(TEXT_SOURCES)}")


def _seed(spec: str, rest: str) -> int:
    if rest and not rest.isdecimal():
        raise UserError(f"{spec}: the seed must be a number")
    return int(rest or 0)
