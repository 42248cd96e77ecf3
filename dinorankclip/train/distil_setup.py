"""Features of the right shapes that no teacher computed: a dry run times a step before any cache is there."""

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
from dinorankclip.data.streams import PipeSource
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.io import if_free
from dinorankclip.losses.distillation_terms import Branch, DistillationLoss, keeping_for, needed
from dinorankclip.methods import AUTO, traits_of
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.teachers.cache_format import REDUCED, CacheLayout
from dinorankclip.teachers.cache_read import WHOLE_VIEW, TeacherCache, half_as_fine
from dinorankclip.teachers.cache_request import AUTOMATIC, CacheSpec, amount, automatic_folder, cache_of_data, is_complete
from dinorankclip.teachers.caption_features import bpe_word_ids
from dinorankclip.teachers.registry import demand_known, shape_of
from dinorankclip.train.run_folder import say
from dinorankclip.types import Source, UserError, View

SIZE, WORDS = 224, 12


class StandIn:
    """A `types.TeacherFeatureProvider` with a `TeacherCache`'s attributes; every item looks the same.

    `network`: whose features have these shapes.
    """

    identity = "stand-in"

    def __init__(self, settings: DistilSettings, tokenizer: Tokenizer | None) -> None:
        image, text = shape_of(settings.teacher, "image"), shape_of(settings.text_teacher, "text")
        self.network = image.network
        assert image.patch is not None, "an image teacher has patches"
        grid = (settings.teacher_size or SIZE) // image.patch
        side = settings.compare_grid or half_as_fine(grid)
        self.grid, self.compare_grid = (grid, grid), (side, side)
        self.width, self.summary_width = min(REDUCED, image.width), image.summary
        self.plan = {"text": {"reduced": min(REDUCED, text.width), "summary_width": text.summary}}
        self.wanted = needed(settings.criterion, keeping_for(settings.criterion))
        self._tokenizer = tokenizer

    def check_data(self, source: Source) -> None:
        """Any data will do."""

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]:
        found = self._features("image", (len(keys), self.compare_grid[0] ** 2, self.width), self.summary_width)
        if self._tokenizer is not None:
            text = self.plan["text"]
            found |= self._features("text", (len(keys), WORDS, text["reduced"]), text["summary_width"])
            if self.wanted & {"gram", "tokens"}:
                found["text_mask"] = torch.ones(len(keys), WORDS, dtype=torch.bool)
                found["text_word_ids"] = bpe_word_ids(self._tokenizer, captions).clamp_max(WORDS - 1)
        return found

    def _features(self, branch: str, shape: tuple[int, int, int], summary: int) -> dict[str, Tensor]:
        """`shape`: of the branch's tokens."""
        items, tokens, _ = shape
        draws = torch.Generator().manual_seed(0)
        found = {}
        if "gram" in self.wanted:
            found[f"{branch}_gram"] = torch.eye(tokens).expand(items, -1, -1).contiguous()
        if "tokens" in self.wanted:
            found[f"{branch}_tokens"] = torch.randn(shape, generator=draws)
        if "summary" in self.wanted:
            found[f"{branch}_summary"] = torch.randn(items, summary, generator=draws)
        return found


# -------- distilling
# The parts of a run that distillation and fusion add: students, the cache as the loader's teacher_features, the loss.

LOOK_EVERY = 10  # seconds, while another run makes the cache


def wanted_parts(settings: TrainSettings) -> tuple[Students, FusionDesign]:
    """Students come with a teacher's cache or with fusion; fusion may do without a teacher (a control)."""
    fusion, distil = FusionDesign(settings.fusion.variant, settings.fusion.gate), settings.distil
    if fusion.variant == "none" and (distil.cache is None or distil.into == "trunk"):
        return Students(), FusionDesign()
    return Students(distil.image_student, distil.text_student if distil.branches == "image+text" else None), fusion


def teach(model: JointModel, settings: TrainSettings) -> None:
    """Decide who learns beside the contrast: with `distil.into trunk` the trunk's own tokens do."""
    model.students_only = not traits_of(settings.method).contrasts
    if settings.distil.cache is not None and settings.distil.into == "trunk":
        if model.students != Students():
            raise UserError(f"{settings.init} has students: --distil.into trunk teaches a trunk that has none")
        model.teach_trunk(*settings.distil.branches.split("+"))


