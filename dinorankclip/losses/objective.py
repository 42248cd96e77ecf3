"""Computes the loss that a run minimises: a sum of weighted, named terms, chosen by the method.

A term is a function of the objective and the inputs of a step. To add a loss, write its function, add a line to
`TERMS`, and name it among the `terms` of a method in methods.py. A term with parameters or buffers also has a function
that registers them on the objective, under the names that checkpoints have. A method that is plugged in brings terms
of its own (`MethodTraits.own_terms`).

Shapes: N own pairs, M pairs over all processes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.config import LossSettings
from dinorankclip.losses.anchor import AnchorLoss
from dinorankclip.losses.contrastive import CYCLIP_CROSS, CYCLIP_IN, alip_weights, cyclip_rows, info_nce_rows, unit_rows
from dinorankclip.losses.decorrelation import both_decorrelated
from dinorankclip.losses.distillation_terms import DistillationLoss
from dinorankclip.losses.groups import gathered_groups, other_positives
from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.losses.sigmoid import sigmoid_rows
from dinorankclip.methods import MethodTraits, traits_of
from dinorankclip.run_files import CHANCE
from dinorankclip.types import Embeddings, LossTerms, Progress, UserError

ALIP_START, ALIP_MOMENTUM = 1.0, 0.99  # ALIP's running thresholds: H starts at 1; H ← 0.99·H + 0.01·mean
NO_SECOND_TEXT = (
    "ALIP weighs each pair by a second caption of the same image, and this data gives none: "
    "use data with several captions an image (or precomputed recaptions), or another --method"
)
OF_OTHERS = ("several_positives", "two_captions", "decorrelation")  # settings that the ranking loss does not take
Terms = tuple[dict[str, Tensor], dict[str, float]]  # weighted terms, and numbers for the log


@dataclass(frozen=True)
class Inputs:
    """Holds the inputs of a step. Each embedding is gathered from all processes once, when a term first uses it."""

    embeddings: Embeddings
    scale: Tensor
    progress: Progress
    detailed: bool
    teacher_features: Mapping[str, Tensor]
    bias: Tensor | None = None
    own_groups: Tensor | None = None

    @cached_property
    def image(self) -> Tensor:
        return self.gathered("image")

    @cached_property
    def text(self) -> Tensor:
        return self.gathered("text")

    @cached_property
    def groups(self) -> Tensor | None:
        """Return ids [M, C] of all processes' pairs; None where no two pairs belong together."""
        return gathered_groups(self.own_groups)

    def gathered(self, name: str) -> Tensor:
        """Return unit-norm rows [M, D] of all processes."""
        return unit_rows(distributed.gather_rows(self.embeddings.named[name]))

    def teacher(self) -> dict[str, Tensor]:
        """Return the frozen features of all processes' pairs that are there, by modality: of a distillation cache, or
        of an aligned model's own towers. Features of the images stand for those of captions that are not there."""
        found = {}
        for modality in ("image", "text"):
            name = f"{modality}_summary"
            rows = self.teacher_features.get(name, self.embeddings.named.get(name))
            if rows is not None:
                found[modality] = distributed.gather_rows(rows.detach())
        return {"text": found["image"]} | found if "image" in found else found

    @property
    def own(self) -> slice:
        """Return the slice of this process's rows among all rows."""
        count = len(self.embeddings.image)
        first = distributed.world().rank * count
        return slice(first, first + count)


