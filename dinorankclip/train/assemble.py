"""Builds the objects of a run from its settings (data, model, objective, loader, optimiser), and resumes it."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dinorankclip import distributed
from dinorankclip.config import FindingSettings, ReadingSettings, TrainSettings, as_dict
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import open_pairs, open_stored, splits_of
from dinorankclip.data.replay import ReplayLoader
from dinorankclip.data.row_pieces import RowPieces
from dinorankclip.data.second_captions import open_second_captions
from dinorankclip.device import Placement, choose, keep_freed_memory
from dinorankclip.finetuning import START
from dinorankclip.losses.objective import Objective
from dinorankclip.methods import traits_of
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.folder import AnyModel, load_folder
from dinorankclip.models.foreign import foreign_model, is_foreign
from dinorankclip.models.joint import FusionDesign, JointModel, Students, fusion_start_words
from dinorankclip.models.lora import correct
from dinorankclip.models.open_clip_weights import refuse_foreign_captions, weights_caution
from dinorankclip.models.trunk import trunk_config
from dinorankclip.pieces.contract import HERE, Where, Work
from dinorankclip.pieces.run import make_pieces
from dinorankclip.presets import default_settings
from dinorankclip.run_files import CHECKPOINTS, data_of, refuse_command, runs_behind, taught_by
from dinorankclip.stored_settings import settings_from_json
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.train.aligned_setup import new_aligned_model, set_scales
from dinorankclip.train.checkpoints import TrainingState
from dinorankclip.train.compiled import compile_towers
from dinorankclip.train.cost import run_data
from dinorankclip.train.distil_setup import (
    FakeTeacherCache,
    anchor_loss,
    distillation_loss,
    fusion_design,
    open_cache,
    students_and_fusion,
    teach,
)
from dinorankclip.train.frozen_rows import FrozenImages, freeze_image_side, frozen_images, image_maker, max_damaged_of
from dinorankclip.train.loop import Length
from dinorankclip.train.run_folder import say
from dinorankclip.train.step import Updater, freeze
from dinorankclip.train.tower_rows import open_tower_pieces, tower_rows
from dinorankclip.train.whole_checkpoints import newest_whole
from dinorankclip.types import Source, UserError

Choice = TypeVar("Choice", str, FusionDesign)


@dataclass
class RunParts:
    """Holds the objects of a run. `held_out` maps "val" and, if the data has one, "test" to its pairs."""

    settings: TrainSettings
    placement: Placement
    state: TrainingState
    length: Length
    tokenizer: Any  # a Tokenizer, or the rows of captions of frozen towers
    loader: PairLoader | ReplayLoader
    train: Source
    held_out: dict[str, Source]
    frozen: FrozenImages | None = None  # rows of all images, if the image side does not learn


def assemble(settings: TrainSettings, dry: bool = False, where: Where = HERE) -> RunParts:
    """Join the processes, open the data, build model, objective and optimiser. Writes no run folder.
    With `dry`, random features replace the results of long preparations. Workers `where` compute frozen rows."""
    world = distributed.join(settings.budget.device)
    keep_freed_memory()
    if settings.budget.threads is not None:
        torch.set_num_threads(settings.budget.threads)
    torch.manual_seed(settings.seed + world.rank)
    placement = choose(settings.budget.device, settings.budget.precision, world.local_rank)
    say(placement.reason)
    if placement.device.type == "cuda":
        torch.cuda.set_device(placement.device)  # the default GPU of this process
    train, held_out = _open_parts(settings)
    deal = partial(_deal_rows, settings, where)
    model = build_model(settings).to(placement.device)
    freeze(model, settings.optim.freeze)
    frozen = None
    tokenizer: Any = model.tokenizer()
    if isinstance(model, AlignedModel):
        frozen, tokenizer = tower_rows(model, {"train": train, **held_out}, settings.reading, dry, deal)
        if settings.init is None:
            set_scales(model, frozen, tokenizer, train)
    elif settings.model.frozen_image_tower:
        freeze_image_side(model)
        frozen = frozen_images(model, {"train": train, **held_out}, settings.reading, dry, deal)
    if settings.tune.lora_rank is not None:
        tune = settings.tune
        counts = correct(model, settings.tune.lora_rank, tune.lora_alpha, tune.lora_targets, settings.seed)
        share = 100 * sum(counts.values()) / sum(t.numel() for t in model.own_state().values())
        say(f"LoRA of rank {tune.lora_rank} on {len(counts)} matrices: {share:.2g} % of the model's parameters learn")
    model.train()  # after freezing: frozen batch norms keep their statistics
    _refuse_batch_statistics(model, settings)
    cache = open_cache(settings.distil, settings.reading, train, tokenizer, settings.seed)
    distillation = None
    if isinstance(model, JointModel):
        distillation = distillation_loss(settings.distil, model, cache, settings.seed)
    two_captions = traits_of(settings.method).second_caption or settings.loss.two_captions
    second = open_second_captions(train, settings.reading) if two_captions else None
    anchor = anchor_loss(settings, model.dim, cache, train)
    objective = Objective(model.dim, settings.method, settings.loss, settings.seed, distillation, anchor)
    objective.to(placement.device)
    if objective.needs_teacher:
        _provide_summaries(model, cache)
    if settings.budget.compile:
        compile_towers(model)
    replayed = _replayed(settings)
    common: dict[str, Any] = {"seed": settings.seed, "rank": world.rank, "world": world.size}
    common["pinned"] = placement.device.type == "cuda"
    own = PairLoader(
        train,
        model.image_spec,
        tokenizer,
        batch=settings.budget.batch - replayed,
        reading=settings.reading,
        **common,
        second_caption=two_captions,
        lone_caption_twice=settings.loss.two_captions,
        teacher_features=cache,
        rows=frozen.rows["train"] if frozen else None,
        second_captions=second,
    )
    loader: PairLoader | ReplayLoader = own
    if not distributed.same_everywhere(replayed):
        raise UserError("the data of --init are not at hand on every machine: add --tune.replay none")
    if replayed:
        other, reading = _replay_source(settings), _replay_reading(settings)
        second_loader = PairLoader(other, model.image_spec, tokenizer, batch=replayed, reading=reading, **common)
        loader = ReplayLoader(own, second_loader, other.fingerprint)
        say(f"replay: {replayed} of {settings.budget.batch} pairs of a batch come from {_replay_words(settings)}")
    length = Length.of(settings.budget, loader.steps_per_epoch)
    updater = Updater({"model": model, "objective": objective}, settings.optim, length.steps)
    data = "+".join([train.fingerprint, *(added.identity for added in (cache, second) if added)])
    data += f"+{loader.identity}" if isinstance(loader, ReplayLoader) else ""
    state = TrainingState(model, objective, updater, data)
    return RunParts(settings, placement, state, length, tokenizer, loader, train, held_out, frozen)


def _open_parts(settings: TrainSettings) -> tuple[Source, dict[str, Source]]:
    train = open_pairs(settings.data, settings.reading, "train")
    splits = ("val", "test") if "test" in splits_of(settings.data, settings.reading) else ("val",)
    return train, {split: open_stored(settings.data, settings.reading, split) for split in splits}


def _deal_rows(settings: TrainSettings, where: Where, pieces: RowPieces, name: str) -> None:
    work = Work(f"{__name__}:open_rows", {"settings": as_dict(settings), "rows": name}, settings.budget.device)
    make_pieces(pieces, where, work, pieces.folder)


def open_rows(stored: dict[str, Any]) -> RowPieces:
    """Open the rows of one part, or of the captions, in a worker elsewhere."""
    settings, name = settings_from_json(stored["settings"]), stored["rows"]
    placement = choose(settings.budget.device, settings.budget.precision)
    train, held_out = _open_parts(settings)
    parts = {"train": train, **held_out}
    model = build_model(settings).to(placement.device)
    if isinstance(model, AlignedModel):
        return open_tower_pieces(model, parts, settings.reading, name)
    model.eval()
    return image_maker(model, settings.reading).pieces(parts[name], name, max_damaged_of(name, settings.reading))


def _replay_words(settings: TrainSettings) -> str:
    where = settings.tune.replay
    return f"the data of {settings.init}" if where == START else str(where)


def _replay_source(settings: TrainSettings) -> Source:
    """Open the pairs of which each batch holds a share. Those of the start are found and divided as its run did it, so
    that its held-out part stays unseen."""
    where = settings.tune.replay
    assert where is not None, "a run without replay does not come here"
    if where != START:
        return open_pairs(where, _replay_finding(settings), "train")
    if (run := taught_by(settings.init, settings.data)) is None or (known := run_data(run)) is None:
        raise UserError(
            "--tune.replay start: --init names no run of this package that began from random weights, so name the data"
        )
    refuse_command(known.where, run)
    return open_pairs(known.where, known.reading, "train")


def _replay_finding(settings: TrainSettings) -> FindingSettings:
    """Return how replayed pairs are found and divided: as a run behind the start did it, if they are its data."""
    where, runs = settings.tune.replay, runs_behind(settings.init)[0] if settings.init else []
    if where == START:
        where = data_of(runs[-1]) if runs else where
    found = (known.reading for run in runs if (known := run_data(run)) and known.is_same(str(where)))
    return next(found, FindingSettings())


def _replay_reading(settings: TrainSettings) -> ReadingSettings:
    """Return how replayed pairs are read: as own pairs, but with the columns and limits of the run that had them."""
    finding, own = _replay_finding(settings), settings.reading
    theirs = {field.name: getattr(finding, field.name) for field in fields(FindingSettings)}
    theirs["max_pixels"] = max(own.max_pixels, finding.max_pixels)
    return replace(own, **theirs, second_captions=None, second_caption_column=None)


def _replayed(settings: TrainSettings) -> int:
    """Return the pairs of a batch that are replayed, the same number on every process."""
    if settings.tune.replay is None:
        return 0
    size = distributed.world().size
    share = max(1, round(settings.budget.batch * settings.tune.replay_share / size)) * size
    if share >= settings.budget.batch:
        raise UserError(f"--tune.replay-share {settings.tune.replay_share:g} leaves no place for own pairs in a batch")
    return share


def build_model(settings: TrainSettings) -> AnyModel:
    """Build the model from `init` (a folder or open_clip model), from open_clip weights (`model.weights`) or anew."""
    if settings.recipe == "aligned":
        return _aligned_model(settings)
    if settings.init is not None:
        usual = default_settings(settings.preset, settings.method, settings.recipe)
        if replace(settings.model, frozen_image_tower=False) != usual.model:
            raise UserError("--init brings the whole model of that folder: leave out --model.*")
        model = _trained_model(settings.init)
        if isinstance(model, AlignedModel):
            raise UserError(f"--init {settings.init} is an aligned model of frozen towers: add --recipe aligned")
        model.set_parts(*_continued(model, settings), settings.seed)
    else:
        config = trunk_config(settings.model.trunk, settings.model.image_size)
        refuse_foreign_captions(config, settings.model.trunk)
        model = JointModel(config, settings.seed, *students_and_fusion(settings))
        if settings.model.weights is not None:
            if caution := weights_caution(settings.model.trunk):
                say(f"note: {caution}")
            model.trunk.load_weights(settings.model.weights)
    if traits_of(settings.method).biased:
        model.trunk.start_sigmoid()
    teach(model, settings)
    return model


def starting_model(settings: TrainSettings) -> AnyModel:
    """Build the model from which a run started once more, without the remarks that its start made."""
    with contextlib.redirect_stdout(io.StringIO()):
        return build_model(settings)


def _aligned_model(settings: TrainSettings) -> AlignedModel:
    """Build an aligned model anew, or continue with that of `--init`."""
    if settings.init is None:
        return new_aligned_model(settings)
    model = load_folder(settings.init) if not is_foreign(settings.init) else None
    if not isinstance(model, AlignedModel):
        raise UserError(f"--init {settings.init} is no aligned model: leave out --recipe aligned, or --init")
    model.set_dropout(settings.aligned.dropout)
    return model


def _provide_summaries(model: AnyModel, cache: TeacherCache | FakeTeacherCache | None) -> None:
    """Make an aligned model, or the cache of another model, give the teachers' summaries to the ranking loss."""
    if isinstance(model, AlignedModel):
        model.gives_summaries = True
    elif cache is not None:
        cache.fields |= {"summary"}