def with_cache(settings: TrainSettings, dry: bool = False) -> TrainSettings:
    """Settings whose cache is a folder: `auto` becomes the one that `make_missing_cache` makes. A dry run keeps `auto`
    as long as there is none, and says what is to do."""
    if settings.distil.cache != AUTO:
        return settings
    wish = wish_of(settings)
    demand_known(wish.teacher, "image")  # before the data is looked at and anything is announced
    if wish.text_teacher is not None:
        demand_known(wish.text_teacher, "text")
    folder = automatic_folder(wish, settings.reading)
    if dry and not is_complete(folder):
        images, captions = amount(wish, settings.reading)
        told = f"{images:,} images" + (f" and about {captions:,} captions" if captions else "")
        say(f"before training, the teacher's features of {told} would be cached in {folder}: not in the times below")
        return settings
    return replace(settings, distil=replace(settings.distil, cache=str(folder)))


def make_missing_cache(settings: TrainSettings, device: torch.device, folder: Path | None = None) -> None:
    """Make the cache that `auto` stands for, unless it is there. `folder`: its name, if `with_cache` has found it,
    which looks at all of the data. All processes call."""
    if settings.distil.cache != AUTO:
        return
    wish = wish_of(settings)
    folder = folder or automatic_folder(wish, settings.reading)
    if settings.budget.threads is not None:
        torch.set_num_threads(settings.budget.threads)
    if distributed.any_process(not is_complete(folder))[0]:
        say(f"caching the teacher's features in {folder}, once for all runs on this data")
        with _alone(folder):
            if distributed.any_process(not is_complete(folder))[0]:
                cache_of_data(folder, wish, settings.reading, device)


def wish_of(settings: TrainSettings) -> CacheSpec:
    """What the cache `auto` of these settings is made of."""
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
    """Runs that are started together want the same cache: one makes it, the others wait and find it there.

    Waiting may take hours, longer than processes wait for each other: they agree anew after each look.
    """
    told = False
    while True:
        with if_free(folder.name, AUTOMATIC) if distributed.world().leads else nullcontext(False) as free:
            if distributed.any_process(free)[0]:
                yield
                distributed.wait_for_all()
                return
        if not told:
            say("another run is at it; waiting")
            told = True
        time.sleep(LOOK_EVERY)


def open_cache(
    settings: DistilSettings, reading: ReadingSettings, train: Source | PipeSource, tokenizer: Tokenizer
) -> TeacherCache | StandIn | None:
    """The cache of the training part, checked against the data; None without distillation."""
    if settings.cache is None:
        return None
    if settings.cache == AUTO:
        found = StandIn(settings, tokenizer if settings.branches == "image+text" else None)
        say(f"the teacher's features are stand-ins of {found.network}'s shape: no cache is read in the times below")
        return found
    if isinstance(train, PipeSource):
        raise UserError("--distil.cache finds features by key, and pipe: shards have no cache: store the data first")
    texts = settings.branches == "image+text"
    cache = cache_part(settings, "train", tokenizer if texts else None)
    cache.check_data(train)
    plan = cache.plan
    says = f"teacher {plan['teacher']}" + (f" and {plan['text']['teacher']}" if texts else "")
    notes = "; ".join(filter(None, (plan["note"], plan["text"]["note"] if texts else "")))
    say(
        f"{says} ({notes or 'frozen'}), cached on {cache.grid[0]}×{cache.grid[1]} tokens, "
        f"compared on {cache.compare_grid[0]}×{cache.compare_grid[1]}"
    )
    if "summary" in cache.wanted and not cache.summary_follows and reading.crop_scale[0] < WHOLE_VIEW:
        say(
            f"  note: crops show down to {reading.crop_scale[0]:.0%} of an image, and without cached tokens the class "
            "token of the whole image stands for them all (teacher cache --keep both follows crops)"
        )
    return cache


def cache_part(settings: DistilSettings, part: str, tokenizer: Tokenizer | None) -> TeacherCache:
    """One part of the settings' cache, giving what the criterion needs. `tokenizer`: captions too."""
    assert settings.cache is not None, "whoever asks for a part has a cache"
    cache = TeacherCache(
        settings.cache, part, compare_grid=settings.compare_grid, tokenizer=tokenizer
    )
    cache.wanted = needed(settings.criterion, cache.plan["keep"])
    return cache


def distillation_loss(
    settings: DistilSettings, model: JointModel, cache: TeacherCache | StandIn | None, seed: int
) -> DistillationLoss | None:
    if cache is None:
        return None
    text, learners = None, model.learners
    if settings.branches == "image+text":  # a text student that --init brings may be there without a teacher
        told = cache.plan["text"]
        text = Branch(learners["text"].width, told["reduced"], told["summary_width"])
    image = Branch(learners["image"].width, cache.width, cache.summary_width)
    return DistillationLoss(settings, image, learners["image"].grid, cache.compare_grid, text, seed)
