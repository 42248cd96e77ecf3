"""Sets up the students, the fusion, the teacher cache and the losses of a run with distillation or an anchor.

`auto`: the first run builds the cache, others wait. A dry run does not build the cache. It uses `FakeTeacherCache`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.config import DistilSettings, FusionSettings, ReadingSettings, TrainSettings
from dinorankclip.data.streams import refuse_stream
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.io import if_free
from dinorankclip.losses.anchor import AnchorLoss
from dinorankclip.losses.distillation_terms import Branch, DistillationLoss, keeping_for, needed
from dinorankclip.methods import AUTO, traits_of
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.pieces.contract import HERE, Where
from dinorankclip.teachers.cache_format import REDUCED, CacheLayout, Keep
from dinorankclip.teachers.cache_read import WHOLE_VIEW, TeacherCache, half_as_fine
from dinorankclip.teachers.cache_request import CacheSpec, amount, automatic_folder, cache_of_data, is_complete
from dinorankclip.teachers.registry import check_teacher_spec, shape_of
from dinorankclip.teachers.text_teachers import bpe_word_ids
from dinorankclip.train.run_folder import say
from dinorankclip.types import Source, UserError, View

LOOK_EVERY = 10  # seconds between two attempts to lock a cache that another run builds
WORDS = 12  # length of every caption in a fake cache
SCALE_ITEMS = 4096  # training images of which the anchor takes mean and spread of features


def students_and_fusion(settings: TrainSettings) -> tuple[Students, FusionDesign]:
    """Return the students and the fusion design that the settings select. Students need a teacher cache or fusion.
    Fusion also works without a teacher; this is a control. Fusion of the trunk's own tokens needs no students."""
    fusion, distil = fusion_design(settings.fusion), settings.distil
    if fusion.variant != "none" and fusion.source == "trunk":
        return Students(), fusion
    if fusion.variant == "none" and (distil.cache is None or distil.into == "trunk"):
        return Students(), FusionDesign()
    return Students(distil.image_student, distil.text_student if distil.branches == "image+text" else None), fusion


def fusion_design(fusion: FusionSettings) -> FusionDesign:
    branches = {"branches": fusion.branches} if fusion.source == "trunk" else {}
    return FusionDesign(fusion.variant, fusion.gate, fusion.start, fusion.gate_bias, fusion.source, **branches)


def distils(settings: DistilSettings) -> bool:
    """Return whether there are terms of distillation. A cache may serve the anchor or the lists alone."""
    return settings.cache is not None and (settings.into == "student" or settings.weight > 0)


def teach(model: JointModel, settings: TrainSettings) -> None:
    """Select the parts that learn from the teacher: students or, with `distil.into trunk`, the trunk's own tokens."""
    model.students_only = not traits_of(settings.method).contrasts
    if distils(settings.distil) and settings.distil.into == "trunk":
        if model.students != Students():
            raise UserError(f"{settings.init} has students: --distil.into trunk teaches a trunk that has none")
        model.teach_trunk(*settings.distil.branches.split("+"), tokens=settings.distil.tokens)


def with_cache(settings: TrainSettings, dry: bool = False) -> TrainSettings:
    """Return settings with the cache folder in place of `auto`; `make_missing_cache` fills the folder. A dry run keeps
    `auto` while the folder is missing, and prints which features would have to be cached."""
    if settings.distil.cache != AUTO:
        return settings
    spec = cache_spec_of(settings)
    check_teacher_spec(spec.teacher, "image")  # before the data is opened and anything is announced
    if spec.text_teacher is not None:
        check_teacher_spec(spec.text_teacher, "text")
    folder = automatic_folder(spec, settings.reading)
    if dry and not is_complete(folder):
        images, captions = amount(spec, settings.reading)
        items = f"{images:,} images" + (f" and about {captions:,} captions" if captions else "")
        say(f"before training, the teacher's features of {items} would be cached in {folder}: not in the times below")
        return settings
    return replace(settings, distil=replace(settings.distil, cache=str(folder)))


