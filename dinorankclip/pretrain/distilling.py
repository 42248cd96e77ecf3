"""The parts of a run that distillation adds: students, the cache as the loader's companions, the loss."""

from __future__ import annotations

from dinorankclip.config import DistilSettings, ReadingSettings
from dinorankclip.data.pipes import PipeSource
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.dino.cached import WHOLE_VIEW, TeacherCache
from dinorankclip.equations import resample_grid
from dinorankclip.joint.model import JointModel, Students
from dinorankclip.losses.distillation import Branch, DistillationLoss, needed
from dinorankclip.pretrain.records import say
from dinorankclip.types import Source, UserError


def wanted_students(settings: DistilSettings) -> Students:
    """None without a cache."""
    if settings.cache is None:
        return Students()
    return Students(settings.image_student, settings.text_student if settings.branches == "image+text" else None)


def open_cache(
    settings: DistilSettings, reading: ReadingSettings, train: Source | PipeSource, tokenizer: Tokenizer
) -> TeacherCache | None:
    """The cache of the training part, checked against the data; None without distillation."""
    if settings.cache is None:
        return None
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
    cache = TeacherCache(
        settings.cache, part, resample=resample_grid, compare_grid=settings.compare_grid, tokenizer=tokenizer
    )
    cache.wanted = needed(settings.criterion, cache.plan["keep"])
    return cache


def distillation_loss(
    settings: DistilSettings, model: JointModel, cache: TeacherCache | None, seed: int
) -> DistillationLoss | None:
    if cache is None:
        return None
    text = None
    if model.text_student is not None:
        text = Branch(model.text_student.width, cache.plan["text"]["reduced"], cache.plan["text"]["summary_width"])
    student = model.image_student
    image = Branch(student.width, cache.width, cache.summary_width)
    return DistillationLoss(settings, image, student.grid, cache.compare_grid, text, seed)
