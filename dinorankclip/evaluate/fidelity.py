"""How faithful students are to their teachers (D17), the same for every criterion and for both branches.

A Gram or relational student shares no coordinates with its teacher. So one ridge map student → teacher is fitted on
training items, its penalty chosen on validation items, and the cosine between mapped student and teacher is taken on
held-out items. Two columns stand beside it: the cosine that the mean of the teacher alone would get (features that
are all positive have high cosines with anything), and, if the criterion has a projector of its own, that one's.
Gram distances are taken on one grid, the cache's comparing grid, both sides resampled to it.

Both sides see the whole image, squeezed to a square, and the first caption.

Shapes: N items, C student width, C' teacher width, L tokens of the grid or words of the longest caption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import MAX_PIXELS, decode, read_header
from dinorankclip.data.samples import render
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses.distillation import cosine_gram, gram_distance, normalise_gram
from dinorankclip.losses.resampling import resample_grid, resample_tokens, word_pooling
from dinorankclip.models.joint import JointModel
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.types import Source, View

BATCH = 128
PENALTIES = tuple(10.0**power for power in range(-6, 3))  # relative to the mean variance of the student's features
_Sample: TypeAlias = "tuple[str, Tensor | None, str]"  # key, image if asked for, caption
SHOWN = 8  # Gram matrices kept as pictures


@dataclass
class Sides:
    """Student and teacher of the same items. Grams are cosine Grams of the first few.

    A distance or own cosine is NaN where there is nothing to compare: one word has no relations, and neither has a
    caption of which the two sides read no word in common.
    """

    student: Tensor  # [N, C]
    teacher: Tensor  # [N, C']
    gram_distance: Tensor  # [N], or empty if the cache keeps no tokens
    keys: list[str] = field(default_factory=list)
    student_grams: Tensor | None = None  # [n, L, L]
    teacher_grams: Tensor | None = None
    own_cosine: Tensor | None = None  # [N], by the criterion's own projector


@dataclass(frozen=True)
class OwnProjector:
    """The criterion's own map from student to teacher coordinates."""

    layer: torch.nn.Module
    of_tokens: bool  # mse and cosine; crd maps summaries


@dataclass
class Fidelity:
    """One branch on held-out items."""

    cosine: Tensor  # [N], after the ridge map
    cosine_of_mean: Tensor  # [N], of the teacher's training mean
    centred_cosine: Tensor  # [N], after the ridge map and without the training mean on both sides
    held_out: Sides

    def numbers(self) -> dict[str, float]:
        found = {
            "cosine": self.cosine.mean().item(),
            "cosine of the mean": self.cosine_of_mean.mean().item(),
            "centred cosine": self.centred_cosine.mean().item(),
            "above 0.9": (self.cosine > 0.9).double().mean().item(),
        }
        columns = {"gram distance": self.held_out.gram_distance, "own projector's cosine": self.held_out.own_cosine}
        for name, column in columns.items():
            if column is not None and len(known := comparable(column)):
                found |= {name: known.mean().item(), f"{name}, n": len(known)}
        return found


def comparable(column: Tensor) -> Tensor:
    """The values of a column [N] that has NaN where there was nothing to compare: [n]."""
    return column[~column.isnan()]


def fidelity(train: Sides, val: Sides, test: Sides) -> Fidelity:
    """Fit on `train`, choose on `val`, score on `test`."""
    mapping, _ = ridge(train.student, train.teacher, val.student, val.teacher)
    mean = train.teacher.mean(0)
    mapped = mapping(test.student)
    return Fidelity(
        cosine=F.cosine_similarity(mapped, test.teacher, dim=-1),
        cosine_of_mean=F.cosine_similarity(mean[None], test.teacher, dim=-1),
        centred_cosine=F.cosine_similarity(mapped - mean, test.teacher - mean, dim=-1),
        held_out=test,
    )


def ridge(
    student: Tensor, teacher: Tensor, val_student: Tensor, val_teacher: Tensor
) -> tuple[Callable[[Tensor], Tensor], float]:
    """The affine map x → (x - x̄)·W + ȳ with W = (XᵀX + λ·n·v·I)⁻¹XᵀY, X and Y centred, v the mean variance of a
    student feature; λ is the one of `PENALTIES` with the highest mean cosine on validation items."""
    x_mean, y_mean = student.double().mean(0), teacher.double().mean(0)
    x, y = student.double() - x_mean, teacher.double() - y_mean
    values, vectors = torch.linalg.eigh(x.T @ x)
    target = vectors.T @ (x.T @ y)
    size = values.clamp_min(0).mean().clamp_min(1e-12)

    def mapping(penalty: float) -> Callable[[Tensor], Tensor]:
        weight = vectors @ (target / (values.clamp_min(0) + penalty * size)[:, None])
        return lambda items: ((items.double() - x_mean) @ weight + y_mean).float()

    def on_validation(penalty: float) -> float:
        return F.cosine_similarity(mapping(penalty)(val_student), val_teacher, dim=-1).mean().item()

    best = max(PENALTIES, key=on_validation)
    return mapping(best), best