def _trained_model(where: str) -> AnyModel:
    if not is_foreign(where):
        return load_folder(where)
    model, caution = foreign_model(where)
    if caution:
        say(f"note: {caution}")
    return model


def _continued(model: JointModel, settings: TrainSettings) -> tuple[Students, FusionDesign]:
    """Return the students and the fusion with which a trained model (`--init`) continues. The model keeps its own
    unless the user selects others; defaults of preset, method and recipe do not count as a selection."""
    asked, asked_fusion = students_and_fusion(settings)
    usual = default_settings(settings.preset, settings.method, settings.recipe)
    names = {}
    for branch in ("image", "text"):
        own, name = getattr(model.students, branch), getattr(asked, branch)
        if name is None and model.fusion.variant == "none":
            own = None  # the embeddings do not use this student, and no teacher would train it
        names[branch] = _choose(settings, f"{branch} student", own, name, getattr(usual.distil, f"{branch}_student"))
    own_fusion, new_fusion = (None if each.variant == "none" else each for each in (model.fusion, asked_fusion))
    # A fused model embeds through its fusion, so fine-tuning continues with that fusion.
    default = fusion_design(usual.fusion)
    fusion = _choose(settings, "fusion", own_fusion, new_fusion, default)
    return Students(names["image"], names["text"]), fusion or FusionDesign()


