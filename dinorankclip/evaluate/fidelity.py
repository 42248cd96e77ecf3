"""Measures how faithful a student is to its teacher (D17), the same for every criterion and for both branches.

A Gram or relational student shares no coordinates with its teacher. So one ridge map student → teacher is fitted on
training items, its penalty is chosen on validation items, and the cosine between mapped student and teacher is taken on
held-out items. Two numbers stand beside it: the cosine of the teacher's mean alone (features that are all positive have
high cosines with anything), and the cosine of the criterion's own projector, if it has one. Gram distances are taken
on one grid, to which both sides are resampled. Both sides get the whole image, squeezed to a square, and the first
caption. `FidelityEvaluator` measures for `train`, `run_fidelity` for `score`.

Shapes: N items, C student width, C' teacher width, L tokens of the grid or words of the longest caption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import MAX_PIXELS, decode, read_header
from dinorankclip.data.open_data import open_stored, splits_of
from dinorankclip.data.samples import render
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.evaluate.scores import Score, mean_score
from dinorankclip.evaluate.suite import SetResult
from dinorankclip.losses.distillation import cosine_gram, gram_distance, normalise_gram
from dinorankclip.losses.resampling import resample_grid, resample_tokens, word_pooling
from dinorankclip.models.joint import JointModel
from dinorankclip.run_files import read_settings, refuse_command
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.train.cost import stored_reading
from dinorankclip.types import Source, UserError, View

NAME, VERSION = "fidelity", 2  # 2: captions without two common words are left out of the Gram distance
ITEMS = {"train": 4000, "val": 1000, "test": 5000}  # items used of each part; the paper scores on 5000
BATCH = 128
PENALTIES = tuple(10.0**power for power in range(-6, 3))  # relative to the mean variance of the student's features
SHOWN = 8  # Gram matrices returned for pictures
_Sample: TypeAlias = "tuple[str, Tensor | None, str]"  # key, image of the image branch, caption


@dataclass
class Sides:
    """Holds features of student and teacher for the same items. Grams are cosine Grams of the first few.

    A distance or own cosine is NaN where there is nothing to compare: a single word has no relations, and neither has a
    caption of which the two sides read no word in common.
    """

    student: Tensor  # [N, C]
    teacher: Tensor  # [N, C']
    gram_distance: Tensor  # [N], or empty if the cache holds no tokens
    keys: list[str] = field(default_factory=list)
    student_grams: Tensor | None = None  # [n, L, L]
    teacher_grams: Tensor | None = None
    own_cosine: Tensor | None = None  # [N], by the criterion's own projector


@dataclass(frozen=True)
class OwnProjector:
    """Holds the criterion's own map from student to teacher coordinates."""

    layer: torch.nn.Module
    of_tokens: bool  # mse and cosine; crd maps summaries


@dataclass
class Fidelity:
    """Holds the fidelity of one branch on held-out items."""

    cosine: Tensor  # [N], after the ridge map
    cosine_of_mean: Tensor  # [N], of the teacher and its training mean
    centred_cosine: Tensor  # [N], after the ridge map and without the training mean on both sides
    held_out: Sides

    def _cosines(self) -> dict[str, Tensor]:
        columns = "cosine", "cosine of the mean", "centred cosine"
        return dict(zip(columns, (self.cosine, self.cosine_of_mean, self.centred_cosine)))

    def numbers(self) -> dict[str, float]:
        numbers = {name: column.mean().item() for name, column in self._cosines().items()}
        numbers["above 0.9"] = (self.cosine > 0.9).double().mean().item()
        columns = {"gram distance": self.held_out.gram_distance, "own projector's cosine": self.held_out.own_cosine}
        for name, column in columns.items():
            if column is not None and len(values := comparable(column)):
                numbers |= {name: values.mean().item(), f"{name}, n": len(values)}
        return numbers

    def scores(self, branch: str) -> list[Score]:
        """Return the columns that are means over items, with the items that have a value."""
        columns = self._cosines() | {"gram distance": comparable(self.held_out.gram_distance)}
        return [mean_score(f"{branch} {name}", v.numpy(), unit="number") for name, v in columns.items() if len(v)]


def comparable(column: Tensor) -> Tensor:
    """Return the values [n] of a column [N] that are not NaN."""
    return column[~column.isnan()]