def make_missing_cache(
    settings: TrainSettings, device: torch.device, folder: Path | None = None, where: Where = HERE
) -> None:
    """Build the cache that `auto` stands for, unless it is complete. Every process must call this. `folder` is the
    one that `with_cache` chose, if known; otherwise its name is computed from all of the data."""
    if settings.distil.cache != AUTO:
        return
    spec = cache_spec_of(settings)
    folder = folder or automatic_folder(spec, settings.reading)
    if settings.budget.threads is not None:
        torch.set_num_threads(settings.budget.threads)
    if distributed.any_process(not is_complete(folder))[0]:
        say(f"caching the teacher's features in {folder}, once for all runs on this data")
        with _alone(folder):
            if distributed.any_process(not is_complete(folder))[0]:
                cache_of_data(folder, spec, settings.reading, device, where)


def cache_spec_of(settings: TrainSettings) -> CacheSpec:
    """Return the specification of the cache that `auto` stands for."""
    distil = settings.distil
    return CacheSpec(
        settings.data,
        distil.teacher,
        distil.teacher_size,
        distil.text_teacher if distil.branches == "image+text" else None,
        CacheLayout(_kept(distil)),
    )


def _kept(settings: DistilSettings) -> Keep:
    """Return what a cache of `auto` keeps of tokens; refuse a choice that the criterion cannot use."""
    keep = settings.keep or keeping_for(settings.criterion)
    needed(settings.criterion, keep)
    return keep


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the cache; wait while another run builds it. The wait may take hours, longer than processes wait for each
    other, so they synchronise after each attempt."""
    announced = False
    while True:
        with if_free(folder.name, folder.parent) if distributed.world().leads else nullcontext(False) as free:
            if distributed.any_process(free)[0]:
                yield
                distributed.wait_for_all()
                return
        if not announced:
            say("another run is building this cache; waiting")
            announced = True
        time.sleep(LOOK_EVERY)


def open_cache(
    settings: DistilSettings, reading: ReadingSettings, train: Source, tokenizer: Tokenizer, seed: int = 0
) -> TeacherCache | FakeTeacherCache | None:
    """Return the cache of the training part after a check against the data; None without distillation."""
    if settings.cache is None:
        return None
    texts = settings.branches == "image+text"
    if settings.cache == AUTO:
        fake = FakeTeacherCache(settings, tokenizer if texts else None)
        say(f"the teacher's features are stand-ins of {fake.network}'s shape: no cache is read in the times below")
        return fake
    refuse_stream(train, "--distil.cache finds features by key")
    cache = cache_part(settings, "train", tokenizer if texts else None)
    cache.check_data(train)
    if settings.shuffled:
        cache.shuffle(seed)
    plan = cache.plan
    teachers = f"teacher {plan['teacher']}" + (f" and {plan['text']['teacher']}" if texts else "")
    notes = "; ".join(filter(None, (plan["note"], plan["text"]["note"] if texts else "")))
    say(
        f"{teachers} ({notes or 'frozen'}), cached on {cache.grid[0]}×{cache.grid[1]} tokens, "
        f"compared on {cache.compare_grid[0]}×{cache.compare_grid[1]}"
        + (", each image with the features of another (a control)" if settings.shuffled else "")
    )
    if "summary" in cache.fields and not cache.summary_follows and reading.crop_scale[0] < WHOLE_VIEW:
        say(
            f"  note: crops show down to {reading.crop_scale[0]:.0%} of an image, and without cached tokens the class "
            "token of the whole image stands for them all (teacher cache --keep both follows crops)"
        )
    return cache


def cache_part(settings: DistilSettings, part: str, tokenizer: Tokenizer | None) -> TeacherCache:
    """Return one part of the cache with the fields that the criterion needs; `tokenizer` adds captions."""
    assert settings.cache is not None, "the settings must name a cache"
    cache = TeacherCache(settings.cache, part, compare_grid=settings.compare_grid, tokenizer=tokenizer)
    cache.fields = needed(settings.criterion, cache.plan["keep"]) if distils(settings) else frozenset()
    return cache


def distillation_loss(
    settings: DistilSettings, model: JointModel, cache: TeacherCache | FakeTeacherCache | None, seed: int
) -> DistillationLoss | None:
    if cache is None or not distils(settings):
        return None
    text, learners = None, model.learners
    if settings.branches == "image+text":  # a text student that --init brings may be there without a teacher
        plan = cache.plan["text"]
        text = Branch(learners["text"].width, plan["reduced"], plan["summary_width"])
    image = Branch(learners["image"].width, cache.width, cache.summary_width)
    return DistillationLoss(settings, image, learners["image"].grid, cache.compare_grid, text, seed)


def anchor_loss(
    settings: TrainSettings, dim: int, cache: TeacherCache | FakeTeacherCache | None, train: Source
) -> AnchorLoss | None:
    """Return the loss of the teacher as a third tower, and make the cache give what it needs; None without an anchor.

    A checkpoint holds the scale of features, so that a resumed run goes on with the same.
    """
    if settings.anchor.weight == 0:
        return None
    assert cache is not None, "validated: an anchor needs a cache"
    cache.fields |= {"summary"}
    loss = AnchorLoss(settings.anchor, cache.summary_width, dim, settings.seed)
    chosen = range(0, len(train), -(-len(train) // SCALE_ITEMS))
    loss.set_scale(cache.summaries([train.key(index) for index in chosen]))
    return loss


class FakeTeacherCache:
    """Draws random features in the shapes of the teacher `network`, to time a step before the cache is built."""

    identity = "stand-in"

    def __init__(self, settings: DistilSettings, tokenizer: Tokenizer | None) -> None:
        image, text = shape_of(settings.teacher, "image"), shape_of(settings.text_teacher, "text")
        self.network = image.network
        assert image.patch is not None, "an image teacher has patches"
        grid = (settings.teacher_size or 224) // image.patch
        side = settings.compare_grid or half_as_fine(grid)
        self.grid, self.compare_grid = (grid, grid), (side, side)
        self.width, self.summary_width = min(REDUCED, image.width), image.summary
        self.plan = {"text": {"reduced": min(REDUCED, text.width), "summary_width": text.summary}}
        self.fields = needed(settings.criterion, _kept(settings)) if distils(settings) else frozenset()
        self._tokenizer = tokenizer

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]:
        features = self._draw("image", (len(keys), self.compare_grid[0] ** 2, self.width), self.summary_width)
        if self._tokenizer is not None:
            text = self.plan["text"]
            features |= self._draw("text", (len(keys), WORDS, text["reduced"]), text["summary_width"])
            if self.fields & {"gram", "tokens"}:
                features["text_mask"] = torch.ones(len(keys), WORDS, dtype=torch.bool)
                features["text_word_ids"] = bpe_word_ids(self._tokenizer, captions).clamp_max(WORDS - 1)
        return features

    def summaries(self, keys: Sequence[str]) -> Tensor:
        return torch.randn(len(keys), self.summary_width, generator=torch.Generator().manual_seed(0))

    def _draw(self, branch: str, shape: tuple[int, int, int], summary: int) -> dict[str, Tensor]:
        """Draw the features of a branch. `shape` is that of its tokens, `summary` the width of its class token."""
        items, tokens, _ = shape
        generator = torch.Generator().manual_seed(0)
        features = {}
        if "gram" in self.fields:
            features[f"{branch}_gram"] = torch.eye(tokens).expand(items, -1, -1).contiguous()
        if "tokens" in self.fields:
            features[f"{branch}_tokens"] = torch.randn(shape, generator=generator)
        if "summary" in self.fields:
            features[f"{branch}_summary"] = torch.randn(items, summary, generator=generator)
        return features