def _choose(
    settings: TrainSettings, what: str, own: Choice | None, asked: Choice | None, usual: Choice
) -> Choice | None:
    if own is None or own == asked:
        return asked
    if asked is None:
        return own
    if asked == usual:
        say(f"{settings.init} keeps its {what} ({_words(own)}); the default {_words(asked)} is for models without one")
        return own
    say(f"note: the {what} of {settings.init} ({_words(own)}) gives way to a fresh one ({_words(asked)}), as asked")
    return asked


def _words(choice: str | FusionDesign) -> str:
    if isinstance(choice, str):
        return choice
    return choice.variant + ("" if choice.gate else " without gate") + fusion_start_words(choice)


def _refuse_batch_statistics(model: nn.Module, settings: TrainSettings) -> None:
    """Refuse BatchNorm with chunks or several processes: it sees a part of the batch, and results would differ."""
    cut = distributed.world().size > 1 or (settings.budget.chunk or settings.budget.batch) < settings.budget.batch
    if cut and any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
        raise UserError(
            f"the trunk {settings.model.trunk} uses BatchNorm, whose statistics depend on how a batch is cut: use one "
            "process without --budget.chunk, or a trunk without it (any ViT), or freeze it"
        )


def resume(parts: RunParts, run: Path) -> None:
    """Continue from the run's newest whole checkpoint, if there is one."""
    newest = newest_whole(run / CHECKPOINTS)
    if newest is not None:
        parts.state.read(newest)
        if parts.frozen is not None:
            parts.frozen.demand(parts.state.model)
        parts.loader.step = parts.state.step
        say(f"resuming from {newest}")
    if not distributed.same_everywhere(parts.state.step):
        raise UserError(
            f"process {distributed.world().rank} would go on at step {parts.state.step}, others elsewhere: "
            "the run folder must be on a disk that all machines share"
        )