class Objective(nn.Module):
    """Computes a method's loss. Its parameters (transition heads, gates, projectors) are trained with the model.

    Distillation, anchor and decorrelation join the terms of any method.
    """

    alip_thresholds: Tensor  # exists with the term "agreement" only

    def __init__(
        self,
        dim: int,
        method: str,
        settings: LossSettings | None = None,
        seed: int = 0,
        distillation: DistillationLoss | None = None,
        anchor: AnchorLoss | None = None,
    ):
        super().__init__()
        traits, settings = traits_of(method), settings or LossSettings()
        if not traits.terms and distillation is None:
            raise ValueError(f"method {method!r} is nothing but distillation: give a DistillationLoss")
        if traits.fixed_order is not None:
            settings = replace(settings, order=traits.fixed_order)
        self.distillation = distillation
        self.anchor = anchor
        self.decorrelation = settings.decorrelation
        self.ranking: RankingLoss | None = None
        self.several_positives = settings.several_positives
        self.two_captions = settings.two_captions
        joined = {DISTILLATION: distillation is not None, ANCHOR: anchor is not None}
        joined[DECORRELATION] = settings.decorrelation > 0
        self.terms = (
            *(term_called(name, traits) for name in traits.terms),
            *(term for term, acts in joined.items() if acts),
        )
        for term in self.terms:
            if term.register is not None:
                term.register(self, dim, settings, seed)

    @property
    def needs_teacher(self) -> bool:
        """Return whether the lists need frozen features, `image_summary` and `text_summary`, of the batch."""
        return self.ranking is not None and self.ranking.needs_teacher

    def forward(
        self,
        embeddings: Embeddings,
        scale: Tensor,
        progress: Progress,
        detailed: bool = False,
        teacher_features: Mapping[str, Tensor] | None = None,
        bias: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> LossTerms:
        """Return the terms. `scale` is exponentiated; `detailed` adds numbers for a log line, which cost a little.

        `teacher_features` belong to the batch and are on the device of the embeddings. `bias` is the model's logit
        bias, which the sigmoid loss needs. `groups` [N, C] are the ids of `Batch.groups`.
        """
        groups = groups if self.several_positives else None
        inputs = Inputs(embeddings, scale, progress, detailed, teacher_features or {}, bias, groups)
        terms: dict[str, Tensor] = {}
        report: dict[str, float] = {}
        device = next(iter(embeddings.named.values())).device
        with torch.autocast(device.type, enabled=False):
            for term in self.terms:
                values, numbers = term.compute(self, inputs)
                terms |= values
                report |= numbers
        return LossTerms(reduce(add, terms.values()), terms, report)


def contrastive(objective: Objective, inputs: Inputs) -> Terms:
    """Return InfoNCE (CLIP); with `loss.two_captions` half of it for each of two captions."""
    rows = info_nce_rows(inputs.image, inputs.text, inputs.scale, inputs.own, inputs.groups)
    if not objective.two_captions:
        return {"contrastive": rows.mean()}, _scale_report(inputs) | _chance_report(inputs)
    if "second_text" not in inputs.embeddings.named:
        raise ValueError("loss.two_captions: the batch has no second captions")
    second = info_nce_rows(inputs.image, inputs.gathered("second_text"), inputs.scale, inputs.own, inputs.groups)
    report = _scale_report(inputs) | _chance_report(inputs)
    return {"contrastive": rows.mean() / 2, "contrastive_second": second.mean() / 2}, report


def sigmoid(objective: Objective, inputs: Inputs) -> Terms:
    """Return the sigmoid loss (SigLIP)."""
    if inputs.bias is None:
        raise ValueError("the sigmoid loss needs the model's logit bias: Trunk.start_sigmoid() adds it")
    rows = sigmoid_rows(inputs.image, inputs.text, inputs.scale, inputs.bias, inputs.own, inputs.groups)
    report = _scale_report(inputs) | ({"logit_bias": inputs.bias.item()} if inputs.detailed else {})
    return {"sigmoid": rows.mean()}, report


def cyclic(objective: Objective, inputs: Inputs) -> Terms:
    """Return in-modal and cross-modal consistency (CyCLIP)."""
    in_modal, cross = cyclip_rows(inputs.image, inputs.text, inputs.own)
    return {"cyclic_in": CYCLIP_IN * in_modal.mean(), "cyclic_cross": CYCLIP_CROSS * cross.mean()}, {}


def agreement(objective: Objective, inputs: Inputs) -> Terms:
    """Return InfoNCE with two captions for each image, weighted by how well the three agree (ALIP)."""
    if "second_text" not in inputs.embeddings.named:
        raise UserError(NO_SECOND_TEXT)
    image, text, own = inputs.image, inputs.text, inputs.own
    first_rows = info_nce_rows(image, text, inputs.scale, own, inputs.groups)
    second = inputs.gathered("second_text")
    second_rows = info_nce_rows(image, second, inputs.scale, own, inputs.groups)
    # cosines of all pairs, so that the thresholds of all processes stay equal
    cosines = torch.stack([(text * second).sum(1), (text * image).sum(1), (second * image).sum(1)]).detach()
    thresholds = objective.alip_thresholds
    if objective.training:  # the batch moves the thresholds before they are applied to it, as in ALIP
        moved = thresholds.lerp(cosines.mean(1).to(thresholds), 1 - ALIP_MOMENTUM)
        # A step that will be refused must leave no trace; the device decides, so that nothing waits for it.
        thresholds.copy_(torch.where(moved.isfinite().all(), moved, thresholds))
    text_second, text_image, second_image = cosines[:, own]
    sample, of_text, of_second = alip_weights(text_second, text_image, second_image, thresholds)
    first, second = (sample * of_text * first_rows).mean(), (sample * of_second * second_rows).mean()
    return {"contrastive": first, "contrastive_second": second}, _scale_report(inputs)


def register_thresholds(objective: Objective, dim: int, settings: LossSettings, seed: int) -> None:
    """Register the running means of the cosines t·c, t·i, c·i."""
    objective.register_buffer("alip_thresholds", torch.full((3,), ALIP_START))


def ranking(objective: Objective, inputs: Inputs) -> Terms:
    """Return the ranking terms of order 1 (RankCLIP) or above (DinoRankCLIP)."""
    assert objective.ranking is not None, "registered with the term"
    ranked = objective.ranking.own_rows(
        inputs.image,
        inputs.text,
        inputs.own,
        inputs.scale,
        inputs.progress,
        inputs.detailed,
        inputs.groups,
        inputs.teacher() if objective.needs_teacher else None,
    )
    return ranked.terms, ranked.report


def register_ranking(objective: Objective, dim: int, settings: LossSettings, seed: int) -> None:
    options = {name: value for name, value in asdict(settings).items() if name not in OF_OTHERS}
    objective.ranking = RankingLoss(dim, seed=seed, **options)


def distillation(objective: Objective, inputs: Inputs) -> Terms:
    """Return the terms between students and their cached teacher, which join any other terms."""
    assert objective.distillation is not None, "given with the term"
    terms: Terms = objective.distillation(inputs.embeddings, inputs.teacher_features, inputs.progress, inputs.detailed)
    return terms


def anchored(objective: Objective, inputs: Inputs) -> Terms:
    """Return the terms between the teacher as a third tower, captions and images."""
    assert objective.anchor is not None, "given with the term"
    pairs = inputs.image, inputs.text
    features = inputs.teacher_features, inputs.scale, inputs.progress
    return objective.anchor(*pairs, *features, inputs.own, inputs.groups), {}


def decorrelated(objective: Objective, inputs: Inputs) -> Terms:
    """Return the variance–covariance term of both modalities. Every process computes it on the same gathered pairs:
    see `DistillationLoss`."""
    return {"decorrelation": objective.decorrelation * both_decorrelated(inputs.image, inputs.text)}, {}


def _scale_report(inputs: Inputs) -> dict[str, float]:
    return {"logit_scale": inputs.scale.detach().log().item()} if inputs.detailed else {}


def _chance_report(inputs: Inputs) -> dict[str, float]:
    """Return InfoNCE of equal logits where pairs belong together: less than ln M, since such pairs are left out."""
    if not inputs.detailed or inputs.groups is None:
        return {}
    everyone = torch.arange(len(inputs.groups), device=inputs.groups.device)
    left = len(everyone) - other_positives(inputs.groups, everyone[inputs.own]).sum(1)
    return {CHANCE: left.double().log().mean().item()}


class Term(NamedTuple):
    compute: Callable[[Objective, Inputs], Terms]
    register: Callable[[Objective, int, LossSettings, int], None] | None = None  # registers parameters and buffers


TERMS = {
    "contrastive": Term(contrastive),
    "sigmoid": Term(sigmoid),
    "cyclic": Term(cyclic),
    "agreement": Term(agreement, register_thresholds),
    "ranking": Term(ranking, register_ranking),
}
DISTILLATION, ANCHOR, DECORRELATION = Term(distillation), Term(anchored), Term(decorrelated)


def term_called(name: str, traits: MethodTraits) -> Term:
    """Return a term of a method by its name: one of its own, or one of the table."""
    own = traits.own_terms.get(name)
    if own is not None:
        return own if isinstance(own, Term) else Term(own)
    if name not in TERMS:
        raise UserError(f"the method's term {name!r} is unknown: it is none of {', '.join(TERMS)}, nor its own")
    return TERMS[name]
