"""Locks the image tower (LiT): the frozen teacher is the image tower, and the text tower learns from scratch.

An image is a = P·f̂, f̂ the teacher's standardised summary (`AnchorLoss.anchors`); captions pass through the trunk's own
text tower, which starts from the weights that every cell of the seed has. P, the text tower and the temperature learn
by InfoNCE. A step reads cached features and no pixels, so it costs less than CLIP's and a budget holds more of them.
The model needs the teacher at inference, which `taught` does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.decoded_pairs import DecodedRecipe
from dinorankclip.losses.anchor import AnchorLoss
from dinorankclip.losses.contrastive import info_nce_rows, unit_rows
from dinorankclip.losses.groups import gathered_groups
from dinorankclip.models.joint import JointModel
from dinorankclip.teachers.registry import open_teacher
from dinorankclip.train.assemble import RunParts
from dinorankclip.train.checkpoints import TrainingState
from dinorankclip.train.step import Updater, backward
from dinorankclip.types import Embeddings, Evaluator, ImageSpec, LossTerms, Progress

VISUAL = "trunk.towers.visual."  # prefix of the image tower's parameters, which never run
NO_PIXELS = ImageSpec(size=1)


class LockedModel(nn.Module):
    """Embeds captions by a text tower that learns, and images by a frozen teacher and P."""

    def __init__(self, model: JointModel, anchor: AnchorLoss, teacher: str, size: int | None) -> None:
        super().__init__()
        self.trunk = model.trunk
        self.anchor = anchor
        self._teacher = [open_teacher(teacher, size)]  # in a list, so that its network is no part of this module
        self.image_spec = ImageSpec(size=self._teacher[0].input_size)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not name.startswith(VISUAL))

    @property
    def logit_scale(self) -> nn.Parameter:
        return self.trunk.towers.logit_scale

    def scale(self) -> Tensor:
        return self.logit_scale.exp()

    def bias(self) -> None:
        return None

    def forward(self, images: Tensor, texts: Tensor, second_texts: Tensor | None = None) -> Embeddings:
        """Embed captions alone: the objective takes the images' features from the cache."""
        return Embeddings({"text": self.trunk.encode_text(texts)})

    @torch.inference_mode()
    def encode_image(self, images: Tensor) -> Tensor:
        """Map uint8 images [B, 3, S, S], S of the teacher, to unit rows [B, D]."""
        return unit_rows(self.anchor.anchors(self._teacher[0].dense(images).summary))

    @torch.inference_mode()
    def encode_text(self, texts: Tensor) -> Tensor:
        return unit_rows(self.trunk.encode_text(texts).float())


class LockedObjective(nn.Module):
    """Computes InfoNCE of cached images and captions. P belongs to the model, so this module holds no parameters."""

    def __init__(self, model: LockedModel) -> None:
        super().__init__()
        self._anchors = model.anchor.anchors

    def forward(
        self,
        embeddings: Embeddings,
        scale: Tensor,
        progress: Progress,
        detailed: bool = False,
        teacher_features: dict[str, Tensor] | None = None,
        groups: Tensor | None = None,
    ) -> LossTerms:
        assert teacher_features is not None, "a locked image tower learns from cached features"
        image = unit_rows(self._anchors(teacher_features["image_summary"]))
        rows = info_nce_rows(image, unit_rows(embeddings.text), scale, groups=gathered_groups(groups))
        return LossTerms(rows.mean(), {"contrastive": rows.mean()})


def lock(parts: RunParts) -> RunParts:
    """Return a run with a locked image tower, from one of the same settings with an anchor. Its loader reads from
    memory (`read_from_memory`) and renders no pixels."""
    settings, state = parts.settings, parts.state
    assert isinstance(state.model, JointModel) and state.objective.anchor is not None
    model = LockedModel(state.model, state.objective.anchor, settings.distil.teacher, settings.distil.teacher_size)
    objective = LockedObjective(model)
    updater = Updater({"model": model, "objective": objective}, settings.optim, parts.length.steps)
    steps = parts.loader._steps
    assert isinstance(steps.recipe, DecodedRecipe)
    parts.loader._steps = replace(steps, recipe=replace(steps.recipe, image=NO_PIXELS))
    locked: Any = TrainingState(model, objective, updater, state.data_fingerprint)  # type: ignore[arg-type]
    return replace(parts, state=locked)


def train_locked(parts: RunParts, watch: Evaluator) -> None:
    """Take all steps of a locked run; `watch` scores it at the end of each epoch."""
    state, length = parts.state, parts.length
    batches: Iterator[Any] = iter(parts.loader)
    while state.step < length.steps:
        progress = Progress(state.step, length.steps, length.epochs)
        backward(state.model, state.objective, next(batches), progress, parts.placement)  # type: ignore[arg-type]
        state.updater.step(progress, state.model.logit_scale)
        state.step += 1
        if state.step % length.steps_per_epoch == 0 or state.step == length.steps:
            state.model.eval()
            list(watch(state.model))  # type: ignore[arg-type]
            state.model.train()
