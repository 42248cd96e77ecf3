"""Sets up what distillation and fusion add to a run: students, the teacher's cache for the loader, the loss.

The cache may be `auto`: then the first run makes it and the others wait. A dry run comes before any cache and has
`FakeTeacherCache` instead.
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
from dinorankclip.config import DistilSettings, ReadingSettings, TrainSettings
from dinorankclip.data.streams import refuse_stream
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.io import if_free
from dinorankclip.losses.distillation_terms import Branch, DistillationLoss, keeping_for, needed
from dinorankclip.methods import AUTO, traits_of
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.teachers.cache_format import REDUCED, CacheLayout
from dinorankclip.teachers.cache_read import WHOLE_VIEW, TeacherCache, half_as_fine
from dinorankclip.teachers.cache_request import CacheSpec, amount, automatic_folder, cache_of_data, is_complete
from dinorankclip.teachers.registry import check_teacher_spec, shape_of
from dinorankclip.teachers.text_teachers import bpe_word_ids
from dinorankclip.train.run_folder import say
from dinorankclip.types import Source, UserError, View

LOOK_EVERY = 10  # seconds, while another run makes the cache
WORDS = 12  # of a caption, in a fake cache


def students_and_fusion(settings: TrainSettings) -> tuple[Students, FusionDesign]:
    """The students and the fusion that settings ask for.

    Students come with a teacher's cache or with fusion; fusion may do without a teacher (a control).
    """
    fusion, distil = FusionDesign(settings.fusion.variant, settings.fusion.gate), settings.distil
    if fusion.variant == "none" and (distil.cache is None or distil.into == "trunk"):
        return Students(), FusionDesign()
    return Students(distil.image_student, distil.text_student if distil.branches == "image+text" else None), fusion


def teach(model: JointModel, settings: TrainSettings) -> None:
    """Set what learns beside the contrast: students alone, or with `distil.into trunk` the trunk's own tokens."""
    model.students_only = not traits_of(settings.method).contrasts
    if settings.distil.cache is not None and settings.distil.into == "trunk":
        if model.students != Students():
            raise UserError(f"{settings.init} has students: --distil.into trunk teaches a trunk that has none")
        model.teach_trunk(*settings.distil.branches.split("+"))


def with_cache(settings: TrainSettings, dry: bool = False) -> TrainSettings:
    """Settings whose cache is a folder: `auto` becomes the folder that `make_missing_cache` makes.

    A dry run keeps `auto` as long as the folder is missing, and says what is to do.
    """
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


def make_missing_cache(settings: TrainSettings, device: torch.device, folder: Path | None = None) -> None:
    """Make the cache that `auto` stands for, unless it is complete. All processes call.

    `folder`: its name, if `with_cache` was called before; to find it takes a look at all of the data.
    """
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
                cache_of_data(folder, spec, settings.reading, device)


def cache_spec_of(settings: TrainSettings) -> CacheSpec:
    """The contents of the cache that `auto` stands for."""
    distil = settings.distil
    return CacheSpec(
        settings.data,
        distil.teacher,
        distil.teacher_size,
        distil.text_teacher if distil.branches == "image+text" else None,
        CacheLayout(keeping_for(distil.criterion)),
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other run makes this cache: of runs that are started together, one makes it.

    Waiting may take hours, longer than processes wait for each other: they agree anew after each look.
    """
    announced = False
    while True:
        with if_free(folder.name, folder.parent) if distributed.world().leads else nullcontext(False) as free:
            if distributed.any_process(free)[0]:
                yield
                distributed.wait_for_all()
                return
        if not announced:
            say("another run is at it; waiting")
            announced = True
        time.sleep(LOOK_EVERY)


def open_cache(
    settings: DistilSettings, reading: ReadingSettings, train: Source, tokenizer: Tokenizer
) -> TeacherCache | FakeTeacherCache | None:
    """The cache of the training part, checked against the data; None without distillation."""
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
    plan = cache.plan
    teachers = f"teacher {plan['teacher']}" + (f" and {plan['text']['teacher']}" if texts else "")
    notes = "; ".join(filter(None, (plan["note"], plan["text"]["note"] if texts else "")))
    say(
        f"{teachers} ({notes or 'frozen'}), cached on {cache.grid[0]}×{cache.grid[1]} tokens, "
        f"compared on {cache.compare_grid[0]}×{cache.compare_grid[1]}"
    )
    if "summary" in cache.fields and not cache.summary_follows and reading.crop_scale[0] < WHOLE_VIEW:
        say(
            f"  note: crops show down to {reading.crop_scale[0]:.0%} of an image, and without cached tokens the class "
            "token of the whole image stands for them all (teacher cache --keep both follows crops)"
        )
    return cache


def cache_part(settings: DistilSettings, part: str, tokenizer: Tokenizer | None) -> TeacherCache:
    """One part of the settings' cache, giving what the criterion needs. `tokenizer`: captions too."""
    assert settings.cache is not None, "the settings must name a cache"
    cache = TeacherCache(settings.cache, part, compare_grid=settings.compare_grid, tokenizer=tokenizer)
    cache.fields = needed(settings.criterion, cache.plan["keep"])
    return cache


def distillation_loss(
    settings: DistilSettings, model: JointModel, cache: TeacherCache | FakeTeacherCache | None, seed: int
) -> DistillationLoss | None:
    if cache is None:
        return None
    text, learners = None, model.learners
    if settings.branches == "image+text":  # a text student that --init brings may be there without a teacher
        plan = cache.plan["text"]
        text = Branch(learners["text"].width, plan["reduced"], plan["summary_width"])
    image = Branch(learners["image"].width, cache.width, cache.summary_width)
    return DistillationLoss(settings, image, learners["image"].grid, cache.compare_grid, text, seed)


class FakeTeacherCache:
    """Random features in the shapes of a `TeacherCache`, to time a step before any cache is made.

    `network`: the teacher whose features have these shapes.
    """

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
        self.fields = needed(settings.criterion, keeping_for(settings.criterion))
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

    def _draw(self, branch: str, shape: tuple[int, int, int], summary: int) -> dict[str, Tensor]:
        """`shape`: of the branch's tokens; `summary`: width of its class token."""
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
