"""Distils cached teacher features into the students, as weighted, named terms (D14–D16, D20).

    gram+rel   gram_image, relational_image        relations of tokens, relations of items: the paper's
    rkd        relational_image                    relations of items alone
    mse        mse_image     } tokens in the teacher's (PCA) coordinates, after a linear projector,
    cosine     cosine_image  } which belongs to the objective and is not part of the model
    crd        crd_image                           items against the other items of the global batch, after a projector
and the same with _text. The weight is μ_d for image terms and μ_d·ρ for text terms.

Penultimate tokens of the trunk pass a layer norm of their own first, which belongs to the objective, too.

Shapes: B own samples, M samples over all processes, g² tokens of the comparing grid, W words, C student width,
K teacher tokens' width, C' teacher summary's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.config import DistilSettings
from dinorankclip.losses import distillation as losses
from dinorankclip.losses.resampling import resample_grid, resample_tokens, word_pooling
from dinorankclip.seeds import drawing_from
from dinorankclip.types import Embeddings, Progress, UserError

# A criterion uses the first of these sets of features that the cache has. (The paper takes the Gram of PCA tokens.)
NEEDS: dict[str, tuple[frozenset[str], ...]] = {
    "gram+rel": (frozenset({"gram", "summary"}), frozenset({"tokens", "summary"})),
    "rkd": (frozenset({"summary"}),),
    "crd": (frozenset({"summary"}),),
    "mse": (frozenset({"tokens"}),),
    "cosine": (frozenset({"tokens"}),),
}
ON_TOKENS = {"mse": losses.mse_loss, "cosine": losses.cosine_loss}


@dataclass(frozen=True)
class Branch:
    """Holds the widths of one student and its teacher."""

    student: int
    tokens: int
    summary: int


def needed(criterion: str, keep: str) -> frozenset[str]:
    """Return the features that a criterion uses of a cache made with `--keep` "gram", "tokens" or "both"."""
    cached = {"summary", *(("gram", "tokens") if keep == "both" else (keep,))}
    if fitting := [needs for needs in NEEDS[criterion] if needs <= cached]:
        return fitting[0]
    raise UserError(f"--distil.criterion {criterion} needs cached tokens: make the cache with --keep tokens or both")


def keeping_for(criterion: str) -> Literal["gram", "both"]:
    """Return the `--keep` of a cache made for this criterion: tokens, which are many times larger, only if needed."""
    return "gram" if any(needs <= {"gram", "summary"} for needs in NEEDS[criterion]) else "both"


class DistillationLoss(nn.Module):
    """Sums the terms. `image_grid` is the student's token grid, `compare_grid` the grid of the teacher's features."""

    resample: Tensor | None

    def __init__(
        self,
        settings: DistilSettings,
        image: Branch,
        image_grid: tuple[int, int],
        compare_grid: tuple[int, int],
        text: Branch | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.settings, self.seed = settings, seed
        self.branches = {"image": image} | ({"text": text} if text is not None else {})
        self.projectors = nn.ModuleDict()
        for name, branch in self.branches.items():
            out = {**dict.fromkeys(ON_TOKENS, branch.tokens), "crd": branch.summary}.get(settings.criterion)
            if out is not None:
                with drawing_from(seed, "projector", name):
                    self.projectors[name] = nn.Linear(branch.student, out)
        self.norms = nn.ModuleDict()
        if settings.into == "trunk" and settings.tokens == "penultimate":
            self.norms.update({name: nn.LayerNorm(branch.student) for name, branch in self.branches.items()})
        resample = resample_grid(image_grid, compare_grid).float() if image_grid != compare_grid else None
        self.register_buffer("resample", resample, persistent=False)

    def forward(
        self, embeddings: Embeddings, features: Mapping[str, Tensor], progress: Progress, detailed: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return weighted terms, whose mean over processes is the step's, and numbers for the log."""
        if not features:
            raise UserError("this batch carries no teacher features: distillation needs a loader that looks them up")
        terms: dict[str, Tensor] = {}
        report: dict[str, float] = {}
        for name in self.branches:
            weight = self.settings.weight * (self.settings.text_ratio if name == "text" else 1.0)
            for term, value in self._branch(name, embeddings, features, progress).items():
                terms[f"{term}_{name}"] = weight * value
        if detailed and "image_gram" in features:
            with torch.no_grad():
                student = losses.cosine_gram(self.image_tokens(self._normed("image", embeddings)))
                distance = losses.gram_distance(student, losses.normalise_gram(features["image_gram"]))
            report["gram_distance_image"] = distance.nanmean().item()
        return terms, report

    def _branch(
        self, name: str, embeddings: Embeddings, features: Mapping[str, Tensor], progress: Progress
    ) -> dict[str, Tensor]:
        criterion = self.settings.criterion
        if criterion in ON_TOKENS:
            student, mask = self._tokens(name, embeddings, features)
            return {criterion: ON_TOKENS[criterion](self.projectors[name](student), features[f"{name}_tokens"], mask)}
        # Every process computes these terms on the same gathered items. The backward of the gather sums the gradients
        # of all processes, and the mean over processes leaves one of them.
        student = distributed.gather_rows(embeddings.named[f"{name}_student_class"])
        teacher = distributed.gather_rows(features[f"{name}_summary"])
        if criterion == "crd":
            return {"crd": losses.crd_loss(self.projectors[name](student), teacher.to(student.dtype))}
        items = losses.rkd_items(len(student), self.seed, progress.step, self.settings.relational_items)
        items = items.to(student.device, non_blocking=True)
        relational = {"relational": losses.rkd_loss(student[items], teacher[items])}
        if criterion == "rkd":
            return relational
        tokens, mask = self._tokens(name, embeddings, features)
        known, loss = ("gram", losses.gram_loss_to) if f"{name}_gram" in features else ("tokens", losses.gram_loss)
        return {"gram": loss(tokens, features[f"{name}_{known}"], mask, self.settings.gram_reduction)} | relational

    def _tokens(
        self, name: str, embeddings: Embeddings, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Return student tokens [B, g², C] and no mask, or [B, W, C] and the words that both sides read [B, W]."""
        tokens = self._normed(name, embeddings)
        if name == "image":
            return self.image_tokens(tokens), None
        teacher_mask = features["text_mask"]
        words, mask = word_pooling(tokens, features["text_word_ids"], teacher_mask.shape[1])
        return words, mask & teacher_mask

    def mapping(self, name: str) -> nn.Module:
        """Return the criterion's own map from a branch's features to the teacher's coordinates."""
        projector = self.projectors[name]
        of_tokens = self.settings.criterion in ON_TOKENS
        return nn.Sequential(self.norms[name], projector) if of_tokens and name in self.norms else projector

    def _normed(self, name: str, embeddings: Embeddings) -> Tensor:
        tokens = embeddings.named[f"{name}_student_tokens"]
        return self.norms[name](tokens) if name in self.norms else tokens

    def image_tokens(self, tokens: Tensor) -> Tensor:
        """Resample the student's tokens [B, h·w, C] to the comparing grid [B, g², C]."""
        return tokens if self.resample is None else resample_tokens(tokens, self.resample)