def fidelity(train: Sides, val: Sides, test: Sides) -> Fidelity:
    """Fit the map on `train`, choose its penalty on `val`, score on `test`."""
    mapping, _ = ridge(train.student, train.teacher, val.student, val.teacher)
    mean = train.teacher.mean(0)
    mapped = mapping(test.student)
    centred = F.cosine_similarity(mapped - mean, test.teacher - mean)
    plain, of_mean = F.cosine_similarity(mapped, test.teacher), F.cosine_similarity(mean[None], test.teacher)
    return Fidelity(plain, of_mean, centred, test)


def ridge(
    student: Tensor, teacher: Tensor, val_student: Tensor, val_teacher: Tensor
) -> tuple[Callable[[Tensor], Tensor], float]:
    """Return the affine map x → (x - x̄)·W + ȳ with W = (XᵀX + λ·n·v·I)⁻¹XᵀY, and λ.

    X and Y are centred, v is the mean variance of a student feature, and λ is the entry of `PENALTIES` with the highest
    mean cosine on validation items.
    """
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
    """Collect the features of `model`'s student and the cached teacher on the first `most` usable samples of `source`.

    The branch "text" needs a `tokenizer`; `projector` is the criterion's, if it has one.
    """
    cache.check_data(source)
    shows_images = branch == "image"
    columns: dict[str, list[Tensor]] = {"student": [], "teacher": [], "gram_distance": []}
    keys: list[str] = []
    shown: list[tuple[Tensor, Tensor]] = []
    samples = islice(_samples(source, model.image_spec.size if shows_images else None, max_pixels), most)
    while batch := list(islice(samples, BATCH)):
        pair = _of_images(model, cache, batch) if shows_images else _of_captions(model, cache, batch, tokenizer)
        gram = _teacher_gram(pair.teacher, branch, pair.mask)
        if gram is not None:
            ours = cosine_gram(pair.tokens, pair.mask).cpu()
            distances = gram_distance(ours, gram)
            if pair.mask is not None:  # a single common word has no relations: it is at distance 0 from anything
                distances = distances.masked_fill(pair.mask.sum(1).cpu() < 2, torch.nan)
            columns["gram_distance"].append(distances)
            if len(shown) < SHOWN:
                shown += list(zip(ours, gram))[: SHOWN - len(shown)]
        columns["student"].append(pair.summary.cpu())
        columns["teacher"].append(pair.teacher[f"{branch}_summary"])
        if projector is not None:
            columns.setdefault("own_cosine", []).append(_own_cosine(projector, pair, branch))
        keys += [key for key, _, _ in batch]
    joined = {name: torch.cat(parts) if parts else torch.empty(0) for name, parts in columns.items()}
    sides = Sides(**joined, keys=keys)
    if shows_images and shown:  # Grams of images have one size
        sides.student_grams, sides.teacher_grams = (torch.stack(grams) for grams in zip(*shown))
    return sides


@dataclass
class _Pair:
    """Holds features of both sides for n items; the student's tokens are brought to the teacher's grid or words."""

    summary: Tensor  # [n, C], the student's
    tokens: Tensor  # [n, L, C], the student's
    teacher: dict[str, Tensor]  # keys are the cache's names
    mask: Tensor | None  # bool [n, L], words that both have read; None for images, whose tokens all count


def _of_images(model: JointModel, cache: TeacherCache, batch: list[_Sample]) -> _Pair:
    pixels = torch.stack([image for _, image, _ in batch if image is not None]).to(model.device)
    student = model.learnt("image", model.normalised(pixels))
    on_grid = resample_grid(model.learners["image"].grid, cache.compare_grid)
    teacher = cache.images([key for key, _, _ in batch], [View()] * len(batch))
    return _Pair(student.summary.float(), resample_tokens(student.tokens.float(), on_grid), teacher, None)


def _of_captions(model: JointModel, cache: TeacherCache, batch: list[_Sample], tokenizer: Tokenizer | None) -> _Pair:
    assert tokenizer is not None, "captions need a tokenizer"
    captions = [caption for _, _, caption in batch]
    student = model.learnt("text", tokenizer(captions).to(model.device))
    teacher = cache.texts(captions)
    tokens, mask = student.tokens.float(), None
    if "text_mask" in teacher:
        words = teacher["text_mask"].to(model.device)
        tokens, read = word_pooling(tokens, teacher["text_word_ids"].to(model.device), words.shape[1])
        mask = read & words
    return _Pair(student.summary.float(), tokens, teacher, mask)


