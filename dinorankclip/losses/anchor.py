"""Makes the teacher a third tower: anchors a = P·f̂ of images, from its frozen features, that captions and images match.

f̂ is the cached summary of an image, standardised channel by channel over training images. P belongs to the objective:
a model folder holds neither P nor the teacher.

Shapes: N own pairs, M pairs over all processes, D embedding width, C' width of a summary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.config import AnchorSettings
from dinorankclip.losses.contrastive import EVERY_ROW, info_nce_rows, unit_rows
from dinorankclip.seeds import drawing_from
from dinorankclip.types import Progress, UserError

LEAST_SPREAD = 1e-3  # share of the mean spread that is added to each channel's


def anchor_rows(
    image: Tensor,
    text: Tensor,
    anchor: Tensor,
    scale: Tensor | float,
    own: slice = EVERY_ROW,
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return InfoNCE of anchors and captions, and of images and anchors without gradient to them, by rows: [N] each.

        text_i  = InfoNCE(a, t)_i          image_i = InfoNCE(v, stop-gradient(a))_i          (`info_nce_rows`)

    image v, text t, anchor a [M, D], of unit norm; `own` and `groups` [M, C] as in contrastive.py.

    As loops:
        for i in range(M)[own]:
            others = [j for j in range(M) if j == i or not set(groups[i]) & set(groups[j])]
            for x, y, rows in ((a, t, of_text), (v, detached(a), of_image)):
                there = log(sum(exp(s * dot(x[i], y[j])) for j in others)) - s * dot(x[i], y[i])
                back = log(sum(exp(s * dot(x[j], y[i])) for j in others)) - s * dot(x[i], y[i])
                rows.append((there + back) / 2)
    """
    return (
        info_nce_rows(anchor, text, scale, own, groups),
        info_nce_rows(image, anchor.detach(), scale, own, groups),
    )


def image_share(progress: Progress, falls: bool) -> float:
    """Return the share of the image's weight that is left: 1, or 1 - step/steps where it falls."""
    return 1.0 - progress.step / max(1, progress.total_steps) if falls else 1.0


class AnchorLoss(nn.Module):
    """Holds P and the scale of features, and weighs the two terms."""

    mean: Tensor
    spread: Tensor

    def __init__(self, settings: AnchorSettings, summary: int, dim: int, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings
        with drawing_from(seed, "anchor"):
            self.projection = nn.Linear(summary, dim, bias=False)
        self.register_buffer("mean", torch.zeros(summary))
        self.register_buffer("spread", torch.ones(summary))

    def set_scale(self, rows: Tensor) -> None:
        """Take mean and spread of each channel of training images' features [N, C']; a channel that hardly varies
        stays small. All features of a network without negative channels share a direction, which this removes."""
        spread = rows.std(0, correction=0)
        self.mean.copy_(rows.mean(0))
        self.spread.copy_(spread + LEAST_SPREAD * spread.mean().clamp_min(1e-6))

    def anchors(self, summary: Tensor) -> Tensor:
        """Map frozen features [B, C'] to anchors [B, D], not normalised."""
        anchors: Tensor = self.projection((summary.to(self.mean.dtype) - self.mean) / self.spread)
        return anchors

    def forward(
        self,
        image: Tensor,
        text: Tensor,
        features: Mapping[str, Tensor],
        scale: Tensor,
        progress: Progress,
        own: slice,
        groups: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the weighted terms of own rows of unit-norm images and texts [M, D]; `features` are of own pairs."""
        if "image_summary" not in features:
            raise UserError("this batch carries no teacher features: the anchor needs a loader that looks them up")
        anchor = unit_rows(distributed.gather_rows(self.anchors(features["image_summary"])))
        of_text, of_image = anchor_rows(image, text, anchor, scale, own, groups)
        settings = self.settings
        followed = settings.image_weight * image_share(progress, settings.falls)
        return {
            "anchor_text": settings.weight * settings.text_weight * of_text.mean(),
            "anchor_image": settings.weight * followed * of_image.mean(),
        }
