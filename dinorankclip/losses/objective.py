"""What a run minimises: gathers each embedding once, calls the equations on own rows, returns weighted terms.

Shapes: N own pairs, M pairs over all processes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.config import LossSettings
from dinorankclip.losses import weights
from dinorankclip.losses.contrastive import alip_weights, consistency_rows, info_nce_rows, unit_rows
from dinorankclip.losses.distillation_terms import DistillationLoss
from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.methods import traits_of
from dinorankclip.types import Embeddings, LossTerms, Progress, UserError

NO_SECOND_TEXT = (
    "ALIP weighs each pair by a second caption of the same image, and this data gives none: "
    "use data with several captions an image (or precomputed recaptions), or another --method"
)


class Objective(nn.Module):
    """The loss of a method. Its parameters (transition heads, gates, projectors) are trained with the model.

    clip      InfoNCE
    cyclip    + in-modal and cross-modal consistency
    alip      InfoNCE with two captions an image, weighted by how well the three agree
    rankclip  + first-order lists, exact
    rank      + lists of order `settings.order`
    dinorankclip  the same; what it adds is distillation, and fusion in the model
    distil    no contrast: nothing but distillation

    Each of them may have distillation beside it.
    """

    alip_thresholds: Tensor  # of alip alone

    def __init__(
        self,
        dim: int,
        method: str,
        settings: LossSettings | None = None,
        seed: int = 0,
        distillation: DistillationLoss | None = None,
    ):
        super().__init__()
        traits = traits_of(method)
        if not traits.contrasts and distillation is None:
            raise ValueError(f"method {method!r} is nothing but distillation: give a DistillationLoss")
        self.method = method
        self.distillation = distillation
        self.ranking: RankingLoss | None = None
        if traits.ranks:
            settings, fixed = settings or LossSettings(), traits.fixed_order
            self.ranking = ranking_loss(dim, settings if fixed is None else replace(settings, order=fixed), seed)
        if method == "alip":
            # running means of the cosines t·c, t·i, c·i
            self.register_buffer("alip_thresholds", torch.full((3,), weights.ALIP_START))

    def forward(
        self,
        embeddings: Embeddings,
        scale: Tensor,
        progress: Progress,
        detailed: bool = False,
        teacher_features: Mapping[str, Tensor] | None = None,
    ) -> LossTerms:
        """`scale` is exponentiated. `detailed` adds numbers to the report that cost a little (a log line's).

        `teacher_features` are the batch's, on the embeddings' device: what the teacher says of the same samples.
        """
        terms: dict[str, Tensor] = {}
        report: dict[str, float] = {}
        device = next(iter(embeddings.named.values())).device
        with torch.autocast(device.type, enabled=False):
            if traits_of(self.method).contrasts:
                terms, report = self._pairs(embeddings, scale, progress, detailed)
            if self.distillation is not None:
                distilled, seen = self.distillation(embeddings, teacher_features or {}, progress, detailed)
                terms |= distilled
                report |= seen
        return LossTerms(weights.total(terms.values()), terms, report)

    def _pairs(
        self, embeddings: Embeddings, scale: Tensor, progress: Progress, detailed: bool
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Terms on the joint embeddings of images and texts."""
        first = distributed.world().rank * len(embeddings.image)
        own = slice(first, first + len(embeddings.image))
        image, text = self._gathered(embeddings, "image"), self._gathered(embeddings, "text")
        contrast = info_nce_rows(scale * image[own] @ text.T, scale * text[own] @ image.T, first)
        report = {"logit_scale": scale.detach().log().item()} if detailed else {}
        if self.method == "alip":
            terms = self._alip(embeddings, image, text, contrast, own, scale)
        else:
            terms = {"contrastive": contrast.mean()}
        if self.method == "cyclip":
            in_modal = consistency_rows(image[own] @ image.T, text[own] @ text.T).mean()
            cross = consistency_rows(image[own] @ text.T, text[own] @ image.T).mean()
            terms |= {"cyclic_in": weights.CYCLIP_IN * in_modal, "cyclic_cross": weights.CYCLIP_CROSS * cross}
        if self.ranking is not None:
            self.ranking.progress = progress
            ranked = self.ranking.own_rows(image, text, own, scale, detailed)
            terms |= ranked.terms
            report |= ranked.report
        return terms, report

    def _gathered(self, embeddings: Embeddings, name: str) -> Tensor:
        return unit_rows(distributed.gather_rows(embeddings.named[name]))

    def _alip(
        self, embeddings: Embeddings, image: Tensor, text: Tensor, contrast: Tensor, own: slice, scale: Tensor
    ) -> dict[str, Tensor]:
        if "second_text" not in embeddings.named:
            raise UserError(NO_SECOND_TEXT)
        second = self._gathered(embeddings, "second_text")
        second_contrast = info_nce_rows(scale * image[own] @ second.T, scale * second[own] @ image.T, own.start)
        # cosines of all pairs, so that every process moves its thresholds alike
        cosines = torch.stack([(text * second).sum(1), (text * image).sum(1), (second * image).sum(1)]).detach()
        if self.training:  # the batch moves the thresholds before they judge it, as in ALIP
            moved = self.alip_thresholds.lerp(cosines.mean(1).to(self.alip_thresholds), 1 - weights.ALIP_MOMENTUM)
            if moved.isfinite().all():  # a step that will be refused must leave no trace
                self.alip_thresholds.copy_(moved)
        text_second, text_image, second_image = cosines[:, own]
        sample, of_text, of_second = alip_weights(
            text_second, text_image, second_image, self.alip_thresholds, weights.ALIP_SHARPNESS
        )
        return {
            "contrastive": (sample * of_text * contrast).mean(),
            "contrastive_second": (sample * of_second * second_contrast).mean(),
        }


def ranking_loss(dim: int, settings: LossSettings, seed: int = 0) -> RankingLoss:
    """A RankingLoss with a run's settings."""
    return RankingLoss(
        dim,
        settings.order,
        settings.head_dim,
        list_length=settings.list_length,
        include_self=settings.include_self,
        utility=settings.utility,
        ramp=settings.ramp,
        staged=settings.staged,
        backend=settings.backend,
        seed=seed,
    )