def _samples(source: Source, size: int | None, max_pixels: int) -> Iterator[_Sample]:
    """Yield (key, whole image [3, S, S] or None, first caption) of the usable samples."""
    for index in range(len(source)):
        try:
            raw = source.read(index)
            image = None
            if size is not None:
                image = render(decode(raw.image, read_header(raw.image, max_pixels)), View(), size)
        except Damage:
            continue
        yield raw.key, image, raw.captions[0]


def _teacher_gram(teacher: dict[str, Tensor], branch: str, mask: Tensor | None) -> Tensor | None:
    """Return the teacher's cosine Gram, from its Gram or its PCA tokens, without words that only the teacher has."""
    if f"{branch}_gram" in teacher:
        gram = normalise_gram(teacher[f"{branch}_gram"])
    elif f"{branch}_tokens" in teacher:
        gram = cosine_gram(teacher[f"{branch}_tokens"])
    else:
        return None
    if mask is not None:
        gram = gram.masked_fill(~(mask[:, :, None] & mask[:, None, :]).cpu(), 0.0)
    return gram


def _own_cosine(projector: OwnProjector, pair: _Pair, branch: str) -> Tensor:
    """Return cosines [n] of the projected summary, or their mean over projected tokens (NaN without tokens)."""
    if not projector.of_tokens:
        return F.cosine_similarity(projector.layer(pair.summary).cpu(), pair.teacher[f"{branch}_summary"], dim=-1)
    cosines = F.cosine_similarity(projector.layer(pair.tokens).cpu(), pair.teacher[f"{branch}_tokens"], dim=-1)
    if pair.mask is None:
        return cosines.mean(1)
    mask = pair.mask.cpu()
    return (cosines * mask).sum(1) / mask.sum(1)


@dataclass
class FidelityEvaluator:
    """Measures the fidelity of a model's students, or of the trunk that was taught, on held-out pairs.

    `sources` are the training part, on which the ridge map is fitted, "val", on which its penalty is chosen, and
    "test"; without a test part the validation part is scored.
    """

    cache: str  # folder of the teacher cache
    compare_grid: int | None
    sources: dict[str, Source]
    tokenizer: Tokenizer
    projectors: dict[str, OwnProjector] = field(default_factory=dict)
    max_pixels: int = MAX_PIXELS

    def __call__(self, model: JointModel, branches: Iterable[str]) -> Iterator[tuple[str, float]]:
        """Yield names and numbers for the branches that were taught; a fine-tuned model may have other students."""
        for branch in branches:
            for name, value in self.measure(model, branch).numbers().items():
                yield f"{branch} {name}", value

    def measure(self, model: JointModel, branch: str) -> Fidelity:
        """Return everything that is measured of one branch, Gram matrices included."""
        tokenizer, own = self.tokenizer if branch == "text" else None, self.projectors.get(branch)
        sides = {}
        for part, source in self.sources.items():
            cache = TeacherCache(self.cache, part, compare_grid=self.compare_grid, tokenizer=tokenizer)
            sides[part] = collect(model, cache, source, branch, ITEMS[part], tokenizer, own, self.max_pixels)
        return fidelity(sides["train"], sides["val"], sides.get("test", sides["val"]))


def run_fidelity(run: Path, model: Any) -> SetResult | None:
    """Measure fidelity on a run's held-out pairs; None for a run without students or teacher."""
    settings = read_settings(run)
    distil = settings.get("distil", {})
    taught = distil.get("branches", "image").split("+")
    if distil.get("cache") and distil.get("into") == "trunk" and distil["weight"] > 0:
        model.parts.teach_trunk(*taught, tokens=distil.get("tokens", "last"))
    if not distil.get("cache") or "image" not in model.parts.learners:
        return None
    if not Path(distil["cache"]).is_dir():
        raise UserError(f"the teacher cache {distil['cache']} of {run} is not there; fidelity needs it")
    refuse_command(settings["data"], run)
    reading = stored_reading(settings["reading"])
    parts = ["train", "val"] + (["test"] if "test" in splits_of(settings["data"], reading) else [])
    sources = {part: open_stored(settings["data"], reading, part) for part in parts}
    evaluator = FidelityEvaluator(
        distil["cache"], distil.get("compare_grid"), sources, model.tokenizer, max_pixels=reading.max_pixels
    )
    scored = sources[parts[-1]]
    result = SetResult("distillation", "fidelity", parts[-1], len(scored), scored.fingerprint)
    for branch in taught:
        result.scores |= {score.name: score for score in evaluator.measure(model.parts, branch).scores(branch)}
    return result