@torch.inference_mode()
def collect(
    model: JointModel,
    cache: TeacherCache,
    source: Source,
    branch: str = "image",
    most: int | None = None,
    tokenizer: Tokenizer | None = None,
    projector: OwnProjector | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Sides:
    """What `model`'s student and the cached teacher say of the first `most` usable samples of `source`.

    `tokenizer` is needed for branch "text"; `projector`: the criterion's, if it has one.
    """
    cache.check_data(source)
    shows_images = branch == "image"
    columns: dict[str, list[Tensor]] = {"student": [], "teacher": [], "gram_distance": [], "own": []}
    keys: list[str] = []
    shown: list[tuple[Tensor, Tensor]] = []
    samples = islice(_samples(source, model.trunk.image_spec.size if shows_images else None, max_pixels), most)
    while batch := list(islice(samples, BATCH)):
        said = _of_images(model, cache, batch) if shows_images else _of_captions(model, cache, batch, tokenizer)
        gram = _teacher_gram(said.told, branch, said.mask)
        if gram is not None:
            ours = cosine_gram(said.tokens, said.mask).cpu()
            columns["gram_distance"].append(_with_relations(gram_distance(ours, gram), said.mask))
            if len(shown) < SHOWN:
                shown += list(zip(ours, gram))[: SHOWN - len(shown)]
        columns["student"].append(said.summary.cpu())
        columns["teacher"].append(said.told[f"{branch}_summary"])
        if projector is not None:
            columns["own"].append(_own_cosine(projector, said, branch))
        keys += [key for key, _, _ in batch]
    joined = {name: torch.cat(parts) if parts else torch.empty(0) for name, parts in columns.items()}
    same_size = shows_images and shown
    return Sides(
        joined["student"],
        joined["teacher"],
        joined["gram_distance"],
        keys,
        torch.stack([one for one, _ in shown]) if same_size else None,
        torch.stack([other for _, other in shown]) if same_size else None,
        joined["own"] if projector is not None else None,
    )


@dataclass
class _Said:
    """What both sides say of n items; the student's tokens are brought to the teacher's grid or words."""

    summary: Tensor  # [n, C], the student's
    tokens: Tensor  # [n, L, C], the student's
    told: dict[str, Tensor]  # the teacher's, by the cache's names
    mask: Tensor | None  # bool [n, L], words that both have read; None for images, whose tokens all count


def _of_images(model: JointModel, cache: TeacherCache, batch: list[_Sample]) -> _Said:
    pixels = torch.stack([image for _, image, _ in batch if image is not None]).to(model.device)
    seen = model.learnt("image", model.normalised(pixels))
    on_grid = resample_grid(model.learners["image"].grid, cache.compare_grid)
    told = cache.images([key for key, _, _ in batch], [View()] * len(batch))
    return _Said(seen.summary.float(), resample_tokens(seen.tokens.float(), on_grid), told, None)


def _of_captions(model: JointModel, cache: TeacherCache, batch: list[_Sample], tokenizer: Tokenizer | None) -> _Said:
    assert tokenizer is not None, "captions need one"
    captions = [caption for _, _, caption in batch]
    seen = model.learnt("text", tokenizer(captions).to(model.device))
    told = cache.texts(captions)
    tokens, mask = seen.tokens.float(), None
    if "text_mask" in told:
        there = told["text_mask"].to(model.device)
        tokens, read = word_pooling(tokens, told["text_word_ids"].to(model.device), there.shape[1])
        mask = read & there
    return _Said(seen.summary.float(), tokens, told, mask)


def _samples(source: Source, size: int | None, max_pixels: int) -> Iterator[_Sample]:
    """(key, whole image [3, S, S] or None, first caption) of the usable samples."""
    for index in range(len(source)):
        try:
            raw = source.read(index)
            image = None
            if size is not None:
                image = render(decode(raw.image, read_header(raw.image, max_pixels)), View(), size)
        except Damage:
            continue
        yield raw.key, image, raw.captions[0]


def _teacher_gram(told: dict[str, Tensor], branch: str, mask: Tensor | None) -> Tensor | None:
    """The teacher's cosine Gram, from its Gram or from its PCA tokens; words that only it has are left out."""
    if f"{branch}_gram" in told:
        gram = normalise_gram(told[f"{branch}_gram"])
    elif f"{branch}_tokens" in told:
        gram = cosine_gram(told[f"{branch}_tokens"])
    else:
        return None
    if mask is not None:
        gram = gram.masked_fill(~(mask[:, :, None] & mask[:, None, :]).cpu(), 0.0)
    return gram


def _with_relations(distances: Tensor, mask: Tensor | None) -> Tensor:
    """Distances [n], NaN for captions of fewer than two common words: a single word is at distance 0 from anything."""
    return distances if mask is None else distances.masked_fill(mask.sum(1).cpu() < 2, torch.nan)


def _own_cosine(projector: OwnProjector, said: _Said, branch: str) -> Tensor:
    """[n]: of the projected tokens, mean over tokens, NaN without any; or of the projected summary."""
    if not projector.of_tokens:
        return F.cosine_similarity(projector.layer(said.summary).cpu(), said.told[f"{branch}_summary"], dim=-1)
    cosines = F.cosine_similarity(projector.layer(said.tokens).cpu(), said.told[f"{branch}_tokens"], dim=-1)
    if said.mask is None:
        return cosines.mean(1)
    mask = said.mask.cpu()
    return (cosines * mask).sum(1) / mask.sum(1)
